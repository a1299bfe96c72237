# SPDX-License-Identifier: Apache-2.0
"""Writer of an ONNX graph, and the context of one graph operator that its writer function receives."""

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
from microc.frontend.onnx.operators.elementwise import COMPARISONS
from microc.graph.ir import Graph, NameSet, Node, Quant, TensorType
from microc.ops import registry
from microc.ops.arithmetic import activation_range

# ---- The ONNX graph under construction: nodes, initialisers, and the ONNX values of each graph value.
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
        self.own_names = {name: self.names.fresh(name) for name in graph.types if name not in constants}
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.onnx_names: dict[tuple[str, bool, bool], str] = {}
        self.dequantised_sources: dict[str, tuple[str, Quant]] = {}
        self._shared: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    # ------------------------------------------------------------ nodes and initialisers

    def emit(
        self, onnx_op_type: str, input_names: Sequence[str], output_names: Sequence[str], **attributes: Any
    ) -> str:
        """Append an ONNX node of operator ``onnx_op_type``; return the name of its first output.

        Attributes that are None or () are omitted."""
        from onnx import helper

        attributes = {key: value for key, value in attributes.items() if value not in (None, ())}
        self.nodes.append(helper.make_node(onnx_op_type, input_names, output_names, name=output_names[0], **attributes))
        return output_names[0]

    def require_opset(self, min_opset: int) -> None:
        """Raise the minimum opset of the model to ``min_opset``, the opset that introduced a written attribute
        value."""
        if self.outer is not None:
            self.outer.require_opset(min_opset)
        self.min_opset = max(self.min_opset, min_opset)

    def insert_at_start(
        self, onnx_op_type: str, input_names: Sequence[str], output_name: str, **attributes: Any
    ) -> None:
        """Insert an ONNX node of operator ``onnx_op_type`` before all other nodes of the graph."""
        self.emit(onnx_op_type, input_names, [output_name], **attributes)
        self.nodes.insert(0, self.nodes.pop())

    def share_initializer(self, name_stem: str, data: Array) -> str:
        """Return the name of an initialiser with the data of a small array; equal arrays share one initialiser."""
        key = (data.dtype.name, data.shape, data.tobytes())
        if key not in self._shared:
            self._shared[key] = self.add_initializer(name_stem, data)
        return self._shared[key]

    def add_initializer(self, name_stem: str, data: Array) -> str:
        """Add an initialiser with the elements of ``data``; return its name.

        Values never share it, because two values with equal integers may have different scales."""
        from onnx import TensorProto

        array = np.ascontiguousarray(data).reshape(data.shape)
        little = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        name = self.names.fresh(name_stem)
        self.initializers.append(
            TensorProto(name=name, data_type=CODES[data.dtype.name], dims=data.shape, raw_data=little)
        )
        return name

    def share_int64_initializer(self, *numbers: int) -> str:
        """Return the name of an int64 initialiser with ``numbers``, such as a shape, axes or padding."""
        return self.share_initializer("integers", np.array(numbers, np.int64))

    # ------------------------------------------------------------ ONNX names of a graph value

    def record_onnx_name(
        self, value_name: str, onnx_name: str, is_dequantised: bool = False, is_channels_first: bool = False
    ) -> None:
        """Record ``onnx_name`` as the ONNX name of the graph value ``value_name`` in one of its forms.

        ``is_dequantised``: the ONNX value is dequantised reals instead of stored integers. ``is_channels_first``: it
        has channels first instead of last."""
        self.onnx_names[value_name, is_dequantised, is_channels_first] = onnx_name

    def make_onnx_name(self, value_name: str, is_channels_first: bool = False) -> str:
        """Return the ONNX name under which a graph value is written.

        With channels last it is the value's own name, with channels first a new name."""
        return self.names.fresh(f"{value_name}_first") if is_channels_first else self.own_names[value_name]

    def is_written_only_channels_first(self, value_name: str) -> bool:
        """Test whether a value has so far been written only with channels first.

        For a value that is dequantised at its first use, its stored integers are tested."""
        if value_name in self.dequantised_sources and (value_name, False, False) not in self.onnx_names:
            return self.is_written_only_channels_first(self.dequantised_sources[value_name][0])
        return (value_name, False, True) in self.onnx_names and (value_name, False, False) not in self.onnx_names

    def get_onnx_name(self, value_name: str, is_dequantised: bool = False, is_channels_first: bool = False) -> str:
        """Return the ONNX name of a graph value, as integers or dequantised reals, with channels last or first.

        The nodes that compute this form from another are written at its first use. The arguments are those of
        :meth:`record_onnx_name`. A constant with fewer than 4 axes that is read with channels first gets leading axes
        of extent 1."""
        key = (value_name, is_dequantised, is_channels_first)
        if key not in self.onnx_names:
            self.onnx_names[key] = self._write_value(value_name, is_dequantised, is_channels_first)
        return self.onnx_names[key]

    def _write_value(self, value_name: str, is_dequantised: bool, is_channels_first: bool) -> str:
        """Write the nodes or the initialiser that make the ONNX value of ``value_name`` in one form; return its name.

        ``is_dequantised``: the form is dequantised reals instead of stored integers. ``is_channels_first``: it has
        channels first instead of last."""
        type_, constant = self.graph.types[value_name], self.graph.consts.get(value_name)
        if is_dequantised:
            assert type_.quant is not None
            return self._write_dequantized_value(
                value_name, type_.quant, self.names.fresh(f"{value_name}_real"), is_channels_first
            )
        if value_name in self.dequantised_sources:
            return self._write_dequantized_value(
                *self.dequantised_sources[value_name],
                self.make_onnx_name(value_name, is_channels_first),
                is_channels_first,
            )
        if constant is not None:
            in_rank_4 = constant.reshape((1,) * (4 - constant.ndim) + constant.shape) if is_channels_first else constant
            return self.add_initializer(value_name, in_rank_4.transpose(TO_FIRST) if is_channels_first else in_rank_4)
        if is_channels_first:
            return self.emit(
                "Transpose",
                [self.get_onnx_name(value_name)],
                [self.make_onnx_name(value_name, is_channels_first)],
                perm=TO_FIRST,
            )
        if (value_name, False, True) in self.onnx_names:
            return self.emit(
                "Transpose",
                [self.get_onnx_name(value_name, is_channels_first=True)],
                [self.make_onnx_name(value_name)],
                perm=TO_LAST,
            )
        raise InternalError(f"{value_name!r} is read before it is written")

    def _write_dequantized_value(self, value_name: str, quant: Quant, output_name: str, is_channels_first: bool) -> str:
        """Write DequantizeLinear of the value ``value_name``, with channels first or last; return ``output_name``."""
        axis = quant.axis
        if axis is not None and is_channels_first:
            axis = TO_FIRST.index(axis + 4 - len(self.graph.types[value_name].shape))
        return self.emit_dequantize(
            self.get_onnx_name(value_name, is_channels_first=is_channels_first),
            self.graph.types[value_name].dtype,
            quant,
            axis,
            output_name,
        )

    # ------------------------------------------------------------ quantisation

    def emit_dequantize(self, onnx_name: str, dtype: str, quant: Quant, axis: int | None, output_name: str) -> str:
        """Write DequantizeLinear of the ONNX value ``onnx_name``; return the name ``output_name`` of its result.

        ``axis``: axis of ``onnx_name``, in its own layout, along which the scales differ; None for a single scale."""
        return self.emit(
            "DequantizeLinear",
            [onnx_name, *self.share_scale_and_zero_point(quant, dtype, onnx_name)],
            [output_name],
            axis=axis,
        )

    def share_scale_and_zero_point(self, quant: Quant, dtype: str, name_stem: str) -> tuple[str, ...]:
        """Return the names of initialisers with the scale and the zero point of ``quant``.

        For int32 with zero points of 0 only the scale is returned, as ONNX requires."""
        shape = () if quant.axis is None else (len(quant.scale),)
        scale = self.share_initializer(f"{name_stem}_scale", np.array(quant.scale, np.float32).reshape(shape))
        if dtype == "int32" and not any(quant.zero_point):
            return (scale,)
        zeros = np.array(quant.zero_point, dtypes.to_numpy(dtype)).reshape(shape)
        return scale, self.share_initializer(f"{name_stem}_zero_point", zeros)


