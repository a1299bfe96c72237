"""Factors and terms per channel become part of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.graph.ir import Attr, Graph, Node
from microc.graph.match import Match, P, Replacement, Rule, Scope, rewrite
from microc.ops.convolution.geometry import geometry
from microc.ops.matrix.gemm import find_levels
from microc.transform.pass_context import Pass, PassContext
from microc.transform.quantised.integer_ranges import every_tap_inside

# ---- Rules that fold scales and terms per channel, such as batch normalisation, into weights and bias of the layer
# before.

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


# ---- Factors and terms per channel in front of a layer of floats become part of its weights and bias.
#
# With weights w, a factor s and a term t for each channel of x, sums over taps and channels are
#
#     sum w (s x)     = sum (s w) x                      padding with zeros included;
#     sum w (x + t)   = sum w x + sum w t                where no tap lies outside: padding would have to hold -t;
#     f(s x + t)      = s f(x + t / s)                   for f that scales with its operand.
#
# So a factor goes through pools, zeros around, reshapes that keep channels, terms and, if it is positive, clamps at zero to the
# layer: a batch normalisation in front of an activation, as residual networks with pre-activation have it, costs one addition.
#
# Error. With u = 2**-24, every product w (s x + t) was rounded three times and still is: |difference| <= 6 u |w| (|s x| + |t|),
# to first order in u, before the sum over products. Weights on the levels of a scale (``ops/matrix/gemm.py``) would no more be
# and stay; so do those that several layers share, or have equal ones of.
#
# TVM calls this FoldScaleAxis, in forward direction. Backwards, into the layer before, is in :mod:`microc.transform.scale_axis`.

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


# ---- What is done to raw numbers before the first layer becomes part of its weights and bias.
#
# With x raw, weights w, and for each channel a factor s and a mean m, sums over taps and channels are
#
#     sum w (s x) = sum (s w) x                    padding with zeros included, for s 0 = 0;
#     sum w (x - m) = sum w x - sum w m            where no tap lies outside: padding would have to hold m;
#     sum w x[reversed channels] = sum w[reversed channels] x.
#
# Sums of floats are rounded otherwise: s w once for each weight, and of sum w x each product at most by as much more as x exceeds
# x - m. Only what comes from outside is folded, which is an input or integers made floats: weights elsewhere may be levels of a
# scale (``ops/matrix/gemm.py``), and would no more be.
#
# The reversal is exact for integers, too. It goes with the numbers through what is done to each of them, up to the layer.

_BYTES = ("int8", "uint8")
_ELEMENTWISE = ("cast", "sub", "add", "mul", "quantize", "dequantize", "lookup")


def fold_scales(graph: Graph, context: PassContext) -> Graph:
    """Factors and reversed channels. Means stay, which integers have as their zero point."""
    return rewrite(graph, (_sinking(), (P.op(LAYERS), _with_factors), (P.op(LAYERS), _with_reversed_channels)))


def fold_shifts(graph: Graph, context: PassContext) -> Graph:
    """Means."""
    return rewrite(graph, ((P.op(LAYERS), _with_means),))


def centre(graph: Graph, context: PassContext) -> Graph:
    """Means of bytes become one byte, which is a zero point; what is left of them goes into the bias.

    Where padding is seen, that is done with at most half a byte's step: then zeros at the border are so much off.
    """
    return rewrite(graph, ((P.op(LAYERS), _with_rounded_means),))


# ---------------------------------------------------------------- factors and means


def _with_factors(match: Match) -> Replacement | None:
    path = _raw_path(match, "mul")
    factor = by_channel(match, path)
    if factor is None or match.root.attrs.get("pad_value", 0):
        return None
    with np.errstate(over="ignore"):
        scaled = scaled_weights(match, factor)
    return emitted(match, path, scaled) if np.isfinite(scaled).all() else None


def _with_means(match: Match) -> Replacement | None:
    path = _raw_path(match, "sub")
    means = by_channel(match, path)
    if means is None or not stays_inside(match):
        return None
    bias = shifted_bias(match, means)
    return emitted(match, path, bias=bias) if np.isfinite(bias).all() else None


def _with_rounded_means(match: Match) -> Replacement | None:
    path = _raw_path(match, "sub")
    means = by_channel(match, path)
    source = match.scope.producer(path[0].inputs[0]) if path else None
    if means is None or source is None or source.op != "cast":
        return None
    node, dtype = path[0], match.type(source.inputs[0]).dtype
    zero = np.rint(means.mean())
    is_byte = dtype in _BYTES and dtypes.int_range(dtype)[0] <= zero <= dtypes.int_range(dtype)[1]
    if not is_byte or (means == zero).all() or not (stays_inside(match) or np.abs(means - zero).max() <= 0.5):
        return None
    point = np.full_like(match.scope.consts[node.inputs[1]], zero)
    return emitted(match, path, bias=shifted_bias(match, means - zero), constants={node.outputs[0]: point})


def _raw_path(match: Match, op: str) -> list[Node]:
    """From the node that combines raw numbers with constants to the layer of floats that reads them. A reshape may lie in
    between, to rows where channels differ."""
    path = path_to(match, (op,), ("reshape",))
    return path if path and _is_raw(match.scope, path[0].inputs[0]) else []


def _sole_producer(scope: Scope, value: str) -> Node | None:
    return scope.producer(value) if scope.is_alone(value) else None


def _is_raw(scope: Scope, value: str) -> bool:
    """Whether numbers come from outside, as they are or made floats, shifted or scaled."""
    node = scope.producer(value)
    if node is None:
        return value not in scope.consts
    if node.op == "cast":
        return dtypes.is_integer(scope.type(node.inputs[0]).dtype)
    combined = node.op in ("sub", "add", "mul") and node.inputs[1] in scope.consts
    return (combined or node.op == "reverse") and _is_raw(scope, node.inputs[0])


# ---------------------------------------------------------------- reversed channels


def _with_reversed_channels(match: Match) -> Replacement | None:
    scope, layer = match.scope, match.root
    node, weight = _sole_producer(scope, layer.inputs[0]), layer.inputs[1]
    if node is None or not _reverses_channels(match, node) or not _takes_channels(scope, layer):
        return None
    turned = np.ascontiguousarray(scope.consts[weight][..., ::-1])
    inputs = (node.inputs[0], match.constant(f"{weight}.reversed", turned, match.type(weight)), *layer.inputs[2:])
    match.emit(layer.op, inputs, layer.attrs)
    return match.replacement()


def _sinking() -> Rule:
    return P.op(_ELEMENTWISE), _sunk


def _sunk(match: Match) -> Replacement | None:
    """The reversal behind an operator on every number, where a layer follows that can take it."""
    scope, root = match.scope, match.root
    node = _sole_producer(scope, root.inputs[0])
    plain = root.attrs.get("axis") is None and all(name in scope.consts for name in root.inputs[1:])
    if node is None or not plain or not _reverses_channels(match, node) or not _meets_layer(match, match.output):
        return None
    kind, inputs = match.type(match.output), [node.inputs[0]]
    for name in root.inputs[1:]:
        array = scope.consts[name]
        varies = root.op != "lookup" and array.ndim and array.shape[-1] > 1
        turned = np.ascontiguousarray(array[..., ::-1])
        inputs.append(match.constant(f"{name}.reversed", turned, match.type(name)) if varies else name)
    made = match.emit(root.op, inputs, root.attrs, kind)
    match.emit("reverse", (made,), node.attrs, loc=node.loc)
    return match.replacement()


def _reverses_channels(match: Match, node: Node) -> bool:
    return node.op == "reverse" and node.attr("axes") == (len(match.type(node.outputs[0]).shape) - 1,)


def _takes_channels(scope: Scope, layer: Node) -> bool:
    of_all = layer.op == "dense" or (layer.attrs.get("layout") == "NHWC" and layer.attrs.get("groups", 1) == 1)
    return of_all and layer.inputs[1] in scope.consts and scope.is_alone(layer.inputs[1])


def _meets_layer(match: Match, value: str) -> bool:
    """Whether all that becomes of a value, through operators on every number, is a layer's data."""
    scope = match.scope
    readers = scope.readers.get(value, ())
    if len(readers) != 1 or not scope.is_alone(value) or readers[0].inputs[0] != value:
        return False
    if readers[0].op in LAYERS:
        return _takes_channels(scope, readers[0])
    plain = readers[0].attrs.get("axis") is None and all(name in scope.consts for name in readers[0].inputs[1:])
    return readers[0].op in _ELEMENTWISE and plain and _meets_layer(match, readers[0].outputs[0])


SCALES = Pass("raw_inputs", fold_scales, 3)
SHIFTS = Pass("raw_inputs", fold_shifts, 3)
CENTRED = Pass("raw_inputs", centre, 3)
