# SPDX-License-Identifier: Apache-2.0
"""Selection of scalar intrinsics by their meanings."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ScheduleError
from microc.isa import CORES, SCALAR
from microc.isa.instruction_set import LANE, Body, InstructionSet, Intrin, VectorUnit, int32_constant
from microc.plugin import Plugin, active
from microc.schedule.identities import intrinsic_functions
from microc.schedule.primitives.selection import find_lane_operation, find_occurrences, select_intrinsics
from microc.tir import ir
from microc.tir.interp import execute
from microc.tir.lower import lower
from microc.tir.names import parse_lanes
from microc.tir.rewrite import substitute, substitute_stmt, walk_all_exprs, walk_stmt
from microc.tir.verify import explain_fault
from tests.support import digits

INDEX = ir.Var("i")
X, OUT = ir.Buffer("x", (9,), "int32"), ir.Buffer("out", (9,), "int32")
NAMES = {"int8": "saturate_i8", "uint8": "saturate_u8", "int16": "saturate_i16"}
ENDS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("dtype", ENDS)
@pytest.mark.parametrize("held", ENDS)
def test_a_clamped_number_needs_no_cast_to_its_dtype_and_back(held: str, dtype: str, half: bool) -> None:
    low, high = ENDS[held]
    value = X[INDEX] >> 1 if half else X[INDEX]
    clamped = ir.binary("min", ir.binary("max", value, ir.const(low, "int32")), ir.const(high, "int32"))
    body = ir.Store(OUT, (INDEX,), clamped.astype(dtype).astype("int32") + 1)
    func = ir.PrimFunc("f", (X, OUT), ir.For(INDEX, ir.const(9, "int32"), body))
    name = NAMES[held]
    selected = select_intrinsics(func, (name, f"{name}_shr_1"))
    holds = ENDS[dtype][0] <= low and high <= ENDS[dtype][1]
    assert any(isinstance(x, ir.Cast) for x in walk_all_exprs(selected.body)) != holds
    numbers = np.array([-(1 << 31), (1 << 31) - 1, -40000, 40000, -300, 300, -7, 0, 7], np.int32)
    after, before = (execute(f, [numbers, np.zeros(9, np.int32)], intrinsic_functions())[-1] for f in (selected, func))
    np.testing.assert_array_equal(after, before)


def test_a_clamp_is_selected_in_either_order_with_the_shift_before_it() -> None:
    low, high = (ir.const(end, "int32") for end in ENDS["int8"])
    turned = ir.binary("max", ir.binary("min", X[INDEX] >> 1, high), low)
    func = ir.PrimFunc("f", (X, OUT), ir.For(INDEX, ir.const(9, "int32"), ir.Store(OUT, (INDEX,), turned)))
    selected = select_intrinsics(func, ("saturate_i8", "saturate_i8_shr_1"))
    assert selected.body.body.value == ir.call("saturate_i8_shr_1", X[INDEX])  # type: ignore[attr-defined]


def test_operands_must_be_within_limits() -> None:
    """``mul_i8`` multiplies bytes: not a byte by a word, nor by a constant, nor loop variables."""
    data, word = ir.Buffer("data", (9,), "int8"), X[INDEX]
    byte = data[INDEX].astype("int32")
    for value, is_called in ((byte * byte, True), (byte * word, False), (byte * 2, False), (INDEX * INDEX, False)):
        func = ir.PrimFunc("f", (data, X, OUT), ir.loops([(INDEX, 9)], ir.Store(OUT, (INDEX,), value)))
        selected = select_intrinsics(func, ("mul_i8",))
        assert (selected != func) == is_called


@pytest.mark.parametrize("name", ["saturate_i5", "load_i8x4", "add_f32x4", "hold"])
def test_names_of_other_intrinsics_are_refused(name: str) -> None:
    with pytest.raises(ScheduleError, match=f"got '{name}', expected the name of a scalar intrinsic"):
        select_intrinsics(
            ir.PrimFunc("f", (OUT,), ir.Store(OUT, (ir.const(0, "int32"),), ir.const(0, "int32"))), (name,)
        )


A, B, C = (ir.Var(name) for name in "abc")
Y = ir.Buffer("y", (9,), "int32")
BYTE, OTHER = (ir.Buffer(name, (9,), "int8") for name in ("byte", "other"))
WORD = ir.Buffer("word", (9,), "uint32")
ONE, ZERO = ir.const(1, "int32"), ir.const(0, "int32")
TOP = (1 << 31) - 1


def wide(x: ir.Expr) -> ir.Expr:
    return x.astype("int64")


def select_by_order(op: str, x: ir.Expr, y: ir.Expr, a: ir.Expr, b: ir.Expr) -> ir.Expr:
    return ir.select(ir.binary(op, x, y), a, b)


x, y, u = X[INDEX], Y[INDEX], WORD[INDEX]
p, q = BYTE[INDEX].astype("int32"), OTHER[INDEX].astype("int32")
DIFFERENCE = Intrin("absolute_difference", (A, B), ir.maximum(A - B, B - A))
LARGEST = Intrin("largest", (A, B), ir.maximum(A, B))
AVERAGE = Intrin("average", (A, B), (A + B + 1) >> 1)
SATURATED_SUM = Intrin("saturated_sum", (A, B), ir.clamp(A + B, -128, 127))
DISTANCE = (("b", 1, 31),)
ROUNDED = Intrin(
    "rounded", (A, B), ((wide(A) + (ir.const(1, "int64") << wide(B) - 1)) >> wide(B)).astype("int32"), 0, DISTANCE
)
ROUNDED_SUM = Intrin("rounded_sum", (A,), (A + 16) >> 5)
TWICE = ir.minimum((wide(A) * wide(B) * 2 + (1 << 31)) >> 32, TOP).astype("int32")
DOUBLED = Intrin("doubling_product", (A, B), TWICE)
HIGH = Intrin("high_half", (A, B), ((wide(A) * wide(B)) >> 32).astype("int32"))
PLUS = Intrin("shifted_sum", (A, B), (A << 1) + B)
UA, UB = ir.Var("a", "uint32"), ir.Var("b", "uint32")
ROTATED = Intrin("rotated", (UA, UB), (UA << UB) | (UA >> (ir.const(32, "uint32") - UB)), 0, DISTANCE)
CHOSEN = Intrin("chosen", (A, B), select_by_order("ne", A, ZERO, B, ZERO))
UNSIGNED = Intrin("largest_unsigned", (UA, UB), ir.maximum(UA, UB))
EQUAL_FORMS = (
    (DIFFERENCE, select_by_order("lt", p, q, q - p, p - q)),
    (DIFFERENCE, select_by_order("ge", p, q, p - q, q - p)),
    (DIFFERENCE, ir.maximum(p - q, ZERO - (p - q))),
    (LARGEST, select_by_order("gt", x, y, x, y)),
    (LARGEST, select_by_order("le", x, y, y, x)),
    (LARGEST, ir.maximum(ir.minimum(x, y), 5)),
    (LARGEST, select_by_order("lt", x, ONE * 5, ONE * 5, x)),
    (AVERAGE, (ONE + p + q) >> 1),
    (AVERAGE, (q + (p + 1)) >> 1),
    (SATURATED_SUM, ir.clamp(p - 3, -128, 127)),
    (SATURATED_SUM, ir.maximum(ir.minimum(q + p, 127), -128).astype("int8").astype("int32")),
    (ROUNDED, ((x >> 4) + 1) >> 1),
    (ROUNDED, (p * 3 + 16) >> 5),
    (ROUNDED_SUM, (p + 16) >> 5),
    (DOUBLED, ir.call("high_mul_round", p << 1, y)),
    (HIGH, ir.call("high_product", x, y)),
    (PLUS, p * 2 + q),
    (PLUS, q + (p << 1)),
    (ROTATED, (u << 7) | (u >> 25)),
    (ROTATED, (u >> 30) | (u << 2)),
    (CHOSEN, select_by_order("eq", x, ZERO, ZERO, y)),
)
OTHER_VALUES = (
    (LARGEST, select_by_order("lt", x, y, x, y)),
    (LARGEST, select_by_order("gt", x, y, x, q)),
    (AVERAGE, (ONE + x + y) >> 1),  # its partial sums may overflow in another order
    (AVERAGE, (p + q + 2) >> 1),
    (ROUNDED_SUM, ((x >> 4) + 1) >> 1),  # the sum of the instruction overflows
    (ROUNDED, (x + 17) >> 5),
    (ROUNDED, x >> 5),
    (ROTATED, (u << 7) | (u >> 24)),
    (UNSIGNED, select_by_order("lt", u, u * 2, u * 2 - u, u - u * 2)),  # differences of unsigned numbers wrap around
    (PLUS, p * 3 + q),
)


def compute(func: ir.PrimFunc) -> Array:
    """Results of a function for random numbers and for the ends of their ranges."""
    dice = np.random.default_rng(7)
    ends = np.array([-(1 << 31), TOP, -1, 0, 1], np.int64)
    arrays: list[Array] = []
    for buffer in func.params:
        low, high = dtypes.int_range(buffer.dtype)
        numbers = dice.integers(low, high + 1, 9)
        numbers[:5] = np.clip(ends, low, high)
        arrays.append(numbers.astype(buffer.dtype) if buffer != OUT else np.zeros(9, np.int32))
    return execute(func, arrays, intrinsic_functions())[-1]


def select(intrin: Intrin, value: ir.Expr) -> tuple[ir.PrimFunc, ir.PrimFunc]:
    """A function that stores a value, before and after the selection of one intrinsic."""
    stored = ir.reinterpret("int32", value) if value.dtype == "uint32" else value
    func = ir.PrimFunc("f", (X, Y, BYTE, OTHER, WORD, OUT), ir.loops([(INDEX, 9)], ir.Store(OUT, (INDEX,), stored)))
    return func, select_intrinsics(func, (intrin.name,))


@pytest.mark.parametrize(
    ("intrin", "value"), EQUAL_FORMS, ids=[f"{k}-{form[0].name}" for k, form in enumerate(EQUAL_FORMS)]
)
def test_a_meaning_is_found_in_every_form(intrin: Intrin, value: ir.Expr) -> None:
    with active([Plugin(externs=(intrin,))]):
        before, after = select(intrin, value)
        assert any(isinstance(e, ir.Call) and e.name == intrin.name for e in walk_all_exprs(after.body))
        np.testing.assert_array_equal(compute(after), compute(before))


@pytest.mark.parametrize(
    ("intrin", "value"), OTHER_VALUES, ids=[f"{k}-{form[0].name}" for k, form in enumerate(OTHER_VALUES)]
)
def test_expressions_of_other_values_stay(intrin: Intrin, value: ir.Expr) -> None:
    with active([Plugin(externs=(intrin,))]):
        before, after = select(intrin, value)
        assert after == before


def test_an_index_keeps_the_bounds_from_which_accesses_are_proved() -> None:
    table, clipped = ir.Buffer("table", (128,), "int32"), Intrin("clipped", (A,), ir.clamp(A, 0, 127))
    body = ir.Store(OUT, (INDEX,), table[ir.clamp(x, 0, 127)] + ir.clamp(y, 0, 127))
    func = ir.PrimFunc("f", (X, Y, table, OUT), ir.loops([(INDEX, 9)], body))
    with active([Plugin(externs=(clipped,))]):
        selected = select_intrinsics(func, ("clipped",))
        calls = [e for e in walk_all_exprs(selected.body) if isinstance(e, ir.Call)]
        assert [call.args for call in calls] == [(y,)] and not explain_fault(selected)


def _core_with(*intrins: Intrin, core: str = "rv32imc", **instructions: int) -> Plugin:
    """A core with instructions that a user declares: their meanings, and bodies of numbers of instructions."""
    bodies = {name: Body("return 0;", operations=(("alu", count),)) for name, count in instructions.items()}
    own, plain = InstructionSet("acme", "0", bodies, intrinsics=intrins), CORES[core]
    return Plugin(cores=(replace(plain, name="acme", sets=(own, *plain.sets)),))


@pytest.mark.parametrize(("instructions", "reason"), [(1, ""), (9, "it takes 9 instructions; portable C")])
def test_an_instruction_of_a_user_is_called_where_its_meaning_occurs(instructions: int, reason: str) -> None:
    """Or the explanation tells why it is not."""
    x, y = te.placeholder((8,), "int32", "x"), te.placeholder((8,), "int32", "y")
    out = te.compute((8,), lambda i: ir.maximum(y[i] - x[i], x[i] - y[i]), "out")
    plugin = _core_with(DIFFERENCE, absolute_difference=instructions)
    with active([plugin]):
        schedule = microc.default_schedule(te.create_prim_func("f", (x, y), (out,)), "acme")
    called = {call.name for call in walk_all_exprs(schedule.func.body) if isinstance(call, ir.Call)}
    assert (DIFFERENCE.name in called) == (not reason)
    found = microc.explain(digits.INT8, target="acme", plugins=[plugin]).to_data(full=True)["unused_intrinsics"]
    assert found[DIFFERENCE.name].startswith(reason or "its meaning does not occur")


@pytest.mark.parametrize(
    ("core", "intrin", "lanes", "dtype"),
    [
        ("cortex-m4", SATURATED_SUM, "i8x4", "int8"),
        ("cortex-m4", AVERAGE, "u8x4", "uint8"),
        ("cortex-m4", AVERAGE, "i16x2", "int16"),
        ("cortex-m55", SATURATED_SUM, "i32x4", "int8"),
        ("x86-64-v3", AVERAGE, "i32x8", "int16"),
        ("rv32imafc_zve32f", AVERAGE, "i32xvscalex32", "uint8"),
    ],
)
def test_a_scalar_meaning_is_computed_in_lanes_for_which_there_is_a_body(
    core: str, intrin: Intrin, lanes: str, dtype: str
) -> None:
    """The body alone is declared: the meaning in lanes follows. A body for one number leaves loops over lanes as they are."""
    operands = [te.placeholder((37,), dtype, name) for name in ("x", "y")]
    value = AVERAGE.meaning if intrin is AVERAGE else SATURATED_SUM.meaning
    assert isinstance(value, ir.Expr)
    a, b = operands

    def compute_element(i: ir.Expr) -> ir.Expr:
        return substitute(value, {A: a[i].astype("int32"), B: b[i].astype("int32")}).astype(dtype)

    out = te.compute((37,), compute_element, "out")
    func = te.create_prim_func("f", operands, (out,))
    dice = np.random.default_rng(3)
    low, high = dtypes.int_range(dtype)
    arrays = [*(dice.integers(low, high + 1, 37).astype(dtype) for _ in operands), np.zeros(37, dtype)]
    name = f"{intrin.name}_{lanes}"
    with active([_core_with(intrin, core=core, **{name: 1})]):
        lowered = lower(microc.default_schedule(func, "acme").func)
        assert name in {call.name for call in walk_all_exprs(lowered.body) if isinstance(call, ir.Call)}
        found, wanted = (execute(f, arrays, intrinsic_functions())[-1] for f in (lowered, func))
    np.testing.assert_array_equal(found, wanted)
    if "x" in lanes and lanes.startswith("i32"):
        with active([_core_with(intrin, core=core, **{intrin.name: 1})]):
            scalar = lower(microc.default_schedule(func, "acme").func)
        assert any(isinstance(e, ir.Call) and e.name.startswith("add_i32x") for e in walk_all_exprs(scalar.body))


def test_the_explanation_names_what_instructions_lack() -> None:
    product = Intrin("byte_product", (A, B, C), A * B + C, limits=(("a", -100, 100), ("b", -127, 127)))
    pair = replace(SCALAR["dot2"], name="pair_product")
    plugin = _core_with(
        product, pair, SATURATED_SUM, byte_product=1, pair_product=1, saturated_sum_i8x4=1, saturated_sum_i32x4=1
    )
    found = microc.explain(digits.INT8, target="acme", plugins=[plugin]).to_data(full=True)["unused_intrinsics"]
    assert found["byte_product"].endswith("but a may be -128 to 127, its limits are -100 to 100")
    assert found["pair_product"] == "its meaning is that of dot2, by which schedules call it: give the body this name"
    missing = "it is used together with load_i8x4, store_i8x4, for which the core has no C body"
    assert found["saturated_sum_i8x4"] == missing
    assert found["saturated_sum_i32x4"] == "schedules use no vectors on this core"


J, K, N = (ir.Var(name) for name in "jkn")
RUN, RUN_OF_BYTES, FROM = (
    ir.Buffer(name, (1 << 30,), dtype) for name, dtype in (("p", "int32"), ("p", "int8"), ("q", "int8"))
)
ONE_BYTE, FOUR_BYTES, FOUR_MORE = (
    ir.Buffer("p", (1,), "int8"),
    ir.Buffer("p", (4,), "int8"),
    ir.Buffer("q", (4,), "int8"),
)
STORE_CLIPPED = Intrin(
    "store_clipped", (ONE_BYTE, A), ir.Store(ONE_BYTE, (ZERO,), ir.clamp(A, -128, 127).astype("int8"))
)
RELU_4 = Intrin(
    "relu_4",
    (FOUR_BYTES, FOUR_MORE),
    ir.For(K, int32_constant(4), ir.Store(FOUR_BYTES, (K,), ir.maximum(FOUR_MORE[K], 0))),
)
ACCUMULATE = Intrin(
    "accumulate",
    (RUN, FROM, N),
    ir.For(K, N, ir.Store(RUN, (K,), RUN[K] + FROM[K].astype("int32"))),
    limits=(("n", 1, 64),),
)
SUM_OF_NEIGHBOURS = Intrin("neighbours", (FOUR_MORE,), FOUR_MORE[0].astype("int32") + FOUR_MORE[1].astype("int32"))
PLANE, RESULT = ir.Buffer("plane", (6, 16), "int8"), ir.Buffer("result", (6, 16), "int8")
WIDE, SUMS = ir.Buffer("wide", (6, 16), "int32"), ir.Buffer("sums", (16,), "int32", "workspace")
START = ir.Store(SUMS, (J,), ZERO)
IN_MEMORY = {
    "a store": (
        STORE_CLIPPED,
        ir.Store(RESULT, (INDEX, J), ir.clamp(WIDE[INDEX, J] >> 3, -128, 127).astype("int8")),
        16,
    ),
    "a run": (RELU_4, ir.Store(RESULT, (INDEX, J), ir.maximum(PLANE[INDEX, J], 0)), 4),
    "the other order": (RELU_4, ir.Store(RESULT, (5 - INDEX, J), ir.maximum(PLANE[INDEX, J], 0)), 4),
    "a load": (
        SUM_OF_NEIGHBOURS,
        ir.Store(WIDE, (INDEX, J), PLANE[INDEX, 2].astype("int32") + PLANE[INDEX, 1].astype("int32")),
        16,
    ),
}
NOT_IN_MEMORY = {
    "backwards": (RELU_4, ir.Store(RESULT, (INDEX, J), ir.maximum(PLANE[INDEX, 15 - J], 0))),
    "a column": (RELU_4, ir.Store(RESULT, (INDEX, J), ir.maximum(PLANE[J // 3, INDEX], 0))),
    "itself": (RELU_4, ir.Store(RESULT, (INDEX, J), ir.maximum(RESULT[INDEX, J], 0))),
    "another limit": (RELU_4, ir.Store(RESULT, (INDEX, J), ir.maximum(PLANE[INDEX, J], 1))),
    "one element": (
        SUM_OF_NEIGHBOURS,
        ir.Store(WIDE, (INDEX, J), PLANE[INDEX, 2].astype("int32") + PLANE[INDEX, 2].astype("int32")),
    ),
    "no neighbours": (
        SUM_OF_NEIGHBOURS,
        ir.Store(WIDE, (INDEX, J), PLANE[INDEX, 2].astype("int32") + PLANE[INDEX, 0].astype("int32")),
    ),
}


def run_on_planes(func: ir.PrimFunc) -> list[Array]:
    """Buffers of a function of planes after a run with random numbers."""
    dice = np.random.default_rng(11)
    ranges = (dtypes.int_range(buffer.dtype) for buffer in func.params)
    arrays = [dice.integers(low, high + 1, (6, 16)) for low, high in ranges]
    return execute(func, [a.astype(b.dtype) for a, b in zip(arrays, func.params, strict=True)], intrinsic_functions())


@pytest.mark.parametrize("in_block", [False, True])
@pytest.mark.parametrize("case", IN_MEMORY)
def test_a_meaning_in_memory_is_found(case: str, in_block: bool) -> None:
    """In a block or not. Runs of four elements replace loops of sixteen."""
    intrin, store, calls = IN_MEMORY[case]
    body: ir.Stmt = store
    if in_block:
        rows, columns = (ir.IterVar(ir.Var(f"v_{var.name}"), n, "space", var) for var, n in ((INDEX, 6), (J, 16)))
        body = ir.Block("out", (rows, columns), substitute_stmt(store, {INDEX: rows.var, J: columns.var}))
    func = ir.PrimFunc("f", (PLANE, WIDE, RESULT), ir.loops([(INDEX, 6), (J, 16)], body))
    with active([Plugin(externs=(intrin,))]):
        selected = select_intrinsics(func, (intrin.name,))
        (inner,) = (s for s in walk_stmt(selected.body) if isinstance(s, ir.For) and s.var == J)
        assert ir.int_value(inner.extent) == calls
        assert intrin.name in {e.name for e in walk_all_exprs(selected.body) if isinstance(e, ir.Call)}
        assert not explain_fault(selected) and not explain_fault(lower(selected))
        for after, before in zip(run_on_planes(selected), run_on_planes(func), strict=True):
            np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("case", NOT_IN_MEMORY)
def test_other_accesses_to_memory_stay(case: str) -> None:
    intrin, store = NOT_IN_MEMORY[case]
    func = ir.PrimFunc("f", (PLANE, WIDE, RESULT), ir.loops([(INDEX, 6), (J, 16)], store))
    with active([Plugin(externs=(intrin,))]):
        assert select_intrinsics(func, (intrin.name,)) == func


@pytest.mark.parametrize(("scope", "called"), [("workspace", True), ("register", False)])
def test_a_loop_that_adds_to_memory_is_one_call(scope: str, called: bool) -> None:
    """Of any length within the limits; not where the sums are in registers."""
    sums = replace(SUMS, scope=scope)
    start, add = ir.Store(sums, (K,), ZERO), ir.Store(sums, (J,), sums[J] + PLANE[INDEX, J].astype("int32"))
    end = ir.Store(WIDE, (ZERO, N), sums[N])
    body = ir.seq(ir.loops([(K, 16)], start), ir.loops([(INDEX, 6), (J, 16)], add), ir.loops([(N, 16)], end))
    func = ir.PrimFunc("f", (PLANE, WIDE), ir.Alloc(sums, body))
    with active([Plugin(externs=(ACCUMULATE,))]):
        selected = select_intrinsics(func, (ACCUMULATE.name,))
        calls = [e for e in walk_all_exprs(selected.body) if isinstance(e, ir.Call)]
        assert [call.args[2:] for call in calls] == [(ir.const(16, "int32"),)] * called
        if not called:
            assert set(find_occurrences(func, ACCUMULATE.name)) == {"sums is in registers, and p is a pointer"}
        for after, before in zip(run_on_planes(selected), run_on_planes(func), strict=True):
            np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize(("instructions", "reason"), [(1, ""), (99, "instructions; what they replace takes")])
def test_a_store_of_a_user_is_called_where_it_costs_less(instructions: int, reason: str) -> None:
    """Or the explanation tells what it costs, and which meanings in memory are called by name only."""
    odd = Intrin(
        "odd", (FOUR_BYTES,), ir.seq(*(ir.Store(FOUR_BYTES, (int32_constant(k),), ir.const(k, "int8")) for k in (1, 3)))
    )
    plugin = _core_with(STORE_CLIPPED, RELU_4, odd, store_clipped=instructions, relu_4=1, odd=1)
    explanation = microc.explain(digits.INT8, target="acme", plugins=[plugin])
    unused = explanation.to_data(full=True)["unused_intrinsics"]
    assert ("store_clipped" in unused) == bool(reason) and reason in unused.get("store_clipped", "")
    assert unused["relu_4"] == "its meaning does not occur in this network"
    assert unused["odd"].startswith("its meaning is no formula, store or loop of stores of contiguous elements")


PRODUCT = SCALAR["product_2_31"]
MULTIPLY_ACCUMULATE = Intrin("multiply_accumulate_q31", (*PRODUCT.params, B), PRODUCT.meaning + B)  # type: ignore[operator]


def test_an_instruction_of_a_user_is_called_through_an_identity() -> None:
    """``b + floor(x m / 2**31)`` is no expression of the operators, but equals ``high_mac(2 x, m, b)``. The identity that
    removes the doubling is not used then, although it saves an instruction elsewhere."""
    data, multiplier = (te.placeholder((8,), "int32", name) for name in ("data", "multiplier"))
    out = te.compute((8,), lambda i: ir.call("high_mac", data[i] << 1, multiplier[i], int32_constant(6)) >> 3, "out")
    func = te.create_prim_func("f", (data, multiplier), (out,))
    body = Body("return acme_mac(x, m, b);", operations=(("alu", 1),))
    own = InstructionSet("acme", "1", {MULTIPLY_ACCUMULATE.name: body}, intrinsics=(MULTIPLY_ACCUMULATE,))
    plain = CORES["rv32imc"]
    dice = np.random.default_rng(5)
    arrays = [dice.integers(-(1 << 30), 1 << 30, 8).astype(np.int32), dice.integers(0, 1 << 31, 8).astype(np.int32)]
    with active([Plugin(cores=(replace(plain, name="acme", sets=(own, *plain.sets)),))]):
        schedule = microc.default_schedule(func, "acme")
        found, wanted = (
            execute(f, [*arrays, np.zeros(8, np.int32)], intrinsic_functions())[-1] for f in (schedule.func, func)
        )
    assert [str(step) for step in schedule.trace[-2:]] == [
        "apply_identities((high_mac_by_halves))",
        "select_intrinsics((multiply_accumulate_q31))",
    ]
    np.testing.assert_array_equal(found, wanted)
    assert str(microc.default_schedule(func, "rv32imc").trace[0]) == "apply_identities((halved_operand))"


def test_the_explanation_names_why_an_identity_is_not_used() -> None:
    found = microc.explain(digits.INT8, target="cortex-m4").to_data(full=True)["unused_intrinsics"]
    assert found["product_2_31"] == "identity high_product_by_halves: the core has no C body for product_2_31"
    assert found["nearest_i32"].endswith("and no schedule applies clamp_after_rounding, clamp_after_rounding_nan")


def test_the_explanation_names_what_a_product_lacks() -> None:
    own = InstructionSet("acme", "1", {"dot4_i8": Body("return c;")})
    plain = CORES["rv32imc"]
    plugin = Plugin(cores=(replace(plain, name="acme", sets=(own, *plain.sets)),))
    explanation = microc.explain(digits.INT8, target="acme", plugins=[plugin])
    reason = "it is used together with load_i8x4, for which the core has no C body"
    assert explanation.to_data(full=True)["unused_intrinsics"]["dot4_i8"] == reason
    assert reason in explanation.text(full=True) and reason not in explanation.text()


def test_the_page_of_instruction_sets_declares_instructions_that_are_called() -> None:
    page = (Path(__file__).parents[2] / "docs" / "instruction_sets.md").read_text(encoding="utf-8")
    (block,) = (text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "CORE =" in text)
    names: dict[str, Any] = {}
    exec(compile(block, "instruction_sets.md", "exec"), names)
    x, y = (te.placeholder((8,), "int32", name) for name in ("x", "y"))
    out = te.compute((8,), lambda i: ir.call("high_mac_round", (x[i] - y[i]) << 1, y[i], ONE * 5), "out")
    with active([Plugin(cores=(names["CORE"],))]):
        schedule = microc.default_schedule(te.create_prim_func("f", (x, y), (out,)), "acme-math")
        assert "absolute_difference_u8x4" in SCALAR
    assert "doubling_product" in str(schedule.trace[-1])
    (block,) = (text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "VECTORS =" in text)
    exec(compile(block, "instruction_sets.md", "exec"), names)
    with active([Plugin(cores=(names["ACME"],))]):
        schedule = microc.default_schedule(narrow_func("int16", 8, lambda a, b: a + b), "acme-vectors")
    assert "i16x4" in str(schedule.func.body)


NARROW = ("load", "store", "add", "sub", "mul", "min", "max", "dup")


def lanes_plugin(suffix: str, *operations: str, own: tuple[Intrin, ...] = (), core: str = "rv32imc") -> Plugin:
    """A core with vectors of lanes narrower than int32: bodies of operations by name, and intrinsics of its own."""
    lanes = parse_lanes(suffix)
    assert lanes is not None
    dtype, vector = lanes.dtype, lanes.register_dtype
    gnu = f"{dtype}_t __attribute__((vector_size({dtypes.nbytes(vector)})))"
    signs = {"add": "+", "sub": "-", "mul": "*"}
    texts = {
        "load": f"{vector} r;\nmemcpy(&r, p, sizeof r);\nreturn r;",
        "store": "memcpy(p, &a, sizeof a);",
        "dup": f"return ({dtype}_t)n - ({vector}){{0}};",
        "max": f"const {vector} m = a > b;\nreturn (a & m) | (b & ~m);",
        **{name: f"return a {sign} b;" for name, sign in signs.items()},
    }
    bodies = {f"{name}_{suffix}": Body(texts.get(name, "return a;"), (("vector", 1),)) for name in operations}
    bodies |= {intrin.name: Body("return x;", (("vector", 1),)) for intrin in own}
    unit = VectorUnit({vector: gnu}, "string.h")
    instructions = InstructionSet("acme lanes", "defined(__GNUC__)", bodies, intrinsics=own, unit=unit)
    plain = CORES[core]
    return Plugin(cores=(replace(plain, name="acme", sets=(instructions, *plain.sets)),))


def narrow_func(dtype: str, extent: int, element: Callable[[ir.Expr, ir.Expr], ir.Expr]) -> ir.PrimFunc:
    """A function that computes every element of ``dtype`` from two."""
    x, y = (te.placeholder((extent,), dtype, name) for name in ("x", "y"))
    out = te.compute((extent,), lambda i: element(x[i].astype("int32"), y[i].astype("int32")).astype(dtype), "out")
    return te.create_prim_func("f", (x, y), (out,))


def calls_and_results(func: ir.PrimFunc) -> set[str]:
    """Names of the calls of a function's schedule for the core ``acme``; its results are those of the function."""
    dtype, extent = func.params[0].dtype, func.params[0].size
    dice, (low, high) = np.random.default_rng(extent), dtypes.int_range(dtype)
    arrays = [*(dice.integers(low, high + 1, extent).astype(dtype) for _ in range(2)), np.zeros(extent, dtype)]
    lowered = lower(microc.default_schedule(func, "acme").func)
    assert not explain_fault(lowered)
    found, wanted = (execute(f, arrays, intrinsic_functions())[-1] for f in (lowered, func))
    np.testing.assert_array_equal(found, wanted)
    return {x.name for x in walk_all_exprs(lowered.body) if isinstance(x, ir.Call)}


