"""``microc.tune``: a network's kernels measured on a board, and what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Unpack

from microc.base.immutable import frozen
from microc.compiler import validation
from microc.compiler.interaction import speaks_python
from microc.compiler.model import knows_plugins, source_of
from microc.compiler.options import Options, make_options
from microc.compiler.representation import table
from microc.compiler.tuned.measured_choice import measured_together, network_key
from microc.compiler.tuned.measured_regions import RegionTask
from microc.compiler.tuned.optimisation_plan import plan_of
from microc.compiler.tuned.records import Database, Task, records_of, tasks_of
from microc.errors import UsageError
from microc.target import Board
from microc.tuning.candidate_image import RegionSpace
from microc.tuning.places import meter_for
from microc.tuning.runner import Meter
from microc.tuning.search import SEARCHES, model_for
from microc.tuning.search_space import Space
from microc.tuning.tuner import (
    Event,
    Limits,
    Tuned,
    TunedNetwork,
    TunedRegion,
    Tuner,
    compiled_for,
    in_our_code,
    named_among,
    place_of,
    refuse_open,
    regions_for,
    tasks_for,
)
from microc.tuning.whole_network import NetworkSearch

if TYPE_CHECKING:
    from microc.compiler.option_values import CompileOptions


TRIALS = 500
MODELS = ("auto", "analytic", "learned")
WHOLE = 3
"""Of the seconds that a network takes to be compiled, so many are left for it as a whole, but no more than half of all."""


@frozen
class Tuning:
    """What a run of the search found: ``kernels`` in order of execution, the ``database`` with all records, ``unit`` of ticks.
    ``regions``: parts of the network that other people's code can compute; ``network``: it as a whole, where that was
    measured."""

    kernels: tuple[Tuned, ...]
    database: Database
    unit: str
    board: str
    regions: tuple[TunedRegion, ...] = ()
    network: TunedNetwork | None = None

    @property
    def default(self) -> float:
        """Ticks of all tuned kernels together as they are compiled without records."""
        return sum(k.task.runs * k.default for k in self.kernels if k.default is not None)

    @property
    def best(self) -> float:
        """The same, each by its fastest schedule."""
        return sum(k.task.runs * k.best for k in self.kernels if k.default is not None)

    def __repr__(self) -> str:
        ticks = f"{self.default:,.0f} {self.unit} before, {self.best:,.0f} now"
        return f"<Tuning of {len(self.kernels)} kernels on {self.board}: {ticks}>"

    def _repr_html_(self) -> str:
        rows = [(k.task.name, f"{k.default or 0:,.0f} -> {k.best:,.0f}, {k.tried} tried") for k in self.kernels]
        return table(f"{self.unit} on {self.board}", rows)

    def to_data(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "board": self.board,
            "unit": self.unit,
            "default": self.default,
            "best": self.best,
            "measured": sum(k.tried for k in self._every),
            "failed": sum(k.failed for k in self._every),
            "kernels": [kernel.to_data() for kernel in self.kernels],
            "regions": [region.to_data() for region in self.regions],
            "network": self.network.to_data() if self.network is not None else None,
        }

    @property
    def _every(self) -> tuple[Tuned, ...]:
        return (*self.kernels, *(region.tuned for region in self.regions))


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a search: ``tuning`` is what it had found, and the records have it."""

    def __init__(self, tuning: Tuning) -> None:
        super().__init__()
        self.tuning = tuning


