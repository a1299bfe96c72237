# SPDX-License-Identifier: Apache-2.0
"""Sums, products and quotients of quantised tensors in integer arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.numerics import (
    INT32_MAX,
    INT32_MIN,
    NUMPY,
    doubling_high_mul,
    fixed_point_reciprocal,
    half_of_one_plus,
    quantize_multiplier,
    rounding_shift_right,
    saturating_double,
)
from microc.ops.arithmetic import (
    TIR,
    Rewrite,
    activation_range,
    is_quantised,
    legalize_in_float,
    per_tensor_quant,
    split_activation,
)
from microc.ops.attributes import (
    MULTIPLIER_ROUNDING,
    REQUIRED,
    SCALED,
    STORED,
    Multiplier,
    Rounding,
    exponent,
    flag,
    integer,
    mantissa,
)
from microc.ops.constants import (
    MANTISSA,
    CheckedNode,
    NumberUse,
    OperandBounds,
    make_zero_point_range_check,
    operand_range_minus_zero_point,
    product_overflow_message,
    stored_range_error_message,
)
from microc.ops.quantised.exact_rounding import emit_half_even_product, emit_half_even_sum, exact_scale_ratio
from microc.ops.quantised.scaling import (
    HALF,
    FixedPointScale,
    ScaledResult,
    scale_double_rounding,
    scale_single_rounding,
)
from microc.ops.registry import Case, Legalized, OpDef
from microc.tir import ir
from microc.tir.extents import broadcast_shapes
from microc.tir.ir import Expr

# ---- Sums and products of quantised tensors in integers: qadd, qmul, and the legalisation of add, sub and mul to them.
#
# Sources: TFLite Micro ``add_common.cc``, ``sub_common.cc``, ``mul_common.cc``; TFLite ``integer_ops/add.h``, ``mul.h``. Operands
# of a sum are shifted left (20 bits for 8-bit data, 15 for 16-bit), scaled to twice the larger scale, added, and scaled to the
# output. With rounding ``even`` (ONNX) operators on bytes become ``sum_even`` and ``product_even``; those on wider integers are
# computed in floats.

_DEFAULTS: Mapping[str, Attr] = {"rounding": Multiplier.DOUBLE}


def _infer_arithmetic_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    try:
        shape = broadcast_shapes(types[0].shape, types[1].shape)
    except ValueError:
        raise ModelError(f"shapes do not broadcast; got {types[0].shape} and {types[1].shape}") from None
    return (TensorType(shape, attrs["out_dtype"]),)


def _subtract_zero_point_and_find_range(x: Expr, zero_point: int) -> tuple[Expr, int, int]:
    """Return ``x`` minus its zero point as an int32 expression, and the least and the largest value of the
    difference."""
    low, high = dtypes.int_range(x.dtype)
    wide = ir.cast("int32", x)
    return (wide - zero_point if zero_point else wide), low - zero_point, high - zero_point


def _build_scaled_term_and_bound(attrs: Mapping[str, Any], x: Expr, operand_name: str) -> tuple[Expr, int]:
    """Return ``(term, bound)``: an operand of a sum, shifted left and scaled to the common scale of both operands, and
    the largest magnitude that it can have."""
    value, low, high = _subtract_zero_point_and_find_range(x, attrs[f"zero_point_{operand_name}"])
    left, mantissa = attrs["left_shift"], attrs[f"multiplier_{operand_name}"]
    scale = FixedPointScale.from_mantissa_and_shift(mantissa, attrs[f"shift_{operand_name}"])
    low, high = low << left, high << left
    bound = (max(-low, high) * mantissa >> (31 - attrs[f"shift_{operand_name}"])) + 1
    if (
        mantissa == HALF and attrs[f"shift_{operand_name}"] == 0
    ):  # this operand has the larger scale: divided by twice the larger scale, its multiplier is exactly one half
        return value << (left - 1), bound
    if attrs["rounding"] == Multiplier.SINGLE:
        return scale_single_rounding(value << left, max(-low, high), scale), bound
    return scale_double_rounding(value << left, low, high, scale), bound


def _build_qadd_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    attrs = {**_DEFAULTS, **attrs}
    a, bound_a = _build_scaled_term_and_bound(attrs, args[0], "a")
    b, bound_b = _build_scaled_term_and_bound(attrs, args[1], "b")
    total = a - b if attrs["negate_b"] else a + b
    return _build_output(attrs, total, -bound_a - bound_b, bound_a + bound_b)


def _evaluate_qadd_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    multiply = _fixed_point_multiply_function(attrs)

    def scale_operand(x: Any, operand_name: str) -> Any:
        centred = (np.asarray(x, np.int64) - attrs[f"zero_point_{operand_name}"]) << attrs["left_shift"]
        return multiply(centred, attrs[f"multiplier_{operand_name}"], attrs[f"shift_{operand_name}"], NUMPY)

    a, b = scale_operand(arrays[0], "a"), scale_operand(arrays[1], "b")
    return (_scale_array_to_output(attrs, a - b if attrs["negate_b"] else a + b),)


def _build_qmul_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    a, low_a, high_a = _subtract_zero_point_and_find_range(args[0], attrs["zero_point_a"])
    b, low_b, high_b = _subtract_zero_point_and_find_range(args[1], attrs["zero_point_b"])
    corners = [x * y for x in (low_a, high_a) for y in (low_b, high_b)]
    return _build_output({**_DEFAULTS, **attrs}, a * b, min(corners), max(corners))


def _evaluate_qmul_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    a, b = (np.asarray(x, np.int64) - attrs[f"zero_point_{k}"] for x, k in zip(arrays, "ab", strict=True))
    return (_scale_array_to_output(attrs, a * b),)


def _build_output(attrs: Mapping[str, Any], x: Expr, low: int, high: int) -> Expr:
    """Build the output of a sum or product ``x``: an int32 expression within ``low``..``high`` is scaled to the
    output's scale and clamped."""
    scale = FixedPointScale.from_mantissa_and_shift(attrs["multiplier"], attrs["shift"])
    out = ScaledResult(attrs["zero_point"], attrs["minimum"], attrs["maximum"], attrs["out_dtype"])
    if attrs["rounding"] == Multiplier.SINGLE:
        return scale_single_rounding(x, max(-low, high), scale, out)
    return scale_double_rounding(x, max(low, INT32_MIN), min(high, INT32_MAX), scale, out)


