"""The parser of :mod:`microc.graph.text`: a descent over the tokens of every line. Nothing is evaluated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from microc import dtypes
from microc.dtypes import Array
from microc.errors import ModelError
from microc.frozen import frozen
from microc.graph.ir import Attr, Graph, Loc, Node, Quant, TensorType
from microc.graph.text_scan import NOTHING, Scanner

_DEPTH = 32
_CONSTANTS: Mapping[str, Attr] = MappingProxyType(
    {"none": None, "true": True, "false": False, "inf": math.inf, "nan": math.nan}
)
_REGIONS, _REGION_DEPTH = 1000, 50
"""Graphs of control flow in a network, counted as often as they are used, and how deep they may lie in each other."""


@dataclass
class _Parts:
    """What the lines gave so far."""

    name: str | None = None
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    consts: dict[str, Array] = field(default_factory=dict)
    state: dict[str, Array] = field(default_factory=dict)
    updates: dict[str, str] = field(default_factory=dict)


@frozen
class _Source:
    """Data by name behind ``prefix``, or by order, constants from number ``first`` on; and the graphs read so far."""

    consts: Mapping[str, Array]
    state: Mapping[str, Array]
    numbered: bool
    first: int
    prefix: str
    graphs: Mapping[int, Graph]


def from_text(text: str, consts: Mapping[str, Array], state: Mapping[str, Array], *, numbered: bool = False) -> Graph:
    """The graph that ``to_text`` spelled, with data by name, or (``numbered``) by order as ``const0``, ``state0`` ...

    Raises ModelError, naming the line, where the text is damaged or names data that are not there.
    """
    sections: list[list[tuple[int, str]]] = [[]]
    for number, line in enumerate(text.split("\n"), 1):
        if line == f"region {len(sections) - 1}":
            sections.append([])
        elif line.strip():
            sections[-1].append((number, line))
    counts = [sum(line.startswith("const ") for _, line in section) for section in sections]
    graphs: dict[int, Graph] = {}
    extents: dict[int, tuple[int, int]] = {}
    for position in range(len(sections) - 1, -1, -1):
        source = _Source(
            consts, state, numbered, sum(counts[:position]), f"${position - 1}." if position else "", graphs
        )
        graphs[position - 1] = graph = _section(sections[position], source)
        extents[id(graph)] = _extent(graph, extents, sections[position][0][0])
    return graphs[-1]


def _extent(graph: Graph, extents: Mapping[int, tuple[int, int]], line: int) -> tuple[int, int]:
    """How many graphs a graph is with those in it, and how deep they lie: a short text may name one in another over and over."""
    inside = [extents[id(v)] for node in graph.nodes for v in node.attrs.values() if isinstance(v, Graph)]
    count, depth = 1 + sum(c for c, _ in inside), 1 + max((d for _, d in inside), default=0)
    if count > _REGIONS or depth > _REGION_DEPTH:
        raise ModelError("too many graphs lie in one another", where=f"line {line}")
    return count, depth


def _section(lines: Sequence[tuple[int, str]], source: _Source) -> Graph:
    """One graph; those inside have been read."""
    parts = _Parts()
    for number, line in lines:
        _Line(line, number, parts, source).read()
    if parts.name is None:
        where = f"line {lines[0][0] if lines else 1}"
        raise ModelError("the text holds no graph", where=where, hint="it begins with: graph <name>")
    return Graph(
        parts.name,
        tuple(parts.inputs),
        tuple(parts.outputs),
        tuple(parts.nodes),
        parts.types,
        parts.consts,
        parts.state,
        parts.updates,
    )


class _Line(Scanner):
    """One line, which adds what it says to the parts."""

    def __init__(self, line: str, number: int, parts: _Parts, source: _Source) -> None:
        super().__init__(line, number)
        self.parts, self.source = parts, source

    # ------------------------------------------------------------ pieces

    def value(self) -> str:
        if not (self.sees("%") or self.sees("@")):
            self.fail(f"a value (% or @) expected, {self.next[1] or 'the end of the line'!r} found")
        return self.word("a name")

    def known(self) -> str:
        """A value that an earlier line defined."""
        name = self.value()
        if name not in self.parts.types:
            self.fail(f"{name!r} is not defined before")
        return name

    def operand(self) -> str:
        return "" if self.sees("_") else self.known()

    def typed(self) -> tuple[str, TensorType]:
        name = self.value()
        self.expect(":")
        return name, self.type()

    def result(self) -> tuple[str, TensorType | None]:
        return ("", None) if self.sees("_") else self.typed()

    def type(self) -> TensorType:
        dtype = self.take("word", "a dtype")
        if not dtypes.is_valid(dtype):
            self.fail(f"{dtype!r} is no dtype")
        self.expect("[")
        shape = tuple(self.listed(self.integer, "]"))
        if any(extent < 0 for extent in shape):
            self.fail(f"shape {shape} is negative")
        quant = self.quant() if self.sees("q", "(") else None
        layout = self.string() if self.sees("layout", "=") else ""
        return TensorType(shape, dtype, quant, layout)

    def quant(self) -> Quant:
        scale = self.attr()
        self.expect(",")
        zero_point = self.attr()
        axis = self.integer() if self.sees(",", "axis", "=") else None
        self.expect(")")
        if axis is None:
            scale, zero_point = (scale,), (zero_point,)
        if not isinstance(scale, tuple) or not isinstance(zero_point, tuple) or len(scale) != len(zero_point):
            self.fail("scales and zero points differ in number")
        scales = tuple(s for s in scale if isinstance(s, float))
        zeros = tuple(z for z in zero_point if isinstance(z, int) and not isinstance(z, bool))
        if not scales or len(scales) != len(scale) or len(zeros) != len(zero_point):
            self.fail("scales are floats, zero points integers")
        return Quant(scales, zeros, axis)

    def attr(self, depth: int = 0) -> Attr:
        kind, text = self.next
        if kind == "string":
            return self.string()
        if kind == "number":
            return self.number_value()
        if kind == "word" and text in _CONSTANTS:
            self.position += 1
            return _CONSTANTS[text]
        if depth > _DEPTH:
            self.fail("tuples nest too deeply")
        self.expect("(")
        return tuple(self.listed(lambda: self.attr(depth + 1), ")"))

    def attribute(self) -> tuple[str, Attr]:
        name = self.word("an attribute")
        self.expect("=")
        return name, self.region() if self.sees("$") else self.attr()

    def region(self) -> Graph:
        number = self.integer()
        if number not in self.source.graphs:
            self.fail(f"there is no region {number} behind this one")
        return self.source.graphs[number]

    def loc(self) -> Loc:
        self.expect("(")
        file = self.string()
        self.expect("#")
        loc = Loc(file, self.integer(), self.string())
        self.expect(")")
        return loc

    # ------------------------------------------------------------ lines

    def read(self) -> None:
        """Add what the line says to the parts."""
        if self.parts.name is None:
            self.expect("graph")
            self.parts.name = self.word("a name")
        elif self.next[0] != "word" or self.next[1] == "_":
            self.node()
        else:
            self.declaration(self.take("word"))
        if self.next != NOTHING:
            self.fail(f"{self.next[1]!r} is too much")

    def declaration(self, what: str) -> None:
        parts = self.parts
        match what:
            case "input":
                parts.inputs.append(self.define(*self.typed()))
            case "const" | "state":
                name = self.define(*self.typed())
                into = parts.consts if what == "const" else parts.state
                into[name] = self.array(what, name, len(into))
            case "value":
                self.define(*self.typed())
            case "output":
                parts.outputs.append(self.known())
            case "update":
                name = self.known()
                self.expect("=")
                parts.updates[name] = self.known()
            case _:
                self.fail(f"there are no lines that begin with {what!r}")

    def define(self, name: str, kind: TensorType) -> str:
        if name in self.parts.types:
            self.fail(f"{name!r} is defined twice")
        self.parts.types[name] = kind
        return name

    def array(self, what: str, name: str, position: int) -> Array:
        """The data of a constant or state."""
        source = self.source
        data, first = (source.consts, source.first) if what == "const" else (source.state, 0)
        array = data.get(f"{what}{first + position}" if source.numbered else f"{source.prefix}{name}")
        kind = self.parts.types[name]
        if array is None:
            self.fail(f"the data of {what} {name!r} are missing")
        if (array.shape, str(array.dtype)) != (kind.shape, kind.dtype):
            self.fail(f"{what} {name!r} is {kind.dtype}{list(kind.shape)}, its data {array.dtype}{list(array.shape)}")
        return array

    def node(self) -> None:
        results = self.listed(self.result, "=")
        op = self.word("an operator")
        self.expect("(")
        inputs = tuple(self.listed(self.operand, ")"))
        attributes = self.listed(self.attribute, "}") if self.sees("{") else []
        if len(dict(attributes)) != len(attributes):
            self.fail("an attribute is given twice")
        group = self.string() if self.sees("group", "=") else ""
        loc = self.loc() if self.sees("loc") else Loc()
        for name, kind in results:
            if kind is not None:
                self.define(name, kind)
        self.parts.nodes.append(Node(op, inputs, tuple(name for name, _ in results), dict(attributes), loc, group))
