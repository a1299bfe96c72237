"""Records of measurements, and the tasks that they are of."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from microc import __version__
from microc.base.file_access import open_regular
from microc.base.immutable import frozen
from microc.codegen.output_files import replacing
from microc.compiler.lowering.control_flow import goal_inside, groups_inside
from microc.compiler.lowering.kernel_maker import Compiled, Group
from microc.compiler.lowering.kernel_selection import algorithms_of, chosen, function_of, key_of
from microc.compiler.representation import table
from microc.errors import OutputError, UsageError, nearest_file
from microc.graph.ir import Graph, Node
from microc.isa import FAMILIES
from microc.ops import registry
from microc.ops.external_region import EXTERNAL
from microc.ops.lowering import LoweredGroup
from microc.schedule.choose import Choice
from microc.schedule.primitives.tree import Step, frozen_argument
from microc.target import Goal, Target

# ---- What is tuned: the kernels of a network, equal ones once.

NAME = "kernel"
"""What functions are called that are lowered to be compared."""
PART = ", part "
"""What stands between a loop's layer and the number of a kernel inside it."""
SHIPPED = "shipped"
"""The goal of what comes with the compiler."""


class Untuned(NamedTuple):
    """What the compiler takes by itself for a goal (:data:`SHIPPED`: for the network's, and not by rules): the algorithm by
    number, and the schedule."""

    goal: str
    number: int
    choice: Choice


@dataclass(frozen=True, eq=False)
class Task:
    """One kernel. ``layers``: where the network has it, in order of execution, ``runs``: how often all of these run it in an
    inference, ``inside``: of control flow, as a part of that function; ``uses`` as in ``choose``; ``lowered``: an entry for every
    algorithm; ``untuned``: what is taken without records first, then what rules choose for the network's goal and for others."""

    graph: Graph
    layers: tuple[str, ...]
    op: str
    target: Target
    uses: int
    lowered: tuple[LoweredGroup, ...]
    untuned: tuple[Untuned, ...]
    runs: int = field(default=1, kw_only=True)
    inside: bool = field(default=False, kw_only=True)

    @property
    def name(self) -> str:
        """The first of its layers."""
        return self.layers[0]

    @cached_property
    def key(self) -> str:
        """What a record is found by."""
        return key_of(self.lowered, self.target)

    @cached_property
    def functions(self) -> Mapping[str, str]:
        """By algorithm, what kernels share that differ in constants alone."""
        return {group.algorithm: function_of(group) for group in self.lowered}

    @property
    def flags(self) -> tuple[str, ...]:
        """Options of the C compiler that it may have, which are a whole function's."""
        return () if self.inside else FAMILIES[self.target.isa].flags

    def with_layers(self, layers: Iterable[str], runs: int, *, inside: bool) -> Self:
        """The same kernel in more places."""
        return replace(self, layers=(*self.layers, *layers), runs=self.runs + runs, inside=self.inside or inside)

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(group.algorithm for group in self.lowered)


def tasks_of(made: Compiled, others: Sequence[Goal] = ()) -> tuple[Task, ...]:
    """The kernels of a compiled network that rules schedule, in order of execution, those inside of control flow, too: neither
    copies, nor changes of a part of a state in place, nor layers that are computed row by row, nor loops where sizes vary.
    ``others``: goals beside the network's whose schedules are to be known, too."""
    target, shipped = made.make.target, made.make.shipped
    found: dict[str, Task] = {}
    for place in _places(made):
        lowered = algorithms_of(place.graph, place.nodes, target, NAME)
        key = key_of(lowered, target)
        if key in found:
            task = found[key]
            found[key] = task.with_layers((place.layer,), place.turns, inside=place.inside)
            continue
        goals = [goal_inside(each, place.turns) for each in (place.goal, *others)]
        room = inf if place.inside else made.make.workspaces.get(key, inf)
        untuned = [Untuned(each.name, *chosen(lowered, target, each, place.uses, workspace=room)) for each in goals]
        if shipped and not place.inside:
            choice = chosen(lowered, target, place.goal, place.uses, shipped=True, workspace=room)
            untuned.insert(0, Untuned(SHIPPED, *choice))
        part, op = part_of(place.graph, place.nodes, lowered), "+".join(node.op for node in place.nodes)
        found[key] = Task(
            part, (place.layer,), op, target, place.uses, lowered, tuple(untuned), runs=place.turns, inside=place.inside
        )
    return tuple(found.values())


