"""What was measured of a network as a whole: which schedules of its kernels ran together, and which of these combinations takes
the least.

Kernels that win alone can lose beside each other: they share caches, and the clock of a core that wide vectors slow down. So a
search on a computer ends with runs of the whole network, and keeps them as records of their own, as those of a kernel are: one
of the network as it is compiled without records, and one for every combination, whose decisions are the record that a kernel
takes, by its key. What a combination does not name stays as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

from microc.driver.tuned.records import NETWORK, OK, Database, Record
from microc.driver.tuned.task import Task
from microc.frozen import frozen


@frozen
class Together:
    """What was measured of a network on one board, by one compiler: ``untuned``, and it with all ``combinations``, the one that
    takes the least first; of each the newest record."""

    untuned: Record
    combinations: tuple[Record, ...]

    @property
    def best(self) -> Record:
        return self.combinations[0]

    @property
    def kept(self) -> frozenset[str]:
        """The keys of kernels that stay as they are in the best one, though they have something that is faster alone."""
        return frozenset(key for each in self.combinations for key in parts_of(each)) - parts_of(self.best).keys()

    @property
    def beaten(self) -> frozenset[str]:
        """The ids of records that were part of a combination, and are not of the best one."""
        return frozenset(id_ for each in self.combinations for id_ in parts_of(each).values()) - {
            *parts_of(self.best).values()
        }


def parts_of(record: Record) -> Mapping[str, str]:
    """Of a combination: by the key of a kernel the id of the record that it takes."""
    return {} if record.untuned else {key: str(number) for key, number in record.decisions}


def network_key(tasks: Sequence[Task], threads: int) -> str:
    """What records of a network are found by: 40 hex digits of its kernels and of what these take without records. Networks that
    differ in constants alone have one key; one that rules schedule otherwise is another network."""
    known = [
        (task.key, task.runs, len(task.layers), task.algorithms[first.number], first.choice.schedule.trace)
        for task in tasks
        for first in task.untuned[:1]
    ]
    return hashlib.sha256(repr((NETWORK, threads, known)).encode()).hexdigest()[:40]


def measured_together(key: str, cpu: str, database: Database, board: str) -> Together | None:
    """What is known of a network on a core: of records of ``board`` rather than of others, those that were measured last. None
    where nothing was measured together."""
    groups: dict[tuple[str, str, str], dict[object, Record]] = {}
    for record in database.of(key):
        if record.cpu == cpu and record.status == OK:
            where = (record.board, record.unit, record.toolchain)
            group = groups[where] = groups.pop(where, {})  # the one that was measured with last is the last
            group[frozenset(parts_of(record).items())] = record
    newest = list(reversed(groups))
    for where in sorted(newest, key=lambda where: where[0] != board):
        untuned = groups[where].get(frozenset())
        if untuned is not None:
            return Together(untuned, tuple(sorted(groups[where].values(), key=lambda record: record.ticks)))
    return None


def ways_together(together: Together, tasks: Sequence[Task], database: Database) -> Iterator[list[tuple[Task, Record]]]:
    """The kernels that take something else than by themselves, with that, combination by combination, the best first; but for
    combinations whose records are not all there."""
    for combination in together.combinations:
        parts = parts_of(combination)
        pairs = [
            (task, record)
            for task in tasks
            if task.key in parts
            for record in database.of(task.key)
            if record.id == parts[task.key]
        ]
        if len({task.key for task, _ in pairs}) == len(parts):
            yield pairs
