"""The page of options, docs/options.md, and the rows of ``microc options``: what the table says, for people."""

from __future__ import annotations

from collections.abc import Iterator

from microc.driver.options import OPTIONS
from microc.driver.options.option import COMPILING, READING, STREAMING
from microc.frozen import frozen

_HEAD = """# Options

Written by `make docs` from `microc/driver/options`. In Python they are keywords of `microc.compile`, `microc.load`,
`microc.verify` and `microc.explain`; on the command line flags of every command that takes a model. What cannot be is refused
before anything is read. Their types are in `microc.CompileOptions`: editors complete them, mypy and pyright refuse a misspelt
one or a word that is none, and a function of yours that hands them on is `def mine(**options: Unpack[microc.CompileOptions])`.

A network that was compiled before, from the same file under the same options for the same board by the same compiler, comes
from a cache: `MICROC_CACHE`, or the user's folder for such (`~/.cache/microc` on Linux); an empty `MICROC_CACHE` means none. It
holds up to 512 MB of generated projects, weights included, and what was not used for longest goes first. Networks of Python
objects, and compilations with plugins, passes, rules or dumps are not kept.
"""
_TITLES = {READING: "How a model is read", COMPILING: "How it is compiled", STREAMING: "How a sequence is streamed"}


@frozen
class Row:
    """An option: its keyword, its flag with what follows it (empty: Python alone), and what it means."""

    name: str
    flag: str
    group: str
    applies: str
    help: str


def rows() -> Iterator[Row]:
    """Every option, in the order of the table."""
    for name, option in OPTIONS.items():
        value = "|".join(option.words) or option.metavar
        yield Row(
            name, f"{option.flag} {value}".strip() if option.flag else "", option.group, option.applies, option.text
        )


def markdown() -> str:
    """The page."""
    lines = [_HEAD]
    for group, title in _TITLES.items():
        lines += [f"## {title}", "", "| Python | command line | for | |", "|---|---|---|---|"]
        for row in rows():
            if row.group == group:
                flag = "`" + row.flag.replace("|", "\\|") + "`" if row.flag else ""
                lines.append(f"| `{row.name}` | {flag} | {row.applies} | {row.help.replace('|', chr(92) + '|')} |")
        lines.append("")
    return "\n".join(lines)
