"""Converters of TFLite's recurrent layers: RNN and LSTM, in one direction or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.tflite.builtin_options import OptionFields
from microc.frontend.tflite.context import FLOAT, Converter, OpContext, activation_name
from microc.graph.ir import Attr, Graph, Quant, TensorType
from microc.ops.arithmetic import ACTIVATIONS
from microc.ops.attributes import Rounding

# ---- Helpers that all recurrent layers share: read the data, forwards or backwards in time, and write the results in order of
# time.


@frozen
class InputSequence:
    """Input sequence of a recurrent layer: a value (batch, steps, depth), or (steps, batch, depth).

    ``data_name`` is the name of the value. ``time_axis`` is 1 or 0. ``is_backwards`` is True if the data are reversed
    in time."""

    data_name: str
    time_axis: int
    step_count: int
    batch_size: int
    depth: int
    is_backwards: bool = False

    def reverse_time(self, context: OpContext) -> InputSequence:
        """Return the sequence with its data reversed in time."""
        data = context.emit("reverse", (self.data_name,), {"axes": (self.time_axis,)})
        return replace(self, data_name=data, is_backwards=not self.is_backwards)

    def restore_data_layout(self, context: OpContext, loop_results: str) -> str:
        """Return the results of a loop over time, (steps, batch, units), in forward order and in the layout of the
        data."""
        if self.is_backwards:
            loop_results = context.emit("reverse", (loop_results,), {"axes": (0,)})
        return context.emit("transpose", (loop_results,), {"axes": (1, 0, 2)}) if self.time_axis else loop_results


def read_input_sequence(context: OpContext, fields: OptionFields) -> InputSequence:
    """Return the operator's first operand as an :class:`InputSequence`."""
    data, axis = context.operand(0), 0 if fields.read_integer("TimeMajor") else 1
    shape = context.shape_of_rank(data, 3)
    return InputSequence(data, axis, shape[axis], shape[1 - axis], shape[2])


def emit_outputs_of_directions(context: OpContext, fields: OptionFields, direction_results: tuple[str, str]) -> None:
    """Define the operator's outputs from the results of both directions.

    They are concatenated along the last axis if the option MergeOutputs is set; otherwise they are two outputs."""
    if fields.read_integer("MergeOutputs"):
        context.result("concat", direction_results, {"axis": 2, "rounding": Rounding.NONE})
        return
    for position, name in enumerate(direction_results):
        context.result_reshape(name, context.type(name).shape, position)


# ---- Converters of plain recurrent cells: h = f(W x + R h + b). The state h keeps its content between calls.
#
# RNN computes one time step, UNIDIRECTIONAL_SEQUENCE_RNN a sequence, BIDIRECTIONAL_SEQUENCE_RNN a sequence in both directions.
# Weights are float32, or int8 that is dequantised; with ``--hybrid dynamic`` the rows of the data are quantised at run time
# instead. Sources: LiteRT ``basic_rnn.cc`` and ``bidirectional_sequence_rnn.cc``.


def convert_rnn(context: OpContext) -> None:
    """Convert RNN, which computes one time step of data (batch, depth)."""
    fields = context.operator.options.fields("RNNOptions", required=True)
    data = context.operand(0)
    batch, depth = context.shape_of_rank(data, 2)
    rows = _emit_rnn_loop(
        context, fields, InputSequence(context.reshape(data, (1, batch, depth)), 0, 1, batch, depth), 1
    )
    context.result_reshape(rows, (batch, context.type(rows).shape[2]))


def convert_sequence_rnn(context: OpContext) -> None:
    """Convert UNIDIRECTIONAL_SEQUENCE_RNN of data (batch, steps, depth), or (steps, batch, depth)."""
    fields = context.operator.options.fields("SequenceRNNOptions", required=True)
    rows = _emit_rnn_loop(context, fields, read_input_sequence(context, fields), 1)
    context.result_reshape(rows, context.type(rows).shape)


