# SPDX-License-Identifier: Apache-2.0
"""The page of commands, from their declarations."""

from __future__ import annotations

from collections.abc import Iterable

from microc.cli.declared.declarations import EVERYWHERE, Argument, Arguments, Command
from microc.cli.parser import COMMANDS
from microc.compiler.options import COMPILING, READING, STREAMING
from microc.document.blocks import table, texts
from microc.document.renderers import render_markdown_table

SHARED = (READING, COMPILING, STREAMING)
"""Sections of options that have a page of their own."""
BEGIN = """# Commands

Written by `make docs` from the declarations of the commands. `microc COMMAND --help` says the same in a terminal. Options of a
compilation, which many commands take, stand once: [Options](options.md). What is refused, and with which exit code:
[Errors](errors.md).
"""


def page() -> str:
    """Markdown: every command with its arguments and examples."""
    listed = [(f"[`{name}`](#microc-{name})", _text(command.summary)) for name, command in COMMANDS.items()]
    parts = [BEGIN, render_markdown_table(table(texts("command", ""), listed))]
    parts += ["\n## Everywhere\n", *_table(Arguments.sections()[EVERYWHERE].values())]
    for name, command in COMMANDS.items():
        sections = command.arguments.sections()
        parts += [f"\n## microc {name}\n", f"{_text(command.description)}\n"]
        parts.append(f"```text\n{command.synopsis}\n```\n")
        own = (section for title, section in sections.items() if title not in (*SHARED, EVERYWHERE))
        parts += _table(argument for section in own for argument in section.values())
        if any(title in SHARED for title in sections):
            parts.append(f"\nAnd the [options](options.md) of a compilation{_beside(command)}.")
        examples = "\n".join(f"$ {line}" for line in command.example_lines)
        parts.append(f"\n```console\n{examples}\n```")
    return "\n".join(parts).rstrip() + "\n"


def _table(arguments: Iterable[Argument]) -> list[str]:
    rows = [(_spelled(argument), _text(argument.help)) for argument in arguments if argument.help]
    return [render_markdown_table(table(texts("", ""), rows))] if rows else []


def _spelled(argument: Argument) -> str:
    """A flag or an argument as it is written."""
    words = " ".join(argument.metavars)
    takes = "" if argument.is_switch else f" {words}"
    return ", ".join(f"`{flag}{takes}`" for flag in argument.flags) or f"`{words}`"


def _beside(command: Command) -> str:
    """The flags in sections of options that are no options: the board."""
    own = command.arguments.own_arguments().values()
    flags = [f"`{flag}`" for argument in own if argument.section in SHARED for flag in argument.flags]
    return f", and {', '.join(flags)}" if flags else ""


def _text(text: str) -> str:
    """Help as Markdown: what is in angle brackets or stars is meant as it stands."""
    return text.replace("<", "\\<").replace("*", "\\*")
