# SPDX-License-Identifier: Apache-2.0
"""``microc.explain``: which layer is meant, what is told of it, and that it is what was compiled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import microc
from microc.cli import main
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model
from microc.errors import UsageError
from microc.reports.explain import find_step_of_layer
from microc.target import target_for
from microc.tir.text import from_text, to_text
from tests.compiler.sizes import test_family as test_sizes
from tests.support import digits

MODULE = compile_model(digits.INT8, target_for("cortex-m4"), make_options())


@pytest.mark.parametrize(
    ("wanted", "step"),
    [
        ("0", 0),
        ("5", 5),
        ("conv1", 0),
        ("CONV1", 0),
        ("conv2d_conv4", 3),
        ("digits_int8.tflite #6 conv4", 3),
        ("soft", 5),
        ("depth", 1),
    ],
)
def test_a_layer_is_found(wanted: str, step: int) -> None:
    assert find_step_of_layer(MODULE, wanted) == step


@pytest.mark.parametrize(
    ("wanted", "what", "hint"),
    [
        ("konv1", "there is no layer 'konv1'", "did you mean conv1"),
        ("6", "there is no layer '6'", "list all 6"),
        ("conv", r"4 layers have names like 'conv': 0 \(conv2d_conv1\), 1", "give a number"),
    ],
)
def test_other_layers_are_refused(wanted: str, what: str, hint: str) -> None:
    with pytest.raises(UsageError, match=what) as refusal:
        find_step_of_layer(MODULE, wanted)
    assert hint in refusal.value.hint and refusal.value.where == "digits_int8.tflite"


def test_all_layers_are_listed() -> None:
    found = microc.explain(digits.INT8, target="cortex-m4")
    assert found.kernel is None
    layers = found.to_data()["layers"]
    assert [layer["function"] for layer in layers] == [call.kernel for call in MODULE.calls]
    assert all(layer["function"] in str(found) and layer["rule"] in str(found) for layer in layers)


def test_a_kernel_is_told() -> None:
    found = microc.explain(digits.INT8, "conv1", target="cortex-m4")
    text, kernel = str(found), found.to_data()["kernel"]
    (part,) = kernel["parts"]
    chosen = next(candidate for candidate in part["candidates"] if candidate["verdict"] == "chosen")
    assert chosen["rule"] == kernel["rule"] == "depthwise dsp"
    assert kernel["estimated_instructions"] == MODULE.calls[0].instructions
    (note,) = kernel["notes"]  # candidates are compared before their constants move behind the weights
    assert note.endswith(f"({chosen['instructions']:,} -> {kernel['estimated_instructions']:,} estimated instructions)")
    assert sum(kernel["operations"].values()) > 0 and kernel["c"] in text
    assert all(step in text for step in part["trace"]) and "acc[n < 1, y < 8, x < 8, c < 8]: int32" in text
    assert "steps" not in part and "after step" not in text


def test_everything_of_a_kernel() -> None:
    found = microc.explain(digits.INT8, "conv1", target="cortex-m4")
    text, (part,) = found.text(full=True), found.to_data(full=True)["kernel"]["parts"]
    texts = [stage["tir"] for stage in (*part["algorithms"], *part["steps"], *part["lowering"])]
    assert all(to_text(from_text(tir)) == tir and tir.rstrip() in text for tir in texts)
    assert [stage["pass"] for stage in part["lowering"]][:2] == ["blocks", "simplify"]


def test_goals_and_rows() -> None:
    found = microc.explain(digits.INT8, 0, target="cortex-m4", ram=650, optimize="speed")
    assert "row by row" in str(found) and len(found.to_data()["kernel"]["parts"]) == 2
    found = microc.explain(digits.INT8, 0, board="mps2-an386", optimize="size")
    assert found.to_data()["goal"] == {"name": "size", "price": found.goal.price}
    assert "candidates, size" in str(found)


def test_a_small_workspace() -> None:
    """What was chosen for it is among the candidates, and of those that take more it is said."""
    found = microc.explain(digits.INT8, "conv4", target="cortex-m4", ram=1000)
    assert "bytes of workspace, there is room for 664" in str(found)
    (part,) = found.to_data()["kernel"]["parts"]
    assert [each["verdict"] for each in part["candidates"]].count("chosen") == 1


def test_sizes_that_vary(tmp_path: Path) -> None:
    make, bounds, _ = test_sizes.CASES["mlp"]
    found = microc.explain(test_sizes.saved(make(), tmp_path), 0, bounds=bounds)
    assert "sizes vary" in str(found) and "size_" in found.to_data()["kernel"]["c"]


@pytest.mark.parametrize("wrong", [True, 1.5, None, b"conv1"])
def test_what_is_no_layer_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="a layer"):
        microc.explain(digits.INT8, wrong)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", str(digits.INT8), "dense5", "--target", "cortex-m55"]
    assert main(command) == 0
    assert "matrix mve" in capsys.readouterr().out
    assert main([*command, "--json", "--full"]) == 0
    assert json.loads(capsys.readouterr().out)["kernel"]["parts"][0]["lowering"]
    assert main([*command, "--board", "microbit"]) == 2
    assert main(["explain", str(digits.INT8), "dens5"]) == 2
    assert "did you mean dense5" in capsys.readouterr().err


def test_tables_are_as_wide_as_a_line() -> None:
    """Words are wrapped in their column; code stays as it is."""
    found = microc.explain(digits.INT8, "conv1")
    narrow = found.text(width=80)
    begin = narrow.index("\nrule ")
    rows = narrow[begin : narrow.index("\n\n", begin)].splitlines()
    assert max(map(len, rows)) <= 80 and "".join(found.text().split()) == "".join(found.text(width=400).split())
    assert max(map(len, microc.explain(digits.INT8).text(width=80).splitlines())) <= 80
