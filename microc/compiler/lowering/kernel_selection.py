# SPDX-License-Identifier: Apache-2.0
"""Choose the algorithm and the schedule of each group of nodes in a graph, by estimated cost."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from math import inf, prod
from threading import Lock

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.compiler.cache import ChoiceFile
from microc.compiler.tuned import shipped as shipped_schedules
from microc.errors import MicrocError, ScheduleError
from microc.graph.ir import Graph, Node
from microc.isa import CORES, FAMILIES, SCALAR, TENSOR
from microc.module import Kernel, Module
from microc.ops import registry
from microc.ops.lowering import LoweredGroup, lower_in_place_update, lower_with_each_algorithm
from microc.ops.quantised.exact_rounding import use_floor_sums
from microc.ops.quantised.requantize_floor import use_floor_requantisation
from microc.ops.quantised.requantize_split import use_split_requantisation
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
from microc.schedule.identities import THIRDS
from microc.schedule.primitives.padding import WORDS
from microc.schedule.primitives.tensorize import SUM_LIMIT
from microc.schedule.primitives.tree import Step, find_buffer, parse_step
from microc.schedule.rules import RULES, candidate_schedules
from microc.schedule.rules.rule import (
    HALF_WEIGHTS,
    THREADS,
    is_algorithm_worthwhile,
    multiplies_by_parts,
    multiplies_high_halves,
    narrows_with_rounding,
    product_multiples,
    undominated_algorithms,
)
from microc.schedule.schedule import Schedule, replay_trace
from microc.target import Goal, Target, Traffic
from microc.tir import ir
from microc.tir.analysis.simplification import IllFormedError
from microc.tir.ir import PrimFunc
from microc.tir.lower import lower
from microc.tir.names import BOUND, PROMISES, SMALLEST_WEIGHT, SUM_BOUND
from microc.tir.rewrite import map_children, map_stmt
from microc.tir.symbolic import instantiate
from microc.tir.text import to_text
from microc.tir.verify import verify

# ---- Float constants are stored in 16 bits if float16 or bfloat16 represents them exactly. Kernels convert them when
# loading.
#
# Only the values of a constant matter. They may come from a model file with 16-bit weights, or have been rounded for the
# option ``weight_dtype`` by a graph pass (:mod:`microc.transform.quantised.weight_types`). The results of the kernels are
# bit-identical. If the option requests 16 bits, all such constants are stored in 16 bits. Otherwise they are stored in 16
# bits only on boards and if this is better for the optimisation goal, like weights that are packed into few bits
# (:mod:`microc.schedule.choose`).

MIN_HALF_ELEMENTS = 64
"""Minimum number of elements of a constant that is stored in 16 bits. Fewer elements save less than the code costs that
converts them."""


def with_16_bit_constants(group: LoweredGroup, choice: Choice, target: Target, goal: Goal, uses: int = 1) -> Choice:
    """Return the choice for a group, or a choice of lower cost that stores the group's float constants in 16 bits.

    ``uses``: as in :func:`select_group_schedule`.
    """
    is_required = target.has(HALF_WEIGHTS)
    if not is_required and FAMILIES[target.isa].threads:
        return choice
    variants = variants_with_16_bit_constants(group, choice.schedule, target)
    if not variants:
        return choice
    registries = CORES.entries, SCALAR.entries
    rivals = [
        cost_candidate(Choice(schedule, _lower_with_memo(schedule.func, registries)), target, goal, uses)
        for schedule in variants
    ]
    if not is_required:
        rivals.append(cost_candidate(choice, target, goal, uses))
    return best_candidate(rivals, scale_price_for_packing(goal, variants)).choice


@lru_cache(maxsize=256)
def _lower_with_memo(func: PrimFunc, _registries: object) -> PrimFunc:
    """Lower a scheduled function, memoised: equal layers, such as those of a transformer, have equal variants.

    ``_registries``: cores and scalar intrinsics, a part of the key, because plugins extend them."""
    return lower(func)


def variants_with_16_bit_constants(group: LoweredGroup, schedule: Schedule, target: Target) -> list[Schedule]:
    """Return the variants of a schedule that store float constants in 16 bits.

    If several 16-bit formats represent a constant exactly, there is a variant for each format, which prefers this
    format.
    """
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
    """Test whether a constant array has enough elements to be stored in 16 bits, and ``dtype`` (a 16-bit float)
    represents it exactly."""
    return array is not None and array.size >= MIN_HALF_ELEMENTS and dtypes.is_exact_in(array, dtype)


def _store_in_16_bits(schedule: Schedule, exact_dtypes: Mapping[str, Sequence[str]], format_name: str) -> Schedule:
    """Return a schedule that stores constants in the format ``format_name`` or, if that is impossible, in another
    16-bit dtype.

    ``exact_dtypes``: the 16-bit dtypes that represent a constant exactly, by the constant's name. The format ``WORDS``
    packs two float16 in a word, so a constant whose rows have an odd length becomes float16 instead. A constant that an
    intrinsic reads stays as it is.
    """
    for name, halves in exact_dtypes.items():
        even = find_buffer(schedule.func, name).shape[-1] % 2 == 0
        preferred = "float16" if format_name == WORDS else format_name
        own = halves[0] if preferred not in halves else format_name if even or format_name != WORDS else preferred
        try:
            schedule = schedule.set_dtype(name, own)
        except ScheduleError as refusal:
            schedule = schedule.without(f"set_dtype({name}, {own})", refusal)
    return schedule


# ---- Estimates for a module: bytes of code of every kernel, instructions and cycles of every call.


def add_estimates(module: Module, target: Target) -> Module:
    """Return ``module`` with estimates of code bytes, instructions and cycles. Dynamic sizes are set to their maximum.

    Cycles include the waits for constants in flash, but not the cycles of a tensor unit, which have a field of their
    own. For external code, the backend's estimate of instructions is also used as the number of cycles.
    """
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
    """Return the estimated cost of a kernel. For external code, the backend provides the estimates."""
    external = kernel.external
    if external is None:
        return estimate(func, target)
    return Cost(external.instructions, external.instructions, external.code_bytes, 0, {})


# ---- The schedule of a group with the least cost, among all algorithms and all schedules that rules propose for them.

MEMO_ENTRIES = 256
"""Maximum number of choices that are memoised. It exceeds the number of distinct kernels in a large network.
Quantisation benefits from the memo, because it compiles equal networks many times."""
_CHOICES: dict[object, tuple[int, Choice]] = {}
"""Memo of choices (index of the algorithm, schedule), by everything on which a choice depends. The least recently used
entry is dropped first."""
_LOCK = Lock()
_LIMITS = {SUM_BOUND: SUM_LIMIT, SMALLEST_WEIGHT: -127, BOUND: THIRDS + 1}
"""Limits with which schedule rules compare the bounds of constants. The bound of float constants is rarely near its
limit."""
_BOUND_TEXT = re.compile(rf'"({"|".join(PROMISES)})": (-?\d+)')


def groups_of(graph: Graph) -> list[tuple[Node, ...]]:
    """Return the groups of nodes that become one kernel each, in an order that respects dependences.

    A group is at the position of its last node.
    """
    last = {node.group: k for k, node in enumerate(graph.nodes) if node.group}
    groups: list[tuple[Node, ...]] = []
    for k, node in enumerate(graph.nodes):
        if not node.group:
            groups.append((node,))
        elif last[node.group] == k:
            groups.append(tuple(n for n in graph.nodes if n.group == node.group))
    return groups


def schedule_group(
    graph: Graph,
    nodes: Sequence[Node],
    target: Target,
    goal: Goal,
    name: str,
    uses: int = 1,
    *,
    in_place: bool = False,
    choices: ChoiceFile | None = None,
) -> tuple[LoweredGroup, Choice]:
    """Lower and schedule a group of nodes as one kernel. ``uses``: as in :func:`choose_schedule`.

    ``in_place``: the group is a single node, which updates a part of its first operand in place. ``choices``: as in
    :func:`select_group_schedule`.
    """
    lowered = group_algorithms(graph, nodes, target, name, in_place=in_place)
    number, choice = select_group_schedule(lowered, target, goal, uses, choices=choices)
    return lowered[number], with_16_bit_constants(lowered[number], choice, target, goal, uses)


def select_group_schedule(
    lowered: Sequence[LoweredGroup],
    target: Target,
    goal: Goal,
    uses: int = 1,
    *,
    shipped: bool = False,
    workspace: float = inf,
    choices: ChoiceFile | None = None,
) -> tuple[int, Choice]:
    """Choose the schedule of a group; return the index of its algorithm in ``lowered``, and the choice.

    ``shipped``: prefer a schedule bundled with the compiler. ``workspace``: if the best kernel needs more bytes of
    workspace, the best kernel within this limit is chosen. Choices are memoised by the structure of the functions.
    Therefore groups that differ only in the values of their constants share an entry, even if they belong to different
    networks. ``choices``: the choices of earlier processes, to which new ones are added.
    """
    if workspace < inf:
        number, choice = select_group_schedule(lowered, target, goal, uses, shipped=shipped, choices=choices)
        if workspace_bytes(choice.func) <= workspace:
            return number, choice
    registries = tuple(registry.entries for registry in (RULES, CORES, SCALAR, TENSOR))
    tables = tuple(group.tables for group in lowered)  # the chosen kernel is verified with them
    key = (memo_key(lowered), tables, target, goal, uses, registries, shipped, workspace)
    with _LOCK:
        result = _CHOICES.pop(key, None)
    if result is None:
        search = partial(_recall_or_search, lowered, target, goal, uses, workspace, choices)
        use_shipped = shipped and workspace == inf
        result = _find_shipped_or_search(lowered, target, goal, uses, search) if use_shipped else search()
    with _LOCK:
        _CHOICES[key] = result  # reinserted as the last entry, so that the least recently used entry is the first
        if len(_CHOICES) > MEMO_ENTRIES:
            del _CHOICES[next(iter(_CHOICES))]
    return result


def clear_schedule_memo() -> None:
    """Clear the memo of chosen schedules. To be called after the schedule rules or cores have been changed."""
    with _LOCK:
        _CHOICES.clear()


def memo_key(lowered: Sequence[LoweredGroup]) -> tuple[str, ...]:
    """Return the key of a group in the memo of chosen schedules: the operator and the function text of every algorithm.

    Bounds of constants are reduced to their number of bits, because rules compare them only with powers of two.
    """
    return tuple(f"{group.anchor.op} {_BOUND_TEXT.sub(_bound_in_bits, to_text(group.func))}" for group in lowered)


def _bound_in_bits(bound_match: re.Match[str]) -> str:
    """Return the text that replaces a bound on the values of a constant in a function's text: the number of bits of the
    bound.

    ``bound_match``: a match of :data:`_BOUND_TEXT`.
    """
    name, number = bound_match[1], int(bound_match[2])
    beyond = {
        SUM_BOUND: number,
        SMALLEST_WEIGHT: max(-number, 0),
        BOUND: max(number - 1, 0),
    }  # rules test bound <= THIRDS = 2**20; minus 1, such bounds have at most 20 bits
    return f"{name} of {beyond[name].bit_length()} bits" if name in beyond else bound_match[0]


def tuning_key(lowered: Sequence[LoweredGroup], target: Target) -> str:
    """Return the key of a kernel in tuning records: 40 hex digits that depend on the structure of its functions, the
    core, and the features of the core.

    Integer literals and bounds of constants do not matter. Therefore layers of the same shape with different zero
    points or shifts have the same key.
    """
    known = list_structure_texts(lowered, lambda promise, number: ""), target.cpu, sorted(target.features - {THREADS})
    return hashlib.sha256(repr(known).encode()).hexdigest()[:40]


def list_structure_texts(
    lowered: Sequence[LoweredGroup], bound_text: Callable[[str, int], str]
) -> list[tuple[str, str]]:
    """Return the operator and the function text of every algorithm of a group. In the text, literals of computed values
    are 0.

    ``bound_text``: formats a bound on the values of a constant, given the name and the value of the bound.
    """
    return [
        (
            group.anchor.op,
            _BOUND_TEXT.sub(lambda m: m[1] + bound_text(m[1], int(m[2])), to_text(_without_literals(group.func))),
        )
        for group in lowered
    ]


def text_without_bounds(group: LoweredGroup) -> str:
    """Return the text of a group's function without bounds of constants. Layers with equal texts and equal schedules
    share a kernel."""
    return _BOUND_TEXT.sub("", to_text(group.func))


def _without_literals(func: ir.PrimFunc) -> ir.PrimFunc:
    """Replace the literals in computed values by 0. Literals in indices and conditions stay the same."""

    def zero_literals(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Const():
                return ir.const(0, expr.dtype)
            case ir.Load():
                return expr
            case ir.Select(condition, a, b):
                return ir.Select(condition, zero_literals(a), zero_literals(b))
            case _:
                return map_children(expr, zero_literals)

    def zero_stored_literals(s: ir.Stmt) -> ir.Stmt:
        return replace(s, value=zero_literals(s.value)) if isinstance(s, ir.Store) else s

    return replace(func, body=map_stmt(func.body, zero_stored_literals))


def shipped_key(lowered: Sequence[LoweredGroup]) -> str:
    """Return the key of a group in the file of bundled schedules. It does not depend on the core.

    The key depends on the structure of the functions, and on whether the bounds of constants are below the limits with
    which schedule steps compare them.
    """
    return shipped_schedules.compute_shipped_key(
        list_structure_texts(lowered, lambda name, number: str(number < _LIMITS.get(name, inf)))
    )


def find_shipped_choice(
    lowered: Sequence[LoweredGroup], target: Target, goal: Goal, uses: int = 1
) -> tuple[int, Choice] | None:
    """Return the bundled schedule of a group and the index of its algorithm in ``lowered``.

    None if there is no bundled schedule, or if the user has registered schedule rules. Raises MicrocError if the steps
    of the schedule can no longer be applied.
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
    """Apply the steps of a schedule to the function of a group, and lower the result.

    Raises MicrocError if the steps cannot be applied to this function.
    """
    return lower_verified(replay_trace(lowered.func, trace).named(rule), lowered)


