# SPDX-License-Identifier: Apache-2.0
"""Conversion of a network over a whole sequence to a network that takes a few frames per step: the rules of operators,
and :func:`stream`.

A rule is a function that writes one node of the network as nodes for one step of the stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from microc.errors import UnsupportedError, UsageError
from microc.graph.ir import Graph, Node, TensorType, new_value
from microc.module import StreamedOutput, Streaming
from microc.ops import registry
from microc.ops.attributes import Rounding
from microc.transform.streaming_rewrite import (
    LOOKAHEAD,
    WINDOW,
    FrameTrack,
    HopTooShortError,
    StepWriter,
    Track,
    WholeValueTrack,
    slide_window_over_frames,
)

# ---- Rules of signal operators, which split samples into frames or filter them. The frames of a step are samples here.


def _stream_frame(writer: StepWriter, node: Node) -> bool:
    """Write a ``frame`` node for one step: each of its windows of samples is a frame of the result.

    Return False if the node works along another axis than time."""
    track = writer.find_frame_track_of_data(node)
    if track is None or track.time_axis != _normalised_axis(writer, node):
        return False
    return _write_windowed_signal_operator(writer, node, track, node.attr("length"), node.attr("step"), 1)


def _stream_fir(writer: StepWriter, node: Node) -> bool:
    """Write a ``fir`` node for one step. Its window has as many samples as the filter has taps; each stride of the
    window computes one sample per phase.

    Return False if the node works along another axis than time."""
    track = writer.find_frame_track_of_data(node)
    if track is None or track.time_axis != _normalised_axis(writer, node):
        return False
    phases, taps = writer.graph.types[node.inputs[1]].shape
    return _write_windowed_signal_operator(writer, node, track, taps, node.attr("down"), phases)


def _stream_biquads(writer: StepWriter, node: Node) -> bool:
    """Write a ``biquads`` node for one step; its filter state becomes a state of the graph.

    Samples before the start of the sequence are masked to zero. A filter whose state is zero keeps a state of zero on
    them. Return False if the node works along another axis than time, or if its initial state is not a suitable
    constant."""
    track, constant = writer.find_frame_track_of_data(node), writer.graph.consts.get(node.inputs[2])
    if (
        track is None
        or track.time_axis != _normalised_axis(writer, node)
        or constant is None
        or (track.delay_frames > 0 and constant.any())
    ):
        return False
    data = node.inputs[0]
    if track.delay_frames > 0:
        data = writer.mask_before_start(node, data, track, 0.0)
    if track.delay_frames < 0:
        data, track = writer.delay_frames_to(node, data, 0)
    memory, kind = writer.memory, writer.graph.types[node.inputs[2]]
    state = memory.new_value(f"{node.outputs[0]}.state", kind)
    memory.state[state] = constant
    next_state = node.outputs[1] or memory.new_value(f"{node.outputs[0]}.next", kind)
    writer.types[next_state] = kind
    new_node = replace(node, outputs=(node.outputs[0], next_state))
    writer.write_node(
        new_node, (data, node.inputs[1], state), node.attrs, (replace(track, front_padding_value=None), None)
    )
    memory.updates[state] = next_state
    return True


def _normalised_axis(writer: StepWriter, node: Node) -> int:
    """Return the attribute ``axis`` of a node as a non-negative index."""
    return int(node.attr("axis")) % len(writer.graph.types[node.inputs[0]].shape)


def _write_windowed_signal_operator(
    writer: StepWriter, node: Node, track: FrameTrack, window_frames: int, stride: int, phases: int
) -> bool:
    """Write a signal operator whose window slides over the samples of this step and earlier ones; return True.

    ``window_frames``: number of samples in a window. ``stride``: number of samples between windows. ``phases``: number
    of results per window. If the result of the whole sequence has a single frame, further frames of the stream are
    nevertheless ``stride`` samples apart."""
    length = writer.graph.types[node.outputs[0]].shape[track.time_axis] // phases
    window = slide_window_over_frames(track, window_frames, stride, 0, max(length, 2), str(node.loc))
    data = writer.read_frames_of_window(node, node.inputs[0], track, window, None)
    result_track = replace(
        window.track, whole_run_frames=length, frames_before_padding=min(length, window.track.frames_before_padding)
    )
    names = ("whole_run_frames", "frames_per_step", "delay_frames", "frames_before_padding")
    counts = {name: getattr(result_track, name) * phases for name in names}
    writer.write_node(node, (data, *node.inputs[1:]), node.attrs, (replace(result_track, **counts),))
    return True


# ---- Rule of recurrent layers: a loop over time iterates over the frames of a step; its carried values become state.


def _stream_loop(writer: StepWriter, node: Node) -> bool:
    """Write a ``loop`` over time for one step: it iterates over the frames of the step, and its carried values become
    state of the graph.

    Each iteration must read one frame of every value that depends on time, and carried values must start from constants
    or state; otherwise return False. If the final carried values are read, the loop is delayed so that the last frame
    of the sequence is the last frame of a step."""
    body, carried = node.attr("body"), node.attr("carried")
    fixed = range(carried, len(node.inputs))
    tracks = {k: track for k in fixed if (track := writer.find_frame_track(node.inputs[k])) is not None}
    known = {*writer.graph.consts, *writer.graph.state}
    same_pace = {t.whole_run_frames for t in tracks.values()} == {node.attr("count")} and len(
        {t.frames_per_step for t in tracks.values()}
    ) == 1
    if node.attr("guarded") or not same_pace or any(value not in known for value in node.inputs[:carried]):
        return False
    if not all(
        _reads_only_frame_of_iteration(body, body.inputs[1 + k], track.time_axis) for k, track in tracks.items()
    ):
        return False
    first = next(iter(tracks.values()))
    # All operands are delayed to the latest of them. If the final carried values are read, the last frame of the sequence must be
    # the last frame of a step, because further iterations of that step would change the carried values.
    delay = max(0, *(track.delay_frames for track in tracks.values()))
    if _are_final_carried_values_read(writer, node, carried):
        delay += -(first.whole_run_frames + delay) % first.frames_per_step
    inputs = [writer.delay_frames_to(node, v, delay)[0] if k in tracks else v for k, v in enumerate(node.inputs)]
    for k in range(carried):
        inputs[k] = _add_state_for_carried_value(writer, node, k)
    types = {
        body.inputs[1 + k]: writer.with_frames(body.types[body.inputs[1 + k]], track) for k, track in tracks.items()
    }
    body = replace(body, types={**body.types, **types})
    if delay:
        body = _hold_carried_values_until_start(body, carried, delay)
        inputs.append(writer.add_frame_counter_state(node, first.frames_per_step, delay))
    clean = min(track.frames_before_padding for track in tracks.values())
    blame = next((track.padding_layer for track in tracks.values() if track.padding_layer), "")
    rows = FrameTrack(0, first.whole_run_frames, first.frames_per_step, delay, clean, None, blame)
    last = WholeValueTrack((first.whole_run_frames + delay) // first.frames_per_step - 1)
    results: list[Track] = [last] * carried + [rows] * (len(node.outputs) - carried)
    writer.write_node(node, inputs, {**node.attrs, "body": body, "count": first.frames_per_step}, results)
    return True


def carries_all_state(graph: Graph) -> bool:
    """Test whether every state of the graph is a value that one loop carries. A stream can continue such a state from
    step to step."""
    readers, makers = graph.consumers(), graph.producer()
    for state, value in graph.updates.items():
        nodes, maker = readers.get(state, ()), makers.get(value)
        if maker is None or nodes != (maker,) or maker.op != "loop" or maker.inputs.count(state) != 1:
            return False
        position = maker.inputs.index(state)
        if position >= maker.attr("carried") or maker.outputs[position] != value:
            return False
    return True


def _reads_only_frame_of_iteration(body: Graph, value: str, axis: int) -> bool:
    """Test whether each iteration of a loop reads the frame with its own index from ``value``, and nothing else from
    it."""
    readers = body.consumers().get(value, ())
    iteration = body.inputs[0]
    return value not in body.outputs and all(
        n.op == "gather" and n.inputs == (value, iteration) and n.attr("axis") % len(body.types[value].shape) == axis
        for n in readers
    )


def _are_final_carried_values_read(writer: StepWriter, node: Node, carried_count: int) -> bool:
    """Test whether the carried values of a loop are read after its last iteration."""
    graph, last = writer.graph, set(node.outputs[:carried_count])
    return bool(last & {name for n in graph.nodes for name in n.inputs} or last & set(graph.outputs))


def _add_state_for_carried_value(writer: StepWriter, node: Node, carried_index: int) -> str:
    """Return the state of the graph that stores a carried value of a loop between steps.

    ``carried_index``: index of the carried value among the loop's operands."""
    value, result, memory = node.inputs[carried_index], node.outputs[carried_index], writer.memory
    if value in writer.graph.state:
        return value
    name = memory.new_value(f"{result}.state", writer.graph.types[value])
    memory.state[name] = writer.graph.consts[value].copy()
    memory.updates[name] = result
    return name


