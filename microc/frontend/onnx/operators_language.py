"""ONNX operators of language models: attention, norms, rotary embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from microc.base.immutable import frozen
from microc.frontend.formulas import composer
from microc.frontend.onnx.context import Application, Spelling
from microc.graph.ir import Attr

# ---- Spellings of ONNX Runtime's operators of language models: norms by the root of the mean square, positions as
# rotations.
#
# Source: the documentation of ONNX Runtime's contributed operators.

_FLOAT = ("float32",)


def root_mean_square_norm(application: Application) -> None:
    """SimplifiedLayerNormalization over the last axis: x / sqrt(mean(x**2) + epsilon), scaled."""
    attributes, data = application.operator.attributes, application.operand(0)
    rank = len(application.type(data).shape)
    if application.axis(attributes.integer("axis", -1), rank) != rank - 1:
        application.refuse("a norm over more than the last axis", "reshape before it")
    application.only_output()
    _scaled(application, data, application.operand(1))


def skip_root_mean_square_norm(application: Application) -> None:
    """SkipSimplifiedLayerNormalization: the same of a sum, which is the fourth output."""
    total = application.emit("add", (application.operand(0), application.operand(1)))
    if application.has(3):
        total = application.emit("add", (total, application.operand(3)))
    if any(application.output(position) for position in (1, 2)):
        application.refuse("means and variances are asked for", "export the model for inference")
    _scaled(application, total, application.operand(2))
    application.result_alias(total, 3)


def _scaled(application: Application, data: str, scale: str) -> None:
    make = composer(application)
    squares: Mapping[str, Attr] = {"axes": (len(application.type(data).shape) - 1,), "keepdims": True}
    mean = application.emit("mean", (make("mul", data, data),), squares)
    length = make("rsqrt", make("add", mean, application.operator.attributes.real("epsilon", 1e-5)))
    application.result("mul", (make("mul", data, length), scale))


def rotary_embedding(application: Application) -> None:
    """com.microsoft.RotaryEmbedding: data (B, S, heads * D) or (B, heads, S, D), turned by the angles of their positions."""
    attributes, shape = application.operator.attributes, application.shape(0)
    heads = attributes.integer("num_heads", 0) or 1
    if len(shape) == 3 and (not attributes.integer("num_heads", 0) or shape[2] % heads):
        application.refuse(f"data of shape {shape} without num_heads", "write the attribute")
    if len(shape) not in (3, 4) or attributes.real("scale", 1.0) != 1.0:
        application.refuse(f"data of shape {shape}, or a scale", "four axes, and no scale")
    data = application.value(0)
    if len(shape) == 3:
        apart = application.reshaped(data, (*shape[:2], heads, shape[2] // heads))
        data = application.emit("transpose", (apart,), {"axes": (0, 2, 1, 3)})
    batch, _, length, _ = application.type(data).shape
    places = application.value(1)
    if application.type(places).size == 1 and length > 1:
        steps = application.new_constant("steps", np.arange(length, dtype=application.type(places).dtype))
        places = application.emit("add", (application.reshaped(places, (1,)), steps))
    count = application.type(places).size
    if count not in (length, batch * length):
        application.broken(f"{count} positions for {batch} x {length} rows")
    angles = [angles_at(application, position, places, length) for position in (2, 3)]
    result = turned(application, data, (angles[0], angles[1]), interleaved=attributes.flag("interleaved"))
    if len(shape) == 3:
        result = application.emit("transpose", (result,), {"axes": (0, 2, 1, 3)})
    application.result_reshape(result, shape)


def angles_at(application: Application, position: int, places: str, length: int) -> str:
    """The table of operand ``position`` (cosines or sines), a row for every place, as (batch, 1, S, half)."""
    table = application.value(position)
    if len(application.type(table).shape) != 2:
        application.broken(f"angles of shape {application.type(table).shape}")
    rows = application.emit(
        "gather", (table, application.reshaped(places, (application.type(places).size,))), {"axis": 0}
    )
    count, half = application.type(rows).shape
    return application.reshaped(rows, (count // length, 1, length, half))


def turned(application: Application, data: str, angles: tuple[str, str], *, interleaved: bool) -> str:
    """Pairs of numbers along the last axis, neighbours or half the turned width apart, turned by angles; the others stay."""
    shape, half = application.type(data).shape, application.type(angles[0]).shape[3]
    cosine, sine = angles
    if 2 * half > shape[3]:
        application.broken(f"rows of {shape[3]} turned by {half} angles")
    axis, pairs = (4, (*shape[:3], half, 2)) if interleaved else (3, (*shape[:3], half, 2))
    if interleaved:
        both = application.reshaped(part(application, data, 3, 0, 2 * half), pairs)
        first, second = (application.reshaped(part(application, both, 4, k, k + 1), pairs[:4]) for k in (0, 1))
    else:
        first, second = (part(application, data, 3, k * half, (k + 1) * half) for k in (0, 1))
    make = composer(application)
    new = [
        make("sub", make("mul", first, cosine), make("mul", second, sine)),
        make("add", make("mul", first, sine), make("mul", second, cosine)),
    ]
    if interleaved:
        new = [application.reshaped(value, (*shape[:3], half, 1)) for value in new]
    joined = application.emit("concat", new, {"axis": axis})
    joined = application.reshaped(joined, (*shape[:3], 2 * half))
    if 2 * half == shape[3]:
        return joined
    return application.emit("concat", (joined, part(application, data, 3, 2 * half, shape[3])), {"axis": 3})


def part(application: Application, data: str, axis: int, first: int, last: int) -> str:
    """Elements ``first`` to ``last`` (not included) along an axis."""
    shape = application.type(data).shape
    if (first, last) == (0, shape[axis]):
        return data
    begin = tuple(first if k == axis else 0 for k in range(len(shape)))
    end = tuple(last if k == axis else extent for k, extent in enumerate(shape))
    return application.emit("slice", (data,), {"begin": begin, "end": end, "strides": (1,) * len(shape)})


LANGUAGE_SPELLINGS: Mapping[str, Spelling] = {
    "SimplifiedLayerNormalization": Spelling(root_mean_square_norm, _FLOAT),
    "SkipSimplifiedLayerNormalization": Spelling(skip_root_mean_square_norm, _FLOAT),
    "RotaryEmbedding": Spelling(rotary_embedding, _FLOAT),
}
"""Of the domain ``com.microsoft``; the first is written without a domain, too."""


# ---- Spelling of ONNX Runtime's GroupQueryAttention: one step of a language model, or several, with a cache of keys
# and values.
#
# Queries meet the keys of the past and those of this call apart, so that the present is written where the past lies and nothing
# reads it: a cache that is a state is updated in place. Source: the documentation of ONNX Runtime's contributed operators,
# ``group_query_attention_helper.h``.

_NEVER = -1e30
"""A score whose exponential is zero beside any other."""
_QUERY, _KEY, _VALUE, _PAST, _LAST, _TOTAL, _COSINES, _OTHERS = 0, 1, 2, 3, 5, 6, 7, 9
_WITHOUT = "export the model without it"


@frozen
class _Heads:
    """Heads of queries, heads of keys and values, which groups of queries share, rows of this call, numbers of a head."""

    queries: int
    shared: int
    rows: int
    width: int


def group_query_attention(application: Application) -> None:
    """com.microsoft.GroupQueryAttention of one sequence, causal: query, key, value (or all three in the first), past key, past
    value, the last position (seqlens_k), the number of positions, cosines, sines.

    The past (1, heads, P, D) has room for P positions; rows of this call lie behind those that it holds, and the present is the
    past with them. Where the number of positions is a constant beyond P, the past is full, and the present is longer.
    """
    _refuse_variants(application)
    heads, (query, key, value) = _split(application)
    length = _held(application, heads)
    if application.operator.attributes.flag("do_rotary"):
        query, key = _rotated(application, heads, length, (query, key))
    past = _past(application, heads)
    rows = heads.queries // heads.shared * heads.rows
    scale = application.operator.attributes.real("scale", 0.0) or float(1 / np.sqrt(heads.width))
    asked = application.reshaped(composer(application)("mul", query, scale), (heads.shared, rows, heads.width))
    keys, values = (
        [application.reshaped(x, _planes(application, x)) for x in pair]
        for pair in ((*past[:1], key), (*past[1:], value))
    )
    scores = [_product(application, asked, x, turn=True) for x in keys]
    scores[-1] = _causal(application, heads, scores[-1])
    if past:
        scores[0] = _of_held(application, scores[0], length)
    joined = application.emit("concat", scores, {"axis": 2}) if past else scores[0]
    shares, first, total = application.emit("softmax", (joined,), {"axis": 2, "beta": 1.0}), 0, ""
    for x in values:
        last = first + application.type(x).shape[1]
        found = _product(application, part(application, shares, 2, first, last), x)
        total, first = application.emit("add", (total, found)) if total else found, last
    apart = application.reshaped(total, (1, heads.queries, heads.rows, heads.width))
    together = application.emit("transpose", (apart,), {"axes": (0, 2, 1, 3)})
    application.result_reshape(together, (1, heads.rows, heads.queries * heads.width))
    _present(application, past, (key, value), length)


def _refuse_variants(application: Application) -> None:
    attributes = application.operator.attributes
    numbers = {name: attributes.integer(name, 0) for name in ("smooth_softmax", "qk_output", "local_window_size")}
    asked = [name for name, number in numbers.items() if number > 0]
    asked += ["softcap"] if attributes.real("softcap", 0.0) else []
    asked += (
        ["position_ids, attention_bias or more"]
        if any(map(application.has, range(_OTHERS, application.count())))
        else []
    )
    if asked:
        application.refuse(f"attention with {asked[0]}", _WITHOUT)
    application.only_output(3)


def _split(application: Application) -> tuple[_Heads, tuple[str, str, str]]:
    """Query (1, heads, S, D), key and value (1, shared heads, S, D)."""
    attributes, shape = application.operator.attributes, application.shape(_QUERY)
    queries, shared = attributes.integer("num_heads"), attributes.integer("kv_num_heads")
    packed = not application.has(_KEY)
    parts = queries + 2 * shared if packed else queries
    if min(queries, shared) < 1 or queries % shared or len(shape) != 3 or shape[2] % parts:
        application.broken(f"data of shape {shape} for {queries} heads that share {shared}")
    if shape[0] != 1:
        application.refuse(f"{shape[0]} sequences", "one sequence (a batch of 1)")
    heads = _Heads(queries, shared, shape[1], shape[2] // parts)

    def apart(value: str, count: int) -> str:
        if application.type(value).shape != (1, heads.rows, count * heads.width):
            application.broken(f"{value!r} of shape {application.type(value).shape} for {count} heads of {heads.width}")
        split = application.reshaped(value, (1, heads.rows, count, heads.width))
        return application.emit("transpose", (split,), {"axes": (0, 2, 1, 3)})

    counts, first = (queries, shared, shared), 0
    if not packed:
        query, key, value = (
            apart(application.operand(k), n) for k, n in zip((_QUERY, _KEY, _VALUE), counts, strict=True)
        )
        return heads, (query, key, value)
    found = []
    for count in counts:
        last = first + count * heads.width
        found.append(apart(part(application, application.value(_QUERY), 2, first, last), count))
        first = last
    return heads, (found[0], found[1], found[2])


def _held(application: Application, heads: _Heads) -> str:
    """How many positions the past holds: int32 of one element."""
    if application.type(application.value(_LAST)).size != 1:
        application.broken(f"last positions of shape {application.shape(_LAST)} for one sequence")
    last = application.emit("cast", (application.reshaped(application.value(_LAST), (1,)),), {"dtype": "int32"})
    if heads.rows == 1:
        return last
    return application.emit("sub", (last, application.scalar(heads.rows - 1, "int32")))


def _rotated(application: Application, heads: _Heads, length: str, pair: Sequence[str]) -> list[str]:
    """Query and key turned by the angles of their positions."""
    places = length
    if heads.rows > 1:
        steps = application.new_constant("steps", np.arange(heads.rows, dtype=np.int32))
        places = application.emit("add", (length, steps))
    cosine, sine = (angles_at(application, k, places, heads.rows) for k in (_COSINES, _COSINES + 1))
    interleaved = application.operator.attributes.flag("rotary_interleaved")
    return [turned(application, value, (cosine, sine), interleaved=interleaved) for value in pair]


def _past(application: Application, heads: _Heads) -> tuple[str, ...]:
    """The cache of keys and that of values, or none."""
    if not application.has(_PAST):
        return ()
    found = application.operand(_PAST), application.operand(_PAST + 1)
    for name in found:
        shape = application.type(name).shape
        if len(shape) != 4 or shape[:2] != (1, heads.shared) or shape[3] != heads.width:
            application.broken(f"a past of shape {shape} for {heads.shared} heads of {heads.width}")
    return found


def _planes(application: Application, value: str) -> tuple[int, ...]:
    """The shape of keys or values without the axis of sequences."""
    return application.type(value).shape[1:]


def _product(application: Application, a: str, b: str, *, turn: bool = False) -> str:
    turned_b = application.emit("transpose", (b,), {"axes": (0, 2, 1)}) if turn else b
    return application.emit("matmul", (a, turned_b))


def _of_held(application: Application, scores: str, length: str) -> str:
    """Scores (heads, rows, P) of positions that the past holds; of others nothing comes."""
    count = application.type(scores).shape[2]
    places = application.new_constant("places", np.arange(count, dtype=np.int32).reshape(1, 1, count))
    make = composer(application)
    return make("where", make("less", places, length), scores, _NEVER)


def _causal(application: Application, heads: _Heads, scores: str) -> str:
    """Scores among the rows of this call, of which none sees what comes behind it."""
    if heads.rows == 1:
        return scores
    groups = heads.queries // heads.shared
    seen = np.tile(np.tril(np.ones((heads.rows, heads.rows), bool)), (groups, 1))[None]
    return composer(application)("where", application.new_constant("seen", seen), scores, _NEVER)


def _present(application: Application, past: Sequence[str], fresh: Sequence[str], length: str) -> None:
    """The second and third output."""
    for position, value in enumerate(fresh):
        if not application.output(position + 1):
            continue
        if not past:
            application.result_alias(value, position + 1)
        elif _is_full(application, application.type(past[0]).shape[2], application.type(value).shape[2]):
            application.result("concat", (past[position], value), {"axis": 2}, position + 1)
        else:
            begin = application.emit("pad", (length,), {"padding": ((2, 1),), "value": 0})
            application.result("dynamic_update_slice", (past[position], value, begin), {}, position + 1)


def _is_full(application: Application, room: int, rows: int) -> bool:
    """Whether the number of positions is known not to fit the past."""
    known = application.builder.consts.get(application.value(_TOTAL)) if application.has(_TOTAL) else None
    if known is None or known.size != 1 or int(known.reshape(())) <= room:
        return False
    if int(known.reshape(())) != room + rows:
        application.broken(f"{int(known.reshape(()))} positions, of which the past has {room} and this call {rows}")
    return True


ATTENTION_SPELLINGS: Mapping[str, Spelling] = {"GroupQueryAttention": Spelling(group_query_attention, ("float32",))}
"""Of the domain ``com.microsoft``."""
