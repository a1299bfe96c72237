"""What callers may give: one check for every kind of value, at all entry points. Anything else is a UsageError that says what is.

Integers may be numpy's; bools are no integers, and no number is a name. Every function returns the value in the one type that the
code behind it knows.
"""

from __future__ import annotations

import math
import numbers
import operator
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from microc.errors import UsageError

LARGEST = (1 << 63) - 1
"""The largest integer that anything may be."""

Check = Callable[[str, Any], Any]
"""Of what a value is called, and the value: the value in its type."""


def shown(value: object) -> str:
    """A value in an error message: short, whatever it is."""
    try:
        return reprlib.repr(value)
    except (
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
    ):  # an integer of thousands of digits, or an object that cannot be shown
        return f"of type {type(value).__name__}"


def refused(what: str, value: object, hint: str) -> UsageError:
    """The error for a value that something cannot have."""
    return UsageError(f"{what} cannot be {shown(value)}", hint=hint)


def integer(what: str, value: Any, least: int = 0, most: int = LARGEST, hint: str = "") -> int:
    """An int of a range."""
    wanted = hint or f"an integer, at least {least}" + ("" if most == LARGEST else f" and at most {most}")
    if _is_truth(value) or not isinstance(value, numbers.Integral):
        raise refused(what, value, wanted)
    number = operator.index(value)
    if not least <= number <= most:
        raise refused(what, value, wanted)
    return number


def number(what: str, value: Any, least: float, most: float, hint: str = "") -> float:
    """A float of a range; NaN is in none."""
    wanted = hint or f"a number from {least:g} to {most:g}"
    if _is_truth(value) or not isinstance(value, numbers.Real):
        raise refused(what, value, wanted)
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not least <= found <= most:
        raise refused(what, value, wanted)
    return found


def _is_truth(value: Any) -> bool:
    """Whether a value is a bool, or numpy's, which is of no abstract class."""
    return isinstance(value, bool) or (type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"))


def _is_array(value: Any) -> bool:
    """Whether a value is an array of numpy's, which is not imported for that: options are checked where nothing is computed."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def text(what: str, value: Any) -> str:
    """A str."""
    if not isinstance(value, str):
        raise refused(what, value, "a str")
    return str(value)


def truth(what: str, value: Any) -> bool:
    """True or False."""
    if not _is_truth(value):
        raise refused(what, value, "True or False")
    return bool(value)


def choice(what: str, value: Any, known: Sequence[Any]) -> Any:
    """One of a few, of their type."""
    if isinstance(known[0], int) and not _is_truth(value) and isinstance(value, numbers.Integral):
        value = int(value)
    if type(value) is not type(known[0]) or value not in known:
        raise refused(what, value, ", ".join(map(str, known)))
    return value


def path(what: str, value: Any) -> Path:
    """A path."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str) or "\0" in os.fspath(value):
        raise refused(what, value, "a path: a str or pathlib.Path")
    return Path(value)


def names(what: str, value: Any) -> tuple[str, ...]:
    """Names: a str is one, anything else a sequence or set of them; None are none."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (str(value),)
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(name, str) for name in value):
        raise refused(what, value, "a name, or a list of names")
    return tuple(map(str, sorted(value) if isinstance(value, (set, frozenset)) else value))


def by_name(what: str, value: Any, check: Check, every: str = "") -> dict[str, Any]:
    """A mapping from names; ``every``: the name that a value alone goes by, where that is possible. None is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        if not every:
            raise refused(what, value, "a dict from names")
        return {every: check(what, value)}
    for name in value:
        text(f"a name in {what}", name)
    return {str(name): check(f"{what} of {shown(name)}", given) for name, given in value.items()}


def integers(what: str, value: Any, least: int = 0) -> tuple[int, ...]:
    """A sequence of ints."""
    if not ((_is_array(value) and value.ndim == 1) or isinstance(value, (list, tuple))):
        raise refused(what, value, "a tuple of integers")
    return tuple(integer(what, extent, least) for extent in value)


def call(what: str, value: Any) -> Any:
    """A function, or None."""
    if value is not None and not callable(value):
        raise refused(what, value, "a function, or None")
    return value


def instance(what: str, value: Any, kind: type, hint: str) -> Any:
    """An object of a class."""
    if not isinstance(value, kind):
        raise refused(what, value, hint)
    return value


def arrays(what: str, value: Any) -> Sequence[Any]:
    """A sequence of arrays: a list or tuple, not one array."""
    if not isinstance(value, Iterable) or _is_array(value) or isinstance(value, (str, bytes, Mapping)):
        raise refused(what, value, "a list of arrays, one for each input")
    return list(value)


def sequence_of(what: str, value: Any, kind: type, hint: str) -> tuple[Any, ...]:
    """A tuple of objects of one class; one of them alone is as good."""
    given = (value,) if isinstance(value, kind) and not isinstance(value, (list, tuple)) else value
    if given is None:
        return ()
    if not isinstance(given, (list, tuple)) or not all(isinstance(each, kind) for each in given):
        raise refused(what, value, hint)
    return tuple(given)