def _hold_carried_values_until_start(body: Graph, carried_count: int, delay: int) -> Graph:
    """Return a loop's body that leaves its carried values unchanged until the sequence starts.

    The sequence starts ``delay`` frames after the stream.

    The body gets a new last input ``age``: the number of frames before this step."""
    types, consts = dict(body.types), dict(body.consts)

    scalar, flag = TensorType((1,), "int32"), TensorType((1,), "bool")
    age, number = new_value(types, "age", scalar), new_value(types, "delay", scalar)
    consts[number] = np.array([delay], np.int32)
    position, has_begun = new_value(types, "place", scalar), new_value(types, "begun", flag)
    nodes = [
        Node("add", (body.inputs[0], age), (position,), {"activation": "", "rounding": Rounding.DOUBLE}),
        Node("greater_equal", (position, number), (has_begun,), {"rounding": Rounding.DOUBLE}),
    ]
    outputs = list(body.outputs)
    for k in range(carried_count):
        old = body.inputs[1 + k]
        outputs[k] = new_value(types, f"{body.outputs[k]}.kept", types[old])
        nodes.append(Node("where", (has_begun, body.outputs[k], old), (outputs[k],)))
    return replace(
        body,
        inputs=(*body.inputs, age),
        outputs=tuple(outputs),
        nodes=(*body.nodes, *nodes),
        types=types,
        consts=consts,
    )


