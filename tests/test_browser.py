# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: it draws, sorts, fits, complains about nothing and asks the network for nothing."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.compiler.tuned.records import Database
from microc.document.blocks import format_percent_change
from microc.graph.ir import Loc
from microc.quantization.quantised_page import to_html as quantised_html
from microc.reports.live import iter_runs, render_watch_page, run_to_event_data
from microc.reports.report import Report
from microc.reports.report_page import to_html as report_html
from microc.reports.saved_reports import compare_reports
from microc.run.board_project import build_project, open_project
from microc.run.data.samples import Samples
from microc.tuning.tuning_page import to_html as tuned_html
from tests.exports.programs import export
from tests.exports.test_web import CORE, READY, needs
from tests.quantization.networks import Net, images
from tests.support import digits
from tests.support.chromium import Chromium
from tests.tuning.test_records import RECORD

WIDTHS = (390, 1440)
VIOLATIONS = """
"use strict";
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.blockedURI));
"""
LAYOUT = Path(__file__).with_name("layout.js").read_text(encoding="utf-8")
LONG = "MobileNetV3Small_1/expanded_conv_{}_squeeze_excite_avg_pool_1/batchnorm/add_1"
FAULTY = """<!DOCTYPE html><meta name="viewport" content="width=device-width">
<body style="margin:0;background:#fff;color:#000;font:16px sans-serif">
<p style="width:700px;white-space:nowrap">wider than a phone, which has a few hundred pixels and not one more</p>
<p><span style="position:relative"><i style="position:absolute;width:50%;height:16px;background:red"></i></span></p>
<p style="width:60px;overflow:hidden;white-space:nowrap">cut off without a word</p>
<div style="position:relative;height:40px"><b style="position:absolute">one</b><b style="position:absolute">two</b></div>
<p style="color:#ddd">pale</p><p style="font-size:5px">tiny</p>
<p style="width:40px;overflow-wrap:anywhere">1,012,858</p></body>"""
PROBE = """
(() => {
  const all = (query) => [...document.querySelectorAll(query)];
  const at = all("table.sortable thead th").findIndex((head, k) => k && !head.classList.contains("text"));
  const time = () => all("table.sortable tbody tr").map((row) => Number(row.cells[at].dataset.value));
  const found = { violations: window.violations };
  const heads = all("table.sortable thead button");
  found.plain = time();
  heads[at].click();
  found.descending = time();
  found.order = heads[at].closest("th").getAttribute("aria-sort");
  heads[at].click();
  found.ascending = time();
  heads[1].click();
  found.names = all("table.sortable tbody th").map((cell) => cell.textContent);
  found.dark = matchMedia("(prefers-color-scheme: dark)").matches;
  found.page = getComputedStyle(document.body).backgroundColor;
  found.boxes = all("svg.map .value rect").map((box) => box.getBoundingClientRect()).map((box) => [box.width, box.height]);
  found.overflowing = all("svg.graph text").filter((text) => text.getBBox().width > 230).length;
  found.nodes = all("svg.graph a").length;
  found.panels = all("svg.graph a").map((node) => {
    location.hash = node.getAttribute("href").replace("#", "");
    dispatchEvent(new HashChangeEvent("hashchange"));
    const panel = document.getElementById("layer");
    return [panel.querySelector("h3").textContent, panel.querySelector("pre").textContent.length, all(".selected").length];
  });
  const graph = document.querySelector("svg.graph");
  if (graph) {
    const width = graph.getBoundingClientRect().width;
    document.querySelector('[data-zoom="in"]').click();
    found.zoomed = graph.getBoundingClientRect().width / width;
  }
  found.changes = all("#comparison tbody tr").map((row) => [...row.cells].map((cell) => cell.textContent));
  found.bars = all(".timeline .track i").map((bar) => bar.getBoundingClientRect().width);
  return found;
})()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def report(folder: Path) -> Path:
    page = folder / "profile.html"
    assert main(["profile", str(digits.INT8), "--html", str(page), "-q"]) == 0
    return page


@pytest.fixture(scope="module")
def reports() -> tuple[Report, Report]:
    """A network made for size, and for speed."""
    before, after = (microc.report(digits.INT8, board="netduinoplus2", optimize=goal) for goal in ("size", "speed"))
    return before, after


@pytest.fixture(scope="module")
def compared(folder: Path, reports: tuple[Report, Report]) -> Path:
    page = folder / "compared.html"
    page.write_text(reports[1].html(reports[0]), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def quantised(folder: Path) -> Path:
    """A page with everything on it: classes, layers, the front of bits, a repair, floats that stay."""
    net = Net((1, 12, 12, 3))
    pooled = net.op("mean", net.op("relu", net.conv(net.x, 4)), axes=(1, 2), keepdims=False)
    graph = net.graph(net.dense(pooled, 5))
    named = graph.with_nodes(replace(n, loc=Loc("net", k, LONG.format(k))) for k, n in enumerate(graph.nodes))
    np.savez(folder / "data.npz", x=images(7), truth=np.arange(7) % 5)
    found = microc.quantize(named, folder / "data.npz", labels="truth", board="nucleo-l476rg", max_drop=1.0)
    floats = {"value": LONG, "op": "atan2", "reason": "no integer kernel", "macs": 12_345_678}
    more = {
        "repairs": [{"name": "rounding", "before": 30.0, "after": 31.0, "kept": True}],
        "floats": {"operators": [floats], "share": 0.1},
    }
    page = folder / "quantised.html"
    page.write_text(quantised_html({**found.report, **more}), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def long_names(folder: Path) -> Path:
    """A report as converters of Keras models cause it: names that do not fit anywhere, numbers of ten figures."""
    net = Net((1, 8))
    y = net.x
    for _ in range(12):
        y = net.op("relu", net.dense(y, 8))
    graph = net.graph(y)
    named = graph.with_nodes(replace(n, loc=Loc("net", k, LONG.format(k))) for k, n in enumerate(graph.nodes))
    data = microc.report(named, board="netduinoplus2").to_data()
    data["layers"][1]["cycles"] = data["totals"]["cycles"] = 1_012_858_123
    page = folder / "names.html"
    page.write_text(report_html(data), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def tuned(folder: Path) -> Path:
    untuned = replace(RECORD, decisions=(("untuned", "speed"),), ticks=2e8, code=40)
    others = [replace(RECORD, ticks=1.6e8 + 1e6 * (7 * k % 43), code=1_000_000 + k) for k in range(60)]
    database = Database()
    database.add([untuned, *others])
    page = folder / "tuned.html"
    page.write_text(tuned_html(database, "net"), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def watched(folder: Path) -> tuple[Path, int]:
    """The page of ``microc watch`` after one run, and what that answered."""
    project = open_project(microc.compile(digits.INT8, board="host").write(folder / "digits"))
    build_project(project)
    ramp = np.arange(64, dtype=np.int8).reshape(1, 1, 8, 8, 1)
    with microc.Device(project) as device:
        (run,) = itertools.islice(iter_runs(device, Samples((ramp,), np.array([3]), {}, ())), 1)
        data, page = run_to_event_data(device, run), render_watch_page(device, "a sample")
    told = json.dumps(json.dumps(data)).replace("<", "\\u003c")
    stub = f"<script>class EventSource {{ addEventListener(kind, f) {{ if (kind === 'message') f({{ data: {told} }}); }} }}"
    path = folder / "watch.html"
    path.write_text(page.replace("<script>", f"{stub}</script><script>", 1), encoding="utf-8")
    return path, data["answer"]


@pytest.fixture(scope="module")
def exported(folder: Path) -> Path:
    needs()
    return export(folder / "web", "web", "digits", CORE) / "index.html"


def visit(chromium: Chromium, page: Path, width: int, dark: bool = False) -> dict[str, Any]:
    """The page's own numbers. It loads nothing, breaks no policy of its own, logs nothing."""
    chromium.open(page, width, dark, before=VIOLATIONS)
    found: dict[str, Any] = chromium.evaluate(PROBE)
    assert found["violations"] == chromium.log == [] and chromium.requests == [page.as_uri()]
    return found


