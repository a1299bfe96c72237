# SPDX-License-Identifier: Apache-2.0
"""Declarations of commands and their arguments: the classes, parsers of values, and arguments that commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast, dataclass_transform

from microc.base.immutable import LazyEntry, frozen
from microc.compiler.options import COMPILING, OPTIONS, READING, STREAMING, Option, Options, combine_option_words

if TYPE_CHECKING:
    from microc.cli.show import Answer
    from microc.project.config import Config


# ---- Declarations of commands and of their arguments.
#
# A command is a class with an attribute for each argument, decorated by :func:`command`. The parser of the
# command line, ``--help``, the completion scripts, the manual page and docs/commands.md are derived from these
# declarations, as is the typed object that the function of the command gets. Nothing that is slow to import is
# imported here, so that ``--help`` is instant.


# ---- The declaration of an argument.

SERIAL_LINE, EVERYWHERE = "serial line to the board", "everywhere"
SHARED_SECTIONS = (SERIAL_LINE, READING, COMPILING, STREAMING, EVERYWHERE)
"""Sections of ``--help`` that many commands have. They follow a command's own sections, in this order."""


@frozen
class Argument:
    """The declaration of an argument of a command.

    - ``help``: noun phrase for ``--help``, at most 80 characters; empty: the argument is not shown, because the command
      refuses it.
    - ``flags``: names on the command line, the long one last; empty: the argument is positional.
    - ``metavar``: placeholder of the word in ``--help``, which also tells what completions offer (``F.html``, ``DIR``);
      several placeholders, separated by spaces, for several words. Empty: a switch, or an argument with ``choices``.
    - ``word``: parser of the word, or of several words joined by spaces. A ValueError states the accepted form.
    - ``choices``: all accepted values, if there are few.
    - ``default``: value without the argument; for a switch, the opposite of its value.
    - ``count``: number of words, as argparse writes it: ``?``, ``*`` or ``+``; empty: one word for each placeholder.
    - ``required``: True if the option must be given.
    - ``repeatable``: True if the option may be repeated. Its value is then the sequence of the parsed words.
    - ``section``: section of ``--help``; empty: the first one.
    - ``names``: function that lists names that the value may have, for completion.
    """

    help: str
    flags: tuple[str, ...] = ()
    metavar: str = ""
    word: Callable[[str], Any] = str
    choices: tuple[Any, ...] = ()
    default: Any = None
    count: str = ""
    required: bool = False
    repeatable: bool = False
    section: str = ""
    names: Callable[[], Sequence[str]] | None = None

    @property
    def is_switch(self) -> bool:
        """True if the argument is an option without a word."""
        return bool(self.flags) and not self.metavar and not self.choices

    @property
    def metavars(self) -> tuple[str, ...]:
        """The placeholders of the argument's words, in order; for an argument with choices, the choices."""
        return tuple(self.metavar.split()) or ("|".join(map(str, self.choices)),)


OPTION_PREFIX = "option_"
"""Prefix of the names of compilation options among all arguments of a command, so that they differ from the command's own."""
HELP = Argument("show this help message and exit", ("-h", "--help"))
VERSION = Argument("show program's version number and exit", ("--version",))
"""Options that end the program, so that no command has a value of them."""


# ---- Functions that declare an attribute of an arguments class. A type checker sees the type of the parsed value, so that it
# compares the attribute's annotation with the parser of the word. ``flags``: separated by spaces; ``more``: further fields of
# :class:`Argument`.

T = TypeVar("T")


def switch(flags: str, help: str, *, value: bool = True, **more: Any) -> bool:
    """Declare an option without a word, whose value is ``value`` if it is given, else the opposite."""
    return cast(bool, Argument(help, tuple(flags.split()), default=not value, **more))


def option(flags: str, metavar: str, help: str, word: Callable[[str], T], default: T, **more: Any) -> T:
    """Declare an option with a default."""
    return cast(T, Argument(help, tuple(flags.split()), metavar, word, default=default, **more))


