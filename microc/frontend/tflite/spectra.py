"""Spellings of TFLite's RFFT2D, and of REAL, IMAG and COMPLEX_ABS, which read what it makes.

A complex tensor is one of floats with an axis more, of real and imaginary parts; only these operators know of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.frontend.tflite.application import Application
from microc.frontend.tflite.spelling import FLOAT, Spelling
from microc.graph.ir import Attr
from microc.ops.rounding import Rounding

_MOST_ROWS = 1 << 10
"""The longest transform over rows, which is a product by a matrix."""


def rfft2d(application: Application) -> None:
    """RFFT2D: real images, cut or continued with zeros to constant lengths; the lower half of the columns' frequencies."""
    data, lengths = application.operand(0, "float32"), application.integers(1)
    shape = application.type(data).shape
    if len(lengths) != 2 or len(shape) < 2 or 0 in shape:
        application.broken(f"a transform of shape {shape} by lengths {lengths}")
    rows, columns = lengths
    if columns < 4 or columns & columns - 1 or not 1 <= rows <= _MOST_ROWS:
        application.refuse(
            f"a transform of {rows} by {columns}", "rows of a power of two from 4 on, at most 1024 of them"
        )
    data = _fitted(application, data, rows, columns)
    lead, half = shape[:-2], columns // 2 + 1
    flat = application.emit("rfft", (data,), {"fft_length": columns})
    made = application.reshaped(flat, (*lead, rows, half, 2))
    if rows > 1:
        turns = np.exp(-2j * np.pi * np.outer(np.arange(rows), np.arange(rows)) / rows)
        matrix = np.stack([np.stack([turns.real, turns.imag], -1), np.stack([-turns.imag, turns.real], -1)], 1)
        waves = application.new_constant("waves", matrix.astype(np.float32))
        axes = tuple(range(len(lead)))
        row, column, part, over, parts = range(10, 15)
        labels = ((*axes, row, column, part), (row, part, over, parts))
        attrs: Mapping[str, Attr] = {"inputs": labels, "output": (*axes, over, column, parts)}
        made = application.emit("einsum", (made, waves), attrs)
    application.builder.complexes[application.target().name] = made


def _fitted(application: Application, data: str, rows: int, columns: int) -> str:
    """The image cut, or continued with zeros, to its last two extents."""
    shape = application.type(data).shape
    *lead, height, width = shape
    kept = (*lead, min(height, rows), min(width, columns))
    if kept != shape:
        cut: Mapping[str, Attr] = {"begin": (0,) * len(shape), "end": kept, "strides": (1,) * len(shape)}
        data = application.emit("slice", (data,), cut)
    if kept[-2:] != (rows, columns):
        padding = ((0, 0),) * len(lead) + ((0, rows - kept[-2]), (0, columns - kept[-1]))
        data = application.emit("pad", (data,), {"padding": padding, "value": 0.0})
    return data


def _parts(application: Application) -> str:
    """The complex operand as floats."""
    name = application.source(0).name
    if name not in application.builder.complexes:
        application.refuse(f"{name!r} of {application.source(0).type.dtype}", "only what RFFT2D makes may be complex")
    return application.builder.complexes[name]


def part(number: int) -> Spelling:
    """REAL and IMAG."""

    def spell(application: Application) -> None:
        value = _parts(application)
        shape = application.type(value).shape
        begin = (0,) * (len(shape) - 1)
        cut: Mapping[str, Attr] = {
            "begin": (*begin, number),
            "end": (*shape[:-1], number + 1),
            "strides": (1,) * len(shape),
        }
        application.result_reshape(application.emit("slice", (value,), cut), shape[:-1])

    return Spelling(spell, FLOAT)


def magnitude(application: Application) -> None:
    """COMPLEX_ABS: the root of the sum of both squares."""
    value = _parts(application)
    squares = application.emit("mul", (value, value), {})
    axes: Mapping[str, Attr] = {
        "axes": (len(application.type(value).shape) - 1,),
        "keepdims": False,
        "rounding": Rounding.NONE,
    }
    application.result("sqrt", (application.emit("sum", (squares,), axes),), {})


SPELLINGS: Mapping[str, Spelling] = {
    "COMPLEX_ABS": Spelling(magnitude, FLOAT),
    "IMAG": part(1),
    "REAL": part(0),
    "RFFT2D": Spelling(rfft2d, ("complex64",)),
}
