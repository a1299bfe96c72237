# SPDX-License-Identifier: Apache-2.0
"""``microc.explain``: explain how the kernel of a layer was chosen and what it costs, as text or plain data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from microc.compiler import validation
from microc.compiler.fit.search import board_capacity
from microc.compiler.interaction import Progress, convert_flags_in_errors
from microc.compiler.lowering.derivation import (
    DerivedCandidate,
    DerivedKernel,
    DerivedPart,
    derive_kernel,
    describe_candidates,
    describe_goal,
)
from microc.compiler.model import registers_own_plugins, registers_plugins, resolve_model
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_network
from microc.device.boards import load_board
from microc.document.blocks import (
    Block,
    Code,
    Document,
    Table,
    document,
    facts,
    memory_usage_rows,
    numbers,
    table,
    texts,
)
from microc.document.renderers import Showable, render_text
from microc.errors import UsageError, similar_names_hint
from microc.graph.ir import shorten_text
from microc.isa import CORES, SCALAR, TENSOR
from microc.isa.instruction_set import build_lane_operation, split_lane_form
from microc.isa.vocabulary.vector_lanes import LEAST
from microc.module import Call, Module, Trial
from microc.reports.report_document import describe_tensor_memories, describe_tensor_unit_use, tensor_unit_table
from microc.schedule.cost.cost_model import Cost
from microc.schedule.cost.operation_counts import IntrinsicCost, list_scalar_intrinsic_costs
from microc.schedule.identities import IDENTITIES
from microc.schedule.primitives.memory_selection import is_selected_in_memory
from microc.schedule.primitives.selection import find_equal_intrinsic, find_lane_operation, find_occurrences, fits_lanes
from microc.schedule.rules.around_rules import IdentityCost, list_identity_costs, list_memory_call_costs
from microc.schedule.rules.movement import list_lane_forms
from microc.target import Board, Goal, Target, target_for
from microc.tir import ir
from microc.tir.lower.lane_scope import NotVectorizableError
from microc.tir.lower.packed_lanes import to_packed_loop
from microc.tir.names import LANE_FORMS, SHIFTED_SATURATIONS, Lanes
from microc.tir.rewrite import walk_all_exprs, walk_stmt
from microc.tir.text import to_text

if TYPE_CHECKING:
    from microc.compiler.option_values import CompileOptions
    from microc.plugin import Plugin


_MAX_MATCHES = 5
"""Largest number of layers that the error for an ambiguous name lists."""


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Showable):
    """An explanation of a compiled network: a list of its steps (calls of kernels), or details of one kernel.

    ``target``: the core that it is compiled for; ``kernel``: the kernel to explain, None for the list of steps;
    ``plugins``: the plugins with which the network was compiled."""

    module: Module
    target: Target
    goal: Goal
    kernel: DerivedKernel | None
    plugins: tuple[Plugin, ...] = ()

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        what = (
            f"step {self.kernel.number}, {self.kernel.call.kernel}"
            if self.kernel
            else f"{len(self.module.calls)} steps"
        )
        return f"<Explanation of {shorten_text(self.module.name)} on {self.target.cpu}: {what}>"

    def text(self, *, full: bool = False, width: int = 0) -> str:
        """Format the explanation as text; ``full``: as for :meth:`document`.

        ``width``: largest width of tables in characters, 0: unlimited. Code is not wrapped."""
        return render_text(self.document(full=full), width)

    @registers_own_plugins
    def document(self, *, full: bool = False) -> Document:
        """Return the explanation as a document, which terminals and notebooks show.

        ``full``: also show, for a kernel, its function after every schedule step and every lowering pass, and the schedule
        steps of all candidates; for a network, the intrinsics of the core that no kernel calls, with reasons."""
        if self.kernel is not None:
            return document(*_kernel_blocks(self.kernel, self.target, full=full))
        unused = explain_unused_intrinsics(self.module, self.target) if full else {}
        return document(
            _network_steps_table(self.module),
            tensor_unit_table({k: call.unit for k, call in enumerate(self.module.calls)}),
            facts(memory_usage_rows(describe_tensor_memories(self.module)), "memories"),
            _trials_table(self.module.trials),
            facts(unused.items(), "unused intrinsics"),
        )

    @registers_own_plugins
    def to_data(self, *, full: bool = False) -> dict[str, Any]:
        """Convert the explanation to plain data; ``full``: with the same additions as in :meth:`text`."""
        price = None if isinf(self.goal.price) else self.goal.price
        data = {"model": self.module.name, "cpu": self.target.cpu, "goal": {"name": self.goal.name, "price": price}}
        if self.kernel is None:
            memories = describe_tensor_memories(self.module)
            return {
                **data,
                "memories": memories,
                "trials": [asdict(trial) for trial in self.module.trials],
                "layers": [_describe_step(k, call) for k, call in enumerate(self.module.calls)],
                **({"unused_intrinsics": explain_unused_intrinsics(self.module, self.target)} if full else {}),
            }
        return {**data, "kernel": _describe_kernel(self.kernel, full=full)}


@convert_flags_in_errors
@registers_plugins
def explain(
    model: Any,
    layer: str | int = "",
    *,
    target: str = "host",
    board: str | Path | Board | None = None,
    progress: Progress | None = None,
    **options: Unpack[CompileOptions],
) -> Explanation:
    """Compile a model as :func:`microc.compile` does, and explain the kernel of a layer.

    The explanation contains the candidate schedules with their costs, the reason why each candidate was not chosen, the
    steps of the chosen schedule, the operations that the cost model counts, and the C.

    ``layer``: a layer's name, a part of the name, or the number of a step; if it is empty, all steps are listed.
    ``target``: the core to compile for; or ``board``: the board whose core is used. ``progress`` and ``options``: as for
    :func:`microc.compile`. Raises UsageError unless exactly one layer matches.
    """
    validation.as_function_or_none("progress", progress)
    parsed_options = make_options(**options)
    wanted = validation.as_text(
        "a layer", str(layer) if isinstance(layer, int) and not isinstance(layer, bool) else layer
    )
    if board is None:
        target_core, capacity_limits = target_for(validation.as_text("a target", target)), None
    else:
        board_object = board if isinstance(board, Board) else load_board(validation.as_path("a board", board))
        target_core = board_object.target
        capacity_limits = board_capacity(
            board_object, external=bool(parsed_options.external), cores=parsed_options.cores
        )
    compilation = compile_network(
        resolve_model(model, parsed_options), target_core, parsed_options, progress, capacity_limits
    )
    kernel = derive_kernel(compilation, find_step_of_layer(compilation.module, wanted)) if wanted else None
    return Explanation(compilation.module, target_core, compilation.kernel_builder.goal, kernel, parsed_options.plugins)


def explain_unused_intrinsics(module: Module, target: Target) -> dict[str, str]:
    """Return the intrinsics that no kernel of a network calls, each with the reason: those with a C body on the core, and those
    to which only identities lead that the core does not use. Saturations after each distance of a shift are left out."""
    core = target.core
    called = _called_names(module)
    costs = {cost.name: cost for cost in list_scalar_intrinsic_costs(target)}
    identity_costs = list_identity_costs(target)
    identities: dict[str, list[IdentityCost]] = {}
    for identity in IDENTITIES.values():
        for name in identity.new_calls & SCALAR.keys():
            identities.setdefault(name, []).append(identity_costs[identity.name])
    bodies = {name for instructions in core.sets for name in instructions.bodies if name in SCALAR}
    refused = {name for name, leading in identities.items() if all(cost.refusal for cost in leading)}
    return {
        name: _explain_missing_call(name, core.has, costs.get(name), identities.get(name, ()))
        or _explain_missing_occurrence(name, target, module)
        for name in sorted((bodies | refused) - called - SHIFTED_SATURATIONS.keys())
    }


def _called_names(module: Module) -> set[str]:
    """Return the names of the intrinsics that kernels of a network call."""
    return {x.name for kernel in module.kernels for x in walk_all_exprs(kernel.func.body) if isinstance(x, ir.Call)}


def _explain_missing_call(
    name: str, features: frozenset[str], cost: IntrinsicCost | None, identities: Sequence[IdentityCost]
) -> str:
    """Explain why no kernel calls an intrinsic, by the features of the core and by costs. Empty if these speak for it.

    ``features``: those of the core. ``cost``: costs of a scalar intrinsic. ``identities``: costs of the identities that lead to
    it."""
    users = [tensor for tensor in TENSOR.values() if name in tensor.required_intrinsics]
    missing = min((sorted(tensor.required_intrinsics - features) for tensor in users), key=len, default=[])
    if missing:
        return f"it is used together with {', '.join(missing)}, for which the core has no C body"
    scalar, lanes = split_lane_form(name)
    if name not in SCALAR.permanent_names and find_lane_operation(SCALAR[name]):
        return ""
    if name not in SCALAR.permanent_names and build_lane_operation(name) is not None and SCALAR[name].lanes:
        return f"it is declared with another meaning or other parameters than {scalar} in the lanes {name.rpartition('_')[2]}"
    if lanes and scalar not in SCALAR and not users and name not in SCALAR.permanent_names:
        return f"loops over lanes call forms of scalar intrinsics, and no {scalar} is declared"
    usable = [identity.name for identity in identities if not identity.refusal]
    if usable:
        return f"its meaning does not occur in this network, and no schedule applies {', '.join(usable)}"
    if identities and (cost is None or cost.body >= cost.meaning):
        return f"identity {identities[0].name}: {identities[0].refusal}"
    if cost is None and is_selected_in_memory(name):
        return ""
    if cost is None and not users and name not in SCALAR.permanent_names:
        if SCALAR[name].lanes:
            return (
                "in lanes, only operations and forms of scalar intrinsics are called: declare a scalar intrinsic of this "
                "meaning, and name the body after it and the lanes"
            )
        return (
            "its meaning is no formula, store or loop of stores of contiguous elements: only a tensor intrinsic or a "
            "schedule rule that names it calls it"
        )
    if users or cost is None:
        return "no schedule of this network calls it"
    if cost.body >= cost.meaning:
        return f"it takes {cost.body:g} instructions; portable C that computes the same takes {cost.meaning:g}"
    return ""


def _explain_missing_occurrence(name: str, target: Target, module: Module) -> str:
    """Explain why no kernel calls an intrinsic that is cheaper than portable C: where its meaning occurs, and what is missing
    there."""
    core, (scalar, lanes) = target.core, find_lane_operation(SCALAR[name]) or split_lane_form(name)
    if lanes and find_lane_operation(SCALAR[name]):
        return _explain_missing_lanes(name, lanes, target, module)
    if lanes and scalar in SCALAR:
        accesses = {f"load_{lanes.suffix}", f"store_{lanes.suffix}"} - core.has
        if lanes.is_narrow and accesses:
            return f"it is used together with {', '.join(sorted(accesses))}, for which the core has no C body"
        if not fits_lanes(SCALAR[scalar], lanes):
            return f"results of {scalar} may exceed the lanes {lanes.suffix}"
        if not lanes.is_narrow and lanes.count not in (*core.lanes, *LEAST):
            widths = ", ".join(map(str, core.lanes))
            return (
                f"schedules use vectors of {widths} lanes here" if widths else "schedules use no vectors on this core"
            )
        name = scalar
    equal = find_equal_intrinsic(SCALAR[name])
    if any(equal in tensor.required_intrinsics for tensor in TENSOR.values()):
        return f"its meaning is that of {equal}, by which schedules call it: give the body this name"
    if equal in _called_names(module):
        return f"kernels call {equal}, which computes the same"
    occurrences = {excess: kernel.name for kernel in module.kernels for excess in find_occurrences(kernel.func, name)}
    for excess, kernel in occurrences.items():
        if excess:
            return f"its meaning occurs in {kernel}, but {excess}"
    funcs = {kernel.name: kernel.func for kernel in module.kernels} if occurrences else {}
    for kernel, func in funcs.items():
        for cost in list_memory_call_costs(func, target):
            if cost.name == name:
                return (
                    f"its calls in {kernel} take {cost.body:g} instructions; what they replace takes {cost.meaning:g}"
                )
    if lanes and occurrences:
        return (
            f"its meaning occurs in {', '.join(sorted(occurrences.values()))}, in no loop over the lanes {lanes.suffix}"
        )
    return "its meaning does not occur in this network"


def _explain_missing_lanes(name: str, lanes: Lanes, target: Target, module: Module) -> str:
    """Explain why no kernel calls the intrinsic ``name``, an operation in lanes narrower than int32: what the core lacks, or why
    the loops that store such elements have no form in the lanes."""
    forms = list_lane_forms(target, CORES.entries, SCALAR.entries)[lanes]
    if missing := [f"{access}_{lanes.suffix}" for access in ("load", "store") if access not in forms]:
        return f"it is used together with {', '.join(missing)}, for which the core has no C body"
    note = (LANE_FORMS, " ".join(f"{operation}={form}" for operation, form in forms.items()))
    faults: list[str] = []
    for kernel in module.kernels:
        for loop in walk_stmt(kernel.func.body):
            inside = list(walk_stmt(loop.body)) if isinstance(loop, ir.For) else []
            if not isinstance(loop, ir.For) or any(isinstance(s, ir.For) for s in inside):
                continue
            if any(isinstance(s, ir.Store) and s.buffer.dtype == lanes.dtype for s in inside):
                try:
                    packed = to_packed_loop(replace(loop, annotations=(note,)), lanes)
                except NotVectorizableError as error:
                    faults.append(f"a loop of {kernel.name} has no form in the lanes {lanes.suffix}: {error}")
                else:
                    if any(isinstance(x, ir.Call) and x.name == name for x in walk_all_exprs(packed)):
                        faults.append(
                            f"no cheaper schedule of {kernel.name} uses it, whose loop has a form in its lanes"
                        )
    return next(iter(faults), "its meaning does not occur in this network")


def find_step_of_layer(module: Module, layer_query: str) -> int:
    """Return the index of the step (call of a kernel) that ``layer_query`` selects.

    ``layer_query``: the index itself, a name, or a part of a name. Raises UsageError unless exactly one step matches; the
    hint lists similar names."""
    names = [_step_names(module, call) for call in module.calls]
    if layer_query.isdecimal() and int(layer_query) < len(names):
        return int(layer_query)
    word = layer_query.casefold()
    exact = [k for k, step_names in enumerate(names) if word in step_names]
    partial = [
        k for k, step_names in enumerate(names) if any(word in name for name in step_names) and not word.isdecimal()
    ]
    matches = exact[:1] or partial
    if len(matches) == 1:
        return matches[0]
    where = module.source or module.name
    if matches:
        match_text = ", ".join(f"{k} ({module.calls[k].kernel})" for k in matches[:_MAX_MATCHES])
        raise UsageError(
            f"{len(matches)} layers have names like {layer_query!r}: {match_text}",
            where=where,
            hint=f"give a number: {matches[0]}",
        )
    all_names = {name: None for step_names in names for name in step_names}
    hint = similar_names_hint(word, all_names) or f"leave out the layer to list all {len(names)}"
    raise UsageError(f"there is no layer {layer_query!r}", where=where, hint=hint)


def _step_names(module: Module, call: Call) -> list[str]:
    """List the names by which users may select a step, in lower case.

    These are the layer's location in the model, the name of its C function, and the names of the values that it writes."""
    location = call.layer.split(" ", 2)
    value_names = [name for value in call.writes for name in (value, module.values[value].label)]
    return [name.casefold() for name in dict.fromkeys([call.layer, location[-1], call.kernel, *value_names]) if name]


