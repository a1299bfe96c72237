"""Schedules bundled with the compiler for common kernel shapes (like TVM's TopHub).

Each core with bundled schedules has a file of JSON lines beside this one. The first line has all schedule steps, each
once; every other line is a kernel with its key and schedules, whose steps are indices into the first line. The
schedules of a kernel are the rules' choices at all prices of flash with their costs, so that the choice among them
equals the choice of the rules. Some were replaced by schedules measured to be faster in no more flash; for speed alone
there may be a faster one. ``benchmarks/shipped.py`` writes the files.

A line is parsed when its kernel is looked up: a core's file has hundreds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

from microc.base.immutable import frozen
from microc.isa import CORES
from microc.schedule.choose import weighted_cost
from microc.schedule.cost.cost_model import Cost
from microc.schedule.primitives.tree import Step, freeze_argument
from microc.target import Goal, Target

MEASURED_SUFFIX = ", shipped"
"""Suffix, in reports, of the rule of a schedule that was found by measurement."""
FOLDER = Path(__file__).parent / "shipped"
WAITING = "constant_byte"
"""The one operation count that a stored cost keeps: reads from flash, for which the core waits if the board's flash is slow."""
_KEY = len('{"key":"'), len('{"key":"') + 40
"""Start and end of the key within a kernel's line."""


@frozen
class ShippedSchedule:
    """A schedule of a kernel: algorithm and rule by name, trace, and the cost model's result when it was written.

    ``constants`` in bytes; ``prices``: lowest and highest price of flash at which rules propose it. ``measured``: found
    by measurement, not chosen by the rules.
    """

    algorithm: str
    rule: str
    trace: tuple[Step, ...]
    cost: Cost
    constants: int
    prices: tuple[float, float] = (0.0, inf)
    measured: bool = False

    @property
    def name(self) -> str:
        """The rule's name in reports."""
        return self.rule + MEASURED_SUFFIX if self.measured else self.rule


@frozen
class ShippedKernel:
    """The bundled schedules of one kernel, a line of a core's file.

    ``layer``: the first layer that was seen with this kernel, for readers; ``schedules`` in the order of the rules."""

    key: str
    layer: str
    schedules: tuple[ShippedSchedule, ...]


@frozen
class ShippedCandidate:
    """A schedule as a candidate: ``weight`` and ``cycles`` as :func:`microc.schedule.choose.cheapest` compares them."""

    shipped: ShippedSchedule
    weight: tuple[float, float]
    cycles: float


def shipped_line_key(texts: Sequence[tuple[str, str]]) -> str:
    """Return the key of a kernel's line in a core's file: 40 hex digits of the digest of the kernel's ``texts`` (operator
    and function of every algorithm)."""
    return hashlib.sha256(repr(list(texts)).encode()).hexdigest()[:40]


def has_shipped_schedules(target: Target) -> bool:
    """Test whether a core has bundled schedules; not with features added by the user, nor with threads."""
    return target.cpu in CORES.sealed and target.features == target.core.has and _shipped_file(target.cpu).is_file()


def shipped_schedules_of(cpu: str, key: str) -> tuple[ShippedSchedule, ...]:
    """Return the bundled schedules of the kernel with this key on a core; empty if there are none."""
    steps, lines = _read_shipped_file(cpu)
    return _parse_kernel(lines[key], steps).schedules if key in lines else ()


def shipped_kernels_of(cpu: str) -> list[ShippedKernel]:
    """Return all bundled kernels of a core."""
    steps, lines = _read_shipped_file(cpu)
    return [_parse_kernel(line, steps) for line in lines.values()]


def list_shipped_cores() -> list[str]:
    """List the names of the cores that have bundled schedules."""
    return sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def shipped_candidates(
    schedules: Iterable[ShippedSchedule], target: Target, goal: Goal, uses: int
) -> list[ShippedCandidate]:
    """Return those bundled schedules that rules propose at the goal's price, as candidates for the goal and a board's
    flash; ``uses`` as in :func:`microc.schedule.choose.choose_schedule`."""
    return [
        ShippedCandidate(
            schedule,
            weighted_cost(schedule.cost, schedule.constants, goal, uses),
            schedule.cost.cycles + target.flash_wait * schedule.cost.operations[WAITING],
        )
        for schedule in schedules
        if schedule.prices[0] <= goal.price <= schedule.prices[1]
    ]


def format_kernels(kernels: Iterable[ShippedKernel]) -> str:
    """Format kernels with their bundled schedules as the text of a core's file."""
    indices: dict[Step, int] = {}
    rows = [
        {
            "key": kernel.key,
            "layer": kernel.layer,
            "schedules": [
                [
                    each.algorithm, each.rule, each.cost.instructions, each.cost.cycles, each.cost.operations[WAITING],
                    each.cost.code_bytes, each.constants, [p if p < inf else None for p in each.prices], int(each.measured),
                    [indices.setdefault(step, len(indices)) for step in each.trace],
                ]
                for each in kernel.schedules
            ],
        }
        for kernel in kernels
    ]  # fmt: skip
    steps = {"steps": [[step.primitive, *step.args] for step in indices]}
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in (steps, *rows))


def _shipped_file(cpu: str) -> Path:
    """Return the path of a core's file of bundled schedules."""
    return FOLDER / f"{cpu}.jsonl"


@lru_cache(maxsize=4)
def _read_shipped_file(cpu: str) -> tuple[Sequence[Any], Mapping[str, str]]:
    """Read a core's file of bundled schedules: all schedule steps, and the kernels' lines by key."""
    first, *lines = _shipped_file(cpu).read_text(encoding="utf-8").splitlines()
    return json.loads(first)["steps"], {line[slice(*_KEY)]: line for line in lines}


def _parse_kernel(line: str, all_steps: Sequence[Any]) -> ShippedKernel:
    """Parse the line of a kernel in a core's file. ``all_steps``: all steps of the file."""
    data = json.loads(line)
    return ShippedKernel(
        data["key"], data["layer"], tuple(_parse_schedule(row, all_steps) for row in data["schedules"])
    )


def _parse_schedule(schedule_fields: Sequence[Any], all_steps: Sequence[Any]) -> ShippedSchedule:
    """Parse a schedule in a kernel's line. ``all_steps``: all steps of the file, to which its trace refers by index."""
    algorithm, rule, instructions, cycles, waiting, code, constants, (low, high), measured, indices = schedule_fields
    trace = tuple(Step(all_steps[k][0], tuple(map(freeze_argument, all_steps[k][1:]))) for k in indices)
    cost = Cost(instructions, cycles, code, 0.0, {WAITING: waiting})
    prices = low, inf if high is None else high
    return ShippedSchedule(algorithm, rule, trace, cost, constants, prices, bool(measured))
