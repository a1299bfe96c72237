# SPDX-License-Identifier: Apache-2.0
"""Draw the pictures of README and site from the recorded figures of MLPerf Tiny.

    python benchmarks/charts.py [--record FILE] [--folder docs/pictures]

``--record`` takes a file of ``mlperf_tiny.py --json``: its figures without layers become ``recorded/mlperf_tiny.json``, from
which everything else is drawn. A picture exists for light and dark pages, and as wide or narrow as its readers' screens. Colours
are those of the HTML reports.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "benchmarks" / "recorded" / "mlperf_tiny.json"
FOLDER = ROOT / "docs" / "pictures"
STYLE = ROOT / "templates" / "report" / "style.css"
TITLES = {
    "kws": "keyword spotting",
    "vww": "visual wake words",
    "ic": "image classification",
    "ad": "anomaly detection",
    "strww": "streaming wake word",
}
"""The int8 networks of MLPerf Tiny."""
FIGURES = {"instructions": "instructions per inference", "ram": "RAM, bytes", "flash": "flash, bytes"}
"""Figures with a panel each, and their titles."""
CORES = {"cortex-m4": "Cortex-M4", "cortex-m55": "Cortex-M55"}
"""Cores with a picture each."""
FONT = "system-ui, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"
BAR, ROW, GAP, MARGIN = 11, 48, 22, 16
"""Pixels: the height of a bar, of a network's row, the space between panels, and the margin."""


@dataclass(frozen=True)
class Layout:
    """The width of a picture in pixels, and its panels in a row."""

    name: str
    width: int
    columns: int


LAYOUTS = (Layout("", 960, 3), Layout("-narrow", 380, 1))


def read_palette(dark: bool) -> dict[str, str]:
    """Read the colours of the reports' style sheet by name."""
    light, _, rest = STYLE.read_text(encoding="utf-8").partition("@media (prefers-color-scheme: dark)")
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", rest.partition("* {")[0] if dark else light))


def record(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Drop from the rows of a benchmark what no page shows: layers, bars and ratios."""
    dropped = ("layers", "ratios", "most", "aim", "missed")
    return {
        "command": "python benchmarks/mlperf_tiny.py --json FILE && python benchmarks/charts.py --record FILE",
        "rows": [{name: value for name, value in row.items() if name not in dropped} for row in rows],
    }


def read_rows() -> list[dict[str, Any]]:
    """Read the recorded rows."""
    rows: list[dict[str, Any]] = json.loads(RECORDED.read_text(encoding="utf-8"))["rows"]
    return rows


def select_int8(rows: Sequence[Mapping[str, Any]], core: str) -> dict[str, Mapping[str, Any]]:
    """Select the rows of the int8 networks on a core, by network."""
    return {row["model"]: row for row in rows if row["core"] == core and row["model"] in TITLES}


def draw_peers(rows: Sequence[Mapping[str, Any]], core: str, layout: Layout, dark: bool) -> str:
    """Draw microc beside TensorFlow Lite Micro with CMSIS-NN as SVG: a panel for each figure, two bars for each network.

    The peer's bar has full length everywhere, since the networks' figures differ by a factor of a hundred.
    """
    colours = read_palette(dark)
    chosen = select_int8(rows, core)
    width = (layout.width - 2 * MARGIN - GAP * (layout.columns - 1)) // layout.columns
    height = 34 + ROW * len(chosen)
    lines = []
    for k, (figure, title) in enumerate(FIGURES.items()):
        x, y = MARGIN + (k % layout.columns) * (width + GAP), MARGIN + 28 + (k // layout.columns) * height
        lines.append(_text(x, y + 16, title[0].upper() + title[1:], 15, colours["ink"], 'font-weight="600"'))
        for n, (model, row) in enumerate(chosen.items()):
            top = y + 34 + n * ROW
            ours, theirs = row[figure], row["peer"][figure]
            length = round(width * min(ours / theirs, 1), 1)
            lines.append(_text(x, top + 9, TITLES[model], 12.5, colours["ink"]))
            share = f"{_short(ours)} of {_short(theirs)}: {100 * ours / theirs:.0f} %"
            lines.append(_text(x + width, top + 9, share, 12.5, colours["ink"], 'text-anchor="end"'))
            lines.append(_bar(x, top + 15, width, colours["part10"], 0.35))
            lines.append(_bar(x, top + 15, length, colours["strong"]))
    legend = (("microc", "strong", 1.0), ("TensorFlow Lite Micro with CMSIS-NN", "part10", 0.35))
    at = MARGIN
    for name, colour, opacity in legend:
        lines.append(_bar(at, MARGIN, 18, colours[colour], opacity))
        lines.append(_text(at + 24, MARGIN + 10, name, 13, colours["ink"]))
        at += 84
    total = MARGIN + 28 + height * -(-len(FIGURES) // layout.columns)
    card = f'<rect width="{layout.width}" height="{total}" rx="10" fill="{colours["card"]}"/>'
    return _svg(layout.width, total, describe_peers(chosen, core), [card, *lines])


def describe_peers(rows: Mapping[str, Mapping[str, Any]], core: str) -> str:
    """Describe the picture of a core in words, for those who do not see it."""
    parts = []
    for figure, title in FIGURES.items():
        shares = [100 * row[figure] / row["peer"][figure] for row in rows.values()]
        parts.append(f"{title.partition(',')[0]} {min(shares):.0f} to {max(shares):.0f} %")
    return (
        f"The five int8 networks of MLPerf Tiny on an emulated {CORES[core]}. microc needs, of what TensorFlow Lite Micro with "
        f"CMSIS-NN needs: {', '.join(parts)}."
    )


def draw_all() -> dict[str, str]:
    """Draw every picture: SVG by file name."""
    rows = read_rows()
    return {
        f"{core}{layout.name}-{'dark' if dark else 'light'}.svg": draw_peers(rows, core, layout, dark)
        for core in CORES
        for layout in LAYOUTS
        for dark in (False, True)
    }


def _short(count: int) -> str:
    """Format a count with three digits: 2.80 M, 10.6 K."""
    for unit, name in ((1_000_000, " M"), (1000, " K")):
        if count >= unit:
            scaled = count / unit
            return f"{scaled:.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f}{name}"
    return str(count)


def _text(x: float, y: float, text: str, size: float, colour: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}"{more and " " + more}>{escape(text)}</text>'


def _bar(x: float, y: float, width: float, colour: str, opacity: float = 1.0) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{BAR}" rx="2" fill="{colour}" fill-opacity="{opacity}"/>'


def _svg(width: int, height: int, description: str, lines: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'font-family="{FONT}">'
    )
    return "\n".join((head, f"<title>{escape(description)}</title>", *lines, "</svg>")) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="FILE", help="figures of mlperf_tiny.py --json to keep")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the pictures")
    options = parser.parse_args()
    if options.record:
        rows = json.loads(options.record.read_text(encoding="utf-8"))["rows"]
        RECORDED.parent.mkdir(exist_ok=True)
        RECORDED.write_text(json.dumps(record(rows), indent=1) + "\n", encoding="utf-8")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, picture in draw_all().items():
        (options.folder / name).write_text(picture, encoding="utf-8")
        print(options.folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