def convert_bidirectional_rnn(context: OpContext) -> None:
    """Convert BIDIRECTIONAL_SEQUENCE_RNN: a forward layer, and a backward layer that starts at the last time step."""
    fields = context.operator.options.fields("BidirectionalSequenceRNNOptions", required=True)
    if any(context.has_input(position) for position in _RNN_AUXILIARY):
        context.refuse("auxiliary input: got one, expected none", "concatenate it with the first input")
    data = read_input_sequence(context, fields)
    forwards = _emit_rnn_loop(context, fields, data, 1)
    emit_outputs_of_directions(
        context, fields, (forwards, _emit_rnn_loop(context, fields, data.reverse_time(context), 5))
    )


_RNN_AUXILIARY = (9, 10, 11)


def _emit_rnn_loop(
    context: OpContext, fields: OptionFields, sequence: InputSequence, first_operand_position: int
) -> str:
    """Append a loop over time that computes one direction of an RNN; return the hidden states of all steps, in order of
    time.

    The operands at ``first_operand_position`` and the next three positions are weights, recurrent weights, bias and
    state."""
    memory, units = (
        context.input_tensor(first_operand_position + 3),
        context.input_tensor(first_operand_position).type.shape[0],
    )
    if not memory.is_variable or memory.type.dtype != "float32" or memory.type.size != sequence.batch_size * units:
        context.refuse(
            f"state {memory.name!r}: got {memory.type.dtype} {memory.type.shape}, "
            f"expected a variable tensor of float32 {(sequence.batch_size, units)}",
            "set is_variable of the tensor to true, and store it as float32",
        )
    state = context.builder.define_state(
        memory.name, TensorType((sequence.batch_size, units), "float32"), None, context.where
    )
    body = _make_rnn_body(context, fields, sequence, units, first_operand_position)
    attrs: Mapping[str, Attr] = {"body": body, "count": sequence.step_count, "carried": 1, "guarded": False}
    names = [context.builder.file.reserve_name(f"{state}_{stem}") for stem in ("hidden", "rows")]
    types = context.infer_types("loop", (state, sequence.data_name), attrs)
    context.write_node_with_outputs("loop", (state, sequence.data_name), attrs, names, types)
    context.builder.updates[state] = names[0]
    return sequence.restore_data_layout(context, names[1])


def _make_rnn_body(
    context: OpContext, fields: OptionFields, sequence: InputSequence, unit_count: int, first_operand_position: int
) -> Graph:
    """Return the body of an RNN's loop over time.

    Its inputs are the iteration's number, the state and the data of all steps. Its outputs are the next state, twice:
    as carried value, and as a row of the loop's stacked results."""
    body = GraphBuilder(context.loc.file)
    body.at(context.loc.index, context.loc.name)
    iteration, hidden = body.input("turn", (), "int32"), body.input("hidden", (sequence.batch_size, unit_count))
    step_data = body.emit(
        "gather", (body.input("data", context.type(sequence.data_name).shape), iteration), {"axis": sequence.time_axis}
    )
    bias = body.new_constant("bias", context.constant(first_operand_position + 2).reshape(-1))
    sums = []
    for position, operand, depth in (
        (first_operand_position, step_data, sequence.depth),
        (first_operand_position + 1, hidden, unit_count),
    ):
        weight, attrs = _add_rnn_weights_and_attributes(
            context, body, position, (unit_count, depth), bool(fields.read_integer("AsymmetricQuantizeInputs"))
        )
        sums.append(
            body.emit(
                "dense",
                (operand, weight, *((bias,) if position == first_operand_position else ())),
                {"rounding": Rounding.NONE, **attrs},
            )
        )
    total = body.emit("add", sums, {"rounding": Rounding.NONE})
    name = activation_name(context, fields.read_integer("FusedActivationFunction"))
    if name:
        op, attrs = ACTIVATIONS[name]
        total = body.emit(op, (total,), attrs)
    return body.graph("rnn", {"next_hidden": total, "row": total})


