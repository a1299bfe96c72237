"""Spellings of ONNX Runtime's operators of language models: norms by the root of the mean square, positions as rotations.

Source: the documentation of ONNX Runtime's contributed operators.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.frontend.formulas import composer
from microc.frontend.onnx.application import Application, Spelling
from microc.graph.ir import Attr

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


SPELLINGS: Mapping[str, Spelling] = {
    "SimplifiedLayerNormalization": Spelling(root_mean_square_norm, _FLOAT),
    "SkipSimplifiedLayerNormalization": Spelling(skip_root_mean_square_norm, _FLOAT),
    "RotaryEmbedding": Spelling(rotary_embedding, _FLOAT),
}
"""Of the domain ``com.microsoft``; the first is written without a domain, too."""
