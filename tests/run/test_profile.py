# SPDX-License-Identifier: Apache-2.0
"""Profiles: units, totals, the trace, the pictures and the page."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import microc
from microc.base import file_access
from microc.device.boards import load_board
from microc.reports.drawings import lay_out_graph, lay_out_memory_map
from microc.reports.firmware_size import measure_firmware
from microc.reports.saved_reports import profile_to_trace, report_profile
from microc.run import board_project
from microc.run.profile import Clock, Profile, make_profile, shorten_layer_name
from tests.support import digits
from tests.transform.network import Network

TICKS = (1000, 200, 300, 900, 50, 10)
EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> board_project.Project:
    folder = tmp_path_factory.mktemp("profile") / "digits"
    made = board_project.open_project(microc.compile(digits.INT8, board="host").write(folder))
    board_project.build_project(made)
    return made


@pytest.fixture(scope="module")
def profile(project: board_project.Project) -> Profile:
    """As an emulated board at 25 MHz and 64 ns an instruction would tell it."""
    clock = Clock(load_board("mps2-an386"), 25_000_000, emulated=True)
    return make_profile(project, clock, TICKS, measure_firmware(project))


def test_one_unit_in_all_places(profile: Profile) -> None:
    """A tick is no instruction: 1.6 make one here, and totals are sums of what is shown."""
    times = [k.time for k in profile.kernels]
    assert times == [625, 125, 188, 563, 32, 7] and profile.time == sum(times)
    data = profile.to_data()
    assert data["unit"] == "instructions" and data["time"] == data["instructions"] == profile.time
    assert data["ticks"] == sum(TICKS) and data["seconds"] is None
    assert sum(k["share"] for k in data["kernels"]) == pytest.approx(1)
    assert data["kernels"][0]["time_per_mac"] == times[0] / data["kernels"][0]["macs"]
    assert data["kernels"][5]["time_per_mac"] is None


@pytest.mark.parametrize(
    ("board", "emulated", "unit", "words"),
    [
        ("mps2-an386", True, "instructions", "neither cycles nor time"),
        ("mps2-an386", False, "ticks", "25,000,000 a second, of the board's timer"),
        ("arduino-uno", False, "ticks", "simulated cycle by cycle"),
        ("host", False, "ticks", "this computer's clock"),
    ],
)
def test_clocks(board: str, emulated: bool, unit: str, words: str) -> None:
    clock = Clock(load_board(board), 25_000_000, emulated)
    assert clock.unit == unit and words in clock.meaning
    assert clock.convert_ticks(16) == (10 if clock.counts_instructions else 16)
    assert clock.seconds(25_000_000) == (None if emulated else 1.0)


def test_an_emulator_that_counts_nothing_tells_no_time() -> None:
    board = load_board("mps2-an386")
    kept = {key: value for key, value in board.raw["emulator"].items() if key != "ticks_per_instruction"}
    clock = Clock(replace(board, raw={**board.raw, "emulator": kept}), 25_000_000, True)
    assert clock.unit == "ticks" and "nothing about the chip" in clock.meaning and clock.seconds(1) is None


def test_flash_and_memory_of_layers(profile: Profile) -> None:
    assert profile.size is not None
    parts = profile.size.parts()
    assert sum(k.flash or 0 for k in profile.kernels) == parts["kernels"]["text"] + parts["weights"]["text"]
    assert max(k.arena for k in profile.kernels) <= profile.project.manifest["arena_size"]
    without = make_profile(profile.project, profile.clock, TICKS, None)
    assert without.kernels[0].flash is None and without.to_data()["flash"] is None
    assert "What the firmware is made of" not in report_profile(without).html()


@pytest.mark.parametrize("emulated", [True, False])
def test_trace(profile: Profile, emulated: bool) -> None:
    """What the Trace Event Format asks for, and events that nest: inference, layer, kernel."""
    clock = Clock(profile.clock.board, 25_000_000, emulated)
    made = make_profile(profile.project, clock, TICKS, None)
    trace = json.loads(json.dumps(profile_to_trace(made)))
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"} and trace["displayTimeUnit"] in ("ms", "ns")
    events = trace["traceEvents"]
    for event in events:
        assert {"name", "ph", "ts", "pid", "tid", "args"} <= set(event)
        assert event["ph"] in "XMC" and isinstance(event["pid"], int) and isinstance(event["ts"], int | float)
        assert (event["ph"] == "X") == ("dur" in event)
        assert event["ph"] != "M" or event["name"] in ("process_name", "thread_name")
        assert event["ph"] != "C" or all(isinstance(v, int) for v in event["args"].values())
    spans = [e for e in events if e["ph"] == "X"]
    assert [e["cat"] for e in spans] == ["inference", *["layer", "kernel"] * 6]
    check_nesting(spans)
    whole = made.time / 1000 if emulated else sum(TICKS) / 25
    assert spans[0]["dur"] == pytest.approx(whole) and spans[-1]["ts"] + spans[-1]["dur"] == pytest.approx(whole)
    assert sum(e["args"][made.unit] for e in spans if e["cat"] == "kernel") == made.time


def check_nesting(spans: list[dict[str, Any]]) -> None:
    """On one thread, an event either lies inside of an open one or begins after its end."""
    assert all(a["ts"] <= b["ts"] for a, b in pairwise(spans))
    open_until: list[float] = []
    for span in spans:
        while open_until and open_until[-1] <= span["ts"] + 1e-9:
            open_until.pop()
        end = span["ts"] + span["dur"]
        assert not open_until or end <= open_until[-1] + 1e-9
        open_until.append(end)


def test_layers_of_several_kernels_are_one_span(profile: Profile) -> None:
    from dataclasses import replace

    first, second, *rest = profile.kernels
    spans = profile_to_trace(replace(profile, kernels=(first, replace(second, layer=first.layer), *rest)))[
        "traceEvents"
    ]
    kinds = [e["cat"] for e in spans if e["ph"] == "X"]
    assert kinds[:5] == ["inference", "layer", "kernel", "kernel", "layer"]


def test_memory_map(profile: Profile) -> None:
    """Rectangles stand where the plan puts the values, as long as they live."""
    manifest = profile.project.manifest
    picture = lay_out_memory_map(manifest, [shorten_layer_name(k.layer) for k in profile.kernels])
    assert len(picture.boxes) == len(manifest["memory"])
    floor = picture.levels[0].y
    scale = (floor - picture.arena.y) / manifest["arena_size"]
    by_name = {m["name"]: m for m in manifest["memory"]}
    for box in picture.boxes:
        value = by_name[box.title.partition(":")[0]]
        assert box.height == pytest.approx(value["bytes"] * scale)
        assert box.y + box.height == pytest.approx(floor - value["offset"] * scale)
        assert box.width == pytest.approx((value["last"] - value["first"] + 1) * picture.column_width)
        assert picture.arena.y - 1e-6 <= box.y and box.y + box.height <= floor + 1e-6
        assert box.x >= 0 and box.x + box.width <= picture.width
    assert sum(c.is_peak for c in picture.columns) >= 1 and len(picture.columns) == len(profile.kernels) + 2
    assert any("lies over" in o.title for o in picture.overlaps)


def test_views_live_as_long_as_what_is_read_through_them(tmp_path: Path) -> None:
    """Parts of a concatenation stay until the whole is read; operands are named after who made them."""
    net = Network(x=(1, 4, 4, 2))
    first, second = net.op("tanh", "x"), net.op("sigmoid", "x")
    whole = net.op("concat", first, second, axis=1)
    other = net.op("exp", "x")
    last = net.op("sum", net.op("mul", whole, net.op("concat", other, first, axis=1)), axes=(1,), keepdims=False)
    manifest = microc.compile(net.graph(last), board="host").library().manifest
    makers = {n: k["index"] for k in manifest["kernels"] for n in k["outputs"]}
    for value in manifest["memory"]:
        if value["kind"] == "intermediate":
            assert value["first"] == makers[value["name"]]
            readers = [k["index"] for k in manifest["kernels"] if value["name"] in k["inputs"]]
            assert readers and value["last"] == max(readers)
    assert all(k["inputs"] for k in manifest["kernels"])


def test_outputs_that_are_views_have_makers(tmp_path: Path) -> None:
    """A reshape at the end is no step of its own: who wrote the memory made the output, and the picture says so."""
    net = Network(x=(1, 4))
    program = microc.compile(net.graph(net.op("reshape", net.op("tanh", "x"), shape=(2, 2))), board="host")
    project = board_project.open_project(program.write(tmp_path / "out"))
    (output,) = [t for t in project.manifest["tensors"] if t["kind"] == "output"]
    assert output["written_by"] == [0] and project.tensors["x"]["written_by"] == []
    text = report_profile(make_profile(project, Clock(project.board, 1000, False), (7,), None)).html()
    assert text.count('class="edge"') == 2


def test_state_lives_always(tmp_path: Path) -> None:
    from microc.graph.ir import Graph
    from tests.graph.graphs import diamond

    graph: Graph = diamond()
    manifest = microc.compile(graph, board="host").library().manifest
    states = [m for m in manifest["memory"] if m["kind"] == "state"]
    assert [(m["first"], m["last"]) for m in states] == [(-1, len(manifest["kernels"]))]


def test_layout_of_a_diamond_with_a_long_edge() -> None:
    """0 -> 1, 2 -> 3 -> 4, and 0 -> 4: boxes of a rank do not touch, edges lead down, the long one passes beside the boxes."""
    found = lay_out_graph(5, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (0, 4)], 100, 40)
    ys = [y for _, y in found.corners]
    assert ys[0] < ys[1] == ys[2] < ys[3] < ys[4]
    assert abs(found.corners[1][0] - found.corners[2][0]) >= 100
    assert min(x for x, _ in found.corners) >= 0 and max(x for x, _ in found.corners) + 100 <= found.width
    numbers = [float(n) for n in re.findall(r"-?[\d.]+", found.paths[5])]
    middle = numbers[6:8]
    for x, y in found.corners[1:4]:
        assert not (x < middle[0] < x + 100 and y < middle[1] < y + 40)
    assert lay_out_graph(0, [], 100, 40).corners == ()


def test_options_are_told(tmp_path: Path) -> None:
    """What was chosen, in words that are the same on every computer."""
    program = microc.compile(
        digits.QDQ,
        board="host",
        requantize="fixed",
        ram=4096,
        dump=tmp_path,
        input_layout={"image": "NHWC"},
        disabled="bounds",
    )
    options = program.library().manifest["options"]
    assert options == {
        "cpu": "host", "disabled": "bounds", "input_layout": "image=NHWC", "optimize": "balanced", "protocol": "rpc",
        "ram": "4096", "requantize": "fixed",
    }  # fmt: skip
    assert set(microc.compile(digits.INT8, board="host").library().manifest["options"]) == {
        "cpu",
        "optimize",
        "protocol",
    }


class Page(HTMLParser):
    """Tags that are closed in order, their attributes, and the text."""

    VOID = frozenset({"meta", "link", "path", "rect", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page(profile: Profile) -> None:
    text = report_profile(profile).html()
    page = Page(text)
    assert text == report_profile(profile).html() and "25 MHz" not in text
    for header in (attrs for tag, attrs in page.tags if tag == "th"):
        assert header.get("scope") in ("row", "col")
    assert all(attrs.get("aria-label") for tag, attrs in page.tags if tag == "svg")
    assert text.count("<title>") > 20 and "prefers-color-scheme: dark" in text
    assert not re.search(r"https?:|@import|<(img|iframe|object|embed)", text) and "src=" not in text
    assert "default-src 'none'" in text
    assert "625" in text and "neither cycles nor time" in text and profile.project.manifest["fingerprint"] in text


def test_names_of_models_are_text(tmp_path: Path) -> None:
    """Names of files, layers and tensors come from strangers."""
    net = Network(x=(1, 16))
    last = net.op("relu", net.dense("x", 8), output=EVIL)
    path = tmp_path / f'a" onload=x {EVIL.replace("/", "")}.mcg'
    microc.save(net.graph(last), path)
    made = board_project.open_project(microc.compile(path, board="host").write(tmp_path / "out"))
    kernels = [{**k, "layer": f"{k['layer']} {EVIL}"} for k in made.manifest["kernels"]]
    manifest = {**made.manifest, "kernels": kernels, "options": {"optimize": EVIL}}
    evil = board_project.Project(made.folder, manifest, made.board)
    clock = Clock(made.board, 1000, emulated=False)
    text = report_profile(make_profile(evil, clock, tuple(range(len(kernels))), None)).html()
    page = Page(text)
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text
    assert [attrs.get("type") for tag, attrs in page.tags if tag == "script"] == ["application/json", None]
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_contrast() -> None:
    """Text on everything that lies below it has the ratio 4.5 of WCAG 2.2 AA, in both schemes."""
    style = (file_access.templates_folder() / "report" / "style.css").read_text()
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in style.split("@media", 2)[:2])
    for colours in (light, dark):
        below = {name: value for name, value in colours.items() if name.startswith("heat")}
        below |= {
            k: colours[k] for k in ("card", "page", "peak", "input", "intermediate", "workspace", "state", "output")
        }
        pairs = [("ink", name) for name in below]
        pairs += [(text, name) for text in ("soft", "strong", "arena", "good") for name in ("card", "page", "peak")]
        for text, name in pairs:
            a, b = sorted((luminance(colours[text]), luminance(colours[name])))
            assert (b + 0.05) / (a + 0.05) >= 4.5, (text, name)


@pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="needs arm-none-eabi-gcc")
def test_page_of_a_board_that_is_not_built(tmp_path: Path) -> None:
    program = microc.compile(digits.INT8, board="netduinoplus2")
    project = board_project.open_project(program.write(tmp_path / "out"))
    text = report_profile(make_profile(project, Clock(project.board, 84_000_000, False), TICKS, None)).html()
    assert "Netduino Plus 2" in text and "84,000,000 a second, of the board&#39;s timer" in text
