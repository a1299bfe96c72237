"""Costs of what cores leave to library functions."""

from __future__ import annotations

SOFT_FLOAT = {
    "call_float_add": 34.0,
    "call_float_multiply": 27.0,
    "call_float_divide": 110.0,
    "call_float_compare": 20.0,
    "call_float_convert": 25.0,
}
LIBRARY = {"call_math": 60.0, "call_sqrt": 16.0, "call_rint": 20.0, "call_divide_long": 120.0, "call_double": 80.0}
"""Of a core with a floating-point unit."""
SOFT_LIBRARY = {**LIBRARY, **SOFT_FLOAT, "call_math": 800.0, "call_sqrt": 250.0}
"""Of a 32-bit core without one, which multiplies to 64 bits."""
PORTABLE_LIBRARY = {
    **SOFT_LIBRARY, "call_float_add": 65.0, "call_float_multiply": 105.0, "call_float_divide": 95.0, "call_float_compare": 22.0,
    "call_float_convert": 45.0,
}  # fmt: skip
"""Of one whose library is C: means of libgcc's functions on RISC-V, counted in a network of 100,000 such calls."""
SHORT_LIBRARY = {
    **LIBRARY, "call_float_add": 62.0, "call_float_multiply": 118.0, "call_float_divide": 200.0, "call_float_compare": 30.0,
    "call_float_convert": 40.0, "call_multiply_long": 30.0, "call_divide": 70.0, "call_sqrt": 400.0, "call_math": 1500.0,
    "call_rint": 60.0, "call_shift_long": 12.0,
}  # fmt: skip
"""Of a core that multiplies to 32 bits and does not divide."""
