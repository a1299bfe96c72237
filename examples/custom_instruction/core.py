# SPDX-License-Identifier: Apache-2.0
"""A RISC-V core with one instruction of its own: the products of four bytes, added to a register."""

from dataclasses import replace

from microc.plugin import CORES, UNALIGNED, Body, InstructionSet, Plugin

DOT4 = InstructionSet(
    "Acme dot4",
    "defined(ACME_DOT4)",
    {
        "dot4_i8": Body('__asm__(".insn r 0x0b, 0, 0, %0, %1, %2" : "+r"(c) : "r"(a), "r"(b));\nreturn c;'),
        **UNALIGNED,  # it loads words at any address, too
    },
    frozenset({"unaligned"}),
)

PLAIN = CORES["rv32imc"]
PLUGIN = Plugin(cores=(replace(PLAIN, name="acme-dot4", sets=(DOT4, *PLAIN.sets)),))
