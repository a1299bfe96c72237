# SPDX-License-Identifier: Apache-2.0
"""Derive again how a kernel was compiled, for ``microc explain`` and ``--dump``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

from microc.base.file_access import write_text
from microc.base.immutable import frozen
from microc.codegen.c.source import print_kernel_by_name
from microc.codegen.output_files import replace_folder_atomically
from microc.codegen.render import Label, Name
from microc.compiler.fit.striping import Chain, ChainLowering
from microc.compiler.interaction import Progress
from microc.compiler.lowering.control_flow import goal_per_iteration, list_groups_in_control_flow
from microc.compiler.lowering.kernel_builder import (
    TABLE,
    CompiledNetwork,
    KernelBuilder,
    ValueCopy,
    find_channel_blocks,
    lower_copy,
)
from microc.compiler.lowering.kernel_selection import (
    group_algorithms,
    list_candidates,
    with_16_bit_constants,
)
from microc.compiler.sizes.general import GeneralFunction, GeneralKernelBuilder, unify_bounds
from microc.errors import InternalError
from microc.graph.ir import Graph, Node
from microc.graph.text import format_nodes
from microc.module import Call
from microc.ops import registry
from microc.ops.control import EXTERNAL
from microc.ops.lowering import LoweredGroup
from microc.schedule.choose import (
    Choice,
    CostedCandidate,
    best_candidate,
    cost_candidate,
    explain_rejection,
    scale_price_for_packing,
)
from microc.schedule.cost.cost_model import Cost, estimate
from microc.schedule.primitives.tree import Step
from microc.schedule.schedule import Schedule, replay_steps, trace_to_json
from microc.target import Goal
from microc.tir import ir
from microc.tir.lower import lower, lowering_stages
from microc.tir.symbolic import instantiate
from microc.tir.text import to_text

# ---- The derivation of a kernel: all candidate schedules with their costs and verdicts, the steps of the chosen schedule,
# and the function after every stage of compilation.
#
# The same functions that compiled the kernel are called again, with the nodes from which the call was made
# (:data:`microc.compiler.lowering.kernel_builder.Origin`) and with the recorded goal. The result is compared with the module.


@frozen
class DerivedCandidate:
    """A candidate schedule of an algorithm, with its cost. ``verdict``: ``chosen``, or why the schedule was not
    chosen."""

    algorithm: str
    schedule: Schedule
    cost: Cost
    constants: int
    weight: float
    verdict: str


@frozen
class DerivedPart:
    """Nodes of a kernel that were scheduled together as one function, with everything that was considered.

    ``algorithms``: the unscheduled function of each algorithm. ``start``: the unscheduled function to which
    ``schedule`` applies. ``steps``: the steps of the schedule, with the function after each step. ``stages``: the
    lowering passes, with the function after each pass. ``uses``: number of groups that share the kernel's code.
    """

    op: str
    nodes: str
    algorithms: tuple[LoweredGroup, ...]
    candidates: tuple[DerivedCandidate, ...]
    start: LoweredGroup
    schedule: Schedule
    steps: tuple[tuple[Step, ir.PrimFunc], ...]
    stages: tuple[tuple[str, ir.PrimFunc], ...]
    goal: Goal
    uses: int


@frozen
class DerivedKernel:
    """A call of the network and its C function, with the derivation of the function.

    ``parts``: the groups of nodes from which the function was made. There are several if the kernel computes several
    groups. ``notes``: changes other than scheduling and lowering, and what the derivation does not show.
    """

    number: int
    call: Call
    func: ir.PrimFunc
    cost: Cost
    notes: tuple[str, ...]
    parts: tuple[DerivedPart, ...]
    c: str

    def __repr__(self) -> str:
        return f"<Kernel {self.call.kernel}, step {self.number}>"


def derive_kernel(compiled: CompiledNetwork, call_index: int) -> DerivedKernel:
    """Derive again how the kernel of the call with index ``call_index`` was compiled.

    The plugins with which the network was compiled must be registered.
    """
    module, kernel_builder = compiled.module, compiled.kernel_builder
    call = module.calls[call_index]
    func = next(kernel.func for kernel in module.kernels if kernel.name == call.kernel)
    cost = estimate(instantiate(func, {size.scalar.name: size.maximum for size in module.sizes}), kernel_builder.target)
    parts = tuple(_derive_parts(kernel_builder, call))
    notes = [*_list_call_notes(compiled, call), *_verify_and_list_changes(kernel_builder, call, parts, func)]
    return DerivedKernel(
        call_index, call, func, cost, tuple(notes), parts, str(print_kernel_by_name(module, call.kernel))
    )


def _derive_parts(kernel_builder: KernelBuilder, call: Call) -> Iterator[DerivedPart]:
    """Yield the parts of a call's kernel, according to the nodes or the value from which the call was made."""
    graph, origin = kernel_builder.graph, kernel_builder.origins[call.writes]
    match origin:
        case ValueCopy() if kernel_builder.sizes:
            return
        case ValueCopy():
            yield _derive_part(
                kernel_builder,
                graph,
                (),
                (lower_copy(graph, origin),),
                kernel_builder.goal,
                shares_loops=True,
            )
        case Chain():
            for alone, nodes, goal in ChainLowering(
                graph, kernel_builder.target, kernel_builder.goal
            ).make_scheduling_tasks(origin):
                yield _derive_part(
                    kernel_builder, alone, nodes, group_algorithms(alone, nodes, kernel_builder.target, "rows"), goal
                )
        case _ if isinstance(kernel_builder, GeneralKernelBuilder):
            for together in (
                kernel_builder.inner_groups_at_all_sizes(origin.nodes[0])
                if registry.get(origin.nodes[0].op).regions
                else [kernel_builder.group_at_all_sizes(origin.nodes)]
            ):
                yield _derive_general_part(kernel_builder, together, origin.uses)
        case _ if registry.get(origin.nodes[0].op).regions:
            for inner, nodes, iterations in list_groups_in_control_flow(graph, origin.nodes[0]):
                lowered = group_algorithms(inner, nodes, kernel_builder.target, "kernel")
                goal = goal_per_iteration(kernel_builder.goal_of(origin.nodes), iterations)
                yield _derive_part(
                    kernel_builder,
                    inner,
                    nodes,
                    lowered,
                    goal,
                    used_schedule=kernel_builder.choose_inner_schedule(lowered, goal),
                )
        case _:
            lowered = group_algorithms(graph, origin.nodes, kernel_builder.target, "kernel", in_place=origin.in_place)
            goal = kernel_builder.goal_of(origin.nodes)
            tuned_choice, workspace = (
                kernel_builder.choose_schedule(lowered, goal, origin.uses),
                kernel_builder.effective_workspace_limit(lowered, goal, origin.uses),
            )
            yield _derive_part(
                kernel_builder,
                graph,
                origin.nodes,
                lowered,
                goal,
                origin.uses,
                tuned_choice,
                workspace,
                shares_loops=True,
            )


