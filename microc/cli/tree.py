"""The command line as data: what argparse was told, for completion and the manual page."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from microc.cli.arguments import make_parser
from microc.frozen import frozen

FILES, FOLDERS = "files", "folders"
MODELS = (".tflite", ".onnx", ".keras", ".pt2", ".mcg", ".txt")
_ENDS = (".npz", ".npy", ".csv", ".html", ".json", ".jsonl", ".py", ".toml")


@frozen
class Word:
    """What may stand at a place: one of ``choices``, or a file, of these ``ends`` if there are any; ``kind`` is :data:`FILES`,
    :data:`FOLDERS` or empty. ``name`` is what help calls it; several between commas where it is a ``list``."""

    name: str
    choices: tuple[str, ...] = ()
    kind: str = ""
    ends: tuple[str, ...] = ()
    list: bool = False


@frozen
class Option:
    """An option: its flags, its help on a line, what follows it (``word`` None: nothing; ``count`` of them)."""

    flags: tuple[str, ...]
    help: str
    word: Word | None
    count: int
    group: str


@frozen
class Command:
    """A command, or the program itself where the name is empty."""

    name: str
    help: str
    usage: str
    epilog: str
    options: tuple[Option, ...]
    words: tuple[tuple[Word, str], ...]
    """What stands without an option, and what help says of it."""


def commands() -> tuple[Command, ...]:
    """The program, then its commands, in their order."""
    parser = make_parser()
    known = _choices()
    found = [_command("", parser.description or "", parser, known)]
    for action in parser._subparsers._group_actions if parser._subparsers else ():
        assert isinstance(action, argparse._SubParsersAction)
        summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
        found += [_command(name, summaries.get(name, ""), each, known) for name, each in action.choices.items()]
    return tuple(found)


def _choices() -> Mapping[str, Callable[[], tuple[str, ...]]]:
    """Of words that are names of something: where the names are, by their places in the namespace of arguments."""
    from microc.codegen.exports import list_formats
    from microc.device.boards import list_boards
    from microc.device.runners import list_runners
    from microc.isa import CORES

    def boards() -> tuple[str, ...]:
        return (*list_boards(), "all-emulated", "attached")

    return {
        "board": list_boards,
        "board_names": boards,
        "subject": list_boards,
        "format": list_formats,
        "runner": lambda: tuple(list_runners()),
        "target": lambda: tuple(CORES),
    }


def _command(
    name: str, help: str, parser: argparse.ArgumentParser, known: Mapping[str, Callable[[], tuple[str, ...]]]
) -> Command:
    options, words = [], []
    for group in parser._action_groups:
        for action in group._group_actions:
            if isinstance(action, argparse._SubParsersAction):
                continue
            text = _help(action)
            if action.option_strings:
                word, count = (_word(action, known), _count(action)) if action.nargs != 0 else (None, 0)
                options.append(Option(tuple(action.option_strings), text, word, count, group.title or ""))
            else:
                words.append((_word(action, known), text))
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    return Command(name, help, usage, parser.epilog or "", tuple(options), tuple(words))


def _help(action: argparse.Action) -> str:
    """The help on one line, as argparse fills it in."""
    if not action.help or action.help == argparse.SUPPRESS:
        return ""
    return " ".join((action.help % {**vars(action), "prog": "microc"}).split())


def _count(action: argparse.Action) -> int:
    return action.nargs if isinstance(action.nargs, int) else 1


def _word(action: argparse.Action, known: Mapping[str, Callable[[], tuple[str, ...]]]) -> Word:
    metavar = " ".join(action.metavar) if isinstance(action.metavar, tuple) else action.metavar or action.dest.upper()
    if action.choices is not None:
        choices = tuple(map(str, action.choices))
        return Word(action.metavar if isinstance(action.metavar, str) else "|".join(choices), choices)
    if action.dest in known or action.dest == "option_board":
        return Word(metavar, known[action.dest](), FILES, (".toml",), list=metavar.endswith(",..."))
    named = metavar.removeprefix("[NAME=]")
    if "|" in named and named != metavar:
        return Word(metavar, tuple(named.split("|")))
    if re.fullmatch("[a-z]+(,[a-z]+)+", metavar):
        return Word(metavar, tuple(metavar.split(",")), list=True)
    upper = metavar.upper()
    if "MODEL" in upper and action.type is Path:
        return Word(metavar, (), FILES, MODELS)
    if upper == "DIR":
        return Word(metavar, (), FOLDERS)
    if action.type is Path or any(part in upper for part in ("FILE", "PATH", "PORT")):
        ends = tuple(end for end in _ENDS if upper.endswith(end.upper()))
        return Word(metavar, (), FILES, ends)
    return Word(metavar)


def flags_of(command: Command) -> Iterator[tuple[str, Option]]:
    """Every flag, and its option."""
    return ((flag, option) for option in command.options for flag in option.flags)
