"""What a user may choose about a compilation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from microc.driver import accepted
from microc.driver.accepted import Check
from microc.errors import UsageError
from microc.plugin import Plugin, load_plugin
from microc.schedule.rules import ScheduleRule
from microc.target import GOALS
from microc.transform import PASSES
from microc.transform.boundary import EVERY
from microc.transform.context import Instrument, Pass
from microc.transform.streaming import ALLOWED

HYBRID = ("float", "dynamic")
ROUNDING = ("tflm", "litert", "single")
REQUANTIZE = ("float", "fixed")
PROTOCOLS = ("rpc", "mlperf")
OPT_LEVELS = (0, 1, 2)
ENDS = ("input_dtype", "output_dtype", "input_layout", "output_layout")


@dataclass(frozen=True, slots=True)
class Bound:
    """What sizes a symbolic dimension may have: the multiples of ``step`` from ``minimum`` to ``maximum``.

    The smallest size that the model can have is found; ``minimum`` may be larger.
    """

    maximum: int
    minimum: int = 1
    step: int = 1


@dataclass(frozen=True, slots=True)
class Options:
    """Compilation options.

    - ``name``: prefix of all C names; the file's name unless given.
    - ``input_shapes``: shapes for inputs with symbolic dimensions, by name; ``*`` speaks of every input.
    - ``bounds``: symbolic dimensions that stay open, by name, with the sizes they may have: a largest one, or a
      :class:`Bound`. The caller of the network tells the sizes of every run.
    - ``inputs``, ``outputs``: names of tensors that the network is cut at (:func:`microc.graph.cut.cut`); none: where it begins
      and ends in the file.
    - ``input_dtype``, ``output_dtype``, ``input_layout``, ``output_layout``: what the application gives and takes, by name or for
      all (:class:`microc.transform.boundary.Boundary`); operators at the ends convert.
    - ``stream``: the time axis of inputs, by name or for all: the network over the whole sequence becomes one that takes some
      frames in a run and keeps what it needs of those before (:mod:`microc.transform.streaming`). ``hop``: how many; 0: as few
      as strides allow. ``stream_allow``: ``window``, ``lookahead``: what may be done about layers that need more than the past.
    - ``plugins``: operators of the user's own (:mod:`microc.plugin`).
    - ``opt_level``: 0 fuses only what must be, 1 and 2 do everything.
    - ``disabled``, ``required``: graph passes by name.
    - ``io_in_arena``: plan inputs and outputs inside the arena (they share memory with intermediate tensors).
    - ``hybrid``: how layers of floats with integer weights are computed: ``float`` on widened weights, or ``dynamic`` as LiteRT
      does, quantising data row by row.
    - ``rounding``: how integers of TFLite files are rounded (:mod:`microc.transform.rounding`): as ``tflm`` does, twice; as
      ``litert``, whose dense layers round once; or by all operators once (``single``).
    - ``requantize``: how QDQ models are requantised: ``float`` as ONNX defines it, or ``fixed`` point, faster on small cores.
    - ``optimize``: what code is made for: ``speed``, ``size``, or ``balanced``, where a percent of the time is worth three
      percent of the flash.
    - ``flash``: bytes that constants and the network's code may take together; 0: what the board has. A choice of schedules that
      takes more is made again with a higher price for flash.
    - ``ram``: bytes that the arena may take; 0: what the board has. Where the plan takes more, chains of layers are computed row
      by row, which costs some time; FitError if that is not enough.
    - ``protocol``: what the firmware answers on its console: ``rpc``, or ``mlperf``, the runner of MLPerf Tiny (whose name of the
      benchmark is the network's ``name``: kws01 say). The latter keeps inputs outside the arena.
    - ``dump``: folder that receives every stage as text: the graph after every pass (:mod:`microc.transform.instruments`), and
      for every kernel what it went through and what else was considered (:mod:`microc.driver.report.dump`).
    - ``passes``: graph passes of the user's own (:class:`~microc.transform.context.Pass`), each before the one that it names.
    - ``instruments``: objects that watch the passes (:class:`~microc.transform.context.Instrument`).
    - ``schedules``: schedule rules of the user's own (:class:`~microc.schedule.rules.ScheduleRule`).
    """

    name: str = ""
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    input_dtype: Mapping[str, str] = field(default_factory=dict)
    output_dtype: Mapping[str, str] = field(default_factory=dict)
    input_layout: Mapping[str, str] = field(default_factory=dict)
    output_layout: Mapping[str, str] = field(default_factory=dict)
    stream: Mapping[str, int] = field(default_factory=dict)
    hop: int = 0
    stream_allow: frozenset[str] = frozenset()
    plugins: tuple[Plugin, ...] = ()
    opt_level: int = 2
    disabled: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    io_in_arena: bool = True
    requantize: str = "float"
    hybrid: str = "float"
    rounding: str = "tflm"
    optimize: str = "balanced"
    flash: int = 0
    ram: int = 0
    protocol: str = "rpc"
    dump: Path | None = None
    passes: tuple[Pass, ...] = ()
    instruments: tuple[Instrument, ...] = ()
    schedules: tuple[ScheduleRule, ...] = ()

    def __post_init__(self) -> None:
        for name in ("input_shapes", "bounds", "stream", *ENDS):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def chosen(self) -> dict[str, str]:
        """What differs from the defaults, in words, for reports; names of files are no part of it."""
        default = Options()
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _UNSPOKEN}
        return {name: _words(value) for name, value in found.items() if value != getattr(default, name)}


_UNSPOKEN = frozenset({"name", "plugins", "dump", "instruments"})


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_words(of)}" for key, of in sorted(value.items()))
    if isinstance(value, (tuple, frozenset)):
        parts = sorted(value) if isinstance(value, frozenset) else value
        return ",".join(part.name if isinstance(part, (Pass, ScheduleRule)) else str(part) for part in parts)
    return str(value)


def _budget(what: str) -> Check:
    return lambda _, value: accepted.integer(what, value, hint="bytes, 30 * 1024 for example; 0: what the board has")


def _one_of(what: str, known: Sequence[Any]) -> Check:
    return lambda _, value: accepted.choice(what, value, known)


def _wishes(name: str, value: Any) -> dict[str, str]:
    return accepted.by_name(name, value, accepted.text, EVERY)


def _set(name: str, value: Any) -> frozenset[str]:
    return frozenset(accepted.names(name, value))


def _axes(name: str, value: Any) -> dict[str, int]:
    def axis(what: str, given: Any) -> int:
        return accepted.integer(what, given, -AXES, AXES, "the time axis of an input, 1 for example")

    return accepted.by_name(name, value, axis, EVERY)


def _plugins(name: str, value: Any) -> tuple[Plugin, ...]:
    given = (value,) if isinstance(value, (str, Path, Plugin)) else value
    if not isinstance(given, (list, tuple)):
        raise accepted.refused(name, value, "paths of plugin files")
    return tuple(p if isinstance(p, Plugin) else load_plugin(accepted.path("a plugin", p)) for p in given)


def _passes(name: str, value: Any) -> tuple[Pass, ...]:
    passes: tuple[Pass, ...] = accepted.sequence_of(name, value, Pass, "a list of microc.Pass(name, function)")
    ours = list(dict.fromkeys(each.name for each in PASSES))
    for each in passes:
        if each.before not in ours:
            raise UsageError(f"pass {each.name!r} stands before {each.before!r}", hint="one of: " + ", ".join(ours))
        if each.name in ours or sum(other.name == each.name for other in passes) > 1:
            raise UsageError(f"there is already a pass {each.name!r}", hint="give yours another name")
    return passes


def _instruments(name: str, value: Any) -> tuple[Instrument, ...]:
    given: tuple[Instrument, ...] = accepted.sequence_of(name, value, object, "a list of instruments")
    for each in given:
        if not callable(getattr(each, "before", None)) or not callable(getattr(each, "after", None)):
            raise accepted.refused("an instrument", each, "an object with before(name, graph) and after(name, graph)")
    return given


def _schedules(name: str, value: Any) -> tuple[ScheduleRule, ...]:
    found: tuple[ScheduleRule, ...] = accepted.sequence_of(
        name, value, ScheduleRule, "a list of microc.ScheduleRule(name, function)"
    )
    if len({rule.name for rule in found}) < len(found):
        raise UsageError("two schedule rules have one name", hint="reports show it: give each its own")
    return found


def _bound(name: str, given: Any) -> Bound:
    """The sizes that a symbolic dimension may have; UsageError where there are none."""
    bound = given if isinstance(given, Bound) else Bound(given)
    parts = (bound.maximum, bound.minimum, bound.step)
    bound = Bound(*(accepted.integer(name, part, -accepted.LARGEST, hint="64, or a microc.Bound") for part in parts))
    if bound.minimum < 1 or bound.step < 1 or bound.maximum // bound.step * bound.step < bound.minimum:
        raise UsageError(
            f"no sizes from {bound.minimum} to {bound.maximum} in steps of {bound.step}",
            where=name,
            hint="write the largest size, or MIN:MAX:STEP, with a multiple of the step in between",
        )
    return bound


AXES = 64
"""More than any tensor has."""
CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "name": accepted.text,
        "input_shapes": lambda name, value: accepted.by_name(name, value, accepted.integers),
        "bounds": lambda name, value: accepted.by_name("bound", value, _bound),
        "inputs": accepted.names,
        "outputs": accepted.names,
        **dict.fromkeys(ENDS, _wishes),
        "stream": _axes,
        "hop": lambda _, value: accepted.integer("a step's frames", value, hint="frames; 0: as few as strides allow"),
        "stream_allow": _set,
        "plugins": _plugins,
        "opt_level": _one_of("the optimisation level", OPT_LEVELS),
        "disabled": _set,
        "required": _set,
        "io_in_arena": accepted.truth,
        "requantize": _one_of("requantize", REQUANTIZE),
        "hybrid": _one_of("hybrid", HYBRID),
        "rounding": _one_of("rounding", ROUNDING),
        "optimize": _one_of("optimize", GOALS),
        "flash": _budget("a flash budget"),
        "ram": _budget("a budget for the arena"),
        "protocol": _one_of("protocol", PROTOCOLS),
        "dump": lambda name, value: None if value is None else accepted.path(name, value),
        "passes": _passes,
        "instruments": _instruments,
        "schedules": _schedules,
    }
)
"""What every option may be; None is as good as leaving out those that are names or mappings."""


def make_options(**values: Any) -> Options:
    """Options from keywords; UsageError for one that does not exist or has no such value.

    ``plugins`` may be paths of plugin files, which are loaded.
    """
    unknown = sorted(set(values) - set(CHECKS))
    if unknown:
        raise UsageError(f"there is no option {unknown[0]!r}", hint="options: " + ", ".join(sorted(CHECKS)))
    chosen = Options(**{name: CHECKS[name](name, value) for name, value in values.items()})
    if chosen.protocol == "mlperf":
        chosen = replace(chosen, io_in_arena=False)
    if not chosen.stream and (chosen.hop or chosen.stream_allow):
        raise UsageError("hop and stream_allow say how a network streams", hint="name the time axis: stream=1")
    if not chosen.stream_allow <= set(ALLOWED):
        raise UsageError(f"stream_allow cannot be {sorted(chosen.stream_allow)}", hint=" and ".join(ALLOWED))
    return chosen
