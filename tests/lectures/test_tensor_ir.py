# SPDX-License-Identifier: Apache-2.0
"""Schedules of TVMScript: MLC course, "Tensor Program Abstraction"; TVM tutorials, "Blitz Course to TensorIR"."""

from collections.abc import Callable

import numpy as np
import pytest

import microc
from microc import Schedule, tir

MM_RELU = tir.from_text("""
@T.prim_func
def mm_relu(A: T.Buffer((16, 16), "float32"), B: T.Buffer((16, 16), "float32"), C: T.Buffer((16, 16), "float32")):
    T.func_attr({"global_symbol": "mm_relu", "tir.noalias": True})
    Y = T.alloc_buffer((16, 16), dtype="float32")
    for i, j, k in T.grid(16, 16, 16):
        with T.block("Y"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Y[vi, vj] = T.float32(0)
            Y[vi, vj] = Y[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(16, 16):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.max(Y[vi, vj], T.float32(0))
""")

STEPS: dict[str, Callable[[Schedule], Schedule]] = {
    "lecture": lambda s: (
        s.split("j", (None, 4))
        .reorder("i", "j_0", "k", "j_1")
        .reverse_compute_at("C", "j_0")
        .decompose_reduction("Y", "k")
    ),
    "tails": lambda s: (
        s.split("j", (None, 5))
        .split("i_C", (None, 3))
        .reorder("i", "j_0", "k", "j_1")
        .decompose_reduction("Y", "k")
        .vectorize("j_1")
    ),
    "tails of tails": lambda s: s.fuse("i_C", "j_C").split("i_C_j_C", (None, 7)).split("i_C_j_C_1", (None, 2, 2)),
    "fused tails": lambda s: s.fuse("i_C", "j_C").split("i_C_j_C", (None, 7)).unroll("i_C_j_C_1"),
    "parallel tiles": lambda s: (
        s.tile("i", "j", 4, 4)
        .reorder("i_0", "j_0", "k", "i_1", "j_1")
        .reverse_compute_at("C", "j_0")
        .vectorize("j_1")
        .unroll("i_1")
        .parallel("i_0")
    ),
    "caches": lambda s: (
        s.cache_read("Y", "B", "workspace")
        .storage_align("B_workspace", 1, 32)
        .cache_write("C", "workspace")
        .fuse("i_C", "j_C")
    ),
    "rfactor": lambda s: s.split("k", (4, None)).rfactor("Y", "k_0").compute_at("Y", "i_C"),
    "blockize": lambda s: (
        s.split("i", (None, 4))
        .split("j", (None, 4))
        .split("k", (None, 4))
        .reorder("i_0", "j_0", "k_0", "i_1", "j_1", "k_1")
        .blockize("i_1")
        .decompose_reduction("Y_o", "k_0")
    ),
    "threads": lambda s: s.reverse_compute_at("C", "j").bind("i", "blockIdx.x").bind("j", "threadIdx.x"),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_keep_the_meaning(name: str) -> None:
    schedule = STEPS[name](Schedule(MM_RELU))
    tir.verify_func(schedule.func)
    assert tir.from_text(tir.to_text(schedule.func)) == schedule.func
    a, b = np.random.default_rng(0).normal(size=(2, 16, 16)).astype(np.float32)
    c = np.empty((16, 16), np.float32)
    tir.run(schedule.func, [a, b, c])
    np.testing.assert_allclose(c, np.maximum(a @ b, 0), rtol=1e-4, atol=1e-5)


def test_a_schedule_is_built_and_called() -> None:
    a, b = np.random.default_rng(1).normal(size=(2, 16, 16)).astype(np.float32)
    built = microc.build(STEPS["parallel tiles"](Schedule(MM_RELU)))
    np.testing.assert_allclose(built(a, b), np.maximum(a @ b, 0), rtol=1e-4, atol=1e-5)


def test_parallel_loops_of_the_text_keep_slices() -> None:
    """A workspace that iterations of ``T.parallel`` write apart from each other is no obstacle."""
    func = tir.from_text("""
@T.prim_func
def centre(A: T.Buffer((8, 4), "int32"), C: T.Buffer((8, 4), "int32")):
    B = T.alloc_buffer((8, 4), "int32")
    for i in T.parallel(8):
        for j in range(4):
            B[i, j] = A[i, j] * 2
        for j in range(4):
            C[i, j] = B[i, j] - B[i, 0]
""")
    a = np.random.default_rng(2).integers(-99, 99, (8, 4)).astype(np.int32)
    assert np.array_equal(microc.build(func)(a), 2 * (a - a[:, :1]))
    shared = tir.from_text(tir.to_text(func).replace("B[i, ", "B[0, "))
    with pytest.raises(microc.errors.ScheduleError, match="share the workspace 'B'"):
        microc.build(shared)


@pytest.mark.parametrize(
    "call", [Schedule, microc.default_schedule, tir.verify_func, tir.lower_func, lambda func: tir.run(func, [])]
)
def test_a_module_is_no_function(call: Callable[[tir.PrimFunc], object]) -> None:
    for value in (tir.IRModule((MM_RELU,)), Schedule(MM_RELU)):
        with pytest.raises(
            microc.errors.ProgramError, match=r"is no function(.|\n)*module\[.main.\](.|\n)*schedule\.func"
        ):
            call(value)  # type: ignore[arg-type]


def test_consumers_stay_behind_what_they_read() -> None:
    """Both computed wrong numbers: parts of rows that no iteration completes, and an operand that comes later."""
    func = tir.from_text("""
@T.prim_func
def f(A: T.Buffer((30, 20), "float32"), B: T.Buffer((30, 20), "float32"), C: T.Buffer((30, 20), "float32")):
    D = T.alloc_buffer((30, 20))
    E = T.alloc_buffer((30, 20))
    for i, j in T.grid(30, 20):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(30, 20):
        with T.block("E"):
            vi, vj = T.axis.remap("SS", [i, j])
            E[vi, vj] = B[vi, vj] + 1.0
    for i, j in T.grid(30, 20):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = D[vi, vj] + E[vi, vj]
""")
    schedule = Schedule(func)
    with pytest.raises(
        microc.errors.ScheduleError, match="block 'C' reads the result of 'E', which is computed after loop 'i'"
    ):
        schedule.reverse_compute_at("C", "i")
    row = schedule.loops_of("E")[0]
    schedule.reverse_compute_at("C", row).compute_at("D", row).check_order()
    init = Schedule(MM_RELU).cache_read("Y", "A", "workspace").decompose_reduction("Y", "k")
    with pytest.raises(
        microc.errors.ScheduleError, match="block 'Y' reads the result of 'Y_init', which is computed after"
    ):
        init.reverse_compute_at("Y", "A_workspace_i0")
    fused = Schedule(func).compute_inline("E").fuse("i", "j")
    for factor in (50, 64):
        with pytest.raises(microc.errors.ScheduleError, match="writes elements of 'D' with gaps"):
            fused.split("i_j", (None, factor)).reverse_compute_at("C", "i_j_0")
    a, b = np.random.default_rng(3).normal(size=(2, 30, 20)).astype(np.float32)
    c = np.empty((30, 20), np.float32)
    tir.run(fused.split("i_j", (None, 60)).reverse_compute_at("C", "i_j_0").func, [a, b, c])
    np.testing.assert_allclose(c, a * 2 + b + 1, rtol=1e-6, atol=1e-6)


SOFTMAX = tir.from_text("""
N, M = 6, 10

@T.prim_func
def softmax(A: T.Buffer((N, M), "float32"), C: T.Buffer((N, M), "float32")):
    largest = T.alloc_buffer((N,))
    exponential = T.alloc_buffer((N, M))
    total = T.alloc_buffer((N,))
    for i, k in T.grid(N, M):
        with T.block("largest"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                largest[vi] = T.min_value("float32")
            largest[vi] = T.max(largest[vi], A[vi, vk])
    for i, j in T.grid(N, M):
        with T.block("exponential"):
            vi, vj = T.axis.remap("SS", [i, j])
            exponential[vi, vj] = T.exp(A[vi, vj] - largest[vi])
    for i, k in T.grid(N, M):
        with T.block("total"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                total[vi] = 0.0
            total[vi] = total[vi] + exponential[vi, vk]
    for i, j in T.grid(N, M):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = exponential[vi, vj] / total[vi]
""")


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_consumer_of_two_tensors_follows_both(rows: int) -> None:
    """All of a softmax in one loop over rows, also over strips of rows that need not divide them."""
    schedule = Schedule(SOFTMAX).split("i", (None, rows))
    for block in ("exponential", "total", "C"):
        schedule = schedule.reverse_compute_at(block, "i_0")
    assert {schedule.loops_of(block)[0] for block in ("largest", "exponential", "total", "C")} == {"i_0"}
    a = np.random.default_rng(4).normal(size=(6, 10)).astype(np.float32)
    right = np.exp(a) / np.exp(a).sum(1, keepdims=True)
    np.testing.assert_allclose(microc.build(schedule)(a), right, rtol=1e-5, atol=1e-6)


def test_tiles_of_two_axes_say_no_pairs() -> None:
    """Iteration t writes E[t] and F[t]; the pairs (i, j) of t and t alone are not all that the consumer computes."""
    func = tir.from_text("""
@T.prim_func
def f(A: T.Buffer((8,), "int32"), D: T.Buffer((8, 8), "int32")):
    E = T.alloc_buffer((8,), "int32")
    F = T.alloc_buffer((8,), "int32")
    for i in range(8):
        with T.block("E"):
            vi = T.axis.S(8, i)
            E[vi] = A[vi] + 1
    for i in range(8):
        with T.block("F"):
            vi = T.axis.S(8, i)
            F[vi] = E[vi] * 2
    for i, j in T.grid(8, 8):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = E[vi] + F[vj]
""")
    with pytest.raises(microc.errors.ScheduleError, match="reads other elements of 'F' than of 'E'"):
        Schedule(func).reverse_compute_at("F", "i").reverse_compute_at("D", "i")


def test_opaque_axes_keep_their_order() -> None:
    """Running sums along an opaque axis: the block reads as statements, which no step reorders or runs side by side."""
    func = tir.from_text("""
@T.prim_func
def sums(A: T.Buffer((8, 4), "int32"), C: T.Buffer((8, 4), "int32"), D: T.Buffer((4,), "int32")):
    for i, j, k in T.grid(8, 4, 2):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            vj = T.axis.opaque(4, j)
            vk = T.axis.reduce(2, k)
            T.where(j < 3)
            T.reads(A[vi, vj], C[vi, 0:4])
            T.writes(C[vi, vj])
            with T.init():
                C[vi, vj] = C[vi, T.max(vj - 1, 0)]
            C[vi, vj] = C[vi, vj] + A[vi, vj] * (vk + 1)
    for j in range(4):
        with T.block("D"):
            vj = T.axis.scan(4, j)
            D[vj] = D[T.max(vj - 1, 0)] + 1
""")
    a, c, d = (
        np.random.default_rng(5).integers(-99, 99, (8, 4)).astype(np.int32),
        np.zeros((8, 4), np.int32),
        np.zeros(4, np.int32),
    )
    tir.run(func, [a, c, d])
    assert np.array_equal(c[:, :3], 3 * np.cumsum(a, 1)[:, :3]) and not c[:, 3].any() and list(d) == [1, 2, 3, 4]
    steps: list[Callable[[Schedule], Schedule]] = [
        lambda schedule: schedule.parallel("j"),
        lambda schedule: schedule.vectorize("j_D"),
        lambda schedule: schedule.reorder("j", "i"),
    ]
    for step in steps:
        with pytest.raises(microc.errors.ScheduleError, match=r"share elements of '[CD]'"):
            step(Schedule(func))
    with pytest.raises(microc.errors.ModelError, match="opaque axes has no annotations"):
        tir.from_text(
            tir.to_text(MM_RELU)
            .replace("T.axis.reduce", "T.axis.opaque")
            .replace("with T.init", "T.block_attr({'a': 1})\n            with T.init")
        )
