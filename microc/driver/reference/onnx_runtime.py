"""ONNX models in ONNX Runtime, operator by operator as the file says: no operators are fused, every value is an output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.driver.reference.runtime import Answer, RuntimeRefusal, imported, version_of
from microc.dtypes import Array
from microc.errors import ToolError, UsageError


class OnnxRuntime:
    """A model's bytes in a session. Values of operators are shown unless the runtime knows no type for them. ``state``: inputs
    that are zeros at first, then what an output was at the run before; neither is one of the network's."""

    name = "onnxruntime"

    def __init__(self, data: bytes, file: str, state: Mapping[str, str] = MappingProxyType({})) -> None:
        runtime = imported("onnxruntime", "onnxruntime")
        self.version = version_of("onnxruntime")
        options = runtime.SessionOptions()
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.add_session_config_entry("session.x64quantprecision", "1")  # products of bytes that do not saturate

        def opened(model: bytes) -> object:
            return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

        try:
            plain = opened(data)
        except Exception as error:
            raise ToolError(f"onnxruntime does not run the model: {error}", where=file) from error
        self._session = plain
        self._feedback = state
        self._held: dict[str, Array] = {}
        names = [output.name for output in plain.get_outputs()]  # type: ignore[attr-defined]
        self._outputs = [name for name in names if name not in state.values()]
        try:
            self._session = opened(_with_all_values(data))
        except Exception:  # noqa: BLE001 - some value cannot be an output: the comparison goes on without layers
            self._session = plain

    def run(self, arrays: Sequence[Array]) -> Answer:
        session = self._session
        inputs = session.get_inputs()  # type: ignore[attr-defined]
        names = [given.name for given in inputs if given.name not in self._feedback]
        if len(names) != len(arrays):
            raise UsageError(f"the model takes {len(names)} inputs, the compiled network {len(arrays)}")
        try:
            held = self._held or {x.name: _zeros(x) for x in inputs if x.name in self._feedback}
            found = session.run(None, {**dict(zip(names, arrays, strict=True)), **held})  # type: ignore[attr-defined]
        except Exception as error:
            raise RuntimeRefusal(str(error)) from error
        known = [output.name for output in session.get_outputs()]  # type: ignore[attr-defined]
        tensors = {name: value for name, value in zip(known, found, strict=True) if isinstance(value, np.ndarray)}
        missing = [name for name in self._outputs if name not in tensors]
        if missing:
            raise RuntimeRefusal(f"output {missing[0]!r} is no tensor")
        self._held = {name: tensors[output] for name, output in self._feedback.items()}
        return Answer(tuple(tensors[name] for name in self._outputs), tensors)

    def reset(self) -> None:
        """A session has no state but what is fed back."""
        self._held = {}


def _zeros(given: Any) -> Array:
    """What a state is at first; of an input of open size (TypeError) nobody knows."""
    element = given.type.removeprefix("tensor(").removesuffix(")")
    return np.zeros(given.shape, {"float": "float32", "double": "float64", "float16": "float16"}.get(element, element))


def _with_all_values(data: bytes) -> bytes:
    """The model with every operator's results among the outputs."""
    onnx = imported("onnx", "onnx")
    model = onnx.load_from_string(data)
    known = {output.name for output in model.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in known:
                known.add(name)
                model.graph.output.append(onnx.ValueInfoProto(name=name))
    found: bytes = model.SerializeToString()
    return found
