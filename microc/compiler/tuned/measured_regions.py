"""What is measured of external code."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from microc.base.immutable import frozen
from microc.codegen.project.firmware import optimisation
from microc.compiler.lowering.control_flow import LoweredControl, goal_inside, place_control
from microc.compiler.lowering.kernel_maker import TAKEN, Tuned, TunedSchedule
from microc.compiler.lowering.kernel_selection import algorithms_of, chosen, key_of, replayed, stored
from microc.compiler.tuned.records import NAME, OK, UNBUILT, WRONG, Database, Record, Task
from microc.errors import MicrocError, ScheduleError
from microc.external.partition import Taken
from microc.graph.ir import Graph, Node
from microc.module import Sources
from microc.ops.lowering import LoweredGroup
from microc.schedule.choose import Choice, constant_bytes
from microc.schedule.primitives.tree import Step
from microc.schedule.rules.rule import THREADS
from microc.target import Goal, Target

# ---- What is measured of other people's code: a region that a backend has code for, in theirs and in ours.
#
# Ours is the function that the region's kernels make together, as where cost decides. It can have the schedules that were
# measured for these kernels. Its steps are those of all kernels, each behind a step :data:`KERNEL` that names the algorithm and
# the rule, so that a record tells all of it.

KERNEL = "kernel"
"""The step in front of those of a kernel."""
OURS = "ours"
"""The algorithm of records of our code for a region."""
Pick = Callable[[Sequence[LoweredGroup], Goal, bool], tuple[int, Choice]]
"""The algorithm, by number, and the schedule of a kernel; whether records can be of it: inside of a loop none are taken."""


@frozen
class Ours:
    """Our code for a region: its function, the steps of its kernels, ``rule`` in words, bytes of its constants. ``kernels``: by
    :func:`key_of` what the rules choose for those that records can be of."""

    goal: Goal
    control: LoweredControl
    trace: tuple[Step, ...]
    rule: str
    constants: int
    kernels: Mapping[str, TunedSchedule]


@dataclass(frozen=True, eq=False)
class RegionTask(Task):
    """A region that a backend has code for. ``taken``: that code, ``opened`` gives what it is built from; ``ours``: as the rules
    choose, for the network's goal first. It has no functions that rules schedule (``lowered``, ``untuned``)."""

    taken: Taken
    opened: Callable[[], Sources]
    ours: tuple[Ours, ...]

    @cached_property
    def sources(self) -> Sources:
        """What their code is built from."""
        return self.opened()

    @cached_property
    def key(self) -> str:
        """What a record is found by: 40 hex digits of whose code it is, of the C that the backend wrote, of its operands, of the
        core with its features, and of the compiler's options. What the library is built from is told by :attr:`digest`."""
        taken, code = self.taken, self.taken.code
        kinds = [(kind.shape, kind.dtype) for kind in (*taken.region.input_types, *taken.region.output_types)]
        data = [(name, array.shape, str(array.dtype)) for name, array in code.data.items()]
        options = optimisation(self.target, self.ours[0].goal.name)
        known = (
            (taken.backend.name, taken.entry.name, taken.backend.headers, code.functions),
            (code.lines, code.workspace, code.align, code.fails, kinds, data),
            (self.target.cpu, sorted(self.target.features - {THREADS}), options),
        )
        return hashlib.sha256(repr(known).encode()).hexdigest()[:40]

    @cached_property
    def digest(self) -> str:
        """16 hex digits of what their code is built from. A library that is linked is told by its name and version alone."""
        sources = self.sources
        known = hashlib.sha256(repr((sources.version, sources.include, sources.defines, sources.libraries)).encode())
        for path, data in sources.files.items():
            known.update(f"\n{path} {len(data)}\n".encode() + data)
        return known.hexdigest()[:16]

    @property
    def whose(self) -> str:
        """The backend and its pattern."""
        return f"{self.taken.backend.name} {self.taken.entry.name}"


