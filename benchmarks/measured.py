# SPDX-License-Identifier: Apache-2.0
"""Spaces that were measured as a whole, as tables: searches are compared on them without a compiler, a board or a model.

A table has every point of a kernel's space, which kernel it makes (none where there is no such schedule), and what a search is
told of each kernel: ticks of the emulated board, and the cost model's numbers. Where ``flags`` are there, each kernel was
measured with each of the C compiler's options, too; else they are no part of the space.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from microc.compiler.tuned.records import OK, Task
from microc.graph.ir import Graph
from microc.schedule.choose import Choice
from microc.schedule.schedule import Schedule
from microc.target import target_for
from microc.tir import ir
from microc.tuning.runner import MeasuredResult, Runner
from microc.tuning.search_space import Candidate, Point, Space

FOLDER = Path(__file__).parent / "measured"
SMALL = 60
"""Points of a space whose kernels are measured with all options of the C compiler."""
Ticks = dict[tuple[object, str], float]
"""By the kernel (:func:`kernel_of`), and the options of the C compiler that it has to itself."""


def kernel_of(candidate: Candidate) -> object:
    """What makes a kernel: the algorithm and the loops."""
    return candidate.number, candidate.choice.func.body


def key_of(candidate: Candidate) -> tuple[object, str]:
    return kernel_of(candidate), candidate.point.flags


def write(path: Path, space: Space, ticks: Ticks, board: str, toolchain: str) -> None:
    """The table of a space; ``ticks`` of all its kernels, and with options where it is small."""
    task = space.task
    flags = space.flags if len(space.points) <= SMALL else ()
    kernels: dict[object, tuple[int, Candidate]] = {}

    def number(candidate: Candidate | None) -> int | None:
        return None if candidate is None else kernels.setdefault(kernel_of(candidate), (len(kernels), candidate))[0]

    untuned = [[list(c.point.decisions[0]), _rule(c.point), number(c)] for c in space.untuned]
    points = [[_rule(point), [v for _, v in point.decisions], number(space.candidate(point))] for point in space.points]
    rules = {_rule(point): [name for name, _ in point.decisions] for point in space.points}
    data = {
        "layer": task.name, "op": task.op, "key": task.key, "cpu": task.target.cpu, "layers": len(task.layers),
        "board": board, "toolchain": toolchain, "flags": list(flags), "rules": rules,
    }  # fmt: skip
    rows = {
        "untuned": untuned,
        "points": points,
        "kernels": [
            [c.number, round(c.instructions), c.code, c.constants, c.workspace]
            + [ticks[kernel, option] for option in ("", *flags)]
            for kernel, (_, c) in kernels.items()
        ],
    }
    head = json.dumps(data, indent=1)[:-2]
    body = ",\n".join(
        f' "{name}": [\n' + ",\n".join(json.dumps(row, separators=(",", ":")) for row in found) + "]"
        for name, found in rows.items()
    )
    path.write_text(f"{head},\n{body}\n}}\n", encoding="utf-8")


def _rule(point: Point) -> str:
    return f"{point.algorithm}: {point.rule}"


@dataclass(frozen=True, eq=False)
class Paper(Task):
    """A kernel that nothing is known of but its table."""

    known: str = ""

    @property
    def key(self) -> str:  # type: ignore[override]
        return self.known


class PaperSpace(Space):
    """The space of a table, whose candidates need not be built."""

    def __init__(self, task: Task) -> None:
        data = json.loads((FOLDER / f"{task.name}.json").read_text(encoding="utf-8"))
        self.task, self.flags = task, tuple(data["flags"])
        self._kernels = data["kernels"]
        self.ticks = {
            (number, option): row[5 + place]
            for number, row in enumerate(self._kernels)
            for place, option in enumerate(("", *self.flags))
        }
        self._makers, self._built = {}, {}
        for rule, values, kernel in data["points"]:
            point = _point(rule, zip(data["rules"][rule], map(_value, values), strict=True))
            self._makers[point] = (0, lambda: None)
            self._built[point] = None if kernel is None else self._made(point, kernel)
        self._untuned = tuple(
            self._made(_point(rule, [tuple(decision)]), kernel) for decision, rule, kernel in data["untuned"]
        )

    def _made(self, point: Point, kernel: int) -> Candidate:
        number, instructions, code, constants, workspace = self._kernels[kernel][:5]
        func = ir.PrimFunc("paper", (), ir.Evaluate(ir.const(kernel, "int32")))
        return Candidate(
            point, number, Choice(Schedule(func), func, verified=True), instructions, code, constants, workspace
        )

    @property
    def untuned(self) -> tuple[Candidate, ...]:  # type: ignore[override]
        return self._untuned

    @cached_property
    def best(self) -> float:
        """The least ticks that there are."""
        return min(self.ticks.values())

    def ticks_of(self, candidate: Candidate) -> float:
        body: Any = candidate.choice.func.body
        return float(self.ticks[body.value.value, candidate.point.flags])


def _point(rule: str, decisions: Any) -> Point:
    algorithm, _, name = rule.partition(": ")
    return Point(algorithm, name, tuple(decisions))


def _value(value: Any) -> Any:
    return tuple(map(_value, value)) if isinstance(value, list) else value


def names() -> tuple[str, ...]:
    """Of the tables that there are."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def task_of(name: str) -> Paper:
    """The kernel of a table."""
    data = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return Paper(
        Graph("paper", (), (), (), {}, {}), (name,), data["op"], target_for(data["cpu"]), 1, (), (), data["key"]
    )


def trials_of(space: PaperSpace) -> int:
    """A tenth of what there is to measure, and no fewer than eight."""
    return max(8, round(len(space.ticks) / 10))


class Recorded(Runner):
    """Answers from a table, in batches as a board's."""

    board, unit, toolchain = "recorded", "instructions", ""

    def __init__(self, space: PaperSpace) -> None:
        self._space = space

    def check(self) -> None:
        """They are there."""

    def _measure_image(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
        return [MeasuredResult(c, OK, self._space.ticks_of(c), c.code) for c in candidates]
