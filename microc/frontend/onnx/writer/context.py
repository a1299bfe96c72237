"""Builder of the exported ONNX graph, and the view of one graph operator that the functions writing it to ONNX receive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import InternalError, UnsupportedError
from microc.frontend.onnx.file import DTYPES, FOUR_BITS
from microc.frontend.onnx.operators_elementwise import COMPARISONS
from microc.graph.ir import Graph, NameSet, Node, Quant, TensorType
from microc.ops import registry
from microc.ops.arithmetic import activation_range

# ---- The ONNX graph under construction: nodes, initialisers, and the forms of values.
#
# A value of microc's graph has up to four forms in ONNX: stored integers or dequantised reals, with channels last or first.
# Each form is an ONNX value of its own, written at its first use. The Transpose or DequantizeLinear that derives one form from
# another is therefore emitted once.

TO_FIRST, TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
CODES = {name: code for code, name in DTYPES.items() if code not in FOUR_BITS}
"""Number of each dtype in ONNX's enumeration TensorProto.DataType."""
FIRST_OPSET = 13
"""Minimum opset of exported models. Since this version quantisation scales may be per axis, and axes may be operands."""


class OnnxGraphWriter:
    """Writer of one ONNX graph: the main graph of a model, or the body of a loop or branch.

    ``outer``: the writer of the enclosing graph; None for the main graph. ``names``: all names used in the model.
    ``min_opset`` (of the main graph): the smallest opset that supports all attribute values written so far."""

    def __init__(self, graph: Graph, outer: OnnxGraphWriter | None = None) -> None:
        self.graph, self.outer, self.min_opset = graph, outer, FIRST_OPSET
        self.names: NameSet = NameSet() if outer is None else outer.names
        constants = {name for name in graph.consts if name not in graph.outputs}
        self.own = {name: self.names.fresh(name) for name in graph.types if name not in constants}
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.forms: dict[tuple[str, bool, bool], str] = {}
        self.dequantised: dict[str, tuple[str, Quant]] = {}
        self._shared: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    # ------------------------------------------------------------ nodes and initialisers

    def emit(self, code: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> str:
        """Append an ONNX node of operator ``code``; return the name of its first output.

        Attributes that are None or () are omitted."""
        from onnx import helper

        attributes = {key: value for key, value in attributes.items() if value not in (None, ())}
        self.nodes.append(helper.make_node(code, inputs, outputs, name=outputs[0], **attributes))
        return outputs[0]

    def require(self, min_version: int) -> None:
        """Raise the minimum opset of the model to ``min_version``, in which an attribute value that is written was introduced."""
        if self.outer is not None:
            self.outer.require(min_version)
        self.min_opset = max(self.min_opset, min_version)

    def emit_first(self, code: str, values: Sequence[str], output: str, **attributes: Any) -> None:
        """Insert an ONNX node of operator ``code`` before all other nodes of the graph."""
        self.emit(code, values, [output], **attributes)
        self.nodes.insert(0, self.nodes.pop())

    def shared(self, stem: str, data: Array) -> str:
        """Return the name of an initialiser with the elements of ``data``, a small array; equal arrays share an initialiser."""
        key = (data.dtype.name, data.shape, data.tobytes())
        if key not in self._shared:
            self._shared[key] = self.constant(stem, data)
        return self._shared[key]

    def constant(self, stem: str, data: Array) -> str:
        """Add an initialiser with the elements of ``data``; return its name.

        The initialiser is never shared between values, because two values with equal integers may have different scales."""
        from onnx import TensorProto

        array = np.ascontiguousarray(data).reshape(data.shape)
        little = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        name = self.names.fresh(stem)
        self.initializers.append(
            TensorProto(name=name, data_type=CODES[data.dtype.name], dims=data.shape, raw_data=little)
        )
        return name

    def integers(self, *numbers: int) -> str:
        """Return the name of an int64 initialiser with ``numbers``, such as a shape, axes or padding."""
        return self.shared("integers", np.array(numbers, np.int64))

    # ------------------------------------------------------------ forms of a value

    def bind(self, value: str, name: str, real: bool = False, first: bool = False) -> None:
        """Record that ``name`` is the ONNX name of one form of the graph value ``value``.

        ``real``: the form is dequantised reals instead of stored data. ``first``: it has channels first instead of last."""
        self.forms[value, real, first] = name

    def own_name(self, value: str, first: bool = False) -> str:
        """Return the ONNX name under which a graph value is written.

        With channels last that is the value's own name, with channels first a new name."""
        return self.names.fresh(f"{value}_first") if first else self.own[value]

    def is_first(self, value_name: str) -> bool:
        """Test whether a value has been written only with channels first.

        For a value that is dequantised where it is read, the integers that it is dequantised from are tested."""
        if value_name in self.dequantised and (value_name, False, False) not in self.forms:
            return self.is_first(self.dequantised[value_name][0])
        return (value_name, False, True) in self.forms and (value_name, False, False) not in self.forms

    def name(self, value: str, real: bool = False, first: bool = False) -> str:
        """Return the ONNX name of the form of a value with these properties (see :meth:`bind`); write the form at its first use.

        A constant with fewer than 4 axes that is read with channels first gets leading axes of extent 1."""
        key = (value, real, first)
        if key not in self.forms:
            self.forms[key] = self._make_form(value, real, first)
        return self.forms[key]

    def _make_form(self, value_name: str, as_reals: bool, channels_first: bool) -> str:
        """Write the nodes or the initialiser that make one form of the value ``value_name``; return the form's ONNX name.

        ``as_reals``: the form is dequantised reals. ``channels_first``: it has channels first instead of last."""
        type_, constant = self.graph.types[value_name], self.graph.consts.get(value_name)
        if as_reals:
            assert type_.quant is not None
            return self._dequantize_form(
                value_name, type_.quant, self.names.fresh(f"{value_name}_real"), channels_first
            )
        if value_name in self.dequantised:
            return self._dequantize_form(
                *self.dequantised[value_name], self.own_name(value_name, channels_first), channels_first
            )
        if constant is not None:
            in_rank_4 = constant.reshape((1,) * (4 - constant.ndim) + constant.shape) if channels_first else constant
            return self.constant(value_name, in_rank_4.transpose(TO_FIRST) if channels_first else in_rank_4)
        if channels_first:
            return self.emit(
                "Transpose", [self.name(value_name)], [self.own_name(value_name, channels_first)], perm=TO_FIRST
            )
        if (value_name, False, True) in self.forms:
            return self.emit(
                "Transpose", [self.name(value_name, first=True)], [self.own_name(value_name)], perm=TO_LAST
            )
        raise InternalError(f"{value_name!r} is read before it is written")

    def _dequantize_form(self, value_name: str, quant: Quant, output: str, channels_first: bool) -> str:
        """Write DequantizeLinear of the value ``value_name``, with channels first or last; return ``output``."""
        axis = quant.axis
        if axis is not None and channels_first:
            axis = TO_FIRST.index(axis + 4 - len(self.graph.types[value_name].shape))
        return self.dequantize(
            self.name(value_name, first=channels_first), self.graph.types[value_name].dtype, quant, axis, output
        )

    # ------------------------------------------------------------ quantisation

    def dequantize(self, name: str, dtype: str, quant: Quant, axis: int | None, output: str) -> str:
        """Write DequantizeLinear of the ONNX value ``name``; return the name ``output`` of its result.

        ``axis``: axis of ``name``, in its own layout, along which the scales differ; None for a single scale."""
        return self.emit("DequantizeLinear", [name, *self.quantization(quant, dtype, name)], [output], axis=axis)

    def quantization(self, quant: Quant, dtype: str, stem: str) -> tuple[str, ...]:
        """Return the names of the initialisers with scale and zero point.

        For int32 with zero points of 0 only the scale is returned, as ONNX requires."""
        shape = () if quant.axis is None else (len(quant.scale),)
        scale = self.shared(f"{stem}_scale", np.array(quant.scale, np.float32).reshape(shape))
        if dtype == "int32" and not any(quant.zero_point):
            return (scale,)
        zeros = np.array(quant.zero_point, dtypes.to_numpy(dtype)).reshape(shape)
        return scale, self.shared(f"{stem}_zero_point", zeros)


def value_info(name: str, value_type: TensorType) -> Any:
    """Return the ValueInfoProto that declares a graph input or output called ``name``."""
    from onnx import helper

    return helper.make_tensor_value_info(name, CODES[value_type.dtype], value_type.shape)


# ---- One operator of microc's graph, as the function that writes it to ONNX receives it. Operands are read in the form that
# the function needs, and methods write ONNX nodes.

Step = tuple[str, Sequence[str], Mapping[str, Any]]
"""An ONNX operator that reads the previous operator's result: operator name, inputs after the first, and attributes."""

ACTIVATIONS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "relu": ("Relu", ()),
    "relu6": ("Clip", (0.0, 6.0)),
    "relu_n1_to_1": ("Clip", (-1.0, 1.0)),
    "tanh": ("Tanh", ()),
    "sigmoid": ("Sigmoid", ()),
}

