# SPDX-License-Identifier: Apache-2.0
"""Interval analysis of the integers in each channel, and tighter bounds of requantisations that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops import registry
from microc.ops.attributes import Multiplier
from microc.ops.windows import Product
from microc.transform.channel_relations import has_too_many_channels
from microc.transform.pass_context import Pass, PassContext

# ---- Interval analysis: the least and greatest number that each channel of a value can have, derived from constants alone.
#
# A channel is an index along the last axis, whatever the other axes mean. A channel whose range is one number is constant: it has
# this number at every position, including borders, for all inputs. Ranges of sums are computed by interval arithmetic (weights
# and biases are constants), ranges of rescaled values by the operator's reference at both ends, since rescaling is monotone.
#
# At a border some taps of a convolution read the padding value. There are few different sets of taps that read data (a set of
# rows times a set of columns). The range covers all these sets, so that a depthwise convolution of a constant channel is constant
# only if the sum is the same at every border position.


@frozen
class Range:
    """Interval of integers for each channel of a value: two int64 arrays with the least and the greatest integer per
    channel."""

    low: Array
    high: Array

    @property
    def constant_channels(self) -> Array:
        """Mask of the channels whose interval contains only one integer."""
        return np.asarray(self.low == self.high)


_MOST_TAPS = 1 << 24
"""Largest number of taps in all tap sets of a window together. For larger windows no range of sums is computed."""
Ranges = dict[str, Range]
"""Range of each value, by name."""
_Rule = Callable[[Graph, Node, Ranges], Range | None]


def compute_value_ranges(graph: Graph) -> Ranges:
    """Return the range of every value whose elements are integers of at most 32 bits. Scalars are not included.

    The result is empty for a graph with too many channels."""
    ranges: Ranges = {}
    if has_too_many_channels(graph):
        return ranges
    for name, array in graph.consts.items():
        if array.dtype.kind in "iu" and array.ndim and array.size:
            rows = array.reshape(-1, array.shape[-1])
            ranges[name] = Range(rows.min(axis=0).astype(np.int64), rows.max(axis=0).astype(np.int64))
    for name in (*graph.inputs, *graph.state):
        _record_range(ranges, name, graph.types[name], None)
    for node in graph.nodes:
        definition = registry.get(node.op)
        general = _range_of_elementwise if definition.elementwise else _range_of_product if definition.product else None
        rule = _RULES.get(node.op, general)
        sole = rule is not None and len(node.outputs) == 1
        range_ = rule(graph, node, ranges) if rule is not None and sole else None
        for name in filter(None, node.outputs):
            _record_range(ranges, name, graph.types[name], range_)
    return ranges


def _record_range(ranges: Ranges, value_name: str, tensor_type: TensorType, range_: Range | None) -> None:
    """Record the range of a value.

    The whole range of the dtype is recorded if ``range_`` is None, and for channels whose sum could overflow and wrap
    around."""
    if not dtypes.is_integer(tensor_type.dtype) or dtypes.nbytes(tensor_type.dtype) > 4 or not tensor_type.shape:
        return
    least, most = dtypes.int_range(tensor_type.dtype)
    if range_ is None:
        range_ = Range(np.full(tensor_type.shape[-1], least, np.int64), np.full(tensor_type.shape[-1], most, np.int64))
    wraps = (range_.low < least) | (range_.high > most)
    ranges[value_name] = Range(np.where(wraps, least, range_.low), np.where(wraps, most, range_.high))


# ---------------------------------------------------------------- sums of products


def _bound_weighted_sums(weights: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Return the least and the greatest sum of weights * x over the last axis, where low <= x <= high.

    ``low`` and ``high`` must broadcast to the weights."""
    positive, negative = np.maximum(weights, 0), np.minimum(weights, 0)
    return (positive * low + negative * high).sum(axis=-1), (positive * high + negative * low).sum(axis=-1)


def _find_constant_bias(graph: Graph, node: Node) -> Array | int | None:
    """Return the constant integer bias of a layer, 0 if there is none, or None if it is computed or not an integer."""
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    if name and name not in graph.consts:
        return None
    if name and graph.consts[name].dtype.kind not in "iu":
        return None
    return graph.consts[name].astype(np.int64).reshape(-1) if name else 0