# ---- Choice of the rule of an operator. A rule writes a node for the frames of a step; it returns False if it does not apply.

Rule = Callable[[StepWriter, Node], bool]
"""Function that writes a node for one step of a stream. It returns False, and writes nothing, if it does not apply to
the node."""


def write_step_node(writer: StepWriter, node: Node) -> None:
    """Write a node for one step of the stream by the rule of its operator. If no rule applies, the node is computed on
    all frames of the sequence in each step."""
    tracks = [writer.find_track(value) for value in node.inputs]
    if all(track is None for track in tracks):
        writer.nodes.append(node)
        return
    rules = (RULES[node.op],) if node.op in RULES else (_stream_frame_by_frame, _stream_sliding_window)
    local = all(track is None or isinstance(track, FrameTrack) for track in tracks)
    if not local or not any(rule(writer, node) for rule in rules):
        writer.write_on_whole_sequence(node)


def _align_operands(
    writer: StepWriter, node: Node, axes: Mapping[int, int], only_moves: bool
) -> tuple[list[str], FrameTrack] | None:
    """Delay the operands that depend on time to the latest of them; return all operands and the track (dependency on
    time) of the result.

    ``axes`` maps the position of each such operand to its time axis in the result. Return None if the operands have
    different lengths or time axes. ``only_moves``: the operator only moves elements, so that the result has the track
    of a single operand, including the frames that are never computed."""
    tracks = {k: t for k in axes if (t := writer.find_frame_track(node.inputs[k])) is not None}
    first = min(tracks.values(), key=lambda t: t.frames_before_padding)
    if only_moves and len(tracks) == 1:
        return list(node.inputs), first.with_time_axis(*axes.values())
    if len({(axes[k], t.whole_run_frames, t.frames_per_step) for k, t in tracks.items()}) != 1:
        return None
    delay = max(0, *(t.delay_frames for t in tracks.values()))
    inputs = [writer.delay_frames_to(node, v, delay)[0] if k in axes else v for k, v in enumerate(node.inputs)]
    return inputs, FrameTrack(
        next(iter(axes.values())),
        first.whole_run_frames,
        first.frames_per_step,
        delay,
        first.frames_before_padding,
        None,
        first.padding_layer,
    )


