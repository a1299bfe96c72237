# SPDX-License-Identifier: Apache-2.0
"""The graph IR: the operators of a network and the values between them, without loops.

Operators refer to values by name, so a graph can be printed as text and parsed back. All objects are immutable; a pass
builds a new :class:`Graph`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import Any, Union

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.document.blocks import Code, Document, document
from microc.document.notebook import Showable
from microc.errors import InternalError

Attr = Union[int, float, str, bool, None, tuple["Attr", ...], "Graph"]
"""Values that attributes of operators may have. A graph is the body of a control flow operator."""
_MAX_TEXT_LENGTH = 200
"""Most characters of a graph's name, inputs and outputs in its one-line representation."""


@dataclass(frozen=True, slots=True)
class Loc:
    """Location of an operator in the model: name of the model file (without folder), index of the operator, its
    name."""

    file: str = ""
    index: int = -1
    name: str = ""

    def __str__(self) -> str:
        index = f"#{self.index}" if self.index >= 0 else ""
        return " ".join(part for part in (self.file, index, self.name) if part) or "<unknown>"


@dataclass(frozen=True, slots=True)
class Quant:
    """Parameters of affine quantisation: real = scale * (q - zero_point).

    ``scale`` and ``zero_point`` have one entry (per tensor), or one entry for each index along ``axis`` (per
    channel)."""

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None = None

    def __post_init__(self) -> None:
        if len(self.scale) != len(self.zero_point) or not self.scale:
            raise InternalError(
                f"Quant: got {len(self.scale)} scales and {len(self.zero_point)} zero points, "
                "expected equal numbers, at least 1"
            )
        if self.axis is None and len(self.scale) != 1:
            raise InternalError(
                f"Quant: got {len(self.scale)} scales without an axis, expected an axis or a single scale"
            )


@dataclass(frozen=True, slots=True)
class TensorType:
    """Type of a value: shape, dtype, quantisation parameters (or None), and layout.

    ``layout`` states the meaning of the axes: ``NHWC``, ``NCHW``, ``OHWI``, or empty if it is unknown."""

    shape: tuple[int, ...]
    dtype: str
    quant: Quant | None = None
    layout: str = ""

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * dtypes.nbytes(self.dtype)

    @property
    def is_quantised(self) -> bool:
        """True if the values are integers that represent reals by a scale and zero point."""
        return self.quant is not None and dtypes.is_integer(self.dtype)


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the graph: one application of an operator to named values.

    An optional input that is absent has the empty name. ``group``: name of the kernel to which fusion assigned the
    node; empty before fusion. ``loc``: location of the operator in the model.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    loc: Loc = Loc()
    group: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", MappingProxyType(dict(sorted(self.attrs.items()))))

    def attr(self, name: str) -> Any:
        """Return the value of an attribute. InternalError if it is absent, because inference fills in all default
        values."""
        try:
            return self.attrs[name]
        except KeyError:
            raise InternalError(f"{self.op} has no attribute {name!r}", where=str(self.loc)) from None


