# SPDX-License-Identifier: Apache-2.0
"""Tuning tasks (the kernels of a network whose schedules are tuned), and records of their measurements."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from math import inf
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from microc import __version__
from microc.base.dtypes import Array
from microc.base.file_access import open_regular_file, write_text
from microc.base.immutable import frozen
from microc.base.operating_system import quote_argument
from microc.codegen.output_files import replace_atomically
from microc.compiler.lowering.control_flow import goal_per_iteration, list_groups_in_control_flow
from microc.compiler.lowering.kernel_builder import CompiledNetwork, KernelGroup, TunedSchedule
from microc.compiler.lowering.kernel_selection import (
    group_algorithms,
    select_group_schedule,
    text_without_bounds,
    tuning_key,
)
from microc.document.blocks import Document, document, facts
from microc.document.renderers import Showable
from microc.errors import OutputError, UsageError, similar_files_hint
from microc.graph.ir import Graph, Node
from microc.isa import FAMILIES
from microc.ops import registry
from microc.ops.control import EXTERNAL
from microc.ops.lowering import LoweredGroup
from microc.ops.meaning import evaluate
from microc.schedule.choose import Choice
from microc.schedule.primitives.tree import Step, parse_step
from microc.target import Goal, Target

# ---- Tuning tasks: the kernels of a network. Equal kernels are one task.

NAME = "kernel"
"""Name of the functions that are lowered for tuning."""
PART = ", part "
"""Separator between the name of a control-flow layer and the number of a kernel inside of it."""
SHIPPED = "shipped"
"""Goal of a default schedule that is bundled with the compiler."""


class DefaultSchedule(NamedTuple):
    """The default schedule of a kernel for an optimisation goal: ``number`` is the index of its algorithm.

    If the goal is :data:`SHIPPED`, it is the bundled schedule for the network's goal; otherwise it is the rules'
    choice.
    """

    goal: str
    number: int
    choice: Choice


@dataclass(frozen=True, eq=False)
class Task:
    """A tuning task: a kernel whose schedule is to be tuned.

    - ``layers``: the layers that run the kernel, in order of execution; ``runs``: how often they run it in an
      inference.
    - ``inside``: the kernel is part of a function of control flow.
    - ``uses``: as in :func:`microc.schedule.choose.choose_schedule`.
    - ``lowered``: the unscheduled function of every algorithm.
    - ``untuned``: the default schedule, followed by the rules' choices for the network's goal and for other goals.
    """

    graph: Graph
    layers: tuple[str, ...]
    op: str
    target: Target
    uses: int
    lowered: tuple[LoweredGroup, ...]
    untuned: tuple[DefaultSchedule, ...]
    runs: int = field(default=1, kw_only=True)
    inside: bool = field(default=False, kw_only=True)

    @property
    def name(self) -> str:
        """The name of the first layer that runs the kernel."""
        return self.layers[0]

    @cached_property
    def key(self) -> str:
        """The key of the kernel's records."""
        return tuning_key(self.lowered, self.target)

    @cached_property
    def functions(self) -> Mapping[str, str]:
        """The function text of each algorithm. Kernels that differ only in constants have equal texts."""
        return {group.algorithm: text_without_bounds(group) for group in self.lowered}

    @property
    def flags(self) -> tuple[str, ...]:
        """C compiler options that may be tried for the kernel. There are none inside of control flow, because options
        apply to a whole C function."""
        return () if self.inside else FAMILIES[self.target.isa].flags

    def compute_outputs(self, arrays: Sequence[Array]) -> list[Array]:
        """Compute the correct outputs of the kernel in numpy, from inputs in the order of the graph."""
        return evaluate(self.graph, dict(zip(self.graph.inputs, arrays, strict=True)))[0]

    def with_layers(self, layers: Iterable[str], runs: int, *, inside: bool) -> Self:
        """Return the task with additional layers that run the same kernel, ``runs`` times in an inference."""
        return replace(self, layers=(*self.layers, *layers), runs=self.runs + runs, inside=self.inside or inside)

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The names of the algorithms, in the order of ``lowered``."""
        return tuple(group.algorithm for group in self.lowered)


def list_tuning_tasks(compiled: CompiledNetwork, other_goals: Sequence[Goal] = ()) -> tuple[Task, ...]:
    """List the kernels of a compiled network that rules schedule, in order of execution. Kernels inside of control flow
    are included.

    These are not listed: copies, in-place updates of a part of a state, layers computed row by row, and loops with
    dynamic sizes. ``other_goals``: goals for which the rules' choice is added to the default schedules.
    """
    target, shipped = compiled.kernel_builder.target, compiled.kernel_builder.shipped
    choose = partial(select_group_schedule, choices=compiled.kernel_builder.choices)
    tasks: dict[str, Task] = {}
    for site in _list_kernel_occurrences(compiled):
        lowered = group_algorithms(site.graph, site.nodes, target, NAME)
        key = tuning_key(lowered, target)
        if key in tasks:
            task = tasks[key]
            tasks[key] = task.with_layers((site.layer,), site.iterations, inside=site.inside)
            continue
        goals = [goal_per_iteration(goal, site.iterations) for goal in (site.goal, *other_goals)]
        workspace = inf if site.inside else compiled.kernel_builder.configuration.workspaces.get(key, inf)
        untuned = [
            DefaultSchedule(goal.name, *choose(lowered, target, goal, site.uses, workspace=workspace)) for goal in goals
        ]
        if shipped and not site.inside:
            choice = choose(lowered, target, site.goal, site.uses, shipped=True, workspace=workspace)
            untuned.insert(0, DefaultSchedule(SHIPPED, *choice))
        kernel_graph, op = (
            extract_kernel_graph(site.graph, site.nodes, lowered),
            "+".join(node.op for node in site.nodes),
        )
        tasks[key] = Task(
            kernel_graph,
            (site.layer,),
            op,
            target,
            site.uses,
            lowered,
            tuple(untuned),
            runs=site.iterations,
            inside=site.inside,
        )
    return tuple(tasks.values())


def kernel_key_by_layer(tasks: Iterable[Task]) -> dict[str, str]:
    """Return the tuning key of each layer's kernel, by the layer's name."""
    return {layer: task.key for task in tasks for layer in task.layers}


class _KernelOccurrence(NamedTuple):
    """An occurrence of a kernel in the network, with its goal.

    ``inside``: the kernel is inside of control flow. ``iterations``: how often control flow runs it.
    """

    graph: Graph
    nodes: tuple[Node, ...]
    layer: str
    goal: Goal
    uses: int = 1
    iterations: int = 1
    inside: bool = False


def _list_kernel_occurrences(compiled: CompiledNetwork) -> Iterator[_KernelOccurrence]:
    """Yield the occurrences of kernels that rules schedule, in order of execution."""
    graph = compiled.kernel_builder.graph
    for call in compiled.module.calls:
        origin = compiled.kernel_builder.origins.get(call.writes)
        if not isinstance(origin, KernelGroup) or origin.in_place or origin.nodes[0].op == EXTERNAL:
            continue
        if not registry.get(origin.nodes[0].op).regions:
            yield _KernelOccurrence(
                graph, origin.nodes, call.layer, compiled.kernel_builder.goal_of(origin.nodes), origin.uses
            )
        elif not compiled.kernel_builder.sizes:
            for number, (inner, nodes, iterations) in enumerate(list_groups_in_control_flow(graph, origin.nodes[0])):
                goal = compiled.kernel_builder.goal_of(origin.nodes)
                yield _KernelOccurrence(
                    inner, nodes, f"{call.layer}{PART}{number}", goal, iterations=iterations, inside=True
                )


def extract_kernel_graph(graph: Graph, nodes: Sequence[Node], lowered: Sequence[LoweredGroup]) -> Graph:
    """Extract the nodes of a kernel as a graph. The inputs of the new graph are the operands of the kernel."""
    inputs = tuple(dict.fromkeys(p.value for group in lowered for p in group.params if p.array is None))
    return make_part_graph("tuned", graph, nodes, inputs, lowered[0].outputs)


def make_part_graph(
    name: str, graph: Graph, nodes: Sequence[Node], inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> Graph:
    """Return nodes of a graph as a graph of their own, with the constants that they read."""
    named = {value for node in nodes for value in (*node.inputs, *node.outputs) if value} | set(inputs)
    types = {value: type_ for value, type_ in graph.types.items() if value in named}
    consts = {value: array for value, array in graph.consts.items() if value in named}
    return Graph(name, inputs, outputs, tuple(nodes), types, consts)


# ---- Records of measurements: a file of JSON lines, one for each measurement, which stays readable after a crash.
#
# Every line is written and synced to disk before the next line. A damaged line, such as the last line after a power failure,
# is skipped and counted when the file is read. Nothing in a record is executed. Its trace consists of schedule steps, which
# are checked in the same way as steps of a user.

MAX_LINE_BYTES, MAX_FILE_BYTES = 1 << 16, 1 << 28
"""Size limits of a line and of a file in bytes."""
OK, WRONG, FAILED, UNBUILT = "ok", "wrong", "failed", "unbuilt"
"""Status of a measurement.

