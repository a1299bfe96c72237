# SPDX-License-Identifier: Apache-2.0
"""Engines, which run a network: compiled kernels, numpy, or a framework.

An engine maps inputs to outputs and, if asked, to values between layers (taps). Comparisons and evaluations take engines,
so that a new engine is one class. The engine of a board is in :mod:`microc.run.verification`, those of frameworks are in
:mod:`microc.run.reference_engines`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from microc import __version__
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import UsageError
from microc.graph import ir
from microc.graph.ir import Graph
from microc.ops.meaning import reference_node_function
from microc.run.desktop.library import Library

# ---- Interface.


@frozen
class InferenceResult:
    """Results of one inference.

    ``outputs``: outputs in the network's order. ``tensors``: values between layers and outputs, by name, as far as the
    engine returns them. ``undecided``: for an output's position, a mask (bool, in the output's shape) of the elements
    that depend on rounding alone, such as the class of two equal scores."""

    outputs: tuple[Array, ...]
    tensors: Mapping[str, Array] = field(default_factory=dict)
    undecided: Mapping[int, Array] = field(default_factory=dict)


class InputsRejected(Exception):
    """Raised if an engine rejects the inputs of an inference, with the engine's message."""


class Engine(Protocol):
    """A network that is loaded and ready to run. ``name``: name of the engine; ``version``: version of its package."""

    name: str
    version: str

    def infer(self, arrays: Sequence[Array], *, taps: bool = False) -> InferenceResult:
        """Run one inference on inputs in the network's order. Raises InputsRejected if the engine rejects them.

        ``taps``: also return values between layers, by their names in the model."""

    def reset(self) -> None:
        """Reset the state to its initial content."""


@frozen
class Tap:
    """A value between layers. ``tensor``: its description as in a manifest; ``layer``, ``op``: layer and operator that
    compute it."""

    tensor: Mapping[str, Any]
    layer: str
    op: str


class NetworkEngine(Engine, Protocol):
    """An engine of microc, which returns taps by the ``name`` of their tensors.

    ``outputs``: descriptions of the network's outputs by ``name``, ``label`` (name in the model) and ``dtype``, as in a
    manifest. ``taps``: all taps in the order of execution."""

    outputs: Sequence[Mapping[str, Any]]
    taps: Sequence[Tap]


# ---- Engines of microc.


class KernelEngine(ABC):
    """Base class of engines of compiled code, which also run kernel by kernel. ``manifest``: the network's manifest."""

    name: str
    version = __version__

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        self.manifest = manifest
        tensors = {tensor["name"]: tensor for tensor in manifest["tensors"]}
        self.outputs: Sequence[Mapping[str, Any]] = [tensors[name] for name in manifest["outputs"]]
        self.kernels: Sequence[Mapping[str, Any]] = manifest["kernels"]
        self.taps: Sequence[Tap] = [
            Tap(tensors[name], kernel["layer"], kernel["op"]) for kernel in self.kernels for name in kernel["outputs"]
        ]

    def infer(self, arrays: Sequence[Array], *, taps: bool = False) -> InferenceResult:
        """Run one inference; with ``taps``, read the results of each kernel before a later one reuses their memory."""
        self.set_inputs(arrays)
        tensors: dict[str, Array] = {}
        if taps:
            for number, kernel in enumerate(self.kernels):
                self.run_kernel(number)
                tensors |= {name: self.read(name) for name in kernel["outputs"]}
        else:
            self.run()
        return InferenceResult(tuple(self.read(tensor["name"]) for tensor in self.outputs), tensors)

    @abstractmethod
    def reset(self) -> None:
        """Reset the state to its initial content."""

    @abstractmethod
    def set_inputs(self, arrays: Sequence[Array]) -> None:
        """Set all inputs of an inference, in the network's order."""

    @abstractmethod
    def run(self) -> None:
        """Run one inference on the inputs that were set."""

    @abstractmethod
    def run_kernel(self, number: int) -> None:
        """Run one kernel by its position in the order of execution. All kernels in order are one inference."""

    @abstractmethod
    def read(self, name: str) -> Array:
        """Read a tensor of the manifest. A tap is valid only until its memory is reused."""


class HostKernels(KernelEngine):
    """The kernels of a compiled network, in this process."""

    name = "host"

    def __init__(self, library: Library) -> None:
        super().__init__(library.manifest)
        self.library = library

    def reset(self) -> None:
        self.library.reset()

    def set_inputs(self, arrays: Sequence[Array]) -> None:
        for tensor, array in zip(self.library.inputs, arrays, strict=True):
            self.library.set_input(tensor["name"], array)

    def run(self) -> None:
        self.library.run()

    def run_kernel(self, number: int) -> None:
        self.library.run_kernel(number)

    def read(self, name: str) -> Array:
        return self.library.tensor(name)


class NumpyReference:
    """A graph, whose operators numpy runs by their reference implementations. These define the results of kernels."""

    version = __version__

    def __init__(self, graph: Graph, name: str = "numpy") -> None:
        self.name, self._graph = name, graph
        self.outputs: Sequence[Mapping[str, Any]] = [_describe_value(graph, value) for value in graph.outputs]
        self.taps: Sequence[Tap] = [
            Tap(_describe_value(graph, value), str(node.loc), node.op)
            for node in graph.nodes
            for value in node.outputs
            if value
        ]
        self.apply_node = reference_node_function(graph)
        self._state: Mapping[str, Array] = graph.state

    def infer(self, arrays: Sequence[Array], *, taps: bool = False) -> InferenceResult:
        """Run one inference. All values are returned, also without ``taps``."""
        inputs = dict(zip(self._graph.inputs, arrays, strict=True))
        try:
            values = ir.run(self._graph, inputs, self.apply_node, self._state)
        except UsageError as error:
            raise InputsRejected(error.what) from error
        self._state = {name: values[value] for name, value in self._graph.updates.items()}
        return InferenceResult(tuple(values[name] for name in self._graph.outputs), values)

    def reset(self) -> None:
        self._state = self._graph.state


def _describe_value(graph: Graph, name: str) -> Mapping[str, Any]:
    """Describe a value of a graph as a manifest describes tensors."""
    return {"name": name, "label": name, "dtype": graph.types[name].dtype}


def stack_outputs(rows: Sequence[Sequence[Array]], tensors: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """Stack the outputs of all samples along a new first axis; return them by name.

    ``rows``: outputs of each sample, in the order of ``tensors``, which describe them."""
    return {tensor["name"]: np.stack([row[k] for row in rows]) for k, tensor in enumerate(tensors)}
