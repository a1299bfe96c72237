"""Conversion of ONNX elementwise operators, comparisons, logic and reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field

import numpy as np

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.frontend import formulas
from microc.frontend.formulas import make_operator_emitter
from microc.frontend.onnx.context import FLOAT, INTEGERS, MOVABLE, NUMBERS, SIGNED, Converter, OpContext
from microc.frontend.onnx.file import dtype_from_code
from microc.graph.ir import Attr
from microc.ops.attributes import Rounding

# ---- Operators with the same operands in ONNX and here: one row serves the reader and the writer.
#
# ``dtypes`` are those that the reader accepts; ``real_attributes`` are attributes, of the same name on both sides, with ONNX's
# defaults.


@frozen
class OneToOneOperator:
    """Correspondence of an operator of microc's graph and an ONNX operator with the same operands.

    ``dtypes``: operand dtypes that the reader supports. ``real_attributes``: float attributes, which have the same
    names in microc and in ONNX, with ONNX's defaults."""

    op: str
    onnx_op_type: str
    dtypes: tuple[str, ...] = FLOAT
    real_attributes: Mapping[str, float] = field(default_factory=dict)


FUNCTIONS = (
    OneToOneOperator("abs", "Abs", NUMBERS),
    OneToOneOperator("acos", "Acos"),
    OneToOneOperator("acosh", "Acosh"),
    OneToOneOperator("asin", "Asin"),
    OneToOneOperator("asinh", "Asinh"),
    OneToOneOperator("atan", "Atan"),
    OneToOneOperator("atanh", "Atanh"),
    OneToOneOperator("bit_not", "BitwiseNot", INTEGERS),
    OneToOneOperator("ceil", "Ceil"),
    OneToOneOperator("cos", "Cos"),
    OneToOneOperator("cosh", "Cosh"),
    OneToOneOperator("elu", "Elu", real_attributes={"alpha": 1.0}),
    OneToOneOperator("erf", "Erf"),
    OneToOneOperator("exp", "Exp"),
    OneToOneOperator("floor", "Floor"),
    OneToOneOperator("hard_swish", "HardSwish"),
    OneToOneOperator("leaky_relu", "LeakyRelu", real_attributes={"alpha": 0.01}),
    OneToOneOperator("log", "Log"),
    OneToOneOperator("neg", "Neg", NUMBERS),
    OneToOneOperator("relu", "Relu", NUMBERS),
    OneToOneOperator("round", "Round"),
    OneToOneOperator("sigmoid", "Sigmoid"),
    OneToOneOperator("sign", "Sign", NUMBERS),
    OneToOneOperator("sin", "Sin"),
    OneToOneOperator("sinh", "Sinh"),
    OneToOneOperator("softplus", "Softplus"),
    OneToOneOperator("sqrt", "Sqrt"),
    OneToOneOperator("tan", "Tan"),
    OneToOneOperator("tanh", "Tanh"),
)
"""Operators with one operand."""

PAIRS = (
    OneToOneOperator("add", "Add", NUMBERS),
    OneToOneOperator("bit_and", "BitwiseAnd", INTEGERS),
    OneToOneOperator("bit_or", "BitwiseOr", INTEGERS),
    OneToOneOperator("bit_xor", "BitwiseXor", INTEGERS),
    OneToOneOperator("maximum", "Max", NUMBERS),
    OneToOneOperator("minimum", "Min", NUMBERS),
    OneToOneOperator("mul", "Mul", NUMBERS),
    OneToOneOperator("sub", "Sub", NUMBERS),
)
"""Operators with two operands; some take more in ONNX, folded from the left."""

COMPARISONS = (
    OneToOneOperator("equal", "Equal", (*NUMBERS, "bool")),
    OneToOneOperator("greater", "Greater", NUMBERS),
    OneToOneOperator("greater_equal", "GreaterOrEqual", NUMBERS),
    OneToOneOperator("less", "Less", NUMBERS),
    OneToOneOperator("less_equal", "LessOrEqual", NUMBERS),
    OneToOneOperator("logical_and", "And", ("bool",)),
    OneToOneOperator("logical_or", "Or", ("bool",)),
)
"""Comparisons and logic on two operands of one dtype, with a bool result."""


