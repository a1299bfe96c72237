# SPDX-License-Identifier: Apache-2.0
"""Advice of reports: ranked by gain, priced near what is gained, with commands that do what they say."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.compiler.model import load
from microc.device.boards import load_board
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.file import to_bytes
from microc.reports.advice import (
    ADVICES,
    BALANCED_GAINS,
    SPEED_GAINS,
    AdvisedNetwork,
    format_option_flags_of_report,
    list_advice,
    rewrite_command_of_advice,
)
from microc.reports.saved_reports import report
from tests.graph.graphs import diamond
from tests.support import digits
from tests.support.corpus import models

FLOAT_INPUT: Mapping[str, Any] = {"input_dtype": "float32"}


@cache
def advised(model: Any, board: str, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = report(model, board=board, **options).data["advice"]
    return found


@cache
def cycles(model: Path, board: str, **options: Any) -> int:
    """Estimated cycles of a network."""
    found: int = microc.compile(model, board=board, **options).report()["estimated_cycles"]
    return found


@pytest.mark.parametrize(
    ("model", "board", "options"),
    [
        (digits.INT8, "microbit", FLOAT_INPUT),
        (digits.QDQ, "raspberry-pi-pico", {"optimize": "size"}),
        (digits.FLOAT, "mps2-an386", {}),
    ],
)
def test_gains_are_in_order(model: Path, board: str, options: Mapping[str, Any]) -> None:
    gains = [each["gain"] for each in advised(model, board, **options)]
    known = [gain for gain in gains if gain is not None]
    assert known and known == sorted(known, reverse=True) and gains[: len(known)] == known


def test_float_inputs_are_first_on_a_core_without_fpu() -> None:
    first = advised(digits.INT8, "microbit", **FLOAT_INPUT)[0]
    assert (
        first["text"].startswith("saves about")
        and "the board quantises input image from float32 to int8: pass it as int8" in first["text"]
    )
    assert first["command"].endswith("--input-dtype '*=float32' --input-dtype image=int8 -o firmware")
    assert all(each["gain"] is None for each in advised(digits.INT8, "microbit")), "there is nothing left to save"


def test_outputs_as_floats() -> None:
    """A kernel's end makes them, at the price of a layer that does nothing else."""
    options: dict[str, Any] = {"outputs": ("dense5",)}
    found = advised(digits.INT8, "microbit", output_dtype="float32", **options)
    (each,) = [each for each in found if "the board dequantises output dense5" in each["text"]]
    assert each["command"].endswith("--output-dtype dense5=int8 -o firmware")
    before, after = (cycles(digits.INT8, "microbit", output_dtype=dtype, **options) for dtype in ("float32", "int8"))
    assert each["gain"] == pytest.approx(1 - after / before, rel=0.5)


def test_code_in_ram() -> None:
    """On a board whose flash is slow and cached; none on one without a memory for code, or where it is used."""
    (found,) = [each for each in advised(digits.INT8, "raspberry-pi-pico") if "--code-in-ram" in each["command"]]
    after = microc.compile(digits.INT8, board="raspberry-pi-pico", code_in_ram=True).report()
    saved = sum(memory["saved"] for memory in after["memories"] if "kernels" in memory)
    assert found["gain"] == pytest.approx(saved / (saved + after["estimated_cycles"]), rel=0.1)
    for board, options in (("raspberry-pi-pico", {"code_in_ram": True}), ("microbit", {})):
        assert not any("--code-in-ram" in each["text"] for each in advised(digits.INT8, board, **options))


def test_search_is_for_kernels_that_nobody_measured() -> None:
    """Schedules come along for the example's layers on Cortex-M4, and for nothing on a Cortex-M3."""
    assert not any("microc tune" in each["command"] for each in advised(digits.INT8, "mps2-an386"))
    for more in ({"board": "mps2-an385"}, {"board": "mps2-an386", "shipped": False}):
        (found,) = [each for each in advised(digits.INT8, **more) if "microc tune" in each["command"]]
        assert found["gain"] > 0.01 and "100 % of the time" in found["text"]


