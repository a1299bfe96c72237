"""The arguments of commands for shells and manuals. Nothing heavy is imported here."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable


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
