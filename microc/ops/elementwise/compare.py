# SPDX-License-Identifier: Apache-2.0
"""Elementwise operators for comparison, logic, selection and bit casts; and ``prelu``, which selects a slope by sign."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.numerics import NUMPY, quantize_multiplier
from microc.ops.arithmetic import (
    NUMBERS,
    Rewrite,
    computation_dtype,
    emit_dequantize,
    is_quantised,
    legalize_in_float,
    per_tensor_quant,
)
from microc.ops.attributes import (
    MULTIPLIER_ROUNDING,
    SCALED,
    SURFACE,
    Multiplier,
    Rounding,
    element_type,
    exponent,
    integer,
    mantissa,
)
from microc.ops.constants import (
    CheckedNode,
    make_zero_point_range_check,
    product_overflow_message,
    stored_range_error_message,
)
from microc.ops.gradients.call import GradientCall, Gradients
from microc.ops.gradients.rules import build_where_gradients
from microc.ops.quantised.int16_functions import emit_shifted_scale
from microc.ops.quantised.scaling import FixedPointScale, ScaledResult, scale_double_rounding, scale_single_rounding
from microc.ops.registry import Case, Legalized, OpDef
from microc.tir import ir
from microc.tir.extents import broadcast_shapes
from microc.tir.ir import Expr

# ---- ``bit_cast``: the bits of every element read as another dtype of the same width. A bool is a byte, true if any bit is set.
#
# Source: ONNX BitCast.


def _infer_bit_cast_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    source, dtype = types[0].dtype, attrs["dtype"]
    if not dtypes.is_valid(dtype) or dtypes.nbytes(source) != dtypes.nbytes(dtype):
        raise ModelError(f"bit_cast: both dtypes need the same number of bits; got {source} and dtype={dtype!r}")
    return (TensorType(types[0].shape, dtype),)


def _evaluate_bit_cast_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, dtype = np.asarray(arrays[0]), dtypes.to_numpy(attrs["dtype"])
    return (x != 0 if dtype == np.bool_ else x.view(dtype),)


def _build_bit_cast_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    x, dtype = args[0], attrs["dtype"]
    if dtype == "bool" != x.dtype:
        return ir.cast("int32", x).ne(0)
    return ir.reinterpret(dtype, x)


def _make_bit_cast_test_cases() -> Iterable[Case]:
    """Yield test cases for zeros of both signs, infinities, the smallest number, a NaN with a payload, and negative
    integers."""
    special = {2: [0x8000, 0x7C00, 1, 0x7E01], 4: [1 << 31, 0x7F800000, 1, 0x7FC00003], 8: [1 << 63, 0x7FF << 52, 1, 9]}
    for dtype, other in (
        ("float32", "int32"),
        ("float32", "uint32"),
        ("float64", "int64"),
        ("float64", "uint64"),
        ("float16", "int16"),
        ("bfloat16", "uint16"),
        ("float16", "bfloat16"),
        ("int8", "uint8"),
        ("bool", "uint8"),
    ):
        width = dtypes.nbytes(dtype)
        bits = np.array(special.get(width, [0, 127, 128, 255]), f"uint{8 * width}")
        for source, target in ((dtype, other), (other, dtype)):
            array = (bits & 1 if source == "bool" else bits).view(dtypes.to_numpy(source)).reshape(2, 2)
            types = (TensorType((2, 2), source),)
            yield Case({"dtype": target}, types, arrays=(array,), name=f"{source} as {target}")


BIT_CAST_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "bit_cast",
        infer=_infer_bit_cast_types,
        reference=_evaluate_bit_cast_reference,
        scalar=_build_bit_cast_scalar_expr,
        cases=_make_bit_cast_test_cases,
        operand_names=("x",),
        attrs={"dtype": element_type()},
    ),
)


# ---- Comparisons, logic and selection: ``equal`` ... ``less_equal``, ``logical_and``, ``logical_or``, ``logical_not``,
# ``where``.
#
# Comparisons of quantised numbers compare reals as TFLite does: both sides are shifted left by 8, scaled to int32, and rounded
# (source: TFLite Micro ``comparisons.cc``, TFLite ``reference/comparisons.h``); with rounding ``even`` they are dequantised.

_SHIFT = 8
Compare = Callable[[Any, Any], Any]
"""A comparison over numpy arrays."""

COMPARISONS: tuple[tuple[str, str, Compare], ...] = (
    ("equal", "eq", np.equal),
    ("not_equal", "ne", np.not_equal),
    ("less", "lt", np.less),
    ("less_equal", "le", np.less_equal),
    ("greater", "gt", np.greater),
    ("greater_equal", "ge", np.greater_equal),
)
"""For each comparison: the name of the operator, TIR's name of it, and numpy's function."""


def _broadcast_shape(op_name: str, types: Sequence[TensorType]) -> tuple[int, ...]:
    """Return the shape to which numpy broadcasts the operands; raise ModelError if there is none."""
    try:
        return broadcast_shapes(*(tensor_type.shape for tensor_type in types))
    except ValueError:
        shapes = ", ".join(str(tensor_type.shape) for tensor_type in types)
        raise ModelError(f"{op_name}: shapes do not broadcast; got {shapes}") from None


def _define_comparison(op_name: str, tir_op: str, numpy_function: Compare) -> OpDef:
    def infer_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
        a, b = types
        if a.dtype != b.dtype or (a.dtype == "bool" and tir_op not in ("eq", "ne")):
            raise ModelError(
                f"{op_name}: operands need the same dtype"
                + ("" if tir_op in ("eq", "ne") else " other than bool")
                + f"; got {a.dtype} and {b.dtype}"
            )
        return (TensorType(_broadcast_shape(op_name, types), "bool"),)

    def build_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
        dtype = computation_dtype(args[0].dtype)
        return ir.binary(tir_op, *(ir.cast(dtype, x) for x in args))

    def evaluate_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
        return (np.asarray(numpy_function(*arrays)),)

    return OpDef(
        op_name,
        infer=infer_types,
        reference=evaluate_reference,
        scalar=build_scalar_expr,
        cases=lambda: _make_comparison_test_cases(tir_op),
        attrs=SURFACE,
        legalize=_legalize_comparison,
        operand_names=("a", "b"),
    )


def _make_comparison_test_cases(tir_op: str) -> Iterable[Case]:
    a = np.array([np.nan, 1.0, -0.0, np.inf, -np.inf, 2.0, 3.0], np.float32)
    b = np.array([np.nan, np.nan, 0.0, np.inf, np.inf, 3.0, 2.0], np.float32)
    yield Case({}, (TensorType((7,), "float32"),) * 2, arrays=(a, b), name="special")
    for shapes in (((2, 3), (3,)), ((), (4,)), ((2, 1, 3), (4, 1)), ((1,), (1,))):
        yield Case({}, tuple(TensorType(shape, "float32") for shape in shapes))
    yield Case(
        {}, (TensorType((7,), "float64"),) * 2, arrays=(a.astype(np.float64), b.astype(np.float64)), name="float64"
    )
    for dtype in filter(dtypes.is_integer, NUMBERS):
        low, high = dtypes.int_range(dtype)
        edges = np.array([low, low + 1, 5, high - 1, high], dtypes.to_numpy(dtype))
        yield Case({}, (TensorType((5, 1), dtype), TensorType((5,), dtype)), arrays=(edges[:, None], edges), name=dtype)
    if tir_op in ("eq", "ne"):
        yield Case({}, (TensorType((2, 5), "bool"), TensorType((5,), "bool")), name="bool")


def _legalize_comparison(node: Node, graph: Graph) -> Legalized | None:
    operand_types = [graph.types[name] for name in node.inputs]
    if any(
        tensor_type.quant is None or not dtypes.is_integer(tensor_type.dtype) or dtypes.nbytes(tensor_type.dtype) > 2
        for tensor_type in operand_types
    ):
        return None
    if node.attr("rounding") == Rounding.EVEN and operand_types[0].quant == operand_types[1].quant:
        return None
    rewrite = Rewrite(node, graph)
    through_floats = node.attr("rounding") == Rounding.EVEN or operand_types[0].dtype == "int16"
    operands = [
        emit_dequantize(rewrite, name) if through_floats else _emit_scaled_operand(rewrite, name)
        for name in node.inputs
    ]
    rewrite.emit(node.op, operands, node.outputs, node.attrs)
    return rewrite.legalized()


def _emit_scaled_operand(rewrite: Rewrite, operand_name: str) -> str:
    """Append nodes that compute (x - zero point) * 2**8 * scale of an 8-bit operand x, rounded to int32; return the
    result's name."""
    scale = per_tensor_quant(rewrite.node, rewrite.graph, operand_name)[0]
    return emit_shifted_scale(rewrite, operand_name, _SHIFT, float(np.float32(scale)))


