# SPDX-License-Identifier: Apache-2.0
"""Tables as Markdown: cells cannot end a column."""

from __future__ import annotations

from microc.document.blocks import numbers, table, texts
from microc.document.renderers import render_markdown_table


def test_cells_are_formatted_and_escaped() -> None:
    shown = table((*texts("option", ""), *numbers("bytes")), [("`a|b`", "", 1234)], totals=("all", None, 5))
    assert render_markdown_table(shown).splitlines() == [
        "| option | | bytes |",
        "|---|---|--:|",
        "| `a\\|b` |  | 1,234 |",
        "| all |  | 5 |",
    ]
