"""Spellings of TFLite's comparisons, logic, choice and search: EQUAL, LOGICAL_AND, SELECT_V2, ARG_MAX, TOPK_V2 ..."""

from __future__ import annotations

from collections.abc import Mapping

from microc.frontend.tflite.application import Application
from microc.frontend.tflite.spelling import FLOAT, MOVABLE, PLAIN, QUANTISED, Spelling, check_alike
from microc.graph.ir import Attr

_BOOL = ("bool",)
_COMPARED = (*FLOAT, *QUANTISED, *PLAIN, "uint32", "bool")


def comparison(op: str) -> Spelling:
    """Two operands of one dtype; quantised ones are compared as reals."""

    def spell(application: Application) -> None:
        first, second = (application.source(position).type for position in (0, 1))
        if first.dtype != second.dtype or first.dtype not in _COMPARED:
            application.refuse(f"{first.dtype} and {second.dtype} operands", f"both of one of {', '.join(_COMPARED)}")
        if any(kind.quant is not None and kind.quant.axis is not None for kind in (first, second)):
            application.refuse("operands quantised per channel", "quantise activations per tensor")
        operands = (application.value(0), application.value(1))
        application.result(op, operands, {})

    return Spelling(spell, _BOOL)


def logical(op: str, count: int) -> Spelling:
    def spell(application: Application) -> None:
        application.result(op, [application.operand(position, "bool") for position in range(count)], {})

    return Spelling(spell, _BOOL)


def select(application: Application) -> None:
    """SELECT and SELECT_V2; a vector that chooses whole rows (SELECT) gets axes behind its own."""
    condition = application.operand(0, "bool")
    a, b = application.moved(1), application.moved(2)
    check_alike(application, [1, 2])
    rank, shape = len(application.type(a).shape), application.type(condition).shape
    if application.operator.code == "SELECT" and len(shape) == 1 and rank > 1:
        condition = application.reshaped(condition, (*shape, *(1,) * (rank - 1)))
    application.result("where", (condition, a, b), {})


def arg(op: str) -> Spelling:
    """ARG_MAX and ARG_MIN along a constant axis; the stored numbers are compared."""

    def spell(application: Application) -> None:
        data = application.value(0)
        if application.type(data).dtype not in (*FLOAT, *QUANTISED, *PLAIN):
            application.refuse(f"{application.type(data).dtype} input", "float32, int8, uint8, int16, int32 or int64")
        (axis,) = application.integers(1)[:1] or (0,)
        axis = application.axis(axis, len(application.type(data).shape))
        attrs: Mapping[str, Attr] = {"axis": axis, "out_dtype": application.target().type.dtype}
        application.result(op, (data,), attrs)

    return Spelling(spell, PLAIN)


def topk(application: Application) -> None:
    """TOPK_V2: the constant number of largest elements along the last axis, and their indices."""
    data = application.moved(0)
    check_alike(application, [0])
    (count,) = application.integers(1)[:1] or (0,)
    attrs: dict[str, Attr] = {"axis": len(application.type(data).shape) - 1, "k": count, "largest": True}
    application.results("topk", (data,), {**attrs, "out_dtype": application.target(1).type.dtype})


def one_hot(application: Application) -> None:
    """ONE_HOT: indices, constant depth, the value on, the value off."""
    fields = application.operator.options.fields("OneHotOptions", required=True)
    indices, (depth,) = application.value(0), application.integers(1)[:1] or (0,)
    on, off = application.moved(2), application.moved(3)
    axis = application.axis(fields.integer("Axis"), len(application.type(indices).shape) + 1)
    application.result("one_hot", (indices, on, off), {"axis": axis, "depth": depth, "wrap": False})


SPELLINGS: Mapping[str, Spelling] = {
    "ARG_MAX": arg("argmax"),
    "ARG_MIN": arg("argmin"),
    "EQUAL": comparison("equal"),
    "GREATER": comparison("greater"),
    "GREATER_EQUAL": comparison("greater_equal"),
    "LESS": comparison("less"),
    "LESS_EQUAL": comparison("less_equal"),
    "LOGICAL_AND": logical("logical_and", 2),
    "LOGICAL_NOT": logical("logical_not", 1),
    "LOGICAL_OR": logical("logical_or", 2),
    "NOT_EQUAL": comparison("not_equal"),
    "ONE_HOT": Spelling(one_hot, MOVABLE),
    "SELECT": Spelling(select, MOVABLE),
    "SELECT_V2": Spelling(select, MOVABLE),
    "TOPK_V2": Spelling(topk, (*FLOAT, *QUANTISED, *PLAIN)),
}
