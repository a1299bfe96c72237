# SPDX-License-Identifier: Apache-2.0
"""Scales that generated code computes at run time: dynamic quantisation, inverse square roots of int16, and means of a
varying number of elements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.numerics import (
    NUMPY,
    clip_with_nan_as_low,
    inverse_square_root_mantissa_and_shift,
    multiply_double_rounding,
    quantize_multiplier,
    round_half_away,
)
from microc.ops.arithmetic import TIR, Rewrite, per_tensor_quant, wrap_in_lets
from microc.ops.attributes import REQUIRED, SCALED, Ties, exponent, flag, integer, real
from microc.ops.elementwise.tables import rsqrt_multiplier
from microc.ops.normalisation.norms import build_inverse_root
from microc.ops.quantised.scaling import round_to_int32
from microc.ops.registry import Case, Legalized, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

# ---- ``dynamic_quantize``: it converts rows of floats to integers; each row has a scale that is computed at run time.
#
# If ``symmetric`` the result is int8, and the row's largest magnitude becomes 127. Otherwise the row has a zero point, too, and
# the result is int16: the int8 value minus this zero point. A row of zeros has scale one. Source: TFLite
# ``portable_tensor_utils.cc`` (PortableSymmetricQuantizeFloats, PortableAsymmetricQuantizeFloats).

_MAX_LEVEL = 127
"""Largest magnitude of a symmetrically quantised int8 value."""


def _infer_dynamic_quantize_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data_type, rows = types[0], attrs["rows"]
    if data_type.dtype != "float32" or rows < 1 or not data_type.size or data_type.size % rows:
        raise ModelError(
            f"dynamic_quantize: the data have an unsupported type; got {data_type.dtype} {data_type.shape}, expected "
            f"float32 and a number of elements that is a positive multiple of rows={rows}"
        )
    return TensorType(data_type.shape, "int8" if attrs["symmetric"] else "int16"), TensorType((rows,), "float32")


def _evaluate_dynamic_quantize_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    rows_of_integers, scales = [], []
    for row in arrays[0].reshape(attrs["rows"], -1):
        low, high = (f.reduce(row, initial=np.float32(0)) for f in (np.fmin, np.fmax))  # ignoring NaN
        values, scale = (_quantise_row_symmetric if attrs["symmetric"] else _quantise_row_asymmetric)(row, low, high)
        rows_of_integers.append(values)
        scales.append(scale)
    dtype = np.int8 if attrs["symmetric"] else np.int16
    return np.stack(rows_of_integers).reshape(arrays[0].shape).astype(dtype), np.array(scales, np.float32)


def _quantise_row_symmetric(row: Array, row_min: np.float32, row_max: np.float32) -> tuple[Array, np.float32]:
    """Quantise one row of floats to -127..127 with zero point 0; return the integers and the scale."""
    reach = max(-row_min, row_max)
    if reach == 0:
        return np.zeros_like(row), np.float32(1)
    steps = row * (np.float32(_MAX_LEVEL) / reach)
    return clip_with_nan_as_low(round_half_away(steps), -_MAX_LEVEL, _MAX_LEVEL), reach / np.float32(_MAX_LEVEL)


def _quantise_row_asymmetric(row: Array, row_min: np.float32, row_max: np.float32) -> tuple[Array, np.float32]:
    """Quantise one row of floats to int8 with a zero point; return the integers minus the zero point, and the scale."""
    if row_min == row_max:
        return np.zeros_like(row), np.float32(1)
    scale = (float(row_max) - float(row_min)) / 255
    below, above = float(row_min) / scale, float(row_max) / scale
    zero = -128 - below if 128 + abs(below) < _MAX_LEVEL + abs(above) else _MAX_LEVEL - above
    nudged = float(np.clip(np.floor(abs(zero) + 0.5) * np.sign(zero), -128, _MAX_LEVEL))
    steps = np.float32(nudged) + row * (np.float32(1) / np.float32(scale))
    return clip_with_nan_as_low(round_half_away(steps), -128, _MAX_LEVEL) - nudged, np.float32(scale)


def _compute_dynamic_quantize(call: OpCall) -> tuple[te.Tensor, ...]:
    """Build two passes over each row: the first finds its least and largest element, the second quantises its
    elements."""
    data = call.data
    rows, symmetric = int(call.attrs["rows"]), bool(call.attrs["symmetric"])
    size, dtype = data.type.size // rows, call.out_types[0].dtype

    def build_dynamic_quantize_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
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
        lets, scale, integer = _build_row_quantisation(least, most, symmetric)
        write = ir.For(j, ir.const(size, "int32"), ir.Store(out, (n, j), ir.cast(dtype, integer(x[n, j]))))
        body: Stmt = ir.seq(ir.Store(scales, (n,), scale), write)
        for var, bound in reversed([(least, low[0]), (most, high[0]), *lets]):
            body = ir.Let(var, bound, body)
        return ir.loops([(n, rows)], ir.Alloc(low, ir.Alloc(high, ir.seq(*start, find, body))))

    results = (("out", (rows, size), dtype), ("scales", (rows,), "float32"))
    return te.extern("quantise", (data.tensor((rows, size)),), results, build_dynamic_quantize_loops)


def _build_row_quantisation(row_min: Var, row_max: Var, symmetric: bool) -> tuple[list[tuple[Var, Expr]], Expr, Any]:
    """Build the quantisation parameters of a row from its least and its largest element.

    Return ``(definitions, scale, quantise)``: ``Let`` variables with their values, the scale, and a function that
    builds the quantised integer of an element."""
    one = ir.const(1.0, "float32")
    factor, scale = Var("factor", "float32"), Var("scale", "float32")
    if symmetric:
        reach = Var("reach", "float32")
        none = reach.eq(0.0)
        lets: list[tuple[Var, Expr]] = [(reach, ir.maximum(-row_min, row_max))]
        lets += [(scale, ir.select(none, one, reach / float(_MAX_LEVEL)))]
        lets += [(factor, ir.select(none, one, float(_MAX_LEVEL) / ir.select(none, one, reach)))]
        return lets, scale, lambda x: round_to_int32(x * factor, -_MAX_LEVEL, _MAX_LEVEL, Ties.AWAY)
    wide, below, above, zero = (Var(name, "float64") for name in ("wide", "below", "above", "zero"))
    none, real = row_min.eq(row_max), ir.const(1.0, "float64")
    near, far = -128.0 - below, float(_MAX_LEVEL) - above
    zero_point = ir.select(128.0 - below < above + float(_MAX_LEVEL), near, far)
    nudged = Var("nudged", "float32")
    lets = [
        (wide, ir.select(none, real, (ir.cast("float64", row_max) - ir.cast("float64", row_min)) / 255.0)),
        (below, ir.cast("float64", row_min) / wide),
        (above, ir.cast("float64", row_max) / wide),
        (zero, ir.clamp(ir.call("round", zero_point), -128.0, float(_MAX_LEVEL))),
        (scale, ir.cast("float32", wide)),
        (nudged, ir.select(none, ir.const(0.0, "float32"), ir.cast("float32", zero))),
        (factor, one / scale),
    ]
    return (
        lets,
        scale,
        lambda x: round_to_int32(nudged + x * factor, -128, _MAX_LEVEL, Ties.AWAY) - ir.cast("int32", nudged),
    )


def _make_dynamic_quantize_test_cases() -> Iterable[Case]:
    rng = np.random.default_rng(1)
    x = np.concatenate([np.zeros((1, 7)), rng.normal(size=(2, 7)), rng.uniform(2, 3, (1, 7))]).astype(np.float32)
    for symmetric in (True, False):
        for rows, array in ((4, x), (1, x), (2, -x.reshape(2, 2, 7))):
            attrs = {"rows": rows, "symmetric": symmetric}
            yield Case(attrs, (TensorType(array.shape, "float32"),), arrays=(array,), tolerance=1e-7, name=f"{rows}")


DYNAMIC_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "dynamic_quantize",
        attrs={
            "rows": integer("number of rows; each has a scale", least=0),
            "symmetric": flag("the zero point is 0", REQUIRED),
        },
        infer=_infer_dynamic_quantize_types,
        reference=_evaluate_dynamic_quantize_reference,
        compute=_compute_dynamic_quantize,
        cases=_make_dynamic_quantize_test_cases,
        operand_names=("data",),
    ),
)


# ---- ``qrsqrt``: inverse square root of int16, as TFLite Micro computes it. For 8-bit data a table of 256 entries is used
# instead (``tables.py``).
#
# The inverse root of the stored integer is computed by Newton's iteration, in Q0.20, and then scaled. The result for zero is the
# largest int16. Negative numbers, which TFLite rejects at run time, give the same result. Source: TFLite Micro
# ``elementwise.cc`` (RsqrtEvalQuantized).

_FRACTION = 20
"""Number of fraction bits of inverse roots (Q0.20)."""
_MAX_ROOT = (1 << 15) - 1


def legalize_rsqrt16(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite ``rsqrt`` of int16 to ``qrsqrt`` if both zero points are zero; otherwise return None."""
    scale, zero = per_tensor_quant(node, graph, node.inputs[0])
    out, zero_out = per_tensor_quant(node, graph, node.outputs[0])
    if zero or zero_out:
        return None
    multiplier, shift = quantize_multiplier(rsqrt_multiplier(scale, out))
    rewrite = Rewrite(node, graph)
    rewrite.emit("qrsqrt", node.inputs, node.outputs, {"multiplier": multiplier, "shift": shift - _FRACTION})
    return rewrite.legalized()