# ---- Document.


def _network_steps_table(module: Module) -> Table:
    """Make a table of the network's steps (calls of kernels)."""
    rows = [
        (str(k), call.kernel, call.op, call.rule, call.instructions, call.cycles, call.layer)
        for k, call in enumerate(module.calls)
    ]
    columns = (*texts("step", "kernel", "operators", "rule"), *numbers("instructions", "cycles"), *texts("layer"))
    return table(columns, rows)


def _trials_table(trials: Sequence[Trial]) -> Table | None:
    """Make a table of the variants that the compiler has tried, with the memory and the instructions of each.

    The compiler tries variants of the requested network to fit memory limits, or to trade memory for time. None if it has
    tried none."""
    if len(trials) < 2:
        return None
    rows = [(t.change, t.arena, t.flash, t.instructions, "yes" if t.kept else "no") for t in trials]
    columns = (*texts("change"), *numbers("arena", "flash", "instructions"), *texts("kept"))
    return table(columns, rows, "tried")


def _kernel_blocks(kernel: DerivedKernel, target: Target, *, full: bool) -> Iterator[Block]:
    """Yield the blocks that explain a kernel: facts, the parts (scheduled separately), estimated cost, and C."""
    call = kernel.call
    yield facts(
        (
            ("step", f"{kernel.number}, {call.layer}"),
            ("function", call.kernel),
            ("operators", call.op),
            ("core", target.cpu),
            *((("tensor unit", describe_tensor_unit_use(call.unit)),) if call.unit else ()),
            *(("note", note) for note in kernel.notes),
        )
    )
    for number, part in enumerate(kernel.parts):
        yield from _kernel_part_blocks(part, f"part {number}, " if len(kernel.parts) > 1 else "", full=full)
    yield _counted_operations_table(kernel.cost, target)
    if full:
        yield Code(to_text(kernel.func), "the function of the module")
    yield Code(kernel.c, "C")


