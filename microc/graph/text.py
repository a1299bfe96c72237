"""Graphs as text, one node a line, and back.

::

    graph net
    input %x: int8[1,25,5,64] q(0.1, -3)
    const @w: int8[64,1,1,64] q((0.25, 0.5), (0, 0), axis=0) layout="OHWI"
    state @s: int8[1,4]
    %y: int8[1,25,5,64] q(0.2, 4) = conv2d(%x, @w, _) {groups=1, strides=(1, 1)} group="g0" loc("kws.tflite" #3 "y")
    update @s = %t
    output %y

The graphs of control flow follow behind lines ``region 0``, ``region 1`` ...; an attribute is ``$0``, ``$1`` ...

``%`` marks what is computed or given at run time, ``@`` what has data of its own, ``_`` an absent operand. Names that are no
identifiers are quoted as in JSON, and only ASCII is written. Data of constants and state lie beside the text
(:mod:`microc.graph.file`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence

from microc.errors import InternalError
from microc.graph.ir import Attr, Graph, Loc, Node, Quant, TensorType
from microc.graph.text_parse import from_text

__all__ = ["from_text", "nodes_text", "regions", "to_text"]

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def to_text(graph: Graph) -> str:
    """The text of a graph; ``from_text(to_text(g), g.consts, g.state) == g``. Constants of the graphs in it go by names such as
    ``$0.w``."""
    whole = [graph, *regions(graph)]
    numbers = {id(inner): number for number, inner in enumerate(whole[1:])}
    texts = [_Text(each, numbers).text() for each in whole]
    return texts[0] + "".join(f"region {number}\n{text}" for number, text in enumerate(texts[1:]))


def nodes_text(graph: Graph, nodes: Sequence[Node]) -> str:
    """Some nodes of a graph, behind the types of what they read, for people; graphs in them are ``$0``, ``$1`` ..."""
    made = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in made)
    inner = [value for node in nodes for value in node.attrs.values() if isinstance(value, Graph)]
    text = _Text(graph, {id(value): number for number, value in enumerate(inner)})
    return "".join(f"{line}\n" for line in (*(_typed(graph, name) for name in read), *map(text.node, nodes)))


def regions(graph: Graph) -> list[Graph]:
    """The graphs that attributes hold, those of each graph behind it."""
    found = [graph]
    for each in found:
        found += [value for node in each.nodes for value in node.attrs.values() if isinstance(value, Graph)]
    return found[1:]


class _Text:
    """The text of one graph. ``numbers`` are those of the graphs in it."""

    def __init__(self, graph: Graph, numbers: Mapping[int, int]) -> None:
        self.graph, self.numbers = graph, numbers

    def text(self) -> str:
        graph = self.graph
        made = {name for node in graph.nodes for name in node.outputs}
        declared = {*graph.inputs, *graph.consts, *graph.state, *made}
        lines = [f"graph {_word(graph.name)}"]
        lines += [f"input {_typed(graph, name)}" for name in graph.inputs]
        lines += [f"const {_typed(graph, name)}" for name in graph.consts]
        lines += [f"state {_typed(graph, name)}" for name in graph.state]
        lines += [f"value {_typed(graph, name)}" for name in graph.types if name not in declared]
        lines += [self.node(node) for node in graph.nodes]
        lines += [f"update {_value(graph, name)} = {_value(graph, value)}" for name, value in graph.updates.items()]
        lines += [f"output {_value(graph, name)}" for name in graph.outputs]
        return "\n".join(lines) + "\n"

    def node(self, node: Node) -> str:
        results = ", ".join(_typed(self.graph, name) for name in node.outputs)
        operands = ", ".join(_value(self.graph, name) for name in node.inputs)
        text = f"{results} = {_word(node.op)}({operands})"
        if node.attrs:
            text += " {" + ", ".join(f"{_word(name)}={self.attr(value)}" for name, value in node.attrs.items()) + "}"
        if node.group:
            text += f" group={json.dumps(node.group)}"
        if node.loc != Loc():
            text += f" loc({json.dumps(node.loc.file)} #{node.loc.index} {json.dumps(node.loc.name)})"
        return text

    def attr(self, value: Attr) -> str:
        return f"${self.numbers[id(value)]}" if isinstance(value, Graph) else _attr(value)


def _word(name: str) -> str:
    return name if _IDENTIFIER.fullmatch(name) else json.dumps(name)


def _value(graph: Graph, name: str) -> str:
    if not name:
        return "_"
    return ("@" if name in graph.consts or name in graph.state else "%") + _word(name)


def _typed(graph: Graph, name: str) -> str:
    """A value with its type, where it has one: a graph that fails verification still prints."""
    kind = graph.types.get(name)
    return _value(graph, name) + (f": {_type(kind)}" if kind is not None else "")


def _type(kind: TensorType) -> str:
    text = f"{kind.dtype}[{','.join(map(str, kind.shape))}]"
    if kind.quant is not None:
        text += f" q({_quant(kind.quant)})"
    return text + (f" layout={json.dumps(kind.layout)}" if kind.layout else "")


def _quant(quant: Quant) -> str:
    if quant.axis is None:
        return f"{_attr(quant.scale[0])}, {quant.zero_point[0]}"
    return f"{_attr(quant.scale)}, {_attr(quant.zero_point)}, axis={quant.axis}"


def _attr(value: Attr) -> str:
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
            raise InternalError("a graph is an attribute of its own")
        case _:
            items = [_attr(item) for item in value]
            return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