def optional_option(flags: str, metavar: str, help: str, word: Callable[[str], T], **more: Any) -> T | None:
    """Declare an option whose value is None if it is not given."""
    return cast(T | None, Argument(help, tuple(flags.split()), metavar, word, **more))


def text_option(flags: str, metavar: str, help: str, **more: Any) -> str:
    """Declare an option whose value is a text, empty if it is not given."""
    return option(flags, metavar, help, str, "", **more)


def path_option(flags: str, metavar: str, help: str, **more: Any) -> Path | None:
    """Declare an option whose value is a path, None if it is not given."""
    return optional_option(flags, metavar, help, Path, **more)


def required_option(flags: str, metavar: str, help: str, word: Callable[[str], T], **more: Any) -> T:
    """Declare an option that must be given."""
    return cast(T, Argument(help, tuple(flags.split()), metavar, word, required=True, **more))


def repeatable_option(flags: str, metavar: str, help: str, word: Callable[[str], T], **more: Any) -> tuple[T, ...]:
    """Declare an option that may be repeated, whose value is the tuple of all parsed words."""
    return cast(tuple[T, ...], Argument(help, tuple(flags.split()), metavar, word, default=(), repeatable=True, **more))


def choice(flags: str, choices: Sequence[T], help: str, default: T, **more: Any) -> T:
    """Declare an option whose value is one of ``choices``, which are written as in Python."""
    return cast(
        T, Argument(help, tuple(flags.split()), word=type(default), choices=tuple(choices), default=default, **more)
    )


def positional(metavar: str, help: str, word: Callable[[str], T], **more: Any) -> T:
    """Declare an argument without a flag, which must be given."""
    return cast(T, Argument(help, (), metavar, word, **more))


def optional_positional(metavar: str, help: str, word: Callable[[str], T], default: T, **more: Any) -> T:
    """Declare an argument without a flag, which may be omitted."""
    return cast(T, Argument(help, (), metavar, word, default=default, count="?", **more))


def positionals(metavar: str, help: str, word: Callable[[str], T], **more: Any) -> tuple[T, ...]:
    """Declare an argument without a flag, which may be given any number of times."""
    return cast(tuple[T, ...], Argument(help, (), metavar, word, default=(), count="*", **more))


# ---- Compilation options as arguments, derived from the table in :mod:`microc.compiler.options`.

_DEFAULT = Options()


def compilation_options(
    *sections: str, replaced_help: Mapping[str, str] = MappingProxyType({}), only: Sequence[str] = (), **more: Any
) -> Mapping[str, Any]:
    """Declare the compilation options of some sections (READING, COMPILING, STREAMING), or those named in ``only``.

    The value is the mapping of those that are given, as keywords of :func:`microc.compiler.options.make_options`.
    ``replaced_help``: help by the name of the option, instead of that of the table; empty if the command refuses the
    option."""
    return MappingProxyType(
        {
            name: _argument_of_option(name, declared, replaced_help, **more)
            for name, declared in OPTIONS.items()
            if declared.flag and (declared.group in sections or name in only)
        }
    )


def _argument_of_option(name: str, declared: Option, replaced_help: Mapping[str, str], **more: Any) -> Argument:
    """Return the argument of a compilation option. An option that is a boolean without words is a switch."""
    may_repeat = _is_repeatable(name)
    help = f"{declared.applies}: {declared.text}" if declared.applies else declared.text
    return Argument(
        replaced_help.get(name, f"{help}; repeatable" if may_repeat else help),
        (declared.flag,),
        "" if declared.words else declared.metavar,
        str if declared.words else declared.word,
        choices=tuple(declared.words),
        default=getattr(_DEFAULT, name),
        repeatable=may_repeat,
        **{"section": declared.group, **more},
    )


