# SPDX-License-Identifier: Apache-2.0
"""Values of compilation options: checks of Python values, parsers of command-line words, and types for editors."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from errno import EFBIG
from math import prod
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
    from microc.transform.training.learning import Head


# ---- Checks of option values from Python. Modules that are slow to import are imported in the checks that use them.

ALL_NAMES = "*"
"""Key for a value that applies to all inputs or outputs, in a mapping from their names to values."""
MAX_AXIS = 64
"""Largest magnitude of an axis number that options accept. It exceeds the rank of any tensor."""
MAX_PIXELS = 1 << 15
"""Exclusive upper bound on the height and the width of a camera frame, in pixels."""
MAX_MAGNITUDE = 1e30  # largest magnitude of a mean or a standard deviation
MAX_THREADS = 256
MAX_CORES = 2
MAX_IDENTIFIER_LENGTH = 32
"""Maximum length of a C name in characters. Names of models are shortened to this length too."""
MAX_CLASSES = 1 << 16  # largest number of classes of a classifier
MAX_RANK, MAX_INPUT_VALUES = 8, 1 << 16
"""Largest nesting and number of elements of the value that an input is bound to."""
InputValue = bool | int | float | tuple[Any, ...]
"""Value of an input: a number, or tuples of equal lengths that are nested as the axes of the input."""
Normalization = tuple[tuple[float, ...], tuple[float, ...]]
"""Means and standard deviations: either one mean and one deviation, or one of each for every channel."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Range of a symbolic dimension: the multiples of ``step`` from ``minimum`` to ``maximum``.

    If the model does not support the minimum, the smallest size that the model supports is used instead.
    """

    maximum: int
    minimum: int = 1
    step: int = 1


def make_byte_count_check(value_name: str) -> Check:
    """Return the check of an option whose value is a number of bytes: an int, or a text such as ``30K``.

    ``value_name``: the name of the value in errors.
    """

    def check_byte_count(_option_name: str, value: Any) -> int:
        if isinstance(value, str):
            try:
                return parse_byte_count(value)
            except ValueError as error:
                raise validation.invalid_value_error(
                    value_name, value, "a number of bytes such as 30 * 1024 or '30K', or 0: what the board has"
                ) from error
        return validation.as_integer(
            value_name, value, accepted_form="a number of bytes such as 30 * 1024 or '30K', or 0: what the board has"
        )

    return check_byte_count


def parse_byte_count(text: str) -> int:
    """Parse a number of bytes: 65536, 64K or 64KB."""
    units = {"K": 1024, "M": 1024 * 1024}
    short = text.upper().removesuffix("B").removesuffix("I") if text[-1:] in "bB" else text.upper()
    digits, unit = (short[:-1], units[short[-1]]) if short[-1:] in units else (text, 1)
    if not digits.isdecimal() or not 0 < int(digits) * unit < 1 << 32:
        raise ValueError(f"{text!r} is not a number of bytes: write 65536 or 64K")
    return int(digits) * unit


def make_mapping_check(
    check: Check, default_key: str = ALL_NAMES, value_name: str = ""
) -> Callable[[str, Any], dict[str, Any]]:
    """Return the check of an option that has a value for each input or output, as a mapping from names to values.

    ``check``: the check of a single value. If the user gives a single value instead of a mapping, its key is
    ``default_key``. ``value_name``: the name of the option in errors.
    """
    return lambda name, value: validation.as_mapping_by_name(value_name or name, value, check, default_key)


def validated_names(name: str, value: Any) -> frozenset[str]:
    """Return a set of names; UsageError if the value is not a name or a list of names."""
    return frozenset(validation.as_names(name, value))


def validated_identifier(value_name: str, value: Any) -> str:
    """Return a name for use in C; UsageError if it is not a valid name or is reserved in a generated file."""
    from microc.codegen.c.identifiers import is_free_in_network

    name = validation.as_text(value_name, value)
    fits = re.fullmatch("[a-z][a-z0-9]*(_[a-z0-9]+)*", name) and len(name) <= MAX_IDENTIFIER_LENGTH
    if not fits or name.startswith("assert_") or not is_free_in_network("", name):
        raise UsageError(
            f"{value_name} cannot be {validation.short_repr(value)}",
            hint="give a C identifier of lower-case letters, digits and single underscores, with at most "
            f"{MAX_IDENTIFIER_LENGTH} characters, which is no reserved word",
        )
    return name


def validated_class_names(value_name: str, value: Any) -> tuple[str, ...]:
    """Return the class names of a classifier, in the order of its output.

    Raises UsageError unless the value is a list of texts. A list of one name is not accepted, an empty list is.
    """
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise validation.invalid_value_error(value_name, value, "a list of names, in the order of the output")
    if len(value) == 1 or len(value) > MAX_CLASSES:
        raise UsageError(
            f"{value_name} has {len(value):,} names, expected 2 to {MAX_CLASSES:,}",
            hint="give one name for every class",
        )
    return tuple(map(str, value))


def validated_backends(value_name: str, value: Any) -> dict[str, str]:
    """Return the location of the library of each external backend, by the name of the backend.

    ``value``: a mapping from names to locations, or a single name. The location is empty if the backend needs none.
    """
    locations = {name: "" for name in [value] if name} if isinstance(value, str) else {} if value is None else value
    if not isinstance(locations, Mapping):
        raise validation.invalid_value_error(value_name, value, "{'cmsis-nn': 'path/to/CMSIS-NN'}, or 'cblas'")
    return {
        validation.as_text(value_name, name): ""
        if location is None or location is False or (isinstance(location, str) and not location)
        else str(validation.as_path(value_name, location))
        for name, location in locations.items()
    }


def make_subset_check(allowed_words: Sequence[str]) -> Check:
    """Return the check of an option whose value is a set of ``allowed_words``."""

    def check_subset(name: str, value: Any) -> frozenset[str]:
        found = validated_names(name, value)
        if not found <= set(allowed_words):
            raise UsageError(
                f"{name} cannot be {sorted(found)}",
                hint=f"give one or several of {', '.join(allowed_words)}",
            )
        return found

    return check_subset


def make_choice_check(allowed_values: Sequence[Any], value_name: str = "") -> Check:
    """Return the check of an option whose value is one of ``allowed_values``. ``value_name``: its name in errors; empty if
    it is that of the option."""
    return lambda name, value: validation.as_known_value(value_name or name, value, allowed_values)


def validated_pixels(name: str, value: Any) -> tuple[int, int]:
    """Return a height and a width in pixels; UsageError for any other value."""
    found = validation.as_integers(name, value, 1)
    if len(found) != 2 or max(found) >= MAX_PIXELS:
        raise validation.invalid_value_error(
            name, value, f"a height and a width in pixels, each less than {MAX_PIXELS}: (120, 160)"
        )
    return found[0], found[1]


def validated_normalization(name: str, value: Any) -> Normalization:
    """Return a mean and a standard deviation, each as a tuple of one number or of one number for each channel.

    Raises UsageError if the value has another form, or if a deviation is 0.
    """
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise validation.invalid_value_error(
            name, value, "a mean and a deviation: (127.5, 127.5), or ((124, 116, 104), (58, 57, 57))"
        )
    mean, deviation = (_validated_reals(name, part) for part in value)
    if 0.0 in deviation:
        raise UsageError(
            f"{name} divides by zero; got deviation {validation.short_repr(value[1])}, expected no 0",
            hint="give a deviation that is not 0 (1 leaves values unscaled)",
        )
    return mean, deviation


def _validated_reals(name: str, value: Any) -> tuple[float, ...]:
    """Return a number, or a sequence with a number for each channel, as a tuple; UsageError for any other value."""
    several = value if isinstance(value, (list, tuple)) or hasattr(value, "tolist") else (value,)
    found = tuple(validation.as_number(name, number, -MAX_MAGNITUDE, MAX_MAGNITUDE) for number in several)
    if not found:
        raise validation.invalid_value_error(name, value, "a number, or one for each channel")
    return found


def validated_input_value(value_name: str, value: Any) -> InputValue:
    """Return the value of an input as a number of Python, or as nested tuples of such numbers.

    ``value``: a number, an array, nested sequences of numbers, or the path of a ``.npy`` file. Raises UsageError for NaN,
    for sequences of different lengths, and for more than :data:`MAX_INPUT_VALUES` elements or :data:`MAX_RANK` axes.
    """
    accepted_form = f"a number, nested lists of at most {MAX_INPUT_VALUES:,} numbers, or the path of a .npy file"
    if isinstance(value, (str, Path)):
        from microc.run.data.array_files import load_npy_file

        value = load_npy_file(validation.as_path(value_name, value))
    if hasattr(value, "tolist") and prod(value.shape) <= MAX_INPUT_VALUES:
        value = value.tolist()
    level, rank = [value], 0
    while any(isinstance(item, (list, tuple)) for item in level):
        lengths = {len(item) if isinstance(item, (list, tuple)) else -1 for item in level}
        rank, count = rank + 1, len(level) * max(lengths)
        if len(lengths) > 1 or not 0 < count <= MAX_INPUT_VALUES or rank > MAX_RANK:
            raise validation.invalid_value_error(value_name, value, accepted_form)
        level = [inner for item in level for inner in item]
    if not all(isinstance(number, float) or _is_64_bit_integer(number) for number in level) or any(
        x != x for x in level
    ):
        raise validation.invalid_value_error(value_name, value, accepted_form)
    found: InputValue = _convert_lists_to_tuples(value)
    return found


def _is_64_bit_integer(value: Any) -> bool:
    """Test whether a value is a bool, or an integer that int64 or uint64 holds."""
    return isinstance(value, int) and -validation.LARGEST - 1 <= value < 1 << 64


def _convert_lists_to_tuples(value: Any) -> Any:
    """Return nested lists or tuples as nested tuples."""
    return tuple(map(_convert_lists_to_tuples, value)) if isinstance(value, (list, tuple)) else value


def make_integer_check(value_name: str, least: int, most: int = validation.LARGEST, accepted_form: str = "") -> Check:
    """Return the check of an option whose value is an integer from ``least`` to ``most``.

    ``value_name``: the name of the value in errors; empty if it is that of the option. ``accepted_form``: a noun phrase
    for the hint, if it is not just this range."""
    return lambda name, value: validation.as_integer(value_name or name, value, least, most, accepted_form)


check_thread_count = make_integer_check("the number of threads", 1, MAX_THREADS)
"""The check of the number of threads on a computer."""


def validated_optional_path(name: str, value: Any) -> Path | None:
    """Return a path or None; UsageError for any other value."""
    return None if value is None else validation.as_path(name, value)


def refuse_board_options(options: Any) -> None:
    """Raise UsageError if an option that applies only to a board's firmware is set while a library is compiled."""
    for name, fact, hint in (
        (
            "self_test",
            "a library has no self-test",
            "give a board, for example board='host' for a firmware project on this computer",
        ),
        ("relocatable", "applies only to the firmware of a board", "give the board that loads the network"),
        ("code_in_ram", "applies only to the firmware of a board", "give a board, or leave out code_in_ram"),
    ):
        if getattr(options, name):
            raise UsageError(f"{name}: {fact}; got no board, expected a board", hint=hint)


