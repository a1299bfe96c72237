# SPDX-License-Identifier: Apache-2.0
"""Graph builder of the ONNX reader: nodes, types, constants and captured values of a model or subgraph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError, UnsupportedError
from microc.frontend.model_limits import MAX_STORED, check_shape
from microc.frontend.onnx.file import OnnxFile, Operator
from microc.graph.ir import Attr, Graph, Loc, NameSet, Node, Quant, TensorType

# Types come from the operators' own inference; types that the file declares for intermediate values are ignored.

_TIMES_STORED = 10
"""Limit of stored constants, in copies of each initialiser: one transposed, one dequantised, one for each body that reads
it."""


@frozen
class StoredTensor:
    """Constant data of a model, with their quantisation if a DequantizeLinear node reads them.

    ``quant``: scales and zero points; None for data that are not quantised. ``name``: name of the tensor in the
    graph; empty if the graph does not contain it yet."""

    data: Array
    quant: Quant | None = None
    name: str = ""

    def transpose(self, axes: Sequence[int]) -> StoredTensor:
        """Return the tensor with its axes in the order ``axes``, as ``numpy.transpose`` does.

        The quantisation axis moves with the axis of the data to which its scales belong."""
        quant = self.quant
        if quant is not None and quant.axis is not None:
            quant = replace(quant, axis=tuple(axes).index(quant.axis))
        return StoredTensor(np.ascontiguousarray(self.data.transpose(axes)), quant)

    def take(self, indices: Sequence[int], axis: int) -> StoredTensor:
        """Return the slices at ``indices`` along ``axis``, with their scales if these belong to the axis."""
        quant = self.quant
        if quant is not None and quant.axis == axis:
            scales, zeros = tuple(quant.scale[k] for k in indices), tuple(quant.zero_point[k] for k in indices)
            quant = Quant(scales, zeros, axis) if len(indices) > 1 else Quant(scales, zeros)
        return StoredTensor(np.ascontiguousarray(self.data.take(indices, axis)), quant)

    def reshape(self, new_shape: tuple[int, ...]) -> StoredTensor | None:
        """Return the same elements in shape ``new_shape``.

        Return None if scales belong to an axis that ``new_shape`` splits or merges with another axis."""
        quant = self.quant
        if new_shape == self.data.shape:
            return self
        if quant is not None and quant.axis is not None:
            outer, extent = prod(self.data.shape[: quant.axis]), self.data.shape[quant.axis]
            axes = [k for k, e in enumerate(new_shape) if e == extent and prod(new_shape[:k]) == outer]
            if not axes:
                return None
            quant = replace(quant, axis=axes[-1])
        return StoredTensor(self.data.reshape(new_shape), quant)


MAX_FUNCTION_DEPTH = 32
"""Largest number of functions that are inlined into each other."""
MAX_FUNCTION_NODES = 1 << 14
"""Largest number of nodes that all functions of a model become; the calls of a small file can grow without bound."""


class FunctionCalls:
    """Functions that are being inlined, and the number of nodes that functions have become so far."""

    def __init__(self) -> None:
        self._active: list[tuple[str, str]] = []
        self._node_count = 0

    @contextmanager
    def enter(self, function: tuple[str, str], node_count: int, where: str) -> Iterator[None]:
        """Count a call of ``function``, a domain and a name, whose body has ``node_count`` nodes, while it is inlined.

        Raise ModelError if the function is being inlined already, UnsupportedError beyond the limits."""
        self._node_count += node_count
        if function in self._active:
            raise ModelError("the function calls itself, expected none that does", where=where)
        if len(self._active) >= MAX_FUNCTION_DEPTH or self._node_count > MAX_FUNCTION_NODES:
            raise UnsupportedError(
                f"functions become {self._node_count} nodes at depth {len(self._active) + 1}, expected at most "
                f"{MAX_FUNCTION_NODES} and {MAX_FUNCTION_DEPTH}",
                where=where,
                hint="export the model without functions that call each other as often",
            )
        self._active.append(function)
        try:
            yield
        finally:
            self._active.pop()


class OnnxGraphBuilder:
    """Builder of the graph of an ONNX model or subgraph.

    ``translate``: function that converts a list of operators. ``outer``: builder of the enclosing graph; None for the
    main graph. ``captured``: names of values of the enclosing graph that this subgraph reads, without constants, which
    are copied. ``alias``: maps a value's name in the file to the graph's value that equals it. ``lost``: names of the
    outputs of operators that cannot be converted. ``function_calls``: functions that are being inlined.
    ``dequantized``: maps the result of each ``dequantize`` node to this node."""

    def __init__(
        self,
        file: OnnxFile,
        translate: Callable[[OnnxGraphBuilder, Sequence[Operator]], None],
        outer: OnnxGraphBuilder | None = None,
    ) -> None:
        self.file, self.translate, self.outer = file, translate, outer
        self.captured: list[str] = []
        self.nodes: list[Node] = []
        self.types: dict[str, TensorType] = {}
        self.consts: dict[str, Array] = {}
        self.alias: dict[str, str] = {}
        self.lost: set[str] = set(outer.lost) if outer is not None else set()
        self.dequantized: dict[str, Node] = {}
        self.function_calls: FunctionCalls = outer.function_calls if outer is not None else FunctionCalls()
        self._added_bytes = 0
        self._max_bytes = MAX_STORED + _TIMES_STORED * sum(data.nbytes for data in file.initializers.values())
        self._names: NameSet = outer._names if outer is not None else NameSet()
        self._names |= {name for op in file.operators for name in (*op.inputs, *op.outputs)}
        self._names |= {
            *file.initializers,
            *file.unsupported_initializers,
            *file.outputs,
            *(i.name for i in file.inputs),
        }

    def make_unique_name(self, name_stem: str) -> str:
        """Return a new name, made from ``name_stem``, that neither the file nor the graph uses."""
        return self._names.fresh(name_stem)

    def resolve_value(self, onnx_name: str, where: str) -> str:
        """Return the name in the graph of the value that the file calls ``onnx_name``.

        An initialiser is added to the graph when it is first resolved. A value of the enclosing graph is captured.
        Raise ModelError if the name is no input, no initialiser, and no output of an operator converted so far.
        ``where``: location for the error message."""
        onnx_name = self.alias.get(onnx_name, onnx_name)
        if onnx_name in self.types:
            return onnx_name
        if onnx_name in self.file.initializers:
            self.define_value(
                onnx_name,
                TensorType(self.file.initializers[onnx_name].shape, self.file.initializers[onnx_name].dtype.name),
                where,
            )
            self.consts[onnx_name] = self.file.initializers[onnx_name]
            return onnx_name
        if onnx_name in self.file.unsupported_initializers:
            what = f"initialiser {onnx_name!r}: dtype {self.file.unsupported_initializers[onnx_name]} is not supported"
            raise UnsupportedError(what, where=where, hint="export the model with float32 or integer tensors")
        if self.outer is not None:
            return self.capture_outer_value(self.outer.resolve_value(onnx_name, where))
        raise ModelError(
            f"value {onnx_name!r}: used before it is defined, expected an earlier node, an input or an initialiser",
            where=where,
            hint="list the nodes in the order of their execution, without cycles",
        )

    def capture_outer_value(self, outer_name: str) -> str:
        """Make the value ``outer_name`` of the enclosing graph readable in this graph; return ``outer_name``.

        A constant is copied; if a ``dequantize`` node reads it, so is this node. Any other value is appended to
        ``captured``."""
        outer, outer_name = self.outer, str(outer_name)
        if outer_name in self.types or outer is None:
            return outer_name
        self.types[outer_name] = outer.types[outer_name]
        stored = outer.get_stored_constant(outer_name)
        if outer_name in outer.consts:
            self.consts[outer_name] = outer.consts[outer_name]
        elif stored is not None:
            node = outer.dequantized[outer_name]
            self.capture_outer_value(node.inputs[0])
            self.nodes.append(node)
            self.dequantized[outer_name] = node
        else:
            self.captured.append(outer_name)
        return outer_name

    def define_constant(self, value_name: str, data: Array) -> str:
        """Add the constant ``value_name`` to the graph; return its name.

        Raise UnsupportedError if all constants together exceed the limit in bytes."""
        self._added_bytes += data.nbytes
        if self._added_bytes > self._max_bytes:
            raise UnsupportedError(
                f"constants: got {self._added_bytes} bytes after folding, expected at most {self._max_bytes}",
                where=self.file.name,
            )
        self.define_value(value_name, TensorType(data.shape, data.dtype.name), self.file.name)
        self.consts[value_name] = np.ascontiguousarray(data).reshape(data.shape)
        return value_name

    def define_value(self, value_name: str, value_type: TensorType, where: str) -> None:
        """Add a new value of type ``value_type`` to the graph; raise ModelError if the name ``value_name`` is in
        use."""
        if value_name in self.types or value_name in self.alias:
            raise ModelError(f"value {value_name!r}: defined twice, expected once", where=where)
        check_shape(value_type.shape, value_type.dtype, where)
        self.types[value_name] = value_type

    def get_stored_constant(self, value_name: str) -> StoredTensor | None:
        """Return the data and quantisation of a value that is a constant, or a constant read through ``dequantize``.

        Return None for any other value."""
        if value_name in self.consts:
            return StoredTensor(self.consts[value_name], name=value_name)
        node = self.dequantized.get(value_name)
        if node is None or node.inputs[0] not in self.consts:
            return None
        quant = Quant(node.attr("scale"), node.attr("zero_point"), node.attr("axis"))
        return StoredTensor(self.consts[node.inputs[0]], quant, value_name)

    def finish_graph(self, graph_name: str) -> Graph:
        """Return the finished graph under the name ``graph_name``.

        An output that is also an input, a constant or another output is copied by a ``reshape`` node."""
        outputs: list[str] = []
        for output in self.file.outputs:
            if output in outputs:
                raise ModelError(f"output {output!r}: listed twice, expected once", where=self.file.name)
            source = self.resolve_value(output, f"{self.file.name} output {output!r}")
            if source != output:
                attrs: Mapping[str, Attr] = {"shape": self.types[source].shape}
                self.types[output] = self.types[source]
                self.nodes.append(Node("reshape", (source,), (output,), attrs, Loc(self.file.name, -1, output)))
            outputs.append(output)
        inputs = tuple(i.name for i in self.file.inputs if i.name not in self.consts)
        return Graph(graph_name, inputs, tuple(outputs), (), self.types, self.consts).with_nodes(self.nodes)