OK: the ticks are valid. WRONG: the output differs from the reference. FAILED: the program was not built or gave no
answer. UNBUILT: no program could be built for external code, which may require a firmware of its own or may not fit
beside microc's code.
"""
FROM_RAM = " (RAM)"
"""Suffix of the board's name in records of code that was loaded into RAM. Its ticks differ from those of code in
flash."""
UNTUNED = "untuned"
"""Name of the only decision in a record of a default schedule. Its value is the optimisation goal."""
NETWORK = "network"
"""Operator in records of whole networks."""
SOURCES = "sources"
"""Name of the decision in records of external code that contains the digest of the code's sources."""
_NUMBERS = ("ticks", "code", "constants", "workspace", "seed")


class Origin(NamedTuple):
    """Where records were measured: only times of one board, unit of time and toolchain can be compared."""

    board: str
    unit: str
    toolchain: str


@frozen
class Record:
    """A measurement of a schedule of a kernel, of code for a region, or of a combination of schedules in a whole
    network.

    - ``key``: see :func:`microc.compiler.lowering.kernel_selection.tuning_key`.
    - ``layer``, ``op``: the first layer that runs the kernel, and its operators.
    - ``cpu``, ``board``, ``toolchain``: the core, the board and the compiler of the measurement.
    - ``ticks``: the measured time. ``unit`` is ``instructions``, ``ticks`` of the board's timer, ``cycles``, or ``ns`` on
      a computer.
    - ``algorithm``, ``rule``, ``decisions``: the point in the search space. For external code, ``algorithm`` and
      ``rule`` are the names of the backend and of the pattern.
    - ``trace``: the steps of the schedule.
    - ``code``, ``constants``, ``workspace``: number of bytes.
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
        """Identifier of the record: 12 hex digits of the digest of its line in the file."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]

    @property
    def origin(self) -> Origin:
        return Origin(self.board, self.unit, self.toolchain)

    @property
    def schedule(self) -> TunedSchedule:
        """The schedule that was measured."""
        return TunedSchedule(self.algorithm, self.rule, self.trace)

    @property
    def flash(self) -> int:
        return self.code + self.constants

    @property
    def untuned(self) -> bool:
        """True if the record is a measurement of the kernel's default schedule, with which other schedules are
        compared."""
        return dict(self.decisions).keys() == {UNTUNED}

    @property
    def theirs(self) -> str:
        """Digest of the sources of the external code that was measured; empty for microc's own code."""
        return str(dict(self.decisions).get(SOURCES, ""))

    def to_json(self) -> str:
        """Return the record as a line of JSON."""
        data = asdict(self)
        data["decisions"] = dict(self.decisions)
        data["trace"] = [[step.primitive, *step.args] for step in self.trace]
        return json.dumps(data, separators=(",", ":"))


