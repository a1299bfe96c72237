"""What a tensor unit is, as data: memories of its own, the matrix product that it does at once, and how long instructions take.

Its instructions are words of the vocabulary (:mod:`microc.isa.vocabulary.unit`), which say what they mean; a core has a unit by a
set that holds its description (:func:`microc.isa.reference_unit.with_unit`). C calls the instructions by their words. A header of
yours defines them for the unit itself; without one they are a model, which computes what they mean and counts cycles by the rule.

The rule, ours: the processor issues instructions in no time. Each queue does one after the other; an instruction begins when the
one before it has ended and the tokens that its queue waits for are there. It takes

- ``load_input``, ``load_weight``, ``load_sums``, ``store_sums``: ``start`` cycles, and for every row its bytes by ``bus``;
- ``set``, and ``load_sums`` of one row for all (a stride of 0), which is moved once: for every row its sums by ``columns``;
- ``matmul``: ``tile_cycles`` for every tile of ``rows`` x ``columns`` x ``depth`` that it has a part of,

each quotient rounded up. A barrier ends when all queues are done. Utilisation is the products of a layer by those that the unit
could have done in the cycles that the layer took.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from microc.errors import UsageError
from microc.frozen import frozen

TENSOR_UNIT = "tensor_unit"
"""The feature of cores that have one."""
EVENTS = 3
"""Kinds of tokens that a layer takes: one for each memory."""
MOST = 1 << 24


@frozen
class Scratchpad:
    """A memory of the unit: its bytes, and the bytes at whose multiples rows of a matrix begin in it."""

    nbytes: int
    align: int = 16


@frozen
class TensorUnit:
    """A unit that multiplies int8 by int8 to int32.

    ``rows`` x ``columns`` x ``depth``: the products that it does in ``tile_cycles`` cycles. ``bus``: bytes that it moves in a
    cycle; ``start``: cycles before the first. ``events``: kinds of tokens that it can tell apart.
    """

    name: str
    rows: int
    columns: int
    depth: int
    tile_cycles: int
    input: Scratchpad
    weight: Scratchpad
    sums: Scratchpad
    bus: int
    start: int
    events: int = 8

    def __post_init__(self) -> None:
        """UsageError where this is no unit that rules can use."""
        numbers = (self.rows, self.columns, self.depth, self.tile_cycles, self.bus)
        memories = {"input": self.input, "weight": self.weight, "sums": self.sums}
        rows = {
            "input": (self.rows, self.depth),
            "weight": (self.columns, self.depth),
            "sums": (self.rows, 4 * self.columns),
        }
        fault = ""
        if not re.fullmatch(r"[a-z0-9_]+", self.name):
            fault = "a name is of small letters, digits and _"
        elif min(numbers) < 1 or self.start < 0 or max((*numbers, self.start)) > MOST:
            fault = f"rows, columns, depth, tile_cycles and bus are 1 to {MOST}, start is 0 to {MOST}"
        elif self.events < EVENTS:
            fault = f"tiles need {EVENTS} kinds of tokens, events are {self.events}"
        for name, memory in memories.items():
            align, (count, nbytes) = memory.align, rows[name]
            if align < 1 or align % 4 or memory.nbytes % align:
                fault = fault or f"the {name} memory has whole rows of {align} bytes only, which are a multiple of 4"
            elif memory.nbytes < 2 * count * _parts(nbytes, align) * align or memory.nbytes > MOST:
                fault = fault or f"the {name} memory holds two tiles at least, and {MOST} bytes at most"
        if fault:
            raise UsageError(f"tensor unit {self.name!r}: {fault}", hint="microc/isa/reference_unit.py describes one")

    @property
    def macs(self) -> float:
        """Products in a cycle, at most."""
        return self.rows * self.columns * self.depth / self.tile_cycles

    def cycles(self, word: str, numbers: Sequence[int]) -> int:
        """What an instruction takes; ``numbers``: its arguments behind the addresses."""
        rows, columns = numbers[:2]
        match word:
            case "unit_matmul":
                depth = numbers[2]
                tiles = _parts(rows, self.rows) * _parts(columns, self.columns) * _parts(depth, self.depth)
                return tiles * self.tile_cycles
            case "unit_set":
                return rows * _parts(columns, self.columns)
            case "unit_load_input" | "unit_load_weight":
                return self.start + rows * _parts(columns, self.bus)
            case "unit_load_sums" if numbers[3] == 0:
                return self.start + _parts(4 * columns, self.bus) + rows * _parts(columns, self.columns)
            case _:
                return self.start + rows * _parts(4 * columns, self.bus)


def _parts(count: int, size: int) -> int:
    return -(-count // size)