class _Place(NamedTuple):
    """Where a network has a kernel, and what it was scheduled for; ``inside``: of control flow, which runs it ``turns`` times."""

    graph: Graph
    nodes: tuple[Node, ...]
    layer: str
    goal: Goal
    uses: int = 1
    turns: int = 1
    inside: bool = False


def _places(made: Compiled) -> Iterator[_Place]:
    graph = made.make.graph
    for call in made.module.calls:
        origin = made.make.origins.get(call.writes)
        if not isinstance(origin, Group) or origin.in_place or origin.nodes[0].op == EXTERNAL:
            continue
        if not registry.get(origin.nodes[0].op).regions:
            yield _Place(graph, origin.nodes, call.layer, made.make.goal_of(origin.nodes), origin.uses)
        elif not made.make.sizes:
            for number, (inner, nodes, turns) in enumerate(groups_inside(graph, origin.nodes[0])):
                goal = made.make.goal_of(origin.nodes)
                yield _Place(inner, nodes, f"{call.layer}{PART}{number}", goal, turns=turns, inside=True)


def part_of(graph: Graph, nodes: Sequence[Node], lowered: Sequence[LoweredGroup]) -> Graph:
    """The nodes of a kernel as a graph of their own, whose inputs are what the kernel reads."""
    inputs = _once(p.value for group in lowered for p in group.params if p.array is None)
    outputs = lowered[0].outputs
    named = {name for node in nodes for name in (*node.inputs, *node.outputs) if name} | set(inputs)
    types = {name: graph.types[name] for name in graph.types if name in named}
    consts = {name: graph.consts[name] for name in graph.consts if name in named}
    return Graph("tuned", inputs, outputs, tuple(nodes), types, consts)


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


# ---- Records of measurements: a file of JSON lines that grows by a line for each, and survives whatever ends the
# program.
#
# A line is written whole and synced before the next one. One that is damaged (the last one, after a power cut) is skipped and
# counted when the file is read; nothing in a record is run: traces are steps that the schedule checks, as those of a person are.

LONGEST, LARGEST = 1 << 16, 1 << 28
"""Bytes of a line, and of a file, that are read."""
OK, WRONG, FAILED, UNBUILT = "ok", "wrong", "failed", "unbuilt"
"""What became of a measurement: ticks that count; an output that is not the reference's; no answer, or no program; no program of
other people's code, which may lack what only their firmware has, or does not fit beside ours."""
FROM_RAM = " (RAM)"
"""What stands behind a board's name where code was loaded into RAM: other ticks than those of code in flash."""
UNTUNED = "untuned"
"""The one decision of a point that is what the compiler takes by itself: for which goal."""
NETWORK = "network"
"""The operator of records of whole networks (:mod:`.network`)."""
SOURCES = "sources"
"""A decision of other people's code alone: a digest of what it was built from."""
_NUMBERS = ("ticks", "code", "constants", "workspace", "seed")