# ---- Converters of elementwise operators and reductions.

FLOAT_MAX = float(np.finfo(np.float32).max)


def make_unary_converter(
    op: str, first_input_dtypes: tuple[str, ...] = FLOAT, **attribute_defaults: float
) -> Converter:
    """Make a converter of an ONNX operator with one operand to the graph operator ``op``.

    ``attribute_defaults``: names and defaults of the operator's float attributes."""

    def convert_unary(context: OpContext) -> None:
        attributes = context.operator.attributes
        attrs: dict[str, Attr] = {name: attributes.real(name, default) for name, default in attribute_defaults.items()}
        context.result(op, (context.operand(0),), attrs)

    return Converter(convert_unary, first_input_dtypes)


def make_variadic_converter(op: str, first_input_dtypes: tuple[str, ...] = NUMBERS) -> Converter:
    """Make a converter of a variadic ONNX operator, such as Sum, to a chain of ``op`` with two operands each.

    The operands broadcast to each other. A single operand is the result itself."""

    def convert_variadic(context: OpContext) -> None:
        value = context.operand(0)
        if context.input_count() == 1:
            context.result_alias(value)
        for position in range(1, context.input_count() - 1):
            value = context.emit(op, (value, context.operand(position)))
        if context.input_count() > 1:
            context.result(op, (value, context.operand(context.input_count() - 1)))

    return Converter(convert_variadic, first_input_dtypes)


def make_formula_converter(
    formula: Callable[..., str], first_input_dtypes: tuple[str, ...] = FLOAT, **attribute_defaults: float
) -> Converter:
    """Make a converter of an ONNX operator with one operand to the graph operators that ``formula`` emits.

    ``attribute_defaults``: names and defaults of float attributes, which are passed to ``formula`` as keyword
    arguments."""

    def convert_by_formula(context: OpContext) -> None:
        attributes = context.operator.attributes
        parameters = {name: attributes.real(name, default) for name, default in attribute_defaults.items()}
        context.result_alias(formula(make_operator_emitter(context), context.operand(0), **parameters))

    return Converter(convert_by_formula, first_input_dtypes)


def convert_gelu(context: OpContext) -> None:
    """Convert Gelu, exact or approximated by tanh (attribute ``approximate``)."""
    approximate = context.operator.attributes.text("approximate", "none") == "tanh"
    context.result_alias(formulas.emit_gelu(make_operator_emitter(context), context.operand(0), approximate))


def convert_clip(context: OpContext) -> None:
    """Convert Clip, whose bounds are attributes before opset 11 and optional inputs since then.

    Constant bounds of float32 data become a ``clip``; other bounds become a ``maximum`` and a ``minimum``."""
    data = context.operand(0)
    if context.opset < 11:
        attributes = context.operator.attributes
        _write_clip(context, data, attributes.real("min", -FLOAT_MAX), attributes.real("max", FLOAT_MAX))
        return
    has_bound = [context.has_input(position) for position in (1, 2)]
    constant_bounds = [context.operand(p) in context.builder.consts for p in (1, 2) if context.has_input(p)]
    if all(constant_bounds) and context.type(data).dtype == "float32":
        low = context.constant_number(1) if has_bound[0] else -FLOAT_MAX
        high = context.constant_number(2) if has_bound[1] else FLOAT_MAX
        _write_clip(context, data, low, high)
        return
    if has_bound[0]:
        data = context.emit("maximum", (data, context.operand(1)))
    if has_bound[1]:
        data = context.emit("minimum", (data, context.operand(2)))
    context.result_alias(data)


def _write_clip(context: OpContext, data_name: str, minimum: float, maximum: float) -> None:
    """Write the output: ``data_name`` clipped to constant bounds. Infinite bounds are omitted."""
    if math.isnan(minimum) or math.isnan(maximum):
        context.broken(f"got min {minimum} and max {maximum}, expected no NaN")
    minimum, maximum = (min(max(bound, -FLOAT_MAX), FLOAT_MAX) for bound in (minimum, maximum))
    if (minimum, maximum) == (-FLOAT_MAX, FLOAT_MAX):
        context.result_alias(data_name)
    elif (minimum, maximum) == (0.0, FLOAT_MAX):
        context.result("relu", (data_name,))
    else:
        context.result("clip", (data_name,), {"minimum": min(minimum, maximum), "maximum": maximum})