QUANTISED = ("int8", "uint8", "int16", "uint16")
"""Dtypes to which exported models quantise with QuantizeLinear."""
COMPARED = frozenset((*(row.op for row in COMPARISONS), "not_equal"))
"""Names of comparison operators. They compare quantised operands as reals, and their result is not quantised."""
ONNX_DTYPE_NAMES = {"float32": "float", "float64": "double"}
"""ONNX's names of dtypes, where they differ from numpy's."""


@frozen
class NodeContext:
    """One operator of microc's graph, passed to the function that writes it to ONNX.

    ``quantised``: operands are dequantised before the ONNX operator reads them, and its result is quantised. ``first``:
    operands and results have channels first."""

    node: Node
    builder: OnnxGraphWriter
    quantised: bool = False
    first: bool = False

    # ------------------------------------------------------------ operands and attributes

    def attr(self, name: str) -> Any:
        """Return the value of the operator's attribute ``name``, or the attribute's default."""
        return self.node.attrs.get(name, registry.get(self.node.op).defaults.get(name))

    def has(self, position: int) -> bool:
        """Test whether operand ``position`` is present."""
        return position < len(self.node.inputs) and self.node.inputs[position] != ""

    def type(self, position: int = 0) -> TensorType:
        """Return the type (shape, dtype and quantisation) of an operand in microc's graph."""
        return self.builder.graph.types[self.node.inputs[position]]

    @property
    def result_type(self) -> TensorType:
        return self.builder.graph.types[self.node.outputs[0]]

    def dtype(self, position: int = 0) -> str:
        """Return the dtype in which the ONNX operator reads an operand: float32 if it is dequantised, else the stored dtype."""
        return "float32" if self._is_real(position) else self.type(position).dtype

    def _is_real(self, position: int) -> bool:
        return self.quantised and quantised_type(self.type(position))

    def operand(self, position: int = 0) -> str:
        """Return the ONNX name of an operand, dequantised and with channels first if this operator reads it so."""
        return self.builder.name(self.node.inputs[position], self._is_real(position), self.first)

    def data(self, position: int) -> Array | None:
        """Return the stored data of an operand; None if the operand is not constant."""
        return self.builder.graph.consts.get(self.node.inputs[position])

    def refuse(self, what: str, hint: str) -> NoReturn:
        """Raise UnsupportedError, because this operator cannot be expressed in ONNX."""
        raise UnsupportedError(what, where=f"{self.node.loc} ({self.node.op})", hint=hint)

    def require_supported_quantisation(self) -> None:
        """Raise UnsupportedError if a quantised operand or result has a dtype that ONNX cannot dequantise or quantise."""
        if not self.quantised:
            return
        input_dtypes = {self.type(k).dtype for k in range(len(self.node.inputs)) if self.has(k) and self._is_real(k)}
        output_dtypes = {
            self.builder.graph.types[name].dtype for name in self.node.outputs if name and self.node.op not in COMPARED
        }
        unsupported = [*input_dtypes - {*QUANTISED, "int32", "int64"}, *output_dtypes - {*QUANTISED}]
        if unsupported:
            self.refuse(f"{self.node.op} of quantised {' and '.join(unsupported)}", "ONNX quantises to 8 and 16 bits")

    def check_dtype(self, onnx_operator: str) -> None:
        """Raise UnsupportedError if ``onnx_operator`` does not support the dtype of the first operand."""
        from onnx import defs

        supported = defs.get_schema(onnx_operator).inputs[0].types
        if f"tensor({ONNX_DTYPE_NAMES.get(self.dtype(), self.dtype())})" not in supported:
            self.refuse(
                f"{self.node.op} of {self.dtype()}", f"ONNX has {onnx_operator} of {', '.join(sorted(supported))}"
            )

    def only_floats(self) -> None:
        """Raise UnsupportedError if operands are integers that do not represent reals."""
        if not dtypes.is_float(self.dtype()):
            self.refuse(f"{self.node.op} of {self.dtype()}", "ONNX has the operator for floats only")

    # ------------------------------------------------------------ layouts

    def with_channels_first(self) -> NodeContext:
        """Return a copy of this context that reads operands and writes results with channels first."""
        return replace(self, first=True)

    def in_layout_of_operands(self) -> NodeContext:
        """Return the context for an elementwise operator, in the layout that avoids transposes.

        It has channels first if all operands but constants are of 4 axes and have been written only with channels first."""
        names = [name for name in self.node.inputs if name not in self.builder.graph.consts]
        images = all(len(self.builder.graph.types[name].shape) == 4 and self.builder.is_first(name) for name in names)
        return self.with_channels_first() if images and len(self.result_type.shape) == 4 else self

    # ------------------------------------------------------------ results

    def constant(self, data: Array, stem: str = "constant") -> str:
        """Add an initialiser with ``data`` that only this operator reads; return its name."""
        return self.builder.constant(f"{self.node.outputs[0]}_{stem}", data)

    def number(self, value: float) -> str:
        """Return the name of a scalar initialiser of ``value``, in the dtype in which the operator computes."""
        return self.builder.shared("number", np.array(value, dtypes.to_numpy(self.dtype())))

    def integers(self, *numbers: int) -> str:
        return self.builder.integers(*numbers)

    def fresh(self, code: str) -> str:
        """Return an unused name for the result of ONNX operator ``code``."""
        return self.builder.names.fresh(f"{self.node.outputs[0]}_{code.lower()}")

    def emit(self, code: str, *inputs: str, **attributes: Any) -> str:
        """Write an ONNX operator for an intermediate result of this graph operator; return the name of the result."""
        return self.builder.emit(code, inputs, [self.fresh(code)], **attributes)

    def cast(self, value: str, dtype: str) -> str:
        """Write a Cast of ``value`` to ``dtype``; return the name of the result."""
        return self.emit("Cast", value, to=CODES[dtype])

    def result(self, code: str, *inputs: str, then: Sequence[Step] = (), **attributes: Any) -> None:
        """Write the graph operator's result: ONNX operator ``code`` of ``inputs``, the activation, QuantizeLinear, then ``then``.

        ``then``: final ONNX operators that only rearrange or convert elements, such as Reshape or Cast."""
        if self.node.inputs[0] and inputs[0] == self.operand():
            self.check_dtype(code)
        steps: list[Step] = [(code, inputs[1:], attributes), *self._activation_and_quantize(), *then]
        value, name = self.node.outputs[0], inputs[0]
        for step, (step_code, others, attrs) in enumerate(steps):
            output = self.fresh(step_code) if step + 1 < len(steps) else self.builder.own_name(value, self.first)
            name = self.builder.emit(step_code, (name, *others), [output], **attrs)
        self.builder.bind(value, name, first=self.first)

    def results(self, code: str, *inputs: str, dtypes_made: Sequence[str | None] = (), **attributes: Any) -> None:
        """Write all results of the graph operator as the outputs of ONNX operator ``code``.

        ``dtypes_made``: dtype of each ONNX output, None if it is that of the graph's value. Where it differs, a Cast is added."""
        builder, values = self.builder, self.node.outputs
        dtypes_made = [*dtypes_made, *[None] * (len(values) - len(dtypes_made))]
        casts = [
            bool(value) and dtype not in (None, builder.graph.types[value].dtype)
            for value, dtype in zip(values, dtypes_made, strict=True)
        ]
        names = [
            "" if not value else self.fresh(code) if cast else builder.own_name(value)
            for value, cast in zip(values, casts, strict=True)
        ]
        builder.emit(code, inputs, names, **attributes)
        for value, name, cast in zip(values, names, casts, strict=True):
            if cast:
                name = builder.emit(
                    "Cast", [name], [builder.own_name(value)], to=CODES[builder.graph.types[value].dtype]
                )
            builder.bind(value, name)

    def _activation_and_quantize(self) -> list[Step]:
        """Return the ONNX operators after the main one: the activation and, if the result is quantised, QuantizeLinear.

        The activation of a quantised result is written after QuantizeLinear, between DequantizeLinear and a second
        QuantizeLinear. Runtimes then still recognise the operator between dequantised operands and a quantised result. A clamp
        gives the same result there, because rounding is monotone. It is omitted if it allows all values of the integer dtype."""
        activation = str(self.attr("activation") or "")
        clamp: list[Step] = []
        if activation:
            code, bounds = ACTIVATIONS[activation]
            dtype = dtypes.to_numpy("float32" if self.quantised else self.result_type.dtype)
            limits = [self.builder.shared("bound", np.array(bound, dtype)) for bound in bounds]
            clamp.append((code, limits, {}))
        kind = self.result_type
        if not self.quantised or not quantised_type(kind):
            return clamp
        assert kind.quant is not None
        quantize: Step = ("QuantizeLinear", self._result_quantization(kind.quant), {})
        if not clamp:
            return [quantize]
        if activation not in ("tanh", "sigmoid"):
            rounding = str(self.attr("rounding"))
            if activation_range(activation, kind.quant, kind.dtype, rounding) == dtypes.int_range(kind.dtype):
                return [quantize]
        return [quantize, ("DequantizeLinear", self._result_quantization(kind.quant), {}), *clamp, quantize]

    def _result_quantization(self, quant: Quant) -> tuple[str, ...]:
        """Return the names of the initialisers with the result's scale and zero point."""
        return self.builder.quantization(quant, self.result_type.dtype, self.node.outputs[0])


Row = Callable[[NodeContext], None]
"""Function that writes one operator of microc's graph as ONNX operators."""


def quantised_type(tensor_type: TensorType) -> bool:
    """Test whether values of ``tensor_type`` are integers that represent reals by a scale and zero point."""
    return tensor_type.quant is not None and dtypes.is_integer(tensor_type.dtype)
