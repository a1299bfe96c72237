"""Reading an operator's operands, whatever the format: what both readers' applications share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

import numpy as np

from microc.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend.graph_builder import Emitter

MOST_INTEGERS = 64


class Operands(Emitter, Protocol):
    """An operator whose constant operands can be had by position, and which knows its place in the file."""

    @property
    def where(self) -> str:
        """The place, for people."""

    def constant(self, position: int) -> Array:
        """The data of an input that must be known when compiling."""

    def refuse(self, what: str, hint: str) -> NoReturn:
        """Say that microc has no way to do this."""
        raise UnsupportedError(what, where=self.where, hint=hint)

    def broken(self, what: str) -> NoReturn:
        """Refuse the model."""
        raise ModelError(what, where=self.where)

    def integers(self, position: int) -> tuple[int, ...]:
        """A constant operand of a few integers (axes, paddings, sizes), flattened."""
        data = self.constant(position)
        if data.dtype not in (np.int32, np.int64) or data.size > MOST_INTEGERS:
            self.broken(f"input {position} is no short list of integers")
        return tuple(int(i) for i in data.reshape(-1))

    def axis(self, axis: int, rank: int) -> int:
        """A possibly negative axis as 0..rank-1."""
        if not -rank <= axis < rank:
            self.broken(f"axis {axis} of a tensor of rank {rank}")
        return axis % rank

    def reshaped(self, value: str, shape: Sequence[int]) -> str:
        """``value`` under another shape, or itself if it has that shape."""
        if self.type(value).shape == tuple(shape):
            return value
        return self.emit("reshape", (value,), {"shape": tuple(shape)})
