# SPDX-License-Identifier: Apache-2.0
"""AVR cores: 8-bit registers, the hardware multiplier, and the C library avr-libc."""

from __future__ import annotations

from microc.isa.instruction_set import Body, Core, Costs, Family, InstructionSet
from microc.isa.portable import SHORT_LIBRARY

_LENGTHS = {
    **SHORT_LIBRARY, "alu": 4.0, "load": 4.0, "store": 4.0, "multiply": 24.0, "branch": 2.0, "call_multiply_long": 200.0,
    "call_divide": 600.0,
}  # fmt: skip
_CYCLES = {"load": 8.0, "store": 8.0, "multiply": 40.0, "taken": 1.0, "constant_byte": 1.0}

_LACKING = frozenset(("acosh", "asinh", "atanh", "erf", "exp2", "expm1", "log1p", "log2", "rint"))
"""Functions of ``<math.h>`` that libm.a of avr-libc 2.0.0 lacks (``avr-nm -g``)."""
_INEXACT = frozenset(("asin", "atan2", "cos", "cosh", "exp", "log", "log10", "pow", "sin", "sinh", "tan", "tanh"))
"""Functions of ``<math.h>`` that are replaced because of their errors in avr-libc 2.0.0.

Errors in ulp, measured in simavr: sin, cos and tan have no correct digit for arguments beyond 1e27; exp 50 at 84
(7.6e-8 of the argument), cosh and sinh likewise; pow 50, and NaN for negative bases whose exponent is no int32; asin
7.6; log and log10 4.4; tanh 4.02. atan2 of two zeros is 0 if the second zero is negative, and is not -0 if the first
zero is negative."""


def _build_byte_product_body(instruction: str, right_c_type: str, register_constraint: str) -> Body:
    """Build a C body that multiplies two bytes to 16 bits by one instruction. A 32-bit product would be a library
    call."""
    text = f'"{instruction} %1, %2\\n\\tmovw %0, r0\\n\\tclr __zero_reg__"'
    operands = f'"{register_constraint}"((int8_t)a), "{register_constraint}"(({right_c_type})b)'
    return Body(f'int16_t r;\n__asm__({text} : "=r"(r) : {operands});\nreturn r;', (("alu", 2),))


_MULTIPLIER = InstructionSet(
    "AVR multiplier",
    "defined(__AVR_HAVE_MUL__)",
    {
        "mul_i8": _build_byte_product_body("muls", "int8_t", "d"),
        "mul_i8_u8": _build_byte_product_body("mulsu", "uint8_t", "a"),
    },
)

AVR = Family(
    "avr",
    (Core("avr", "avr", Costs(5, 0, 63, frozenset(), 2.0, _LENGTHS, _CYCLES), (_MULTIPLIER,)),),
    {"speed": "-O2", "balanced": "-Os", "size": "-Os"},
    flash_space=True,
    array_bytes=(1 << 15) - 1,
    own_math=_LACKING | _INEXACT,
    double_bytes=4,
)