def _kernel_part_blocks(part: DerivedPart, heading_prefix: str, *, full: bool) -> Iterator[Block]:
    """Yield the blocks that explain one part of a kernel: tensor expressions, candidate schedules, schedule steps.

    ``heading_prefix``: beginning of each heading. ``full``: with all algorithms, schedule steps and lowering passes."""
    if full:
        yield Code(str(part.nodes), f"{heading_prefix}graph")
    for group in part.algorithms:
        if full or group is part.start:
            yield Code(group.text, f"{heading_prefix}tensor expressions, {group.algorithm}")
        if full:
            yield Code(to_text(group.func), f"{heading_prefix}before scheduling, {group.algorithm}")
    yield _candidates_table(part.candidates, f"{heading_prefix}candidates, {describe_goal(part.goal, part.uses)}")
    if full:
        yield Code(f"{heading_prefix}steps of all candidates, {describe_candidates(part)}")
        for step, func in part.steps:
            yield Code(to_text(func), f"{heading_prefix}after step {step}")
        for name, func in part.stages:
            yield Code(to_text(func), f"{heading_prefix}after lowering pass {name}")
    else:
        yield Code(_indent_lines(map(str, part.schedule.trace)), f"{heading_prefix}steps of {part.schedule.rule}")
    if part.schedule.refused:
        yield Code(_indent_lines(part.schedule.refused), f"{heading_prefix}steps that were refused")


