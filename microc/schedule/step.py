"""A step of a schedule: a name and arguments, as they are printed and replayed."""

from __future__ import annotations

from typing import Any

from microc.frozen import frozen


@frozen
class Step:
    """One primitive and its arguments (strings, ints, None and tuples of them)."""

    primitive: str
    args: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.primitive}({', '.join(map(_spell, self.args))})"


def _spell(value: object) -> str:
    return f"({', '.join(map(_spell, value))})" if isinstance(value, tuple) else str(value)


def frozen_argument(value: Any) -> Any:
    """An argument of a step with tuples in the place of lists."""
    return tuple(frozen_argument(v) for v in value) if isinstance(value, (list, tuple)) else value
