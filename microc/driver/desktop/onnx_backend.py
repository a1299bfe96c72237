"""microc as a backend of ONNX's own test suite (``onnx.backend.test``): to C, built by the host's compiler, run in this process.

Element types that C has not are stored in the next wider one (``int4`` as ``int8``); the backend converts at the border.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.base import Backend, BackendRep

from microc.driver.compile.pipeline import compile_model
from microc.driver.desktop.batch import Network, build_batch
from microc.driver.options import Options
from microc.dtypes import Array, to_numpy
from microc.errors import MicrocError
from microc.frontend.onnx import reader as onnx_reader
from microc.frozen import frozen
from microc.module import Module
from microc.target import target_for

Runner = Callable[..., tuple[Array, ...]]
"""Runs a network: called with its inputs in the module's order, it gives its outputs."""


@frozen
class Compiled:
    """A model as kernels, with the numpy dtypes in which callers hand over its inputs and want its outputs."""

    module: Module
    inputs: tuple[np.dtype[Any], ...]
    outputs: tuple[np.dtype[Any], ...]

    def run(self, network: Runner, arrays: Sequence[Any]) -> tuple[Array, ...]:
        """The outputs of one inference."""
        kinds = (to_numpy(self.module.values[name].dtype) for name in self.module.inputs)
        given = [np.asarray(array).astype(kind) for array, kind in zip(arrays, kinds, strict=True)]
        shapes = (
            self.module.values[name].shape for name in self.module.inputs
        )  # what has no elements tells its type only
        given = [
            array if array.size else np.zeros(shape, array.dtype) for array, shape in zip(given, shapes, strict=True)
        ]
        made = network(*given)
        return tuple(array.astype(kind) for array, kind in zip(made, self.outputs, strict=True))


def bind(model: onnx.ModelProto, values: Mapping[str, Array]) -> onnx.ModelProto:
    """The model with some inputs fixed: those that say shapes and axes are known when a network is compiled."""
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    inputs = [value for value in bound.graph.input if value.name not in values]
    del bound.graph.input[:]
    bound.graph.input.extend(inputs)
    bound.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in values.items())
    return bound


def compile_proto(model: onnx.ModelProto, name: str, cpu: str = "host") -> Compiled:
    """The model's kernels for a core, under the C prefix ``name``; MicrocError where microc refuses it."""
    constants = {tensor.name for tensor in model.graph.initializer}
    graph = onnx_reader.read(model.SerializeToString(), f"{name}.onnx", {})
    options = Options(name=name, io_in_arena=False)
    module = compile_model(graph, target_for(cpu), options)
    inputs = tuple(_dtype(value) for value in model.graph.input if value.name not in constants)
    return Compiled(module, inputs, tuple(_dtype(value) for value in model.graph.output))


def _dtype(value: onnx.ValueInfoProto) -> np.dtype[Any]:
    kind: np.dtype[Any] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
    return kind


class MicrocRep(BackendRep):  # type: ignore[misc]
    """One model, ready to run."""

    def __init__(self, compiled: Compiled, network: Network) -> None:
        self._compiled, self._network = compiled, network

    def run(self, inputs: Iterable[Any], **kwargs: Any) -> tuple[Array, ...]:
        return self._compiled.run(self._network, tuple(inputs))


class MicrocBackend(Backend):  # type: ignore[misc]
    """``onnx.backend.test.BackendTest(MicrocBackend, __name__)`` runs the suite, one compiler run a model."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        try:
            compile_proto(model, "model")
        except MicrocError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> MicrocRep:
        compiled = compile_proto(model, "model")
        return MicrocRep(compiled, build_batch([compiled.module])[compiled.module.name])

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"