def record_from_json(line: str) -> Record:
    """Parse a line that :meth:`Record.to_json` returned; ValueError for any other line."""
    data = json.loads(line)
    if not isinstance(data, dict) or set(data) != {f.name for f in fields(Record)}:
        raise ValueError("record: expected a JSON object with the fields of Record")
    for name, value in data.items():
        type_ = (int, float) if name in _NUMBERS else dict if name == "decisions" else list if name == "trace" else str
        if not isinstance(value, type_) or isinstance(value, bool) or not _is_printable(value):
            raise ValueError(f"record: field {name!r} has the wrong type or unprintable characters")
    if not all(math.isfinite(data[name]) and data[name] >= 0 for name in _NUMBERS):
        raise ValueError("record: a number is negative, infinite or NaN")
    if not all(isinstance(row, list) and row and isinstance(row[0], str) for row in data["trace"]):
        raise ValueError("record: a step of the trace is not a list that begins with a name")
    if any(isinstance(value, (dict, list)) or not _is_printable(value) for value in data["decisions"].values()):
        raise ValueError("record: a decision is a list, an object or unprintable, expected a plain value")
    trace = tuple(map(parse_step, data["trace"]))
    hash(trace)  # raises TypeError if a step has arguments other than plain values
    return Record(**{**data, "trace": trace, "decisions": tuple(data["decisions"].items())})


