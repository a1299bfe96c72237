# SPDX-License-Identifier: Apache-2.0
"""Choose measured schedules for a compilation, from a file of tuning records or from an optimisation plan."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from microc.base.file_access import read_bytes, write_text
from microc.codegen.output_files import replace_atomically
from microc.compiler.fit.budget import workspace_limits
from microc.compiler.lowering.kernel_builder import TUNED_SUFFIX, CompiledNetwork, TunedSchedule
from microc.compiler.lowering.kernel_selection import replay_on_algorithm, replay_on_group
from microc.compiler.options import Options
from microc.compiler.tuned.measured_choice import (
    KernelChoice,
    choose_records,
    compute_network_key,
    find_network_measurements,
    kernel_pareto_fronts,
    list_measured_combinations,
)
from microc.compiler.tuned.records import (
    OK,
    UNTUNED,
    Database,
    Record,
    Task,
    kernel_key_by_layer,
    list_tuning_tasks,
    open_records,
    require_records_file,
)
from microc.device.board_info import make_printable
from microc.errors import MicrocError, UsageError
from microc.module import Module
from microc.schedule.primitives.tree import Step, freeze_argument
from microc.target import SIZE

# ---- Optimisation plans (``microc tune --plan``): a JSON file with the chosen schedule of each kernel, the reason for the
# choice, and alternative schedules.
#
# The user may edit the file, in particular ``choice``, and compile with it (``microc compile --plan``). The plan contains the
# steps of all alternatives, so that the file of tuning records is not needed. If any entry does not apply to the network,
# this is an error; no entry is ignored.

MAX_PLAN_BYTES = 16 << 20
"""Maximum size of a plan in bytes."""
MAX_ALTERNATIVES = 16
"""Maximum number of alternative schedules for a kernel in a plan. The fastest are included."""
_TEXT = {"type": "string", "maxLength": 4096}
_COUNT = {"type": "number", "minimum": 0}
_STEPS = {"type": "array", "maxItems": 1024, "items": {"type": "array", "minItems": 1, "prefixItems": [_TEXT]}}
_ALTERNATIVE = {
    "type": "object",
    "properties": {
        "schedule": _TEXT, "ticks": _COUNT, "flash": _COUNT, "workspace": _COUNT, "algorithm": _TEXT, "rule": _TEXT,
        "steps": _STEPS,
    },
    "additionalProperties": False,
    "dependentRequired": {"steps": ["algorithm", "rule"]},
}  # fmt: skip
_KERNEL = {
    "type": "object",
    "properties": {
        "key": {"type": "string", "pattern": "^[0-9a-f]{40}$"},
        "layers": {"type": "array", "items": _TEXT, "minItems": 1},
        "op": _TEXT, "choice": _TEXT, "why": _TEXT,
        "alternatives": {"type": "object", "additionalProperties": _ALTERNATIVE, "maxProperties": 256},
    },
    "required": ["key", "layers", "choice", "alternatives"],
    "additionalProperties": False,
}  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {
        "microc_plan": {"const": 1}, "model": _TEXT, "core": _TEXT, "board": _TEXT, "unit": _TEXT, "optimize": _TEXT,
        "records": _TEXT, "kernels": {"type": "array", "items": _KERNEL, "maxItems": 10_000},
    },
    "required": ["microc_plan", "core", "kernels"],
    "additionalProperties": False,
}  # fmt: skip


def build_plan(
    compiled: CompiledNetwork, database: Database, *, board: str, optimize: str, records: str
) -> dict[str, Any]:
    """Build the optimisation plan of a network as plain data.

    ``compiled``: the network, compiled with the tuning records ``database``. ``records``: the name of the file of
    records.
    """
    tasks = list_tuning_tasks(compiled)
    measured_whole = bool(database.records_of(_compute_key(compiled, tasks)))
    candidates = kernel_pareto_fronts(tasks, database, board, None)
    first = next((records_[0] for records_ in candidates.values()), None)
    return {
        "microc_plan": 1,
        "model": compiled.module.source,
        "core": compiled.kernel_builder.target.cpu,
        "board": first.board if first else board,
        "unit": first.unit if first else "",
        "optimize": optimize,
        "records": records,
        "kernels": [
            _build_plan_entry(
                task,
                candidates[task.key],
                _find_used_record(task, compiled, candidates[task.key][0], database),
                network_measured=measured_whole,
            )
            for task in tasks
            if task.key in candidates
        ],
    }


def _find_used_record(task: Task, compiled: CompiledNetwork, default: Record, database: Database) -> Record | None:
    """Return the newest record of the schedule that a kernel uses; None if the kernel uses its default schedule.

    Only records with the same board, unit of time and toolchain as the record ``default`` count.
    """
    taken = compiled.kernel_builder.configuration.tuned.get(task.key)
    if taken is None:
        return None
    comparable = [r for r in database.records_of(task.key, default.origin) if r.status == OK]
    return next((r for r in reversed(comparable) if (r.algorithm, r.trace) == (taken.algorithm, taken.trace)), None)


def _build_plan_entry(
    task: Task, measured: Sequence[Record], chosen: Record | None, *, network_measured: bool
) -> dict[str, Any]:
    """Build the plan's entry for a kernel.

    ``measured``: the record of the default schedule, then the records on the Pareto front. ``chosen``: the record of
    the schedule that the kernel uses, or None for the default. ``network_measured``: as in :func:`_explain_choice`.
    """
    default, *others = measured
    shown = (
        others[:MAX_ALTERNATIVES]
        if chosen is None or chosen in others[:MAX_ALTERNATIVES]
        else [*others[: MAX_ALTERNATIVES - 1], chosen]
    )
    return {
        "key": task.key,
        "layers": [make_printable(layer, 200) for layer in task.layers],
        "op": task.op,
        "choice": chosen.id if chosen else UNTUNED,
        "why": _explain_choice(chosen, default, others, network_measured=network_measured),
        "alternatives": {
            UNTUNED: _describe_schedule_and_costs(default),
            **{r.id: {**_describe_schedule_and_costs(r), **_format_replayable_steps(r)} for r in shown},
        },
    }


def _describe_schedule_and_costs(record: Record) -> dict[str, Any]:
    """Return the fields of an alternative that describe its schedule and its measured costs."""
    decided = ", ".join(f"{name} {value}" for name, value in record.decisions if value not in ("", False))
    schedule = f"{record.algorithm}: {record.rule}" + ("" if record.untuned else f" ({decided})")
    return {"schedule": schedule, "ticks": record.ticks, "flash": record.flash, "workspace": record.workspace}


def _format_replayable_steps(record: Record) -> dict[str, Any]:
    """Return the fields of an alternative that are needed to apply its schedule again."""
    steps = [[step.primitive, *step.args] for step in record.trace]
    return {"algorithm": record.algorithm, "rule": record.rule, "steps": steps}


def _explain_choice(
    chosen: Record | None, default: Record, other_records: Sequence[Record], *, network_measured: bool
) -> str:
    """Explain the choice of a schedule by comparison with the default schedule.

    ``network_measured``: combinations of schedules were measured with the whole network.
    """
    if chosen is None:
        faster = sum(record.ticks < default.ticks for record in other_records)
        reason = (
            "are slower beside the other kernels"
            if network_measured
            else "take more flash or workspace than the goal allows"
        )
        return f"{faster} faster ones {reason}" if faster else "none was faster"
    return (
        f"{100 * (chosen.ticks / default.ticks - 1) if default.ticks else 0:+.2f} % {chosen.unit}, "
        f"{chosen.flash - default.flash:+d} bytes of flash, {chosen.workspace - default.workspace:+d} of workspace"
    )


def write_plan(path: Path, plan: Mapping[str, Any]) -> None:
    """Write an optimisation plan to a file. Each alternative is on a separate line, so that a person can read the file
    and compare two plans."""
    with replace_atomically(path) as temporary:
        write_text(temporary, "\n".join(_format_plan(plan)) + "\n")


def _format_plan(plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the file of a plan."""
    yield "{"
    yield from (f"  {_ascii_json(name)}: {_ascii_json(value)}," for name, value in plan.items() if name != "kernels")
    yield '  "kernels": ['
    for number, kernel in enumerate(plan["kernels"], 1):
        yield "    {"
        yield from (
            f"      {_ascii_json(name)}: {_ascii_json(value)},"
            for name, value in kernel.items()
            if name != "alternatives"
        )
        yield '      "alternatives": {'
        rows = [f"        {_ascii_json(name)}: {_ascii_json(value)}" for name, value in kernel["alternatives"].items()]
        yield ",\n".join(rows)
        yield "      }"
        yield "    }," if number < len(plan["kernels"]) else "    }"
    yield "  ]"
    yield "}"