def _add_rnn_weights_and_attributes(
    context: OpContext, body: GraphBuilder, position: int, shape: tuple[int, int], is_asymmetric: bool
) -> tuple[str, Mapping[str, Attr]]:
    """Add constant weights to the loop's body; return their name, and the attributes for the dense layer that uses
    them.

    The attribute ``dynamic`` is present for int8 weights. It records whether LiteRT quantises the data symmetrically or
    asymmetrically."""
    type_, values = context.input_tensor(position).type, context.constant(position)
    if (
        type_.shape != shape
        or type_.dtype not in ("float32", "int8")
        or (type_.dtype == "int8" and type_.quant is None)
    ):
        context.refuse(
            f"weights: got {type_.dtype} {type_.shape}, expected float32 or scaled int8 {shape}",
            "convert the weights to float32, or to int8 with a scale",
        )
    name = body.set_quant(body.new_constant("weights", np.ascontiguousarray(values)), type_.quant)
    if type_.quant is None or type_.dtype == "float32":
        return name, {}
    attrs: Mapping[str, Attr] = {
        "scale": type_.quant.scale,
        "zero_point": type_.quant.zero_point,
        "axis": type_.quant.axis,
    }
    return body.emit("dequantize", (name,), attrs), {"dynamic": "asymmetric" if is_asymmetric else "symmetric"}


RNN_CONVERTERS: Mapping[str, Converter] = {
    "BIDIRECTIONAL_SEQUENCE_RNN": Converter(convert_bidirectional_rnn, FLOAT),
    "RNN": Converter(convert_rnn, FLOAT),
    "UNIDIRECTIONAL_SEQUENCE_RNN": Converter(convert_sequence_rnn, FLOAT),
}


# ---- Converter of float LSTM layers, in one direction or both, with all of LiteRT's features except layer normalisation.
#
#     i = sigmoid(Wi x + Ri h + pi c + bi)        f = sigmoid(Wf x + Rf h + pf c + bf)        g = a(Wg x + Rg h + bg)
#     c' = clip(f c + i g)                        o = sigmoid(Wo x + Ro h + po c' + bo)       h' = clip(P (o a(c')) + q)
#
# x is the data, h the hidden state, c the cell state. If the input gate has no weights, i = 1 - f (coupled gates). The
# peepholes p and the projection P are optional. Hidden state and cell state keep their contents between calls. Weights are
# float32, or int8 that is dequantised; with ``--hybrid dynamic`` the rows of the data are quantised at run time instead.
# Source: LiteRT ``lstm_eval.cc``, ``bidirectional_sequence_lstm.cc``.

_INPUT, _RECURRENT, _PEEPHOLES, _LSTM_BIASES, _PROJECTION, _PROJECTION_BIAS = 0, 4, 8, 11, 15, 16
"""Offsets of a cell's operands from its first operand. Weights and biases are four operands each, in the order input,
forget, cell, output gate. Peepholes are three operands, because the cell gate has no peephole."""
_LSTM_AUXILIARY = range(39, 48)


def convert_bidirectional_lstm(context: OpContext) -> None:
    """Convert BIDIRECTIONAL_SEQUENCE_LSTM: a forward layer, and a backward layer that starts at the last time step."""
    fields = context.operator.options.fields("BidirectionalSequenceLSTMOptions", required=True)
    if any(context.has_input(position) for position in _LSTM_AUXILIARY):
        context.refuse("auxiliary input: got one, expected none", "concatenate it with the first input")
    data = read_input_sequence(context, fields)
    rows = (
        emit_float_lstm_loop(context, fields, data, 1, (35, 36)),
        emit_float_lstm_loop(context, fields, data.reverse_time(context), 18, (37, 38)),
    )
    emit_outputs_of_directions(context, fields, rows)