@pytest.mark.parametrize("extent", [4, 37, 64])
@pytest.mark.parametrize("suffix", ["i16x4", "u16x4", "i8x16", "u8x8"])
def test_lanes_of_a_unit_compute_elementwise_functions(suffix: str, extent: int) -> None:
    """Sums and products wrap as stores do; the maximum is of numbers that were narrowed before. A rest is single elements."""
    lanes = parse_lanes(suffix)
    assert lanes is not None
    dtype = lanes.dtype
    with active([lanes_plugin(suffix, *NARROW)]):
        wrapped = narrow_func(dtype, extent, lambda a, b: ir.maximum((a * 5 - b).astype(dtype).astype("int32"), b))
        names = ("load", "store", "mul", "sub", "max", "dup") if lanes.count <= extent else ()
        assert calls_and_results(wrapped) == {f"{name}_{suffix}" for name in names}
        assert not calls_and_results(narrow_func(dtype, extent, lambda a, b: ir.maximum(a * 5, b)))


def own_lane_intrinsics() -> tuple[Intrin, ...]:
    """Intrinsics of a unit under its own names, and a sum that saturates."""
    a, b = ir.Var("x", "int16"), ir.Var("y", "int16")
    p, (x, y) = ir.Buffer("q", (4,), "int16"), (ir.Var(name, "int16x4") for name in "xy")
    wide, other = a.astype("int32"), b.astype("int32")
    return (
        Intrin("acme_load", (p,), p[LANE], lanes=4),
        Intrin("acme_store", (p, x), ir.Store(p, (LANE,), a), lanes=4),
        Intrin("acme_sum", (x, y), ir.clamp(wide + other, -32768, 32767).astype("int16"), lanes=4),
        Intrin("acme_add", (x, y), (other + wide).astype("int16"), lanes=4),
        Intrin("acme_max", (x, y), ir.select(wide > other, a, b), lanes=4),
        Intrin("acme_small", (x, y), (wide - other).astype("int16"), lanes=4, limits=(("x", 0, 9),)),
    )


