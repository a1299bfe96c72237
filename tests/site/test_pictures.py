# SPDX-License-Identifier: Apache-2.0
"""Pictures of the pages: drawn from the recorded figures, readable without seeing them, and of commands that exist."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.charts import FIGURES, FOLDER, TITLES, draw_all, read_palette, read_rows
from microc.cli.parser import parse_command_line
from scripts.site import explain_pictures, session
from tests.site.running import ROOT

PICTURES = draw_all()


@pytest.mark.parametrize("name", PICTURES)
def test_a_chart_is_current(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == PICTURES[name], "draw it again: python benchmarks/charts.py"


@pytest.mark.parametrize("name", explain_pictures.PICTURES)
def test_a_drawing_is_current(name: str) -> None:
    drawn = explain_pictures.PICTURES[name]()
    assert (explain_pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8") == drawn, (
        "draw it again: python -m scripts.site.explain_pictures"
    )


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.svg")), ids=lambda path: path.name)
def test_a_picture_has_a_title_and_loads_nothing(path: Path) -> None:
    root = ElementTree.parse(path).getroot()
    assert root.get("role") == "img" and root.get("viewBox")
    assert len(root.findtext("{http://www.w3.org/2000/svg}title") or "") > 40
    assert not any("href" in name for element in root.iter() for name in element.attrib)


def test_recorded_figures_are_exact_and_have_a_peer() -> None:
    rows = [row for row in read_rows() if row["model"] in TITLES]
    assert len(rows) >= 15 and all(row["exact"] and row[name] and row["peer"][name] for row in rows for name in FIGURES)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_has_contrast(dark: bool) -> None:
    """WCAG AA: 4.5 for text, 3 for bars, on the card of a chart and of a report."""
    colours = read_palette(dark)
    for name, least in (("ink", 4.5), ("soft", 4.5), ("strong", 4.5), ("bar", 3.0)):
        assert contrast(colours[name], colours["card"]) >= least, name
        assert contrast(colours[name], colours["page"]) >= least, name


def test_the_recording_shows_commands() -> None:
    text = session.PICTURE.read_text(encoding="utf-8")
    shown = [unescape(line) for line in re.findall(r">\$ (microc .*?)</text>", text)]
    assert shown == list(session.COMMANDS)
    for line in shown:
        parse_command_line(line.split()[1:])


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours (WCAG 2.2, relative luminance)."""
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
