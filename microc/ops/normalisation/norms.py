# SPDX-License-Identifier: Apache-2.0
"""L2 normalisation and layer normalisation, of floats and of integers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, frexp, log2, prod
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError, UnsupportedError
from microc.graph.ir import Attr, Graph, Node, Quant, TensorType
from microc.numerics import (
    HALF_ROOT_OF_TWO,
    INT32_MAX,
    NEWTON_STEPS,
    NUMPY,
    ONE_Q3,
    doubling_high_mul,
    inverse_root_step,
    inverse_square_root_mantissa_and_shift,
    multiply_double_rounding,
    rounding_shift_right,
)
from microc.ops.arithmetic import (
    TIR,
    Rewrite,
    build_bit_length,
    clamp_to_dtype,
    is_quantised,
    legalize_in_float,
    per_tensor_quant,
    wrap_in_lets,
)
from microc.ops.attributes import STORED, SURFACE, Rounding, integer, real
from microc.ops.constants import (
    CheckedNode,
    NumberUse,
    OperandBounds,
    make_zero_point_range_check,
    stored_range_error_message,
)
from microc.ops.gradients.rules import LEAST_NORM, build_l2_normalize_gradient, build_layer_norm_gradient
from microc.ops.registry import Case, Legalized, OpCall, OpDef, map_along_axis
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

# ---- ``l2_normalize``: rows divided by the root of the sum of their squares, at least 1e-6; bytes exactly as TFLite
# computes them.
#
# Sources: TFLite ``reference/l2normalization.h``, ``integer_ops/l2normalization.h``, ``common.h``
# (GetInvSqrtQuantizedMultiplierExp).

_OUTPUT_BITS = 7
"""Number of fraction bits of the quantised result."""
_MOST_DEPTH = 1 << 15
"""Largest number of elements in a row whose sum of squares fits 31 bits."""


def infer_rows(op_name: str, tensor_type: TensorType) -> tuple[TensorType, ...]:
    """Return the type of the result, which is that of the data; raise ModelError unless these are rows of float32 or of
    quantised integers."""
    shape = tensor_type.shape
    if not shape or 0 in shape or (tensor_type.dtype != "float32" and tensor_type.quant is None):
        raise ModelError(
            f"{op_name}: the data have an unsupported type; got {tensor_type.dtype} {shape}, expected float32 or quantised "
            "integers, one axis at least and none empty"
        )
    return (TensorType(shape, tensor_type.dtype),)


def _evaluate_l2_normalize_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = arrays[0].astype(np.float64)
    norm = np.maximum(np.sqrt((x * x).sum(axis=-1, keepdims=True)), LEAST_NORM)
    return ((x / norm).astype(np.float32),)


def _compute_l2_normalize(call: OpCall) -> te.Tensor:
    data = call.data
    depth = data.type.shape[-1]
    x, k = data.tensor((data.type.size // depth, depth)), te.reduce_axis(depth, "k")
    squares = te.compute((x.shape[0],), lambda n: te.sum_reduce(x[n, k.var] * x[n, k.var], k), "squares", ("n",))
    least = ir.const(_LEAST32, "float32")
    roots = te.compute((x.shape[0],), lambda n: ir.maximum(least, ir.call("sqrt", squares[n])), "norms", ("n",))
    return te.compute(x.shape, lambda n, i: x[n, i] / roots[n], "normal", ("n", "i"))


_LEAST32 = float(np.float32(LEAST_NORM))


def _legalize_l2_normalize(node: Node, graph: Graph) -> Legalized | None:
    if not is_quantised(node, graph):
        return None
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    exact = source.dtype == result.dtype == "int8" and result.quant == Quant((1 / 128,), (0,))
    if node.attr("rounding") == Rounding.EVEN or not exact:
        return legalize_in_float(node, graph)
    if source.shape[-1] > _MOST_DEPTH:
        raise UnsupportedError(
            f"rows are too long; got {source.shape[-1]} elements, expected at most {_MOST_DEPTH}",
            where=str(node.loc),
            hint="keep the layer in float32",
        )
    rewrite = Rewrite(node, graph)
    zero = per_tensor_quant(node, graph, node.inputs[0])[1]
    rewrite.emit("ql2_normalize", node.inputs, node.outputs, {"zero_point": zero})
    return rewrite.legalized()


def _make_l2_normalize_test_cases() -> Iterable[Case]:
    for shape in ((5,), (2, 3, 4), (3, 1)):
        yield Case({}, (TensorType(shape, "float32"),), tolerance=1e-6)
    x = np.zeros((2, 3), np.float32)
    yield Case({}, (TensorType((2, 3), "float32"),), arrays=(x,), name="zeros")


# ---------------------------------------------------------------- bytes


def _infer_ql2_normalize_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if types[0].dtype != "int8" or not types[0].shape or 0 in types[0].shape:
        raise ModelError(
            f"ql2_normalize: the data have an unsupported type; got {types[0].dtype} {types[0].shape}, expected int8, one "
            "axis at least and none empty"
        )
    return (TensorType(types[0].shape, "int8"),)


def _ql2_normalize_overflow_message(checked_node: CheckedNode) -> str:
    depth = checked_node.types[0].shape[-1]
    return "" if depth <= _MOST_DEPTH else f"rows are too long; got {depth} elements, expected at most {_MOST_DEPTH}"


def _evaluate_ql2_normalize_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    rows = arrays[0].astype(np.int64).reshape(-1, arrays[0].shape[-1]) - attrs["zero_point"]
    made = []
    for row in rows:
        mantissa, shift = inverse_square_root_mantissa_and_shift(int((row * row).sum()))
        scaled = multiply_double_rounding(row, mantissa, shift + _OUTPUT_BITS, NUMPY)
        made.append(np.clip(scaled, -128, 127))
    return (np.stack(made).astype(np.int8).reshape(arrays[0].shape),)


def _compute_ql2_normalize(call: OpCall) -> te.Tensor:
    """Build, for each row, the sum of squares, its inverse square root by Newton's method, and the product of row and
    root."""
    data = call.data
    depth, zero_point = data.type.shape[-1], int(call.attrs["zero_point"])
    rows = data.type.size // depth

    def build_ql2_normalize_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x,), (out,) = operands, results
        n, i, j, value, zero = Var("n"), Var("i"), Var("j"), Var("value"), ir.const(0, "int32")
        total = Buffer("total", (1,), "int32", "register")
        add = ir.Let(value, ir.cast("int32", x[n, i]) - zero_point, ir.Store(total, (zero,), total[0] + value * value))
        lets, mantissa, shift = build_inverse_root(total[0])
        scaled = multiply_double_rounding(ir.cast("int32", x[n, j]) - zero_point, mantissa, shift + _OUTPUT_BITS, TIR)
        store = ir.Store(out, (n, j), ir.cast("int8", ir.clamp(scaled, -128, 127)))
        scale = wrap_in_lets(lets, ir.For(j, ir.const(depth, "int32"), store))
        start = ir.Store(total, (zero,), zero)
        body = ir.seq(start, ir.For(i, ir.const(depth, "int32"), add), scale)
        return ir.loops([(n, rows)], ir.Alloc(total, body))

    results = (("out", (rows, depth), "int8"),)
    return te.extern("normal", (data.tensor((rows, depth)),), results, build_ql2_normalize_loops)[0]


def build_inverse_root(x: Expr) -> tuple[list[tuple[Var, Expr]], Expr, Expr]:
    """Build :func:`microc.numerics.inverse_square_root_mantissa_and_shift` over TIR.

    Return ``(definitions, mantissa, shift)``: the variables and values of the ``Let`` statements to define first, and
    the result."""
    square, large, small = Var("square"), Var("large", "bool"), Var("small")
    lets = [(square, x), (large, square >= (1 << 29)), (small, ir.select(large, square >> 2, square))]
    more, bits = build_bit_length(ir.cast("uint32", small), "square")
    pairs, half = Var("pairs"), Var("half")
    lets += more
    lets += [
        (pairs, ir.maximum((31 - bits) // 2 - 1, 0)),
        (half, rounding_shift_right((small << (pairs * 2)) >> 1, 1, TIR)),
    ]
    root: Expr = ir.const(ONE_Q3, "int32")
    for step in range(NEWTON_STEPS):
        lets.append((Var(f"root{step}"), inverse_root_step(root, half, TIR)))
        root = lets[-1][0]
    right, tiny = Var("right"), square <= 1
    mantissa, shift = Var("mantissa"), Var("shift")
    found = doubling_high_mul(root, HALF_ROOT_OF_TWO, TIR)
    lets += [
        (right, ir.select(large, ir.const(12, "int32"), 11) - pairs),
        (mantissa, ir.select(tiny, ir.const((1 << 31) - 1, "int32"), found << ir.maximum(-right, 0))),
        (shift, ir.select(tiny, ir.const(0, "int32"), ir.minimum(-right, 0))),
    ]
    return lets, mantissa, shift


def _make_ql2_normalize_test_cases() -> Iterable[Case]:
    for shape, zero in (((3, 7), 5), ((2, 300), -128), ((4, 1), 0)):
        yield Case({"zero_point": zero}, (TensorType(shape, "int8"),), name=f"{shape}")
    x = np.array([[5, 5, 5], [5, 5, 6], [-128, 127, 5]], np.int8)
    yield Case({"zero_point": 5}, (TensorType((3, 3), "int8"),), arrays=(x,), name="small")


L2_NORMALIZE_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "l2_normalize",
        gradient=build_l2_normalize_gradient,
        infer=lambda attrs, types: infer_rows("l2_normalize", types[0]),
        reference=_evaluate_l2_normalize_reference,
        compute=_compute_l2_normalize,
        cases=_make_l2_normalize_test_cases,
        attrs=SURFACE,
        axes=map_along_axis,
        legalize=_legalize_l2_normalize,
        operand_names=("data",),
    ),
    OpDef(
        "ql2_normalize",
        attrs={"zero_point": integer("of the data")},
        infer=_infer_ql2_normalize_types,
        reference=_evaluate_ql2_normalize_reference,
        compute=_compute_ql2_normalize,
        cases=_make_ql2_normalize_test_cases,
        sound=(make_zero_point_range_check("zero_point", 0), _ql2_normalize_overflow_message),
        operand_names=("data",),
    ),
)


# ---- ``qlayer_norm``: rows of integers are normalised, multiplied by a factor and added to a term for each channel; the results
# are integers of any scale.
#
# For the stored integers q of a row of N, T = N q - sum(q) and V = N sum(q * q) - sum(q) ** 2 + N ** 2 epsilon / scale ** 2 are
# exact, and zero points cancel. T / sqrt(V) is the normalised number; its magnitude is at most the root of N. The inverse root is
# computed by Newton's method (TFLite's GetInvSqrtQuantizedMultiplierExp) with a relative error of a few 2**-27. The normalised
# number is rounded to ``fraction`` bits; its product with the channel's factor, and the term, keep ``right`` bits below the
# result's unit. Right shifts round, ties upwards.

DTYPES = ("int8", "uint8", "int16")
LAYER_NORM_FIXED_MOST_DEPTH = 1 << 11
"""Largest number of elements in a row of ``qlayer_norm``; V then has 52 bits."""

MOST_EPSILON = float(1 << 52)
"""Largest epsilon in units of V."""

GUARD = 4
"""Half the number of fraction bits with which V is represented, so that epsilon can be added to it."""

_ROOM = 26
"""Number of bits of a normalised number in fixed point. Mantissas of inverse roots are at least 0.088. Therefore T,
which is at most the root of N V, is at most 2 * 11.4 times as large after its left shift and fits 31 bits."""


@frozen
class FixedPointAffine:
    """Scale (gamma) and offset (beta) of the channels of a layer normalisation, in fixed point.

    ``factors`` are Q0.29 with a common power of two. ``terms`` are int32 addends; they include the zero point and half
    a unit for rounding. ``fraction_bits``: number of fraction bits of the normalised numbers. ``right_shift``: number
    of fraction bits of the results, which the last right shift removes. Unlike mantissas, factors may be negative, so
    that the rewritings which schedules apply to products with mantissas would be wrong. The operand is therefore
    doubled twice: the rewritings do not match this form."""

    factors: Array
    terms: Array
    fraction_bits: int
    right_shift: int


def quantise_affine(
    gamma: Array, beta: Array, row_length: int, out_quant: Quant, out_dtype: str
) -> FixedPointAffine | None:
    """Convert ``gamma`` and ``beta`` (``row_length``), divided by the scale of ``out_quant``, to fixed point.

    Return None if too few fraction bits remain."""
    scale, zero = float(np.float32(out_quant.scale[0])), out_quant.zero_point[0]
    factors, terms = (np.asarray(part, np.float64) / scale for part in (gamma, beta))
    if not (np.isfinite(factors).all() and np.isfinite(terms).all() and factors.any()):
        return None
    exponent = frexp(float(np.abs(factors).max()))[1]
    finest = 30 - dtypes.dtype_parts(out_dtype).bits - 2
    fraction = min(_ROOM - ceil(log2(row_length) / 2), finest + 1 + exponent)
    right = fraction - 1 - exponent
    if right < 4 or fraction < 4:
        return None
    mantissas = np.rint(np.ldexp(factors, 29 - exponent)).astype(np.int64)
    levels = np.clip(np.rint(np.ldexp(terms + zero + 0.5, right)), -(1 << 30), 1 << 30)
    return FixedPointAffine(mantissas.astype(np.int32), levels.astype(np.int32), fraction, right)


def _infer_qlayer_norm_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, factors, terms = types
    if data.dtype not in DTYPES or not data.shape or not 0 < data.shape[-1] <= LAYER_NORM_FIXED_MOST_DEPTH:
        raise ModelError(
            f"qlayer_norm: the data have an unsupported type; got {data.dtype} {data.shape}, expected {', '.join(DTYPES)} "
            f"in rows of 1..{LAYER_NORM_FIXED_MOST_DEPTH}"
        )
    if any((tensor_type.shape, tensor_type.dtype) != (data.shape[-1:], "int32") for tensor_type in (factors, terms)):
        raise ModelError(
            f"qlayer_norm: factors and addends do not fit the row; got {factors.dtype} {factors.shape} and {terms.dtype} "
            f"{terms.shape}, expected int32 {data.shape[-1:]}"
        )
    return (TensorType(data.shape, attrs["out_dtype"]),)


def _evaluate_qlayer_norm_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, factors, terms = (array.astype(np.int64) for array in arrays)
    depth, normalised = data.shape[-1], np.empty_like(data)
    for row, out in zip(data.reshape(-1, depth), normalised.reshape(-1, depth), strict=True):
        total = int(row.sum())
        spread = (depth * int((row * row).sum()) - total * total << 2 * GUARD) + attrs["epsilon"]
        halved = max(spread.bit_length() - 30, 0) >> 1
        mantissa, shift = inverse_square_root_mantissa_and_shift(spread >> 2 * halved)
        left = shift - halved + GUARD + attrs["fraction"]
        left, right = max(left, 0), max(-left, 0)
        shifted = doubling_high_mul((depth * row - total) << left, mantissa, NUMPY)
        normal = (shifted + ((1 << right) >> 1)) >> right
        levels = (doubling_high_mul(normal << 1, factors, NUMPY) + terms) >> attrs["right"]
        out[:] = np.clip(levels, attrs["minimum"], attrs["maximum"])
    return (normalised.astype(dtypes.to_numpy(attrs["out_dtype"])),)


def _compute_qlayer_norm(call: OpCall) -> te.Tensor:
    """Build a loop over rows: the sum and the sum of squares, the inverse root, and the results."""
    data, factors, terms = call.present
    depth, attrs = data.type.shape[-1], call.attrs
    rows = data.type.size // depth
    largest = max(abs(end) for end in dtypes.int_range(data.type.dtype))
    squares = "int32" if depth * largest**2 <= INT32_MAX else "int64"

    def build_qlayer_norm_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, factor, term), (out,) = operands, results
        n, i, j, value, zero = Var("n"), Var("i"), Var("j"), Var("value"), ir.const(0, "int32")
        total, square = Buffer("total", (1,), "int32", "register"), Buffer("squares", (1,), squares, "register")
        added = ir.Store(square, (zero,), square[0] + ir.cast(squares, value * value))
        add = ir.Let(value, ir.cast("int32", x[n, i]), ir.seq(ir.Store(total, (zero,), total[0] + value), added))
        spread = ir.cast("int64", square[0]) * depth - ir.cast("int64", total[0]) * ir.cast("int64", total[0])
        lets, mantissa, shift = build_inverse_root_of_int64((spread << 2 * GUARD) + ir.const(attrs["epsilon"], "int64"))
        left, right, half, root = Var("left"), Var("right_shift"), Var("half_unit"), Var("inverse_root")
        lets += [
            (root, mantissa),
            (left, ir.maximum(shift + (attrs["fraction"] + GUARD + 1), 1)),
            (right, ir.maximum(-(shift + (attrs["fraction"] + GUARD)), 0)),
            (half, (ir.const(1, "int32") << right) >> 1),
        ]
        distance = ir.cast("int32", x[n, j]) * depth - total[0]
        normal = ir.call("high_mac_round", distance << left, root, half) >> right
        level = ir.call("high_mac_round", normal << 2, factor[j], term[j]) >> attrs["right"]
        store = ir.Store(out, (n, j), clamp_to_dtype(level, attrs["minimum"], attrs["maximum"], attrs["out_dtype"]))
        scaled = wrap_in_lets(lets, ir.For(j, ir.const(depth, "int32"), store))
        start = ir.seq(ir.Store(total, (zero,), zero), ir.Store(square, (zero,), ir.const(0, squares)))
        body = ir.seq(start, ir.For(i, ir.const(depth, "int32"), add), scaled)
        return ir.loops([(n, rows)], ir.Alloc(total, ir.Alloc(square, body)))

    tensors = (data.tensor((rows, depth)), factors.tensor(), terms.tensor())
    return te.extern("normal", tensors, (("out", (rows, depth), attrs["out_dtype"]),), build_qlayer_norm_loops)[0]


def build_inverse_root_of_int64(scaled_variance: Expr) -> tuple[list[tuple[Var, Expr]], Expr, Expr]:
    """Build the inverse square root of a positive int64 of at most 62 bits; only its upper 31 bits are used.

    Return ``(definitions, mantissa, shift)``: the variables and values of the ``Let`` statements to define first, and
    the result."""
    whole, halved = Var("spread", "int64"), Var("halved")
    lets: list[tuple[Var, Expr]] = [(whole, scaled_variance)]
    high = Var("high", "uint32")
    lets.append((high, ir.cast("uint32", whole >> 30)))
    more, bits = build_bit_length(high, "spread")
    lets += [*more, (halved, bits >> 1)]
    root, mantissa, shift = build_inverse_root(ir.cast("int32", whole >> ir.cast("int64", halved * 2)))
    return [*lets, *root], mantissa, shift - halved


def _make_qlayer_norm_test_cases() -> Iterable[Case]:
    """Yield cases with numbers at the ends of their ranges and at ties.

    In the last row, one number has the largest possible distance from all others."""
    for dtype, out_dtype in (("int8", "int8"), ("uint8", "int16"), ("int16", "int16"), ("int16", "int8")):
        low, high = dtypes.int_range(dtype)
        for shape, epsilon in (
            ((2, 3, 4), 0.1),
            ((3, 1), 5.0),
            ((2, 200), 1e6),
            ((2, LAYER_NORM_FIXED_MOST_DEPTH), 1e-3),
        ):
            depth = shape[-1]
            wave = np.sin(np.arange(depth) * 2.3)
            quant = Quant((0.05 if out_dtype == "int8" else 3e-4,), (3,))
            made = quantise_affine(wave + 0.3, wave[::-1] * 2, depth, quant, out_dtype)
            assert made is not None
            x = np.resize(np.array([low, high, 3, low + 1, 3, 3, 7, high], dtypes.to_numpy(dtype)), shape)
            x[-1], x[-1, ..., 0] = low, high
            types = (TensorType(shape, dtype), *(TensorType((depth,), "int32"),) * 2)
            arrays = (x, made.factors, made.terms)
            yield Case(
                qlayer_norm_attrs(made, epsilon, out_dtype), types, (1, 2), arrays, name=f"{dtype} {out_dtype} {shape}"
            )


def _normalised_overflow_message(checked_node: CheckedNode) -> str:
    """Return an error message if a normalised number can exceed 26 bits, else an empty string.

    A normalised number is at most the square root of the row's length."""
    attrs, depth = checked_node.attrs, checked_node.types[0].shape[-1]
    most = _ROOM - ceil(log2(depth) / 2)
    return (
        ""
        if attrs["fraction"] <= most
        else f"fraction is too large for the row's length; got {attrs['fraction']}, expected at most {most}"
    )


