"""What is done to raw numbers before the first layer becomes part of its weights and bias.

With x raw, weights w, and for each channel a factor s and a mean m, sums over taps and channels are

    sum w (s x) = sum (s w) x                    padding with zeros included, for s 0 = 0;
    sum w (x - m) = sum w x - sum w m            where no tap lies outside: padding would have to hold m;
    sum w x[reversed channels] = sum w[reversed channels] x.

Sums of floats are rounded otherwise: s w once for each weight, and of sum w x each product at most by as much more as x exceeds
x - m. Only what comes from outside is folded, which is an input or integers made floats: weights elsewhere may be levels of a
scale (``ops/matrix/levels.py``), and would no more be.

The reversal is exact for integers, too. It goes with the numbers through what is done to each of them, up to the layer.
"""

from __future__ import annotations

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.graph.ir import Graph, Node
from microc.graph.match import Match, P, Replacement, Rule, Scope
from microc.graph.rewriting import rewrite
from microc.ops.convolution.geometry import geometry
from microc.transform.context import Pass, PassContext
from microc.transform.ranges import tap_sets

_LAYERS = ("conv2d", "dense")
_BYTES = ("int8", "uint8")
_ELEMENTWISE = ("cast", "sub", "add", "mul", "quantize", "dequantize", "lookup")


def fold_scales(graph: Graph, context: PassContext) -> Graph:
    """Factors and reversed channels. Means stay, which integers have as their zero point."""
    return rewrite(graph, (_sinking(), (P.op(_LAYERS), _with_factors), (P.op(_LAYERS), _with_reversed_channels)))


def fold_shifts(graph: Graph, context: PassContext) -> Graph:
    """Means."""
    return rewrite(graph, ((P.op(_LAYERS), _with_means),))


def centre(graph: Graph, context: PassContext) -> Graph:
    """Means of bytes become one byte, which is a zero point; what is left of them goes into the bias.

    Where padding is seen, that is done with at most half a byte's step: then zeros at the border are so much off.
    """
    return rewrite(graph, ((P.op(_LAYERS), _with_rounded_means),))


# ---------------------------------------------------------------- factors and means


def _with_factors(match: Match) -> Replacement | None:
    found = _applied(match, "mul")
    if found is None or match.root.attrs.get("pad_value", 0):
        return None
    node, vector = found
    weights = match.scope.consts[match.root.inputs[1]]
    with np.errstate(over="ignore"):
        scaled = (weights * _by_weight(vector, weights, match.root)).astype(weights.dtype)
    return _emitted(match, node.inputs[0], scaled) if np.isfinite(scaled).all() else None


def _with_means(match: Match) -> Replacement | None:
    found = _applied(match, "sub")
    if found is None or not _stays_inside(match):
        return None
    bias = _shifted(match, found[1])
    return _emitted(match, found[0].inputs[0], bias=bias) if np.isfinite(bias).all() else None


def _with_rounded_means(match: Match) -> Replacement | None:
    found = _applied(match, "sub")
    source = match.scope.producer(found[0].inputs[0]) if found is not None else None
    if found is None or source is None or source.op != "cast":
        return None
    (node, means), dtype = found, match.type(source.inputs[0]).dtype
    zero = np.rint(means.mean())
    is_byte = dtype in _BYTES and dtypes.int_range(dtype)[0] <= zero <= dtypes.int_range(dtype)[1]
    if not is_byte or (means == zero).all() or not (_stays_inside(match) or np.abs(means - zero).max() <= 0.5):
        return None
    point = match.constant(f"{node.outputs[0]}.zero", np.full_like(match.scope.consts[node.inputs[1]], zero))
    centred = match.emit("sub", (node.inputs[0], point), node.attrs, match.type(node.outputs[0]), loc=node.loc)
    return _emitted(match, centred, bias=_shifted(match, means - zero))


