# SPDX-License-Identifier: Apache-2.0
"""Conversion of ONNX RNN, GRU and LSTM to microc's recurrent layers, one for each direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.onnx.builder import StoredTensor
from microc.frontend.onnx.context import ConverterTable, OpContext
from microc.frontend.signature import Floats, SameDtype, Strings, Value
from microc.graph.ir import Attr, Quant

CONVERTERS = ConverterTable()

# ---- Activation functions of the gates.
#
# Source: ONNX RNN, GRU, LSTM. Default parameters of the functions are those of ONNX's operators of the same names.


@frozen
class GateFunction:
    """Activation function of a gate: microc's name, and the defaults of its parameters alpha and beta.

    A default is None if the function has no such parameter."""

    name: str
    alpha: float | None = None
    beta: float | None = None


FUNCTIONS: Mapping[str, GateFunction] = {
    "affine": GateFunction("affine", 1.0, 0.0),
    "elu": GateFunction("elu", 1.0),
    "hardsigmoid": GateFunction("hard_sigmoid", 0.2, 0.5),
    "leakyrelu": GateFunction("leaky_relu", 0.01),
    "relu": GateFunction("relu"),
    "scaledtanh": GateFunction("scaled_tanh", 1.0, 1.0),
    "sigmoid": GateFunction("sigmoid"),
    "softplus": GateFunction("softplus"),
    "softsign": GateFunction("softsign"),
    "tanh": GateFunction("tanh"),
    "thresholdedrelu": GateFunction("thresholded_relu", 1.0),
}
"""Activation functions by ONNX's names in lower case."""
_GATE_COUNTS = {"rnn": 1, "gru": 3, "lstm": 4}
_DEFAULTS = {"rnn": ("tanh",), "gru": ("sigmoid", "tanh"), "lstm": ("sigmoid", "tanh", "tanh")}


def resolve_activations(
    function_names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]
) -> list[tuple[str, Floats]]:
    """Return the activation functions with these names, each with its parameters.

    Functions that have a parameter alpha take the numbers of ``alphas`` in order, and ONNX's default after the last
    number. ``betas`` are assigned to functions that have a parameter beta in the same way."""
    functions, rest = [], {"alpha": list(alphas), "beta": list(betas)}
    for name in function_names:
        function = FUNCTIONS[name]
        defaults = {"alpha": function.alpha, "beta": function.beta}
        parameters = [
            rest[key].pop(0) if rest[key] else default for key, default in defaults.items() if default is not None
        ]
        functions.append((function.name, tuple(parameters)))
    return functions


# ---- Converters of RNN, GRU and LSTM.
#
# Source: ONNX RNN, GRU, LSTM. The order of an LSTM's gates is input, output, forget, cell, that of its peepholes input, output,
# forget. As in ONNX Runtime, the cell state is not clipped before the last activation function.


@frozen
class RecurrentAttributes:
    """Attributes of RNN, GRU and LSTM."""

    activation_alpha: Floats = ()
    activation_beta: Floats = ()
    activations: Strings = ()
    clip: float = 0.0
    direction: Literal["forward", "reverse", "bidirectional"] = "forward"
    hidden_size: int | None = None
    layout: bool = False


@frozen
class OptionalOperands:
    """Operands that RNN, GRU and LSTM may have: bias, lengths of sequences, hidden state."""

    b: SameDtype | None
    sequence_lens: Value | None
    initial_h: SameDtype | None


@frozen
class Layer:
    """A recurrent layer in one direction or both.

    ``op``: microc's operator. ``w``, ``r``: for each direction the input weights (G H, D) and state weights (G H, H).
    ``initial_c``, ``p``: cell state and peepholes of an LSTM. ``input_forget``: its forget gate is one minus its input
    gate. ``linear_before_reset``: the reset gate of a GRU multiplies the state's product.
    ``is_dynamic``: the rows of data and state are quantised at run time."""

    op: str
    x: Value
    w: Sequence[Value]
    r: Sequence[Value]
    operands: OptionalOperands
    attributes: RecurrentAttributes
    initial_c: Value | None = None
    p: Value | None = None
    input_forget: bool = False
    linear_before_reset: bool = False
    is_dynamic: bool = False

    @property
    def directions(self) -> tuple[str, ...]:
        return _list_directions(self.attributes)

    @property
    def unit_count(self) -> int:
        return self.r[0].shape[1]

    @property
    def time_axis(self) -> int:
        """Axis of the data and of the rows along which the time steps are."""
        return 1 if self.attributes.layout else 0


def _list_directions(attributes: RecurrentAttributes) -> tuple[str, ...]:
    """Return the directions of a layer, in the order of its matrices of weights."""
    return ("forward", "reverse") if attributes.direction == "bidirectional" else (attributes.direction,)


