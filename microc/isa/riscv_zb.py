"""RISC-V's bit manipulation, as Hazard3 has it: compilers take minima, maxima and sign extensions (Zbb) and sums of shifted
numbers (Zba) from plain C, so that the sets have no bodies of their own."""

from __future__ import annotations

from microc.isa.sets import InstructionSet

ZBA = InstructionSet("Zba", "defined(__riscv_zba)", {})
ZBB = InstructionSet("Zbb", "defined(__riscv_zbb)", {}, frozenset({"minmax"}))
