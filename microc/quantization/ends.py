"""Where the noise of a network is measured: its outputs, in front of a last function that saturates.

Behind a softmax or a sigmoid the answers to most samples are near 0 and 1 whatever happens, so that few samples decide about
the noise, and saturated ones hide it. In front of it all of them speak. A number that is added to all classes changes no
softmax and no argmax: what all have in common does not count there.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from microc.dtypes import Array
from microc.frozen import frozen
from microc.graph.ir import Graph, Node
from microc.ops import registry

_LAST = -1
SATURATING: Mapping[str, int | None] = MappingProxyType(
    {"softmax": _LAST, "log_softmax": _LAST, "argmax": _LAST, "argmin": _LAST, "sigmoid": None}
)
"""Functions, and along which axis they compare (where no attribute says it)."""


@frozen
class End:
    """``value`` is measured, without its mean along ``axis`` if there is one."""

    value: str
    axis: int | None = None

    def seen(self, array: Array) -> Array:
        """What counts of a value (any shape), as float64."""
        found = np.asarray(array, np.float64)
        return found if self.axis is None else found - found.mean(axis=self.axis, keepdims=True)


def ends(graph: Graph) -> dict[str, End]:
    """Of each output where it is measured."""
    makers = graph.producer()
    return {name: _in_front(makers, name) for name in dict.fromkeys(graph.outputs)}


def _in_front(makers: Mapping[str, Node], output: str) -> End:
    found, value = End(output), output
    while value in makers:
        node = makers[value]
        if node.op in SATURATING:
            axis = SATURATING[node.op]
            found = End(node.inputs[0], node.attr("axis") if "axis" in node.attrs else axis)
        elif not registry.get(node.op).moves:
            break
        value = node.inputs[0]
    return found
