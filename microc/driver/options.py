"""What a user may choose about a compilation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from microc.errors import UsageError
from microc.plugin import Plugin, load_plugin
from microc.target import GOALS
from microc.transform.boundary import EVERY
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
    - ``dump``: folder that receives every stage as text.
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

    def __post_init__(self) -> None:
        for name in ("input_shapes", "bounds", "stream", *ENDS):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def chosen(self) -> dict[str, str]:
        """What differs from the defaults, in words, for reports; names of files are no part of it."""
        default = Options()
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _UNSPOKEN}
        return {name: _words(value) for name, value in found.items() if value != getattr(default, name)}


_UNSPOKEN = frozenset({"name", "plugins", "dump"})


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_words(of)}" for key, of in sorted(value.items()))
    if isinstance(value, (tuple, frozenset)):
        return ",".join(map(str, sorted(value) if isinstance(value, frozenset) else value))
    return str(value)


def make_options(**values: Any) -> Options:
    """Options from keywords; UsageError for one that does not exist or has no such value.

    ``plugins`` may be paths of plugin files, which are loaded.
    """
    known = {field.name for field in fields(Options)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise UsageError(f"there is no option {unknown[0]!r}", hint="options: " + ", ".join(sorted(known)))
    sets = dict.fromkeys(("disabled", "required", "stream_allow"), frozenset)
    for name, kind in {**sets, "inputs": tuple, "outputs": tuple}.items():
        given = values.get(name, ())
        values[name] = kind((given,) if isinstance(given, str) else given)
    plugins = values.get("plugins", ())
    plugins = (plugins,) if isinstance(plugins, (str, Path, Plugin)) else plugins
    values["plugins"] = tuple(p if isinstance(p, Plugin) else load_plugin(p) for p in plugins)
    for name in ENDS:
        given = values.get(name) or {}
        values[name] = {EVERY: given} if isinstance(given, str) else given
    values["bounds"] = {name: _bound(name, given) for name, given in (values.get("bounds") or {}).items()}
    axes = values.get("stream") or {}
    values["stream"] = axes if isinstance(axes, Mapping) else {EVERY: axes}
    if values.get("dump") is not None:
        values["dump"] = Path(values["dump"])
    if values.get("protocol") == "mlperf":
        values["io_in_arena"] = False
    chosen = Options(**values)
    if chosen.opt_level not in OPT_LEVELS:
        raise UsageError(f"there is no optimisation level {chosen.opt_level!r}", hint="levels: 0, 1, 2")
    if chosen.requantize not in REQUANTIZE:
        raise UsageError(f"requantize cannot be {chosen.requantize!r}", hint="float or fixed")
    if chosen.hybrid not in HYBRID:
        raise UsageError(f"hybrid cannot be {chosen.hybrid!r}", hint="float or dynamic")
    if chosen.protocol not in PROTOCOLS:
        raise UsageError(f"there is no protocol {chosen.protocol!r}", hint=" or ".join(PROTOCOLS))
    if chosen.rounding not in ROUNDING:
        raise UsageError(f"rounding cannot be {chosen.rounding!r}", hint=", ".join(ROUNDING))
    if chosen.optimize not in GOALS:
        raise UsageError(f"optimize cannot be {chosen.optimize!r}", hint=", ".join(GOALS))
    if not chosen.stream and (chosen.hop or chosen.stream_allow):
        raise UsageError("hop and stream_allow say how a network streams", hint="name the time axis: stream=1")
    if not all(isinstance(axis, int) for axis in chosen.stream.values()):
        raise UsageError(f"stream cannot be {dict(chosen.stream)!r}", hint="the time axis of an input, 1 for example")
    if not chosen.stream_allow <= set(ALLOWED):
        raise UsageError(f"stream_allow cannot be {sorted(chosen.stream_allow)}", hint=" and ".join(ALLOWED))
    if not isinstance(chosen.hop, int) or chosen.hop < 0:
        raise UsageError(f"a step cannot take {chosen.hop!r} frames", hint="0: as few as strides allow")
    if not isinstance(chosen.flash, int) or chosen.flash < 0:
        raise UsageError(f"a flash budget cannot be {chosen.flash!r}", hint="bytes; 0: what the board has")
    return chosen


def _bound(name: str, given: int | Bound) -> Bound:
    """The sizes that a symbolic dimension may have; UsageError where there are none."""
    bound = given if isinstance(given, Bound) else Bound(given)
    if bound.minimum < 1 or bound.step < 1 or bound.maximum // bound.step * bound.step < bound.minimum:
        raise UsageError(
            f"no sizes from {bound.minimum} to {bound.maximum} in steps of {bound.step}",
            where=f"bound of {name!r}",
            hint="write the largest size, or MIN:MAX:STEP, with a multiple of the step in between",
        )
    return bound
