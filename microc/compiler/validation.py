# SPDX-License-Identifier: Apache-2.0
"""Checks of the values that callers pass to the API, one for each type. Invalid values raise UsageError.

Errors state the accepted form. Integers may be numpy integers. A bool is not accepted as an integer, nor a number as a
name. Every check returns the value converted to a single Python type.
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
"""Largest integer that any option accepts (the maximum of int64)."""

Check = Callable[[str, Any], Any]
"""A check of an option value: it accepts the name of the value and the value, and returns the value converted to its
type."""


def short_repr(value: object) -> str:
    """Format a value for an error message, shortened."""
    try:
        return reprlib.repr(value)
    except (ValueError, TypeError, AttributeError, RecursionError):
        # Python limits the number of digits of an int that is converted to text, and the __repr__ of an object may fail.
        return f"of type {type(value).__name__}"


def invalid_value_error(value_name: str, value: object, accepted_form: str) -> UsageError:
    """Create the UsageError for an invalid value.

    ``value_name``: the name of the value. ``accepted_form``: a noun phrase such as ``a str``, for the hint.
    """
    return UsageError(f"{value_name} cannot be {short_repr(value)}", hint=f"give {accepted_form}")


def as_integer(value_name: str, value: Any, least: int = 0, most: int = LARGEST, accepted_form: str = "") -> int:
    """Return a value as an int; UsageError unless it is an integer from ``least`` to ``most``.

    ``value_name``: the name of the value in errors; ``accepted_form``: a noun phrase for the hint, if it is not just
    this range.
    """
    accepted_form = accepted_form or f"an integer, at least {least}" + (
        "" if most == LARGEST else f" and at most {most}"
    )
    if _is_bool(value) or not isinstance(value, numbers.Integral):
        raise invalid_value_error(value_name, value, accepted_form)
    number = operator.index(value)
    if not least <= number <= most:
        raise invalid_value_error(value_name, value, accepted_form)
    return number


def as_number(value_name: str, value: Any, least: float, most: float, accepted_form: str = "") -> float:
    """Return a value as a float; UsageError unless it is a number from ``least`` to ``most``. NaN is never accepted.

    ``value_name``: the name of the value in errors; ``accepted_form``: a noun phrase for the hint, if it is not just
    this range.
    """
    accepted_form = accepted_form or f"a number from {least:g} to {most:g}"
    if _is_bool(value) or not isinstance(value, numbers.Real):
        raise invalid_value_error(value_name, value, accepted_form)
    try:
        converted = float(value)
    except OverflowError:
        converted = math.inf
    if not least <= converted <= most:
        raise invalid_value_error(value_name, value, accepted_form)
    return converted


def _is_bool(value: Any) -> bool:
    """Test whether a value is a bool of Python or numpy. numpy's bool is not a subclass of Python's."""
    return isinstance(value, bool) or (type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"))


def _is_array(value: Any) -> bool:
    """Test whether a value is a numpy array. numpy is not imported, because the command line checks options without
    it."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def as_text(value_name: str, value: Any) -> str:
    """Return a value as a str; UsageError for any other type. ``value_name``: the name of the value in errors."""
    if not isinstance(value, str):
        raise invalid_value_error(value_name, value, "a str")
    return str(value)


def as_boolean(value_name: str, value: Any) -> bool:
    """Return a value as a bool; UsageError unless it is True or False. ``value_name``: the name of the value in
    errors."""
    if not _is_bool(value):
        raise invalid_value_error(value_name, value, "True or False")
    return bool(value)


def as_known_value(value_name: str, value: Any, allowed_values: Sequence[Any]) -> Any:
    """Return a value unchanged; UsageError unless it is one of ``allowed_values``, which all have the same type.

    ``value_name``: the name of the value in errors.
    """
    if isinstance(allowed_values[0], int) and not _is_bool(value) and isinstance(value, numbers.Integral):
        value = int(value)
    if type(value) is not type(allowed_values[0]) or value not in allowed_values:
        raise invalid_value_error(value_name, value, "one of " + ", ".join(map(str, allowed_values)))
    return value


