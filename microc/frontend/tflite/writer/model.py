"""Tensors and operators as a TFLite flatbuffer (schema version 3), and graphs of ours as such models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite

from microc.dtypes import Array
from microc.frontend.tflite.writer.layers import Written, written
from microc.graph.ir import Graph, Quant, TensorType

_LAST_OF_A_BYTE = 127
"""What the deprecated field of operators' numbers says for all from there on."""


def to_tflite(graph: Graph) -> bytes:
    """The TFLite model of a graph without state. Values are called ``t0_``, ``t1_`` ... in the order of ``graph.types``,
    tensors that only a layer has after its result; a tool that appends to names leaves them readable.

    UnsupportedError for an operator, dtype or attribute that TFLite has no word for, or none here.
    """
    names = name_of(graph)
    found = [written(graph, node) for node in graph.nodes]
    tensors = {names[name]: (kind, graph.consts.get(name)) for name, kind in graph.types.items()}
    operators = []
    for k, node in enumerate(found):
        own = {name: f"{names[node.operators[-1].outputs[0]]}{k}_{n}" for n, name in enumerate(node.tensors)}
        tensors |= {own[name]: given for name, given in node.tensors.items()}
        operators += [each.renamed({**names, **own, "": ""}) for each in node.operators]
    used = {name for each in operators for name in (*each.inputs, *each.outputs)}
    ends = [tuple(names[name] for name in side) for side in (graph.inputs, graph.outputs)]
    kept = {name: given for name, given in tensors.items() if name in used or name in ends[0]}
    return _Model(kept).written(operators, *ends)


def name_of(graph: Graph) -> Mapping[str, str]:
    """What the model calls the values of a graph."""
    return {name: f"t{k}_" for k, name in enumerate(graph.types)}


@dataclass
class _Model:
    """A flatbuffer under construction; flatbuffers grow from their end, what is named before what names it."""

    tensors: Mapping[str, tuple[TensorType, Array | None]]
    fb: Any = field(default_factory=lambda: flatbuffers.Builder(1024))
    buffers: list[bytes] = field(default_factory=lambda: [b""])

    def written(self, operators: Sequence[Written], inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
        numbers = {name: k for k, name in enumerate(self.tensors)} | {"": -1}
        codes = list(dict.fromkeys((each.code, each.version) for each in operators))
        tensors = self._offsets([self._tensor(name, *given) for name, given in self.tensors.items()])
        made = self._offsets([self._operator(each, codes, numbers) for each in operators])
        ends = [self._numbers([numbers[name] for name in side], np.int32) for side in (inputs, outputs)]
        tflite.SubGraphStart(self.fb)
        tflite.SubGraphAddTensors(self.fb, tensors)
        tflite.SubGraphAddInputs(self.fb, ends[0])
        tflite.SubGraphAddOutputs(self.fb, ends[1])
        tflite.SubGraphAddOperators(self.fb, made)
        graphs = self._offsets([int(tflite.SubGraphEnd(self.fb))])
        buffers = self._offsets([self._buffer(data) for data in self.buffers])
        kinds = self._offsets([self._code(*code) for code in codes])
        tflite.ModelStart(self.fb)
        tflite.ModelAddVersion(self.fb, 3)
        tflite.ModelAddOperatorCodes(self.fb, kinds)
        tflite.ModelAddSubgraphs(self.fb, graphs)
        tflite.ModelAddBuffers(self.fb, buffers)
        self.fb.Finish(tflite.ModelEnd(self.fb), b"TFL3")
        return bytes(self.fb.Output())

    def _offsets(self, entries: Sequence[int]) -> int:
        self.fb.StartVector(4, len(entries), 4)
        for entry in reversed(entries):
            self.fb.PrependUOffsetTRelative(entry)
        return int(self.fb.EndVector())

    def _numbers(self, values: Sequence[float], dtype: Any) -> int:
        return int(self.fb.CreateNumpyVector(np.asarray(values, dtype)))

    def _buffer(self, data: bytes) -> int:
        vector = self.fb.CreateNumpyVector(np.frombuffer(data, np.uint8)) if data else 0
        tflite.BufferStart(self.fb)
        if data:
            tflite.BufferAddData(self.fb, vector)
        return int(tflite.BufferEnd(self.fb))

    def _code(self, name: str, version: int) -> int:
        number = getattr(tflite.BuiltinOperator, name)
        tflite.OperatorCodeStart(self.fb)
        tflite.OperatorCodeAddDeprecatedBuiltinCode(self.fb, min(number, _LAST_OF_A_BYTE))
        tflite.OperatorCodeAddBuiltinCode(self.fb, number)
        tflite.OperatorCodeAddVersion(self.fb, version)
        return int(tflite.OperatorCodeEnd(self.fb))

    def _tensor(self, name: str, kind: TensorType, data: Array | None) -> int:
        shape, label = self._numbers(kind.shape, np.int32), self.fb.CreateString(name)
        quant = self._quantisation(kind.quant) if kind.quant else 0
        if data is not None:
            self.buffers.append(np.ascontiguousarray(data).tobytes())
        tflite.TensorStart(self.fb)
        tflite.TensorAddShape(self.fb, shape)
        tflite.TensorAddType(self.fb, getattr(tflite.TensorType, kind.dtype.upper()))
        tflite.TensorAddBuffer(self.fb, len(self.buffers) - 1 if data is not None else 0)
        tflite.TensorAddName(self.fb, label)
        if quant:
            tflite.TensorAddQuantization(self.fb, quant)
        return int(tflite.TensorEnd(self.fb))

    def _quantisation(self, quant: Quant) -> int:
        scale, zero_point = self._numbers(quant.scale, np.float32), self._numbers(quant.zero_point, np.int64)
        tflite.QuantizationParametersStart(self.fb)
        tflite.QuantizationParametersAddScale(self.fb, scale)
        tflite.QuantizationParametersAddZeroPoint(self.fb, zero_point)
        tflite.QuantizationParametersAddQuantizedDimension(self.fb, quant.axis or 0)
        return int(tflite.QuantizationParametersEnd(self.fb))

    def _operator(self, each: Written, codes: Sequence[tuple[str, int]], numbers: Mapping[str, int]) -> int:
        options = self._options(each) if each.options else 0
        inputs, outputs = (self._numbers([numbers[n] for n in side], np.int32) for side in (each.inputs, each.outputs))
        tflite.OperatorStart(self.fb)
        tflite.OperatorAddOpcodeIndex(self.fb, codes.index((each.code, each.version)))
        tflite.OperatorAddInputs(self.fb, inputs)
        tflite.OperatorAddOutputs(self.fb, outputs)
        if each.options:
            tflite.OperatorAddBuiltinOptionsType(self.fb, getattr(tflite.BuiltinOptions, each.options))
            tflite.OperatorAddBuiltinOptions(self.fb, options)
        return int(tflite.OperatorEnd(self.fb))

    def _options(self, each: Written) -> int:
        values = {n: self._numbers(v, np.int32) if isinstance(v, tuple) else v for n, v in each.fields.items()}
        getattr(tflite, f"{each.options}Start")(self.fb)
        for name, value in values.items():
            getattr(tflite, f"{each.options}Add{name}")(self.fb, value)
        return int(getattr(tflite, f"{each.options}End")(self.fb))
