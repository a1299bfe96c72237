"""Words of a command line: parsing, mistakes, values."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from typing import Any, NoReturn

from microc.compiler import option_values
from microc.errors import UsageError, suggestion

# ---- Words of a command line: what argparse makes of them, and how it tells of mistakes.

_HOW = ": write "
"""Of a value's refusal: behind it stands how it is written."""
_REQUIRED = "the following arguments are required: "
"""How argparse begins to tell of what is missing."""


class Parser(argparse.ArgumentParser):
    """Mistakes become the one kind of error message that microc has."""

    def error(self, message: str) -> NoReturn:
        what, write, how = message.partition(_HOW)
        hint = write[2:] + how if write else self._what_is_missing(message)
        raise UsageError(what, hint=f"{hint} (all: {self.prog} --help)" if hint else f"{self.prog} --help")

    def _what_is_missing(self, message: str) -> str:
        """Of arguments that are required: how they are written."""
        named = message.removeprefix(_REQUIRED).split(", ") if message.startswith(_REQUIRED) else []
        found = (action for action in self._actions if argparse._get_action_name(action) in named)
        return "; ".join(f"add {_written(action)}" for action in found)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, which names what is missing before what is misspelt."""
        if self._subparsers is None:
            self._check_options(list(args or ()))
        return super().parse_known_args(args, namespace)

    def format_usage(self) -> str:
        return self._short().format_help()

    def format_help(self) -> str:
        """As argparse's, with a usage that fits a line or two: groups of options, which follow, are not in it."""
        formatter = self._short()
        formatter.add_text(self.description)
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _short(self) -> argparse.HelpFormatter:
        own = {id(action) for group in (self._positionals, self._optionals) for action in group._group_actions}
        actions = [a for a in self._actions if (id(a) in own or a.required) and a.dest not in ("help", "version")]
        formatter = self.formatter_class(prog=f"{self.prog} [options]")
        formatter.add_usage(self.usage, actions, [])
        return formatter

    def _check_options(self, words: list[str]) -> None:
        for word in words[: words.index("--")] if "--" in words else words:
            name, known = word.partition("=")[0], [each for each in self._option_string_actions if each[:2] == "--"]
            if name.startswith("--") and not any(each.startswith(name) for each in known):
                near = suggestion(name, known, "options")
                raise UsageError(f"{self.prog} has no option {name}", hint=f"{near} (all: {self.prog} --help)")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            named = "/".join(action.option_strings) or action.metavar or action.dest
            what = "command" if named == "COMMAND" else f"choice for {named}"
            raise UsageError(
                f"{value!r} is no {what}",
                hint=suggestion(str(value), map(str, action.choices), "commands" if named == "COMMAND" else "choices"),
            )


class Help(argparse.RawDescriptionHelpFormatter):
    """Help whose examples and tables keep their lines where the terminal has room for them."""

    def start_section(self, heading: str | None) -> None:
        super().start_section(heading and textwrap.fill(heading, self._width - 1))

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Callable[[int], tuple[str, ...]]:
        """As argparse's, with one word for choices that would make a line too long."""
        if self._has_many(action):
            return lambda size: ("WORD",) * size
        return super()._metavar_formatter(action, default_metavar)

    def _expand_help(self, action: argparse.Action) -> str:
        text = super()._expand_help(action)
        return f"{text}; one of {', '.join(map(str, action.choices or ()))}" if self._has_many(action) else text

    def _has_many(self, action: argparse.Action) -> bool:
        """Test whether an option's choices take more letters than a line of the usage has for them."""
        listed = action.metavar is None and action.choices is not None and bool(action.option_strings)
        return listed and len(",".join(map(str, action.choices or ()))) > self._width // 3 - len("{}[]")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = (line for line in super()._fill_text(text, width, indent).splitlines())
        return "".join(f"{part}\n" for line in lines for part in _narrow(line, self._width))


def _narrow(line: str, width: int) -> list[str]:
    """A line of prose or an example within ``width``; an example is read by a shell as one."""
    if len(line) <= width:
        return [line]
    start = line[: len(line) - len(line.lstrip())]
    example = line.lstrip().startswith("microc ")
    parts = textwrap.wrap(
        line, width - 2 * example, subsequent_indent=start + "  ", break_long_words=False, break_on_hyphens=False
    )
    return [f"{part} \\" if example and part is not parts[-1] else part for part in parts]


def _written(action: argparse.Action) -> str:
    """An argument as it is written, and what it is."""
    flag = f"{action.option_strings[0]} " if action.option_strings else ""
    return f"{flag}{action.metavar or action.dest.upper()}, {str(action.help).split(' (default')[0].split(';')[0]}"


# ---- What words on the command line mean that are no options of a compilation: seconds, rates, tolerances.


def seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds: write 10 or 0.5")
    return seconds


_UNITS = {"s": 1, "m": 60, "h": 3600}


def duration(text: str) -> float:
    """90s, 10m or 2h, in seconds."""
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    try:
        return seconds(str(float(number) * unit))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 90s, 10m or 2h") from None


GROWING = ("flash", "ram", "time")
"""What ``--fail-over`` bounds (:data:`microc.reports.firmware_size.WHAT`)."""
MOST_INFERENCES = 1_000_000
BAUDS = (115200, 921600, 460800, 230400, 1000000, 57600, 38400, 19200, 9600)
"""What ``auto`` tries."""


def bauds(text: str) -> tuple[int, ...]:
    """Rates between commas, or ``auto``."""
    if text == "auto":
        return BAUDS
    rates = tuple(int(part) if part.isdecimal() else 0 for part in text.split(","))
    if not all(300 <= rate <= 20_000_000 for rate in rates):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of baud rates: write 115200,921600 or auto")
    return rates


def quanta(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of quanta: write 0, 1, 2 ...")
    return int(text)


def inferences(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= MOST_INFERENCES:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of inferences: 1 to {MOST_INFERENCES:,}")
    return int(text)


def tolerance(text: str) -> float:
    return _below(1, text, "tolerance between 0 and 1: write 1e-5")


def share(text: str) -> float:
    """0.01 or 1%."""
    return _below(1e6, text, "share: write 0.01 or 1%")


def growth(text: str) -> tuple[str, float]:
    """2%, or flash=2%; the empty name speaks of all."""
    name, _, bound = text.rpartition("=")
    if name and name not in GROWING:
        raise argparse.ArgumentTypeError(f"{text!r} bounds {name!r}: there are {', '.join(GROWING)}")
    return name, share(bound)


def _below(most: float, text: str, what: str) -> float:
    """A number that is not negative, or so many percent."""
    try:
        number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < most:
        raise argparse.ArgumentTypeError(f"{text!r} is no {what}")
    return number


def size(text: str) -> int:
    """65536 or 64K."""
    try:
        return option_values.bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def layer_bits(text: str) -> tuple[str, int]:
    """NAME=4."""
    name, _, bits = text.rpartition("=")
    if not name or not bits.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} says no bits: write NAME=4")
    return name, int(bits)