def refuse_conflicting_board_options(options: Any) -> None:
    """Raise UsageError if the options ``relocatable`` or ``code_in_ram`` conflict with other options of a board's
    firmware."""
    facts = {
        f"speaks microc's protocol, not {options.protocol}": options.protocol != "rpc" and "protocol",
        "keeps inputs and outputs in its arena": not options.io_in_arena and "io_in_arena",
        "has no self-test": options.self_test is not None and "self_test",
        "has fixed sizes": bool(options.bounds) and "bounds",
        "runs at the address to which the board has written it": options.code_in_ram and "code_in_ram",
    }
    for fact, name in facts.items():
        if name and options.relocatable:
            raise UsageError(
                f"{name} cannot be combined with relocatable: a relocatable network {fact}",
                hint=f"leave out {name}, or relocatable",
            )
    if options.code_in_ram and options.protocol == "tuning":
        what = "code_in_ram cannot be combined with protocol tuning, which reserves RAM for uploaded code"
        raise UsageError(what, hint="leave out code_in_ram, or protocol")


def validated_bound(name: str, value: Any) -> Bound:
    """Return the range of a symbolic dimension as a :class:`Bound`; UsageError if the range contains no size."""
    low, high, *step = value if isinstance(value, (tuple, list)) and len(value) in (2, 3) else (1, value)
    found = value if isinstance(value, Bound) else Bound(high, low, *step)
    parts = (found.maximum, found.minimum, found.step)
    found = Bound(
        *(
            validation.as_integer(name, part, -validation.LARGEST, accepted_form="64, (8, 64), or a microc.Bound")
            for part in parts
        )
    )
    if found.minimum < 1 or found.step < 1 or found.maximum // found.step * found.step < found.minimum:
        raise UsageError(
            f"{name}: no size is possible; got {found.minimum} to {found.maximum} in steps of {found.step}",
            hint="give the largest size, or MIN:MAX:STEP so that a multiple of STEP is between MIN and MAX",
        )
    return found


