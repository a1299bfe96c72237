# SPDX-License-Identifier: Apache-2.0
"""The tuning loop, which searches for schedules of a network's kernels, and the state of its searches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from microc.base.immutable import frozen
from microc.compiler import validation
from microc.compiler.fit.budget import list_goals_to_try
from microc.compiler.fit.search import board_capacity
from microc.compiler.lowering.kernel_builder import CompiledNetwork
from microc.compiler.model import resolve_model
from microc.compiler.options import Options, make_options
from microc.compiler.pipeline import compile_network, list_external_regions
from microc.compiler.single_function import verify_function
from microc.compiler.tuned.measured_choice import NetworkMeasurements
from microc.compiler.tuned.measured_regions import OURS, RegionTask, RegionVerdict, judge_region
from microc.compiler.tuned.records import OK, UNTUNED, Database, Record, Task, list_tuning_tasks
from microc.compiler.user_functions import Named, as_schedule, make_function_task, schedule_by_rules
from microc.device.board_info import make_printable
from microc.device.boards import load_board
from microc.device.toolchain import native_core
from microc.errors import UsageError
from microc.schedule.schedule import Schedule
from microc.target import SIZE, SPEED, Board, Target, target_for
from microc.tir import ir
from microc.tuning.candidate_image import RegionSearch
from microc.tuning.runner import MeasuredResult, Meter, is_external_code
from microc.tuning.search_policies import SEARCHES, RankingModel
from microc.tuning.search_space import Candidate, Point, Space

# ---- The objects of a search: the kernels of a network on a board or on this computer, and the regions that external code can
# compute.


def find_board_and_core(target: str, board: str | Path | Board | None) -> tuple[Board | None, Target]:
    """Return the board to measure on and its core; or None and the core of this computer that ``target`` names.

    Raises UsageError if both ``board`` and ``target`` are given.
    """
    if board is not None:
        if target:
            raise UsageError(
                f"board and target cannot be combined, since a board has its own core; got target {target!r}",
                hint="give a board, or a target of this computer",
            )
        loaded = board if isinstance(board, Board) else load_board(validation.as_path("a board", board))
        return loaded, loaded.target
    name = validation.as_text("a target", target) or "native"
    return None, target_for(native_core() if name == "native" else name)


def compile_for_tuning(model: Any, target: Target, options: Options, board: Board | None) -> CompiledNetwork:
    """Compile a network; return its module together with the builder of its kernels."""
    room = board_capacity(board, external=bool(options.external), cores=options.cores) if board else None
    return compile_network(resolve_model(model, options), target, options, capacity=room)


def parse_options_and_list_tasks(
    model: Any, target: Target, board: Board | None, options: Mapping[str, Any], constants: Named = None
) -> tuple[Options, tuple[Task, ...]]:
    """Return the parsed options, and the kernels of a network as tuning tasks. ``constants``: data of a function's
    constants by name.

    The network is compiled without external code, unless the user requests external code for all supported regions. A
    function of the user is a single kernel.
    """
    chosen = make_options(**options)
    if is_function(model):
        return chosen, (_make_task_of_function(model, target, options, constants),)
    if constants is not None:
        raise UsageError(
            f"constants: got constants with a model of type {type(model).__name__}, expected a PrimFunc or a Schedule",
            hint="leave them out: a network has its own",
        )
    compiled_network = compile_for_tuning(model, target, without_optional_external_code(chosen), board)
    return chosen, list_tuning_tasks(
        compiled_network,
        (
            SPEED,
            list_goals_to_try(
                compiled_network.kernel_builder.graph, make_options(), compiled_network.kernel_builder.target
            )[0],
            SIZE,
        ),
    )


def is_function(model: Any) -> bool:
    """Test whether what is tuned is a function of the user: a PrimFunc or a schedule."""
    return isinstance(model, (ir.PrimFunc, Schedule))


def _make_task_of_function(
    function: ir.PrimFunc | Schedule, target: Target, options: Mapping[str, Any], constants: Named
) -> Task:
    """Return the tuning task of a function of the user. Raises UsageError for options of networks."""
    network_options = [name for name in options if name not in ("plugins", "schedules")]
    if network_options:
        raise UsageError(
            f"{network_options[0]}: a function has none of the options of networks, expected plugins or schedules",
            hint=f"leave out {network_options[0]}",
        )
    schedule = as_schedule(function)
    verify_function(schedule.start)
    choices = {goal: schedule_by_rules(schedule.start, target, goal) for goal in (SPEED, SIZE)}
    return make_function_task(schedule, target, constants or {}, choices)


def is_code_chosen_by_measurements(options: Options) -> bool:
    """Test whether measurements, and not the user, decide whose code computes a region."""
    return bool(options.external) and options.external_choice == "cost"


def without_optional_external_code(options: Options) -> Options:
    """Return the options for the network whose kernels are tuned. External code is left out if measurements decide
    about it."""
    return replace(options, external={}) if is_code_chosen_by_measurements(options) else options


def list_regions_for_external_code(model: Any, target: Target, options: Options) -> tuple[RegionTask, ...]:
    """Return the regions of a network that external code can compute; none unless measurements decide whose code is
    used."""
    if not is_code_chosen_by_measurements(options):
        return ()
    return list_external_regions(resolve_model(model, options), target, options)


def select_layers(
    tasks: tuple[Task, ...], regions: tuple[RegionTask, ...], name_parts: tuple[str, ...]
) -> tuple[tuple[Task, ...], tuple[RegionTask, ...]]:
    """Return the tasks and regions of layers whose name contains one of ``name_parts``; all if ``name_parts`` is empty.

    Raises UsageError if nothing is selected.
    """

    def is_selected(task: Task) -> bool:
        return not name_parts or any(part in layer for part in name_parts for layer in task.layers)

    selected, selected_regions = tuple(filter(is_selected, tasks)), tuple(filter(is_selected, regions))
    if not selected and not selected_regions:
        known = ", ".join(task.name for task in tasks[:8]) or "none"
        what = (
            f"layers: got {', '.join(name_parts)}, expected parts of {known}"
            if name_parts
            else "the network has no kernel to tune"
        )
        hint = "leave out layers, or name some of these" if name_parts else "compile it without tuning"
        raise UsageError(what, hint=hint)
    return selected, selected_regions


def reject_undecided_code(options: Options) -> None:
    """Raise UsageError if measurements decide whose code, microc's or a backend's, computes a region; an optimisation
    plan cannot contain such decisions."""
    if is_code_chosen_by_measurements(options):
        raise UsageError(
            "a plan cannot state whose code (microc's or a library's) computes a region; "
            f"got external_choice {options.external_choice}, expected all",
            hint="compile with tuned=FILE instead of a plan; or set external_choice=all",
        )


# ---- The state of the search for a kernel, a region that external code can compute, or the network as a whole; and the
# events that report progress.

GAIN_WINDOW = 3
"""Number of a kernel's latest batches from which the gain of its next batch is estimated."""
ASSUMED_GAIN = 0.05
"""Fraction of its ticks that a kernel is assumed to gain in its next batch, divided by 1 plus the number of its batches
so far."""
MAX_IDLE_BATCHES = 6
"""Number of batches without a gain after which the search for a kernel ends."""
FIRST_BATCH, FIRST_BATCH_PARTS = 4, 32
"""A kernel's first batches contain at most FIRST_BATCH candidates, or 1 / FIRST_BATCH_PARTS of the points in its space
if this is more."""
MIN_GAIN = 0.002
"""Smallest relative gain that counts as a gain."""


