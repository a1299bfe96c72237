"""Interval analysis of integers per channel, and tighter bounds of requantisation by it."""

from __future__ import annotations

import math
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
from microc.ops.convolution.geometry import Geometry, infer_geometry
from microc.transform.channel_relations import has_too_many_channels
from microc.transform.pass_context import Pass, PassContext

# ---- Interval analysis: the least and greatest number that each channel of a value can hold, derived from constants alone.
#
# A channel is an index along the last axis, whatever the other axes mean. A channel whose range is one number is constant: it
# holds that number at every position, borders included, for all inputs. Ranges of sums come from interval arithmetic (weights
# and biases are constants), those of rescaled values from the operator's reference at both ends, since rescaling is monotone.
#
# At a border some taps of a convolution read the padding value. There are few sets of taps that read data (a set of rows times
# a set of columns); the range covers all of them, so a depthwise convolution of a constant channel is constant only if every
# border position has the same sum.


@frozen
class Range:
    """Interval of integers of every channel of a value: the least and the greatest number, two int64 arrays with the last
    axis' extent."""

    low: Array
    high: Array

    @property
    def constant(self) -> Array:
        """Mask of the channels that hold one number only."""
        return np.asarray(self.low == self.high)


_MOST_TAPS = 1 << 24
"""Limit of taps in all sets together; for larger windows no range of sums is computed."""
Ranges = dict[str, Range]
_Rule = Callable[[Graph, Node, Ranges], Range | None]


def value_ranges(graph: Graph) -> Ranges:
    """Return the range of every value with integers of at most 32 bits, scalars excluded. Empty for a graph with too many
    channels."""
    ranges: Ranges = {}
    if has_too_many_channels(graph):
        return ranges
    for name, array in graph.consts.items():
        if array.dtype.kind in "iu" and array.ndim and array.size:
            rows = array.reshape(-1, array.shape[-1])
            ranges[name] = Range(rows.min(axis=0).astype(np.int64), rows.max(axis=0).astype(np.int64))
    for name in (*graph.inputs, *graph.state):
        _set_range(ranges, name, graph.types[name], None)
    for node in graph.nodes:
        definition = registry.get(node.op)
        rule = _RULES.get(node.op, _elementwise_range if definition.elementwise else None)
        sole = rule is not None and len(node.outputs) == 1
        range_ = rule(graph, node, ranges) if rule is not None and sole else None
        for name in filter(None, node.outputs):
            _set_range(ranges, name, graph.types[name], range_)
    return ranges


def _set_range(ranges: Ranges, name: str, kind: TensorType, range_: Range | None) -> None:
    """Record a range. The dtype's own range is used if none is known, or where a sum could overflow and wrap."""
    if not dtypes.is_integer(kind.dtype) or dtypes.nbytes(kind.dtype) > 4 or not kind.shape:
        return
    least, most = dtypes.int_range(kind.dtype)
    if range_ is None:
        range_ = Range(np.full(kind.shape[-1], least, np.int64), np.full(kind.shape[-1], most, np.int64))
    wraps = (range_.low < least) | (range_.high > most)
    ranges[name] = Range(np.where(wraps, least, range_.low), np.where(wraps, most, range_.high))


# ---------------------------------------------------------------- sums of products