def _derive_part(
    kernel_builder: KernelBuilder,
    graph: Graph,
    nodes: Sequence[Node],
    lowered: Sequence[LoweredGroup],
    goal: Goal,
    uses: int = 1,
    used_schedule: tuple[int, Choice] | None = None,
    workspace: float = inf,
    *,
    shares_loops: bool = False,
) -> DerivedPart:
    """Derive the part for a group that was scheduled like
    :func:`microc.compiler.lowering.kernel_selection.schedule_group`.

    ``used_schedule``: the measured or bundled schedule that was used, with the index of its algorithm in ``lowered``.
    ``workspace``: the limit of the kernel's workspaces in bytes. ``shares_loops``: True if large loops are shared among
    cores or threads, as in kernels of their own.
    """
    schedules, taken_index = _insert_used_schedule(
        list_candidates(lowered, kernel_builder.target, goal, workspace), used_schedule
    )
    goal = scale_price_for_packing(goal, [schedule for _, schedule in schedules])
    weighed_groups = [(lowered[k], _cost_schedule(schedule, kernel_builder, goal, uses)) for k, schedule in schedules]
    rivals = [rival for _, rival in weighed_groups]
    best = best_candidate(rivals, goal) if taken_index is None else rivals[taken_index]
    candidates = tuple(
        _make_derived_candidate(
            group, rival, "chosen" if rival is best else _explain_rejection(rival, rivals, best, goal, workspace)
        )
        for group, rival in weighed_groups
    )
    start = next(group for group, rival in weighed_groups if rival is best)
    text = format_nodes(graph, nodes)
    choice = with_16_bit_constants(start, best.choice, kernel_builder.target, goal, uses) if nodes else best.choice
    choice = kernel_builder.share_large_loops(choice, nodes) if shares_loops else choice
    return _build_part(text, lowered, candidates, start, choice.schedule, goal, uses)


