"""Jinja with strict rules: undefined names are errors, blocks leave no blank lines, output is the same everywhere."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

import jinja2

from microc import paths


@lru_cache(maxsize=2)
def environment(html: bool = False) -> jinja2.Environment:
    """The environment over the project's templates; in ``html`` every value is escaped, in C none is."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(paths.templates())),
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


def render(template: str, context: Any) -> str:
    """One template filled from a frozen context class (its fields are the template's names)."""
    return _fill(environment(), template, context)


def render_html(template: str, context: Any) -> str:
    """The same for a page of HTML: text from models and boards stays text."""
    return _fill(environment(html=True), template, context)


def _fill(env: jinja2.Environment, template: str, context: Any) -> str:
    if not is_dataclass(context) or isinstance(context, type):
        raise TypeError("a template is filled from a dataclass")
    names = {f.name: getattr(context, f.name) for f in fields(context)}
    return env.get_template(template).render(names)
