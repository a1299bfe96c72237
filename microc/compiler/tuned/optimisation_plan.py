"""Which measured schedules a compilation takes: by records, or by a plan."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import isinf
from pathlib import Path
from typing import Any

from microc.base.file_access import read_bytes
from microc.codegen.output_files import replacing
from microc.compiler.fit.search import workspaces_within
from microc.compiler.lowering.kernel_maker import TAKEN, Compiled, TunedSchedule
from microc.compiler.lowering.kernel_selection import replayed
from microc.compiler.options import Options
from microc.compiler.tuned.measured_choice import Chosen, choose, fronts, measured_together, network_key, ways_together
from microc.compiler.tuned.records import OK, UNTUNED, Database, Record, Task, records_of, refuse_absent, tasks_of
from microc.device.board_info import readable
from microc.errors import MicrocError, UsageError
from microc.module import Module
from microc.schedule.primitives.tree import Step, frozen_argument

# ---- An optimisation plan: for every kernel of a network what it takes, why, and what else it could (``microc tune
# --plan``).
#
# A file that a person may edit, ``choice`` above all, and give back (``microc compile --plan``). It holds the steps of all
# alternatives, so that no file of records is needed. What does not fit the network is refused, nothing is passed over.

LARGEST = 16 << 20
"""Bytes of a plan that are read."""
MOST = 16
"""Alternatives of a kernel that are written, fastest first."""
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


def plan_of(made: Compiled, database: Database, *, board: str, optimize: str, records: str) -> dict[str, Any]:
    """The plan of a network that was compiled with ``database`` (``tuned=``), which is what it took."""
    tasks = tasks_of(made)
    whole = bool(database.of(network_key(tasks, made.make.threads)))
    known = fronts(tasks, database, board, None)
    first = next((found[0] for found in known.values()), None)
    return {
        "microc_plan": 1,
        "model": made.module.source,
        "core": made.make.target.cpu,
        "board": first.board if first else board,
        "unit": first.unit if first else "",
        "optimize": optimize,
        "records": records,
        "kernels": [
            _kernel(task, known[task.key], _taken(task, made, known[task.key][0], database), whole=whole)
            for task in tasks
            if task.key in known
        ],
    }


def _taken(task: Task, made: Compiled, default: Record, database: Database) -> Record | None:
    """The newest record of what a kernel takes, of those that are compared with its default: others may beat it alone. None
    where that is what the compiler takes by itself."""
    taken = made.make.tuned.get(task.key)
    if taken is None:
        return None
    place = default.board, default.unit, default.toolchain
    found = [r for r in database.of(task.key) if r.status == OK and (r.board, r.unit, r.toolchain) == place]
    return next((r for r in reversed(found) if (r.algorithm, r.trace) == (taken.algorithm, taken.trace)), None)


def _kernel(task: Task, measured: Sequence[Record], chosen: Record | None, *, whole: bool) -> dict[str, Any]:
    """A kernel's part: ``measured`` is the default, then what beats it in something; ``whole`` as in :func:`_why`."""
    default, *others = measured
    shown = others[:MOST] if chosen is None or chosen in others[:MOST] else [*others[: MOST - 1], chosen]
    return {
        "key": task.key,
        "layers": [readable(layer, 200) for layer in task.layers],
        "op": task.op,
        "choice": chosen.id if chosen else UNTUNED,
        "why": _why(chosen, default, others, whole=whole),
        "alternatives": {UNTUNED: _costs(default), **{r.id: {**_costs(r), **_steps(r)} for r in shown}},
    }


def _costs(record: Record) -> dict[str, Any]:
    decided = ", ".join(f"{name} {value}" for name, value in record.decisions if value not in ("", False))
    schedule = f"{record.algorithm}: {record.rule}" + ("" if record.untuned else f" ({decided})")
    return {"schedule": schedule, "ticks": record.ticks, "flash": record.flash, "workspace": record.workspace}


def _steps(record: Record) -> dict[str, Any]:
    steps = [[step.primitive, *step.args] for step in record.trace]
    return {"algorithm": record.algorithm, "rule": record.rule, "steps": steps}


def _why(chosen: Record | None, default: Record, others: Sequence[Record], *, whole: bool) -> str:
    """A choice beside what the compiler takes by itself; ``whole``: the network was measured as one."""
    if chosen is None:
        faster = sum(record.ticks < default.ticks for record in others)
        told = "are slower beside the other kernels" if whole else "take more flash or workspace than the goal allows"
        return f"{faster} faster ones {told}" if faster else "none was faster"
    return (
        f"{100 * (chosen.ticks / default.ticks - 1) if default.ticks else 0:+.2f} % {chosen.unit}, "
        f"{chosen.flash - default.flash:+d} bytes of flash, {chosen.workspace - default.workspace:+d} of workspace"
    )


