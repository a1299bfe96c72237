"""An optimisation plan: for every kernel of a network what it takes, why, and what else it could (``microc tune --plan``).

A file that a person may edit, ``choice`` above all, and give back (``microc compile --plan``). It holds the steps of all
alternatives, so that no file of records is needed. What does not fit the network is refused, nothing is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from microc.codegen.files import replacing
from microc.device.info import readable
from microc.driver.compile.kernel import replayed
from microc.driver.compile.maker import TAKEN, Compiled, TunedSchedule
from microc.driver.tuned.choice import fronts
from microc.driver.tuned.network import network_key
from microc.driver.tuned.records import OK, UNTUNED, Database, Record
from microc.driver.tuned.task import Task, tasks_of
from microc.errors import MicrocError, UsageError
from microc.reading import read_bytes
from microc.schedule.step import Step, frozen_argument

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
