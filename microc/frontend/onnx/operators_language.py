"""Conversion of ONNX Runtime's operators of language models: RMS norms, rotary embeddings, attention with a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from microc.base.immutable import frozen
from microc.frontend.formulas import make_operator_emitter
from microc.frontend.onnx.context import Converter, OpContext
from microc.graph.ir import Attr

# ---- Converters of ONNX Runtime's RMS norms and rotary embeddings.
#
# Source: the documentation of ONNX Runtime's contributed operators.

_FLOAT = ("float32",)


def convert_simplified_layer_normalization(context: OpContext) -> None:
    """Convert SimplifiedLayerNormalization over the last axis: x / sqrt(mean(x ** 2) + epsilon), times a scale."""
    attributes, data = context.operator.attributes, context.operand(0)
    rank = len(context.type(data).shape)
    if context.axis(attributes.integer("axis", -1), rank) != rank - 1:
        context.refuse(
            "axis: got several axes to normalise, expected only the last, -1",
            "merge the normalised axes into one by a Reshape before the operator",
        )
    context.refuse_extra_outputs()
    _write_rms_norm(context, data, context.operand(1))


def convert_skip_simplified_layer_normalization(context: OpContext) -> None:
    """Convert SkipSimplifiedLayerNormalization, the RMS norm of two inputs plus a bias; output 3 is this sum."""
    total = context.emit("add", (context.operand(0), context.operand(1)))
    if context.has_input(3):
        total = context.emit("add", (total, context.operand(3)))
    if any(context.output(position) for position in (1, 2)):
        context.refuse("the outputs Mean and InvStdDev are not supported", "export the model for inference")
    _write_rms_norm(context, total, context.operand(2))
    context.result_alias(total, 3)


def _write_rms_norm(context: OpContext, data_name: str, scale_name: str) -> None:
    """Write output 0: ``data_name`` divided by its root mean square over the last axis, times input ``scale_name``."""
    make = make_operator_emitter(context)
    squares: Mapping[str, Attr] = {"axes": (len(context.type(data_name).shape) - 1,), "keepdims": True}
    mean = context.emit("mean", (make("mul", data_name, data_name),), squares)
    length = make("rsqrt", make("add", mean, context.operator.attributes.real("epsilon", 1e-5)))
    context.result("mul", (make("mul", data_name, length), scale_name))


def convert_rotary_embedding(context: OpContext) -> None:
    """Convert com.microsoft.RotaryEmbedding, which rotates data by angles that depend on the position.

    Data have shape (batch, S, heads * D) or (batch, heads, S, D), with S positions and D elements of each head."""
    attributes, shape = context.operator.attributes, context.shape(0)
    heads = attributes.integer("num_heads", 0) or 1
    if len(shape) == 3 and (not attributes.integer("num_heads", 0) or shape[2] % heads):
        what = f"num_heads is {attributes.integer('num_heads', 0)} for data of shape {shape}"
        context.refuse(what, f"set num_heads to a divisor of {shape[2]}, the last axis")
    if len(shape) not in (3, 4) or attributes.real("scale", 1.0) != 1.0:
        context.refuse(
            f"got data of shape {shape} and scale {attributes.real('scale', 1.0)}, expected 3 or 4 axes and scale 1",
            "give data of three or four axes and leave scale at 1",
        )
    data = context.value(0)
    if len(shape) == 3:
        split = context.reshape(data, (*shape[:2], heads, shape[2] // heads))
        data = context.emit("transpose", (split,), {"axes": (0, 2, 1, 3)})
    batch, _, length, _ = context.type(data).shape
    positions = context.value(1)
    # A single position is that of the first row; the others follow it.
    if context.type(positions).size == 1 and length > 1:
        steps = context.new_constant("steps", np.arange(length, dtype=context.type(positions).dtype))
        positions = context.emit("add", (context.reshape(positions, (1,)), steps))
    count = context.type(positions).size
    if count not in (length, batch * length):
        context.broken(f"position_ids: got {count} elements, expected {length} or {batch * length}")
    angles = [gather_angle_rows(context, position, positions, length) for position in (2, 3)]
    result = rotate_pairs(context, data, (angles[0], angles[1]), interleaved=attributes.flag("interleaved"))
    if len(shape) == 3:
        result = context.emit("transpose", (result,), {"axes": (0, 2, 1, 3)})
    context.result_reshape(result, shape)


def gather_angle_rows(context: OpContext, table_input_index: int, position_ids: str, position_count: int) -> str:
    """Gather rows of a table of cosines or sines at ``position_ids``; return the name of the result.

    ``table_input_index``: index of the ONNX input with the table. The result has shape (batch, 1, ``position_count``,
    elements of a row)."""
    table = context.value(table_input_index)
    if len(context.type(table).shape) != 2:
        context.broken(f"input {table_input_index}: got shape {context.type(table).shape}, expected two axes")
    rows = context.emit(
        "gather", (table, context.reshape(position_ids, (context.type(position_ids).size,))), {"axis": 0}
    )
    count, half = context.type(rows).shape
    return context.reshape(rows, (count // position_count, 1, position_count, half))


def rotate_pairs(context: OpContext, data_name: str, cosine_and_sine: tuple[str, str], *, interleaved: bool) -> str:
    """Rotate pairs of elements along the last axis by angles; return the result's name.

    ``cosine_and_sine``: names of the angles' cosines and sines, of shape (..., half), for 2 * half rotated elements.
    A pair is two neighbours if ``interleaved``, else two elements at distance half. Elements after the rotated ones
    are unchanged."""
    shape, half = context.type(data_name).shape, context.type(cosine_and_sine[0]).shape[3]
    cosine, sine = cosine_and_sine
    if 2 * half > shape[3]:
        context.broken(f"got {half} angles for rows of {shape[3]} elements, expected at most {shape[3] // 2}")
    axis, pairs = (4, (*shape[:3], half, 2)) if interleaved else (3, (*shape[:3], half, 2))
    if interleaved:
        both = context.reshape(slice_axis(context, data_name, 3, 0, 2 * half), pairs)
        first, second = (context.reshape(slice_axis(context, both, 4, k, k + 1), pairs[:4]) for k in (0, 1))
    else:
        first, second = (slice_axis(context, data_name, 3, k * half, (k + 1) * half) for k in (0, 1))
    make = make_operator_emitter(context)
    rotated = [
        make("sub", make("mul", first, cosine), make("mul", second, sine)),
        make("add", make("mul", first, sine), make("mul", second, cosine)),
    ]
    if interleaved:
        rotated = [context.reshape(value, (*shape[:3], half, 1)) for value in rotated]
    joined = context.emit("concat", rotated, {"axis": axis})
    joined = context.reshape(joined, (*shape[:3], 2 * half))
    if 2 * half == shape[3]:
        return joined
    return context.emit("concat", (joined, slice_axis(context, data_name, 3, 2 * half, shape[3])), {"axis": 3})


def slice_axis(context: OpContext, value_name: str, axis: int, start_index: int, end_index: int) -> str:
    """Slice elements ``start_index`` to ``end_index`` - 1 along ``axis``; return the result's name."""
    shape = context.type(value_name).shape
    if (start_index, end_index) == (0, shape[axis]):
        return value_name
    begin = tuple(start_index if k == axis else 0 for k in range(len(shape)))
    end = tuple(end_index if k == axis else extent for k, extent in enumerate(shape))
    return context.emit("slice", (value_name,), {"begin": begin, "end": end, "strides": (1,) * len(shape)})