def convert_pow(context: OpContext) -> None:
    """Convert Pow; a constant exponent of 2 becomes a multiplication.

    The result has the dtype of the base. The exponent may have another dtype. Powers of integers are computed in
    float64."""
    data, exponent = context.operand(0), context.value(1)
    constant = context.builder.consts.get(exponent)
    is_single = constant is not None and constant.size == 1 and constant.ndim <= len(context.type(data).shape)
    if constant is not None and is_single and float(constant.reshape(())) == 2.0:
        context.result("mul", (data, data))
        return
    kind = context.type(data).dtype
    real = kind if kind in FLOAT else "float64"
    operands = [
        value if context.type(value).dtype == real else context.emit("cast", (value,), {"dtype": real})
        for value in (data, exponent)
    ]
    if real == kind:
        context.result("pow", operands)
    else:
        context.result("cast", (context.emit("pow", operands),), {"dtype": kind})


def convert_mean(context: OpContext) -> None:
    """Convert Mean, the average of operands that broadcast to each other."""
    value = context.operand(0)
    for position in range(1, context.input_count()):
        value = context.emit("add", (value, context.operand(position)))
    count = context.scalar(1.0 / context.input_count(), context.type(value).dtype)
    context.result("mul", (value, count))


def convert_prelu(context: OpContext) -> None:
    """Convert PRelu, slope * x for negative x, else x; the slope broadcasts to x."""
    data, slope = context.operand(0), context.operand(1)
    shape = context.type(data).shape
    if context.broadcast_shapes(shape, context.type(slope).shape) != shape:
        context.broken(
            f"got slope of shape {context.type(slope).shape}, expected one that broadcasts to data of shape {shape}"
        )
    context.result("prelu", (data, slope), {"rounding": Rounding.EVEN})


def make_reduction_converter(
    op: str, op_before: str = "", op_after: str = "", first_opset_with_axes_input: int = 18
) -> Converter:
    """Make a converter of an ONNX reduction, such as ReduceL2, to ``op`` over axes.

    ``op_before``, ``op_after``: graph operators applied before and after the reduction; empty for none. Axes are an
    input from opset ``first_opset_with_axes_input`` on, and an attribute before."""

    def convert_reduction(context: OpContext) -> None:
        attributes, data = context.operator.attributes, context.operand(0)
        axes, kind = _read_reduced_axes(context, first_opset_with_axes_input), context.type(data).dtype
        if kind == "bool":
            data = context.emit("cast", (data,), {"dtype": "uint8"})
        if not axes:
            data = context.emit(op_before, (data, data) if op_before == "mul" else (data,)) if op_before else data
            context.result_alias(context.emit(op_after, (data,)) if op_after else data)
            return
        if kind == "bool":
            reduced = context.emit(op, (data,), {"axes": axes, "keepdims": attributes.flag("keepdims", True)})
            context.result("cast", (reduced,), {"dtype": "bool"})
            return
        attrs: Mapping[str, Attr] = {"axes": axes, "keepdims": attributes.flag("keepdims", True)}
        if op_before:
            data = context.emit(op_before, (data, data) if op_before == "mul" else (data,))
        if op_after:
            context.result(op_after, (context.emit(op, (data,), attrs),))
        else:
            context.result(op, (data,), attrs)

    return Converter(convert_reduction, (*NUMBERS, "bool") if op in ("max", "min") else NUMBERS)


def _read_reduced_axes(context: OpContext, first_opset_with_axes_input: int) -> tuple[int, ...]:
    """Return the axes of a reduction as numbers of 0 to rank - 1; empty if the operator reduces no axis.

    The axes are an input from opset ``first_opset_with_axes_input`` on, and an attribute before."""
    attributes, rank = context.operator.attributes, len(context.shape(0))
    axes: tuple[int, ...] = ()
    if context.opset < first_opset_with_axes_input:
        axes = attributes.integers("axes", ())
    elif context.has_input(1):
        axes = context.integers(1)
    if not axes and attributes.flag("noop_with_empty_axes"):
        return ()
    return tuple(sorted(context.normalize_axes(axes, rank))) or tuple(range(rank))


