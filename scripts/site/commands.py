"""The page of commands, from the parser of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from microc.cli.arguments import make_parser
from microc.compiler.options import COMPILING, OPTIONS, READING, STREAMING

SHARED = (READING, COMPILING, STREAMING)
"""Groups of options that have a page of their own."""
BEGIN = """# Commands

Written by `make docs` from the parser of the command line. `microc COMMAND --help` says the same in a terminal. Options of a
compilation, which many commands take, stand once: [Options](options.md). What is refused, and with which exit code:
[Errors](errors.md).
"""


def page() -> str:
    """Markdown: every command with its arguments and examples."""
    parser = make_parser()
    subparsers = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    summaries = {each.dest: each.help or "" for each in subparsers._choices_actions}
    parts = [BEGIN, "| command | |\n|---|---|"]
    parts += [f"| [`{name}`](#microc-{name}) | {_cell(summaries[name])} |" for name in subparsers.choices]
    parts += ["\n## Everywhere\n", *_table(group for group in parser._action_groups if group.title == "everywhere")]
    for name, command in subparsers.choices.items():
        parts += [f"\n## microc {name}\n", f"{_text(command.description or '')}\n", _synopsis(command)]
        parts += _table(group for group in command._action_groups if group.title not in (*SHARED, "everywhere"))
        if any(group.title in SHARED and group._group_actions for group in command._action_groups):
            parts.append(f"\nAnd the [options](options.md) of a compilation{_beside(command)}.")
        parts.append(_examples(command.epilog or ""))
    return "\n".join(parts).rstrip() + "\n"


def _synopsis(command: argparse.ArgumentParser) -> str:
    """What stands behind the command without a flag, and the flags that must."""
    words = []
    for action in command._actions:
        if action.option_strings and not action.required:
            continue
        word = " ".join((*action.option_strings[:1], str(action.metavar or action.dest.upper())))
        words.append(f"[{word}]" if action.nargs in ("?", "*") else f"{word} ..." if action.nargs == "+" else word)
    return f"```text\n{' '.join((command.prog, *words, '[options]'))}\n```\n"


def _table(groups: Iterator[argparse._ArgumentGroup]) -> list[str]:
    actions = [
        a for g in groups for a in g._group_actions if "--help" not in a.option_strings and a.help != argparse.SUPPRESS
    ]
    rows = [f"| {_spelled(action)} | {_cell(action.help or '')} |" for action in actions]
    return ["| | |\n|---|---|", *rows] if rows else []


def _spelled(action: argparse.Action) -> str:
    """A flag or an argument as it is written."""
    metavar = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    shown = " ".join(metavar) if isinstance(metavar, tuple) else str(metavar)
    takes = "" if action.nargs == 0 else f" {shown}"
    flags = ", ".join(f"`{flag}{takes}`" for flag in action.option_strings) or f"`{shown}`"
    return flags.replace("|", "\\|")


def _beside(command: argparse.ArgumentParser) -> str:
    """The flags of those groups that are no options: the board."""
    known = {option.flag for option in OPTIONS.values()}
    found = {
        flag
        for group in command._action_groups
        if group.title in SHARED
        for action in group._group_actions
        for flag in action.option_strings
        if flag not in known
    }
    return f", and {', '.join(f'`{flag}`' for flag in sorted(found))}" if found else ""


def _examples(epilog: str) -> str:
    lines = [f"$ {line.strip()}" for line in epilog.splitlines() if line.startswith("  microc ")]
    return "\n```console\n" + "\n".join(lines) + "\n```" if lines else ""


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|")


def _text(text: str) -> str:
    """Help as Markdown: what is in angle brackets or stars is meant as it stands."""
    return " ".join(text.split()).replace("%%", "%").replace("<", "\\<").replace("*", "\\*")
