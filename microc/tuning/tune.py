# SPDX-License-Identifier: Apache-2.0
"""``microc.tune``, which measures schedules of a network's kernels on a board, and its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Unpack

from microc.base.immutable import frozen
from microc.compiler import validation
from microc.compiler.interaction import convert_flags_in_errors
from microc.compiler.model import registers_plugins, resolve_model
from microc.compiler.options import Options, make_options
from microc.compiler.tuned.measured_choice import compute_network_key, find_network_measurements
from microc.compiler.tuned.measured_regions import RegionTask
from microc.compiler.tuned.optimisation_plan import build_plan
from microc.compiler.tuned.records import Database, Task, open_records
from microc.compiler.user_functions import Named
from microc.document.blocks import Document, document, facts
from microc.document.renderers import Showable
from microc.errors import UsageError
from microc.target import Board
from microc.tuning.candidate_image import RegionSpace
from microc.tuning.fleet import make_meter
from microc.tuning.runner import Meter
from microc.tuning.search_policies import SEARCHES, make_ranking_model
from microc.tuning.search_space import Space
from microc.tuning.tuner import (
    SearchLimits,
    TunedKernel,
    TunedNetwork,
    TunedRegion,
    Tuner,
    TuningEvent,
    compile_for_tuning,
    find_board_and_core,
    is_function,
    list_regions_for_external_code,
    parse_options_and_list_tasks,
    reject_undecided_code,
    select_layers,
)
from microc.tuning.whole_network import NetworkSearch

if TYPE_CHECKING:
    from microc.compiler.option_values import CompileOptions


DEFAULT_TRIALS = 500
MODELS = ("auto", "analytic", "learned")
MEASURES = ("time", "cycles")
"""Quantities to tune for: time in the board's unit, or cycles of its core."""
NETWORK_COMPILATIONS = 3
"""Time that is reserved for measuring the network as a whole, as a multiple of the network's compilation time. At most
half of the time limit is reserved."""


@frozen
class Tuning(Showable):
    """Results of a search for schedules.

    ``kernels``: results for each kernel, in order of execution. ``database``: all tuning records. ``unit``: unit of
    ticks. ``regions``: results for the regions that external code can compute. ``network``: results for the network as
    a whole, if it was measured.
    """

    kernels: tuple[TunedKernel, ...]
    database: Database
    unit: str
    board: str
    regions: tuple[TunedRegion, ...] = ()
    network: TunedNetwork | None = None

    @property
    def default(self) -> float:
        """Number of ticks of all tuned kernels together, each with its default schedule."""
        return sum(k.task.runs * k.default for k in self.kernels if k.default is not None)

    @property
    def best(self) -> float:
        """Number of ticks of all tuned kernels together, each with its fastest schedule."""
        return sum(k.task.runs * k.best for k in self.kernels if k.default is not None)

    def __repr__(self) -> str:
        ticks = f"{self.default:,.0f} {self.unit} before, {self.best:,.0f} now"
        return f"<Tuning of {len(self.kernels)} kernels on {self.board}: {ticks}>"

    def document(self) -> Document:
        """Return the times of the kernels as a document, for a notebook."""
        rows = ((k.task.name, f"{k.default or 0:,.0f} -> {k.best:,.0f}, {k.tried} tried") for k in self.kernels)
        return document(facts(rows), title=f"{self.unit} on {self.board}")

    def to_data(self) -> dict[str, Any]:
        """Return the results as plain data that can be written as JSON."""
        return {
            "board": self.board,
            "unit": self.unit,
            "default": self.default,
            "best": self.best,
            "measured": sum(k.tried for k in self._kernels_and_regions),
            "failed": sum(k.failed for k in self._kernels_and_regions),
            "kernels": [kernel.to_data() for kernel in self.kernels],
            "regions": [region.to_data() for region in self.regions],
            "network": self.network.to_data() if self.network is not None else None,
        }

    @property
    def _kernels_and_regions(self) -> tuple[TunedKernel, ...]:
        return (*self.kernels, *(region.tuned for region in self.regions))


class Interrupted(KeyboardInterrupt):
    """Raised if Ctrl-C ends a search. ``tuning``: the results so far, which are also in the records."""

    def __init__(self, tuning: Tuning) -> None:
        super().__init__()
        self.tuning = tuning


