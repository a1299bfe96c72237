"""Values of options: checks, words on a command line, types for editors."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from errno import EFBIG
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from microc.base.file_access import read_bytes
from microc.compiler import validation
from microc.compiler.validation import Check
from microc.errors import UsageError

if TYPE_CHECKING:
    from microc.plugin import Plugin
    from microc.schedule.rules import ScheduleRule
    from microc.transform.pass_context import Instrument, Pass


# ---- Checks of option values from Python. Heavy modules are imported inside of the checks that need them.

ALL_NAMES = "*"
"""Key of a mapping by name for a value that is given alone: it applies to all inputs or outputs."""
AXES = 64
"""Bound on axis numbers, above the rank of any tensor."""
PIXELS = 1 << 15
"""Bound on the sides of a camera frame, in pixels."""
REAL = 1e30  # largest magnitude of a mean or deviation
MOST_THREADS = 256
IDENTIFIER = 32
"""Length limit of a name in C, to which names of models are cut too."""
CLASSES = 1 << 16  # most classes of a classifier
Normalization = tuple[tuple[float, ...], tuple[float, ...]]
"""Means and standard deviations, one of each or one for each channel."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Range of a symbolic dimension: the multiples of ``step`` from ``minimum`` to ``maximum``.

    If the model cannot have the minimum, the smallest size that it can have is used instead.
    """

    maximum: int
    minimum: int = 1
    step: int = 1


def byte_count_check(value_name: str) -> Check:
    """Return the check of a number of bytes, which may be written as on the command line (``30K``).

    ``value_name``: the value in errors."""

    def check(_: str, value: Any) -> int:
        if isinstance(value, str):
            try:
                return parse_byte_count(value)
            except ValueError as error:
                raise validation.invalid_value_error(
                    value_name, value, "30 * 1024 or '30K'; 0: what the board has"
                ) from error
        return validation.as_integer(
            value_name, value, hint="bytes, 30 * 1024 or '30K' for example; 0: what the board has"
        )

    return check


def parse_byte_count(text: str) -> int:
    """Parse a number of bytes: 65536, 64K or 64KB."""
    units = {"K": 1024, "M": 1024 * 1024}
    short = text.upper().removesuffix("B").removesuffix("I") if text[-1:] in "bB" else text.upper()
    digits, unit = (short[:-1], units[short[-1]]) if short[-1:] in units else (text, 1)
    if not digits.isdecimal() or not 0 < int(digits) * unit < 1 << 32:
        raise ValueError(f"{text!r} is no number of bytes: write 65536 or 64K")
    return int(digits) * unit


def by_name_check(
    check: Check, default_key: str = ALL_NAMES, value_name: str = ""
) -> Callable[[str, Any], dict[str, Any]]:
    """Return the check of an option that takes a value for each input or output, as a mapping by name.

    A value that is given alone gets the name ``default_key``. ``check``: the check of one value; ``value_name``: the
    option in errors."""
    return lambda name, value: validation.as_mapping_by_name(value_name or name, value, check, default_key)


def validated_names(name: str, value: Any) -> frozenset[str]:
    """Check a set of names, and return it."""
    return frozenset(validation.as_names(name, value))


def validated_identifier(value_name: str, value: Any) -> str:
    """Check a name for C, valid and not reserved in all generated files."""
    from microc.codegen.c.identifiers import is_free_in_network

    name = validation.as_text(value_name, value)
    fits = re.fullmatch("[a-z][a-z0-9]*(_[a-z0-9]+)*", name) and len(name) <= IDENTIFIER
    if not fits or name.startswith("assert_") or not is_free_in_network("", name):
        raise UsageError(
            f"{value_name} cannot be {validation.short_repr(value)}",
            hint=f"give a name of C: lower case, digits and single underscores, {IDENTIFIER} at most, no reserved word",
        )
    return name


def validated_class_names(value_name: str, value: Any) -> tuple[str, ...]:
    """Check and return the names of the classes in order; at least two, or none."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise validation.invalid_value_error(value_name, value, "a list of names, in the order of the output")
    if len(value) == 1 or len(value) > CLASSES:
        raise UsageError(
            f"{value_name} has {len(value):,} names, expected 2 to {CLASSES:,}", hint="give one name for every class"
        )
    return tuple(map(str, value))


