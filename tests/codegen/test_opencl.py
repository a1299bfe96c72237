# SPDX-License-Identifier: Apache-2.0
"""Bound loops as OpenCL C: equal to the plain loops, or refused."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import microc
from microc import te, tir
from microc.base.dtypes import to_numpy
from microc.codegen.opencl import print_opencl_kernel
from microc.errors import ScheduleError, UsageError
from microc.schedule.schedule import Schedule
from tests.codegen.accelerator import NESTS, bound, needs_driver, product, tiles

EXAMPLE = Path(__file__).parents[2] / "examples" / "accelerator" / "ladder.py"
LADDER: dict[str, Callable[[int], Schedule]] = runpy.run_path(str(EXAMPLE))["LADDER"]


@needs_driver
def test_the_example_runs() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--size", "64"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines()[:-1]] == ["equal"] * len(LADDER)


def operands(n: int, dtype: str) -> list[np.ndarray]:
    dice = np.random.default_rng(n)
    if dtype.startswith("float"):
        return list(dice.normal(size=(2, n, n)).astype(to_numpy(dtype)))
    return list(dice.integers(-100, 100, (2, n, n)).astype(to_numpy(dtype)))


@needs_driver
@pytest.mark.parametrize("n", [32, 50])
@pytest.mark.parametrize("step", LADDER)
def test_every_step_of_the_ladder_is_equal(step: str, n: int) -> None:
    """Also where tiles stand over the edges: there each element is tested, and vectors are loops."""
    a, b = operands(n, "float32")
    right = microc.build(product(n))(a, b)
    schedule = LADDER[step](n)
    assert np.array_equal(microc.build(schedule, "opencl")(a, b), right)
    assert np.array_equal(microc.build(schedule)(a, b), right)


@needs_driver
@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
def test_dtypes(dtype: str) -> None:
    a, b = operands(24, dtype)
    schedule = bound(tiles(24, 8, dtype), *NESTS)
    assert np.array_equal(microc.build(schedule, "opencl")(a, b), microc.build(product(24, dtype))(a, b))


@needs_driver
def test_elementwise_work_in_vectors() -> None:
    x, y = te.placeholder((256,), "float32", "x"), te.placeholder((256,), "float32", "y")
    z = te.compute((256,), lambda i: x[i] * 2.5 - y[i] / x[i], "z", ("i",))
    schedule = Schedule(te.create_prim_func("mix", [x, y], [z])).split("i", (None, 16, 4))
    schedule = schedule.bind("i_0", "blockIdx.x").bind("i_1", "threadIdx.x").vectorize("i_2")
    kernel = microc.build(schedule, "opencl")
    assert "vstore4(" in kernel.source and kernel.source.count("vload4(") == 3
    a, b = np.random.default_rng(3).uniform(1, 2, (2, 256)).astype(np.float32)
    np.testing.assert_allclose(kernel(a, b), a * 2.5 - b / a, rtol=3 * 2.0**-23)


@needs_driver
def test_names_that_are_words_of_opencl() -> None:
    given = te.placeholder((16,), "int32", "global")
    made = te.compute((16,), lambda kernel: given[kernel] + 1, "local", ("half",))
    schedule = Schedule(te.create_prim_func("mix", [given], [made])).bind("half", "threadIdx.x")
    assert np.array_equal(microc.build(schedule, "opencl")(np.arange(16, dtype=np.int32)), np.arange(1, 17))


def test_what_the_schedule_says_is_in_the_text() -> None:
    source = print_opencl_kernel(bound(tiles(32, 8), *NESTS).func).source
    assert "reqd_work_group_size(8, 8, 1)" in source and source.count("__local float") == 2
    assert source.count("barrier(CLK_LOCAL_MEM_FENCE);") == 2  # before the copies, and between them and the sums
    assert "float C_register;" in source


def test_a_double_buffer_waits_once() -> None:
    kernel = print_opencl_kernel(bound(tiles(32, 8), *NESTS).prefetch("k_0").func)
    assert kernel.source.count("barrier(") == 1 and "[128]" in kernel.source


def test_items_that_have_no_loop_in_a_nest_stand_by() -> None:
    """A block that is bound along one axis alone is done by the first items of the other."""
    schedule = bound(tiles(16, 8), "C_init", "B_shared", "C_register")
    rows, _ = schedule.loops_of("A_shared")[-2:]
    assert "if (get_local_id(0) == 0) {" in print_opencl_kernel(schedule.bind(rows, "threadIdx.y").func).source


def test_text_has_bound_loops() -> None:
    func = bound(tiles(16, 8), *NESTS).prefetch("k_0").func
    text = tir.to_text(func)
    assert 'T.thread_binding(2, thread="blockIdx.y")' in text and tir.from_text(text) == func


def other_parts() -> Schedule:
    """An item has a row in the sum, two in what copies it."""
    rows, columns = tiles(16, 8).loops_of("C_register")[-2:]
    schedule = bound(tiles(16, 8).split(rows, (None, 2)), "C_init", "A_shared", "B_shared")
    return schedule.bind(f"{rows}_0", "threadIdx.y").bind(columns, "threadIdx.x")


REFUSED: dict[str, tuple[Callable[[], Schedule], str]] = {
    "groups inside": (lambda: product(16).bind("j", "blockIdx.x"), "does not enclose the whole function"),
    "twice": (
        lambda: product(16).split("i", (None, 4)).bind("i_0", "threadIdx.x").bind("i_1", "threadIdx.x"),
        "both bound to threadIdx.x",
    ),
    "a workspace": (
        lambda: product(16).cache_read("C", "A", "workspace"),
        "'A_workspace' has a scope that an accelerator lacks",
    ),
    "others' registers": (lambda: bound(tiles(16, 8), "C_init"), "'C_register': an item along"),
    "other parts": (other_parts, "different elements to an item along threadIdx.y"),
    "shared in one nest": (
        lambda: bound(tiles(16, 8).compute_at("A_shared", "j_1"), "C_init", "C_register"),
        "'A_shared': one nest of loops over items both writes",
    ),
    "double buffer of nothing": (
        lambda: product(16).split("k", (None, 4)).prefetch("k_0"),
        "does not begin with copies",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    make, says = REFUSED[what]
    with pytest.raises(ScheduleError, match=says):
        print_opencl_kernel(make().func)


def test_a_reduction_is_not_bound() -> None:
    with pytest.raises(ScheduleError, match=r"'k' reduces and cannot be bound to threadIdx\.x"):
        product(16).bind("k", "threadIdx.x")
    with pytest.raises(ScheduleError, match="unknown kind; got 'warp'"):
        product(16).bind("i", "warp")


def test_calls_that_do_not_fit() -> None:
    kernel = microc.build(product(16).bind("i", "blockIdx.x").bind("j", "threadIdx.x"), "opencl")
    assert repr(kernel).startswith("<OpenCLFunction product(A: float32[16, 16]") and kernel.items == (16, 1, 1)
    with pytest.raises(UsageError, match="got 1 arrays, expected 2"):
        kernel(np.zeros((16, 16), np.float32))
    with pytest.raises(UsageError, match="fixed sizes and no threads"):
        microc.build(product(16), "opencl", threads=2)
