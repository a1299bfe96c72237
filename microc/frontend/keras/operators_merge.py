# SPDX-License-Identifier: Apache-2.0
"""Converters of Keras layers that merge tensors or move elements, of attention and recurrent layers, and of EinsumDense."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import prod, sqrt
from typing import Annotated, Any, Literal

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.keras.context import Bias, ChannelsLast, LayerConverter, OpContext, present_if
from microc.frontend.operator_context import expand_to_axes
from microc.frontend.signature import Argument, ConverterTable, Ints, Matrix, Only, Range, Rank, Value
from microc.graph.ir import Attr
from microc.ops.recurrent.cells import STATES

CONVERTERS = ConverterTable(LayerConverter)

# ---- Converters of layers that merge tensors.


def make_merge_converter(op: str) -> Callable[..., Value]:
    """Return the converter of a layer that combines all operands by the binary operator ``op``, from left to right.

    Operands are broadcast. Numbers among them become constants."""

    def convert_merge(context: OpContext, first: Value, *others: Value) -> Value:
        for other in others:
            first = context.emit(op, (first, other))
        return first

    return convert_merge


_add_operands = make_merge_converter("add")
for _name, _op in {
    "Divide": "div",
    "Maximum": "maximum",
    "Minimum": "minimum",
    "Multiply": "mul",
    "Subtract": "sub",
}.items():
    CONVERTERS.register(_name)(make_merge_converter(_op))
CONVERTERS.register("Add")(_add_operands)
CONVERTERS.register("TrueDivide")(make_merge_converter("div"))


@CONVERTERS.register("Average")
def convert_average(context: OpContext, *operands: Value) -> Value:
    return context.emit("mul", (_add_operands(context, *operands), context.scalar(1 / len(operands))))


@CONVERTERS.register("Concatenate")
def convert_concatenate(context: OpContext, *operands: Value, axis: int = -1) -> Value:
    return context.emit("concat", operands, {"axis": axis})


@CONVERTERS.register("Dot")
def convert_dot(
    context: OpContext,
    x: Value,
    y: Value,
    *,
    axes: Ints,
    normalize: Annotated[bool, Only(False, "normalise the operands with UnitNormalization")] = False,
) -> Value:
    """Convert Dot: sum the products of two operands over one axis of each.

    Operands of rank 3 become one matrix product for each sample of the batch."""
    if x.rank != y.rank or x.rank not in (2, 3):
        context.refuse(
            f"got operands of rank {x.rank} and {y.rank}, expected two of rank 2 or two of rank 3",
            "reshape the operands",
        )
    first, second = context.normalize_axes(expand_to_axes(axes, 2), x.rank)
    if x.rank == 2:
        return context.emit("sum", (context.emit("mul", (x, y)),), {"axes": (1,), "keepdims": True})
    rows = x if first == 2 else context.transpose(x, (0, 2, 1))
    return context.emit("matmul", (rows, y if second == 1 else context.transpose(y, (0, 2, 1))))


# ---- Converters of layers that move, repeat, pad, crop or scale elements, or act in training only.


_IN_TRAINING_ONLY = (
    "ActivityRegularization", "AlphaDropout", "AugMix", "CutMix", "Dropout", "GaussianDropout", "GaussianNoise",
    "Identity", "MixUp", "RandAugment", "RandomBrightness", "RandomColorDegeneration", "RandomColorJitter",
    "RandomContrast", "RandomElasticTransform", "RandomErasing", "RandomFlip", "RandomGaussianBlur", "RandomGrayscale",
    "RandomHue", "RandomInvert", "RandomPerspective", "RandomPosterization", "RandomRotation", "RandomSaturation",
    "RandomSharpness", "RandomShear", "RandomTranslation", "RandomZoom", "SpatialDropout1D", "SpatialDropout2D",
    "SpatialDropout3D",
)  # fmt: skip
"""Classes of layers that return their operand in inference."""


@CONVERTERS.register(*_IN_TRAINING_ONLY)
def return_operand_unchanged(context: OpContext, x: Value) -> Value:
    return x


@CONVERTERS.register("Flatten")
def convert_flatten(context: OpContext, x: Value, *, data_format: ChannelsLast = "channels_last") -> Value:
    return context.reshape(x, (x.shape[0], prod(x.shape[1:])))


@CONVERTERS.register("Reshape")
def convert_reshape(context: OpContext, x: Value, *, target_shape: Ints) -> Value:
    shape = list(target_shape)
    if -1 in shape:
        shape[shape.index(-1)] = prod(x.shape[1:]) // -prod(shape)
    return context.reshape(x, (x.shape[0], *shape))


@CONVERTERS.register("Permute")
def convert_permute(context: OpContext, x: Value, *, dims: Ints) -> Value:
    return context.emit("transpose", (x,), {"axes": (0, *dims)})


@CONVERTERS.register("RepeatVector")
def convert_repeat_vector(context: OpContext, x: Matrix, *, n: Annotated[int, Range(1)]) -> Value:
    row = context.reshape(x, (x.shape[0], 1, x.shape[1]))
    return context.emit("concat", (row,) * n, {"axis": 1})


def _list_counts_of_axes(setting: Argument, x: Value) -> list[tuple[int, int]]:
    """Return a setting such as ``padding`` as numbers of elements (before, after) for all axes of ``x``.

    In the configuration the setting is one number, one number for each spatial axis, or a pair for each of them."""
    axis_count = x.rank - 2
    setting = [setting] * axis_count if isinstance(setting, int) else setting
    if axis_count == 1 and len(setting) == 2:
        setting = [setting]
    counts = [(n, n) if isinstance(n, int) else (int(n[0]), int(n[1])) for n in setting]
    return [(0, 0), *counts, (0, 0)]


@CONVERTERS.register("ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D")
def convert_zero_padding(
    context: OpContext, x: Value, *, padding: Argument, data_format: ChannelsLast = "channels_last"
) -> Value:
    return context.emit("pad", (x,), {"padding": tuple(_list_counts_of_axes(padding, x)), "value": 0.0})


@CONVERTERS.register("Cropping1D", "Cropping2D", "Cropping3D")
def convert_cropping(
    context: OpContext, x: Value, *, cropping: Argument, data_format: ChannelsLast = "channels_last"
) -> Value:
    pairs = _list_counts_of_axes(cropping, x)
    end = [extent - after for extent, (_, after) in zip(x.shape, pairs, strict=True)]
    return context.slice(x, [before for before, _ in pairs], end)


@CONVERTERS.register("Rescaling")
def convert_rescaling(context: OpContext, x: Value, *, scale: Argument, offset: Argument = 0.0) -> Value:
    scaled = context.emit("mul", (context.cast(x, "float32"), context.add_weight("scale", np.asarray(scale))))
    summand = np.asarray(offset)
    return context.emit("add", (scaled, context.add_weight("offset", summand))) if summand.any() else scaled


# ---- Converters of attention layers, and of EinsumDense.
#
# The projections of attention layers are einsums. They become dense layers, because quantisation supports dense layers best.
# Transposes rearrange the heads.

_EQUATION = re.compile(r"(\.\.\.)?([a-zA-Z]*)(\.\.\.)?,([a-zA-Z]+)->(\.\.\.)?([a-zA-Z]*)(\.\.\.)?")
_PROJECTION, _OUTPUT = "abc,cde->abde", "abcd,cde->abe"
"""Einsum equations of the projection of rows to heads, and of heads to rows."""


@CONVERTERS.register("EinsumDense")
def convert_einsum_dense(
    context: OpContext,
    x: Value,
    kernel: Array,
    bias: Annotated[Array | None, present_if("bias_axes", default=False)],
    *,
    equation: str,
    bias_axes: str = "",
    activation: Argument = None,
) -> Value:
    """Convert EinsumDense: the einsum of data and kernel by the layer's equation, and a bias along some axes of the
    result."""
    return context.emit_activation(_emit_einsum(context, x, equation, kernel, bias, bias_axes), activation)


def _emit_einsum(
    context: OpContext, x: Value, equation: str, kernel: Array, bias: Array | None, bias_axes: str
) -> Value:
    """Emit an einsum of data and kernel as one dense layer, because quantisation supports dense layers best.

    The data become a matrix (kept axes, summed axes), the kernel a matrix (summed axes, new axes). Transposes before
    and after the product sort the axes.
    """
    data, weight, result = _parse_einsum_labels(context, equation, x.rank)
    kept = [label for label in data if label not in weight]
    summed = [label for label in data if label in weight]
    new = [label for label in weight if label not in data]
    if len({*data, *weight}) < len(kept + summed + new) or sorted(kept + new) != sorted(result):
        context.refuse(f"equation: {equation!r} is not supported", "use each axis in two of data, kernel and result")
    extents = dict(zip((*data, *weight), (*x.shape, *kernel.shape), strict=True))
    rows = context.reshape(
        context.transpose(x, [data.index(label) for label in kept + summed]),
        (prod(extents[label] for label in kept), prod(extents[label] for label in summed)),
    )
    sorted_kernel = kernel.transpose([weight.index(label) for label in new + summed])
    operands = [rows, context.add_weight("kernel", sorted_kernel.reshape(-1, rows.shape[1]))]
    if bias is not None and list(bias_axes) == new:
        operands.append(context.add_weight("bias", bias.reshape(-1)))
        bias = None
    product = context.reshape(context.emit("dense", operands), [extents[label] for label in kept + new])
    product = context.transpose(product, [(kept + new).index(label) for label in result])
    return product if bias is None else context.emit("add", (product, context.add_weight("bias", bias)))


def _parse_einsum_labels(context: OpContext, equation: str, rank: int) -> tuple[str, str, str]:
    """Return the axis labels of data, kernel and result in an einsum equation, with ``...`` replaced by unused
    labels."""
    match = _EQUATION.fullmatch(equation.replace(" ", ""))
    if match is None:
        context.refuse(
            f"equation: got {equation!r}, expected 'abc,cd->abd' or similar", "write two operands and a result"
        )
    first, data, last, weight, before, result, behind = (part or "" for part in match.groups())
    free = [chr(code) for code in range(ord("a"), ord("z") + 1) if chr(code) not in equation]
    dots = "".join(free[: max(0, rank - len(data))]) if first or last else ""
    data = dots + data if first else data + dots
    if len(data) != rank or len({*data}) < rank or len({*weight}) < len(weight):
        context.refuse(f"equation: {equation!r} does not fit data of rank {rank}", "name each axis once")
    return data, weight, dots + result if before else result + dots if behind else result


@frozen
class AttentionSettings:
    """Settings of attention layers, and arguments of their calls."""

    use_causal_mask: bool = False
    return_attention_scores: Annotated[bool, Only(False, "call the layer without return_attention_scores")] = False
    use_gate: Annotated[bool, Only(False, "build the layer without use_gate")] = False
    sliding_window: Annotated[Argument, Only(None, "use use_causal_mask")] = None


@CONVERTERS.register("MultiHeadAttention")
def convert_multi_head_attention(
    context: OpContext,
    query: Annotated[Value, Rank(3, 3)],
    value: Value,
    key: Value | None,
    *,
    key_dim: int,
    attention_axes: Annotated[Ints | None, Only((1,), "use data (batch, rows, features)")] = (1,),
    settings: AttentionSettings,
) -> Value:
    """Convert MultiHeadAttention.

    Queries, keys and values (N, rows, features) are projected to heads, attention is computed for each head, and the
    result is projected back to rows. An absent key is the value."""
    queries, values, keys = (
        _emit_projection(context, x, f"{name}_dense", _PROJECTION, "de")
        for name, x in {"query": query, "value": value, "key": key or value}.items()
    )
    attended = _emit_attention(context, queries, values, keys, 1 / sqrt(key_dim), settings)
    return _emit_projection(context, attended, "output_dense", _OUTPUT, "e")


@CONVERTERS.register("GroupQueryAttention", "GroupedQueryAttention")
def convert_grouped_query_attention(
    context: OpContext,
    query: Value,
    value: Value,
    key: Value | None,
    *,
    num_query_heads: int,
    num_key_value_heads: int,
    head_dim: int,
    settings: AttentionSettings,
) -> Value:
    """Convert GroupedQueryAttention, in which several heads of queries share one head of keys and values."""
    queries, values, keys = (
        _emit_projection(context, x, f"_{name}_dense", _PROJECTION, "de")
        for name, x in {"query": query, "value": value, "key": key or value}.items()
    )
    shared_heads = np.arange(num_query_heads) * num_key_value_heads // num_query_heads
    head_indices = context.new_constant("heads", shared_heads.astype(np.int32))
    keys, values = (context.emit("gather", (x, head_indices), {"axis": 2}) for x in (keys, values))
    attended = _emit_attention(context, queries, values, keys, 1 / sqrt(head_dim), settings)
    return _emit_projection(context, attended, "_output_dense", _OUTPUT, "e")


@CONVERTERS.register("Attention")
def convert_attention(
    context: OpContext,
    query: Value,
    value: Value,
    key: Value | None,
    scale: Annotated[Array | None, present_if("use_scale", default=False)],
    *,
    score_mode: Annotated[str, Only("dot", "use score_mode='dot'")] = "dot",
    settings: AttentionSettings,
) -> Value:
    """Convert Attention with one head: softmax(q k' scale) v, where k' is k transposed. An absent scale is 1, an absent
    key is the value."""
    transposed_key = context.transpose(key or value, (0, 2, 1))
    factor = 1.0 if scale is None else float(scale)
    weights = _emit_attention_weights(context, query, transposed_key, factor, settings)
    return context.emit("matmul", (weights, value))


def _emit_projection(context: OpContext, x: Value, part_name: str, equation: str, bias_axes: str) -> Value:
    """Emit the projection of a value by the weights and bias of the inner dense layer ``part_name``."""
    kernel, *bias = context.weights.weights_of_inner_layer(part_name).arrays()
    return _emit_einsum(context, x, equation, kernel, bias[0] if bias else None, bias_axes)


def _emit_attention(
    context: OpContext, query: Value, value: Value, key: Value, scale: float, settings: AttentionSettings
) -> Value:
    """Emit softmax(q k' scale) v for heads (N, rows, heads, features), where k' is k transposed. The result has the
    same layout."""
    q, k, v = (
        context.transpose(x, axes) for x, axes in ((query, (0, 2, 1, 3)), (key, (0, 2, 3, 1)), (value, (0, 2, 1, 3)))
    )
    attended = context.emit("matmul", (_emit_attention_weights(context, q, k, scale, settings), v))
    return context.transpose(attended, (0, 2, 1, 3))


def _emit_attention_weights(
    context: OpContext, queries: Value, keys: Value, scale: float, settings: AttentionSettings
) -> Value:
    """Emit the attention weights softmax(queries keys * ``scale``). With a causal mask the weights of later rows are
    0."""
    queries = queries if scale == 1 else context.emit("mul", (queries, context.scalar(scale)))
    scores = context.emit("matmul", (queries, keys))
    if settings.use_causal_mask:
        allowed = context.new_constant("causal", np.tril(np.ones(scores.shape[-2:], bool)))
        scores = context.emit("where", (allowed, scores, context.scalar(float("-inf"))))
    return context.emit("softmax", (scores,), {"axis": -1})


# ---- Recurrent layers become microc's layers ``rnn``, ``lstm`` and ``gru``. A kernel contains the columns of all gates, in the
# order input, forget, cell, output for LSTM, and update, reset, candidate for GRU.

_GATE_FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "rnn": ("activation",),
    "lstm": ("recurrent_activation", "activation", "activation"),
    "gru": ("recurrent_activation", "activation"),
}
"""Settings that contain the activation functions of a layer of microc, in its order."""
NoInitialState = Annotated[Argument, Only(None, "make the state an input and an output of the model")]


@frozen
class RecurrentSettings:
    """Settings of all recurrent layers, and the arguments of their calls. Only a GRU has ``reset_after``."""

    units: int
    return_sequences: bool = False
    return_state: bool = False
    go_backwards: bool = False
    stateful: bool = False
    reset_after: bool = True
    initial_state: NoInitialState = None


def make_recurrent_converter(op: str) -> Callable[..., Value | tuple[str, ...]]:
    """Return the converter of a layer that becomes microc's layer ``op`` over the second axis (time) of its data."""

    def convert_recurrent(
        context: OpContext, x: Value, kernel: Array, recurrent_kernel: Array, bias: Bias, *, settings: RecurrentSettings
    ) -> Value | tuple[str, ...]:
        # A GRU with reset_after has a row of biases for the data, and a row for the state.
        biases = [] if bias is None else list(np.atleast_2d(bias))
        functions = [context.resolve_activation(context.config[name]) for name in _GATE_FUNCTIONS[op]]
        attrs: dict[str, Attr] = {
            "backwards": settings.go_backwards,
            "returns_rows": settings.return_sequences,
            "optional": ("bias", "recurrent_bias")[: len(biases)],
            "activations": tuple(name for name, _ in functions),
            "activation_parameters": tuple(number for _, parameters in functions for number in parameters),
        }
        if op == "gru":
            attrs["linear_before_reset"] = settings.reset_after
        states = _add_initial_states(context, len(STATES[op]), (x.shape[0], settings.units), settings.stateful)
        weights = [context.add_weight("weight", matrix.T) for matrix in (kernel, recurrent_kernel)]
        constants = [context.add_weight("bias", row) for row in biases]
        results = context.builder.emit_all(op, (x, *weights, *states, *constants), attrs)
        last_states = results[1:] if settings.return_sequences else results
        if settings.stateful:
            for state, last in zip(states, last_states, strict=True):
                context.builder.update(state, last)
        return (results[0], *last_states) if settings.return_state else context.look_up(results[0])

    return convert_recurrent


for _name, _op in {"GRU": "gru", "LSTM": "lstm", "SimpleRNN": "rnn"}.items():
    CONVERTERS.register(_name, weights_of="cell")(make_recurrent_converter(_op))


def _add_initial_states(
    context: OpContext, state_count: int, state_shape: tuple[int, int], is_stateful: bool
) -> tuple[str, ...]:
    """Return the initial states.

    They are constants of zero, or, for a stateful layer, states of the graph, which keep their contents between
    runs."""
    zeros = np.zeros(state_shape, np.float32)
    if not is_stateful:
        return (context.add_weight("zero", zeros),) * state_count
    names = [f"{context.weights.path}/state_{k}" for k in range(state_count)]
    if names[0] in context.builder.types:
        context.refuse(
            "a stateful layer is called twice, expected once", "make the state an input and an output of the model"
        )
    return tuple(context.builder.state(name, zeros) for name in names)


@CONVERTERS.register("Bidirectional")
def convert_bidirectional(
    context: OpContext,
    x: Value,
    *,
    layer: Argument,
    merge_mode: Literal["concat", "sum", "mul", "ave"],
    initial_state: NoInitialState = None,
) -> Value:
    """Convert Bidirectional: run the wrapped layer forwards and backwards in time, and merge both results.

    A sequence that the backward layer returns is reversed first."""
    results = []
    if layer["class_name"] not in CONVERTERS.by_name:
        context.refuse(f"layer: got {layer['class_name']}, expected SimpleRNN, GRU or LSTM", "wrap one of these layers")
    for part, backwards in (("forward_layer", False), ("backward_layer", True)):
        config: dict[str, Any] = {**layer["config"], "go_backwards": backwards, "return_state": False}
        weights = context.weights.weights_of_inner_layer(part)
        value = context.convert_inner_layer({**layer, "config": config}, weights, x)
        if backwards and config.get("return_sequences"):
            value = context.emit("reverse", (value,), {"axes": (1,)})
        results.append(value)
    if merge_mode == "concat":
        return context.emit("concat", results, {"axis": -1})
    total = context.emit("mul" if merge_mode == "mul" else "add", results)
    return context.emit("mul", (total, context.scalar(0.5))) if merge_mode == "ave" else total