def qlayer_norm_attrs(affine: FixedPointAffine, epsilon: float, out_dtype: str) -> dict[str, Attr]:
    """Return the attributes of ``qlayer_norm`` for a result of ``out_dtype``; ``epsilon`` is in units of the scaled
    variance V."""
    low, high = dtypes.int_range(out_dtype)
    result: dict[str, Attr] = {"minimum": low, "maximum": high, "out_dtype": out_dtype}
    return {
        **result,
        "epsilon": max(round(epsilon * 4**GUARD), 1),
        "fraction": affine.fraction_bits,
        "right": affine.right_shift,
    }


QLAYER_NORM = OpDef(
    "qlayer_norm",
    attrs={
        "epsilon": integer(
            f"added to V, with {2 * GUARD} fractional bits", least=1, most=round(MOST_EPSILON) << 2 * GUARD
        ),
        "fraction": integer("fractional bits of the normalised numbers", least=4, most=_ROOM),
        "right": integer("those of factors and terms", least=4, most=31),
        **{name: STORED[name] for name in ("minimum", "maximum", "out_dtype")},
    },
    infer=_infer_qlayer_norm_types,
    reference=_evaluate_qlayer_norm_reference,
    compute=_compute_qlayer_norm,
    cases=_make_qlayer_norm_test_cases,
    constants={
        1: OperandBounds(NumberUse.FACTOR, -(1 << 29), 1 << 29),
        2: OperandBounds(NumberUse.TERM, -(1 << 30), 1 << 30),
    },
    sound=(stored_range_error_message, _normalised_overflow_message),
    operand_names=("data", "factors", "terms"),
)