def _split_weights(
    context: OpContext, w: Value, r: Value, attributes: RecurrentAttributes
) -> tuple[list[Value], list[Value]]:
    """Return the matrices of each direction of the weights W (directions, G H, D) and R (directions, G H, H)."""
    count = len(_list_directions(attributes))
    for name, weights in (("W", w), ("R", r)):
        if weights.rank != 3 or weights.shape[0] != count:
            context.broken(
                f"{name} has shape {weights.shape}, expected three axes and {count} matrices of weights for direction "
                f"{attributes.direction!r}"
            )
    w_matrices, r_matrices = ([_slice_direction(context, weights, k) for k in range(count)] for weights in (w, r))
    return w_matrices, r_matrices


@CONVERTERS.register("RNN", dtypes=("float32",))
def convert_rnn(
    context: OpContext,
    x: Value,
    w: SameDtype,
    r: SameDtype,
    operands: OptionalOperands,
    *,
    attributes: RecurrentAttributes,
) -> None:
    """Convert RNN."""
    matrices = _split_weights(context, w, r, attributes)
    _write_layer(context, Layer("rnn", x, *matrices, operands, attributes))


@CONVERTERS.register("GRU", dtypes=("float32",))
def convert_gru(
    context: OpContext,
    x: Value,
    w: SameDtype,
    r: SameDtype,
    operands: OptionalOperands,
    *,
    linear_before_reset: bool = False,
    attributes: RecurrentAttributes,
) -> None:
    """Convert GRU."""
    matrices = _split_weights(context, w, r, attributes)
    _write_layer(context, Layer("gru", x, *matrices, operands, attributes, linear_before_reset=linear_before_reset))


@CONVERTERS.register("LSTM", dtypes=("float32",))
def convert_lstm(
    context: OpContext,
    x: Value,
    w: SameDtype,
    r: SameDtype,
    operands: OptionalOperands,
    initial_c: SameDtype | None,
    p: SameDtype | None,
    *,
    input_forget: bool = False,
    attributes: RecurrentAttributes,
) -> None:
    """Convert LSTM."""
    matrices = _split_weights(context, w, r, attributes)
    _write_layer(context, Layer("lstm", x, *matrices, operands, attributes, initial_c, p, input_forget))


@CONVERTERS.register("DynamicQuantizeLSTM", dtypes=("float32",), domain="com.microsoft")
def convert_dynamic_quantize_lstm(
    context: OpContext,
    x: Value,
    w: Array,
    r: Array,
    operands: OptionalOperands,
    initial_c: SameDtype | None,
    p: SameDtype | None,
    w_scale: Array,
    w_zero_point: Array | None,
    r_scale: Array,
    r_zero_point: Array | None,
    *,
    input_forget: bool = False,
    attributes: RecurrentAttributes,
) -> None:
    """Convert DynamicQuantizeLSTM to an LSTM in float32 with dequantised weights.

    ONNX Runtime's operator also quantises the data, by one scale for all time steps, and the state at every step.
    ``--hybrid dynamic`` quantises both by a scale for each row. The float32 LSTM does neither, so its results are closer
    to those of the trained network."""
    w_matrices = _split_integers(context, "W", w, w_scale, w_zero_point, attributes)
    r_matrices = _split_integers(context, "R", r, r_scale, r_zero_point, attributes)
    layer = Layer("lstm", x, w_matrices, r_matrices, operands, attributes, initial_c, p, input_forget, is_dynamic=True)
    _write_layer(context, layer)


def _split_integers(
    context: OpContext,
    name: str,
    weights: Array,
    scales: Array,
    zero_points: Array | None,
    attributes: RecurrentAttributes,
) -> list[Value]:
    """Return the weights of each direction of DynamicQuantizeLSTM, dequantised, in the layout of LSTM, (4 * hidden, inputs).

    ``weights`` have the layout (directions, inputs, 4 * hidden). There is one scale, and one zero point, for each
    direction, or for each direction and each of the 4 * hidden columns. Weights minus their zero point are int8 if they
    fit, else int16. ``name``: W or R, for errors."""
    zeros = np.zeros(scales.shape, weights.dtype) if zero_points is None else zero_points
    count = len(_list_directions(attributes))
    if weights.dtype not in (np.int8, np.uint8) or zeros.dtype != weights.dtype:
        context.broken(
            f"{name}: got {weights.dtype} with zero points of {zeros.dtype}, expected int8 or uint8 for both"
        )
    if weights.ndim != 3 or len(weights) != count:
        context.broken(f"{name}: got shape {weights.shape}, expected three axes, the first of {count}")
    if not weights.size:
        context.broken(f"{name}: got shape {weights.shape}, expected at least one element")
    allowed = ((count,), (count, weights.shape[2]))
    if scales.dtype != np.float32 or scales.shape not in allowed:
        context.broken(
            f"{name}_scale: got {scales.dtype} {scales.shape}, expected float32 {allowed[0]} or {allowed[1]}"
        )
    if zeros.shape != scales.shape:
        context.broken(f"{name}_zero_point: got shape {zeros.shape}, expected {scales.shape}, as {name}_scale has")
    if (invalid := scales[~(np.isfinite(scales) & (scales > 0))]).size:
        context.broken(f"{name}_scale: got {invalid[0]}, expected positive finite numbers")
    directions = []
    for matrix, scale, zero in zip(weights, scales.reshape(count, -1), zeros.reshape(count, -1), strict=True):
        levels = matrix.T.astype(np.int16) - zero[:, None].astype(np.int16)
        dtype = np.int8 if levels.min() >= -128 and levels.max() <= 127 else np.int16
        quant = Quant(tuple(map(float, scale)), (0,) * len(scale), 0 if len(scale) > 1 else None)
        stored = StoredTensor(np.ascontiguousarray(levels, dtype), quant)
        directions.append(context.add_stored_tensor(f"{context.output() or context.loc.name}_weight", stored))
    return directions