def test_a_search_by_its_command_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command of the advice, with few trials of one layer: what it chooses is not slower on the board."""
    if shutil.which("qemu-system-arm") is None:
        pytest.skip("qemu-system-arm is not installed")
    monkeypatch.chdir(tmp_path)
    net = GraphBuilder("dense")
    weight = net.new_constant("w", np.random.default_rng(3).integers(-99, 99, (12, 40)).astype(np.int8))
    graph = net.graph("dense", {"y": net.op("dense", net.input("x", (1, 40), "int8"), weight, out_dtype="int32")})
    (tmp_path / "dense.mcg").write_bytes(to_bytes(graph))
    board = "mps2-an385"
    (advice,) = [each for each in advised("dense.mcg", board) if "microc tune" in each["command"]]
    command = shlex.split(advice["command"])
    assert main([*command[1:], "--trials", "4", "--quiet"]) == 0
    capsys.readouterr()
    counts = []
    for words in ([], ["--tuned", "tuned.jsonl"]):
        assert main(["bench", "dense.mcg", "--boards", board, *words, "--json"]) == 0
        counts.append(json.loads(capsys.readouterr().out)["boards"][0]["time"])
    assert 0 < counts[1] <= counts[0]


@pytest.mark.parametrize(
    ("model", "board", "options", "told", "better"),
    [
        (digits.INT8, "microbit", FLOAT_INPUT, "--input-dtype", {}),
        (digits.QDQ, "microbit", {}, "--requantize fixed", {"requantize": "fixed"}),
        (digits.QDQ, "mps3-an547", {}, "--requantize fixed", {"requantize": "fixed"}),
    ],
)
def test_gains_are_near_what_is_gained(
    model: Path, board: str, options: Mapping[str, Any], told: str, better: Mapping[str, Any]
) -> None:
    found = next(each for each in advised(model, board, **options) if told in each["command"])
    before, after = (cycles(model, board, **each) for each in (options, better))
    assert found["gain"] == pytest.approx(1 - after / before, rel=0.4, abs=0.02)


def test_integers_in_the_place_of_floats() -> None:
    first = advised(digits.FLOAT, "microbit")[0]
    assert first["command"].startswith("microc quantize digits_float.onnx --data SAMPLES")
    before, after = (cycles(model, "microbit") for model in (digits.FLOAT, digits.INT8))
    assert first["gain"] == pytest.approx(1 - after / before, abs=0.02)


def test_what_does_not_fit_is_first() -> None:
    found = advised(digits.FLOAT, "arduino-uno")
    assert "does not fit" in found[0]["text"] and found[0]["gain"] is None and (found[2]["gain"] or 0) > 0.5
    assert found[0]["command"] == "microc compile digits_float.onnx --board arduino-mega -o firmware"


def test_a_nearly_full_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command is compiled: it takes less memory, as the text says, or the board has twice of what is needed."""
    monkeypatch.setattr("microc.reports.advice._NEARLY_FULL_SHARE", 0.8)  # of RAM the network takes 83 %
    before = microc.compile(digits.INT8, board="arduino-uno").report()
    commands = [shlex.split(each["command"]) for each in before["next_steps"]]
    advised = {words[-4]: words[-3] for words in commands if words[-4] in ("--optimize", "--ram", "--board", "--flash")}
    assert set(advised) == {"--optimize", "--ram", "--board", "--flash"} and advised["--optimize"] == "size"
    smaller = microc.compile(digits.INT8, board="arduino-uno", optimize="size").report()
    assert smaller["flash"] < before["flash"]
    limited = microc.compile(digits.INT8, board="arduino-uno", ram=int(advised["--ram"])).report()
    assert limited["arena"] <= int(advised["--ram"]) and limited["ram"] < before["ram"]
    limited = microc.compile(digits.INT8, board="arduino-uno", flash=int(advised["--flash"])).report()
    assert limited["flash"] < before["flash"] and limited["estimated_cycles"] <= smaller["estimated_cycles"]
    larger = microc.compile(digits.INT8, board=advised["--board"]).report()
    assert all(2 * larger[memory] <= larger[f"board_{memory}"] for memory in ("flash", "ram"))


def test_a_slow_layer_and_an_accelerator_are_behind_gains() -> None:
    found = advised(digits.FLOAT, "microbit")
    assert found[-1]["gain"] is None and found[-1]["command"] == "microc explain digits_float.onnx 3 --board microbit"
    assert any("--external ethos-u" in each["command"] for each in advised(digits.INT8, "corstone-300"))


def test_commands_work_as_they_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From another folder than the model's, on a narrow terminal, under options of several kinds; one of each command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    model = tmp_path / "a model.onnx"
    model.write_bytes(digits.FLOAT.read_bytes())
    np.save("SAMPLES.npy", np.random.default_rng(0).normal(size=(24, 1, 8, 8)).astype(np.float32))
    words = ["--board=microbit", "--rename", "image=picture", "--optimize", "size", "--input-layout", "NHWC"]
    assert main(["report", model.name, *words]) == 0
    commands = printed(capsys.readouterr().out)
    assert {command[1] for command in commands} >= {"quantize", "compile", "explain"}
    for command in commands:
        assert main([word.replace("SAMPLES", "SAMPLES.npy") for word in command[1:]]) == 0, command
    capsys.readouterr()
    assert main(["profile", "firmware"]) == 0
    assert all(command[2] == model.name for command in printed(capsys.readouterr().out))


