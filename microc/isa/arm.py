"""Arm's Cortex-M cores."""

from __future__ import annotations

from dataclasses import replace

from microc.isa.arm_dsp import ARM_DSP
from microc.isa.arm_half import ARM_HALF
from microc.isa.arm_mve import ARM_MVE
from microc.isa.arm_mve_float import ARM_MVE_FLOAT
from microc.isa.arm_mve_half import ARM_MVE_HALF
from microc.isa.arm_v6m import ARM_V6M
from microc.isa.arm_v7m import ARM_FLOAT, ARM_SATURATION, ARM_WORDS
from microc.isa.library import LIBRARY, SOFT_LIBRARY, THUMB_LIBRARY
from microc.isa.reference_unit import REFERENCE, with_unit
from microc.isa.sets import UNSCHEDULED, Core, Costs, Family, InstructionSet
from microc.isa.words import WORD_MOVES

_LOADS = {
    "load": 1.6, "paired": 1.0, "store": 1.2, "taken": 2.0, "divide": 6.0, "float_load": 1.6, "float_divide": 14.0
}  # fmt: skip
_VECTORS = {"vector": 2.0, "vector_load": 2.0, "vector_store": 2.0, "load": 1.2, "store": 1.0, "taken": 1.0}
_M7_CYCLES = {"paired": 0.5, "taken": 0.5, "divide": 6.0, "float_divide": 14.0}

_WIDE = frozenset({"shifted", "accumulated", "predicated"})
"""Forms of 32-bit instructions."""
_REACH = {"pair": 1020, "advance": 255}
_M0 = Costs(9, 0, 31, frozenset({"indexed", "elements"}), 2.5, THUMB_LIBRARY, {"load": 2.0, "store": 2.0, "taken": 2.0})
_M3 = Costs(14, 0, 4095, _WIDE, 3.4, SOFT_LIBRARY, {**_LOADS, "multiply_long": 4.0}, **_REACH)
_M4 = Costs(14, 30, 4095, _WIDE, 3.4, LIBRARY, _LOADS, **_REACH)
_M7 = Costs(14, 30, 4095, _WIDE, 3.4, LIBRARY, _M7_CYCLES, 0.65, **_REACH)
_M55 = Costs(14, 30, 4095, _WIDE, 3.4, LIBRARY, {**_LOADS, **_VECTORS}, 0.85, **_REACH, vector_registers=8)

_V7M = (ARM_WORDS, ARM_SATURATION)
_V7EM = (*_V7M, ARM_FLOAT, ARM_HALF, ARM_DSP)

_IN_ORDER = "-fno-tree-reassoc"
"""For cores that multiply two numbers at once as one: sums take turns as in the C, not one after the other."""
_LOW_REGISTERS = "-fira-algorithm=priority -fno-tree-ter"
"""For cores with eight low registers: values are made where the C makes them, and those used most get the registers."""


def _core(
    name: str, costs: Costs, sets: tuple[InstructionSet, ...], *features: str, options: str = "", machine: str = ""
) -> Core:
    return Core(name, "arm", costs, sets, frozenset(features), options, f"-mcpu={machine or name} -mthumb")


_V6M_OPTIONS = f"{_IN_ORDER} {_LOW_REGISTERS}"

ARM = Family(
    "arm",
    (
        _core("cortex-m0", _M0, (ARM_V6M, WORD_MOVES), "one_product", options=_V6M_OPTIONS),
        _core("cortex-m0plus", _M0, (ARM_V6M, WORD_MOVES), "one_product", options=_V6M_OPTIONS),
        _core("cortex-m3", _M3, _V7M, "mul64", "one_product", options=_IN_ORDER),
        _core("cortex-m4", _M4, _V7EM, "mul64"),
        with_unit(_core("cortex-m4", _M4, _V7EM, "mul64"), REFERENCE),
        _core("cortex-m7", _M7, _V7EM, "mul64"),
        _core("cortex-m33", _M4, _V7EM, "mul64"),
        _core(
            "cortex-m33-nodsp", _M3, _V7M, "mul64", "one_product", options=_IN_ORDER, machine="cortex-m33+nodsp+nofp"
        ),
        replace(
            _core("cortex-m55", _M55, (*_V7EM, ARM_MVE, ARM_MVE_FLOAT, ARM_MVE_HALF), "mul64"), lanes=(4,), vectors=8
        ),
    ),
    UNSCHEDULED,
    flags=("unroll-loops", "no-gcse", "no-gcse,unroll-loops", "no-tree-loop-im", "Os"),
)