def emit_float_lstm_loop(
    context: OpContext,
    fields: OptionFields,
    sequence: InputSequence,
    first_operand_position: int,
    state_positions: tuple[int, int],
) -> str:
    """Append a loop over time that computes one direction of a float LSTM; return the hidden states of all steps, in
    order of time.

    ``first_operand_position``: position of the direction's first operand. ``state_positions``: positions of the hidden
    state and the cell state."""
    cell = _FloatLstmCell(context, fields, sequence, first_operand_position)
    state_types = [
        TensorType((sequence.batch_size, extent), "float32") for extent in (cell.output_width, cell.unit_count)
    ]
    state_names = []
    for position, type_ in zip(state_positions, state_types, strict=True):
        memory = context.input_tensor(position)
        if not memory.is_variable or memory.type.dtype != "float32" or memory.type.size != type_.size:
            reason = f"state {memory.name!r}: got {memory.type.dtype} {memory.type.shape}"
            context.refuse(reason, f"make it a variable tensor of float32 {type_.shape}")
        state_names.append(context.builder.define_state(memory.name, type_, None, context.where))
    attrs: Mapping[str, Attr] = {
        "body": cell.make_loop_body(),
        "count": sequence.step_count,
        "carried": 2,
        "guarded": False,
    }
    names = [context.builder.file.reserve_name(f"{state_names[0]}_{stem}") for stem in ("hidden", "cell", "rows")]
    context.write_node_with_outputs(
        "loop", (*state_names, sequence.data_name), attrs, names, (*state_types, state_types[0])
    )
    context.builder.updates |= dict(zip(state_names, names, strict=False))
    return sequence.restore_data_layout(context, names[2])


