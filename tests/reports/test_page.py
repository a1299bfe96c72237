# SPDX-License-Identifier: Apache-2.0
"""The page of a report, parsed: what is in it, what it may do, and that what a stranger called things is text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import microc
from microc.reports.saved_reports import read_report, report
from tests.run.test_profile import Page
from tests.support import digits
from tests.transform.network import Network

EVIL = "</script><script>alert(1)</script><!-- \u202e\u2028 ]]> {{7*7}} ' \" &"


@pytest.fixture(scope="module")
def made() -> microc.Report:
    return report(digits.INT8, board="netduinoplus2")


def test_what_is_in_it(made: microc.Report) -> None:
    text = made.html()
    page = Page(text)
    assert text == made.html()
    steps = [
        attrs["href"] for tag, attrs in page.tags if tag == "a" and str(attrs.get("href", "")).startswith("#step-")
    ]
    layers = made.data["layers"]
    for k, layer in enumerate(layers):  # the graph, the timeline, the memory map, the table
        assert steps.count(f"#step-{k}") == 4 and text.count(f">{layer['cycles']:,}<") >= 1
    assert text.count('<g class="layer heat') == len(layers) and text.count('<g class="end"') == 2
    for words in (
        "int8 1\u00d78\u00d78\u00d78",
        "= 0.01109 (q + 128)",
        "conv2d + requantize",
        f"{sum(layer['cycles'] for layer in layers) / 168e3:.3g} ms",
        "168 MHz",
        "Peak stack",
    ):
        assert words in text
    assert "microc explain digits_int8.tflite 3 --board netduinoplus2" in text
    assert "Right or wrong" not in text and "What the firmware is made of" not in text


def test_nothing_is_fetched(made: microc.Report) -> None:
    text = made.html(made)
    assert "default-src 'none'" in text and 'name="viewport"' in text and "prefers-color-scheme: dark" in text
    assert not re.search(
        r"https?:|@import|url\((?!#)|<(img|iframe|object|embed|link(?! rel=\"icon\" href=\"data:,\"))", text
    )
    assert "src=" not in text and "innerHTML" not in text and "eval(" not in text


def test_names_are_text() -> None:
    """In HTML, in SVG, and in the data of the script, which no name ends."""
    net = Network(x=(1, 16))
    made = report(net.graph(net.op("relu", net.dense("x", 8), output=EVIL)), board="mps2-an386")
    layer = {**made.data["layers"][0], "name": EVIL, "c": [EVIL], "layer": EVIL, "op": EVIL}
    evil = microc.Report(
        {**made.data, "model": EVIL, "source": EVIL, "layers": [layer], "advice": [{"text": EVIL, "command": EVIL}]}
    )
    text = evil.html(evil)
    page = Page(text)
    scripts = [attrs.get("type") for tag, attrs in page.tags if tag == "script"]
    assert scripts == ["application/json", "application/json", None]
    assert (
        "<script>alert" not in text
        and "\u202e" not in text
        and "\u2028" not in text
        and "49" not in re.findall(r">(\d+)<", text)
    )
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    for data in re.findall(r'<script type="application/json" id="\w+-data">(.*?)</script>', text, re.DOTALL):
        assert not set("<>&\u2028") & set(data) and json.loads(data)["layers"][0]["name"].startswith("</script>")


def test_a_page_is_read_back(made: microc.Report, tmp_path: Path) -> None:
    for name in ("report.html", "report.json"):
        assert read_report(made.save(tmp_path / name)).data == json.loads(made.json())
    with pytest.raises(microc.errors.OutputError, match=r"report\.pdf"):
        made.save(tmp_path / "report.pdf")


def test_long_and_wide_names_stay_in_their_boxes() -> None:
    from microc.reports.drawings import cut_text_to_columns
    from microc.reports.report_document import shorten_layer_names

    assert cut_text_to_columns("abcdef", 5) == "abcd\u2026" and cut_text_to_columns("abcde", 5) == "abcde"
    assert (
        cut_text_to_columns("\u6f22\u5b57\u6f22\u5b57", 6) == "\u6f22\u5b57\u2026" and cut_text_to_columns("", 3) == ""
    )
    layers = ["m.tflite #0 model/block/conv", "m.tflite #1 model/block/relu;model/x", "m.tflite #2 out"]
    assert shorten_layer_names(layers) == ["#0 conv", "#1 relu", "#2 out"]
    assert shorten_layer_names(["m.onnx #0 a/b"]) == ["#0 a/b"]
