# SPDX-License-Identifier: Apache-2.0
"""Commands are declared: the parser, help, completions, pages and typed arguments derive from one table."""

from __future__ import annotations

from pathlib import Path

import pytest

from microc.cli.declared.board_commands import RunArguments, VerifyArguments
from microc.cli.declared.declarations import EVERYWHERE, SHARED_SECTIONS, Argument, Arguments, compilation_option_words
from microc.cli.declared.model_commands import TuneArguments
from microc.cli.parser import COMMANDS, parse_command_line
from microc.cli.shell_files import list_options
from microc.errors import UsageError


def arguments_of(name: str) -> list[Argument]:
    """All arguments of a command that its help shows."""
    sections = COMMANDS[name].arguments.sections().values()
    return [argument for section in sections for argument in section.values() if argument.help]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_function_takes_the_declared_arguments(name: str) -> None:
    """A type checker knows the arguments only if the annotation of the function is the declaring class."""
    command = COMMANDS[name]
    code = command.function.load_entry()
    assert command.name == name and code.__annotations__["arguments"] == command.arguments.__name__
    assert getattr(code, "__globals__")[command.arguments.__name__] is command.arguments  # noqa: B009


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_a_short_noun_phrase(name: str) -> None:
    own = COMMANDS[name].arguments.own_arguments().values()
    texts = [argument.help.split(" (default: ")[0] for argument in own]
    assert not [text for text in texts if len(text.removesuffix("; repeatable")) > 80 or text.endswith(".")]


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_are_unique(name: str) -> None:
    flags = [flag for argument in list_options(COMMANDS[name].arguments) for flag in argument.flags]
    assert len(flags) == len(set(flags))


def test_own_sections_precede_shared_ones() -> None:
    titles = list(VerifyArguments.sections())
    shared = [title for title in titles if title in SHARED_SECTIONS]
    assert titles[0] == "" and titles[-len(shared) :] == shared and shared[-1] == EVERYWHERE


def test_values_and_defaults() -> None:
    command, arguments = parse_command_line(
        ["run", "firmware", "--input", "a.npy", "--pixels", "-1", "1", "--ram", "2K"]
    )
    assert command.name == "run" and isinstance(arguments, RunArguments)
    assert arguments.inputs == (Path("a.npy"),) and arguments.pixels == (-1.0, 1.0) and arguments.seed == 20
    assert arguments.options == arguments.command_line_options == {"ram": 2048}
    assert arguments.replace(seed=1).seed == 1 and arguments.replace(seed=1).inputs == arguments.inputs


def test_a_repeatable_option_of_several_words_takes_all() -> None:
    _, arguments = parse_command_line(["tune", "--merge", "a", "b", "--merge", "c"])
    assert isinstance(arguments, TuneArguments) and arguments.merge == (Path("a"), Path("b"), Path("c"))


def test_what_a_command_refuses_is_hidden_but_parsed() -> None:
    assert not [argument for argument in arguments_of("tune") if "--tuned" in argument.flags]
    assert parse_command_line(["tune", "x", "--tuned", "f"])[1].options == {"tuned": Path("f")}


def test_a_name_among_the_values_is_no_command() -> None:
    command, arguments = parse_command_line(["-q", "build", "run"])
    assert command.name == "build" and arguments.quiet and vars(arguments)["folder"] == Path("run")


def test_words_that_state_compilation_options() -> None:
    words = ["report", "m.onnx", "--ram=4K", "--input-normalize", "1", "2", "--no-cache", "-o", "x.html", "--seed", "3"]
    assert compilation_option_words(words, "host") == [
        "--board", "host", "--ram=4K", "--input-normalize", "1", "2", "--no-cache",
    ]  # fmt: skip


def test_pixels_are_two_numbers() -> None:
    with pytest.raises(UsageError, match=r"--pixels: got 'a b', expected two numbers"):
        parse_command_line(["run", "x", "--pixels", "a", "b"])


def test_arguments_that_are_not_declared_are_shared_values() -> None:
    assert "board" not in COMMANDS["bench"].arguments.own_arguments() and not hasattr(Arguments(), "board")
