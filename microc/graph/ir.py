"""The graph IR: operators of a network and the values between them, without loops.

Values are names, so a graph prints as text and parses back. Everything is frozen; a pass builds a new :class:`Graph`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from math import prod
from types import MappingProxyType
from typing import Any, Union

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import InternalError

Attr = Union[int, float, str, bool, None, tuple["Attr", ...], "Graph"]
"""Values of attributes; graphs are those of control flow."""
_LONGEST = 200
"""Characters of name, inputs and outputs in a one-line representation."""


@dataclass(frozen=True, slots=True)
class Loc:
    """Source of a node: model file (without folder), index of the operator in it, and its name."""

    file: str = ""
    index: int = -1
    name: str = ""

    def __str__(self) -> str:
        index = f"#{self.index}" if self.index >= 0 else ""
        return " ".join(part for part in (self.file, index, self.name) if part) or "<unknown>"


@dataclass(frozen=True, slots=True)
class Quant:
    """Affine quantisation, real = scale * (q - zero_point). One entry, or one per index along ``axis``."""

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None = None

    def __post_init__(self) -> None:
        if len(self.scale) != len(self.zero_point) or not self.scale:
            raise InternalError("Quant: scale and zero_point must have equal lengths, at least 1")
        if self.axis is None and len(self.scale) != 1:
            raise InternalError("Quant: several scales need an axis; expected one scale without it")


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape, dtype, optional quantisation, and the meaning of the axes (``NHWC``, ``NCHW``, ``OHWI`` or empty)."""

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


@dataclass(frozen=True, slots=True)
class Node:
    """An application of an operator. ``group`` names the kernel that fusion put it in (empty before fusion).

    An absent optional input is the empty name.
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
        """Return the attribute, which must be present: inference fills in defaults, never a consumer."""
        try:
            return self.attrs[name]
        except KeyError:
            raise InternalError(f"{self.op} has no attribute {name!r}", where=str(self.loc)) from None


@dataclass(frozen=True, slots=True)
class Graph:
    """A network in topological order.

    ``types`` contains every value's type; ``consts`` the data of constants (numpy arrays, never written to); ``state``
    the initial data of tensors that persist across calls. Each state is updated by a node's output, bound in
    ``updates`` (state name -> name of the value with its next contents).
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
        """Test for equality except of the graph's name, which is its file's; arrays must be equal bit by bit, with
        equal dtype and shape."""
        if not isinstance(other, Graph):
            return NotImplemented
        plain = ("inputs", "outputs", "nodes", "types", "updates")
        return all(getattr(self, name) == getattr(other, name) for name in plain) and all(
            _same_arrays(getattr(self, name), getattr(other, name)) for name in ("consts", "state")
        )

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        """Return a line for each node, with shapes and without weights; :mod:`microc.graph.text` prints everything."""
        lines = [f"graph {self.name}({', '.join(map(self._with_type, self.inputs))})"]
        for node in self.nodes:
            made, read = ", ".join(map(self._with_type, node.outputs)), ", ".join(name or "_" for name in node.inputs)
            lines.append(f"  {made} = {node.op}({read})")
        return "\n".join([*lines, f"  return {', '.join(self.outputs)}"])

    def __repr__(self) -> str:
        """Return a single short line."""
        ends = " -> ".join(", ".join(map(self._with_type, names)) for names in (self.inputs, self.outputs))
        return f"<Graph {shorten_text(f'{self.name}({ends})')}, {len(self.nodes)} operators>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def _with_type(self, name: str) -> str:
        """Return the name of a value, with its dtype and shape if it has a type."""
        kind = self.types.get(name)
        return f"{name}: {kind.dtype}{list(kind.shape)}" if kind else name

    def producer(self) -> dict[str, Node]:
        """Return the node that computes each value, by name."""
        return {name: node for node in self.nodes for name in node.outputs}

    def consumers(self) -> dict[str, tuple[Node, ...]]:
        """Return the nodes that read each value, by name, in order."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    def place(self, name: str) -> Loc:
        """Return the location of a value that no operator computes (an input): the model's file and the value's
        name."""
        return Loc(next((node.loc.file for node in self.nodes if node.loc.file), ""), name=name)

    def with_nodes(self, nodes: Iterable[Node], **changes: Any) -> Graph:
        """Return the graph with its nodes (and the fields in ``changes``) replaced; unused types and constants are
        dropped."""
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


def _same_arrays(first: Mapping[str, Array], second: Mapping[str, Array]) -> bool:
    return first.keys() == second.keys() and all(
        array.dtype == second[name].dtype
        and array.shape == second[name].shape
        and (array is second[name] or array.tobytes() == second[name].tobytes())
        for name, array in first.items()
    )


class NameSet(set[str]):
    """A set of the names in use; names are never removed."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__(names)
        self._numbers: dict[str, int] = {}

    def fresh(self, stem: str) -> str:
        """Return a name like :func:`fresh_name`, and add it. All numbers up to the last one of a stem are known to
        be in use."""
        name, number = stem, self._numbers.get(stem, 0)
        while name in self:
            number += 1
            name = f"{stem}_{number}"
        self._numbers[stem] = number
        self.add(name)
        return name


def fresh_name(used_names: Iterable[str], stem: str) -> str:
    """Return the first of ``stem``, ``stem_1``, ``stem_2`` ... that is not in use."""
    used_names = used_names if isinstance(used_names, (set, frozenset, Mapping)) else set(used_names)
    if stem not in used_names:
        return stem
    number = 1
    while f"{stem}_{number}" in used_names:
        number += 1
    return f"{stem}_{number}"


def new_value(types: dict[str, TensorType], stem: str, kind: TensorType) -> str:
    """Add a value of type ``kind`` to ``types`` under a :func:`fresh_name`; return its name."""
    name = fresh_name(types, stem)
    types[name] = kind
    return name


def shorten_text(text: str) -> str:
    """Shorten a text to the length of a one-line representation."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