def _infer_qrsqrt_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if types[0].dtype != "int16":
        raise ModelError(f"qrsqrt: the data must be int16; got {types[0].dtype}, expected int16")
    return (TensorType(types[0].shape, "int16"),)


def _evaluate_qrsqrt_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = arrays[0].reshape(-1)
    parts = [inverse_square_root_mantissa_and_shift(max(int(value), 1)) for value in x]
    one = np.int64(1)
    roots = [multiply_double_rounding(one, mantissa, shift + _FRACTION, NUMPY) for mantissa, shift in parts]
    scaled = multiply_double_rounding(np.array(roots, np.int64), attrs["multiplier"], attrs["shift"], NUMPY)
    clipped = np.where(x > 0, np.clip(scaled, -_MAX_ROOT - 1, _MAX_ROOT), _MAX_ROOT)
    return (clipped.astype(np.int16).reshape(arrays[0].shape),)


def _compute_qrsqrt(call: OpCall) -> te.Tensor:
    data = call.data
    size = data.type.size

    def build_qrsqrt_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x,), (out,) = operands, results
        n, value, root = Var("n"), Var("value"), Var("root")
        lets, mantissa, shift = build_inverse_root(ir.maximum(value, 1))
        one = ir.const(1, "int32")
        lets = [*lets, (root, multiply_double_rounding(one, mantissa, shift + _FRACTION, TIR))]
        scaled = multiply_double_rounding(root, ir.const(call.attrs["multiplier"], "int32"), call.attrs["shift"], TIR)
        clipped = ir.select(value > 0, ir.clamp(scaled, -_MAX_ROOT - 1, _MAX_ROOT), _MAX_ROOT)
        store = ir.Store(out, (n,), ir.cast("int16", clipped))
        return ir.loops([(n, size)], ir.Let(value, ir.cast("int32", x[n]), wrap_in_lets(lets, store)))

    return te.extern("roots", (data.tensor((size,)),), (("out", (size,), "int16"),), build_qrsqrt_loops)[0]


