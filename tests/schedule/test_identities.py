# SPDX-License-Identifier: Apache-2.0
"""Both sides of every identity have the same value within its ranges, and contexts decide where identities apply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ScheduleError
from microc.schedule.identities import IDENTITIES, Identity, Match, intrinsic_functions
from microc.schedule.primitives.unification import substitute_operands
from microc.schedule.rules.around_rules import list_identity_costs
from microc.schedule.schedule import Schedule, replay_trace, trace_from_json
from microc.target import target_for
from microc.tir import ir
from microc.tir.interp import execute
from microc.tir.rewrite import free_vars

SIZE, TRIALS = 64, 24
INDEX = ir.Var("i")
LIMITS = (-32768, -128, -100, 0, 90, 127, 255, 32767)
DISTANCES = (0, 1, 2, 3, 17, 30, 31)
SPECIAL = np.array([0.5, 1.5, -2.5, 126.5, -128.5, 3e9, -3e9, 1e-40], np.float32)


def constants_of(identity: Identity, dice: np.random.Generator) -> Iterator[dict[str, int | float]]:
    """Values of the constants that are within the ranges of an identity, and that its condition accepts."""
    ranges = {name: (least, most) for name, least, most in identity.ranges}
    for _ in range(4000):
        values = {name: _draw_constant(name, typical, dice) for name, typical in identity.constants.items()}
        variables = {var.name: var for var in free_vars(identity.pattern)}
        operands = {name: ir.Const(value, variables[name].dtype) for name, value in values.items()}
        fits = all(least <= values.get(name, least) <= most for name, (least, most) in ranges.items())
        if fits and (not values or identity.condition(Match(identity.pattern, {**variables, **operands}))):
            yield values


def _draw_constant(name: str, typical: int | float, dice: np.random.Generator) -> int | float:
    """A number of the type of a typical value, often at the edge of what conditions accept."""
    if isinstance(typical, float):
        return float(dice.choice(LIMITS)) + float(dice.choice((0, 0, 0, 0.5, 1 << 23)))
    if "low" in name or "high" in name:
        return int(dice.choice(LIMITS))
    if name == "z":
        return int(dice.choice(LIMITS)) + int(dice.choice((0, 1, -1, 128)))
    if name in ("s", "l"):
        return int(dice.choice(DISTANCES))
    return int(dice.integers(-300, 300)) << (int(dice.choice((0, 0, 10, 23))) if name == "k" else 0)


def data_of(identity: Identity, var: ir.Var, constants: Mapping[str, int | float], dice: np.random.Generator) -> Array:
    """Values of a variable within its range, its ends among them."""
    if var.dtype == "float32":
        numbers = dice.normal(0, dice.choice((1, 100, 1e5), SIZE), SIZE).astype(np.float32)
        numbers[: SPECIAL.size] = SPECIAL
        if identity.name == "clamp_after_rounding_nan":
            numbers[SPECIAL.size :][:3] = np.nan, np.inf, -np.inf
        return numbers
    low, high = next(
        ((int(low), int(high)) for name, low, high in identity.ranges if name == var.name), dtypes.int_range("int32")
    )
    if "l" in constants and var.name == "x":  # x << l has a spare bit
        low, high = (end >> int(constants["l"]) for end in (-(1 << 31), (1 << 31) - 1))
    values = dice.integers(low, high + 1, SIZE)
    values[:4] = low, high, min(max(0, low), high), min(max(-1, low), high)
    return values.astype(np.int32)


@pytest.mark.parametrize("name", IDENTITIES)
def test_both_sides_are_equal(name: str) -> None:
    identity, dice = IDENTITIES[name], np.random.default_rng(len(name))
    accepted = 0
    for constants in constants_of(identity, dice):
        variables = sorted((v for v in free_vars(identity.pattern) if v.name not in constants), key=lambda v: v.name)
        buffers = [ir.Buffer(v.name, (SIZE,), v.dtype) for v in variables]
        operands: dict[ir.Expr, ir.Expr] = {v: b[INDEX] for v, b in zip(variables, buffers, strict=True)}
        operands |= {
            v: ir.Const(constants[v.name], v.dtype) for v in free_vars(identity.pattern) if v.name in constants
        }
        arrays = [data_of(identity, v, constants, dice) for v in variables]
        results = []
        for side in (identity.pattern, identity.replacement):
            out = ir.Buffer("out", (SIZE,), side.dtype)
            body = ir.loops([(INDEX, SIZE)], ir.Store(out, (INDEX,), substitute_operands(side, operands)))
            zeros = np.zeros(SIZE, dtypes.to_numpy(side.dtype))
            results.append(
                execute(ir.PrimFunc("f", (*buffers, out), body), [*arrays, zeros], intrinsic_functions())[-1]
            )
        before, after = results
        if identity.is_exact:
            np.testing.assert_array_equal(after, before)
        else:
            np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-3)
        accepted += 1
        if accepted == TRIALS:
            return
    assert accepted > 2


def test_contexts_decide() -> None:
    """Products are contracted where they are accumulated, not in another sum, nor if a block asks for two roundings."""
    x, out = (ir.Buffer(name, (4,), "float32") for name in ("x", "out"))
    total = out[INDEX] + x[INDEX] * x[INDEX]

    def schedule(value: ir.Expr, *notes: tuple[str, int]) -> Schedule:
        v = ir.Var("v")
        block = ir.Block("out", (ir.IterVar(v, 4, "space", INDEX),), ir.Store(out, (INDEX,), value), annotations=notes)
        return Schedule(ir.PrimFunc("f", (x, out), ir.loops([(INDEX, 4)], block)))

    for start, is_contracted in (
        (schedule(total), True),
        (schedule(total, ("two_roundings", 1)), False),
        (schedule(total * 2.0), False),
        (schedule(x[INDEX] + x[INDEX] * x[INDEX]), False),
    ):
        assert (start.apply_identities("fused_product").func != start.func) == is_contracted


def test_an_unknown_identity_is_refused() -> None:
    schedule = Schedule(ir.PrimFunc("f", (), ir.Seq(())))
    with pytest.raises(ScheduleError, match="got 'fused_products', expected the name of an identity") as refusal:
        schedule.apply_identities("fused_products")
    assert "fused_product" in (refusal.value.hint or "")


def test_traces_of_older_schedules_are_read() -> None:
    x, out = ir.Buffer("x", (4,), "int32"), ir.Buffer("out", (4,), "int32")
    value = ir.call("high_mac", x[INDEX] << 1, ir.const(1 << 30, "int32"), ir.const(8, "int32")) >> 3
    func = ir.PrimFunc("f", (x, out), ir.loops([(INDEX, 4)], ir.Store(out, (INDEX,), value)))
    by_name = replay_trace(func, trace_from_json('[["select_high_mac"]]'))
    assert by_name.func == Schedule(func).apply_identities("halved_operand").func != func
    assert [step.primitive for step in by_name.trace] == ["apply_identities"]


@pytest.mark.parametrize(
    ("core", "name", "refusal"),
    [
        ("rv32imafc", "fused_product", ""),
        ("xtensa-lx7", "fused_product", "it takes "),
        ("cortex-m4", "halved_operand", ""),
        ("cortex-m0", "halved_operand", "it takes "),
        ("cortex-m55", "halved_operand", "the lanes of its vectors"),
        ("cortex-m0", "high_mac_by_halves", ""),
        ("avr", "high_mac_by_halves", "the core has no C body"),
    ],
)
def test_cores_use_what_pays(core: str, name: str, refusal: str) -> None:
    found = list_identity_costs(target_for(core))[name].refusal
    assert found.startswith(refusal) and bool(found) == bool(refusal)
