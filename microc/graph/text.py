"""Printer and parser of graphs as text, with one node per line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NoReturn, TypeVar

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import InternalError, ModelError
from microc.graph.ir import Attr, Graph, Loc, Node, Quant, TensorType

# ---- Scanner: the tokens of one line, and values that consist of a few tokens, such as strings and numbers.

T = TypeVar("T")

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\\x00-\x1f]|\\.)*")"""
    r"""|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|-inf\b)"""
    r"""|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"""
    r"""|(?P<sign>[%@#$:=,(){}\[\]]))""",
    re.ASCII,
)
NOTHING = ("end", "")
_DIGITS = 400
"""Most characters of a number. Python refuses to convert much longer numbers."""


class Scanner:
    """Scanner of one line of text: the tokens of the line, and the position of the next token."""

    def __init__(self, line: str, line_number: int) -> None:
        self.number = line_number
        self.tokens = self.scan(line.rstrip())
        self.position = 0

    def fail(self, problem: str) -> NoReturn:
        raise ModelError(f"the graph's text is damaged: {problem}", where=f"line {self.number}")

    def scan(self, line: str) -> list[tuple[str, str]]:
        """Split a line into tokens, pairs (type, text). ModelError at a character that cannot begin a token."""
        found, at = [], 0
        while at < len(line):
            match = _TOKEN.match(line, at)
            if match is None:
                self.fail(f"unknown characters; got {line[at : at + 20]!r}, expected a name, number, string or sign")
            kind = match.lastgroup or ""
            found.append((kind, match[kind]))
            at = match.end()
        return found

    @property
    def next(self) -> tuple[str, str]:
        return self.tokens[self.position] if self.position < len(self.tokens) else NOTHING

    def take(self, token_type: str, expected: str = "") -> str:
        """Return the text of the next token and advance. ModelError unless the token has type ``token_type``.

        ``expected``: description of the token for the error."""
        found, text = self.next
        if found != token_type:
            self.fail(f"{expected or token_type} expected, {text or 'the end of the line'!r} found")
        self.position += 1
        return text

    def sees(self, *texts: str) -> bool:
        """Advance past the signs and words ``texts`` if they are the next tokens. Returns True if they are."""
        upcoming = [text for kind, text in self.tokens[self.position : self.position + len(texts)] if kind != "string"]
        if upcoming != list(texts):
            return False
        self.position += len(texts)
        return True

    def expect(self, *texts: str) -> None:
        """Advance past the signs and words ``texts``. ModelError unless they are the next tokens."""
        if not self.sees(*texts):
            self.fail(f"{' '.join(texts)!r} expected, {self.next[1] or 'the end of the line'!r} found")

    def comma_separated(self, item: Callable[[], T], end: str) -> list[T]:
        """Read items separated by commas, up to and including the sign ``end``. A comma may follow the last item.

        ``item``: function that reads one item."""
        found: list[T] = []
        while not self.sees(end):
            found.append(item())
            if not self.sees(","):
                self.expect(end)
                break
        return found

    def string(self) -> str:
        try:
            return str(json.loads(self.take("string")))
        except ValueError:
            self.fail("a string has an invalid escape sequence")

    def word(self, expected: str) -> str:
        """Read a name: a word, or a string in quotes. ``expected``: description of the name for the error."""
        return self.string() if self.next[0] == "string" else self.take("word", expected)

    def number_value(self) -> int | float:
        text = self.take("number")
        if len(text) > _DIGITS:
            self.fail("a number is too long")
        return int(text) if text.lstrip("-").isdigit() else float(text)

    def integer(self) -> int:
        value = self.number_value()
        if not isinstance(value, int):
            self.fail(f"an integer expected, {value} found")
        return value


# ---- Parser: recursive descent over the tokens of every line. No text is evaluated as code.

_DEPTH = 32
_CONSTANTS: Mapping[str, Attr] = MappingProxyType(
    {"none": None, "true": True, "false": False, "inf": math.inf, "nan": math.nan}
)
_REGIONS, _REGION_DEPTH = 1000, 50
"""Limits of the bodies of control flow operators: their number in a network, counted as often as they are used, and the depth
to which they may be nested."""


@dataclass
class _GraphParts:
    """The parts of a graph (the fields of :class:`Graph`) that the lines read so far have declared."""

    name: str | None = None
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    consts: dict[str, Array] = field(default_factory=dict)
    state: dict[str, Array] = field(default_factory=dict)
    updates: dict[str, str] = field(default_factory=dict)


