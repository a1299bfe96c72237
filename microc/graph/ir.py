# SPDX-License-Identifier: Apache-2.0
"""The graph IR: operators and the values between them, without loops; its verifier, and its interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import Any, NoReturn, Union

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array, to_numpy
from microc.document.blocks import Code, Document, document
from microc.document.renderers import Showable
from microc.errors import InternalError, MicrocError, ModelError, UsageError

# ---- The graph IR: the operators of a network and the values between them, without loops.
#
# Operators refer to values by name, so a graph can be printed as text and parsed back. All objects are
# immutable; a pass builds a new :class:`Graph`.


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


# ---- Graph verification: :func:`verify` checks the rules that every pass must preserve.


Infer = Callable[[str, Mapping[str, Any], Sequence[TensorType], Sequence[TensorType | None]], Sequence[TensorType]]
"""Function from an operator, its attributes, and the types of its operands and of its declared results to the types that
the results must have. The declared type of a result without a name is None."""
Fault = Callable[[Node, Graph, Mapping[str, Node]], str]


def verify(
    graph: Graph,
    infer: Infer | None = None,
    where: str = "",
    constants: Fault | None = None,
    verified: Graph | None = None,
) -> None:
    """Raise :class:`InternalError` unless ``graph`` is well-formed. ``where``: name of the pass that made it, for the
    error. ``verified``: a graph that the same rules were checked for; nodes, types and constants that both have are not
    checked again.

    These rules are checked. Names are defined once and before use, so there are no cycles. Every name has a type, and
    the data of constants have their type. Inputs are not computed; outputs and state updates are defined. Every group
    of nodes can run as one kernel.

    If ``infer`` is given, the types of all results are compared in shape and dtype with ``infer(op, attributes,
    types of the inputs that are present, types of the results)``. If ``constants`` is given, ``constants(node,
    graph, nodes by the values that they compute)`` returns the problem of a node whose constant operands are
    invalid as indices, shifts and the like, or an empty string. Such a problem raises :class:`ModelError`, because
    the model contains these numbers."""
    _Verifier(graph, infer, where, verified).check_graph()
    if constants is not None:
        producers = graph.producer()
        for node in graph.nodes:
            if wrong := constants(node, graph, producers):
                raise ModelError(f"{node.op}: {wrong}", where=str(node.loc))


class _Verifier:
    """Verifier of one graph. ``defined``: names of the values that the nodes checked so far have defined.

    ``old_nodes``, ``old_types``, ``old_data``: what is known to be valid. They are compared by identity, since all of them
    are immutable."""

    def __init__(self, graph: Graph, infer: Infer | None, where: str, verified: Graph | None) -> None:
        self.graph, self.infer, self.where = graph, infer, where
        self.defined: set[str] = set()
        self.old_nodes = {id(node) for node in verified.nodes} if verified is not None else set[int]()
        self.old_types: Mapping[str, TensorType] = verified.types if verified is not None else {}
        self.old_data: Mapping[str, Any] = {**verified.consts, **verified.state} if verified is not None else {}

    def has_old_types(self, names: Iterable[str]) -> bool:
        """Test whether the values ``names`` have types that are known to be valid."""
        return all(self.graph.types[name] is self.old_types.get(name) for name in names if name)

    def check_graph(self) -> None:
        """Check all rules, in the order in which they depend on each other."""
        self.check_inputs_constants_and_states()
        for name, kind in self.graph.types.items():
            if self.old_types.get(name) is not kind:
                self.check_type(name, kind)
        for node in self.graph.nodes:
            self.check_node(node)
        self.check_outputs_and_updates()
        self.check_groups_are_convex()

    def fail(self, problem: str, node: Node | None = None) -> NoReturn:
        """Raise the InternalError for a problem of ``node``, or of the graph if it is None."""
        place = f"{node.op} at {node.loc}" if node is not None else f"graph {self.graph.name}"
        raise InternalError(problem, where=f"{place}, after {self.where}" if self.where else place)

    def record_definitions(self, names: Iterable[str], role: str, node: Node | None = None) -> None:
        """Record that the values ``names`` are defined. InternalError if a name is empty, already defined or has no
        type."""
        for name in names:
            if not name:
                self.fail(f"{role} has an empty name", node)
            if name in self.defined:
                self.fail(f"{role} {name!r} is defined twice", node)
            if name not in self.graph.types:
                self.fail(f"{role} {name!r} has no type", node)
            self.defined.add(name)

    def check_inputs_constants_and_states(self) -> None:
        """Check that inputs, constants and state are defined once and have types, and that their data match these
        types."""
        graph = self.graph
        self.record_definitions(graph.inputs, "input")
        self.record_definitions(graph.consts, "constant")
        self.record_definitions(graph.state, "state")
        for name, array in (*graph.consts.items(), *graph.state.items()):
            if self.old_data.get(name) is array and self.has_old_types((name,)):
                continue
            kind = graph.types[name]
            if (array.shape, str(array.dtype)) != (kind.shape, kind.dtype):
                self.fail(f"{name!r} is {_format_type(kind)}, but its data are {array.dtype}{list(array.shape)}")

    def check_type(self, name: str, kind: TensorType) -> None:
        """Check the type of the value ``name``: its dtype, shape and quantisation parameters."""
        if not dtypes.is_valid(kind.dtype) or any(extent < 0 for extent in kind.shape):
            self.fail(f"{name!r} has the invalid type {_format_type(kind)}")
        quant = kind.quant
        if quant is None:
            return
        scales = np.asarray(quant.scale, np.float32)
        if not (np.isfinite(scales) & (scales > 0)).all():
            self.fail(f"{name!r}, {_format_type(kind)}, has a scale that is not a positive float32")
        if dtypes.is_integer(kind.dtype):
            low, high = dtypes.int_range(kind.dtype)
            if not all(low <= zero <= high for zero in quant.zero_point):
                self.fail(f"{name!r}, {_format_type(kind)}, has a zero point outside of the range of its dtype")
        if quant.axis is None:
            return
        if not 0 <= quant.axis < len(kind.shape) or kind.shape[quant.axis] != len(quant.scale):
            self.fail(
                f"{name!r}, {_format_type(kind)}, has {len(quant.scale)} scales along axis {quant.axis}, "
                "expected one for each index"
            )

    def check_node(self, node: Node) -> None:
        """Check that a node's operands are defined, that its results are new, and that inference yields the results'
        types."""
        for name in node.inputs:
            if name and name not in self.defined:
                self.fail(f"operand {name!r} is not defined before its use", node)
        self.record_definitions([name for name in node.outputs if name], "result", node)
        is_old = id(node) in self.old_nodes and self.has_old_types((*node.inputs, *node.outputs))
        if self.infer is not None and not is_old:
            self.check_inferred_types(node, self.infer)

    def check_inferred_types(self, node: Node, infer: Infer) -> None:
        """Check that the types of a node's results equal the types that ``infer`` returns, in shape and dtype."""
        try:
            types = self.graph.types
            declared = [types[name] if name else None for name in node.outputs]
            wanted = infer(node.op, node.attrs, [types[name] for name in node.inputs if name], declared)
        except MicrocError as error:
            self.fail(f"type inference fails: {error.what}", node)
        if len(wanted) != len(node.outputs):
            self.fail(f"wrong number of results; got {len(node.outputs)}, expected {len(wanted)}", node)
        for name, mine, kind in zip(node.outputs, declared, wanted, strict=True):
            if mine is not None and (mine.shape, mine.dtype) != (kind.shape, kind.dtype):
                self.fail(
                    f"result {name!r} has a wrong type; got {_format_type(mine)}, expected {_format_type(kind)}", node
                )

    def check_outputs_and_updates(self) -> None:
        """Check that outputs exist and are distinct, and that every state has an update of its shape and dtype."""
        graph = self.graph
        for name in graph.outputs:
            if name not in self.defined:
                self.fail(f"output {name!r} is not defined")
        if len(set(graph.outputs)) != len(graph.outputs):
            self.fail("an output is listed twice")
        if set(graph.updates) != set(graph.state):
            self.fail(
                f"every state needs one update; got states {sorted(graph.state)}, updates of {sorted(graph.updates)}"
            )
        for name, value in graph.updates.items():
            if value not in self.defined:
                self.fail(f"{value!r}, the update of state {name!r}, is not defined")
            old, new = graph.types[name], graph.types[value]
            if (old.shape, old.dtype) != (new.shape, new.dtype):
                self.fail(
                    f"the update of state {name!r} has a wrong type; got {_format_type(new)}, "
                    f"expected {_format_type(old)}"
                )

    def check_groups_are_convex(self) -> None:
        """Check that every group of nodes (the nodes of one kernel) is convex.

        A group runs at the position of its last node. So all of its operands must be computed before this position, and
        all nodes that read its results must follow."""
        graph = self.graph
        last = {node.group: position for position, node in enumerate(graph.nodes) if node.group}
        ready = {*graph.inputs, *graph.consts, *graph.state}
        waiting: dict[str, list[Node]] = {}
        for position, node in enumerate(graph.nodes):
            waiting.setdefault(node.group, []).append(node)
            if node.group and last[node.group] != position:
                continue
            for member in waiting.pop(node.group):
                missing = [name for name in member.inputs if name and name not in ready]
                if missing:
                    of = f"group {node.group!r} runs" if member.group else "the node runs"
                    self.fail(f"{of} before {missing[0]!r} is computed: a group of nodes is not convex", member)
                ready.update(member.outputs)