def _insert_used_schedule(
    numbered_schedules: list[tuple[int, Schedule]], used_schedule: tuple[int, Choice] | None
) -> tuple[list[tuple[int, Schedule]], int | None]:
    """Return the candidates including the schedule that was used, and its index among them.

    ``numbered_schedules``: the candidates, each with the index of its algorithm. ``used_schedule``: a measured or
    bundled schedule. If it is None, the rules' choice was used, and the returned index is None.
    """
    if used_schedule is None:
        return numbered_schedules, None
    number, schedule = used_schedule[0], used_schedule[1].schedule
    others = [(k, candidate) for k, candidate in numbered_schedules if (k, candidate.trace) != (number, schedule.trace)]
    index = next(
        (p for p, (k, candidate) in enumerate(numbered_schedules) if (k, candidate.trace) == (number, schedule.trace)),
        len(numbered_schedules),
    )
    return [*others[:index], (number, schedule), *others[index:]], index


def _explain_rejection(
    candidate: CostedCandidate,
    candidates: Sequence[CostedCandidate],
    best: CostedCandidate,
    goal: Goal,
    workspace: float,
) -> str:
    """Return the reason why the candidate ``candidate`` was not chosen."""
    if candidate.workspace > max(workspace, best.workspace):
        return f"takes {candidate.workspace:,} bytes of workspace, there is room for {max(workspace, 0):,.0f}"
    candidates = [each for each in candidates if each.workspace <= max(workspace, best.workspace)]
    chosen = best_candidate(candidates, goal)
    return (
        "measured to be slower or larger"
        if candidate is chosen is not best
        else explain_rejection(candidate, candidates, goal)
    )


def _build_part(
    nodes: str,
    lowered: Sequence[LoweredGroup],
    candidates: tuple[DerivedCandidate, ...],
    start: LoweredGroup,
    schedule: Schedule,
    goal: Goal,
    uses: int,
) -> DerivedPart:
    """Create the part of a derivation from the chosen schedule, with the function after every schedule step and every
    lowering pass."""
    taken, passed = tuple(replay_steps(start.func, schedule.trace)), tuple(lowering_stages(schedule.func))
    return DerivedPart(start.anchor.op, nodes, tuple(lowered), candidates, start, schedule, taken, passed, goal, uses)


def _derive_general_part(
    kernel_builder: GeneralKernelBuilder,
    group_at_sizes: Sequence[tuple[Graph, Sequence[Node]]],
    uses: int,
) -> DerivedPart:
    """Derive the part for a group of nodes with dynamic sizes. The part shows the first combination of sizes.

    ``group_at_sizes``: the graph and the nodes of the group at several combinations of sizes, and last with symbolic sizes.
    Candidates are compared at the first combination, and tried in order of their cost until one supports all sizes.
    """
    graph, nodes = unify_bounds(group_at_sizes)[0]
    lowered = group_algorithms(graph, nodes, kernel_builder.target, "kernel")
    tried: list[tuple[str, Schedule, str]] = []
    chosen: GeneralFunction | None = None
    for candidate, outcome in kernel_builder.try_variants(group_at_sizes, uses):
        tried.append((candidate.algorithm, candidate.schedule, "" if isinstance(outcome, GeneralFunction) else outcome))
        if isinstance(outcome, GeneralFunction):
            chosen = outcome
            break
    assert chosen is not None
    verdicts = {
        (algorithm or "direct", schedule.trace): f"refused: {reason}" if reason else "chosen"
        for algorithm, schedule, reason in tried
    }
    weighed = [
        (lowered[k], schedule) for k, schedule in list_candidates(lowered, kernel_builder.target, kernel_builder.goal)
    ]
    if not any(verdicts.get((group.algorithm, schedule.trace)) == "chosen" for group, schedule in weighed):
        weighed.append((lowered[-1], tried[-1][1]))
    candidates = tuple(
        _make_derived_candidate(
            group,
            _cost_schedule(schedule, kernel_builder, kernel_builder.goal, uses),
            verdicts.get((group.algorithm, schedule.trace), "weighs more than the one that was chosen"),
        )
        for group, schedule in weighed
    )
    start, schedule = replace(candidate, schedule=chosen.schedule).apply_to_group(graph, nodes, kernel_builder.target)
    return _build_part(format_nodes(graph, nodes), lowered, candidates, start, schedule, kernel_builder.goal, uses)