@frozen
class Record:
    """One measured schedule of a kernel, or of a region that other people's code can compute (:mod:`.regions`): in theirs,
    whose backend and pattern are ``algorithm`` and ``rule``, or in ours; or a combination of them in a whole network
    (:mod:`.network`).

    ``key``: :func:`microc.compiler.lowering.kernel_selection.key_of`; ``layer``, ``op``: where it was met first; ``cpu``,
    ``board``, ``toolchain``: what it ran on and was built by. ``unit`` of ``ticks``: ``instructions``, ``ticks`` of the board's
    timer, ``ns`` of a computer. ``algorithm``, ``rule``, ``decisions``: the point; ``trace``: its steps. ``code``,
    ``constants``, ``workspace`` in bytes.
    """

    key: str
    op: str
    layer: str
    cpu: str
    board: str
    toolchain: str
    unit: str
    status: str
    algorithm: str
    rule: str
    decisions: tuple[tuple[str, Any], ...]
    trace: tuple[Step, ...] = field(repr=False)
    ticks: float
    code: int
    constants: int
    workspace: int
    seed: int = 0
    version: str = __version__

    @property
    def id(self) -> str:
        """What it is called by: 12 hex digits of its line."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]

    @property
    def flash(self) -> int:
        return self.code + self.constants

    @property
    def untuned(self) -> bool:
        """Whether it is of what the compiler takes by itself, which others are compared with."""
        return dict(self.decisions).keys() == {UNTUNED}

    @property
    def theirs(self) -> str:
        """What other people's code was built from, as a digest; empty for code of ours."""
        return str(dict(self.decisions).get(SOURCES, ""))

    def to_json(self) -> str:
        """One line."""
        data = asdict(self)
        data["decisions"] = dict(self.decisions)
        data["trace"] = [[step.primitive, *step.args] for step in self.trace]
        return json.dumps(data, separators=(",", ":"))


def from_json(line: str) -> Record:
    """The inverse of :meth:`Record.to_json`; ValueError for any other line."""
    data = json.loads(line)
    if not isinstance(data, dict) or set(data) != {f.name for f in fields(Record)}:
        raise ValueError("not a record")
    for name, value in data.items():
        kind = (int, float) if name in _NUMBERS else dict if name == "decisions" else list if name == "trace" else str
        if not isinstance(value, kind) or isinstance(value, bool) or not _readable(value):
            raise ValueError(name)
    if not all(math.isfinite(data[name]) and data[name] >= 0 for name in _NUMBERS):
        raise ValueError("a number of a record")
    if not all(isinstance(row, list) and row and isinstance(row[0], str) for row in data["trace"]):
        raise ValueError("trace")
    if any(isinstance(value, (dict, list)) or not _readable(value) for value in data["decisions"].values()):
        raise ValueError("decisions")
    trace = tuple(Step(row[0], tuple(map(frozen_argument, row[1:]))) for row in data["trace"])
    hash(trace)  # of plain values only
    return Record(**{**data, "trace": trace, "decisions": tuple(data["decisions"].items())})


def _readable(value: object) -> bool:
    """Whether a text can be shown as it is: a terminal obeys what is not printable."""
    return not isinstance(value, str) or value.isprintable()


def records_of(path: Path) -> Database:
    """The records of a file that is there; UsageError where it is not."""
    refuse_absent(path)
    return Database(path)


def refuse_absent(path: Path) -> None:
    """UsageError where no file of records is."""
    if not path.is_file():
        hint = nearest_file(path) or f"make it: microc tune MODEL --board BOARD --records {shlex.quote(str(path))}"
        raise UsageError(f"there is no file of records {path}", where=str(path), hint=hint)


