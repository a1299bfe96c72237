"""Factors and terms per channel in front of a layer of floats become part of its weights and bias.

With weights w, a factor s and a term t for each channel of x, sums over taps and channels are

    sum w (s x)     = sum (s w) x                      padding with zeros included;
    sum w (x + t)   = sum w x + sum w t                where no tap lies outside: padding would have to hold -t;
    f(s x + t)      = s f(x + t / s)                   for f that scales with its operand.

So a factor goes through pools, zeros around, reshapes that keep channels, terms and, if it is positive, clamps at zero to the
layer: a batch normalisation in front of an activation, as residual networks with pre-activation have it, costs one addition.

Error. With u = 2**-24, every product w (s x + t) was rounded three times and still is: |difference| <= 6 u |w| (|s x| + |t|), to
first order in u, before the sum over products. Weights on the levels of a scale (``ops/matrix/levels.py``) would no more be and
stay; so do those that several layers share, or have equal ones of.

TVM calls this FoldScaleAxis, in forward direction. Backwards, into the layer before, is in :mod:`microc.transform.scaling`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from microc.dtypes import Array
from microc.graph.ir import Graph, Node
from microc.graph.match import Match, P, Replacement, Scope
from microc.graph.rewriting import rewrite
from microc.ops.convolution.geometry import geometry
from microc.ops.matrix.levels import find_levels
from microc.transform.context import Pass, PassContext
from microc.transform.ranges import every_tap_inside

LAYERS = ("conv2d", "dense")
_LINEAR = ("avg_pool2d", "pad", "reshape")
_POSITIVE = ("relu", "max_pool2d")
_TERMS = ("add", "sub")


def fold_scale_axis(graph: Graph, context: PassContext) -> Graph:
    """Fold ``mul``, ``div``, ``add`` and ``sub`` of constants into ``conv2d`` and ``dense`` behind them."""
    return rewrite(graph, ((P.op(LAYERS), _with_term), (P.op(LAYERS), _with_factor)))


def _with_term(match: Match) -> Replacement | None:
    path = path_to(match, _TERMS, ("reshape",))
    term = by_channel(match, path)
    if term is None or not stays_inside(match) or not _pays(match):
        return None
    bias = shifted_bias(match, term if path[0].op == "sub" else -term)
    return emitted(match, path, bias=bias) if np.isfinite(bias).all() else None


def _pays(match: Match) -> bool:
    """Whether the layer has a bias already, or no more sums of a pixel start at one than numbers of it lose their term."""
    has_bias = len(match.root.inputs) > 2 and match.root.inputs[2]
    return bool(has_bias or match.type(match.output).shape[-1] <= match.type(match.root.inputs[0]).shape[-1])


def _with_factor(match: Match) -> Replacement | None:
    path = path_to(match, ("mul", "div"), (*_LINEAR, *_POSITIVE, *_TERMS))
    factor = by_channel(match, path)
    if factor is None or match.root.attrs.get("pad_value", 0):
        return None
    with np.errstate(all="ignore"):
        factor = 1 / factor.astype(np.float64) if path[0].op == "div" else factor
        weights = scaled_weights(match, factor)
        terms = {node.outputs[0]: _divided(match, node, factor) for node in path[1:] if node.op in _TERMS}
    if any(node.op in _POSITIVE for node in path) and not (factor > 0).all():
        return None
    normal = all(map(_is_normal, (weights, *terms.values())))
    return emitted(match, path, weights, constants=terms) if normal and _may_scale(match) else None


def _divided(match: Match, node: Node, factor: Array) -> Array:
    """The constant of a node behind a factor that goes to the layer."""
    constant = match.scope.consts[_operands(match.scope, node)[1]]
    count = 1 if (factor == factor[0]).all() else match.type(node.outputs[0]).shape[-1]
    return np.asarray(constant / factor[:count], constant.dtype)


def _is_normal(array: Array) -> bool:
    """Whether all numbers but zeros have their full precision."""
    size = np.abs(array[array != 0])
    return bool((np.isfinite(size) & (size >= np.finfo(array.dtype).tiny)).all())


def _may_scale(match: Match) -> bool:
    """Whether the layer's weights are stored for it alone, and on no levels."""
    name, consts = match.root.inputs[1], match.scope.consts
    weights = consts[name]
    if any(array.shape == weights.shape and np.array_equal(array, weights) for k, array in consts.items() if k != name):
        return False
    return match.scope.is_alone(name) and find_levels(weights.reshape(len(weights), -1)) is None


# ---------------------------------------------------------------- from a constant to the layer


