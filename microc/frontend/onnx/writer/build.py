"""The ONNX graph under construction: nodes, initialisers, and the forms in which values are there.

A value of ours has up to four forms in ONNX, made when they are asked for: as it is or as reals (integers dequantised), with
channels last or first. What is made in one form and read in another has a Transpose or DequantizeLinear between, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.errors import InternalError
from microc.frontend.onnx.tensor import DTYPES, FOUR_BITS
from microc.graph.ir import Graph, Names, Quant, TensorType

TO_FIRST, TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
CODES = {name: code for code, name in DTYPES.items() if code not in FOUR_BITS}
"""TensorProto.DataType numbers by dtype."""
FIRST_OPSET = 13
"""The first version of the operator set whose operators are as they are written here: scales by axis, axes as operands."""


class Builder:
    """One ONNX graph: of a model, or inside an operator of that which is ``outer``.

    ``names`` are those that are taken in the whole model; ``least`` (of the outermost) is the first version of the operator set
    that knows all values of attributes.
    """

    def __init__(self, graph: Graph, outer: Builder | None = None) -> None:
        self.graph, self.outer, self.least = graph, outer, FIRST_OPSET
        self.names: Names = Names() if outer is None else outer.names
        known = {name for name in graph.consts if name not in graph.outputs}
        self.own = {name: self.names.fresh(name) for name in graph.types if name not in known}
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.forms: dict[tuple[str, bool, bool], str] = {}
        self.dequantised: dict[str, tuple[str, Quant]] = {}
        self._shared: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    # ------------------------------------------------------------ what is written

    def emit(self, code: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> str:
        """Append an ONNX operator; the name of its first output. Attributes that are None or empty are left out."""
        from onnx import helper

        attributes = {key: value for key, value in attributes.items() if value not in (None, ())}
        self.nodes.append(helper.make_node(code, inputs, outputs, name=outputs[0], **attributes))
        return outputs[0]

    def require(self, opset: int) -> None:
        """Say that a value of an attribute is known from this version of the operator set on."""
        if self.outer is not None:
            self.outer.require(opset)
        self.least = max(self.least, opset)

    def emit_first(self, code: str, values: Sequence[str], made: str, **attributes: Any) -> None:
        """Put an operator before all others."""
        self.emit(code, values, [made], **attributes)
        self.nodes.insert(0, self.nodes.pop())

    def shared(self, stem: str, data: Array) -> str:
        """An initialiser for a few numbers that say how; equal ones are one."""
        key = (data.dtype.name, data.shape, data.tobytes())
        if key not in self._shared:
            self._shared[key] = self.constant(stem, data)
        return self._shared[key]

    def constant(self, stem: str, data: Array) -> str:
        """An initialiser of its own: integers are dequantised under one scale only."""
        from onnx import TensorProto

        array = np.ascontiguousarray(data).reshape(data.shape)
        little = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        name = self.names.fresh(stem)
        self.initializers.append(
            TensorProto(name=name, data_type=CODES[data.dtype.name], dims=data.shape, raw_data=little)
        )
        return name

    def integers(self, *numbers: int) -> str:
        """A list of int64: shapes, axes, amounts of padding."""
        return self.shared("integers", np.array(numbers, np.int64))

    # ------------------------------------------------------------ the forms of a value

    def bind(self, value: str, name: str, real: bool = False, first: bool = False) -> None:
        """Say that ``name`` is the value in this form."""
        self.forms[value, real, first] = name

    def own_name(self, value: str, first: bool = False) -> str:
        """Under which name a value is written: its own as the graph has it, a new one with channels first."""
        return self.names.fresh(f"{value}_first") if first else self.own[value]

    def is_first(self, value: str) -> bool:
        """Whether the value is only there with channels first; of one that is dequantised where it is read, its integers."""
        if value in self.dequantised and (value, False, False) not in self.forms:
            return self.is_first(self.dequantised[value][0])
        return (value, False, True) in self.forms and (value, False, False) not in self.forms

    def name(self, value: str, real: bool = False, first: bool = False) -> str:
        """The ONNX name of a value in a form; constants of less than four axes get some of one element to have channels first."""
        key = (value, real, first)
        if key not in self.forms:
            self.forms[key] = self._make(value, real, first)
        return self.forms[key]

    def _make(self, value: str, real: bool, first: bool) -> str:
        kind, constant = self.graph.types[value], self.graph.consts.get(value)
        if real:
            assert kind.quant is not None
            return self._dequantize(value, kind.quant, self.names.fresh(f"{value}_real"), first)
        if value in self.dequantised:
            return self._dequantize(*self.dequantised[value], self.own_name(value, first), first)
        if constant is not None:
            wide = constant.reshape((1,) * (4 - constant.ndim) + constant.shape) if first else constant
            return self.constant(value, wide.transpose(TO_FIRST) if first else wide)
        if first:
            return self.emit("Transpose", [self.name(value)], [self.own_name(value, first)], perm=TO_FIRST)
        if (value, False, True) in self.forms:
            return self.emit("Transpose", [self.name(value, first=True)], [self.own_name(value)], perm=TO_LAST)
        raise InternalError(f"{value!r} is read before it is written")

    def _dequantize(self, value: str, quant: Quant, made: str, first: bool) -> str:
        axis = quant.axis
        if axis is not None and first:
            axis = TO_FIRST.index(axis + 4 - len(self.graph.types[value].shape))
        return self.dequantize(self.name(value, first=first), self.graph.types[value].dtype, quant, axis, made)

    # ------------------------------------------------------------ quantisation

    def dequantize(self, name: str, dtype: str, quant: Quant, axis: int | None, made: str) -> str:
        """Write ``made``, the reals that the integers ``name`` stand for; ``axis`` is that of the scales as ``name`` has it."""
        return self.emit("DequantizeLinear", [name, *self.quantization(quant, dtype, name)], [made], axis=axis)

    def quantization(self, quant: Quant, dtype: str, stem: str) -> tuple[str, ...]:
        """Scale and zero point as initialisers; of int32, which ONNX wants without, the scale."""
        shape = () if quant.axis is None else (len(quant.scale),)
        scale = self.shared(f"{stem}_scale", np.array(quant.scale, np.float32).reshape(shape))
        if dtype == "int32" and not any(quant.zero_point):
            return (scale,)
        zeros = np.array(quant.zero_point, dtypes.to_numpy(dtype)).reshape(shape)
        return scale, self.shared(f"{stem}_zero_point", zeros)


def value_info(name: str, kind: TensorType) -> Any:
    """What ONNX declares of an input or output."""
    from onnx import helper

    return helper.make_tensor_value_info(name, CODES[kind.dtype], kind.shape)
