"""Arguments that many commands share: compilation options, board, project and serial line."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from microc.cli import parser
from microc.compiler.options import COMPILING, OPTIONS, READING, STREAMING, Option, Options, combine_option_words

# ---- Compilation options: flags that are generated from the table in microc.compiler.options.

_DEFAULT = Options()
_PREFIX = "option_"
"""Prefix of the names of compilation options in the argparse namespace, so that they differ from a command's own arguments."""


def add_reading_options(command: argparse.ArgumentParser) -> None:
    """Add the compilation options that control how a model is read."""
    _add_option_group(command, READING)


def add_compile_options(
    command: argparse.ArgumentParser, *, board: bool = True, help_texts: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Add all compilation options to a command and, if ``board`` is true, the option ``--board``.

    ``help_texts``: help texts, by the name of the option, that replace those of the option table; argparse.SUPPRESS hides
    an option that the command refuses."""
    add_reading_options(command)
    group = _add_option_group(command, COMPILING, help_texts)
    if board:
        group.add_argument("--board", default="", help="board: name (microc boards) or board file (default: host)")
    _add_option_group(command, STREAMING)


def add_plugin_option(command: argparse._ActionsContainer) -> None:
    """Add the option ``--plugin``, which names a file with operators of the user."""
    _add_compilation_option(command, "plugins", OPTIONS["plugins"])


def compilation_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Merge the compilation options of ``microc.toml`` and of the command line; those of the command line take precedence.

    Return keywords of :func:`microc.compiler.options.make_options`."""
    config = getattr(arguments, "config", None)
    return {**(config.options if config else {}), **command_line_options(arguments)}


def command_line_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the compilation options of the command line alone, as keywords of
    :func:`microc.compiler.options.make_options`."""
    options = {}
    for name, option in OPTIONS.items():
        value = getattr(arguments, _PREFIX + name, None)
        if value is not None:
            value = option.words[value] if option.words else value
            options[name] = combine_option_words(getattr(_DEFAULT, name), value) if _is_repeatable(name) else value
    return options


def compilation_option_words(command_words: Sequence[str], board: str) -> list[str]:
    """Return the words of a command line that state compilation options, preceded by ``--board``.

    They are repeated in the commands of advice. ``command_words``: words of the command line; ``board``: empty if none is
    given."""
    flags = {option.flag: name for name, option in OPTIONS.items() if option.flag}
    kept, value_count = ["--board", board] if board else [], 0
    for word in command_words:
        flag = word.partition("=")[0]
        if value_count:
            value_count -= 1
        elif flag in flags:
            is_switch = isinstance(getattr(_DEFAULT, flags[flag]), bool) and not OPTIONS[flags[flag]].words
            value_count = 0 if is_switch or flag != word else max(1, len(OPTIONS[flags[flag]].metavar.split()))
        else:
            continue
        kept.append(word)
    return kept


def _add_option_group(
    command: argparse.ArgumentParser, title: str, help_texts: Mapping[str, str] = MappingProxyType({})
) -> argparse._ArgumentGroup:
    """Add an argument group with all compilation options of the group ``title``; return the argument group.

    ``help_texts``: help texts, by the name of the option, that replace those of the option table."""
    group = command.add_argument_group(title)
    for name, option in OPTIONS.items():
        if option.group == title and option.flag:
            _add_compilation_option(group, name, option, help_texts.get(name, ""))
    return group


def _add_compilation_option(
    command: argparse._ActionsContainer, name: str, option: Option, help_text: str = ""
) -> None:
    """Add one compilation option to a command or argument group.

    For a boolean default, the option becomes a switch; if the option declares words, its values are choices; else they are
    parsed by the option's converter. ``help_text`` replaces the help of the option table unless it is empty."""
    help, settings = help_text or option.text, dict[str, Any]()
    if option.applies and not help_text:
        help = f"{option.applies}: {help}"
    if getattr(_DEFAULT, name) is True and not option.words:  # --no-...
        settings.update(action="store_const", const=False)
    elif getattr(_DEFAULT, name) is False:
        settings.update(action="store_const", const=True)
    elif option.words:
        settings["choices"] = list(option.words)
    else:
        settings.update(type=_argparse_converter(option.word), metavar=option.metavar)
    metavars = option.metavar.split()
    if _is_repeatable(name):
        settings["action"], help = "append", f"{help}; repeatable"
    if len(metavars) > 1:
        settings |= {
            "nargs": len(metavars),
            "metavar": tuple(metavars),
            "type": str,
            "action": _JoinValues,
            "const": settings["type"],
        }
    command.add_argument(option.flag, dest=_PREFIX + name, help=help, **settings)


class _JoinValues(argparse.Action):
    """An argparse action for an option with several values, which may be repeated.

    The action joins the values to one text, converts the text by the converter ``const``, and appends the result to the
    option's list."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        try:
            meant = self.const(" ".join(values))
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from error
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or ()), meant])


def _is_repeatable(name: str) -> bool:
    """Test whether a compilation option may be given several times."""
    return isinstance(getattr(_DEFAULT, name), (Mapping, tuple, frozenset))


def _argparse_converter(converter: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap a converter so that argparse reports its ValueError together with the flag."""

    def convert_argument(text: str) -> Any:
        try:
            return converter(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert_argument


# ---- Arguments of commands that run a network on a board: project or model, inputs, serial line.


def add_source_options(command: ArgumentParser, meaning: str = "project folder, or model to compile and build") -> None:
    """Add the argument that names a project folder or model, the options of its board's serial line, and compilation options.

    ``meaning``: help of the argument."""
    command.add_argument(
        "source", type=Path, nargs="?", metavar="DIR|MODEL", help=f"{meaning} (default: from microc.toml)"
    )
    command.add_argument(
        "--network",
        default="",
        metavar="NAME",
        help="name of the network, if the project has several (default: the first)",
    )
    add_device_options(command)
    add_compile_options(command)


def add_input_options(command: ArgumentParser, input_help: str) -> None:
    """Add the options ``--input`` and ``--pixels``, which state one set of inputs. ``input_help``: help of ``--input``."""
    command.add_argument(
        "--input", dest="inputs", type=Path, action="append", default=[], metavar="X.npy|PICTURE", help=input_help
    )
    command.add_argument(
        "--pixels", type=float, nargs=2, metavar=("LOW", "HIGH"),
        help="input values of pixels 0 and 255 (default: raw bytes for 8-bit inputs, else 0 1)",
    )  # fmt: skip


def add_device_options(command: ArgumentParser) -> None:
    """Add the options of the serial line to a board: port, baud rates and time-out."""
    group = command.add_argument_group("serial line to the board")
    group.add_argument(
        "--port",
        default="",
        help="serial port, socket://HOST:PORT, or auto by USB id (default: emulator, else auto)",
    )
    group.add_argument(
        "--baud",
        type=parser.parse_baud_rates,
        default=(),
        metavar="RATE,...",
        help="baud rates to try in order, or auto for common rates (default: the board's)",
    )
    group.add_argument(
        "--timeout",
        type=parser.parse_seconds,
        default=10.0,
        metavar="SECONDS",
        help="time to wait for an answer, or for a lost line to reconnect (default: 10)",
    )


# ---- Commands that create, build, flash, load and run a project.

AddCommand = Callable[..., ArgumentParser]


def add_force_option(command: ArgumentParser) -> None:
    """Add the option ``--force``, which permits to replace the project of another network."""
    command.add_argument("--force", action="store_true", help="permission to overwrite the project of another network")


def add_project_commands(add_command: AddCommand) -> None:
    """Add the argument parsers of the commands ``new``, ``build``, ``flash``, ``load`` and ``run``.

    ``add_command(name, summary, *examples)`` adds a command to the command line and returns the command's parser."""
    command = add_command(
        "new",
        "create a project folder: microc.toml, the model and a README",
        "keywords --board nucleo-f446re --model model.tflite",
        "keywords --board netduinoplus2 --model model.onnx --input-shape input=1,3,96,96 --ram 30K",
        "first --board netduinoplus2",
    )
    command.add_argument("folder", type=Path, metavar="PROJECT", help="project folder, new or empty")
    command.add_argument(
        "--model",
        type=Path,
        metavar="MODEL",
        help="model file to copy into the project (default: digits, as in microc demo)",
    )
    add_compile_options(command)
    command = add_command("build", "build a project's firmware and show its memory use", "firmware", "")
    command.add_argument(
        "folder", type=Path, nargs="?", metavar="DIR", help="project folder (default: from microc.toml)"
    )
    command = add_command("flash", "flash a project's firmware", "firmware", "firmware --runner openocd --dry-run")
    command.add_argument(
        "folder", type=Path, nargs="?", metavar="DIR", help="built project folder (default: from microc.toml)"
    )
    command.add_argument(
        "--runner",
        default="",
        help="flashing program (default: the first installed one that the board file lists)",
    )
    command.add_argument("--dry-run", action="store_true", help="command of the flashing program: printed, but not run")
    add_device_options(command)
    command = add_command(
        "load",
        "send a relocatable network to a board whose firmware can load networks",
        "network --port /dev/ttyACM0",
        "network.bin --port /dev/ttyACM0",
        "network",
    )
    command.add_argument(
        "folder", type=Path, nargs="?", metavar="DIR|FILE",
        help="project folder of compile --relocatable, or .bin file (default: microc.toml)",
    )  # fmt: skip
    add_device_options(command)
    command = add_command(
        "run",
        "run a network on its board or emulator, and show the outputs",
        "firmware --input x.npy --output y.npy",
        "model.tflite --board mps2-an386 --input x.npy",
        "firmware --input x.npy --port /dev/ttyACM0",
        "firmware --input cat.png",
    )
    add_source_options(command)
    add_input_options(command, "input array or picture, once per input, in order (default: random)")
    command.add_argument("--seed", type=int, default=20, help="seed of the random inputs (default: 20)")
    command.add_argument(
        "--output", dest="outputs", type=Path, action="append", default=[], metavar="Y.npy",
        help="output file, once per output, in order",
    )  # fmt: skip


# ---- Commands for shell completion and the manual page.


def add_shell_commands(add_command: Callable[..., ArgumentParser]) -> None:
    """Add the argument parsers of the commands ``completion`` and ``man``.

    ``add_command(name, summary, *examples)`` adds a command to the command line and returns the command's parser."""
    command = add_command(
        "completion",
        "print the completion script for a shell",
        "bash > ~/.local/share/bash-completion/completions/microc",
        "fish > ~/.config/fish/completions/microc.fish",
    )
    command.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="shell: bash, zsh or fish")
    add_command("man", "print the manual page", "> microc.1")