@frozen
class _DataSource:
    """Source of the data of one graph's constants and state.

    ``consts``, ``state``: arrays by name. If ``numbered`` is False, their names are the names of the values after
    ``prefix``. If ``numbered`` is True, their names are numbers in the order of declaration; the first constant of this graph has
    number ``first``. ``graphs``: the nested graphs read so far, by number."""

    consts: Mapping[str, Array]
    state: Mapping[str, Array]
    numbered: bool
    first: int
    prefix: str
    graphs: Mapping[int, Graph]


def from_text(text: str, consts: Mapping[str, Array], state: Mapping[str, Array], *, numbered: bool = False) -> Graph:
    """Parse the text of a graph that :func:`to_text` printed.

    ``consts``, ``state``: data of constants and state, by the names of the values. If ``numbered`` is True, the data are in
    the order of declaration and are named ``const0``, ``const1`` ..., ``state0`` ... Raises ModelError with the number of
    the line if the text is damaged, or if data are missing.
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
        source = _DataSource(
            consts, state, numbered, sum(counts[:position]), f"${position - 1}." if position else "", graphs
        )
        graphs[position - 1] = graph = _read_graph(sections[position], source)
        extents[id(graph)] = _graph_count_and_depth(graph, extents, sections[position][0][0])
    return graphs[-1]


def _graph_count_and_depth(graph: Graph, known_counts: Mapping[int, tuple[int, int]], line: int) -> tuple[int, int]:
    """Return the number of graphs that a graph contains, itself included, and the depth to which they are nested.

    Raises ModelError if either exceeds its limit, because a short text can nest the same graph again and again.
    ``known_counts``: the results for the nested graphs, by identity; ``line``: number of the graph's first line."""
    inside = [known_counts[id(v)] for node in graph.nodes for v in node.attrs.values() if isinstance(v, Graph)]
    count, depth = 1 + sum(c for c, _ in inside), 1 + max((d for _, d in inside), default=0)
    if count > _REGIONS or depth > _REGION_DEPTH:
        raise ModelError("graphs are nested too deeply, or there are too many", where=f"line {line}")
    return count, depth


def _read_graph(lines: Sequence[tuple[int, str]], source: _DataSource) -> Graph:
    """Read one graph from its lines, pairs (number, text). The graphs nested in it must have been read before."""
    parts = _GraphParts()
    for number, line in lines:
        _LineReader(line, number, parts, source).read()
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