def _range_of_product(graph: Graph, node: Node, ranges: Ranges) -> Range | None:
    """Return the range of a layer's sums, from interval arithmetic for each set of taps that read data."""
    data, bias, product = ranges.get(node.inputs[0]), _find_constant_bias(graph, node), _find_product(graph, node)
    if node.inputs[1] not in graph.consts or data is None or bias is None or product is None:
        return None
    spans = [axis.distinct_tap_spans() for axis in product.windows]
    if prod(len(span) * axis.taps for span, axis in zip(spans, product.windows, strict=True)) > _MOST_TAPS:
        return None
    weights = graph.consts[node.inputs[1]].astype(np.int64)
    weights = weights.reshape(len(weights), -1, weights.shape[-1])  # (output channels, taps, input channels of a group)
    group = np.arange(len(weights)) // (len(weights) // product.groups)
    low, high = (x.reshape(product.groups, -1)[group][:, None] for x in (data.low, data.high))
    inside = _bound_weighted_sums(weights, low, high)
    outside = weights.sum(axis=-1) * product.pad_value
    sets = np.ones((1, 1), np.bool_)
    for span, axis in zip(spans, product.windows, strict=True):
        mask = (span[:, :1] <= np.arange(axis.taps)) & (np.arange(axis.taps) < span[:, 1:])
        sets = np.kron(sets, mask)
    least, most = (sets @ part.T + ~sets @ outside.T + bias for part in inside)
    return Range(least.min(axis=0), most.max(axis=0))


def _find_product(graph: Graph, node: Node) -> Product | None:
    """Return the product that a node computes if its sums are over taps of windows and its channels are the last axis."""
    product = registry.product_of(node, graph.types)
    return None if product is None or product.transposed or product.channel_axis != -1 else product


# ---------------------------------------------------------------- elementwise

_RESCALING = frozenset(("requantize", "requantize_float"))
_MONOTONE = _RESCALING | {"relu", "clip", "qadd", "maximum", "minimum"}
"""Operators that rise monotonically with each operand (``qadd`` falls with a negated second operand): multipliers and
scales are not negative, and every rounding is monotone."""


def _range_of_elementwise(graph: Graph, node: Node, ranges: Ranges) -> Range | None:
    """Return the range of an elementwise operator.

    A monotone operator is evaluated at the ends of its operands' ranges. Others are evaluated for constant channels
    only."""
    kind = graph.types[node.outputs[0]]
    if not dtypes.is_integer(kind.dtype) or not kind.shape:
        return None
    operands = [_find_range_ends_of_operand(graph, name, ranges) for name in node.inputs if name]
    parameters = operands[1:] if node.op in _RESCALING else []
    varied = any(pair is not None and (pair[0] != pair[1]).any() for pair in parameters)
    if None in operands or varied or _may_wrap_around(node):
        return _range_of_clamp_attributes(node, kind)
    lows, highs = ([pair[end] for pair in operands if pair is not None] for end in (0, 1))
    if node.attrs.get("negate_b"):
        lows[1], highs[1] = highs[1], lows[1]
    if node.op in _MONOTONE:
        return Range(*(np.broadcast_to(_evaluate_reference(node, ends), kind.shape[-1:]) for ends in (lows, highs)))
    return _range_of_constant_channels(node, lows, highs, kind)


def _may_wrap_around(node: Node) -> bool:
    """Test whether results may lose upper bits and wrap around: with rounding ``wide`` and a multiplier above one."""
    attrs: Mapping[str, Any] = node.attrs
    if attrs.get("rounding") != Multiplier.WIDE:
        return False
    return bool((max(attrs["shift_range"]) if attrs["shift"] is None else attrs["shift"]) > 0)


