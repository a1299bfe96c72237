"""The ONNX graph under construction, and one operator as its row sees it."""

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
from microc.graph.ir import Graph, Names, Node, Quant, TensorType
from microc.ops import registry
from microc.ops.arithmetic import activation_range

# ---- The ONNX graph under construction: nodes, initialisers, and the forms in which values are there.
#
# A value of ours has up to four forms in ONNX, made when they are asked for: as it is or as reals (integers dequantised), with
# channels last or first. What is made in one form and read in another has a Transpose or DequantizeLinear between, once.

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


# ---- One operator of ours as the row that writes it sees it: what it reads, in the form that suits, and ways to
# write ONNX's.

Step = tuple[str, Sequence[str], Mapping[str, Any]]
"""An operator of ONNX: its code, its inputs behind the first, its attributes."""

ACTIVATIONS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "relu": ("Relu", ()),
    "relu6": ("Clip", (0.0, 6.0)),
    "relu_n1_to_1": ("Clip", (-1.0, 1.0)),
    "tanh": ("Tanh", ()),
    "sigmoid": ("Sigmoid", ()),
}

QUANTISED = ("int8", "uint8", "int16", "uint16")
"""What QuantizeLinear makes."""
COMPARED = frozenset((*(row.op for row in COMPARISONS), "not_equal"))
"""Comparisons: of quantised numbers, they compare reals."""
SPELLED = {"float32": "float", "float64": "double"}
"""What ONNX calls dtypes otherwise."""


