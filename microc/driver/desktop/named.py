"""Inputs and outputs by their names, beside their places in the graph's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.driver import accepted
from microc.errors import UsageError, suggestion

Tensors = Sequence[Mapping[str, Any]]
"""As a manifest has them: ``name`` in C, ``label`` in the model."""


def position_of(key: int | str, tensors: Tensors, what: str) -> int:
    """The place of one of ``tensors``, which are ``what`` (``input``), by that or by a name; UsageError for what is neither."""
    names = [t["name"] for t in tensors]
    labels = [t["label"] for t in tensors]
    if isinstance(key, str) and (key in names or key in labels):
        return names.index(key) if key in names else labels.index(key)
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool) and 0 <= key < len(tensors):
        return int(key)
    raise UsageError(
        f"there is no {what} {accepted.shown(key)}",
        hint=suggestion(key if isinstance(key, str) else "", names, f"{what}s"),
    )


def in_order(inputs: Tensors, arrays: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arrays of a call, some by place and others by name, in order. UsageError where one is missing or given twice."""
    found: dict[int, Any] = dict(enumerate(arrays))
    for name, array in named.items():
        place = position_of(name, inputs, "input")
        if place in found:
            raise UsageError(f"input {name!r} is given twice", hint="by its place or by its name")
        found[place] = array
    missing = [tensor["name"] for place, tensor in enumerate(inputs) if place not in found]
    if missing:
        raise UsageError(f"input {missing[0]!r} is missing", hint="inputs: " + ", ".join(t["name"] for t in inputs))
    return tuple(found[place] for place in sorted(found))
