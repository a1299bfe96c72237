"""What compilers are told: options by instruction set and goal."""

from __future__ import annotations

from microc.target import Target

OPTIMISATION = {
    ("host", "speed"): "-O2",
    ("host", "balanced"): "-O2",
    ("host", "size"): "-Os",
    ("arm", "speed"): "-O2 -fno-schedule-insns",
    ("arm", "balanced"): "-O2 -fno-schedule-insns",
    ("arm", "size"): "-Os",
    ("avr", "speed"): "-O2 -fno-expensive-optimizations",
    ("avr", "balanced"): "-Os -fno-expensive-optimizations",
    ("avr", "size"): "-Os -fno-expensive-optimizations",
    ("riscv", "speed"): "-O2 -fno-schedule-insns",
    ("riscv", "balanced"): "-O2 -fno-schedule-insns",
    ("riscv", "size"): "-Os",
    ("xtensa", "speed"): "-O2",
    ("xtensa", "balanced"): "-O2",
    ("xtensa", "size"): "-Os",
}
"""Compiler options for the network by instruction set and goal. gcc's first scheduling pass moves all loads of a register tile
to its front, and its last pass over loops moves addresses out of them, where both spill: without the former kernels take up to
a fifth fewer instructions on Armv7-M, and tiles of four by four pay on RISC-V; without the latter up to 6 % fewer. QEMU 7.2
executes some of what gcc's expensive optimisations make for AVR wrongly (simavr does not), so that they are left out there."""
IN_ORDER = " -fno-tree-reassoc"
"""More for cores that multiply two numbers at once as one: sums take turns as in the C, not one after the other."""
THUMB1 = " -fira-algorithm=priority -fno-tree-ter"
"""More for cores with eight low registers: values are made where the C makes them, and those used most get the registers."""
RUNTIME_OPTIMISATION = "-Os"
"""Compiler options for all that is not the network."""


def optimisation(target: Target, optimize: str) -> str:
    """Compiler options for the network."""
    options = OPTIMISATION[target.isa, optimize]
    options += IN_ORDER if target.multiplies_alone else ""
    return options + (THUMB1 if target.has("thumb1") else "")
