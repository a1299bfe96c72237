"""Rules that fold scales and terms per channel, such as batch normalisation, into weights and bias of the layer before."""

from __future__ import annotations

import numpy as np

from microc.dtypes import Array
from microc.graph.ir import Attr, Node
from microc.graph.match import Match, P, Replacement, Rule

_LAYER = P.op(("conv2d", "dense"), attrs={"activation": "", "out_dtype": ""}, name="layer")


def scaling_rules() -> tuple[Rule, ...]:
    """add, sub, mul and div of a float layer's result and a constant per channel."""
    return (
        (P.op("add", _LAYER, P.const("c"), commutative=True), _shift),
        (P.op("sub", _LAYER, P.const("c")), _shift_back),
        (P.op("mul", _LAYER, P.const("c"), commutative=True), _scale),
        (P.op("div", _LAYER, P.const("c")), _scale_down),
    )


def _shift(match: Match) -> Replacement | None:
    return _folded(match, 1.0, match.const("c").astype(np.float64))


def _shift_back(match: Match) -> Replacement | None:
    return _folded(match, 1.0, -match.const("c").astype(np.float64))


def _scale(match: Match) -> Replacement | None:
    return _folded(match, match.const("c").astype(np.float64), 0.0)


def _scale_down(match: Match) -> Replacement | None:
    with np.errstate(divide="ignore"):
        return _folded(match, 1 / match.const("c").astype(np.float64), 0.0)


def _folded(match: Match, factor: Array | float, term: Array | float) -> Replacement | None:
    """The layer with weights times ``factor`` and bias times ``factor`` plus ``term``; rounded to float32 once.

    Weights that several layers share are not scaled: that would store them twice.
    """
    layer = match.nodes["layer"]
    data, weight, bias = (*layer.inputs, "")[:3]
    consts = match.scope.consts
    if weight not in consts or (bias and bias not in consts) or not _is_per_channel(match, layer):
        return None
    weights = consts[weight]
    if weights.dtype != np.float32 or match.type(data).dtype != "float32":
        return None
    units = weights.shape[0]
    scale, shift = (np.broadcast_to(np.asarray(x).reshape(-1), (units,)) for x in (factor, term))
    old = consts[bias].astype(np.float64).reshape(-1) if bias else np.zeros(units)
    with np.errstate(over="ignore", invalid="ignore"):
        new_bias = (old * scale + shift).astype(np.float32)
        new_weights = (weights * scale.reshape(units, *[1] * (weights.ndim - 1))).astype(np.float32)
    if not np.isfinite(new_weights).all() or not np.isfinite(new_bias).all():
        return None
    inputs = [data, weight]
    if not (scale == 1).all():
        if not match.scope.is_alone(weight):
            return None
        inputs[1] = match.constant(f"{weight}.scaled", new_weights, match.type(weight))
    if bias or new_bias.any():
        inputs.append(match.constant(f"{match.output}.bias", new_bias))
    activation: Attr = match.root.attrs.get("activation", "")
    match.emit(layer.op, inputs, {**layer.attrs, "activation": activation}, loc=layer.loc)
    return match.replacement()


def _is_per_channel(match: Match, layer: Node) -> bool:
    """Whether the constant varies along the layer's channels alone, and leaves the result's shape as it is."""
    made, result, shape = match.type(layer.outputs[0]), match.type(match.output), match.const("c").shape
    if made.shape != result.shape or len(shape) > len(made.shape):
        return False
    channel = -3 if layer.attrs.get("layout") == "NCHW" else -1
    return all(extent == 1 or axis - len(shape) == channel for axis, extent in enumerate(shape))