def tap_spans(geometry: Geometry) -> tuple[Array, Array]:
    """Return the distinct spans of taps inside of the data, (first, last + 1): (R, 2) for rows and (S, 2) for columns."""
    axes = []
    for axis, (size, count) in enumerate(
        ((geometry.height, geometry.out_height), (geometry.width, geometry.out_width))
    ):
        first = np.arange(count) * geometry.strides[axis] - geometry.padding[axis]
        ends = (-(first // geometry.dilation[axis]), -((first - size) // geometry.dilation[axis]))
        spans = np.clip(np.stack(ends, axis=1), 0, geometry.kernel[axis])
        axes.append(np.unique(spans, axis=0, return_index=True)[0])  # without return_index numpy.ma is imported
    return axes[0], axes[1]


def every_tap_inside(geometry: Geometry) -> bool:
    """Test whether no window of the convolution reads padding."""
    return all(
        bool((spans == (0, count)).all()) for spans, count in zip(tap_spans(geometry), geometry.kernel, strict=True)
    )


def _interval_sums(weights: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Return the least and greatest sum over the last axis of weights * x, for low <= x <= high, which broadcast against the
    weights."""
    positive, negative = np.maximum(weights, 0), np.minimum(weights, 0)
    return (positive * low + negative * high).sum(axis=-1), (positive * high + negative * low).sum(axis=-1)


def _constant_bias(graph: Graph, node: Node) -> Array | int | None:
    """Return the constant bias; 0 without one, None if it is computed."""
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    if name and name not in graph.consts:
        return None
    if name and graph.consts[name].dtype.kind not in "iu":
        return None
    return graph.consts[name].astype(np.int64).reshape(-1) if name else 0


def _convolution_range(graph: Graph, node: Node, ranges: Ranges) -> Range | None:
    """Bound the sums of a convolution by interval arithmetic, for each set of taps that read data."""
    data, bias = ranges.get(node.inputs[0]), _constant_bias(graph, node)
    if node.inputs[1] not in graph.consts or data is None or bias is None or node.attrs.get("layout") == "NCHW":
        return None
    weights = graph.consts[node.inputs[1]].astype(np.int64)
    g = infer_geometry(node.attrs, graph.types[node.inputs[0]].shape, weights.shape)
    group = np.arange(g.out_channels) // (g.out_channels // g.groups)
    low, high = (x.reshape(g.groups, -1)[group][:, None, None] for x in (data.low, data.high))
    inside = _interval_sums(weights, low, high)
    outside = weights.sum(axis=-1) * node.attrs.get("pad_value", 0)
    spans = tap_spans(g)
    if math.prod(len(span) * count for span, count in zip(spans, g.kernel, strict=True)) > _MOST_TAPS:
        return None
    rows, columns = (
        (span[:, :1] <= np.arange(count)) & (np.arange(count) < span[:, 1:])
        for span, count in zip(spans, g.kernel, strict=True)
    )
    sets = (rows[:, None, :, None] & columns[None, :, None, :]).reshape(-1, *g.kernel)
    least, most = (
        np.einsum("pyx,oyx->po", sets, part) + np.einsum("pyx,oyx->po", ~sets, outside) + bias for part in inside
    )
    return Range(least.min(axis=0), most.max(axis=0))


def _dense_range(graph: Graph, node: Node, ranges: Ranges) -> Range | None:
    """Bound the sums of a dense layer with constant weights by interval arithmetic."""
    data, bias = ranges.get(node.inputs[0]), _constant_bias(graph, node)
    if node.inputs[1] not in graph.consts or data is None or bias is None:
        return None
    least, most = _interval_sums(graph.consts[node.inputs[1]].astype(np.int64), data.low, data.high)
    return Range(least + bias, most + bias)


# ---------------------------------------------------------------- elementwise

_RESCALING = frozenset(("requantize", "requantize_float"))
_MONOTONE = _RESCALING | {"relu", "clip", "qadd", "maximum", "minimum"}
"""Operators that rise with their data (``qadd`` falls with a negated second operand): multipliers and scales are not
negative, and every rounding is monotone."""


def _elementwise_range(graph: Graph, node: Node, ranges: Ranges) -> Range | None:
    """Return the range of an elementwise operator: its reference at the ends of its operands' ranges; if it is not
    monotone, only for constant channels."""
    kind = graph.types[node.outputs[0]]
    if not dtypes.is_integer(kind.dtype) or not kind.shape:
        return None
    operands = [_range_ends(graph, name, ranges) for name in node.inputs if name]
    parameters = operands[1:] if node.op in _RESCALING else []
    varied = any(pair is not None and (pair[0] != pair[1]).any() for pair in parameters)
    if None in operands or varied or _may_wrap(node):
        return _clamp_range(node, kind)
    lows, highs = ([pair[end] for pair in operands if pair is not None] for end in (0, 1))
    if node.attrs.get("negate_b"):
        lows[1], highs[1] = highs[1], lows[1]
    if node.op in _MONOTONE:
        return Range(*(np.broadcast_to(_evaluate_reference(node, ends), kind.shape[-1:]) for ends in (lows, highs)))
    return _constant_channels_range(node, lows, highs, kind)


def _may_wrap(node: Node) -> bool:
    """Test whether results may lose upper bits and wrap: ``wide`` rounding with a multiplier above one."""
    attrs: Mapping[str, Any] = node.attrs
    if attrs.get("rounding") != Multiplier.WIDE:
        return False
    return bool((max(attrs["shift_range"]) if attrs["shift"] is None else attrs["shift"]) > 0)


def _constant_channels_range(node: Node, lows: list[Array], highs: list[Array], kind: TensorType) -> Range:
    """Return the results of channels in which every operand is constant, and the dtype's range for others. Tables are read
    whole."""
    whole = registry.get(node.op).whole
    pairs = {
        k: np.broadcast_arrays(low, high, np.empty(kind.shape[-1:]))[:2]
        for k, (low, high) in enumerate(zip(lows, highs, strict=True))
        if k not in whole
    }
    constant = np.all([low == high for low, high in pairs.values()], axis=0)
    least, most = (np.full(kind.shape[-1], bound, np.int64) for bound in dtypes.int_range(kind.dtype))
    if constant.any():
        operands = [pairs[k][0][constant] if k in pairs else low for k, low in enumerate(lows)]
        least[constant] = most[constant] = _evaluate_reference(node, operands)
    return Range(least, most)


def _range_ends(graph: Graph, name: str, ranges: Ranges) -> tuple[Array, Array] | None:
    """Return the ends of an operand's range in its own dtype; for constant floats, their values if they vary along the last
    axis only."""
    if name in ranges:
        dtype = dtypes.to_numpy(graph.types[name].dtype)
        return ranges[name].low.astype(dtype), ranges[name].high.astype(dtype)
    array = graph.consts.get(name)
    if array is None or array.size != (array.shape[-1] if array.ndim else 1):
        return None
    return array.reshape(-1), array.reshape(-1)


def _evaluate_reference(node: Node, operands: list[Array]) -> Array:
    """Evaluate the node's reference on one number per channel."""
    definition = registry.get(node.op)
    with np.errstate(all="ignore"):
        (made,) = definition.reference({**definition.defaults, **node.attrs}, operands)
    return np.asarray(made.astype(np.int64))


def _clamp_range(node: Node, kind: TensorType) -> Range | None:
    """Return the integer bounds of an operator as its range; None if it has none."""
    bounds = node.attrs.get("minimum"), node.attrs.get("maximum")
    if not all(isinstance(bound, int) for bound in bounds):
        return None
    low, high = (np.full(kind.shape[-1], bound, np.int64) for bound in bounds)
    return Range(low, high)


def _lookup_range(graph: Graph, node: Node, ranges: Ranges) -> Range | None:
    """Return the range of a table lookup: the least and greatest entry that each channel can reach."""
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


def _keep_range(graph: Graph, node: Node, ranges: Ranges) -> Range | None:
    """Keep the range for averages and maxima, if padding does not count."""
    unknown = node.attrs.get("count_include_pad") or node.attrs.get("layout") == "NCHW"
    return None if unknown else ranges.get(node.inputs[0])


def _sum_pool_range(graph: Graph, node: Node, ranges: Ranges) -> Range | None:
    """Bound the sums of a pool's windows by the range of its data."""
    data = ranges.get(node.inputs[0])
    if data is None or node.attrs.get("layout") == "NCHW":
        return None
    low, high = data.low, data.high
    if "padding" in node.attrs and any(node.attr("padding")):
        low, high = np.minimum(low, node.attr("pad_value")), np.maximum(high, node.attr("pad_value"))
    count, offset = prod(node.attr("kernel")), node.attr("offset")
    return Range(low * count + offset, high * count + offset)


def _sum_range(graph: Graph, node: Node, ranges: Ranges) -> Range | None:
    """Bound sums over other axes than the channels' by the range of the data."""
    data, shape = ranges.get(node.inputs[0]), graph.types[node.inputs[0]].shape
    axes = {axis % len(shape) for axis in node.attr("axes")}
    if data is None or len(shape) - 1 in axes:
        return None
    count, offset = prod(shape[axis] for axis in axes), node.attrs.get("offset", 0)
    return Range(data.low * count + offset, data.high * count + offset)


def _reshape_range(graph: Graph, node: Node, ranges: Ranges) -> Range | None:
    """Return the range of a reshape: repeated if channels are merged with axes before them, otherwise that of all channels
    for each."""
    data, channels = ranges.get(node.inputs[0]), graph.types[node.outputs[0]].shape[-1:]
    if data is None or not channels or not data.low.size:
        return None
    times, rest = divmod(channels[0], data.low.size)
    if not rest:
        return Range(np.tile(data.low, times), np.tile(data.high, times))
    return Range(np.full(channels, data.low.min()), np.full(channels, data.high.max()))


def _concat_range(graph: Graph, node: Node, ranges: Ranges) -> Range | None:
    """Return the range of a concatenation, along the channels or along another axis."""
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
        "conv2d": _convolution_range,
        "dense": _dense_range,
        "lookup": _lookup_range,
        "avg_pool2d": _keep_range,
        "max_pool2d": _keep_range,
        "sum_pool2d": _sum_pool_range,
        "sum": _sum_range,
        "reshape": _reshape_range,
        "concat": _concat_range,
    }
)


# ---- Cheaper requantisation by tight bounds of accumulators, and by parameters that are equal for all channels.
#
# ``requantize`` promises \|x - input_zero_point\| <= ``bound`` and shifts within ``shift_range``. The ranges are tighter than
# the bound computed when the layer was legalised: they include the ranges of its inputs, and some channels may have been
# removed since.


def tighten_bounds(graph: Graph, context: PassContext) -> Graph:
    """Recompute ``bound`` and ``shift_range`` of every ``requantize``, and replace operands that are one number by
    attributes."""
    ranges = value_ranges(graph)
    return graph.with_nodes(
        _tighten_requantize(graph, node, ranges) if node.op == "requantize" else node for node in graph.nodes
    )


def _tighten_requantize(graph: Graph, node: Node, ranges: Ranges) -> Node:
    """Replace parameters of a ``requantize`` that are one number by attributes, and recompute ``shift_range`` and
    ``bound``."""
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
    bound = _tighten_bound(node.inputs[0], attrs, ranges)
    return replace(node, inputs=tuple(inputs), attrs={**attrs, "bound": bound})


def _tighten_bound(value: str, attrs: Mapping[str, Attr], ranges: Ranges) -> int:
    """Return the largest distance from the input's zero point, or the present bound if that is smaller or the distance
    leaves int32."""
    known, zero = attrs["bound"], attrs["input_zero_point"]
    assert isinstance(known, int) and isinstance(zero, int)
    if value not in ranges:
        return known
    range_ = ranges[value]
    bound = int(np.maximum(np.abs(range_.low - zero), np.abs(range_.high - zero)).max(initial=0))
    if bound > dtypes.int_range("int32")[1] or 0 <= known <= bound:
        return known
    return bound


PASS = Pass("bounds", tighten_bounds, 2)