def _ascii_json(value: Any) -> str:
    """Format a value as JSON in ASCII."""
    return json.dumps(value, ensure_ascii=True)


def read_plan(path: Path) -> dict[str, Any]:
    """Read an optimisation plan from a file; UsageError with the location of the mistake if it is not a valid plan."""
    import jsonschema

    try:
        plan = json.loads(read_bytes(path, MAX_PLAN_BYTES))
    except OSError as error:
        raise UsageError(
            f"the plan cannot be read: {error.strerror or error}",
            where=str(path),
            hint="check the path, or write a plan: microc tune MODEL --plan FILE",
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"plan: the file is no valid JSON: {make_printable(str(error), 200)}",
            where=str(path),
            hint="write a plan: microc tune MODEL --plan FILE",
        ) from error
    wrong = next(iter(jsonschema.Draft202012Validator(SCHEMA).iter_errors(plan)), None)
    if wrong is not None:
        place = "".join(
            f"[{key}]" if isinstance(key, int) else f".{make_printable(key)}" for key in wrong.absolute_path
        )
        raise UsageError(
            f"plan: the file violates the schema of plans: {make_printable(wrong.message, 200)}",
            where=f"{path}{place}",
            hint="correct it, or write it again: microc tune MODEL --plan FILE",
        )
    found: dict[str, Any] = plan
    return found


