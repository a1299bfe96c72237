# SPDX-License-Identifier: Apache-2.0
"""Choice between schedules without measuring: candidates are lowered, the cost model estimates their costs, and the goal
weighs time against flash. Candidates that cannot win by the forecast of their instructions are not lowered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from math import inf, isinf
from typing import NamedTuple, Protocol, TypeVar

from microc.base.immutable import frozen
from microc.schedule.cost.cost_model import Cost, estimate
from microc.schedule.cost.forecast import forecast_instructions
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.lower import lower
from microc.tir.names import OPENED
from microc.tir.rewrite import walk_stmt

PACKED_MAX_SLOWDOWN, DEQUANTISED_MAX_SLOWDOWN, PACKED_PRICE_FACTOR, PACKED_MAX_COST_RATIO = 1.3, 4.0, 4.0, 1.05
"""Preference for packed weights, because the user reduced their bits for the sake of flash.

If some candidate packs weights, a byte costs PACKED_PRICE_FACTOR times the goal's price, so that 1 % of a balanced
network's flash is worth 1 % of its time. A schedule that packs weights is preferred if its weighted cost is at most
PACKED_MAX_COST_RATIO times the least weighted cost, or if its instructions are at most PACKED_MAX_SLOWDOWN times the
fewest (DEQUANTISED_MAX_SLOWDOWN times, if floats are multiplied by integers that the file stores as weights). With a
price of 0 only instructions count.

Measured on four cores, balanced: of 366 kernels of ``benchmarks/few_bits.py`` the price alone packs 87,
PACKED_MAX_SLOWDOWN 22 more and PACKED_MAX_COST_RATIO 9 more. Without the last, weights of 4 bits in blocks would be
stored in 8 bits (mlperf_ad_int8 on Cortex-M4: 0.70 of the instructions, 1.77 times the flash). Of 80 kernels of three
networks with float data and int8 weights the price alone keeps 23 in int8. The other 57 take 1.1 to 2.0 times the
instructions of float32, whose weights are four times as large."""
FORECAST_MARGIN = 0.8
"""Factor on forecast instructions that makes them a lower bound for comparisons. Of 3,716 candidates of seven networks
on five cores, 58 % are lowered at 0.8, and the best ones are among them. At 0.85 the best one of a kernel, which costs
4 % less than the next, is not."""
TIE_RATIO = 1.02
"""Schedules whose weighted estimates differ by less than this ratio are ranked with cycles in place of instructions,
because the cost model is not more precise. Constants that all schedules need do not count."""


class Weight(NamedTuple):
    """The cost of an alternative, weighted by a goal. ``total``: the cost that the goal minimises. ``tie_breaker``: ranks
    alternatives whose totals tie. ``constants``: the part of ``total`` for constants, which is known exactly."""

    total: float
    tie_breaker: float
    constants: float


def _limit_of_ties(least: Weight, common: float, goal: Goal) -> float:
    """Return the largest total of alternatives that tie with the best one, whose weight is ``least``. ``common``: cost of
    the constants that all alternatives need. If size alone counts, only equal totals tie."""
    return least.total + (0 if isinf(goal.price) else (TIE_RATIO - 1) * (least.total - common))


@frozen
class Choice:
    """The schedule that was chosen for a function, and the lowered function.

    ``verified``: True if the verifier has checked the lowered function. ``shipped``: True if the schedule is bundled
    with the compiler."""

    schedule: Schedule
    func: ir.PrimFunc
    verified: bool = field(default=False, compare=False)
    shipped: bool = field(default=False, compare=False)


@frozen
class CostedCandidate:
    """A candidate schedule with its estimated cost. ``constant_bytes``: bytes of the constants that the kernel reads.
    ``weight``: result of :func:`weigh_cost`."""

    choice: Choice
    cost: Cost
    constant_bytes: int
    weight: Weight

    @property
    def workspace(self) -> int:
        """Bytes of workspace that the lowered kernel needs."""
        return workspace_bytes(self.choice.func)


class WeightedAlternative(Protocol):
    """Interface of alternatives that can be ranked. ``weight``: result of :func:`weigh_cost`."""

    @property
    def weight(self) -> Weight: ...


T = TypeVar("T", bound=WeightedAlternative)


def choose_schedule(
    candidates: Sequence[Schedule], target: Target, goal: Goal, equal_kernels: int = 1, max_workspace_bytes: float = inf
) -> Choice:
    """Choose the best of at least one candidate schedule of a function.

    If speed alone counts, the best schedule has the fewest instructions. If size alone counts, it has the fewest
    bytes of code and constants. Else it minimises the sum of instructions and bytes, weighted by the goal's price.
    ``equal_kernels``: number of equal kernels in the network, which share their code. Schedules with more than
    ``max_workspace_bytes`` bytes of workspace are considered only if all candidates exceed the limit. In this case
    only the schedules with the least workspace are considered."""
    if len(candidates) == 1:
        return Choice(candidates[0], lower(candidates[0].func))
    original, goal = goal, scale_price_for_packing(goal, candidates)
    has_bounds = goal is original  # packed weights may win at a higher cost, so that all candidates are lowered
    bounds = [_least_total(s, target, goal, equal_kernels) if has_bounds else 0.0 for s in candidates]
    common = _weigh_constants(min(map(constant_bytes, candidates)), goal, equal_kernels)
    rivals: dict[int, CostedCandidate] = {}
    larger: dict[int, CostedCandidate] = {}
    limit = inf
    for k in sorted(range(len(candidates)), key=bounds.__getitem__):
        if bounds[k] > limit:
            break
        rival = cost_candidate(Choice(candidates[k], lower(candidates[k].func)), target, goal, equal_kernels)
        (rivals if rival.workspace <= max_workspace_bytes else larger)[k] = rival
        if has_bounds and k in rivals:
            limit = min(limit, _limit_of_ties(rival.weight, common, goal))
    if not rivals:
        least_workspace = min(rival.workspace for rival in larger.values())
        rivals = {k: rival for k, rival in larger.items() if rival.workspace == least_workspace}
    return best_candidate([rivals[k] for k in sorted(rivals)], goal).choice


def _least_total(schedule: Schedule, target: Target, goal: Goal, equal_kernels: int) -> float:
    """Return a lower bound of the cost of a schedule, weighted by the goal: its constants and, unless size alone
    counts, its forecast instructions. A schedule whose bound exceeds the cost of another schedule need not be
    lowered."""
    constants = _weigh_constants(constant_bytes(schedule), goal, equal_kernels)
    if isinf(goal.price):
        return constants
    pipeline = target.core.pipeline
    time = forecast_instructions(schedule.func, target) / (1 if pipeline is None else pipeline.issue_width)
    return constants + equal_kernels * FORECAST_MARGIN * time


def _weigh_constants(constant_byte_count: int, goal: Goal, equal_kernels: int) -> float:
    """Return the part of an alternative's weighted cost for its constants (:attr:`Weight.constants`)."""
    return equal_kernels * constant_byte_count * (1 if isinf(goal.price) else goal.price)