def _stream_frame_by_frame(writer: StepWriter, node: Node) -> bool:
    """Write a node that computes frame i of its result from frame i of its operands only, in the same way for all i.

    Return False if the node does not have this property."""
    definition, types = registry.get(node.op), writer.graph.types
    axes, fixed = {}, []
    for k, (value, mapped_axes) in enumerate(zip(node.inputs, definition.axis_map(node, types), strict=True)):
        track = writer.find_frame_track(value)
        if track is None:
            fixed += [(result_axis, types[value].shape[axis]) for axis, result_axis in enumerate(mapped_axes or ())]
        elif mapped_axes is None or (result_axis := mapped_axes[track.time_axis]) is None:
            return False
        else:
            axes[k] = result_axis
    aligned = _align_operands(writer, node, axes, definition.moves)
    if len(set(axes.values())) != 1 or aligned is None or (aligned[1].time_axis, aligned[1].whole_run_frames) in fixed:
        return False
    inputs, track = aligned
    extents = {
        name: (*value[: track.time_axis], track.frames_per_step, *value[track.time_axis + 1 :])
        for name, value in node.attrs.items()
        if definition.attrs[name].kind == "extents" and isinstance(value, tuple)
    }
    writer.write_node(node, inputs, {**node.attrs, **extents}, (track,) * len(node.outputs))
    return True


# ---------------------------------------------------------------- slices and padding


def _stream_slice(writer: StepWriter, node: Node) -> bool:
    """Write a slice along time. Frames that it removes in front become frames before the start of the result."""
    track = writer.find_frame_track_of_data(node)
    if track is None:
        return False
    axis, length = track.time_axis, writer.graph.types[node.outputs[0]].shape[track.time_axis]
    begin, end, strides = (list(node.attr(name)) for name in ("begin", "end", "strides"))
    window = slide_window_over_frames(track, 1, strides[axis], -begin[axis], length, str(node.loc))
    data = writer.read_frames_of_window(node, node.inputs[0], track, window, None, strides[axis] if length > 1 else 1)
    begin[axis], strides[axis] = 0, 1
    end[axis] = writer.types[data].shape[axis]
    attrs = {"begin": tuple(begin), "end": tuple(end), "strides": tuple(strides)}
    writer.write_node(node, (data,), attrs, (window.track,))
    return True


def _stream_pad(writer: StepWriter, node: Node) -> bool:
    """Write padding along time. The padding in front is not computed; ``FrameTrack.front_padding_value`` tells readers
    its content."""
    track = writer.find_frame_track_of_data(node)
    if track is None:
        return False
    pairs, value, inputs = list(node.attr("padding")), node.attr("value"), node.inputs
    before, after = pairs[track.time_axis]
    if before and track.delay_frames > 0:
        masked = writer.mask_before_start(node, node.inputs[0], track, value)
        inputs, track = (masked,), replace(track, front_padding_value=value)
    if before and track.delay_frames < 0 and track.front_padding_value != value:
        data, track = writer.delay_frames_to(node, node.inputs[0], 0)
        inputs = (data,)
    pairs[track.time_axis] = (0, 0)
    length, clean = track.whole_run_frames + before + after, track.frames_before_padding + before
    blame = str(node.loc) if track.is_complete and after else track.padding_layer
    fill = None if track.delay_frames >= before else value if before else track.front_padding_value
    padded = FrameTrack(track.time_axis, length, track.frames_per_step, track.delay_frames - before, clean, fill, blame)
    writer.write_node(node, inputs, {**node.attrs, "padding": tuple(pairs)}, (padded,))
    return True


