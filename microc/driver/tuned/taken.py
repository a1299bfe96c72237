"""What a compilation takes of what was measured: by a file of records, or by a plan."""

from __future__ import annotations

from collections.abc import Mapping

from microc.driver.compile.maker import Compiled, TunedSchedule
from microc.driver.options import Options
from microc.driver.tuned.plan import planned_schedules, read_plan, refuse_untaken
from microc.driver.tuned.records import refuse_absent
from microc.driver.tuned.schedules import tuned_schedules
from microc.errors import UsageError


def refuse_unreadable(options: Options) -> None:
    """UsageError for files that cannot be taken, before a network is compiled to be compared with them."""
    if options.plan is not None and options.tuned is not None:
        raise UsageError("a plan has schedules of its own", where=str(options.plan), hint="leave out tuned")
    if options.tuned is not None:
        refuse_absent(options.tuned)
    if options.plan is not None:
        read_plan(options.plan)


def measured_schedules(untuned: Compiled, options: Options, board: str, ram: int) -> Mapping[str, TunedSchedule]:
    """The schedules of a planned network's kernels that the options name; ``board``, ``ram`` as in :func:`tuned_schedules`."""
    if options.plan is None:
        assert options.tuned is not None
        return tuned_schedules(untuned, options.tuned, board, ram)
    return planned_schedules(untuned, options.plan)


def as_planned(untuned: Compiled, made: Compiled, options: Options) -> Compiled:
    """What was made, where that is what the plan chooses; UsageError where it is not."""
    assert options.plan is not None
    refuse_untaken(untuned, made, options.plan)
    return made