@dataclass(slots=True)
class _FloatLstmCell:
    """The operands of one direction of a float LSTM, and functions that build its loop body.

    ``first_operand_position``: position of the direction's first operand in the operator's inputs."""

    context: OpContext
    fields: OptionFields
    sequence: InputSequence
    first_operand_position: int

    @property
    def unit_count(self) -> int:
        return self.context.input_tensor(self.first_operand_position + _INPUT + 1).type.shape[0]

    @property
    def output_width(self) -> int:
        """Number of units of the hidden state: rows of the projection, or units of the cell if there is no
        projection."""
        projected = self.has_operand(_PROJECTION)
        return (
            self.context.input_tensor(self.first_operand_position + _PROJECTION).type.shape[0]
            if projected
            else self.unit_count
        )

    @property
    def gate_indices(self) -> tuple[int, ...]:
        """Indices of the gates that have weights (0 input, 1 forget, 2 cell, 3 output).

        The input gate has no weights if it is coupled to the forget gate."""
        return (0, 1, 2, 3) if self.has_operand(_INPUT) else (1, 2, 3)

    def has_operand(self, operand_offset: int) -> bool:
        """Test whether the operand ``operand_offset`` positions after the direction's first operand is present."""
        return self.context.has_input(self.first_operand_position + operand_offset)

    def make_loop_body(self) -> Graph:
        """Return the body of the loop over time.

        Its inputs are the iteration's number, the hidden state, the cell state and the data of all steps. Its outputs
        are the next hidden state, the next cell state, and the hidden state once more as a row of the loop's stacked
        results."""
        body = GraphBuilder(self.context.loc.file)
        body.at(self.context.loc.index, self.context.loc.name)
        iteration = body.input("turn", (), "int32")
        hidden, cell = (
            body.input("hidden", (self.sequence.batch_size, self.output_width)),
            body.input("cell", (self.sequence.batch_size, self.unit_count)),
        )
        all_data = body.input("data", self.context.type(self.sequence.data_name).shape)
        step_data = body.emit("gather", (all_data, iteration), {"axis": self.sequence.time_axis})
        sums = [self.emit_dense(body, step_data, _INPUT, self.sequence.depth, self.add_biases(body, _LSTM_BIASES))]
        sums.append(self.emit_dense(body, hidden, _RECURRENT, self.output_width, ()))
        total = body.emit("add", sums, {"rounding": Rounding.NONE})
        gate_sums = {}
        for k, gate in enumerate(self.gate_indices):
            begin, end = k * self.unit_count, (k + 1) * self.unit_count
            span: Mapping[str, Attr] = {"begin": (0, begin), "end": (self.sequence.batch_size, end), "strides": (1, 1)}
            gate_sums[gate] = body.emit("slice", (total,), span)
        forget = self.emit_gate(body, gate_sums[1], 1, cell)
        if 0 in gate_sums:
            input_gate = self.emit_gate(body, gate_sums[0], 0, cell)
        else:
            input_gate = body.emit(
                "sub", (body.new_constant("one", np.ones(1, np.float32)), forget), {"rounding": Rounding.NONE}
            )
        old_part = body.emit("mul", (forget, cell), {"rounding": Rounding.NONE})
        new_part = body.emit("mul", (input_gate, self.emit_activation(body, gate_sums[2])), {"rounding": Rounding.NONE})
        cell = self.emit_clip(body, body.emit("add", (old_part, new_part), {"rounding": Rounding.NONE}), "CellClip")
        out = body.emit(
            "mul",
            (self.emit_gate(body, gate_sums[3], 2, cell), self.emit_activation(body, cell)),
            {"rounding": Rounding.NONE},
        )
        if self.has_operand(_PROJECTION):
            bias = (
                (self.add_vector_constant(body, _PROJECTION_BIAS, (self.output_width,)),)
                if self.has_operand(_PROJECTION_BIAS)
                else ()
            )
            out = self.emit_clip(body, self.emit_dense(body, out, _PROJECTION, self.unit_count, bias), "ProjClip")
        return body.graph("lstm", {"next_hidden": out, "next_cell": cell, "row": out})

    # ------------------------------------------------------------ arithmetic

    def emit_gate(self, body: GraphBuilder, gate_sum: str, peephole_index: int, cell_state: str) -> str:
        """Emit a gate: the sigmoid of ``gate_sum``, to which the peephole term is added if the gate has a peephole.

        ``peephole_index``: index of the gate among the peepholes (0 input, 1 forget, 2 output)."""
        if self.has_operand(_PEEPHOLES + peephole_index):
            peephole_term = body.emit(
                "mul",
                (self.add_vector_constant(body, _PEEPHOLES + peephole_index, (self.unit_count,)), cell_state),
                {"rounding": Rounding.NONE},
            )
            gate_sum = body.emit("add", (gate_sum, peephole_term), {"rounding": Rounding.NONE})
        return body.emit("sigmoid", (gate_sum,), {"rounding": Rounding.NONE})

    def emit_activation(self, body: GraphBuilder, value: str) -> str:
        """Emit the layer's activation function, the option FusedActivationFunction; return its result."""
        name = activation_name(self.context, self.fields.read_integer("FusedActivationFunction"))
        return body.emit(ACTIVATIONS[name][0], (value,), ACTIVATIONS[name][1]) if name else value

    def emit_clip(self, body: GraphBuilder, value: str, option_name: str) -> str:
        """Clip a value to -limit .. limit, where limit is the option ``option_name``. 0 means no limit."""
        limit = float(np.float32(self.fields.read_float(option_name)))
        return body.emit("clip", (value,), {"minimum": -limit, "maximum": limit}) if limit > 0 else value

    def emit_dense(
        self, body: GraphBuilder, value: str, weight_offset: int, input_width: int, bias: tuple[str, ...]
    ) -> str:
        """Emit the dense layer that computes the sums of all gates, or the projection; return its result.

        ``weight_offset``: offset of the weights among the direction's operands. The weights of all gates are stacked to
        one matrix, with a scale for each row. One product thus replaces four, and every gate keeps its own scale."""
        projection = weight_offset == _PROJECTION
        offsets = (weight_offset,) if projection else tuple(weight_offset + gate for gate in self.gate_indices)
        rows = self.output_width if projection else self.unit_count
        types = [self.context.input_tensor(self.first_operand_position + k).type for k in offsets]
        integers = types[0].dtype == "int8"
        have_valid_types = all(k.shape == (rows, input_width) and k.dtype in ("float32", "int8") for k in types)
        have_one_scale = all(
            k.quant is not None and k.quant.axis is None and not any(k.quant.zero_point) for k in types
        )
        if not have_valid_types or len({k.dtype for k in types}) > 1 or (integers and not have_one_scale):
            actual = ", ".join(f"{k.dtype} {k.shape}" for k in types)
            self.context.refuse(
                f"weights: got {actual}, expected float32 or scaled int8 {(rows, input_width)} in each matrix",
                "convert all to float32, or all to int8 with one scale and zero point 0",
            )
        # Each gate has a scale of its own: stacked along the rows these become a scale per row, which ``dense`` supports.
        matrix = np.concatenate([self.context.constant(self.first_operand_position + k) for k in offsets])
        weights, attrs = body.new_constant("weights", matrix), dict[str, Attr]()
        if integers:
            scales = tuple(k.quant.scale[0] for k in types if k.quant is not None for _ in range(rows))
            quant_attrs: Mapping[str, Attr] = {"scale": scales, "zero_point": (0,) * len(scales), "axis": 0}
            weights = body.emit("dequantize", (weights,), quant_attrs)
            attrs["dynamic"] = "asymmetric" if self.fields.read_integer("AsymmetricQuantizeInputs") else "symmetric"
        return body.emit("dense", (value, weights, *bias), {"rounding": Rounding.NONE, **attrs})

    def add_biases(self, body: GraphBuilder, first_bias_offset: int) -> tuple[str, ...]:
        """Add the biases of all gates as one constant vector; return a tuple with its name.

        ``first_bias_offset``: offset of the input gate's bias among the direction's operands."""
        gate_biases = [
            self.context.constant(self.first_operand_position + first_bias_offset + gate) for gate in self.gate_indices
        ]
        if any(bias.shape != (self.unit_count,) for bias in gate_biases):
            self.context.broken(
                f"biases: got shapes {[bias.shape for bias in gate_biases]}, expected {(self.unit_count,)} each"
            )
        return (body.new_constant("bias", np.concatenate(gate_biases)),)

    def add_vector_constant(self, body: GraphBuilder, operand_offset: int, shape: tuple[int, ...]) -> str:
        """Add a constant vector operand (bias or peephole) to the loop's body; return its name. Integers are
        dequantised."""
        type_, values = (
            self.context.input_tensor(self.first_operand_position + operand_offset).type,
            self.context.constant(self.first_operand_position + operand_offset),
        )
        if values.shape != shape or (type_.dtype != "float32" and type_.quant is None):
            self.context.broken(f"got {type_.dtype} {values.shape}, expected float32 {shape}")
        if type_.quant is not None and type_.dtype != "float32":
            values = (values.astype(np.float32) - np.float32(type_.quant.zero_point[0])) * np.float32(
                type_.quant.scale[0]
            )
        return body.new_constant("vector", np.ascontiguousarray(values, np.float32))


