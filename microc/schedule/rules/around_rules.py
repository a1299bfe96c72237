# SPDX-License-Identifier: Apache-2.0
"""Steps before and after every rule: naming the stages of user functions, replacing float functions, splitting loops
across threads and cores, choosing instructions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from microc.base.immutable import frozen
from microc.errors import ScheduleError
from microc.isa import CORES, SCALAR, c_body_for_cost_model
from microc.schedule.choose import Choice
from microc.schedule.cost.cost_model import estimate
from microc.schedule.cost.operation_counts import IntrinsicCost, Selector, list_scalar_intrinsic_costs
from microc.schedule.identities import IDENTITIES, Identity
from microc.schedule.primitives.compute_at import stored_buffer
from microc.schedule.primitives.loops import is_used_only_in_loop
from microc.schedule.primitives.memory_selection import MemoryCall, find_memory_calls, is_selected_in_memory
from microc.schedule.primitives.selection import find_identities, find_intrinsics, rewrite_expr, select_in_expr
from microc.schedule.primitives.tree import find_loop
from microc.schedule.primitives.unification import expand_call, substitute_operands
from microc.schedule.rules.generic import blocks_of, inline_elementwise, is_operator_scheduled
from microc.schedule.rules.rule import FAST_MATH, float_vector_level
from microc.schedule.rules.templates import is_product_of_loads
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir import ir
from microc.tir.analysis.context import buffers_read, buffers_written
from microc.tir.analysis.cover import has_disjoint_iterations
from microc.tir.lower import lower
from microc.tir.names import ACC, OUT, PART, UNTILE
from microc.tir.rewrite import free_vars, map_expr, walk_expr, walk_stmt
from microc.tir.verify import constant_names, explain_fault

# ---- User functions get the block names that rules look for: the sum of products along one axis becomes ``acc``, its elementwise
# epilogue ``out``. If there is no epilogue, a copy of the sums becomes one.


def name_product_blocks(start: Schedule) -> Schedule:
    """Rename the blocks of the function's only product to ``acc`` and ``out``, the names by which rules find them.

    Return the schedule unchanged if the function has several products or none, or if it has blocks with these names
    already."""
    if any(map(start.has, (OUT, UNTILE, PART))) or any(map(is_operator_scheduled, blocks_of(start))):
        return start
    schedule = inline_elementwise(start)
    blocks = blocks_of(schedule)
    sums = [block for block in blocks if block.init is not None]
    if len(sums) != 1 or not _is_product(sums[0]):
        return start
    total, others = stored_buffer(sums[0]), [block for block in blocks if block is not sums[0]]
    readers = [block.name for block in others if total in buffers_read(block)]
    if total in schedule.func.params:
        schedule = schedule.cache_write(sums[0].name, "workspace")
        readers.append(blocks_of(schedule)[-1].name)
    if len(readers) != 1:
        return start
    for name, anchor in ((sums[0].name, ACC), (readers[0], OUT)):
        schedule = schedule if name == anchor else schedule.rename_block(name, anchor)
    return schedule


def _is_product(block: ir.Block) -> bool:
    """Test whether a block sums products of two loads along one axis, in at least two spatial loops."""
    axis_kinds = [axis.kind for axis in block.iters]
    if len(axis_kinds) < 3 or axis_kinds != ["space"] * (len(axis_kinds) - 1) + ["reduce"]:
        return False
    if not isinstance(block.body, ir.Store):
        return False
    match block.body.value:
        case ir.Bin("add", ir.Load(buffer), value) if buffer == block.body.buffer:
            return any(map(is_product_of_loads, walk_expr(value)))
        case _:
            return False


# ---- First steps of every schedule


def canonicalise_for_target(func: ir.PrimFunc, target: Target) -> Schedule:
    """Convert a function to the form that rules match: blocks have the expected names, float functions are replaced
    by arithmetic that vectors can compute, and high products by the form that suits the core."""
    schedule = name_product_blocks(Schedule(func))
    fused, scalars = target.has("fma"), target.has("fpu")
    if scalars and target.has(FAST_MATH):
        schedule = _drop_idle_step(schedule, schedule.select_functions(fused, True))
    elif float_vector_level(target) or (scalars and fused):
        # Not only vectors gain: newlib's expf and tanhf take 60 to 100 instructions on a Cortex-M4, this arithmetic 25 to 35 (a
        # float LSTM of 24 cells takes 0.77 of its instructions, in 0.99 of the flash, as the library is not linked). And all
        # cores that fuse multiply-adds give the same bits, whatever C library their toolchains have.
        schedule = _drop_idle_step(schedule, schedule.select_functions(fused))
    return apply_early_identities(schedule, target)


def _drop_idle_step(before: Schedule, after: Schedule) -> Schedule:
    """Return the schedule ``after`` a step, or the schedule ``before`` it if the step has changed nothing.

    A step without effect would only lengthen the trace."""
    return before if after.func == before.func else after


# ---- Threads: split the outermost loops of large kernels, in any schedule, after it was chosen
#
# A chunk consists of neighbouring iterations in their original order, and has its own workspaces. Therefore every element is
# computed exactly as by one thread. Small loops stay serial, because buffers of parallel loops share no memory, and because a
# second thread that is awake pays only from about two microseconds of work (measured: 1.64 us become 1.33, 16.2 become 8.7), and
# a thread that must be woken from fifty.

MAX_CHUNKS = 4
"""Most chunks for each thread. Each chunk has its own workspaces."""
MIN_INSTRUCTIONS = 60_000
"""Number of instructions of a loop, estimated by the cost model, from which it is split: about two microseconds with
vectors, twenty without."""


def split_across_threads(choice: Choice, target: Target, threads: int) -> Choice:
    """Split the large loops of a chosen schedule into parallel chunks for ``threads`` threads."""
    if threads == 1:
        return choice
    total, start = estimate(choice.func, target).instructions, choice.schedule.func
    work = {loop.var.name: count_block_instances(loop) for loop in iterate_outermost_loops(start.body)}
    for name, instances in work.items():
        # A loop's share of the instructions is its share of all instances of blocks.
        if total * instances >= MIN_INSTRUCTIONS * sum(work.values()):
            choice = _split_loop_in_chunks(choice, name, threads)
    return choice


def iterate_outermost_loops(stmt: ir.Stmt) -> Iterator[ir.For]:
    """Iterate over the loops that are not inside another loop. Loops with one iteration are skipped; the loops
    inside them count as outermost."""
    match stmt:
        case ir.Seq(body):
            for child in body:
                yield from iterate_outermost_loops(child)
        case ir.Alloc(_, body) | ir.Let(_, _, body):
            yield from iterate_outermost_loops(body)
        case ir.For(_, extent, body):
            if ir.int_value(extent) == 1:
                yield from iterate_outermost_loops(body)
            else:
                yield stmt


def count_block_instances(loop: ir.For) -> int:
    """Return how often blocks are executed in a loop, in total."""
    blocks = (s for s in walk_stmt(loop.body) if isinstance(s, ir.Block))
    return sum(prod(i.extent for i in block.iters) for block in blocks)


def _split_loop_in_chunks(choice: Choice, name: str, threads: int) -> Choice:
    """Split the loop ``name`` of a chosen schedule into parallel chunks. Return the choice unchanged if chunks may
    conflict, or if the verifier cannot prove that they stay within buffers."""
    schedule = choice.schedule
    loop = find_loop(schedule.func.body, name)
    count = _chunk_count(ir.int_value(loop.extent) or 0, threads)
    if loop.kind != "serial" or count == 0 or has_partial_iteration(loop):
        return choice
    try:
        parallel = schedule.split(name, (count, None)).parallel(f"{name}_0", private=True)
    except ScheduleError as refusal:
        return replace(choice, schedule=schedule.without(f"parallel({name})", refusal))
    lowered, chunks = lower(parallel.func), find_loop(parallel.func.body, f"{name}_0")
    if not are_iterations_independent(parallel.func, chunks) or explain_fault(lowered, tables=constant_names(lowered)):
        return choice
    return Choice(parallel, lowered)


def _chunk_count(extent: int, threads: int) -> int:
    """Return the least number of equal chunks with which all threads finish earliest; 0 if no number of chunks
    divides ``extent``."""
    divisors = [n for n in range(2, min(extent, MAX_CHUNKS * threads) + 1) if extent % n == 0]
    return min(divisors, key=lambda n: -(-n // threads) * (extent // n), default=0)


def has_partial_iteration(loop: ir.For) -> bool:
    """Test whether the last iteration of a loop is partial. Lowering peels such an iteration, so that it would be in
    no chunk."""
    blocks = (s for s in walk_stmt(loop.body) if isinstance(s, ir.Block))
    return any(block.predicate is not None and loop.var in free_vars(block.predicate) for block in blocks)


def are_iterations_independent(func: ir.PrimFunc, loop: ir.For) -> bool:
    """Test whether the iterations of ``loop`` are independent: they share no locals and no register
    tiles, and each writes a disjoint part of every shared buffer."""
    written = buffers_written(loop.body)
    shared = [
        b for b in written | buffers_read(loop.body) if b in func.params or not is_used_only_in_loop(func, loop, b)
    ]
    return all(b.scope not in ("local", "register") for b in shared) and all(
        has_disjoint_iterations(loop, b) for b in shared if b in written
    )


# ---- Distribution of large loops among the cores of a board, in any schedule, after it was chosen.
#
# A loop is worth a fork and a join from ``Target.min_fork_instructions`` instructions on, a fact of the board's port. The
# outermost loop is distributed. If it has few iterations, so that the larger half is much more than a half, the loops
# inside of it may be distributed instead: then each of its iterations forks. The plan with the shortest path is taken; the
# path is what the slower core runs, and all that one core runs alone.

FORK_SHARE = 10
"""A fork and a join cost this part of the least work that is worth them (``Target.min_fork_instructions``): measured as 49 of 500
instructions on Cortex-M33."""


@frozen
class _Plan:
    """Loops to distribute, and the instructions of the path through them."""

    path: float
    loops: tuple[str, ...] = ()


def distribute_among_cores(choice: Choice, target: Target) -> Choice:
    """Distribute the large loops of a chosen schedule among the cores that the target uses.

    Loops whose iterations depend on each other stay serial. The result is the same choice if no loop is worth a fork."""
    if target.cores == 1:
        return choice
    total, start = estimate(choice.func, target).instructions, choice.schedule
    work = {loop.var.name: count_block_instances(loop) for loop in iterate_outermost_loops(start.func.body)}
    for name, instances in work.items():
        # A loop's share of the instructions is its share of all instances of blocks.
        instructions = total * instances / sum(work.values()) if instances else 0.0
        for plan in _list_plans(start, find_loop(start.func.body, name), instructions, target.min_fork_instructions):
            distributed = _distribute_loops(choice, plan.loops)
            if distributed is not None:
                choice = distributed
                break
    return choice


def _list_plans(schedule: Schedule, loop: ir.For, instructions: float, least: int) -> list[_Plan]:
    """List the plans for a loop that runs ``instructions`` instructions, in the order of their paths. Plans that gain nothing are
    left out.

    ``least``: instructions of a loop that is worth a fork."""
    if instructions < least:
        return []
    plans = (
        *_distribute_itself(schedule, loop, instructions, least),
        *_distribute_inside(schedule, loop, instructions, least),
    )
    return sorted((plan for plan in plans if plan.path < instructions), key=lambda plan: (plan.path, len(plan.loops)))


def _distribute_itself(schedule: Schedule, loop: ir.For, instructions: float, least: int) -> Iterator[_Plan]:
    """Yield the plan that distributes the loop itself, if its iterations are independent."""
    count = ir.int_value(loop.extent) or 0
    tail = has_partial_iteration(loop)
    full = count - tail
    if full >= 2 and _is_distributable(schedule, loop):
        slower = max(full - full // 2, full // 2 + tail)
        yield _Plan(instructions * slower / count + least / FORK_SHARE, (loop.var.name,))


def _distribute_inside(schedule: Schedule, loop: ir.For, instructions: float, least: int) -> Iterator[_Plan]:
    """Yield the plan that distributes loops inside of the loop, each by the best plan for itself alone."""
    count, instances = ir.int_value(loop.extent) or 0, count_block_instances(loop)
    if not count or not instances or loop.kind != "serial":
        return
    path, names = 0.0, tuple[str, ...]()
    for inner in iterate_outermost_loops(loop.body):
        share = instructions * count_block_instances(inner) / instances / count
        best = next(iter(_list_plans(schedule, inner, share, least)), _Plan(share))
        path, names = path + best.path, names + best.loops
    if names:
        yield _Plan(count * path, names)


def _is_distributable(schedule: Schedule, loop: ir.For) -> bool:
    """Test whether the iterations of a loop can be divided among cores: they are independent, and sum nothing up."""
    try:
        schedule.distribute(loop.var.name, 2)
    except ScheduleError:
        return False
    return loop.kind == "serial" and are_iterations_independent(schedule.func, loop)


def _distribute_loops(choice: Choice, names: tuple[str, ...]) -> Choice | None:
    """Distribute the loops ``names`` of a chosen schedule. None if the verifier cannot prove that the function stays within
    buffers."""
    schedule = choice.schedule
    for name in names:
        schedule = schedule.distribute(name, 2)
    lowered = lower(schedule.func)
    if explain_fault(lowered, tables=constant_names(lowered)):
        return None
    return replace(choice, schedule=schedule, func=lowered)


# ---- Choice of instructions: identities and scalar intrinsics that take fewer instructions on a core.
#
# The cost of an expression is that of what becomes of it: it is counted after all other identities and intrinsics were applied to
# it. So an identity is chosen if it lets an intrinsic match, and not if it hinders another one.


class IdentityCost(NamedTuple):
    """Instructions of both sides of an identity on a core: of the pattern as it is, and of the replacement after all other
    identities and intrinsics. ``refusal``: why the core does not use the identity, else empty."""

    name: str
    pattern: float
    replacement: float
    refusal: str = ""


def apply_early_identities(schedule: Schedule, target: Target) -> Schedule:
    """Apply the identities of the core whose results rules depend on."""
    return _apply(schedule, [name for name in choose_identities(target) if IDENTITIES[name].before_rules])


def select_instructions(schedule: Schedule, target: Target) -> Schedule:
    """Apply the identities of the core, and call all intrinsics whose meanings occur and take more instructions than their C
    bodies."""
    schedule = _apply(schedule, [name for name in choose_identities(target) if not IDENTITIES[name].before_rules])
    stores = sorted(list_memory_call_costs(schedule.func, target), key=lambda cost: cost.body - cost.meaning)
    cheaper = (*(cost.name for cost in stores if cost.body < cost.meaning), *_cheaper_intrinsics(target))
    used = find_intrinsics(schedule.func, cheaper)  # the trace names these alone: cores have dozens
    selected = schedule.select_intrinsics(*used) if used else schedule
    own = {cost.name for cost in stores}
    if own.isdisjoint(used) or not explain_fault(selected.func, tables=constant_names(selected.func)):
        return selected
    # The verifier cannot prove that the calls cover what the stores did.
    used = find_intrinsics(schedule.func, [name for name in cheaper if name not in own])
    return schedule.select_intrinsics(*used) if used else schedule


LOOP_INSTRUCTIONS = 2
"""Instructions of an iteration of a loop that is not unrolled: its counter, and the branch."""


def list_memory_call_costs(func: ir.PrimFunc, target: Target) -> list[IntrinsicCost]:
    """List the costs of the intrinsics that store elements, for those whose meanings occur in a function: instructions of all
    their calls, and of the statements that these replace, after other intrinsics were selected in them."""
    costs: list[IntrinsicCost] = []
    for name in _list_storing_intrinsics(target, CORES.entries, SCALAR.entries):
        calls = [(stmt, call) for stmt, call in find_memory_calls(func, name) if not call.fault]
        counts = [_count_memory_call(stmt, call, target) for stmt, call in calls]
        if counts:
            costs.append(IntrinsicCost(name, *map(sum, zip(*counts, strict=True))))
    return costs


@lru_cache(maxsize=64)
def _list_storing_intrinsics(target: Target, _cores: object, _intrinsics: object) -> tuple[str, ...]:
    """Return the intrinsics with C bodies on a core that are called where their meanings, stores, occur. The contents of the
    registries are part of the key, since plugins extend them."""
    names = sorted(target.core.has | {name for name, intrin in SCALAR.items() if intrin.bodies})
    return tuple(name for name in names if is_selected_in_memory(name) and not SCALAR[name].is_formula)


def _count_memory_call(stmt: ir.Stmt, call: MemoryCall, target: Target) -> tuple[float, float]:
    """Count the instructions of calls that replace a statement, and those of the statement."""
    selector, intrinsics = Selector(target), _cheaper_intrinsics(target)
    (store,) = (s for s in walk_stmt(stmt) if isinstance(s, ir.Store))
    operations = selector.count_store(store.buffer, select_in_expr(store.value, intrinsics))
    each = [target.core.costs.instructions(counts) for counts in (selector.count(call.call), operations)]
    trips = (ir.int_value(stmt.extent) or 0) if isinstance(stmt, ir.For) else 1
    loop = LOOP_INSTRUCTIONS if isinstance(stmt, ir.For) and stmt.kind == "serial" else 0
    return call.repeats * (each[0] + loop * (call.repeats > 1)), trips * (each[1] + loop)


def _apply(schedule: Schedule, names: Sequence[str]) -> Schedule:
    """Apply identities to a schedule. The trace names those that occur."""
    used = find_identities(schedule.func, names)
    return schedule.apply_identities(*used) if used else schedule


def _cheaper_intrinsics(target: Target) -> tuple[str, ...]:
    """Return the scalar intrinsics whose C bodies on the core take fewer instructions than their meanings, or are empty."""
    return tuple(
        cost.name
        for cost in list_scalar_intrinsic_costs(target)
        if cost.body < cost.meaning or _has_empty_body(cost.name, target)
    )


def choose_identities(target: Target) -> tuple[str, ...]:
    """Return the identities that a core uses. Of several with the same pattern, the one with the largest saving comes first."""
    costs = sorted(list_identity_costs(target).values(), key=lambda cost: cost.replacement - cost.pattern)
    return tuple(cost.name for cost in costs if not cost.refusal)


def list_identity_costs(target: Target) -> Mapping[str, IdentityCost]:
    """Return the costs of all identities on a core, by name, with the reasons why it does not use some of them."""
    return _list_costs_by_registries(target, CORES.entries, SCALAR.entries)


@lru_cache(maxsize=64)
def _list_costs_by_registries(target: Target, _cores: object, _intrinsics: object) -> Mapping[str, IdentityCost]:
    """Return :func:`list_identity_costs`. The contents of the registries are part of the key, since plugins extend them."""
    alone = {name: _cost_identity(identity, target, ()) for name, identity in IDENTITIES.items()}
    usable = [name for name, cost in alone.items() if not cost.refusal]
    costs: dict[str, IdentityCost] = {}
    for name, identity in IDENTITIES.items():
        others = [other for other in usable if other != name]
        sides = _example_sides(identity)
        # Most sides contain no pattern of another identity: their costs are those without the others.
        occurs = any(rewrite_expr(side, others) is not side for side in sides)
        cost = _cost_identity(identity, target, others) if occurs else alone[name]
        costs[name] = cost._replace(pattern=alone[name].pattern)
    return MappingProxyType(costs)


def _cost_identity(identity: Identity, target: Target, others: Sequence[str]) -> IdentityCost:
    """Count the instructions of both sides of an identity, after the identities ``others`` and the intrinsics of the core were
    applied to them."""
    intrinsics = _cheaper_intrinsics(target)
    best = [select_in_expr(rewrite_expr(side, others), intrinsics) for side in _example_sides(identity)]
    selector = Selector(target)
    printed = (map_expr(side, lambda x: _expand_empty_body(x, target)) for side in best)
    before, after = (target.core.costs.instructions(selector.count_shared(side)) for side in printed)
    called = {x.name for x in walk_expr(best[1]) if isinstance(x, ir.Call) and x.name in SCALAR}
    missing = sorted(name for name in called - target.core.has if not SCALAR[name].bodies)
    refusal = ""
    if identity.scalar and target.has("lanes"):
        refusal = "the lanes of its vectors take the pattern"
    elif missing and not identity.portable:
        refusal = f"the core has no C body for {', '.join(missing)}"
    elif after > before:
        refusal = f"it takes {after:g} instructions; what it replaces takes {before:g}"
    return IdentityCost(identity.name, before, after, refusal)


def _expand_empty_body(expr: ir.Expr, target: Target) -> ir.Expr:
    """Return the meaning of a call whose C body on the core is empty. Return any other expression unchanged."""
    if not isinstance(expr, ir.Call) or expr.name not in SCALAR:
        return expr
    return expand_call(expr) if _has_empty_body(expr.name, target) else expr


def _has_empty_body(name: str, target: Target) -> bool:
    """Test whether the C body of an intrinsic on the core is empty."""
    body = c_body_for_cost_model(name, target.cpu)
    return body is not None and body.is_empty


def _example_sides(identity: Identity) -> tuple[ir.Expr, ir.Expr]:
    """Return both sides of an identity with typical values of its constants, and with registers in the places of other
    variables. (Variables would be index arithmetic, which is not rewritten.)"""
    operands: dict[ir.Expr, ir.Expr] = {}
    for var in free_vars(identity.pattern):
        value = identity.constants.get(var.name)
        register = ir.Buffer(var.name, (1,), var.dtype, "register")
        operands[var] = register[0] if value is None else ir.Const(value, var.dtype)
    return substitute_operands(identity.pattern, operands), substitute_operands(identity.replacement, operands)