# ---------------------------------------------------------------- logic


def _define_logical(op_name: str, tir_op: str, numpy_function: Compare) -> OpDef:
    def infer_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if any(tensor_type.dtype != "bool" for tensor_type in types):
            raise ModelError(
                f"{op_name}: operands have a wrong dtype; got {', '.join(tensor_type.dtype for tensor_type in types)}, "
                "expected bool"
            )
        return (TensorType(_broadcast_shape(op_name, types), "bool"),)

    def make_test_cases() -> Iterable[Case]:
        for shapes in (((2, 3), (2, 3)), ((2, 3), (3,)), ((), (2,)), ((2, 1), (1, 3))):
            yield Case({}, tuple(TensorType(shape, "bool") for shape in shapes))

    return OpDef(
        op_name,
        infer=infer_types,
        reference=lambda _, arrays: (np.asarray(numpy_function(*arrays)),),
        scalar=lambda _, args: ir.binary(tir_op, args[0], args[1]),
        cases=make_test_cases,
        operand_names=("a", "b"),
    )


def _infer_logical_not_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if types[0].dtype != "bool":
        raise ModelError(f"logical_not: the operand must be bool; got {types[0].dtype}, expected bool")
    return (TensorType(types[0].shape, "bool"),)


# ---------------------------------------------------------------- choice