LANGUAGE_CONVERTERS: Mapping[str, Converter] = {
    "SimplifiedLayerNormalization": Converter(convert_simplified_layer_normalization, _FLOAT),
    "SkipSimplifiedLayerNormalization": Converter(convert_skip_simplified_layer_normalization, _FLOAT),
    "RotaryEmbedding": Converter(convert_rotary_embedding, _FLOAT),
}
"""Converters of the domain ``com.microsoft``; exporters write the first one without a domain, too."""


# ---- ONNX Runtime's GroupQueryAttention: one or several steps of a language model, with a cache of keys and values.
#
# Scores against cached keys and against those of this call are separate products. So the present can overwrite the past in
# place: nothing reads the present, and a cache that is a state is updated without a copy. Source: the documentation of ONNX
# Runtime's contributed operators, ``group_query_attention_helper.h``.

MASKED_SCORE = -1e30
"""Score of masked positions: its exponential is zero beside that of any real score."""
_QUERY, _KEY, _VALUE, _PAST, _LAST, _TOTAL, _COSINES, FIRST_UNSUPPORTED = 0, 1, 2, 3, 5, 6, 7, 9
_EXPORT_WITHOUT = "export the model without it"


@frozen
class _AttentionSizes:
    """Sizes of an attention layer.

    ``query_head_count``: heads of the query. ``kv_head_count``: heads of key and value; each is used by a group of
    query heads. ``row_count``: number of new positions, which one call computes. ``head_width``: elements of a head."""

    query_head_count: int
    kv_head_count: int
    row_count: int
    head_width: int