class _LineReader(Scanner):
    """Parser of one line, which adds the declaration in the line to the parts of its graph."""

    def __init__(self, line: str, line_number: int, parts: _GraphParts, source: _DataSource) -> None:
        super().__init__(line, line_number)
        self.parts, self.source = parts, source

    # ------------------------------------------------------------ pieces

    def value(self) -> str:
        """Read the name of a value: ``%name``, or ``@name`` for constants and state."""
        if not (self.sees("%") or self.sees("@")):
            self.fail(f"a value (% or @) expected, {self.next[1] or 'the end of the line'!r} found")
        return self.word("a name")

    def defined_value(self) -> str:
        """Read the name of a value. ModelError unless an earlier line defines the value."""
        name = self.value()
        if name not in self.parts.types:
            self.fail(f"{name!r} is not defined before")
        return name

    def operand(self) -> str:
        """Read an operand of a node: the name of a value that is defined, or ``_`` for an absent operand (empty name)."""
        return "" if self.sees("_") else self.defined_value()

    def value_and_type(self) -> tuple[str, TensorType]:
        name = self.value()
        self.expect(":")
        return name, self.type()

    def result(self) -> tuple[str, TensorType | None]:
        """Read a result of a node: the name and the type of a value, or ``_`` for a result that nothing reads."""
        return ("", None) if self.sees("_") else self.value_and_type()

    def type(self) -> TensorType:
        dtype = self.take("word", "a dtype")
        if not dtypes.is_valid(dtype):
            self.fail(f"unknown dtype {dtype!r}")
        self.expect("[")
        shape = tuple(self.comma_separated(self.integer, "]"))
        if any(extent < 0 for extent in shape):
            self.fail(f"shape {shape} is negative")
        quant = self.quant() if self.sees("q", "(") else None
        layout = self.string() if self.sees("layout", "=") else ""
        return TensorType(shape, dtype, quant, layout)

    def quant(self) -> Quant:
        """Read quantisation parameters: scale and zero point; or several scales and zero points, and their axis."""
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
        return tuple(self.comma_separated(lambda: self.attr(depth + 1), ")"))

    def attribute(self) -> tuple[str, Attr]:
        name = self.word("an attribute")
        self.expect("=")
        return name, self.region() if self.sees("$") else self.attr()

    def region(self) -> Graph:
        """Read the number of a nested graph; return the graph."""
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
        """Parse the line, and add its declaration or node to the parts of the graph."""
        if self.parts.name is None:
            self.expect("graph")
            self.parts.name = self.word("a name")
        elif self.next[0] != "word" or self.next[1] == "_":
            self.node()
        else:
            self.declaration(self.take("word"))
        if self.next != NOTHING:
            self.fail(f"the end of the line expected, {self.next[1]!r} found")

    def declaration(self, keyword: str) -> None:
        """Read the rest of a line that begins with ``keyword``, and add what the line declares to the parts of the graph.

        Keywords are ``input``, ``const``, ``state``, ``value``, ``output`` and ``update``."""
        parts = self.parts
        match keyword:
            case "input":
                parts.inputs.append(self.define(*self.value_and_type()))
            case "const" | "state":
                name = self.define(*self.value_and_type())
                into = parts.consts if keyword == "const" else parts.state
                into[name] = self.array(keyword, name, len(into))
            case "value":
                self.define(*self.value_and_type())
            case "output":
                parts.outputs.append(self.defined_value())
            case "update":
                name = self.defined_value()
                self.expect("=")
                parts.updates[name] = self.defined_value()
            case _:
                self.fail(f"there are no lines that begin with {keyword!r}")

    def define(self, name: str, kind: TensorType) -> str:
        """Record the type of a value that this line defines; return its name. ModelError if the value is already defined."""
        if name in self.parts.types:
            self.fail(f"{name!r} is defined twice")
        self.parts.types[name] = kind
        return name

    def array(self, keyword: str, name: str, position: int) -> Array:
        """Return the data of the constant or state ``name``. ModelError if they are missing or do not have its type.

        ``keyword``: ``const`` or ``state``; ``position``: number of earlier constants (or states) in the graph."""
        source = self.source
        data, first = (source.consts, source.first) if keyword == "const" else (source.state, 0)
        array = data.get(f"{keyword}{first + position}" if source.numbered else f"{source.prefix}{name}")
        kind = self.parts.types[name]
        if array is None:
            self.fail(f"the data of {keyword} {name!r} are missing")
        if (array.shape, str(array.dtype)) != (kind.shape, kind.dtype):
            self.fail(
                f"{keyword} {name!r} is {kind.dtype}{list(kind.shape)}, its data {array.dtype}{list(array.shape)}"
            )
        return array

    def node(self) -> None:
        """Read a line that applies an operator, and add the node to the parts of the graph."""
        results = self.comma_separated(self.result, "=")
        op = self.word("an operator")
        self.expect("(")
        inputs = tuple(self.comma_separated(self.operand, ")"))
        attributes = self.comma_separated(self.attribute, "}") if self.sees("{") else []
        if len(dict(attributes)) != len(attributes):
            self.fail("an attribute is given twice")
        group = self.string() if self.sees("group", "=") else ""
        loc = self.loc() if self.sees("loc") else Loc()
        for name, kind in results:
            if kind is not None:
                self.define(name, kind)
        self.parts.nodes.append(Node(op, inputs, tuple(name for name, _ in results), dict(attributes), loc, group))


# ---- Printer: one node per line.

__all__ = ["from_text", "nested_graphs", "nodes_text", "to_text"]

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def to_text(graph: Graph) -> str:
    """Return a graph as text, without the data of constants and state: ``from_text(to_text(g), g.consts, g.state) == g``.

    Nested graphs follow the graph; their constants have names such as ``$0.w``."""
    whole = [graph, *nested_graphs(graph)]
    numbers = {id(inner): number for number, inner in enumerate(whole[1:])}
    texts = [_GraphPrinter(each, numbers).text() for each in whole]
    return texts[0] + "".join(f"region {number}\n{text}" for number, text in enumerate(texts[1:]))