def _write_layer(context: OpContext, layer: Layer) -> None:
    """Write a layer as one of microc's layers for each direction, and the operator's outputs.

    Raise ModelError if its operands and attributes are inconsistent."""
    _check_shapes(context, layer)
    directions = layer.directions
    defaults = _DEFAULTS[layer.op] * len(directions)
    names = tuple(name.lower() for name in layer.attributes.activations) or defaults
    if any(name not in FUNCTIONS for name in names) or len(names) != len(defaults):
        context.broken(f"got activations {', '.join(names)}, expected {len(defaults)} of {', '.join(FUNCTIONS)}")
    functions = resolve_activations(names, layer.attributes.activation_alpha, layer.attributes.activation_beta)
    count = len(_DEFAULTS[layer.op])
    results = [
        _write_direction(context, layer, k, functions[k * count : (k + 1) * count]) for k in range(len(directions))
    ]
    _write_outputs(context, layer, results)


def _check_shapes(context: OpContext, layer: Layer) -> None:
    """Raise ModelError if the operands' shapes are inconsistent."""
    x, w, r, count = layer.x, layer.w[0], layer.r[0], len(layer.directions)
    if x.rank != 3:
        context.broken(f"got data of shape {x.shape}, expected three axes")
    units, batch = layer.unit_count, x.shape[1 - layer.time_axis]
    if layer.attributes.hidden_size not in (None, units):
        context.broken(f"hidden_size: got {layer.attributes.hidden_size}, expected {units}, as the weights R have")
    rows = _GATE_COUNTS[layer.op] * units
    state = (batch, count, units) if layer.attributes.layout else (count, batch, units)
    expected: Sequence[tuple[str, Value | None, tuple[int, ...]]] = (
        ("W", w, (rows, x.shape[2])),
        ("R", r, (rows, units)),
        ("B", layer.operands.b, (count, 2 * rows)),
        ("sequence_lens", layer.operands.sequence_lens, (batch,)),
        ("initial_h", layer.operands.initial_h, state),
        ("initial_c", layer.initial_c, state),
        ("P", layer.p, (count, 3 * units)),
    )
    for name, value, shape in expected:
        if value is not None and value.shape != shape:
            context.broken(f"{name} has shape {value.shape}, expected {shape}")


def _write_direction(
    context: OpContext, layer: Layer, direction_index: int, functions: Sequence[tuple[str, Floats]]
) -> list[str]:
    """Write the node of one direction; return its rows in order of time, empty if the model does not use them, and its
    last states."""
    operands, is_backwards = layer.operands, layer.directions[direction_index] == "reverse"
    matrices = [layer.w[direction_index], layer.r[direction_index]]
    initial_states = (operands.initial_h, layer.initial_c) if layer.op == "lstm" else (operands.initial_h,)
    states = [_get_initial_state(context, layer, state, direction_index) for state in initial_states]
    optional = _get_biases(context, layer, direction_index)
    if layer.p is not None:
        own = _slice_direction(context, layer.p, direction_index)
        gates = "io" if layer.input_forget else "iof"
        optional |= {f"peephole_{gate}": _slice_rows(context, own, k, 3) for k, gate in enumerate(gates)}
    if operands.sequence_lens is not None:
        optional["lengths"] = operands.sequence_lens
    if layer.input_forget:
        matrices = [_drop_forget_gate(context, matrix) for matrix in matrices]
        optional |= {name: _drop_forget_gate(context, optional[name]) for name in optional if name == "bias"}
    has_rows = bool(context.output(0))
    attrs: dict[str, Attr] = {
        "time_major": layer.time_axis == 0,
        "backwards": is_backwards,
        "returns_rows": has_rows,
        "optional": tuple(optional),
        "activations": tuple(name for name, _ in functions),
        "activation_parameters": tuple(number for _, parameters in functions for number in parameters),
        "clip": layer.attributes.clip,
    }
    if layer.op == "lstm":
        attrs["gates"] = "iog" if layer.input_forget else "iofg"
    if layer.is_dynamic:
        attrs["dynamic"] = "asymmetric"
    if layer.op == "gru":
        attrs["linear_before_reset"] = layer.linear_before_reset
    names = [
        context.builder.make_unique_name(f"{context.loc.name}_{k}")
        for k in ["rows"] * has_rows + ["last"] * len(states)
    ]
    context.write_node_with_outputs(layer.op, (layer.x, *matrices, *states, *optional.values()), attrs, names)
    rows = names.pop(0) if has_rows else ""
    if rows and is_backwards:
        rows = context.emit("reverse", (rows,), {"axes": (layer.time_axis,)})
    return [rows, *names]


