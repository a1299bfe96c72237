"""Reading an operator's operands, whatever the format: what both readers' applications share."""

from __future__ import annotations

from typing import NoReturn, Protocol

import numpy as np

from microc.dtypes import Array

MOST_INTEGERS = 64


class Operands(Protocol):
    """An operator whose constant operands can be had by position, and which can say that it is broken."""

    def constant(self, position: int) -> Array:
        """The data of an input that must be known when compiling."""

    def broken(self, what: str) -> NoReturn:
        """Refuse the model."""


def integers(operands: Operands, position: int) -> tuple[int, ...]:
    """A constant operand of a few integers (axes, paddings, sizes), flattened."""
    data = operands.constant(position)
    if data.dtype not in (np.int32, np.int64) or data.size > MOST_INTEGERS:
        operands.broken(f"input {position} is no short list of integers")
    return tuple(int(i) for i in data.reshape(-1))


def normal_axis(operands: Operands, axis: int, rank: int) -> int:
    """A possibly negative axis as 0..rank-1."""
    if not -rank <= axis < rank:
        operands.broken(f"axis {axis} of a tensor of rank {rank}")
    return axis % rank