def write_plan(path: Path, plan: Mapping[str, Any]) -> None:
    """A plan as a file: a line for each alternative, so that a person reads it, and a comparison of two shows what changed."""
    with replacing(path) as temporary:
        temporary.write_text("\n".join(_lines(plan)) + "\n", encoding="utf-8")


def _lines(plan: Mapping[str, Any]) -> Iterator[str]:
    yield "{"
    yield from (f"  {_json(name)}: {_json(value)}," for name, value in plan.items() if name != "kernels")
    yield '  "kernels": ['
    for number, kernel in enumerate(plan["kernels"], 1):
        yield "    {"
        yield from (f"      {_json(name)}: {_json(value)}," for name, value in kernel.items() if name != "alternatives")
        yield '      "alternatives": {'
        rows = [f"        {_json(name)}: {_json(value)}" for name, value in kernel["alternatives"].items()]
        yield ",\n".join(rows)
        yield "      }"
        yield "    }," if number < len(plan["kernels"]) else "    }"
    yield "  ]"
    yield "}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True)


def read_plan(path: Path) -> dict[str, Any]:
    """A plan as a person left it; UsageError that says where it is none."""
    import jsonschema

    try:
        plan = json.loads(read_bytes(path, LARGEST))
    except OSError as error:
        raise UsageError(
            f"the plan cannot be read: {error.strerror or error}", where=str(path), hint="microc tune MODEL --plan FILE"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"this is no plan: {readable(str(error), 200)}",
            where=str(path),
            hint="microc tune MODEL --plan FILE writes one",
        ) from error
    wrong = next(iter(jsonschema.Draft202012Validator(SCHEMA).iter_errors(plan)), None)
    if wrong is not None:
        place = "".join(f"[{key}]" if isinstance(key, int) else f".{readable(key)}" for key in wrong.absolute_path)
        raise UsageError(
            f"wrong plan: {readable(wrong.message, 200)}", where=f"{path}{place}", hint="write it anew, or mend it"
        )
    found: dict[str, Any] = plan
    return found


def planned_schedules(made: Compiled, path: Path) -> Mapping[str, TunedSchedule]:
    """The schedules that a plan chooses for the kernels of a network; UsageError for one that fits no longer."""
    plan, tasks = read_plan(path), {task.key: task for task in tasks_of(made)}
    if plan["core"] != made.make.target.cpu:
        raise UsageError(
            f"the plan is for {readable(plan['core'])}, not {made.make.target.cpu}",
            where=str(path),
            hint="tune for this core",
        )
    found: dict[str, TunedSchedule] = {}
    for number, kernel in enumerate(plan["kernels"]):
        where = f"{path}.kernels[{number}]"
        task = tasks.get(kernel["key"])
        if task is None:
            raise UsageError(
                f"the network has no such kernel: {readable(kernel['layers'][0])}",
                where=where,
                hint="was it made of this model, under these options, by this microc? Write it anew, or leave the kernel out",
            )
        schedule = _chosen(task, kernel, where)
        if schedule is not None:
            found[task.key] = schedule
    return found


def _chosen(task: Task, kernel: Mapping[str, Any], where: str) -> TunedSchedule | None:
    """What a kernel's part of the plan chooses; None for what the compiler takes by itself."""
    choice, alternatives = kernel["choice"], kernel["alternatives"]
    if choice == UNTUNED:
        return None
    layer, known = (
        readable(kernel["layers"][0]),
        [UNTUNED, *(readable(n) for n, a in alternatives.items() if "steps" in a)],
    )
    if choice not in known:
        raise UsageError(
            f"{layer} has no alternative {readable(choice)!r}", where=where, hint="one of: " + ", ".join(known)
        )
    given = alternatives[choice]
    try:
        trace = tuple(Step(row[0], tuple(map(frozen_argument, row[1:]))) for row in given["steps"])
        hash(trace)  # of plain values only
        group = next(each for each in task.lowered if each.algorithm == given["algorithm"])
        replayed(group, trace, readable(given["rule"]))
    except (MicrocError, StopIteration, TypeError, ValueError) as error:
        why = error.what if isinstance(error, MicrocError) else "it is of another microc"
        raise UsageError(
            f"alternative {choice} of {layer} makes no schedule any more: {readable(why, 200)}",
            where=where,
            hint=f"choose another, or {UNTUNED!r}; or tune again",
        ) from error
    return TunedSchedule(given["algorithm"], readable(given["rule"]), trace)


def refuse_untaken(untuned: Compiled, made: Compiled, path: Path) -> None:
    """UsageError where a layer of ``made`` did not take what the plan chooses for its kernel; ``untuned``: without the plan."""
    rules = {call.layer: call.rule for call in made.module.calls}
    outer = {call.layer for call in untuned.module.calls}
    for task in tasks_of(untuned):
        for layer in task.layers if task.key in made.make.tuned else ():
            took = TAKEN in rules.get(layer, "") if layer in outer else task.key in made.make.taken
            if not took:
                by_rows = layer in outer and layer not in rules
                why = "it is computed row by row to keep within the arena" if by_rows else "its constants promise less"
                raise UsageError(
                    f"layer {readable(layer, 200)} cannot take what the plan chooses: {why}",
                    where=str(path),
                    hint=f"choose {UNTUNED!r} for it" + (", or raise --ram" if by_rows else ""),
                )


