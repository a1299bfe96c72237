"""The options that say how a model is read and compiled, which many commands share: those of the table of options, as flags."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from microc.driver.options import OPTIONS, Options
from microc.driver.options.option import COMPILING, READING, STREAMING, Option, joined

_DEFAULT = Options()
_PREFIX = "option_"  # in the namespace of arguments, where commands have names of their own


def reading_options(command: argparse.ArgumentParser) -> None:
    """Those that a graph is read under."""
    _group(command, READING)


def compile_options(command: argparse.ArgumentParser, *, board: bool = True) -> None:
    """All, and the board, unless the command has several."""
    reading_options(command)
    group = _group(command, COMPILING)
    if board:
        group.add_argument("--board", default="", help="a name (microc boards) or a board file (default: host)")
    _group(command, STREAMING)


def plugin_option(command: argparse._ActionsContainer) -> None:
    """Operators of the user's own."""
    _add(command, "plugins", OPTIONS["plugins"])


def chosen_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that stand on a command line, or else in ``microc.toml``, as keywords of
    :func:`microc.driver.options.make_options`."""
    config = getattr(arguments, "config", None)
    return {**(config.options if config else {}), **spoken_options(arguments)}


def spoken_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Those of the command line alone."""
    found = {}
    for name, option in OPTIONS.items():
        given = getattr(arguments, _PREFIX + name, None)
        if given is not None:
            value = option.words[given] if option.words else given
            found[name] = joined(getattr(_DEFAULT, name), value) if _repeats(name) else value
    return found


def option_words(words: Sequence[str], board: str) -> list[str]:
    """Collect the compilation options of a command line, and the board, as the words that another command repeats."""
    flags = {option.flag: name for name, option in OPTIONS.items() if option.flag}
    found, left = ["--board", board] if board else [], 0
    for word in words:
        flag = word.partition("=")[0]
        if left:
            left -= 1
        elif flag in flags:
            bare = isinstance(getattr(_DEFAULT, flags[flag]), bool) and not OPTIONS[flags[flag]].words
            left = 0 if bare or flag != word else max(1, len(OPTIONS[flags[flag]].metavar.split()))
        else:
            continue
        found.append(word)
    return found


def _group(command: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    group = command.add_argument_group(title)
    for name, option in OPTIONS.items():
        if option.group == title and option.flag:
            _add(group, name, option)
    return group


def _add(command: argparse._ActionsContainer, name: str, option: Option) -> None:
    help, more = option.text, dict[str, Any]()
    if option.applies:
        help = f"{option.applies}: {help}"
    if getattr(_DEFAULT, name) is True and not option.words:  # a flag that says no
        more.update(action="store_const", const=False)
    elif getattr(_DEFAULT, name) is False:
        more.update(action="store_const", const=True)
    elif option.words:
        more["choices"] = list(option.words)
    else:
        more.update(type=_spoken(option.word), metavar=option.metavar)
    parts = option.metavar.split()
    if _repeats(name):
        more["action"], help = "append", f"{help}; repeatable"
    if len(parts) > 1:
        more |= {"nargs": len(parts), "metavar": tuple(parts), "type": str, "action": _Together, "const": more["type"]}
    command.add_argument(option.flag, dest=_PREFIX + name, help=help, **more)


class _Together(argparse.Action):
    """Several words are spoken as one, which ``const`` means; the flag may be given several times."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        try:
            meant = self.const(" ".join(values))
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from error
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or ()), meant])


def _repeats(name: str) -> bool:
    """Whether a flag may be given several times."""
    return isinstance(getattr(_DEFAULT, name), (Mapping, tuple, frozenset))


def _spoken(word: Callable[[str], Any]) -> Callable[[str], Any]:
    """The meaning of a word, whose refusal names the flag."""

    def parse(text: str) -> Any:
        try:
            return word(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse
