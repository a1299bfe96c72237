"""Choose algorithm and schedule for each group of a graph, by cost."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from threading import Lock

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.compiler.tuned import shipped as shipped_schedules
from microc.errors import MicrocError, ScheduleError
from microc.graph.ir import Graph, Node
from microc.isa import CORES, FAMILIES, SCALAR, TENSOR
from microc.module import Kernel, Module
from microc.ops import registry
from microc.ops.lowering import LoweredGroup, lower_algorithms, lower_update
from microc.ops.registry import Alias
from microc.schedule.choose import (
    Choice,
    best_candidate,
    cheapest,
    choose_schedule,
    cost_candidate,
    scale_price_for_packing,
    workspace_bytes,
)
from microc.schedule.cost.cost_model import Cost, estimate, tensor_unit_use
from microc.schedule.primitives.padding import WORDS
from microc.schedule.primitives.selection import THIRDS
from microc.schedule.primitives.tensorize import SUM_LIMIT
from microc.schedule.primitives.tree import Step, find_buffer
from microc.schedule.rules import RULES, candidate_schedules
from microc.schedule.rules.rule import HALF_WEIGHTS, THREADS, product_multiples, suits_target, undominated_algorithms
from microc.schedule.schedule import Schedule, replay_trace
from microc.target import Goal, Target, Traffic
from microc.tir import ir
from microc.tir.analysis.generalise import instantiate
from microc.tir.ir import PrimFunc
from microc.tir.lower import lower
from microc.tir.names import BOUND, PROMISES, SMALLEST_WEIGHT, SUM_BOUND
from microc.tir.rewrite import map_children, map_stmt
from microc.tir.text import to_text
from microc.tir.verify import verify

# ---- Float constants in 16 bits, if float16 or bfloat16 represents them exactly; kernels widen them when loading.
#
# Constants are tested by their values, whether these come from a 16-bit file or from the option ``weight_dtype``, whose pass
# (:mod:`microc.transform.quantised.weight_types`) rounds them. Results are bit-identical. If the user asks for 16 bits, all such
# constants are stored so; else on boards, if the goal prefers it, as for weights of few bits (:mod:`microc.schedule.choose`).

MIN_HALF_ELEMENTS = 64
"""Fewest elements of such a constant: fewer save less than the code that widens them."""


def with_16_bit_constants(group: LoweredGroup, choice: Choice, target: Target, goal: Goal, uses: int = 1) -> Choice:
    """Return the choice for a group, or a cheaper one that stores its float constants in 16 bits.

    ``uses`` as in :func:`select_group_schedule`."""
    is_required = target.has(HALF_WEIGHTS)
    if not is_required and FAMILIES[target.isa].threads:
        return choice
    variants = variants_with_16_bit_constants(group, choice.schedule, target)
    if not variants:
        return choice
    rivals = [cost_candidate(Choice(schedule, lower(schedule.func)), target, goal, uses) for schedule in variants]
    if not is_required:
        rivals.append(cost_candidate(choice, target, goal, uses))
    return best_candidate(rivals, scale_price_for_packing(goal, variants)).choice


def variants_with_16_bit_constants(group: LoweredGroup, schedule: Schedule, target: Target) -> list[Schedule]:
    """Return variants of a schedule that store float constants in 16 bits: one for each 16-bit format that is preferred
    where several hold the values exactly."""
    exact_forms = {
        buffer.name: [dtype for dtype in dtypes.HALF if _is_worth_16_bits(param.array, dtype)]
        for buffer, param in zip(group.func.params, group.params, strict=False)
        if buffer.dtype == "float32"
    }
    exact_halves = {name: halves for name, halves in exact_forms.items() if halves}
    packed_forms = (
        [WORDS] if target.has("float16_low") and any("float16" in halves for halves in exact_halves.values()) else []
    )
    distinct = dict.fromkeys(
        _store_in_16_bits(schedule, exact_halves, form) for form in (*packed_forms, *dtypes.HALF) if exact_halves
    )
    return list(distinct)


def _is_worth_16_bits(array: Array | None, dtype: str) -> bool:
    """Test whether a constant array is large enough for 16 bits to pay, and exact in the 16-bit float dtype ``dtype``."""
    return array is not None and array.size >= MIN_HALF_ELEMENTS and dtypes.is_exact_in(array, dtype)


def _store_in_16_bits(schedule: Schedule, exact_dtypes: Mapping[str, Sequence[str]], format_name: str) -> Schedule:
    """Store constants in the format ``format_name``, or in the 16-bit dtype that represents them.

    ``exact_dtypes``: the 16-bit dtypes that represent a constant exactly, by its name. Constants whose rows have an odd
    length cannot be packed in words and become float16; those that an instruction reads stay as they are."""
    for name, halves in exact_dtypes.items():
        even = find_buffer(schedule.func, name).shape[-1] % 2 == 0
        preferred = "float16" if format_name == WORDS else format_name
        own = halves[0] if preferred not in halves else format_name if even or format_name != WORDS else preferred
        try:
            schedule = schedule.set_dtype(name, own)
        except ScheduleError as refusal:
            schedule = schedule.without(f"set_dtype({name}, {own})", refusal)
    return schedule


# ---- Estimates of a module: code bytes of every kernel, instructions and cycles of every call.


def add_estimates(module: Module, target: Target) -> Module:
    """Fill in the estimated code bytes, instructions and cycles of ``module``, at the largest sizes if these are dynamic.

    Cycles include the waits for constants in flash, but not a tensor unit's cycles, which are separate. External code
    has its backend's estimate of instructions for both."""
    largest = {size.scalar.name: size.maximum for size in module.sizes}
    funcs = {kernel.name: instantiate(kernel.func, largest) for kernel in module.kernels}
    costs = {kernel.name: _kernel_cost(kernel, funcs[kernel.name], target) for kernel in module.kernels}
    params = {kernel.name: [param.name for param in kernel.func.params] for kernel in module.kernels}
    constants = {
        k.name: [costs[k.name].traffic.get(p.name, Traffic()) for p in k.func.params if p.scope == "const"]
        for k in module.kernels
    }
    return replace(
        module,
        kernels=tuple(
            replace(k, code_bytes=costs[k.name].code_bytes, fetches=costs[k.name].fetches) for k in module.kernels
        ),
        calls=tuple(
            replace(
                c,
                instructions=round(costs[c.kernel].instructions),
                cycles=round(costs[c.kernel].cycles),
                unit=tensor_unit_use(funcs[c.kernel], target.core.tensor_unit, c.macs),
                waits=round(target.flash_wait * sum(t.bytes_read for t in constants[c.kernel])),
                traffic=tuple(costs[c.kernel].traffic.get(p, Traffic()) for p in params[c.kernel]),
            )
            for c in module.calls
        ),
    )


