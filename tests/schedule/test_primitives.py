# SPDX-License-Identifier: Apache-2.0
"""Every primitive keeps the meaning of the function, and refuses with a hint what it cannot do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microc.codegen.c.c_statements import StmtPrinter
from microc.errors import ScheduleError
from microc.schedule.schedule import Schedule, replay_trace, trace_from_json, trace_to_json
from microc.target import target_for
from microc.tir import ir
from microc.tir.lower import lower
from microc.tir.names import BOUND, PEEL
from microc.tir.rewrite import walk_stmt
from microc.tir.text import from_text, to_text
from tests.schedule.functions import chain, matmul, outputs, padded_rows, schedule_kernel
from tests.support.campaign import examples

Steps = Callable[[Schedule], Schedule]

MATMUL: dict[str, Steps] = {
    "split": lambda s: s.split("k", (None, 4)),
    "split with a tail": lambda s: s.split("p", (None, 3)).split("o", (2, None)),
    "tile": lambda s: s.tile("p", "o", 2, 2),
    "fuse": lambda s: s.fuse("p", "o"),
    "fuse and split": lambda s: s.fuse("p", "o").split("p_o", (None, 4)),
    "reorder": lambda s: s.reorder("k", "o", "p"),
    "unroll": lambda s: s.unroll("k"),
    "vectorize": lambda s: s.vectorize("o_out"),
    "parallel": lambda s: s.parallel("p_out"),
    "parallel turns of what others read whole": lambda s: s.parallel("p"),
    "parallel turns of fused loops": lambda s: s.fuse("p", "o").parallel("p_o"),
    "parallel turns of what is split": lambda s: s.split("p", (2, None)).parallel("p_0"),
    "parallel turns with workspaces of their own": lambda s: (
        s.cache_read("acc", "x", "workspace")
        .reverse_compute_at("out", "o")
        .split("p", (2, None))
        .compute_at("x_workspace", "p_1")
        .parallel("p_0", private=True)
    ),
    "parallel turns with memory of their own": lambda s: (
        s.reverse_compute_at("out", "o").set_scope("acc", "local").parallel("p")
    ),
    "annotate": lambda s: s.annotate("acc", BOUND, 1).annotate("p", PEEL, 0),
    "decompose_reduction": lambda s: s.decompose_reduction("acc", "k"),
    "rfactor": lambda s: s.rfactor("acc", "k"),
    "rfactor of an inner loop": lambda s: s.split("k", (None, 4)).rfactor("acc", "k_1").unroll("k_1_1"),
    "rfactor outermost": lambda s: (
        s.split("k", (2, None)).rfactor("acc", "k_0").reorder("k_0", "p", "o", "k_1").parallel("k_0")
    ),
    "decompose outside a spatial loop": lambda s: s.reorder("p", "k", "o").decompose_reduction("acc", "k"),
    "reverse_compute_at": lambda s: s.reverse_compute_at("out", "o"),
    "reverse_compute_at a tile": lambda s: s.tile("p", "o", 2, 2).reverse_compute_at("out", "o_0"),
    "compute_at": lambda s: s.compute_at("acc", "p_out"),
    "compute_at a tile": lambda s: s.split("p_out", (None, 3)).compute_at("acc", "p_out_0"),
    "cache_read": lambda s: s.cache_read("acc", "weight", "workspace"),
    "cache_read placed": lambda s: s.cache_read("acc", "x", "workspace").compute_at("x_workspace", "p"),
    "cache_write": lambda s: s.cache_write("out", "workspace"),
    "set_scope": lambda s: s.reverse_compute_at("out", "o").set_scope("acc", "register"),
    "tensorize": lambda s: s.split("k", (None, 4)).decompose_reduction("acc", "k_0").tensorize("k_1", "dot4_int8_int8"),
}


@pytest.mark.parametrize("name", MATMUL)
@pytest.mark.parametrize("lowered", [False, True], ids=["blocks", "lowered"])
def test_meaning_is_kept(name: str, lowered: bool) -> None:
    func = matmul(5, 8, 6)
    schedule = MATMUL[name](Schedule(func))
    assert np.array_equal(outputs(schedule.func, lowered=lowered), outputs(func, lowered=False))


@pytest.mark.parametrize("name", MATMUL)
def test_replay_gives_the_same_function(name: str) -> None:
    func = matmul(5, 8, 6)
    schedule = MATMUL[name](Schedule(func))
    assert replay_trace(func, trace_from_json(trace_to_json(schedule.trace))) == schedule


PADDED: dict[str, Steps] = {
    "as written": lambda s: s,
    "inline": lambda s: s.compute_inline("padded"),
    "compute_at": lambda s: s.compute_at("padded", "y_acc"),
    "compute_at a tile": lambda s: s.split("y_acc", (None, 3)).compute_at("padded", "y_acc_0"),
}


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("lowered", [False, True], ids=["blocks", "lowered"])
def test_padding(name: str, lowered: bool) -> None:
    func = padded_rows(7, 4)
    schedule = PADDED[name](Schedule(func))
    assert np.array_equal(outputs(schedule.func, lowered=lowered), outputs(func, lowered=False))


REFUSED: dict[str, Steps] = {
    "a note that nothing reads": lambda s: s.annotate("p", "peal", 0),
    "a note of loops on a block": lambda s: s.annotate("acc", PEEL, 0),
    "no such loop": lambda s: s.split("q", (None, 2)),
    "no such block": lambda s: s.compute_inline("nothing"),
    "split by nothing": lambda s: s.split("k", (None, None)),
    "split too short": lambda s: s.split("k", (2, 2)),
    "fuse apart": lambda s: s.fuse("p", "k"),
    "reorder apart": lambda s: s.reorder("p", "p_out"),
    "vectorize a reduction": lambda s: s.vectorize("k"),
    "inline a reduction": lambda s: s.compute_inline("acc"),
    "inline an output": lambda s: s.compute_inline("out"),
    "compute_at an output": lambda s: s.compute_at("out", "p"),
    "reverse_compute_at inside the reduction": lambda s: s.reorder("k", "p", "o").reverse_compute_at("out", "o"),
    "decompose twice": lambda s: s.decompose_reduction("acc", "k").decompose_reduction("acc", "k"),
    "decompose inside": lambda s: s.split("k", (None, 2)).decompose_reduction("acc", "k_1"),
    "tensorize the wrong extent": lambda s: s.decompose_reduction("acc", "k").tensorize("k", "dot4_int8_int8"),
    "tensorize with nothing": lambda s: s.tensorize("k", "dot99"),
    "unknown scope": lambda s: s.cache_write("out", "moon"),
    "scope of a parameter": lambda s: s.set_scope("x", "register"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_teach(name: str) -> None:
    with pytest.raises(ScheduleError) as refusal:
        REFUSED[name](Schedule(matmul(5, 8, 6)))
    assert refusal.value.what


@given(
    rows=st.integers(1, 7),
    depth=st.sampled_from([1, 4, 6, 16]),
    columns=st.integers(1, 7),
    cpu=st.sampled_from(["cortex-m4", "cortex-m0"]),
)
@settings(max_examples=examples(25), deadline=None)
def test_matrix_rule_keeps_the_meaning(rows: int, depth: int, columns: int, cpu: str) -> None:
    func = matmul(rows, depth, columns)
    schedule = schedule_kernel(func, "dense", target_for(cpu))
    assert np.array_equal(outputs(func, lowered=True, schedule=schedule), outputs(func, lowered=False))


FACTORS = st.sampled_from([1, 2, 3, 4])


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["split", "fuse", "swap", "unroll"]), st.integers(0, 9), FACTORS), max_size=5
    )
)
@settings(max_examples=examples(40), deadline=None)
def test_random_steps_keep_the_meaning(steps: list[tuple[str, int, int]]) -> None:
    func = matmul(3, 4, 5)
    schedule = Schedule(func)
    for kind, place, factor in steps:
        loops = schedule.loops_of("acc")
        first, second = loops[place % len(loops)], loops[(place + 1) % len(loops)]
        try:
            match kind:
                case "split":
                    schedule = schedule.split(first, (None, factor))
                case "fuse":
                    schedule = schedule.fuse(first, second)
                case "swap":
                    schedule = schedule.reorder(second, first)
                case _:
                    schedule = schedule.unroll(first)
        except ScheduleError:
            continue
    assert np.array_equal(outputs(schedule.func, lowered=True), outputs(func, lowered=False))


def test_parallel_loops_print_for_openmp() -> None:
    schedule = Schedule(matmul(4, 4, 4)).reverse_compute_at("out", "o").set_scope("acc", "register").parallel("p")
    text = StmtPrinter().print_function(lower(schedule.func))
    assert any("#pragma omp parallel for" in line for line in text)


SHARED: dict[str, tuple[Steps, Steps]] = {
    "a copy that each iteration makes": (
        lambda s: s.cache_read("acc", "weight", "workspace").compute_at("weight_workspace", "p"),
        lambda s: s.parallel("p"),
    ),
    "a copy made in the loop": (
        lambda s: s.reverse_compute_at("out", "o").set_scope("acc", "local").parallel("p"),
        lambda s: s.cache_read("acc", "weight", "workspace").compute_at("weight_workspace", "p"),
    ),
    "a scope": (
        lambda s: s.cache_read("acc", "weight", "local").compute_at("weight_local", "p").parallel("p"),
        lambda s: s.set_scope("weight_local", "workspace"),
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_parallel_turns_share_no_workspace(name: str) -> None:
    """The step that would make them is refused, not the code that is printed in the end."""
    before, step = SHARED[name]
    schedule = before(Schedule(matmul(4, 4, 4)))
    with pytest.raises(ScheduleError, match="would share the workspace") as refusal:
        step(schedule)
    assert "set_scope" in refusal.value.hint
    StmtPrinter().print_function(lower(schedule.func))


@pytest.mark.parametrize(
    "steps", [lambda s: s, lambda s: s.cache_read("acc", "x", "workspace").compute_at("x_workspace", "p")]
)
def test_parallel_iterations_keep_slices_of_a_workspace(steps: Steps) -> None:
    """Each iteration writes and reads rows of its own, so that a parallel loop keeps the rows of all."""
    func = matmul(4, 4, 4)
    schedule = steps(Schedule(func).reverse_compute_at("out", "o").parallel("p"))
    assert "private" in to_text(schedule.func) and replay_trace(func, schedule.trace).func == schedule.func
    assert np.array_equal(outputs(schedule.func, lowered=True), outputs(func, lowered=False))
    text = "\n".join(StmtPrinter().print_function(lower(schedule.func)))
    assert "#pragma omp parallel for" in text


def test_stores_outside_of_blocks_run_in_order() -> None:
    """No block declares their axes: a step that changes their order needs iterations that share no element."""
    schedule = Schedule(
        from_text("""
