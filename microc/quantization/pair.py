"""The float network and a quantised one beside each other, value by value."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence

from microc.driver.desktop.library import Library
from microc.graph.ir import Graph, TensorType
from microc.quantization.ends import End, ends
from microc.quantization.loops import flattened
from microc.quantization.observe import Row, rows_of, runner
from microc.quantization.write import Written

Reals = MutableMapping[tuple[str, ...], Library]
"""One float network as libraries, by the names of their outputs."""


class Pair:
    """Both networks, compiled. ``names``: the outputs, then those values whose integers there still are; ``kinds``: the types
    that the quantised network has for them; ``judged``: by which of them the noise is judged (:mod:`.ends`), by number.
    ``reals``: the float network by the values that are looked at, compiled: it is not compiled again for the same ones."""

    def __init__(self, graph: Graph, written: Written, reals: Reals) -> None:
        types = flattened(written.graph).types
        stored = {value: name for value, name in written.stored.items() if name in types}
        in_front = ends(graph)
        self.ends = list(in_front)
        floats = {end.value: end.value for end in in_front.values() if end.value in types}
        inner = [value for value in {**floats, **stored} if value not in {*graph.inputs, *self.ends}]
        self.names = [*self.ends, *inner]
        shown = [*self.ends, *({**floats, **stored}[value] for value in inner)]
        self.judged: dict[int, End] = {}
        for output, end in in_front.items():
            end = end if end.value in self.names else End(output)
            self.judged[self.names.index(end.value)] = end
        self.kinds: list[TensorType] = [types[name] for name in shown]
        key = tuple(self.names)
        self._reals = reals[key] if key in reals else reals.setdefault(key, runner(graph, self.names))
        self._integers = runner(written.graph, shown)

    def rows(self, samples: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
        """For each sample the reals, and what is stored of them."""
        reals, integers = (rows_of(library, samples) for library in (self._reals, self._integers))
        return zip(reals, integers, strict=True)