def _indent_lines(lines: Iterable[str]) -> str:
    """Indent and join lines of text; return an indented ``none`` if there are no lines."""
    return "\n".join(f"  {line}" for line in lines) or "  none"


def _candidates_table(candidates: Sequence[DerivedCandidate], heading: str) -> Table:
    """Make a table of the candidate schedules with their costs, and why each was chosen or not."""
    rows = [
        (c.schedule.rule, c.algorithm, c.cost.instructions, c.cost.cycles, c.cost.code_bytes, c.constants, c.weight, c.verdict)
        for c in candidates
    ]  # fmt: skip
    costs = numbers("instructions", "cycles", "code", "constants", "weighs", spec=",.0f")
    return table((*texts("rule", "algorithm"), *costs, *texts("verdict")), rows, heading)


def _counted_operations_table(cost: Cost, target: Target) -> Table:
    """Make a table of the operations that the cost model counts, the most expensive first.

    Kinds of operations are those of ``isa/instruction_set.py``."""
    core = target.core.costs
    cycles = {kind: n * core.duration(kind) * core.issue for kind, n in cost.operations.items() if n}
    if "constant_byte" in cycles:
        cycles["constant_byte"] = cost.operations["constant_byte"] * target.flash_wait
    rows = [
        (kind, cost.operations[kind], cost.operations[kind] * core.length(kind), cycles[kind])
        for kind in sorted(cycles, key=lambda k: (-cycles[k], k))
    ]
    note = f"{cost.code_bytes:,} bytes of code; {cost.spilled:,.0f} accesses to values that registers do not hold"
    columns = (*texts("operation"), *numbers("count", "instructions", "cycles", spec=",.0f"))
    return table(columns, rows, "cost of a call, estimated", note, ("total", None, cost.instructions, cost.cycles))


