"""``microc doctor``: which tools are here, and the line that installs the others."""

from __future__ import annotations

import shlex
from dataclasses import asdict

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.errors import UsageError


def doctor(arguments: Arguments) -> show.Answer:
    """``microc doctor``."""
    from microc.driver.doctor import examine, install, remedy

    if arguments.yes and not arguments.fix:
        raise UsageError("--yes lets --fix run its line", hint="microc doctor --fix --yes")
    findings = examine(arguments.board)
    commands = remedy(findings)
    if commands and arguments.yes:
        show.note(_line(commands))
        install(commands)
        findings = examine(arguments.board)
        commands = remedy(findings)
    missing = [f for f in findings if f.missing]
    bad = any(f.essential for f in missing)
    data = {"tools": [asdict(f) for f in findings], "install": list(map(shlex.join, commands)), "complete": not bad}
    if arguments.fix:
        text = _line(commands) if commands else "nothing is missing"
        if missing and not commands:
            text = "no package is known that has " + ", ".join(f.name for f in missing)
        return show.Answer(data, text, 5 if bad else 0)
    rows = [
        ("missing" if f.missing else "ok", f.name, f.purpose, f.version or ("needed" if f.essential else "optional"))
        for f in findings
    ]
    text = show.table(("", "tool", "for", "version"), rows, 4)
    if commands:
        text += f"\n\nto install what is missing (microc doctor --fix --yes does it):\n  {_line(commands)}"
    return show.Answer(data, text, 5 if bad else 0)


def _line(commands: tuple[tuple[str, ...], ...]) -> str:
    """A line for a shell, or several that it reads as one where a terminal is narrower."""
    from microc.driver.report import tables

    line = " && ".join(map(shlex.join, commands))
    if not 0 < show.columns() < len(line) + len(_INDENT):
        return line
    parts = ["\n".join(tables.command(shlex.join(command), show.columns() - len(" && \\"))) for command in commands]
    return f" && \\\n{_INDENT}".join(parts)


_INDENT = "  "
"""Indent of a line that is to be copied."""
