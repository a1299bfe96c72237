"""AVR: eight bits a register."""

from __future__ import annotations

from microc.isa.library import SHORT_LIBRARY
from microc.isa.sets import Core, Costs, Family

_LENGTHS = {
    **SHORT_LIBRARY, "alu": 4.0, "load": 4.0, "store": 4.0, "multiply": 24.0, "branch": 2.0, "call_multiply_long": 200.0,
    "call_divide": 600.0,
}  # fmt: skip
_CYCLES = {"load": 8.0, "store": 8.0, "multiply": 40.0, "taken": 1.0, "constant_byte": 1.0}
_SPARING = "-fno-expensive-optimizations"

AVR = Family(
    "avr",
    (Core("avr", "avr", Costs(5, 0, 63, False, 2.0, _LENGTHS, _CYCLES)),),
    {"speed": f"-O2 {_SPARING}", "balanced": f"-Os {_SPARING}", "size": f"-Os {_SPARING}"},
    flash_space=True,
)
"""QEMU 7.2 executes some of what gcc's expensive optimisations make wrongly (simavr does not), so that they are left out."""
