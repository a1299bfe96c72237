"""``microc completion SHELL``: what a shell needs to complete commands, options and their words, printed to be sourced."""

from __future__ import annotations

from microc.cli import show
from microc.cli.arguments import Arguments


def completion(arguments: Arguments) -> show.Answer:
    """``microc completion``."""
    from microc.cli.completion import bash, fish, zsh
    from microc.cli.tree import commands

    scripts = {"bash": bash.script, "zsh": zsh.script, "fish": fish.script}
    text = scripts[arguments.shell](commands())
    return show.Answer({"shell": arguments.shell, "script": text}, text)