def as_path(value_name: str, value: Any) -> Path:
    """Return a str or path-like value as a Path; UsageError for any other value. ``value_name``: the name of the value
    in errors."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str) or "\0" in os.fspath(value):
        raise invalid_value_error(value_name, value, "a path: a str or pathlib.Path")
    return Path(value)


def as_names(value_name: str, value: Any) -> tuple[str, ...]:
    """Return a value as a tuple of names: a str is a single name, a sequence or set contains several, None contains
    none.

    Raises UsageError for any other value. ``value_name``: the name of the value in errors.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        return (str(value),)
    if not isinstance(value, (list, tuple, set, frozenset)) or not all(isinstance(name, str) for name in value):
        raise invalid_value_error(value_name, value, "a name, or a list of names")
    return tuple(map(str, sorted(value) if isinstance(value, (set, frozenset)) else value))


def as_mapping_by_name(value_name: str, value: Any, check: Check, default_key: str = "") -> dict[str, Any]:
    """Return a value as a dict whose keys are names and whose values have passed ``check``. None gives an empty dict.

    ``default_key``: the key under which a single value is stored that is passed instead of a mapping; if it is empty, a
    mapping is required. ``value_name``: the name of the value in errors.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        if not default_key:
            raise invalid_value_error(value_name, value, "a dict with names as keys")
        return {default_key: check(value_name, value)}
    for name in value:
        as_text(f"a name in {value_name}", name)
    return {str(name): check(f"{value_name} of {short_repr(name)}", given) for name, given in value.items()}


def as_integers(value_name: str, value: Any, least: int = 0) -> tuple[int, ...]:
    """Return a sequence of integers of at least ``least`` as a tuple; UsageError for any other value.

    ``value_name``: the name of the value in errors.
    """
    if not ((_is_array(value) and value.ndim == 1) or isinstance(value, (list, tuple))):
        raise invalid_value_error(value_name, value, "a tuple of integers")
    return tuple(as_integer(value_name, extent, least) for extent in value)


def as_function_or_none(value_name: str, value: Any) -> Any:
    """Return a value unchanged; UsageError unless it is callable or None. ``value_name``: the name of the value in errors."""
    if value is not None and not callable(value):
        raise invalid_value_error(value_name, value, "a function, or None")
    return value


def as_instance(value_name: str, value: Any, type_: type, accepted_form: str) -> Any:
    """Return a value unchanged; UsageError unless it is an instance of the class ``type_``. ``value_name``: the name of the value
    in errors; ``accepted_form``: a noun phrase for the hint."""
    if not isinstance(value, type_):
        raise invalid_value_error(value_name, value, accepted_form)
    return value


def as_arrays(value_name: str, value: Any) -> Sequence[Any]:
    """Return a sequence of arrays, such as a list or tuple, as a list; UsageError for any other value, also a single
    array.

    ``value_name``: the name of the value in errors.
    """
    if not isinstance(value, Iterable) or _is_array(value) or isinstance(value, (str, bytes, Mapping)):
        raise invalid_value_error(value_name, value, "a list of arrays, one for each input")
    return list(value)


def as_tuple_of(value_name: str, value: Any, element_class: type, accepted_form: str) -> tuple[Any, ...]:
    """Return objects of one class as a tuple. A single object is accepted too; None gives an empty tuple.

    Raises UsageError for any other value. ``value_name``: the name of the value in errors; ``accepted_form``: a noun
    phrase for the hint.
    """
    given = (value,) if isinstance(value, element_class) and not isinstance(value, (list, tuple)) else value
    if given is None:
        return ()
    if not isinstance(given, (list, tuple)) or not all(isinstance(each, element_class) for each in given):
        raise invalid_value_error(value_name, value, accepted_form)
    return tuple(given)
