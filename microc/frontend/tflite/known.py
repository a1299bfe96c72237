"""Spellings of TFLite's operators whose results are known when compiling: shapes, ranks, ranges, tensors full of a value."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from microc.frontend.tflite.application import Application
from microc.frontend.tflite.spelling import FLOAT, MOVABLE, PLAIN, Spelling, check_alike

_MOST = 1 << 20
_SMALL = 1 << 16
"""Elements of a filled tensor that is stored; larger ones are filled while running."""


def shape_of(application: Application) -> None:
    """SHAPE: every shape is known when compiling."""
    application.result_constant(np.array(application.type(application.value(0)).shape, application.target().type.dtype))


def rank_of(application: Application) -> None:
    """RANK: the number of axes."""
    application.result_constant(
        np.array(len(application.type(application.value(0)).shape), application.target().type.dtype)
    )


def range_of(application: Application) -> None:
    """RANGE: from a constant start on by constant steps, below a constant limit."""
    start, limit, step = (application.constant(position).reshape(-1)[:1] for position in range(3))
    if not (start.size == limit.size == step.size == 1) or step[0] == 0:
        application.broken("a range without a start, a limit or a step")
    count = (float(limit[0]) - float(start[0])) / float(step[0])
    if not count <= _MOST:
        application.refuse(f"a range of {count} elements", f"microc makes ranges of up to {_MOST}")
    numbers = start[0] + np.arange(max(int(np.ceil(count)), 0)) * step[0]
    application.result_constant(numbers.astype(application.target().type.dtype))


def fill(application: Application) -> None:
    """FILL: a constant shape full of a value."""
    shape, value = application.integers(0), application.moved(1)
    check_alike(application, [1])
    if any(extent < 0 for extent in shape) or application.type(value).size != 1:
        application.broken(f"shape {shape} filled with {application.type(value).shape} values")
    known = application.builder.consts.get(value)
    if known is not None and prod(shape) <= _SMALL:
        application.result_constant(np.full(shape, known.reshape(-1)[0], known.dtype))
    else:
        application.result("broadcast_to", (application.reshaped(value, ()),), {"shape": shape})


def zeros_like(application: Application) -> None:
    """ZEROS_LIKE: stored zeros in the shape of the operand."""
    kind = application.type(application.value(0))
    application.result_constant(np.zeros(kind.shape, application.target().type.dtype))


def broadcast_args(application: Application) -> None:
    """BROADCAST_ARGS: the shape to which two constant shapes broadcast."""
    shapes = (application.integers(0), application.integers(1))
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        application.broken(f"shapes {shapes[0]} and {shapes[1]} do not broadcast")
    application.result_constant(np.array(shape, application.target().type.dtype))


SPELLINGS: Mapping[str, Spelling] = {
    "BROADCAST_ARGS": Spelling(broadcast_args, PLAIN),
    "FILL": Spelling(fill, MOVABLE),
    "RANGE": Spelling(range_of, (*FLOAT, *PLAIN)),
    "RANK": Spelling(rank_of, PLAIN),
    "SHAPE": Spelling(shape_of, PLAIN),
    "ZEROS_LIKE": Spelling(zeros_like, MOVABLE),
}
