"""A graph built node by node, and operands of its operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn, Protocol

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError, UsageError, suggestion
from microc.frontend.budget import MAX_STORED, check_shape, inferred
from microc.graph.ir import Attr, Graph, Loc, Node, Quant, TensorType, fresh_name
from microc.ops import registry

# ---- A graph built node by node, types and all: for formats whose layers stand in order of execution, and for users.

_NO_ATTRS: Mapping[str, Attr] = {}


class Emitter(Protocol):
    """What appends our operators to a graph under construction."""

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS) -> str:
        """The value that an application makes."""

    def new_constant(self, stem: str, data: Array) -> str:
        """A value known when compiling, under a new name made from ``stem``."""

    def type(self, value: str) -> TensorType:
        """What is known of a value."""


class GraphBuilder:
    """Nodes, types and constants so far. ``loc`` is what the next nodes come from; their values are named after it.

    ::

        net = microc.GraphBuilder()
        x = net.input("x", (1, 64))
        y = net.op("relu", net.op("dense", x, net.constant("weight", weight)))     # values go by names
        graph = net.graph("mine", {"y": y})                                        # which microc.compile takes
    """

    def __init__(self, file: str = "") -> None:
        self.loc = Loc(file)
        self._inputs: list[str] = []
        self._stored = 0
        self._nodes: list[Node] = []
        self.types: dict[str, TensorType] = {}
        self.consts: dict[str, Array] = {}
        self._state: dict[str, Array] = {}
        self._updates: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<GraphBuilder: {len(self._inputs)} inputs, {len(self._nodes)} operators>"

    @property
    def where(self) -> str:
        return str(self.loc)

    def at(self, index: int, name: str) -> None:
        """The nodes that follow come from element ``index`` of the model, which is called ``name``."""
        self.loc = Loc(self.loc.file, index, name)

    def type(self, value: str) -> TensorType:
        """Shape and dtype of a value."""
        return self.types[value]

    def shape(self, value: str) -> tuple[int, ...]:
        """The extents of a value."""
        return self.types[value].shape

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32", quant: Quant | None = None) -> str:
        """An input of the network."""
        name = fresh_name(self.types, name)
        check_shape(shape, dtype, f"{self.where} input {name!r}")
        self.types[name] = TensorType(tuple(shape), dtype, quant)
        self._inputs.append(name)
        return name

    def new_constant(self, stem: str, data: Array) -> str:
        """A constant of the shape and dtype of ``data``, called like ``stem``; ModelError where all take too many bytes."""
        name = fresh_name(self.types, stem)
        self._stored += data.nbytes
        if self._stored > MAX_STORED:
            raise ModelError(f"constants take more than {MAX_STORED} bytes", where=self.where)
        self.types[name] = TensorType(data.shape, data.dtype.name)
        self.consts[name] = np.ascontiguousarray(data).reshape(data.shape)
        return name

    def state(self, name: str, start: Array) -> str:
        """A tensor that lives from run to run, and what it starts with; :meth:`update` says what it holds next."""
        self.types[name] = TensorType(start.shape, start.dtype.name)
        self._state[name] = start
        return name

    def update(self, state: str, value: str) -> None:
        """What a state holds after this run."""
        self._updates[state] = value

    def constant(self, name: str, array: object) -> str:
        """A constant; UsageError where ``array`` is none of numbers that microc knows."""
        data = np.asarray(array)
        if not dtypes.is_valid(data.dtype.name):
            raise UsageError(
                f"constant {name!r} is no array of a dtype that microc knows: {data.dtype}",
                hint="array.astype(np.float32)",
            )
        return self.new_constant(name, data)

    def op(self, op: str, *inputs: str, name: str = "", **attrs: Attr) -> str:
        """The value that an application of one operator makes (docs/operators.md has their attributes); ``name``: what it is
        called. UsageError for what does not exist, ModelError where operands or attributes make no sense."""
        if op not in registry.registry():
            raise UsageError(f"there is no operator {op!r}", hint=suggestion(op, registry.registry(), "operators"))
        for value in inputs:
            if value and value not in self.types:
                known = ", ".join(list(self.types)[-8:]) or "none"
                raise UsageError(
                    f"{op} reads {value!r}, which is no value of the graph", hint=f"the latest are {known}"
                )
        self.at(len(self._nodes), name)
        return self.emit(op, inputs, attrs)

    def scalar(self, number: float) -> str:
        """A float32 constant of one element."""
        return self.new_constant("number", np.array(number, np.float32))

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS) -> str:
        """The value that an application makes; ModelError, with its place, where the operands make no sense."""
        (name,) = self.emit_all(op, inputs, attrs)
        return name

    def emit_all(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS) -> tuple[str, ...]:
        """The values that an application with several results makes."""
        definition = registry.get(op)
        attrs = {**definition.defaults, **attrs}
        kinds = inferred(op, attrs, [self.types[name] for name in inputs if name], self.where)
        names = []
        for kind in kinds:
            names.append(fresh_name(self.types, self.loc.name or op))
            self.types[names[-1]] = kind
        self._nodes.append(Node(op, tuple(inputs), tuple(names), attrs, self.loc))
        return tuple(names)

    def set_quant(self, value: str, quant: Quant | None, dtype: str = "") -> str:
        """Say what the integers of ``value`` stand for, and their dtype where a quantised operator leaves the choice."""
        kind = self.types[value]
        self.types[value] = replace(kind, quant=quant, dtype=dtype or kind.dtype)
        return value

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """``value`` under another shape, or itself if it has that shape."""
        shape = tuple(int(extent) for extent in shape)
        return value if self.shape(value) == shape else self.emit("reshape", (value,), {"shape": shape})

    def graph(self, name: str, outputs: Mapping[str, str]) -> Graph:
        """The finished graph; ``outputs``: what each is called, and the value that it is."""
        known: dict[str, str] = {}
        for label, value in outputs.items():
            known[label] = fresh_name({*self.types, *known.values()}, label)
            self.types[known[label]] = self.types[value]
            attrs: Mapping[str, Attr] = {"shape": self.shape(value)}
            self._nodes.append(Node("reshape", (value,), (known[label],), attrs, Loc(self.loc.file, -1, label)))
        inputs = tuple(self._inputs)
        state, updates = self._state, self._updates
        made = Graph(name, inputs, tuple(known.values()), (), self.types, self.consts, state, updates)
        return made.with_nodes(self._nodes)


# ---- Reading an operator's operands, whatever the format: what both readers' applications share.

MOST_INTEGERS = 64


class Operands(Emitter, Protocol):
    """An operator whose constant operands can be had by position, and which knows its place in the file."""

    @property
    def where(self) -> str:
        """The place, for people."""

    def constant(self, position: int) -> Array:
        """The data of an input that must be known when compiling."""

    def refuse(self, what: str, hint: str) -> NoReturn:
        """Say that microc has no way to do this."""
        raise UnsupportedError(what, where=self.where, hint=hint)

    def broken(self, what: str) -> NoReturn:
        """Refuse the model."""
        raise ModelError(what, where=self.where)

    def integers(self, position: int) -> tuple[int, ...]:
        """A constant operand of a few integers (axes, paddings, sizes), flattened."""
        data = self.constant(position)
        if data.dtype not in (np.int32, np.int64) or data.size > MOST_INTEGERS:
            self.broken(f"input {position} is no short list of integers")
        return tuple(int(i) for i in data.reshape(-1))

    def axis(self, axis: int, rank: int) -> int:
        """A possibly negative axis as 0..rank-1."""
        if not -rank <= axis < rank:
            self.broken(f"axis {axis} of a tensor of rank {rank}")
        return axis % rank

    def reshaped(self, value: str, shape: Sequence[int]) -> str:
        """``value`` under another shape, or itself if it has that shape."""
        if self.type(value).shape == tuple(shape):
            return value
        return self.emit("reshape", (value,), {"shape": tuple(shape)})
