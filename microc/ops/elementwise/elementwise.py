# SPDX-License-Identifier: Apache-2.0
"""Elementwise operators with one operand, or with two that broadcast: activations, arithmetic, ``cast``.

Their functions are defined in ``scalar_functions.py``. Integers wrap around, as in numpy; a quotient by zero is zero.
Quantised operators are legalised to ``lookup`` (8 bits), to ``qadd`` and ``qmul``, to a ``clip`` of the stored
integers, or to float operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from microc import numerics, te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.graph.ir import Graph, Node, Quant, TensorType
from microc.ops.arithmetic import (
    Rewrite,
    computation_dtype,
    is_quantised,
    legalize_in_float,
    per_tensor_quant,
    split_activation,
)
from microc.ops.attributes import ACTIVATION, ROUNDING, ROUNDING_LITERT, Rounding, default_attributes, element_type
from microc.ops.constants import CheckedNode, Constants, NumberUse, OperandBounds
from microc.ops.elementwise.scalar_functions import BINARY, UNARY, BinaryFunction, UnaryFunction, apply_unary
from microc.ops.elementwise.tables import emit_table_lookup, quantised_clip_bounds
from microc.ops.gradients.call import GradientCall, GradientRule, Gradients, Value
from microc.ops.quantised.computed_scales import legalize_rsqrt16
from microc.ops.quantised.int16_functions import (
    QSIGMOID16,
    legalize_int16_abs,
    legalize_int16_function,
    legalize_sigmoid16,
    legalize_squared_difference,
)
from microc.ops.quantised.quantised_arithmetic import legalize_div
from microc.ops.quantised.quantization import legalize_add, legalize_mul, legalize_sub
from microc.ops.registry import Case, Legalized, OpDef
from microc.tir import ir
from microc.tir.extents import broadcast_shapes
from microc.tir.ir import Expr

# ---------------------------------------------------------------- one operand


_LITERT = frozenset(("clip", "leaky_relu", "relu"))
"""Functions for which LiteRT divides the scales in another precision than TFLite Micro does."""


def _define_unary(function: UnaryFunction) -> OpDef:
    def infer_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
        tensor_type = types[0]
        if tensor_type.dtype not in function.dtypes and tensor_type.quant is None:
            raise ModelError(
                f"{function.name}: the operand has an unsupported dtype; got {tensor_type.dtype}, expected "
                f"{' or '.join(function.dtypes)}"
            )
        if function.name == "clip" and not attrs["minimum"] <= attrs["maximum"]:
            raise ModelError(
                f"clip: minimum exceeds maximum, or is NaN; got minimum={attrs['minimum']} and "
                f"maximum={attrs['maximum']}"
            )
        return (TensorType(tensor_type.shape, tensor_type.dtype),)

    def build_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
        x = args[0]
        return ir.cast(x.dtype, function.build_scalar(attrs, ir.cast(computation_dtype(x.dtype), x)))

    def evaluate_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
        return (apply_unary(function, attrs, arrays[0]),)

    return OpDef(
        function.name,
        infer=infer_types,
        reference=evaluate_reference,
        scalar=build_scalar_expr,
        cases=lambda: _make_unary_test_cases(function),
        attrs={**function.attrs, "rounding": ROUNDING_LITERT if function.name in _LITERT else ROUNDING},
        legalize=_legalize_unary,
        edges=function.edges,
        gradient=_define_unary_gradient(function),
    )


def _define_unary_gradient(function: UnaryFunction) -> GradientRule | None:
    rule = function.gradient
    if rule is None:
        return None
    return lambda call: (rule(call.attrs, call.gradient, call.data, call.result),)


def _make_unary_test_cases(function: UnaryFunction) -> Iterable[Case]:
    low, high = function.domain
    attrs = default_attributes({**function.attrs, "rounding": ROUNDING})
    for shape in ((1,), (3, 5), (1, 2, 2, 7)) if "float32" in function.dtypes else ():
        x = np.linspace(low, high, int(np.prod(shape)), dtype=np.float32).reshape(shape)
        yield Case(attrs, (TensorType(shape, "float32"),), arrays=(x,), tolerance=function.tolerance)
    special = np.array([0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, np.nan, np.inf, 3.0, 6.0], np.float32)
    if low < 0 and "float32" in function.dtypes:
        x = np.append(special, np.float32(-np.inf))
        yield Case(attrs, (TensorType(x.shape, "float32"),), arrays=(x,), tolerance=function.tolerance, name="special")
    for dtype in function.dtypes:
        if dtypes.is_float(dtype):
            continue
        least, most = dtypes.int_range(dtype)
        edges = [least, least + 1, least + 2, 0, 1, 7, most - 1, most]
        x = np.array(edges, dtypes.to_numpy(dtype))
        yield Case(attrs, (TensorType(x.shape, dtype),), arrays=(x,), name=dtype)


def _legalize_unary(node: Node, graph: Graph) -> Legalized | None:
    if not is_quantised(node, graph) or node.attr("rounding") == Rounding.NONE:
        return None
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    per_tensor_quant(node, graph, node.inputs[0]), per_tensor_quant(node, graph, node.outputs[0])
    assert source.quant is not None and result.quant is not None
    alike = source.quant == result.quant and source.dtype == result.dtype
    if alike and node.op in ("relu", "clip"):
        return _emit_integer_clip(node, graph, result.quant)
    if dtypes.nbytes(source.dtype) == 1 and dtypes.nbytes(result.dtype) <= 2:
        rewrite = Rewrite(node, graph)
        emit_table_lookup(rewrite, node.op, node.attrs, node.inputs[0], node.outputs[0], str(node.attr("rounding")))
        return rewrite.legalized()
    if node.attr("rounding") == Rounding.EVEN:
        return legalize_in_float(node, graph)
    if node.op in ("relu", "clip", "leaky_relu", "abs"):
        return (legalize_int16_abs if node.op == "abs" else legalize_int16_function)(node, graph)
    if node.op in ("sigmoid", "tanh", "rsqrt") and source.dtype == result.dtype == "int16":
        special = legalize_rsqrt16 if node.op == "rsqrt" else legalize_sigmoid16
        return special(node, graph) or legalize_in_float(node, graph)
    return legalize_in_float(node, graph)


def _emit_integer_clip(node: Node, graph: Graph, quant: Quant) -> Legalized:
    """Rewrite a relu or clip with the same scale and zero point on both sides to a clamp of the stored integers.

    If ``rounding`` is empty, the attributes are already bounds of the stored integers."""
    dtype = graph.types[node.outputs[0]].dtype
    low, high = quantised_clip_bounds(node.op, node.attrs, quant, dtype, str(node.attr("rounding")))
    rewrite = Rewrite(node, graph)
    rewrite.emit("clip", node.inputs, node.outputs, {"minimum": low, "maximum": high, "rounding": Rounding.NONE})
    return rewrite.legalized()


# ---------------------------------------------------------------- two operands


def broadcast_shape(op_name: str, types: Sequence[TensorType]) -> tuple[int, ...]:
    """Return the shape to which numpy broadcasts the operands; raise ModelError if they do not broadcast."""
    try:
        return broadcast_shapes(*(tensor_type.shape for tensor_type in types))
    except ValueError:
        shapes = " and ".join(str(tensor_type.shape) for tensor_type in types)
        raise ModelError(f"{op_name}: shapes do not broadcast; got {shapes}") from None


def _define_binary(function: BinaryFunction) -> OpDef:
    def infer_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
        a, b = types
        if a.dtype != b.dtype or (a.dtype not in function.dtypes and a.quant is None):
            raise ModelError(
                f"{function.name}: operands need the same dtype; got {a.dtype} and {b.dtype}, expected one of "
                f"{', '.join(function.dtypes)}"
            )
        return (TensorType(broadcast_shape(function.name, types), a.dtype),)

    def build_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
        dtype = args[0].dtype
        a, b = (ir.cast(computation_dtype(dtype), x) for x in args)
        return ir.cast(dtype, function.build_scalar(a, b))

    def evaluate_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
        dtype = arrays[0].dtype
        wide = np.float64 if dtype.kind == "f" else dtype if dtype == np.uint64 else np.int64
        a, b = (np.asarray(x).astype(wide) for x in arrays)
        with np.errstate(all="ignore"):
            return (np.asarray(function.evaluate_array(a, b)).astype(dtype),)

    return OpDef(
        function.name,
        infer=infer_types,
        reference=evaluate_reference,
        scalar=build_scalar_expr,
        cases=lambda: _make_binary_test_cases(function),
        attrs={"activation": ACTIVATION, "rounding": ROUNDING_LITERT if function.name == "div" else ROUNDING},
        legalize=_legalize_binary,
        operand_names=("a", "b"),
        edges=function.edges,
        gradient=_define_binary_gradient(function),
    )


def _define_binary_gradient(function: BinaryFunction) -> GradientRule | None:
    """Return the gradient rule of a function: the gradient of each wanted operand, summed over the axes along which the
    operand was broadcast."""
    rules = function.gradients
    if rules is None:
        return None

    def build_gradients(call: GradientCall) -> Gradients:
        operands = call.operand(0), call.operand(1)
        gradients: list[Value | None] = [None, None]
        for position in call.wanted:
            gradient = rules[position](call.gradient, *operands, call.result)
            gradients[position] = None if gradient is None else gradient.sum_to(operands[position].shape)
        return gradients

    return build_gradients


_SHAPES = (
    ((1,), (1,)),
    ((3, 5), (3, 5)),
    ((2, 3, 5), (5,)),
    ((2, 3, 1), (1, 1, 4)),
    ((), (2, 3)),
    ((1, 4, 4, 3), (1, 1, 1, 3)),
)


def _make_binary_test_cases(function: BinaryFunction) -> Iterable[Case]:
    attrs = {"activation": ""}
    for shapes in _SHAPES if "float32" in function.dtypes else ():
        a, b = (np.linspace(0.5, 3.0, int(np.prod(s))).reshape(s).astype(np.float32) for s in shapes)
        types = tuple(TensorType(s, "float32") for s in shapes)
        yield Case(attrs, types, arrays=(a, b[..., ::-1] if b.ndim else b), tolerance=function.tolerance)
    a = np.array([np.nan, 1.0, np.nan, -np.inf, np.inf, -0.0, 2.0], np.float32)
    b = np.array([1.0, np.nan, np.nan, 2.0, 1.0, 5.0, -2.0], np.float32)
    types = (TensorType(a.shape, "float32"), TensorType(b.shape, "float32"))
    if "float32" in function.dtypes:
        yield Case(attrs, types, arrays=(a, b), tolerance=function.tolerance, name="special")
    for exponent in (2.0, 0.5) if function.name == "pow" else ():
        types = (TensorType((3, 3), "float32"), TensorType((1,), "float32"))
        bases = np.linspace(0.0, 9.0, 9, dtype=np.float32).reshape(3, 3)
        yield Case(
            attrs, types, (1,), (bases, np.array([exponent], np.float32)), function.tolerance, f"to the {exponent}"
        )
    for shapes in _SHAPES[2:5] if "int32" in function.dtypes else ():
        types = tuple(TensorType(s, "int32") for s in shapes)
        x, y = (np.arange(np.prod(s, dtype=int)).reshape(s).astype(np.int32) % 7 for s in shapes)
        yield Case(attrs, types, arrays=(x - 3, y + 1), name=f"int32 {shapes}")
    for dtype in function.dtypes:
        if dtypes.is_float(dtype):
            continue
        least, most = dtypes.int_range(dtype)
        signed = least < 0
        a = np.array([-7 if signed else 7, 7, 100, 0, 3, least, least, most, most], dtypes.to_numpy(dtype))
        b = np.array([2, -2 if signed else 5, 3, 9, 1, -signed, most, most, 0], dtypes.to_numpy(dtype))
        yield Case(attrs, (TensorType(a.shape, dtype), TensorType(b.shape, dtype)), arrays=(a, b), name=dtype)


_EXACT: Mapping[str, Callable[[Node, Graph], Legalized | None]] = {
    "add": legalize_add,
    "sub": legalize_sub,
    "mul": legalize_mul,
    "div": legalize_div,
    "squared_difference": legalize_squared_difference,
}
"""Legalisations to integer operators, by name of the operator."""
_EVEN = frozenset(("add", "sub", "mul"))
"""Operators with an integer form that rounds half to even."""


def _legalize_binary(node: Node, graph: Graph) -> Legalized | None:
    if not is_quantised(node, graph):
        return split_activation(node, graph)
    operand_types = [graph.types[name] for name in (*node.inputs, *node.outputs)]
    if (
        node.op in ("maximum", "minimum")
        and len({(tensor_type.quant, tensor_type.dtype) for tensor_type in operand_types}) == 1
    ):
        return None
    if node.attr("rounding") == Rounding.EVEN and node.op not in _EVEN:
        return legalize_in_float(node, graph)
    if node.op in _EXACT:
        return _EXACT[node.op](node, graph)
    if node.op in ("maximum", "minimum"):
        raise UnsupportedError(
            "the operands and the result are quantised differently; got "
            f"{', '.join(map(repr, (*node.inputs, *node.outputs)))}, expected one scale and zero point",
            where=str(node.loc),
            hint="quantise both operands and the result alike",
        )
    return legalize_in_float(node, graph)


# ---------------------------------------------------------------- conversions


def _infer_cast_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if not dtypes.is_valid(attrs["dtype"]):
        raise ModelError(
            f"cast: unknown dtype; got {attrs['dtype']!r}", hint="name a dtype as in int8, uint16 or float32"
        )
    return (TensorType(types[0].shape, attrs["dtype"]),)


def _build_cast_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    """Convert one element as C does. The conversion to bool is a comparison with zero."""
    x, dtype = args[0], attrs["dtype"]
    if x.dtype == dtype:
        return x
    if x.dtype in dtypes.HALF:
        x = ir.cast("float32", x)
    if dtype == "bool" and x.dtype != "bool":
        return ir.cast(computation_dtype(x.dtype), x).ne(0)
    if dtypes.is_float(x.dtype) and dtypes.is_integer(dtype):
        return _truncate_to_integer(dtype, x)
    return ir.cast(dtype, x if dtype not in dtypes.HALF else ir.cast("float32", x))


def _truncate_to_integer(dtype: str, x: Expr) -> Expr:
    """Truncate a float to an integer.

    The result saturates to 32 bits (or 64), and NaN becomes zero. Narrower dtypes receive the lowest bits of the 32-bit
    result, as in numpy and TFLite on common machines."""
    if dtypes.dtype_parts(dtype).bits < 32:
        return ir.cast(dtype, _truncate_to_integer("int32", x))
    low, high = dtypes.int_range(dtype)
    beyond = ir.select(x <= float(low), ir.const(low, dtype), ir.const(0, dtype))
    return ir.select(x >= float(high + 1), ir.const(high, dtype), ir.select(x > float(low), ir.cast(dtype, x), beyond))


def _evaluate_cast_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, dtype = arrays[0], attrs["dtype"]
    with np.errstate(all="ignore"):
        if not (dtypes.is_float(x.dtype.name) and dtypes.is_integer(dtype)):
            return (x.astype(dtypes.to_numpy(dtype)),)
        first = dtype if dtypes.dtype_parts(dtype).bits >= 32 else "int32"
        (low, high), wide = dtypes.int_range(first), x.astype(np.float64)
        inside = np.where((wide > low) & (wide < high + 1), wide, 0).astype(dtypes.to_numpy(first))
        kept = np.where(wide >= high + 1, high, np.where(wide <= low, low, inside)).astype(first)
        return (kept.astype(dtypes.to_numpy(dtype)),)


def _make_cast_test_cases() -> Iterable[Case]:
    floats = np.array([0.0, 1.9, -1.9, 100.5, -100.5, -128.5, 3e9, -3e9, 1e30, np.nan, np.inf, -np.inf], np.float32)
    for dtype in ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "bool", "float32"):
        yield Case({"dtype": dtype}, (TensorType((12,), "float32"),), arrays=(floats,), name=f"float32_to_{dtype}")
    integers = np.array([-(1 << 31), -129, -1, 0, 1, 255, (1 << 31) - 1], np.int32)
    for dtype in ("int8", "uint8", "int16", "uint32", "int64", "bool", "float32"):
        yield Case({"dtype": dtype}, (TensorType((7,), "int32"),), arrays=(integers,), name=f"int32_to_{dtype}")
    yield Case({"dtype": "float32"}, (TensorType((2, 2), "bool"),), name="bool_to_float32")
    yield Case({"dtype": "int8"}, (TensorType((2, 2), "uint8"),), name="uint8_to_int8")


def _build_cast_gradient(call: GradientCall) -> Gradients:
    return (call.gradient.apply("cast", dtype=call.data.dtype),)


ELEMENTWISE_OPERATORS: tuple[OpDef, ...] = (
    *(_define_unary(function) for function in UNARY),
    *(_define_binary(function) for function in BINARY),
    OpDef(
        "cast",
        attrs={"dtype": element_type()},
        infer=_infer_cast_types,
        reference=_evaluate_cast_reference,
        scalar=_build_cast_scalar_expr,
        cases=_make_cast_test_cases,
        gradient=_build_cast_gradient,
        edges="Floats saturate to integers of 32 bits or more, NaN becomes 0; narrower integers keep the lowest bits",
    ),
    QSIGMOID16,
)


# ---- Operators ``lookup``, a function of 8-bit numbers as a table of 256 results, and ``lookup16``, a function of
# int16 interpolated in a table.
#
# The table of ``lookup`` may contain several functions one after the other. A third operand then has, for each
# element, the index at which the table of its function begins.


def _infer_lookup_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, table, *first = types
    if x.dtype not in ("int8", "uint8"):
        raise ModelError(f"lookup: the data have an unsupported dtype; got {x.dtype}, expected int8 or uint8")
    if len(table.shape) != 1 or table.size % 256 or not table.size or (table.size > 256 and not first):
        raise ModelError(f"lookup: the table needs 256 entries for each function; got shape {table.shape}")
    if any(tensor_type.dtype not in ("int16", "int32") for tensor_type in first):
        raise ModelError(
            f"lookup: functions' first indices have a bad dtype; got {first[0].dtype}, expected int16 or int32"
        )
    return (TensorType(broadcast_shape("lookup", (x, *first)), table.dtype),)


def _evaluate_lookup_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, table, *first = arrays
    return (table[sum(first, x.astype(np.int32) - np.iinfo(x.dtype).min)],)


def _build_lookup_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Any]) -> Expr:
    x: Expr = args[0]
    table: te.Tensor = args[1]
    low, _ = dtypes.int_range(x.dtype)
    place = ir.cast("int32", x) - low
    return table[place + ir.cast("int32", args[2]) if len(args) > 2 else place]


def _lookup_operand_bounds(checked_node: CheckedNode) -> Constants:
    """Return bounds of the operand that contains the first table index of each function.

    All 256 entries of each function must be in the table."""
    return {2: OperandBounds(NumberUse.OFFSET, 0, checked_node.types[1].size - 256)}


def _make_lookup_test_cases() -> Iterable[Case]:
    every = np.arange(-128, 128)
    for dtype, result in (("int8", "int8"), ("uint8", "uint8"), ("int8", "int16"), ("uint8", "int8")):
        low, high = dtypes.int_range(result)
        table = np.linspace(high, low, 256).astype(dtypes.to_numpy(result))
        x = every.reshape(4, 64).astype(dtypes.to_numpy(dtype))
        types = (TensorType(x.shape, dtype), TensorType((256,), result))
        yield Case({}, types, consts=(1,), arrays=(x, table), name=f"{dtype}_to_{result}")
    first, channels = TensorType((3,), "int16"), np.arange(768).astype(np.int8)
    x = np.arange(96, dtype=np.uint8).reshape(32, 3)
    operand_types = (TensorType(x.shape, "uint8"), TensorType((768,), "int8"), first)
    yield Case(
        {}, operand_types, consts=(1, 2), arrays=(x, channels, np.array([0, 256, 512], np.int16)), name="by channel"
    )
    yield Case(
        {},
        (TensorType((1,), "int8"), TensorType((256,), "int8")),
        consts=(1,),
        arrays=(np.array([-128], np.int8), np.arange(256).astype(np.int8)),
        name="one element, lowest",
    )


# ---- ``lookup16``: a function of one int16 number, interpolated in a table of 513 points.
#
# The points are 128 numbers apart. Each is corrected by half of the interpolation error in the middle of the segment behind it.
# Source: TFLite ``common.h`` (LUTPopulateInt16, LUTLookup).

POINTS = 513
"""Number of points of a table: the starts of 512 segments of 128 inputs each, and the end of the last segment."""


def compute_interpolation_table(
    function: Callable[[Any], Any], in_scale: Any, in_zero_point: int, out_scale: Any
) -> Array:
    """Return int16 values of ``function`` at POINTS points spaced evenly over all int16 inputs.

    Inputs have scale ``in_scale`` and zero point ``in_zero_point``; results have scale ``out_scale``. All arithmetic
    has the dtype of ``in_scale``: float32 or float64, as in the two runtimes of TFLite. Where the function is infinite,
    TFLite's correction is NaN, and C does not define the conversion of NaN to int16; the point is then the limit of
    int16 that the function exceeds."""
    one = type(in_scale)
    low, high = (in_scale * one(limit - in_zero_point) for limit in (-32768, 32767))
    inverse = one(65536) / (out_scale * one(32767) - out_scale * one(-32768))
    step = (high - low) / one(512)
    index = np.arange(512).astype(one)
    with np.errstate(over="ignore", invalid="ignore"):
        value = numerics.round_half_away(function(low + index * step) * inverse)
        following = function(low + (index + one(1)) * step) * inverse
        middle = numerics.round_half_away(function(low + index * step + step / one(2)) * inverse)
        error = numerics.round_half_away((following + value) / one(2)) - middle
        points = value - numerics.round_half_away(error / one(2))
        last = numerics.round_half_away(function(np.asarray(high)) * inverse)
    points = np.append(np.where(np.isnan(points), value, points), last)
    clipped: Array = np.clip(points, -32768, 32767)
    return clipped.astype(np.int16)


def interpolate_table(read_table: Callable[[Any], Any], x: Any) -> Any:
    """Interpolate a table of POINTS points linearly at an int16 ``x``. ``read_table`` returns the point at an index.

    The upper nine bits of ``x`` select the segment, the lower seven bits the position within the segment."""
    index = (x + 32768) >> 7
    base = read_table(index)
    return base + (((read_table(index + 1) - base) * (x & 0x7F) + 64) >> 7)


def fit_interpolation_table(results: Array) -> Array | None:
    """Return a table of POINTS int16 points whose interpolation is within one of ``results``, the int16 results of a
    function for all 65536 inputs in ascending order; None if a result differs by more.

    As in TFLite, a point is corrected by half of the interpolation error in the middle of the segment behind it."""
    exact = results.astype(np.int64)
    starts, middles, ends = exact[::128], exact[64::128], np.append(exact[128::128], exact[-1])
    points = np.append(np.rint(starts - (starts + ends - 2 * middles) / 4), exact[-1]).clip(-32768, 32767)
    table = points.astype(np.int64)
    interpolated = interpolate_table(lambda index: table[index], np.arange(-32768, 32768))
    return table.astype(np.int16) if abs(interpolated - exact).max() <= 1 else None


# ---- Functions whose int16 form TFLite's kernels interpolate. Arguments and results are float32; ``lowest_value`` is the least
# real number of the output. Functions of the C library are rounded from float64; the rounding to int16 hides the difference.
#
# Sources: TFLite ``exp.cc``, ``elementwise.cc`` (LOG), ``reference/gelu.h``.

_ERFC = np.vectorize(math.erfc, otypes=[np.float64])
_ROOT_OF_TWO_BY_PI = np.float32(math.sqrt(2 / math.pi))


def wrap_float64_function(float64_function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return a function of float32 arrays that computes ``float64_function`` in float64 and rounds the result once."""
    return lambda x: np.asarray(float64_function(x.astype(np.float64)).astype(np.float32))


