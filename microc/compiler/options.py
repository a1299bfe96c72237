"""The table of compilation options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from microc.base.immutable import frozen
from microc.compiler import option_values, validation
from microc.compiler import option_values as meaning
from microc.compiler.option_values import Bound
from microc.compiler.validation import Check
from microc.errors import UsageError, suggestion
from microc.target import GOALS

if TYPE_CHECKING:
    from microc.plugin import Plugin
    from microc.schedule.rules import ScheduleRule
    from microc.transform.pass_context import Instrument, Pass


# ---- The declaration of an option, from which keywords, flags, ``--help``, documentation and checks derive.

READING, COMPILING, STREAMING = (
    "the model",
    "compilation",
    "streaming: a network over a whole sequence, run frame by frame",
)
"""Groups of options. READING applies when a graph is read; functions are generated under all of them."""
READ, WRITTEN, RUN = "read", "written", "run"
"""Use of the file or folder that an option names.

A project file by somebody else (``microc.toml``) may name WRITTEN paths only below its own folder, and RUN paths only
if the user trusts that folder.
"""


@frozen
class Option:
    """An option.

    - ``check``: checks a value from Python and returns it in its type.
    - ``help``: text for ``--help`` and docs/options.md.
    - ``group``: section of ``--help`` and of docs/options.md.
    - ``applies``: models or boards that it concerns; empty: all.
    - ``flag``: its name on the command line; empty: Python only.
    - ``word``: parser of the word behind the flag; raises ValueError with the right form.
    - ``words``: the accepted words with their values, if there are few.
    - ``metavar``: placeholder of the word in ``--help``.
    - ``default``: the default in words.
    - ``path``: for an option that names a file or folder, its use: READ, WRITTEN or RUN.
    """

    check: Check
    help: str
    group: str = COMPILING
    applies: str = ""
    flag: str = ""
    word: Callable[[str], Any] = str
    words: Mapping[str, Any] = field(default_factory=dict)
    metavar: str = ""
    default: str = ""
    path: str = ""

    @property
    def text(self) -> str:
        """The help with the default behind it."""
        return f"{self.help} (default: {self.default})" if self.default else self.help


def option(value: Any, check: Check, help: str, **more: Any) -> Any:
    """Declare a dataclass field as an option.

    ``value``: the default, or the class of an empty mapping. ``more``: fields of :class:`Option`.
    """
    described = {"option": Option(check, help, **more)}
    if (more.get("word") in meaning.PATHS) != (more.get("path") in (READ, WRITTEN, RUN)):
        raise TypeError(f"{more.get('flag')}: an option that names a file declares path=READ, WRITTEN or RUN")
    if isinstance(value, type):
        return field(default_factory=value, metadata=described)
    return field(default=value, metadata=described)


def choice(value: Any, known: Sequence[Any], help: str, name: str, **more: Any) -> Any:
    """Declare a field with few accepted values, written alike in Python and on the command line."""

    def check(_: str, given: Any) -> Any:
        return validation.choice(name, given, known)

    words = {str(each): each for each in known}
    return option(value, check, help, words=words, default=str(value), **more)


def joined(default: Any, parts: Iterable[Any]) -> Any:
    """Combine the words of a flag that is given several times: pairs become a mapping, anything else a sequence."""
    return dict(parts) if isinstance(default, Mapping) else tuple(each for part in parts for each in part)


# ---- The table of options. A new option is a new field of :class:`Options`. Nothing heavy is imported here, so that
# ``--help`` is instant.

__all__ = ["ENDS", "OPTIONS", "PREPARATION", "Bound", "Options", "make_options"]

HYBRID = ("float", "dynamic")
ROUNDING = ("tflm", "litert", "single")
REQUANTIZE = ("float", "fixed")
MATH = ("exact", "fast", "half")
WEIGHTS = ("model", "float16", "bfloat16")
PROTOCOLS = ("rpc", "mlperf", "tuning")
OPT_LEVELS = (0, 1, 2, 3, 4)
EXTERNAL_CHOICE = ("cost", "all")
LATE = ("window", "lookahead")
PREPARATION = ("normalize", "colour", "frame", "crop", "resize")
"""Preparation steps of raw inputs; each is an option ``input_...``."""
COLOURS = ("rgb", "bgr", "gray")
RESIZING = ("bilinear", "nearest")
ENDS = ("input_dtype", "output_dtype", "input_layout", "output_layout", *(f"input_{name}" for name in PREPARATION))


def _end(flag: str, metavar: str, help: str) -> Any:
    """Declare an option by the name of inputs or outputs."""
    return option(
        dict,
        option_values.by_name(validation.text),
        help,
        group=READING,
        flag=flag,
        word=option_values.wish,
        metavar=metavar,
    )


@dataclass(frozen=True, slots=True)
class Options:
    """Compilation options. Help texts use the values of both Python and the command line."""

    name: str = option(
        "", validation.text, "the network's name, and the prefix of all C names", default="the model file's name",
        group=READING, flag="--name", metavar="NAME",
    )  # fmt: skip
    input_shapes: Mapping[str, tuple[int, ...]] = option(
        dict,
        option_values.by_name(validation.integers, every=""),
        "shape of an input with symbolic dimensions; * speaks of every input",
        group=READING,
        flag="--input-shape",
        word=option_values.shape,
        metavar="NAME=1,3,8",
    )
    example_inputs: Any = option(
        (),
        option_values.examples,
        "a tensor or array for every input of a torch.nn.Module, or a dict of such by name; their shapes "
        "and dtypes are the network's",
        group=READING,
        applies="PyTorch",
    )
    inputs: tuple[str, ...] = option(
        (), validation.names, "cut the network: begin at these tensors (microc check --tensors lists all)",
        group=READING, flag="--inputs", word=option_values.names, metavar="NAME,...",
    )  # fmt: skip
    outputs: tuple[str, ...] = option(
        (), validation.names, "cut the network: end at these tensors",
        group=READING, flag="--outputs", word=option_values.names, metavar="NAME,...",
    )  # fmt: skip
    state: Mapping[str, str] = option(
        dict, option_values.by_name(validation.text, every=""), "keep an input as state of the network: zero at first, then what "
        "the output was at the run before", group=READING, flag="--state", word=option_values.feedback, metavar="INPUT=OUTPUT",
    )  # fmt: skip
    input_dtype: Mapping[str, str] = _end(
        "--input-dtype", "[NAME=]DTYPE",
        "type of the input: float32 where the network is quantised, int8 where it quantises it",
    )  # fmt: skip
    input_layout: Mapping[str, str] = _end(
        "--input-layout", "[NAME=]NCHW|NHWC",
        "order of the input's axes, channels first or last; all images unless named",
    )  # fmt: skip
    input_normalize: Mapping[str, option_values.Normalization] = option(
        dict,
        option_values.by_name(option_values.normalization),
        "raw numbers come in, and (x - MEAN) / STD is what the network takes: one "
        "number, or one for each of its channels between commas; uint8 unless --input-dtype says another type",
        group=READING,
        flag="--input-normalize",
        word=option_values.parse_normalization,
        metavar="[NAME=]MEAN STD",
    )
    input_colour: Mapping[str, str] = option(
        dict,
        option_values.by_name(option_values.one_of(COLOURS)),
        "channels of the camera's frame; bgr: those of the network reversed; gray "
        "is repeated, or made of three (ITU-R BT.601), as the network has three or one",
        group=READING,
        flag="--input-colour",
        word=option_values.wish,
        metavar="[NAME=]" + "|".join(COLOURS),
    )
    input_frame: Mapping[str, tuple[int, int]] = option(
        dict,
        option_values.by_name(option_values.pixels),
        "size of the camera's frame, uint8 and with channels last unless --input-dtype and "
        "--input-layout say else; it is resized to what the network takes",
        group=READING,
        flag="--input-frame",
        word=option_values.parse_pixels,
        metavar="[NAME=]HEIGHTxWIDTH",
    )
    input_crop: Mapping[str, tuple[int, int]] = option(
        dict, option_values.by_name(option_values.pixels), "the middle of the frame, which alone is used", default="all of it",
        group=READING, flag="--input-crop", word=option_values.parse_pixels, metavar="[NAME=]HEIGHTxWIDTH",
    )  # fmt: skip
    input_resize: Mapping[str, str] = option(
        dict,
        option_values.by_name(option_values.one_of(RESIZING)),
        "how, between centres of pixels; integers are rounded to the nearest",
        default="bilinear",
        group=READING,
        flag="--input-resize",
        word=option_values.wish,
        metavar="[NAME=]" + "|".join(RESIZING),
    )
    output_dtype: Mapping[str, str] = _end(
        "--output-dtype", "[NAME=]DTYPE",
        "type of the output: float32 where the network is quantised, int8 where it dequantises it",
    )  # fmt: skip
    output_layout: Mapping[str, str] = _end(
        "--output-layout", "[NAME=]NCHW|NHWC",
        "order of the output's axes, channels first or last; all images unless named",
    )  # fmt: skip
    rename: Mapping[str, str] = option(
        dict,
        option_values.by_name(option_values.identifier, every=""),
        "what an input or output is called in C, and by all commands that read the project",
        group=READING,
        flag="--rename",
        word=option_values.renaming,
        metavar="NAME=NEW",
    )
    plugins: tuple[Plugin, ...] = option(
        (), option_values.plugins, "operators of your own (examples/custom_operator); the file's code runs",
        group=READING, flag="--plugin", word=option_values.path, path=RUN, metavar="FILE.py",
    )  # fmt: skip
    bounds: Mapping[str, Bound] = option(
        dict, option_values.by_name(option_values.bound, every="", what="bound"),
        "leave a symbolic dimension open up to a largest size: the application tells the size of every run (--bound batch=4 "
        "--bound seq=64); one without a name is INPUT:AXIS",
        flag="--bound", word=option_values.parse_bound, metavar="NAME=[MIN:]MAX[:STEP]",
    )  # fmt: skip
    class_names: tuple[str, ...] = option(
        (),
        option_values.class_names,
        "names of the classes, one a line, in the order of the output that tells them apart: the header "
        "has an enumeration and a table of them",
        flag="--class-names",
        word=option_values.lines,
        path=READ,
        metavar="FILE",
    )
    self_test: Path | None = option(
        None,
        option_values.folder,
        "samples that the network checks itself with at boot, in flash: inputs by name along the first "
        "axis, and outputs if they are known; <network>_self_test does it in a firmware of your own",
        flag="--self-test",
        word=Path,
        path=READ,
        metavar="FILE.npz",
    )
    opt_level: int = choice(
        4, OPT_LEVELS, "graph passes, those of lower levels too: 0, what nothing compiles without; 1, fusion; 2, constants and "
        "what does nothing; 3, scales into weights, needless channels, common work; 4, layers of one input become one",
        "the optimisation level", flag="--opt-level",
    )  # fmt: skip
    disabled: frozenset[str] = option(
        frozenset(),
        option_values.check_names,
        "leave out a graph pass",
        flag="--disable-pass",
        word=option_values.names,
        metavar="PASS",
    )
    required: frozenset[str] = option(
        frozenset(), option_values.check_names, "graph passes that run whatever the level"
    )
    io_in_arena: bool = option(
        True, validation.truth, "where inputs and outputs live: in the arena, whose memory intermediate tensors share, or at the "
        "caller's", flag="--io", words={"arena": True, "caller": False}, default="arena",
    )  # fmt: skip
    threads: int = option(
        1, option_values.threads,
        "threads that share the large loops of a library for computers; results are the same, bit for bit, for any number",
        default="1", flag="--threads", word=option_values.count, metavar="N", applies="computers",
    )  # fmt: skip
    protocol: str = choice(
        "rpc", PROTOCOLS,
        "what the firmware answers: microc; the runner of MLPerf Tiny (name the network kws01, vww01, ic01 or ad01), which keeps "
        "inputs outside the arena; or microc, which may also load code into RAM and call it: never ship that",
        "protocol", flag="--protocol",
    )  # fmt: skip
    relocatable: bool = option(
        False,
        validation.truth,
        "the network is loaded: the project has a firmware with two slots, the same for all networks of a "
        "board, and the network as code that may lie anywhere, which microc load sends over the line",
        flag="--relocatable",
        applies="Cortex-M and RISC-V",
    )
    requantize: str = choice(
        "float", REQUANTIZE, "how integers are requantised: as ONNX defines it, or in fixed point, faster on small cores",
        "requantize", flag="--requantize", applies="QDQ",
    )  # fmt: skip
    hybrid: str = choice(
        "float", HYBRID, "layers of floats with integer weights: on widened weights, or with data quantised row by row as LiteRT "
        "does", "hybrid", flag="--hybrid", applies="TFLite",
    )  # fmt: skip
    rounding: str = choice(
        "tflm", ROUNDING, "how integers are rounded: as TFLite Micro and CMSIS-NN do, twice, bit for bit; as LiteRT, whose dense "
        "layers round once; or once everywhere, as with TFLITE_SINGLE_ROUNDING", "rounding", flag="--rounding", applies="TFLite",
    )  # fmt: skip
    math: str = choice(
        "exact", MATH, "floats: infinities and NaN as the formats have them, functions of the C library; or fast, in Winograd's "
        "convolutions too, which let infinities and NaN spread to outputs beside them and err as sums in order do, on computers "
        "with vectors up to 1e-5 of the largest output, and with exp, tanh, erf and log in arithmetic, within 3.8e-7 of the "
        "result, on cores that compute floats; or half, as fast, and convolutions and dense layers on factors in float16, "
        "up to 32 products at a time added in it, within 1.7e-2 of the sum of their sizes, on Cortex-M55",
        "the math", flag="--math",
    )  # fmt: skip
    weight_dtype: str = choice(
        "model", WEIGHTS, "how weights of layers of floats are stored: as float16 or bfloat16, rounded to the nearest, widened "
        "as they are read; or with the numbers that the model has, in 16 bits where these hold them and the goal prefers it",
        "the dtype of weights", flag="--weight-dtype", applies="floats",
    )  # fmt: skip
    optimize: str = choice(
        "balanced", GOALS,
        "what the code is made for; balanced: a percent of the time is worth four percent of the flash, on computers nothing",
        "optimize", flag="--optimize",
    )  # fmt: skip
    flash: int = option(
        0,
        option_values.budget("a flash budget"),
        "what weights and code may take together, 256K for example: where they take more, schedules are chosen again, for "
        "the fewest instructions that fit",
        default="what the board has",
        flag="--flash",
        word=option_values.bytes,
        metavar="BYTES",
    )
    ram: int = option(
        0, option_values.budget("a budget for the arena"),
        "what the arena may take, 30K for example: where that is needed to keep within it, schedules take smaller workspaces and "
        "layers are computed row by row",
        default="what the board has", flag="--ram", word=option_values.bytes, metavar="BYTES",
    )  # fmt: skip
    code_in_ram: bool = option(
        False, validation.truth, "run the kernels that gain most by it from RAM, where the board's file names a memory for code "
        "(docs/memories.md)", flag="--code-in-ram",
    )  # fmt: skip
    tuned: Path | None = option(
        None,
        option_values.folder,
        "schedules that microc tune measured, where it has records of them: balanced takes the fastest in "
        "no more flash than without, speed the fastest, size the smallest",
        flag="--tuned",
        word=Path,
        path=READ,
        metavar="FILE",
    )
    plan: Path | None = option(
        None,
        option_values.folder,
        "the schedules that an optimisation plan chooses, which microc tune --plan writes and a person may "
        "edit; one that does not fit the network is refused",
        flag="--plan",
        word=Path,
        path=WRITTEN,
        metavar="FILE",
    )
    shipped: bool = option(
        True, validation.truth, "choose all schedules anew: for kernels of shapes that many networks have they come with microc "
        "(docs/tuning.md)", flag="--no-shipped",
    )  # fmt: skip
    external: Mapping[str, str] = option(
        dict, option_values.external, "layers in other people's code, where it takes less than ours: cmsis-nn=PATH of "
        "a copy, ethos-u (the board's) or ethos-u=ACCELERATOR, cblas, or a plugin's backend (docs/external.md)",
        flag="--external", word=option_values.parse_external, path=RUN, metavar="NAME[=PATH]",
    )  # fmt: skip
    external_choice: str = choice(
        "cost", EXTERNAL_CHOICE, "which layers that is: those where that takes less, as measured (tuned) or else by cost, or all "
        "that a backend has code for",
        "external_choice", flag="--external-choice",
    )  # fmt: skip
    stream: Mapping[str, int] = option(
        dict, option_values.by_name(option_values.axis),
        "the input's time axis: a run takes the next frames, and gives what the whole sequence gives",
        group=STREAMING, flag="--stream", word=option_values.parse_axis, metavar="[INPUT=]AXIS",
    )  # fmt: skip
    hop: int = option(
        0, option_values.frames, "frames that a run takes", default="as few as the strides allow",
        group=STREAMING, flag="--hop", word=option_values.count, metavar="FRAMES",
    )  # fmt: skip
    stream_allow: frozenset[str] = option(
        frozenset(), option_values.some_of(LATE),
        "window: layers that need all frames see the last ones, anew in every run; lookahead: padding behind the sequence's end "
        "becomes a delay",
        group=STREAMING, flag="--stream-allow", word=option_values.names, metavar=",".join(LATE),
    )  # fmt: skip
    dump: Path | None = option(
        None, option_values.folder, "write every stage: the graph after every pass; for every kernel its tensor expression, all "
        "candidates with their cost, the function after every step and lowering pass, its C",
        flag="--dump", word=Path, path=WRITTEN, metavar="DIR",
    )  # fmt: skip
    cache: bool = option(
        True, validation.truth, "compile anew, and keep nothing: the files of networks that were compiled before lie in a cache, "
        "MICROC_CACHE or the user's folder for such", flag="--no-cache",
    )  # fmt: skip
    passes: tuple[Pass, ...] = option(
        (), option_values.passes, "graph passes of your own, each before the one that it names"
    )
    instruments: tuple[Instrument, ...] = option((), option_values.instruments, "objects that watch the graph passes")
    schedules: tuple[ScheduleRule, ...] = option((), option_values.schedules, "schedule rules of your own")

    def __post_init__(self) -> None:
        for name in ("input_shapes", "state", "rename", "bounds", "external", "stream", *ENDS):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def chosen(self) -> dict[str, str]:
        """Return the options that differ from their defaults as text, for reports; names of files are left out."""
        default = Options()
        values = {name: getattr(self, name) for name in OPTIONS if name not in _UNREPORTED}
        return {name: _value_text(value) for name, value in values.items() if value != getattr(default, name)}


OPTIONS: Mapping[str, Option] = MappingProxyType({f.name: f.metadata["option"] for f in fields(Options)})
"""Every option by name."""
_UNREPORTED = frozenset({
    "name", "example_inputs", "class_names", "plugins",
    "dump", "cache", "instruments", "tuned", "plan", "self_test", "external",
})  # fmt: skip


def _value_text(value: Any) -> str:
    """Format a value for a report."""
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_value_text(of)}" for key, of in sorted(value.items()))
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return " ".join(map(_value_text, value))
    if isinstance(value, (tuple, frozenset)):
        parts = sorted(value) if isinstance(value, frozenset) else value
        return ",".join(str(getattr(part, "name", part)) for part in parts)
    return str(value)


_OTHER_ARGUMENTS = ("board", "check", "progress", "target")
"""Arguments of :func:`microc.compile` that are no options; suggested for misspelt keywords."""


def make_options(**values: Any) -> Options:
    """Create options from keywords; UsageError for an unknown keyword or an invalid value.

    ``plugins`` may be paths of plugin files, which are loaded.
    """
    unknown = sorted(set(values) - set(OPTIONS))
    if unknown:
        raise UsageError(
            f"there is no option {unknown[0]!r}",
            hint=suggestion(unknown[0], sorted((*OPTIONS, *_OTHER_ARGUMENTS)), "options"),
        )
    chosen = Options(**{name: OPTIONS[name].check(name, value) for name, value in values.items()})
    if chosen.protocol == "mlperf":
        chosen = replace(chosen, io_in_arena=False)
    if not chosen.stream and (chosen.hop or chosen.stream_allow):
        raise UsageError("hop and stream_allow say how a network streams", hint="name the time axis: stream=1")
    return chosen
