# SPDX-License-Identifier: Apache-2.0
"""Xtensa LX7 (ESP32-S3, without FPU ESP32-S2), LX6 (ESP32) and LX106 (ESP8266) cores. Instructions of library functions
of the LX106 are measured; its other costs and those of the other cores are derived from the instruction sets alone."""

from __future__ import annotations

from microc.isa.instruction_set import PLAIN, Core, Costs, Family
from microc.isa.portable import LIBRARY, PORTABLE_LIBRARY, SHORT_LIBRARY, WORD_MOVES

_FORMS = frozenset({"compared"})
_CYCLES = {"load": 2.0, "taken": 2.0, "divide": 12.0}
_COSTS = Costs(13, 14, 255, _FORMS, 2.8, {**LIBRARY, "multiply_long": 2.0}, _CYCLES)
_SOFT_COSTS = Costs(13, 0, 255, _FORMS, 2.8, {**PORTABLE_LIBRARY, "multiply_long": 2.0}, _CYCLES)
_LX106_LIBRARY = {
    **SHORT_LIBRARY, "signed_byte": 2.0, "call_multiply_long": 54.0, "call_float_add": 592.0, "call_float_multiply": 584.0,
    "call_float_divide": 170.0, "call_float_compare": 12.0, "call_float_convert": 99.0, "call_sqrt": 260.0,
    "call_math": 11450.0, "call_tanh": 20260.0, "call_erf": 18720.0, "call_log": 14280.0,
}  # fmt: skip
"""Instructions of library functions on the LX106: of ``runtime_c/ports/lx106_libgcc.c``, which stands for the libgcc
functions that Debian's lacks, and of picolibc, whose ``expf`` computes in double. Measured by
``benchmarks/maintain/soft_floats.py`` with gcc 12.2 in QEMU."""
_LX106 = Costs(13, 0, 255, _FORMS, 2.8, _LX106_LIBRARY, {"load": 2.0, "taken": 2.0})
"""The LX106 multiplies to 32 bits; it has neither division, nor sign extension, nor an FPU."""

XTENSA = Family(
    "xtensa",
    (
        *(
            Core(name, "xtensa", _COSTS, (WORD_MOVES,), frozenset({"fpu", "mul64"}))
            for name in ("xtensa-lx6", "xtensa-lx7")
        ),
        Core("xtensa-lx7-nofpu", "xtensa", _SOFT_COSTS, (WORD_MOVES,), frozenset({"mul64", "one_product"})),
        Core("xtensa-lx106", "xtensa", _LX106, (WORD_MOVES,), frozenset({"one_product"})),
    ),
    PLAIN,
)