BIDIRECTIONAL_LSTM_CONVERTERS: Mapping[str, Converter] = {
    "BIDIRECTIONAL_SEQUENCE_LSTM": Converter(convert_bidirectional_lstm, FLOAT)
}


# ---- Converter of UNIDIRECTIONAL_SEQUENCE_LSTM. Its state keeps its content between calls, as in TFLite Micro.
#
# A layer with peepholes, a projection or coupled gates is converted to a loop over time, by the functions above, if it is
# float. A plain LSTM becomes microc's operator ``lstm``. Source: TFLite Micro ``lstm_eval.h``, ``lstm_eval_common.cc``.

_INPUT_WEIGHTS, _RECURRENT_WEIGHTS, _RECURRENT_BIASES = (1, 2, 3, 4), (5, 6, 7, 8), (12, 13, 14, 15)
"""Positions of the operands of the four gates, in the order input, forget, cell, output."""
_VARIANTS, _NORMALISED = (9, 10, 11, 16, 17), (20, 21, 22, 23)
"""Positions of the operands of peepholes and projections, and of layer normalisation. TFLite Micro supports none of
them."""
_HIDDEN, _CELL = 18, 19
_TANH = 4
_PLAIN_CELL = "use a plain LSTM cell, which is what TFLite Micro has, or unroll the layer when converting"
_WEIGHT_DTYPES = {"float32": ("float32", "int8"), "int8": ("int8",), "int16": ("int8",)}


