# SPDX-License-Identifier: Apache-2.0
"""Schedules that are bundled with the compiler for common kernel shapes (like TVM's TopHub).

Each core with bundled schedules has a file of JSON lines in a folder beside this module. The first line lists all
schedule steps, each once. Every other line is a kernel: its key and its schedules, whose steps are indices into the
first line. The schedules of a kernel are those that the rules choose at all prices of flash, with their costs, so that
choosing among them gives the same result as the rules. Some of them were replaced by schedules that were measured to be
faster without more flash. There may also be a faster schedule that is used only for the goal speed.
``benchmarks/maintain/shipped.py`` writes the files.

A line is parsed only when its kernel is looked up, because the file of a core has hundreds of lines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

from microc.base.immutable import frozen
from microc.isa import CORES
from microc.schedule.choose import Weight, weigh_cost
from microc.schedule.cost.cost_model import Cost, time_unit_of
from microc.schedule.primitives.tree import Step, parse_step
from microc.target import Goal, Target

MEASURED_SUFFIX = ", shipped"
"""Suffix that reports add to the rule of a bundled schedule that was found by measurement."""
FOLDER = Path(__file__).parent / "shipped"
WAITING = "constant_byte"
"""The only operation count of a cost that the files contain: the number of bytes read from flash. It is needed because
the core waits for them if the board's flash is slow."""
_KEY = len('{"key":"'), len('{"key":"') + 40
"""Start and end of the key within the line of a kernel."""


@frozen
class ShippedSchedule:
    """A bundled schedule of a kernel: the names of its algorithm and its rule, its steps (``trace``), and its cost.

    ``cost``: by the cost model when the file was written. ``constants``: number of bytes. ``prices``: the lowest and
    the highest price of flash at which the rules propose the schedule. ``measured``: it was found by measurement, not
    by rules.
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
        """The name of the rule in reports."""
        return self.rule + MEASURED_SUFFIX if self.measured else self.rule


@frozen
class ShippedKernel:
    """The bundled schedules of one kernel, which are a line in the file of a core.

    ``layer``: the first layer that was found with this kernel, as information for readers. ``schedules``: in the order
    of the rules.
    """

    key: str
    layer: str
    schedules: tuple[ShippedSchedule, ...]


@frozen
class ShippedCandidate:
    """A bundled schedule as a candidate. ``weight``: as :func:`microc.schedule.choose.cheapest` compares it, with
    cycles that include the waits for constants in flash."""

    shipped: ShippedSchedule
    weight: Weight


def compute_shipped_key(operator_and_function_texts: Sequence[tuple[str, str]]) -> str:
    """Return the key of a kernel in the file of a core: 40 hex digits of a digest of ``operator_and_function_texts``.

    ``operator_and_function_texts``: the operator and the function text of every algorithm of the kernel.
    """
    return hashlib.sha256(repr(list(operator_and_function_texts)).encode()).hexdigest()[:40]


def has_shipped_schedules(target: Target) -> bool:
    """Test whether there are bundled schedules for a target.

    There are none if the user added features to the core, or if the target uses threads.
    """
    return (
        target.cpu in CORES.permanent_names
        and target.features == target.core.has
        and _shipped_file(target.cpu).is_file()
    )


def shipped_schedules_of(cpu: str, key: str) -> tuple[ShippedSchedule, ...]:
    """Return the bundled schedules of a kernel on a core, given the key of the kernel; empty if there are none."""
    steps, lines = _read_shipped_file(cpu)
    return _parse_kernel(lines[key], steps).schedules if key in lines else ()


def shipped_kernels_of(cpu: str) -> list[ShippedKernel]:
    """Return all kernels of a core that have bundled schedules."""
    steps, lines = _read_shipped_file(cpu)
    return [_parse_kernel(line, steps) for line in lines.values()]


def list_shipped_cores() -> list[str]:
    """List the names of the cores that have bundled schedules."""
    return sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def shipped_candidates(
    schedules: Iterable[ShippedSchedule], target: Target, goal: Goal, uses: int
) -> list[ShippedCandidate]:
    """Return, as candidates, the bundled schedules that are valid at the price of flash (instructions that one byte is
    worth) of ``goal``; all of them if the core waits for its flash, because their prices are those without waits.

    ``uses``: as in :func:`microc.schedule.choose.choose_schedule`.
    """
    candidates = []
    for schedule in schedules:
        if target.waits_for_flash or schedule.prices[0] <= goal.price <= schedule.prices[1]:
            cycles = schedule.cost.cycles + target.flash_wait * schedule.cost.operations[WAITING]
            cost = replace(schedule.cost, cycles=cycles, time_unit=time_unit_of(target))
            candidates.append(ShippedCandidate(schedule, weigh_cost(cost, schedule.constants, goal, uses)))
    return candidates


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
    """Read a core's file of bundled schedules: return all schedule steps, and the line of each kernel by its key."""
    first, *lines = _shipped_file(cpu).read_text(encoding="utf-8").splitlines()
    return json.loads(first)["steps"], {line[slice(*_KEY)]: line for line in lines}


def _parse_kernel(line: str, all_steps: Sequence[Any]) -> ShippedKernel:
    """Parse the line of a kernel in a core's file. ``all_steps``: the steps in the first line of the file."""
    data = json.loads(line)
    return ShippedKernel(
        data["key"], data["layer"], tuple(_parse_schedule(row, all_steps) for row in data["schedules"])
    )


def _parse_schedule(schedule_fields: Sequence[Any], all_steps: Sequence[Any]) -> ShippedSchedule:
    """Parse a schedule in a kernel's line. ``all_steps``: the steps in the first line of the file, to which the
    schedule refers by index."""
    algorithm, rule, instructions, cycles, waiting, code, constants, (low, high), measured, indices = schedule_fields
    trace = tuple(parse_step(all_steps[k]) for k in indices)
    cost = Cost(instructions, cycles, code, 0.0, {WAITING: waiting})
    prices = low, inf if high is None else high
    return ShippedSchedule(algorithm, rule, trace, cost, constants, prices, bool(measured))