def _slice_direction(context: OpContext, value: Value, direction_index: int, direction_axis: int = 0) -> Value:
    """Return the slice of an operand that belongs to direction ``direction_index``.

    ``direction_axis``: the operand's axis of directions, which is removed from the slice."""
    shape = value.shape
    rest = (*shape[:direction_axis], *shape[direction_axis + 1 :])
    stored = context.find_stored_tensor(value)
    own = None if stored is None else stored.take((direction_index,), direction_axis).reshape(rest)
    if own is not None:
        return context.add_stored_tensor(f"{value}_{direction_index}", own)
    return context.reshape(context.slice_axis(value, direction_axis, direction_index, direction_index + 1), rest)


def _slice_rows(context: OpContext, value: Value, part_index: int, part_count: int) -> Value:
    """Return one of ``part_count`` equal parts of a vector or matrix along its first axis."""
    extent = value.shape[0] // part_count
    rows = range(part_index * extent, (part_index + 1) * extent)
    if (stored := context.find_stored_tensor(value)) is not None:
        return context.add_stored_tensor(f"{value}_{part_index}", stored.take(rows, 0))
    return context.slice_axis(value, 0, rows.start, rows.stop)


def _drop_forget_gate(context: OpContext, value: Value) -> Value:
    """Return weights or a bias of an LSTM without the rows of the forget gate, the third of four."""
    if (stored := context.find_stored_tensor(value)) is not None:
        extent = value.shape[0] // 4
        rows = (*range(2 * extent), *range(3 * extent, 4 * extent))
        return context.add_stored_tensor(f"{value}_coupled", stored.take(rows, 0))
    return context.emit("concat", [_slice_rows(context, value, k, 4) for k in (0, 1, 3)], {"axis": 0})


def _get_initial_state(context: OpContext, layer: Layer, initial_state: Value | None, direction_index: int) -> Value:
    """Return the initial state (batch, units) of one direction: a constant of zeros if ``initial_state`` is absent."""
    if initial_state is not None:
        return _slice_direction(context, initial_state, direction_index, 1 if layer.attributes.layout else 0)
    zeros = np.zeros((layer.x.shape[1 - layer.time_axis], layer.unit_count), np.float32)
    return context.new_constant(f"{context.output() or context.loc.name}_state", zeros)


def _get_biases(context: OpContext, layer: Layer, direction_index: int) -> dict[str, Value]:
    """Return the biases of one direction by the operand's name.

    ONNX's B is the bias of the data's product, then that of the state's. Only a GRU with ``linear_before_reset`` needs
    both apart; all others add them."""
    if layer.operands.b is None:
        return {}
    both = _slice_direction(context, layer.operands.b, direction_index)
    data, state = (_slice_rows(context, both, half, 2) for half in (0, 1))
    if layer.linear_before_reset:
        return {"bias": data, "recurrent_bias": state}
    if data.constant is not None and state.constant is not None:
        return {"bias": context.new_constant(f"{both}_sum", data.constant + state.constant)}
    return {"bias": context.emit("add", (data, state))}


def _write_outputs(context: OpContext, layer: Layer, results: Sequence[Sequence[str]]) -> None:
    """Write the operator's outputs: the rows and the last states of all directions, stacked along a new axis.

    Rows are (steps, directions, batch, units) and states (directions, batch, units); with ``layout`` 1 they are (batch,
    steps, directions, units) and (batch, directions, units). ``results``: rows and states of each direction."""
    for position, values in enumerate(zip(*results, strict=True)):
        if not context.output(position):
            continue
        shape = context.type(values[0]).shape
        axis = len(shape) - (1 if layer.attributes.layout else 2)
        apart = [context.reshape(value, (*shape[:axis], 1, *shape[axis:])) for value in values]
        whole = apart[0] if len(apart) == 1 else context.emit("concat", apart, {"axis": axis})
        context.alias_output(context.output(position), whole)