def path_to(match: Match, wanted: Sequence[str], through: Sequence[str]) -> list[Node]:
    """The nodes from one of ``wanted``, which combines a value with a constant, over those of ``through`` to what the layer of
    floats reads, each for the next one alone; empty where there is no such path."""
    scope, layer = match.scope, match.root
    known = all(name in scope.consts for name in layer.inputs[1:] if name)
    if not known or scope.consts[layer.inputs[1]].dtype.kind != "f":
        return []
    if layer.attrs.get("dynamic") or layer.attrs.get("layout", "NHWC") != "NHWC":
        return []
    path: list[Node] = []
    value = layer.inputs[0]
    while True:
        node = scope.producer(value) if scope.is_alone(value) else None
        if node is None or node.attrs.get("activation") or node.op not in (*wanted, *through):
            return []
        path.insert(0, node)
        value, constant = _operands(scope, node)
        combines = node.op in (*_TERMS, "mul", "div")
        if combines and (not constant or match.type(value).shape != match.type(node.outputs[0]).shape):
            return []
        if node.op in wanted:
            return path
        if node.attrs.get("value") or node.attrs.get("layout", "NHWC") != "NHWC":
            return []


def _operands(scope: Scope, node: Node) -> tuple[str, str]:
    """The value that a node works on, and the constant that it combines that with; empty where there is none."""
    first, second = (*node.inputs, "")[:2]
    if second and second not in scope.consts and node.op in ("add", "mul"):
        first, second = second, first
    return first, second if second in scope.consts else ""


def by_channel(match: Match, path: Sequence[Node]) -> Array | None:
    """The constant of the first node of a path for each channel that the layer reads; None where it differs within one, or a
    reshape parts or mixes channels."""
    if not path:
        return None
    shape, width = match.type(path[0].outputs[0]).shape, match.type(match.root.inputs[0]).shape[-1]
    constant = match.scope.consts[_operands(match.scope, path[0])[1]]
    if constant.size and (constant == constant.flat[0]).all():
        return np.full(width, constant.flat[0])
    extents = [match.type(node.outputs[0]).shape[-1:] or (1,) for node in path]
    if any(after[0] % before[0] for before, after in pairwise(extents)):
        return None
    for period in (shape[-1], width) if all(node.op == "reshape" for node in path[1:]) else (shape[-1],):
        rows = np.broadcast_to(constant, shape).reshape(-1, period)
        if (rows == rows[0]).all():
            return np.tile(rows[0], width // period)
    return None


def emitted(
    match: Match,
    path: Sequence[Node],
    weights: Array | None = None,
    bias: Array | None = None,
    constants: Mapping[str, Array] = MappingProxyType({}),
) -> Replacement:
    """The layer with other weights or another bias, behind the path with other ``constants`` by the values that they make; the
    first node of the path goes unless it has one."""
    layer, (data, _) = match.root, _operands(match.scope, path[0])
    for node in path if path[0].outputs[0] in constants else path[1:]:
        inputs, value = [data, *node.inputs[1:]], node.outputs[0]
        if value in constants:
            inputs = [data, match.constant(f"{value}.constant", constants[value])]
        data = match.emit(node.op, inputs, node.attrs, match.type(value), value, node.loc)
    inputs = [data, *layer.inputs[1:]]
    if weights is not None:
        inputs[1] = match.constant(f"{layer.inputs[1]}.scaled", weights, match.type(layer.inputs[1]))
    if bias is not None:
        inputs[2:] = [match.constant(f"{match.output}.bias", bias)]
    match.emit(layer.op, inputs, layer.attrs)
    return match.replacement()


# ---------------------------------------------------------------- a layer's numbers


def scaled_weights(match: Match, factor: Array) -> Array:
    """The layer's weights times factors of its channels."""
    weights = match.scope.consts[match.root.inputs[1]]
    return np.asarray(weights * _by_weight(factor, weights, match.root), weights.dtype)


def shifted_bias(match: Match, means: Array) -> Array:
    """The layer's bias less its sums of ``means``."""
    layer, consts = match.root, match.scope.consts
    weights = consts[layer.inputs[1]]
    bias = consts[layer.inputs[2]].reshape(-1) if len(layer.inputs) > 2 and layer.inputs[2] else 0.0
    sums = (weights.astype(np.float64) * _by_weight(means, weights, layer)).reshape(len(weights), -1).sum(axis=1)
    return np.asarray(bias - sums, weights.dtype)


def _by_weight(vector: Array, weights: Array, layer: Node) -> Array:
    """Numbers of the data's channels beside the weights that meet them (O, ..., I), in groups."""
    groups = layer.attr("groups") if "groups" in layer.attrs else 1
    rows = np.repeat(vector.astype(np.float64).reshape(groups, -1), len(weights) // groups, axis=0)
    return rows.reshape(len(weights), *(1,) * (weights.ndim - 2), -1)


def stays_inside(match: Match) -> bool:
    """Whether no tap of the layer lies outside of its data."""
    layer = match.root
    if layer.op == "dense":
        return True
    if layer.attrs.get("open"):
        return False
    g = geometry(layer.attrs, match.type(layer.inputs[0]).shape, match.type(layer.inputs[1]).shape)
    return every_tap_inside(g)


PASS = Pass("scale_axis", fold_scale_axis, 3)