def _exp_in_float32(x: Array, lowest_value: Any) -> Array:
    return wrap_float64_function(np.exp)(x)


def _gelu_in_float32(x: Array, lowest_value: Any) -> Array:
    """Return x / 2 erfc(-x / sqrt 2) in float32. For large negative x, 1 + erf(...) would lose all digits by
    cancellation."""
    scaled = x * np.float32(-math.sqrt(0.5))
    return np.asarray(np.float32(0.5) * x * wrap_float64_function(_ERFC)(scaled))


def _gelu_by_tanh_in_float32(x: Array, lowest_value: Any) -> Array:
    """Return the approximation x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))), in float32."""
    inner = _ROOT_OF_TWO_BY_PI * (x + np.float32(0.044715) * x * x * x)
    return np.asarray(np.float32(0.5) * x * (np.float32(1) + wrap_float64_function(np.tanh)(inner)))


def _log_or_lowest_value(x: Array, lowest_value: Any) -> Array:
    """Return the logarithm of ``x``, or ``lowest_value`` where ``x`` is zero or negative."""
    return np.where(x > 0, wrap_float64_function(np.log)(np.where(x > 0, x, np.float32(1))), lowest_value)


FUNCTIONS: Mapping[str, Callable[[Array, Any], Array]] = MappingProxyType(
    {
        "exp": _exp_in_float32,
        "log": _log_or_lowest_value,
        "gelu": _gelu_in_float32,
        "gelu_by_tanh": _gelu_by_tanh_in_float32,
    }
)
"""Functions of float32 arrays that TFLite interpolates, by name. Their second argument is the least real number of the
output."""


