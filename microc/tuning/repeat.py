"""One record's schedule, measured once more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from microc.driver.extended import knows_plugins
from microc.driver.tuned.records import FROM_RAM, Record, records_of
from microc.driver.tuned.regions import RegionTask
from microc.driver.tuned.task import Task
from microc.errors import UsageError
from microc.target import Board
from microc.tuning.places import meter_for
from microc.tuning.regions import region_candidate
from microc.tuning.replay import candidate_of
from microc.tuning.runner import Result
from microc.tuning.space import Candidate, Point
from microc.tuning.subject import place_of, regions_for, tasks_for


@knows_plugins
def repeat(
    model: Any,
    target: str = "",
    *,
    board: str | Path | Board | None = None,
    records: Path,
    record: str,
    port: str = "",
    **options: Any,
) -> tuple[Record, Result, str]:
    """Measure the schedule of the record whose number begins with ``record`` again: the record, what became of it now, the unit.

    UsageError where the file has no such record, or the network no such kernel."""
    found = [each for each in records_of(records) if record and each.id.startswith(record)]
    if not found:
        raise UsageError(
            f"there is no record {record!r}", where=str(records), hint="microc tune --show FILE lists failures"
        )
    place, core = place_of(target, board)
    chosen, tasks = tasks_for(model, core, place, options)
    every = (*tasks, *regions_for(model, core, chosen))
    task = next((each for each in every if each.key == found[-1].key), None)
    if task is None:
        raise UsageError(
            f"the network has no kernel of record {record}: {found[-1].layer}, {found[-1].op}",
            where=str(records),
            hint="give the model, the board and the options that it was tuned with",
        )
    meter = meter_for(place, core, [port], 1, load=found[-1].board.endswith(FROM_RAM))
    (result,) = meter.measure(task, [_candidate(task, found[-1])])
    return found[-1], result, meter.unit


def _candidate(task: Task, record: Record) -> Candidate:
    if isinstance(task, RegionTask):
        return region_candidate(task, record)
    return candidate_of(task, Point(record.algorithm, record.rule, record.decisions), record.trace)
