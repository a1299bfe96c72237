# SPDX-License-Identifier: Apache-2.0
"""Flash and RAM explained: every byte once, totals those of size(1), layers with their code and weights."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import microc
from microc.errors import ToolError, UsageError
from microc.reports.firmware_size import (
    SizeReport,
    compare_sizes,
    cut_program_into_pieces,
    divide_evenly,
    live_arena_bytes,
    measure_firmware,
)
from microc.run import board_project
from tests.device.smoke import needs
from tests.support import digits
from tests.transform.network import Network


def built(folder: Path, board: str, **options: Any) -> board_project.Project:
    project = board_project.open_project(microc.compile(digits.INT8, board=board, **options).write(folder / board))
    board_project.build_project(project)
    return project


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> board_project.Project:
    return built(tmp_path_factory.mktemp("size"), "host")


def size_program(project: board_project.Project) -> tuple[int, int, int]:
    program = f"{project.board.raw['build']['prefix']}size"
    done = subprocess.run([program, str(project.elf)], capture_output=True, text=True, check=True)
    text, data, bss = done.stdout.splitlines()[1].split()[:3]
    return int(text), int(data), int(bss)


def check(project: board_project.Project) -> SizeReport:
    """What holds for every firmware."""
    report = measure_firmware(project)
    assert (report.text, report.data, report.bss) == size_program(project)
    parts = report.parts()
    for kind in ("text", "data", "bss"):
        assert sum(part[kind] for part in parts.values()) == getattr(report, kind)
    assert sum(layer.constants for layer in report.layers) == parts["weights"]["text"] == report_weights(project)
    assert sum(layer.code for layer in report.layers) == parts["kernels"]["text"] > 2000
    assert all(layer.code > 0 and layer.arena > 0 for layer in report.layers)
    assert max(layer.arena for layer in report.layers) <= parts["arena"]["bss"] < project.manifest["arena_size"] + 32
    assert min(sum(parts[p].values()) for p in ("runtime", "board", "library")) > 0
    assert sum(parts["padding"].values()) < 400
    return report


def report_weights(project: board_project.Project) -> int:
    return int(project.manifest["const_bytes"])


@needs("size")
def test_host(host: board_project.Project) -> None:
    report = check(host)
    (conv4,) = [layer for layer in report.layers if "conv4" in layer.layer]
    symbols = [s for s in report.symbols if s.steps == (conv4.step,)]
    assert conv4.flash == sum(s.size for s in symbols) > 5000
    assert {"digits_int8_conv4_weight", "digits_int8_conv4_addend"} < {s.name for s in symbols if s.part == "weights"}


@pytest.mark.cross
@pytest.mark.parametrize(
    "board",
    [
        pytest.param("netduinoplus2", marks=needs("arm-none-eabi-gcc")),
        pytest.param("qemu-riscv32", marks=needs("riscv64-unknown-elf-gcc")),
        pytest.param("arduino-mega", marks=needs("avr-gcc")),
    ],
)
def test_boards(tmp_path: Path, board: str) -> None:
    report = check(built(tmp_path, board))
    stack = report.parts().get("stack", {"bss": 0})["bss"]
    assert stack == (0 if board == "arduino-mega" else 8192)


@pytest.mark.parametrize(("size", "count"), [(100, 3), (0, 2), (7, 1), (2, 5)])
def test_shares_add_up(size: int, count: int) -> None:
    parts = divide_evenly(size, count)
    assert sum(parts) == size and len(parts) == count and max(parts) - min(parts) <= 1


def test_live_bytes_count_what_overlaps_once() -> None:
    memory = [
        {"offset": 0, "bytes": 10, "first": -1, "last": 0},
        {"offset": 5, "bytes": 10, "first": 0, "last": 1},
        {"offset": 40, "bytes": 2, "first": 1, "last": 1},
    ]
    assert live_arena_bytes({"memory": memory, "kernels": [{}, {}]}) == [15, 12]


def test_functions_that_layers_share(tmp_path: Path) -> None:
    """Two layers of one shape are one function; each takes half of it."""
    net = Network(x=(1, 16))
    graph = net.graph(net.op("relu", net.dense(net.op("relu", net.dense("x", 16)), 16)))
    project = board_project.open_project(microc.compile(graph, board="host").write(tmp_path / "twins"))
    board_project.build_project(project)
    report = measure_firmware(project)
    shared = [s for s in report.symbols if s.part == "kernels" and len(s.steps) == 2]
    size = sum(s.size for s in shared)
    first, second = (report.layers[k] for k in shared[0].steps)
    assert first.shared_code == second.shared_code == size > 0
    assert sum(layer.code for layer in report.layers) == report.parts()["kernels"]["text"]
    assert abs(first.code - second.code) <= len(shared)


def test_several_networks(tmp_path: Path) -> None:
    """Each has its own layers, though all call their files and some of their functions alike."""
    folder = microc.bundle(
        microc.compile(digits.INT8, board="host", name="plain"),
        microc.compile(digits.INT8, board="host", name="small", optimize="balanced", opt_level=1),
        microc.compile(digits.FLOAT, board="host", name="real"),
    ).write(tmp_path / "all")
    board_project.build_project(board_project.open_project(folder))
    report = measure_firmware(board_project.open_project(folder, "small"))
    assert report == measure_firmware(board_project.open_project(folder, "plain"))
    code, weights = 0, 0
    for name in ("plain", "small", "real"):
        project = board_project.open_project(folder, name)
        layers = report.layers_of_network(name)
        assert [layer.layer for layer in layers] == [k["layer"] for k in project.manifest["kernels"]]
        assert sum(layer.constants for layer in layers) == report_weights(project)
        objects = cut_program_into_pieces(folder / "build" / name / "model.o")
        own = sum(p.size for p in objects if p.names and p.kind == "text" and not p.names[0].startswith(name))
        assert sum(layer.code for layer in layers) == own
        code, weights = code + own, weights + report_weights(project)
    parts = report.parts()
    assert (parts["kernels"]["text"], parts["weights"]["text"]) == (code, weights)
    assert parts["arena"]["bss"] > 0


def test_a_firmware_of_ones_own(host: board_project.Project, tmp_path: Path) -> None:
    """Somebody else's program, with the network in it and without our build."""
    (tmp_path / "app.c").write_text(
        """#include "model.h"
        static uint64_t arena[(DIGITS_INT8_ARENA_SIZE + 7) / 8 + 1];
        static int application(void) { return 41; }
        int main(void)
        {
            struct digits_int8_inputs in = { digits_int8_image(arena) };
            struct digits_int8_outputs out = { digits_int8_probabilities(arena) };
            digits_int8_reset(arena);
            return digits_int8_run(arena, &in, &out) + application();
        }
        """
    )
    sources = [str(host.folder / name) for name in ("model.c", "model_data.c")]
    elf = tmp_path / "app.elf"
    subprocess.run(["cc", f"-I{host.folder}", "app.c", *sources, "-lm", "-o", str(elf)], cwd=tmp_path, check=True)
    report = measure_firmware(host, elf)
    parts = report.parts()
    assert parts["weights"]["text"] == report_weights(host) and parts["rest"]["text"] > 0
    assert {s.part for s in report.symbols if s.name in ("application", "main")} == {"rest"}
    assert "library" not in parts and all(layer.code for layer in report.layers)
    stripped = tmp_path / "stripped.elf"
    subprocess.run(["strip", "-o", str(stripped), str(elf)], check=True)
    with pytest.raises(UsageError, match="contains no symbol of the network"):
        measure_firmware(host, stripped)


def test_changes(host: board_project.Project) -> None:
    report = measure_firmware(host)
    before = report.to_data()
    assert compare_sizes(before, report)["symbols"] == []
    name = report.symbols[0].name
    before["symbols"] = [s for s in before["symbols"] if s["name"] != name]
    before["totals"]["flash"] -= 100
    changes = compare_sizes(before, report)
    assert changes["symbols"] == [
        {"part": "weights", "symbol": name, "source": "model_data.c", "before": 0, "change": 5184, "after": 5184}
    ]
    assert {row["memory"]: row["change"] for row in changes["totals"]}["flash"] == 100
    with pytest.raises(UsageError, match="expected the output"):
        compare_sizes({"totals": 3}, report)


def test_pieces_refuse(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="cannot read"):
        cut_program_into_pieces(tmp_path / "absent.elf")
    (tmp_path / "text.elf").write_text("hello")
    with pytest.raises(ToolError, match="not an ELF"):
        cut_program_into_pieces(tmp_path / "text.elf")