def _infer_where_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    condition, a, b = types
    if condition.dtype != "bool" or a.dtype != b.dtype:
        raise ModelError(
            f"where: operands have wrong dtypes; got {condition.dtype}, {a.dtype} and {b.dtype}, expected bool and "
            "one dtype for both others"
        )
    return (TensorType(_broadcast_shape("where", types), a.dtype),)


def _make_where_test_cases() -> Iterable[Case]:
    for dtype in ("float32", "int8", "int64", "bool"):
        for shapes in (((2, 3), (2, 3), (2, 3)), ((3,), (2, 3), ()), ((2, 1), (3,), (2, 3)), ((1,), (4,), (4,))):
            types = (TensorType(shapes[0], "bool"), *(TensorType(shape, dtype) for shape in shapes[1:]))
            yield Case({}, types, name=dtype)


COMPARE_OPERATORS: tuple[OpDef, ...] = (
    *(_define_comparison(*row) for row in COMPARISONS),
    _define_logical("logical_and", "and", np.logical_and),
    _define_logical("logical_or", "or", np.logical_or),
    OpDef(
        "logical_not",
        infer=_infer_logical_not_types,
        reference=lambda _, arrays: (np.logical_not(arrays[0]),),
        scalar=lambda _, args: ir.Un("not", args[0]),
        cases=lambda: (Case({}, (TensorType((2, 3), "bool"),)), Case({}, (TensorType((), "bool"),))),
    ),
    OpDef(
        "where",
        gradient=build_where_gradients,
        infer=_infer_where_types,
        reference=lambda _, arrays: (np.where(*arrays),),
        scalar=lambda _, args: ir.select(args[0], args[1], args[2]),
        cases=_make_where_test_cases,
        operand_names=("condition", "a", "b"),
    ),
)