@speaks_python
@knows_plugins
def tune(
    model: Any,
    target: str = "",
    *,
    board: str | Path | Board | None = None,
    records: str | Path | Database | None = None,
    port: str | Sequence[str] = "",
    load: bool = False,
    trials: int = TRIALS,
    time: float = 0.0,
    search: str = "evolutionary",
    cost_model: str = "auto",
    seed: int = 0,
    jobs: int = 1,
    fleet: str = "",
    layers: Iterable[str] = (),
    runner: Meter | None = None,
    callback: Callable[[Event], None] | None = None,
    **options: Unpack[CompileOptions],
) -> Tuning:
    """Measure schedules of a network's kernels, and keep what they took in ``records`` (a file, which grows, or a database).

    ``model`` as in :func:`microc.compile`, ``options`` too. Measured is on ``board``: its emulator, or itself on ``port``; or on
    this computer as ``target``, ``native`` or one of its cores. ``trials``: measurements at most (0: none, what the records
    say); ``time``: seconds at most (0: any). ``search``: ``evolutionary``, ``random`` or ``grid``; ``cost_model``: ``analytic``,
    ``learned`` (LightGBM), or ``auto``. ``port``: one, or several with a board each, which measure side by side; where one fails,
    its batch goes to another. ``load``: a board is flashed once, and candidates are loaded into its RAM, where they take other
    ticks, as records say. ``jobs``: emulators, or processes here, that do; ``fleet``: the address of a scheduler of Dask, whose
    workers' boards do. ``layers``: only those whose name has one of these
    parts. ``seed``: of what is drawn. ``runner`` measures instead. ``callback`` is told of every
    batch; what it raises ends the search, and keeps the records; so does Ctrl-C, as :class:`Interrupted`.

    With ``external``, unless all of it is wanted, every region that a backend has code for is measured in theirs and in ours, and
    the kernels are those of the network in our code. Compile with ``tuned=FILE`` to use the records. Everything refused is a
    :class:`~microc.errors.MicrocError`.
    """
    trials = validation.integer("trials", trials)
    seconds = validation.number("time", time, 0.0, 1e9, "seconds")
    ports = (port,) if isinstance(port, str) else validation.names("port", port)
    jobs, seed = validation.integer("jobs", jobs, 1, 64), validation.integer("a seed", seed)
    _one_of("search", search, tuple(SEARCHES))
    _one_of("cost_model", cost_model, MODELS)
    validation.call("callback", callback)
    found_board, core = place_of(target, board)
    begin = monotonic()
    chosen, every = tasks_for(model, core, found_board, options)
    took, limit = monotonic() - begin, seconds or float("inf")
    regions = regions_for(model, core, chosen)
    key = network_key(every, chosen.threads)
    whole = trials > 0 and found_board is None and runner is None and not regions
    tasks, regions = named_among(every, regions, tuple(layers))
    load = validation.truth("load", load)
    if regions and (fleet or load):
        raise UsageError(
            "other people's code is built into firmware: it is measured neither by loading code nor by a fleet",
            hint="leave out external, or name the board and its ports alone",
        )
    if fleet:
        runner = _fleet(validation.text("a fleet", fleet), found_board, bool(any(ports) or jobs > 1 or load), chosen)
    runner = runner or meter_for(found_board, core, ports, jobs, load=load)
    database = records if isinstance(records, Database) else Database(records)
    tuner = Tuner(
        tasks,
        runner,
        database,
        model=model_for(cost_model),
        search=search,
        seed=seed,
        event=callback,
        regions=regions,
    )
    try:
        begin = monotonic()
        tuner.run(Limits(trials, limit - (min(WHOLE * took, limit / 2) if whole else 0)))
        if whole and (tuner.spent or not database.of(key)) and monotonic() < begin + limit:
            NetworkSearch(source_of(model, chosen), core, chosen, database, runner).run(begin + limit)
    except KeyboardInterrupt as end:
        raise Interrupted(_tuning(tuner, every, key)) from end
    finally:
        if database is not records:
            database.close()
    return _tuning(tuner, every, key)


def _fleet(address: str, board: Board | None, others: bool, options: Options) -> Meter:
    """The boards of a fleet; UsageError for what a fleet does not do."""
    from microc.tuning.fleet import Fleet

    if board is None or others or options.plugins:
        raise UsageError(
            "a fleet measures on boards of its workers",
            hint="name the board alone: neither ports, jobs nor plugins, whose code does not travel",
        )
    return Fleet(address, board)


def _tuning(tuner: Tuner, every: Sequence[Task], key: str) -> Tuning:
    """What a search has found; ``every``: all kernels of the network, ``key``: its own."""
    runner = tuner.runner
    together = measured_together(key, every[0].target.cpu, tuner.database, runner.board) if every else None
    network = TunedNetwork(key, together, every) if together else None
    return Tuning(tuple(tuner.kernels), tuner.database, runner.unit, runner.board, tuner.whose(), network)


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name}={value!r} is none", hint="one of: " + ", ".join(known))


@knows_plugins
def tuning_plan(
    model: Any, target: str = "", *, board: str | Path | Board | None = None, records: str | Path, **options: Any
) -> dict[str, Any]:
    """The optimisation plan of a network: what a compilation with ``tuned=records`` takes for each of its kernels, why, and what
    else it could; ``write_plan`` makes it a file."""
    path = validation.path("records", records)
    chosen = make_options(**options, tuned=path)
    refuse_open(chosen)
    found_board, core = place_of(target, board)
    name = found_board.name if found_board is not None else "host"
    made = compiled_for(model, core, chosen, found_board)
    return plan_of(made, records_of(path), board=name, optimize=chosen.optimize, records=path.name)


@knows_plugins
def spaces(
    model: Any, target: str = "", *, board: str | Path | Board | None = None, **options: Any
) -> list[Mapping[str, Any]]:
    """The spaces of a network's kernels without measuring: layers, points, and every decision with its values; with ``external``
    those of regions, which have one, ``code``."""
    chosen = make_options(**options)
    found_board, core = place_of(target, board)
    made = compiled_for(model, core, in_our_code(chosen), found_board)
    tasks = (*tasks_of(made), *regions_for(model, core, chosen))
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
