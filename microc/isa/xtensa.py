"""Xtensa LX7 (ESP32-S3) and LX6 (ESP32) cores. The costs are derived from the instruction set alone (signed bytes
are loaded in two steps); they were not measured."""

from __future__ import annotations

from microc.isa.instruction_set import PLAIN, Core, Costs, Family
from microc.isa.portable import LIBRARY, WORD_MOVES

_FORMS = frozenset({"compared"})
_CYCLES = {"load": 2.0, "taken": 2.0, "divide": 12.0}
_COSTS = Costs(13, 14, 255, _FORMS, 2.8, {**LIBRARY, "multiply_long": 2.0}, _CYCLES)

XTENSA = Family(
    "xtensa",
    tuple(
        Core(name, "xtensa", _COSTS, (WORD_MOVES,), frozenset({"fpu", "mul64"}))
        for name in ("xtensa-lx6", "xtensa-lx7")
    ),
    PLAIN,
)