def replay_on_algorithm(
    lowered: Sequence[LoweredGroup], algorithm: str, trace: Iterable[Step], rule: str
) -> tuple[int, Choice]:
    """Apply the steps of a recorded schedule to the function of one algorithm, given by name; return its index in
    ``lowered``, and the choice.

    Raises MicrocError if there is no such algorithm, or the steps cannot be applied."""
    number = next((k for k, group in enumerate(lowered) if group.algorithm == algorithm), None)
    if number is None:
        raise ScheduleError(
            f"record: the kernel has no algorithm {algorithm!r}, "
            f"expected one of {', '.join(repr(group.algorithm) for group in lowered)}",
            hint="tune again: the record comes from another version of microc",
        )
    return number, replay_on_group(lowered[number], trace, rule)


def lower_verified(schedule: Schedule, lowered: LoweredGroup) -> Choice:
    """Lower a schedule that a search or a record provides, and verify it; MicrocError if the kernel is not valid."""
    choice = Choice(schedule, lower(schedule.func))
    verify(choice.func, tables=lowered.tables)
    return replace(choice, verified=True)


def adapt_group_to_core(graph: Graph, nodes: Sequence[Node], target: Target) -> tuple[Graph, Sequence[Node]]:
    """Replace operators of a group by equal ones that take fewer instructions on the core. Return the nodes, and the graph with
    their constants."""
    nodes = use_floor_sums(graph, nodes)
    if multiplies_high_halves(target):
        return use_floor_requantisation(graph, nodes)
    if multiplies_by_parts(target):
        return use_split_requantisation(graph, nodes)
    # The sums of one row, and of groups, start at the bias at no cost. The replacement then took up to 4 % more cycles (M55).
    rows = prod(graph.types[nodes[0].outputs[0]].shape[:-1])
    if narrows_with_rounding(target) and rows > 1 and nodes[0].attrs.get("groups", 1) == 1:
        return use_floor_requantisation(graph, nodes, rounds=True)
    return graph, nodes


