"""The groups of a graph, and the best schedule of one."""

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
from microc.schedule.choose import Choice, best_of, choose, lightest, priced, weighed, workspace_bytes
from microc.schedule.cost.cost_model import Cost, estimate, unit_use
from microc.schedule.primitives.padding import WORDS
from microc.schedule.primitives.selection import THIRDS
from microc.schedule.primitives.tensorize import SUM_LIMIT
from microc.schedule.primitives.tree import Step, buffer_named
from microc.schedule.rules import RULES, candidates
from microc.schedule.rules.rule import HALF_WEIGHTS, THREADS, multiples_of, suits_core, unbeaten
from microc.schedule.schedule import Schedule, replay
from microc.target import Goal, Target, Traffic
from microc.tir import ir
from microc.tir.analysis.generalise import instantiate
from microc.tir.ir import PrimFunc
from microc.tir.lower import lower
from microc.tir.names import BOUND, PROMISES, SMALLEST_WEIGHT, SUM_BOUND
from microc.tir.rewrite import map_children, map_stmt
from microc.tir.text import to_text
from microc.tir.verify import verify

# ---- Constants of floats in two bytes: those whose numbers float16 or bfloat16 hold, each widened where it is
# loaded.
#
# They are found by their numbers, wherever these come from: a file that has them in 16 bits, or the option ``weight_dtype``,
# whose pass (:mod:`microc.transform.quantised.weight_types`) rounds them. What is computed is the same in every bit. Where the
# user asks for it all are stored so; else on boards, where the goal prefers it, as weights of few bits are
# (:mod:`microc.schedule.choose`).

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


# ---- What the cost model says of a module: code bytes of every kernel, instructions and cycles of every call.


def estimated(module: Module, target: Target) -> Module:
    """``module`` with the estimates filled in, at the largest sizes where they vary.

    Cycles include the waits of constants in the target's flash, but none for a tensor unit, whose cycles are apart. Of external
    code they are its instructions, which is all that its backend says.
    """
    largest = {size.scalar.name: size.maximum for size in module.sizes}
    funcs = {kernel.name: instantiate(kernel.func, largest) for kernel in module.kernels}
    costs = {kernel.name: _cost(kernel, funcs[kernel.name], target) for kernel in module.kernels}
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
                unit=unit_use(funcs[c.kernel], target.core.tensor_unit, c.macs),
                waits=round(target.flash_wait * sum(t.bytes_read for t in constants[c.kernel])),
                traffic=tuple(costs[c.kernel].traffic.get(p, Traffic()) for p in params[c.kernel]),
            )
            for c in module.calls
        ),
    )


def _cost(kernel: Kernel, func: PrimFunc, target: Target) -> Cost:
    external = kernel.external
    if external is None:
        return estimate(func, target)
    return Cost(external.instructions, external.instructions, external.code_bytes, 0, {})


# ---- The groups of a graph, and the best schedule by cost of one: over every algorithm that suits it and what the
# rules make.

KEPT = 256
"""Choices that are remembered, more than a large network has kinds of kernels: quantising compiles networks alike many times."""
_CHOICES: dict[object, tuple[int, Choice]] = {}
"""The number of the algorithm and its schedule, by all that they follow from; the oldest goes first."""
_CHANGING = Lock()
_LIMITS = {SUM_BOUND: SUM_LIMIT, SMALLEST_WEIGHT: -127, BOUND: THIRDS + 1}
"""What the numbers that constants promise are compared with; the greatest magnitude of floats is hardly ever near its limit."""
_PROMISE = re.compile(rf'"({"|".join(PROMISES)})": (-?\d+)')


def groups_of(graph: Graph) -> list[tuple[Node, ...]]:
    """Nodes by kernel, in an order that respects dependences: a group runs where its last node stands."""
    last = {node.group: k for k, node in enumerate(graph.nodes) if node.group}
    found: list[tuple[Node, ...]] = []
    for k, node in enumerate(graph.nodes):
        if not node.group:
            found.append((node,))
        elif last[node.group] == k:
            found.append(tuple(n for n in graph.nodes if n.group == node.group))
    return found


