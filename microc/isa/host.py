"""The computer that the compiler runs on: any, so that nothing is known but that words may lie anywhere."""

from __future__ import annotations

from microc.isa.library import LIBRARY
from microc.isa.sets import PLAIN, Core, Costs, Family, InstructionSet
from microc.isa.words import UNALIGNED

_FORMS = frozenset({"indexed", "predicated"})
_CYCLES = {"divide": 20.0, "float_divide": 10.0}
_COSTS = Costs(14, 16, 1 << 31, _FORMS, 4.5, {**LIBRARY, "call_math": 40.0}, _CYCLES, 0.35)
_LITTLE_ENDIAN = "defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__"
HOST_WORDS = InstructionSet("host words", _LITTLE_ENDIAN, UNALIGNED, frozenset({"unaligned"}))

HOST = Family("host", (Core("host", "host", _COSTS, (HOST_WORDS,), frozenset({"fpu"})),), PLAIN)
