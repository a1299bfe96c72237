# SPDX-License-Identifier: Apache-2.0
"""Declaration of what learns (``--learn head.toml``), and the graph of a network that learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.base.file_access import parse_toml, read_text
from microc.compiler import validation
from microc.errors import OutputError, UsageError, known_names_hint

if TYPE_CHECKING:
    from microc.transform.training.learning import Head

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
    return _make_head(name, dict(value)) if isinstance(value, Mapping) else validation.as_path(name, value)


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
    from microc.transform.training.learning import OPTIMISERS, PARAMETERS, Head
    from microc.transform.training.losses import CROSS_ENTROPY, LOSSES

    known = [field.name for field in fields(Head)]
    for name in table:
        if name not in known:
            raise UsageError(
                f"learn: there is no field {name!r}", where=where, hint=known_names_hint(str(name), known, "fields")
            )
    chosen = dict(table)
    layers = chosen.get("layers", 1)
    if isinstance(layers, (list, tuple, str)):
        chosen["layers"] = validation.as_names("layers", layers)
    else:
        chosen["layers"] = validation.as_integer("layers", layers, least=1, accepted_form="a number or names of layers")
    for name, allowed in (("parameters", PARAMETERS), ("loss", tuple(LOSSES)), ("optimiser", OPTIMISERS)):
        if name in chosen:
            validation.as_known_value(name, chosen[name], allowed)
    if "output" in chosen:
        validation.as_text("output", chosen["output"])
    for name in ("momentum", "beta1", "beta2"):
        if name in chosen:
            chosen[name] = validation.as_number(name, chosen[name], 0.0, 0.999999)
    if "epsilon" in chosen:
        chosen["epsilon"] = validation.as_number("epsilon", chosen["epsilon"], 1e-30, 1.0)
    for name, (least, most) in _LIMITS.items():
        if name in chosen:
            chosen[name] = validation.as_integer(name, chosen[name], least, most)
    if isinstance(channels := chosen.get("channels", 0), (list, tuple)):
        chosen["channels"] = tuple(sorted(set(validation.as_integers("channels", channels, 0)))) or 0
    else:
        chosen["channels"] = validation.as_integer("channels", channels, accepted_form="a number or positions")
    if chosen.get("replay") and chosen.get("loss", CROSS_ENTROPY) != CROSS_ENTROPY:
        raise UsageError(
            f"learn: replay requires classes; got loss={chosen['loss']!r}, expected {CROSS_ENTROPY!r}",
            where=where,
            hint="leave out replay",
        )
    return Head(**chosen)