# ---- Measured schedules in a compilation (``--tuned``): which records are of its kernels, and which of them are
# taken.
#
# The goal says what they may cost. For speed any flash is right; ``balanced`` takes no more than the schedules that were chosen
# without records; for size the least flash wins, and time decides between equals. Workspaces may make the arena grow a little, by
# :data:`GROWTH`, and never beyond what there is. Where time alone counts, and the network was measured as a whole
# (:mod:`.network`), that decides.

GROWTH = 1 / 32
"""Of the arena: a row more in a plane is worth it, a copy of a whole image is not."""


def tuned_schedules(made: Compiled, path: Path, board: str = "", ram: int = 0) -> Mapping[str, TunedSchedule]:
    """The schedules of a planned network's kernels that a file of records has something better for. ``board``: whose records are
    preferred. ``ram``: bytes that the arena may take (0: any number). UsageError for a file that is none of records."""
    database, tasks = records_of(path), tasks_of(made)
    room = workspace_room(made.module, tasks, ram)
    pairs = _together(made, tasks, database, board, room)
    if pairs is None:
        apart = chosen_apart(made, tasks, database, board, room)
        pairs = [(each.task, each.record) for each in apart if each.record is not None]
    return {task.key: TunedSchedule(record.algorithm, record.rule, record.trace) for task, record in pairs}


def chosen_apart(
    made: Compiled,
    tasks: Sequence[Task],
    database: Database,
    board: str,
    room: Mapping[str, int],
    without: Collection[object] = (),
) -> list[Chosen]:
    """What the kernels of a network take by what was measured of each alone; ``without`` as in :func:`choose`."""
    goal = made.make.goal
    flash = None if goal.price == 0 else 0
    unfit = set(without)
    while True:
        found = choose(tasks, database, board=board, flash=flash, room=room, least=isinf(goal.price), without=unfit)
        wrong = [each.record for each in found if each.record is not None and not _fits(each.task, each.record)]
        if not wrong:
            return found
        unfit.update(wrong)


def _together(
    made: Compiled, tasks: Sequence[Task], database: Database, board: str, room: Mapping[str, int]
) -> list[tuple[Task, Record]] | None:
    """What they take by runs of the whole network, where time alone counts: the best combination that can still be made; None
    where nothing was measured so."""
    if made.make.goal.price > 0:
        return None
    together = measured_together(network_key(tasks, made.make.threads), made.make.target.cpu, database, board)
    ways = ways_together(together, tasks, database) if together is not None else ()
    return next((pairs for pairs in ways if all(_fits(*each) and _has_room(*each, room) for each in pairs)), None)


def _has_room(task: Task, record: Record, room: Mapping[str, int]) -> bool:
    return record.workspace <= room.get(task.key, record.workspace)


def _fits(task: Task, record: Record) -> bool:
    """Whether a record's trace makes a schedule still: the compiler may be a later one than that which wrote it."""
    group = next((each for each in task.lowered if each.algorithm == record.algorithm), None)
    if group is None:
        return False
    try:
        replayed(group, record.trace, record.rule)
    except MicrocError:
        return False
    return True


def workspace_room(module: Module, tasks: Sequence[Task], ram: int) -> Mapping[str, int]:
    """By key of a kernel, the bytes of workspace that it may take in all of its layers."""
    assert module.plan is not None
    grown = int((1 + GROWTH) * module.plan.size)
    most = max(module.plan.size, min(grown, ram) if ram else grown)
    return workspaces_within(most, module, tasks)


# ---- What a compilation takes of what was measured: by a file of records, or by a plan.


def refuse_unreadable(options: Options) -> None:
    """UsageError for files that cannot be taken, before a network is compiled to be compared with them."""
    if options.plan is not None and options.tuned is not None:
        raise UsageError("a plan has schedules of its own", where=str(options.plan), hint="leave out tuned")
    if options.tuned is not None:
        refuse_absent(options.tuned)
    if options.plan is not None:
        read_plan(options.plan)


def measured_schedules(untuned: Compiled, options: Options, board: str, ram: int) -> Mapping[str, TunedSchedule]:
    """The schedules of a planned network's kernels that the options name; ``board``, ``ram`` as in :func:`tuned_schedules`."""
    if options.plan is None:
        assert options.tuned is not None
        return tuned_schedules(untuned, options.tuned, board, ram)
    return planned_schedules(untuned, options.plan)


def as_planned(untuned: Compiled, made: Compiled, options: Options) -> Compiled:
    """What was made, where that is what the plan chooses; UsageError where it is not."""
    assert options.plan is not None
    refuse_untaken(untuned, made, options.plan)
    return made