def group_algorithms(
    graph: Graph, nodes: Sequence[Node], target: Target, name: str, *, in_place: bool = False
) -> tuple[LoweredGroup, ...]:
    """Lower a group of nodes by every algorithm that suits the core. Return one unscheduled function per algorithm.

    ``in_place``: as in :func:`schedule_group`.
    """
    if in_place:
        return (lower_in_place_update(graph, nodes[0], name),)
    graph, nodes = adapt_group_to_core(graph, nodes, target)
    multiples = product_multiples(target)
    return lower_with_each_algorithm(
        graph,
        nodes,
        multiples,
        name,
        lambda algorithm: is_algorithm_worthwhile(algorithm, target),
        undominated_algorithms,
    )


def list_candidates(
    lowered: Sequence[LoweredGroup], target: Target, goal: Goal, workspace: float = inf
) -> list[tuple[int, Schedule]]:
    """List all candidate schedules of a group, each with the index of its algorithm in ``lowered``.

    ``workspace``: if it is limited, additional candidates with small workspaces are included.
    """
    return [
        (number, schedule)
        for number, group in enumerate(lowered)
        for schedule in candidate_schedules(group.func, group.anchor.op, target, goal, low_memory=workspace < inf)
    ]


def _best_by_cost(
    lowered: Sequence[LoweredGroup], target: Target, goal: Goal, uses: int, workspace: float
) -> tuple[int, Choice]:
    """Choose the schedule of a group by cost; return the index of its algorithm in ``lowered``, and the choice.

    The chosen kernel is verified. If its schedule is not valid for this function, the next best is chosen. Raises
    ProgramError if an operator uses unchecked constants as indices.
    """
    remaining = list_candidates(lowered, target, goal, workspace)
    while True:
        choice = choose_schedule([schedule for _, schedule in remaining], target, goal, uses, workspace)
        number = next(number for number, schedule in remaining if schedule is choice.schedule)
        try:
            verify(choice.func, tables=lowered[number].tables)
        except IllFormedError:
            remaining = [(k, schedule) for k, schedule in remaining if schedule is not choice.schedule]
            if not remaining or choice.schedule.rule in RULES:  # users are told of errors in their rules
                raise
        else:
            _refuse_unchecked_indices(lowered[number])
            return number, replace(choice, verified=True)