# ---------------------------------------------------------------- windows


def _stream_sliding_window(writer: StepWriter, node: Node) -> bool:
    """Write a layer whose window slides along height and width; one of these axes is time.

    Padding in front must have a known value: each step masks the frames before the start with it, because the same code
    runs in all steps. Return False if the node has no such window."""
    track, window_of = writer.find_frame_track_of_data(node), registry.get(node.op).window
    window = window_of(node.attrs, [writer.graph.types[value] for value in node.inputs if value]) if window_of else None
    if track is None or window is None or track.time_axis not in (1, 2):
        return False
    side = track.time_axis - 1
    axis = window.axes[side]
    length, before, value = writer.graph.types[node.outputs[0]].shape[track.time_axis], axis.before, node.inputs[0]
    if before and window.pad_value is None:
        return False
    fill = float(window.pad_value or writer.zero_in_dtype_of(value))
    # Frames that are never computed have another content than this layer's padding: delay the value so that they are computed.
    if before and track.front_padding_value is not None and track.front_padding_value != fill:
        value, track = writer.delay_frames_to(node, value, 0)
    step_window = slide_window_over_frames(track, axis.span, axis.stride, before, length, str(node.loc))
    # With one result per step only the taps of a dilated window are fetched; the fetched frames are contiguous, without dilation.
    only_taps = axis.dilation > 1 and step_window.track.frames_per_step == 1
    data = writer.read_frames_of_window(
        node, value, track, step_window, fill if before else None, axis.dilation if only_taps else 1
    )
    is_single = step_window.track.frames_per_step == 1 or length == 1
    axes = list(window.axes)
    axes[side] = replace(
        axis,
        stride=1 if is_single else axis.stride,
        dilation=1 if only_taps else axis.dilation,
        before=0,
        after=0,
    )
    changed = {
        "strides": tuple(a.stride for a in axes),
        "padding": (*(a.before for a in axes), *(a.after for a in axes)),
        "dilation": tuple(a.dilation for a in axes),
    }
    attrs = {**node.attrs, **{name: value for name, value in changed.items() if name in node.attrs}}
    writer.write_node(node, (data, *node.inputs[1:]), attrs, (step_window.track,))
    return True


def _combine_with_frame_by_frame_rule(rule: Rule) -> Rule:
    """Return a rule that first tries ``rule``, then the rule for operators that work frame by frame along time."""
    return lambda writer, node: rule(writer, node) or _stream_frame_by_frame(writer, node)


RULES: Mapping[str, Rule] = {
    "biquads": _stream_biquads,
    "fir": _combine_with_frame_by_frame_rule(_stream_fir),
    "frame": _combine_with_frame_by_frame_rule(_stream_frame),
    "loop": _stream_loop,
    "pad": _stream_pad,
    "slice": _stream_slice,
}
"""Rules of operators that need a rule of their own. All other operators are written frame by frame or as sliding
windows."""


# ---- Conversion of a network over a whole sequence to a network that takes one or a few frames per step: :func:`stream`.
#
# The stream computes the same frames as the whole run. Every value has a track (:mod:`~microc.transform.streaming_rewrite`): a
# record of the frames of the value that a step computes. Layers whose windows slide along time read earlier frames from the
# history.

EVERY = "*"
"""Name that stands for all inputs."""
ALLOWED = (WINDOW, LOOKAHEAD)
"""Options of ``stream_allow``: compute layers again from a window of frames in each step, and delay results for
lookahead."""


