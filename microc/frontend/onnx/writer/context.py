"""The ONNX graph under construction, and the context of one operator that is written."""

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
# A value of ours has up to four forms in ONNX, each made at first use: integers or dequantised reals, with channels last or
# first. A Transpose or DequantizeLinear between the form that is made and one that is read is emitted once.

TO_FIRST, TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
CODES = {name: code for code, name in DTYPES.items() if code not in FOUR_BITS}
"""TensorProto.DataType numbers by dtype."""
FIRST_OPSET = 13
"""Smallest version of the operator set with the operators as they are written here: scales by axis, axes as operands."""


class OnnxGraphWriter:
    """Writer of one ONNX graph: that of the model, or that of an operator's subgraph in the writer ``outer``.

    ``names``: all names used in the model. ``min_opset`` (of the outermost graph): the first version of the operator
    set that knows all attribute values written so far."""

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
        """Append an ONNX operator; return the name of its first output. Attributes that are None or empty are omitted."""
        from onnx import helper

        attributes = {key: value for key, value in attributes.items() if value not in (None, ())}
        self.nodes.append(helper.make_node(code, inputs, outputs, name=outputs[0], **attributes))
        return outputs[0]

    def require(self, min_version: int) -> None:
        """Require at least version ``min_version`` of the operator set, which introduced a value of an attribute."""
        if self.outer is not None:
            self.outer.require(min_version)
        self.min_opset = max(self.min_opset, min_version)

    def emit_first(self, code: str, values: Sequence[str], output: str, **attributes: Any) -> None:
        """Insert an ONNX operator before all others of the graph."""
        self.emit(code, values, [output], **attributes)
        self.nodes.insert(0, self.nodes.pop())

    def shared(self, stem: str, data: Array) -> str:
        """Return an initialiser for a few parameters; equal arrays share one."""
        key = (data.dtype.name, data.shape, data.tobytes())
        if key not in self._shared:
            self._shared[key] = self.constant(stem, data)
        return self._shared[key]

    def constant(self, stem: str, data: Array) -> str:
        """Add an initialiser of its own, never shared: the same integers could be dequantised under several scales."""
        from onnx import TensorProto

        array = np.ascontiguousarray(data).reshape(data.shape)
        little = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        name = self.names.fresh(stem)
        self.initializers.append(
            TensorProto(name=name, data_type=CODES[data.dtype.name], dims=data.shape, raw_data=little)
        )
        return name

    def integers(self, *numbers: int) -> str:
        """Return a list of int64 as an operand: shapes, axes, amounts of padding."""
        return self.shared("integers", np.array(numbers, np.int64))

    # ------------------------------------------------------------ forms of a value

    def bind(self, value: str, name: str, real: bool = False, first: bool = False) -> None:
        """Record that ``name`` is the ONNX name of a form of a value.

        ``real``: dequantised, else stored integers. ``first``: channels first, else last."""
        self.forms[value, real, first] = name

    def own_name(self, value: str, first: bool = False) -> str:
        """Return the name under which a value is written: its own with channels last, a new one with channels first."""
        return self.names.fresh(f"{value}_first") if first else self.own[value]

    def is_first(self, value_name: str) -> bool:
        """Test whether a value exists only with channels first.

        For a value that is dequantised at its uses: whether its integers exist only so."""
        if value_name in self.dequantised and (value_name, False, False) not in self.forms:
            return self.is_first(self.dequantised[value_name][0])
        return (value_name, False, True) in self.forms and (value_name, False, False) not in self.forms

    def name(self, value: str, real: bool = False, first: bool = False) -> str:
        """Return the ONNX name of a form of a value (see :meth:`bind`), which is written at its first use.

        A constant of lower rank gets leading axes of extent 1 to have channels first."""
        key = (value, real, first)
        if key not in self.forms:
            self.forms[key] = self._make_form(value, real, first)
        return self.forms[key]

    def _make_form(self, value_name: str, as_reals: bool, channels_first: bool) -> str:
        """Write the nodes or the initialiser of a form of the value ``value_name``; return its ONNX name.

        ``as_reals``: dequantised. ``channels_first``: in that layout."""
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
        """Write ``output``, the dequantised value ``value_name``, with channels first or last."""
        axis = quant.axis
        if axis is not None and channels_first:
            axis = TO_FIRST.index(axis + 4 - len(self.graph.types[value_name].shape))
        return self.dequantize(
            self.name(value_name, first=channels_first), self.graph.types[value_name].dtype, quant, axis, output
        )

    # ------------------------------------------------------------ quantisation

    def dequantize(self, name: str, dtype: str, quant: Quant, axis: int | None, output: str) -> str:
        """Write ``output``, the reals of the integers ``name``; ``axis`` is that of the scales in the layout of ``name``."""
        return self.emit("DequantizeLinear", [name, *self.quantization(quant, dtype, name)], [output], axis=axis)

    def quantization(self, quant: Quant, dtype: str, stem: str) -> tuple[str, ...]:
        """Return scale and zero point as initialisers; for int32 with zero points of 0 only the scale, as ONNX requires."""
        shape = () if quant.axis is None else (len(quant.scale),)
        scale = self.shared(f"{stem}_scale", np.array(quant.scale, np.float32).reshape(shape))
        if dtype == "int32" and not any(quant.zero_point):
            return (scale,)
        zeros = np.array(quant.zero_point, dtypes.to_numpy(dtype)).reshape(shape)
        return scale, self.shared(f"{stem}_zero_point", zeros)