def test_operations_in_lanes_are_known_by_their_meanings() -> None:
    own = own_lane_intrinsics()
    with active([lanes_plugin("i16x4", own=own)]):
        assert [found and found[0] for found in map(find_lane_operation, own)] == [
            *("load", "store", None, "add", "max", None)
        ]
        func = narrow_func("int16", 37, lambda a, b: ir.maximum((a + b).astype("int16").astype("int32"), b))
        assert calls_and_results(func) == {"acme_load", "acme_store", "acme_add", "acme_max"}
    renamed = replace(own[2], name="add_i16x4")
    with active([lanes_plugin("i16x4", "load", "store", own=(renamed,))]):
        assert not calls_and_results(narrow_func("int16", 37, lambda a, b: a + b))


def test_lanes_of_a_unit_compute_scalar_intrinsics() -> None:
    with active([lanes_plugin("i16x4", "load", "store", "average", own=(AVERAGE,))]):
        value = AVERAGE.meaning
        assert isinstance(value, ir.Expr)
        func = narrow_func("int16", 37, lambda a, b: substitute(value, {A: a, B: b}))
        assert "average_i16x4" in calls_and_results(func)


@pytest.fixture(scope="module")
def int16_network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """max(a b + c, c) of 37 int16."""
    helper, int16 = pytest.importorskip("onnx.helper"), 5
    a, b, c, y = (helper.make_tensor_value_info(name, int16, [37]) for name in "abcy")
    nodes = [("Mul", "ab", "m"), ("Add", "mc", "s"), ("Max", "sc", "y")]
    graph = helper.make_graph([helper.make_node(op, list(x), [out]) for op, x, out in nodes], "g", [a, b, c], [y])
    path = tmp_path_factory.mktemp("int16") / "sums.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def test_a_compiler_takes_the_bodies_of_lanes(int16_network: Path) -> None:
    plugin = lanes_plugin("i16x4", *NARROW, core="host")
    unused = microc.explain(int16_network, target="acme", plugins=[plugin]).to_data(full=True)["unused_intrinsics"]
    own = {name: reason for name, reason in unused.items() if name.endswith("_i16x4")}
    assert own == dict.fromkeys(("dup_i16x4", "min_i16x4", "sub_i16x4"), "its meaning does not occur in this network")
    network = microc.compile(int16_network, target="acme", plugins=[plugin])
    dice = np.random.default_rng(2)
    a, b, c = (dice.integers(-(1 << 15), 1 << 15, 37).astype(np.int16) for _ in range(3))
    np.testing.assert_array_equal(np.asarray(network(a, b, c)), np.maximum(a * b + c, c))


@pytest.mark.parametrize(
    ("operations", "reason"),
    [
        (("load", "add", "mul", "max"), "it is used together with store_i16x4, for which the core has no C body"),
        (("load", "store", "add", "max"), "has no form in the lanes i16x4: the core has no C body for mul_i16x4"),
    ],
)
def test_the_explanation_names_what_lanes_lack(operations: tuple[str, ...], reason: str, int16_network: Path) -> None:
    plugin = lanes_plugin("i16x4", *operations, own=own_lane_intrinsics()[2:3])
    unused = microc.explain(int16_network, target="acme", plugins=[plugin]).to_data(full=True)["unused_intrinsics"]
    assert unused["add_i16x4"].endswith(reason)
    assert unused["acme_sum"].startswith("in lanes, only operations and forms of scalar intrinsics are called")
