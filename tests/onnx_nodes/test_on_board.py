# SPDX-License-Identifier: Apache-2.0
"""ONNX's node tests on an emulated Cortex-M4, over the serial protocol: some by default, a hundred with MICROC_ONNX_NODES=all."""

from __future__ import annotations

import os

import pytest

from microc.device.boards import load_board
from tests.device.smoke import skip_without
from tests.onnx_nodes.on_board import run_on, spread
from tests.onnx_nodes.suite import NodeTest, in_scope, judge, needs_scope

BOARD = "mps2-an386"


@pytest.mark.cross
@pytest.mark.emulator
@pytest.mark.corpus
@needs_scope
def test_an_emulated_board_passes_what_this_computer_passes(capsys: pytest.CaptureFixture[str]) -> None:
    skip_without(load_board(BOARD))
    tests = spread(in_scope(), 100 if os.environ.get("MICROC_ONNX_NODES") == "all" else 8)
    with capsys.disabled():
        judge(f"ONNX node tests on {BOARD}", run_on(BOARD, tests, processes=2))


def test_a_spread_takes_one_test_of_each_operator_and_reaches_all_of_them() -> None:
    tests = [NodeTest("A", f"{operator}_{k}", operator, ()) for operator in "abcdefgh" for k in range(3)]
    assert [test.operator for test in spread(tests, 8)] == list("abcdefgh")
    assert [test.name for test in spread(tests, 4)] == ["a_0", "c_1", "e_2", "g_0"]
