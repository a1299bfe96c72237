"""A parser of command lines (argparse with microc's errors and help layout), and converters of the values of options."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from typing import Any, NoReturn

from microc.compiler import option_values
from microc.errors import UsageError, known_names_hint

# ---- The parser: mistakes in the command line become UsageErrors with a hint.

_HINT_MARK = ": write "
"""Separator in the error message of a converter: the text after it is the hint."""
_REQUIRED = "the following arguments are required: "
"""Prefix of argparse's message about missing arguments; their names follow."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError for mistakes in the command line, instead of ending the program."""

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError with an error message of argparse.

        The hint is the part of the message after ``: write`` or, for missing arguments, the syntax of these arguments."""
        what, write, how = message.partition(_HINT_MARK)
        hint = write[2:] + how if write else self._missing_hint(message)
        raise UsageError(what, hint=f"{hint} (all: {self.prog} --help)" if hint else f"{self.prog} --help")

    def _missing_hint(self, message: str) -> str:
        """Return the hint for argparse's message about missing arguments: the syntax and help of each; else empty."""
        missing = message.removeprefix(_REQUIRED).split(", ") if message.startswith(_REQUIRED) else []
        actions = (action for action in self._actions if argparse._get_action_name(action) in missing)
        return "; ".join(f"add {_argument_syntax_and_help(action)}" for action in actions)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments as argparse does, but report an unknown option before a missing argument."""
        if self._subparsers is None:
            self._check_options(list(args or ()))
        return super().parse_known_args(args, namespace)

    def format_usage(self) -> str:
        """Format the usage without the options that belong to groups."""
        return self._start_formatter().format_help()

    def format_help(self) -> str:
        """Format the help as argparse does, but with a short usage, which omits the options that belong to groups."""
        formatter = self._start_formatter()
        formatter.add_text(self.description)
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _start_formatter(self) -> argparse.HelpFormatter:
        """Return a formatter that contains the short usage: positional arguments, ungrouped options, required options."""
        own = {id(action) for group in (self._positionals, self._optionals) for action in group._group_actions}
        actions = [a for a in self._actions if (id(a) in own or a.required) and a.dest not in ("help", "version")]
        formatter = self.formatter_class(prog=f"{self.prog} [options]")
        formatter.add_usage(self.usage, actions, [])
        return formatter

    def _check_options(self, command_words: list[str]) -> None:
        """Raise UsageError for the first unknown long option. Prefixes of known options are accepted, as in argparse."""
        for word in command_words[: command_words.index("--")] if "--" in command_words else command_words:
            name = word.partition("=")[0]
            options = [option for option in self._option_string_actions if option[:2] == "--"]
            if name.startswith("--") and not any(option.startswith(name) for option in options):
                nearest_option = known_names_hint(name, options, "options")
                raise UsageError(
                    f"{self.prog} has no option {name}", hint=f"{nearest_option} (all: {self.prog} --help)"
                )

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise UsageError for a value that is none of the argument's choices; the hint names the most similar choice."""
        if action.choices is not None and value not in action.choices:
            named = "/".join(action.option_strings) or action.metavar or action.dest
            what = "command" if named == "COMMAND" else f"choice for {named}"
            raise UsageError(
                f"{value!r} is no {what}",
                hint=known_names_hint(
                    str(value), map(str, action.choices), "commands" if named == "COMMAND" else "choices"
                ),
            )


class CommandHelpFormatter(argparse.RawDescriptionHelpFormatter):
    """A formatter of help that does not rewrap examples and tables unless the terminal is too narrow for their lines."""

    def start_section(self, heading: str | None) -> None:
        super().start_section(heading and textwrap.fill(heading, self._width - 1))

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Callable[[int], tuple[str, ...]]:
        """Return argparse's formatter of metavars; for an option with a long list of choices, one that prints ``WORD``."""
        if self._has_long_choices(action):
            return lambda size: ("WORD",) * size
        return super()._metavar_formatter(action, default_metavar)

    def _expand_help(self, action: argparse.Action) -> str:
        text = super()._expand_help(action)
        return f"{text}; one of {', '.join(map(str, action.choices or ()))}" if self._has_long_choices(action) else text

    def _has_long_choices(self, action: argparse.Action) -> bool:
        """Test whether the list of an option's choices is longer than a third of the line."""
        listed = action.metavar is None and action.choices is not None and bool(action.option_strings)
        return listed and len(",".join(map(str, action.choices or ()))) > self._width // 3 - len("{}[]")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = (line for line in super()._fill_text(text, width, indent).splitlines())
        return "".join(f"{part}\n" for line in lines for part in _wrap_help_line(line, self._width))