# ---- ``layer_norm``: rows minus their mean, divided by the root of their variance: (x - mean) / sqrt(variance + epsilon),
# in float32.
#
# Integers are normalised as their stored numbers q: a scale s divides epsilon by s * s, and zero points cancel. Their sums are
# exact:
#
#     N (q - mean)  =  N q - sum(q),        N * N * variance  =  N sum(q * q) - sum(q) ** 2.
#
# Sources: ONNX LayerNormalization.

LAYER_NORM_MOST_DEPTH = 1 << 20
"""Largest number of elements in a row of floats or bytes; N q of bytes then fits 31 bits."""


def _infer_layer_norm_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    tensor_type = types[0]
    most = LAYER_NORM_FIXED_MOST_DEPTH if tensor_type.dtype == "int16" else LAYER_NORM_MOST_DEPTH
    if tensor_type.dtype not in ("float32", *DTYPES) or not tensor_type.shape or not 0 < tensor_type.shape[-1] <= most:
        raise ModelError(
            f"layer_norm: the data have an unsupported type; got {tensor_type.dtype} {tensor_type.shape}, expected "
            f"{', '.join(('float32', *DTYPES))} in rows of 1..{most}"
        )
    return (TensorType(tensor_type.shape, "float32"),)


def _evaluate_layer_norm_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = np.asarray(arrays[0], np.float64)
    with np.errstate(invalid="ignore"):
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred * centred).mean(axis=-1, keepdims=True)
        return ((centred / np.sqrt(variance + attrs["epsilon"])).astype(np.float32),)