def scale_price_for_packing(goal: Goal, candidates: Sequence[Schedule]) -> Goal:
    """Return the goal with its price multiplied by :data:`PACKED_PRICE_FACTOR` if some candidate packs weights, or
    dequantises weights in the kernel. Else return the goal itself."""
    some_pack = any(schedule.packs_bits or _dequantises_weights(schedule) for schedule in candidates)
    return replace(goal, price=PACKED_PRICE_FACTOR * goal.price) if some_pack else goal


def cost_candidate(choice: Choice, target: Target, goal: Goal, equal_kernels: int = 1) -> CostedCandidate:
    """Estimate the cost of a choice on a core.

    ``equal_kernels``: number of equal kernels in the network, which share their code."""
    cost, constants = estimate(choice.func, target), constant_bytes(choice.schedule)
    return CostedCandidate(choice, cost, constants, weigh_cost(cost, constants, goal, equal_kernels))


def best_candidate(candidates: Sequence[CostedCandidate], goal: Goal) -> CostedCandidate:
    """Return the best candidate for a goal, as :func:`cheapest` ranks candidates.

    If packed weights are worth their slowdown (:data:`PACKED_MAX_SLOWDOWN`), only candidates that pack weights are
    considered."""
    return cheapest(_worthwhile_packing_candidates(candidates, goal) or candidates, goal)


def cheapest(alternatives: Sequence[T], goal: Goal) -> T:
    """Return the cheapest alternative for a goal: of those that tie with the one of the least weight
    (:data:`TIE_RATIO`), the first that the tie breaker ranks best."""
    least = min(rival.weight for rival in alternatives)
    limit = _limit_of_ties(least, min(rival.weight.constants for rival in alternatives), goal)
    return min(
        (rival for rival in alternatives if rival.weight.total <= limit), key=lambda rival: rival.weight.tie_breaker
    )