def _is_repeatable(name: str) -> bool:
    """Test whether a compilation option may be given several times."""
    return isinstance(getattr(_DEFAULT, name), (Mapping, tuple, frozenset))


def _combine_option_values(parsed: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the parsed values of compilation options to keywords of :func:`microc.compiler.options.make_options`."""
    return {
        name: combine_option_words(getattr(_DEFAULT, name), value)
        if _is_repeatable(name)
        else OPTIONS[name].words.get(value, value)
        for name, value in parsed.items()
    }


def compilation_option_words(command_words: Sequence[str], board: str) -> list[str]:
    """Return the words of a command line that state compilation options, preceded by ``--board``.

    They are repeated in the commands of advice. ``command_words``: words of the command line; ``board``: empty if none is
    given."""
    arguments = compilation_options(READING, COMPILING, STREAMING)
    arguments_by_flag = {flag: argument for argument in arguments.values() for flag in argument.flags}
    kept, value_count = ["--board", board] if board else [], 0
    for word in command_words:
        flag = word.partition("=")[0]
        if value_count:
            value_count -= 1
        elif flag in arguments_by_flag:
            argument = arguments_by_flag[flag]
            value_count = 0 if argument.is_switch or flag != word else len(argument.metavars)
        else:
            continue
        kept.append(word)
    return kept


# ---- The parsed arguments of a command.


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Arguments:
    """The parsed arguments of a command.

    The attributes of the class declare the arguments; those of an instance are their values. Base classes declare what
    several commands share. A class attribute that declares no argument is the value of all instances."""

    json: bool = switch(
        "--json", "output as JSON, including errors (tune: a line per batch, watch: a line per run)", section=EVERYWHERE
    )
    quiet: bool = switch("-q --quiet", "no output except errors", section=EVERYWHERE)
    verbose: bool = switch("-v --verbose", "progress messages and timing on stderr", section=EVERYWHERE)
    words: tuple[str, ...] = ()
    """The words of the command line."""
    config: Config | None = None
    """The ``microc.toml`` from which arguments were filled that the command line omits; None if it was not needed."""
    command_line_options: Mapping[str, Any] = MappingProxyType({})
    """Compilation options of the command line, as keywords of :func:`microc.compiler.options.make_options`."""
    command: ClassVar[Command]

    def __init__(self, **values: Any) -> None:
        vars(self).update({name: argument.default for name, argument in self.own_arguments().items()})
        vars(self).update({"command_line_options": {}, **values})

    @property
    def options(self) -> dict[str, Any]:
        """Compilation options of ``microc.toml`` and of the command line; those of the command line take precedence."""
        return {**(self.config.options if self.config else {}), **self.command_line_options}

    def replace(self, **values: Any) -> Self:
        """Return a copy with other values of some arguments."""
        return type(self)(**{**vars(self), **values})

    @classmethod
    def own_arguments(cls) -> dict[str, Argument]:
        """Return the arguments that are no compilation options, by attribute: those of base classes first."""
        attributes = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
        return {name: value for name, value in attributes.items() if isinstance(value, Argument)}

    @classmethod
    def sections(cls) -> dict[str, dict[str, Argument]]:
        """Return all arguments by section of ``--help`` and by name: unnamed section, own sections, shared sections.

        The name of a compilation option begins with :data:`OPTION_PREFIX`."""
        options = {OPTION_PREFIX + name: argument for name, argument in cls.command_line_options.items()}
        arguments = {**options, **cls.own_arguments()}
        titles = dict.fromkeys(argument.section for argument in arguments.values())
        order = ("", *(title for title in titles if title not in SHARED_SECTIONS), *SHARED_SECTIONS)
        sections = {
            title: {name: argument for name, argument in arguments.items() if argument.section == title}
            for title in dict.fromkeys(order)
        }
        return {title: section for title, section in sections.items() if section}

    @classmethod
    def from_parsed_values(cls, parsed: Mapping[str, Any], words: Sequence[str]) -> Self:
        """Make the object from the values of the given arguments, by the names of :meth:`sections`."""
        options = {name: parsed[key] for name in cls.command_line_options if (key := OPTION_PREFIX + name) in parsed}
        values = {
            name: tuple(parsed[name]) if isinstance(parsed[name], list) else parsed[name]
            for name in cls.own_arguments()
            if name in parsed
        }
        return cls(words=tuple(words), command_line_options=_combine_option_values(options), **values)


# ---- The declaration of a command.


@frozen
class Command:
    """The declaration of a command.

    - ``name``: word of the command line.
    - ``summary``: one line for ``microc --help``.
    - ``arguments``: class that declares the arguments.
    - ``function``: function that gets the parsed arguments and returns the answer, imported when the command runs.
    - ``examples``: command lines for ``--help`` and the pages, without ``microc NAME``.
    - ``notes``: text below the examples.
    - ``section_notes``: text below the title of a section of ``--help``, by title.
    - ``json_lines``: True if ``--json`` prints JSON lines: several JSON objects, each on a line of its own.
    """

    name: str
    summary: str
    arguments: type[Arguments]
    function: LazyEntry[Callable[[Any], Answer]]
    examples: tuple[str, ...]
    notes: str = ""
    section_notes: Mapping[str, str] = field(default_factory=dict)
    json_lines: bool = False

    @property
    def description(self) -> str:
        """The summary as a sentence."""
        return self.summary[0].upper() + self.summary[1:] + ("" if self.summary.endswith(".") else ".")

    @property
    def synopsis(self) -> str:
        """The command with its positional arguments and required options."""
        words = []
        for argument in self.arguments.own_arguments().values():
            if not argument.flags or argument.required:
                word = " ".join((*argument.flags[:1], *argument.metavars))
                words.append(f"[{word}]" if argument.count else word)
        return " ".join(("microc", self.name, *words, "[options]"))

    @property
    def example_lines(self) -> tuple[str, ...]:
        """The examples as whole command lines."""
        return tuple(f"microc {self.name} {example}".rstrip() for example in self.examples)


_Arguments = TypeVar("_Arguments", bound=Arguments)


def command(
    name: str, summary: str, function: str, *examples: str, **more: Any
) -> Callable[[type[_Arguments]], type[_Arguments]]:
    """Declare a command, whose arguments are those of the decorated class.

    ``function``: module in :mod:`microc.cli` and name of the function that runs the command, separated by a colon;
    ``more``: further fields of :class:`Command`."""
    module, _, function_name = function.partition(":")

    def declare(arguments: type[_Arguments]) -> type[_Arguments]:
        entry = LazyEntry[Callable[[Any], "Answer"]](f"microc.cli.{module}", function_name)
        arguments.command = Command(name, summary, arguments, entry, examples, **more)
        return arguments

    return declare


def list_declared_commands(*modules: ModuleType) -> dict[str, Command]:
    """List the commands that modules declare, by name, in the order of their declarations."""
    classes = (value for module in modules for value in vars(module).values() if isinstance(value, type))
    commands = (vars(arguments)["command"] for arguments in classes if "command" in vars(arguments))
    return {declared.name: declared for declared in commands}


# ---- Parsers of the words of arguments that are no compilation options: seconds, baud rates, tolerances.
#
# The text of a ValueError states the mistake and the accepted form.


def parse_seconds(text: str) -> float:
    """Parse a positive number of seconds, such as 10 or 0.5."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ValueError(f"got {text!r}, expected a number of seconds above 0: write 10 or 0.5")
    return seconds


_SECONDS_BY_UNIT = {"s": 1, "m": 60, "h": 3600}


def parse_duration(text: str) -> float:
    """Parse a duration with a unit, such as 90s, 10m or 2h, and return it in seconds."""
    number, unit = (text[:-1], _SECONDS_BY_UNIT[text[-1]]) if text[-1:] in _SECONDS_BY_UNIT else (text, 1)
    try:
        return parse_seconds(str(float(number) * unit))
    except ValueError:
        raise ValueError(f"got {text!r}, expected a duration: write 90s, 10m or 2h") from None


BOUNDED_FIGURES = ("flash", "ram", "time")
"""Figures whose growth ``--fail-over`` can limit; the same as :data:`microc.reports.firmware_size.FIGURES`."""
BAUDS = (115200, 921600, 460800, 230400, 1000000, 57600, 38400, 19200, 9600)
"""Baud rates that ``--baud auto`` tries, in this order."""


def parse_baud_rates(text: str) -> tuple[int, ...]:
    """Parse baud rates separated by commas; return :data:`BAUDS` for ``auto``."""
    if text == "auto":
        return BAUDS
    rates = tuple(int(part) if part.isdecimal() else 0 for part in text.split(","))
    if not all(300 <= rate <= 20_000_000 for rate in rates):
        raise ValueError(f"got {text!r}, expected baud rates from 300 to 20000000: write 115200,921600 or auto")
    return rates


def parse_quanta(text: str) -> int:
    """Parse a number of quantisation steps, 0 or more."""
    return _parse_integer(text, 0, None, "a number of quantisation steps: write 0, 1, 2 ...")


def parse_inference_count(text: str) -> int:
    """Parse a number of inferences, 1 to a million."""
    return _parse_integer(text, 1, 1_000_000, "a number of inferences from 1 to 1,000,000")


def parse_run_count(text: str) -> int:
    """Parse a number of runs, 1 or more."""
    return _parse_integer(text, 1, (1 << 31) - 1, "a number of runs, 1 or more")


def parse_tcp_port(text: str) -> int:
    """Parse the number of a TCP port, 1 to 65535."""
    return _parse_integer(text, 1, (1 << 16) - 1, "a TCP port: write a number from 1 to 65535")


def _parse_integer(text: str, least: int, most: int | None, expected_form: str) -> int:
    """Parse an integer from ``least`` to ``most`` (None: any); ``expected_form``: end of the error message."""
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        raise ValueError(f"got {text!r}, expected {expected_form}")
    return int(text)


def parse_tolerance(text: str) -> float:
    """Parse a relative tolerance, at least 0 and below 1."""
    return _parse_number_below(1, text, "tolerance between 0 and 1: write 1e-5")


def parse_learning_rate(text: str) -> float:
    """Parse a learning rate, 0 or more."""
    return _parse_number_below(1e6, text, "learning rate: write 0.01")


def parse_share(text: str) -> float:
    """Parse a share that is written as a fraction (0.01) or in percent (1%); return the fraction."""
    return _parse_number_below(1e6, text, "share: write 0.01 or 1%")


def parse_growth_limit(text: str) -> tuple[str, float]:
    """Parse a limit of growth, such as 2% or flash=2%; return the figure's name (empty: all figures) and the share."""
    name, _, bound = text.rpartition("=")
    if name and name not in BOUNDED_FIGURES:
        raise ValueError(f"got a limit for {name!r}, expected one of {', '.join(BOUNDED_FIGURES)}")
    return name, parse_share(bound)


def _parse_number_below(upper_limit: float, text: str, expected_form: str) -> float:
    """Parse a number or percentage from 0 to below ``upper_limit``; ``expected_form``: end of the error message."""
    try:
        number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < upper_limit:
        raise ValueError(f"got {text!r}, expected a {expected_form}")
    return number


def parse_layer_bits(text: str) -> tuple[str, int]:
    """Parse ``NAME=BITS``; return the name of the layer and its number of bits."""
    name, _, bits = text.rpartition("=")
    if not name or not bits.isdecimal():
        raise ValueError(f"got {text!r}, expected a layer and its number of bits: write NAME=4")
    return name, int(bits)


def parse_pixel_values(text: str) -> tuple[float, float]:
    """Parse the real values of pixels 0 and 255, which are separated by a space."""
    try:
        low, high = map(float, text.split())
    except ValueError:
        raise ValueError(f"got {text!r}, expected two numbers: write -1 1") from None
    return low, high


# ---- Arguments that several commands share: base classes, and single arguments.


MODEL = "model file: .tflite, .onnx, .keras, .h5, .pt2, .mcg, LightGBM, XGBoost, CatBoost"
FROM_CONFIG = Path("microc.toml")
"""Value of a path that the command line omits. :func:`microc.cli.argument_sources.fill_from_config` replaces it by a path that
``microc.toml`` names, or reports that it is missing, before the command runs. It is compared by identity."""


# ---- Functions that list names, for completion. They import what is slow.


def list_board_names() -> tuple[str, ...]:
    """List the names of all boards."""
    from microc.device.boards import list_boards

    return list_boards()


def list_core_names() -> tuple[str, ...]:
    """List the names of all cores."""
    from microc.isa import CORES

    return tuple(CORES)


# ---- Base classes.


class CompileArguments(Arguments):
    """Compilation options and the board."""

    command_line_options: Mapping[str, Any] = compilation_options(READING, COMPILING, STREAMING)
    board: str = text_option(
        "--board",
        "BOARD",
        "board: name (microc boards) or board file (default: host)",
        section=COMPILING,
        names=list_board_names,
    )


class ReadingArguments(Arguments):
    """Compilation options that control how a model is read."""

    command_line_options: Mapping[str, Any] = compilation_options(READING)


class ModelArguments(CompileArguments):
    """A model to compile."""

    model: Path = optional_positional("MODEL", MODEL, Path, FROM_CONFIG)


class FolderArguments(Arguments):
    """The folder of a project."""

    folder: Path = optional_positional("DIR", "project folder (default: from microc.toml)", Path, FROM_CONFIG)


class SourceArguments(CompileArguments):
    """A project, or a model that is compiled for a temporary project."""

    source: Path = optional_positional(
        "DIR|MODEL", "project folder, or model to compile and build (default: from microc.toml)", Path, FROM_CONFIG
    )


class SerialArguments(Arguments):
    """The serial line to a board."""

    port: str = text_option(
        "--port",
        "PORT",
        "serial port, tcp:// or socket://HOST:PORT, or auto (default: emulator, else auto)",
        section=SERIAL_LINE,
    )
    baud: tuple[int, ...] = option(
        "--baud",
        "RATE,...",
        "baud rates to try in order, or auto for common rates (default: the board's)",
        parse_baud_rates,
        (),
        section=SERIAL_LINE,
    )
    timeout: float = option(
        "--timeout",
        "SECONDS",
        "time to wait for an answer, or for a lost line to reconnect (default: 10)",
        parse_seconds,
        10.0,
        section=SERIAL_LINE,
    )


class DeviceArguments(SourceArguments, SerialArguments):
    """A network on a board."""

    network: str = text_option(
        "--network", "NAME", "name of the network, if the project has several (default: the first)"
    )


class InputArguments(Arguments):
    """One set of inputs."""

    inputs: tuple[Path, ...] = repeatable_option(
        "--input", "X.npy|PICTURE", "input array or picture, once per input, in order (default: random)", Path
    )
    pixels: tuple[float, float] | None = optional_option(
        "--pixels",
        "LOW HIGH",
        "input values of pixels 0 and 255 (default: raw bytes for 8-bit inputs, else 0 1)",
        parse_pixel_values,
    )


# ---- Single arguments.

FORCE = switch("--force", "permission to overwrite the project of another network")
INPUT_SEED = option("--seed", "SEED", "seed of the random inputs (default: 20)", int, 20)
VERIFIED = path_option(
    "--verified", "F.json|DIR", "accuracy to show: saved output of verify --json, or folder of verify --evidence"
)