class Database:
    """The records of a file; what is measured meanwhile is added to both. Without a file it is kept in memory alone.

    ``skipped``: lines of the file that are no records. An iterable of :class:`Record`, and of plain rows for
    ``pandas.DataFrame(database.rows())``.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else None
        self._records: list[Record] = []
        self._by_key: dict[str, list[Record]] = {}
        self.skipped = 0
        self._file: IO[bytes] | None = None
        if self.path is not None and self.path.exists():
            found, self.skipped = _read(self.path)
            self._keep(found)

    def __repr__(self) -> str:
        return f"<Database of {len(self)} records of {len(self._by_key)} kernels, {self.path or 'in memory'}>"

    def _repr_html_(self) -> str:
        rows = [
            ("records", len(self)),
            ("kernels", len(self._by_key)),
            ("boards", ", ".join(sorted({r.board for r in self}))),
        ]
        return table(f"Database, {self.path or 'in memory'}", rows)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def of(self, key: str) -> Sequence[Record]:
        """The records of a kernel."""
        return self._by_key.get(key, ())

    def add(self, records: Iterable[Record]) -> None:
        """Append, and sync: once this returns the records are on disk."""
        new = list(records)
        self._keep(new)
        if self.path is None or not new:
            return
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("ab")
                if self._file.tell() and not _ends_whole(self.path):
                    self._file.write(b"\n")  # behind a line that a power cut left
            self._file.write("".join(record.to_json() + "\n" for record in new).encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OutputError(f"the records cannot be written: {error}", where=str(self.path)) from error

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def rows(self) -> list[dict[str, Any]]:
        """Plain data, a row for each record."""
        return [{**asdict(record), "decisions": dict(record.decisions), "trace": len(record.trace)} for record in self]

    def pruned(self) -> list[Record]:
        """For every kernel, board and toolchain what a choice needs: records that no other beats in ticks, flash and workspace
        together, and those of what the compiler takes by itself; of other people's code the last, whatever became of it; of a
        network all combinations, and the records that these name."""
        groups: dict[tuple[str, ...], list[Record]] = {}
        for record in self:
            groups.setdefault((record.key, record.board, record.unit, record.toolchain), []).append(record)
        named = {id_ for record in self if record.op == NETWORK for _, id_ in record.decisions}
        return [record for records in groups.values() for record in _needed(records, named)]

    def _keep(self, records: Iterable[Record]) -> None:
        for record in records:
            self._records.append(record)
            self._by_key.setdefault(record.key, []).append(record)


def _needed(records: Sequence[Record], named: Collection[object]) -> Iterable[Record]:
    """Of a kernel on one board what a choice needs; ``named``: records of these ids, too."""
    ours = [record for record in records if record.status == OK and not record.theirs]
    theirs = {record.theirs: record for record in records if record.theirs}
    kept = (r for r in ours if r.untuned or r.op == NETWORK or r.id in named)
    return dict.fromkeys((*kept, *unbeaten(ours), *theirs.values()))


def unbeaten(records: Sequence[Record]) -> list[Record]:
    """The Pareto front of ticks, flash and workspace, fastest first; of equal ones the first."""
    found: list[Record] = []
    for record in sorted(records, key=lambda r: (r.ticks, r.flash, r.workspace)):
        if not any(kept.flash <= record.flash and kept.workspace <= record.workspace for kept in found):
            found.append(record)
    return found


def write(path: Path, records: Iterable[Record]) -> int:
    """A file of exactly these records, whole or not at all; how many."""
    kept = list(dict.fromkeys(records))
    with replacing(path) as temporary:
        temporary.write_text("".join(record.to_json() + "\n" for record in kept), encoding="utf-8")
    return len(kept)


def merged(paths: Sequence[Path]) -> list[Record]:
    """The records of several files, each once."""
    return list(dict.fromkeys(record for path in paths for record in records_of(path)))


def _read(path: Path) -> tuple[list[Record], int]:
    """The records of a file, and how many of its lines are none."""
    found, skipped = [], 0
    try:
        if path.stat().st_size > LARGEST:
            raise UsageError(
                f"the file of records has more than {LARGEST >> 20} MB",
                where=str(path),
                hint="microc tune --prune FILE",
            )
        with open_regular(path) as file:
            while line := file.readline(LONGEST):
                try:
                    found.append(from_json(line.decode()))
                except (ValueError, TypeError, RecursionError):
                    skipped += bool(line.strip())
    except OSError as error:
        raise UsageError(f"the records cannot be read: {error}", where=str(path)) from error
    if skipped and not found:
        raise UsageError("this is no file of records", where=str(path), hint="microc tune writes them, a line for each")
    return found, skipped


def _ends_whole(path: Path) -> bool:
    with open_regular(path) as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