def _wrap_help_line(line: str, width: int) -> list[str]:
    """Wrap a line of a help text to ``width`` characters.

    If the line is an example command, all wrapped lines but the last end in a backslash, so that a shell reads them as one."""
    if len(line) <= width:
        return [line]
    start = line[: len(line) - len(line.lstrip())]
    example = line.lstrip().startswith("microc ")
    parts = textwrap.wrap(
        line, width - 2 * example, subsequent_indent=start + "  ", break_long_words=False, break_on_hyphens=False
    )
    return [f"{part} \\" if example and part is not parts[-1] else part for part in parts]


def _argument_syntax_and_help(action: argparse.Action) -> str:
    """Return the flag and metavar of an argument, and the first clause of its help."""
    flag = f"{action.option_strings[0]} " if action.option_strings else ""
    return f"{flag}{action.metavar or action.dest.upper()}, {str(action.help).split(' (default')[0].split(';')[0]}"


# ---- Converters of the values of options that are not compilation options: seconds, baud rates, tolerances. They raise
# ArgumentTypeError for an invalid text.


def parse_seconds(text: str) -> float:
    """Parse a positive number of seconds, such as 10 or 0.5; ArgumentTypeError for any other text."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number of seconds above 0: write 10 or 0.5")
    return seconds


_SECONDS_BY_UNIT = {"s": 1, "m": 60, "h": 3600}


def parse_duration(text: str) -> float:
    """Parse a duration with a unit, such as 90s, 10m or 2h, and return it in seconds."""
    number, unit = (text[:-1], _SECONDS_BY_UNIT[text[-1]]) if text[-1:] in _SECONDS_BY_UNIT else (text, 1)
    try:
        return parse_seconds(str(float(number) * unit))
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a duration: write 90s, 10m or 2h") from None


BOUNDED_FIGURES = ("flash", "ram", "time")
"""Figures whose growth ``--fail-over`` can limit; the same as :data:`microc.reports.firmware_size.FIGURES`."""
MOST_INFERENCES = 1_000_000
BAUDS = (115200, 921600, 460800, 230400, 1000000, 57600, 38400, 19200, 9600)
"""Baud rates that ``--baud auto`` tries, in this order."""


def parse_baud_rates(text: str) -> tuple[int, ...]:
    """Parse baud rates separated by commas; return :data:`BAUDS` for ``auto``."""
    if text == "auto":
        return BAUDS
    rates = tuple(int(part) if part.isdecimal() else 0 for part in text.split(","))
    if not all(300 <= rate <= 20_000_000 for rate in rates):
        raise argparse.ArgumentTypeError(
            f"got {text!r}, expected baud rates from 300 to 20000000: write 115200,921600 or auto"
        )
    return rates


def parse_quanta(text: str) -> int:
    """Parse a number of quantisation steps, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number of quantisation steps: write 0, 1, 2 ...")
    return int(text)


def parse_inference_count(text: str) -> int:
    """Parse a number of inferences, 1 to :data:`MOST_INFERENCES`."""
    if not text.isdecimal() or not 0 < int(text) <= MOST_INFERENCES:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number of inferences from 1 to {MOST_INFERENCES:,}")
    return int(text)


def parse_tolerance(text: str) -> float:
    """Parse a relative tolerance, at least 0 and below 1."""
    return _parse_number_below(1, text, "tolerance between 0 and 1: write 1e-5")


def parse_share(text: str) -> float:
    """Parse a share that is written as a fraction (0.01) or in percent (1%); return the fraction."""
    return _parse_number_below(1e6, text, "share: write 0.01 or 1%")


def parse_growth_limit(text: str) -> tuple[str, float]:
    """Parse a limit of growth, such as 2% or flash=2%; return the figure's name (empty: all figures) and the share."""
    name, _, bound = text.rpartition("=")
    if name and name not in BOUNDED_FIGURES:
        raise argparse.ArgumentTypeError(f"got a limit for {name!r}, expected one of {', '.join(BOUNDED_FIGURES)}")
    return name, parse_share(bound)


def _parse_number_below(upper_limit: float, text: str, expected_form: str) -> float:
    """Parse a number or percentage from 0 to below ``upper_limit``; ``expected_form``: end of the error message."""
    try:
        number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < upper_limit:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a {expected_form}")
    return number


def parse_byte_size(text: str) -> int:
    """Parse a number of bytes, such as 65536 or 64K; ArgumentTypeError for any other text."""
    try:
        return option_values.parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_layer_bits(text: str) -> tuple[str, int]:
    """Parse ``NAME=BITS``; return the name of the layer and its number of bits."""
    name, _, bits = text.rpartition("=")
    if not name or not bits.isdecimal():
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a layer and its number of bits: write NAME=4")
    return name, int(bits)
