# SPDX-License-Identifier: Apache-2.0
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
END_OF_LINE = ("end", "")
_MAX_NUMBER_LENGTH = 400
"""Most characters of a number. Python refuses to convert much longer numbers."""


class Scanner:
    """Scanner of one line of text: the tokens of the line, and the position of the next token."""

    def __init__(self, line: str, line_number: int) -> None:
        self.number = line_number
        self.tokens = self.split_into_tokens(line.rstrip())
        self.position = 0

    def fail(self, problem: str) -> NoReturn:
        """Raise the ModelError for a problem in this line."""
        raise ModelError(f"the graph's text is damaged: {problem}", where=f"line {self.number}")

    def split_into_tokens(self, line: str) -> list[tuple[str, str]]:
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
    def next_token(self) -> tuple[str, str]:
        return self.tokens[self.position] if self.position < len(self.tokens) else END_OF_LINE

    def take_token(self, token_type: str, expected: str = "") -> str:
        """Return the text of the next token and advance. ModelError unless the token has type ``token_type``.

        ``expected``: description of the token for the error."""
        found, text = self.next_token
        if found != token_type:
            self.fail(f"got {text or 'the end of the line'!r}, expected {expected or token_type}")
        self.position += 1
        return text

    def skip_if_next(self, *texts: str) -> bool:
        """Advance past the signs and words ``texts`` if they are the next tokens. Return True if they are."""
        upcoming = [text for kind, text in self.tokens[self.position : self.position + len(texts)] if kind != "string"]
        if upcoming != list(texts):
            return False
        self.position += len(texts)
        return True

    def expect_next(self, *texts: str) -> None:
        """Advance past the signs and words ``texts``. ModelError unless they are the next tokens."""
        if not self.skip_if_next(*texts):
            self.fail(f"got {self.next_token[1] or 'the end of the line'!r}, expected {' '.join(texts)!r}")

    def read_comma_separated(self, read_item: Callable[[], T], end: str) -> list[T]:
        """Read items separated by commas, up to and including the sign ``end``. A comma may follow the last item.

        ``read_item``: function that reads one item."""
        found: list[T] = []
        while not self.skip_if_next(end):
            found.append(read_item())
            if not self.skip_if_next(","):
                self.expect_next(end)
                break
        return found

    def read_string(self) -> str:
        try:
            return str(json.loads(self.take_token("string")))
        except ValueError:
            self.fail("a string has an invalid escape sequence")

    def read_name(self, expected: str) -> str:
        """Read a name: a word, or a string in quotes. ``expected``: description of the name for the error."""
        return self.read_string() if self.next_token[0] == "string" else self.take_token("word", expected)

    def read_number(self) -> int | float:
        text = self.take_token("number")
        if len(text) > _MAX_NUMBER_LENGTH:
            self.fail(f"a number is too long; got {len(text)} characters, expected at most {_MAX_NUMBER_LENGTH}")
        return int(text) if text.lstrip("-").isdigit() else float(text)

    def read_integer(self) -> int:
        value = self.read_number()
        if not isinstance(value, int):
            self.fail(f"got {value}, expected an integer")
        return value


# ---- Parser: recursive descent over the tokens of every line. No text is evaluated as code.

_MAX_TUPLE_DEPTH = 32
_CONSTANTS: Mapping[str, Attr] = MappingProxyType(
    {"none": None, "true": True, "false": False, "inf": math.inf, "nan": math.nan}
)
_MAX_REGIONS, _MAX_REGION_DEPTH = 1000, 50
"""Limits of the bodies of control flow operators: their number in a network, counted as often as they are used, and the
depth to which they may be nested."""


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

    ``consts``, ``state``: arrays by name. If ``has_numbers_as_names`` is False, their names are the names of the values
    after ``name_prefix``. If it is True, their names are numbers in the order of declaration; the first constant of this
    graph has number ``first_constant_number``. ``nested_graph_by_number``: the nested graphs read so far."""

    consts: Mapping[str, Array]
    state: Mapping[str, Array]
    has_numbers_as_names: bool
    first_constant_number: int
    name_prefix: str
    nested_graph_by_number: Mapping[int, Graph]


def from_text(text: str, consts: Mapping[str, Array], state: Mapping[str, Array], *, numbered: bool = False) -> Graph:
    """Parse the text of a graph that :func:`to_text` printed.

    ``consts``, ``state``: data of constants and state, by the names of the values. If ``numbered`` is True, the data
    are in the order of declaration and are named ``const0``, ``const1`` ..., ``state0`` ... Raises ModelError with the
    number of the line if the text is damaged, or if data are missing.
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
        extents[id(graph)] = _count_graphs_and_depth(graph, extents, sections[position][0][0])
    return graphs[-1]


