"""ONNX operators that search for elements, or gather and scatter them at runtime indices."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from microc.frontend.formulas import composer
from microc.frontend.onnx.context import MOVABLE, NUMBERS, Converter, OpContext
from microc.frontend.onnx.file import dtype_from_code
from microc.graph.ir import Attr


def integer_indices(application: OpContext, position: int) -> str:
    """Return input ``position`` as int32 or int64, with a cast if necessary."""
    value = application.value(position)
    kind = application.type(value).dtype
    return value if kind in ("int32", "int64") else application.emit("cast", (value,), {"dtype": "int64"})


def _axis_attribute(application: OpContext, default: int) -> int:
    """Return the attribute ``axis`` as 0..rank-1 of the first input."""
    rank = len(application.shape(0))
    return application.axis(application.operator.attributes.integer("axis", default), rank)


def gather_elements(application: OpContext) -> None:
    """GatherElements: gathers elements at indices along one axis."""
    operands = (application.value(0), integer_indices(application, 1))
    application.result("gather_elements", operands, {"axis": _axis_attribute(application, 0)})


def _reduction_attribute(application: OpContext) -> str:
    """Return the attribute ``reduction`` of a scatter; empty for none."""
    reduction = application.operator.attributes.text("reduction", "none")
    if reduction not in ("none", "add", "mul", "max", "min"):
        application.broken(f"reduction is {reduction!r}, expected none, add, mul, max or min")
    return "" if reduction == "none" else reduction


def scatter_elements(application: OpContext) -> None:
    """ScatterElements, and its older name Scatter."""
    operands = (application.value(0), integer_indices(application, 1), application.operand(2))
    attrs: Mapping[str, Attr] = {
        "axis": _axis_attribute(application, 0),
        "reduction": _reduction_attribute(application),
    }
    application.result("scatter_elements", operands, attrs)


def scatter_nd(application: OpContext) -> None:
    """ScatterND: writes or combines slices at indices of several axes."""
    operands = (application.value(0), integer_indices(application, 1), application.operand(2))
    application.result("scatter_nd", operands, {"reduction": _reduction_attribute(application)})


def gather_nd(application: OpContext) -> None:
    """GatherND: gathers slices at indices of several axes."""
    batch = application.operator.attributes.integer("batch_dims", 0)
    application.result("gather_nd", (application.value(0), integer_indices(application, 1)), {"batch_dims": batch})


def arg_extremum(op: str) -> Converter:
    """Make a converter of ArgMax or ArgMin."""

    def convert(application: OpContext) -> None:
        attributes = application.operator.attributes
        attrs: Mapping[str, Attr] = {
            "axis": _axis_attribute(application, 0),
            "keepdims": attributes.flag("keepdims", True),
            "last": attributes.flag("select_last_index"),
            "out_dtype": "int64",
        }
        application.result(op, (application.value(0),), attrs)

    return Converter(convert, NUMBERS)


def top_k(application: OpContext) -> None:
    """TopK: values and their indices."""
    attributes = application.operator.attributes
    k_values = application.integers(1) if application.opset >= 10 else (attributes.integer("k"),)
    if len(k_values) != 1:
        application.broken(f"k is {k_values}, expected one number")
    attrs: Mapping[str, Attr] = {
        "axis": _axis_attribute(application, -1),
        "k": k_values[0],
        "largest": attributes.flag("largest", True),
        "out_dtype": "int64",
    }
    application.write_all("topk", (application.value(0),), attrs, application.operator.outputs)


def cumulative(op: str) -> Converter:
    """Make a converter of CumSum or CumProd, along a constant axis."""

    def convert(application: OpContext) -> None:
        attributes, rank = application.operator.attributes, len(application.shape(0))
        axes = application.integers(1)
        if len(axes) != 1:
            application.broken(f"axes: got {axes}, expected one axis")
        attrs: Mapping[str, Attr] = {
            "axis": application.axis(axes[0], rank),
            "exclusive": attributes.flag("exclusive"),
            "reverse": attributes.flag("reverse"),
        }
        application.result(op, (application.value(0),), attrs)

    return Converter(convert, NUMBERS)


def one_hot(application: OpContext) -> None:
    """OneHot: off and on value come in one operand of two elements."""
    indices = integer_indices(application, 0)
    depth = int(application.constant(1).reshape(-1)[0])
    values = application.value(2)
    off, on = (application.emit("slice", (values,), {"begin": (k,), "end": (k + 1,), "strides": (1,)}) for k in (0, 1))
    axis = application.axis(application.operator.attributes.integer("axis", -1), len(application.shape(0)) + 1)
    application.result("one_hot", (indices, on, off), {"depth": depth, "axis": axis, "wrap": True})


def hardmax(application: OpContext) -> None:
    """Hardmax: 1 at the first largest element along an axis; before opset 13, along that axis and all behind it together."""
    old, data = application.opset < 13, application.value(0)
    shape, axis = application.shape(0), _axis_attribute(application, 1 if application.opset < 13 else -1)
    if old:
        data = application.reshape(data, (prod(shape[:axis]), prod(shape[axis:])))
    axis = 1 if old else axis
    index = application.emit("argmax", (data,), {"axis": axis, "keepdims": False, "out_dtype": "int64"})
    kind = application.type(data).dtype
    on, off = (application.scalar(number, kind) for number in (1, 0))
    attrs: Mapping[str, Attr] = {"depth": application.type(data).shape[axis], "axis": axis, "wrap": False}
    application.result_reshape(application.emit("one_hot", (index, on, off), attrs), shape)


def triangle(application: OpContext) -> None:
    """Trilu: keeps the upper or lower triangle of matrices; other elements become 0."""
    diagonal = application.integers(1)[0] if application.has(1) else 0
    upper = application.operator.attributes.flag("upper", True)
    application.result("triangle", (application.value(0),), {"diagonal": diagonal, "upper": upper})


def reverse_sequence(application: OpContext) -> None:
    """ReverseSequence: reverses the first elements of each sequence of the batch, as many as its length."""
    attributes = application.operator.attributes
    attrs: Mapping[str, Attr] = {
        "batch_axis": attributes.integer("batch_axis", 1),
        "time_axis": attributes.integer("time_axis", 0),
    }
    application.result("reverse_sequence", (application.value(0), integer_indices(application, 1)), attrs)


def tensor_scatter(application: OpContext) -> None:
    """TensorScatter: overwrites rows of a cache, from a start index of its own for every element of the batch."""
    attributes, shape = application.operator.attributes, application.shape(0)
    starts = integer_indices(application, 2) if application.has(2) else ""
    if not starts:
        starts = application.new_constant(f"{application.output()}_starts", np.zeros(shape[:1], np.int64))
    mode = attributes.text("mode", "linear")
    attrs: Mapping[str, Attr] = {"axis": _axis_attribute(application, -2), "circular": mode == "circular"}
    application.result("cache_update", (application.value(0), application.operand(1), starts), attrs)


def lp_norm(application: OpContext) -> None:
    """LpNormalization: x divided by its L1 or L2 norm along an axis; 0 where the norm is 0."""
    data, p = application.value(0), application.operator.attributes.integer("p", 2)
    if p not in (1, 2):
        application.broken(f"p is {p}, expected 1 or 2")
    make, axis = composer(application), _axis_attribute(application, -1)
    powers = make("abs", data) if p == 1 else make("mul", data, data)
    total = application.emit("sum", (powers,), {"axes": (axis,), "keepdims": True})
    length = total if p == 1 else make("sqrt", total)
    safe = make("where", make("equal", length, 0.0), 1.0, length)
    application.result("div", (data, safe))


def bit_cast(application: OpContext) -> None:
    """BitCast: reinterprets the bits of every element as another dtype."""
    to = dtype_from_code(application.operator.attributes.integer("to"), application.where)
    application.result("bit_cast", (application.value(0),), {"dtype": to})


GATHER_CONVERTERS: Mapping[str, Converter] = {
    "ArgMax": arg_extremum("argmax"),
    "ArgMin": arg_extremum("argmin"),
    "BitCast": Converter(bit_cast, MOVABLE),
    "CumProd": cumulative("cumprod"),
    "CumSum": cumulative("cumsum"),
    "GatherElements": Converter(gather_elements, MOVABLE),
    "GatherND": Converter(gather_nd, MOVABLE),
    "Hardmax": Converter(hardmax),
    "LpNormalization": Converter(lp_norm),
    "OneHot": Converter(one_hot, NUMBERS),
    "ReverseSequence": Converter(reverse_sequence, MOVABLE),
    "Scatter": Converter(scatter_elements, MOVABLE),
    "ScatterElements": Converter(scatter_elements, MOVABLE),
    "ScatterND": Converter(scatter_nd, MOVABLE),
    "TensorScatter": Converter(tensor_scatter, MOVABLE),
    "TopK": Converter(top_k, NUMBERS),
    "Trilu": Converter(triangle, MOVABLE),
}
