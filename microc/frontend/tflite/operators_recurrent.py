# SPDX-License-Identifier: Apache-2.0
"""Converters of TFLite's recurrent layers: RNN and LSTM, in one direction or both.

Each direction becomes one of microc's operators ``rnn`` and ``lstm``. Hidden state and cell state are variable tensors, which
keep their contents between calls. Weights are float32, or int8 that is dequantised; with ``--hybrid dynamic`` the rows of the
data are quantised at run time instead. An LSTM on int8 or int16 data has a plain cell, as in TFLite Micro.

Sources: LiteRT ``basic_rnn.cc``, ``bidirectional_sequence_rnn.cc``, ``lstm_eval.cc``, ``bidirectional_sequence_lstm.cc``; TFLite
Micro ``lstm_eval.h``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np

from microc.base.immutable import frozen
from microc.frontend.signature import DecodeWith, Rank, ReadWith, Value
from microc.frontend.tflite.context import (
    ACTIVATIONS,
    FLOAT,
    Activation,
    ConverterTable,
    OpContext,
    Operand,
    Variable,
    activation_name,
)
from microc.frontend.tflite.file import Tensor
from microc.graph.ir import Attr, Quant, TensorType
from microc.ops.attributes import Rounding

CONVERTERS = ConverterTable()

_Sequence = Annotated[Operand, Rank(3, 3, has_elements=True)]
_Constant = Annotated[Value, ReadWith(OpContext.constant_value)]
_AUXILIARY = "concatenate it with the first input"


# ---- What all layers share: data along time, states, weights, one direction, the results of both.


@frozen
class Sequences:
    """Data of a recurrent layer: (batch, steps, depth), or (steps, batch, depth) if ``time_major``."""

    data: Value
    time_major: bool

    @property
    def batch_size(self) -> int:
        return self.data.shape[1 if self.time_major else 0]

    @property
    def depth(self) -> int:
        return self.data.shape[2]


def _define_state(context: OpContext, state: Value, shape: tuple[int, int], dtype: str) -> str:
    """Define the variable tensor ``state`` as a state of the graph, of shape (batch, units); return its name."""
    if state.dtype != dtype or state.size != shape[0] * shape[1]:
        context.refuse(
            f"state {str(state)!r}: got {state.dtype} {state.shape}, expected a variable tensor of {dtype} {shape}",
            f"make it a variable tensor of {dtype} {shape}",
        )
    if dtype != "float32" and state.quant is None:
        context.refuse(f"state {str(state)!r} has no quantisation", "give it a scale")
    return context.builder.define_state(str(state), TensorType(shape, dtype, state.quant), None, context.where)


def _stack_weights(context: OpContext, matrices: Sequence[Value], shape: tuple[int, int], data_dtype: str) -> Value:
    """Add the weights of all gates as one constant matrix; return it.

    Each gate has a scale of its own: stacked along the rows these become a scale per row. One product thus replaces
    four."""
    allowed = ("float32", "int8") if data_dtype == "float32" else ("int8",)
    scales: list[float] = []
    for matrix in matrices:
        if matrix.shape != shape or matrix.dtype not in allowed:
            context.refuse(
                f"weights: got {matrix.dtype} {matrix.shape}, expected {' or '.join(allowed)} {shape} for {data_dtype} "
                f"data of depth {shape[1]}",
                f"give {' or '.join(allowed)} weights (units, depth)",
            )
        if matrix.dtype != "float32":
            if matrix.quant is None or matrix.quant.axis is not None or any(matrix.quant.zero_point):
                context.refuse(
                    "weights: expected one scale and zero point 0 for each matrix", "quantise each matrix per tensor"
                )
            scales += [matrix.quant.scale[0]] * shape[0]
    if len({matrix.dtype for matrix in matrices}) > 1:
        context.refuse(
            "weights: got float32 and int8, expected one dtype", "quantise all weights of the layer, or none"
        )
    quant = Quant(tuple(scales), (0,) * len(scales), 0) if scales else None
    stacked = np.concatenate([context.data(matrix) for matrix in matrices])
    return context.new_constant(f"{context.output_tensor().name}_weights", stacked, quant)


def _get_real_vector(context: OpContext, vector: Value, size: int) -> Value:
    """Add a constant vector (a peephole, a bias of floats) as float32; return it. Integers are dequantised."""
    data = context.data(vector)
    if vector.shape != (size,) or (vector.dtype != "float32" and vector.quant is None):
        context.broken(f"got {vector.dtype} {vector.shape}, expected float32 {(size,)}")
    if vector.quant is not None and vector.dtype != "float32":
        data = (data.astype(np.float32) - np.float32(vector.quant.zero_point[0])) * np.float32(vector.quant.scale[0])
    return context.new_constant(f"{context.output_tensor().name}_vector", np.ascontiguousarray(data, np.float32))


def _emit_direction(
    context: OpContext,
    op: str,
    operands: Sequence[str],
    state_names: Sequence[str],
    attrs: Mapping[str, Attr],
    output: Tensor | None,
) -> Value:
    """Append the node of one direction; return its rows, in order of time and in the layout of the data.

    The last states are the states' contents after this call. ``output``: the operator's output that the rows are; None
    if they are an intermediate value."""
    builder = context.builder
    stem = output.name if output is not None else state_names[0]
    next_states = [builder.file.reserve_name(f"{stem}_{name}") for name in ("hidden", "cell")[: len(state_names)]]
    rows = output.name if output is not None else builder.file.reserve_name(f"{stem}_rows")
    state_types = [context.type(name) for name in state_names]
    rows_type = output.type if output is not None else state_types[0]
    context.write_node_with_outputs(op, operands, attrs, (rows, *next_states), (rows_type, *state_types))
    builder.updates |= dict(zip(state_names, next_states, strict=True))
    if not attrs["backwards"]:
        return context.look_up(rows)
    return context.emit("reverse", (rows,), {"axes": (0 if attrs["time_major"] else 1,)})


def _write_both_directions(context: OpContext, rows: tuple[Value, Value], merge_outputs: bool) -> None:
    """Define the operator's outputs: the rows of both directions, concatenated along the last axis if
    ``merge_outputs``, otherwise one output each."""
    if merge_outputs:
        context.result("concat", rows, {"axis": 2, "rounding": Rounding.NONE})
        return
    for position, value in enumerate(rows):
        context.result_reshape(value, value.shape, position)


# ---- Converters of plain recurrent cells: h = f(W x + R h + b).


@frozen
class RnnOperands:
    """Operands of one direction: weights of data and state, bias, and the state."""

    weights: _Constant
    recurrent: _Constant
    bias: _Constant
    state: Variable


def _emit_rnn(
    context: OpContext,
    sequences: Sequences,
    operands: RnnOperands,
    activation: str,
    is_asymmetric: bool,
    *,
    backwards: bool = False,
) -> Value:
    """Append one direction of an RNN; return its rows."""
    units = operands.weights.shape[0] if operands.weights.rank else 0
    shapes = ((units, sequences.depth), (units, units))
    for weights, shape in zip((operands.weights, operands.recurrent), shapes, strict=True):
        is_scaled = weights.dtype == "int8" and weights.quant is not None
        if weights.shape != shape or not (weights.dtype == "float32" or is_scaled):
            context.refuse(
                f"weights: got {weights.dtype} {weights.shape}, expected float32 or scaled int8 {shape}",
                "convert the weights to float32, or to int8 with a scale",
            )
    if operands.weights.dtype != operands.recurrent.dtype:
        context.refuse(
            "weights: got float32 and int8, expected one dtype", "quantise all weights of the layer, or none"
        )
    state = _define_state(context, operands.state, (sequences.batch_size, units), "float32")
    bias = context.new_constant(f"{state}_bias", context.data(operands.bias).reshape(-1))
    attrs: dict[str, Attr] = {
        "time_major": sequences.time_major,
        "backwards": backwards,
        "activations": (activation or "linear",),
    }
    if operands.weights.dtype == "int8":
        attrs["dynamic"] = "asymmetric" if is_asymmetric else "symmetric"
    names = (sequences.data, operands.weights, operands.recurrent, state, bias)
    return _emit_direction(context, "rnn", names, (state,), attrs, None)


@CONVERTERS.register("RNN", options="RNNOptions", dtypes=FLOAT)
def convert_rnn(
    context: OpContext,
    x: Annotated[Operand, Rank(2, 2, has_elements=True)],
    operands: RnnOperands,
    *,
    fused_activation_function: Activation = "",
    asymmetric_quantize_inputs: bool = False,
) -> None:
    """Convert RNN, which computes one time step of data (batch, depth)."""
    sequences = Sequences(context.reshape(x, (1, *x.shape)), time_major=True)
    rows = _emit_rnn(context, sequences, operands, fused_activation_function, asymmetric_quantize_inputs)
    context.result_reshape(rows, rows.shape[1:])


@CONVERTERS.register("UNIDIRECTIONAL_SEQUENCE_RNN", options="SequenceRNNOptions", dtypes=FLOAT)
def convert_sequence_rnn(
    context: OpContext,
    x: _Sequence,
    operands: RnnOperands,
    *,
    time_major: bool = False,
    fused_activation_function: Activation = "",
    asymmetric_quantize_inputs: bool = False,
) -> None:
    """Convert UNIDIRECTIONAL_SEQUENCE_RNN of data (batch, steps, depth), or (steps, batch, depth)."""
    sequences = Sequences(x, time_major)
    rows = _emit_rnn(context, sequences, operands, fused_activation_function, asymmetric_quantize_inputs)
    context.result_reshape(rows, rows.shape)


@CONVERTERS.register("BIDIRECTIONAL_SEQUENCE_RNN", options="BidirectionalSequenceRNNOptions", dtypes=FLOAT)
def convert_bidirectional_rnn(
    context: OpContext,
    x: _Sequence,
    forward: RnnOperands,
    backward: RnnOperands,
    *auxiliary: Value | None,
    time_major: bool = False,
    fused_activation_function: Activation = "",
    merge_outputs: bool = False,
    asymmetric_quantize_inputs: bool = False,
) -> None:
    """Convert BIDIRECTIONAL_SEQUENCE_RNN: a forward layer, and a backward layer that starts at the last time step."""
    if any(value is not None for value in auxiliary):
        context.refuse("auxiliary input: got one, expected none", _AUXILIARY)
    sequences, activation = Sequences(x, time_major), fused_activation_function
    rows = (
        _emit_rnn(context, sequences, forward, activation, asymmetric_quantize_inputs),
        _emit_rnn(context, sequences, backward, activation, asymmetric_quantize_inputs, backwards=True),
    )
    _write_both_directions(context, rows, merge_outputs)


# ---- Converters of LSTM layers with all of LiteRT's features except layer normalisation.
#
# If the input gate has no weights, it is one minus the forget gate. Peepholes and projection are optional.

_PLAIN_CELL = "use a plain LSTM cell, which is what TFLite Micro has, or unroll the layer when converting"
_TANH = ACTIVATIONS.index("tanh")


def _decode_cell_activation(context: OpContext, activation_code: int) -> str:
    """Return microc's name of the activation of candidate and cell; "" for none. It is tanh if the data are quantised."""
    if context.output_dtype() == "float32":
        return activation_name(context, activation_code)
    if activation_code != _TANH:
        context.refuse(
            f"fused_activation_function: got number {activation_code}, expected {_TANH} (TANH)",
            "build the layer with tanh",
        )
    return "tanh"


