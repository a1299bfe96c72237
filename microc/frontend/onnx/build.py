"""The graph under construction: what is known of values, and tensors known when compiling.

Shapes come from the operators' own inference; what the file declares for values inside the graph is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from microc.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend.budget import MAX_STORED, check_shape
from microc.frontend.onnx.file import OnnxFile, Operator
from microc.frozen import frozen
from microc.graph.ir import Attr, Graph, Loc, Names, Node, Quant, TensorType

_TIMES_STORED = 10
"""Copies of each initialiser that may be stored: once transposed, once dequantised, once for each body that reads it."""


@frozen
class Stored:
    """A tensor known when compiling: constant data, with the quantisation that a dequantize node gives it.

    ``name`` is the value's name in the graph, empty until it is put there.
    """

    data: Array
    quant: Quant | None = None
    name: str = ""

    def transposed(self, axes: Sequence[int]) -> Stored:
        quant = self.quant
        if quant is not None and quant.axis is not None:
            quant = replace(quant, axis=tuple(axes).index(quant.axis))
        return Stored(np.ascontiguousarray(self.data.transpose(axes)), quant)

    def reshaped(self, shape: tuple[int, ...]) -> Stored | None:
        """The same elements under another shape; None where the axis of the scales gets lost."""
        quant = self.quant
        if shape == self.data.shape:
            return self
        if quant is not None and quant.axis is not None:
            outer, extent = prod(self.data.shape[: quant.axis]), self.data.shape[quant.axis]
            axes = [k for k, e in enumerate(shape) if e == extent and prod(shape[:k]) == outer]
            if not axes:
                return None
            quant = replace(quant, axis=axes[-1])
        return Stored(self.data.reshape(shape), quant)


class Builder:
    """Nodes, types and constants found so far. ``alias`` maps values that are others under a new name.

    ``translate`` adds operators. A graph inside an operator has a builder of its own; what it reads from the ``outer`` one is
    ``captured``, but for constants, which it gets itself.
    """

    def __init__(
        self, file: OnnxFile, translate: Callable[[Builder, Sequence[Operator]], None], outer: Builder | None = None
    ) -> None:
        self.file, self.translate, self.outer = file, translate, outer
        self.captured: list[str] = []
        self.nodes: list[Node] = []
        self.types: dict[str, TensorType] = {}
        self.consts: dict[str, Array] = {}
        self.alias: dict[str, str] = {}
        self.lost: set[str] = set(outer.lost) if outer is not None else set()
        self.dequantized: dict[str, Node] = {}
        self._added = 0
        self._most = MAX_STORED + _TIMES_STORED * sum(data.nbytes for data in file.initializers.values())
        self._names: Names = outer._names if outer is not None else Names()
        self._names |= {name for op in file.operators for name in (*op.inputs, *op.outputs)}
        self._names |= {*file.initializers, *file.unreadable, *file.outputs, *(i.name for i in file.inputs)}

    def unique(self, stem: str) -> str:
        """A name that neither the file nor the graph uses."""
        return self._names.fresh(stem)

    def value(self, name: str, where: str) -> str:
        """The graph's name of a value of the file; initialisers enter the graph when first used."""
        name = self.alias.get(name, name)
        if name in self.types:
            return name
        if name in self.file.initializers:
            self.define(
                name, TensorType(self.file.initializers[name].shape, self.file.initializers[name].dtype.name), where
            )
            self.consts[name] = self.file.initializers[name]
            return name
        if name in self.file.unreadable:
            raise UnsupportedError(f"{name!r} holds elements of type {self.file.unreadable[name]}", where=where)
        if self.outer is not None:
            return self.capture(self.outer.value(name, where))
        raise ModelError(
            f"{name!r} is used, but nothing before makes it",
            where=where,
            hint="the nodes of an ONNX graph must come in the order of their execution, without cycles",
        )

    def capture(self, name: str) -> str:
        """A value of the outer graph as one of this; constants, dequantised ones too, come along."""
        outer = self.outer
        if name in self.types or outer is None:
            return name
        self.types[name] = outer.types[name]
        stored = outer.stored(name)
        if name in outer.consts:
            self.consts[name] = outer.consts[name]
        elif stored is not None:
            node = outer.dequantized[name]
            self.capture(node.inputs[0])
            self.nodes.append(node)
            self.dequantized[name] = node
        else:
            self.captured.append(name)
        return name

    def constant(self, name: str, data: Array) -> str:
        """Define ``name`` as constant data."""
        self._added += data.nbytes
        if self._added > self._most:
            raise UnsupportedError(f"constants unfold to more than {self._most} bytes", where=self.file.name)
        self.define(name, TensorType(data.shape, data.dtype.name), self.file.name)
        self.consts[name] = np.ascontiguousarray(data).reshape(data.shape)
        return name

    def define(self, name: str, kind: TensorType, where: str) -> None:
        """Give a new value its type."""
        if name in self.types or name in self.alias:
            raise ModelError(f"{name!r} is made twice", where=where)
        check_shape(kind.shape, kind.dtype, where)
        self.types[name] = kind

    def stored(self, name: str) -> Stored | None:
        """What is known about a value when compiling: a constant, or a constant behind dequantize; else None."""
        if name in self.consts:
            return Stored(self.consts[name], name=name)
        node = self.dequantized.get(name)
        if node is None or node.inputs[0] not in self.consts:
            return None
        quant = Quant(node.attr("scale"), node.attr("zero_point"), node.attr("axis"))
        return Stored(self.consts[node.inputs[0]], quant, name)

    def graph(self, name: str) -> Graph:
        """The finished graph. An output that is an input, a constant or another output gets a copy of its own."""
        outputs: list[str] = []
        for output in self.file.outputs:
            if output in outputs:
                raise ModelError(f"the model lists output {output!r} twice", where=self.file.name)
            source = self.value(output, f"{self.file.name} output {output!r}")
            if source != output:
                attrs: Mapping[str, Attr] = {"shape": self.types[source].shape}
                self.types[output] = self.types[source]
                self.nodes.append(Node("reshape", (source,), (output,), attrs, Loc(self.file.name, -1, output)))
            outputs.append(output)
        inputs = tuple(i.name for i in self.file.inputs)
        return Graph(name, inputs, tuple(outputs), (), self.types, self.consts).with_nodes(self.nodes)