def _compute_layer_norm(call: OpCall) -> te.Tensor:
    """Build the stages of each row's statistics, then the stage ``normal``."""
    (data,) = call.present
    depth = data.type.shape[-1]
    x = data.tensor((prod(data.type.shape[:-1]), depth))
    return (
        _normalise_integers(x, call.attrs["epsilon"])
        if data.type.dtype in DTYPES
        else _normalise_floats(x, call.attrs["epsilon"])
    )


def _normalise_floats(x: te.Tensor, epsilon: float) -> te.Tensor:
    """Build the stages ``total``, ``mean``, ``squares``, ``factor`` and ``normal`` for rows of floats."""
    (rows, depth), k, j = x.shape, te.reduce_axis(x.shape[1], "k"), te.reduce_axis(x.shape[1], "j")
    total = te.compute((rows,), lambda n: te.sum_reduce(x[n, k.var], k), "total", ("n",))
    mean = te.compute((rows,), lambda n: total[n] / depth, "mean", ("n",))

    def build_square(n: Expr) -> Expr:
        return (x[n, j.var] - mean[n]) * (x[n, j.var] - mean[n])

    squares = te.compute((rows,), lambda n: te.sum_reduce(build_square(n), j), "squares", ("n",))
    factor = te.compute((rows,), lambda n: 1.0 / ir.call("sqrt", squares[n] / depth + epsilon), "factor", ("n",))
    return te.compute(x.shape, lambda n, i: (x[n, i] - mean[n]) * factor[n], "normal", ("n", "i"))