def _shifted(match: Match, means: Array) -> Array:
    """The layer's bias less its sums of ``means``."""
    layer, consts = match.root, match.scope.consts
    weights = consts[layer.inputs[1]]
    bias = consts[layer.inputs[2]].reshape(-1) if len(layer.inputs) > 2 and layer.inputs[2] else 0.0
    sums = (weights.astype(np.float64) * _by_weight(means, weights, layer)).reshape(len(weights), -1).sum(axis=1)
    return np.asarray(bias - sums, weights.dtype)


def _applied(match: Match, op: str) -> tuple[Node, Array] | None:
    """The node that combines what a layer of floats reads, raw numbers, with constants, and these for each of the layer's
    channels. A reshape may lie in between, to rows where channels differ."""
    scope, layer = match.scope, match.root
    known = all(name in scope.consts for name in layer.inputs[1:] if name)
    if not known or scope.consts[layer.inputs[1]].dtype.kind != "f" or layer.attrs.get("dynamic"):
        return None
    node = _sole_producer(scope, layer.inputs[0])
    moved = node is not None and node.op == "reshape"
    if moved and node is not None:
        node = _sole_producer(scope, node.inputs[0])
    if node is None or node.op != op or node.attrs.get("activation") or node.inputs[1] not in scope.consts:
        return None
    constant, shape = scope.consts[node.inputs[1]], match.type(node.outputs[0]).shape
    if match.type(node.inputs[0]).shape != shape or not _is_raw(scope, node.inputs[0]):
        return None
    is_conv = layer.op == "conv2d"
    if is_conv and layer.attrs.get("layout") != "NHWC":
        return None
    width = match.type(layer.inputs[0]).shape[-1]
    if (constant == constant.flat[0]).all():
        return node, np.full(width, constant.flat[0])
    if is_conv:
        return (node, constant.reshape(-1)) if not moved and constant.size == constant.shape[-1] else None
    rows = np.broadcast_to(constant, shape).reshape(-1, width)
    return (node, rows[0]) if (rows == rows[0]).all() else None


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


def _by_weight(vector: Array, weights: Array, layer: Node) -> Array:
    """Numbers of the data's channels beside the weights that meet them (O, ..., I), in groups."""
    groups = layer.attr("groups") if "groups" in layer.attrs else 1
    rows = np.repeat(vector.astype(np.float64).reshape(groups, -1), len(weights) // groups, axis=0)
    return rows.reshape(len(weights), *(1,) * (weights.ndim - 2), -1)


def _stays_inside(match: Match) -> bool:
    layer = match.root
    if layer.op == "dense":
        return True
    if layer.attrs.get("open"):
        return False
    g = geometry(layer.attrs, match.type(layer.inputs[0]).shape, match.type(layer.inputs[1]).shape)
    return all(bool(taps.all()) for taps in tap_sets(g))


def _emitted(match: Match, data: str, weights: Array | None = None, bias: Array | None = None) -> Replacement:
    """The layer on other data, in rows where it reads rows, with other weights or another bias."""
    layer = match.root
    between = match.scope.producer(layer.inputs[0])
    if between is not None and between.op == "reshape":
        kind = match.type(between.outputs[0])
        data = match.emit("reshape", (data,), between.attrs, kind, between.outputs[0], between.loc)
    inputs = [data, *layer.inputs[1:]]
    if weights is not None:
        inputs[1] = match.constant(f"{layer.inputs[1]}.scaled", weights, match.type(layer.inputs[1]))
    if bias is not None:
        inputs[2:] = [match.constant(f"{match.output}.bias", bias)]
    match.emit(layer.op, inputs, layer.attrs)
    return match.replacement()


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
    if readers[0].op in _LAYERS:
        return _takes_channels(scope, readers[0])
    plain = readers[0].attrs.get("axis") is None and all(name in scope.consts for name in readers[0].inputs[1:])
    return readers[0].op in _ELEMENTWISE and plain and _meets_layer(match, readers[0].outputs[0])


SCALES = Pass("raw_inputs", fold_scales)
SHIFTS = Pass("raw_inputs", fold_shifts)
CENTRED = Pass("raw_inputs", centre)
