# SPDX-License-Identifier: Apache-2.0
"""Pages with tables and pictures of recorded figures: what is between ``<!-- begin NAME -->`` and ``<!-- end -->`` is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.charts import TITLES, describe_peers, read_rows, select_int8
from microc.document import blocks
from microc.document.blocks import Cell, Column, numbers, texts
from microc.document.renderers import render_markdown_table

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^(<!-- begin (\w+) ([\w-]+) -->\n)(.*?)^(<!-- end -->)$", re.MULTILINE | re.DOTALL)
COLUMNS = ("instructions", "per MAC", "arena", "RAM", "code", "flash")
"""Columns of a table; arena to flash in bytes, with the percentage of the peer's figure."""


def page(name: str) -> str:
    """Return a page of docs/ with its tables and pictures written again."""
    text = (DOCS / name).read_text(encoding="utf-8")
    return BLOCK.sub(lambda block: f"{block[1]}{WRITERS[block[2]](block[3])}\n{block[5]}", text)


def table(subject: str) -> str:
    """Markdown: the int8 networks on a core, or the float networks."""
    if subject == "float":
        rows = [row for row in read_rows() if row["model"].endswith("_float")]
    else:
        rows = [*select_int8(read_rows(), subject).values()]
    return _render((*texts("network"), *numbers(*COLUMNS)), map(_row, rows))


def _render(columns: Iterable[Column], rows: Iterable[Iterable[Cell]]) -> str:
    return render_markdown_table(blocks.table(columns, rows))


def picture(core: str) -> str:
    """HTML: the picture of a core, for light and dark pages and for wide and narrow screens."""
    rows = select_int8(read_rows(), core)
    dark, narrow = "(prefers-color-scheme: dark)", "(max-width: 600px)"
    sources = ((f"{dark} and {narrow}", "-narrow-dark"), (narrow, "-narrow-light"), (dark, "-dark"))
    return "".join(
        (
            "<picture>",
            *(f'<source media="{media}" srcset="pictures/{core}{name}.svg">' for media, name in sources),
            f'<img src="pictures/{core}-light.svg" alt="{describe_peers(rows, core)}">',
            "</picture>",
        )
    )


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (TITLES[row["model"].removesuffix("_float")], *(_figure(row, name) for name in COLUMNS))


def _figure(row: Mapping[str, Any], name: str) -> str:
    if name == "per MAC":
        return f"{row['instructions'] / row['macs']:.2f}"
    figure, theirs = row[name.lower()], row["peer"].get(name.lower())
    return f"{figure:,} ({100 * figure / theirs:.0f} %)" if theirs else f"{figure:,}"


OTHERS = (
    ("kws", "microTVM 0.14 with CMSIS-NN", 8_287_412, "exact"),
    ("kws", "microTVM 0.14, C", 21_930_581, "not exact"),
    ("vww", "microTVM 0.14 with CMSIS-NN", 24_107_713, "exact"),
    ("vww", "TinyEngine, softmax removed", 19_711_645, "wrong output"),
    ("ic", "microTVM 0.14 with CMSIS-NN", 29_874_959, "exact"),
    ("ad", "microTVM 0.14 with CMSIS-NN", 582_962, "exact"),
    ("vww_float", "onnx2c, -O3 -ffast-math", 54_603_967, ""),
    ("ic_float", "onnx2c, -O3 -ffast-math", 121_081_545, ""),
    ("ad_float", "onnx2c", 1_340_995, ""),
)
"""Instructions of other compilers on an emulated Cortex-M4, and their results."""


def peers(core: str) -> str:
    """Markdown: TensorFlow Lite Micro and microc side by side, the int8 networks on a core."""
    figures = ("instructions", "RAM", "code")
    headings = (heading for name in figures for heading in (f"TFLM {name}", "microc"))
    rows = (
        (TITLES[row["model"]], *(side[name.lower()] for name in figures for side in (row["peer"], row)))
        for row in select_int8(read_rows(), core).values()
    )
    return _render((*texts("network"), *numbers(*headings)), rows)


def compilers(core: str) -> str:
    """Markdown: instructions of other compilers beside microc's."""
    rows = {row["model"]: row for row in read_rows() if row["core"] == core}
    cells = (
        (
            TITLES[model.removesuffix("_float")] + (", float" if model.endswith("_float") else ""),
            *(tool, instructions, rows[model]["instructions"], result),
        )
        for model, tool, instructions, result in OTHERS
    )
    return _render((*texts("network", "tool"), *numbers("instructions", "microc"), *texts("result")), cells)


WRITERS: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {"table": table, "picture": picture, "peers": peers, "compilers": compilers}
)