def _is_printable(value: object) -> bool:
    """Test whether a value may be printed on a terminal: it must not be a text that contains control characters."""
    return not isinstance(value, str) or value.isprintable()


def open_records(path: Path) -> Database:
    """Open an existing file of tuning records; UsageError if the file is missing."""
    require_records_file(path)
    return Database(path)


def require_records_file(path: Path) -> None:
    """Raise UsageError if a file of tuning records is missing."""
    if not path.is_file():
        hint = (
            similar_files_hint(path)
            or f"write it: microc tune MODEL --board BOARD --records {quote_argument(str(path))}"
        )
        raise UsageError(f"there is no file of records {path}", where=str(path), hint=hint)


class Database(Showable):
    """The tuning records of a file, in memory. New records are also appended to the file, if there is one.

    ``skipped``: number of lines in the file that are not valid records. Iteration yields :class:`Record` objects.
    ``pandas.DataFrame(database.rows())`` creates a table.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else None
        self._records: list[Record] = []
        self._by_key: dict[str, list[Record]] = {}
        self.skipped = 0
        self._file: IO[bytes] | None = None
        if self.path is not None and self.path.exists():
            found, self.skipped = _read_records(self.path)
            self._index_records(found)

    def __repr__(self) -> str:
        return f"<Database of {len(self)} records of {len(self._by_key)} kernels, {self.path or 'in memory'}>"

    def document(self) -> Document:
        """Return the numbers of records and kernels, and the boards, as a document, for a notebook."""
        rows = (
            ("records", len(self)),
            ("kernels", len(self._by_key)),
            ("boards", ", ".join(sorted({r.board for r in self}))),
        )
        return document(facts(rows), title=f"Database, {self.path or 'in memory'}")

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def records_of(self, key: str, origin: Origin | None = None) -> Sequence[Record]:
        """Return the records of the kernel with the given key, in the order in which they were added; with ``origin``
        only those of this board, unit of time and toolchain."""
        records = self._by_key.get(key, ())
        return records if origin is None else [record for record in records if record.origin == origin]

    def add(self, records: Iterable[Record]) -> None:
        """Append records to the file and sync the file, so that the records are on disk when the method returns."""
        new = list(records)
        self._index_records(new)
        if self.path is None or not new:
            return
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("ab")
                if self._file.tell() and not _ends_with_newline(self.path):
                    self._file.write(b"\n")  # end the incomplete line that a power failure left
            self._file.write("".join(record.to_json() + "\n" for record in new).encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OutputError(
                f"the records cannot be written: {error.strerror or error}",
                where=str(self.path),
                hint="name a file that you may write, on a disk with space left",
            ) from error

    def close(self) -> None:
        """Close the file of records if it is open for writing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def rows(self) -> list[dict[str, Any]]:
        """Return the records as a list of dicts of plain data. A trace is replaced by its number of steps."""
        return [{**asdict(record), "decisions": dict(record.decisions), "trace": len(record.trace)} for record in self]

    def pruned_records(self) -> list[Record]:
        """Select the records that a later choice may need, for every kernel, board and toolchain.

        These are the records on the Pareto front of ticks, flash and workspace, the records of default schedules, the
        last record of external code whatever its status, the records of whole networks, and all records to which these
        refer.
        """
        groups: dict[tuple[str, Origin], list[Record]] = {}
        for record in self:
            groups.setdefault((record.key, record.origin), []).append(record)
        named = {id_ for record in self if record.op == NETWORK for _, id_ in record.decisions}
        return [record for records in groups.values() for record in _select_needed_records(records, named)]

    def _index_records(self, records: Iterable[Record]) -> None:
        """Add records in memory, and index them by the key of their kernel."""
        for record in records:
            self._records.append(record)
            self._by_key.setdefault(record.key, []).append(record)