@frozen
class LstmOptions:
    """Options of LSTM layers."""

    fused_activation_function: Annotated[str, DecodeWith(_decode_cell_activation)] = ""
    cell_clip: float = 0.0
    proj_clip: float = 0.0
    asymmetric_quantize_inputs: bool = False


@frozen
class LstmOperands:
    """Operands of one direction of an LSTM: weights of the data and of the state, peepholes and biases, by gate (input,
    forget, cell, output), then the projection."""

    input_to_input: _Constant | None
    input_to_forget: _Constant
    input_to_cell: _Constant
    input_to_output: _Constant
    recurrent_to_input: _Constant | None
    recurrent_to_forget: _Constant
    recurrent_to_cell: _Constant
    recurrent_to_output: _Constant
    cell_to_input: _Constant | None
    cell_to_forget: _Constant | None
    cell_to_output: _Constant | None
    input_gate_bias: _Constant | None
    forget_gate_bias: _Constant | None
    cell_gate_bias: _Constant | None
    output_gate_bias: _Constant | None
    projection: _Constant | None
    projection_bias: _Constant | None

    @property
    def unit_count(self) -> int:
        return self.input_to_forget.shape[0] if self.input_to_forget.rank else 0

    @property
    def output_width(self) -> int:
        """Number of units of the hidden state: rows of the projection, or units of the cell."""
        if self.projection is None or not self.projection.rank:
            return self.unit_count
        return self.projection.shape[0]

    @property
    def input_weights(self) -> list[Value]:
        """Weights of the data, of the gates that have some."""
        rest = [self.input_to_forget, self.input_to_cell, self.input_to_output]
        return rest if self.input_to_input is None else [self.input_to_input, *rest]

    @property
    def recurrent_weights(self) -> list[Value]:
        """Weights of the state, of the gates that have weights of the data."""
        rest = [self.recurrent_to_forget, self.recurrent_to_cell, self.recurrent_to_output]
        if self.input_to_input is None or self.recurrent_to_input is None:
            return rest
        return [self.recurrent_to_input, *rest]

    @property
    def biases(self) -> list[Value | None]:
        """Biases of the gates that have weights."""
        rest = [self.forget_gate_bias, self.cell_gate_bias, self.output_gate_bias]
        return rest if self.input_to_input is None else [self.input_gate_bias, *rest]

    @property
    def peepholes(self) -> dict[str, Value]:
        """Peepholes by the name of the operand that they become."""
        peepholes = {"i": self.cell_to_input, "f": self.cell_to_forget, "o": self.cell_to_output}
        return {f"peephole_{gate}": value for gate, value in peepholes.items() if value is not None}

    @property
    def is_plain(self) -> bool:
        """True if there are four gates, and neither peepholes nor a projection."""
        return self.input_to_input is not None and not self.peepholes and self.projection is None


