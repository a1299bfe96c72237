"""``dynamic_quantize``: rows of floats as integers, each row with a scale of its own that is found when it is there.

``symmetric``: int8 within +-127 of the row's largest magnitude. Else int16: what int8 with the row's own zero point would hold,
less that zero point. A row of zeros has scale one. Source: TFLite ``portable_tensor_utils.cc``
(PortableSymmetricQuantizeFloats, PortableAsymmetricQuantizeFloats).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.fixed import bounded, round_half_away
from microc.graph.ir import TensorType
from microc.ops.attributes import REQUIRED, flag, integer
from microc.ops.quantised.scaling import to_integer
from microc.ops.registry import Case, OpCall, OpDef
from microc.ops.rounding import Ties
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

_MOST = 127


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    kind, rows = types[0], attrs["rows"]
    if kind.dtype != "float32" or rows < 1 or not kind.size or kind.size % rows:
        raise ModelError(f"dynamic_quantize of {kind.dtype} {kind.shape} as {rows} rows")
    return TensorType(kind.shape, "int8" if attrs["symmetric"] else "int16"), TensorType((rows,), "float32")


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    made, scales = [], []
    for row in arrays[0].reshape(attrs["rows"], -1):
        low, high = (f.reduce(row, initial=np.float32(0)) for f in (np.fmin, np.fmax))  # of what is no NaN
        values, scale = (_symmetric if attrs["symmetric"] else _asymmetric)(row, low, high)
        made.append(values)
        scales.append(scale)
    dtype = np.int8 if attrs["symmetric"] else np.int16
    return np.stack(made).reshape(arrays[0].shape).astype(dtype), np.array(scales, np.float32)


def _symmetric(row: Array, low: np.float32, high: np.float32) -> tuple[Array, np.float32]:
    reach = max(-low, high)
    if reach == 0:
        return np.zeros_like(row), np.float32(1)
    steps = row * (np.float32(_MOST) / reach)
    return bounded(round_half_away(steps), -_MOST, _MOST), reach / np.float32(_MOST)


def _asymmetric(row: Array, low: np.float32, high: np.float32) -> tuple[Array, np.float32]:
    if low == high:
        return np.zeros_like(row), np.float32(1)
    scale = (float(high) - float(low)) / 255
    below, above = float(low) / scale, float(high) / scale
    zero = -128 - below if 128 + abs(below) < _MOST + abs(above) else _MOST - above
    nudged = float(np.clip(np.floor(abs(zero) + 0.5) * np.sign(zero), -128, _MOST))
    steps = np.float32(nudged) + row * (np.float32(1) / np.float32(scale))
    return bounded(round_half_away(steps), -128, _MOST) - nudged, np.float32(scale)


def _compute(call: OpCall) -> tuple[te.Tensor, ...]:
    """Two passes over each row."""
    data = call.data
    rows, symmetric = int(call.attrs["rows"]), bool(call.attrs["symmetric"])
    size, dtype = data.type.size // rows, call.out_types[0].dtype

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x,), (out, scales) = operands, results
        n, i, j, zero = Var("n"), Var("i"), Var("j"), ir.const(0, "int32")
        low, high = (Buffer(name, (1,), "float32", "register") for name in ("low", "high"))
        value, least, most = (Var(name, "float32") for name in ("value", "least", "most"))
        widen = ir.If(
            value < low[0],
            ir.Store(low, (zero,), value),
            ir.If(value > high[0], ir.Store(high, (zero,), value)),
        )
        find = ir.For(i, ir.const(size, "int32"), ir.Let(value, x[n, i], widen))
        start = [ir.Store(buffer, (zero,), ir.const(0.0, "float32")) for buffer in (low, high)]
        lets, scale, integer = _scaling(least, most, symmetric)
        write = ir.For(j, ir.const(size, "int32"), ir.Store(out, (n, j), ir.cast(dtype, integer(x[n, j]))))
        body: Stmt = ir.seq(ir.Store(scales, (n,), scale), write)
        for var, bound in reversed([(least, low[0]), (most, high[0]), *lets]):
            body = ir.Let(var, bound, body)
        return ir.loops([(n, rows)], ir.Alloc(low, ir.Alloc(high, ir.seq(*start, find, body))))

    results = (("out", (rows, size), dtype), ("scales", (rows,), "float32"))
    return te.extern("quantise", (data.tensor((rows, size)),), results, build)


def _scaling(low: Var, high: Var, symmetric: bool) -> tuple[list[tuple[Var, Expr]], Expr, Any]:
    """Names, the scale of a row, and what an element of it becomes."""
    one = ir.const(1.0, "float32")
    factor, scale = Var("factor", "float32"), Var("scale", "float32")
    if symmetric:
        reach = Var("reach", "float32")
        none = reach.eq(0.0)
        lets: list[tuple[Var, Expr]] = [(reach, ir.maximum(-low, high))]
        lets += [(scale, ir.select(none, one, reach / float(_MOST)))]
        lets += [(factor, ir.select(none, one, float(_MOST) / ir.select(none, one, reach)))]
        return lets, scale, lambda x: to_integer(x * factor, -_MOST, _MOST, Ties.AWAY)
    wide, below, above, zero = (Var(name, "float64") for name in ("wide", "below", "above", "zero"))
    none, real = low.eq(high), ir.const(1.0, "float64")
    near, far = -128.0 - below, float(_MOST) - above
    chosen = ir.select(128.0 - below < above + float(_MOST), near, far)
    nudged = Var("nudged", "float32")
    lets = [
        (wide, ir.select(none, real, (ir.cast("float64", high) - ir.cast("float64", low)) / 255.0)),
        (below, ir.cast("float64", low) / wide),
        (above, ir.cast("float64", high) / wide),
        (zero, ir.clamp(ir.call("round", chosen), -128.0, float(_MOST))),
        (scale, ir.cast("float32", wide)),
        (nudged, ir.select(none, ir.const(0.0, "float32"), ir.cast("float32", zero))),
        (factor, one / scale),
    ]
    return lets, scale, lambda x: to_integer(nudged + x * factor, -128, _MOST, Ties.AWAY) - ir.cast("int32", nudged)


def _cases() -> Iterable[Case]:
    rng = np.random.default_rng(1)
    x = np.concatenate([np.zeros((1, 7)), rng.normal(size=(2, 7)), rng.uniform(2, 3, (1, 7))]).astype(np.float32)
    for symmetric in (True, False):
        for rows, array in ((4, x), (1, x), (2, -x.reshape(2, 2, 7))):
            attrs = {"rows": rows, "symmetric": symmetric}
            yield Case(attrs, (TensorType(array.shape, "float32"),), arrays=(array,), tolerance=1e-7, name=f"{rows}")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "dynamic_quantize",
        attrs={
            "rows": integer("how many rows of one scale each", least=0),
            "symmetric": flag("the zero point is 0", REQUIRED),
        },
        infer=_infer,
        reference=_reference,
        compute=_compute,
        cases=_cases,
        operand_names=("data",),
    ),
)