def _select_needed_records(records: Sequence[Record], combination_records: Collection[object]) -> Iterable[Record]:
    """Return the records of a kernel on one board that a later choice may need.

    ``combination_records``: ids of the records to which records of whole networks refer.
    """
    ours = [record for record in records if record.status == OK and not record.theirs]
    theirs = {record.theirs: record for record in records if record.theirs}
    kept = (r for r in ours if r.untuned or r.op == NETWORK or r.id in combination_records)
    return dict.fromkeys((*kept, *pareto_records(ours), *theirs.values()))


def group_by_origin(records: Iterable[Record], board: str) -> list[list[Record]]:
    """Group records by their origin: the groups of ``board`` first, among equals the one that was measured last."""
    groups: dict[Origin, list[Record]] = {}
    for record in records:
        groups[record.origin] = [*groups.pop(record.origin, ()), record]  # reinserted: the last entry was measured last
    newest = reversed(groups.items())
    return [group for _, group in sorted(newest, key=lambda item: item[0].board != board)]


def pareto_records(records: Sequence[Record]) -> list[Record]:
    """Return the records on the Pareto front of ticks, flash and workspace, the fastest first. Of equal records the
    first is returned."""
    pareto_front: list[Record] = []
    for record in sorted(records, key=lambda r: (r.ticks, r.flash, r.workspace)):
        if not any(kept.flash <= record.flash and kept.workspace <= record.workspace for kept in pareto_front):
            pareto_front.append(record)
    return pareto_front


def write_records(path: Path, records: Iterable[Record]) -> int:
    """Replace a file of tuning records by exactly these records, completely or not at all; return the number of
    records."""
    kept = list(dict.fromkeys(records))
    with replace_atomically(path) as temporary:
        write_text(temporary, "".join(record.to_json() + "\n" for record in kept))
    return len(kept)


def merge_records(paths: Sequence[Path]) -> list[Record]:
    """Return the records of several files without duplicates."""
    return list(dict.fromkeys(record for path in paths for record in open_records(path)))


def _read_records(path: Path) -> tuple[list[Record], int]:
    """Read a file of tuning records; return the records, and the number of lines that are not valid records."""
    records, skipped = [], 0
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(
                f"the file of records has more than {MAX_FILE_BYTES >> 20} MB",
                where=str(path),
                hint="keep only the best records: microc tune --prune FILE",
            )
        with open_regular_file(path) as file:
            while line := file.readline(MAX_LINE_BYTES):
                try:
                    records.append(record_from_json(line.decode()))
                except (ValueError, TypeError, RecursionError):
                    skipped += bool(line.strip())
    except OSError as error:
        raise UsageError(
            f"the records cannot be read: {error.strerror or error}",
            where=str(path),
            hint="name a file that you may read",
        ) from error
    if skipped and not records:
        raise UsageError(
            f"records: got {skipped} lines that are not records, expected one record on each line",
            where=str(path),
            hint="name a file that microc tune wrote",
        )
    return records, skipped


def _ends_with_newline(path: Path) -> bool:
    """Test whether the last line of a file is complete."""
    with open_regular_file(path) as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
