"""RISC-V cores by their base sets; those with extensions for numbers that lie side by side have files of their own."""

from __future__ import annotations

from microc.isa.library import LIBRARY, PORTABLE_LIBRARY
from microc.isa.reference_unit import REFERENCE, with_unit
from microc.isa.riscv_vector import RVV_CORES
from microc.isa.riscv_xcv import CV32E40P
from microc.isa.riscv_zb import ZBA, ZBB
from microc.isa.sets import UNSCHEDULED, Core, Costs, Family, InstructionSet
from microc.isa.words import WORD_MOVES

_CYCLES = {"load": 2.0, "taken": 2.0, "divide": 32.0}
_FORMS = frozenset({"compared"})
_INTEGER = Costs(26, 0, 2047, _FORMS, 3.2, {**PORTABLE_LIBRARY, "multiply_long": 2.0}, _CYCLES)
_FLOAT = Costs(26, 30, 2047, _FORMS, 3.2, {**LIBRARY, "multiply_long": 2.0}, _CYCLES)

_FASTEST = "-O3 -fno-schedule-insns"
"""Half a percent to 3 % of the cycles less than -O2, for 15 to 25 % of code."""


def _core(name: str, costs: Costs, *features: str, more: tuple[InstructionSet, ...] = ()) -> Core:
    """``more`` than the base sets of boards' libraries: compilers are told for the network's files."""
    machine = f"-march={name}"
    return Core(
        name, "riscv", costs, (*more, WORD_MOVES), frozenset({"mul64", *features}), machine if more else "", machine
    )


RISCV = Family(
    "riscv",
    (
        _core("rv32imc", _INTEGER, "one_product"),
        _core("rv32imac", _INTEGER, "one_product"),
        _core("rv32imac_zba_zbb", _INTEGER, "one_product", more=(ZBA, ZBB)),
        _core("rv32imafc", _FLOAT, "fpu", "fma"),
        with_unit(_core("rv32imafc", _FLOAT, "fpu", "fma"), REFERENCE),
        _core("rv64imac", _INTEGER),
        _core("rv64imafdc", _FLOAT, "fpu", "fma"),
        CV32E40P,
        *RVV_CORES,
    ),
    {**UNSCHEDULED, "speed": _FASTEST, "balanced": _FASTEST},
    computers=("riscv64",),
    flags=("unroll-loops", "no-gcse", "no-gcse,unroll-loops", "no-tree-loop-im", "schedule-insns", "Os"),
)
