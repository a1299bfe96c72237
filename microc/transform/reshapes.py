"""Rules for reshapes: neighbours merge, and a reshape before elementwise work moves behind it, where it parts no kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from microc.graph.ir import TensorType
from microc.graph.match import Match, P, Replacement, Rule
from microc.ops import registry
from microc.transform.axes import Shape


def elementwise_operators() -> frozenset[str]:
    """Names of the operators that compute each element from one element of every operand."""
    return frozenset(name for name, definition in registry.registry().items() if definition.elementwise)


def element_operands(match: Match) -> list[int]:
    """Positions of the operands that broadcast: those that are present and not read as a whole."""
    whole = registry.get(match.root.op).whole
    return [k for k, name in enumerate(match.root.inputs) if name and k not in whole]


def reshape_rules() -> tuple[Rule, ...]:
    """Merging reshapes, and moving them behind elementwise operators and padding."""
    return (
        (P.op("reshape", P.op("reshape", P.any("x"), shared=True)), _merge),
        (P.op(elementwise_operators()), _sink),
        (P.op("pad", P.op("reshape", P.any("x"), shared=True), name="pad"), _pad),
    )


def _merge(match: Match) -> Replacement:
    match.emit("reshape", (match["x"],), {"shape": match.type(match.output).shape})
    return match.replacement()


def _sink(match: Match) -> Replacement | None:
    """op(reshape(x), ...) -> reshape(op(x, ...)) where all other operands can be seen in the shape of x."""
    kind = match.type(match.output)
    inputs = list(match.root.inputs)
    positions = element_operands(match)
    sources = {k: _source(match, inputs[k], kind.shape) for k in positions}
    shapes = {match.type(source).shape for source in sources.values() if source}
    if len(shapes) != 1 or match.root.attrs.get("axis") is not None or len([o for o in match.root.outputs if o]) != 1:
        return None
    (shape,) = shapes
    if any(
        match.type(name).quant is not None and _per_axis(match.type(name)) for name in (*inputs, match.output) if name
    ):
        return None
    for k in positions:
        operand = sources[k] or _operand(match, inputs[k], kind.shape, shape)
        if not operand:
            return None
        inputs[k] = operand
    moved = match.emit(
        match.root.op, inputs, match.root.attrs, TensorType(shape, kind.dtype, kind.quant), f"{match.output}.moved"
    )
    match.emit("reshape", (moved,), {"shape": kind.shape})
    return match.replacement()


def _per_axis(kind: TensorType) -> bool:
    return kind.quant is not None and kind.quant.axis is not None


def _source(match: Match, value: str, shape: Shape) -> str:
    """What ``value`` is a reshape of, if it has all elements of the result."""
    producer = match.scope.producer(value)
    if producer is None or producer.op != "reshape" or match.type(value).shape != shape:
        return ""
    source = producer.inputs[0]
    return source if match.type(source).quant == match.type(value).quant else ""


def _operand(match: Match, value: str, before: Shape, after: Shape) -> str:
    """An operand as broadcasting to ``after`` wants it; empty where that takes more than another view of a constant."""
    shape = match.type(value).shape
    data = match.scope.consts.get(value)
    if match.type(value).size == 1 and len(shape) <= len(after):
        return value
    if data is None:
        return ""
    if data.size == 1:
        return match.constant(f"{value}.moved", data.reshape(()), _viewed(match, value, ()))
    if data.size == np.prod(before):
        return match.constant(f"{value}.moved", data.reshape(after), _viewed(match, value, after))
    if data.size == shape[-1] == before[-1] and after[-1:] == before[-1:]:
        return match.constant(f"{value}.moved", data.reshape(-1), _viewed(match, value, shape[-1:]))
    return ""


def _viewed(match: Match, value: str, shape: Sequence[int]) -> TensorType:
    kind = match.type(value)
    return TensorType(tuple(shape), kind.dtype, kind.quant)


def _pad(match: Match) -> Replacement | None:
    """pad(reshape(x)) -> reshape(pad(x)) where the reshape only adds or drops axes of one element, which are not padded."""
    source, result = match.type(match["x"]), match.type(match.output)
    padding, middle = match.root.attr("padding"), match.type(match.root.inputs[0])
    solid = [k for k, extent in enumerate(middle.shape) if extent != 1]
    own = [k for k, extent in enumerate(source.shape) if extent != 1]
    if [middle.shape[k] for k in solid] != [source.shape[k] for k in own] or source.quant != result.quant:
        return None
    if (result.quant and result.quant.axis is not None) or any(sum(p) for k, p in enumerate(padding) if k not in solid):
        return None
    wanted = [(0, 0)] * len(source.shape)
    for k, axis in zip(solid, own, strict=True):
        wanted[axis] = padding[k]
    shape = tuple(before + extent + after for extent, (before, after) in zip(source.shape, wanted, strict=True))
    kind = TensorType(shape, result.dtype, result.quant)
    padded = match.emit(
        "pad", (match["x"],), {**match.root.attrs, "padding": tuple(wanted)}, kind, f"{match.output}.moved"
    )
    match.emit("reshape", (padded,), {"shape": result.shape})
    return match.replacement()
