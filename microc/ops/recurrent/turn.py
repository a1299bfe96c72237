"""A turn of a loop over time, written node by node: the graph that stands in a ``loop``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.dtypes import Array
from microc.graph.ir import Attr, Graph, Loc, Node, Quant, TensorType, new_value
from microc.ops import registry


class Turn:
    """Nodes and types so far. ``loc``: what they are from; their values are named after it."""

    def __init__(self, loc: Loc) -> None:
        self.loc = loc
        self.types: dict[str, TensorType] = {}
        self._consts: dict[str, Array] = {}
        self._inputs: list[str] = []
        self._nodes: list[Node] = []

    def input(self, name: str, kind: TensorType) -> str:
        self._inputs.append(new_value(self.types, name, kind))
        return self._inputs[-1]

    def constant(self, stem: str, data: Array, quant: Quant | None = None) -> str:
        name = new_value(self.types, stem, TensorType(data.shape, data.dtype.name, quant))
        self._consts[name] = np.asarray(data, order="C")
        return name

    def emit(self, op: str, inputs: Sequence[str], quant: Quant | None = None, stored: str = "", **attrs: Attr) -> str:
        """What an application makes; ``quant`` and ``stored``, a dtype: of a result whose integers stand for something."""
        whole = {**registry.get(op).defaults, **attrs}
        (kind,) = registry.infer(op, whole, [self.types[name] for name in inputs])
        name = new_value(self.types, self.loc.name or op, replace(kind, quant=quant, dtype=stored or kind.dtype))
        self._nodes.append(Node(op, tuple(inputs), (name,), whole, self.loc))
        return name

    def node(self, node: Node, kinds: Sequence[TensorType]) -> tuple[str, ...]:
        """The results of a node as it is, but for their names."""
        made = tuple(new_value(self.types, name, kind) for name, kind in zip(node.outputs, kinds, strict=True))
        self._nodes.append(replace(node, outputs=made))
        return made

    def ending(self, name: str, outputs: Sequence[str]) -> Graph:
        """The finished turn, whose ``outputs`` are values as they are called."""
        return Graph(name, tuple(self._inputs), tuple(outputs), (), self.types, self._consts).with_nodes(self._nodes)

    def graph(self, name: str, outputs: Mapping[str, str]) -> Graph:
        """The finished turn; ``outputs``: what each is called, and the value that it is."""
        made = []
        for label, value in outputs.items():
            made.append(new_value(self.types, label, self.types[value]))
            shape = self.types[value].shape
            self._nodes.append(Node("reshape", (value,), (made[-1],), {"shape": shape}, Loc(self.loc.file, -1, label)))
        return self.ending(name, made)