def _normalise_integers(x: te.Tensor, epsilon: float) -> te.Tensor:
    """Build the stages ``total``, ``squares``, ``factor`` and ``normal`` for rows of integers."""
    (rows, depth), k, j = x.shape, te.reduce_axis(x.shape[1], "k"), te.reduce_axis(x.shape[1], "j")
    largest = max(abs(end) for end in dtypes.int_range(x.dtype))
    wide = "int32" if (depth * largest) ** 2 <= dtypes.int_range("int32")[1] else "int64"
    narrow = "int32" if depth * largest**2 <= dtypes.int_range("int32")[1] else "int64"

    def read_integer(n: Expr, i: Expr) -> Expr:
        return ir.cast("int32", x[n, i])

    total = te.compute((rows,), lambda n: te.sum_reduce(read_integer(n, k.var), k), "total", ("n",))

    def build_square(n: Expr) -> Expr:
        return ir.cast(narrow, read_integer(n, j.var) * read_integer(n, j.var))

    squares = te.compute((rows,), lambda n: te.sum_reduce(build_square(n), j), "squares", ("n",))

    def build_row_factor(n: Expr) -> Expr:
        spread = ir.cast(wide, squares[n]) * depth - ir.cast(wide, total[n]) * ir.cast(wide, total[n])
        return 1.0 / ir.call("sqrt", ir.cast("float32", spread) + float(depth) * depth * epsilon)

    factors = te.compute((rows,), build_row_factor, "factor", ("n",))
    return te.compute(
        x.shape,
        lambda n, i: ir.cast("float32", read_integer(n, i) * depth - total[n]) * factors[n],
        "normal",
        ("n", "i"),
    )


