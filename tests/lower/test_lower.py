# SPDX-License-Identifier: Apache-2.0
"""Every lowering pass keeps what a function computes and does what it is for; the interpreter sees overruns and overflow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from microc.base.dtypes import int_range
from microc.errors import InternalError
from microc.schedule.schedule import Schedule
from microc.target import target_for
from microc.tir import ir
from microc.tir.analysis.simplification import simplify_stmt
from microc.tir.interp import run
from microc.tir.lower import PASSES, lower, lowering_stages
from microc.tir.lower.cleanup import (
    compact_buffers,
    drop_dead_register_stores,
    hoist_fills,
    hoist_index_lookups,
    unroll_loops,
)
from microc.tir.lower.lanes import lower_lanes
from microc.tir.lower.loop_splitting import partition_loops, unswitch_loops
from microc.tir.lower.shared_values import share_values
from microc.tir.names import LANES
from microc.tir.rewrite import drop_blocks, walk_all_exprs, walk_stmt
from microc.tir.text import from_text
from tests.schedule.functions import matmul, outputs, padded_rows, schedule_kernel


def plane() -> Schedule:
    """Channels outermost; the padded column of one at a time, its border a fill of its own."""
    schedule = Schedule(padded_rows(7, 6)).reorder("c_acc", "y_acc")
    return schedule.compute_at("padded", "c_acc").decompose_padding("padded")


FUNCTIONS: dict[str, Callable[[], ir.PrimFunc]] = {
    "plain": lambda: matmul(5, 8, 6),
    "tails": lambda: Schedule(matmul(5, 7, 6)).split("p", (None, 2)).split("o", (None, 4)).split("k", (None, 3)).func,
    "tail of one": lambda: Schedule(matmul(5, 4, 3)).split("p", (None, 4)).func,
    "fused": lambda: Schedule(matmul(5, 4, 3)).fuse("p", "o").split("p_o", (None, 4)).func,
    "matrix, host": lambda: schedule_kernel(matmul(5, 8, 6), "dense", target_for("host")).func,
    "matrix, m4": lambda: schedule_kernel(matmul(5, 8, 6), "dense", target_for("cortex-m4")).func,
    "one row": lambda: schedule_kernel(matmul(1, 12, 5), "dense", target_for("cortex-m4")).func,
    "register": lambda: Schedule(matmul(5, 4, 3)).reverse_compute_at("out", "o").set_scope("acc", "register").func,
    "cached": lambda: Schedule(matmul(4, 4, 3)).cache_read("acc", "x", "workspace").compute_at("x_workspace", "p").func,
    "padded": lambda: padded_rows(7, 6),
    "padded rows": lambda: Schedule(padded_rows(7, 6)).compute_at("padded", "y_acc").func,
    "padded stripes": lambda: (
        Schedule(padded_rows(7, 6)).split("y_acc", (None, 3)).compute_at("padded", "y_acc_0").func
    ),
    "padded words": lambda: Schedule(padded_rows(7, 6)).compute_at("padded", "y_acc").vectorize("c_1").func,
    "plane": lambda: plane().func,
    "unrolled": lambda: Schedule(padded_rows(4, 3)).unroll("k").unroll("c_out").func,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_stage_keeps_the_meaning(name: str) -> None:
    func = FUNCTIONS[name]()
    want = outputs(func, lowered=False)
    for stage, made in lowering_stages(func):
        np.testing.assert_array_equal(outputs(made, lowered=False), want, err_msg=stage)
    assert made == lower(func)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_pass_alone_keeps_the_meaning(name: str) -> None:
    """After blocks are gone, each pass stands on its own feet."""
    func = FUNCTIONS[name]()
    start = replace(func, body=simplify_stmt(drop_blocks(func.body)))
    want = outputs(func, lowered=False)
    for stage, change in PASSES[2:]:
        np.testing.assert_array_equal(outputs(change(start), lowered=False), want, err_msg=stage)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_is_left_to_lower(name: str) -> None:
    func = lower(FUNCTIONS[name]())
    for stmt in walk_stmt(func.body):
        assert not isinstance(stmt, ir.Block)
        assert not (isinstance(stmt, ir.For) and stmt.kind not in ("serial", "parallel"))
        assert not (isinstance(stmt, ir.Alloc) and stmt.buffer.scope != "register")
    bound = [s.var.name for s in walk_stmt(func.body) if isinstance(s, ir.Let)]
    assert lower(FUNCTIONS[name]()) == func and len(bound) == len(set(bound))


def test_compact_keeps_what_lives_at_once() -> None:
    """A padded row at a time needs three rows of the image, not nine."""
    func = Schedule(padded_rows(7, 6)).compute_at("padded", "y_acc").func
    buffers = {
        s.buffer.name: s.buffer.shape
        for s in walk_stmt(compact_buffers(drop_blocks(func.body)))
        if isinstance(s, ir.Alloc)
    }
    assert buffers["padded"] == (3, 6)


def test_a_border_is_filled_once() -> None:
    func = lower(plane().func)
    fill, *rest = func.body.body if isinstance(func.body, ir.Seq) else ()
    assert all(isinstance(s.value, ir.Const) for s in walk_stmt(fill) if isinstance(s, ir.Store))
    stores = [s for part in rest for s in walk_stmt(part) if isinstance(s, ir.Store) and s.buffer.name == "padded"]
    assert stores and not any(isinstance(s.value, ir.Const) for s in stores)


def test_a_fill_stays_where_its_copy_moves() -> None:
    """What one iteration copied outside the next one's box must be filled again."""
    buffer, data = ir.Buffer("b", (8,), "int8", "workspace"), ir.Buffer("x", (4,), "int8")
    c, i, j, k, out = ir.Var("c"), ir.Var("i"), ir.Var("j"), ir.Var("k"), ir.Buffer("out", (4, 8), "int8")
    fill = ir.loops([(i, 8)], ir.Store(buffer, (i,), ir.const(0, "int8")))
    copies = [ir.loops([(j, 4)], ir.Store(buffer, (j + first,), data[j])) for first in (c, 2)]
    use = ir.loops([(k, 8)], ir.Store(out, (c, k), buffer[k]))
    moving, fixed = (ir.loops([(c, 4)], ir.seq(fill, copy, use)) for copy in copies)
    assert hoist_fills(moving) == moving
    assert hoist_fills(fixed) == ir.seq(fill, ir.loops([(c, 4)], ir.seq(copies[1], use)))
    changed = ir.loops([(c, 4)], ir.seq(fill, copies[1], use, ir.Store(buffer, (c,), ir.const(1, "int8"))))
    assert hoist_fills(changed) == changed


