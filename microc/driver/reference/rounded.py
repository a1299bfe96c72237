"""A network with weights of 16 bits, as its operators mean it: by numpy, on the graph whose weights were rounded.

No framework has this network: rounded are the weights that the graph passes leave, scales and normalisations in them.
"""

from __future__ import annotations

from collections.abc import Sequence

from microc import __version__
from microc.driver.reference.runtime import Answer, RuntimeRefusal
from microc.dtypes import Array
from microc.errors import UsageError
from microc.graph.interp import run
from microc.graph.ir import Graph
from microc.ops import registry


class Rounded:
    """``graph``: after the passes. Every value of it is shown."""

    name, version = "the network of rounded weights", __version__

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.reset()

    def reset(self) -> None:
        self.state = dict(self.graph.state)

    def run(self, arrays: Sequence[Array]) -> Answer:
        given = dict(zip(self.graph.inputs, arrays, strict=True))
        try:
            values = run(self.graph, given, lambda n, a: registry.get(n.op).reference(n.attrs, a), self.state)
        except UsageError as error:
            raise RuntimeRefusal(error.what) from error
        self.state = {name: values[value] for name, value in self.graph.updates.items()}
        return Answer(tuple(values[name] for name in self.graph.outputs), values)
