# SPDX-License-Identifier: Apache-2.0
"""Checks of the values that callers pass to the API, one for each type. Invalid values raise UsageError.

Errors state the accepted form. Integers may be numpy integers. A bool is not accepted as an integer, nor a number as a
name. Every check returns the value converted to a single Python type. The declaration of what learns is a table of such
values, given in Python or as a TOML file (``--learn head.toml``).
"""

from __future__ import annotations

import math
import numbers
import operator
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.base.file_access import parse_toml, read_text
from microc.errors import OutputError, UsageError, known_names_hint

if TYPE_CHECKING:
    from microc.transform.training.learning import Head

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


# ---- Declaration of the layers that learn.

_MAX_FILE_BYTES = 1 << 16
_TABLE = "learn"
"""Name of the only table of a file."""
_LIMITS = {"accumulate": (1, 1 << 20), "classes": (0, 1 << 16), "replay": (0, 1 << 12)}
"""Least and largest value of integer fields: runs of a step, outputs of the last layer, samples kept of a class."""


def validated_head(name: str, value: Any) -> Head | Path | None:
    """Convert the value of the option ``learn`` to a declaration, or to the path of its file, which is not read yet.

    ``value``: a :class:`~microc.transform.training.learning.Head`, a mapping of its fields, a path, or None. Raises
    UsageError for unknown fields and values of another type or range."""
    from microc.transform.training.learning import Head

    if value is None or isinstance(value, Head):
        return value
    return _make_head(name, dict(value)) if isinstance(value, Mapping) else as_path(name, value)


def load_head(head: Head | Path) -> Head:
    """Return a declaration; read it if it is the path of a TOML file with a table ``[learn]``.

    Raises OutputError if the file cannot be read, and UsageError if its content is wrong."""
    return _make_head(head.name, _read_table(head)) if isinstance(head, Path) else head


def _read_table(path: Path) -> dict[str, Any]:
    """Read the table ``[learn]`` of a TOML file."""
    hint = "write a table [learn] of layers, loss and optimiser (docs/learning.md)"
    try:
        tables = parse_toml(read_text(path, _MAX_FILE_BYTES))
    except OSError as error:
        raise OutputError(f"cannot read {path}: {error.strerror}", where=str(path), hint=hint) from error
    except ValueError as error:
        raise UsageError(f"{path.name} is not valid TOML: {error}", where=path.name, hint=hint) from error
    table = tables.get(_TABLE)
    if set(tables) != {_TABLE} or not isinstance(table, dict):
        raise UsageError(
            f"{path.name}: got the tables {', '.join(tables) or 'none'}, expected [{_TABLE}]",
            where=path.name,
            hint=hint,
        )
    return table


def _make_head(where: str, table: dict[str, Any]) -> Head:
    """Check the fields of a declaration. ``where``: the name of the option or of the file, for errors."""
    from microc.transform.training.graph_extensions import CROSS_ENTROPY, LOSSES
    from microc.transform.training.learning import OPTIMISERS, PARAMETERS, Head

    known = [field.name for field in fields(Head)]
    for name in table:
        if name not in known:
            raise UsageError(
                f"learn: there is no field {name!r}", where=where, hint=known_names_hint(str(name), known, "fields")
            )
    chosen = dict(table)
    layers = chosen.get("layers", 1)
    if isinstance(layers, (list, tuple, str)):
        chosen["layers"] = as_names("layers", layers)
    else:
        chosen["layers"] = as_integer("layers", layers, least=1, accepted_form="a number or names of layers")
    for name, allowed in (("parameters", PARAMETERS), ("loss", tuple(LOSSES)), ("optimiser", OPTIMISERS)):
        if name in chosen:
            as_known_value(name, chosen[name], allowed)
    if "output" in chosen:
        as_text("output", chosen["output"])
    for name in ("momentum", "beta1", "beta2"):
        if name in chosen:
            chosen[name] = as_number(name, chosen[name], 0.0, 0.999999)
    if "epsilon" in chosen:
        chosen["epsilon"] = as_number("epsilon", chosen["epsilon"], 1e-30, 1.0)
    for name, (least, most) in _LIMITS.items():
        if name in chosen:
            chosen[name] = as_integer(name, chosen[name], least, most)
    if isinstance(channels := chosen.get("channels", 0), (list, tuple)):
        chosen["channels"] = tuple(sorted(set(as_integers("channels", channels, 0)))) or 0
    else:
        chosen["channels"] = as_integer("channels", channels, accepted_form="a number or positions")
    if chosen.get("replay") and chosen.get("loss", CROSS_ENTROPY) != CROSS_ENTROPY:
        raise UsageError(
            f"learn: replay requires classes; got loss={chosen['loss']!r}, expected {CROSS_ENTROPY!r}",
            where=where,
            hint="leave out replay",
        )
    return Head(**chosen)