def _cost_schedule(schedule: Schedule, kernel_builder: KernelBuilder, goal: Goal, uses: int) -> CostedCandidate:
    """Lower a schedule, and return it as a candidate with its cost."""
    return cost_candidate(Choice(schedule, lower(schedule.func)), kernel_builder.target, goal, uses)


def _make_derived_candidate(group: LoweredGroup, candidate: CostedCandidate, verdict: str) -> DerivedCandidate:
    """Convert a candidate schedule of a group, with its cost, to a derived candidate with the given verdict."""
    return DerivedCandidate(
        group.algorithm,
        candidate.choice.schedule,
        candidate.cost,
        candidate.constant_bytes,
        candidate.weight[0],
        verdict,
    )


def _list_call_notes(compiled: CompiledNetwork, call: Call) -> Iterator[str]:
    """Yield facts about a call that the schedules of its parts do not show."""
    for decision in compiled.module.decisions:
        if decision.layer == call.layer and decision.why:
            yield f"{'external code' if decision.theirs else 'ours'}, {decision.why}"
    origin = compiled.kernel_builder.origins[call.writes]
    others = [k for k, other in enumerate(compiled.module.calls) if other.kernel == call.kernel and other != call]
    if others:
        yield f"{call.kernel} is also the function of steps {', '.join(map(str, others))}"
    if isinstance(origin, Chain):
        yield (
            f"{len(origin.groups)} layers row by row, at most {origin.height} rows at a time: the parts are blocks of rows, "
            "and what joins them is not shown as steps"
        )
    elif not isinstance(origin, ValueCopy) and registry.get(origin.nodes[0].op).regions:
        if origin.nodes[0].op == EXTERNAL:
            yield "external code: the parts are what would be ours"
        else:
            yield "control flow: the parts are the kernels inside; what places them is not shown as steps"
    if compiled.module.sizes and isinstance(origin, ValueCopy):
        yield "a copy where sizes vary: the loops as they are written, without other candidates"
    elif compiled.module.sizes:
        yield "sizes vary: parts are shown at the first sizes that were looked at, the C function is that of all sizes"


def _verify_and_list_changes(
    kernel_builder: KernelBuilder, call: Call, parts: Sequence[DerivedPart], func: ir.PrimFunc
) -> Iterator[str]:
    """Yield the changes that were made to the function of a call after lowering. Calls with several parts are skipped.

    Raises InternalError if the derived function differs from the function in the module.
    """
    origin = kernel_builder.origins[call.writes]
    if kernel_builder.sizes or isinstance(origin, Chain) or (not isinstance(origin, ValueCopy) and len(parts) != 1):
        return
    if not isinstance(origin, ValueCopy) and registry.get(origin.nodes[0].op).regions:
        return
    (part,) = parts
    derived = part.stages[-1][1]
    blocks = find_channel_blocks(derived, kernel_builder.target)
    if blocks is not None and blocks.stored_weights in func.params:
        apart, derived = derived, blocks.apply(derived)
        before, after = (estimate(f, kernel_builder.target).instructions for f in (apart, derived))
        yield f"constants are stored {blocks} ({before:,.0f} -> {after:,.0f} estimated instructions)"
    if func.params[-1].name == TABLE and len(func.params) == len(derived.params) + 1:
        yield f"numbers that differ between the steps of {call.kernel} are read from a table, {TABLE}"
    elif replace(derived, name="") != replace(func, name=""):
        raise InternalError(
            "explain: the derived function of the kernel differs from the compiled function", where=call.layer
        )


# ---- ``--dump DIR`` writes a folder with the derivation of every kernel below ``DIR/kernels``.

INDEX = "index.txt"
"""Name of the file that lists the kernels. A folder that contains this file is recognised as a dump."""


