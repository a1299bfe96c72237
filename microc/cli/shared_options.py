"""Arguments that many commands share: model, board, project, shell."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from microc.cli import parser
from microc.compiler.options import COMPILING, OPTIONS, READING, STREAMING, Option, Options, joined

# ---- The options that say how a model is read and compiled, which many commands share: those of the table of
# options, as flags.

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
    :func:`microc.compiler.options.make_options`."""
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


# ---- The arguments of commands that talk to a board: which project, which line. Nothing heavy is imported here.


def source_options(
    command: ArgumentParser, meaning: str = "a project, or a model to compile and build on the fly"
) -> None:
    """A project or a model, and how to reach the board that runs it."""
    command.add_argument(
        "source", type=Path, nargs="?", metavar="DIR|MODEL", help=f"{meaning} (default: microc.toml's)"
    )
    command.add_argument(
        "--network", default="", metavar="NAME", help="which one of a project of several (default: the first)"
    )
    device_options(command)
    compile_options(command)


def input_options(command: ArgumentParser, meaning: str) -> None:
    """One set of inputs, as arrays or pictures."""
    command.add_argument(
        "--input", dest="inputs", type=Path, action="append", default=[], metavar="X.npy|PICTURE", help=meaning
    )
    command.add_argument(
        "--pixels", type=float, nargs=2, metavar=("LOW", "HIGH"),
        help="the reals that pixels of 0 and 255 of a picture stand for (default: inputs of 8 bits take pixels in order, "
        "others take 0 to 1)",
    )  # fmt: skip


def device_options(command: ArgumentParser) -> None:
    """Port, rates, patience."""
    group = command.add_argument_group("the board's line")
    group.add_argument(
        "--port",
        default="",
        help="serial port, socket://HOST:PORT, or auto: by the board's USB ids "
        "(default: the emulator, a process, or auto for hardware)",
    )
    group.add_argument(
        "--baud",
        type=parser.bauds,
        default=(),
        metavar="RATE,...",
        help="rates to try in turn, or auto (default: the board's)",
    )
    group.add_argument(
        "--timeout",
        type=parser.seconds,
        default=10.0,
        metavar="SECONDS",
        help="without an answer, or without the line, after which to give up (default: 10)",
    )


# ---- The arguments of the commands that make a project, build it and run it. Nothing heavy is imported here.

Adder = Callable[..., ArgumentParser]


def force_option(command: ArgumentParser) -> None:
    """``--force``."""
    command.add_argument("--force", action="store_true", help="replace the project of another network")


def project_commands(add: Adder, model: str) -> None:
    """``add(name, summary, *examples)`` gives the parser of a command; ``model`` says what a model may be."""
    command = add(
        "new",
        "start a project: a folder with microc.toml, the model and a README, in which commands need no arguments",
        "keywords --board nucleo-f446re --model model.tflite",
        "keywords --board netduinoplus2 --model model.onnx --input-shape input=1,3,96,96 --ram 30K",
        "first --board netduinoplus2",
    )
    command.add_argument("folder", type=Path, metavar="PROJECT", help="the folder, new or empty")
    command.add_argument(
        "--model", type=Path, metavar="MODEL", help=f"{model} (default: the digits of the demonstration)"
    )
    compile_options(command)
    command = add("build", "build a project's firmware and show its memory", "firmware", "")
    command.add_argument("folder", type=Path, nargs="?", metavar="DIR", help="a project (default: microc.toml's)")
    command = add("flash", "bring the firmware onto its board", "firmware", "firmware --runner openocd --dry-run")
    command.add_argument("folder", type=Path, nargs="?", metavar="DIR", help="a built project (default: microc.toml's)")
    command.add_argument(
        "--runner", default="", help="how (default: the first of the board file whose program is here)"
    )
    command.add_argument("--dry-run", action="store_true", help="print the command, run nothing")
    device_options(command)
    command = add(
        "load",
        "send a network into a board whose firmware takes networks, which runs it from then on",
        "network --port /dev/ttyACM0",
        "network.bin --port /dev/ttyACM0",
        "network",
    )
    command.add_argument(
        "folder", type=Path, nargs="?", metavar="DIR|FILE",
        help="a project that was compiled with --relocatable, or the file that it is (default: microc.toml's)",
    )  # fmt: skip
    device_options(command)
    command = add(
        "run",
        "run a network on its board",
        "firmware --input x.npy --output y.npy",
        "model.tflite --board mps2-an386 --input x.npy",
        "firmware --input x.npy --port /dev/ttyACM0",
        "firmware --input cat.png",
    )
    source_options(command)
    input_options(command, "an array or a picture; once for each input, in the graph's order (default: random numbers)")
    command.add_argument("--seed", type=int, default=20, help="of the random inputs (default: 20)")
    command.add_argument(
        "--output", dest="outputs", type=Path, action="append", default=[], metavar="Y.npy",
        help="where to save an output; once for each output",
    )  # fmt: skip


# ---- The arguments of commands for shells and manuals. Nothing heavy is imported here.


def shell_commands(add: Callable[..., ArgumentParser]) -> None:
    """``add(name, summary, *examples)`` gives the parser of a command."""
    command = add(
        "completion",
        "print what completes commands, options and their words in a shell",
        "bash > ~/.local/share/bash-completion/completions/microc",
        "fish > ~/.config/fish/completions/microc.fish",
    )
    command.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")
    add("man", "print the manual page", "> microc.1")
