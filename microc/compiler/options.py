# SPDX-License-Identifier: Apache-2.0
"""The table of compilation options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from microc.base.immutable import frozen
from microc.compiler import option_values, validation
from microc.compiler.option_values import Bound
from microc.compiler.validation import Check, validated_head
from microc.errors import UsageError, known_names_hint
from microc.target import GOALS

if TYPE_CHECKING:
    from microc.plugin import Plugin
    from microc.schedule.rules import ScheduleRule
    from microc.transform.pass_context import Instrument, Pass
    from microc.transform.training.learning import Head


# ---- The declaration of an option. Keywords, flags, ``--help``, documentation and checks are derived from it.

READING, COMPILING, STREAMING = (
    "the model",
    "compilation",
    "streaming: a network over a whole sequence, run frame by frame",
)
"""Groups of options, which are sections of ``--help``. Reading a graph depends only on the options of the group
READING. Generating code depends on the options of all groups."""
READ, WRITTEN, RUN = "read", "written", "run"
"""Use of the file or folder whose path is the value of an option: it is read, it is written, or code in it is run.

A project file (``microc.toml``) may come from another person. Therefore WRITTEN paths in it must be below the folder of
the project file, and RUN paths are accepted only if the user trusts that folder.
"""


@frozen
class Option:
    """The declaration of a compilation option.

    - ``check``: checks a Python value and returns it converted to the option's type.
    - ``help``: noun phrase for ``--help``, at most 80 characters.
    - ``details``: conditions and exceptions for docs/options.md, as sentences.
    - ``group``: section of ``--help`` and of docs/options.md.
    - ``applies``: models or boards to which the option applies; empty: all.
    - ``flag``: name on the command line; ``--`` alone stands for the option's name, with dashes; empty: the option exists
      only in Python.
    - ``word``: parser of the word after the flag; raises ValueError with the accepted form.
    - ``words``: all accepted words with their values, if there are few.
    - ``metavar``: placeholder of the word in ``--help``.
    - ``default``: description of the default.
    - ``path``: READ, WRITTEN or RUN if the value is the path of a file or folder; else empty.
    - ``accepts``: annotation of the Python values that callers may give; empty if it follows from the field's annotation
      (:class:`~microc.compiler.option_values.CompileOptions`, which is generated).
    """

    check: Check
    help: str
    details: str = ""
    group: str = COMPILING
    applies: str = ""
    flag: str = "--"
    word: Callable[[str], Any] = str
    words: Mapping[str, Any] = field(default_factory=dict)
    metavar: str = ""
    default: str = ""
    path: str = ""
    accepts: str = ""

    @property
    def text(self) -> str:
        """The help text with the default, for ``--help``."""
        return f"{self.help} (default: {self.default})" if self.default else self.help

    @property
    def description(self) -> str:
        """The help text with the default and the details, for the documentation."""
        return f"{self.text}. {self.details}" if self.details else self.text


def option_field(default_value: Any, check: Check, help: str, **more: Any) -> Any:
    """Declare a field of :class:`Options` as an option.

    ``default_value``: the default; ``dict`` stands for a new empty mapping. ``more``: further fields of
    :class:`Option`, by name.
    """
    described = {"option": Option(check, help, **more)}
    if (more.get("word") in option_values.PATHS) != (more.get("path") in (READ, WRITTEN, RUN)):
        raise TypeError(f"{help}: an option that names a file declares path=READ, WRITTEN or RUN")
    if isinstance(default_value, type):
        return field(default_factory=default_value, metadata=described)
    return field(default=default_value, metadata=described)


def choice_field(
    default_value: Any, allowed_values: Sequence[Any], help: str, value_name: str = "", **more: Any
) -> Any:
    """Declare a field of :class:`Options` as an option that accepts only ``allowed_values``.

    The values are written identically in Python and on the command line. ``value_name``: the name of the value in
    errors; empty if it is that of the option.
    """
    words = {str(each): each for each in allowed_values}
    check = option_values.make_choice_check(allowed_values, value_name)
    return option_field(default_value, check, help, words=words, default=str(default_value), **more)


def combine_option_words(default: Any, parsed_words: Iterable[Any]) -> Any:
    """Combine the parsed words of a flag that occurs several times on the command line.

    If ``default``, the default of the option, is a mapping, each parsed word is a pair of key and value, and the result
    is a mapping. Otherwise each parsed word is a sequence, and the result is their concatenation.
    """
    return dict(parsed_words) if isinstance(default, Mapping) else tuple(each for part in parsed_words for each in part)


# ---- The table of options. A new option is a new field of :class:`Options`. This module imports nothing that is slow to load,
# because ``--help`` imports it.

__all__ = ["ENDS", "OPTIONS", "PREPARATION", "Bound", "Options", "make_options"]

LATE = ("window", "lookahead")
PREPARATION = ("normalize", "colour", "frame", "crop", "resize")
"""Preparation steps of raw inputs. Each step NAME is controlled by an option ``input_NAME``."""
COLOURS = ("rgb", "bgr", "gray")
RESIZING = ("bilinear", "nearest")
ENDS = ("input_dtype", "output_dtype", "input_layout", "output_layout", *(f"input_{name}" for name in PREPARATION))


def _input_or_output_field(metavar: str, help: str, details: str, accepts: str) -> Any:
    """Declare a field of :class:`Options` as an option that has a word for each input or output, by name."""
    return option_field(
        dict,
        option_values.make_mapping_check(validation.as_text),
        help,
        details=details,
        group=READING,
        word=option_values.parse_named_word,
        metavar=metavar,
        accepts=accepts,
    )


@dataclass(frozen=True, slots=True)
class Options:
    """The compilation options of a network. Help texts name values as both Python and the command line accept them."""

    name: str = option_field(
        "",
        validation.as_text,
        "name of the network and prefix of all C names",
        default="the model file's name",
        group=READING,
        metavar="NAME",
    )
    input_shapes: Mapping[str, tuple[int, ...]] = option_field(
        dict,
        option_values.make_mapping_check(validation.as_integers, default_key=""),
        "shape of an input with symbolic dimensions, * for every input",
        group=READING,
        flag="--input-shape",
        word=option_values.parse_shape,
        metavar="NAME=1,3,8",
        accepts="Mapping[str, tuple[int, ...]] | None",
    )
    input_values: Mapping[str, option_values.InputValue] = option_field(
        dict,
        option_values.make_mapping_check(option_values.validated_input_value, default_key=""),
        "value of an input that becomes a constant: a number, lists, or a .npy file",
        details=(
            "For example `--input-value sr=16000`. A number fills the whole tensor. What depends on bound inputs alone "
            "is computed at compile time; an `If` of ONNX whose condition is then constant becomes the branch that "
            "runs. Values of a quantised input are its stored integers."
        ),
        group=READING,
        flag="--input-value",
        word=option_values.parse_input_value,
        path=READ,
        metavar="NAME=VALUE",
        accepts="Mapping[str, Any] | None",
    )
    example_inputs: Any = option_field(
        (),
        option_values.as_example_inputs,
        "example input for every input of a torch.nn.Module",
        details=("Tensors or arrays, in order or as a dict by name. Their shapes and dtypes become the network's."),
        group=READING,
        applies="PyTorch",
        flag="",
    )
    inputs: tuple[str, ...] = option_field(
        (),
        validation.as_names,
        "tensors that become the inputs of the network (their producers are cut off)",
        details="`microc check --tensors` lists all tensors.",
        group=READING,
        word=option_values.parse_names,
        metavar="NAME,...",
    )
    outputs: tuple[str, ...] = option_field(
        (),
        validation.as_names,
        "tensors that become the outputs of the network (their consumers are cut off)",
        group=READING,
        word=option_values.parse_names,
        metavar="NAME,...",
    )
    state: Mapping[str, str] = option_field(
        dict,
        option_values.make_mapping_check(validation.as_text, default_key=""),
        "input that is kept as state and updated from an output",
        details="The state is zero at first, then the value of the output in the previous run.",
        group=READING,
        word=option_values.parse_state_feedback,
        metavar="INPUT=OUTPUT",
    )
    input_dtype: Mapping[str, str] = _input_or_output_field(
        "[NAME=]DTYPE",
        "dtype of an input: float32 (the network quantises it) or int8 (the caller does)",
        details=("With float32, microc adds the quantisation of the input; with int8, it removes the network's own."),
        accepts="str | Mapping[str, str]",
    )
    input_layout: Mapping[str, str] = _input_or_output_field(
        "[NAME=]NCHW|NHWC",
        "axis order of an input (without a name: of all inputs with four axes)",
        details="Channels first (NCHW) or last (NHWC).",
        accepts="Layout | Mapping[str, Layout]",
    )
    input_normalize: Mapping[str, option_values.Normalization] = option_field(
        dict,
        option_values.make_mapping_check(option_values.validated_normalization),
        "mean and standard deviation by which raw inputs are normalised",
        details=(
            "The network gets (x - MEAN) / STD. MEAN and STD are one number each, or numbers separated by commas, "
            "one for each channel. Raw inputs are uint8 unless `--input-dtype` sets another dtype."
        ),
        group=READING,
        word=option_values.parse_normalization,
        metavar="[NAME=]MEAN STD",
        accepts="tuple[Reals, Reals] | Mapping[str, tuple[Reals, Reals]]",
    )
    input_colour: Mapping[str, str] = option_field(
        dict,
        option_values.make_mapping_check(option_values.make_choice_check(COLOURS)),
        "colour channels of the camera's frame, which are converted to the network's",
        details=(
            "`bgr`: the reverse of the network's order. `gray`: one channel, repeated if the network has "
            "three. Frames of three channels are converted to one (ITU-R BT.601) if the network has one."
        ),
        group=READING,
        word=option_values.parse_named_word,
        metavar="[NAME=]" + "|".join(COLOURS),
        accepts="Colour | Mapping[str, Colour]",
    )
    input_frame: Mapping[str, tuple[int, int]] = option_field(
        dict,
        option_values.make_mapping_check(option_values.validated_pixels),
        "size in pixels of the camera's frame, which is resized to the network's input",
        details="The frame is uint8 with channels last unless `--input-dtype` and `--input-layout` differ.",
        group=READING,
        word=option_values.parse_pixels,
        metavar="[NAME=]HEIGHTxWIDTH",
        accepts="tuple[int, int] | Mapping[str, tuple[int, int]]",
    )
    input_crop: Mapping[str, tuple[int, int]] = option_field(
        dict,
        option_values.make_mapping_check(option_values.validated_pixels),
        "size in pixels of the centred part of the camera's frame that is used",
        default="the whole frame",
        group=READING,
        word=option_values.parse_pixels,
        metavar="[NAME=]HEIGHTxWIDTH",
        accepts="tuple[int, int] | Mapping[str, tuple[int, int]]",
    )
    input_resize: Mapping[str, str] = option_field(
        dict,
        option_values.make_mapping_check(option_values.make_choice_check(RESIZING)),
        "interpolation by which the camera's frame is resized to the network's input",
        details="Pixels are aligned by their centres. Integers are rounded to the nearest integer.",
        default="bilinear",
        group=READING,
        word=option_values.parse_named_word,
        metavar="[NAME=]" + "|".join(RESIZING),
        accepts="Resizing | Mapping[str, Resizing]",
    )
    output_dtype: Mapping[str, str] = _input_or_output_field(
        "[NAME=]DTYPE",
        "dtype of an output: float32 (dequantised by the network) or int8 (quantised)",
        details=(
            "With float32, microc adds the dequantisation of the output; with int8, it removes the network's own."
        ),
        accepts="str | Mapping[str, str]",
    )
    output_layout: Mapping[str, str] = _input_or_output_field(
        "[NAME=]NCHW|NHWC",
        "axis order of an output (without a name: of all outputs with four axes)",
        details="Channels first (NCHW) or last (NHWC).",
        accepts="Layout | Mapping[str, Layout]",
    )
    rename: Mapping[str, str] = option_field(
        dict,
        option_values.make_mapping_check(option_values.validated_identifier, default_key=""),
        "new name of an input or output, for C code and later commands",
        group=READING,
        word=option_values.parse_renaming,
        metavar="NAME=NEW",
    )
    plugins: tuple[Plugin, ...] = option_field(
        (),
        option_values.load_plugins,
        "Python file that defines your own operators",
        details="The file's code runs. See examples/custom_operator.",
        group=READING,
        flag="--plugin",
        word=option_values.parse_path,
        path=RUN,
        metavar="FILE.py",
        accepts="str | Path | Plugin | Sequence[str | Path | Plugin]",
    )
    learn: Head | Path | None = option_field(
        None,
        validated_head,
        "TOML file that declares which layers learn on the board",
        details="It names layers, loss and optimiser. The layers compute in float32, with weights in RAM (docs/learning.md).",
        word=Path,
        path=READ,
        metavar="FILE.toml",
        accepts="str | Path | Mapping[str, Any] | Head | None",
    )
    bounds: Mapping[str, Bound] = option_field(
        dict,
        option_values.make_mapping_check(option_values.validated_bound, default_key="", value_name="bound"),
        "range of a symbolic dimension whose size the application sets for every run",
        details=("For example `--bound batch=4 --bound seq=64`. A dimension without a name is written INPUT:AXIS."),
        flag="--bound",
        word=option_values.parse_bound,
        metavar="NAME=[MIN:]MAX[:STEP]",
        accepts="Mapping[str, Sizes]",
    )
    class_names: tuple[str, ...] = option_field(
        (),
        option_values.validated_class_names,
        "file of class names, one per line, in the order of the output",
        details="The header gets an enumeration and a table of them.",
        word=option_values.read_text_lines,
        path=READ,
        metavar="FILE",
        accepts="Sequence[str]",
    )
    self_test: Path | None = option_field(
        None,
        option_values.validated_optional_path,
        "samples for a self-test of the network at boot",
        details=(
            "The file has the inputs by name along the first axis, and optionally the outputs. The samples "
            "are stored in flash. A firmware of your own calls <network>_self_test."
        ),
        word=Path,
        path=READ,
        metavar="FILE.npz",
    )
    opt_level: int = choice_field(
        4,
        (0, 1, 2, 3, 4),
        "level of graph optimisation, including all lower levels",
        "the optimisation level",
        details=(
            "0: required passes only. 1: fusion. 2: constant folding and removal of identities. 3: folding "
            "of scales into weights, removal of unneeded channels, common subexpressions. 4: merging of "
            "layers that read the same input."
        ),
    )
    disabled: frozenset[str] = option_field(
        frozenset(),
        option_values.validated_names,
        "name of a graph pass that is skipped",
        flag="--disable-pass",
        word=option_values.parse_names,
        metavar="PASS",
    )
    required: frozenset[str] = option_field(
        frozenset(),
        option_values.validated_names,
        "names of graph passes that run at every optimisation level",
        flag="",
    )
    io_in_arena: bool = option_field(
        True,
        validation.as_boolean,
        "storage of inputs and outputs: the network's arena, or buffers of the caller",
        details="In the arena, intermediate tensors reuse the memory of inputs and outputs.",
        flag="--io",
        words={"arena": True, "caller": False},
        default="arena",
    )
    threads: int = option_field(
        1,
        option_values.check_thread_count,
        "number of threads that share the large loops of a library",
        details="Results are bit-identical for any number.",
        default="1",
        word=option_values.parse_count,
        metavar="N",
        applies="computers",
    )
    bind_threads: bool = option_field(
        False,
        validation.as_boolean,
        "binding of each thread to a CPU",
        details=(
            "The CPUs are those of the mask of the thread that starts them, which stays unbound. Two processes with equal masks "
            "share CPUs: give each its own with `taskset`. Linux; elsewhere threads stay unbound."
        ),
        applies="computers",
    )
    cores: int = option_field(
        1,
        option_values.make_integer_check("the number of cores", 1, option_values.MAX_CORES),
        "number of the board's cores that share the large loops of a network",
        details="Results are bit-identical. The second core needs a stack and workspaces of its own.",
        default="1",
        word=option_values.parse_count,
        metavar="N",
        applies="boards with several cores",
    )
    protocol: str = choice_field(
        "rpc",
        ("rpc", "mlperf", "tuning"),
        "serial protocol: rpc, mlperf, or tuning (runs uploaded code, development only)",
        details=(
            "`rpc`: microc's protocol. `mlperf`: the EEMBC runner of MLPerf Tiny; name the network kws01, "
            "vww01, ic01 or ad01; inputs are outside the arena. `tuning`: rpc plus code upload to RAM, which"
            " is insecure: never ship it."
        ),
    )
    relocatable: bool = option_field(
        False,
        validation.as_boolean,
        "position-independent network that microc load sends to a running firmware",
        details=(
            "The project has a firmware with two slots, the same for all networks of a board, and the "
            "network as position-independent code."
        ),
        applies="Cortex-M and RISC-V",
    )
    requantize: str = choice_field(
        "float",
        ("float", "fixed"),
        "requantisation arithmetic: float (as ONNX defines) or fixed point",
        details="`fixed` is faster on small cores.",
        applies="QDQ",
    )
    hybrid: str = choice_field(
        "float",
        ("float", "dynamic"),
        "arithmetic of float layers with integer weights",
        details=("`float`: weights are converted to float. `dynamic`: data is quantised row by row, as in LiteRT."),
        applies="TFLite",
    )
    rounding: str = choice_field(
        "tflm",
        ("tflm", "litert", "single"),
        "rounding of requantised results: compatible with tflm or litert, or single",
        details=(
            "`tflm`: twice, bit-exact with TFLite Micro and CMSIS-NN. `litert`: as LiteRT, whose dense "
            "layers round once. `single`: once everywhere, as with TFLITE_SINGLE_ROUNDING."
        ),
        applies="TFLite",
    )
    math: str = choice_field(
        "exact",
        ("exact", "fast", "half"),
        "float arithmetic: exact, fast approximations, or fast with float16 products",
        "the math",
        details=(
            "`exact`: infinities and NaN as the formats define them; exp, tanh and erf within 3.8e-7 of the "
            "result on cores with float vectors or fused multiply-adds, functions of the C library on others. `fast`: "
            "also Winograd convolutions, which may spread infinities and NaN to neighbouring outputs; their "
            "error is that of reordered sums, with vectors on computers up to 1e-5 of the largest output; "
            "exp, tanh, erf and log by arithmetic on all cores with an FPU. "
            "`half`: as fast, with convolutions and dense layers on float16 factors; up to 32 products are "
            "added in float16, within 1.7e-2 of the sum of their magnitudes (Cortex-M55)."
        ),
    )
    weight_dtype: str = choice_field(
        "model",
        ("model", "float16", "bfloat16"),
        "storage dtype of float weights",
        "the dtype of weights",
        details=(
            "`float16`, `bfloat16`: rounded to the nearest and widened when loaded. `model`: the model's "
            "values, in 16 bits if these represent them exactly and the goal prefers it."
        ),
        applies="floats",
    )
    optimize: str = choice_field(
        "balanced",
        GOALS,
        "optimisation goal: speed, code size, or a balance of both",
        details=(
            "`balanced` accepts 1 % more time where that saves 4 % of flash. On computers it ignores code size. "
            "`size` accepts 64 % more time where that saves 1 % of flash."
        ),
    )
    flash: int = option_field(
        0,
        option_values.make_byte_count_check("a flash budget"),
        "flash limit for weights and kernels (the runtime does not count), e.g. 256K",
        details="Over the limit, microc chooses the fastest schedules that fit.",
        default="the board's capacity",
        word=option_values.parse_byte_count,
        metavar="BYTES",
        accepts="int | str",
    )
    ram: int = option_field(
        0,
        option_values.make_byte_count_check("a budget for the arena"),
        "RAM limit for the arena in bytes, e.g. 30K",
        details="Over the limit, kernels get smaller workspaces and layers are computed row by row.",
        default="the board's capacity",
        word=option_values.parse_byte_count,
        metavar="BYTES",
        accepts="int | str",
    )
    code_in_ram: bool = option_field(
        False,
        validation.as_boolean,
        "execution of the hottest kernels from RAM",
        details="The board file must name a memory for code (docs/memories.md).",
    )
    tuned: Path | None = option_field(
        None,
        option_values.validated_optional_path,
        "file of measured schedules, written by microc tune",
        details=(
            "`balanced` takes the fastest schedules within the flash of the default ones, `speed` the "
            "fastest, `size` the smallest."
        ),
        word=Path,
        path=READ,
        metavar="FILE",
    )
    plan: Path | None = option_field(
        None,
        option_values.validated_optional_path,
        "file of an optimisation plan (chosen schedules), written by microc tune --plan",
        details=(
            "`microc tune --plan` writes it; a person may edit it. A plan that does not fit the network is an error."
        ),
        word=Path,
        path=WRITTEN,
        metavar="FILE",
    )
    shipped: bool = option_field(
        True,
        validation.as_boolean,
        "compilation without the pre-tuned schedules that are bundled with microc",
        details="They exist for kernel shapes that many networks share (docs/tuning.md).",
        flag="--no-shipped",
    )
    external: Mapping[str, str] = option_field(
        dict,
        option_values.validated_backends,
        "external library for the layers that it computes faster, e.g. cmsis-nn=PATH",
        details=(
            "`cmsis-nn=PATH` of a copy, `ethos-u` (the board's) or `ethos-u=ACCELERATOR`, `cblas`, "
            "`onemkl`, or a plugin's backend (docs/external.md)."
        ),
        word=option_values.parse_backend_and_library,
        path=RUN,
        metavar="NAME[=PATH]",
        accepts="str | Mapping[str, str | Path]",
    )
    external_choice: str = choice_field(
        "cost",
        ("cost", "all"),
        "layers computed by external code: the faster ones (cost) or all supported ones",
        details="`cost` compares measured times (`tuned`), or else estimates.",
    )
    stream: Mapping[str, int] = option_field(
        dict,
        option_values.make_mapping_check(
            option_values.make_integer_check(
                "", -option_values.MAX_AXIS, option_values.MAX_AXIS, "the number of the input's time axis, such as 1"
            )
        ),
        "number of the input's time axis, for a network that reads new frames only",
        details="Each run takes the next frames and gives the results of the whole sequence for them.",
        group=STREAMING,
        word=option_values.parse_axis,
        metavar="[INPUT=]AXIS",
        accepts="int | Mapping[str, int]",
    )
    hop: int = option_field(
        0,
        option_values.make_integer_check(
            "hop (frames per run)", 0, accepted_form="a number of frames, or 0: as few as strides allow"
        ),
        "input frames that a streaming network takes per run",
        default="as few as the strides allow",
        group=STREAMING,
        word=option_values.parse_count,
        metavar="FRAMES",
    )
    stream_allow: frozenset[str] = option_field(
        frozenset(),
        option_values.make_subset_check(LATE),
        "approximations that are allowed in streaming: window, lookahead",
        details=(
            "`window`: layers that need all frames are computed over the last ones in every run. "
            "`lookahead`: padding behind the end of the sequence becomes a delay."
        ),
        group=STREAMING,
        word=option_values.parse_names,
        metavar=",".join(LATE),
        accepts="Late | Collection[Late]",
    )
    dump: Path | None = option_field(
        None,
        option_values.validated_optional_path,
        "folder to which all intermediate stages of the compilation are written",
        details=(
            "The graph after every pass; for every kernel its tensor expression, all candidates with their "
            "costs, the function after every step and lowering pass, and its C."
        ),
        word=Path,
        path=WRITTEN,
        metavar="DIR",
    )
    cache: bool = option_field(
        True,
        validation.as_boolean,
        "compilation without the cache ($MICROC_CACHE or the user cache directory)",
        flag="--no-cache",
    )
    passes: tuple[Pass, ...] = option_field(
        (),
        option_values.validated_passes,
        "your own graph passes",
        details="Each runs before the pass that it names.",
        flag="",
    )
    instruments: tuple[Instrument, ...] = option_field(
        (),
        option_values.validated_instruments,
        "objects whose methods are called before and after every graph pass",
        flag="",
    )
    schedules: tuple[ScheduleRule, ...] = option_field(
        (),
        option_values.validated_schedule_rules,
        "your own schedule rules",
        flag="",
    )

    def __post_init__(self) -> None:
        for name in ("input_shapes", "input_values", "state", "rename", "bounds", "external", "stream", *ENDS):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def format_changed_options(self) -> dict[str, str]:
        """Return the options that differ from their defaults, as text for reports. Options that name files are left
        out."""
        default = Options()
        values = {name: getattr(self, name) for name in OPTIONS if name not in _UNREPORTED}
        return {name: _format_option_value(value) for name, value in values.items() if value != getattr(default, name)}


def _with_flag(name: str, option: Option) -> Option:
    """Return an option whose flag is complete."""
    return option if option.flag != "--" else replace(option, flag=f"--{name.replace('_', '-')}")


OPTIONS: Mapping[str, Option] = MappingProxyType(
    {f.name: _with_flag(f.name, f.metadata["option"]) for f in fields(Options)}
)
"""The declaration of every option, by the option's name."""
_UNREPORTED = frozenset({
    "name", "example_inputs", "class_names", "plugins",
    "dump", "cache", "instruments", "tuned", "plan", "self_test", "external", "learn",
})  # fmt: skip