def _refuse_unchecked_indices(group: LoweredGroup) -> None:
    """Raise ProgramError if an operator uses constants as indices whose numbers are not checked.

    The unscheduled function is examined, because the verifier does not see the indices of vector gathers."""
    with suppress(IllFormedError):  # a few functions are well-formed only after lowering has removed dead branches
        verify(group.func, tables=group.tables)


def _recall_or_search(
    lowered: Sequence[LoweredGroup],
    target: Target,
    goal: Goal,
    uses: int,
    workspace: float,
    choices: ChoiceFile | None,
) -> tuple[int, Choice]:
    """Choose the schedule that an earlier process chose for equal functions, or else the best schedule by cost, which is
    added to ``choices``."""
    # A user's rules, cores and intrinsics are code, which no key describes.
    if choices is None or any(registry.is_extended for registry in (RULES, CORES, SCALAR, TENSOR)):
        return _best_by_cost(lowered, target, goal, uses, workspace)
    tables = [sorted(group.tables) for group in lowered]
    features, core = sorted(target.features), replace(target, features=frozenset())
    known = memo_key(lowered), tables, core, features, goal, uses, workspace
    key = hashlib.sha256(repr(known).encode()).hexdigest()[:40]
    if (row := choices.find(key)) is not None:
        # The digest of a line does not tell who wrote it, so its content is checked like a tuning record.
        with suppress(MicrocError, TypeError, ValueError, LookupError, RecursionError):
            number, rule, trace, refused = row
            choice = replay_on_group(lowered[number], map(parse_step, trace), str(rule))
            return number, replace(choice, schedule=replace(choice.schedule, refused=tuple(map(str, refused))))
    number, choice = _best_by_cost(lowered, target, goal, uses, workspace)
    trace = [[step.primitive, *step.args] for step in choice.schedule.trace]
    choices.add(key, [number, choice.schedule.rule, trace, choice.schedule.refused])
    return number, choice


def _find_shipped_or_search(
    lowered: Sequence[LoweredGroup], target: Target, goal: Goal, uses: int, search: Callable[[], tuple[int, Choice]]
) -> tuple[int, Choice]:
    """Choose the bundled schedule of a group, or else the one that ``search`` returns.

    If the bundled schedule can no longer be applied, reports show this.
    """
    try:
        bundled = find_shipped_choice(lowered, target, goal, uses)
    except MicrocError as refusal:
        number, choice = search()
        return number, replace(choice, schedule=choice.schedule.without("the one that comes with microc", refusal))
    return bundled or search()


def find_node_alias(graph: Graph, node: Node) -> Alias | None:
    """Return the placement of tensors that makes a kernel for a node unnecessary; None if the node needs a kernel."""
    alias = registry.get(node.op).alias
    if alias is None:
        return None
    operand_types, result_types = ([graph.types[name] for name in names] for names in (node.inputs, node.outputs))
    return alias(node.attrs, operand_types, result_types)