def convert_group_query_attention(context: OpContext) -> None:
    """Convert com.microsoft.GroupQueryAttention, which is causal, for a single sequence.

    Inputs: query, key, value (or all three in the first), past key, past value, seqlens_k (index of the last position),
    number of positions, cosines, sines. The caches of past keys and values, of shape (1, heads, P, D), have capacity
    for P positions. The present caches are the past caches with the rows of this call written after the rows in use. If
    the number of positions is a constant above P, the past is full and the present caches are longer."""
    _refuse_unsupported_variants(context)
    heads, (query, key, value) = _read_sizes_and_split_heads(context)
    length = _emit_past_length(context, heads)
    if context.operator.attributes.flag("do_rotary"):
        query, key = _rotate_query_and_key(context, heads, length, (query, key))
    past = _get_past_cache_names(context, heads)
    rows = heads.query_head_count // heads.kv_head_count * heads.row_count
    scale = context.operator.attributes.real("scale", 0.0) or float(1 / np.sqrt(heads.head_width))
    scaled_query = context.reshape(
        make_operator_emitter(context)("mul", query, scale), (heads.kv_head_count, rows, heads.head_width)
    )
    # One batch of products per key head: the queries of its group become rows, (query heads / key heads) * rows of them.
    keys, values = (
        [context.reshape(x, context.type(x).shape[1:]) for x in pair]  # without the batch axis, which is 1
        for pair in ((*past[:1], key), (*past[1:], value))
    )
    scores = [_emit_batched_matmul(context, scaled_query, x, transpose_right=True) for x in keys]
    scores[-1] = _mask_future_keys(context, heads, scores[-1])
    if past:
        scores[0] = _mask_unused_positions(context, scores[0], length)
    joined = context.emit("concat", scores, {"axis": 2}) if past else scores[0]
    shares, first, total = context.emit("softmax", (joined,), {"axis": 2, "beta": 1.0}), 0, ""
    for x in values:
        last = first + context.type(x).shape[1]
        partial = _emit_batched_matmul(context, slice_axis(context, shares, 2, first, last), x)
        total, first = context.emit("add", (total, partial)) if total else partial, last
    apart = context.reshape(total, (1, heads.query_head_count, heads.row_count, heads.head_width))
    rows_of_heads = context.emit("transpose", (apart,), {"axes": (0, 2, 1, 3)})
    context.result_reshape(rows_of_heads, (1, heads.row_count, heads.query_head_count * heads.head_width))
    _write_present_caches(context, past, (key, value), length)


def _refuse_unsupported_variants(context: OpContext) -> None:
    """Raise UnsupportedError if the attention has an attribute or an input that is not supported."""
    attributes = context.operator.attributes
    numbers = {name: attributes.integer(name, 0) for name in ("smooth_softmax", "qk_output", "local_window_size")}
    unsupported = [name for name, number in numbers.items() if number > 0]
    unsupported += ["softcap"] if attributes.real("softcap", 0.0) else []
    unsupported += (
        ["an input after sin_cache (position_ids, attention_bias or later)"]
        if any(map(context.has_input, range(FIRST_UNSUPPORTED, context.input_count())))
        else []
    )
    if unsupported:
        context.refuse(f"{unsupported[0]} is not supported", _EXPORT_WITHOUT)
    context.refuse_extra_outputs(3)


