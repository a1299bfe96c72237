"""Constants of floats in two bytes: those whose numbers float16 or bfloat16 hold, each widened where it is loaded.

They are found by their numbers, wherever these come from: a file that has them in 16 bits, or the option ``weight_dtype``, whose
pass (:mod:`microc.transform.weight_dtype`) rounds them. What is computed is the same in every bit. Where the user asks for it all
are stored so; else on boards, where the goal prefers it, as weights of few bits are (:mod:`microc.schedule.choose`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from microc import dtypes
from microc.dtypes import Array
from microc.errors import ScheduleError
from microc.isa import FAMILIES
from microc.ops.lowering import LoweredGroup
from microc.schedule.choose import Choice, best_of, priced, weighed
from microc.schedule.halves import WORDS
from microc.schedule.rules.algorithms import HALF_WEIGHTS
from microc.schedule.schedule import Schedule
from microc.schedule.tree import buffer_named
from microc.target import Goal, Target
from microc.tir.lower import lower

LEAST = 64
"""Elements that a constant has at least: what fewer save is not worth the code that widens them."""


def stored(group: LoweredGroup, choice: Choice, target: Target, goal: Goal, uses: int = 1) -> Choice:
    """The choice that was made for a group, or the better one with constants in halves; ``uses`` as in ``choose``."""
    asked = target.has(HALF_WEIGHTS)
    if not asked and FAMILIES[target.isa].threads:
        return choice
    found = halved(group, choice.schedule, target)
    if not found:
        return choice
    rivals = [weighed(Choice(each, lower(each.func)), target, goal, uses) for each in found]
    if not asked:
        rivals.append(weighed(choice, target, goal, uses))
    return best_of(rivals, priced(goal, found)).choice


def halved(group: LoweredGroup, schedule: Schedule, target: Target) -> list[Schedule]:
    """The schedule with all constants in 16 bits that these hold, once for every form that is preferred where several do."""
    kept = {
        buffer.name: [dtype for dtype in dtypes.HALF if _keeps(param.array, dtype)]
        for buffer, param in zip(group.func.params, group.params, strict=False)
        if buffer.dtype == "float32"
    }
    names = {name: halves for name, halves in kept.items() if halves}
    words = [WORDS] if target.has("float16_low") and any("float16" in halves for halves in names.values()) else []
    found = dict.fromkeys(_in_form(schedule, names, form) for form in (*words, *dtypes.HALF) if names)
    return list(found)


def _keeps(array: Array | None, dtype: str) -> bool:
    return array is not None and array.size >= LEAST and dtypes.keeps(array, dtype)


def _in_form(schedule: Schedule, names: Mapping[str, Sequence[str]], form: str) -> Schedule:
    """The schedule with constants in a form, or in the half that holds them (``names``); what has no even rows for words is
    float16, and what an instruction reads stays."""
    for name, halves in names.items():
        even = buffer_named(schedule.func, name).shape[-1] % 2 == 0
        preferred = "float16" if form == WORDS else form
        own = halves[0] if preferred not in halves else form if even or form != WORDS else preferred
        try:
            schedule = schedule.set_dtype(name, own)
        except ScheduleError as refusal:
            schedule = schedule.without(f"set_dtype({name}, {own})", refusal)
    return schedule