def read_planned_schedules(compiled: CompiledNetwork, path: Path) -> Mapping[str, TunedSchedule]:
    """Return the schedules that a plan chooses, by the key of the kernel; UsageError if the plan does not match the
    network."""
    plan, tasks = read_plan(path), {task.key: task for task in list_tuning_tasks(compiled)}
    if plan["core"] != compiled.kernel_builder.target.cpu:
        raise UsageError(
            f"plan: got a plan for core {make_printable(plan['core'])}, expected core {compiled.kernel_builder.target.cpu}",
            where=str(path),
            hint="tune for this core, or compile for the core of the plan",
        )
    schedules: dict[str, TunedSchedule] = {}
    for number, kernel in enumerate(plan["kernels"]):
        where = f"{path}.kernels[{number}]"
        task = tasks.get(kernel["key"])
        if task is None:
            raise UsageError(
                f"plan: the network has no kernel with the key of layer {make_printable(kernel['layers'][0])}",
                where=where,
                hint="write the plan again with this model, these options and this microc, or remove the kernel",
            )
        schedule = _chosen_schedule(task, kernel, where)
        if schedule is not None:
            schedules[task.key] = schedule
    return schedules


def _chosen_schedule(task: Task, kernel: Mapping[str, Any], where: str) -> TunedSchedule | None:
    """Return the schedule that a plan's entry for a kernel chooses; None for the default schedule.

    Raises UsageError if the chosen schedule is missing in the entry or cannot be applied.
    """
    choice, alternatives = kernel["choice"], kernel["alternatives"]
    if choice == UNTUNED:
        return None
    layer, known = (
        make_printable(kernel["layers"][0]),
        [UNTUNED, *(make_printable(n) for n, a in alternatives.items() if "steps" in a)],
    )
    if choice not in known:
        raise UsageError(
            f"plan: layer {layer} has no alternative {make_printable(choice)!r}",
            where=where,
            hint="choose one of: " + ", ".join(known),
        )
    alternative = alternatives[choice]
    try:
        trace = tuple(Step(row[0], tuple(map(freeze_argument, row[1:]))) for row in alternative["steps"])
        hash(trace)  # raises TypeError if a step has arguments other than plain values
        group = next(each for each in task.lowered if each.algorithm == alternative["algorithm"])
        replay_on_group(group, trace, make_printable(alternative["rule"]))
    except (MicrocError, StopIteration, TypeError, ValueError) as error:
        why = error.what if isinstance(error, MicrocError) else "another version of microc wrote it"
        raise UsageError(
            f"plan: alternative {choice} of layer {layer} can no longer be applied: {make_printable(why, 200)}",
            where=where,
            hint=f"choose another alternative or {UNTUNED!r}, or tune again",
        ) from error
    return TunedSchedule(alternative["algorithm"], make_printable(alternative["rule"]), trace)