@pytest.mark.parametrize("name", ["report", "compared", "quantised", "long_names", "tuned", "watched", "exported"])
def test_layout(name: str, chromium: Chromium, request: pytest.FixtureRequest) -> None:
    """On a phone and on a desk, light and dark: bars have their sizes, texts are whole, apart and readable; nothing is logged."""
    made = request.getfixturevalue(name)
    page: Path = made if isinstance(made, Path) else made[0]
    for width, dark in itertools.product(WIDTHS, (False, True)):
        chromium.open(page, width, dark)
        if name == "exported":
            chromium.evaluate(READY)
        faults = chromium.evaluate(LAYOUT)
        assert faults == chromium.log == [], (width, "dark" if dark else "light")


def test_layout_faults_are_seen(chromium: Chromium, tmp_path: Path) -> None:
    """What the layout's test is for: each of these is told."""
    page = tmp_path / "faulty.html"
    page.write_text(FAULTY, encoding="utf-8")
    chromium.open(page, 390)
    told = {fault.split(":")[0] for fault in chromium.evaluate(LAYOUT)}
    assert told == {
        "the page is 700 wide, 390 are there", "text leaves the page", "a track of 0 pixels", "a bar of 0 x 16 pixels",
        "text is cut off sideways", 'text over "two"', "contrast 1.4", "letters of 5.0 pixels", "a number over several lines",
        "a bar outside of its track",
    }  # fmt: skip


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (400, True)])
def test_report(report: Path, chromium: Chromium, width: int, dark: bool) -> None:
    found = visit(chromium, report, width, dark)
    assert found["dark"] is dark and found["page"] == ("rgb(15, 20, 26)" if dark else "rgb(244, 246, 249)")
    assert len(found["plain"]) == 6 and found["order"] == "descending"
    assert found["descending"] == sorted(found["plain"], reverse=True)
    assert found["ascending"] == sorted(found["plain"])
    assert found["names"] == sorted(found["names"], key=lambda n: int(n[1:].split()[0]), reverse=True)
    assert len(found["boxes"]) > 6 and all(w > 0 and h > 0 for w, h in found["boxes"])
    assert found["overflowing"] == 0 and all(w >= 2 for w in found["bars"])
    assert found["nodes"] == len(found["panels"]) == 6 and abs(found["zoomed"] - 1.25) < 0.01
    assert [name.split()[1] for name, _, _ in found["panels"]] == [
        "conv1",
        "depthwise2",
        "pointwise3",
        "conv4",
        "dense5",
        "probabilities",
    ]
    assert all(letters > 500 and marks == 4 for _, letters, marks in found["panels"]), (
        "graph, timeline, memory and table"
    )
    widest = found["bars"].index(max(found["bars"]))
    assert found["plain"][widest] == max(found["plain"])


