"""``microc man``: the manual page, of what argparse was told, as troff with the macros of man(7)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from microc import __version__
from microc.cli import show
from microc.cli.arguments import EXIT_CODES, Arguments
from microc.cli.tree import Command, Option

_RARE = ("everywhere",)
"""Groups of options that are told once."""


def man(arguments: Arguments) -> show.Answer:
    """``microc man``."""
    from microc.cli.tree import commands

    text = "\n".join(_page(commands())) + "\n"
    return show.Answer({"page": text}, text)


def _page(commands: Sequence[Command]) -> Iterator[str]:
    program, *others = commands
    yield f'.TH MICROC 1 "" "microc {_text(__version__)}" "User Commands"'
    yield from (".SH NAME", "microc \\- compile trained networks to plain C for microcontrollers")
    yield from (".SH SYNOPSIS", ".B microc", ".I COMMAND", "[options]")
    yield from (".SH DESCRIPTION", _text(program.help))
    yield from (".SH OPTIONS", *_options(program.options))
    yield ".SH COMMANDS"
    told: set[str] = set()
    for command in others:
        yield from (f".SS {_text(command.usage.split(' [-h]')[0])}", _text(_sentence(command.help)))
        for word, help in command.words:
            yield from (".TP", f".I {_text(word.name)}", _text(help or "one of " + ", ".join(word.choices)))
        own = [o for o in command.options if o.group not in _RARE and o.flags[0] != "-h"]
        yield from _options([o for o in own if f"{o.flags}{o.help}" not in told])
        again = [o.flags[-1] for o in own if f"{o.flags}{o.help}" in told]
        if again:
            yield from (".PP", _text("As above: " + ", ".join(again) + "."))
        told |= {f"{o.flags}{o.help}" for o in own}
        examples = command.epilog.splitlines()[1:]
        if examples:
            yield from (".PP", ".nf", ".RS", *(_text(line.strip()) for line in examples), ".RE", ".fi")
    codes = EXIT_CODES.splitlines()[1:]
    yield from (".SH EXIT STATUS", ".nf", *(_text(line.strip()) for line in codes), ".fi")
    yield from (
        ".SH ENVIRONMENT",
        ".TP",
        ".B MICROC_CACHE",
        "the folder where compiled networks are kept; empty: nothing is kept",
    )
    yield from (".SH SEE ALSO", ".BR gcc (1),", ".BR make (1)")


def _options(options: Sequence[Option]) -> Iterator[str]:
    for option in options:
        flags = ", ".join(f"\\fB{_text(flag)}\\fR" for flag in option.flags)
        words = f" \\fI{_text(option.word.name)}\\fR" if option.word else ""
        yield from (".TP", flags + words, _text(option.help or "see above"))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _text(text: str) -> str:
    """Text that troff prints as it is: no escape, no request, hyphens that can be searched and copied."""
    plain = (
        text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("'", "\\(aq").replace("~", "\\(ti")
    )
    plain = plain.replace("^", "\\(ha")
    return f"\\&{plain}" if plain.startswith(".") else plain