def value_info(name: str, value_type: TensorType) -> Any:
    """Return ONNX's declaration of an input or output."""
    from onnx import helper

    return helper.make_tensor_value_info(name, CODES[value_type.dtype], value_type.shape)


# ---- One operator of ours, as the row that writes it sees it: operands in the form that it needs, and methods that write
# nodes.

Step = tuple[str, Sequence[str], Mapping[str, Any]]
"""A following ONNX operator: its code, its inputs behind the first, its attributes."""

ACTIVATIONS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "relu": ("Relu", ()),
    "relu6": ("Clip", (0.0, 6.0)),
    "relu_n1_to_1": ("Clip", (-1.0, 1.0)),
    "tanh": ("Tanh", ()),
    "sigmoid": ("Sigmoid", ()),
}

QUANTISED = ("int8", "uint8", "int16", "uint16")
"""Dtypes that QuantizeLinear makes."""
COMPARED = frozenset((*(row.op for row in COMPARISONS), "not_equal"))
"""Comparisons; on quantised operands they compare reals."""
ONNX_DTYPE_NAMES = {"float32": "float", "float64": "double"}
"""Dtypes that have another name in ONNX."""


@frozen
class Application:
    """One operator of the graph as the function that writes it to ONNX sees it.

    ``quantised``: operands are read as reals, and the result is quantised. ``first``: operands and results have
    channels first."""

    node: Node
    builder: OnnxGraphWriter
    quantised: bool = False
    first: bool = False

    # ------------------------------------------------------------ operands and attributes

    def attr(self, name: str) -> Any:
        """Return an attribute of the operator, or its default."""
        return self.node.attrs.get(name, registry.get(self.node.op).defaults.get(name))

    def has(self, position: int) -> bool:
        """Test whether operand ``position`` is present."""
        return position < len(self.node.inputs) and self.node.inputs[position] != ""

    def type(self, position: int = 0) -> TensorType:
        """Return the type of an operand in the graph."""
        return self.builder.graph.types[self.node.inputs[position]]

    @property
    def result_type(self) -> TensorType:
        return self.builder.graph.types[self.node.outputs[0]]

    def dtype(self, position: int = 0) -> str:
        """Return the dtype in which an operand is computed."""
        return "float32" if self._is_real(position) else self.type(position).dtype

    def _is_real(self, position: int) -> bool:
        return self.quantised and quantised_type(self.type(position))

    def operand(self, position: int = 0) -> str:
        """Return the ONNX name of an operand, in the form that this operator reads."""
        return self.builder.name(self.node.inputs[position], self._is_real(position), self.first)

    def data(self, position: int) -> Array | None:
        """Return the data of a constant operand, as stored."""
        return self.builder.graph.consts.get(self.node.inputs[position])

    def refuse(self, what: str, hint: str) -> NoReturn:
        """Raise UnsupportedError: ONNX has no form of this operator."""
        raise UnsupportedError(what, where=f"{self.node.loc} ({self.node.op})", hint=hint)

    def require_supported_quantisation(self) -> None:
        """Refuse dtypes that ONNX neither dequantises nor quantises."""
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
        """Refuse a dtype of the first operand that the ONNX operator does not support."""
        from onnx import defs

        supported = defs.get_schema(onnx_operator).inputs[0].types
        if f"tensor({ONNX_DTYPE_NAMES.get(self.dtype(), self.dtype())})" not in supported:
            self.refuse(
                f"{self.node.op} of {self.dtype()}", f"ONNX has {onnx_operator} of {', '.join(sorted(supported))}"
            )

    def only_floats(self) -> None:
        """Refuse plain integers, which are not quantised reals."""
        if not dtypes.is_float(self.dtype()):
            self.refuse(f"{self.node.op} of {self.dtype()}", "ONNX has the operator for floats only")

    # ------------------------------------------------------------ layouts

    def with_channels_first(self) -> Application:
        """Return this operator with operands and results that have channels first."""
        return replace(self, first=True)

    def in_layout_of_operands(self) -> Application:
        """Return this elementwise operator with channels first if all images that it reads exist only in that layout."""
        names = [name for name in self.node.inputs if name not in self.builder.graph.consts]
        images = all(len(self.builder.graph.types[name].shape) == 4 and self.builder.is_first(name) for name in names)
        return self.with_channels_first() if images and len(self.result_type.shape) == 4 else self

    # ------------------------------------------------------------ results

    def constant(self, data: Array, stem: str = "constant") -> str:
        """Add an initialiser of this operator's own."""
        return self.builder.constant(f"{self.node.outputs[0]}_{stem}", data)

    def number(self, value: float) -> str:
        """Return a scalar of the dtype in which the operator computes."""
        return self.builder.shared("number", np.array(value, dtypes.to_numpy(self.dtype())))

    def integers(self, *numbers: int) -> str:
        return self.builder.integers(*numbers)

    def fresh(self, code: str) -> str:
        """Return a new name for the result of ONNX operator ``code``."""
        return self.builder.names.fresh(f"{self.node.outputs[0]}_{code.lower()}")

    def emit(self, code: str, *inputs: str, **attributes: Any) -> str:
        """Write an ONNX operator whose result is used by this row only; return its name."""
        return self.builder.emit(code, inputs, [self.fresh(code)], **attributes)

    def cast(self, value: str, dtype: str) -> str:
        """Write a Cast to ``dtype``; return its result."""
        return self.emit("Cast", value, to=CODES[dtype])

    def result(self, code: str, *inputs: str, then: Sequence[Step] = (), **attributes: Any) -> None:
        """Write the result as an ONNX operator, followed by the activation, the quantisation, and ``then``, which moves
        elements."""
        if self.node.inputs[0] and inputs[0] == self.operand():
            self.check_dtype(code)
        steps: list[Step] = [(code, inputs[1:], attributes), *self._activation_and_quantize(), *then]
        value, name = self.node.outputs[0], inputs[0]
        for step, (step_code, others, attrs) in enumerate(steps):
            output = self.fresh(step_code) if step + 1 < len(steps) else self.builder.own_name(value, self.first)
            name = self.builder.emit(step_code, (name, *others), [output], **attrs)
        self.builder.bind(value, name, first=self.first)

    def results(self, code: str, *inputs: str, dtypes_made: Sequence[str | None] = (), **attributes: Any) -> None:
        """Write all results as those of one ONNX operator; ``dtypes_made``: its dtypes if they differ from ours."""
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
        """Return the ONNX operators that follow: the activation and, if the result is quantised, QuantizeLinear.

        Integers are clamped after QuantizeLinear. The result is the same, since rounding is monotone, and runtimes recognise
        the operator between dequantised operands and a quantised result. No clamp is needed if the integer range is that of
        the activation."""
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
        """Return scale and zero point of the result as initialisers."""
        return self.builder.quantization(quant, self.result_type.dtype, self.node.outputs[0])


Row = Callable[[Application], None]
"""Writes an operator of ours."""


def quantised_type(tensor_type: TensorType) -> bool:
    """Test whether a value of this type holds integers that represent reals."""
    return tensor_type.quant is not None and dtypes.is_integer(tensor_type.dtype)