@frozen
class Application:
    """``quantised``: operands are read as reals, the result is quantised. ``first``: all have their channels first."""

    node: Node
    builder: Builder
    quantised: bool = False
    first: bool = False

    # ------------------------------------------------------------ what it reads

    def attr(self, name: str) -> Any:
        return self.node.attrs.get(name, registry.get(self.node.op).defaults.get(name))

    def has(self, position: int) -> bool:
        return position < len(self.node.inputs) and self.node.inputs[position] != ""

    def type(self, position: int = 0) -> TensorType:
        """The type of an operand in the graph."""
        return self.builder.graph.types[self.node.inputs[position]]

    @property
    def result_type(self) -> TensorType:
        return self.builder.graph.types[self.node.outputs[0]]

    def dtype(self, position: int = 0) -> str:
        """What an operand is computed in."""
        return "float32" if self._is_real(position) else self.type(position).dtype

    def _is_real(self, position: int) -> bool:
        return self.quantised and quantised_type(self.type(position))

    def operand(self, position: int = 0) -> str:
        """The ONNX name of an operand, in the form that the application has."""
        return self.builder.name(self.node.inputs[position], self._is_real(position), self.first)

    def data(self, position: int) -> Array | None:
        """The data of a constant operand, as stored."""
        return self.builder.graph.consts.get(self.node.inputs[position])

    def refuse(self, what: str, hint: str) -> NoReturn:
        raise UnsupportedError(what, where=f"{self.node.loc} ({self.node.op})", hint=hint)

    def check_quantised(self) -> None:
        """Refuse what ONNX neither dequantises nor quantises."""
        if not self.quantised:
            return
        read = {self.type(k).dtype for k in range(len(self.node.inputs)) if self.has(k) and self._is_real(k)}
        made = {
            self.builder.graph.types[name].dtype for name in self.node.outputs if name and self.node.op not in COMPARED
        }
        wide = [*read - {*QUANTISED, "int32", "int64"}, *made - {*QUANTISED}]
        if wide:
            self.refuse(f"{self.node.op} of quantised {' and '.join(wide)}", "ONNX quantises to 8 and 16 bits")

    def check_dtype(self, code: str) -> None:
        """Refuse a dtype of the first operand that ONNX does not have the operator for."""
        from onnx import defs

        known = defs.get_schema(code).inputs[0].types
        if f"tensor({SPELLED.get(self.dtype(), self.dtype())})" not in known:
            self.refuse(f"{self.node.op} of {self.dtype()}", f"ONNX has {code} of {', '.join(sorted(known))}")

    def only_floats(self) -> None:
        """Refuse integers that stand for themselves."""
        if not dtypes.is_float(self.dtype()):
            self.refuse(f"{self.node.op} of {self.dtype()}", "ONNX has the operator for floats only")

    # ------------------------------------------------------------ layouts

    def with_channels_first(self) -> Application:
        return replace(self, first=True)

    def where_it_lies(self) -> Application:
        """An elementwise application with its channels first if all images that it reads are there like that only."""
        names = [name for name in self.node.inputs if name not in self.builder.graph.consts]
        images = all(len(self.builder.graph.types[name].shape) == 4 and self.builder.is_first(name) for name in names)
        return self.with_channels_first() if images and len(self.result_type.shape) == 4 else self

    # ------------------------------------------------------------ what it writes

    def constant(self, data: Array, stem: str = "constant") -> str:
        return self.builder.constant(f"{self.node.outputs[0]}_{stem}", data)

    def number(self, value: float) -> str:
        """A scalar of the dtype that is computed in."""
        return self.builder.shared("number", np.array(value, dtypes.to_numpy(self.dtype())))

    def integers(self, *numbers: int) -> str:
        return self.builder.integers(*numbers)

    def fresh(self, code: str) -> str:
        return self.builder.names.fresh(f"{self.node.outputs[0]}_{code.lower()}")

    def emit(self, code: str, *inputs: str, **attributes: Any) -> str:
        """An operator of ONNX whose result is used here."""
        return self.builder.emit(code, inputs, [self.fresh(code)], **attributes)

    def cast(self, value: str, dtype: str) -> str:
        return self.emit("Cast", value, to=CODES[dtype])

    def result(self, code: str, *inputs: str, then: Sequence[Step] = (), **attributes: Any) -> None:
        """The result as an operator of ONNX, the activation, the quantisation, and ``then`` what moves the elements."""
        if self.node.inputs[0] and inputs[0] == self.operand():
            self.check_dtype(code)
        steps: list[Step] = [(code, inputs[1:], attributes), *self._activation(), *then]
        value, name = self.node.outputs[0], inputs[0]
        for step, (each, others, attrs) in enumerate(steps):
            made = self.fresh(each) if step + 1 < len(steps) else self.builder.own_name(value, self.first)
            name = self.builder.emit(each, (name, *others), [made], **attrs)
        self.builder.bind(value, name, first=self.first)

    def results(self, code: str, *inputs: str, made: Sequence[str | None] = (), **attributes: Any) -> None:
        """All results as those of one operator of ONNX, which makes them of the dtypes ``made`` where these are not ours."""
        builder, values = self.builder, self.node.outputs
        dtypes_made = [*made, *[None] * (len(values) - len(made))]
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

    def _activation(self) -> list[Step]:
        """What is behind the operator: the activation and, where numbers are quantised, QuantizeLinear.

        Integers are clamped as such, which is the same (rounding is monotone), so that runtimes find the operator between
        dequantised operands and a quantised result; often their range is that of the activation anyway.
        """
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
        quantize: Step = ("QuantizeLinear", self._quantization(kind.quant), {})
        if not clamp:
            return [quantize]
        if activation not in ("tanh", "sigmoid"):
            rounding = str(self.attr("rounding"))
            if activation_range(activation, kind.quant, kind.dtype, rounding) == dtypes.int_range(kind.dtype):
                return [quantize]
        return [quantize, ("DequantizeLinear", self._quantization(kind.quant), {}), *clamp, quantize]

    def _quantization(self, quant: Quant) -> tuple[str, ...]:
        return self.builder.quantization(quant, self.result_type.dtype, self.node.outputs[0])


Row = Callable[[Application], None]
"""What writes an operator of ours."""


def quantised_type(kind: TensorType) -> bool:
    """Whether integers of this type stand for reals."""
    return kind.quant is not None and dtypes.is_integer(kind.dtype)