def test_compact_drops_what_nobody_touches() -> None:
    buffer, out = ir.Buffer("unused", (8,), "int8", "workspace"), ir.Buffer("out", (1,), "int8")
    store = ir.Store(out, (ir.const(0, "int32"),), ir.const(1, "int8"))
    assert compact_buffers(ir.Alloc(buffer, store)) == store


def test_partition_leaves_no_test_inside() -> None:
    """26 elements in runs of 4: six whole runs and a tail of two, without conditions."""
    i, j, out = ir.Var("i"), ir.Var("j"), ir.Buffer("out", (26,), "int32")
    where = i * 4 + j
    guarded = ir.If(where < 26, ir.Store(out, (where,), where))
    nest = ir.loops([(i, 7), (j, 4)], guarded)
    parted = partition_loops(nest)
    assert not any(isinstance(s, ir.If) for s in walk_stmt(parted))
    extents = [ir.int_value(s.extent) for s in walk_stmt(parted) if isinstance(s, ir.For)]
    assert extents == [6, 4, 2]
    func = ir.PrimFunc("f", (out,), parted)
    np.testing.assert_array_equal(outputs(func, lowered=False), np.arange(26))


def guarded_copy(condition: Callable[[ir.Var, ir.Var], ir.Expr]) -> ir.PrimFunc:
    """out[y, c] = condition ? x[y, c] : 7."""
    y, c = ir.Var("y"), ir.Var("c")
    x, out = ir.Buffer("x", (4, 9), "int8"), ir.Buffer("out", (4, 9), "int8")
    store = ir.Store(out, (y, c), ir.select(condition(y, c), x[y, c], 7))
    return ir.PrimFunc("copy", (x, out), ir.loops([(y, 4), (c, 9)], store))


