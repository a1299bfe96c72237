"""What records say of a region that other people's code can compute: whose takes less, or why nobody knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from microc.driver.tuned.records import OK, UNBUILT, WRONG, Database, Record
from microc.driver.tuned.regions import RegionTask, repeated_code
from microc.errors import MicrocError
from microc.frozen import frozen


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