def make_value_info(onnx_name: str, value_type: TensorType) -> Any:
    """Return the ValueInfoProto that declares a graph input or output called ``onnx_name``."""
    from onnx import helper

    return helper.make_tensor_value_info(onnx_name, CODES[value_type.dtype], value_type.shape)


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
    """One operator of microc's graph, as the function that writes it to ONNX receives it.

    ``is_quantised``: operands are dequantised before the ONNX operator reads them, and its result is quantised.
    ``is_channels_first``: operands and results have channels first."""

    node: Node
    builder: OnnxGraphWriter
    is_quantised: bool = False
    is_channels_first: bool = False

    # ------------------------------------------------------------ operands and attributes

    def attr(self, name: str) -> Any:
        """Return the value of the operator's attribute ``name``, or the attribute's default."""
        return self.node.attrs.get(name, registry.get(self.node.op).defaults.get(name))

    def has_operand(self, operand_index: int) -> bool:
        """Test whether operand ``operand_index`` is present."""
        return operand_index < len(self.node.inputs) and self.node.inputs[operand_index] != ""

    def operand_type(self, operand_index: int = 0) -> TensorType:
        """Return the type (shape, dtype and quantisation) of an operand in microc's graph."""
        return self.builder.graph.types[self.node.inputs[operand_index]]

    @property
    def result_type(self) -> TensorType:
        """Type (shape, dtype and quantisation) of the operator's first result."""
        return self.builder.graph.types[self.node.outputs[0]]

    def operand_dtype(self, operand_index: int = 0) -> str:
        """Return the dtype in which the ONNX operator reads an operand.

        It is float32 for an operand that is dequantised, and the stored dtype for any other."""
        return "float32" if self._is_dequantised(operand_index) else self.operand_type(operand_index).dtype

    def _is_dequantised(self, operand_index: int) -> bool:
        """Test whether the ONNX operator reads an operand as dequantised reals."""
        return self.is_quantised and self.operand_type(operand_index).is_quantised

    def operand_name(self, operand_index: int = 0) -> str:
        """Return the ONNX name of an operand, dequantised and with channels first if this operator reads it like
        that."""
        return self.builder.get_onnx_name(
            self.node.inputs[operand_index], self._is_dequantised(operand_index), self.is_channels_first
        )

    def get_constant_data(self, operand_index: int) -> Array | None:
        """Return the stored data of an operand; None if the operand is not constant."""
        return self.builder.graph.consts.get(self.node.inputs[operand_index])

    def refuse(self, what: str, hint: str) -> NoReturn:
        """Raise UnsupportedError, because this operator cannot be expressed in ONNX."""
        raise UnsupportedError(what, where=f"{self.node.loc} ({self.node.op})", hint=hint)

    def require_supported_quantisation(self) -> None:
        """Raise UnsupportedError if ONNX cannot dequantise an operand or quantise a result, because of its dtype."""
        if not self.is_quantised:
            return
        input_dtypes = {
            self.operand_type(k).dtype
            for k in range(len(self.node.inputs))
            if self.has_operand(k) and self._is_dequantised(k)
        }
        output_dtypes = {
            self.builder.graph.types[name].dtype for name in self.node.outputs if name and self.node.op not in COMPARED
        }
        unsupported = [*input_dtypes - {*QUANTISED, "int32", "int64"}, *output_dtypes - {*QUANTISED}]
        if unsupported:
            self.refuse(
                f"{self.node.op} of quantised {' and '.join(unsupported)} cannot be written as ONNX",
                "quantise the network to 8 or 16 bits",
            )

    def require_first_operand_dtype(self, onnx_operator: str) -> None:
        """Raise UnsupportedError if ONNX operator ``onnx_operator`` does not support the dtype of the first operand."""
        from onnx import defs

        supported = defs.get_schema(onnx_operator).inputs[0].types
        if f"tensor({ONNX_DTYPE_NAMES.get(self.operand_dtype(), self.operand_dtype())})" not in supported:
            self.refuse(
                f"{self.node.op}: got {self.operand_dtype()} data, which ONNX's {onnx_operator} does not support",
                f"cast the data to one of {', '.join(sorted(supported))}",
            )

    def require_real_operands(self) -> None:
        """Raise UnsupportedError if the first operand is integers that do not represent reals."""
        if not dtypes.is_float(self.operand_dtype()):
            self.refuse(
                f"{self.node.op}: got {self.operand_dtype()} data, expected floats as ONNX requires",
                "cast the data to float32 before the operator",
            )

    # ------------------------------------------------------------ layouts

    def with_channels_first(self) -> NodeContext:
        """Return a copy of this context that reads operands and writes results with channels first."""
        return replace(self, is_channels_first=True)

    def in_layout_of_operands(self) -> NodeContext:
        """Return the context of an elementwise operator, in the layout in which its operands have been written.

        This avoids transposes. The layout is channels first if all operands but constants have 4 axes and have been
        written only with channels first."""
        names = [name for name in self.node.inputs if name not in self.builder.graph.consts]
        images = all(
            len(self.builder.graph.types[name].shape) == 4 and self.builder.is_written_only_channels_first(name)
            for name in names
        )
        return self.with_channels_first() if images and len(self.result_type.shape) == 4 else self

    # ------------------------------------------------------------ results

    def add_initializer(self, data: Array, name_stem: str = "constant") -> str:
        """Add an initialiser with ``data`` that only this operator reads; return its name."""
        return self.builder.add_initializer(f"{self.node.outputs[0]}_{name_stem}", data)

    def share_scalar_initializer(self, value: float) -> str:
        """Return the name of a scalar initialiser of ``value``, in the dtype in which the operator computes."""
        return self.builder.share_initializer("number", np.array(value, dtypes.to_numpy(self.operand_dtype())))

    def share_int64_initializer(self, *numbers: int) -> str:
        """Return the name of an int64 initialiser with ``numbers``, such as a shape, axes or padding."""
        return self.builder.share_int64_initializer(*numbers)

    def make_unique_name(self, onnx_op_type: str) -> str:
        """Return an unused name for the result of ONNX operator ``onnx_op_type``."""
        return self.builder.names.fresh(f"{self.node.outputs[0]}_{onnx_op_type.lower()}")

    def emit(self, onnx_op_type: str, *input_names: str, **attributes: Any) -> str:
        """Write an ONNX operator for an intermediate result of this graph operator; return the name of the result."""
        return self.builder.emit(onnx_op_type, input_names, [self.make_unique_name(onnx_op_type)], **attributes)

    def emit_cast(self, onnx_name: str, dtype: str) -> str:
        """Write a Cast of ``onnx_name`` to ``dtype``; return the name of the result."""
        return self.emit("Cast", onnx_name, to=CODES[dtype])

    def write_result(
        self, onnx_op_type: str, *input_names: str, final_steps: Sequence[Step] = (), **attributes: Any
    ) -> None:
        """Write the graph operator's result as a chain of ONNX operators.

        The chain is ``onnx_op_type`` with inputs ``input_names``, the activation, QuantizeLinear for a quantised
        result, and ``final_steps``, which only rearrange or convert elements, such as Reshape or Cast."""
        if self.node.inputs[0] and input_names[0] == self.operand_name():
            self.require_first_operand_dtype(onnx_op_type)
        steps: list[Step] = [
            (onnx_op_type, input_names[1:], attributes),
            *self._get_activation_and_quantize_steps(),
            *final_steps,
        ]
        value, name = self.node.outputs[0], input_names[0]
        for step, (step_code, others, attrs) in enumerate(steps):
            output = (
                self.make_unique_name(step_code)
                if step + 1 < len(steps)
                else self.builder.make_onnx_name(value, self.is_channels_first)
            )
            name = self.builder.emit(step_code, (name, *others), [output], **attrs)
        self.builder.record_onnx_name(value, name, is_channels_first=self.is_channels_first)

    def write_results(
        self, onnx_op_type: str, *input_names: str, onnx_output_dtypes: Sequence[str | None] = (), **attributes: Any
    ) -> None:
        """Write all results of the graph operator as the outputs of one ONNX operator, ``onnx_op_type``.

        ``onnx_output_dtypes``: dtype of each ONNX output; None for the dtype of the graph's value. A Cast is added
        after an output whose dtype differs from the graph's."""
        builder, values = self.builder, self.node.outputs
        onnx_output_dtypes = [*onnx_output_dtypes, *[None] * (len(values) - len(onnx_output_dtypes))]
        casts = [
            bool(value) and dtype not in (None, builder.graph.types[value].dtype)
            for value, dtype in zip(values, onnx_output_dtypes, strict=True)
        ]
        names = [
            "" if not value else self.make_unique_name(onnx_op_type) if cast else builder.make_onnx_name(value)
            for value, cast in zip(values, casts, strict=True)
        ]
        builder.emit(onnx_op_type, input_names, names, **attributes)
        for value, name, cast in zip(values, names, casts, strict=True):
            if cast:
                name = builder.emit(
                    "Cast", [name], [builder.make_onnx_name(value)], to=CODES[builder.graph.types[value].dtype]
                )
            builder.record_onnx_name(value, name)

    def _get_activation_and_quantize_steps(self) -> list[Step]:
        """Return the ONNX operators after the main one: the activation and, for a quantised result, QuantizeLinear.

        The activation of a quantised result is written after QuantizeLinear, between DequantizeLinear and a second
        QuantizeLinear. Runtimes then still recognise the pattern DequantizeLinear, operator, QuantizeLinear. A clamp
        gives the same result there, because rounding is monotone. It is omitted if it allows all values of the integer
        dtype."""
        activation = str(self.attr("activation") or "")
        clamp: list[Step] = []
        if activation:
            code, bounds = ACTIVATIONS[activation]
            dtype = dtypes.to_numpy("float32" if self.is_quantised else self.result_type.dtype)
            limits = [self.builder.share_initializer("bound", np.array(bound, dtype)) for bound in bounds]
            clamp.append((code, limits, {}))
        kind = self.result_type
        if not self.is_quantised or not kind.is_quantised:
            return clamp
        assert kind.quant is not None
        quantize: Step = ("QuantizeLinear", self._share_result_scale_and_zero_point(kind.quant), {})
        if not clamp:
            return [quantize]
        if activation not in ("tanh", "sigmoid"):
            rounding = str(self.attr("rounding"))
            if activation_range(activation, kind.quant, kind.dtype, rounding) == dtypes.int_range(kind.dtype):
                return [quantize]
        return [
            quantize,
            ("DequantizeLinear", self._share_result_scale_and_zero_point(kind.quant), {}),
            *clamp,
            quantize,
        ]

    def _share_result_scale_and_zero_point(self, quant: Quant) -> tuple[str, ...]:
        """Return the names of initialisers with the result's scale and zero point."""
        return self.builder.share_scale_and_zero_point(quant, self.result_type.dtype, self.node.outputs[0])


OpWriter = Callable[[NodeContext], None]
"""Function that writes one operator of microc's graph as ONNX operators."""