@convert_flags_in_errors
@registers_plugins
def tune(
    model: Any,
    target: str = "",
    *,
    board: str | Path | Board | None = None,
    records: str | Path | Database | None = None,
    port: str | Sequence[str] = "",
    load: bool = False,
    measure: str = MEASURES[0],
    trials: int = DEFAULT_TRIALS,
    time: float = 0.0,
    search: str = "evolutionary",
    cost_model: str = "auto",
    seed: int = 0,
    jobs: int = 1,
    fleet: str = "",
    layers: Iterable[str] = (),
    runner: Meter | None = None,
    callback: Callable[[TuningEvent], None] | None = None,
    constants: Named = None,
    **options: Unpack[CompileOptions],
) -> Tuning:
    """Measure schedules of a network's kernels, or of a function, and store the results as tuning records.

    ``records``: a file, to which records are appended, or a database. A compilation with ``tuned=FILE`` uses the
    records; :func:`microc.default_schedule` with ``tuned=FILE`` those of a function.

    What is tuned:

    - ``model`` and ``options``: as for :func:`microc.compile`. Rules and operators of your own come by the options
      ``schedules`` and ``plugins``.
    - ``model`` may also be a PrimFunc, or a Schedule, which is then the default to compare with. ``constants``: the data
      of its constant parameters by name, as for :func:`microc.build`. Of the options, only ``schedules`` and
      ``plugins`` are possible. Inputs are random, so they must not be used as indices.
    - ``layers``: tune only layers whose name contains one of these strings.
    - With the option ``external`` and ``external_choice="cost"``, every region that a backend can compute is measured
      with the backend's code and with microc's code. The kernels are then those of the network in microc's code alone.

    Where it is measured:

    - ``board``: on this board, or on its emulator if there is no ``port``.
    - ``target``: on this computer, as ``native`` or as one of its cores.
    - ``port``: the port of the board, or the ports of several boards, which measure in parallel. If a board fails, its
      batch is measured on another one.
    - ``load``: flash a board once, and load candidates into its RAM. Ticks of code in RAM differ, so records mark them.
    - ``measure``: ``time``, in the board's unit; or ``cycles`` of its core, by a model or a simulator: see ``microc
      profile --cycles``. Cycles are counted in emulators and simulators only, without ``port``, ``load`` and ``fleet``.
    - ``jobs``: number of emulators, or of processes on this computer, that measure in parallel.
    - ``fleet``: the address of a Dask scheduler; the boards of its workers measure.
    - ``runner``: a meter to use instead.

    How it is searched:

    - ``trials``: maximum number of measurements (0: none; results come from the records alone). ``time``: maximum
      number of seconds (0: no limit).
    - ``search``: ``evolutionary``, ``random`` or ``grid``. ``cost_model``: ``analytic``, ``learned`` (LightGBM), or
      ``auto``. ``seed``: seed of random choices.
    - ``callback``: is called after every batch. If it raises an exception, the search ends and keeps its records.
      Ctrl-C also ends the search and raises :class:`Interrupted`.

    All errors are subclasses of :class:`~microc.errors.MicrocError`.
    """
    trials = validation.as_integer("trials", trials)
    seconds = validation.as_number("time", time, 0.0, 1e9, "seconds")
    ports = (port,) if isinstance(port, str) else validation.as_names("port", port)
    jobs, seed = validation.as_integer("jobs", jobs, 1, 64), validation.as_integer("a seed", seed)
    _check_one_of("search", search, tuple(SEARCHES))
    _check_one_of("cost_model", cost_model, MODELS)
    _check_one_of("measure", measure, MEASURES)
    validation.as_function_or_none("callback", callback)
    board_, core = find_board_and_core(target, board)
    begin = monotonic()
    resolved, all_tasks = parse_options_and_list_tasks(model, core, board_, options, constants)
    compile_seconds, limit = monotonic() - begin, seconds or float("inf")
    regions = list_regions_for_external_code(model, core, resolved)
    key = compute_network_key(all_tasks, resolved.threads, resolved.cores)
    # The network as a whole is timed only on this computer, and only if there are no regions whose code is not decided yet.
    measures_network = trials > 0 and board_ is None and runner is None and not regions and not is_function(model)
    tasks, regions = select_layers(all_tasks, regions, tuple(layers))
    load = validation.as_boolean("load", load)
    if regions and (fleet or load):
        raise UsageError(
            f"external cannot be combined with {'fleet' if fleet else 'load'}, because external code is measured in flash",
            hint="leave out external, or name only the board and its ports",
        )
    cycles = measure == MEASURES[1]
    if cycles and (fleet or runner is not None):
        raise UsageError(
            "measure: a fleet or a runner measures in its own unit; got cycles, expected time",
            hint="leave out measure, or name only the board",
        )
    if fleet:
        if is_function(model):
            raise UsageError(
                "fleet: a fleet measures networks; got a function", hint="leave out fleet, or give a network"
            )
        runner = _make_meter_of_fleet(
            validation.as_text("a fleet", fleet), board_, bool(any(ports) or jobs > 1 or load), resolved
        )
    runner = runner or make_meter(board_, core, ports, jobs, load_into_ram=load, cycles=cycles)
    database = records if isinstance(records, Database) else Database(records)
    tuner = Tuner(
        tasks,
        runner,
        database,
        model=make_ranking_model(cost_model),
        search=search,
        seed=seed,
        event=callback,
        regions=regions,
    )
    try:
        begin = monotonic()
        # Measuring combinations requires compilations, for which a part of the time limit is reserved, but at most half of it.
        tuner.run(
            SearchLimits(
                trials, limit - (min(NETWORK_COMPILATIONS * compile_seconds, limit / 2) if measures_network else 0)
            )
        )
        # The network is not measured again if there are no new measurements of kernels.
        if measures_network and (tuner.proposed_count or not database.records_of(key)) and monotonic() < begin + limit:
            NetworkSearch(resolve_model(model, resolved), core, resolved, database, runner).run(begin + limit)
    except KeyboardInterrupt as end:
        raise Interrupted(_collect_tuning_results(tuner, all_tasks, key)) from end
    finally:
        if database is not records:
            database.close()
    return _collect_tuning_results(tuner, all_tasks, key)


