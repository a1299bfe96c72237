"""Costs of what cores leave to library functions."""

from __future__ import annotations

SOFT_FLOAT = {
    "call_float_add": 53.0,
    "call_float_multiply": 33.0,
    "call_float_divide": 149.0,
    "call_float_compare": 37.0,
    "call_float_convert": 25.0,
}
"""Instructions of libgcc's functions for Armv7-M, moves of their arguments and the test of a comparison's result included.
Measured: ``benchmarks/soft_floats.py``, gcc 12.2, normal operands. Measure again for another libgcc."""
LIBRARY = {"call_math": 60.0, "call_sqrt": 16.0, "call_rint": 20.0, "call_divide_long": 120.0, "call_double": 80.0}
"""Of a core with a floating-point unit."""
SOFT_LIBRARY = {
    **LIBRARY, **SOFT_FLOAT, "call_math": 1050.0, "call_sqrt": 320.0, "call_tanh": 1810.0, "call_erf": 1590.0, "call_log": 1200.0,
}  # fmt: skip
"""Costs on a 32-bit core without an FPU, which multiplies to 64 bits. ``call_math`` is ``expf`` of newlib; functions that
take longer have kinds of their own."""
PORTABLE_LIBRARY = {
    **SOFT_LIBRARY, "call_float_add": 75.0, "call_float_multiply": 109.0, "call_float_divide": 103.0, "call_float_compare": 22.0,
    "call_float_convert": 45.0, "call_math": 1870.0, "call_sqrt": 265.0, "call_tanh": 3290.0, "call_erf": 3030.0,
    "call_log": 2340.0,
}  # fmt: skip
"""Of one whose library is C: libgcc and picolibc on RISC-V, measured as :data:`SOFT_FLOAT` is. Picolibc's ``expf`` computes in
double."""
SHORT_LIBRARY = {
    **LIBRARY, "call_float_add": 62.0, "call_float_multiply": 118.0, "call_float_divide": 200.0, "call_float_compare": 30.0,
    "call_float_convert": 40.0, "call_multiply_long": 30.0, "call_divide": 70.0, "call_sqrt": 400.0, "call_math": 1500.0,
    "call_rint": 60.0, "call_shift_long": 12.0,
}  # fmt: skip
"""Of a core that multiplies to 32 bits and does not divide."""
THUMB_LIBRARY = {
    **SHORT_LIBRARY, "call_float_add": 72.0, "call_float_divide": 379.0, "call_float_compare": 38.0, "call_math": 2200.0,
    "call_sqrt": 320.0, "call_tanh": 3930.0, "call_erf": 3600.0, "call_log": 2710.0,
}  # fmt: skip
"""Of Armv6-M, whose libgcc divides floats bit by bit: measured as :data:`SOFT_FLOAT` is."""