def _kernel_cost(kernel: Kernel, func: PrimFunc, target: Target) -> Cost:
    """Return the estimated cost of a kernel; for external code, the estimates of its backend."""
    external = kernel.external
    if external is None:
        return estimate(func, target)
    return Cost(external.instructions, external.instructions, external.code_bytes, 0, {})


# ---- The best schedule of a group by cost, over all of its algorithms and the schedules of the rules.

MEMO_ENTRIES = 256
"""Entries of the memo, more than a large network has distinct kernels: quantisation compiles equal networks many times."""
_CHOICES: dict[object, tuple[int, Choice]] = {}
"""Memo of choices (number of the algorithm, schedule) by everything that they depend on; the entry that was used
longest ago is dropped first."""
_LOCK = Lock()
_LIMITS = {SUM_BOUND: SUM_LIMIT, SMALLEST_WEIGHT: -127, BOUND: THIRDS + 1}
"""Limits that rules compare the bounds of constants with. The bound of floats is hardly ever near its limit."""
_BOUND_TEXT = re.compile(rf'"({"|".join(PROMISES)})": (-?\d+)')


def groups_of(graph: Graph) -> list[tuple[Node, ...]]:
    """Return the nodes of each kernel in an order that respects dependences: a group runs at the place of its last node."""
    last = {node.group: k for k, node in enumerate(graph.nodes) if node.group}
    groups: list[tuple[Node, ...]] = []
    for k, node in enumerate(graph.nodes):
        if not node.group:
            groups.append((node,))
        elif last[node.group] == k:
            groups.append(tuple(n for n in graph.nodes if n.group == node.group))
    return groups


def schedule_group(
    graph: Graph, nodes: Sequence[Node], target: Target, goal: Goal, name: str, uses: int = 1, *, in_place: bool = False
) -> tuple[LoweredGroup, Choice]:
    """Lower and schedule a group of nodes as one kernel; ``uses`` as in :func:`choose_schedule`.

    ``in_place``: its only node updates a part of its first operand in place."""
    lowered = group_algorithms(graph, nodes, target, name, in_place=in_place)
    number, choice = select_group_schedule(lowered, target, goal, uses)
    return lowered[number], with_16_bit_constants(lowered[number], choice, target, goal, uses)


