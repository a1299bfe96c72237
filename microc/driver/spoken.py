"""Hints in the language of whoever asked: errors name flags, which a Python program gives as keywords."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import ParamSpec, TypeVar

from microc.driver.options import OPTIONS, Bound
from microc.driver.options import words as meaning
from microc.driver.options.option import Option
from microc.errors import MicrocError

P = ParamSpec("P")
R = TypeVar("R")

_ON_A_COMMAND_LINE: ContextVar[bool] = ContextVar("on_a_command_line", default=False)
_FLAGS: Mapping[str, str] = MappingProxyType({option.flag: name for name, option in OPTIONS.items() if option.flag})
_PLAIN: Mapping[str, str] = MappingProxyType(
    {f"--{name}": name for name in ("board", "target", "data", "against", "samples", "labels", "evaluate")}
)
"""Keywords of functions that are no options."""
_SPOKEN = re.compile(r"microc [a-z]+ [^,;()]*|(?<![\w-])(--[a-z][a-z-]*)(?: ([^\s;()]*[^\s;:(),.]))?")
"""A command, which is left as it is, or a flag with the word behind it."""


@contextmanager
def flags() -> Iterator[None]:
    """Errors inside speak of flags: they are shown by a command."""
    before = _ON_A_COMMAND_LINE.set(True)
    try:
        yield
    finally:
        _ON_A_COMMAND_LINE.reset(before)


def in_python(text: str) -> str:
    """A hint with keywords for flags: ``ram="30K"`` for ``--ram 30K``."""
    return _SPOKEN.sub(_keyword, text)


def speaks_python(function: Callable[P, R]) -> Callable[P, R]:
    """A function of the library whose errors speak Python, unless a command calls it."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except MicrocError as error:
            if not _ON_A_COMMAND_LINE.get():
                error.what, error.hint = in_python(error.what), in_python(error.hint)
                error.args = (error.what,)
            raise

    return call


def _keyword(found: re.Match[str]) -> str:
    flag, word = found.group(1), found.group(2)
    if flag in _PLAIN:
        return f'{_PLAIN[flag]}="{word}"' if word and word.isupper() else found.group().replace(flag, _PLAIN[flag])
    if flag not in _FLAGS:
        return found.group()
    name = _FLAGS[flag]
    if flag == f"--no-{name}":
        return f"{name}=False"
    value = _value(OPTIONS[name], word) if word else None
    return f"{name}={value}" if value is not None else found.group().replace(flag, name)


def _value(option: Option, word: str) -> str | None:
    """How Python writes what a word behind a flag means; None where it is no such word, but the next of the sentence."""
    if option.words:
        return _written(option.words[word]) if word in option.words else None
    if option.word is meaning.bytes:
        return None if _parsed(option, word) is None else word if word.isdecimal() else _written(word)
    if option.word is Path:
        return _written(word) if word.isupper() or "/" in word or "." in word else None
    from microc import dtypes

    if option.word is meaning.wish and not (
        dtypes.is_valid(word.split("=")[-1]) or word.split("=")[-1].startswith("N")
    ):
        return None
    if option.word not in (meaning.shape, meaning.bound, meaning.count, meaning.axis, meaning.wish):
        return None
    value = _parsed(option, word)
    if isinstance(value, tuple):
        name, value = value
        return _written(value) if name == "*" else f'{{"{name}": {_written(value)}}}'
    return None if value is None else _written(value)


def _parsed(option: Option, word: str) -> object:
    try:
        return option.word(word)
    except ValueError:
        return None


def _written(value: object) -> str:
    if isinstance(value, Bound):  # a bound, as a number, or as least, most and step
        plain = (value.maximum, value.minimum, value.step) == (value.maximum, 1, 1)
        return str(value.maximum) if plain else f"({value.minimum}, {value.maximum}, {value.step})"
    return f'"{value}"' if isinstance(value, str) else repr(value)