@T.prim_func
def scan(x: T.Buffer((10, 3), "int32"), y: T.Buffer((10, 3), "int32"), z: T.Buffer((1,), "int32")):
    z[0] = 1
    for i in range(10):
        for j in range(3):
            y[i, j] = x[i, j] + 1
    for i in range(10):
        for j in range(3):
            z[0] = z[0] % 5 * x[i, j] + 1
""")
    )
    assert [loop.var.name for loop in walk_stmt(schedule.func.body) if isinstance(loop, ir.For)] == [
        "i",
        "j",
        "i_z",
        "j_z",
    ]
    changed = schedule.split("i", (None, 4)).reorder("j", "i_0", "i_1").parallel("j")
    changed = changed.split("i_z", (None, 4)).fuse("i_z_0", "i_z_1").unroll("j_z")
    assert np.array_equal(outputs(changed.func, lowered=True), outputs(schedule.func, lowered=False))
    steps: tuple[Steps, ...] = (
        lambda s: s.reorder("j_z", "i_z"),
        lambda s: s.parallel("i_z"),
        lambda s: s.vectorize("j_z"),
        lambda s: s.bind("i_z", "threadIdx.x"),
    )
    for step in steps:
        with pytest.raises(ScheduleError, match="share elements of 'z'") as refusal:
            step(schedule)
        assert "T.block" in refusal.value.hint


def test_repeated_names_become_unique() -> None:
    """Steps go by name; TVMScript uses i and j in every nest."""
    func = matmul(4, 4, 4)
    text = to_text(func).replace("p_out", "p").replace("o_out", "o")
    schedule = Schedule(from_text(text))
    assert schedule.loops_of("acc") == ("p", "o", "k") and schedule.loops_of("out") == ("p_out", "o_out")


def test_perfect_tiles() -> None:
    schedule = Schedule(matmul(4, 4, 12))
    loop = schedule.loops_of("acc")[1]
    assert schedule.perfect_tiles(loop, 2, max_innermost=4) == ((3, 4), (4, 3), (6, 2), (12, 1))
    assert all(a * b * c == 12 for a, b, c in schedule.perfect_tiles(loop, 3))
    with pytest.raises(ScheduleError, match="perfect_tiles"):
        schedule.perfect_tiles(loop, 0)


def test_a_fused_reduction_is_refused_before_it_is_decomposed() -> None:
    with pytest.raises(ScheduleError, match="reduces"):
        Schedule(matmul(3, 4, 5)).fuse("p", "o").fuse("p_o", "k")


@pytest.mark.parametrize("lowered", [False, True], ids=["blocks", "lowered"])
def test_a_consumer_is_computed_where_its_operand_is_made(lowered: bool) -> None:
    func = chain(6)
    schedule = Schedule(func).reverse_compute_inline("out")
    assert not schedule.has("wide") and schedule.loops_of("out") == ("y", "c")
    assert np.array_equal(outputs(schedule.func, lowered=lowered), outputs(func, lowered=False))


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (lambda s: s.rfactor("acc", "p"), "does not reduce along 'p'"),
        (lambda s: s.rfactor("out", "p_out"), "is no reduction by add"),
        (lambda s: s.rfactor("acc", "p_out"), "is not around block 'acc'"),
        (lambda s: s.split("k", (None, 3)).rfactor("acc", "k_1"), "has a guarded tail"),
        (
            lambda s: (t := s.compute_at("acc", "p_out")).rfactor("acc", t.loops_of("acc")[-1]),
            "other blocks share the loops",
        ),
        (lambda s: s.reverse_compute_inline("out"), "block 'acc' reduces"),
        (lambda s: s.reverse_compute_inline("acc"), "is not elementwise over one intermediate tensor"),
    ],
)
def test_parts_that_cannot_be_told_apart(steps: Steps, said: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        steps(Schedule(matmul(5, 8, 6)))
    assert said in caught.value.what


def test_a_consumer_runs_where_its_producer_does() -> None:
    """A loop of one iteration that is split by four guards the producer, whose tile is one element at a time."""
    func = chain(6)
    schedule = Schedule(func)
    schedule = schedule.compute_at("wide", schedule.loops_of("out")[0])
    _, row, column = schedule.loops_of("wide")
    schedule = schedule.split(column, (None, 4)).reorder(f"{column}_0", f"{column}_1", row)
    moved = schedule.reverse_compute_at("out", row)
    assert f"T.where({column}_0 * 4 + {column}_1 < 1)" in to_text(moved.func).split('T.block("out")')[1]
    assert np.array_equal(outputs(moved.func, lowered=True), outputs(func, lowered=False))
    schedule = schedule.reorder(f"{column}_0", row, f"{column}_1")
    with pytest.raises(ScheduleError, match="names loops inside of") as refusal:
        schedule.reverse_compute_at("out", f"{column}_0")
    assert "all loops that the guard names" in refusal.value.hint


CHANGED_OPERANDS = """
@T.prim_func
def f(A: T.Buffer((8,), "int32"), n: T.Buffer((1,), "int32"), C: T.Buffer((8,), "int32")):
    B = T.alloc_buffer((8,), "int32")
    D = T.alloc_buffer((8,), "int32")
    for i in range(8):
        n[0] = A[i]
        with T.block("B"):
            vi = T.axis.S(8, i)
            B[vi] = A[vi] + n[0]
    for i in range(8):
        with T.block("D"):
            vi = T.axis.S(8, i)
            D[vi] = A[vi] * 2
    for i in range(8):
        with T.block("A"):
            vi = T.axis.S(8, i)
            A[vi] = A[vi] + 1
    for i in range(8):
        with T.block("C"):
            vi = T.axis.S(8, i)
            C[vi] = B[vi] + D[vi] + A[vi]
