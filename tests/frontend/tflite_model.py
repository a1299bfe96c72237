# SPDX-License-Identifier: Apache-2.0
"""Writes small TFLite models for the tests, sound ones and deliberately wrong ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite
from flatbuffers import flexbuffers

from microc.base.dtypes import Array

Level = int | tuple[tuple[int, ...], tuple[int, ...]]
"""A level of a sparse tensor: its size, or segments and indices."""


@dataclass(frozen=True)
class Sparsity:
    order: tuple[int, ...]
    blocks: tuple[int, ...]
    levels: tuple[Level, ...]


@dataclass(frozen=True)
class Tensor:
    """One tensor; ``dtype`` is TFLite's word, ``data`` makes it constant (bytes: as they are)."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "FLOAT32"
    data: Array | bytes | None = None
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    axis: int = 0
    signature: tuple[int, ...] = ()
    variable: bool = False
    buffer: int | None = None
    sparsity: Sparsity | None = None
    type_number: int | None = None
    details: int = 0


@dataclass(frozen=True)
class Op:
    """One operator over tensor names ("" is absent); ``options`` names the table, ``fields`` its contents.

    ``custom_fields`` are the options of a custom operator.
    """

    code: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    options: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    custom: str = ""
    custom_options: bytes = b""
    custom_fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Subgraph:
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def model(
    tensors: Sequence[Tensor],
    ops: Sequence[Op],
    inputs: Sequence[str],
    outputs: Sequence[str],
    others: Sequence[Subgraph] = (),
    version: int = 3,
    deprecated: bool = True,
) -> bytes:
    """The flatbuffer of a model whose main subgraph is given; ``others`` follow it.

    ``deprecated``: operators have their numbers in the deprecated field, too.
    """
    return _Writer(version, deprecated).write(
        (Subgraph(tuple(tensors), tuple(ops), tuple(inputs), tuple(outputs)), *others)
    )


def quantised(name: str, shape: tuple[int, ...], scale: float, zero_point: int, dtype: str = "INT8") -> Tensor:
    return Tensor(name, shape, dtype, scale=(scale,), zero_point=(zero_point,))


def constant(name: str, data: Array, **quant: Any) -> Tensor:
    dtype = str(data.dtype).upper()
    return Tensor(name, data.shape, dtype, data, **quant)


_VECTORS, _WIDTHS = ("Int32Vector", "Uint8Vector"), (np.int32, np.uint8)
"""How segments and indices of a sparse level are stored."""


