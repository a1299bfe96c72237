# SPDX-License-Identifier: Apache-2.0
"""Many networks as one library, and microc as a backend of ONNX's test suite."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.base import Backend, BackendRep

from microc import __version__
from microc.base.dtypes import Array, to_numpy
from microc.base.file_access import write_text
from microc.base.immutable import frozen
from microc.base.operating_system import make_library_folder
from microc.codegen.c.source import network_files
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model
from microc.device.toolchain import compile_shared_library
from microc.errors import InternalError, MicrocError, UsageError
from microc.frontend.onnx import reader as onnx_reader
from microc.module import Module
from microc.target import target_for

# ---- Many networks as one shared library, for test suites with thousands of small models.
#
# One run of the C compiler builds all; every network keeps its own prefix, as in firmware with several networks. Large constants
# are included as binary files: as C text, the weights of a server-size network would take the compiler minutes and gigabytes.

_ALIGN = 64
_LARGE = 1 << 16
"""Bytes from which a constant is included as a binary file."""


@frozen
class BatchNetwork:
    """A network of a batch that is compiled into one library; called with its inputs in the module's order."""

    module: Module
    library: ctypes.CDLL
    folder: Any  # reference that keeps the temporary folder from being deleted

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        """Run once from the initial state. Raises UsageError if shapes or dtypes do not match."""
        module = self.module
        if len(arrays) != len(module.inputs):
            raise UsageError(f"{module.name}: got {len(arrays)} inputs, expected {len(module.inputs)}")
        for name, array in zip(module.inputs, arrays, strict=True):
            value = module.values[name]
            if (array.shape, array.dtype) != (value.shape, to_numpy(value.dtype)):
                raise UsageError(f"input {name}: got {array.dtype}{array.shape}, expected {value.dtype}{value.shape}")
        plan = module.plan
        if plan is None:
            raise InternalError("the module has no memory plan")
        raw = np.zeros(max(1, plan.size) + _ALIGN, np.uint8)
        arena = ctypes.c_void_p(raw.ctypes.data + -raw.ctypes.data % _ALIGN)
        inputs = [np.ascontiguousarray(array) for array in arrays]
        outputs = [np.empty(v.shape, to_numpy(v.dtype)) for v in (module.values[name] for name in module.outputs)]
        getattr(self.library, f"{module.name}_reset")(arena)
        status = getattr(self.library, f"{module.name}_run")(
            arena, _array_of_pointers(inputs), _array_of_pointers(outputs)
        )
        if status != 0:
            raise InternalError(f"the run of network {module.name} returned error {status}, expected 0")
        return tuple(outputs)


def _array_of_pointers(arrays: Sequence[Array]) -> Any:
    """Return the addresses of arrays as a C array. ``struct <name>_inputs`` and ``_outputs`` contain only pointers, so
    that an array of pointers has the same layout."""
    return (ctypes.c_void_p * max(1, len(arrays)))(*(array.ctypes.data for array in arrays))


def build_batch(modules: Sequence[Module], optimisation_flag: str = "-O1") -> Mapping[str, BatchNetwork]:
    """Compile modules into one library; return the networks by name. Names must differ. Inputs and outputs may be
    inside or outside of the arena."""
    names = [module.name for module in modules]
    if len(set(names)) != len(names):
        raise UsageError(f"networks: two have the same name; got {', '.join(names)}", hint="rename one")
    folder = make_library_folder()
    sources = []
    for module in modules:
        root = Path(folder.name) / module.name
        root.mkdir()
        sources += _write_network_sources(module, root)
    path = compile_shared_library(Path(folder.name), sources, Path(folder.name) / "batch.so", optimisation_flag)
    library = ctypes.CDLL(str(path))
    return {module.name: BatchNetwork(module, library, folder) for module in modules}


