"""RISC-V cores by their base sets; those with extensions for numbers that lie side by side have files of their own."""

from __future__ import annotations

from microc.isa.library import LIBRARY, SOFT_LIBRARY
from microc.isa.sets import UNSCHEDULED, Core, Costs, Family
from microc.isa.words import WORD_MOVES

CYCLES = {"load": 2.0, "taken": 2.0, "divide": 32.0}
INTEGER = Costs(26, 0, 2047, False, 3.2, {**SOFT_LIBRARY, "multiply_long": 2.0}, CYCLES)
FLOAT = Costs(26, 30, 2047, False, 3.2, {**LIBRARY, "multiply_long": 2.0}, CYCLES)


def _core(name: str, costs: Costs, *features: str) -> Core:
    return Core(name, "riscv", costs, (WORD_MOVES,), frozenset({"mul64", *features}), machine=f"-march={name}")


RISCV = Family(
    "riscv",
    (
        _core("rv32imc", INTEGER),
        _core("rv32imac", INTEGER),
        _core("rv32imafc", FLOAT, "fpu", "fma"),
        _core("rv64imac", INTEGER),
        _core("rv64imafdc", FLOAT, "fpu", "fma"),
    ),
    UNSCHEDULED,
)
