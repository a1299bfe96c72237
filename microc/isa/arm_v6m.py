"""Armv6-M: eight low registers, products of 32 bits; signed bytes are loaded at a register's offset only, unsigned ones at any
small offset."""

from microc.isa.base import Body
from microc.isa.sets import InstructionSet

ARM_V6M = InstructionSet(
    "Armv6-M",
    "defined(__ARM_ARCH_6M__)",
    {
        "clamp8": Body("return (int8_t)a == a ? a : (a >> 31) ^ 127;", (("alu", 4),)),
        "high_mul": Body(""),
        "product_2_30": Body(""),
        "product_2_31": Body(""),
    },
    frozenset({"unsigned_bytes"}),
)