def _count_graphs_and_depth(graph: Graph, known_counts: Mapping[int, tuple[int, int]], line: int) -> tuple[int, int]:
    """Return the number of graphs that a graph contains, itself included, and the depth to which they are nested.

    Raises ModelError if either exceeds its limit, because a short text can nest the same graph again and again.
    ``known_counts``: the results for the nested graphs, by identity; ``line``: number of the graph's first line."""
    inside = [known_counts[id(v)] for node in graph.nodes for v in node.attrs.values() if isinstance(v, Graph)]
    count, depth = 1 + sum(c for c, _ in inside), 1 + max((d for _, d in inside), default=0)
    if count > _MAX_REGIONS or depth > _MAX_REGION_DEPTH:
        raise ModelError(
            f"too many nested graphs; got {count} in {depth} levels, "
            f"expected at most {_MAX_REGIONS} in {_MAX_REGION_DEPTH}",
            where=f"line {line}",
        )
    return count, depth


def _read_graph(lines: Sequence[tuple[int, str]], source: _DataSource) -> Graph:
    """Read one graph from its lines, pairs (number, text). The graphs nested in it must have been read before."""
    parts = _GraphParts()
    for number, line in lines:
        _LineReader(line, number, parts, source).read_line()
    if parts.name is None:
        where = f"line {lines[0][0] if lines else 1}"
        raise ModelError("the text contains no graph", where=where, hint="begin the text with: graph <name>")
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

    def read_value_name(self) -> str:
        """Read the name of a value: ``%name``, or ``@name`` for constants and state."""
        if not (self.skip_if_next("%") or self.skip_if_next("@")):
            self.fail(f"got {self.next_token[1] or 'the end of the line'!r}, expected a value (% or @)")
        return self.read_name("a name")

    def read_defined_value(self) -> str:
        """Read the name of a value. ModelError unless an earlier line defines the value."""
        name = self.read_value_name()
        if name not in self.parts.types:
            self.fail(f"{name!r} is not defined before")
        return name

    def read_operand(self) -> str:
        """Read an operand of a node: the name of a value that is defined, or ``_`` for an absent operand (empty
        name)."""
        return "" if self.skip_if_next("_") else self.read_defined_value()

    def read_value_and_type(self) -> tuple[str, TensorType]:
        name = self.read_value_name()
        self.expect_next(":")
        return name, self.read_type()

    def read_result(self) -> tuple[str, TensorType | None]:
        """Read a result of a node: the name and the type of a value, or ``_`` for a result that nothing reads."""
        return ("", None) if self.skip_if_next("_") else self.read_value_and_type()

    def read_type(self) -> TensorType:
        dtype = self.take_token("word", "a dtype")
        if not dtypes.is_valid(dtype):
            self.fail(f"unknown dtype {dtype!r}")
        self.expect_next("[")
        shape = tuple(self.read_comma_separated(self.read_integer, "]"))
        if any(extent < 0 for extent in shape):
            self.fail(f"shape {shape} has a negative extent")
        quant = self.read_quant() if self.skip_if_next("q", "(") else None
        layout = self.read_string() if self.skip_if_next("layout", "=") else ""
        return TensorType(shape, dtype, quant, layout)

    def read_quant(self) -> Quant:
        """Read quantisation parameters: scale and zero point; or several scales and zero points, and their axis."""
        scale = self.read_attribute_value()
        self.expect_next(",")
        zero_point = self.read_attribute_value()
        axis = self.read_integer() if self.skip_if_next(",", "axis", "=") else None
        self.expect_next(")")
        if axis is None:
            scale, zero_point = (scale,), (zero_point,)
        if not isinstance(scale, tuple) or not isinstance(zero_point, tuple) or len(scale) != len(zero_point):
            self.fail("quantisation: the numbers of scales and zero points differ")
        scales = tuple(s for s in scale if isinstance(s, float))
        zeros = tuple(z for z in zero_point if isinstance(z, int) and not isinstance(z, bool))
        if not scales or len(scales) != len(scale) or len(zeros) != len(zero_point):
            self.fail("quantisation: expected floats as scales and integers as zero points")
        return Quant(scales, zeros, axis)

    def read_attribute_value(self, depth: int = 0) -> Attr:
        kind, text = self.next_token
        if kind == "string":
            return self.read_string()
        if kind == "number":
            return self.read_number()
        if kind == "word" and text in _CONSTANTS:
            self.position += 1
            return _CONSTANTS[text]
        if depth > _MAX_TUPLE_DEPTH:
            self.fail(f"tuples are nested too deeply, expected at most {_MAX_TUPLE_DEPTH} levels")
        self.expect_next("(")
        return tuple(self.read_comma_separated(lambda: self.read_attribute_value(depth + 1), ")"))

    def read_attribute(self) -> tuple[str, Attr]:
        name = self.read_name("an attribute")
        self.expect_next("=")
        return name, self.read_region() if self.skip_if_next("$") else self.read_attribute_value()

    def read_region(self) -> Graph:
        """Read the number of a nested graph; return the graph."""
        number = self.read_integer()
        if number not in self.source.nested_graph_by_number:
            self.fail(f"region {number} is not defined after this graph")
        return self.source.nested_graph_by_number[number]

    def read_location(self) -> Loc:
        self.expect_next("(")
        file = self.read_string()
        self.expect_next("#")
        loc = Loc(file, self.read_integer(), self.read_string())
        self.expect_next(")")
        return loc

    # ------------------------------------------------------------ lines

    def read_line(self) -> None:
        """Parse the line, and add its declaration or node to the parts of the graph."""
        if self.parts.name is None:
            self.expect_next("graph")
            self.parts.name = self.read_name("a name")
        elif self.next_token[0] != "word" or self.next_token[1] == "_":
            self.read_node()
        else:
            self.read_declaration(self.take_token("word"))
        if self.next_token != END_OF_LINE:
            self.fail(f"got {self.next_token[1]!r}, expected the end of the line")

    def read_declaration(self, keyword: str) -> None:
        """Read the rest of a line that begins with ``keyword``, and add what the line declares to the parts of the
        graph.

        Keywords are ``input``, ``const``, ``state``, ``value``, ``output`` and ``update``."""
        parts = self.parts
        match keyword:
            case "input":
                parts.inputs.append(self.define_value(*self.read_value_and_type()))
            case "const" | "state":
                name = self.define_value(*self.read_value_and_type())
                into = parts.consts if keyword == "const" else parts.state
                into[name] = self.find_data(keyword, name, len(into))
            case "value":
                self.define_value(*self.read_value_and_type())
            case "output":
                parts.outputs.append(self.read_defined_value())
            case "update":
                name = self.read_defined_value()
                self.expect_next("=")
                parts.updates[name] = self.read_defined_value()
            case _:
                self.fail(f"a line begins with {keyword!r}, expected input, const, state, value, output or update")

    def define_value(self, name: str, kind: TensorType) -> str:
        """Record the type of a value that this line defines; return its name. ModelError if the value is already
        defined."""
        if name in self.parts.types:
            self.fail(f"{name!r} is defined twice")
        self.parts.types[name] = kind
        return name

    def find_data(self, keyword: str, name: str, position: int) -> Array:
        """Return the data of the constant or state ``name``. ModelError if they are missing or do not have its type.

        ``keyword``: ``const`` or ``state``; ``position``: number of earlier constants (or states) in the graph."""
        source = self.source
        data, first = (source.consts, source.first_constant_number) if keyword == "const" else (source.state, 0)
        array = data.get(
            f"{keyword}{first + position}" if source.has_numbers_as_names else f"{source.name_prefix}{name}"
        )
        kind = self.parts.types[name]
        if array is None:
            self.fail(f"the data of {keyword} {name!r} are missing")
        if (array.shape, str(array.dtype)) != (kind.shape, kind.dtype):
            self.fail(
                f"the data of {keyword} {name!r} have a wrong type; got {array.dtype}{list(array.shape)}, "
                f"expected {kind.dtype}{list(kind.shape)}"
            )
        return array

    def read_node(self) -> None:
        """Read a line that applies an operator, and add the node to the parts of the graph."""
        results = self.read_comma_separated(self.read_result, "=")
        op = self.read_name("an operator")
        self.expect_next("(")
        inputs = tuple(self.read_comma_separated(self.read_operand, ")"))
        attributes = self.read_comma_separated(self.read_attribute, "}") if self.skip_if_next("{") else []
        if len(dict(attributes)) != len(attributes):
            self.fail("an attribute is given twice")
        group = self.read_string() if self.skip_if_next("group", "=") else ""
        loc = self.read_location() if self.skip_if_next("loc") else Loc()
        for name, kind in results:
            if kind is not None:
                self.define_value(name, kind)
        self.parts.nodes.append(Node(op, inputs, tuple(name for name, _ in results), dict(attributes), loc, group))