class CandidateSpace(Protocol):
    """Interface of a set of candidates among which a search chooses: the schedules of a kernel; or, for a region, the
    code of microc and of a backend."""

    @property
    def points(self) -> Sequence[Point]: ...

    @property
    def default(self) -> Candidate: ...

    def candidate_of(self, record: Record) -> Candidate | None: ...


class SearchPolicy(Protocol):
    """Interface of a search, which proposes candidates and is informed of their measurements.

    :class:`microc.tuning.search_policies.GridSearch` implements it.
    """

    @property
    def space(self) -> CandidateSpace: ...

    @property
    def is_exhausted(self) -> bool: ...

    def propose(self, count: int) -> list[Candidate]: ...

    def add_earlier_measurement(self, candidate: Candidate, ticks: float) -> None: ...

    def tell(self, measured: Sequence[tuple[Candidate, float]]) -> None: ...


@dataclass(slots=True, eq=False)
class TunedKernel:
    """The state of the search for a kernel or a region.

    ``tried``, ``failed``: number of measurements, and of those that failed. ``default``, ``best``: ticks of the default
    candidate and of the fastest. ``point``: the fastest point, as text. ``history``: the best ticks after each batch.
    """

    task: Task
    search: SearchPolicy
    tried: int = 0
    failed: int = 0
    default: float | None = None
    best: float = float("inf")
    point: str = ""
    history: list[float] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """True if the search for this kernel has ended.

        It ends when its space is exhausted, its default candidate has failed, or several batches have brought no gain.
        """
        if self.search.is_exhausted or (
            self.history and self.default is None
        ):  # without the default there is nothing to compare with
            return True
        last = self.history[-MAX_IDLE_BATCHES - 1 :]
        return len(last) > MAX_IDLE_BATCHES and last[0] <= (1 + MIN_GAIN) * last[-1]

    @property
    def next_batch_size(self) -> int:
        """The maximum number of measurements in the next batch.

        It grows with the number of measurements so far, because a search that knows little should learn from a small
        batch first.
        """
        return max(FIRST_BATCH, len(self.search.space.points) // FIRST_BATCH_PARTS, self.tried // 2)

    def update_best(self, candidate: Candidate, ticks: float) -> None:
        """Update ``default`` and ``best`` by a valid measurement of a candidate."""
        if candidate is self.search.space.default:
            self.default = ticks
        if ticks < self.best:
            self.best, self.point = ticks, str(candidate.point)

    @property
    def expected_savings(self) -> float:
        """The estimated number of ticks of the network that the kernel's next batch may save; infinite before the first
        batch."""
        if self.default is None:
            return math.inf
        recent = self.history[-GAIN_WINDOW:]
        slope = (recent[0] - recent[-1]) / len(recent) if len(recent) > 1 else 0.0
        return self.task.runs * max(slope, ASSUMED_GAIN * self.best / (1 + len(self.history)))

    def to_data(self) -> dict[str, Any]:
        """Return the state as plain data that can be written as JSON."""
        return {
            "layers": list(self.task.layers),
            "op": self.task.op,
            "key": self.task.key,
            "points": len(self.search.space.points),
            "measured": self.tried,
            "failed": self.failed,
            "default": self.default,
            "best": self.best if self.default is not None else None,
            "point": self.point,
        }


@frozen
class TunedRegion:
    """A region that external code can compute: the state of its search, and the verdict of all known measurements."""

    task: RegionTask
    tuned: TunedKernel
    verdict: RegionVerdict

    @property
    def chosen_code(self) -> str:
        """Name of the code, microc's or the backend's, that a compilation with these measurements uses; empty if they
        do not decide."""
        if self.task.taken.code.differs:
            return OURS
        if not self.verdict.is_decisive:
            return ""
        return self.task.taken.backend.name if self.verdict.is_backend_faster else OURS

    @property
    def why(self) -> str:
        """The reasons for the verdict, as text."""
        why = "" if self.verdict.own_ticks is not None else self.verdict.why
        return "; ".join(filter(None, (self.task.taken.code.differs, why)))

    def to_data(self) -> dict[str, Any]:
        """Return the results as plain data that can be written as JSON. Unknown ticks are None."""
        return {
            "layers": list(self.task.layers),
            "op": self.task.op,
            "key": self.task.key,
            "backend": self.task.taken.backend.name,
            "pattern": self.task.taken.entry.name,
            "measured": self.tuned.tried,
            "failed": self.tuned.failed,
            "ours": self.verdict.own_ticks,
            "theirs": self.verdict.backend_ticks,
            "taken": self.chosen_code,
            "why": self.why,
        }


@frozen
class TunedNetwork:
    """Measurements of the network as a whole: with default schedules, and with the best measured combination of
    schedules.

    ``kernels``: all kernels of the network.
    """

    key: str
    measurements: NetworkMeasurements
    kernels: Sequence[Task]

    @property
    def default(self) -> float:
        """Number of ticks of a run with default schedules."""
        return self.measurements.untuned.ticks

    @property
    def best(self) -> float:
        """Number of ticks of a run with the best combination of schedules."""
        return self.measurements.best.ticks

    @property
    def kernels_kept_at_default(self) -> tuple[str, ...]:
        """Names of the kernels that use their default schedule in the best combination, though another schedule was
        faster alone."""
        return tuple(task.name for task in self.kernels if task.key in self.measurements.kernels_kept_at_default)

    @property
    def chosen_record_id(self) -> str:
        """The id of the record of the best combination, or ``untuned`` if the default schedules are best."""
        return UNTUNED if self.measurements.best.untuned else self.measurements.best.id

    def to_data(self) -> dict[str, Any]:
        """Return the measurements as plain data that can be written as JSON."""
        return {"key": self.key, "default": self.default, "best": self.best, "kept": list(self.kernels_kept_at_default)}


@frozen
class TuningEvent:
    """Event that reports a measured batch.

    ``kernel``: the state of the search for its kernel. ``measured``: number of measurements in this run, of at most
    ``trials``. ``seconds``: seconds since the start. ``left``: estimated number of seconds left, at most. ``lost``:
    places that failed, with the reasons.
    """

    kernel: TunedKernel
    measured: int
    trials: int
    seconds: float
    left: float
    lost: tuple[str, ...]

    def to_data(self) -> dict[str, Any]:
        """Return the event as plain data that can be written as JSON."""
        return {
            "event": "batch",
            "measured": self.measured,
            "trials": self.trials,
            "seconds": round(self.seconds, 3),
            "left": round(self.left, 3),
            "lost": list(self.lost),
            "kernel": self.kernel.to_data(),
        }


# ---- The tuning loop. It chooses a kernel that may still gain, the kernel's search proposes candidates, a runner measures
# these, and the results are stored in the database.
#
# The next kernel is chosen as in Ansor's task scheduler (Zheng et al., OSDI 2020, section 6): it is the kernel whose next
# batch is expected to save the network the most ticks. The expectation depends on the gains of its last batches and on their
# number.

LONGEST_NAME = 200
"""Maximum number of characters of a layer's name in records."""


@frozen
class SearchLimits:
    """Limits of a search: the number of measurements of all kernels together, and the number of seconds."""

    trials: int
    seconds: float = float("inf")


class Tuner:
    """Runs the searches for all kernels of a network. ``runner`` may measure at several places in parallel.

    ``event``: is called after every batch. ``regions``: regions that external code can compute. They are measured
    before all kernels. Afterwards microc's code for them is measured again, if faster schedules of its kernels were
    found.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        runner: Meter,
        database: Database,
        *,
        model: RankingModel,
        search: str = "evolutionary",
        seed: int = 0,
        event: Callable[[TuningEvent], None] | None = None,
        regions: Sequence[RegionTask] = (),
    ) -> None:
        self.runner, self.database, self.seed, self.event = runner, database, seed, event
        self.kernels = [TunedKernel(task, SEARCHES[search](Space(task), seed, model)) for task in tasks]
        self._searches = [RegionSearch(task) for task in regions]
        self.regions = [TunedKernel(search.task, search) for search in self._searches]
        self.proposed_count = 0

    def run(self, limits: SearchLimits) -> None:
        """Measure until a limit is reached, or until no further gain is expected.

        All measurements are stored in the database, whatever ends the run.
        """
        begin = time.monotonic()
        for tuned in (*self.kernels, *self.regions):
            self._recall_measurements(tuned)
        try:
            self._renew_region_candidates()
            self._measure_batches(self.regions, limits, begin, limits.trials, limits.seconds)
            regions = time.monotonic() - begin  # as much time is reserved to measure the regions again
            reserved = min(len(self.regions), limits.trials - self.proposed_count)
            self._measure_batches(self.kernels, limits, begin, limits.trials - reserved, limits.seconds - regions)
            self._renew_region_candidates()
            self._measure_batches(self.regions, limits, begin, limits.trials, limits.seconds)
        finally:
            self.runner.stop()

    def _measure_batches(
        self, kernels: Sequence[TunedKernel], limits: SearchLimits, start_time: float, trials: int, seconds: float
    ) -> None:
        """Measure batches of ``kernels`` until there are ``trials`` measurements in all, or until ``seconds`` after the
        start.

        The number of proposed batches exceeds the number of places by one, so that no place waits while a batch is
        lowered.
        """
        end = start_time + seconds
        with ThreadPoolExecutor(self.runner.places) as pool:
            running: dict[Future[list[MeasuredResult]], TunedKernel] = {}
            try:
                while True:
                    while len(running) <= self.runner.places and time.monotonic() < end:
                        batch = self._next_batch(kernels, trials, running.values())
                        if batch is None:
                            break
                        tuned, candidates = batch
                        context = (
                            copy_context()
                        )  # registered plugins belong to the context, which threads do not inherit
                        running[pool.submit(context.run, self.runner.measure, tuned.task, candidates)] = tuned
                    if not running:
                        return
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        tuned = running.pop(future)
                        self._keep_results(tuned, future.result())
                        self._report_event(tuned, limits, time.monotonic() - start_time)
                    if time.monotonic() >= end:
                        running = {future: tuned for future, tuned in running.items() if not future.cancel()}
            except BaseException:
                self.runner.stop()  # before the pool waits for what is running
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def region_verdicts(self) -> tuple[TunedRegion, ...]:
        """Return the regions with their measurements, and with the verdicts on whose code computes them."""
        pairs = zip(self._searches, self.regions, strict=True)
        return tuple(
            TunedRegion(search.task, each, judge_region(search.task, self.database, self.runner.board))
            for search, each in pairs
        )

    def _renew_region_candidates(self) -> None:
        """Add microc's code with the fastest known schedules to the candidates of every region."""
        for search, each in zip(self._searches, self.regions, strict=True):
            search.add_fastest_own_code(self._records_with_this_meter)
            self._recall_measurements(each)

    def _records_with_this_meter(self, key: str) -> list[Record]:
        """Return the records of a kernel that were measured with the current board, unit of time and compiler."""
        return list(self.database.records_of(key, self.runner.origin))

    def _recall_measurements(self, tuned: TunedKernel) -> None:
        """Inform the search for a kernel of the measurements of earlier runs with the same board, unit of time and
        compiler."""
        for record in self._records_with_this_meter(tuned.task.key):
            candidate = tuned.search.space.candidate_of(record) if record.status == OK else None
            if candidate is not None:
                tuned.search.add_earlier_measurement(candidate, record.ticks)
                tuned.update_best(candidate, record.ticks)

    def _next_batch(
        self, kernels: Sequence[TunedKernel], trials: int, busy: Collection[TunedKernel]
    ) -> tuple[TunedKernel, list[Candidate]] | None:
        """Return the kernel to measure next and its proposed candidates; None if there is nothing to measure.

        ``busy``: the kernels that are being measured. If all places are busy, no further batch of such a kernel is
        proposed, because it could not learn from the running batch.
        """
        if trials <= self.proposed_count:
            return None
        ahead = len(busy) >= self.runner.places
        open_ = [k for k in kernels if not k.done and (k not in busy or (k.default is not None and not ahead))]
        for tuned in sorted(open_, key=lambda k: (k in busy, -k.expected_savings)):
            candidates = tuned.search.propose(
                min(self.runner.batch, tuned.next_batch_size, trials - self.proposed_count)
            )
            if candidates:
                self.proposed_count += len(candidates)
                return tuned, candidates
        return None

    def _keep_results(self, tuned: TunedKernel, results: Sequence[MeasuredResult]) -> None:
        """Store the results of a batch in the database, and update the search and the state of its kernel."""
        self.database.add(self._make_record(tuned.task, result) for result in results)
        good = [result for result in results if result.status == OK]
        tuned.search.tell([(result.candidate, result.ticks) for result in good])
        tuned.tried += len(results)
        tuned.failed += len(results) - len(good)
        for result in good:
            tuned.update_best(result.candidate, result.ticks)
        tuned.history.append(tuned.best)

    def _report_event(self, tuned: TunedKernel, limits: SearchLimits, seconds: float) -> None:
        """Call ``event`` with the state of the search for a kernel after a batch."""
        if self.event is not None:
            measured = sum(kernel.tried for kernel in (*self.kernels, *self.regions))
            left = seconds * (limits.trials - measured) / max(1, measured)
            left = max(0.0, min(left, limits.seconds - seconds))
            self.event(TuningEvent(tuned, measured, limits.trials, seconds, left, tuple(self.runner.lost)))

    def _make_record(self, task: Task, result: MeasuredResult) -> Record:
        """Create the record of a measured candidate."""
        candidate = result.candidate
        measured = 0 if is_external_code(candidate) else result.code  # the symbol of external code contains only a call
        return Record(
            key=task.key,
            op=task.op,
            layer=make_printable(task.name, LONGEST_NAME),
            cpu=task.target.cpu,
            **self.runner.origin._asdict(),
            status=result.status,
            algorithm=candidate.point.algorithm,
            rule=candidate.point.rule,
            decisions=candidate.point.decisions,
            trace=candidate.choice.schedule.trace,
            ticks=result.ticks,
            code=measured or candidate.code,
            constants=candidate.constants,
            workspace=candidate.workspace,
            seed=self.seed,
        )