def schedule_group(
    graph: Graph, nodes: Sequence[Node], target: Target, goal: Goal, name: str, uses: int = 1, *, in_place: bool = False
) -> tuple[LoweredGroup, Choice]:
    """The group, lowered by the algorithm that was chosen, and its schedule; ``uses`` as in ``choose``.

    ``in_place``: the one node changes a part of its first operand where that lies.
    """
    lowered = algorithms_of(graph, nodes, target, name, in_place=in_place)
    number, choice = chosen(lowered, target, goal, uses)
    return lowered[number], stored(lowered[number], choice, target, goal, uses)


def chosen(
    lowered: Sequence[LoweredGroup],
    target: Target,
    goal: Goal,
    uses: int = 1,
    *,
    shipped: bool = False,
    workspace: float = inf,
) -> tuple[int, Choice]:
    """The algorithm, by number, and the schedule for it; ``shipped``: what comes with the compiler is asked first. Where that
    takes more than ``workspace`` bytes, the best of what rules have that does not. Groups whose functions are those of one
    before, of this network or another, but for the numbers in their constants, take what that has."""
    if workspace < inf:
        number, choice = chosen(lowered, target, goal, uses, shipped=shipped)
        if workspace_bytes(choice.func) <= workspace:
            return number, choice
    known = tuple(words.entries for words in (RULES, CORES, SCALAR, TENSOR))
    key = (texts_of(lowered), target, goal, uses, known, shipped, workspace)
    found = _CHOICES.get(key)
    if found is None:
        asked = shipped and workspace == inf
        found = (_shipped_or_best if asked else _best)(lowered, target, goal, uses, workspace)
        with _CHANGING:
            _CHOICES[key] = found
            if len(_CHOICES) > KEPT:
                del _CHOICES[next(iter(_CHOICES))]
    return found


def forget() -> None:
    """Nothing is remembered any more: for those who change what is chosen from."""
    with _CHANGING:
        _CHOICES.clear()


def texts_of(lowered: Sequence[LoweredGroup]) -> tuple[str, ...]:
    """What tells groups apart, but for the numbers in their constants: the operator and the function of every algorithm. Of what
    constants promise the sizes in bits are left: they are compared with powers of two alone."""
    return tuple(f"{group.anchor.op} {_PROMISE.sub(_in_bits, to_text(group.func))}" for group in lowered)


def _in_bits(promise: re.Match[str]) -> str:
    name, number = promise[1], int(promise[2])
    beyond = {
        SUM_BOUND: number,
        SMALLEST_WEIGHT: max(-number, 0),
        BOUND: max(number - 1, 0),
    }  # 2**20 is no more than THIRDS
    return f"{name} of {beyond[name].bit_length()} bits" if name in beyond else promise[0]


def key_of(lowered: Sequence[LoweredGroup], target: Target) -> str:
    """What records of measurements are found by: 40 hex digits of the functions' structure and of the core with its features.
    Numbers do not count, neither those of constants and what they promise nor those that values are computed with: layers of one
    shape whose zero points or shifts differ have one key."""
    known = structure_of(lowered, lambda promise, number: ""), target.cpu, sorted(target.features - {THREADS})
    return hashlib.sha256(repr(known).encode()).hexdigest()[:40]


def structure_of(lowered: Sequence[LoweredGroup], said: Callable[[str, int], str]) -> list[tuple[str, str]]:
    """The operator and the function of every algorithm without numbers; ``said``: what is kept of a promise, by its name and
    its number."""
    return [
        (group.anchor.op, _PROMISE.sub(lambda m: m[1] + said(m[1], int(m[2])), to_text(_numberless(group.func))))
        for group in lowered
    ]


def function_of(group: LoweredGroup) -> str:
    """Its function, whatever the constants promise: layers for which that is equal run one where they have one schedule."""
    return _PROMISE.sub("", to_text(group.func))


def _numberless(func: ir.PrimFunc) -> ir.PrimFunc:
    """A function that computes its values with zeros alone; what is read, and under which conditions, stays."""

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

    def stmt(s: ir.Stmt) -> ir.Stmt:
        return replace(s, value=value(s.value)) if isinstance(s, ir.Store) else s

    return replace(func, body=map_stmt(func.body, stmt))


