"""Spellings of TFLite's reductions over constant axes, and of its running sums."""

from __future__ import annotations

from collections.abc import Mapping

from microc.frontend.tflite.application import Application
from microc.frontend.tflite.spelling import FLOAT, PLAIN, REAL, Spelling, check_alike
from microc.graph.ir import Attr
from microc.ops.rounding import Rounding

_BOOL = ("bool",)


def reduction(op: str, dtypes: tuple[str, ...]) -> Spelling:
    """A reduction over constant axes. Of truth values, the largest is whether any is true, the least whether all are."""

    def spell(application: Application) -> None:
        keepdims = bool(application.operator.options.fields("ReducerOptions").integer("KeepDims"))
        data = application.operand(0)
        kind = application.type(data)
        axes = tuple(sorted({application.axis(axis, len(kind.shape)) for axis in application.integers(1)}))
        if not axes:
            check_alike(application, [0])
            application.result_reshape(data, kind.shape)
            return
        attrs: dict[str, Attr] = {"axes": axes, "keepdims": keepdims}
        if kind.dtype == "bool":
            bytes_ = application.emit("cast", (data,), {"dtype": "int8"})
            found = application.emit("max" if op == "max" else "min", (bytes_,), {**attrs, "rounding": Rounding.NONE})
            application.result("cast", (found,), {"dtype": "bool"})
        else:
            application.result(op, (data,), attrs)

    return Spelling(spell, dtypes)


def cumsum(application: Application) -> None:
    """CUMSUM along a constant axis."""
    fields = application.operator.options.fields("CumsumOptions")
    data = application.operand(0)
    (axis,) = application.integers(1)[:1] or (0,)
    attrs: dict[str, Attr] = {
        "axis": application.axis(axis, len(application.type(data).shape)),
    }
    for name in ("exclusive", "reverse"):
        attrs[name] = bool(fields.integer(name.capitalize()))
    application.result("cumsum", (data,), attrs)


SPELLINGS: Mapping[str, Spelling] = {
    "CUMSUM": Spelling(cumsum, (*FLOAT, "int8", *PLAIN)),
    "MEAN": reduction("mean", (*REAL, *PLAIN)),
    "REDUCE_ALL": reduction("min", _BOOL),
    "REDUCE_ANY": reduction("max", _BOOL),
    "REDUCE_MAX": reduction("max", (*REAL, *PLAIN, *_BOOL)),
    "REDUCE_MIN": reduction("min", (*REAL, *PLAIN, *_BOOL)),
    "REDUCE_PROD": reduction("prod", (*FLOAT, "int8", "int16", *PLAIN, *_BOOL)),
    "SUM": reduction("sum", (*REAL, *PLAIN)),
}