CONDITIONS: dict[str, Callable[[ir.Var, ir.Var], ir.Expr]] = {
    "outer": lambda y, c: y >= 1,
    "inner": lambda y, c: c < 5,
    "both": lambda y, c: ir.Bin("and", y >= 1, ir.Bin("and", c < 5, y < 3)),
    "mixed": lambda y, c: y + c < 6,
}


@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
def test_unswitch_and_words(name: str, kind: str) -> None:
    func = guarded_copy(CONDITIONS[name])
    loop = func.body
    assert isinstance(loop, ir.For) and isinstance(loop.body, ir.For)
    marked = replace(func, body=replace(loop, body=replace(loop.body, kind=kind)))
    switched = unswitch_loops(marked.body)
    np.testing.assert_array_equal(
        outputs(replace(func, body=lower_lanes(switched)), lowered=False), outputs(func, lowered=False)
    )
    calls = {e.name for e in walk_all_exprs(lower_lanes(switched)) if isinstance(e, ir.Call)}
    if kind == "serial":
        assert not calls
    elif name in ("outer", "both"):
        assert "store_i8x4" in calls


def test_neighbouring_runs_without_guards_are_one_copy() -> None:
    """Windows of three pixels over a row of five: inside the row a window is one run for vectors, at its ends up to three."""
    x, tap, c = ir.Var("x"), ir.Var("tap"), ir.Var("c")
    data, patch = ir.Buffer("data", (5, 4), "int8"), ir.Buffer("patch", (5, 3, 4), "int8")
    inside = ir.Bin("and", x + tap >= 1, x + tap < 6)
    store = ir.Store(patch, (x, tap, c), ir.select(inside, data[x + tap - 1, c], -7))
    plain = ir.PrimFunc("windows", (data, patch), ir.loops([(x, 5), (tap, 3), (c, 4)], store))
    run = ir.For(c, ir.const(4, "int32"), store, "vectorized", ((LANES, 4),))
    vectors = lower_lanes(unswitch_loops(ir.loops([(x, 5), (tap, 3)], run)))
    copies = [e for e in walk_all_exprs(vectors) if isinstance(e, ir.Call) and e.name == "copy_i8"]
    assert sorted(ir.int_value(e.args[2]) or 0 for e in copies) == [4, 12]
    np.testing.assert_array_equal(outputs(replace(plain, body=vectors), lowered=False), outputs(plain, lowered=False))


@pytest.mark.parametrize("extent", [1, 3, 4, 5, 8, 23])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
def test_words_and_a_rest(extent: int, dtype: str) -> None:
    """Copies and fills of every length, from an odd place."""
    i = ir.Var("i")
    x, out = ir.Buffer("x", (extent + 1,), dtype), ir.Buffer("out", (2, extent), dtype)
    copy = ir.For(i, ir.const(extent, "int32"), ir.Store(out, (ir.const(0, "int32"), i), x[i + 1]), "vectorized")
    fill = ir.Store(out, (ir.const(1, "int32"), i), ir.const(200 if dtype == "uint8" else -56, dtype))
    body = ir.seq(copy, ir.For(i, ir.const(extent, "int32"), fill, "vectorized"))
    serial = ir.seq(*(replace(s, kind="serial") for s in (copy, ir.For(i, ir.const(extent, "int32"), fill))))
    func = ir.PrimFunc("words", (x, out), body)
    want = outputs(replace(func, body=serial), lowered=False)
    np.testing.assert_array_equal(outputs(func, lowered=True), want)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("op", ["max", "min"])