def stream(
    graph: Graph, axes: Mapping[str, int], step_frames: int = 0, allowed: frozenset[str] = frozenset()
) -> tuple[Graph, Streaming]:
    """Convert the network to a graph of one step; return it and its description (:class:`Streaming`), which names
    inputs and outputs.

    ``axes``: time axis of each input, by name or for all inputs (``*``). ``step_frames``: number of input frames in a
    step; 0: as few as the strides allow. ``allowed``: ``window`` and ``lookahead`` (:data:`ALLOWED`).

    Raise UsageError for an unknown input or axis, or for a ``step_frames`` that is not a multiple of the strides. Raise
    UnsupportedError, which names the layer, if a step cannot compute the same frames as a run over the whole
    sequence."""
    times = _resolve_time_axes(graph, axes)
    if not carries_all_state(graph):
        hint = "compile it without --stream: it already takes the sequence piece by piece"
        raise UnsupportedError("stream: the network already keeps state from run to run", where=graph.name, hint=hint)
    # Try the smallest hop. A stride that does not divide it raises HopTooShortError with the missing factor.
    least = 1
    while True:
        try:
            step = _build_step(graph, times, least, allowed)
            break
        except HopTooShortError as short:
            least, where = least * short.factor, short.where
    if step_frames in (0, least):
        return step
    if step_frames % least:
        hint = f"give a multiple of {least}: --hop {least * -(-step_frames // least)}"
        raise UsageError(
            f"hop: got {step_frames} frames, expected a multiple of {least}, because of strides", where=where, hint=hint
        )
    return _build_step(graph, times, step_frames, allowed)


def _resolve_time_axes(graph: Graph, axes: Mapping[str, int]) -> dict[str, int]:
    """Return the time axis of every input that has one, by name."""
    for name in sorted(set(axes) - {EVERY, *graph.inputs}):
        raise UsageError(
            f"the network has no input {name!r}",
            where=graph.name,
            hint="name one of its inputs: " + ", ".join(graph.inputs),
        )
    time_axes = {}
    for name in graph.inputs:
        axis, shape = axes.get(name, axes.get(EVERY)), graph.types[name].shape
        if axis is None:
            continue
        if not -len(shape) <= axis < len(shape):
            raise UsageError(
                f"input {name!r} of shape {list(shape)} has no axis {axis}",
                where=graph.name,
                hint=f"give the time axis, from 0 to {len(shape) - 1}",
            )
        time_axes[name] = axis % len(shape)
    return time_axes


def _build_step(
    graph: Graph, time_axes: Mapping[str, int], step_frames: int, allowed: frozenset[str]
) -> tuple[Graph, Streaming]:
    """Build the graph of one step of ``step_frames`` input frames, and its description.

    ``time_axes``: time axis of inputs, by name."""
    tracks = {}
    for name, axis in time_axes.items():
        length = graph.types[name].shape[axis]
        tracks[name] = FrameTrack(axis, length, step_frames, 0, length)
    writer = StepWriter(graph, tracks, allowed)
    for node in graph.nodes:
        write_step_node(writer, node)
    outputs = {name: _describe_output(writer, graph, name) for name in graph.outputs}
    memory = writer.memory
    nodes = memory.replace_reads_by_nodes(writer.nodes)
    state, updates = {**graph.state, **memory.state}, {**graph.updates, **memory.updates}
    step = Graph(graph.name, graph.inputs, graph.outputs, (), writer.types, writer.consts, state, updates)
    return step.with_nodes(nodes), Streaming(step_frames, time_axes, outputs)


def _describe_output(writer: StepWriter, graph: Graph, name: str) -> StreamedOutput:
    """Return the description of the frames of an output that one step computes.

    Raise UnsupportedError if the stream cannot compute these frames."""
    track, node = writer.find_track(name), graph.producer().get(name)
    if track is None:
        return StreamedOutput(-1, 0, 0, 0)
    if not isinstance(track, FrameTrack):
        return StreamedOutput(-1, 0, 0, track.delay_steps)
    if node is not None and not track.is_complete and LOOKAHEAD not in writer.allowed:
        writer.refuse_lookahead(node, track)
    if node is not None and track.delay_frames < 0:
        writer.refuse(
            node,
            f"adds {-track.delay_frames} frames before the first frame of output {name!r}; expected none",
            "remove the padding from the model, and let the application pad",
        )
    return StreamedOutput(
        track.time_axis, track.frames_per_step, track.delay_frames, -(-track.delay_frames // track.frames_per_step)
    )
