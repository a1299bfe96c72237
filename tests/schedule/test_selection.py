# SPDX-License-Identifier: Apache-2.0
"""Selection of scalar intrinsics by their meanings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import microc
from microc import te
from microc.errors import ScheduleError
from microc.isa import CORES, SCALAR
from microc.isa.instruction_set import Body, InstructionSet, Intrin, int32_constant
from microc.plugin import Plugin, active
from microc.schedule.identities import intrinsic_functions
from microc.schedule.primitives.selection import select_intrinsics
from microc.tir import ir
from microc.tir.interp import execute
from microc.tir.rewrite import walk_all_exprs
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


A, B = ir.Var("a"), ir.Var("b")
DIFFERENCE = Intrin("absolute_difference", (A, B), ir.maximum(A - B, B - A))


def _core_with(instructions: int) -> Plugin:
    """A core with an instruction that a user declares: its meaning, and a body of a number of instructions."""
    body = Body("return a > b ? a - b : b - a;", operations=(("alu", instructions),))
    own = InstructionSet("acme", "1", {DIFFERENCE.name: body}, intrinsics=(DIFFERENCE,))
    plain = CORES["rv32imc"]
    return Plugin(cores=(replace(plain, name="acme", sets=(own, *plain.sets)),))


@pytest.mark.parametrize(("instructions", "reason"), [(1, ""), (9, "it takes 9 instructions; portable C")])
def test_an_instruction_of_a_user_is_called_where_its_meaning_occurs(instructions: int, reason: str) -> None:
    """Or the explanation tells why it is not."""
    x, y = te.placeholder((8,), "int32", "x"), te.placeholder((8,), "int32", "y")
    out = te.compute((8,), lambda i: ir.maximum(y[i] - x[i], x[i] - y[i]), "out")
    plugin = _core_with(instructions)
    with active([plugin]):
        schedule = microc.default_schedule(te.create_prim_func("f", (x, y), (out,)), "acme")
    called = {call.name for call in walk_all_exprs(schedule.func.body) if isinstance(call, ir.Call)}
    assert (DIFFERENCE.name in called) == (not reason)
    found = microc.explain(digits.INT8, target="acme", plugins=[plugin]).to_data(full=True)["unused_intrinsics"]
    assert found[DIFFERENCE.name].startswith(reason or "its meaning does not occur")


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