def refuse_unused_choices(untuned: CompiledNetwork, compiled: CompiledNetwork, path: Path) -> None:
    """Raise UsageError if a layer of the network ``compiled`` does not use the schedule that the plan chooses.

    ``untuned``: the network compiled without the plan.
    """
    rules = {call.layer: call.rule for call in compiled.module.calls}
    outer = {call.layer for call in untuned.module.calls}
    for task in list_tuning_tasks(untuned):
        for layer in task.layers if task.key in compiled.kernel_builder.configuration.tuned else ():
            is_used = (
                TUNED_SUFFIX in rules.get(layer, "") if layer in outer else task.key in compiled.kernel_builder.taken
            )
            if not is_used:
                by_rows = layer in outer and layer not in rules
                why = (
                    "the layer is computed row by row to fit the arena limit"
                    if by_rows
                    else "the schedule relies on bounds that the layer's constants exceed"
                )
                raise UsageError(
                    f"plan: layer {make_printable(layer, 200)} cannot use the chosen schedule: {why}",
                    where=str(path),
                    hint=f"choose {UNTUNED!r} for the layer" + (", or raise --ram" if by_rows else ""),
                )


# ---- Measured schedules in a compilation (``--tuned``).
#
# The optimisation goal limits the flash that measured schedules may need. For ``speed`` there is no limit. For ``balanced``
# the network must not need more flash than with its default schedules. For ``size`` the schedules with the least flash are
# chosen, and among these the fastest. Workspaces may enlarge the arena by the fraction :data:`ARENA_GROWTH`, within the RAM
# limit. If only time counts and the whole network was measured with combinations of schedules, the best combination is used.

ARENA_GROWTH = 1 / 32
"""Fraction by which workspaces may enlarge the arena. It is enough for one more row of an image, but not for a copy of
a whole image."""


def choose_tuned_schedules(
    compiled: CompiledNetwork, path: Path, board: str = "", ram: int = 0
) -> Mapping[str, TunedSchedule]:
    """Return the schedules from a file of records that are better than the default schedules, by the key of the kernel.

    ``compiled``: the planned network with default schedules. ``board``: the board whose records are preferred. ``ram``:
    limit of the arena in bytes (0: unlimited). Raises UsageError if ``path`` is not a file of records.
    """
    database, tasks = open_records(path), list_tuning_tasks(compiled)
    workspace_limit = available_workspace_bytes(compiled.module, tasks, ram)
    pairs = _find_measured_combination(compiled, tasks, database, board, workspace_limit)
    if pairs is None:
        apart = choose_independently(compiled, tasks, database, board, workspace_limit)
        pairs = [(each.task, each.record) for each in apart if each.record is not None]
    return {task.key: record.schedule for task, record in pairs}