def test_commands_write_where_this_command_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compiling elsewhere, and the report of a project elsewhere; a report of a model has no folder, and says firmware."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("x.onnx").write_bytes(digits.QDQ.read_bytes())
    words = ["x.onnx", "--board", "microbit"]
    for command, folder in (
        (["compile", *words, "-o", "out/my fw"], "out/my fw"),
        (["report", "out/my fw"], "out/my fw"),
        (["report", *words], "firmware"),
    ):
        assert main(command) == 0
        compiling = [line for line in printed(capsys.readouterr().out) if line[1] == "compile"]
        assert compiling and all(line[-2:] == ["-o", folder] and line.count("-o") == 1 for line in compiling)


def printed(text: str) -> list[list[str]]:
    """The commands below ``what to do next``, as a shell reads them."""
    shown = text.partition("what to do next\n")[2].replace(" \\\n", " ")
    return [shlex.split(line) for line in re.findall(r"^  (microc .*)$", shown, re.MULTILINE)]


def test_options_are_repeated() -> None:
    """Options in a report become flags again, and the last of two holds."""
    options: dict[str, Any] = {
        "input_dtype": "float32",
        "optimize": "size",
        "shipped": False,
        "ram": 65536,
        "opt_level": 3,
    }
    data = report(digits.INT8, board="microbit", **options).data
    words = shlex.split(format_option_flags_of_report(data))
    assert words[:2] == ["--board", "microbit"] and "--no-shipped" in words
    for pair in (["--opt-level", "3"], ["--ram", "65536"], ["--optimize", "size"], ["--input-dtype", "*=float32"]):
        assert words[words.index(pair[0]) + 1] == pair[1]
    (goal,) = [each for each in data["advice"] if "--optimize balanced" in each["command"]]
    assert "--optimize size" not in goal["command"]
    own = rewrite_command_of_advice(goal, data, "models/x.tflite", ["--board", "microbit", "--optimize", "size"])
    assert own["command"] == "microc compile models/x.tflite --board microbit --optimize balanced -o firmware"


def test_every_network_is_advised() -> None:
    """Control flow, state, and a board without bounds have no advice that fails."""
    net = microc.GraphBuilder()
    small = net.graph("small", {"y": net.op("relu", net.input("x", (1, 4)))})
    boards = ("host", "arduino-mega", "hazard3-sim")
    for graph, board in (
        (load(digits.QDQ), "host"),
        *((graph, board) for graph in (diamond(), small) for board in boards),
    ):
        found = report(graph, board=board)
        assert list_advice(AdvisedNetwork(found.data, load_board(board))) == found.data["advice"] or board != "host"
    assert len(set(ADVICES)) == len(ADVICES)


@pytest.mark.parametrize(
    ("model", "board", "goal"),
    [
        *((digits.INT8, board, "size") for board in ("microbit", "mps2-an386", "mps2-an500", "mps3-an547", "esp32-c3")),
        *((digits.INT8, board, "balanced") for board in ("mps2-an386", "mps2-an500")),
        *((model, "mps2-an386", "size") for model in models("mlperf_kws_int8.tflite")),
        *((model, "mps2-an386", "balanced") for model in models("mlperf_ic_int8.tflite")),
    ],
)
def test_goals_gain_what_their_range_says(model: Path, board: str, goal: str) -> None:
    """The other goal's gain on a network is within the range of networks that the advice tells; the least of it ranks it."""
    better, ranges = ("balanced", BALANCED_GAINS) if goal == "size" else ("speed", SPEED_GAINS)
    (told,) = [each for each in advised(model, board, optimize=goal) if f"--optimize {better}" in each["command"]]
    least, most = ranges[load_board(board).target.cpu]
    assert told["gain"] == (least or None if goal == "size" else None)
    assert f"{100 * most:.0f} %" in told["text"] and "the range over five int8 networks" in told["text"]
    before, after = (cycles(model, board, optimize=each) for each in (goal, better))
    assert least - 0.005 <= 1 - after / before <= most + 0.005


def test_speed_is_not_advised_where_it_may_take_longer() -> None:
    """A core that waits for its flash, and one on which nothing is gained."""
    for board in ("nucleo-l476rg", "microbit"):
        assert not any("--optimize speed" in each["command"] for each in advised(digits.INT8, board))
