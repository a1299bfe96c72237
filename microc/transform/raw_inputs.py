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
from microc.graph.ir import Graph, Node
from microc.graph.match import Match, P, Replacement, Rule, Scope
from microc.graph.rewriting import rewrite
from microc.transform.context import Pass, PassContext
from microc.transform.scale_axis import LAYERS, by_channel, emitted, path_to, scaled_weights, shifted_bias, stays_inside

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