def dump_kernels(compiled: CompiledNetwork, folder: Path, progress: Progress | None = None) -> None:
    """Write the derivation of every kernel to ``folder/kernels``, completely or not at all.

    A function that several calls share is written only for the first of these calls. Raises OutputError if
    ``folder/kernels`` exists and is not a dump.
    """
    calls = compiled.module.calls
    width = len(str(len(calls)))
    with replace_folder_atomically(folder / "kernels", INDEX, "--dump") as root:
        first: dict[str, str] = {}
        index = []
        for number, call in enumerate(calls):
            if progress is not None:
                progress(f"dump {call.op}", number, len(calls))
            name = f"{number:0{width}}_{Name(call.kernel)}"
            if call.kernel not in first:
                first[call.kernel] = name
                for path, text in list_derivation_files(derive_kernel(compiled, number)):
                    (root / name / path).parent.mkdir(parents=True, exist_ok=True)
                    write_text(root / name / path, text)
            rule = f"  [{call.rule}]" if call.rule else ""
            index.append(
                f"{name if first[call.kernel] == name else f'{name} -> {first[call.kernel]}'}{rule}  {Label(call.layer)}\n"
            )
        write_text(root / INDEX, "".join(index))


def list_derivation_files(kernel: DerivedKernel) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file that shows the derivation of a kernel.

    Files whose names end in ``.tir`` can be parsed by :func:`microc.tir.text.from_text`, and the trace (a JSON file) by
    :func:`microc.schedule.schedule.trace_from_json`.
    """
    if len(kernel.parts) == 1:
        yield from _list_part_files(kernel.parts[0], "")
    else:
        width = len(str(len(kernel.parts)))
        for number, part in enumerate(kernel.parts):
            yield from _list_part_files(part, f"part_{number:0{width}}_{Name(part.op)}/")
    yield "05_kernel.tir", to_text(kernel.func)
    yield "kernel.c", f"{kernel.c}\n"
    yield (
        "notes.txt",
        "".join(f"{line}\n" for line in (f"step {kernel.number}: {Label(kernel.call.layer)}", *kernel.notes)),
    )


def _list_part_files(part: DerivedPart, folder: str) -> Iterator[tuple[str, str]]:
    """Yield the path, below ``folder``, and the text of each file that shows one part of a kernel."""
    yield f"{folder}graph.txt", part.nodes
    yield f"{folder}candidates.txt", describe_candidates(part)
    for group in part.algorithms:
        chosen = group.algorithm == part.start.algorithm
        suffix = "" if chosen else f"_other_{Name(group.algorithm)}"
        yield f"{folder}00_te{suffix}.txt", group.text
        yield f"{folder}01_tir{suffix}.tir", to_text(group.func)
    width = len(str(len(part.steps)))
    yield f"{folder}02_trace.json", trace_to_json(part.schedule.trace)
    for number, (step, func) in enumerate(part.steps, 1):
        yield f"{folder}03_step_{number:0{width}}_{step.primitive}.tir", to_text(func)
    for number, (name, func) in enumerate(part.stages, 1):
        yield f"{folder}04_lower_{number:02}_{name}.tir", to_text(func)


def describe_goal(goal: Goal, uses: int) -> str:
    """Describe the optimisation goal of the candidates. ``uses``: number of equal kernels, whose code is stored
    once."""
    alike = f", {uses} kernels alike share their code" if uses > 1 else ""
    match goal.price:
        case 0.0:
            return f"for speed{alike}"
        case price if price == float("inf"):
            return f"for size{alike}"
        case price:
            return f"{goal.name}: a byte of flash is worth {price:.4g} instructions{alike}"


def describe_candidates(part: DerivedPart) -> str:
    """Describe every candidate: its rule, its cost, its verdict and the steps of its schedule."""
    return f"{describe_goal(part.goal, part.uses)}\n" + "".join(map(_format_candidate, part.candidates))


def _format_candidate(candidate: DerivedCandidate) -> str:
    cost, schedule = candidate.cost, candidate.schedule
    lines = [
        "",
        f"{schedule.rule} ({candidate.algorithm}): {candidate.verdict}",
        f"  {cost.instructions:,.0f} instructions, {cost.cycles:,.0f} cycles, {cost.code_bytes:,} bytes of code, "
        f"{candidate.constants:,} of constants; weighs {candidate.weight:,.0f}",
        *(f"  without {refused}" for refused in schedule.refused),
        *(f"  {step}" for step in schedule.trace),
    ]
    return "".join(f"{line}\n" for line in lines)