def validated_backends(value_name: str, value: Any) -> dict[str, str]:
    """Check backends, given by name with the location of the library (empty: none needed), or as a single name; return the
    locations by name."""
    locations = {name: "" for name in [value] if name} if isinstance(value, str) else {} if value is None else value
    if not isinstance(locations, Mapping):
        raise validation.invalid_value_error(value_name, value, "{'cmsis-nn': 'path/to/CMSIS-NN'}, or 'cblas'")
    return {
        validation.as_text(value_name, name): ""
        if location is None or location is False or (isinstance(location, str) and not location)
        else str(validation.as_path(value_name, location))
        for name, location in locations.items()
    }


def subset_check(allowed_words: Sequence[str]) -> Check:
    """Return the check of an option for a subset of ``allowed_words``."""

    def check(name: str, value: Any) -> frozenset[str]:
        found = validated_names(name, value)
        if not found <= set(allowed_words):
            raise UsageError(
                f"{name} cannot be {sorted(found)}",
                hint=f"choose from {', '.join(allowed_words)}; several are possible",
            )
        return found

    return check


def one_of_check(allowed_words: Sequence[str]) -> Check:
    """Return the check of an option for one of ``allowed_words``."""
    return lambda name, value: validation.as_known_value(name, value, allowed_words)


def validated_pixels(name: str, value: Any) -> tuple[int, int]:
    """Check a height and a width in pixels."""
    found = validation.as_integers(name, value, 1)
    if len(found) != 2 or max(found) >= PIXELS:
        raise validation.invalid_value_error(name, value, f"height and width, each less than {PIXELS}: (120, 160)")
    return found[0], found[1]


def validated_normalization(name: str, value: Any) -> Normalization:
    """Check a mean and a deviation, each a number or one for each channel; deviations must not be 0."""
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise validation.invalid_value_error(
            name, value, "mean and deviation: (127.5, 127.5), or ((124, 116, 104), (58, 57, 57))"
        )
    mean, deviation = (_validated_reals(name, part) for part in value)
    if 0.0 in deviation:
        raise UsageError(
            f"{name} divides by zero: got deviation {validation.short_repr(value[1])}, expected none that is 0",
            hint="give a deviation that is not 0; 1 leaves numbers as they are",
        )
    return mean, deviation


def _validated_reals(name: str, value: Any) -> tuple[float, ...]:
    """Check a number, or numbers for each channel; return them as a tuple."""
    several = value if isinstance(value, (list, tuple)) or hasattr(value, "tolist") else (value,)
    found = tuple(validation.as_number(name, number, -REAL, REAL) for number in several)
    if not found:
        raise validation.invalid_value_error(name, value, "a number, or one for each channel")
    return found


def validated_axis(name: str, value: Any) -> int:
    """Check the number of an axis; negative numbers count from the last."""
    return validation.as_integer(name, value, -AXES, AXES, "the time axis of an input, 1 for example")


def validated_frame_count(name: str, value: Any) -> int:
    """Check and return the number of frames of a run; 0: as few as strides allow."""
    return validation.as_integer("a step's frames", value, hint="frames; 0: as few as strides allow")


def validated_thread_count(name: str, value: Any) -> int:
    """Check the number of threads on a computer."""
    return validation.as_integer("the number of threads", value, 1, MOST_THREADS)


def validated_optional_path(name: str, value: Any) -> Path | None:
    """Check a path, or None, and return it."""
    return None if value is None else validation.as_path(name, value)


def refuse_board_options(options: Any) -> None:
    """Raise UsageError if a library is compiled with an option that applies only to the firmware of a board."""
    if options.self_test is not None:
        raise UsageError(
            "self_test: a library has no self-test; got no board, expected one",
            hint="give a board: board='host' is a project for this computer",
        )
    if options.relocatable:
        raise UsageError(
            "relocatable: this computer loads a library at any address; got no board, expected one",
            hint="give the board that loads the network",
        )
    if options.code_in_ram:
        raise UsageError(
            "code_in_ram: this computer loads a library into RAM anyway; got no board, expected one",
            hint="give a board, or leave out code_in_ram",
        )


