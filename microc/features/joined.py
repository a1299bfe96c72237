"""Features in front of a network, as one graph: raw samples go in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from microc.driver import accepted
from microc.driver.model import load
from microc.errors import UnsupportedError, UsageError, suggestion
from microc.features.microfrontend import MicroFrontend
from microc.features.pipeline import Pipeline
from microc.features.stage import Signal
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph, Node, TensorType
from microc.ops import registry

Front = Pipeline | MicroFrontend


def join(front: Front, model: Any, *, input: str = "", bands_first: bool = False) -> Graph:
    """One graph of a pipeline and a network: (1, samples) go in, as many as the network's frames need.

    ``model``: what :func:`microc.compile` takes. ``input``: which of its inputs takes the features (its only one unless given),
    of shape (1, frames, numbers), with further axes of 1 or flattened; ``bands_first``: (1, numbers, frames). Integers are
    quantised to the input's type and scale. UsageError where shapes do not fit.
    """
    if not isinstance(front, (Pipeline, MicroFrontend)):
        raise accepted.refused("front", front, "a pipeline, such as microc.features.log_mel(), or a MicroFrontend")
    network = load(model)
    name = _input_of(network, input)
    kind, width = network.types[name], _width(front)
    frames = kind.size // width
    if frames * width != kind.size or not frames:
        hint = f"the features are {width} numbers a frame: give the pipeline as many as the network was trained on"
        raise UsageError(
            f"input {name!r} of shape {list(kind.shape)} is no number of frames", where=network.name, hint=hint
        )
    _check_order(kind, frames, width, bands_first, network.name, name)
    net = GraphBuilder("features")
    net.types.update(network.types)
    signal = front.write(net, front.samples(frames))
    if signal.shape[1] != frames:
        raise UsageError(f"the pipeline makes {signal.shape[1]} frames where {frames} are wanted", where=network.name)
    signal = _ordered(signal, bands_first)
    features = net.graph("features", {"features": _stored(signal, kind, network.name, name)})
    reshaped = Node("reshape", features.outputs, (name,), {"shape": kind.shape}, network.place(name))
    inputs = tuple(features.inputs[0] if each == name else each for each in network.inputs)
    known = {**features.types, **network.types}
    consts, state = {**features.consts, **network.consts}, {**features.state, **network.state}
    updates = {**features.updates, **network.updates}
    both = replace(network, inputs=inputs, types=known, consts=consts, state=state, updates=updates)
    return both.with_nodes((*features.nodes, reshaped, *network.nodes))


def _input_of(network: Graph, name: str) -> str:
    if not name and len(network.inputs) == 1:
        return network.inputs[0]
    if name not in network.inputs:
        what = f"the network has no input {name!r}" if name else "the network has several inputs"
        hint = suggestion(name, network.inputs, "inputs") if name else "give input, one of " + ", ".join(network.inputs)
        raise UsageError(what, where=network.name, hint=hint)
    return name


def _width(front: Front) -> int:
    """How many numbers a frame has."""
    shape = front.graph(front.samples(1)).types["features"].shape
    if len(shape) < 3:
        raise UsageError(
            "the pipeline makes samples, no frames", hint="end it with Frames, to say how many samples go in"
        )
    width = 1
    for extent in shape[2:]:
        width *= extent
    return width


def _check_order(kind: TensorType, frames: int, width: int, bands_first: bool, where: str, name: str) -> None:
    """Refuse an input whose axes stand the other way round than is said."""
    found = [extent for extent in kind.shape if extent != 1]
    wanted = [extent for extent in ((width, frames) if bands_first else (frames, width)) if extent != 1]
    if found == wanted[::-1] and found != wanted:
        hint = "bands_first=False" if bands_first else "bands_first=True"
        raise UsageError(
            f"input {name!r} of shape {list(kind.shape)} has its axes the other way round", where=where, hint=hint
        )


def _ordered(signal: Signal, bands_first: bool) -> Signal:
    if not bands_first:
        return signal
    axes: Sequence[int] = (0, *range(2, len(signal.shape)), 1)
    quant = signal.net.type(signal.value).quant
    turned = signal.op("transpose", axes=tuple(axes))
    signal.net.set_quant(turned.value, quant)
    return turned


def _stored(signal: Signal, kind: TensorType, where: str, name: str) -> str:
    """The features as the network's input holds them."""
    if kind.dtype == "float32":
        return signal.real().value
    if kind.quant is None or len(kind.quant.scale) != 1 or kind.dtype not in ("int8", "uint8", "int16", "uint16"):
        hint = "a float32 input, or integers with one scale and zero point"
        raise UnsupportedError(f"input {name!r} is {kind.dtype} without a scale", where=where, hint=hint)
    net = signal.net
    attrs = {"scale": kind.quant.scale, "zero_point": kind.quant.zero_point, "axis": None, "out_dtype": kind.dtype}
    made = net.emit("quantize", (signal.value,), {**registry.get("quantize").defaults, **attrs})
    return net.set_quant(made, kind.quant)