def convert_reduce_log_sum_exp(context: OpContext) -> None:
    """Convert ReduceLogSumExp to m + log(sum(exp(x - m))), with the maximum m of x clipped to finite numbers."""
    data, axes, make = context.operand(0), _read_reduced_axes(context, 18), make_operator_emitter(context)
    over: Mapping[str, Attr] = {"axes": axes, "keepdims": True}
    largest = context.emit("max", (data,), over) if axes else data
    shift = make("clip", largest, minimum=-FLOAT_MAX, maximum=FLOAT_MAX)
    powers = make("exp", make("sub", data, shift))
    total = context.emit("sum", (powers,), over) if axes else powers
    result = make("add", make("log", total), shift)
    keep = context.operator.attributes.flag("keepdims", True)
    shape = [extent for k, extent in enumerate(context.type(result).shape) if keep or k not in axes]
    context.result_reshape(result, shape)


def convert_cast(context: OpContext) -> None:
    """Convert Cast between numeric dtypes."""
    data, to = context.value(0), dtype_from_code(context.operator.attributes.integer("to"), context.where)
    if to not in MOVABLE:
        context.refuse(f"a cast to {to} is not supported", f"cast to one of {', '.join(MOVABLE)}")
    if to == context.type(data).dtype:
        context.result_alias(data)
    else:
        context.result("cast", (data,), {"dtype": to})


ELEMENTWISE_CONVERTERS: Mapping[str, Converter] = {
    **{row.onnx_op_type: make_unary_converter(row.op, row.dtypes, **row.real_attributes) for row in FUNCTIONS},
    **{row.onnx_op_type: make_variadic_converter(row.op, row.dtypes) for row in PAIRS},
    "Cast": Converter(convert_cast, MOVABLE),
    "Clip": Converter(convert_clip, NUMBERS),
    "Gelu": Converter(convert_gelu),
    "HardSigmoid": make_formula_converter(formulas.emit_hard_sigmoid, alpha=0.2, beta=0.5),
    "Mish": make_formula_converter(formulas.emit_mish),
    "PRelu": Converter(convert_prelu, FLOAT),
    "Pow": Converter(convert_pow, NUMBERS),
    "Reciprocal": make_formula_converter(formulas.emit_reciprocal),
    "ReduceL1": make_reduction_converter("sum", op_before="abs"),
    "ReduceL2": make_reduction_converter("sum", op_before="mul", op_after="sqrt"),
    "ReduceLogSum": make_reduction_converter("sum", op_after="log"),
    "ReduceLogSumExp": Converter(convert_reduce_log_sum_exp),
    "ReduceMax": make_reduction_converter("max"),
    "ReduceMean": make_reduction_converter("mean"),
    "ReduceMin": make_reduction_converter("min"),
    "ReduceProd": make_reduction_converter("prod"),
    "ReduceSum": make_reduction_converter("sum", first_opset_with_axes_input=13),
    "ReduceSumSquare": make_reduction_converter("sum", op_before="mul"),
    "Selu": make_formula_converter(formulas.emit_selu, alpha=1.6732631921768188, gamma=1.0507010221481323),
    "Softsign": make_formula_converter(formulas.emit_softsign),
    "Mean": Converter(convert_mean),
    "Sum": make_variadic_converter("add"),
}


# ---- Converters of comparisons, logic, selection and bit operations.


def make_comparison_converter(op: str, *operand_dtypes: str) -> Converter:
    """Make a converter of an ONNX comparison of two operands of the same dtype to the graph operator ``op``."""
    return Converter(lambda context: context.result(op, (context.operand(0), context.operand(1))), operand_dtypes)


def convert_logical_not(context: OpContext) -> None:
    """Convert Not, the negation of bools."""
    context.result("logical_not", (context.value(0),))


def convert_where(context: OpContext) -> None:
    """Convert Where, which selects each element from one of two operands by a condition."""
    context.result("where", tuple(context.value(position) for position in range(3)))