def refuse_conflicting_board_options(options: Any) -> None:
    """Raise UsageError for options of a board's firmware that conflict with ``relocatable``, or with a protocol that loads
    code."""
    against = {
        f"speaks microc's protocol, not {options.protocol}": options.protocol != "rpc" and "protocol",
        "keeps inputs and outputs in its arena": not options.io_in_arena and "io_in_arena",
        "has no self-test": options.self_test is not None and "self_test",
        "has fixed sizes": bool(options.bounds) and "bounds",
        "runs where the board has written it": options.code_in_ram and "code_in_ram",
    }
    for fact, name in against.items():
        if name and options.relocatable:
            raise UsageError(
                f"{name} cannot be combined with relocatable: such a network {fact}",
                hint=f"leave out {name}, or relocatable",
            )
    if options.code_in_ram and options.protocol == "tuning":
        what = "code_in_ram cannot be combined with protocol tuning, which reserves RAM for uploaded code"
        raise UsageError(what, hint="leave out code_in_ram, or protocol")


def validated_bound(name: str, value: Any) -> Bound:
    """Check the range of a symbolic dimension, and return it as a :class:`Bound`; UsageError if it contains no size."""
    low, high, *step = value if isinstance(value, (tuple, list)) and len(value) in (2, 3) else (1, value)
    found = value if isinstance(value, Bound) else Bound(high, low, *step)
    parts = (found.maximum, found.minimum, found.step)
    found = Bound(
        *(
            validation.as_integer(name, part, -validation.LARGEST, hint="64, (8, 64), or a microc.Bound")
            for part in parts
        )
    )
    if found.minimum < 1 or found.step < 1 or found.maximum // found.step * found.step < found.minimum:
        raise UsageError(
            f"{name}: no size is possible; got {found.minimum} to {found.maximum} in steps of {found.step}",
            hint="write the largest size, or MIN:MAX:STEP, with a multiple of the step in between",
        )
    return found


def as_example_inputs(name: str, value: Any) -> Any:
    """Return example inputs as they were given in order or by name; a single one becomes a tuple, None an empty one."""
    if value is None:
        return ()
    return value if isinstance(value, (list, tuple, dict)) else (value,)


def load_plugins(name: str, value: Any) -> tuple[Plugin, ...]:
    """Return plugins, given as objects or as paths of plugin files, which are loaded; UsageError for other values."""
    from microc.plugin import Plugin, load_plugin

    given = (value,) if isinstance(value, (str, Path, Plugin)) else value
    if not isinstance(given, (list, tuple)):
        raise validation.invalid_value_error(name, value, "paths of plugin files")
    return tuple(p if isinstance(p, Plugin) else load_plugin(validation.as_path("a plugin", p)) for p in given)


def validated_passes(name: str, value: Any) -> tuple[Pass, ...]:
    """Check graph passes: each has a name of its own and runs before one of microc's passes."""
    from microc.transform import PASSES
    from microc.transform.pass_context import Pass

    found: tuple[Pass, ...] = validation.as_tuple_of(name, value, Pass, "a list of microc.Pass(name, function)")
    ours = list(dict.fromkeys(each.name for each in PASSES))
    for each in found:
        if each.before not in ours:
            raise UsageError(
                f"pass {each.name!r}: before={each.before!r} is no pass of microc",
                hint="set before to one of: " + ", ".join(ours),
            )
        if each.name in ours or sum(other.name == each.name for other in found) > 1:
            raise UsageError(
                f"pass {each.name!r}: another pass has this name, expected a name of its own",
                hint="give yours another name",
            )
    return found


def validated_instruments(name: str, value: Any) -> tuple[Instrument, ...]:
    """Check and return objects that observe the passes, by methods ``before`` and ``after``."""
    given: tuple[Instrument, ...] = validation.as_tuple_of(name, value, object, "a list of instruments")
    for each in given:
        if not callable(getattr(each, "before", None)) or not callable(getattr(each, "after", None)):
            raise validation.invalid_value_error(
                "an instrument", each, "an object with before(name, graph) and after(name, graph)"
            )
    return given


def validated_schedule_rules(name: str, value: Any) -> tuple[ScheduleRule, ...]:
    """Check and return schedule rules of the user: each has a name of its own."""
    from microc.schedule.rules import ScheduleRule

    wanted = "a list of microc.ScheduleRule(name, function)"
    found: tuple[ScheduleRule, ...] = validation.as_tuple_of(name, value, ScheduleRule, wanted)
    names = [rule.name for rule in found]
    repeated = next((rule_name for rule_name in names if names.count(rule_name) > 1), None)
    if repeated is not None:
        raise UsageError(
            f"{name}: {names.count(repeated)} schedule rules are called {repeated!r}, expected different names",
            hint="give each rule its own name: reports show it",
        )
    return found