def _write_network_sources(module: Module, root: Path) -> list[Path]:
    """Write the sources of a network into its folder, large constants as binary files; return the files to compile."""
    large = {n for n, value in module.values.items() if value.storage == "const" and value.nbytes >= _LARGE}
    lines = ['.section .note.GNU-stack, "", %progbits', ".section .rodata"]
    for name in sorted(large):
        data, symbol, path = module.values[name].data, f"{module.name}_{name}", root / f"{name}.bin"
        if data is None:
            raise InternalError(f"the constant {name} has no data")
        path.write_bytes(np.ascontiguousarray(data).tobytes())
        lines += [f".globl {symbol}", f".balign {_ALIGN}", f"{symbol}:", f'.incbin "{path}"']
    values = {name: replace(value, data=None) if name in large else value for name, value in module.values.items()}
    for name, text in network_files(replace(module, values=values), __version__).items():
        write_text(root / name, text)
    write_text(root / "large.s", "\n".join(lines) + "\n")
    return [root / "model.c", root / "model_data.c", *([root / "large.s"] if large else [])]


# ---- microc as a backend of ONNX's own test suite (``onnx.backend.test``): compiled to C, built, and run in this process.
#
# Element types that C lacks are stored in the next wider one (``int4`` as ``int8``); the backend converts inputs and outputs.

Runner = Callable[..., tuple[Array, ...]]
"""Runs a network on its inputs in the module's order; returns its outputs."""


@frozen
class CompiledOnnxModel:
    """A compiled ONNX model, with the numpy dtypes that callers use for its inputs and outputs."""

    module: Module
    inputs: tuple[np.dtype[Any], ...]
    outputs: tuple[np.dtype[Any], ...]

    def run(self, network: Runner, arrays: Sequence[Any]) -> tuple[Array, ...]:
        """Run one inference by ``network``: convert the inputs to the stored dtypes, and the outputs to the
        callers'."""
        stored_dtypes = (to_numpy(self.module.values[name].dtype) for name in self.module.inputs)
        converted = [np.asarray(array).astype(dtype) for array, dtype in zip(arrays, stored_dtypes, strict=True)]
        shapes = (
            self.module.values[name].shape for name in self.module.inputs
        )  # what has no elements tells its type only
        converted = [
            array if array.size else np.zeros(shape, array.dtype)
            for array, shape in zip(converted, shapes, strict=True)
        ]
        outputs = network(*converted)
        return tuple(array.astype(dtype) for array, dtype in zip(outputs, self.outputs, strict=True))


def bind_inputs_as_constants(model: onnx.ModelProto, values: Mapping[str, Array]) -> onnx.ModelProto:
    """Return a copy of a model in which some inputs are constants with the given values, such as shapes and axes, which
    microc must know at compile time."""
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    inputs = [value for value in bound.graph.input if value.name not in values]
    del bound.graph.input[:]
    bound.graph.input.extend(inputs)
    bound.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in values.items())
    return bound


def compile_onnx_proto(model: onnx.ModelProto, name: str, cpu: str = "host") -> CompiledOnnxModel:
    """Compile an ONNX model for a core under the C prefix ``name``; raise MicrocError if microc does not support it."""
    constants = {tensor.name for tensor in model.graph.initializer}
    graph = onnx_reader.read_onnx(model.SerializeToString(), f"{name}.onnx", {})
    options = Options(name=name, io_in_arena=False)
    module = compile_model(graph, target_for(cpu), options)
    inputs = tuple(_numpy_dtype_of_onnx_value(value) for value in model.graph.input if value.name not in constants)
    return CompiledOnnxModel(module, inputs, tuple(_numpy_dtype_of_onnx_value(value) for value in model.graph.output))


def _numpy_dtype_of_onnx_value(value: onnx.ValueInfoProto) -> np.dtype[Any]:
    """Return the numpy dtype of an ONNX input or output."""
    dtype: np.dtype[Any] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
    return dtype


class MicrocRep(BackendRep):  # type: ignore[misc]
    """A compiled model in the interface of ONNX's backends, ready to run."""

    def __init__(self, compiled: CompiledOnnxModel, network: BatchNetwork) -> None:
        self._compiled, self._network = compiled, network

    def run(self, inputs: Iterable[Any], **kwargs: Any) -> tuple[Array, ...]:
        return self._compiled.run(self._network, tuple(inputs))


class MicrocBackend(Backend):  # type: ignore[misc]
    """ONNX backend for ``onnx.backend.test.BackendTest(MicrocBackend, __name__)``; runs the C compiler once per
    model."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        try:
            compile_onnx_proto(model, "model")
        except MicrocError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> MicrocRep:
        compiled = compile_onnx_proto(model, "model")
        return MicrocRep(compiled, build_batch([compiled.module])[compiled.module.name])

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"