def _worthwhile_packing_candidates(candidates: Sequence[CostedCandidate], goal: Goal) -> list[CostedCandidate]:
    """Return the candidates that pack weights, if packed weights are worth their slowdown; else an empty list. The
    goals speed and size have no such preference."""
    if goal.price == 0 or isinf(goal.price):
        return []
    opened = [rival for rival in candidates if _dequantises_weights(rival.choice.schedule)]
    packed = [rival for rival in opened or candidates if rival.choice.schedule.packs_bits] or opened
    if not packed:
        return []
    fewest, fewest_packed = (min(rival.cost.time for rival in group) for group in (candidates, packed))
    least, least_packed = (min(rival.weight.total for rival in group) for group in (candidates, packed))
    most = DEQUANTISED_MAX_SLOWDOWN if opened else PACKED_MAX_SLOWDOWN
    return packed if fewest_packed <= most * fewest or least_packed <= PACKED_MAX_COST_RATIO * least else []


def _dequantises_weights(schedule: Schedule) -> bool:
    """Test whether the function multiplies floats by integer weights that the kernel dequantises."""
    return any(isinstance(s, ir.Block) and OPENED in dict(s.annotations) for s in walk_stmt(schedule.start.body))


def explain_rejection(candidate: CostedCandidate, candidates: Sequence[CostedCandidate], goal: Goal) -> str:
    """Explain in a phrase why the candidate ``candidate`` was not chosen from ``candidates``."""
    best, packing = best_candidate(candidates, goal), _worthwhile_packing_candidates(candidates, goal)
    if packing and candidate not in packing:
        return "stores weights wider than they need"
    candidates = packing or candidates
    slower = f"{_format_difference(candidate.cost.time, best.cost.time)} {best.cost.time_unit}"
    code, constants = candidate.cost.code_bytes - best.cost.code_bytes, candidate.constant_bytes - best.constant_bytes
    flash = f"{code:+,} bytes of code, {constants:+,} of constants"
    if isinf(goal.price):
        if candidate.weight > best.weight:
            return f"flash: {flash}" if candidate.weight.total > best.weight.total else f"as much flash, {slower}"
        return "costs the same, comes later"
    common = min(rival.weight.constants for rival in candidates)
    if candidate.weight.total <= _limit_of_ties(min(rival.weight for rival in candidates), common, goal):
        alike = f"ties within {100 * TIE_RATIO - 100:.0f} %"
        if candidate.weight.tie_breaker == best.weight.tie_breaker:
            return f"{alike}, comes later"
        cycles = f"{_format_difference(candidate.cost.cycles, best.cost.cycles)} cycles"
        more = candidate.cost.cycles > best.cost.cycles
        return f"{alike}, {cycles}" if more else f"{alike}, flash: {flash}, which {cycles} are not worth"
    if candidate.cost.time <= best.cost.time:
        return f"flash: {flash}, which {slower} are not worth"
    return slower + (f", flash: {flash}" if goal.price and code + constants > 0 else "")


def _format_difference(value: float, reference: float) -> str:
    """Format the relative difference of a value from a reference, such as "3 % more" or "5 % fewer"."""
    change = 100 * (value / reference - 1) if reference else inf
    return f"{abs(change):.3g} % {'more' if change >= 0 else 'fewer'}"


def weigh_cost(cost: Cost, constant_byte_count: int, goal: Goal, equal_kernels: int) -> Weight:
    """Weigh an estimated cost and the bytes of constants for a goal.

    If size alone counts, the total is the bytes of flash, and the time (:attr:`Cost.time`) breaks ties. Else the total is the
    time plus the goal's price times bytes of flash, and cycles plus the same price break ties. ``equal_kernels`` equal kernels
    share their code, but not their ``constant_byte_count``."""
    constants = _weigh_constants(constant_byte_count, goal, equal_kernels)
    time, cycles = equal_kernels * cost.time, equal_kernels * cost.cycles
    if isinf(goal.price):
        return Weight(cost.code_bytes + constants, time, constants)
    flash = goal.price * cost.code_bytes + constants
    return Weight(time + flash, cycles + flash, constants)


def workspace_bytes(func: ir.PrimFunc) -> int:
    """Return the bytes of workspace that a lowered kernel needs while it runs: arena memory in addition to its
    operands."""
    return sum(p.nbytes for p in func.params if p.scope == "workspace")


def constant_bytes(schedule: Schedule) -> int:
    """Return the bytes of all constants that a kernel reads, in the layout of the schedule."""
    return sum(p.nbytes for p in schedule.func.params if p.scope == "const")