def int16_function_table(function_name: str, in_scale: float, out_scale: float) -> Array:
    """Return TFLite's int16 interpolation table of the function ``function_name``, a key of FUNCTIONS.

    ``in_scale`` and ``out_scale``: scales of input and output, whose zero points are 0."""
    least = np.float32(-32768) * np.float32(out_scale)
    return compute_interpolation_table(
        lambda x: FUNCTIONS[function_name](x, least), np.float32(in_scale), 0, np.float32(out_scale)
    )


# ---- The operator.


def _infer_lookup16_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, table = types
    if x.dtype != "int16" or table.shape != (POINTS,) or table.dtype != "int16":
        raise ModelError(
            f"lookup16: data or table have a wrong type; got {x.dtype} and {table.dtype} {table.shape}, expected int16 "
            f"and int16 ({POINTS},)"
        )
    return (TensorType(x.shape, "int16"),)


def _evaluate_lookup16_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, table = (array.astype(np.int64) for array in arrays)
    return (interpolate_table(lambda index: table[index], x).astype(np.int16),)


def _build_lookup16_scalar_expr(attrs: Mapping[str, Any], args: Sequence[Any]) -> Expr:
    """Build the interpolation. Its result is between two points of the table, so it fits int16."""
    table = args[1]
    return ir.cast("int16", interpolate_table(lambda index: ir.cast("int32", table[index]), ir.cast("int32", args[0])))