# ---- Operator ``prelu``: x, or ``slope`` times x where x is negative. The slope is a tensor that broadcasts to x.
#
# Source of the quantised form, ``qprelu``: TFLite ``reference/prelu.h`` (BroadcastPrelu4DSlow), TFLite Micro
# ``prelu_common.cc``. With rounding ``single`` both products are scaled with one rounding.


def _infer_prelu_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, slope = types
    try:
        shape = broadcast_shapes(data.shape, slope.shape)
    except ValueError:
        shape = ()
    if shape != data.shape or (data.dtype != slope.dtype and "float32" in (data.dtype, slope.dtype)):
        raise ModelError(
            f"prelu: slopes must broadcast to the data and have their dtype; got slopes {slope.dtype} {slope.shape} "
            f"for {data.dtype} {data.shape}"
        )
    return (TensorType(data.shape, attrs.get("out_dtype") or data.dtype),)


def _evaluate_prelu_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, slope = (np.asarray(array, np.float64) for array in arrays)
    return (np.where(x < 0, x * slope, x).astype(arrays[0].dtype),)


def _build_prelu_gradients(call: GradientCall) -> Gradients:
    """Return g, times the slope where the data are not positive; and g times the negative data, for the slopes."""
    g, x, slope = call.gradient, call.data, call.operand(1)
    return (
        (x > 0.0).select(g, g * slope) if 0 in call.wanted else None,
        (g * x.apply("minimum", 0.0)).sum_to(slope.shape) if 1 in call.wanted else None,
    )


def _build_prelu_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    x, slope = args
    return ir.select(x < 0.0, x * slope, x)


def _legalize_prelu(node: Node, graph: Graph) -> Legalized | None:
    if not is_quantised(node, graph):
        return None
    if node.attr("rounding") == Rounding.EVEN:
        return legalize_in_float(node, graph)
    names = (*node.inputs, *node.outputs)
    (x, zero_x), (slope, zero_slope), (out, zero_out) = (per_tensor_quant(node, graph, name) for name in names)
    positive = quantize_multiplier(float(np.float32(x)) / float(np.float32(out)))
    negative = quantize_multiplier(float(np.float32(x)) * float(np.float32(slope)) / float(np.float32(out)))
    attrs: dict[str, Attr] = {"zero_point_x": zero_x, "zero_point_slope": zero_slope, "zero_point": zero_out}
    attrs |= {"multiplier_positive": positive[0], "shift_positive": positive[1], "multiplier": negative[0]}
    attrs |= {"shift": negative[1], "out_dtype": graph.types[node.outputs[0]].dtype}
    attrs["rounding"] = Rounding(str(node.attr("rounding"))).multiplier
    rewrite = Rewrite(node, graph)
    rewrite.emit("qprelu", node.inputs, node.outputs, attrs)
    return rewrite.legalized()


def _make_prelu_test_cases() -> Iterable[Case]:
    for shape, slopes in (((2, 3, 4), (4,)), ((1, 2, 2, 3), (1, 2, 2, 3)), ((5,), (1,)), ((2, 3), (2, 1))):
        yield Case({}, (TensorType(shape, "float32"), TensorType(slopes, "float32")), tolerance=1e-6)
    x = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, -1.0], np.float32)
    types = (TensorType(x.shape, "float32"), TensorType((1,), "float32"))
    yield Case({}, types, arrays=(x, np.array([-0.5], np.float32)), name="special")


# ---------------------------------------------------------------- integers


def _evaluate_qprelu_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = np.asarray(arrays[0], np.int64) - attrs["zero_point_x"]
    slope = np.asarray(arrays[1], np.int64) - attrs["zero_point_slope"]
    times = Multiplier(attrs["rounding"]).multiply_function
    above = times(x, attrs["multiplier_positive"], attrs["shift_positive"], NUMPY)
    below = times(x * slope, attrs["multiplier"], attrs["shift"], NUMPY)
    low, high = dtypes.int_range(attrs["out_dtype"])
    result = np.where(x >= 0, above, below) + attrs["zero_point"]
    return (np.clip(result, low, high).astype(attrs["out_dtype"]),)


