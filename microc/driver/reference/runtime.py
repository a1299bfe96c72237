"""What every framework looks like from here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import field
from importlib import metadata
from typing import Any, Protocol

from microc.dtypes import Array
from microc.errors import ToolError
from microc.frozen import frozen

EXTRA = "pip install microc[reference]"


@frozen
class Answer:
    """One inference of a framework.

    ``outputs``: in the model's order. ``tensors``: all values that it shows, by the model's names. ``undecided``: by the number
    of an output, the elements (bool, in its shape) that rounding decides, such as the class of two equal scores.
    """

    outputs: tuple[Array, ...]
    tensors: Mapping[str, Array] = field(default_factory=dict)
    undecided: Mapping[int, Array] = field(default_factory=dict)


class Reference(Protocol):
    """A model in its framework. ``name`` is the framework's, ``version`` that of its package."""

    name: str
    version: str

    def run(self, arrays: Sequence[Array]) -> Answer:
        """One inference on the inputs in the model's order. RuntimeRefusal where the framework does not take them."""

    def reset(self) -> None:
        """Put the state to its initial content."""


class RuntimeRefusal(Exception):
    """The framework does not run on these inputs; the message is its own."""


def imported(module: str, what: str, extra: str = EXTRA) -> Any:
    """A module of a framework, which only references need; ToolError, which names the extra, where it is absent."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ToolError(f"{what} is not installed, which the comparison runs", hint=extra) from error


def version_of(distribution: str) -> str:
    """The version of an installed package; empty where its metadata is gone."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def flat(results: Any) -> list[Any]:
    """The tensors of nested results in order."""
    if isinstance(results, dict):
        return [x for part in results.values() for x in flat(part)]
    if isinstance(results, (tuple, list)):
        return [x for part in results for x in flat(part)]
    return [results]