def choose_independently(
    compiled: CompiledNetwork,
    tasks: Sequence[Task],
    database: Database,
    board: str,
    workspace_bytes: Mapping[str, int],
    excluded_records: Collection[object] = (),
) -> list[KernelChoice]:
    """Choose a record for each kernel by the measurements of this kernel alone.

    ``excluded_records``: as in :func:`choose_records`. Records whose schedule can no longer be applied are excluded
    too.
    """
    goal = compiled.kernel_builder.goal
    flash = None if goal.price == 0 else 0
    excluded = set(excluded_records)
    # A schedule that an earlier version of the compiler measured may not be applicable any more. Exclude it and choose again.
    while True:
        choices = choose_records(
            tasks,
            database,
            board=board,
            flash_growth=flash,
            workspace_bytes=workspace_bytes,
            minimise_flash=goal.name == SIZE.name,
            excluded_records=excluded,
        )
        stale = [
            choice.record
            for choice in choices
            if choice.record is not None and not _can_replay(choice.task, choice.record)
        ]
        if not stale:
            return choices
        excluded.update(stale)


def _compute_key(compiled: CompiledNetwork, tasks: Sequence[Task]) -> str:
    """Compute the key of the records of a compiled network."""
    builder = compiled.kernel_builder
    return compute_network_key(tasks, builder.threads, builder.target.cores)


def _find_measured_combination(
    compiled: CompiledNetwork, tasks: Sequence[Task], database: Database, board: str, workspace_bytes: Mapping[str, int]
) -> list[tuple[Task, Record]] | None:
    """Find the best combination of schedules that was measured with the whole network and can still be used. Return the
    tuned kernels, each with the record of its schedule; None if there is no such combination.

    Combinations are measured for speed. Therefore None is returned if the goal has a price of flash.
    """
    if compiled.kernel_builder.goal.price > 0:
        return None
    target = compiled.kernel_builder.target
    together = find_network_measurements(_compute_key(compiled, tasks), target.cpu, database, board)
    combinations = list_measured_combinations(together, tasks, database) if together is not None else ()
    return next(
        (
            pairs
            for pairs in combinations
            if all(_can_replay(*each) and _is_workspace_within_limit(*each, workspace_bytes) for each in pairs)
        ),
        None,
    )


def _is_workspace_within_limit(task: Task, record: Record, workspace_bytes: Mapping[str, int]) -> bool:
    """Test whether the workspace of a record is within the limit of the kernel. ``workspace_bytes``: limits by kernel
    key."""
    return record.workspace <= workspace_bytes.get(task.key, record.workspace)


def _can_replay(task: Task, record: Record) -> bool:
    """Test whether the schedule of a record can still be applied. The compiler may be newer than the record."""
    try:
        replay_on_algorithm(task.lowered, record.algorithm, record.trace, record.rule)
    except MicrocError:
        return False
    return True


def available_workspace_bytes(module: Module, tasks: Sequence[Task], arena_limit: int) -> Mapping[str, int]:
    """Return the number of bytes of workspace that each kernel may use in all of its layers, by the key of the kernel.

    The arena may grow by the fraction :data:`ARENA_GROWTH`, but not beyond ``arena_limit`` bytes (0: unlimited).
    """
    assert module.plan is not None
    grown = int((1 + ARENA_GROWTH) * module.plan.size)
    most = max(module.plan.size, min(grown, arena_limit) if arena_limit else grown)
    return workspace_limits(most, module, kernel_key_by_layer(tasks))


# ---- Entry points that :mod:`microc.compiler.pipeline` and the search for a fit call.


def refuse_unreadable_tuning_files(options: Options) -> None:
    """Raise UsageError if the options name unreadable tuning records or an unreadable plan, or both records and a plan.

    It is called before the network is compiled.
    """
    if options.plan is not None and options.tuned is not None:
        raise UsageError(
            "tuned cannot be combined with plan, which already contains schedules",
            where=str(options.plan),
            hint="leave out tuned, or plan",
        )
    if options.tuned is not None:
        require_records_file(options.tuned)
    if options.plan is not None:
        read_plan(options.plan)


def schedules_from_options(
    untuned: CompiledNetwork, options: Options, board: str, ram: int
) -> Mapping[str, TunedSchedule]:
    """Return the measured schedules from the records or the plan that the options name, by the key of the kernel.

    ``board``, ``ram``: as in :func:`choose_tuned_schedules`.
    """
    if options.plan is None:
        assert options.tuned is not None
        return choose_tuned_schedules(untuned, options.tuned, board, ram)
    return read_planned_schedules(untuned, options.plan)
