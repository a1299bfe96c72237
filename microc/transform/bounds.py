"""What is known of an accumulator makes its requantisation cheaper: tight bounds, and parameters that channels share.

``requantize`` promises \\|x - input_zero_point\\| <= ``bound`` and shifts within ``shift_range``. Ranges of values
(:mod:`microc.transform.ranges`) know more than the layer alone did when it was legalized: what its inputs can be, and that
channels have gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from microc import dtypes
from microc.graph.ir import Attr, Graph, Node
from microc.transform.context import Pass, PassContext
from microc.transform.ranges import Ranges, value_ranges


def tighten_bounds(graph: Graph, context: PassContext) -> Graph:
    """Recompute ``bound``, ``shift_range``, and operands that are one number, of every ``requantize``."""
    ranges = value_ranges(graph)
    return graph.with_nodes(
        _tightened(graph, node, ranges) if node.op == "requantize" else node for node in graph.nodes
    )


def _tightened(graph: Graph, node: Node, ranges: Ranges) -> Node:
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
    bound = _bound(node.inputs[0], attrs, ranges)
    return replace(node, inputs=tuple(inputs), attrs={**attrs, "bound": bound})


def _bound(value: str, attrs: Mapping[str, Attr], ranges: Ranges) -> int:
    """The largest distance from the input's zero point, or what is known already if that is less."""
    known, zero = attrs["bound"], attrs["input_zero_point"]
    assert isinstance(known, int) and isinstance(zero, int)
    if value not in ranges:
        return known
    found = ranges[value]
    bound = int(np.maximum(np.abs(found.low - zero), np.abs(found.high - zero)).max(initial=0))
    if bound > dtypes.int_range("int32")[1] or 0 <= known <= bound:
        return known
    return bound


PASS = Pass("bounds", tighten_bounds, 2)
