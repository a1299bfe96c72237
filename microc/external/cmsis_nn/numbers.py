"""What CMSIS-NN's structures hold, from a region: integers as the legalised layer has them, and extents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from microc.dtypes import Array
from microc.errors import MicrocError
from microc.external.backend import Region
from microc.frozen import frozen
from microc.graph.ir import Graph, Node
from microc.isa import CORES
from microc.ops.rounding import Multiplier, Rounding
from microc.target import Target
from microc.transform.context import PassContext
from microc.transform.legalize import legalize

MVE, DSP, PLAIN = "mve", "dsp", "plain"
_SETS = (("Arm MVE", MVE), ("Arm DSP", DSP))


def kind_of(target: Target) -> str:
    """Which of the library's three versions a core compiles."""
    sets = {each.name for each in CORES[target.cpu].sets}
    return next((kind for name, kind in _SETS if name in sets), PLAIN)


@frozen
class Scaled:
    """The requantisation of a layer: ``multiplier`` and ``shift`` (positive to the left) of each channel, or of all."""

    multiplier: Array
    shift: Array
    zero_point: int
    minimum: int
    maximum: int


def core_of(region: Region) -> dict[str, Node]:
    """The region's core operators by name; none where there are several of one, or integers do not do it."""
    try:
        nodes = legalize(region.graph, PassContext()).nodes
    except MicrocError:
        return {}
    found = {node.op: node for node in nodes}
    return found if len(found) == len(nodes) else {}


def scaled(region: Region) -> Scaled:
    """The requantisation of a region that a check has passed."""
    graph = legalize(region.graph, PassContext())
    return requantisation(graph, next(node for node in graph.nodes if node.op == "requantize"))


def requantisation(graph: Graph, node: Node) -> Scaled:
    """The numbers of a ``requantize`` of a legalised graph."""
    operands = [graph.consts[name] for name in node.inputs[1:] if name]
    numbers = []
    for name in ("multiplier", "shift"):
        value = node.attr(name)
        numbers.append(np.array([value]) if value is not None else operands.pop(0).reshape(-1))
    multiplier, shift = (array.astype(np.int32) for array in numbers)
    if node.attr("rounding") == Multiplier.WIDE:  # the upper half, which the library takes of a whole one
        multiplier = multiplier << 16
    return Scaled(multiplier, shift, node.attr("zero_point"), node.attr("minimum"), node.attr("maximum"))


def zero_point(region: Region, value: str) -> int:
    quant = region.type(value).quant
    assert quant is not None
    return quant.zero_point[0]


SUFFIXES = {"int8": "s8", "int16": "s16"}
"""What functions' names end with, by the dtype of data."""


def suffix_of(region: Region) -> str:
    return SUFFIXES[region.output_types[0].dtype]


def refused(region: Region, ops: Sequence[str]) -> str:
    """Why a region's numbers are not for the library: dtypes of data, rounding, and what the layer is in integers."""
    types = [region.type(name) for name in (region.root.inputs[0], region.root.outputs[0])]
    for kind in types:
        if kind.dtype not in SUFFIXES or kind.dtype != types[0].dtype:
            return f"it has data of {kind.dtype}, the library of {' or '.join(SUFFIXES)}"
        if kind.quant is None or kind.quant.axis is not None:
            return "its data are not quantised, or by channel"
    if region.root.attrs.get("rounding", Rounding.DOUBLE) != Rounding.DOUBLE:
        return f"it is rounded as {region.root.attr('rounding')}, the library rounds twice, as TFLite Micro does"
    core = core_of(region)
    if set(core) != set(ops):
        return f"it is {' and '.join(core) or 'no layer'} of integers, not {' and '.join(ops)}"
    return ""


def structure(kind: str, name: str, **fields: object) -> str:
    """A constant of one of the library's structures, member by member."""
    return f"const {kind} {name} = {{{', '.join(f'.{key} = {_words(value)}' for key, value in fields.items())}}};"


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'.{key} = {_words(part)}' for key, part in value.items())}}}"
    return str(value)


def dims(name: str, *extents: int) -> str:
    """Of images or rows, height, width, channels."""
    return structure("cmsis_nn_dims", name, **dict(zip("nhwc", extents, strict=True)))


def tile(extents: Sequence[int]) -> dict[str, int]:
    """Of height and width."""
    return {"w": extents[1], "h": extents[0]}


def context(workspace: int) -> str:
    return structure("cmsis_nn_context", "context", buf="scratch" if workspace else "NULL", size=workspace)