def test_words_of_the_largest(op: str, dtype: str) -> None:
    """A register that starts with what nobody notices, three taps, a bound, and a rest of one element."""
    i, acc = ir.Var("i"), ir.Buffer("acc", (), "int32", "register")
    x, out = ir.Buffer("x", (11,), dtype), ir.Buffer("out", (9,), dtype)
    start = ir.const(int_range(dtype)[0 if op == "max" else 1], "int32")
    taps = [ir.Store(acc, (), ir.Bin(op, acc[()], x[i + k].astype("int32"))) for k in range(3)]
    stored = ir.Store(out, (i,), ir.cast(dtype, ir.Bin(op, acc[()], ir.const(40, "int32"))))
    loop = ir.For(i, ir.const(9, "int32"), ir.Alloc(acc, ir.seq(ir.Store(acc, (), start), *taps, stored)), "vectorized")
    func = ir.PrimFunc("largest", (x, out), loop)
    body = lower_lanes(loop)
    calls = {e.name for e in walk_all_exprs(body) if isinstance(e, ir.Call)}
    assert f"{op}_{'u8x4' if dtype == 'uint8' else 'i16x2' if dtype == 'int16' else 'i8x4'}" in calls
    want = outputs(replace(func, body=replace(loop, kind="serial")), lowered=False)
    np.testing.assert_array_equal(outputs(func, lowered=True), want)


@pytest.mark.parametrize(("extent", "loops"), [(8, 1), (9, 2)])
def test_few_elements_at_a_border_need_no_loop(extent: int, loops: int) -> None:
    """Windows over a row of five, each element of which a guard copies or fills."""
    x, k = ir.Var("x"), ir.Var("k")
    data, patch = ir.Buffer("data", (5,), "int8"), ir.Buffer("patch", (4, extent), "int16")
    inside = ir.Bin("and", x + k >= 3, x + k < 8)
    value = ir.Select(inside, ir.cast("int16", data[x + k - 3]), ir.const(-7, "int16"))
    run = ir.For(k, ir.const(extent, "int32"), ir.Store(patch, (x, k), value), "vectorized")
    func = ir.PrimFunc("windows", (data, patch), ir.loops([(x, 4)], run))
    lowered = replace(func, body=lower_lanes(func.body))
    assert sum(isinstance(s, ir.For) for s in walk_stmt(lowered.body)) == loops
    np.testing.assert_array_equal(outputs(lowered, lowered=False), outputs(func, lowered=False))


def test_a_counter_chooses_between_two_loops() -> None:
    """Three things side by side: two cuts, no condition left."""
    c = ir.Var("c")
    a, b, out = (ir.Buffer(name, (extent,), "int8") for name, extent in (("a", 3), ("b", 4), ("out", 9)))
    last = ir.Select(ir.Bin("lt", c, ir.const(7, "int32")), b[c - 3], ir.const(5, "int8"))
    loop = ir.For(c, ir.const(9, "int32"), ir.Store(out, (c,), ir.Select(c < 3, a[c], last)))
    func = ir.PrimFunc("joined", (a, b, out), loop)
    divided = unswitch_loops(loop)
    assert not any(isinstance(e, ir.Select) for e in walk_all_exprs(divided))
    np.testing.assert_array_equal(outputs(replace(func, body=divided), lowered=False), outputs(func, lowered=False))


def test_places_are_looked_up_once() -> None:
    """An index that is data is read in front of the loop over the elements at its place, unless a condition guards it."""
    i, c = ir.Var("i"), ir.Var("c")
    table, index, out = (
        ir.Buffer("table", (5, 4), "int8"),
        ir.Buffer("index", (3,), "int32"),
        ir.Buffer("out", (3, 4), "int8"),
    )
    copy = ir.Store(out, (i, c), table[index[i], c])
    guarded = ir.Store(out, (i, c), ir.Select(i < 2, table[index[i], c], ir.const(0, "int8")))
    for store, moved in ((copy, True), (guarded, False)):
        body = hoist_index_lookups(ir.For(i, ir.const(3, "int32"), ir.For(c, ir.const(4, "int32"), store)))
        assert isinstance(body, ir.For) and isinstance(body.body, ir.Let) is moved


