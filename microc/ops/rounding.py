"""How scaled numbers become integers: three questions, an enumeration of the answers to each.

An operator declares in its attribute ``rounding`` which of them it answers. Graphs and files hold answers as plain strings; the
formulas are those of :mod:`microc.fixed`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from microc import fixed


class Answer(StrEnum):
    """A value of an attribute, and what it means."""

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Answer:
        made = str.__new__(cls, value)
        made._value_, made.meaning = value, meaning
        return made

    def __repr__(self) -> str:
        return repr(self.value)


class Multiplier(Answer):
    """How an integer is multiplied by a scale in fixed point."""

    DOUBLE = (
        "double",
        "int32, rounds twice: the upper half of the product with ties up, its shift with ties away from zero",
    )
    SINGLE = "single", "int32, rounds once: the product of 64 bits is shifted with ties up"
    WIDE = "wide", "int64 sums by a multiplier of 16 bits, rounds once with ties up"

    @property
    def times(self) -> Callable[..., Any]:
        """``f(x, mantissa, shift, arith)``."""
        if self is Multiplier.WIDE:
            return fixed.multiply_reduced
        return fixed.multiply_single_rounding if self is Multiplier.SINGLE else fixed.multiply_double_rounding


class Ties(Answer):
    """Where a real number in the middle between two integers goes."""

    AWAY = "away", "away from zero (TFLite)"
    EVEN = "even", "to the even one (ONNX)"


class Rounding(Answer):
    """Whose arithmetic gives the quantised result of an operator as formats have it; its bounds and tables follow."""

    DOUBLE = "double", "a multiplier in fixed point that rounds twice, reals with ties away from zero (TFLite Micro)"
    SINGLE = "single", "a multiplier in fixed point that rounds once (TFLITE_SINGLE_ROUNDING)"
    LITERT = (
        "litert",
        "as LiteRT's own kernels: a product's sum is scaled once by the exact scale, a quotient by a float",
    )
    EVEN = "even", "a scale in float32, ties to even (ONNX)"
    NONE = "", "numbers that are no quantised ones"

    @property
    def multiplier(self) -> Multiplier:
        """What scales integers, where that is no float."""
        return Multiplier.SINGLE if self is Rounding.SINGLE else Multiplier.DOUBLE