"""


@pytest.mark.parametrize(
    "steps, message",
    [
        (lambda s: s.compute_inline("D"), "compute_inline: block 'D' reads 'A', which block 'A' writes afterwards"),
        (lambda s: s.compute_at("D", "i_C"), "compute_at: block 'D' reads 'A', which block 'A' writes afterwards"),
        (lambda s: s.compute_inline("B"), "block 'B' reads 'n', which a statement outside of blocks writes afterwards"),
        (lambda s: s.compute_at("B", "i_C"), "block 'B' reads 'n', which a statement outside of blocks writes"),
        (lambda s: s.cache_read("B", "n", "workspace"), "a statement outside of blocks writes 'n' inside the loops"),
    ],
)
def test_blocks_stay_before_writes_of_what_they_read(steps: Steps, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        steps(Schedule(from_text(CHANGED_OPERANDS)))


def test_consumers_stay_behind_writes_outside_of_blocks() -> None:
    text = CHANGED_OPERANDS.replace("B[vi] + D[vi] + A[vi]", "D[vi]").replace(
        """        with T.block("A"):
            vi = T.axis.S(8, i)
            A[vi] = A[vi] + 1
""",
        "        C[7 - i] = D[i] + 1\n        D[i] = 3\n",
    )
    moves: list[Steps] = [lambda s: s.reverse_compute_at("C", "i_D"), lambda s: s.reverse_compute_inline("C")]
    for steps in moves:
        with pytest.raises(
            ScheduleError, match=r"block 'C' (reads 'D'|writes 'C'), which a statement outside of blocks"
        ):
            steps(Schedule(from_text(text)))
