# SPDX-License-Identifier: Apache-2.0
"""Printed C against the interpreter: random typed expressions, every literal, helpers at their edges.

A batch of expressions becomes one library. Random expressions hold what passes fold away and people do not write, such as
comparisons of constants: there only warnings that speak of the printer are errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.codegen.c.c_expressions import ExprPrinter
from microc.errors import InternalError
from microc.tir import ir
from microc.tir.interp import execute
from microc.tir.rewrite import walk_expr
from tests.support.native import UNDEFINED, build, call
from tests.tir.strategies import COMPUTE, SOURCES, STORED, data_exprs

LENIENT = ("-Wno-error", "-Werror=parentheses")
BATCH = 60


class Batch:
    """Many expressions: too many to be shown."""

    def __init__(self, values: Sequence[ir.Expr]) -> None:
        self.values = values

    def __repr__(self) -> str:
        return f"<{len(self.values)} expressions>"


def function(number: int, value: ir.Expr) -> ir.PrimFunc:
    """out[0] = value."""
    out = ir.Buffer("result", (1,), value.dtype)
    return ir.PrimFunc(f"f{number}", (*SOURCES.values(), out), ir.Store(out, (ir.const(0, "int32"),), value))


def data(seed: int) -> list[Array]:
    """Contents of the sources: small numbers and extremes."""
    dice = np.random.default_rng(seed)
    found = []
    for dtype, buffer in SOURCES.items():
        if dtypes.is_float(dtype):
            values = dice.choice([0.0, -0.0, 1.5, -3.25, 1e30, 77.0, -1e-30], 3).tolist()
        else:
            low, high = dtypes.int_range(dtype)
            values = [
                (low, high, min(7, high))[k] if dice.random() < 0.3 else int(dice.integers(0, 2)) for k in range(3)
            ]
        found.append(np.array(values, dtypes.to_numpy(dtype)).reshape(buffer.shape))
    return found


def plain(value: ir.Expr) -> bool:
    """Whether every remainder has a positive literal as divisor: C leaves the lowest number modulo -1 undefined."""
    remainders = [e for e in walk_expr(value) if isinstance(e, ir.Bin) and e.op in ("floormod", "truncmod")]
    return all((ir.int_value(e.b) or 0) > 0 for e in remainders)


def meaning(func: ir.PrimFunc, sources: Sequence[Array]) -> Array | None:
    """The interpreter's result; None where the expression does what TIR forbids (overflow, division by zero ...)."""
    out = np.zeros(1, dtypes.to_numpy(func.params[-1].dtype))
    try:
        return execute(func, [*sources, out])[-1]
    except InternalError:
        return None


def compare(values: Sequence[ir.Expr], seed: int, folder: Path, *flags: str) -> int:
    """Run all expressions that have a value; returns how many those are."""
    sources = data(seed)
    funcs = [function(number, value) for number, value in enumerate(values) if plain(value)]
    meant = {func.name: meaning(func, sources) for func in funcs}
    funcs = [func for func in funcs if meant[func.name] is not None]
    library = build(funcs, folder, *flags)
    for func in funcs:
        got, want = call(library, func, [*sources, None])[-1], meant[func.name]
        assert want is not None
        np.testing.assert_array_equal(got, want, err_msg=str(func.body))
        if got.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(got[~np.isnan(got)]), np.signbit(want[~np.isnan(want)]))
    return len(funcs)


FLAGS = {"sanitized": ("-O0", UNDEFINED), "optimised": ("-O2", "-Werror=conversion")}
"""What checks casts of floats as they run hides them from gcc's warning of conversions."""


@pytest.mark.parametrize("compiler_flags", FLAGS.values(), ids=FLAGS)
@given(
    values=st.lists(
        st.sampled_from(STORED).flatmap(lambda dtype: data_exprs(dtype, 3)), min_size=BATCH, max_size=BATCH
    ).map(Batch),
    seed=st.integers(0, 1000),
)
@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example, HealthCheck.data_too_large],
)
def test_random_expressions(
    compiler_flags: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory, values: Batch, seed: int
) -> None:
    compare(values.values, seed, tmp_path_factory.mktemp("batch"), *LENIENT, *compiler_flags)


def edges(dtype: str) -> list[int | float]:
    if dtype == "bool":
        return [0, 1]
    if dtypes.is_float(dtype):
        kind = np.finfo(dtypes.to_numpy(dtype))
        tiny = [float(kind.max), float(kind.min), float(kind.tiny), float(kind.smallest_subnormal), float(kind.eps)]
        return [0.0, -0.0, 1.0, -1.5, 0.1, 1e10, 16777216.0, *tiny, float("inf"), float("-inf"), float("nan")]
    low, high = dtypes.int_range(dtype)
    return [v for v in (low, low + 1, -1, 0, 1, high - 1, high) if low <= v <= high]


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_literals(compiler: str, tmp_path: Path) -> None:
    """Every literal is of its dtype, exactly, and needs no conversion."""
    values: list[ir.Expr] = [ir.const(value, dtype) for dtype in STORED for value in edges(dtype)]
    values += [ir.Bin("sub", SOURCES["int32"][0], ir.const(v, "int32")) for v in (-5, 5)]
    assert compare(values, 1, tmp_path, "-O0", UNDEFINED) == len(values)
    build([function(k, value) for k, value in enumerate(values)], tmp_path, compiler=compiler)