@frozen
class _GateWeights:
    """Weights of the four gates of an LSTM layer with H units.

    ``input`` (4 H, depth) and ``recurrent`` (4 H, H) are the stacked matrices, ``bias`` (4 H) the stacked biases. The
    ``_quant`` fields contain a scale for each row of a matrix; None for float32."""

    input: Array
    input_quant: Quant | None
    recurrent: Array
    recurrent_quant: Quant | None
    bias: Array


def convert_sequence_lstm(context: OpContext) -> None:
    """Convert UNIDIRECTIONAL_SEQUENCE_LSTM of float32 data, or of int8 or int16 data with int8 weights."""
    fields = context.operator.options.fields("UnidirectionalSequenceLSTMOptions", required=True)
    if any(context.has_input(position) for position in _NORMALISED):
        context.refuse("layer normalisation in the cell is not supported", _PLAIN_CELL)
    if any(context.has_input(position) for position in _VARIANTS) or not context.has_input(_INPUT_WEIGHTS[0]):
        if context.output_tensor().type.dtype != "float32":
            context.refuse(
                "quantised cells with peepholes, a projection or coupled gates are not supported", _PLAIN_CELL
            )
        rows = emit_float_lstm_loop(context, fields, read_input_sequence(context, fields), 1, (_HIDDEN, _CELL))
        context.result_reshape(rows, context.type(rows).shape)
        return
    if fields.read_integer("FusedActivationFunction") != _TANH:
        context.refuse(
            f"fused_activation_function: got number {fields.read_integer('FusedActivationFunction')}, expected "
            f"{_TANH} (TANH)",
            "build the layer with tanh",
        )
    time_major, (first, second, depth) = (
        bool(fields.read_integer("TimeMajor")),
        context.shape_of_rank(context.operand(0), 3),
    )
    batch = second if time_major else first
    weights = _read_gate_weights(context, depth)
    units = len(weights.bias) // 4
    states = [_define_variable_state(context, position, (batch, units)) for position in (_HIDDEN, _CELL)]
    _emit_plain_lstm(context, fields, weights, states)


def _emit_plain_lstm(
    context: OpContext, fields: OptionFields, weights: _GateWeights, state_names: Sequence[str]
) -> None:
    """Append the ``lstm`` node of a plain LSTM; define the operator's output and the next contents of ``state_names``.

    ``state_names``: hidden state and cell state."""
    target, data, builder = context.output_tensor(), context.operand(0), context.builder
    type_ = context.type(state_names[0])
    if (target.type.dtype, target.type.quant) != (type_.dtype, type_.quant):
        context.refuse(
            "output and hidden state: got different scales or zero points, expected equal ones",
            "give both the same scale and zero point",
        )
    matrices = ((weights.input, weights.input_quant), (weights.recurrent, weights.recurrent_quant))
    operands = [
        builder.define_constant(builder.file.reserve_name(f"{target.name}_weights"), *matrix) for matrix in matrices
    ]
    operands = [data, *operands, *state_names]
    if weights.bias.any():
        operands.append(builder.define_constant(builder.file.reserve_name(f"{target.name}_bias"), weights.bias, None))
    attrs: dict[str, Attr] = {
        "time_major": bool(fields.read_integer("TimeMajor")),
        "cell_clip": float(np.float32(fields.read_float("CellClip"))),
    }
    if type_.dtype == "float32" and weights.input_quant is not None:
        attrs["dynamic"] = "asymmetric" if fields.read_integer("AsymmetricQuantizeInputs") else "symmetric"
    next_states = [builder.file.reserve_name(f"{target.name}_{stem}") for stem in ("hidden", "cell")]
    context.write_node_with_outputs(
        "lstm", operands, attrs, (target.name, *next_states), (target.type, *map(context.type, state_names))
    )
    context.check_declared_shape(target)
    builder.updates |= dict(zip(state_names, next_states, strict=True))