def as_example_inputs(name: str, value: Any) -> Any:
    """Return example inputs as they are, in order or by name. A single input becomes a tuple, and None an empty
    tuple."""
    if value is None:
        return ()
    return value if isinstance(value, (list, tuple, dict)) else (value,)


def load_plugins(name: str, value: Any) -> tuple[Plugin, ...]:
    """Return plugins as a tuple. Plugin files given by path are loaded. Raises UsageError for any other value."""
    from microc.plugin import Plugin, load_plugin

    given = (value,) if isinstance(value, (str, Path, Plugin)) else value
    if not isinstance(given, (list, tuple)):
        raise validation.invalid_value_error(name, value, "paths of plugin files")
    return tuple(p if isinstance(p, Plugin) else load_plugin(validation.as_path("a plugin", p)) for p in given)


def validated_passes(name: str, value: Any) -> tuple[Pass, ...]:
    """Return graph passes of the user. Raises UsageError unless each has a unique name and runs before one of microc's
    passes."""
    from microc.transform import PASSES
    from microc.transform.pass_context import Pass

    found: tuple[Pass, ...] = validation.as_tuple_of(name, value, Pass, "a list of microc.Pass(name, function)")
    ours = list(dict.fromkeys(each.name for each in PASSES))
    for each in found:
        if each.before not in ours:
            raise UsageError(
                f"pass {each.name!r}: got before={each.before!r}, expected the name of a pass of microc",
                hint="set before to one of: " + ", ".join(ours),
            )
        if each.name in ours or sum(other.name == each.name for other in found) > 1:
            raise UsageError(
                f"pass {each.name!r}: another pass has this name, expected a unique name",
                hint="give your pass another name",
            )
    return found


