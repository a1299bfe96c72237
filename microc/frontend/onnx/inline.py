"""The nodes of a function's body put in the place of an operator, under names of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from microc.frontend.onnx.attributes import Attributes
from microc.frontend.onnx.file import Operator

Names = dict[str, str]


def operators(
    nodes: Iterable[Any], names: Names, given: Mapping[str, Any], fresh: Callable[[str], str], index: int, opset: int
) -> tuple[Operator, ...]:
    """Nodes under new names: ``names`` says those that are known and grows by what ``fresh`` gives the nodes' own results.

    ``given``: attributes that nodes of a function refer to. Names that nothing here defines stay what they are.
    """
    found = []
    for node in nodes:
        for name in node.output:
            if name and name not in names:
                names[name] = fresh(name)
        attributes = _attributes(node.attribute, names, given, fresh)
        inputs, outputs = (tuple(names.get(name, name) for name in words) for words in (node.input, node.output))
        domain = "" if node.domain == "ai.onnx" else node.domain
        where = Attributes(attributes, f"#{index} {node.op_type}")
        found.append(Operator(index, "", node.op_type, domain, inputs, outputs, where, opset))
    return tuple(found)


def _attributes(
    attributes: Iterable[Any], names: Names, given: Mapping[str, Any], fresh: Callable[[str], str]
) -> list[Any]:
    """Attributes filled in, graphs in them renamed; a reference to an attribute that is not given is left out."""
    import onnx

    found = []
    for attribute in attributes:
        if attribute.ref_attr_name and attribute.ref_attr_name not in given:
            continue
        copy = onnx.AttributeProto()
        copy.CopyFrom(given[attribute.ref_attr_name] if attribute.ref_attr_name else attribute)
        copy.name = attribute.name
        if copy.type == onnx.AttributeProto.GRAPH:
            _rename(copy.g, names, given, fresh)
        found.append(copy)
    return found


def _rename(graph: Any, outer: Names, given: Mapping[str, Any], fresh: Callable[[str], str]) -> None:
    """Give a graph's values names of its own, and what it reads from outside the names that it has there now."""
    names = dict(outer)
    for value in (*graph.input, *graph.initializer):
        names[value.name] = fresh(value.name)
        value.name = names[value.name]
    for node in graph.node:
        for name in node.output:
            if name:
                names[name] = fresh(name)
        attributes = _attributes(node.attribute, names, given, fresh)
        del node.attribute[:]
        node.attribute.extend(attributes)
        for words in (node.input, node.output):
            words[:] = [names.get(name, name) for name in words]
    for value in graph.output:
        value.name = names.get(value.name, value.name)
