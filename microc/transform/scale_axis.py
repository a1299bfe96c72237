# SPDX-License-Identifier: Apache-2.0
"""Folding of per-channel factors and terms into the weights and bias of a layer.

There are three groups of rules: those that fold into the preceding layer (batch normalisation), the pass ``scale_axis``
that folds into the following layer, and the passes ``raw_inputs`` that fold the preprocessing of raw inputs into the
first layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.graph.ir import Attr, Graph, Node
from microc.graph.match import Match, P, Replacement, Rule, Scope, rewrite
from microc.ops import registry
from microc.ops.matrix.gemm import recover_quantised_weights
from microc.transform.pass_context import Pass, PassContext

# ---- Rules that fold per-channel factors and terms, such as batch normalisation, into the preceding layer.


def scale_folding_rules() -> tuple[Rule, ...]:
    """Return rules that fold add, sub, mul and div by a per-channel constant into the preceding float layer."""
    # Layers without activation whose results have the dtype of their data.
    layer = P.op(registry.layer_operators(), attrs={"activation": "", "out_dtype": ""}, name="layer")
    return (
        (P.op("add", layer, P.const("c"), commutative=True), _fold_following_add),
        (P.op("sub", layer, P.const("c")), _fold_following_sub),
        (P.op("mul", layer, P.const("c"), commutative=True), _fold_following_mul),
        (P.op("div", layer, P.const("c")), _fold_following_div),
    )


def _fold_following_add(match: Match) -> Replacement | None:
    return _fold_into_layer(match, 1.0, match.const("c").astype(np.float64))


def _fold_following_sub(match: Match) -> Replacement | None:
    return _fold_into_layer(match, 1.0, -match.const("c").astype(np.float64))


def _fold_following_mul(match: Match) -> Replacement | None:
    return _fold_into_layer(match, match.const("c").astype(np.float64), 0.0)


def _fold_following_div(match: Match) -> Replacement | None:
    with np.errstate(divide="ignore"):
        return _fold_into_layer(match, 1 / match.const("c").astype(np.float64), 0.0)


def _fold_into_layer(match: Match, factor: Array | float, term: Array | float) -> Replacement | None:
    """Emit the layer with its weights times ``factor``, and its bias times ``factor`` plus ``term``. Each is rounded to
    float32 once.

    Weights that several layers share are not scaled, because they would be stored twice."""
    layer = match.nodes["layer"]
    data, weight, bias = (*layer.inputs, "")[:3]
    consts = match.scope.consts
    product = registry.product_of(layer, match.scope.types)
    if product is None or product.transposed or not _is_constant_per_channel(match, layer, product.channel_axis):
        return None
    if weight not in consts or (bias and bias not in consts):
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
        if not match.scope.has_only_one_reader(weight):
            return None
        inputs[1] = match.constant(f"{weight}.scaled", new_weights, match.type(weight))
    if bias or new_bias.any():
        inputs.append(match.constant(f"{match.output}.bias", new_bias))
    activation: Attr = match.root.attrs.get("activation", "")
    match.emit(layer.op, inputs, {**layer.attrs, "activation": activation}, loc=layer.loc)
    return match.replacement()


def _is_constant_per_channel(match: Match, layer: Node, channel_axis: int) -> bool:
    """Test whether the constant varies along the layer's channels only and does not change the shape of the result."""
    layer_type, result, shape = match.type(layer.outputs[0]), match.type(match.output), match.const("c").shape
    if layer_type.shape != result.shape or len(shape) > len(layer_type.shape):
        return False
    return all(extent == 1 or axis - len(shape) == channel_axis for axis, extent in enumerate(shape))


# ---- Rules that fold per-channel factors and terms into the following float layer.
#
# With weights w, a factor s and a term t for each channel of x, sums over taps and channels are
#
#     sum w (s x)     = sum (s w) x                      also with padding by zeros;
#     sum w (x + t)   = sum w x + sum w t                if no tap reads padding, whose value would have to be -t;
#     f(s x + t)      = s f(x + t / s)                   for functions f with f(s x) = s f(x).
#
# Therefore a factor can move to the layer through pools, zero padding, reshapes that keep channels, terms and, if it is positive,
# ReLU. A batch normalisation before an activation, as in residual networks with pre-activation, then costs one addition.
#
# Error. With u = 2**-24, every product w (s x + t) was rounded three times and still is: |difference| <= 6 u |w| (|s x| + |t|),
# to first order in u, before the sum over products. Weights that are integer multiples of a scale (``ops/matrix/gemm.py``) are
# not scaled, because they would lose this form; neither are weights that several layers share or that equal another constant.
#
# TVM calls this FoldScaleAxis, in forward direction. The backward direction, into the preceding layer, is
# :func:`scale_folding_rules`.

