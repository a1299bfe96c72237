"""Representations of objects at a prompt and in a notebook: name, inputs, outputs, a few numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from microc.base.terminal import escape_unprintable
from microc.codegen.render import Label
from microc.graph.ir import shorten_text

Tensor = Mapping[str, Any]
"""``name``, ``dtype`` and ``shape``, as in a manifest."""


def format_signature(model: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    """Format the name, inputs and outputs of a network: ``digits(x: int8[1, 8, 8, 1] -> y: int8[1, 10])``."""
    arrow = " -> ".join(", ".join(map(_tensor_text, tensors)) for tensors in (inputs, outputs))
    return shorten_text(escape_unprintable(f"{model}({arrow})", ""))


def _tensor_text(tensor: Tensor) -> str:
    """Format the name, dtype and shape of a tensor: ``x: int8[1, 8, 8, 1]``."""
    return f"{tensor['name']}: {tensor['dtype']}[{', '.join(map(str, tensor['shape']))}]"


def html_table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Format an HTML table with a row for each fact; text of a model is escaped."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{_format_cell(name)}</th><td>{_format_cell(value)}</td></tr>"
        for name, value in rows
    )
    return f"<table><caption style='text-align:left'><b>{_format_cell(title)}</b></caption>{cells}</table>"


def _format_cell(value: object) -> str:
    """Format the text of a table cell, escaped for HTML; integers get commas."""
    return escape(Label(f"{value:,}" if isinstance(value, int) else str(value)))
