"""Loops in the lanes of vectors: how many, and the notes by which lowering makes them so."""

from __future__ import annotations

from microc.schedule.placement import loop_extent
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir import ir
from microc.tir.names import FLOATS, LANES, SCALABLE
from microc.tir.rewrite import walk_all_exprs, walk_stmt

WORDS = (4,)
"""Lanes of vectors that a core has for integers alone."""
NUMBERS = 2
"""Vectors of floats are multiplied by numbers."""


def lanes_of(extent: int, target: Target) -> int:
    """The most lanes that so many iterations fill without a rest; 0 where none do."""
    return next((n for n in target.core.lanes or WORDS if extent % n == 0), 0)


def float_lanes(target: Target) -> int:
    """Whether vectors may be of floats, and what the note says of that (``tir/names.py``)."""
    return max((target.has(f"add_f32x{n}") + target.has(f"fma_n_f32x{n}") for n in target.core.lanes), default=0)


def with_lanes(schedule: Schedule, target: Target) -> Schedule:
    """Give the innermost loops that are vectorised, and have no lanes, those of the target. Copies stay with words, and cores
    without vectors have none."""
    if not (target.core.lanes or target.has("lanes")):
        return schedule
    for loop in [s for s in walk_stmt(schedule.func.body) if isinstance(s, ir.For) and s.kind == "vectorized"]:
        inside = list(walk_stmt(loop.body))
        stores = [s for s in inside if isinstance(s, ir.Store)]
        copies = all(isinstance(s.value, (ir.Load, ir.Const)) for s in stores)
        noted = dict(loop.annotations).keys() & {LANES, SCALABLE}
        if not (noted or copies or any(isinstance(s, ir.For) for s in inside)):
            schedule = in_lanes_of(schedule, loop.var.name, target)
    return schedule


LONG = 32
"""Lanes of the vectors that elements are taken in strips of: of integers few are needed at once."""


def in_strips_of(schedule: Schedule, loop: str, target: Target) -> Schedule:
    """The loop in as many lanes as the machine's vectors hold; of functions of floats in half as many, for they need more."""
    floats = any(x.dtype == "float32" for x in walk_all_exprs(schedule.func.body))
    return strips(schedule, loop, target, LONG // 2 if floats else LONG)


def in_lanes_of(schedule: Schedule, loop: str, target: Target) -> Schedule:
    """The loop in as many lanes as leave no rest, else as many as it fills."""
    extent, known = loop_extent(schedule.func, loop), target.core.lanes or WORDS
    lanes = lanes_of(extent, target) or next((n for n in known if n <= extent), known[-1])
    return vectorize_lanes(schedule, loop, lanes, floats=float_lanes(target))


def vectorize_lanes(schedule: Schedule, loop: str, lanes: int = WORDS[0], floats: int = 0) -> Schedule:
    """So many iterations of ``loop`` at once, in the lanes of vectors, of ``floats`` where a core has such."""
    schedule = schedule.vectorize(loop).annotate(loop, LANES, lanes)
    return schedule.annotate(loop, FLOATS, floats) if floats else schedule


def strips(schedule: Schedule, loop: str, target: Target, lanes: int) -> Schedule:
    """As many iterations of ``loop`` at once as the machine's vectors hold, so many or a multiple."""
    return vectorize_lanes(schedule, loop, lanes, float_lanes(target)).annotate(loop, SCALABLE, 1)
