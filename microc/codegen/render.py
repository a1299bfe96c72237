"""Jinja with strict rules: undefined names are errors, blocks leave no blank lines, output is the same everywhere."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from microc import paths


@lru_cache(maxsize=32)
def environment(folder: Path | None = None, html: bool = False) -> jinja2.Environment:
    """The environment over the project's templates, those of ``folder`` first; in ``html`` values are escaped, in C none is.

    Templates may be strangers': they print what they are given, and reach nothing else.
    """
    env = SandboxedEnvironment(
        loader=jinja2.FileSystemLoader([str(path) for path in (folder, paths.templates()) if path is not None]),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=html,
    )
    env.filters["comment"] = safe_comment
    return env


def safe_comment(text: str) -> str:
    """Text that can stand in a C comment: it neither ends it, nests another, nor continues the line."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return printable.replace("*/", "* /").replace("/*", "/ *").replace("\\", "/").replace("??", "? ?")


def render(template: str, context: Any, folder: Path | None = None) -> str:
    """One template filled from a frozen context class (its fields are the template's names); ``folder`` may have it, too."""
    return environment(folder).get_template(template).render(_names(context))


def render_html(template: str, context: Any) -> str:
    """The same for a page of HTML: text from models and boards stays text."""
    return environment(html=True).get_template(template).render(_names(context))


def render_line(text: str, context: Any) -> str:
    """The same of a template that is given as text: a path, a command."""
    return _parsed(text).render(_names(context))


@lru_cache(maxsize=256)
def _parsed(text: str) -> jinja2.Template:
    return environment().from_string(text)


def _names(context: Any) -> dict[str, Any]:
    if not is_dataclass(context) or isinstance(context, type):
        raise TypeError("a template is filled from a dataclass")
    return {f.name: getattr(context, f.name) for f in fields(context)}