def _format_option_value(value: Any) -> str:
    """Format the value of an option for a report."""
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_format_option_value(of)}" for key, of in sorted(value.items()))
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return " ".join(map(_format_option_value, value))
    if isinstance(value, (tuple, frozenset)):
        parts = sorted(value) if isinstance(value, frozenset) else value
        return ",".join(str(getattr(part, "name", part)) for part in parts)
    return str(value)


_OTHER_ARGUMENTS = ("board", "check", "progress", "target")
"""Parameters of :func:`microc.compile` that are not options. They too are suggested if a keyword is misspelt."""


def make_options(**values: Any) -> Options:
    """Create :class:`Options` from keywords; UsageError for an unknown keyword or an invalid value.

    ``plugins`` may contain paths of plugin files, which are loaded.
    """
    unknown = sorted(set(values) - set(OPTIONS))
    if unknown:
        raise UsageError(
            f"there is no option {unknown[0]!r}",
            hint=known_names_hint(unknown[0], sorted((*OPTIONS, *_OTHER_ARGUMENTS)), "options"),
        )
    chosen = Options(**{name: OPTIONS[name].check(name, value) for name, value in values.items()})
    if chosen.protocol == "mlperf":
        chosen = replace(chosen, io_in_arena=False)
    if not chosen.stream and (chosen.hop or chosen.stream_allow):
        raise UsageError(
            f"{'hop' if chosen.hop else 'stream_allow'} requires the option stream; got no stream, expected an axis",
            hint="give the number of the input's time axis: stream=1",
        )
    return chosen
