"""Options of the C compiler for one kernel: a decision like any other, which steps keep and replay.

Only options that change no result may be named, those that a family of cores lists: a record is somebody else's, perhaps.
"""

from __future__ import annotations

from dataclasses import replace

from microc.errors import ScheduleError
from microc.isa import FAMILIES
from microc.tir import ir
from microc.tir.names import FLAGS


def compile_with(func: ir.PrimFunc, flags: str) -> ir.PrimFunc:
    """Have gcc take ``flags`` for this function beside those of its file, as ``"unroll-loops,no-gcse"``; without ``-f``."""
    known = {each for family in FAMILIES.values() for choice in family.flags for each in choice.split(",")}
    unknown = [flag for flag in flags.split(",") if flag not in known]
    if unknown:
        raise ScheduleError(
            f"{unknown[0]!r} is no option for a kernel",
            hint="known: " + ", ".join(sorted(known)) + ", with commas between",
        )
    return replace(func, annotations=(*(note for note in func.annotations if note[0] != FLAGS), (FLAGS, flags)))