class _Writer:
    def __init__(self, version: int, deprecated: bool) -> None:
        self.fb = flatbuffers.Builder(1024)
        self.version, self.deprecated = version, deprecated
        self.buffers: list[bytes] = [b""]
        self.codes: list[tuple[str, str]] = []

    def write(self, subgraphs: Sequence[Subgraph]) -> bytes:
        graphs = [self.subgraph(graph) for graph in subgraphs]
        tables = {
            "SubGraphs": self.offsets(graphs),
            "Buffers": self.offsets([self.buffer(data) for data in self.buffers]),
            "OperatorCodes": self.offsets([self.code(*code) for code in self.codes]),
        }
        tflite.ModelStart(self.fb)
        tflite.ModelAddVersion(self.fb, self.version)
        tflite.ModelAddSubgraphs(self.fb, tables["SubGraphs"])
        tflite.ModelAddBuffers(self.fb, tables["Buffers"])
        tflite.ModelAddOperatorCodes(self.fb, tables["OperatorCodes"])
        self.fb.Finish(tflite.ModelEnd(self.fb), b"TFL3")
        return bytes(self.fb.Output())

    def offsets(self, entries: Sequence[int]) -> int:
        self.fb.StartVector(4, len(entries), 4)
        for entry in reversed(entries):
            self.fb.PrependUOffsetTRelative(entry)
        return int(self.fb.EndVector())

    def numbers(self, values: Sequence[float], dtype: Any) -> int:
        return int(self.fb.CreateNumpyVector(np.asarray(values, dtype)))

    def buffer(self, data: bytes) -> int:
        vector = self.fb.CreateNumpyVector(np.frombuffer(data, np.uint8)) if data else 0
        tflite.BufferStart(self.fb)
        if data:
            tflite.BufferAddData(self.fb, vector)
        return int(tflite.BufferEnd(self.fb))

    def code(self, code: str, custom: str) -> int:
        name = self.fb.CreateString(custom) if custom else 0
        number = getattr(tflite.BuiltinOperator, code)
        tflite.OperatorCodeStart(self.fb)
        if self.deprecated:
            tflite.OperatorCodeAddDeprecatedBuiltinCode(self.fb, min(number, 127))
        tflite.OperatorCodeAddBuiltinCode(self.fb, number)
        if custom:
            tflite.OperatorCodeAddCustomCode(self.fb, name)
        return int(tflite.OperatorCodeEnd(self.fb))

    def subgraph(self, graph: Subgraph) -> int:
        names = [tensor.name for tensor in graph.tensors]
        tensors = self.offsets([self.tensor(tensor) for tensor in graph.tensors])
        ops = self.offsets([self.op(op, names) for op in graph.ops])
        inputs = self.numbers([names.index(name) for name in graph.inputs], np.int32)
        outputs = self.numbers([names.index(name) for name in graph.outputs], np.int32)
        tflite.SubGraphStart(self.fb)
        tflite.SubGraphAddTensors(self.fb, tensors)
        tflite.SubGraphAddOperators(self.fb, ops)
        tflite.SubGraphAddInputs(self.fb, inputs)
        tflite.SubGraphAddOutputs(self.fb, outputs)
        return int(tflite.SubGraphEnd(self.fb))

    def tensor(self, tensor: Tensor) -> int:
        quant = self.quantisation(tensor) if tensor.scale or tensor.details else 0
        shape = self.numbers(tensor.shape, np.int32)
        signature = self.numbers(tensor.signature, np.int32) if tensor.signature else 0
        name = self.fb.CreateString(tensor.name)
        sparsity = self.sparsity(tensor.sparsity) if tensor.sparsity else 0
        if tensor.data is not None:
            data = tensor.data
            self.buffers.append(data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes())
        number = len(self.buffers) - 1 if tensor.data is not None else 0
        tflite.TensorStart(self.fb)
        tflite.TensorAddShape(self.fb, shape)
        number_of_type = getattr(tflite.TensorType, tensor.dtype) if tensor.type_number is None else tensor.type_number
        tflite.TensorAddType(self.fb, number_of_type)
        tflite.TensorAddBuffer(self.fb, number if tensor.buffer is None else tensor.buffer)
        tflite.TensorAddName(self.fb, name)
        if quant:
            tflite.TensorAddQuantization(self.fb, quant)
        if signature:
            tflite.TensorAddShapeSignature(self.fb, signature)
        tflite.TensorAddIsVariable(self.fb, tensor.variable)
        if sparsity:
            tflite.TensorAddSparsity(self.fb, sparsity)
        return int(tflite.TensorEnd(self.fb))

    def sparsity(self, sparsity: Sparsity) -> int:
        levels = self.offsets([self.level(level) for level in sparsity.levels])
        order, blocks = (self.numbers(values, np.int32) for values in (sparsity.order, sparsity.blocks))
        tflite.SparsityParametersStart(self.fb)
        tflite.SparsityParametersAddTraversalOrder(self.fb, order)
        tflite.SparsityParametersAddBlockMap(self.fb, blocks)
        tflite.SparsityParametersAddDimMetadata(self.fb, levels)
        return int(tflite.SparsityParametersEnd(self.fb))

    def level(self, level: Level) -> int:
        vectors = []
        for values, name, dtype in zip(() if isinstance(level, int) else level, _VECTORS, _WIDTHS, strict=False):
            numbers = self.numbers(values, dtype)
            getattr(tflite, f"{name}Start")(self.fb)
            getattr(tflite, f"{name}AddValues")(self.fb, numbers)
            vectors.append(int(getattr(tflite, f"{name}End")(self.fb)))
        tflite.DimensionMetadataStart(self.fb)
        tflite.DimensionMetadataAddFormat(self.fb, 0 if isinstance(level, int) else 1)
        if isinstance(level, int):
            tflite.DimensionMetadataAddDenseSize(self.fb, level)
        else:
            tflite.DimensionMetadataAddArraySegmentsType(self.fb, 1)
            tflite.DimensionMetadataAddArraySegments(self.fb, vectors[0])
            tflite.DimensionMetadataAddArrayIndicesType(self.fb, 3)
            tflite.DimensionMetadataAddArrayIndices(self.fb, vectors[1])
        return int(tflite.DimensionMetadataEnd(self.fb))

    def quantisation(self, tensor: Tensor) -> int:
        scale = self.numbers(tensor.scale, np.float32)
        zero_point = self.numbers(tensor.zero_point, np.int64)
        tflite.QuantizationParametersStart(self.fb)
        tflite.QuantizationParametersAddScale(self.fb, scale)
        tflite.QuantizationParametersAddZeroPoint(self.fb, zero_point)
        tflite.QuantizationParametersAddQuantizedDimension(self.fb, tensor.axis)
        if tensor.details:
            tflite.QuantizationParametersAddDetailsType(self.fb, tensor.details)
        return int(tflite.QuantizationParametersEnd(self.fb))

    def op(self, op: Op, names: Sequence[str]) -> int:
        if (op.code, op.custom) not in self.codes:
            self.codes.append((op.code, op.custom))
        options = self.options(op) if op.options else 0
        given = flexbuffers.Dumps(dict(op.custom_fields)) if op.custom_fields else op.custom_options
        custom = int(self.fb.CreateNumpyVector(np.frombuffer(given, np.uint8))) if given else 0
        inputs = self.numbers([names.index(name) if name else -1 for name in op.inputs], np.int32)
        outputs = self.numbers([names.index(name) for name in op.outputs], np.int32)
        tflite.OperatorStart(self.fb)
        tflite.OperatorAddOpcodeIndex(self.fb, self.codes.index((op.code, op.custom)))
        tflite.OperatorAddInputs(self.fb, inputs)
        tflite.OperatorAddOutputs(self.fb, outputs)
        if op.custom_fields:
            tflite.OperatorAddCustomOptions(self.fb, custom)
        if op.options and hasattr(tflite.BuiltinOptions, op.options):
            tflite.OperatorAddBuiltinOptionsType(self.fb, getattr(tflite.BuiltinOptions, op.options))
            tflite.OperatorAddBuiltinOptions(self.fb, options)
        elif op.options:
            tflite.OperatorAddBuiltinOptions2Type(self.fb, getattr(tflite.BuiltinOptions2, op.options))
            tflite.OperatorAddBuiltinOptions2(self.fb, options)
        if op.custom_options:
            tflite.OperatorAddCustomOptions(self.fb, custom)
        return int(tflite.OperatorEnd(self.fb))

    def options(self, op: Op) -> int:
        values = {name: self.field(value) for name, value in op.fields.items()}
        getattr(tflite, f"{op.options}Start")(self.fb)
        for name, value in values.items():
            getattr(tflite, f"{op.options}Add{name}")(self.fb, value)
        return int(getattr(tflite, f"{op.options}End")(self.fb))

    def field(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.fb.CreateString(value)
        if not isinstance(value, tuple):
            return value
        return self.numbers(value, np.float32 if any(isinstance(entry, float) for entry in value) else np.int32)
