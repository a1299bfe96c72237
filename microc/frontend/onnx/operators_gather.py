"""Conversion of ONNX operators that search for elements, and that gather or scatter elements at indices."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from microc.frontend.formulas import make_operator_emitter
from microc.frontend.onnx.context import MOVABLE, NUMBERS, Converter, OpContext
from microc.frontend.onnx.file import dtype_from_code
from microc.graph.ir import Attr


def emit_integer_indices(context: OpContext, input_index: int) -> str:
    """Return the name of input ``input_index`` as int32 or int64; other dtypes are cast to int64."""
    value = context.value(input_index)
    kind = context.type(value).dtype
    return value if kind in ("int32", "int64") else context.emit("cast", (value,), {"dtype": "int64"})


def _read_axis_attribute(context: OpContext, default_axis: int) -> int:
    """Return the attribute ``axis`` as a number of 0 to rank - 1 of input 0."""
    rank = len(context.shape(0))
    return context.axis(context.operator.attributes.integer("axis", default_axis), rank)


def convert_gather_elements(context: OpContext) -> None:
    """Convert GatherElements, which gathers single elements at indices along one axis."""
    operands = (context.value(0), emit_integer_indices(context, 1))
    context.result("gather_elements", operands, {"axis": _read_axis_attribute(context, 0)})


def _read_scatter_reduction(context: OpContext) -> str:
    """Return the attribute ``reduction`` of a scatter operator; an empty string for ``none``."""
    reduction = context.operator.attributes.text("reduction", "none")
    if reduction not in ("none", "add", "mul", "max", "min"):
        context.broken(f"reduction is {reduction!r}, expected none, add, mul, max or min")
    return "" if reduction == "none" else reduction


def convert_scatter_elements(context: OpContext) -> None:
    """Convert ScatterElements, which writes elements at indices along one axis. Before opset 11 its name is Scatter."""
    operands = (context.value(0), emit_integer_indices(context, 1), context.operand(2))
    attrs: Mapping[str, Attr] = {
        "axis": _read_axis_attribute(context, 0),
        "reduction": _read_scatter_reduction(context),
    }
    context.result("scatter_elements", operands, attrs)


def convert_scatter_nd(context: OpContext) -> None:
    """Convert ScatterND, which writes slices at indices of several axes, or combines them with the data."""
    operands = (context.value(0), emit_integer_indices(context, 1), context.operand(2))
    context.result("scatter_nd", operands, {"reduction": _read_scatter_reduction(context)})


def convert_gather_nd(context: OpContext) -> None:
    """Convert GatherND, which gathers slices at indices of several axes."""
    batch = context.operator.attributes.integer("batch_dims", 0)
    context.result("gather_nd", (context.value(0), emit_integer_indices(context, 1)), {"batch_dims": batch})


def make_arg_extremum_converter(op: str) -> Converter:
    """Make a converter of ArgMax or ArgMin to the graph operator ``op``."""

    def convert_arg_extremum(context: OpContext) -> None:
        attributes = context.operator.attributes
        attrs: Mapping[str, Attr] = {
            "axis": _read_axis_attribute(context, 0),
            "keepdims": attributes.flag("keepdims", True),
            "last": attributes.flag("select_last_index"),
            "out_dtype": "int64",
        }
        context.result(op, (context.value(0),), attrs)

    return Converter(convert_arg_extremum, NUMBERS)


def convert_top_k(context: OpContext) -> None:
    """Convert TopK, the k largest or smallest elements along an axis and their indices."""
    attributes = context.operator.attributes
    k_values = context.integers(1) if context.opset >= 10 else (attributes.integer("k"),)
    if len(k_values) != 1:
        context.broken(f"k is {k_values}, expected one number")
    attrs: Mapping[str, Attr] = {
        "axis": _read_axis_attribute(context, -1),
        "k": k_values[0],
        "largest": attributes.flag("largest", True),
        "out_dtype": "int64",
    }
    context.write_node_with_outputs("topk", (context.value(0),), attrs, context.operator.outputs)


def make_cumulative_converter(op: str) -> Converter:
    """Make a converter of CumSum or CumProd, along a constant axis, to the graph operator ``op``."""

    def convert_cumulative(context: OpContext) -> None:
        attributes, rank = context.operator.attributes, len(context.shape(0))
        axes = context.integers(1)
        if len(axes) != 1:
            context.broken(f"axes: got {axes}, expected one axis")
        attrs: Mapping[str, Attr] = {
            "axis": context.axis(axes[0], rank),
            "exclusive": attributes.flag("exclusive"),
            "reverse": attributes.flag("reverse"),
        }
        context.result(op, (context.value(0),), attrs)

    return Converter(convert_cumulative, NUMBERS)


def convert_one_hot(context: OpContext) -> None:
    """Convert OneHot. Input 2 (``values``) has two elements, the value of all other elements and the value at the
    index."""
    indices = emit_integer_indices(context, 0)
    depth = int(context.constant(1).reshape(-1)[0])
    values = context.value(2)
    off, on = (context.emit("slice", (values,), {"begin": (k,), "end": (k + 1,), "strides": (1,)}) for k in (0, 1))
    axis = context.axis(context.operator.attributes.integer("axis", -1), len(context.shape(0)) + 1)
    context.result("one_hot", (indices, on, off), {"depth": depth, "axis": axis, "wrap": True})


def convert_hardmax(context: OpContext) -> None:
    """Convert Hardmax, which is 1 at the first maximum along an axis and 0 elsewhere.

    Before opset 13 the maximum is over ``axis`` and all axes after it together."""
    old, data = context.opset < 13, context.value(0)
    shape, axis = context.shape(0), _read_axis_attribute(context, 1 if context.opset < 13 else -1)
    if old:
        data = context.reshape(data, (prod(shape[:axis]), prod(shape[axis:])))
    axis = 1 if old else axis
    index = context.emit("argmax", (data,), {"axis": axis, "keepdims": False, "out_dtype": "int64"})
    kind = context.type(data).dtype
    on, off = (context.scalar(number, kind) for number in (1, 0))
    attrs: Mapping[str, Attr] = {"depth": context.type(data).shape[axis], "axis": axis, "wrap": False}
    context.result_reshape(context.emit("one_hot", (index, on, off), attrs), shape)


def convert_trilu(context: OpContext) -> None:
    """Convert Trilu, which keeps the upper or lower triangle of matrices and sets other elements to 0."""
    diagonal = context.integers(1)[0] if context.has_input(1) else 0
    upper = context.operator.attributes.flag("upper", True)
    context.result("triangle", (context.value(0),), {"diagonal": diagonal, "upper": upper})


def convert_reverse_sequence(context: OpContext) -> None:
    """Convert ReverseSequence, which reverses the first ``sequence_lens[i]`` elements of sequence i."""
    attributes = context.operator.attributes
    attrs: Mapping[str, Attr] = {
        "batch_axis": attributes.integer("batch_axis", 1),
        "time_axis": attributes.integer("time_axis", 0),
    }
    context.result("reverse_sequence", (context.value(0), emit_integer_indices(context, 1)), attrs)


def convert_tensor_scatter(context: OpContext) -> None:
    """Convert TensorScatter, which overwrites rows of a cache from a start index for each element of the batch."""
    attributes, shape = context.operator.attributes, context.shape(0)
    starts = emit_integer_indices(context, 2) if context.has_input(2) else ""
    if not starts:
        starts = context.new_constant(f"{context.output()}_starts", np.zeros(shape[:1], np.int64))
    mode = attributes.text("mode", "linear")
    attrs: Mapping[str, Attr] = {"axis": _read_axis_attribute(context, -2), "circular": mode == "circular"}
    context.result("cache_update", (context.value(0), context.operand(1), starts), attrs)


def convert_lp_normalization(context: OpContext) -> None:
    """Convert LpNormalization, x divided by its L1 or L2 norm along an axis; the result is 0 if the norm is 0."""
    data, p = context.value(0), context.operator.attributes.integer("p", 2)
    if p not in (1, 2):
        context.broken(f"p is {p}, expected 1 or 2")
    make, axis = make_operator_emitter(context), _read_axis_attribute(context, -1)
    powers = make("abs", data) if p == 1 else make("mul", data, data)
    total = context.emit("sum", (powers,), {"axes": (axis,), "keepdims": True})
    length = total if p == 1 else make("sqrt", total)
    safe = make("where", make("equal", length, 0.0), 1.0, length)
    context.result("div", (data, safe))


def convert_bit_cast(context: OpContext) -> None:
    """Convert BitCast, which reads the bits of each element as another dtype."""
    to = dtype_from_code(context.operator.attributes.integer("to"), context.where)
    context.result("bit_cast", (context.value(0),), {"dtype": to})


GATHER_CONVERTERS: Mapping[str, Converter] = {
    "ArgMax": make_arg_extremum_converter("argmax"),
    "ArgMin": make_arg_extremum_converter("argmin"),
    "BitCast": Converter(convert_bit_cast, MOVABLE),
    "CumProd": make_cumulative_converter("cumprod"),
    "CumSum": make_cumulative_converter("cumsum"),
    "GatherElements": Converter(convert_gather_elements, MOVABLE),
    "GatherND": Converter(convert_gather_nd, MOVABLE),
    "Hardmax": Converter(convert_hardmax),
    "LpNormalization": Converter(convert_lp_normalization),
    "OneHot": Converter(convert_one_hot, NUMBERS),
    "ReverseSequence": Converter(convert_reverse_sequence, MOVABLE),
    "Scatter": Converter(convert_scatter_elements, MOVABLE),
    "ScatterElements": Converter(convert_scatter_elements, MOVABLE),
    "ScatterND": Converter(convert_scatter_nd, MOVABLE),
    "TensorScatter": Converter(convert_tensor_scatter, MOVABLE),
    "TopK": Converter(convert_top_k, NUMBERS),
    "Trilu": Converter(convert_trilu, MOVABLE),
}
