"""Templates and the one filter for text in generated files."""

from __future__ import annotations

import json
import marshal
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import jinja2
from jinja2.bccache import Bucket, bc_magic
from jinja2.sandbox import SandboxedEnvironment

from microc.base import file_access
from microc.base.file_access import read_bytes
from microc.codegen.output_files import replacing
from microc.errors import InternalError, OutputError

# ---- What may stand in a generated file, by kind: the one place that says which letters a name or a text can bring
# along.
#
# Models, boards and users are strangers: whatever they call something is data in every file that we write. Templates take
# strings of these kinds only (``render.py``): one that has not been through here is a defect, and told as such.

_LETTERS = r"A-Za-z0-9 _\-+.,:;/=()#>@"
"""Letters that are text in C, make, CMake, TOML, YAML, Rust, Python, HTML and Markdown: none of them quotes, escapes, expands,
or ends or starts a comment, alone or together. No ``*``, so that there is no ``*/``; no backslash, no line break, no ``$``."""
_OTHERS = re.compile(f"[^{_LETTERS}]+")


class Kind(str):
    """A string that may stand in a generated file, at places that are for its kind."""

    __slots__ = ()


class Code(Kind):
    """What microc writes itself, of numbers, its own words and parts that are of these kinds. Nothing is checked."""

    __slots__ = ()


class Text(Kind):
    """What a stranger calls something, for comments and strings. Other letters become ``?``, one for each run of them, so that
    there are no trigraphs; what is longer than ``LIMIT`` is cut."""

    __slots__ = ()
    LIMIT = 200

    def __new__(cls, text: str) -> Self:
        known = _OTHERS.sub("?", text[: 2 * cls.LIMIT])
        return super().__new__(cls, known if len(known) <= cls.LIMIT else known[: cls.LIMIT - 3] + "...")


class Note(Text):
    """A line of a comment in which microc says what a kernel does; names that a stranger gave may be in it."""

    __slots__ = ()
    LIMIT = 4000


class Quoted(Kind):
    """Text of a stranger as a string literal of C, quotes included: UTF-8, where every byte that is no letter of ours is an
    escape of three octal digits."""

    __slots__ = ()
    LIMIT = 200

    def __new__(cls, text: str) -> Self:
        plain = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 _-+.,:;/=()#>@")
        data = text[: cls.LIMIT].encode("utf-8", "replace")
        return super().__new__(cls, '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in data) + '"')


class Label(Kind):
    """Text for a page of HTML, which escapes it: letters of all scripts, without those that nobody sees and those that turn the
    direction of others round."""

    __slots__ = ()
    LIMIT = 4000

    def __new__(cls, text: str) -> Self:
        return super().__new__(cls, "".join(c if c.isprintable() else "?" for c in text[: cls.LIMIT]))


class Data(Kind):
    """Plain data as JSON for an element of HTML that a script reads: every text in it is a :class:`Label`, and no letter of it is
    one that HTML or JavaScript takes for markup, so that nothing ends the element, a comment or a line."""

    __slots__ = ()

    def __new__(cls, value: Any) -> Self:
        text = json.dumps(_labels(value), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
        return super().__new__(cls, re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", text))

    def __html__(self) -> str:
        """What a template prints: as it is."""
        return str(self)


def _labels(value: Any) -> Any:
    if isinstance(value, str):
        return str(Label(value))
    if isinstance(value, Mapping):
        return {str(Label(str(key))): _labels(part) for key, part in value.items()}
    return [_labels(part) for part in value] if isinstance(value, (list, tuple)) else value


class _Checked(Kind):
    """A string of which a defect would be a hole: what is not of the pattern was not checked where it came in."""

    __slots__ = ()
    PATTERN: ClassVar[str]

    def __new__(cls, text: str) -> Self:
        if not re.fullmatch(cls.PATTERN, text):
            raise InternalError(f"{text!r} is no {cls.__name__.lower()}")
        return super().__new__(cls, text)


class Name(_Checked):
    """An identifier of C, and of all other languages that we write but for their own keywords."""

    __slots__ = ()
    PATTERN = "[A-Za-z_][A-Za-z0-9_]{0,199}"


class Word(_Checked):
    """An argument of a compiler, a path, a version: one word in make, CMake and a shell. May be empty."""

    __slots__ = ()
    PATTERN = r"[A-Za-z0-9_\-+.,/:=]*"


class Setting(_Checked):
    """A line of a Kconfig configuration."""

    __slots__ = ()
    PATTERN = r'CONFIG_[A-Z0-9_]+=([A-Za-z0-9_]+|"[A-Za-z0-9_\-+.,/: ]*")'


# ---- Jinja with strict rules: undefined names are errors, blocks leave no blank lines, output is the same
# everywhere.
#
# Templates take strings of the kinds of ``text.py`` only, so that a forgotten filter is an error and not a hole.


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
        loader=jinja2.FileSystemLoader([str(path) for path in (folder, file_access.templates()) if path is not None]),
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