def _range_of_constant_channels(node: Node, lows: list[Array], highs: list[Array], tensor_type: TensorType) -> Range:
    """Return the range of an elementwise result: one number in channels whose operands are all constant, and the whole
    range of the dtype in other channels."""
    whole = registry.get(node.op).whole
    pairs = {
        k: np.broadcast_arrays(low, high, np.empty(tensor_type.shape[-1:]))[:2]
        for k, (low, high) in enumerate(zip(lows, highs, strict=True))
        if k not in whole
    }
    constant = np.all([low == high for low, high in pairs.values()], axis=0)
    least, most = (np.full(tensor_type.shape[-1], bound, np.int64) for bound in dtypes.int_range(tensor_type.dtype))
    if constant.any():
        operands = [pairs[k][0][constant] if k in pairs else low for k, low in enumerate(lows)]
        least[constant] = most[constant] = _evaluate_reference(node, operands)
    return Range(least, most)


def _find_range_ends_of_operand(graph: Graph, operand_name: str, ranges: Ranges) -> tuple[Array, Array] | None:
    """Return the least and greatest values of an operand per channel, in its own dtype; None if they are unknown.

    Constant floats have their values if they vary along the last axis only."""
    if operand_name in ranges:
        dtype = dtypes.to_numpy(graph.types[operand_name].dtype)
        return ranges[operand_name].low.astype(dtype), ranges[operand_name].high.astype(dtype)
    array = graph.consts.get(operand_name)
    if array is None or array.size != (array.shape[-1] if array.ndim else 1):
        return None
    return array.reshape(-1), array.reshape(-1)


def _evaluate_reference(node: Node, operands: list[Array]) -> Array:
    """Evaluate a node's reference implementation on operands with one number per channel."""
    definition = registry.get(node.op)
    with np.errstate(all="ignore"):
        (made,) = definition.reference({**definition.defaults, **node.attrs}, operands)
    return np.asarray(made.astype(np.int64))


def _range_of_clamp_attributes(node: Node, tensor_type: TensorType) -> Range | None:
    """Return the range between a node's attributes ``minimum`` and ``maximum``, or None if it does not have both."""
    bounds = node.attrs.get("minimum"), node.attrs.get("maximum")
    if not all(isinstance(bound, int) for bound in bounds):
        return None
    low, high = (np.full(tensor_type.shape[-1], bound, np.int64) for bound in bounds)
    return Range(low, high)


def _range_of_lookup(graph: Graph, node: Node, ranges: Ranges) -> Range | None:
    """Return the range of a table lookup: the least and greatest entry that each channel can read."""
    data, table = ranges.get(node.inputs[0]), graph.consts.get(node.inputs[1])
    if len(node.inputs) > 2 or data is None or table is None or table.dtype.kind not in "iu":
        return None
    entry, lowest = np.arange(256), dtypes.int_range(graph.types[node.inputs[0]].dtype)[0]
    distinct, channel = np.unique((data.low - lowest) * 256 + data.high - lowest, return_inverse=True)
    low, high = (bound[:, None] for bound in divmod(distinct, 256))
    hit, wide = (low <= entry) & (entry <= high), table.astype(np.int64)
    least, most = np.where(hit, wide, wide.max()).min(axis=1), np.where(hit, wide, wide.min()).max(axis=1)
    return Range(least[channel], most[channel])


# ---------------------------------------------------------------- pools, sums, shapes


def _range_of_average_or_maximum(graph: Graph, node: Node, ranges: Ranges) -> Range | None:
    """Return the range of the data for averages and maxima, or None if padding contributes to them."""
    unknown = node.attrs.get("count_include_pad") or node.attrs.get("layout") == "NCHW"
    return None if unknown else ranges.get(node.inputs[0])


def _range_of_sum_pool(graph: Graph, node: Node, ranges: Ranges) -> Range | None:
    """Return the range of the sums of a pool's windows, from the range of its data."""
    data = ranges.get(node.inputs[0])
    if data is None or node.attrs.get("layout") == "NCHW":
        return None
    low, high = data.low, data.high
    if "padding" in node.attrs and any(node.attr("padding")):
        low, high = np.minimum(low, node.attr("pad_value")), np.maximum(high, node.attr("pad_value"))
    count, offset = prod(node.attr("kernel")), node.attr("offset")
    return Range(low * count + offset, high * count + offset)


def _range_of_reduce_sum(graph: Graph, node: Node, ranges: Ranges) -> Range | None:
    """Return the range of sums over axes other than the channels, from the range of the data."""
    data, shape = ranges.get(node.inputs[0]), graph.types[node.inputs[0]].shape
    axes = {axis % len(shape) for axis in node.attr("axes")}
    if data is None or len(shape) - 1 in axes:
        return None
    count, offset = prod(shape[axis] for axis in axes), node.attrs.get("offset", 0)
    return Range(data.low * count + offset, data.high * count + offset)