# ---- Parsers of words on a command line: shapes, names, bytes. A ValueError names the mistake and the right form.

LONGEST_FILE = 1 << 22
"""Size limit of a file of names in bytes."""

parse_bytes = parse_byte_count
"""Alias of :func:`parse_byte_count`, for the table of options."""


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse a shape by the name of an input: ``NAME=1,3,8``."""
    name, equals, dimensions = text.rpartition("=")
    try:
        shape = tuple(int(part) for part in dimensions.split(","))
    except ValueError:
        shape = ()
    if not equals or not name or not shape or min(shape) < 1:
        raise ValueError(f"{text!r} is no shape: write NAME=1,3,8")
    return name, shape


def parse_bound(text: str) -> tuple[str, Bound]:
    """Parse the range of a symbolic dimension: ``NAME=MAX``, ``NAME=MIN:MAX`` or ``NAME=MIN:MAX:STEP``."""
    name, equals, sizes = text.rpartition("=")
    parts = sizes.split(":")
    if not name or not equals or len(parts) > 3 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"{text!r} is no bound: write NAME=64, NAME=8:64 or NAME=8:64:8")
    numbers = [int(part) for part in parts]
    minimum, maximum, step = (1, numbers[0], 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    return name, Bound(maximum, minimum, step)


def parse_names(text: str) -> tuple[str, ...]:
    """Parse names separated by commas; a name that contains a comma is in double quotes."""
    (names,) = csv.reader([text], skipinitialspace=True) if text else ([],)
    if not names or not all(names):
        raise ValueError(f"{text!r} is no list of names: write NAME,NAME")
    return tuple(names)


def parse_named_word(text: str) -> tuple[str, str]:
    """Parse a word by the name of an input or output, ``NAME=WORD``, or the word alone for all of them."""
    name, equals, word = text.rpartition("=")
    if not word or (equals and not name):
        raise ValueError(f"{text!r} has an empty name or word: write NAME=WORD, or the word alone for all")
    return name or "*", word


def parse_axis(text: str) -> tuple[str, int]:
    """Parse an axis by the name of an input, ``NAME=AXIS``, or the number alone for all inputs."""
    name, equals, number = text.rpartition("=")
    try:
        return (name if equals else "*"), int(number)
    except ValueError:
        raise ValueError(f"{text!r} is no axis: write NAME=1, or the number alone for all") from None


def parse_pixels(text: str) -> tuple[str, tuple[int, int]]:
    """Parse an image size by the name of an input, ``NAME=120x160`` (height first), or the size alone for all inputs."""
    name, size = parse_named_word(text)
    height, _, width = size.partition("x")
    if not height.isdecimal() or not width.isdecimal():
        raise ValueError(f"{text!r} is no size: write NAME=120x160, height first, or the size alone")
    return name, (int(height), int(width))


def parse_normalization(text: str) -> tuple[str, tuple[tuple[float, ...], tuple[float, ...]]]:
    """Parse a mean and a deviation by the name of an input, ``NAME=MEAN STD``, or the numbers alone for all inputs.

    Each is one number, or several separated by commas, one for each channel."""
    name, _, numbers = text.rpartition("=")
    try:
        mean, deviation = (tuple(float(part) for part in several.split(",")) for several in numbers.split())
    except ValueError:
        raise ValueError(f"{text!r} is no mean and deviation: write 127.5 127.5, or 124,116,104 58,57,57") from None
    return name or "*", (mean, deviation)


def parse_count(text: str) -> int:
    """Parse a whole number."""
    if not text.isdecimal():
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


def parse_renaming(text: str) -> tuple[str, str]:
    """Parse a new name for an input or output: ``NAME=NEW``."""
    name, equals, new = text.rpartition("=")
    if not equals or not name or not new:
        raise ValueError(f"{text!r} renames nothing: write NAME=NEW")
    return name, new


def parse_feedback(text: str) -> tuple[str, str]:
    """Parse an input that is kept as state, with the output that updates it: ``INPUT=OUTPUT``."""
    name, equals, output = text.rpartition("=")
    if not equals or not name or not output:
        raise ValueError(f"{text!r} keeps no state: write INPUT=OUTPUT")
    return name, output


def parse_external(text: str) -> tuple[str, str]:
    """Parse a backend with the location of its library, ``NAME=PATH``, or its name alone."""
    name, _, place = text.partition("=")
    if not name:
        raise ValueError(f"{text!r} names no backend: write cmsis-nn=PATH, or cblas")
    return name, place


def read_text_lines(text: str) -> tuple[str, ...]:
    """Read the lines of a UTF-8 text file, without empty lines at its end."""
    try:
        found = read_bytes(text, LONGEST_FILE).decode("utf-8-sig").rstrip().splitlines()
    except OSError as error:
        if error.errno == EFBIG:
            what = f"{text} is longer than {LONGEST_FILE:,} bytes: names of classes, one a line, are not"
            raise ValueError(what) from error
        raise ValueError(f"cannot read {text}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{text} is no text in UTF-8") from error
    if not found:
        raise ValueError(f"{text} is empty: write names, one a line")
    return tuple(line.strip() for line in found)


def parse_path(text: str) -> tuple[Path, ...]:
    """Parse one path of an option that may be repeated."""
    return (Path(text),)


PATHS: frozenset[object] = frozenset({Path, parse_path, read_text_lines, parse_external})
"""Parsers of words that name a file or a folder."""


# ---- The keywords of ``**options`` with their types, for completion in editors and for type checkers.
# :class:`~microc.compiler.options.Options` is the table; tests compare both, name by name and value by value.
#
# A mapping by the names of inputs or outputs may be one value for all of them.

Colour = Literal["rgb", "bgr", "gray"]
Layout = Literal["NCHW", "NHWC"]
Resizing = Literal["bilinear", "nearest"]
Late = Literal["window", "lookahead"]
Reals = float | Sequence[float]
Sizes = int | tuple[int, int] | tuple[int, int, int] | Bound


class ReadingOptions(TypedDict, total=False):
    """Options for reading a model: the keywords of :func:`microc.load` and :func:`microc.quantize`."""

    name: str
    input_shapes: Mapping[str, tuple[int, ...]] | None
    example_inputs: Any
    inputs: str | Collection[str]
    outputs: str | Collection[str]
    state: Mapping[str, str]
    input_dtype: str | Mapping[str, str]
    input_layout: Layout | Mapping[str, Layout]
    input_normalize: tuple[Reals, Reals] | Mapping[str, tuple[Reals, Reals]]
    input_colour: Colour | Mapping[str, Colour]
    input_frame: tuple[int, int] | Mapping[str, tuple[int, int]]
    input_crop: tuple[int, int] | Mapping[str, tuple[int, int]]
    input_resize: Resizing | Mapping[str, Resizing]
    output_dtype: str | Mapping[str, str]
    output_layout: Layout | Mapping[str, Layout]
    rename: Mapping[str, str]
    plugins: str | Path | Plugin | Sequence[str | Path | Plugin]


class CompileOptions(ReadingOptions, total=False):
    """Options of a compilation: keywords of :func:`microc.compile`, ``report``, ``explain``, ``verify`` and ``tune``.

    A function that passes them on declares ``def mine(**options: Unpack[microc.CompileOptions])``. Each is described in
    docs/options.md.
    """

    bounds: Mapping[str, Sizes]
    class_names: Sequence[str]
    self_test: str | Path | None
    opt_level: Literal[0, 1, 2, 3, 4]
    disabled: str | Collection[str]
    required: str | Collection[str]
    io_in_arena: bool
    threads: int
    protocol: Literal["rpc", "mlperf", "tuning"]
    relocatable: bool
    requantize: Literal["float", "fixed"]
    hybrid: Literal["float", "dynamic"]
    rounding: Literal["tflm", "litert", "single"]
    math: Literal["exact", "fast", "half"]
    weight_dtype: Literal["model", "float16", "bfloat16"]
    optimize: Literal["speed", "size", "balanced"]
    flash: int | str
    ram: int | str
    code_in_ram: bool
    tuned: str | Path | None
    plan: str | Path | None
    shipped: bool
    external: str | Mapping[str, str | Path]
    external_choice: Literal["cost", "all"]
    stream: int | Mapping[str, int]
    hop: int
    stream_allow: Late | Collection[Late]
    dump: str | Path | None
    cache: bool
    passes: Pass | Sequence[Pass]
    instruments: Sequence[Instrument]
    schedules: ScheduleRule | Sequence[ScheduleRule]