def _read_gate_weights(context: OpContext, input_width: int) -> _GateWeights:
    """Return the weights and biases of a plain LSTM, after checking their shapes, dtypes and scales."""
    dtype = context.output_tensor().type.dtype
    units = context.input_tensor(_INPUT_WEIGHTS[0]).type.shape[:1]
    matrices: list[tuple[Array, Quant | None]] = []
    for positions, columns in ((_INPUT_WEIGHTS, (input_width,)), (_RECURRENT_WEIGHTS, units)):
        arrays, scales = [], []
        for position in positions:
            type_ = context.input_tensor(position).type
            if type_.shape != (*units, *columns) or type_.dtype not in _WEIGHT_DTYPES[dtype]:
                context.refuse(
                    f"weights: got {type_.dtype} {type_.shape} for {dtype} data of depth {input_width}",
                    f"give {' or '.join(_WEIGHT_DTYPES[dtype])} weights (units, depth)",
                )
            arrays.append(context.constant(position))
            if type_.dtype != "float32":
                if type_.quant is None or type_.quant.axis is not None or any(type_.quant.zero_point):
                    context.refuse(
                        "weights: expected one scale and zero point 0 for each matrix",
                        "quantise each matrix per tensor",
                    )
                scales += [type_.quant.scale[0]] * units[0]
        if len({array.dtype for array in arrays}) > 1:
            context.refuse(
                "weights: got float32 and int8, expected one dtype", "quantise all weights of the layer, or none"
            )
        quant = Quant(tuple(scales), (0,) * len(scales), 0) if scales else None
        matrices.append((np.concatenate(arrays), quant))
    biases = []
    for position in _RECURRENT_BIASES:
        bias_part = context.constant(position) if context.has_input(position) else np.zeros(units, np.float32)
        if bias_part.shape != units:
            context.broken(f"bias: got shape {bias_part.shape}, expected {units}")
        biases.append(bias_part)
    bias_dtypes = {"float32": np.float32, "int8": np.int32, "int16": np.int64}
    bias = np.concatenate(biases).astype(bias_dtypes[dtype])
    return _GateWeights(*matrices[0], *matrices[1], bias)


def _define_variable_state(context: OpContext, position: int, shape: tuple[int, int]) -> str:
    """Define the variable tensor at input ``position``, of shape (batch, units), as a state of the graph; return its
    name."""
    memory, dtype = context.input_tensor(position), context.output_tensor().type.dtype
    expected_dtype = "int16" if position == _CELL and dtype != "float32" else dtype
    if (
        not memory.is_variable
        or memory.type.dtype != expected_dtype
        or int(np.prod(memory.type.shape)) != shape[0] * shape[1]
    ):
        context.refuse(
            f"state {memory.name!r}: got {memory.type.dtype} {memory.type.shape}",
            f"make it a variable tensor of {expected_dtype} {shape}",
        )
    if expected_dtype != "float32" and memory.type.quant is None:
        context.refuse(f"state {memory.name!r} has no quantisation", "give it a scale")
    type_ = TensorType(shape, expected_dtype, memory.type.quant)
    return context.builder.define_state(memory.name, type_, None, context.where)


LSTM_CONVERTERS: Mapping[str, Converter] = {
    "UNIDIRECTIONAL_SEQUENCE_LSTM": Converter(convert_sequence_lstm, ("float32", "int8", "int16")),
}
