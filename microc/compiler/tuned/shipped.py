"""Schedules that come with the compiler, for the shapes of networks that many people run (what TVM calls TopHub).

A file for each core that has some, beside this one: JSON lines, the first of which has all steps, each once; every other one is a
kernel's, with its key and its schedules, whose steps are places in the first. Those of a kernel are what the rules choose at any
price of flash, with what the cost model said of them, so that a choice among them is the choice among all; some were replaced
by what was measured to take less time in no more flash, and for speed alone there may be a faster one. ``benchmarks/shipped.py``
writes them.

A line is parsed when its kernel is met: a core's file has hundreds.
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
from microc.schedule.choose import weight
from microc.schedule.cost.cost_model import Cost
from microc.schedule.primitives.tree import Step, frozen_argument
from microc.target import Goal, Target

MEASURED = ", shipped"
"""What the names of rules end with in reports whose schedules a search found, not they."""
FOLDER = Path(__file__).parent / "shipped"
WAITING = "constant_byte"
"""What the core waits for where its board's flash is slow: of a cost's operations the one that is kept."""
_KEY = len('{"key":"'), len('{"key":"') + 40
"""Where a kernel's line has its key."""


@frozen
class Shipped:
    """A schedule of a kernel: algorithm and rule by name, its steps, what the cost model said when it was written; ``constants``
    in bytes; ``prices`` of flash, the least and the highest, at which rules propose it. ``measured``: it is not what they choose,
    but was found to take less."""

    algorithm: str
    rule: str
    trace: tuple[Step, ...]
    cost: Cost
    constants: int
    prices: tuple[float, float] = (0.0, inf)
    measured: bool = False

    @property
    def name(self) -> str:
        """What reports call its rule."""
        return self.rule + MEASURED if self.measured else self.rule


@frozen
class Kernel:
    """A kernel's line: ``layer`` is where it was met first, for people; ``schedules`` as rules propose them, in order."""

    key: str
    layer: str
    schedules: tuple[Shipped, ...]


@frozen
class Offer:
    """A schedule as a choice: ``weight`` and ``cycles`` as :func:`microc.schedule.choose.lightest` compares them."""

    shipped: Shipped
    weight: tuple[float, float]
    cycles: float


def key_of(texts: Sequence[tuple[str, str]]) -> str:
    """What a kernel's line is found by: 40 hex digits of its functions' structure."""
    return hashlib.sha256(repr(list(texts)).encode()).hexdigest()[:40]


def is_known(target: Target) -> bool:
    """Whether schedules come with the compiler for a core, without features of the user's and without threads."""
    return target.cpu in CORES.sealed and target.features == target.core.has and _path(target.cpu).is_file()


def schedules_of(cpu: str, key: str) -> tuple[Shipped, ...]:
    """Those of a kernel on a core; none where it is not known."""
    steps, lines = _file(cpu)
    return _kernel(lines[key], steps).schedules if key in lines else ()


def kernels_of(cpu: str) -> list[Kernel]:
    """All that is known for a core."""
    steps, lines = _file(cpu)
    return [_kernel(line, steps) for line in lines.values()]


def cores() -> list[str]:
    """Those that schedules come for."""
    return sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def offers(schedules: Iterable[Shipped], target: Target, goal: Goal, uses: int) -> list[Offer]:
    """Schedules as choices for a goal and a board's flash; ``uses`` as in :func:`microc.schedule.choose.choose`."""
    return [
        Offer(
            each,
            weight(each.cost, each.constants, goal, uses),
            each.cost.cycles + target.flash_wait * each.cost.operations[WAITING],
        )
        for each in schedules
        if each.prices[0] <= goal.price <= each.prices[1]
    ]


def text_of(kernels: Iterable[Kernel]) -> str:
    """The file of some kernels."""
    places: dict[Step, int] = {}
    rows = [
        {
            "key": kernel.key,
            "layer": kernel.layer,
            "schedules": [
                [
                    each.algorithm, each.rule, each.cost.instructions, each.cost.cycles, each.cost.operations[WAITING],
                    each.cost.code_bytes, each.constants, [p if p < inf else None for p in each.prices], int(each.measured),
                    [places.setdefault(step, len(places)) for step in each.trace],
                ]
                for each in kernel.schedules
            ],
        }
        for kernel in kernels
    ]  # fmt: skip
    steps = {"steps": [[step.primitive, *step.args] for step in places]}
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in (steps, *rows))


def _path(cpu: str) -> Path:
    return FOLDER / f"{cpu}.jsonl"


@lru_cache(maxsize=4)
def _file(cpu: str) -> tuple[Sequence[Any], Mapping[str, str]]:
    """The steps of a core's file, and its kernels' lines by key."""
    first, *lines = _path(cpu).read_text(encoding="utf-8").splitlines()
    return json.loads(first)["steps"], {line[slice(*_KEY)]: line for line in lines}


def _kernel(line: str, steps: Sequence[Any]) -> Kernel:
    data = json.loads(line)
    return Kernel(data["key"], data["layer"], tuple(_schedule(row, steps) for row in data["schedules"]))


def _schedule(row: Sequence[Any], steps: Sequence[Any]) -> Shipped:
    algorithm, rule, instructions, cycles, waiting, code, constants, (low, high), measured, places = row
    trace = tuple(Step(steps[k][0], tuple(map(frozen_argument, steps[k][1:]))) for k in places)
    cost = Cost(instructions, cycles, code, 0.0, {WAITING: waiting})
    prices = low, inf if high is None else high
    return Shipped(algorithm, rule, trace, cost, constants, prices, bool(measured))
