"""Choosing between schedules without measuring: each is lowered, counted by the cost model, and weighed by the goal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from math import inf, isinf
from typing import Protocol, TypeVar

from microc.base.immutable import frozen
from microc.schedule.cost.cost_model import Cost, estimate
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.lower import lower
from microc.tir.names import OPENED
from microc.tir.rewrite import walk_stmt

PACKING, OPENING, DEARER, HEAVIER = 1.3, 4.0, 4.0, 1.05
"""Weights of few bits were rounded for the flash. Where some schedule packs them a byte is worth DEARER times the goal's price,
which makes a percent of the balanced network's flash worth a percent of its time; and a schedule that packs them is taken where
it weighs at most HEAVIER times as much as the best, or takes at most PACKING times its instructions; OPENING times, where floats
are multiplied by integers that a file has as weights, for no other reason than flash. For speed alone instructions decide."""
ALIKE = 1.02
"""Schedules whose instructions differ by less are told apart by cycles: the model does not see such differences."""


@frozen
class Choice:
    """The schedule that won, and its lowered function; ``verified``: the verifier has seen that. ``shipped``: the schedule came
    with the compiler."""

    schedule: Schedule
    func: ir.PrimFunc
    verified: bool = field(default=False, compare=False)
    shipped: bool = field(default=False, compare=False)


@frozen
class Rival:
    """A choice with what it costs: ``constants`` in bytes, ``weight`` as in :func:`weight`."""

    choice: Choice
    cost: Cost
    constants: int
    weight: tuple[float, float]

    @property
    def cycles(self) -> float:
        return self.cost.cycles

    @property
    def workspace(self) -> int:
        return workspace_bytes(self.choice.func)


class Weighed(Protocol):
    """What is chosen among: ``weight`` as in :func:`weight`, estimated ``cycles``."""

    @property
    def weight(self) -> tuple[float, float]: ...

    @property
    def cycles(self) -> float: ...


T = TypeVar("T", bound=Weighed)


def choose(candidates: Sequence[Schedule], target: Target, goal: Goal, uses: int = 1, workspace: float = inf) -> Choice:
    """The best of at least one schedule: the fewest instructions for speed, the fewest bytes of code and constants for size, in
    between the least sum at the goal's price. ``uses``: kernels of the network that are alike and share their code. Of those
    that take more than ``workspace`` bytes one is chosen where all do: of those that take least."""
    if len(candidates) == 1:
        return Choice(candidates[0], lower(candidates[0].func))
    plain, goal = goal, priced(goal, candidates)
    every = isinf(goal.price) or goal is not plain  # where weights are packed more counts than what a schedule weighs
    rivals: dict[int, Rival] = {}
    larger: dict[int, Rival] = {}
    for k in sorted(range(len(candidates)), key=lambda k: constant_bytes(candidates[k])):
        schedule = candidates[k]
        if every or not _beaten(schedule, rivals.values(), goal, uses):
            rival = weighed(Choice(schedule, lower(schedule.func)), target, goal, uses)
            (rivals if rival.workspace <= workspace else larger)[k] = rival
    if not rivals:
        least = min(rival.workspace for rival in larger.values())
        rivals = {k: rival for k, rival in larger.items() if rival.workspace == least}
    return best_of([rivals[k] for k in sorted(rivals)], goal).choice


def _beaten(schedule: Schedule, rivals: Iterable[Rival], goal: Goal, uses: int) -> bool:
    """Whether its constants alone weigh too much beside some rival, so that it need not be lowered."""
    least = goal.price * uses * constant_bytes(schedule)
    return any(least > ALIKE * rival.weight[0] for rival in rivals)


def priced(goal: Goal, candidates: Sequence[Schedule]) -> Goal:
    """The goal at the price that holds among some candidates (:data:`DEARER`)."""
    packing = any(schedule.packs_bits or _opens(schedule) for schedule in candidates)
    return replace(goal, price=DEARER * goal.price) if packing else goal


def weighed(choice: Choice, target: Target, goal: Goal, uses: int = 1) -> Rival:
    """A choice with its cost on a core and what that weighs; ``uses`` as in :func:`choose`."""
    cost, constants = estimate(choice.func, target), constant_bytes(choice.schedule)
    return Rival(choice, cost, constants, weight(cost, constants, goal, uses))


def best_of(rivals: Sequence[Rival], goal: Goal) -> Rival:
    """The first of those that weigh least; but for size alone, of those alike the one of the fewest cycles. Those that pack
    weights of few bits come before others where they may (:data:`PACKING`)."""
    return lightest(_packing(rivals, goal) or rivals, goal)


def lightest(rivals: Sequence[T], goal: Goal) -> T:
    """The same of whatever costs and weighs something, packed or not."""
    least = min(rival.weight for rival in rivals)
    if isinf(goal.price):
        return next(rival for rival in rivals if rival.weight == least)
    return min((rival for rival in rivals if rival.weight[0] <= ALIKE * least[0]), key=lambda rival: rival.cycles)


def _packing(rivals: Sequence[Rival], goal: Goal) -> list[Rival]:
    """Those that pack weights, where a goal between speed and size prefers these to all others."""
    if goal.price == 0 or isinf(goal.price):
        return []
    opened = [rival for rival in rivals if _opens(rival.choice.schedule)]
    packed = opened or [rival for rival in rivals if rival.choice.schedule.packs_bits]
    if not packed:
        return []
    fewest, fewest_packed = (min(rival.cost.instructions for rival in some) for some in (rivals, packed))
    least, least_packed = (min(rival.weight[0] for rival in some) for some in (rivals, packed))
    most = OPENING if opened else PACKING
    return packed if fewest_packed <= most * fewest or least_packed <= HEAVIER * least else []


def _opens(schedule: Schedule) -> bool:
    """Whether weights are levels that products of floats open."""
    return any(isinstance(s, ir.Block) and OPENED in dict(s.annotations) for s in walk_stmt(schedule.start.body))


def why_not(rival: Rival, rivals: Sequence[Rival], goal: Goal) -> str:
    """Why another one of the rivals was chosen, in words."""
    best, packing = best_of(rivals, goal), _packing(rivals, goal)
    if packing and rival not in packing:
        return "stores weights wider than they need"
    rivals = packing or rivals
    slower = _more(rival.cost.instructions, best.cost.instructions)
    code, constants = rival.cost.code_bytes - best.cost.code_bytes, rival.constants - best.constants
    flash = f"{code:+,} bytes of code, {constants:+,} of constants"
    if isinf(goal.price):
        if rival.weight > best.weight:
            return f"flash: {flash}" if rival.weight[0] > best.weight[0] else f"as much flash, {slower} instructions"
        return "costs the same, comes later"
    if rival.weight[0] <= ALIKE * min(r.weight[0] for r in rivals):
        alike = f"ties within {100 * ALIKE - 100:.0f} %"
        more = rival.cost.cycles > best.cost.cycles
        return f"{alike}, {_more(rival.cost.cycles, best.cost.cycles)} cycles" if more else f"{alike}, comes later"
    if rival.cost.instructions <= best.cost.instructions:
        return f"flash: {flash}, which {slower} instructions are not worth"
    return f"{slower} instructions" + (f", flash: {flash}" if goal.price and code + constants > 0 else "")


def _more(one: float, other: float) -> str:
    change = 100 * (one / other - 1) if other else inf
    return f"{abs(change):.3g} % {'more' if change >= 0 else 'fewer'}"


def weight(cost: Cost, constants: int, goal: Goal, uses: int) -> tuple[float, float]:
    """What a goal makes least, and what decides between equals. Alike kernels share code, but not constants (in bytes)."""
    flash, instructions = cost.code_bytes + uses * constants, uses * cost.instructions
    return (flash, instructions) if isinf(goal.price) else (instructions + goal.price * flash, flash)


def workspace_bytes(func: ir.PrimFunc) -> int:
    """What a lowered kernel takes of the arena beside its operands while it runs."""
    return sum(p.nbytes for p in func.params if p.scope == "workspace")


def constant_bytes(schedule: Schedule) -> int:
    """Constants that a kernel reads, in the form that the schedule stores them in."""
    return sum(p.nbytes for p in schedule.func.params if p.scope == "const")
