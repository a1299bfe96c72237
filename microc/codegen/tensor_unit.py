"""The tensor unit in a network's C: what its model is made from, where kernels use it."""

from __future__ import annotations

from collections.abc import Collection

from microc.codegen.text import Word
from microc.errors import InternalError
from microc.frozen import frozen
from microc.isa import CORES
from microc.isa.vocabulary.unit import UNIT_WORDS
from microc.module import Module

UNIT_NAMES = frozenset(word.name for word in UNIT_WORDS)
"""Functions that ``templates/project/tensor_unit.c.j2`` defines."""


@frozen
class UnitContext:
    """The unit as templates show it; memories in elements."""

    name: Word
    rows: int
    columns: int
    depth: int
    tile_cycles: int
    input: int
    weight: int
    sums: int
    bus: int
    start: int
    events: int
    macs: int


def unit_context(module: Module, helpers: Collection[str]) -> UnitContext | None:
    """That of the module's core, if ``helpers``, the functions that kernels call, are of a unit."""
    if not UNIT_NAMES & set(helpers):
        return None
    unit = CORES[module.options["cpu"]].tensor_unit
    if unit is None:
        raise InternalError(f"kernels call a tensor unit, which {module.options['cpu']} has not")
    return UnitContext(
        Word(unit.name),
        unit.rows,
        unit.columns,
        unit.depth,
        unit.tile_cycles,
        unit.input.nbytes,
        unit.weight.nbytes,
        unit.sums.nbytes // 4,
        unit.bus,
        unit.start,
        unit.events,
        int(unit.macs),
    )
