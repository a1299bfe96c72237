"""Spellings of TFLite's operators that spread rows over tensors: segments, sparse values, diagonals."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc import dtypes
from microc.frontend.tflite.application import Application
from microc.frontend.tflite.spelling import FLOAT, MOVABLE, Spelling, check_alike
from microc.graph.ir import Attr
from microc.ops.rounding import Rounding

_REDUCTIONS = ("add", "mul", "max", "min")


def scatter_nd(application: Application) -> None:
    """SCATTER_ND: updates added into zeros of a constant shape."""
    indices, updates, shape = application.value(0), application.moved(1), application.integers(2)
    zeros = application.filled("zeros", shape, 0, application.target().type.dtype)
    application.result("scatter_nd", (zeros, application.index(indices), updates), {"reduction": "add"})


def segment_sum(application: Application) -> None:
    """SEGMENT_SUM: rows of one number are added up; the numbers rise, and are known or their count is declared."""
    numbers = application.builder.consts.get(application.value(1))
    if numbers is not None:
        count = int(numbers.max(initial=-1)) + 1
    elif application.target().unknown:
        application.refuse("segments whose count depends on data", "use UNSORTED_SEGMENT_SUM, which says how many")
    else:
        count = application.target().type.shape[0]
    _segments(application, "add", count)


def unsorted_segment(reduction: str) -> Spelling:
    """UNSORTED_SEGMENT_SUM, ..._PROD, ..._MAX, ..._MIN: rows of one number together; those of negative numbers go."""

    def spell(application: Application) -> None:
        (count,) = application.integers(2)[:1] or (0,)
        _segments(application, reduction, count)

    return Spelling(spell, (*FLOAT, "int32"))


def _segments(application: Application, reduction: str, count: int) -> None:
    """Rows scattered into ``count`` neutral ones, and a last one, which is dropped, that takes those without a number."""
    data, numbers = application.moved(0), application.index(application.value(1))
    shape, places = application.type(data).shape, application.type(numbers).shape
    if count < 1 or not places or shape[: len(places)] != places:
        application.broken(f"{count} segments of {shape} by numbers of shape {places}")
    dtype = application.target().type.dtype
    real = dtype == "float32"
    low, high = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)) if real else dtypes.int_range(dtype)
    neutral = {"add": 0, "mul": 1, "max": low, "min": high}[reduction]
    rest = shape[len(places) :]
    start = application.filled("start", (count + 1, *rest), neutral, dtype)
    flat = application.reshaped(numbers, (int(np.prod(places)), 1))
    kind = application.type(numbers).dtype
    none, last = (application.new_constant("segment", np.array(n, kind)) for n in (0, count))
    at = application.emit(
        "where", (application.emit("less", (flat, none), {"rounding": Rounding.NONE}), last, flat), {}
    )
    rows = application.reshaped(data, (int(np.prod(places)), *rest))
    found = application.emit("scatter_nd", (start, at, rows), {"reduction": reduction})
    attrs: Mapping[str, Attr] = {
        "begin": (0,) * (1 + len(rest)),
        "end": (count, *rest),
        "strides": (1,) * (1 + len(rest)),
    }
    application.result("slice", (found,), attrs)


def sparse_to_dense(application: Application) -> None:
    """SPARSE_TO_DENSE: values at whole index vectors of a constant shape, another value everywhere else."""
    places, values, default = application.index(application.value(0)), application.moved(2), application.moved(3)
    shape, at = application.integers(1), application.type(places).shape
    count, depth = (at[0], at[1]) if len(at) == 2 else (int(np.prod(at)), 1)
    if depth != len(shape) or application.type(default).size != 1 or application.type(values).size not in (1, count):
        application.broken(f"{application.type(values).shape} values at places {at} of shape {shape}")
    start = application.emit("broadcast_to", (application.reshaped(default, ()),), {"shape": shape})
    single = application.type(values).size == 1
    updates = (
        application.emit("broadcast_to", (application.reshaped(values, ()),), {"shape": (count,)}) if single else values
    )
    operands = (start, application.reshaped(places, (count, depth)), application.reshaped(updates, (count,)))
    application.result("scatter_nd", operands, {"reduction": ""})


def matrix_diag(application: Application) -> None:
    """MATRIX_DIAG: each element behind as many zeros more than the one before it, so that all lie on a diagonal."""
    data = application.moved(0)
    check_alike(application, [0])
    *lead, extent = application.type(data).shape or (1,)
    rows, kind = int(np.prod(lead)), application.target().type
    zero: int | float | bool = {"float32": 0.0, "bool": False}.get(kind.dtype, 0)
    apart = application.reshaped(data, (rows, extent, 1))
    spread = application.emit("pad", (apart,), {"padding": ((0, 0), (0, 0), (0, extent)), "value": zero})
    flat = application.reshaped(spread, (rows, extent * (extent + 1)))
    attrs: Mapping[str, Attr] = {"begin": (0, 0), "end": (rows, extent * extent), "strides": (1, 1)}
    application.result_reshape(application.emit("slice", (flat,), attrs), (*lead, extent, extent))


def matrix_set_diag(application: Application) -> None:
    """MATRIX_SET_DIAG: the matrices with other diagonals."""
    data, diagonal = application.moved(0), application.moved(1)
    check_alike(application, [0, 1])
    *lead, rows, columns = application.type(data).shape if len(application.type(data).shape) > 1 else (0, 0)
    least = min(rows, columns)
    if application.type(diagonal).shape != (*lead, least):
        application.broken(f"a diagonal of shape {application.type(diagonal).shape}")
    wide = application.reshaped(diagonal, (*lead, 1, least))
    if columns > least:
        padding = ((0, 0),) * (len(lead) + 1) + ((0, columns - least),)
        kind = application.target().type.dtype
        zero: int | float | bool = {"float32": 0.0, "bool": False}.get(kind, 0)
        wide = application.emit("pad", (wide,), {"padding": padding, "value": zero})
    row, column = (np.arange(extent, dtype=np.int32) for extent in (rows, columns))
    places = [application.new_constant("places", place) for place in (row[:, None], column)]
    here = application.emit("equal", places, {"rounding": Rounding.NONE})
    application.result("where", (here, wide, data), {})


SPELLINGS: Mapping[str, Spelling] = {
    "MATRIX_DIAG": Spelling(matrix_diag, MOVABLE),
    "MATRIX_SET_DIAG": Spelling(matrix_set_diag, MOVABLE),
    "SCATTER_ND": Spelling(scatter_nd, MOVABLE),
    "SEGMENT_SUM": Spelling(segment_sum, (*FLOAT, "int32")),
    "SPARSE_TO_DENSE": Spelling(sparse_to_dense, MOVABLE),
    "UNSORTED_SEGMENT_MAX": unsorted_segment("max"),
    "UNSORTED_SEGMENT_MIN": unsorted_segment("min"),
    "UNSORTED_SEGMENT_PROD": unsorted_segment("mul"),
    "UNSORTED_SEGMENT_SUM": unsorted_segment("add"),
}
