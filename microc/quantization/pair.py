"""The float network and a quantised one beside each other, value by value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from microc.driver.desktop.library import Library
from microc.graph.ir import Graph, TensorType
from microc.quantization.loops import flattened
from microc.quantization.observe import Row, rows_of, runner
from microc.quantization.write import Written


class Pair:
    """Both networks, compiled. ``names``: the outputs, then those values whose integers there still are; ``kinds``: the types
    that the quantised network has for them. ``known``: another pair with the same float network, which is not compiled
    again where the same values are looked at."""

    def __init__(self, graph: Graph, written: Written, known: Pair | None = None) -> None:
        types = flattened(written.graph).types
        stored = {value: name for value, name in written.stored.items() if name in types}
        self.ends = list(dict.fromkeys(graph.outputs))
        inner = [value for value in stored if value not in {*graph.inputs, *self.ends}]
        self.names = [*self.ends, *inner]
        shown = [*self.ends, *(stored[value] for value in inner)]
        self.kinds: list[TensorType] = [types[name] for name in shown]
        self._reals: Library = (
            known._reals if known is not None and known.names == self.names else runner(graph, self.names)
        )
        self._integers = runner(written.graph, shown)

    def rows(self, samples: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
        """For each sample the reals, and what is stored of them."""
        reals, integers = (rows_of(library, samples) for library in (self._reals, self._integers))
        return zip(reals, integers, strict=True)
