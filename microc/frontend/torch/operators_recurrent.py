# SPDX-License-Identifier: Apache-2.0
"""Converters of ATen's recurrent layers (``lstm``, ``gru``, ``rnn_tanh``, ``rnn_relu``). Several layers and both directions are
supported.

A weight matrix contains the rows of all gates, in the order input, forget, cell, output for LSTM, and reset, update,
new for GRU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.signature import Argument, Value
from microc.frontend.torch.context import ConverterTable, OpContext
from microc.graph.ir import Attr

CONVERTERS = ConverterTable()


@frozen
class RecurrentAttributes:
    """Attributes of all recurrent layers. The overload for packed sequences has no ``batch_first``."""

    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool = False


def _make_recurrent_converter(op: str, cell_attrs: Mapping[str, Attr]) -> Callable[..., tuple[str, ...]]:
    """Return the converter of recurrent layers that become microc's operator ``op`` with ``cell_attrs``."""

    def convert_recurrent(
        context: OpContext,
        x: Value | None,
        batch_sizes: Argument | None,
        hx: Argument,
        params: Argument,
        *,
        attributes: RecurrentAttributes,
    ) -> tuple[str, ...]:
        if x is None or batch_sizes is not None:
            context.refuse("packed sequences are not supported", "export the model with padded sequences")
        if attributes.train and attributes.dropout:
            context.refuse("dropout in training mode is not supported", "export the model in eval mode")
        directions = 2 if attributes.bidirectional else 1
        weights = _read_direction_weights(context, params, attributes.num_layers * directions, attributes.has_biases)
        data: str = _swap_batch_and_time(context, x) if attributes.batch_first else x
        stacked_states = [context.convert_to_value(value) for value in (hx if op == "lstm" else (hx,))]
        last_states: list[tuple[str, ...]] = []
        for first in range(0, len(weights), directions):
            rows = []
            for k in range(first, first + directions):
                backwards = k % directions == 1
                states = [_slice_direction(context, value, k) for value in stacked_states]
                attrs = {**cell_attrs, "time_major": True, "backwards": backwards}
                result, *last = _emit_direction(context, op, data, weights[k], states, attrs)
                rows.append(context.emit("reverse", (result,), {"axes": (0,)}) if backwards else result)
                last_states.append(tuple(last))
            data = rows[0] if directions == 1 else context.emit("concat", rows, {"axis": 2})
        last_stacked = [_stack_states(context, values) for values in zip(*last_states, strict=True)]
        return (_swap_batch_and_time(context, data) if attributes.batch_first else data, *last_stacked)

    return convert_recurrent


def _read_direction_weights(
    context: OpContext, params: Sequence[Any], direction_count: int, has_biases: bool
) -> list[Sequence[Array]]:
    """Return the weights of every direction of every layer: layer by layer, in each layer the forward direction first.

    They are the weights of the data and of the state, then the bias of each if there are some, then the projection of an
    LSTM that has one."""
    if any(isinstance(x, str) and x not in context.builder.consts for x in params):
        context.refuse("params: got computed weights, expected constants", "make them parameters of the module")
    arrays = [context.builder.consts[x] if isinstance(x, str) else context.to_numpy_array(x) for x in params]
    count = len(arrays) // direction_count
    if len(arrays) % direction_count or count - (4 if has_biases else 2) not in (0, 1):
        context.refuse(
            f"params: got {len(arrays)} arrays, expected weights for each of {direction_count} layers and directions",
            "export the module again with torch.export.export",
        )
    return [arrays[k : k + count] for k in range(0, len(arrays), count)]


def _emit_direction(
    context: OpContext,
    op: str,
    data: str,
    weights: Sequence[Array],
    states: Sequence[str],
    attrs: Mapping[str, Attr],
) -> tuple[str, ...]:
    """Emit one direction of one layer over ``data`` (T, N, C); return the rows and the last states."""
    matrices, rest = list(weights[:2]), list(weights[2:])
    projection = [rest.pop()] if len(rest) % 2 else []
    # A GRU multiplies the bias of the state's product by the reset gate; all others only add both biases.
    biases = rest if op == "gru" or not rest else [rest[0] + rest[1]]
    names = ["bias", "recurrent_bias"][: len(biases)] + ["projection"] * len(projection)
    constants = [context.new_constant("weight", array) for array in matrices]
    optional = [context.new_constant("weight", array) for array in (*biases, *projection)]
    attrs = {**attrs, "optional": tuple(names)}
    return context.builder.emit_all(op, (data, *constants, *states, *optional), attrs)


def _swap_batch_and_time(context: OpContext, value: str) -> Value:
    """Swap the first two axes, batch and time, of ``value`` (A, B, C)."""
    first, second, width = context.shape(value)
    if min(first, second) == 1:
        return context.reshape(value, (second, first, width))
    return context.emit("transpose", (value,), {"axes": (1, 0, 2)})


def _slice_direction(context: OpContext, stacked_states: Value, direction_index: int) -> Value:
    """Return the initial state (N, U) of one direction of one layer.

    ``stacked_states``: states of all directions of all layers, (layers * directions, N, U)."""
    count, batch, units = stacked_states.shape
    if stacked_states.constant is not None:
        return context.new_constant("state", stacked_states.constant[direction_index])
    attrs: Mapping[str, Attr] = {
        "begin": (direction_index, 0, 0), "end": (direction_index + 1, batch, units), "strides": (1, 1, 1)
    }  # fmt: skip
    own = stacked_states if count == 1 else context.emit("slice", (stacked_states,), attrs)
    return context.reshape(own, (batch, units))


def _stack_states(context: OpContext, values: Sequence[str]) -> Value:
    """Stack states (N, U) along a new first axis; return the stacked value."""
    unsqueezed = [context.reshape(value, (1, *context.shape(value))) for value in values]
    return unsqueezed[0] if len(unsqueezed) == 1 else context.emit("concat", unsqueezed, {"axis": 0})


_CELLS: Mapping[str, tuple[str, Mapping[str, Attr]]] = {
    "gru": ("gru", {"gates": "rzn", "linear_before_reset": True}),
    "lstm": ("lstm", {}),
    "rnn_relu": ("rnn", {"activations": ("relu",)}),
    "rnn_tanh": ("rnn", {}),
}
"""microc's operator and its attributes, by ATen's operator."""

for _name, (_op, _cell_attrs) in _CELLS.items():
    CONVERTERS.register(_name)(_make_recurrent_converter(_op, _cell_attrs))
