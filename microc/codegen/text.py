"""What may stand in a generated file, by kind: the one place that says which letters a name or a text can bring along.

Models, boards and users are strangers: whatever they call something is data in every file that we write. Templates take
strings of these kinds only (``render.py``): one that has not been through here is a defect, and told as such.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from microc.errors import InternalError

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