# ---- Data.


def _describe_step(step_index: int, call: Call) -> dict[str, Any]:
    """Describe a step (call of a kernel) of the network as plain data."""
    return {
        "step": step_index,
        "function": call.kernel,
        "layer": call.layer,
        "op": call.op,
        "rule": call.rule,
        "estimated_instructions": call.instructions,
        "estimated_cycles": call.cycles,
        "tensor_unit": asdict(call.unit) if call.unit else None,
    }


def _describe_kernel(kernel: DerivedKernel, *, full: bool) -> dict[str, Any]:
    """Describe a kernel as plain data: its step, notes, counted operations, parts, TIR and C; ``full``: see
    :meth:`Explanation.text`."""
    return {
        **_describe_step(kernel.number, kernel.call),
        "notes": list(kernel.notes),
        "operations": dict(kernel.cost.operations),
        "code_bytes": kernel.cost.code_bytes,
        "spilled": kernel.cost.spilled,
        "parts": [_describe_kernel_part(part, full=full) for part in kernel.parts],
        "tir": to_text(kernel.func),
        "c": kernel.c,
    }


def _describe_kernel_part(part: DerivedPart, *, full: bool) -> dict[str, Any]:
    """Describe one part of a kernel as plain data; ``full``: with all algorithms, schedule steps and lowering passes."""
    algorithms = [group for group in part.algorithms if full or group is part.start]
    data: dict[str, Any] = {
        "op": part.op,
        "graph": part.nodes,
        "price": None if isinf(part.goal.price) else part.goal.price,
        "alike": part.uses,
        "algorithms": [{"name": g.algorithm, "te": g.text, "tir": to_text(g.func)} for g in algorithms],
        "candidates": [_describe_candidate(candidate) for candidate in part.candidates],
        "trace": [str(step) for step in part.schedule.trace],
    }
    if full:
        data["steps"] = [{"step": str(step), "tir": to_text(func)} for step, func in part.steps]
        data["lowering"] = [{"pass": name, "tir": to_text(func)} for name, func in part.stages]
    return data


def _describe_candidate(candidate: DerivedCandidate) -> dict[str, Any]:
    """Describe a candidate schedule as plain data: its costs, why it was chosen or not, and its schedule steps."""
    return {
        "rule": candidate.schedule.rule,
        "algorithm": candidate.algorithm,
        "verdict": candidate.verdict,
        "instructions": round(candidate.cost.instructions),
        "cycles": round(candidate.cost.cycles),
        "code_bytes": candidate.cost.code_bytes,
        "constant_bytes": candidate.constants,
        "weight": candidate.weight,
        "refused": list(candidate.schedule.refused),
        "trace": [str(step) for step in candidate.schedule.trace],
    }