def _make_meter_of_fleet(address: str, board: Board | None, has_other_places: bool, options: Options) -> Meter:
    """Return the meter that measures on the boards of a fleet; raise UsageError for options that a fleet does not
    support.

    ``has_other_places``: ports, jobs or loading into RAM are requested too.
    """
    from microc.tuning.fleet import Fleet

    if board is None or has_other_places or options.plugins:
        raise UsageError(
            "fleet requires a board, and cannot be combined with port, jobs, load or plugins",
            hint="leave out port, jobs, load and plugins" if board is not None else "name the board: --board BOARD",
        )
    return Fleet(address, board)


def _collect_tuning_results(tuner: Tuner, all_tasks: Sequence[Task], key: str) -> Tuning:
    """Return the results of a search. ``all_tasks``: all kernels of the network. ``key``: the key of the network's
    records."""
    runner = tuner.runner
    combinations = (
        find_network_measurements(key, all_tasks[0].target.cpu, tuner.database, runner.board) if all_tasks else None
    )
    network = TunedNetwork(key, combinations, all_tasks) if combinations else None
    return Tuning(tuple(tuner.kernels), tuner.database, runner.unit, runner.board, tuner.region_verdicts(), network)


def _check_one_of(name: str, value: object, allowed_values: tuple[str, ...]) -> None:
    """Raise UsageError if the value of the argument ``name`` is not one of ``allowed_values``."""
    if value not in allowed_values:
        raise UsageError(
            f"{name}: got {value!r}, expected a known name", hint="choose one of: " + ", ".join(allowed_values)
        )


@registers_plugins
def make_tuning_plan(
    model: Any, target: str = "", *, board: str | Path | Board | None = None, records: str | Path, **options: Any
) -> dict[str, Any]:
    """Return the optimisation plan of a network, which ``write_plan`` writes to a file.

    For each kernel it contains the schedule that a compilation with ``tuned=records`` uses, the reason, and the
    alternatives. Raises UsageError if measurements decide whose code computes a region, because a plan does not contain
    such decisions.
    """
    path = validation.as_path("records", records)
    chosen = make_options(**options, tuned=path)
    reject_undecided_code(chosen)
    board_, core = find_board_and_core(target, board)
    name = board_.name if board_ is not None else "host"
    compiled_network = compile_for_tuning(model, core, chosen, board_)
    return build_plan(compiled_network, open_records(path), board=name, optimize=chosen.optimize, records=path.name)


@registers_plugins
def describe_search_spaces(
    model: Any, target: str = "", *, board: str | Path | Board | None = None, constants: Named = None, **options: Any
) -> list[Mapping[str, Any]]:
    """Return a description of the search space of each kernel of a network, or of a function: its layers, its number of
    points, and every decision with its values. Nothing is measured.

    With the option ``external``, the regions that external code can compute are included. Their only decision is
    ``code``.
    """
    board_, core = find_board_and_core(target, board)
    chosen, kernels = parse_options_and_list_tasks(model, core, board_, options, constants)
    tasks = (*kernels, *list_regions_for_external_code(model, core, chosen))
    return [
        {
            "layers": list(task.layers),
            "op": task.op,
            "points": len(space.points),
            "default": str(space.default.point),
            "decisions": {name: list(values) for name, values in space.domains().items()},
        }
        for task in tasks
        for space in (RegionSpace(task) if isinstance(task, RegionTask) else Space(task),)
    ]