def test_report_of_a_quantised_network(quantised: Path, chromium: Chromium) -> None:
    found = visit(chromium, quantised, 400)
    assert found["order"] == "descending" and found["descending"] == sorted(found["plain"], reverse=True)
    assert len(found["bars"]) > 2 and min(found["bars"]) > 100


def test_compared_in_the_browser_as_in_the_terminal(
    compared: Path, reports: tuple[Report, Report], chromium: Chromium
) -> None:
    """Every layer that changed, and all in all: the page's script and the command say the same."""
    before, after = reports
    found = visit(chromium, compared, 400)
    changes = compare_reports(before, after)
    told = {row[0]: row[1:] for row in found["changes"]}
    for row in changes["layers"]:
        both = [(row[what]["before"], row[what]["after"]) for what in ("cycles", "flash")]
        assert told[row["layer"]] == [
            text for a, b in both for text in (f"{a:,}", f"{b:,}", format_percent_change(a, b))
        ]
    for row in changes["totals"]:
        if "ms" not in row["name"]:
            assert told[row["name"]] == [
                f"{row['before']:,}",
                f"{row['after']:,}",
                format_percent_change(row["before"], row["after"]),
            ]


def test_a_network_at_work(watched: tuple[Path, int], chromium: Chromium) -> None:
    """The page of ``microc watch`` draws what it is told: a picture, bars, the answer, and whether it is right."""
    page, answer = watched
    chromium.open(page)
    shown = chromium.evaluate("document.documentElement.outerHTML")
    assert f"class {answer}<small>truth: class 3" in shown and 'class="running"' in shown
    assert shown.count('<div class="score') == 10 and '<canvas width="8" height="8">' in shown


def test_report_can_be_printed(report: Path, chromium: Chromium) -> None:
    chromium.open(report)
    printed = chromium.pdf()
    assert printed.startswith(b"%PDF") and len(printed) > 10_000
