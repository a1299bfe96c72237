# SPDX-License-Identifier: Apache-2.0
"""Conversion of ONNX Runtime's operators of language models: RMS norms, rotary embeddings, attention with a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np

from microc.base.immutable import frozen
from microc.frontend.graph_builder import make_operator_emitter
from microc.frontend.onnx.context import ConverterTable, OpContext
from microc.frontend.signature import Matrix, Only, Rank, SameDtype, Value
from microc.graph.ir import Attr

CONVERTERS = ConverterTable()

# ---- Converters of ONNX Runtime's RMS norms and rotary embeddings.
#
# Source: the documentation of ONNX Runtime's contributed operators.

_FLOAT = ("float32",)


@CONVERTERS.register("SimplifiedLayerNormalization", dtypes=_FLOAT, outputs=1)
@CONVERTERS.register("SimplifiedLayerNormalization", dtypes=_FLOAT, outputs=1, domain="com.microsoft")
def convert_simplified_layer_normalization(
    context: OpContext, x: Value, scale: SameDtype, *, axis: int = -1, epsilon: float = 1e-5
) -> None:
    """Convert SimplifiedLayerNormalization over the last axis: x / sqrt(mean(x ** 2) + epsilon), times a scale."""
    if context.axis(axis, x.rank) != x.rank - 1:
        context.refuse(
            "axis: got several axes to normalise, expected only the last, -1",
            "merge the normalised axes into one by a Reshape before the operator",
        )
    _write_rms_norm(context, x, scale, epsilon)


@CONVERTERS.register("SkipSimplifiedLayerNormalization", dtypes=_FLOAT, domain="com.microsoft")
def convert_skip_simplified_layer_normalization(
    context: OpContext, x: Value, skip: SameDtype, gamma: SameDtype, bias: SameDtype | None, *, epsilon: float = 1e-5
) -> None:
    """Convert SkipSimplifiedLayerNormalization, the RMS norm of two inputs plus a bias; output 3 is this sum."""
    total = context.emit("add", (x, skip))
    if bias is not None:
        total = context.emit("add", (total, bias))
    if any(context.output(position) for position in (1, 2)):
        context.refuse("the outputs Mean and InvStdDev are not supported", "export the model for inference")
    _write_rms_norm(context, total, gamma, epsilon)
    context.result_alias(total, 3)


def _write_rms_norm(context: OpContext, data: Value, scale: Value, epsilon: float) -> None:
    """Write output 0: ``data`` divided by its root mean square over the last axis, times ``scale``."""
    make = make_operator_emitter(context)
    squares: Mapping[str, Attr] = {"axes": (data.rank - 1,), "keepdims": True}
    mean = context.emit("mean", (make("mul", data, data),), squares)
    length = make("rsqrt", make("add", mean, epsilon))
    context.result("mul", (make("mul", data, length), scale))


@CONVERTERS.register("RotaryEmbedding", dtypes=_FLOAT, domain="com.microsoft")
def convert_rotary_embedding(
    context: OpContext,
    x: Annotated[Value, Rank(3, 4)],
    position_ids: Value,
    cos_cache: Matrix,
    sin_cache: Matrix,
    *,
    interleaved: bool = False,
    num_heads: int = 0,
    scale: Annotated[float, Only(1.0, "leave scale at 1")] = 1.0,
) -> None:
    """Convert com.microsoft.RotaryEmbedding, which rotates data by angles that depend on the position.

    Data have shape (batch, S, heads * D) or (batch, heads, S, D), with S positions and D elements of each head."""
    shape, data = x.shape, x
    if x.rank == 3:
        if num_heads < 1 or shape[2] % num_heads:
            what = f"num_heads is {num_heads} for data of shape {shape}"
            context.refuse(what, f"set num_heads to a divisor of {shape[2]}, the last axis")
        split = context.reshape(data, (*shape[:2], num_heads, shape[2] // num_heads))
        data = context.emit("transpose", (split,), {"axes": (0, 2, 1, 3)})
    batch, _, length, _ = data.shape
    positions = position_ids
    # A single position is that of the first row; the others follow it.
    if positions.size == 1 and length > 1:
        steps = context.new_constant("steps", np.arange(length, dtype=positions.dtype))
        positions = context.emit("add", (context.reshape(positions, (1,)), steps))
    if positions.size not in (length, batch * length):
        context.broken(f"position_ids: got {positions.size} elements, expected {length} or {batch * length}")
    cosine, sine = (_gather_angle_rows(context, table, positions, length) for table in (cos_cache, sin_cache))
    result = _rotate_pairs(context, data, (cosine, sine), interleaved=interleaved)
    if x.rank == 3:
        result = context.emit("transpose", (result,), {"axes": (0, 2, 1, 3)})
    context.result_reshape(result, shape)


def _gather_angle_rows(context: OpContext, table: Value, position_ids: Value, position_count: int) -> Value:
    """Gather rows of a table of cosines or sines at ``position_ids``; return the result.

    The result has shape (batch, 1, ``position_count``, elements of a row)."""
    rows = context.emit("gather", (table, context.reshape(position_ids, (position_ids.size,))), {"axis": 0})
    count, half = rows.shape
    return context.reshape(rows, (count // position_count, 1, position_count, half))


def _rotate_pairs(context: OpContext, data: Value, cosine_and_sine: tuple[Value, Value], *, interleaved: bool) -> Value:
    """Rotate pairs of elements along the last axis by angles; return the result.

    ``cosine_and_sine``: the angles' cosines and sines, of shape (..., half), for 2 * half rotated elements. A pair is
    two neighbours if ``interleaved``, else two elements at distance half. Elements after the rotated ones are
    unchanged."""
    shape, half = data.shape, cosine_and_sine[0].shape[3]
    cosine, sine = cosine_and_sine
    if 2 * half > shape[3]:
        context.broken(f"got {half} angles for rows of {shape[3]} elements, expected at most {shape[3] // 2}")
    axis, pairs = (4, (*shape[:3], half, 2)) if interleaved else (3, (*shape[:3], half, 2))
    if interleaved:
        both = context.reshape(context.slice_axis(data, 3, 0, 2 * half), pairs)
        first, second = (context.reshape(context.slice_axis(both, 4, k, k + 1), pairs[:4]) for k in (0, 1))
    else:
        first, second = (context.slice_axis(data, 3, k * half, (k + 1) * half) for k in (0, 1))
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
    return context.emit("concat", (joined, context.slice_axis(data, 3, 2 * half, shape[3])), {"axis": 3})


# ---- ONNX Runtime's GroupQueryAttention: one or several steps of a language model, with a cache of keys and values.
#
# Scores against cached keys and against those of this call are separate products. So the present can overwrite the past in
# place: nothing reads the present, and a cache that is a state is updated without a copy. Source: the documentation of ONNX
# Runtime's contributed operators, ``group_query_attention_helper.h``.

MASKED_SCORE = -1e30
"""Score of masked positions: its exponential is zero beside that of any real score."""
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


@CONVERTERS.register("GroupQueryAttention", dtypes=("float32",), domain="com.microsoft", outputs=3)
def convert_group_query_attention(
    context: OpContext,
    query: Annotated[Value, Rank(3, 3)],
    key: SameDtype | None,
    value: SameDtype | None,
    past_key: SameDtype | None,
    past_value: SameDtype | None,
    seqlens_k: Value,
    total_sequence_length: Value | None,
    cos_cache: Matrix | None,
    sin_cache: Matrix | None,
    *unsupported_inputs: Value | None,
    do_rotary: bool = False,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    qk_output: int = 0,
    rotary_interleaved: bool = False,
    scale: float = 0.0,
    smooth_softmax: int = 0,
    softcap: Annotated[float, Only(0.0, _EXPORT_WITHOUT)] = 0.0,
) -> None:
    """Convert com.microsoft.GroupQueryAttention, which is causal, for a single sequence.

    Inputs: query, key, value (or all three in the first), past key, past value, seqlens_k (index of the last position),
    number of positions, cosines, sines. The caches of past keys and values, of shape (1, heads, P, D), have capacity
    for P positions. The present caches are the past caches with the rows of this call written after the rows in use. If
    the number of positions is a constant above P, the past is full and the present caches are longer."""
    numbers = {"smooth_softmax": smooth_softmax, "qk_output": qk_output, "local_window_size": local_window_size}
    unsupported = [name for name, number in numbers.items() if number > 0]
    if any(value is not None for value in unsupported_inputs):
        unsupported.append("an input after sin_cache (position_ids, attention_bias or later)")
    if unsupported:
        context.refuse(f"{unsupported[0]} is not supported", _EXPORT_WITHOUT)
    heads = _get_attention_sizes(context, query, num_heads, kv_num_heads, is_packed=key is None)
    queries, keys, values = _split_query_key_and_value(context, heads, query, key, value)
    length = _emit_past_length(context, heads, seqlens_k)
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            context.broken("do_rotary is 1 without cos_cache and sin_cache, expected both")
        tables = (cos_cache, sin_cache)
        queries, keys = _rotate_query_and_key(context, heads, length, (queries, keys), tables, rotary_interleaved)
    past = _get_past_caches(context, heads, past_key, past_value)
    rows = heads.query_head_count // heads.kv_head_count * heads.row_count
    factor = scale or float(1 / np.sqrt(heads.head_width))
    scaled_query = context.reshape(
        make_operator_emitter(context)("mul", queries, factor), (heads.kv_head_count, rows, heads.head_width)
    )
    # One batch of products per key head: the queries of its group become rows, (query heads / key heads) * rows of them.
    all_keys, all_values = (
        [context.reshape(x, x.shape[1:]) for x in pair]  # without the batch axis, which is 1
        for pair in ((*past[:1], keys), (*past[1:], values))
    )
    scores = [_emit_batched_matmul(context, scaled_query, x, transpose_right=True) for x in all_keys]
    scores[-1] = _mask_future_keys(context, heads, scores[-1])
    if past:
        scores[0] = _mask_unused_positions(context, scores[0], length)
    joined = context.emit("concat", scores, {"axis": 2}) if past else scores[0]
    shares, first = context.emit("softmax", (joined,), {"axis": 2, "beta": 1.0}), 0
    products: list[Value] = []
    for x in all_values:
        last = first + x.shape[1]
        products.append(_emit_batched_matmul(context, context.slice_axis(shares, 2, first, last), x))
        first = last
    total = context.emit("add", products) if past else products[0]
    apart = context.reshape(total, (1, heads.query_head_count, heads.row_count, heads.head_width))
    rows_of_heads = context.emit("transpose", (apart,), {"axes": (0, 2, 1, 3)})
    context.result_reshape(rows_of_heads, (1, heads.row_count, heads.query_head_count * heads.head_width))
    _write_present_caches(context, past, (keys, values), length, total_sequence_length)


def _get_attention_sizes(
    context: OpContext, query: Value, num_heads: int, kv_num_heads: int, *, is_packed: bool
) -> _AttentionSizes:
    """Return the sizes of the attention. ``is_packed``: ``query`` has the rows of key and value, too."""
    parts = num_heads + 2 * kv_num_heads if is_packed else num_heads
    if min(num_heads, kv_num_heads) < 1 or num_heads % kv_num_heads or query.shape[2] % parts:
        context.broken(
            f"got query of shape {query.shape}, num_heads {num_heads} and kv_num_heads {kv_num_heads}, expected three "
            f"axes, the last a multiple of {parts} heads, and a kv_num_heads that divides num_heads"
        )
    if query.shape[0] != 1:
        context.refuse(f"got a batch of {query.shape[0]} sequences, expected one", "export the model with a batch of 1")
    return _AttentionSizes(num_heads, kv_num_heads, query.shape[1], query.shape[2] // parts)


def _split_query_key_and_value(
    context: OpContext, sizes: _AttentionSizes, query: Value, key: Value | None, value: Value | None
) -> list[Value]:
    """Return query, key and value split into heads.

    With S new positions and D elements of a head, the query has shape (1, query heads, S, D); key and value have shape
    (1, kv heads, S, D). All three are parts of ``query`` if ``key`` is absent."""
    counts, first = (sizes.query_head_count, sizes.kv_head_count, sizes.kv_head_count), 0
    parts = (query, key, value)
    split_parts = []
    for part, count in zip(parts, counts, strict=True):
        last = first + count * sizes.head_width
        part = context.slice_axis(query, 2, first, last) if key is None else part
        if part is None:
            context.broken("got a key without a value, expected both or none")
        first = last
        expected = (1, sizes.row_count, count * sizes.head_width)
        if part.shape != expected:
            context.broken(f"{str(part)!r}: got shape {part.shape}, expected {expected}")
        split = context.reshape(part, (1, sizes.row_count, count, sizes.head_width))
        split_parts.append(context.emit("transpose", (split,), {"axes": (0, 2, 1, 3)}))
    return split_parts


def _emit_past_length(context: OpContext, sizes: _AttentionSizes, seqlens_k: Value) -> Value:
    """Emit the number of cached positions in use, int32 of shape (1,); return it.

    It is the index of the last position (``seqlens_k``) minus the other rows of this call."""
    if seqlens_k.size != 1:
        context.broken(f"seqlens_k: got shape {seqlens_k.shape}, expected one element")
    last = context.emit("cast", (context.reshape(seqlens_k, (1,)),), {"dtype": "int32"})
    if sizes.row_count == 1:
        return last
    return context.emit("sub", (last, context.scalar(sizes.row_count - 1, "int32")))


def _rotate_query_and_key(
    context: OpContext,
    sizes: _AttentionSizes,
    past_length: Value,
    query_and_key: Sequence[Value],
    tables: Sequence[Value],
    interleaved: bool,
) -> list[Value]:
    """Rotate query and key by the angles of their positions; return the results.

    ``tables``: cosines and sines, a row for each position."""
    positions = past_length
    if sizes.row_count > 1:
        steps = context.new_constant("steps", np.arange(sizes.row_count, dtype=np.int32))
        positions = context.emit("add", (past_length, steps))
    cosine, sine = (_gather_angle_rows(context, table, positions, sizes.row_count) for table in tables)
    return [_rotate_pairs(context, value, (cosine, sine), interleaved=interleaved) for value in query_and_key]


def _get_past_caches(
    context: OpContext, sizes: _AttentionSizes, past_key: Value | None, past_value: Value | None
) -> tuple[Value, ...]:
    """Return the caches of past keys and past values; an empty tuple if the operator has none."""
    if past_key is None:
        return ()
    if past_value is None:
        context.broken("got past_key without past_value, expected both or none")
    for cache in (past_key, past_value):
        shape = cache.shape
        if len(shape) != 4 or shape[:2] != (1, sizes.kv_head_count) or shape[3] != sizes.head_width:
            expected = f"(1, {sizes.kv_head_count}, length, {sizes.head_width})"
            context.broken(f"past_key or past_value: got shape {shape}, expected {expected}")
    return past_key, past_value


def _emit_batched_matmul(context: OpContext, left: str, right: Value, *, transpose_right: bool = False) -> Value:
    """Emit a batched matrix product; return it. The right matrices are transposed first if ``transpose_right``."""
    right = context.emit("transpose", (right,), {"axes": (0, 2, 1)}) if transpose_right else right
    return context.emit("matmul", (left, right))


def _mask_unused_positions(context: OpContext, scores: Value, past_length: Value) -> Value:
    """Replace the scores of cache positions that are not in use by MASKED_SCORE; return the result.

    ``scores``: of shape (heads, rows, P) for a cache of P positions. ``past_length``: the number of positions in
    use."""
    count = scores.shape[2]
    positions = context.new_constant("places", np.arange(count, dtype=np.int32).reshape(1, 1, count))
    make = make_operator_emitter(context)
    return context.look_up(make("where", make("less", positions, past_length), scores, MASKED_SCORE))


def _mask_future_keys(context: OpContext, sizes: _AttentionSizes, scores: Value) -> Value:
    """Replace the scores of keys at later positions than the query's by MASKED_SCORE; return the result.

    ``scores``: scores between the rows of this call."""
    if sizes.row_count == 1:
        return scores
    groups = sizes.query_head_count // sizes.kv_head_count
    seen = np.tile(np.tril(np.ones((sizes.row_count, sizes.row_count), bool)), (groups, 1))[None]
    make = make_operator_emitter(context)
    return context.look_up(make("where", context.new_constant("seen", seen), scores, MASKED_SCORE))


def _write_present_caches(
    context: OpContext,
    past_caches: Sequence[Value],
    new_keys_and_values: Sequence[Value],
    past_length: Value,
    total_sequence_length: Value | None,
) -> None:
    """Write outputs 1 and 2: the past caches, with the keys and values of this call after the positions in use."""
    for position, value in enumerate(new_keys_and_values):
        if not context.output(position + 1):
            continue
        if not past_caches:
            context.result_alias(value, position + 1)
        elif _must_cache_grow(context, past_caches[0].shape[2], value.shape[2], total_sequence_length):
            context.result("concat", (past_caches[position], value), {"axis": 2}, position + 1)
        else:
            begin = context.emit("pad", (past_length,), {"padding": ((2, 1),), "value": 0})
            context.result("dynamic_update_slice", (past_caches[position], value, begin), {}, position + 1)


def _must_cache_grow(
    context: OpContext, past_capacity: int, new_row_count: int, total_sequence_length: Value | None
) -> bool:
    """Test whether the number of positions is a constant above ``past_capacity``, so that the cache must grow."""
    constant = None if total_sequence_length is None else total_sequence_length.constant
    if constant is None or constant.size != 1 or int(constant.reshape(())) <= past_capacity:
        return False
    total, expected = int(constant.reshape(())), past_capacity + new_row_count
    if total != expected:
        addends = f"{past_capacity} of the past and {new_row_count} of this call"
        context.broken(f"total_sequence_length is {total}, expected {expected}: {addends}")
    return True
