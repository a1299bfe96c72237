"""Jinja with strict rules: undefined names are errors, blocks leave no blank lines, output is the same everywhere.

Templates take strings of the kinds of ``text.py`` only, so that a forgotten filter is an error and not a hole.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.bccache import Bucket, bc_magic
from jinja2.sandbox import SandboxedEnvironment

from microc import paths
from microc.codegen.files import replacing
from microc.codegen.text import Data, Kind, Label
from microc.errors import InternalError, OutputError
from microc.reading import read_bytes


class _Beside(jinja2.BytecodeCache):
    """What Jinja made of the project's own templates: beside the bytecode of this module, where and when Python would keep that.
    Another text of a template, another Python or Jinja make it anew."""

    def __init__(self, folder: Path, html: bool) -> None:
        self.folder, self.ends = folder, ".html.pyc" if html else ".text.pyc"

    def load_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError, EOFError, ValueError, TypeError):
            head, kept = _head(bucket), read_bytes(self.folder / f"{bucket.key}{self.ends}")
            if kept.startswith(head):
                bucket.code = marshal.loads(kept[len(head) :])

    def dump_bytecode(self, bucket: Bucket) -> None:
        if not sys.dont_write_bytecode:
            with suppress(OSError, OutputError), replacing(self.folder / f"{bucket.key}{self.ends}") as temporary:
                temporary.write_bytes(_head(bucket) + marshal.dumps(bucket.code))


def _head(bucket: Bucket) -> bytes:
    return bc_magic + bucket.checksum.encode()


@lru_cache(maxsize=32)
def environment(folder: Path | None = None, html: bool = False) -> jinja2.Environment:
    """The environment over the project's templates, those of ``folder`` first; in ``html`` values are escaped, in C none is.

    Templates may be strangers': they print what they are given, and reach nothing else.
    """
    own = Path(__spec__.cached).parent if __spec__.cached and not folder else None
    return SandboxedEnvironment(
        loader=jinja2.FileSystemLoader([str(path) for path in (folder, paths.templates()) if path is not None]),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=html,
        bytecode_cache=_Beside(own, html) if own else None,
    )


def render(template: str, context: Any, folder: Path | None = None) -> str:
    """One template filled from a frozen context class (its fields are the template's names); ``folder`` may have it, too.

    InternalError for a string in it that is of no kind.
    """
    return environment(folder).get_template(template).render(_names(context))


def render_html(template: str, context: Any) -> str:
    """The same for a page of HTML: all strings become labels, which are escaped, but for data of its script."""
    return environment(html=True).get_template(template).render(_names(_labelled(context)))


def render_line(text: str, context: Any) -> str:
    """The same of a template that is given as text: a path, a command."""
    return _parsed(text).render(_names(context))


@lru_cache(maxsize=256)
def _parsed(text: str) -> jinja2.Template:
    return environment().from_string(text)


def _names(context: Any) -> dict[str, Any]:
    if not is_dataclass(context) or isinstance(context, type):
        raise TypeError("a template is filled from a dataclass")
    _refuse_plain(context, type(context).__name__)
    return {f.name: getattr(context, f.name) for f in fields(context)}


def _refuse_plain(value: Any, where: str) -> None:
    """InternalError for a string anywhere in the value that is of no kind, and for what templates have no use for."""
    if value is None or isinstance(value, (bool, int, float, Kind)):
        return
    if isinstance(value, (tuple, list)):
        for part in value:
            _refuse_plain(part, where)
    elif isinstance(value, Mapping):
        for part in (*value, *value.values()):
            _refuse_plain(part, where)
    elif is_dataclass(value):
        for f in fields(value):
            _refuse_plain(getattr(value, f.name), f"{where}.{f.name}")
    else:
        raise InternalError(f"{where} holds a {type(value).__name__}, which may be anything: {value!r}")


def _labelled(value: Any) -> Any:
    """The value with all strings in it as labels."""
    if isinstance(value, Data):
        return value
    if isinstance(value, str):
        return Label(value)
    if isinstance(value, (tuple, list)):
        return tuple(_labelled(part) for part in value)
    if isinstance(value, Mapping):
        return {key: _labelled(part) for key, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _labelled(getattr(value, f.name)) for f in fields(value)})
    return value