def select_group_schedule(
    lowered: Sequence[LoweredGroup],
    target: Target,
    goal: Goal,
    uses: int = 1,
    *,
    shipped: bool = False,
    workspace: float = inf,
) -> tuple[int, Choice]:
    """Choose the algorithm, by number, and the schedule of a group.

    ``shipped``: prefer a bundled schedule. If the winner exceeds ``workspace`` bytes, the best that fits is chosen.
    Results are memoised by function structure: groups that differ only in the values of their constants, in this
    network or another, share them.
    """
    if workspace < inf:
        number, choice = select_group_schedule(lowered, target, goal, uses, shipped=shipped)
        if workspace_bytes(choice.func) <= workspace:
            return number, choice
    registries = tuple(registry.entries for registry in (RULES, CORES, SCALAR, TENSOR))
    key = (memo_key(lowered), target, goal, uses, registries, shipped, workspace)
    with _LOCK:
        result = _CHOICES.pop(key, None)
    if result is None:
        use_shipped = shipped and workspace == inf
        result = (_shipped_or_best if use_shipped else _best_by_cost)(lowered, target, goal, uses, workspace)
    with _LOCK:
        _CHOICES[key] = result  # the last: the one that was asked for longest ago comes first
        if len(_CHOICES) > MEMO_ENTRIES:
            del _CHOICES[next(iter(_CHOICES))]
    return result


def clear_schedule_memo() -> None:
    """Clear the memo of chosen schedules, for callers that change the candidates."""
    with _LOCK:
        _CHOICES.clear()


def memo_key(lowered: Sequence[LoweredGroup]) -> tuple[str, ...]:
    """Return the key of a group in the memo of chosen schedules: operator and function of every algorithm.

    Bounds of constants are reduced to their number of bits, since rules compare them with powers of two alone."""
    return tuple(f"{group.anchor.op} {_BOUND_TEXT.sub(_bound_in_bits, to_text(group.func))}" for group in lowered)


def _bound_in_bits(bound_match: re.Match[str]) -> str:
    """Replace a bound of constants in a function's text by its number of bits.

    ``bound_match``: the match of the bound."""
    name, number = bound_match[1], int(bound_match[2])
    beyond = {
        SUM_BOUND: number,
        SMALLEST_WEIGHT: max(-number, 0),
        BOUND: max(number - 1, 0),
    }  # 2**20 is no more than THIRDS
    return f"{name} of {beyond[name].bit_length()} bits" if name in beyond else bound_match[0]


def tuning_key(lowered: Sequence[LoweredGroup], target: Target) -> str:
    """Return the key of tuning records: 40 hex digits of the functions' structure and of the core with its features.

    Numbers do not count, neither bounds of constants nor literals: layers of one shape with other zero points or shifts
    share a key.
    """
    known = structure_texts(lowered, lambda promise, number: ""), target.cpu, sorted(target.features - {THREADS})
    return hashlib.sha256(repr(known).encode()).hexdigest()[:40]


def structure_texts(lowered: Sequence[LoweredGroup], bound_text: Callable[[str, int], str]) -> list[tuple[str, str]]:
    """Return operator and function text, without literals, of every algorithm of a group; ``bound_text`` formats a bound
    of constants."""
    return [
        (
            group.anchor.op,
            _BOUND_TEXT.sub(lambda m: m[1] + bound_text(m[1], int(m[2])), to_text(_without_literals(group.func))),
        )
        for group in lowered
    ]


def text_without_bounds(group: LoweredGroup) -> str:
    """Return a group's function without bounds: layers with equal texts and schedules share a kernel."""
    return _BOUND_TEXT.sub("", to_text(group.func))


