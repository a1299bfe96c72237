"""What code costs on a core: one table of numbers for each core.

Operations are counted by kind: ``alu`` (one instruction on registers), ``load``, ``store``, ``multiply``, ``multiply_long``,
``divide``, ``branch`` (executed), ``taken`` (branches that jump: cycles, no instruction of their own), ``float``,
``float_move``, ``float_multiply``, ``float_divide``, ``float_load``, ``float_store``, ``vector``, ``vector_load``,
``vector_store``, ``call_*`` for what the core leaves to a library function, and what takes time alone: ``paired``, the second of
two words that one instruction loads, and ``constant_byte``, a byte that is loaded from flash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from microc.target import Target

SILENT = frozenset({"taken", "paired", "constant_byte"})
"""Kinds of operations that are no instructions."""


@dataclass(frozen=True, slots=True)
class Core:
    """Costs of a core.

    - ``registers``, ``float_registers``: what a compiler can hold values in (high registers of Armv6-M are good for sums alone).
    - ``offset``: largest offset of a load in bytes, in elements where not ``wide``.
    - ``wide``: 32-bit instructions: operands are shifted on the way, loads advance their pointer.
    - ``instruction_bytes``: mean size of an instruction.
    - ``lengths``: instructions of an operation where it is not one.
    - ``cycles``: cycles of an operation where they are not its instructions.
    - ``issue``: cycles that remain of an instruction stream when the core issues two at once (1 where it does not).
    """

    registers: int
    float_registers: int
    offset: int
    wide: bool
    instruction_bytes: float
    lengths: Mapping[str, float]
    cycles: Mapping[str, float]
    issue: float = 1.0

    def length(self, operation: str) -> float:
        """Instructions of an operation; none for what only takes time."""
        return self.lengths.get(operation, 0.0 if operation in SILENT else 1.0)

    def duration(self, operation: str) -> float:
        """Cycles of an operation."""
        return self.cycles.get(operation, self.length(operation))


_SOFT_FLOAT = {
    "call_float_add": 34.0,
    "call_float_multiply": 27.0,
    "call_float_divide": 110.0,
    "call_float_compare": 20.0,
    "call_float_convert": 25.0,
}
_LIBRARY = {"call_math": 60.0, "call_sqrt": 16.0, "call_rint": 20.0, "call_divide_long": 120.0, "call_double": 80.0}
_V6M = {
    **_LIBRARY, "call_float_add": 62.0, "call_float_multiply": 72.0, "call_float_divide": 200.0, "call_float_compare": 30.0,
    "call_float_convert": 40.0, "call_multiply_long": 30.0, "call_divide": 70.0, "call_sqrt": 400.0, "call_math": 1500.0,
    "call_rint": 60.0, "call_shift_long": 12.0,
}  # fmt: skip
_V7M = {**_LIBRARY, **_SOFT_FLOAT, "call_math": 800.0, "call_sqrt": 250.0}
_V7EM = {**_LIBRARY}

_LOADS = {
    "load": 1.6,
    "paired": 1.0,
    "store": 1.2,
    "taken": 2.0,
    "divide": 6.0,
    "float_load": 1.6,
    "float_divide": 14.0,
}
_VECTORS = {"vector": 2.0, "vector_load": 2.0, "vector_store": 2.0}

_M0 = Core(9, 0, 31, False, 2.5, _V6M, {"load": 2.0, "store": 2.0, "taken": 2.0})
_M3 = Core(14, 0, 4095, True, 3.4, _V7M, {**_LOADS, "multiply_long": 4.0})
_M4 = Core(14, 30, 4095, True, 3.4, _V7EM, _LOADS)
_M7 = Core(14, 30, 4095, True, 3.4, _V7EM, {"paired": 0.5, "taken": 0.5, "divide": 6.0, "float_divide": 14.0}, 0.65)
_M55 = Core(14, 30, 4095, True, 3.4, _V7EM, {**_LOADS, **_VECTORS, "load": 1.2, "store": 1.0, "taken": 1.0}, 0.85)
_V8 = {
    **_V6M, "alu": 4.0, "load": 4.0, "store": 4.0, "multiply": 24.0, "branch": 2.0, "call_multiply_long": 200.0,
    "call_divide": 600.0,
}  # fmt: skip
_AVR = Core(
    5, 0, 63, False, 2.0, _V8, {"load": 8.0, "store": 8.0, "multiply": 40.0, "taken": 1.0, "constant_byte": 1.0}
)
_RV32 = Core(26, 0, 2047, False, 3.2, {**_V7M, "multiply_long": 2.0}, {"load": 2.0, "taken": 2.0, "divide": 32.0})
_RV32F = Core(26, 30, 2047, False, 3.2, {**_V7EM, "multiply_long": 2.0}, {"load": 2.0, "taken": 2.0, "divide": 32.0})
# By the instruction set alone: signed bytes are loaded in two steps; nothing was measured.
_LX7 = Core(13, 14, 255, False, 2.8, {**_V7EM, "multiply_long": 2.0}, {"load": 2.0, "taken": 2.0, "divide": 12.0})
_HOST = Core(14, 16, 1 << 31, True, 4.5, {**_LIBRARY, "call_math": 40.0}, {"divide": 20.0, "float_divide": 10.0}, 0.35)

CORES: Mapping[str, Core] = MappingProxyType(
    {
        "host": _HOST,
        "cortex-m0": _M0,
        "cortex-m0plus": _M0,
        "cortex-m3": _M3,
        "cortex-m4": _M4,
        "cortex-m33": _M4,
        "cortex-m33-nodsp": _M3,
        "cortex-m7": _M7,
        "cortex-m55": _M55,
        "avr": _AVR,
        "xtensa-lx7": _LX7,
        "rv32imc": _RV32,
        "rv32imac": _RV32,
        "rv32imafc": _RV32F,
        "rv64imac": _RV32,
        "rv64imafdc": _RV32F,
    }
)


def core_of(target: Target) -> Core:
    """The costs of a target's core."""
    return CORES[target.cpu]
