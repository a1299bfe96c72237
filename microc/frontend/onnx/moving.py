"""Slices from a place that is computed, of as many elements as ever: start and end differ by a constant.

So loops take a part of a tensor in every turn: ``x[i : i + 1]``.
"""

from __future__ import annotations

import numpy as np

from microc import dtypes
from microc.frontend.onnx.application import Application
from microc.frozen import frozen


@frozen
class _Place:
    """``value`` (a scalar or a vector of one element; empty: nothing) plus a constant."""

    value: str
    offset: int


def moving_slice(application: Application) -> None:
    """Slice whose starts and ends are computed, one of each; steps and axes are constants."""
    shape = application.shape(0)
    (axis,) = application.integers(3)[:1] if application.has(3) else (0,)
    axis = application.axis(axis, len(shape))
    step = application.integers(4) if application.has(4) else (1,)
    kinds = [application.type(application.value(position)) for position in (1, 2)]
    if any(kind.size != 1 or kind.dtype not in ("int32", "int64") for kind in kinds) or step != (1,):
        application.refuse(
            "a slice along several axes, or in steps, to a place that is computed",
            "slice along one axis at a time, in steps of one",
        )
    start, end = (_place(application, application.value(position)) for position in (1, 2))
    size = end.offset - start.offset
    if start.value != end.value or not 0 < size <= shape[axis]:
        application.refuse("a slice of as many elements as data tell", "shapes are static: give it a constant size")
    whole = application.new_constant("begin", np.zeros(1, dtypes.to_numpy(kinds[0].dtype)))
    begin = [whole] * len(shape)
    begin[axis] = application.reshaped(application.value(1), (1,))
    first = application.emit("concat", begin, {"axis": 0}) if len(begin) > 1 else begin[0]
    application.result(
        "dynamic_slice", (application.value(0), first), {"size": (*shape[:axis], size, *shape[axis + 1 :])}
    )


def _place(application: Application, value: str) -> _Place:
    """What a value of one element is made of: through reshapes, casts of integers and additions of constants."""
    builder, offset = application.builder, 0
    makers = {name: node for node in builder.nodes for name in node.outputs}
    while value in makers:
        node = makers[value]
        if node.op == "reshape" or (node.op == "cast" and dtypes.is_integer(builder.types[node.inputs[0]].dtype)):
            value = node.inputs[0]
            continue
        numbers = [builder.consts.get(name) for name in node.inputs]
        added = [n for n in numbers if n is not None and n.size == 1]
        left = [name for name, n in zip(node.inputs, numbers, strict=True) if n is None]
        if node.op not in ("add", "sub") or len(added) != 1 or len(left) != 1 or node.attr("activation"):
            break
        if node.op == "sub" and numbers[0] is not None:
            break
        amount = int(added[0].reshape(-1)[0])
        offset, value = offset + (amount if node.op == "add" else -amount), left[0]
    if value in builder.consts:
        return _Place("", offset + int(builder.consts[value].reshape(-1)[0]))
    return _Place(value, offset)