def shape_of(lowered: Sequence[LoweredGroup]) -> str:
    """What schedules that come with the compiler are found by, on every core: the functions' structure, and on which side of the
    limits their promises are that decide which steps there are."""
    return shipped_schedules.key_of(structure_of(lowered, lambda name, number: str(number < _LIMITS.get(name, inf))))


def shipped_choice(
    lowered: Sequence[LoweredGroup], target: Target, goal: Goal, uses: int = 1
) -> tuple[int, Choice] | None:
    """What comes with the compiler for a kernel of this shape; None where nothing does, and where rules of the user's compete.
    MicrocError where its steps make no schedule any more."""
    if not shipped_schedules.is_known(target) or RULES:
        return None
    known = shipped_schedules.schedules_of(target.cpu, shape_of(lowered))
    offers = shipped_schedules.offers(known, target, goal, uses)
    if not offers:
        return None
    best = lightest(offers, goal).shipped
    number = next((k for k, group in enumerate(lowered) if group.algorithm == best.algorithm), None)
    if number is None:
        raise ScheduleError(f"there is no algorithm {best.algorithm!r}")
    return number, replace(replayed(lowered[number], best.trace, best.name), shipped=True)


def replayed(lowered: LoweredGroup, trace: Iterable[Step], rule: str) -> Choice:
    """The schedule that a record's trace makes of a group, lowered; MicrocError where its steps do not fit this function."""
    return verified(replay(lowered.func, trace).named(rule), lowered)


def verified(schedule: Schedule, lowered: LoweredGroup) -> Choice:
    """A schedule that a search or a record made of a group, lowered; MicrocError where that is no kernel."""
    choice = Choice(schedule, lower(schedule.func))
    verify(choice.func, tables=lowered.tables)
    return replace(choice, verified=True)


def algorithms_of(
    graph: Graph, nodes: Sequence[Node], target: Target, name: str, *, in_place: bool = False
) -> tuple[LoweredGroup, ...]:
    """The group, lowered in every way that computes it and suits the core; ``in_place`` as in :func:`schedule_group`."""
    if in_place:
        return (lower_update(graph, nodes[0], name),)
    multiples = multiples_of(target)
    return lower_algorithms(graph, nodes, multiples, name, lambda algorithm: suits_core(algorithm, target), unbeaten)


def ways_of(
    lowered: Sequence[LoweredGroup], target: Target, goal: Goal, workspace: float = inf
) -> list[tuple[int, Schedule]]:
    """All that is chosen from: number of the algorithm, schedule. ``workspace``: where it is limited, also what takes little."""
    return [
        (number, schedule)
        for number, group in enumerate(lowered)
        for schedule in candidates(group.func, group.anchor.op, target, goal, lean=workspace < inf)
    ]


def _best(
    lowered: Sequence[LoweredGroup], target: Target, goal: Goal, uses: int, workspace: float
) -> tuple[int, Choice]:
    """The algorithm, by number, and the schedule for it; for a limited workspace one that the verifier has seen: rules make
    more for that than they would propose."""
    found = ways_of(lowered, target, goal, workspace)
    while True:
        choice = choose([schedule for _, schedule in found], target, goal, uses, workspace)
        number = next(number for number, schedule in found if schedule is choice.schedule)
        if workspace == inf:
            return number, choice
        try:
            return number, verified(choice.schedule, lowered[number])
        except MicrocError:
            found = [(k, schedule) for k, schedule in found if schedule is not choice.schedule]
            if not found:
                raise


def _shipped_or_best(
    lowered: Sequence[LoweredGroup], target: Target, goal: Goal, uses: int, workspace: float
) -> tuple[int, Choice]:
    """What comes with the compiler, else what the rules choose; one that makes no schedule any more is told in reports."""
    try:
        return shipped_choice(lowered, target, goal, uses) or _best(lowered, target, goal, uses, workspace)
    except MicrocError as refusal:
        number, choice = _best(lowered, target, goal, uses, workspace)
        return number, replace(choice, schedule=choice.schedule.without("the one that comes with microc", refusal))


def alias_of(graph: Graph, node: Node) -> Alias | None:
    """How a node is done by placing tensors, if it can be."""
    alias = registry.get(node.op).alias
    if alias is None:
        return None
    kinds, made = ([graph.types[name] for name in names] for names in (node.inputs, node.outputs))
    return alias(node.attrs, kinds, made)
