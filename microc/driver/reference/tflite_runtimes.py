"""TFLite models in TFLite Micro's interpreter, or in LiteRT; both keep every tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.driver.reference.runtime import Answer, RuntimeRefusal, imported, version_of
from microc.dtypes import Array
from microc.errors import ToolError
from microc.frontend.tflite.reader import tensor_names

_ARENA = (16 << 20, 512 << 20)
"""Bytes of TFLite Micro's arena to try in turn: all tensors are kept."""


class Micro:
    """TFLite Micro's interpreter, as its Python package has it."""

    name = "tflm"

    def __init__(self, data: bytes, file: str) -> None:
        runtime = imported("tflite_micro", "tflite-micro").runtime
        self.version = version_of("tflite-micro")
        self._names = tensor_names(data)
        self._interpreter: Any = None
        for size in _ARENA:
            try:
                self._interpreter = runtime.Interpreter.from_bytes(
                    data, arena_size=size, intrepreter_config=runtime.InterpreterConfig.kPreserveAllTensors
                )
                break
            except Exception as error:
                if size == _ARENA[-1]:
                    raise ToolError(
                        f"TFLite Micro does not run the model: {error}", where=file, hint="try --against litert"
                    ) from error
        self._count = _outputs(data)

    def run(self, arrays: Sequence[Array]) -> Answer:
        try:
            for index, array in enumerate(arrays):
                self._interpreter.set_input(array, index)
            self._interpreter.invoke()
        except Exception as error:
            raise RuntimeRefusal(str(error)) from error
        outputs = tuple(np.asarray(self._interpreter.get_output(k)) for k in range(self._count))
        tensors = {}
        for index, name in self._names.items():
            try:
                tensors[name] = np.asarray(self._interpreter.GetTensor(index, 0)["tensor_data"])
            except Exception:  # noqa: BLE001 - a tensor that the interpreter does not show
                continue
        return Answer(outputs, tensors)

    def reset(self) -> None:
        self._interpreter.reset()


_KERNELS: Mapping[str, str] = {
    "BUILTIN_REF": "reference kernels",
    "BUILTIN_WITHOUT_DEFAULT_DELEGATES": "default kernels",
    "BUILTIN": "default kernels and delegates",
}
"""LiteRT's sets of kernels, those that round as TFLite Micro's first; XNNPACK, a delegate, rounds in ways of its own."""


class LiteRT:
    """LiteRT's interpreter with the first set of kernels that has all operators of a model: no reference kernel computes ELU.

    ``own``: its default kernels come first where floats become int16, which these round unlike the reference kernels.
    """

    name = "litert"

    def __init__(self, data: bytes, file: str, *, own: bool = False) -> None:
        module = imported("ai_edge_litert.interpreter", "ai-edge-litert")
        self._interpreter: Any = None
        refusals = []
        for kernels in sorted(_KERNELS, key=lambda name: name == "BUILTIN_REF") if own else _KERNELS:
            try:
                interpreter = module.Interpreter(
                    model_content=data,
                    num_threads=1,
                    experimental_op_resolver_type=getattr(module.OpResolverType, kernels),
                    experimental_preserve_all_tensors=True,
                )
                interpreter.allocate_tensors()
            except Exception as error:  # noqa: BLE001 - of whatever class LiteRT raises
                refusals.append(error)
                continue
            self._interpreter, self.kernels = interpreter, _KERNELS[kernels]
            break
        if self._interpreter is None:
            first = refusals[0]
            raise ToolError(f"LiteRT does not run the model: {first}", where=file, hint="try --against tflm") from first
        self.version = version_of("ai-edge-litert")
        if self.kernels != _KERNELS["BUILTIN_REF"]:
            self.version += f", {self.kernels}"
        self._names = tensor_names(data)

    def run(self, arrays: Sequence[Array]) -> Answer:
        interpreter = self._interpreter
        try:
            details = interpreter.get_input_details()
            for known, array in zip(details, arrays, strict=True):
                if tuple(known["shape"]) != array.shape:
                    interpreter.resize_tensor_input(known["index"], array.shape)
                    interpreter.allocate_tensors()
            for known, array in zip(details, arrays, strict=True):
                interpreter.set_tensor(known["index"], array)
            interpreter.invoke()
        except Exception as error:
            raise RuntimeRefusal(str(error)) from error
        outputs = tuple(interpreter.get_tensor(known["index"]) for known in interpreter.get_output_details())
        tensors = {}
        for index, name in self._names.items():
            try:
                tensors[name] = interpreter.get_tensor(index)
            except ValueError:  # a tensor without memory of its own
                continue
        return Answer(outputs, tensors)

    def reset(self) -> None:
        self._interpreter.reset_all_variables()


def _outputs(data: bytes) -> int:
    """How many outputs the first subgraph has, which TFLite Micro does not say."""
    import tflite

    graph = tflite.Model.GetRootAs(data, 0).Subgraphs(0)
    return 0 if graph is None else int(graph.OutputsLength())


def quantises_to_int16(data: bytes) -> bool:
    """Test whether some operator of the first subgraph makes int16 of floats."""
    import tflite

    parts = tflite.Model.GetRootAs(data, 0)
    graph = parts.Subgraphs(0)
    if graph is None:
        return False
    for k in range(graph.OperatorsLength()):
        operator = graph.Operators(k)
        if operator is None or operator.InputsLength() != 1 or operator.OutputsLength() != 1:
            continue
        source, result = graph.Tensors(operator.Inputs(0)), graph.Tensors(operator.Outputs(0))
        if source is None or result is None:
            continue
        if (source.Type(), result.Type()) == (tflite.TensorType.FLOAT32, tflite.TensorType.INT16):
            return True
    return False
