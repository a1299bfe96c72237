"""The computer that the compiler runs on: any, so that nothing is known but that words may lie anywhere."""

from __future__ import annotations

from microc.isa.reference_unit import REFERENCE, with_unit
from microc.isa.sets import PLAIN, Core, Family
from microc.isa.x86 import COSTS, HOST_WORDS

_CORE = Core("host", "host", COSTS, (HOST_WORDS,), frozenset({"fpu"}))
HOST = Family("host", (_CORE, with_unit(_CORE, REFERENCE)), PLAIN, threads=True)