def _read_sizes_and_split_heads(context: OpContext) -> tuple[_AttentionSizes, tuple[str, str, str]]:
    """Return the sizes of the attention, and the names of query, key and value split into heads.

    With S new positions and D elements of a head, the query has shape (1, query heads, S, D); key and value have shape
    (1, kv heads, S, D)."""
    attributes, shape = context.operator.attributes, context.shape(_QUERY)
    queries, kv_head_count = attributes.integer("num_heads"), attributes.integer("kv_num_heads")
    packed = not context.has_input(_KEY)
    parts = queries + 2 * kv_head_count if packed else queries
    if min(queries, kv_head_count) < 1 or queries % kv_head_count or len(shape) != 3 or shape[2] % parts:
        context.broken(
            f"got query of shape {shape}, num_heads {queries} and kv_num_heads {kv_head_count}, expected three axes, "
            f"the last a multiple of {parts} heads, and a kv_num_heads that divides num_heads"
        )
    if shape[0] != 1:
        context.refuse(f"got a batch of {shape[0]} sequences, expected one", "export the model with a batch of 1")
    heads = _AttentionSizes(queries, kv_head_count, shape[1], shape[2] // parts)

    def split_into_heads(value_name: str, head_count: int) -> str:
        """Reshape and transpose (1, S, heads * D) to (1, heads, S, D); return the result's name."""
        if context.type(value_name).shape != (1, heads.row_count, head_count * heads.head_width):
            expected = (1, heads.row_count, head_count * heads.head_width)
            context.broken(f"{value_name!r}: got shape {context.type(value_name).shape}, expected {expected}")
        split = context.reshape(value_name, (1, heads.row_count, head_count, heads.head_width))
        return context.emit("transpose", (split,), {"axes": (0, 2, 1, 3)})

    counts, first = (queries, kv_head_count, kv_head_count), 0
    if not packed:
        query, key, value = (
            split_into_heads(context.operand(k), n) for k, n in zip((_QUERY, _KEY, _VALUE), counts, strict=True)
        )
        return heads, (query, key, value)
    parts_by_role = []
    for count in counts:
        last = first + count * heads.head_width
        parts_by_role.append(split_into_heads(slice_axis(context, context.value(_QUERY), 2, first, last), count))
        first = last
    return heads, (parts_by_role[0], parts_by_role[1], parts_by_role[2])


def _emit_past_length(context: OpContext, sizes: _AttentionSizes) -> str:
    """Emit the number of cached positions in use, int32 of shape (1,); return its name.

    It is the index of the last position (seqlens_k) minus the other rows of this call."""
    if context.type(context.value(_LAST)).size != 1:
        context.broken(f"seqlens_k: got shape {context.shape(_LAST)}, expected one element")
    last = context.emit("cast", (context.reshape(context.value(_LAST), (1,)),), {"dtype": "int32"})
    if sizes.row_count == 1:
        return last
    return context.emit("sub", (last, context.scalar(sizes.row_count - 1, "int32")))


def _rotate_query_and_key(
    context: OpContext, sizes: _AttentionSizes, past_length: str, query_and_key_names: Sequence[str]
) -> list[str]:
    """Rotate query and key by the angles of their positions; return the names of the results."""
    positions = past_length
    if sizes.row_count > 1:
        steps = context.new_constant("steps", np.arange(sizes.row_count, dtype=np.int32))
        positions = context.emit("add", (past_length, steps))
    cosine, sine = (gather_angle_rows(context, k, positions, sizes.row_count) for k in (_COSINES, _COSINES + 1))
    interleaved = context.operator.attributes.flag("rotary_interleaved")
    return [rotate_pairs(context, value, (cosine, sine), interleaved=interleaved) for value in query_and_key_names]


def _get_past_cache_names(context: OpContext, sizes: _AttentionSizes) -> tuple[str, ...]:
    """Return the names of the caches of past keys and past values; an empty tuple if the operator has none."""
    if not context.has_input(_PAST):
        return ()
    caches = context.operand(_PAST), context.operand(_PAST + 1)
    for name in caches:
        shape = context.type(name).shape
        if len(shape) != 4 or shape[:2] != (1, sizes.kv_head_count) or shape[3] != sizes.head_width:
            expected = f"(1, {sizes.kv_head_count}, length, {sizes.head_width})"
            context.broken(f"past_key or past_value: got shape {shape}, expected {expected}")
    return caches


def _emit_batched_matmul(context: OpContext, left_name: str, right_name: str, *, transpose_right: bool = False) -> str:
    """Emit a batched matrix product; return its name.

    The right matrices are transposed first if ``transpose_right``."""
    right = context.emit("transpose", (right_name,), {"axes": (0, 2, 1)}) if transpose_right else right_name
    return context.emit("matmul", (left_name, right))


def _mask_unused_positions(context: OpContext, scores_name: str, past_length: str) -> str:
    """Replace the scores of cache positions that are not in use by MASKED_SCORE; return the result's name.

    ``scores_name``: scores of shape (heads, rows, P) for a cache of P positions. ``past_length``: name of the number of
    positions in use."""
    count = context.type(scores_name).shape[2]
    positions = context.new_constant("places", np.arange(count, dtype=np.int32).reshape(1, 1, count))
    make = make_operator_emitter(context)
    return make("where", make("less", positions, past_length), scores_name, MASKED_SCORE)


def _mask_future_keys(context: OpContext, sizes: _AttentionSizes, scores_name: str) -> str:
    """Replace the scores of keys at later positions than the query's by MASKED_SCORE; return the result's name.

    ``scores_name``: scores between the rows of this call."""
    if sizes.row_count == 1:
        return scores_name
    groups = sizes.query_head_count // sizes.kv_head_count
    seen = np.tile(np.tril(np.ones((sizes.row_count, sizes.row_count), bool)), (groups, 1))[None]
    return make_operator_emitter(context)("where", context.new_constant("seen", seen), scores_name, MASKED_SCORE)


def _write_present_caches(
    context: OpContext, past_cache_names: Sequence[str], new_keys_and_values: Sequence[str], past_length: str
) -> None:
    """Write outputs 1 and 2: the past caches, with the keys and values of this call after the positions in use."""
    for position, value in enumerate(new_keys_and_values):
        if not context.output(position + 1):
            continue
        if not past_cache_names:
            context.result_alias(value, position + 1)
        elif _must_cache_grow(context, context.type(past_cache_names[0]).shape[2], context.type(value).shape[2]):
            context.result("concat", (past_cache_names[position], value), {"axis": 2}, position + 1)
        else:
            begin = context.emit("pad", (past_length,), {"padding": ((2, 1),), "value": 0})
            context.result("dynamic_update_slice", (past_cache_names[position], value, begin), {}, position + 1)


def _must_cache_grow(context: OpContext, past_capacity: int, new_row_count: int) -> bool:
    """Test whether the number of positions is a constant above ``past_capacity``, so that the cache must grow."""
    total = context.builder.consts.get(context.value(_TOTAL)) if context.has_input(_TOTAL) else None
    if total is None or total.size != 1 or int(total.reshape(())) <= past_capacity:
        return False
    if int(total.reshape(())) != past_capacity + new_row_count:
        what = f"total_sequence_length is {int(total.reshape(()))}"
        context.broken(
            f"{what}, expected {past_capacity + new_row_count}: {past_capacity} of the past and {new_row_count} of this call"
        )
    return True


ATTENTION_CONVERTERS: Mapping[str, Converter] = {
    "GroupQueryAttention": Converter(convert_group_query_attention, ("float32",))
}
"""Converters of the domain ``com.microsoft``."""