def _make_lookup16_test_cases() -> Iterable[Case]:
    x = np.append(np.linspace(-32768, 32767, 98), [0, 1, -1]).round().astype(np.int16)
    for name, scale, out_scale in (
        ("exp", 1 / 4096, 1 / 8),
        ("log", 1e-3, 3e-4),
        ("gelu", 1 / 4096, 1 / 4096),
        ("gelu_by_tanh", 1e-4, 1e-4),
    ):
        types = (TensorType(x.shape, "int16"), TensorType((POINTS,), "int16"))
        yield Case({}, types, consts=(1,), arrays=(x, int16_function_table(name, scale, out_scale)), name=name)


LOOKUP_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "lookup",
        infer=_infer_lookup_types,
        reference=_evaluate_lookup_reference,
        scalar=_build_lookup_scalar_expr,
        cases=_make_lookup_test_cases,
        constants=_lookup_operand_bounds,
        operand_names=("x", "table"),
        whole=(1,),
    ),
    OpDef(
        "lookup16",
        infer=_infer_lookup16_types,
        reference=_evaluate_lookup16_reference,
        scalar=_build_lookup16_scalar_expr,
        cases=_make_lookup16_test_cases,
        constants={1: OperandBounds(NumberUse.POINT, -32768, 32767)},
        operand_names=("x", "table"),
        whole=(1,),
        repeats=True,
    ),
)


OPERATORS = (*ELEMENTWISE_OPERATORS, *LOOKUP_OPERATORS)