@dataclass(frozen=True, slots=True)
class Graph(Showable):
    """A network: nodes in topological order, and the values that they read and compute.

    ``types``: type of every value. ``consts``: data of the constants, as read-only numpy arrays. ``state``: initial
    data of the tensors that persist across runs. ``updates``: for each state, the name of the value that becomes its
    contents after a run.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType]
    consts: Mapping[str, Array] = field(default_factory=dict)
    state: Mapping[str, Array] = field(default_factory=dict)
    updates: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("types", "consts", "state", "updates"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        for array in (*self.consts.values(), *self.state.values()):
            array.setflags(write=False)

    def __eq__(self, other: object) -> bool:
        """Test whether two graphs are equal, apart from their names, which are those of their files.

        Arrays must have equal dtypes and shapes, and equal bits."""
        if not isinstance(other, Graph):
            return NotImplemented
        plain = ("inputs", "outputs", "nodes", "types", "updates")
        return all(getattr(self, name) == getattr(other, name) for name in plain) and all(
            _have_same_arrays(getattr(self, name), getattr(other, name)) for name in ("consts", "state")
        )

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        """Return a summary with one line for each node, with shapes and without weights.

        :mod:`microc.graph.text` prints the complete graph."""
        lines = [f"graph {self.name}({', '.join(map(self._format_name_with_type, self.inputs))})"]
        for node in self.nodes:
            made, read = (
                ", ".join(map(self._format_name_with_type, node.outputs)),
                ", ".join(name or "_" for name in node.inputs),
            )
            lines.append(f"  {made} = {node.op}({read})")
        return "\n".join([*lines, f"  return {', '.join(self.outputs)}"])

    def __repr__(self) -> str:
        """Return one short line: name, inputs, outputs and number of operators."""
        ends = " -> ".join(", ".join(map(self._format_name_with_type, names)) for names in (self.inputs, self.outputs))
        return f"<Graph {shorten_text(f'{self.name}({ends})')}, {len(self.nodes)} operators>"

    def document(self) -> Document:
        """Return the text of the graph as a document, for a notebook."""
        return document(Code(str(self)))

    def _format_name_with_type(self, name: str) -> str:
        """Return the name of a value as text, followed by its dtype and shape if it has a type."""
        kind = self.types.get(name)
        return f"{name}: {kind.dtype}{list(kind.shape)}" if kind else name

    def producer(self) -> dict[str, Node]:
        """Return the node that computes each value, by the name of the value."""
        return {name: node for node in self.nodes for name in node.outputs}

    def consumers(self) -> dict[str, tuple[Node, ...]]:
        """Return the nodes that read each value, by the name of the value; nodes are in the order of the graph."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    def location_of_input(self, name: str) -> Loc:
        """Return the location of an input, which no operator computes: the name of the model file and of the value."""
        return Loc(next((node.loc.file for node in self.nodes if node.loc.file), ""), name=name)

    def with_nodes(self, nodes: Iterable[Node], **changes: Any) -> Graph:
        """Return a copy of the graph with other nodes, and with the fields in ``changes`` replaced.

        Types and constants that the new graph does not use are dropped."""
        nodes = tuple(nodes)
        graph = replace(self, nodes=nodes, **changes)
        used = {*graph.inputs, *graph.outputs, *graph.state, *graph.updates.values()}
        for node in nodes:
            used.update(node.inputs, node.outputs)
        return replace(
            graph,
            types={name: t for name, t in graph.types.items() if name in used},
            consts={name: c for name, c in graph.consts.items() if name in used},
        )


def _have_same_arrays(first: Mapping[str, Array], second: Mapping[str, Array]) -> bool:
    return first.keys() == second.keys() and all(
        array.dtype == second[name].dtype
        and array.shape == second[name].shape
        and (array is second[name] or array.tobytes() == second[name].tobytes())
        for name, array in first.items()
    )


class NameSet(set[str]):
    """A set of the names that are in use, from which names are never removed."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__(names)
        self._numbers: dict[str, int] = {}

    def fresh(self, stem: str) -> str:
        """Return the first of ``stem``, ``stem_1``, ``stem_2`` ... that is not in use, and add it to the set.

        Unlike :func:`fresh_name`, the search continues at the last number that was returned for the stem."""
        name, number = stem, self._numbers.get(stem, 0)
        while name in self:
            number += 1
            name = f"{stem}_{number}"
        self._numbers[stem] = number
        self.add(name)
        return name


def fresh_name(used_names: Iterable[str], stem: str) -> str:
    """Return the first of the names ``stem``, ``stem_1``, ``stem_2`` ... that is not in ``used_names``."""
    used_names = used_names if isinstance(used_names, (set, frozenset, Mapping)) else set(used_names)
    if stem not in used_names:
        return stem
    number = 1
    while f"{stem}_{number}" in used_names:
        number += 1
    return f"{stem}_{number}"


def new_value(types: dict[str, TensorType], stem: str, kind: TensorType) -> str:
    """Add a new value of type ``kind`` to ``types``, the types of values by name; return its name.

    The name is ``stem``, with a number appended if the name is in use (:func:`fresh_name`)."""
    name = fresh_name(types, stem)
    types[name] = kind
    return name


def shorten_text(text: str) -> str:
    """Shorten a text to :data:`_MAX_TEXT_LENGTH` characters, the limit of a one-line representation."""
    return text if len(text) <= _MAX_TEXT_LENGTH else f"{text[: _MAX_TEXT_LENGTH - 3]}..."