def validated_instruments(name: str, value: Any) -> tuple[Instrument, ...]:
    """Return instruments: objects whose methods ``before`` and ``after`` are called for every pass. UsageError for
    others."""
    given: tuple[Instrument, ...] = validation.as_tuple_of(
        name, value, object, "a list of instruments: objects with methods before and after"
    )
    for each in given:
        if not callable(getattr(each, "before", None)) or not callable(getattr(each, "after", None)):
            raise validation.invalid_value_error(
                "an instrument", each, "an object with methods before(name, graph) and after(name, graph)"
            )
    return given


def validated_schedule_rules(name: str, value: Any) -> tuple[ScheduleRule, ...]:
    """Return schedule rules of the user; UsageError unless their names are unique."""
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


# ---- Parsers of command-line words: shapes, names, bytes. The text of a ValueError states the mistake and the accepted form.

ARRAY_SUFFIX = ".npy"
MAX_CLASS_FILE_BYTES = 1 << 22
"""Maximum size in bytes of a file of class names."""


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse the shape of an input: ``NAME=1,3,8``. Return the name and the shape."""
    name, equals, dimensions = text.rpartition("=")
    try:
        shape = tuple(int(part) for part in dimensions.split(","))
    except ValueError:
        shape = ()
    if not equals or not name or not shape or min(shape) < 1:
        raise ValueError(f"{text!r} is not the shape of an input: write NAME=1,3,8")
    return name, shape


def parse_bound(text: str) -> tuple[str, Bound]:
    """Parse the range of a symbolic dimension: ``NAME=MAX``, ``NAME=MIN:MAX`` or ``NAME=MIN:MAX:STEP``."""
    name, equals, sizes = text.rpartition("=")
    parts = sizes.split(":")
    if not name or not equals or len(parts) > 3 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"{text!r} is not the range of a dimension: write NAME=64, NAME=8:64 or NAME=8:64:8")
    numbers = [int(part) for part in parts]
    minimum, maximum, step = (1, numbers[0], 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    return name, Bound(maximum, minimum, step)


def parse_input_value(text: str) -> tuple[str, InputValue | Path]:
    """Parse the value of an input: ``NAME=16000``, ``NAME=[[0, 1], [2, 3]]``, ``NAME=true``, or ``NAME=FILE.npy``.

    Return the name, and the value or the path of the file.
    """
    name, equals, word = text.rpartition("=")
    form = f"{text!r} is not an input and its value: write NAME=16000, NAME=[0,1.5], NAME=true or NAME=FILE.npy"
    if not equals or not name or not word:
        raise ValueError(form)
    if word.endswith(ARRAY_SUFFIX):
        return name, Path(word)
    try:
        return name, validated_input_value(f"the value of {name!r}", json.loads(word))
    except (ValueError, RecursionError, UsageError) as error:
        raise ValueError(form) from error


def parse_names(text: str) -> tuple[str, ...]:
    """Parse names separated by commas. A name that contains a comma must be in double quotes."""
    (names,) = csv.reader([text], skipinitialspace=True) if text else ([],)
    if not names or not all(names):
        raise ValueError(f"{text!r} is not a list of names: write NAME,NAME")
    return tuple(names)


def parse_named_word(text: str) -> tuple[str, str]:
    """Parse a word for an input or output, ``NAME=WORD``, or for all of them, ``WORD``. Return the name (``*`` for all)
    and the word."""
    name, equals, word = text.rpartition("=")
    if not word or (equals and not name):
        raise ValueError(f"{text!r} has an empty name or word: write NAME=WORD, or the word alone for all")
    return name or "*", word


def parse_axis(text: str) -> tuple[str, int]:
    """Parse the number of an axis of an input, ``NAME=AXIS``, or of all inputs, ``AXIS``. Return the name and the
    number."""
    name, equals, number = text.rpartition("=")
    try:
        return (name if equals else "*"), int(number)
    except ValueError:
        raise ValueError(f"{text!r} is not an axis number: write NAME=1, or the number alone for all inputs") from None


def parse_pixels(text: str) -> tuple[str, tuple[int, int]]:
    """Parse an image size for an input, ``NAME=120x160`` (height first), or for all inputs, ``120x160``.

    Return the name of the input (``*`` for all), and height and width in pixels.
    """
    name, size = parse_named_word(text)
    height, _, width = size.partition("x")
    if not height.isdecimal() or not width.isdecimal():
        raise ValueError(
            f"{text!r} is not an image size: write NAME=120x160, height first, or the size alone for all inputs"
        )
    return name, (int(height), int(width))


def parse_normalization(text: str) -> tuple[str, tuple[tuple[float, ...], tuple[float, ...]]]:
    """Parse a mean and a standard deviation for an input, ``NAME=MEAN STD``, or for all inputs, ``MEAN STD``.

    The mean and the deviation are each one number, or several numbers separated by commas: one for each channel.
    """
    name, _, numbers = text.rpartition("=")
    try:
        mean, deviation = (tuple(float(part) for part in several.split(",")) for several in numbers.split())
    except ValueError:
        raise ValueError(
            f"{text!r} is not a mean and a standard deviation: write 127.5 127.5, or 124,116,104 58,57,57"
        ) from None
    return name or "*", (mean, deviation)


def parse_count(text: str) -> int:
    """Parse an unsigned integer."""
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a non-negative integer: write digits alone")
    return int(text)


def make_pair_parser(meaning: str, form: str) -> Callable[[str], tuple[str, str]]:
    """Return the parser of two names with an equals sign between them. ``meaning`` and ``form`` are for errors."""

    def parse_pair(text: str) -> tuple[str, str]:
        first, equals, second = text.rpartition("=")
        if not equals or not first or not second:
            raise ValueError(f"{text!r} is not {meaning}: write {form}")
        return first, second

    return parse_pair


parse_renaming = make_pair_parser("a renaming", "NAME=NEW")
parse_state_feedback = make_pair_parser("an input and the output that updates it", "INPUT=OUTPUT")


def parse_backend_and_library(text: str) -> tuple[str, str]:
    """Parse the name of a backend and the location of its library, ``NAME=PATH``, or the name alone."""
    name, _, place = text.partition("=")
    if not name:
        raise ValueError(f"{text!r} does not name a backend: write cmsis-nn=PATH, or cblas")
    return name, place


def read_text_lines(text: str) -> tuple[str, ...]:
    """Read the lines of a UTF-8 text file. Empty lines at the end of the file are left out."""
    try:
        found = read_bytes(text, MAX_CLASS_FILE_BYTES).decode("utf-8-sig").rstrip().splitlines()
    except OSError as error:
        if error.errno == EFBIG:
            what = f"{text} is longer than {MAX_CLASS_FILE_BYTES:,} bytes: write one class name per line"
            raise ValueError(what) from error
        raise ValueError(f"cannot read {text}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{text} is not a text file in UTF-8: save it with this encoding") from error
    if not found:
        raise ValueError(f"{text} is empty: write one name per line")
    return tuple(line.strip() for line in found)


def parse_path(text: str) -> tuple[Path, ...]:
    """Parse the path of an option that may be repeated, as a tuple with one path."""
    return (Path(text),)


PATHS: frozenset[object] = frozenset({Path, parse_path, parse_input_value, read_text_lines, parse_backend_and_library})
"""Parsers of words that are or contain the path of a file or a folder."""


# ---- Types of the keywords of ``**options``, for completion in editors and for type checkers. The classes are generated from the
# table of options (:class:`~microc.compiler.options.Options`) by ``python -m tests.compiler.test_typed``; the test compares them.

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
    input_values: Mapping[str, Any] | None
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

    A function that passes the options on declares ``def mine(**options: Unpack[microc.CompileOptions])``.
    docs/options.md describes each option.
    """

    learn: str | Path | Mapping[str, Any] | Head | None
    bounds: Mapping[str, Sizes]
    class_names: Sequence[str]
    self_test: str | Path | None
    opt_level: Literal[0, 1, 2, 3, 4]
    disabled: str | Collection[str]
    required: str | Collection[str]
    io_in_arena: bool
    threads: int
    bind_threads: bool
    cores: int
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
    instruments: Instrument | Sequence[Instrument]
    schedules: ScheduleRule | Sequence[ScheduleRule]