def convert_div_or_mod(context: OpContext) -> None:
    """Convert Div or Mod. The remainder has the sign of the dividend if ``fmod`` is set, else that of the divisor."""
    data, divisor = context.operand(0), context.operand(1)
    constant_divisor = context.builder.consts.get(divisor)
    if constant_divisor is not None and constant_divisor.dtype.kind in "iu" and not constant_divisor.all():
        context.broken("the constant integer divisor contains 0, expected no 0")
    op = "fmod" if context.operator.attributes.flag("fmod") else "floor_mod"
    context.result("div" if context.operator.op_type == "Div" else op, (data, divisor))


def convert_bit_shift(context: OpContext) -> None:
    """Convert BitShift of unsigned integers."""
    direction = context.operator.attributes.text("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        context.broken(f"direction is {direction!r}, expected 'LEFT' or 'RIGHT'")
    context.result(f"shift_{direction.lower()}", (context.operand(0), context.operand(1)))


def convert_cast_like(context: OpContext) -> None:
    """Convert CastLike, a cast to the dtype of the second operand."""
    data, to = context.value(0), context.type(context.value(1)).dtype
    if to == context.type(data).dtype:
        context.result_alias(data)
    else:
        context.result("cast", (data,), {"dtype": to})


def convert_is_nan(context: OpContext) -> None:
    """Convert IsNaN to x != x, which is true for NaN only."""
    context.result("not_equal", (context.operand(0), context.operand(0)))


def convert_is_inf(context: OpContext) -> None:
    """Convert IsInf to comparisons with the infinities that the attributes select."""
    attributes, make, x = context.operator.attributes, make_operator_emitter(context), context.operand(0)
    infinities = ((np.inf, "detect_positive"), (-np.inf, "detect_negative"))
    tests = [make("equal", x, value) for value, name in infinities if attributes.flag(name, True)] or [
        make("less", x, -np.inf)
        # With both signs deselected the result is false everywhere: x < -inf never holds.
    ]
    context.result_alias(make("logical_or", *tests) if len(tests) == 2 else tests[0])


def convert_eye_like(context: OpContext) -> None:
    """Convert EyeLike to a constant matrix with ones on a diagonal, in the shape of the operand.

    The matrix has the dtype in the attribute ``dtype``, or that of the operand if the attribute is absent."""
    from microc.frontend.onnx.file import dtype_from_code

    kind, attributes = context.type(context.value(0)), context.operator.attributes
    if len(kind.shape) != 2:
        context.broken(f"got data of shape {kind.shape}, expected two axes")
    to = dtype_from_code(attributes.integer("dtype"), context.where) if "dtype" in attributes else kind.dtype
    eye = np.eye(*kind.shape, k=attributes.integer("k", 0))
    context.result_constant(eye.astype(dtypes.to_numpy(to)))


LOGIC_CONVERTERS: Mapping[str, Converter] = {
    **{row.onnx_op_type: make_comparison_converter(row.op, *row.dtypes) for row in COMPARISONS},
    "BitShift": Converter(convert_bit_shift, INTEGERS),
    "CastLike": Converter(convert_cast_like, MOVABLE),
    "Celu": make_formula_converter(formulas.emit_celu, alpha=1.0),
    "Div": Converter(convert_div_or_mod, NUMBERS),
    "EyeLike": Converter(convert_eye_like, MOVABLE),
    "IsInf": Converter(convert_is_inf, FLOAT),
    "IsNaN": Converter(convert_is_nan, FLOAT),
    "Mod": Converter(convert_div_or_mod, NUMBERS),
    "Not": Converter(convert_logical_not, ("bool",)),
    "Shrink": make_formula_converter(formulas.emit_shrink, SIGNED, bias=0.0, lambd=0.5),
    "Swish": make_formula_converter(formulas.emit_swish, alpha=1.0),
    "ThresholdedRelu": make_formula_converter(formulas.emit_thresholded_relu, alpha=1.0),
    "Where": Converter(convert_where, ("bool",)),
    "Xor": make_comparison_converter("not_equal", "bool"),
}
