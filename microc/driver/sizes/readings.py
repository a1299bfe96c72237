"""One network read at several sizes, each once, and whether its graphs are alike but for their shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from microc.errors import MicrocError, UsageError
from microc.graph.ir import Graph, Node
from microc.module import Size
from microc.tir.fit import Point

Sizes = Mapping[str, int]
"""A size for every symbol, by its label."""
Read = Callable[[Sizes], Graph]
"""The graph, all passes run, at some sizes; raises MicrocError where the model cannot have them."""
PARITY = "let sizes be multiples of a step: --bound NAME=8:64:8"


class Readings:
    """The graphs of a network by its sizes, as far as anybody asked for them."""

    def __init__(self, sizes: tuple[Size, ...], read: Read) -> None:
        self.sizes, self._read = sizes, read
        self._known: dict[Point, Graph | None] = {}

    def graph(self, point: Point) -> Graph:
        """The graph at some sizes; raises what reading raises."""
        found = self._known[point] = self._read({s.label: n for s, n in zip(self.sizes, point, strict=True)})
        return found

    def asked(self, point: Point) -> Graph | None:
        """The graph at some sizes, None where the model cannot have them."""
        if point not in self._known:
            try:
                return self.graph(point)
            except MicrocError:
                self._known[point] = None
        return self._known[point]

    def spelled(self, point: Point) -> str:
        """Sizes as a user writes them."""
        return ", ".join(f"{size.label}={n}" for size, n in zip(self.sizes, point, strict=True))

    def scalars(self, point: Point) -> dict[str, int]:
        """Sizes by scalar."""
        return {size.scalar.name: n for size, n in zip(self.sizes, point, strict=True)}

    def agree(self, first: Graph, at: Point, other: Graph, there: Point) -> None:
        """UsageError at the first thing in which the graphs differ but for numbers."""
        between = f"{self.spelled(at)} and {self.spelled(there)}"
        for a, b in zip(first.nodes, other.nodes, strict=False):
            if (a.op, a.inputs, a.outputs, a.group) != (b.op, b.inputs, b.outputs, b.group):
                raise _differs(f"the network differs between {between} here: {_node(a)} or {_node(b)}", a)
            for name in (n for n in (*a.inputs, *a.outputs) if n):
                x, y = first.types[name], other.types[name]
                if (x.dtype, len(x.shape)) != (y.dtype, len(y.shape)):
                    raise _differs(f"{name} has another dtype or rank at {between}", a)
            for key, inner in a.attrs.items():
                if isinstance(inner, Graph):
                    self.agree(inner, at, b.attrs[key], there)  # type: ignore[arg-type]
        same = (
            all(_kind(first, n) == _kind(other, n) for n in (*first.inputs, *first.outputs))
            and first.inputs == other.inputs
            and first.outputs == other.outputs
            and len(first.nodes) == len(other.nodes)
            and {n: s.shape for n, s in first.state.items()} == {n: s.shape for n, s in other.state.items()}
            and first.updates == other.updates
        )
        if not same:
            raise _differs(f"the network has other inputs, outputs, nodes or state at {between}", None)


def _kind(graph: Graph, name: str) -> tuple[str, int] | None:
    """Dtype and rank of a value, if there is one of this name."""
    kind = graph.types.get(name)
    return None if kind is None else (kind.dtype, len(kind.shape))


def _differs(what: str, node: Node | None) -> UsageError:
    return UsageError(what, where=str(node.loc) if node else "", hint=PARITY)


def _node(node: Node) -> str:
    return f"{node.op}({', '.join(node.inputs)})"