def region_task(
    graph: Graph, node: Node, taken: Taken, opened: Callable[[], Sources], goals: Sequence[Goal]
) -> RegionTask:
    """The region of a node of operator ``external``; ``goals``: the network's, and others that are compiled alike."""
    target, layers = taken.region.target, "+".join(inner.op for inner in taken.region.graph.nodes)
    named = {name for name in (*node.inputs, *node.outputs) if name}
    types = {name: graph.types[name] for name in graph.types if name in named}
    consts = {name: graph.consts[name] for name in graph.consts if name in named}
    inputs = tuple(dict.fromkeys(name for name in node.inputs if name and name not in consts))
    part = Graph("region", inputs, node.outputs, (node,), types, consts)
    ours = tuple(our_code(part, node, target, goal) for goal in goals)
    return RegionTask(part, (str(taken.region.root.loc),), layers, target, 1, (), (), taken, opened, ours)


def our_code(graph: Graph, node: Node, target: Target, goal: Goal, tuned: Tuned = MappingProxyType({})) -> Ours:
    """Our code for a region, as the rules choose but for kernels of ``tuned`` whose steps make a schedule still."""

    def pick(lowered: Sequence[LoweredGroup], inside: Goal, own: bool) -> tuple[int, Choice]:
        found = tuned.get(key_of(lowered, target)) if tuned and own else None
        if found is not None:
            with suppress(MicrocError):
                return _scheduled(lowered, found)
        return chosen(lowered, target, inside)

    return _placed(graph, node, target, goal, pick)


def repeated_code(task: RegionTask, trace: Sequence[Step]) -> Ours:
    """Our code for a region by the steps of a record; MicrocError where they make none."""
    kernels = list(_kernels(trace))

    def pick(lowered: Sequence[LoweredGroup], inside: Goal, own: bool) -> tuple[int, Choice]:
        if not kernels:
            raise ScheduleError("the region has more kernels than the record")
        return _scheduled(lowered, kernels.pop(0))

    found = _placed(task.graph, task.graph.nodes[0], task.target, task.ours[0].goal, pick)
    if kernels:
        raise ScheduleError("the region has fewer kernels than the record")
    return found


def best_code(task: RegionTask, records: Callable[[str], Sequence[Record]]) -> Ours:
    """Our code for a region by the fastest schedules of its kernels that ``records(key)``, of one board, has, in no more flash
    than without, but for speed alone; as the rules choose where nothing is faster."""
    ours = task.ours[0]
    found: dict[str, TunedSchedule] = {}
    for key, default in ours.kernels.items():
        good = [record for record in records(key) if record.status == OK]
        mine = next((r for r in good if (r.algorithm, r.trace) == (default.algorithm, default.trace)), None)
        if mine is None:
            continue
        flash = float("inf") if ours.goal.price == 0 else mine.flash
        best = min((r for r in good if r.flash <= flash), key=lambda record: record.ticks)
        if best.ticks < mine.ticks:
            found[key] = TunedSchedule(best.algorithm, best.rule, best.trace)
    return our_code(task.graph, task.graph.nodes[0], task.target, ours.goal, found) if found else ours


def _placed(graph: Graph, node: Node, target: Target, goal: Goal, pick: Pick) -> Ours:
    steps: list[Step] = []
    rules: dict[str, None] = {}
    kernels: dict[str, TunedSchedule] = {}
    told: dict[tuple[tuple[str, Any], ...], None] = {}
    constants = 0

    def schedule(inner: Graph, nodes: Sequence[Node], turns: int) -> tuple[LoweredGroup, Choice]:
        nonlocal constants
        lowered, inside = algorithms_of(inner, nodes, target, NAME), goal_inside(goal, turns)
        own = inner is node.attr("body")
        number, choice = pick(lowered, inside, own)
        rule = choice.schedule.rule.removesuffix(TAKEN)
        taken = TunedSchedule(lowered[number].algorithm, rule, choice.schedule.trace)
        steps.extend((Step(KERNEL, (taken.algorithm, rule)), *taken.trace))
        if own:
            kernels[key_of(lowered, target)] = taken
        rules[rule or "as written"] = None
        choice = stored(lowered[number], choice, target, inside)
        constants += constant_bytes(choice.schedule)
        told[choice.func.annotations] = None
        return lowered[number], choice

    control = place_control(graph, node, schedule, target)
    if len(told) == 1:  # options of the C compiler are a whole function's
        control = replace(control, func=replace(control.func, annotations=next(iter(told))))
    return Ours(goal, control, tuple(steps), " | ".join(rules), constants, kernels)


