"""A network at sizes that nobody compiled it for: the graphs of other sizes with the rules of their numbers applied.

No pass runs, so that an axis of one element is treated as any other; what is generalised is compared with this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from microc.dtypes import Array
from microc.errors import UnsupportedError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.tir.fit import Fitter, value_at

Sizes = Mapping[str, int]
"""Sizes by scalar."""


def instance(graphs: Sequence[Graph], largest: Graph, fitter: Fitter, sizes: Sizes) -> Graph:
    """The network at some sizes, from those at the fitter's points and the largest, which holds the constants.

    UnsupportedError names a node with a number that follows no rule.
    """
    types = {
        name: _type(kind, [g.types[name] for g in graphs], fitter, sizes, name) for name, kind in largest.types.items()
    }
    nodes = tuple(
        _node(node, together, fitter, sizes)
        for node, together in zip(largest.nodes, zip(*(g.nodes for g in graphs), strict=True), strict=True)
    )
    return replace(
        largest,
        types=types,
        nodes=nodes,
        consts={name: _part(array, types[name].shape) for name, array in largest.consts.items()},
    )


def _part(array: Array, shape: tuple[int, ...]) -> Array:
    """The leading part of a constant."""
    return array[tuple(slice(n) for n in shape)] if array.shape != shape else array


def _type(kind: TensorType, together: Sequence[TensorType], fitter: Fitter, sizes: Sizes, where: str) -> TensorType:
    columns = zip(*(t.shape for t in together), strict=True)
    return replace(
        kind, shape=tuple(_integer(column, fitter, sizes, f"an axis of {where}", where) for column in columns)
    )


def _node(node: Node, together: Sequence[Node], fitter: Fitter, sizes: Sizes) -> Node:
    attrs = {
        key: _attribute(key, [n.attrs[key] for n in together], fitter, sizes, str(node.loc), value)
        for key, value in node.attrs.items()
    }
    return replace(node, attrs=attrs)


def _attribute(name: str, values: Sequence[Attr], fitter: Fitter, sizes: Sizes, where: str, largest: Attr) -> Any:
    first = values[0]
    if isinstance(first, Graph) and isinstance(largest, Graph):
        return instance([v for v in values if isinstance(v, Graph)], largest, fitter, sizes)
    if all(v == first for v in values):
        return first
    if isinstance(first, tuple) and all(isinstance(v, tuple) and len(v) == len(first) for v in values):
        columns = zip(*(v for v in values if isinstance(v, tuple)), strict=True)
        return tuple(_attribute(name, column, fitter, sizes, where, None) for column in columns)
    if all(type(v) is int for v in values):
        return _integer([v for v in values if isinstance(v, int)], fitter, sizes, f"its {name}", where)
    raise _unruled(f"its {name}", values, where)


def _integer(values: Sequence[int], fitter: Fitter, sizes: Sizes, what: str, where: str) -> int:
    rule = fitter.integer(values)
    if rule is None:
        raise _unruled(what, values, where)
    return value_at(rule, sizes)


def _unruled(what: str, values: Sequence[object], where: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} depends on the sizes by no rule: {', '.join(map(str, values))}",
        where=where,
        hint="bind its sizes with --input-shape, or let them be multiples of a step: --bound NAME=8:64:8",
    )