def _make_qrsqrt_test_cases() -> Iterable[Case]:
    edges = [-32768, -1, 0, 1, 2, 3, 4, 5, 100, 255, 1000, 16383, 16384, 32766, 32767]
    x = np.array([edges], np.int16)
    for multiplier, shift in ((1 << 30, -19), (1518500250, -8), (2000000000, -23)):
        attrs: dict[str, Attr] = {"multiplier": multiplier, "shift": shift}
        yield Case(attrs, (TensorType(x.shape, "int16"),), arrays=(x,), name=f"{shift}")


INVERSE_ROOT_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "qrsqrt",
        infer=_infer_qrsqrt_types,
        reference=_evaluate_qrsqrt_reference,
        compute=_compute_qrsqrt,
        cases=_make_qrsqrt_test_cases,
        operand_names=("x",),
        attrs={**SCALED, "shift": exponent("its exponent, positive to the left", least=-31 - _FRACTION)},
    ),
)


# ---- Multipliers of quantised means whose number of elements the caller passes at run time.
#
# If the number of elements is constant, the multiplier is computed at compile time (:mod:`microc.ops.reduction.reduce`); both
# ways give the same multiplier.

_MAX_LEFT_SHIFT = 30
"""Largest left shift of a mantissa before it is divided: with it the highest set bit of an int32 count is bit 30."""


def mean_multiplier(mantissa: int, shift: int, element_count: int) -> tuple[int, int]:
    """Divide the multiplier of a mean by ``element_count`` as TFLite does; return mantissa and shift of the quotient.

    The mantissa is shifted left before the division for more precision, and the quotient is rounded down."""
    extra = min(element_count.bit_length() - 1, _max_shift_before_division(shift))
    return (mantissa << extra) // element_count, shift - extra


def _max_shift_before_division(shift: int) -> int:
    """Return the largest left shift that the mantissa of a multiplier with exponent ``shift`` can get before the
    division."""
    return min(_MAX_LEFT_SHIFT, 31 + shift)


def mean_scale(scale_in: float, scale_out: float, element_count: int) -> float:
    """Return scale_in / (scale_out * ``element_count``), the multiplier of a mean. All operations are in float32."""
    with np.errstate(over="ignore"):
        return float(np.float32(scale_in) / (np.float32(scale_out) * np.float32(element_count)))


