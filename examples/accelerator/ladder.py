# SPDX-License-Identifier: Apache-2.0
"""The ladder of a matrix product on an accelerator, in six steps, each a schedule of the same function.

    python examples/opencl/ladder.py            # runs all, compares them, prints times (needs microc[opencl] and a driver)
    python examples/opencl/ladder.py --source tiled

Every step changes how the product is computed and none what: all results are equal, bit for bit, to the loops in order.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import numpy as np

import microc
from microc import te

SIDE, OWN, LANES = 8, 4, 4
"""Items of a group along each side; rows and columns that one computes; floats of a vector."""


def product(n: int) -> microc.Schedule:
    """``C[i, j] = sum(A[i, k] * B[k, j] for k < n)``, in floats."""
    a, b = te.placeholder((n, n), "float32", "A"), te.placeholder((n, n), "float32", "B")
    k = te.reduce_axis(n, "k")
    c = te.compute((n, n), lambda i, j: te.sum_reduce(a[i, k.var] * b[k.var, j], k), "C", ("i", "j"))
    return microc.Schedule(te.create_prim_func("product", [a, b], [c]))


def naive(n: int) -> microc.Schedule:
    """An item for every element. Its sum goes through memory, term by term."""
    schedule = product(n).split("i", (None, SIDE)).split("j", (None, SIDE))
    schedule = schedule.reorder("i_0", "j_0", "i_1", "j_1", "k")
    return on_items(on_groups(schedule), "i_1", "j_1")


def tiled(n: int) -> microc.Schedule:
    """A group makes a tile of the result, a run of terms at a time; sums stay in registers."""
    return on_items(tile(product(n), own=1), "i_1", "j_1")


def shared(n: int) -> microc.Schedule:
    """Each run begins with a copy of its part of both matrices into the group's memory, made by all of its items."""
    schedule = on_items(tile(product(n), own=1, copies=True), "i_1", "j_1")
    for copy in ("A_shared", "B_shared"):
        schedule = on_items(schedule, *schedule.loops_of(copy)[-2:])
    return schedule


def registers(n: int) -> microc.Schedule:
    """An item makes several rows and columns, and uses what it read from the group's memory for all of them."""
    return blocked(n, copy_apart)


def vectorised(n: int) -> microc.Schedule:
    """Copies move vectors."""
    return blocked(n, copy_vectors)


def double_buffered(n: int) -> microc.Schedule:
    """The copy for the next run is under way while this one is computed: the group waits half as often."""
    return vectorised(n).prefetch("k_0")


LADDER: dict[str, Callable[[int], microc.Schedule]] = {
    step.__name__: step for step in (naive, tiled, shared, registers, vectorised, double_buffered)
}


def tile(schedule: microc.Schedule, own: int, copies: bool = False) -> microc.Schedule:
    """Groups of tiles with the sums in registers, in loops ``i_1`` and ``j_1`` of items that make ``own`` x ``own``."""
    schedule = schedule.cache_write("C", "register")
    if copies:
        schedule = schedule.cache_read("C", "A", "shared").cache_read("C", "B", "shared")
    side = SIDE * own
    for loop in "ijk":
        schedule = schedule.split(loop, (None, SIDE if loop == "k" and own == 1 else side))
    schedule = schedule.reorder("i_0", "j_0", "k_0", "i_1", "j_1", "k_1").decompose_reduction("C", "k_0")
    for copy in ("A_shared", "B_shared") if copies else ():
        schedule = schedule.compute_at(copy, "k_0")
    schedule = on_groups(schedule.reverse_compute_at("C_register", "j_0"))
    for block in ("C_init", "C_register"):
        rows, columns = schedule.loops_of(block)[-2:]
        schedule = on_items(parts(schedule, rows, columns, own), *first(rows, columns, own))
    return schedule


def blocked(n: int, copy: Callable[[microc.Schedule, str], microc.Schedule]) -> microc.Schedule:
    """Items with a part of their own in registers; ``copy`` shares out the loops of a copy."""
    schedule = parts(tile(product(n), OWN, copies=True), "i_1", "j_1", OWN)
    schedule = schedule.reorder("i_1_0", "j_1_0", "k_1", "i_1_1", "j_1_1").unroll("i_1_1").unroll("j_1_1")
    schedule = on_items(schedule, "i_1_0", "j_1_0")
    for name in ("A_shared", "B_shared"):
        schedule = copy(schedule, name)
    return schedule


def copy_apart(schedule: microc.Schedule, name: str) -> microc.Schedule:
    """Neighbours copy neighbours."""
    rows, columns = schedule.loops_of(name)[-2:]
    schedule = schedule.split(rows, (None, SIDE)).split(columns, (None, SIDE))
    schedule = schedule.reorder(f"{rows}_1", f"{columns}_1", f"{rows}_0", f"{columns}_0")
    return on_items(schedule, f"{rows}_1", f"{columns}_1")


def copy_vectors(schedule: microc.Schedule, name: str) -> microc.Schedule:
    """A vector each."""
    rows, columns = schedule.loops_of(name)[-2:]
    schedule = schedule.split(rows, (None, SIDE)).split(columns, (None, LANES))
    schedule = schedule.reorder(f"{rows}_1", f"{columns}_0", f"{rows}_0", f"{columns}_1")
    return on_items(schedule, f"{rows}_1", f"{columns}_0").vectorize(f"{columns}_1")


def parts(schedule: microc.Schedule, rows: str, columns: str, own: int) -> microc.Schedule:
    """Loops over ``own`` rows and columns inside of those over items, one by one."""
    if own == 1:
        return schedule
    schedule = schedule.split(rows, (None, own)).split(columns, (None, own))
    schedule = schedule.reorder(f"{rows}_0", f"{columns}_0", f"{rows}_1", f"{columns}_1")
    return schedule.unroll(f"{rows}_1").unroll(f"{columns}_1")


def first(rows: str, columns: str, own: int) -> tuple[str, str]:
    return (rows, columns) if own == 1 else (f"{rows}_0", f"{columns}_0")


def on_groups(schedule: microc.Schedule) -> microc.Schedule:
    return schedule.bind("i_0", "blockIdx.y").bind("j_0", "blockIdx.x")


def on_items(schedule: microc.Schedule, rows: str, columns: str) -> microc.Schedule:
    return schedule.bind(rows, "threadIdx.y").bind(columns, "threadIdx.x")


def main() -> int:
    parser = argparse.ArgumentParser(description="six schedules of a matrix product on an accelerator")
    parser.add_argument(
        "--size", type=int, default=512, help="rows and columns, a multiple of 32 (default: %(default)s)"
    )
    parser.add_argument("--source", choices=LADDER, help="print the kernel of a step and do nothing else")
    args = parser.parse_args()
    if args.size < 32 or args.size % 32:
        parser.error(f"--size {args.size} is no multiple of 32")
    if args.source:
        print(microc.build(LADDER[args.source](args.size), "opencl").source, end="")
        return 0
    a, b = np.random.default_rng(0).normal(size=(2, args.size, args.size)).astype(np.float32)
    right = microc.build(product(args.size))(a, b)  # the loops in order, in C
    try:
        for name, step in LADDER.items():
            kernel = microc.build(step(args.size), "opencl")
            equal = np.array_equal(kernel(a, b), right)
            seconds = kernel.time_evaluator(a, b, number=3, repeats=3).min
            speed = 2e-9 * args.size**3 / seconds
            print(f"{name:16} {seconds * 1e3:9.2f} ms {speed:8.2f} GFLOP/s  {'equal' if equal else 'DIFFERS'}")
    except microc.errors.ToolError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"on {kernel.device}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