def nodes_text(graph: Graph, nodes: Sequence[Node]) -> str:
    """Return some nodes of a graph as text for people, after the types of the operands that these nodes read.

    Nested graphs are shown as ``$0``, ``$1`` ..."""
    made = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in made)
    inner = [value for node in nodes for value in node.attrs.values() if isinstance(value, Graph)]
    text = _GraphPrinter(graph, {id(value): number for number, value in enumerate(inner)})
    return "".join(f"{line}\n" for line in (*(_value_with_type(graph, name) for name in read), *map(text.node, nodes)))


def nested_graphs(graph: Graph) -> list[Graph]:
    """Return all graphs nested in a graph, in breadth-first order.

    Nested graphs are the bodies of control flow operators, and are stored as attributes of nodes."""
    found = [graph]
    for each in found:
        found += [value for node in each.nodes for value in node.attrs.values() if isinstance(value, Graph)]
    return found[1:]


class _GraphPrinter:
    """Printer of one graph as text. ``numbers``: numbers of the graphs nested in it, by identity."""

    def __init__(self, graph: Graph, numbers: Mapping[int, int]) -> None:
        self.graph, self.numbers = graph, numbers

    def text(self) -> str:
        graph = self.graph
        made = {name for node in graph.nodes for name in node.outputs}
        declared = {*graph.inputs, *graph.consts, *graph.state, *made}
        lines = [f"graph {_quoted_word(graph.name)}"]
        lines += [f"input {_value_with_type(graph, name)}" for name in graph.inputs]
        lines += [f"const {_value_with_type(graph, name)}" for name in graph.consts]
        lines += [f"state {_value_with_type(graph, name)}" for name in graph.state]
        lines += [f"value {_value_with_type(graph, name)}" for name in graph.types if name not in declared]
        lines += [self.node(node) for node in graph.nodes]
        lines += [
            f"update {_value_text(graph, name)} = {_value_text(graph, value)}" for name, value in graph.updates.items()
        ]
        lines += [f"output {_value_text(graph, name)}" for name in graph.outputs]
        return "\n".join(lines) + "\n"

    def node(self, node: Node) -> str:
        results = ", ".join(_value_with_type(self.graph, name) for name in node.outputs)
        operands = ", ".join(_value_text(self.graph, name) for name in node.inputs)
        text = f"{results} = {_quoted_word(node.op)}({operands})"
        if node.attrs:
            text += (
                " {" + ", ".join(f"{_quoted_word(name)}={self.attr(value)}" for name, value in node.attrs.items()) + "}"
            )
        if node.group:
            text += f" group={json.dumps(node.group)}"
        if node.loc != Loc():
            text += f" loc({json.dumps(node.loc.file)} #{node.loc.index} {json.dumps(node.loc.name)})"
        return text

    def attr(self, value: Attr) -> str:
        return f"${self.numbers[id(value)]}" if isinstance(value, Graph) else _attr_text(value)


def _quoted_word(name: str) -> str:
    """Return a name as text: an identifier as it is, any other name in quotes."""
    return name if _IDENTIFIER.fullmatch(name) else json.dumps(name)


def _value_text(graph: Graph, name: str) -> str:
    """Return the name of a value as text: ``@name`` for constants and state, ``%name`` for other values, ``_`` if absent."""
    if not name:
        return "_"
    return ("@" if name in graph.consts or name in graph.state else "%") + _quoted_word(name)


def _value_with_type(graph: Graph, name: str) -> str:
    """Return a value and its type as text.

    A missing type is left out, so that a graph that fails verification can still be printed."""
    kind = graph.types.get(name)
    return _value_text(graph, name) + (f": {_type_text(kind)}" if kind is not None else "")


def _type_text(kind: TensorType) -> str:
    text = f"{kind.dtype}[{','.join(map(str, kind.shape))}]"
    if kind.quant is not None:
        text += f" q({_quant_text(kind.quant)})"
    return text + (f" layout={json.dumps(kind.layout)}" if kind.layout else "")


def _quant_text(quant: Quant) -> str:
    if quant.axis is None:
        return f"{_attr_text(quant.scale[0])}, {quant.zero_point[0]}"
    return f"{_attr_text(quant.scale)}, {_attr_text(quant.zero_point)}, axis={quant.axis}"


def _attr_text(value: Attr) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int():
            return str(int(value))
        case float():
            return float.__repr__(value) if math.isfinite(value) else str(float(value))
        case str():
            return json.dumps(value)
        case Graph():
            raise InternalError("a graph is an attribute of one of its own nodes")
        case _:
            items = [_attr_text(item) for item in value]
            return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
