# SPDX-License-Identifier: Apache-2.0
"""The page of errors: every class of microc/errors.py with its code, its causes and their cures."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from microc import errors
from microc.document.blocks import numbers, table, texts
from microc.document.renderers import render_markdown_table
from microc.errors import MicrocError

CURES: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        name: tuple((row["cause"], row["cure"]) for row in rows)
        for name, rows in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
    }
)
"""Causes and their cures, by the name of a class."""
EXITS = re.compile(r"^(\d+) +(.+)$", re.MULTILINE)
BEGIN = """# Errors

Written by `make docs` from `microc/errors.py`. A refusal is one message: what is wrong, where, and what to do.

```text
error[E0201]: unknown board 'netduinoplus'
  help: did you mean netduinoplus2 or netduino2? (a path that ends in .toml is a file of your own)
```

With `--json` the same is an object, `{"error": {"code": ..., "what": ..., "where": ..., "hint": ...}}`. In Python it is an
exception of `microc.errors` with the attributes `code`, `what`, `where` and `hint`; all derive from `MicrocError`. Nothing is
half-written where a command is refused. What people do wrong most is a list in `tests/mistakes`: a test takes the cure out of
each answer, and tries it.

## Exit codes
"""


def page() -> str:
    """Markdown: exit codes, then a section for each class."""
    exits = [*EXITS.findall(errors.__doc__ or ""), ("130", "Ctrl-C")]
    parts = [BEGIN, render_markdown_table(table((*numbers("code"), *texts("")), exits)), ""]
    for kind in sorted(kinds(), key=lambda kind: kind.code):
        parent = kind.__bases__[0].__name__
        parts.append(f"## {kind.code} {kind.__name__}\n")
        parts.append(f"{_text(kind.__doc__ or '')} Exit code {kind.exit_code}. A `{parent}`.\n")
        parts += [render_markdown_table(table(texts("cause", "cure"), CURES[kind.__name__])), ""]
    return "\n".join(parts).rstrip() + "\n"


def kinds() -> list[type[MicrocError]]:
    """Every class of refusals but the base."""
    found = (kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MicrocError))
    return [kind for kind in found if kind is not MicrocError]


def _text(docstring: str) -> str:
    return " ".join(docstring.split()).replace("``", "`")