def _scheduled(lowered: Sequence[LoweredGroup], found: TunedSchedule) -> tuple[int, Choice]:
    """A kernel's algorithm, by number, and its schedule; MicrocError where there is none such."""
    number = next((k for k, group in enumerate(lowered) if group.algorithm == found.algorithm), None)
    if number is None:
        raise ScheduleError(f"there is no algorithm {found.algorithm!r}")
    return number, replayed(lowered[number], found.trace, found.rule + TAKEN)


def _kernels(trace: Sequence[Step]) -> Iterator[TunedSchedule]:
    """The kernels that the steps of a record are of; MicrocError where they are none."""
    starts = [k for k, step in enumerate(trace) if step.primitive == KERNEL]
    if trace and starts[:1] != [0]:
        raise ScheduleError("the record begins with no kernel")
    for start, end in zip(starts, [*starts[1:], len(trace)], strict=bool(starts)):
        match trace[start].args:
            case (str(algorithm), str(rule)):
                yield TunedSchedule(algorithm, rule, tuple(trace[start + 1 : end]))
            case _:
                raise ScheduleError("the record names no kernel")


# ---- What records say of a region that other people's code can compute: whose takes less, or why nobody knows.


@frozen
class Verdict:
    """What was measured of a region on ``board``: ticks of ``ours``, the fastest that is known, and of ``theirs``; both None
    where theirs failed, as ``why`` says. Without a board nothing was measured that counts; ``why`` may say what is in the way."""

    ours: float | None = None
    theirs: float | None = None
    unit: str = ""
    board: str = ""
    why: str = ""

    @property
    def decides(self) -> bool:
        """Whether there is anything to go by."""
        return bool(self.board)

    @property
    def theirs_is_less(self) -> bool:
        return self.ours is not None and self.theirs is not None and self.theirs < self.ours

    @property
    def words(self) -> str:
        """The end of a sentence."""
        if self.ours is None or self.theirs is None:
            return self.why
        return f"measured: ours {self.ours:,.0f}, theirs {self.theirs:,.0f} {self.unit}"


def verdict_of(task: RegionTask, database: Database, board: str) -> Verdict:
    """Of records of ``board`` rather than of those of others of its core; of one board, unit and toolchain, the one that was
    measured with last, and there the newest counts.

    Ours is what the rules choose today, or a measured record of other schedules that still make one and, but for speed alone,
    take no more flash. Theirs is of what the library is today.
    """
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in database.of(task.key):
        if record.cpu == task.target.cpu:
            where = (record.board, record.unit, record.toolchain)
            groups[where] = [*groups.pop(where, ()), record]  # the one that was measured with last is the last
    newest = list(reversed(groups))
    found = [_of_group(task, groups[where]) for where in sorted(newest, key=lambda where: where[0] != board)]
    return next((each for each in found if each.decides), found[0] if found else Verdict())


def _of_group(task: RegionTask, records: Sequence[Record]) -> Verdict:
    whose = task.taken.backend.name
    theirs = next((r for r in reversed(records) if r.theirs == task.digest), None)
    if theirs is None:
        other = any(r.theirs for r in records)
        return Verdict(why=f"measured with another version of {whose}: tune again" if other else "")
    if theirs.status == UNBUILT:
        return Verdict(why=f"{whose} could not be built to be measured on {theirs.board}")
    if theirs.status != OK:
        what = "gave wrong results" if theirs.status == WRONG else "did not run to its end"
        return Verdict(board=theirs.board, why=f"{whose} {what} when it was measured on {theirs.board}")
    ours = _best(task, [r for r in records if r.status == OK and not r.theirs])
    if ours is None:
        return Verdict(why="measured beside other code of ours: tune again")
    return Verdict(ours.ticks, theirs.ticks, theirs.unit, theirs.board)


def _best(task: RegionTask, records: Iterable[Record]) -> Record | None:
    """The fastest of ours; None where what the rules choose was not measured."""
    newest = {record.trace: record for record in records}
    default = newest.get(task.ours[0].trace)
    if default is None:
        return None
    fast = [r for r in newest.values() if task.ours[0].goal.price == 0 or r.flash <= default.flash]
    return next(r for r in sorted(fast, key=lambda r: r.ticks) if r is default or _fits(task, r))


def _fits(task: RegionTask, record: Record) -> bool:
    """Whether a record's steps make our code still."""
    try:
        repeated_code(task, record.trace)
    except MicrocError:
        return False
    return True
