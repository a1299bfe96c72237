# SPDX-License-Identifier: Apache-2.0
"""What is said of a network in floats: the share, why, and what integers would bring on the core."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.compiler.options import Options
from microc.device.boards import load_board
from microc.project.checks import ModelCheck, check_model
from microc.reports.advice import FloatCosts
from tests.support import digits


def looked(model: Path, board: str, requantize: str = "float") -> ModelCheck:
    return check_model(model, Options(requantize=requantize), load_board(board))


def test_floats_on_a_core_without_fpu() -> None:
    found = looked(digits.FLOAT, "microbit")
    assert found.to_data()["float_share"] == 100
    assert found.arithmetic.reasons == ("nothing in the network is quantised",)
    (sentence,) = found.advice
    assert (
        sentence.startswith("this core has no FPU: int8 would be about ") and "microc quantize digits_float" in sentence
    )


def test_integers_need_no_advice() -> None:
    assert looked(digits.INT8, "microbit").advice == ()
    assert looked(digits.INT8, "microbit").arithmetic.float_macs == 0


def test_this_computer_only_tries() -> None:
    assert looked(digits.FLOAT, "host").advice == ()


@pytest.mark.parametrize("board", ["microbit", "mps3-an547"])
def test_requantisation_by_floats(board: str) -> None:
    """The saving that is told is within a factor of two of what the estimates of both networks say."""
    (sentence,) = looked(digits.QDQ, board).advice
    told = int(sentence.split("about ")[1].split()[0].replace(",", ""))
    before, after = (
        microc.compile(digits.QDQ, board=board, requantize=how).report()["estimated_instructions"]
        for how in ("float", "fixed")
    )
    assert (before - after) / 2 < told < 2 * (before - after)
    assert looked(digits.QDQ, board, "fixed").advice == ()


@pytest.mark.parametrize("board", ["microbit", "netduinoplus2"])
def test_the_factor_is_that_of_networks(board: str) -> None:
    """Of a layer on the cost model: networks, whose ends and small layers differ, are within a factor of two."""
    before, after = (
        microc.compile(model, board=load_board(board)).report()["estimated_instructions"]
        for model in (digits.FLOAT, digits.INT8)
    )
    times = FloatCosts(load_board(board).target.cpu).int8_speedup
    assert times / 2 < before / after < 2 * times


def test_a_layer_between_integers_says_why() -> None:
    net = microc.GraphBuilder()
    x = net.op("dequantize", net.input("x", (1, 8), "int8"), scale=(0.1,), zero_point=(0,), axis=None)
    weight = net.new_constant("weight", np.ones((4, 8), np.float32))
    net_graph = net.graph("mixed", {"y": net.op("dense", x, weight)})
    found = check_model(net_graph, Options(), load_board("microbit"))
    assert found.arithmetic.reasons == ("dense 1: its weights or its result are not quantised",)


def test_commands_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(digits.FLOAT), "--board", "microbit"]) in (0, 4)
    assert "  note" in capsys.readouterr().out
    command = ["compile", str(digits.FLOAT), "--board", "mps2-an386", "-o", str(tmp_path / "firmware")]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    assert report["float_macs"] == report["macs"] and "microc quantize" in report["advice"][0]
    assert main([*command[:-1], str(tmp_path / "quiet"), "--quiet"]) == 0
    assert capsys.readouterr().out == ""