def _compute_mean_multiplier(call: OpCall) -> tuple[te.Tensor, ...]:
    """Build the division of a mean's multiplier by the number of elements.

    One 32-bit division computes the upper bits of the quotient, and a loop computes the further bits one by one,
    because small cores have no 64-bit division."""
    mantissa, shift = int(call.attrs["multiplier"]), int(call.attrs["shift"])
    count, k, zero = ir.const(call.attrs["count"], "int32"), Var("k"), ir.const(0, "int32")
    divisor = ir.cast("uint32", count)

    def build_mean_multiplier_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        quotient, rest = (Buffer(name, (1,), "uint32", "register") for name in ("quotient", "rest"))
        places = Buffer("places", (1,), "int32", "register")

        def store_scalar(buffer: Buffer, value: ir.Expr) -> Stmt:
            return ir.Store(buffer, (zero,), value)

        start = [store_scalar(places, zero), store_scalar(rest, ir.const(mantissa, "uint32"))]
        start += [
            store_scalar(quotient, ir.binary("truncdiv", rest[0], divisor)),
            store_scalar(rest, rest[0] - quotient[0] * divisor),
        ]
        one = ir.seq(store_scalar(quotient, quotient[0] + 1), store_scalar(rest, rest[0] - divisor))
        doubled = [
            store_scalar(quotient, quotient[0] << 1),
            store_scalar(rest, rest[0] << 1),
            store_scalar(places, places[0] + 1),
        ]
        further = ir.seq(*doubled, ir.If(rest[0] >= divisor, one))
        search = ir.loops(
            [(k, _max_shift_before_division(shift))], ir.If((ir.const(2, "int32") << k) <= count, further)
        )
        end = [
            store_scalar(results[0], ir.cast("int32", quotient[0])),
            store_scalar(results[1], ir.const(shift, "int32") - places[0]),
        ]
        body = ir.seq(*start, search, *end)
        return ir.Alloc(quotient, ir.Alloc(rest, ir.Alloc(places, body)))

    return te.extern(
        "scale", (), (("multiplier", (1,), "int32"), ("shift", (1,), "int32")), build_mean_multiplier_loops
    )


def _compute_mean_scale(call: OpCall) -> te.Tensor:
    scale_in, scale_out = (ir.const(call.attrs[name], "float32") for name in ("scale_in", "scale_out"))
    count = ir.cast("float32", ir.const(call.attrs["count"], "int32"))
    return te.compute((1,), lambda _: scale_in / (scale_out * count), "scale")


def _evaluate_mean_multiplier_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    multiplier, shift = mean_multiplier(attrs["multiplier"], attrs["shift"], attrs["count"])
    return np.array([multiplier], np.int32), np.array([shift], np.int32)


def _evaluate_mean_scale_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    return (np.array([mean_scale(attrs["scale_in"], attrs["scale_out"], attrs["count"])], np.float32),)


def _make_mean_multiplier_test_cases() -> Iterable[Case]:
    for count in (1, 2, 7, 49, 1000, 65535, 65536, (1 << 31) - 1):
        for mantissa, shift in ((1 << 30, -4), ((1 << 31) - 1, 2), (1431655765, -29)):
            yield Case({"multiplier": mantissa, "shift": shift, "count": count}, (), name=f"{count} {shift}")


def _make_mean_scale_test_cases() -> Iterable[Case]:
    for count in (1, 3, 49, 1 << 24):
        yield Case({"scale_in": 0.0625, "scale_out": 0.0123, "count": count}, (), name=f"{count}")


MEAN_SCALE_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "mean_multiplier",
        attrs={**SCALED, "count": integer("number of elements of the mean", least=1, most=(1 << 31) - 1)},
        infer=lambda _, __: (TensorType((1,), "int32"), TensorType((1,), "int32")),
        reference=_evaluate_mean_multiplier_reference,
        compute=_compute_mean_multiplier,
        cases=_make_mean_multiplier_test_cases,
    ),
    OpDef(
        "mean_scale",
        attrs={
            "scale_in": real("of the data"),
            "scale_out": real("of the result"),
            "count": integer("number of elements of the mean", least=1, most=(1 << 31) - 1),
        },
        infer=lambda _, __: (TensorType((1,), "float32"),),
        reference=_evaluate_mean_scale_reference,
        compute=_compute_mean_scale,
        cases=_make_mean_scale_test_cases,
    ),
)


OPERATORS = (*DYNAMIC_OPERATORS, *INVERSE_ROOT_OPERATORS, *MEAN_SCALE_OPERATORS)