# ---- Printer: one node per line.

__all__ = ["format_nodes", "from_text", "nested_graphs", "to_text"]

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def to_text(graph: Graph) -> str:
    """Return a graph as text, without the data of constants and state: ``from_text(to_text(g), g.consts, g.state) ==
    g``.

    Nested graphs follow the graph; their constants have names such as ``$0.w``."""
    whole = [graph, *nested_graphs(graph)]
    numbers = {id(inner): number for number, inner in enumerate(whole[1:])}
    texts = [_GraphPrinter(each, numbers).format_graph() for each in whole]
    return texts[0] + "".join(f"region {number}\n{text}" for number, text in enumerate(texts[1:]))


def format_nodes(graph: Graph, nodes: Sequence[Node]) -> str:
    """Return some nodes of a graph as text for people, after the types of the operands that these nodes read.

    Nested graphs are shown as ``$0``, ``$1`` ..."""
    made = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in made)
    inner = [value for node in nodes for value in node.attrs.values() if isinstance(value, Graph)]
    printer = _GraphPrinter(graph, {id(value): number for number, value in enumerate(inner)})
    return "".join(
        f"{line}\n"
        for line in (*(_format_value_with_type(graph, name) for name in read), *map(printer.format_node, nodes))
    )


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

    def format_graph(self) -> str:
        graph = self.graph
        made = {name for node in graph.nodes for name in node.outputs}
        declared = {*graph.inputs, *graph.consts, *graph.state, *made}
        lines = [f"graph {_quote_unless_identifier(graph.name)}"]
        lines += [f"input {_format_value_with_type(graph, name)}" for name in graph.inputs]
        lines += [f"const {_format_value_with_type(graph, name)}" for name in graph.consts]
        lines += [f"state {_format_value_with_type(graph, name)}" for name in graph.state]
        lines += [f"value {_format_value_with_type(graph, name)}" for name in graph.types if name not in declared]
        lines += [self.format_node(node) for node in graph.nodes]
        lines += [
            f"update {_format_value(graph, name)} = {_format_value(graph, value)}"
            for name, value in graph.updates.items()
        ]
        lines += [f"output {_format_value(graph, name)}" for name in graph.outputs]
        return "\n".join(lines) + "\n"

    def format_node(self, node: Node) -> str:
        results = ", ".join(_format_value_with_type(self.graph, name) for name in node.outputs)
        operands = ", ".join(_format_value(self.graph, name) for name in node.inputs)
        text = f"{results} = {_quote_unless_identifier(node.op)}({operands})"
        if node.attrs:
            text += (
                " {"
                + ", ".join(
                    f"{_quote_unless_identifier(name)}={self.format_attribute(value)}"
                    for name, value in node.attrs.items()
                )
                + "}"
            )
        if node.group:
            text += f" group={json.dumps(node.group)}"
        if node.loc != Loc():
            text += f" loc({json.dumps(node.loc.file)} #{node.loc.index} {json.dumps(node.loc.name)})"
        return text

    def format_attribute(self, value: Attr) -> str:
        return f"${self.numbers[id(value)]}" if isinstance(value, Graph) else _format_attribute_value(value)


