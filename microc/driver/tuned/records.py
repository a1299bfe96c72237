"""Records of measurements: a file of JSON lines that grows by a line for each, and survives whatever ends the program.

A line is written whole and synced before the next one. One that is damaged (the last one, after a power cut) is skipped and
counted when the file is read; nothing in a record is run: traces are steps that the schedule checks, as those of a person are.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import IO, Any

from microc import __version__
from microc.codegen.files import replacing
from microc.driver.shown import table
from microc.errors import OutputError, UsageError, nearest_file
from microc.frozen import frozen
from microc.reading import open_regular
from microc.schedule.step import Step, frozen_argument

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

    ``key``: :func:`microc.driver.compile.kernel.key_of`; ``layer``, ``op``: where it was met first; ``cpu``, ``board``,
    ``toolchain``: what it ran on and was built by. ``unit`` of ``ticks``: ``instructions``, ``ticks`` of the board's timer,
    ``ns`` of a computer. ``algorithm``, ``rule``, ``decisions``: the point; ``trace``: its steps. ``code``, ``constants``,
    ``workspace`` in bytes.
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