def _format_type(kind: TensorType) -> str:
    return f"{kind.dtype}{list(kind.shape)}"


# ---- Interpreter of graphs: executes the operators one by one on numpy arrays.
#
# With the operators defined in ``ops/meaning.py``, it is the reference that a compiled network must match. The
# graph can be run after every pass.


Apply = Callable[[Node, Sequence[Array]], Sequence[Array]]


def run(
    graph: Graph, inputs: Mapping[str, Array], apply: Apply, state: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Run a graph on arrays; return the arrays of all values by name, constants and state included.

    ``apply(node, arrays)`` computes the results of one node; ``arrays`` are the operands that are present, in order.
    ``state``: contents of the state before this run, by default the initial contents. The contents after this run are
    the values named in ``graph.updates``.

    Raises UsageError if inputs or state do not fit the graph, and InternalError if a result does not have its type."""
    state = graph.state if state is None else state
    _check_arrays("input", graph, graph.inputs, inputs)
    _check_arrays("state", graph, tuple(graph.state), state)
    values: dict[str, Array] = {**graph.consts, **inputs, **state}
    for node in graph.nodes:
        results = apply(node, [values[name] for name in node.inputs if name])
        if len(results) != len(node.outputs):
            raise InternalError(
                f"{node.op} gave a wrong number of results; got {len(results)}, expected {len(node.outputs)}",
                where=str(node.loc),
            )
        for name, array in zip(node.outputs, results, strict=True):
            if not name:
                continue
            if not _has_type(graph.types[name], array):
                raise InternalError(
                    f"{node.op} gave a wrong type for {name!r}; got {_format_array_type(array)}, "
                    f"expected {graph.types[name].dtype}{list(graph.types[name].shape)}",
                    where=str(node.loc),
                )
            values[name] = array
    return values


def _check_arrays(role: str, graph: Graph, names: tuple[str, ...], arrays: Mapping[str, Array]) -> None:
    """Raise UsageError unless ``arrays`` has exactly the values ``names``, with the shapes and dtypes of the graph.

    ``role``: "input" or "state", for the error."""
    if set(arrays) != set(names):
        raise UsageError(
            f"wrong names of {role}s; got {', '.join(sorted(arrays)) or 'none'}, expected {', '.join(sorted(names))}"
        )
    for name in names:
        kind = graph.types[name]
        if not _has_type(kind, arrays[name]):
            raise UsageError(
                f"{role} {name!r} has a wrong type; got {_format_array_type(arrays[name])}, expected "
                f"{kind.dtype}{list(kind.shape)}"
            )


def _has_type(kind: TensorType, array: Array) -> bool:
    """Test whether an array has the shape and dtype of a type."""
    return array.shape == kind.shape and array.dtype == to_numpy(kind.dtype)


def _format_array_type(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"