def _fixed_point_multiply_function(attrs: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the numpy function of the fixed-point multiplication that the attribute ``rounding`` selects."""
    return Multiplier(attrs.get("rounding", Multiplier.DOUBLE)).multiply_function


def _scale_array_to_output(attrs: Mapping[str, Any], x: Any) -> Array:
    """Scale an array of integers to the output's scale and clamp it: :func:`_build_output` over numpy."""
    scaled = _fixed_point_multiply_function(attrs)(x, attrs["multiplier"], attrs["shift"], NUMPY)
    shifted = NUMPY.clamp(scaled + attrs["zero_point"], INT32_MIN, INT32_MAX)
    clipped = np.clip(shifted, attrs["minimum"], attrs["maximum"])
    return np.asarray(clipped).astype(dtypes.to_numpy(attrs["out_dtype"]))


# ---------------------------------------------------------------- legalisation


def legalize_add(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite a quantised ``add`` to ``qadd``, or to ``sum_even`` if ties are rounded to even; split a fused
    activation from a float ``add``."""
    return _legalize_arithmetic(node, graph, _emit_sum)


def legalize_sub(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite ``sub`` as :func:`legalize_add` does, with the second operand negated."""
    return _legalize_arithmetic(node, graph, _emit_sum)


def legalize_mul(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite a quantised ``mul`` to ``qmul``, or to ``product_even`` if ties are rounded to even; split a fused
    activation from a float ``mul``."""
    return _legalize_arithmetic(node, graph, _emit_product)


def _legalize_arithmetic(
    node: Node, graph: Graph, emit: Callable[[Rewrite, Mapping[str, Attr]], None]
) -> Legalized | None:
    """Rewrite a sum or product: a quantised one by ``emit`` or with ties to even, a float one to the operator and its
    activation.

    ``emit`` receives the rewrite and the attributes that all integer operators share."""
    if not is_quantised(node, graph):
        return split_activation(node, graph)
    if node.attrs.get("rounding", Rounding.DOUBLE) == Rounding.EVEN:
        return _legalize_half_even(node, graph)
    output_type = graph.types[node.outputs[0]]
    assert output_type.quant is not None
    low, high = activation_range(
        str(node.attrs.get("activation", "")), output_type.quant, output_type.dtype, where=str(node.loc)
    )
    common: dict[str, Attr] = {"minimum": low, "maximum": high, "out_dtype": output_type.dtype}
    common["zero_point"] = per_tensor_quant(node, graph, node.outputs[0])[1]
    for operand_name, name in zip("ab", node.inputs, strict=True):
        common[f"zero_point_{operand_name}"] = per_tensor_quant(node, graph, name)[1]
    rewrite = Rewrite(node, graph)
    emit(rewrite, {**common, "rounding": node.attrs.get("rounding", Rounding.DOUBLE)})
    return rewrite.legalized()


def _legalize_half_even(node: Node, graph: Graph) -> Legalized:
    """Rewrite a sum or product with ties to even to ``sum_even`` or ``product_even``.

    If operands have more than 8 bits, or if no exact fixed-point factors are found, rewrite it to float operators."""
    operand_types = [graph.types[name] for name in (*node.inputs, *node.outputs)]
    activation = str(node.attrs.get("activation", ""))
    if any(dtypes.nbytes(tensor_type.dtype) > 1 for tensor_type in operand_types[:2]) or activation in (
        "tanh",
        "sigmoid",
    ):
        return legalize_in_float(node, graph)
    result = operand_types[-1]
    assert result.quant is not None
    (a, zero_a), (b, zero_b), (out, zero) = (
        per_tensor_quant(node, graph, name) for name in (*node.inputs, *node.outputs)
    )
    low, high = activation_range(activation, result.quant, result.dtype, Rounding.EVEN, str(node.loc))
    end: dict[str, Attr] = {"zero_point": zero, "minimum": low, "maximum": high, "out_dtype": result.dtype}
    rewrite, zeros = Rewrite(node, graph), (zero_a, zero_b)
    if node.op == "mul":
        is_exact = emit_half_even_product(rewrite, node.inputs, zeros, exact_scale_ratio(a, b, out), end)
    else:
        scales = exact_scale_ratio(a, out), exact_scale_ratio(b, out) * (-1 if node.op == "sub" else 1)
        is_exact = emit_half_even_sum(rewrite, node.inputs, zeros, scales, end)
    return rewrite.legalized() if is_exact else legalize_in_float(node, graph)


def _emit_sum(rewrite: Rewrite, common_attrs: Mapping[str, Attr]) -> None:
    """Append ``qadd``, which adds or subtracts the operands after it has scaled them to twice the larger scale."""
    node = rewrite.node
    a, b, out = _scales_of_node(rewrite)
    left = 15 if any(rewrite.type(name).dtype == "int16" for name in (*node.inputs, *node.outputs)) else 20
    twice = 2.0 * max(a, b)
    attrs: dict[str, Attr] = {**common_attrs, "left_shift": left, "negate_b": node.op == "sub"}
    for name, value in (("_a", a / twice), ("_b", b / twice), ("", twice / ((1 << left) * out))):
        attrs[f"multiplier{name}"], attrs[f"shift{name}"] = quantize_multiplier(value)
    rewrite.emit("qadd", node.inputs, node.outputs, attrs)


def _scales_of_node(rewrite: Rewrite) -> tuple[float, ...]:
    """Return the scales of the two operands and of the output. They are rounded to float32 and returned as doubles, as
    in TFLite Micro."""
    node = rewrite.node
    names = (*node.inputs, *node.outputs)
    return tuple(float(np.float32(per_tensor_quant(node, rewrite.graph, name)[0])) for name in names)


def _emit_product(rewrite: Rewrite, common_attrs: Mapping[str, Attr]) -> None:
    """Append ``qmul``, which multiplies the operands and scales the product to the output."""
    node = rewrite.node
    a, b, out = _scales_of_node(rewrite)
    multiplier, shift = quantize_multiplier(a * b / out)
    rewrite.emit("qmul", node.inputs, node.outputs, {**common_attrs, "multiplier": multiplier, "shift": shift})


# ---------------------------------------------------------------- cases


def _make_arithmetic_test_cases(for_addition: bool) -> Iterable[Case]:
    settings = (
        ("int8", (3, -128, 7), (1 << 30, 0), (1388511488, -2), (1876543210, -18)),
        ("int8", (0, 0, -128), (1799999999, -1), (1 << 30, 0), (1 << 30, -17)),
        ("uint8", (128, 0, 255), (1 << 30, 0), (1 << 30, 0), (1999999999, -19)),
        ("int16", (0, 0, 0), (1 << 30, 0), (1500000000, -1), (2000000000, -14)),
    )
    for dtype, (za, zb, zo), a, b, result in settings:
        low, high = dtypes.int_range(dtype)
        edges = [low, low + 1, -1 if low else 3, 0, 1, za, zb, high - 1, high]
        grid = np.array(edges, dtypes.to_numpy(dtype))
        arrays = (np.repeat(grid[:, None], 9, 1), np.broadcast_to(grid, (9, 9)).copy())
        common = {"zero_point_a": za, "zero_point_b": zb, "zero_point": zo, "maximum": high, "out_dtype": dtype}
        for least in (low, zo):
            for rounding in (Multiplier.DOUBLE, Multiplier.SINGLE):
                attrs: dict[str, Any] = {**common, "minimum": least, "rounding": rounding}
                if for_addition:
                    attrs |= {"left_shift": 15 if dtype == "int16" else 20, "negate_b": least == low}
                    attrs |= {"multiplier_a": a[0], "shift_a": a[1], "multiplier_b": b[0], "shift_b": b[1]}
                    attrs |= {"multiplier": result[0], "shift": result[1]}
                else:
                    attrs |= {"multiplier": result[0], "shift": 16 + result[1] if dtype != "int16" else -15}
                name = f"{dtype} from {least} {rounding}"
                yield Case(attrs, (TensorType((9, 9), dtype),) * 2, arrays=arrays, name=name)
        types = (TensorType((2, 3, 4), dtype), TensorType((4,), dtype))
        yield Case(attrs, types, (1,), name=f"{dtype} broadcast")
        yield Case(attrs, (TensorType((2, 1), dtype), TensorType((3, 1, 4), dtype)), name=f"{dtype} both ways")


def _qadd_overflow_message(checked_node: CheckedNode) -> str:
    """Return a message if the shifted operands or the sum of the scaled operands can overflow int32, else an empty
    string."""
    attrs, bound = checked_node.attrs, 0
    for position, which in enumerate("ab"):
        low, high = operand_range_minus_zero_point(checked_node, position, f"zero_point_{which}")
        shifted = max(-low, high) << attrs["left_shift"]
        if shifted > INT32_MAX:
            return f"left_shift={attrs['left_shift']} lets operand {which} overflow int32; got up to {shifted}"
        bound += (shifted * attrs[f"multiplier_{which}"] >> (31 - attrs[f"shift_{which}"])) + 1
    return "" if bound <= INT32_MAX else f"sums can overflow int32; got up to {bound}, expected at most {INT32_MAX}"


_ZERO_POINTS = (make_zero_point_range_check("zero_point_a", 0), make_zero_point_range_check("zero_point_b", 1))

QADD = OpDef(
    "qadd",
    infer=_infer_arithmetic_types,
    reference=_evaluate_qadd_reference,
    scalar=_build_qadd_scalar_expr,
    cases=lambda: _make_arithmetic_test_cases(True),
    sound=(stored_range_error_message, *_ZERO_POINTS, _qadd_overflow_message),
    attrs={
        "zero_point_a": integer("of a"),
        "zero_point_b": integer("of b"),
        "left_shift": integer(
            "number of bits by which both operands are shifted left before they are scaled", least=1, most=30
        ),
        "multiplier_a": mantissa("of a, Q0.31"),
        "shift_a": exponent("its exponent"),
        "multiplier_b": mantissa("of b, Q0.31"),
        "shift_b": exponent("its exponent"),
        "negate_b": flag("True if b is subtracted", REQUIRED),
        **SCALED,
        **STORED,
        "rounding": MULTIPLIER_ROUNDING,
    },
    operand_names=("a", "b"),
    formula="clamp(scaled(scaled(a - {zero_point_a}) + scaled(b - {zero_point_b})) + {zero_point}, {minimum}, {maximum})",
)
QMUL = OpDef(
    "qmul",
    infer=_infer_arithmetic_types,
    reference=_evaluate_qmul_reference,
    scalar=_build_qmul_scalar_expr,
    cases=lambda: _make_arithmetic_test_cases(False),
    sound=(
        stored_range_error_message,
        *_ZERO_POINTS,
        lambda checked_node: product_overflow_message(checked_node, ("zero_point_a", "zero_point_b")),
    ),
    attrs={
        "zero_point_a": integer("of a"),
        "zero_point_b": integer("of b"),
        **SCALED,
        **STORED,
        "rounding": MULTIPLIER_ROUNDING,
    },
    operand_names=("a", "b"),
    formula="clamp(round((a - {zero_point_a}) * (b - {zero_point_b}) * {multiplier} * 2**({shift} - 31)) + {zero_point}, "
    "{minimum}, {maximum})",
)


# ---- ``qdiv``: quotients of bytes by tables of reciprocals, as TFLite computes them (``reference/div.h``,
# ``common.h``).
#
# The divisor's sign is moved to the dividend. The divisor's reciprocal, a mantissa and a number of bits, is read from two tables.
# The dividend is shifted left as far as possible, multiplied by the reciprocal and by the output's multiplier, and shifted right
# once. The output's multiplier is the ratio of the scales; TFLite Micro computes it in double precision, LiteRT in float32.
# A divisor of zero gives zero. TFLite would shift by more than 31 bits for very small quotients, and to the left for very large
# ones, both of which C leaves undefined: here the right shift is clamped to 0..31.


def compute_reciprocal_tables() -> tuple[Array, Array]:
    """Return two tables of 256 entries for 1 / d, d = 0 .. 255.

    The first contains the mantissa of 1 / d (int32), the second the number of bits of d below its highest set bit
    (int8)."""
    bits = np.array([max(d.bit_length() - 1, 0) for d in range(256)], np.int64)
    above = (np.arange(256, dtype=np.int64) << (31 - bits)) - (1 << 31)
    mantissas = saturating_double(fixed_point_reciprocal(half_of_one_plus(np.maximum(above, 0)), NUMPY))
    mantissas[0] = 0
    return mantissas.astype(np.int32), bits.astype(np.int8)


def legalize_div(node: Node, graph: Graph) -> Legalized:
    """Rewrite ``div`` of int8 operands to ``qdiv``, and ``div`` of other dtypes to float operators."""
    result = graph.types[node.outputs[0]]
    if any(graph.types[name].dtype != "int8" for name in (*node.inputs, *node.outputs)):
        return legalize_in_float(node, graph)
    names = (*node.inputs, *node.outputs)
    (a, zero_a), (b, zero_b), (out, zero) = (per_tensor_quant(node, graph, name) for name in names)
    assert result.quant is not None
    low, high = activation_range(str(node.attrs.get("activation", "")), result.quant, "int8", where=str(node.loc))
    real = a / (b * out)
    if node.attrs.get("rounding") == Rounding.LITERT:
        real = float(np.float32(a) / np.float32(np.float32(b) * np.float32(out)))
    multiplier, shift = quantize_multiplier(real)
    rewrite = Rewrite(node, graph)
    mantissas, bits = compute_reciprocal_tables()
    tables = (rewrite.add_constant("reciprocals", mantissas), rewrite.add_constant("bits", bits))
    attrs: dict[str, Attr] = {"zero_point_a": zero_a, "zero_point_b": zero_b, "zero_point": zero}
    attrs |= {"multiplier": multiplier, "shift": shift, "minimum": low, "maximum": high}
    rewrite.emit("qdiv", (*node.inputs, *tables), node.outputs, attrs)
    return rewrite.legalized()


def _infer_qdiv_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    a, b, mantissas, bits = types
    if (a.dtype, b.dtype) != ("int8", "int8") or mantissas.shape != (256,) or bits.shape != (256,):
        raise ModelError(
            f"qdiv: operands or tables have wrong types; got operands {a.dtype} and {b.dtype} with tables "
            f"{mantissas.shape} and {bits.shape}, expected int8 operands and two tables of shape (256,)"
        )
    try:
        return (TensorType(broadcast_shapes(a.shape, b.shape), "int8"),)
    except ValueError:
        raise ModelError(f"qdiv: shapes do not broadcast; got {a.shape} and {b.shape}") from None


def _evaluate_qdiv_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    a, b = (np.asarray(x, np.int64) - attrs[f"zero_point_{k}"] for x, k in zip(arrays[:2], "ab", strict=True))
    a, b = np.broadcast_arrays(np.where(b < 0, -a, a), np.abs(b))
    mantissa, bits = arrays[2].astype(np.int64)[b], arrays[3].astype(np.int64)[b]
    magnitude = np.where(a < 0, -2 * a - 1, a)
    lengths = np.frompyfunc(lambda n: int(n).bit_length(), 1, 1)(magnitude).astype(np.int64)
    headroom = np.where(a < 0, 32, 31) - lengths
    quotient = doubling_high_mul(a << headroom, mantissa, NUMPY)
    right = NUMPY.clamp(bits + headroom - attrs["shift"], 0, 31)
    scaled = doubling_high_mul(quotient, attrs["multiplier"], NUMPY)
    value = rounding_shift_right(scaled, right, NUMPY)
    return (np.clip(value + attrs["zero_point"], attrs["minimum"], attrs["maximum"]).astype(np.int8),)


def _build_qdiv_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Any]) -> Expr:
    a, b = (ir.cast("int32", x) - attrs[f"zero_point_{k}"] for x, k in zip(args[:2], "ab", strict=True))
    mantissas: te.Tensor = args[2]
    bits: te.Tensor = args[3]
    a, b = ir.select(b < 0, -a, a), ir.select(b < 0, -b, b)
    magnitude = ir.select(a < 0, a * -2 - 1, a)
    headroom: Expr = ir.select(a < 0, ir.const(32, "int32"), 31)
    for power in range(9):
        headroom = headroom - ir.select(magnitude >= (1 << power), ir.const(1, "int32"), 0)
    quotient = doubling_high_mul(a << headroom, mantissas[b], TIR)
    right = ir.clamp(ir.cast("int32", bits[b]) + headroom - attrs["shift"], 0, 31)
    scaled = doubling_high_mul(quotient, ir.const(attrs["multiplier"], "int32"), TIR)
    value = rounding_shift_right(scaled, right, TIR) + attrs["zero_point"]
    return ir.cast("int8", ir.clamp(value, attrs["minimum"], attrs["maximum"]))


def _make_qdiv_test_cases() -> Iterable[Case]:
    mantissas, bits = compute_reciprocal_tables()
    low, high = dtypes.int_range("int8")
    common: dict[str, Attr] = {"minimum": low, "maximum": high, "zero_point": 3}
    a, b = np.meshgrid(np.array([-128, -1, 0, 1, 5, 100, 127], np.int8), np.array([-127, -9, 6, 7, 50, 127], np.int8))
    types = (TensorType(a.shape, "int8"),) * 2 + (TensorType((256,), "int32"), TensorType((256,), "int8"))
    for zero_a, zero_b, multiplier, shift in ((0, 0, 1500000000, 4), (5, 5, 1999999999, 2), (-128, -128, 1 << 30, 6)):
        attrs = {**common, "zero_point_a": zero_a, "zero_point_b": zero_b, "multiplier": multiplier, "shift": shift}
        yield Case(attrs, types, (2, 3), (a, b, mantissas, bits), name=f"{zero_a}")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "qdiv",
        attrs={
            "zero_point_a": integer("of a"),
            "zero_point_b": integer("of b"),
            **SCALED,
            "zero_point": STORED["zero_point"],
            "minimum": STORED["minimum"],
            "maximum": STORED["maximum"],
        },
        infer=_infer_qdiv_types,
        reference=_evaluate_qdiv_reference,
        scalar=_build_qdiv_scalar_expr,
        cases=_make_qdiv_test_cases,
        constants={2: MANTISSA, 3: OperandBounds(NumberUse.SHIFT, 0, 31)},
        sound=(
            stored_range_error_message,
            make_zero_point_range_check("zero_point_a", 0),
            make_zero_point_range_check("zero_point_b", 1),
        ),
        operand_names=("a", "b", "reciprocals", "bits"),
        whole=(2, 3),
        repeats=True,
    ),
)