def _quote_unless_identifier(name: str) -> str:
    """Return a name as text: an identifier as it is, any other name in quotes."""
    return name if _IDENTIFIER.fullmatch(name) else json.dumps(name)


def _format_value(graph: Graph, name: str) -> str:
    """Return the name of a value as text: ``@name`` for constants and state, ``%name`` for other values, ``_`` if
    absent."""
    if not name:
        return "_"
    return ("@" if name in graph.consts or name in graph.state else "%") + _quote_unless_identifier(name)


def _format_value_with_type(graph: Graph, name: str) -> str:
    """Return a value and its type as text.

    A missing type is left out, so that a graph that fails verification can still be printed."""
    kind = graph.types.get(name)
    return _format_value(graph, name) + (f": {_format_type(kind)}" if kind is not None else "")


def _format_type(kind: TensorType) -> str:
    text = f"{kind.dtype}[{','.join(map(str, kind.shape))}]"
    if kind.quant is not None:
        text += f" q({_format_quant(kind.quant)})"
    return text + (f" layout={json.dumps(kind.layout)}" if kind.layout else "")


def _format_quant(quant: Quant) -> str:
    if quant.axis is None:
        return f"{_format_attribute_value(quant.scale[0])}, {quant.zero_point[0]}"
    return f"{_format_attribute_value(quant.scale)}, {_format_attribute_value(quant.zero_point)}, axis={quant.axis}"


def _format_attribute_value(value: Attr) -> str:
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
            raise InternalError("graph text: a graph is an attribute of one of its own nodes")
        case _:
            items = [_format_attribute_value(item) for item in value]
            return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