def _make_layer_norm_test_cases() -> Iterable[Case]:
    for shape in ((5,), (2, 3, 4), (3, 1), (2, 200)):
        for dtype in ("float32", *DTYPES):
            yield Case({"epsilon": 1e-3}, (TensorType(shape, dtype),), tolerance=1e-5, name=f"{dtype} {shape}")
    same = np.full((2, 7), 99, np.int8)
    yield Case({"epsilon": 1e-5}, (TensorType(same.shape, "int8"),), arrays=(same,), name="constant")
    ends = np.resize(np.array([-128, 127], np.int8), (1, 40000))
    yield Case({"epsilon": 1e-5}, (TensorType(ends.shape, "int8"),), arrays=(ends,), tolerance=1e-5, name="long")


LAYER_NORM_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "layer_norm",
        gradient=build_layer_norm_gradient,
        attrs={"epsilon": real("number added to the variance")},
        infer=_infer_layer_norm_types,
        reference=_evaluate_layer_norm_reference,
        axes=map_along_axis,
        compute=_compute_layer_norm,
        cases=_make_layer_norm_test_cases,
        operand_names=("data",),
    ),
    QLAYER_NORM,
)


OPERATORS = (*L2_NORMALIZE_OPERATORS, *LAYER_NORM_OPERATORS)