def _stack_biases(context: OpContext, operands: LstmOperands, data_dtype: str) -> Value | None:
    """Add the biases of all gates as one constant; return it, or None if all are zero."""
    dtypes = {"float32": np.float32, "int8": np.int32, "int16": np.int64}
    zeros = np.zeros(operands.unit_count, dtypes[data_dtype])
    biases = [zeros if bias is None else context.data(bias) for bias in operands.biases]
    if any(bias.shape != zeros.shape for bias in biases):
        context.broken(f"biases: got shapes {[bias.shape for bias in biases]}, expected {zeros.shape} each")
    stacked = np.concatenate(biases).astype(dtypes[data_dtype])
    return context.new_constant(f"{context.output_tensor().name}_bias", stacked) if stacked.any() else None


def _emit_lstm(
    context: OpContext,
    sequences: Sequences,
    operands: LstmOperands,
    states: tuple[Value, Value],
    options: LstmOptions,
    output: Tensor | None,
    *,
    backwards: bool = False,
) -> Value:
    """Append one direction of an LSTM; return its rows. ``output``: see :func:`_emit_direction`."""
    dtype, units, width = context.output_dtype(), operands.unit_count, operands.output_width
    if len(operands.recurrent_weights) != len(operands.input_weights):
        context.broken("recurrent_to_input_weights: got none, expected one as there are input_to_input_weights")
    matrices = (
        _stack_weights(context, operands.input_weights, (units, sequences.depth), dtype),
        _stack_weights(context, operands.recurrent_weights, (units, width), dtype),
    )
    state_dtypes = (dtype, "float32" if dtype == "float32" else "int16")
    state_names = [
        _define_state(context, state, (sequences.batch_size, extent), state_dtype)
        for state, extent, state_dtype in zip(states, (width, units), state_dtypes, strict=True)
    ]
    if output is not None and dtype != "float32" and output.type.quant != context.type(state_names[0]).quant:
        context.refuse(
            "output and hidden state: got different scales or zero points, expected equal ones",
            "give both the same scale and zero point",
        )
    optional: dict[str, Value] = {}
    if (bias := _stack_biases(context, operands, dtype)) is not None:
        optional["bias"] = bias
    optional |= {name: _get_real_vector(context, value, units) for name, value in operands.peepholes.items()}
    if operands.projection is not None:
        optional["projection"] = _stack_weights(context, [operands.projection], (width, units), dtype)
        if operands.projection_bias is not None:
            optional["projection_bias"] = _get_real_vector(context, operands.projection_bias, width)
    activation = options.fused_activation_function or "linear"
    attrs: dict[str, Attr] = {
        "time_major": sequences.time_major,
        "backwards": backwards,
        "optional": tuple(optional) or ("bias",),
        "gates": "ifgo" if operands.input_to_input is not None else "fgo",
        "activations": ("sigmoid", activation, activation),
        "cell_clip": float(np.float32(options.cell_clip)),
        "projection_clip": float(np.float32(options.proj_clip)) if operands.projection is not None else 0.0,
    }
    if dtype == "float32" and any(value.dtype == "int8" for value in matrices):
        attrs["dynamic"] = "asymmetric" if options.asymmetric_quantize_inputs else "symmetric"
    names = (sequences.data, *matrices, *state_names, *optional.values())
    return _emit_direction(context, "lstm", names, state_names, attrs, output)