_LINEAR = ("avg_pool2d", "pad", "reshape")
"""Operators through which any factor can move."""
_POSITIVE = ("relu", "max_pool2d")
"""Operators through which a positive factor can move."""
_TERMS = ("add", "sub")
"""Operators that add or subtract a term."""


def fold_scale_axis(graph: Graph, context: PassContext) -> Graph:
    """Fold ``mul``, ``div``, ``add`` and ``sub`` by constants into the following layer."""
    layer = P.op(registry.layer_operators())
    return rewrite(graph, ((layer, _fold_preceding_term), (layer, _fold_preceding_factor)))


def _fold_preceding_term(match: Match) -> Replacement | None:
    """Fold the addition or subtraction of a constant before a layer into the bias of the layer."""
    path = find_constant_path(match, _TERMS, ("reshape",))
    term = expand_path_constant_by_channel(match, path)
    if term is None or not reads_no_padding(match) or not _does_folding_term_save_work(match):
        return None
    bias = subtract_means_from_bias(match, term if path[0].op == "sub" else -term)
    return emit_path_and_layer(match, path, bias=bias) if np.isfinite(bias).all() else None


def _does_folding_term_save_work(match: Match) -> bool:
    """Test whether folding a term saves work.

    It does if the layer already has a bias, or if the new bias has no more channels than the term that is removed."""
    has_bias = len(match.root.inputs) > 2 and match.root.inputs[2]
    return bool(has_bias or match.type(match.output).shape[-1] <= match.type(match.root.inputs[0]).shape[-1])


def _fold_preceding_factor(match: Match) -> Replacement | None:
    """Fold the multiplication or division by a constant before a layer into the weights of the layer."""
    path = find_constant_path(match, ("mul", "div"), (*_LINEAR, *_POSITIVE, *_TERMS))
    factor = expand_path_constant_by_channel(match, path)
    if factor is None or match.root.attrs.get("pad_value", 0):
        return None
    with np.errstate(all="ignore"):
        factor = 1 / factor.astype(np.float64) if path[0].op == "div" else factor
        weights = scale_weights(match, factor)
        terms = {node.outputs[0]: _divide_constant_term(match, node, factor) for node in path[1:] if node.op in _TERMS}
    if any(node.op in _POSITIVE for node in path) and not (factor > 0).all():
        return None
    normal = all(map(_are_all_zero_or_normal, (weights, *terms.values())))
    return emit_path_and_layer(match, path, weights, constants=terms) if normal and _can_scale_weights(match) else None


def _divide_constant_term(match: Match, node: Node, factor: Array) -> Array:
    """Return the constant term of a node that the factor passes, divided by the factor: s x + t = s (x + t / s)."""
    constant = match.scope.consts[_split_computed_and_constant_operand(match.scope, node)[1]]
    count = 1 if (factor == factor[0]).all() else match.type(node.outputs[0]).shape[-1]
    return np.asarray(constant / factor[:count], constant.dtype)


def _are_all_zero_or_normal(array: Array) -> bool:
    """Test whether all numbers of an array are zero or normal: finite, with full precision."""
    magnitude = np.abs(array[array != 0])
    return bool((np.isfinite(magnitude) & (magnitude >= np.finfo(array.dtype).tiny)).all())


def _can_scale_weights(match: Match) -> bool:
    """Test whether only this layer uses its weights, and they are not integer multiples of a scale, which are stored as
    integers."""
    name, consts = match.root.inputs[1], match.scope.consts
    weights = consts[name]
    if any(array.shape == weights.shape and np.array_equal(array, weights) for k, array in consts.items() if k != name):
        return False
    return (
        match.scope.has_only_one_reader(name) and recover_quantised_weights(weights.reshape(len(weights), -1)) is None
    )


# ---------------------------------------------------------------- from a constant to the layer


