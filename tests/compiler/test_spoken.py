# SPDX-License-Identifier: Apache-2.0
"""Hints of errors speak of keywords in Python, and of flags on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.compiler.interaction import convert_flags_to_keywords
from microc.compiler.options import make_options
from microc.errors import FitError, UsageError
from microc.graph.file import to_bytes


@pytest.mark.parametrize(
    ("flags", "keywords"),
    [
        ("raise --ram 30K or so", 'raise ram="30K" or so'),
        ("raise --ram, or --io caller", "raise ram, or io_in_arena=False"),
        ("--bound n=8:64:8; --bound m=4", 'bounds={"n": (8, 64, 8)}; bounds={"m": 4}'),
        ("--input-shape x=1,3, or cut", 'input_shapes={"x": (1, 3)}, or cut'),
        ("leave out --stream or --no-cache", "leave out stream or cache=False"),
        (
            "microc check MODEL --tensors, or --output-dtype int8",
            'microc check MODEL --tensors, or output_dtype="int8"',
        ),
        ("name it: --board BOARD (--port A)", 'name it: board="BOARD" (--port A)'),
    ],
)
def test_flags_become_keywords(flags: str, keywords: str) -> None:
    assert convert_flags_to_keywords(flags) == keywords == convert_flags_to_keywords(keywords)


def test_whoever_asks_is_answered_in_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = microc.GraphBuilder()
    weight, bias = net.constant("w", np.ones((64, 64), np.float32)), net.constant("b", np.zeros(64, np.float32))
    graph = net.graph(
        "net", {"y": net.op("dense", net.op("dense", net.input("x", (1, 64)), weight, bias), weight, bias)}
    )
    (tmp_path / "net.mcg").write_bytes(to_bytes(graph))
    with pytest.raises(FitError) as caught:
        microc.compile(tmp_path / "net.mcg", board="mps2-an386", ram=300)
    assert "ram=512" in caught.value.hint and "io_in_arena=False" in caught.value.hint and "--" not in caught.value.hint
    main(["compile", str(tmp_path / "net.mcg"), "--board", "mps2-an386", "--ram", "300", "-o", "unused"])
    assert "--io caller" in capsys.readouterr().err


def test_bytes_may_be_written_as_hints_write_them() -> None:
    assert make_options(ram="30K").ram == make_options(ram=30 * 1024).ram == 30720
    with pytest.raises(UsageError, match="cannot be 'much'"):
        make_options(flash="much")