def _without_literals(func: ir.PrimFunc) -> ir.PrimFunc:
    """Replace the literals of computed values by 0; indices and conditions stay."""

    def value(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Const():
                return ir.const(0, expr.dtype)
            case ir.Load():
                return expr
            case ir.Select(condition, a, b):
                return ir.Select(condition, value(a), value(b))
            case _:
                return map_children(expr, value)

    def zero_stored_literals(s: ir.Stmt) -> ir.Stmt:
        return replace(s, value=value(s.value)) if isinstance(s, ir.Store) else s

    return replace(func, body=map_stmt(func.body, zero_stored_literals))


def shipped_key(lowered: Sequence[LoweredGroup]) -> str:
    """Return the key of a group in the bundled schedules; it is the same on every core.

    It has the functions' structure, and on which side of the limits for schedule steps the bounds of constants are."""
    return shipped_schedules.shipped_line_key(
        structure_texts(lowered, lambda name, number: str(number < _LIMITS.get(name, inf)))
    )


def shipped_choice(
    lowered: Sequence[LoweredGroup], target: Target, goal: Goal, uses: int = 1
) -> tuple[int, Choice] | None:
    """Return the bundled schedule of a group; None if there is none, or if the user has schedule rules of their own.

    Raises MicrocError if it cannot be replayed any more.
    """
    if not shipped_schedules.has_shipped_schedules(target) or RULES:
        return None
    schedules = shipped_schedules.shipped_schedules_of(target.cpu, shipped_key(lowered))
    offers = shipped_schedules.shipped_candidates(schedules, target, goal, uses)
    if not offers:
        return None
    best = cheapest(offers, goal).shipped
    number = next((k for k, group in enumerate(lowered) if group.algorithm == best.algorithm), None)
    if number is None:
        raise ScheduleError(
            f"shipped schedule: the kernel has no algorithm {best.algorithm!r}, "
            f"expected one of {', '.join(repr(group.algorithm) for group in lowered)}"
        )
    return number, replace(replay_on_group(lowered[number], best.trace, best.name), shipped=True)


def replay_on_group(lowered: LoweredGroup, trace: Iterable[Step], rule: str) -> Choice:
    """Replay a trace on a group and lower it; MicrocError if its steps do not fit this function."""
    return lower_verified(replay_trace(lowered.func, trace).named(rule), lowered)


def lower_verified(schedule: Schedule, lowered: LoweredGroup) -> Choice:
    """Lower a schedule from a search or a record, and verify it; MicrocError if it is no valid kernel."""
    choice = Choice(schedule, lower(schedule.func))
    verify(choice.func, tables=lowered.tables)
    return replace(choice, verified=True)


def group_algorithms(
    graph: Graph, nodes: Sequence[Node], target: Target, name: str, *, in_place: bool = False
) -> tuple[LoweredGroup, ...]:
    """Lower a group by every algorithm that suits the core; ``in_place`` as in :func:`schedule_group`."""
    if in_place:
        return (lower_update(graph, nodes[0], name),)
    multiples = product_multiples(target)
    return lower_algorithms(
        graph, nodes, multiples, name, lambda algorithm: suits_target(algorithm, target), undominated_algorithms
    )


def list_candidates(
    lowered: Sequence[LoweredGroup], target: Target, goal: Goal, workspace: float = inf
) -> list[tuple[int, Schedule]]:
    """List all candidates: number of the algorithm, schedule. ``workspace``: with a limit, also those of small workspaces."""
    return [
        (number, schedule)
        for number, group in enumerate(lowered)
        for schedule in candidate_schedules(group.func, group.anchor.op, target, goal, lean=workspace < inf)
    ]


def _best_by_cost(
    lowered: Sequence[LoweredGroup], target: Target, goal: Goal, uses: int, workspace: float
) -> tuple[int, Choice]:
    """Choose the algorithm, by number, and the schedule of a group by cost; with a limited workspace the winner is
    verified, since rules propose more candidates for it."""
    remaining = list_candidates(lowered, target, goal, workspace)
    while True:
        choice = choose_schedule([schedule for _, schedule in remaining], target, goal, uses, workspace)
        number = next(number for number, schedule in remaining if schedule is choice.schedule)
        if workspace == inf:
            return number, choice
        try:
            return number, lower_verified(choice.schedule, lowered[number])
        except MicrocError:
            remaining = [(k, schedule) for k, schedule in remaining if schedule is not choice.schedule]
            if not remaining:
                raise


def _shipped_or_best(
    lowered: Sequence[LoweredGroup], target: Target, goal: Goal, uses: int, workspace: float
) -> tuple[int, Choice]:
    """Choose the bundled schedule, else by cost. A bundled one that cannot be replayed any more is noted in reports."""
    try:
        bundled = shipped_choice(lowered, target, goal, uses)
    except MicrocError as refusal:
        number, choice = _best_by_cost(lowered, target, goal, uses, workspace)
        return number, replace(choice, schedule=choice.schedule.without("the one that comes with microc", refusal))
    return bundled or _best_by_cost(lowered, target, goal, uses, workspace)


def node_alias(graph: Graph, node: Node) -> Alias | None:
    """Return the placement of tensors that replaces a node without a kernel; None if it needs a kernel."""
    alias = registry.get(node.op).alias
    if alias is None:
        return None
    operand_types, result_types = ([graph.types[name] for name in names] for names in (node.inputs, node.outputs))
    return alias(node.attrs, operand_types, result_types)