def find_constant_path(match: Match, combining_operators: Sequence[str], passed_operators: Sequence[str]) -> list[Node]:
    """Return the path of nodes from a combination of a value with a constant to the data of the layer.

    ``combining_operators``: operators of the first node; ``passed_operators``: operators of the other nodes. Each node
    is read by the next node only. Return an empty list if there is no such path, or if the layer is not a float layer
    with constant weights."""
    scope, layer = match.scope, match.root
    are_constant = all(name in scope.consts for name in layer.inputs[1:] if name)
    if not are_constant or scope.consts[layer.inputs[1]].dtype.kind != "f":
        return []
    product = registry.product_of(layer, scope.types)
    if product is None or product.transposed or product.channel_axis != -1 or layer.attrs.get("dynamic"):
        return []
    path: list[Node] = []
    value = layer.inputs[0]
    while True:
        node = scope.producer(value) if scope.has_only_one_reader(value) else None
        if node is None or node.attrs.get("activation") or node.op not in (*combining_operators, *passed_operators):
            return []
        path.insert(0, node)
        value, constant = _split_computed_and_constant_operand(scope, node)
        combines = node.op in (*_TERMS, "mul", "div")
        if combines and (not constant or match.type(value).shape != match.type(node.outputs[0]).shape):
            return []
        if node.op in combining_operators:
            return path
        if node.attrs.get("value") or node.attrs.get("layout", "NHWC") != "NHWC":
            return []


def _split_computed_and_constant_operand(scope: Scope, node: Node) -> tuple[str, str]:
    """Return the computed operand of a node, and the constant operand that is combined with it; the latter is empty if
    there is none."""
    first, second = (*node.inputs, "")[:2]
    if second and second not in scope.consts and node.op in ("add", "mul"):
        first, second = second, first
    return first, second if second in scope.consts else ""


def expand_path_constant_by_channel(match: Match, path: Sequence[Node]) -> Array | None:
    """Return the constant of the first node of a path as an array with one number for each channel that the layer
    reads.

    Return None if the constant differs within a channel, or if a reshape splits or mixes channels."""
    if not path:
        return None
    shape, width = match.type(path[0].outputs[0]).shape, match.type(match.root.inputs[0]).shape[-1]
    constant = match.scope.consts[_split_computed_and_constant_operand(match.scope, path[0])[1]]
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


def emit_path_and_layer(
    match: Match,
    path: Sequence[Node],
    weights: Array | None = None,
    bias: Array | None = None,
    constants: Mapping[str, Array] = MappingProxyType({}),
) -> Replacement:
    """Emit the nodes of a path and the layer at its end, with other ``weights`` or another ``bias``.

    ``constants`` contains new constants for nodes of the path, by the name of the node's result. The first node of the
    path is dropped unless it has a new constant."""
    layer, (data, _) = match.root, _split_computed_and_constant_operand(match.scope, path[0])
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


# ---------------------------------------------------------------- weights and bias of a layer


def scale_weights(match: Match, channel_factors: Array) -> Array:
    """Return the layer's weights, multiplied by a factor for each input channel."""
    weights = match.scope.consts[match.root.inputs[1]]
    return np.asarray(weights * _reshape_to_broadcast_to_weights(channel_factors, weights, match.root), weights.dtype)


def subtract_means_from_bias(match: Match, channel_means: Array) -> Array:
    """Return the layer's bias minus the sums of the weights times ``channel_means``, which has one number for each
    input channel."""
    layer, consts = match.root, match.scope.consts
    weights = consts[layer.inputs[1]]
    bias = consts[layer.inputs[2]].reshape(-1) if len(layer.inputs) > 2 and layer.inputs[2] else 0.0
    sums = (
        (weights.astype(np.float64) * _reshape_to_broadcast_to_weights(channel_means, weights, layer))
        .reshape(len(weights), -1)
        .sum(axis=1)
    )
    return np.asarray(bias - sums, weights.dtype)


