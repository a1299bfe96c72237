"""The report in a real browser: it draws, sorts, fits, complains about nothing and asks the network for nothing."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.driver.data.samples import Samples
from microc.driver.live.feed import event, runs
from microc.driver.live.page import page_of
from microc.driver.measure.firmware import build, open_project
from microc.driver.report.comparison import compare
from microc.driver.report.words import change_words
from tests.driver import digits
from tests.quantization.networks import Net

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PROBE = """
<script>
"use strict";
window.found = { errors: [], violations: [] };
window.addEventListener("error", (e) => window.found.errors.push(String(e.message)));
document.addEventListener("securitypolicyviolation", (e) => window.found.violations.push(e.blockedURI));
</script>
"""
RESULT = """
<script>
window.addEventListener("load", () => {
  const all = (query) => [...document.querySelectorAll(query)];
  const at = all("table.sortable thead th").findIndex((head, k) => k && !head.classList.contains("text"));
  const time = () => all("table.sortable tbody tr").map((row) => Number(row.cells[at].dataset.value));
  const found = window.found;
  const heads = all("table.sortable thead button");
  found.plain = time();
  heads[at].click();
  found.descending = time();
  found.order = heads[at].closest("th").getAttribute("aria-sort");
  heads[at].click();
  found.ascending = time();
  heads[1].click();
  found.names = all("table.sortable tbody th").map((cell) => cell.textContent);
  found.resources = performance.getEntriesByType("resource").map((entry) => entry.name);
  found.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
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
  const out = document.createElement("pre");
  out.id = "result";
  out.textContent = JSON.stringify(found);
  document.body.append(out);
});
</script>
"""


def browser() -> str:
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if found is None:
        pytest.skip("no Chromium: apt-get install chromium")
    return found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("report") / "report.html"
    assert main(["profile", str(digits.INT8), "--html", str(page), "-q"]) == 0
    return page


def visit(page: Path, folder: Path, *flags: str) -> tuple[dict[str, Any], str]:
    """What the page told about itself, and what the browser logged."""
    text = page.read_text(encoding="utf-8")
    copy = folder / "probed.html"
    copy.write_text(
        text.replace("<style>", PROBE + "<style>", 1).replace("</body>", RESULT + "</body>", 1), encoding="utf-8"
    )
    command = [
        browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
        "--no-first-run", f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=5000",
        *flags, "--dump-dom", copy.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    _, _, tail = done.stdout.rpartition('<pre id="result">')
    told, _, _ = tail.partition("</pre>")
    return json.loads(told.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")), done.stderr


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (400, True)])
def test_report(report: Path, tmp_path: Path, width: int, dark: bool) -> None:
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    found, log = visit(report, tmp_path, f"--window-size={width},1000", scheme)
    assert found["errors"] == found["violations"] == found["resources"] == []
    assert "CONSOLE" not in log
    assert found["dark"] is dark and found["page"] == ("rgb(15, 20, 26)" if dark else "rgb(244, 246, 249)")
    assert found["wide"] <= 0, "the page itself scrolls sideways"
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


def test_report_of_a_quantised_network(tmp_path: Path) -> None:
    net = Net((1, 8))
    graph = net.graph(net.dense(net.op("relu", net.dense(net.x, 16)), 5))
    data = np.random.default_rng(0).normal(size=(7, 1, 8)).astype(np.float32)
    page = microc.quantize(graph, data).save_report(tmp_path / "report.html")
    found, log = visit(page, tmp_path, "--window-size=400,1000")
    assert found["errors"] == found["violations"] == found["resources"] == [] and "CONSOLE" not in log
    assert found["wide"] <= 0, "the page itself scrolls sideways"
    assert found["order"] == "descending" and found["descending"] == sorted(found["plain"], reverse=True)


def test_compared_in_the_browser_as_in_the_terminal(tmp_path: Path) -> None:
    """Every layer that changed, and all in all: the page's script and the command say the same."""
    before, after = (microc.report(digits.INT8, board="netduinoplus2", optimize=goal) for goal in ("size", "speed"))
    page = tmp_path / "compared.html"
    page.write_text(after.html(before), encoding="utf-8")
    found, log = visit(page, tmp_path, "--window-size=400,1000")
    assert (
        found["errors"] == found["violations"] == found["resources"] == []
        and "CONSOLE" not in log
        and found["wide"] <= 0
    )
    changes = compare(before, after)
    told = {row[0]: row[1:] for row in found["changes"]}
    for row in changes["layers"]:
        both = [(row[what]["before"], row[what]["after"]) for what in ("cycles", "flash")]
        assert told[row["layer"]] == [text for a, b in both for text in (f"{a:,}", f"{b:,}", change_words(a, b))]
    for row in changes["totals"]:
        if "ms" not in row["name"]:
            assert told[row["name"]] == [
                f"{row['before']:,}",
                f"{row['after']:,}",
                change_words(row["before"], row["after"]),
            ]


def test_a_network_at_work(tmp_path: Path) -> None:
    """The page of ``microc watch`` draws what it is told: a picture, bars, the answer, and whether it is right."""
    project = open_project(microc.compile(digits.INT8, board="host").write(tmp_path / "digits"))
    build(project)
    images = np.full((1, 1, 8, 8, 1), 127, np.int8)
    with microc.Device(project) as device:
        (run,) = itertools.islice(runs(device, Samples((images,), np.array([3]), {}, ())), 1)
        data, page = event(device, run), page_of(device, "a sample")
    told = json.dumps(json.dumps(data)).replace("<", "\\u003c")
    stub = f"<script>class EventSource {{ addEventListener(kind, f) {{ if (kind === 'message') f({{ data: {told} }}); }} }}"
    path = tmp_path / "watch.html"
    path.write_text(page.replace("<script>", f"{stub}</script><script>", 1), encoding="utf-8")
    command = [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += ["--disable-background-networking", "--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--virtual-time-budget=3000", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert f"class {data['answer']}<small>truth: class 3" in done.stdout and 'class="running"' in done.stdout
    assert done.stdout.count('<div class="score') == 10 and '<canvas width="8" height="8">' in done.stdout


def test_report_can_be_printed(report: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.pdf"
    command = [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--print-to-pdf={out}", report.as_uri()]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    assert out.read_bytes().startswith(b"%PDF") and out.stat().st_size > 10_000