def test_a_place_that_is_part_of_another_leaves_no_name_unread() -> None:
    i, c = ir.Var("i"), ir.Var("c")
    table, index, out = (
        ir.Buffer("table", (9,), "int8"),
        ir.Buffer("index", (3,), "int32"),
        ir.Buffer("out", (4,), "int8"),
    )
    store = ir.Store(out, (c,), table[(index[i] * 2) + c] + table[c - index[i]])
    body = hoist_index_lookups(ir.For(i, ir.const(3, "int32"), ir.For(c, ir.const(4, "int32"), store)))
    named = {s.var for s in walk_stmt(body) if isinstance(s, ir.Let)}
    assert len(named) == 2 and named <= {e for e in walk_all_exprs(body) if isinstance(e, ir.Var)}


def test_unroll_needs_a_number() -> None:
    n = ir.Buffer("n", (1,), "int32")
    loop = ir.For(ir.Var("i"), n[0], ir.Seq(()), "unrolled")
    with pytest.raises(InternalError, match="no constant extent"):
        unroll_loops(loop)


def test_iterations_share_what_each_allocates() -> None:
    i, cell = ir.Var("i"), ir.Buffer("cell", (1,), "int32", "register")
    body = ir.Alloc(cell, ir.Store(cell, (ir.const(0, "int32"),), i))
    unrolled = unroll_loops(ir.For(i, ir.const(2, "int32"), body, "unrolled"))
    stores = [ir.Store(cell, (ir.const(0, "int32"),), ir.const(k, "int32")) for k in range(2)]
    assert unrolled == ir.Alloc(cell, ir.seq(*stores))


def test_sums_that_nobody_stores_are_not_made() -> None:
    """Through other cells, too; a loop that only made them goes. Cells that a loop numbers stay."""
    cells, out, i, data = (
        ir.Buffer("cells", (3,), "int32", "register"),
        ir.Buffer("out", (1,), "int32"),
        ir.Var("i"),
        ir.Buffer("x", (4,), "int32"),
    )
    at = [ir.as_index(k) for k in range(3)]
    dead = ir.loops([(i, 4)], ir.Store(cells, (at[2],), cells[at[1]] + cells[at[2]] + data[i]))
    alive = ir.seq(ir.Store(cells, (at[0],), data[at[1]]), ir.Store(out, (at[0],), cells[at[0]]))
    body = ir.seq(ir.Store(cells, (at[1],), data[at[0]]), ir.Store(cells, (at[2],), data[at[1]]), dead, alive)
    assert drop_dead_register_stores(ir.Alloc(cells, body)) == ir.Alloc(cells, alive)
    assert drop_dead_register_stores(ir.Alloc(cells, alive)) == ir.Alloc(cells, alive)
    numbered = ir.Alloc(cells, ir.loops([(i, 3)], ir.Store(cells, (i,), data[i])))
    assert drop_dead_register_stores(numbered) == numbered


def test_share_names_what_is_used_twice() -> None:
    x, w, out = ir.Buffer("x", (2,), "int8"), ir.Buffer("w", (2,), "int8"), ir.Buffer("out", (4,), "int32")

    def product(a: int, b: int) -> ir.Expr:
        return x[a].astype("int32") * w[b].astype("int32")

    body = ir.seq(*(ir.Store(out, (ir.const(2 * a + b, "int32"),), product(a, b)) for a in (0, 1) for b in (0, 1)))
    shared = share_values(body)
    loads = [e for e in walk_all_exprs(shared) if isinstance(e, ir.Load)]
    assert len(loads) == 4  # each operand once
    func = ir.PrimFunc("products", (x, w, out), body)
    np.testing.assert_array_equal(outputs(replace(func, body=shared), lowered=False), outputs(func, lowered=False))