def _range_of_reshape(graph: Graph, node: Node, ranges: Ranges) -> Range | None:
    """Return the range of a reshape.

    The range is repeated if axes before the channels become channels, too. Otherwise each channel gets the range of all
    channels together."""
    data, channels = ranges.get(node.inputs[0]), graph.types[node.outputs[0]].shape[-1:]
    if data is None or not channels or not data.low.size:
        return None
    times, rest = divmod(channels[0], data.low.size)
    if not rest:
        return Range(np.tile(data.low, times), np.tile(data.high, times))
    return Range(np.full(channels, data.low.min()), np.full(channels, data.high.max()))


def _range_of_concat(graph: Graph, node: Node, ranges: Ranges) -> Range | None:
    """Return the range of a concatenation along the channels or along another axis."""
    parts = [ranges.get(name) for name in node.inputs]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    lows, highs = [part.low for part in known], [part.high for part in known]
    if node.attr("axis") % len(graph.types[node.outputs[0]].shape) == len(graph.types[node.outputs[0]].shape) - 1:
        return Range(np.concatenate(lows), np.concatenate(highs))
    return Range(np.min(lows, axis=0), np.max(highs, axis=0))


_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        "lookup": _range_of_lookup,
        "avg_pool2d": _range_of_average_or_maximum,
        "max_pool2d": _range_of_average_or_maximum,
        "sum_pool2d": _range_of_sum_pool,
        "sum": _range_of_reduce_sum,
        "reshape": _range_of_reshape,
        "concat": _range_of_concat,
    }
)


# ---- Cheaper requantisation by tight bounds of accumulators, and by parameters that are equal for all channels.
#
# A ``requantize`` node declares that \|x - input_zero_point\| <= ``bound`` and that shifts are within ``shift_range``. The ranges
# of this analysis are tighter than the bound that was computed when the layer was legalised: they take the ranges of the layer's
# inputs into account, and some channels may have been removed since.


def tighten_bounds(graph: Graph, context: PassContext) -> Graph:
    """Recompute ``bound`` and ``shift_range`` of every ``requantize``, and replace operands that contain only one
    number by attributes."""
    ranges = compute_value_ranges(graph)
    return graph.with_nodes(
        _tighten_requantize(graph, node, ranges) if node.op == "requantize" else node for node in graph.nodes
    )


def _tighten_requantize(graph: Graph, node: Node, ranges: Ranges) -> Node:
    """Return a ``requantize`` with a tighter ``bound`` and ``shift_range``; operands that contain only one number
    become attributes."""
    attrs, operands = dict(node.attrs), list(node.inputs[1:])
    inputs = [node.inputs[0]]
    for name in ("multiplier", "shift"):
        if attrs[name] is not None:
            continue
        operand = operands.pop(0)
        array = graph.consts.get(operand)
        if array is not None and array.size and (array == array.flat[0]).all():
            attrs[name] = int(array.flat[0])
        else:
            inputs.append(operand)
        if array is not None and array.size and name == "shift":
            attrs["shift_range"] = (int(array.min()), int(array.max()))
    bound = _compute_tighter_bound(node.inputs[0], attrs, ranges)
    return replace(node, inputs=tuple(inputs), attrs={**attrs, "bound": bound})


def _compute_tighter_bound(input_name: str, attrs: Mapping[str, Attr], ranges: Ranges) -> int:
    """Return the largest distance of a value from the input's zero point.

    Return the present bound if that is smaller, or if the distance exceeds int32."""
    known, zero = attrs["bound"], attrs["input_zero_point"]
    assert isinstance(known, int) and isinstance(zero, int)
    if input_name not in ranges:
        return known
    range_ = ranges[input_name]
    bound = int(np.maximum(np.abs(range_.low - zero), np.abs(range_.high - zero)).max(initial=0))
    if bound > dtypes.int_range("int32")[1] or 0 <= known <= bound:
        return known
    return bound


PASS = Pass("bounds", tighten_bounds, 2)