PAIRS: Mapping[str, tuple[str, ...]] = {
    "min": COMPUTE,
    "max": COMPUTE,
    "floordiv": ("int32", "int64", "uint32", "uint64"),
    "floormod": ("int32", "int64", "uint32", "uint64"),
    "truncdiv": ("int32", "int64", "uint32", "uint64"),
    "truncmod": ("int32", "int64", "uint32", "uint64"),
    "shl": ("int32", "int64", "uint32", "uint64"),
    "shr": ("int32", "int64", "uint32", "uint64"),
}


@pytest.mark.parametrize("op", PAIRS)
def test_operators_at_their_edges(op: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """All pairs of edge values, from memory, under all warnings."""
    for dtype in PAIRS[op]:
        pairs = [(a, b) for a in edges(dtype) for b in edges(dtype)]
        if op in ("shl", "shr"):
            bits = dtypes.dtype_parts(dtype).bits
            pairs = [(a, b) for a in edges(dtype) for b in (0, 1, bits // 2, bits - 2, bits - 1)]
        kind = dtypes.to_numpy(dtype)
        left, right, out = (ir.Buffer(name, (1,), dtype) for name in ("left", "right", "result"))
        func = ir.PrimFunc(
            f"{op}_{dtype}", (left, right, out), ir.Store(out, (ir.const(0, "int32"),), ir.Bin(op, left[0], right[0]))
        )
        folder = tmp_path / dtype
        folder.mkdir()
        library = build([func], folder, "-O0", UNDEFINED)
        for pair in pairs:
            if op.endswith("mod") and pair == (-(1 << (dtypes.dtype_parts(dtype).bits - 1)), -1):
                continue  # undefined in C, as the quotient does not fit
            a, b = (np.array([value], kind) for value in pair)
            try:
                want = execute(func, [a, b, np.zeros(1, kind)])[-1]
            except InternalError:
                continue
            np.testing.assert_array_equal(call(library, func, [a, b, None])[-1], want, err_msg=str(pair))
    assert "runtime error" not in capfd.readouterr().err


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_constant_shifts_to_the_left(dtype: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Negative numbers and every count, without undefined behaviour."""
    bits, funcs = dtypes.dtype_parts(dtype).bits, []
    x, out = ir.Buffer("x", (1,), dtype), ir.Buffer("result", (1,), dtype)
    for count in range(bits):
        value = ir.Bin("shl", x[0], ir.const(count, dtype))
        funcs.append(ir.PrimFunc(f"shl_{count}", (x, out), ir.Store(out, (ir.const(0, "int32"),), value)))
    library = build(funcs, tmp_path, UNDEFINED)
    for count, func in enumerate(funcs):
        for number in (0, 1, -1):
            if number == 1 and count == bits - 1:
                continue
            got = call(library, func, [np.array([number], dtypes.to_numpy(dtype)), None])[-1]
            assert int(got[0]) == number << count
    assert "runtime error" not in capfd.readouterr().err


def test_text_is_what_people_write() -> None:
    a, b = ir.Var("a"), ir.Var("b")
    spelled = {
        "a + b * 2": a + b * 2,
        "(a + b) * 2": (a + b) * 2,
        "a - (b - 1)": a - (b - 1),
        "a - 3": a + -3,
        "(a & b) + 1": (a & b) + 1,
        "a < b && b < 4": ir.Bin("and", a < b, b < 4),
        "min_i32(a, b)": ir.minimum(a, b),
        "a < 0 ? -a : a": ir.select(a < 0, -a, a),
        "- -1": ir.Un("neg", ir.const(-1, "int32")),
        "(int8_t)(a >> 2)": (a >> 2).astype("int8"),
        "a * 8": a << 3,
        "expf(0.5f)": ir.call("exp", ir.const(0.5, "float32")),
        "i32_of_f32(0.5f)": ir.reinterpret("int32", ir.const(0.5, "float32")),
        "(uint32_t)a": ir.reinterpret("uint32", a),
        "INT32_MIN": ir.const(-(1 << 31), "int32"),
    }
    for text, value in spelled.items():
        assert ExprPrinter()(value) == text


def test_floor_division_of_what_is_never_negative_is_plain() -> None:
    a = ir.Var("a")
    printer = ExprPrinter()
    printer.bounds = {a: (0, 9)}
    assert printer(a // 4) == "a / 4" and printer(a % 4) == "a % 4"
    printer.bounds = {a: (-1, 9)}
    assert printer(a // 4) == "floordiv_i32(a, 4)"
