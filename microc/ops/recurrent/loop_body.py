# SPDX-License-Identifier: Apache-2.0
"""Builder of the body of an operator ``loop``: the graph of one iteration over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.base.dtypes import Array
from microc.graph.ir import Attr, Graph, Loc, Node, Quant, TensorType, new_value
from microc.ops import registry


class LoopBodyBuilder:
    """Builder of the graph that an operator ``loop`` runs in each iteration. Nodes are appended one by one.

    ``loc``: the location (name of a layer in the model file) of all nodes; values are named after it."""

    def __init__(self, loc: Loc) -> None:
        self.loc = loc
        self.types: dict[str, TensorType] = {}
        self.consts: dict[str, Array] = {}
        self._inputs: list[str] = []
        self._nodes: list[Node] = []

    def add_input(self, name: str, tensor_type: TensorType) -> str:
        """Add an input of the graph; return its unique name."""
        self._inputs.append(new_value(self.types, name, tensor_type))
        return self._inputs[-1]

    def add_constant(self, stem: str, data: Array, quant: Quant | None = None) -> str:
        """Add a constant to the graph; return its unique name, which begins with ``stem``."""
        name = new_value(self.types, stem, TensorType(data.shape, data.dtype.name, quant))
        self.consts[name] = np.asarray(data, order="C")
        return name

    def emit(
        self, op: str, inputs: Sequence[str], quant: Quant | None = None, stored_dtype: str = "", **attrs: Attr
    ) -> str:
        """Append a node of operator ``op``; return the name of its result.

        ``quant``: scale and zero point of a quantised result. ``stored_dtype``: dtype of the result if it differs from
        the inferred one."""
        whole = {**registry.get(op).defaults, **attrs}
        (tensor_type,) = registry.infer(op, whole, [self.types[name] for name in inputs])
        name = new_value(
            self.types, self.loc.name or op, replace(tensor_type, quant=quant, dtype=stored_dtype or tensor_type.dtype)
        )
        self._nodes.append(Node(op, tuple(inputs), (name,), whole, self.loc))
        return name

    def copy_node(self, node: Node, result_types: Sequence[TensorType]) -> tuple[str, ...]:
        """Append a copy of ``node`` whose results have new names; return these names.

        ``result_types``: types of the results."""
        result_names = tuple(
            new_value(self.types, name, tensor_type)
            for name, tensor_type in zip(node.outputs, result_types, strict=True)
        )
        self._nodes.append(replace(node, outputs=result_names))
        return result_names

    def build_graph_with_value_names(self, graph_name: str, output_values: Sequence[str]) -> Graph:
        """Return the graph; its outputs are the values ``output_values``, under their own names."""
        return Graph(graph_name, tuple(self._inputs), tuple(output_values), (), self.types, self.consts).with_nodes(
            self._nodes
        )

    def build_graph(self, graph_name: str, outputs: Mapping[str, str]) -> Graph:
        """Return the graph; ``outputs`` maps the name of each output to the value that it returns."""
        names: list[str] = []
        for label, value in outputs.items():
            names.append(new_value(self.types, label, self.types[value]))
            shape = self.types[value].shape
            self._nodes.append(Node("reshape", (value,), (names[-1],), {"shape": shape}, Loc(self.loc.file, -1, label)))
        return self.build_graph_with_value_names(graph_name, names)