def _build_qprelu_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    out = ScaledResult(attrs["zero_point"], *dtypes.int_range(attrs["out_dtype"]), attrs["out_dtype"])
    low, high = (end - attrs["zero_point_x"] for end in dtypes.int_range(args[0].dtype))
    ends = [end - attrs["zero_point_slope"] for end in dtypes.int_range(args[1].dtype)]
    x = ir.cast("int32", args[0]) - attrs["zero_point_x"]
    slope = ir.cast("int32", args[1]) - attrs["zero_point_slope"]
    corners = [a * b for a in (low, high) for b in ends]
    positive, negative = (
        FixedPointScale.from_mantissa_and_shift(attrs[f"multiplier{w}"], attrs[f"shift{w}"]) for w in ("_positive", "")
    )
    if attrs["rounding"] == Multiplier.SINGLE:
        above = scale_single_rounding(x, max(-low, high), positive, out)
        below = scale_single_rounding(x * slope, max(-min(corners), max(corners)), negative, out)
    else:
        above = scale_double_rounding(x, low, high, positive, out)
        below = scale_double_rounding(x * slope, min(corners), max(corners), negative, out)
    return ir.select(x < 0, below, above)


def _qprelu_overflow_message(checked_node: CheckedNode) -> str:
    return product_overflow_message(checked_node, ("zero_point_x", "zero_point_slope"))


def _make_qprelu_test_cases() -> Iterable[Case]:
    for dtype, zeros in (("int8", (3, -5, -128)), ("uint8", (128, 100, 7)), ("int8", (0, 0, 0))):
        attrs: dict[str, Attr] = {f"zero_point{k}": z for k, z in zip(("_x", "_slope", ""), zeros, strict=True)}
        attrs |= {"multiplier_positive": 1400000000, "shift_positive": 0, "multiplier": 2000000000, "shift": -6}
        types = (TensorType((3, 64), dtype), TensorType((64,), dtype))
        mixed = (TensorType((3, 64), "int16"), TensorType((64,), "int8"))
        for rounding in (Multiplier.DOUBLE, Multiplier.SINGLE):
            attrs["rounding"] = rounding
            yield Case({**attrs, "out_dtype": dtype}, types, name=f"{dtype} {rounding}")
            yield Case({**attrs, "shift": -9, "out_dtype": "int16"}, mixed, name=f"int16 {rounding}")


PRELU_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "prelu",
        infer=_infer_prelu_types,
        reference=_evaluate_prelu_reference,
        scalar=_build_prelu_scalar_expr,
        cases=_make_prelu_test_cases,
        gradient=_build_prelu_gradients,
        attrs=SURFACE,
        legalize=_legalize_prelu,
        operand_names=("x", "slope"),
    ),
    OpDef(
        "qprelu",
        attrs={
            **SCALED,
            "multiplier_positive": mantissa("of numbers that are not negative, Q0.31"),
            "shift_positive": exponent("its exponent"),
            "zero_point_x": integer("of x"),
            "zero_point_slope": integer("of the slope"),
            "zero_point": integer("of the result"),
            "out_dtype": element_type(),
            "rounding": MULTIPLIER_ROUNDING,
        },
        infer=_infer_prelu_types,
        reference=_evaluate_qprelu_reference,
        scalar=_build_qprelu_scalar_expr,
        cases=_make_qprelu_test_cases,
        sound=(
            stored_range_error_message,
            make_zero_point_range_check("zero_point_x", 0),
            make_zero_point_range_check("zero_point_slope", 1),
            _qprelu_overflow_message,
        ),
        operand_names=("x", "slope"),
    ),
)


OPERATORS = (*BIT_CAST_OPERATORS, *COMPARE_OPERATORS, *PRELU_OPERATORS)
