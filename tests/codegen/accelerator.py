# SPDX-License-Identifier: Apache-2.0
"""Whether kernels of OpenCL can be run here."""

from __future__ import annotations

from functools import cache

import pytest

from microc import te
from microc.schedule.schedule import Schedule


@cache
def has_driver() -> bool:
    try:
        import pyopencl as cl
    except ImportError:
        return False
    try:
        return any(platform.get_devices() for platform in cl.get_platforms())
    except cl.Error:
        return False


needs_driver = pytest.mark.skipif(
    "not __import__('tests.codegen.accelerator', fromlist=['x']).has_driver()",
    reason="needs PyOpenCL and a driver (pip install microc[opencl], apt install pocl-opencl-icd)",
)


def product(n: int, dtype: str = "float32") -> Schedule:
    """A matrix product, in loops ``i``, ``j`` and ``k`` around block ``C``."""
    a, b = te.placeholder((n, n), dtype, "A"), te.placeholder((n, n), dtype, "B")
    k = te.reduce_axis(n, "k")
    c = te.compute((n, n), lambda i, j: te.sum_reduce(a[i, k.var] * b[k.var, j], k), "C", ("i", "j"))
    return Schedule(te.create_prim_func("product", [a, b], [c]))


def tiles(n: int, side: int, dtype: str = "float32") -> Schedule:
    """The product in tiles of groups: copies of both matrices in shared memory, sums in registers, nothing bound yet."""
    schedule = product(n, dtype).cache_write("C", "register")
    schedule = schedule.cache_read("C", "A", "shared").cache_read("C", "B", "shared")
    for loop in "ijk":
        schedule = schedule.split(loop, (None, side))
    schedule = schedule.reorder("i_0", "j_0", "k_0", "i_1", "j_1", "k_1").decompose_reduction("C", "k_0")
    schedule = schedule.compute_at("A_shared", "k_0").compute_at("B_shared", "k_0")
    return schedule.reverse_compute_at("C_register", "j_0")


def bound(schedule: Schedule, *blocks: str) -> Schedule:
    """Groups are bound, and the loops of these blocks, and of the sum, to items."""
    for block in blocks:
        rows, columns = schedule.loops_of(block)[-2:]
        schedule = schedule.bind(rows, "threadIdx.y").bind(columns, "threadIdx.x")
    schedule = schedule.bind("i_1", "threadIdx.y").bind("j_1", "threadIdx.x")
    return schedule.bind("i_0", "blockIdx.y").bind("j_0", "blockIdx.x")


NESTS = ("C_init", "A_shared", "B_shared", "C_register")