@CONVERTERS.register(
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
    options="UnidirectionalSequenceLSTMOptions",
    dtypes=("float32", "int8", "int16"),
)
def convert_sequence_lstm(
    context: OpContext,
    x: _Sequence,
    operands: LstmOperands,
    hidden: Variable,
    cell: Variable,
    *normalisations: Value | None,
    time_major: bool = False,
    options: LstmOptions,
) -> None:
    """Convert UNIDIRECTIONAL_SEQUENCE_LSTM of float32 data, or of int8 or int16 data with int8 weights."""
    if any(value is not None for value in normalisations):
        context.refuse("layer normalisation in the cell is not supported", _PLAIN_CELL)
    if x.dtype != "float32" and not operands.is_plain:
        context.refuse("quantised cells with peepholes, a projection or coupled gates are not supported", _PLAIN_CELL)
    output = context.output_tensor()
    _emit_lstm(context, Sequences(x, time_major), operands, (hidden, cell), options, output)
    context.check_declared_shape(output)


@CONVERTERS.register("BIDIRECTIONAL_SEQUENCE_LSTM", options="BidirectionalSequenceLSTMOptions", dtypes=FLOAT)
def convert_bidirectional_lstm(
    context: OpContext,
    x: _Sequence,
    forward: LstmOperands,
    backward: LstmOperands,
    forward_hidden: Variable,
    forward_cell: Variable,
    backward_hidden: Variable,
    backward_cell: Variable,
    *auxiliary: Value | None,
    merge_outputs: bool = False,
    time_major: bool = True,
    options: LstmOptions,
) -> None:
    """Convert BIDIRECTIONAL_SEQUENCE_LSTM: a forward layer, and a backward layer that starts at the last time step."""
    if any(value is not None for value in auxiliary):
        context.refuse("auxiliary input: got one, expected none", _AUXILIARY)
    sequences = Sequences(x, time_major)
    states = ((forward_hidden, forward_cell), (backward_hidden, backward_cell))
    rows = (
        _emit_lstm(context, sequences, forward, states[0], options, None),
        _emit_lstm(context, sequences, backward, states[1], options, None, backwards=True),
    )
    _write_both_directions(context, rows, merge_outputs)
