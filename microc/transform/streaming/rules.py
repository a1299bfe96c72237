"""How every operator treats a time axis. A rule writes a node for the frames of a step; it returns False where the node needs the
whole sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from microc.graph.ir import Attr, Node
from microc.ops import registry
from microc.transform.streaming.recurrent import loop
from microc.transform.streaming.rewrite import Writer, lowest
from microc.transform.streaming.track import Frames, slide, through_reshape

Rule = Callable[[Writer, Node], bool]


def apply(writer: Writer, node: Node) -> None:
    """Write a node for a step of the stream."""
    tracks = [writer.track(value) for value in node.inputs]
    if all(track is None for track in tracks):
        writer.nodes.append(node)
        return
    rule = RULES.get(node.op, _elementwise if registry.get(node.op).elementwise else None)
    local = all(track is None or isinstance(track, Frames) for track in tracks)
    if not local or rule is None or not rule(writer, node):
        writer.write_whole(node)


def _same_pace(writer: Writer, node: Node, axes: Mapping[int, int]) -> tuple[list[str], Frames] | None:
    """Operands that step along together, the earlier ones delayed; ``axes``: by position, their time axis in the result.

    None where they have different lengths or axes.
    """
    tracks = {k: writer.frames(node.inputs[k]) for k in axes}
    found = {k: t for k, t in tracks.items() if t is not None}
    if len({(axes[k], t.length, t.count) for k, t in found.items()}) != 1:
        return None
    delay = max(0, *(t.delay for t in found.values()))
    inputs = [writer.settled(node, v, delay)[0] if k in axes else v for k, v in enumerate(node.inputs)]
    first = min(found.values(), key=lambda t: t.clean)
    return inputs, Frames(next(iter(axes.values())), first.length, first.count, delay, first.clean, None, first.blame)


def _elementwise(writer: Writer, node: Node) -> bool:
    """Operands broadcast; what does not depend on time must not vary along its axis."""
    rank = len(writer.graph.types[node.outputs[0]].shape)
    whole = registry.get(node.op).whole
    axes = {}
    for k, value in enumerate(node.inputs):
        track = writer.frames(value)
        if track is not None and k not in whole:
            axes[k] = track.axis + rank - len(writer.graph.types[value].shape)
        elif track is not None:
            return False
    (axis,) = set(axes.values()) if len(set(axes.values())) == 1 else (None,)
    if axis is None or node.attrs.get("axis") == axis:
        return False
    for k, value in enumerate(node.inputs):
        if value and k not in axes and k not in whole:
            shape = writer.graph.types[value].shape
            place = axis - (rank - len(shape))
            if place >= 0 and shape[place] != 1:
                return False
    paced = _same_pace(writer, node, axes)
    if paced is None:
        return False
    inputs, track = paced
    writer.write(node, inputs, node.attrs, (track,) * len(node.outputs))
    return True


def _first(writer: Writer, node: Node) -> Frames | None:
    """The track of the first operand, if no other depends on time."""
    if any(writer.track(value) is not None for value in node.inputs[1:]):
        return None
    return writer.frames(node.inputs[0])


def _moved(writer: Writer, node: Node, track: Frames, axis: int, attrs: Mapping[str, Attr] | None = None) -> bool:
    """The node on the frames as they come; time is another axis of the result."""
    chosen = node.attrs if attrs is None else {**node.attrs, **attrs}
    writer.write(node, node.inputs, chosen, (track.along(axis),) * len(node.outputs))
    return True


# ---------------------------------------------------------------- places


def _transpose(writer: Writer, node: Node) -> bool:
    track = _first(writer, node)
    return track is not None and _moved(writer, node, track, node.attr("axes").index(track.axis))


def _reshape(writer: Writer, node: Node) -> bool:
    track = _first(writer, node)
    if track is None:
        return False
    before, after = writer.graph.types[node.inputs[0]].shape, node.attr("shape")
    axis = through_reshape(before, after, track.axis)
    if axis is None:
        return False
    return _moved(writer, node, track, axis, {"shape": (*after[:axis], track.count, *after[axis + 1 :])})


def _concat(writer: Writer, node: Node) -> bool:
    rank = len(writer.graph.types[node.outputs[0]].shape)
    axes = {k: t.axis for k, v in enumerate(node.inputs) if (t := writer.frames(v)) is not None}
    if len(axes) < len(node.inputs) or node.attr("axis") % rank in axes.values():
        return False
    paced = _same_pace(writer, node, axes)
    if paced is None:
        return False
    writer.write(node, paced[0], node.attrs, (paced[1],))
    return True


def _slice(writer: Writer, node: Node) -> bool:
    """Frames that are left out in front come, in the stream, before the first."""
    track = _first(writer, node)
    if track is None:
        return False
    axis, length = track.axis, writer.graph.types[node.outputs[0]].shape[track.axis]
    begin, end, strides = (list(node.attr(name)) for name in ("begin", "end", "strides"))
    window = slide(track, 1, strides[axis], -begin[axis], length, str(node.loc))
    data = writer.window(node, node.inputs[0], track, window, None, strides[axis] if length > 1 else 1)
    begin[axis], strides[axis] = 0, 1
    end[axis] = writer.types[data].shape[axis]
    attrs = {"begin": tuple(begin), "end": tuple(end), "strides": tuple(strides)}
    writer.write(node, (data,), attrs, (window.track,))
    return True


def _pad(writer: Writer, node: Node) -> bool:
    """Frames in front never come: whoever reads them knows what they hold."""
    track = _first(writer, node)
    if track is None:
        return False
    pairs, value, inputs = list(node.attr("padding")), node.attr("value"), node.inputs
    before, behind = pairs[track.axis]
    if before and track.delay > 0:
        masked = writer.mask(node, node.inputs[0], track, value)
        inputs, track = (masked,), replace(track, fill=value)
    if before and track.delay < 0 and track.fill != value:
        data, track = writer.settled(node, node.inputs[0], 0)
        inputs = (data,)
    pairs[track.axis] = (0, 0)
    length, clean = track.length + before + behind, track.clean + before
    blame = str(node.loc) if track.complete and behind else track.blame
    fill = None if track.delay >= before else value if before else track.fill
    padded = Frames(track.axis, length, track.count, track.delay - before, clean, fill, blame)
    writer.write(node, inputs, {**node.attrs, "padding": tuple(pairs)}, (padded,))
    return True


def _gather(writer: Writer, node: Node) -> bool:
    """Elements of every frame by constant indices, or of a table by the frames."""
    data, indices = (writer.frames(value) for value in node.inputs)
    rank = len(writer.graph.types[node.inputs[0]].shape)
    axis, width = node.attr("axis") % rank, len(writer.graph.types[node.inputs[1]].shape)
    if node.attrs.get("batch_dims") or (data is None) == (indices is None):
        return False
    if indices is not None:
        return _moved(writer, node, indices, axis + indices.axis)
    assert data is not None
    if data.axis == axis:
        return False
    return _moved(writer, node, data, data.axis if data.axis < axis else data.axis + width - 1)


# ---------------------------------------------------------------- sums


def _reduce(writer: Writer, node: Node) -> bool:
    track = _first(writer, node)
    rank = len(writer.graph.types[node.inputs[0]].shape)
    axes = {axis % rank for axis in node.attr("axes")}
    if track is None or track.axis in axes:
        return False
    gone = 0 if node.attr("keepdims") else sum(axis < track.axis for axis in axes)
    return _moved(writer, node, track, track.axis - gone)


def _along_axis(writer: Writer, node: Node) -> bool:
    """Operators that work along one axis, the last unless they say another."""
    track, rank = _first(writer, node), len(writer.graph.types[node.inputs[0]].shape)
    axis = int(node.attr("axis")) % rank if "axis" in node.attrs else rank - 1
    if track is None or track.axis == axis:
        return False
    gone = len(writer.graph.types[node.outputs[0]].shape) < rank and axis < track.axis
    return _moved(writer, node, track, track.axis - gone)


def _dense(writer: Writer, node: Node) -> bool:
    track = _first(writer, node)
    return track is not None and track.axis == 0 and _moved(writer, node, track, 0)


def _matmul(writer: Writer, node: Node) -> bool:
    """Rows of the first operand by a matrix that is always the same."""
    track = _first(writer, node)
    shapes = [writer.graph.types[value].shape for value in node.inputs[:2]]
    if track is None or track.axis == len(shapes[0]) - 1 or len(shapes[0]) < 2:
        return False
    rank = len(writer.graph.types[node.outputs[0]].shape)
    axis = track.axis + rank - len(shapes[0])
    other = axis - (rank - len(shapes[1]))
    if axis < rank - 2 and other >= 0 and shapes[1][other] != 1:
        return False
    return _moved(writer, node, track, axis)


# ---------------------------------------------------------------- windows


def _windowed(
    writer: Writer, node: Node, kernel: int, dilation: int, fill: float, changed: Callable[[int, int], dict[str, Any]]
) -> bool:
    """A layer whose window slides along height or width; ``changed(taps, dilation)``: what its attributes become."""
    track = writer.frames(node.inputs[0])
    assert track is not None
    if track.axis == 0:
        return _moved(writer, node, track, 0)
    if track.axis == 3 or node.attrs.get("layout", "NHWC") != "NHWC":
        return False
    place = track.axis - 1
    strides, padding = list(node.attr("strides")), list(node.attr("padding"))
    length, before = writer.graph.types[node.outputs[0]].shape[track.axis], padding[place]
    value = node.inputs[0]
    if before and track.fill is not None and track.fill != fill:
        value, track = writer.settled(node, value, 0)
    reach = (kernel - 1) * dilation + 1
    window = slide(track, reach, strides[place], before, length, str(node.loc))
    taps = dilation > 1 and window.track.count == 1
    data = writer.window(node, value, track, window, fill if before else None, dilation if taps else 1)
    padding[place] = padding[place + 2] = 0
    if window.track.count == 1 or length == 1:
        strides[place] = 1
    attrs = {
        **node.attrs,
        **changed(kernel, 1 if taps else dilation),
        "strides": tuple(strides),
        "padding": tuple(padding),
    }
    writer.write(node, (data, *node.inputs[1:]), attrs, (window.track,))
    return True


def _conv2d(writer: Writer, node: Node) -> bool:
    track = _first(writer, node)
    if track is None or track.axis == 3:
        return False
    place = max(track.axis - 1, 0)
    dilation = list(node.attr("dilation"))

    def changed(taps: int, apart: int) -> dict[str, Any]:
        dilation[place] = apart
        return {"dilation": tuple(dilation)}

    plain = writer.types[node.inputs[0]].quant is None and "pad_value" in node.attrs
    fill = node.attr("pad_value") if plain else writer.zero(node.inputs[0])
    kernel = writer.graph.types[node.inputs[1]].shape[1 + place]
    return _windowed(writer, node, kernel, dilation[place], float(fill), changed)


def _pool(writer: Writer, node: Node) -> bool:
    """Padding never is a maximum; in means it must count, for a step cannot tell the beginning of a sequence."""
    track = _first(writer, node)
    if track is None or track.axis == 3:
        return False
    place, data = max(track.axis - 1, 0), writer.types[node.inputs[0]]
    padded = track.axis > 0 and node.attr("padding")[place] > 0
    if node.op == "avg_pool2d" and padded and not node.attrs.get("count_include_pad"):
        return False
    fill = lowest(data.dtype) if node.op == "max_pool2d" else writer.zero(node.inputs[0])
    return _windowed(writer, node, node.attr("kernel")[place], 1, float(fill), lambda taps, apart: {})


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("sum", "mean", "max", "min", "prod"), _reduce),
    **dict.fromkeys(("softmax", "log_softmax", "l2_normalize", "argmax", "argmin", "topk", "cumsum"), _along_axis),
    **dict.fromkeys(("max_pool2d", "avg_pool2d"), _pool),
    "concat": _concat,
    "conv2d": _conv2d,
    "dense": _dense,
    "gather": _gather,
    "loop": loop,
    "matmul": _matmul,
    "pad": _pad,
    "reshape": _reshape,
    "slice": _slice,
    "transpose": _transpose,
}
