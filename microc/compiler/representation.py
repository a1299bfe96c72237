"""What objects look like at a prompt and in a notebook: their name, what goes in and comes out, a few numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from microc.base.terminal import visible
from microc.codegen.render import Label
from microc.graph.ir import short

Tensor = Mapping[str, Any]
"""``name``, ``dtype`` and ``shape``, as in a manifest."""


def signature(model: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    """``digits(x: int8[1, 8, 8, 1] -> y: int8[1, 10])``."""
    arrow = " -> ".join(", ".join(map(_typed, tensors)) for tensors in (inputs, outputs))
    return short(visible(f"{model}({arrow})", ""))


def _typed(tensor: Tensor) -> str:
    return f"{tensor['name']}: {tensor['dtype']}[{', '.join(map(str, tensor['shape']))}]"


def table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """A table of HTML with a row for each fact; text from a model is shown, never obeyed."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{_cell(name)}</th><td>{_cell(value)}</td></tr>" for name, value in rows
    )
    return f"<table><caption style='text-align:left'><b>{_cell(title)}</b></caption>{cells}</table>"


def _cell(value: object) -> str:
    return escape(Label(f"{value:,}" if isinstance(value, int) else str(value)))