def _reshape_to_broadcast_to_weights(channel_vector: Array, weights: Array, layer: Node) -> Array:
    """Return a vector with one number per input channel, reshaped to broadcast to the weights (O, ..., I), with regard
    to groups."""
    groups = layer.attr("groups") if "groups" in layer.attrs else 1
    rows = np.repeat(channel_vector.astype(np.float64).reshape(groups, -1), len(weights) // groups, axis=0)
    return rows.reshape(len(weights), *(1,) * (weights.ndim - 2), -1)


def reads_no_padding(match: Match) -> bool:
    """Test whether the layer never reads padding."""
    layer = match.root
    product = registry.product_of(layer, match.scope.types)
    return product is not None and not product.reads_padding and not layer.attrs.get("open")


PASS = Pass("scale_axis", fold_scale_axis, 3)


# ---- Preprocessing of raw inputs folded into the weights and bias of the first layer.
#
# With x raw, weights w, and for each channel a factor s and a mean m, sums over taps and channels are
#
#     sum w (s x) = sum (s w) x                    also with padding by zeros, because s 0 = 0;
#     sum w (x - m) = sum w x - sum w m            if no tap reads padding, whose value would have to be m;
#     sum w x[reversed channels] = sum w[reversed channels] x.
#
# Float sums are rounded differently: s w is rounded once for each weight, and the rounding error of each product in sum w x grows
# by at most the ratio of x to x - m. Only the preprocessing of network inputs and of integers cast to float is folded: weights of
# other layers may be integer multiples of a scale (``ops/matrix/gemm.py``) and would lose this form.
#
# Reversing channels is exact for integers, too. The reversal moves through elementwise operators up to the layer.

_BYTES = ("int8", "uint8")
_ELEMENTWISE = ("cast", "sub", "add", "mul", "quantize", "dequantize", "lookup")


def fold_scales(graph: Graph, context: PassContext) -> Graph:
    """Fold factors and channel reversals of raw inputs into layers.

    Means that are subtracted remain, because quantisation represents them as a zero point."""
    sink_reversals = (P.op(_ELEMENTWISE), _sink_channel_reversal)
    return rewrite(
        graph,
        (
            sink_reversals,
            (P.op(registry.layer_operators()), _fold_factors_of_raw_input),
            (P.op(registry.layer_operators()), _reverse_weight_channels),
        ),
    )


def fold_shifts(graph: Graph, context: PassContext) -> Graph:
    """Fold means that are subtracted from raw inputs into the biases of layers."""
    return rewrite(graph, ((P.op(registry.layer_operators()), _fold_means_of_raw_input),))


def round_input_means(graph: Graph, context: PassContext) -> Graph:
    """Round the means of 8-bit inputs to one integer, which can be a zero point, and fold the differences into the
    bias.

    If the layer reads padding, means are rounded only if that changes them by at most half an integer: the padding at
    the border is wrong by this amount."""
    return rewrite(graph, ((P.op(registry.layer_operators()), _round_means_of_raw_input),))


# ---------------------------------------------------------------- factors and means


def _fold_factors_of_raw_input(match: Match) -> Replacement | None:
    """Fold the factors of a raw input into the weights of the layer that reads the input."""
    path = _find_path_from_raw_input(match, "mul")
    factor = expand_path_constant_by_channel(match, path)
    if factor is None or match.root.attrs.get("pad_value", 0):
        return None
    with np.errstate(over="ignore"):
        scaled = scale_weights(match, factor)
    return emit_path_and_layer(match, path, scaled) if np.isfinite(scaled).all() else None


def _fold_means_of_raw_input(match: Match) -> Replacement | None:
    """Fold the means that are subtracted from a raw input into the bias of the layer that reads the input."""
    path = _find_path_from_raw_input(match, "sub")
    means = expand_path_constant_by_channel(match, path)
    if means is None or not reads_no_padding(match):
        return None
    bias = subtract_means_from_bias(match, means)
    return emit_path_and_layer(match, path, bias=bias) if np.isfinite(bias).all() else None


def _round_means_of_raw_input(match: Match) -> Replacement | None:
    """Round the means of an 8-bit input to one integer, and fold the differences into the bias of the layer that reads
    the input."""
    path = _find_path_from_raw_input(match, "sub")
    means = expand_path_constant_by_channel(match, path)
    source = match.scope.producer(path[0].inputs[0]) if path else None
    if means is None or source is None or source.op != "cast":
        return None
    node, dtype = path[0], match.type(source.inputs[0]).dtype
    zero = np.rint(means.mean())
    is_byte = dtype in _BYTES and dtypes.int_range(dtype)[0] <= zero <= dtypes.int_range(dtype)[1]
    if not is_byte or (means == zero).all() or not (reads_no_padding(match) or np.abs(means - zero).max() <= 0.5):
        return None
    point = np.full_like(match.scope.consts[node.inputs[1]], zero)
    return emit_path_and_layer(
        match, path, bias=subtract_means_from_bias(match, means - zero), constants={node.outputs[0]: point}
    )


def _find_path_from_raw_input(match: Match, op: str) -> list[Node]:
    """Return the path from the node that combines a raw input with constants to the float layer that reads the result.

    The path may contain reshapes. The list is empty if there is no path."""
    path = find_constant_path(match, (op,), ("reshape",))
    return path if path and _is_raw_input(match.scope, path[0].inputs[0]) else []


def _producer_of_value_read_once(scope: Scope, value: str) -> Node | None:
    """Return the node that computes a value, if the value has at most one reader and is no output of the graph."""
    return scope.producer(value) if scope.has_only_one_reader(value) else None


def _is_raw_input(scope: Scope, value: str) -> bool:
    """Test whether a value is a network input or an integer cast to float, possibly after additions, scalings or
    reversals."""
    node = scope.producer(value)
    if node is None:
        return value not in scope.consts
    if node.op == "cast":
        return dtypes.is_integer(scope.type(node.inputs[0]).dtype)
    combined = node.op in ("sub", "add", "mul") and node.inputs[1] in scope.consts
    return (combined or node.op == "reverse") and _is_raw_input(scope, node.inputs[0])


# ---------------------------------------------------------------- reversed channels


def _reverse_weight_channels(match: Match) -> Replacement | None:
    """Reverse the input channels of a layer's weights instead of the channels of its data."""
    scope, layer = match.scope, match.root
    node, weight = _producer_of_value_read_once(scope, layer.inputs[0]), layer.inputs[1]
    if node is None or not _reverses_channels(match, node) or not _can_reverse_weights(scope, layer):
        return None
    reversed_weights = np.ascontiguousarray(scope.consts[weight][..., ::-1])
    inputs = (
        node.inputs[0],
        match.constant(f"{weight}.reversed", reversed_weights, match.type(weight)),
        *layer.inputs[2:],
    )
    match.emit(layer.op, inputs, layer.attrs)
    return match.replacement()


def _sink_channel_reversal(match: Match) -> Replacement | None:
    """Move a reversal of channels after an elementwise operator, if a following layer can absorb it."""
    scope, root = match.scope, match.root
    node = _producer_of_value_read_once(scope, root.inputs[0])
    plain = root.attrs.get("axis") is None and all(name in scope.consts for name in root.inputs[1:])
    if (
        node is None
        or not plain
        or not _reverses_channels(match, node)
        or not _reaches_reversible_layer(match, match.output)
    ):
        return None
    kind, inputs = match.type(match.output), [node.inputs[0]]
    for name in root.inputs[1:]:
        array = scope.consts[name]
        varies = root.op != "lookup" and array.ndim and array.shape[-1] > 1
        reversed_array = np.ascontiguousarray(array[..., ::-1])
        inputs.append(match.constant(f"{name}.reversed", reversed_array, match.type(name)) if varies else name)
    result = match.emit(root.op, inputs, root.attrs, kind)
    match.emit("reverse", (result,), node.attrs, loc=node.loc)
    return match.replacement()


def _reverses_channels(match: Match, node: Node) -> bool:
    """Test whether a node reverses the order of channels and nothing else."""
    return node.op == "reverse" and node.attr("axes") == (len(match.type(node.outputs[0]).shape) - 1,)


def _can_reverse_weights(scope: Scope, layer: Node) -> bool:
    """Test whether the input channels of a layer's weights can be reversed."""
    product = registry.product_of(layer, scope.types)
    if product is None or not product.mixes_channels or product.channel_axis != -1:
        return False
    return layer.inputs[1] in scope.consts and scope.has_only_one_reader(layer.inputs[1])


def _reaches_reversible_layer(match: Match, value: str) -> bool:
    """Test whether the only readers of a value are elementwise operators, one after the other, and a layer that can
    absorb a reversal."""
    scope = match.scope
    readers = scope.readers.get(value, ())
    if len(readers) != 1 or not scope.has_only_one_reader(value) or readers[0].inputs[0] != value:
        return False
    if registry.is_layer(readers[0]):
        return _can_reverse_weights(scope, readers[0])
    is_elementwise = readers[0].attrs.get("axis") is None and all(
        name in scope.consts for name in readers[0].inputs[1:]
    )
    return readers[0].op in _ELEMENTWISE and is_elementwise and _reaches_reversible_layer(match, readers[0].outputs[0])


FOLD_SCALES_PASS = Pass("raw_inputs", fold_scales, 3)
FOLD_SHIFTS_PASS = Pass("raw_inputs", fold_shifts, 3)
CENTRE_PASS = Pass("raw_inputs", round_input_means, 3)