def test_share_reads_memory_in_order() -> None:
    """Neighbouring words that one statement reads are read one after the other, whatever the order it uses them in."""
    x, out, zero = ir.Buffer("x", (8,), "int16"), ir.Buffer("out", (2,), "int32"), ir.const(0, "int32")

    def word(at: int) -> ir.Expr:
        return ir.Call("load_i16x2", (ir.AddressOf(x, (ir.const(at, "int32"),), 2),), "int32")

    first = ir.Store(out, (zero,), word(6) * word(2) + word(4) * word(0))
    second = ir.Store(out, (ir.const(1, "int32"),), word(6) * word(4) + word(2) * word(0))
    shared = share_values(ir.seq(first, second))
    values = [s.value for s in walk_stmt(shared) if isinstance(s, ir.Let)]
    assert values == [word(k) for k in (0, 2, 4, 6)]


def test_share_sees_stores_in_between() -> None:
    """A value that memory no longer holds is loaded again; a guarded load stays behind its guard."""
    out, zero = ir.Buffer("out", (3,), "int32"), ir.const(0, "int32")
    first = ir.Store(out, (zero,), out[1] + out[1])
    second = ir.Store(out, (ir.const(1, "int32"),), out[1] + 1)
    third = ir.Store(out, (ir.const(2, "int32"),), out[1] + out[1])
    beyond = ir.Select(out[0] > 5000, out[7], out[0])  # out[7] does not exist and is never read
    guarded = ir.Store(out, (zero,), ir.Bin("add", beyond, beyond))
    func = ir.PrimFunc("shared", (out,), ir.seq(first, second, third, guarded))
    want = outputs(func, lowered=False)
    np.testing.assert_array_equal(outputs(replace(func, body=share_values(func.body)), lowered=False), want)


def test_alternatives_reuse_what_their_condition_computes() -> None:
    """An inlined exponential repeats its operand; a load behind a condition stays there."""
    x, out = ir.Buffer("x", (1,), "int32"), ir.Buffer("out", (1,), "int32")
    zero = ir.const(0, "int32")
    value = x[0] * 3
    inlined = value
    for _ in range(4):
        inlined = inlined + inlined
    loads_more = ir.Select(value < 0, x[0] + x[5] + value, value)  # x[5] does not exist and is never read
    body = ir.seq(
        ir.Store(out, (zero,), ir.Select(value < 0, inlined, value)),
        ir.Store(out, (zero,), ir.Bin("add", loads_more, value)),
    )
    shared = share_values(body)
    named = [s.value for s in walk_stmt(shared) if isinstance(s, ir.Let)]
    assert [e for e in walk_all_exprs(shared) if e == x[0]] == [x[0]]
    assert x[5] not in named


@pytest.mark.parametrize(
    "body",
    [
        "for i in range(8):\n    if E[0] < 3:\n        E[0] += 1\n    else:\n        E[1] += A[i]",
        "for i in range(8):\n    E[i] = T.Select(E[3] > 5, A[i], 0)",
        "for i in range(9):\n    for j in range(5):\n        if i < 8 and E[2] < 4:\n            E[2] += 1",
        "for i, j in T.grid(3, 3):\n    if i * 3 + j < 8:\n        for k in range(4):\n"
        "            if E[4] < A[i * 3 + j]:\n                E[4] += 2",
    ],
)
def test_conditions_that_a_loop_changes_stay_in_it(body: str) -> None:
    """They were tested once, before the loop, and the rest of its iterations ran as the first one did."""
    head = '@T.prim_func\ndef f(A: T.Buffer((8,), "int32"), E: T.Buffer((8,), "int32")):\n'
    func = from_text(head + "".join(f"    {line}\n" for line in ["E[3] = 9", *body.splitlines()]))
    results = []
    for each in (func, lower(func)):
        a, e = np.arange(8, dtype=np.int32), np.zeros(8, np.int32)
        run(each, [a, e])
        results.append(e)
    assert np.array_equal(results[0], results[1])
