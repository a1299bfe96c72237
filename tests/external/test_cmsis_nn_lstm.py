# SPDX-License-Identifier: Apache-2.0
"""LSTM by CMSIS-NN: what is called, what is refused, and with a copy (MICROC_CMSIS_NN) the same bits as ours, run after run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc import GraphBuilder
from microc.cli import main
from microc.errors import UsageError
from microc.external.backend import Code, partition
from microc.external.cmsis_nn import BACKEND
from microc.external.cmsis_nn.cmsis_library import collect_library_sources
from microc.graph.ir import Graph, Quant
from microc.target import target_for
from tests.device.smoke import needs
from tests.external.networks import lstms
from tests.external.test_cmsis_nn import COPY, copied
from tests.external.test_library import copy_of

LAYERS: dict[str, Any] = {
    "int8": {"dtype": "int8"},
    "int8 clipped": {"dtype": "int8", "clip": 2.5},
    "int8, two sequences": {"dtype": "int8", "batch": 2, "clip": 10.0, "power": -12},
    "int8, steps first": {"dtype": "int8", "batch": 2, "time_major": True, "power": -9},
    "int8, a fine cell": {"dtype": "int8", "power": -15},
    "int16": {"dtype": "int16", "clip": 10.0},
    "int16, steps first": {"dtype": "int16", "batch": 3, "time_major": True, "power": -12},
}


def only(graph: Graph, cpu: str = "cortex-m4") -> Code:
    (taken,) = partition(graph, [BACKEND], target_for(cpu)).taken
    assert taken.entry.name == "lstm"
    return taken.code


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_one_call_on_copies_of_its_state(name: str) -> None:
    code = only(lstms(LAYERS[name]))
    batch, bytes_each = LAYERS[name].get("batch", 1), 1 if LAYERS[name]["dtype"] == "int8" else 2
    assert code.lines[:2] == (
        f"(void)memcpy(out_1, in_1, {5 * batch * bytes_each});",
        f"(void)memcpy(out_2, in_2, {10 * batch});",
    )
    assert code.lines[-1].startswith(f"return (int){code.functions[0]}(in_0, out_0, ")
    assert code.workspace == 2 * (-(-10 * batch // 4) * 4) and not code.differs
    assert set(code.data) == {"input_weights", "input_bias", "hidden_weights", "hidden_bias"}


def computed() -> Graph:
    b = GraphBuilder("net")
    quant = Quant((0.01,) * 4, (0,) * 4, 0)
    x = b.input("x", (1, 2, 3), "int8", Quant((0.1,), (0,)))
    weights = [b.input(name, (4, depth), "int8", quant) for name, depth in (("w", 3), ("r", 1))]
    state = (b.input("h", (1, 1), "int8", Quant((0.1,), (0,))), b.input("c", (1, 1), "int16", Quant((2.0**-11,), (0,))))
    rows = b.emit_all("lstm", (x, *weights, *state))[0]
    return b.graph("net", {"y": b.set_quant(rows, Quant((0.1,), (0,)))})


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (lstms({"dtype": "int8", "clip": 1e-5}), "clipped to 0"),
        (lstms({"dtype": "int8", "power": -16}), "no power of two from"),
        (lstms({"dtype": "int16", "power": 0}), "no power of two from"),
    ],
)
def test_what_the_library_computes_otherwise_stays_ours(graph: Graph, said: str) -> None:
    found = partition(graph, [BACKEND], target_for("cortex-m4"))
    assert not found.taken and said in found.refused[0][1]
    assert [node.op for node in found.graph.nodes if node.op in ("lstm", "loop")] == ["loop"]


def test_recurrent_products_that_do_not_fit_are_theirs_only_where_all_are_asked_for(tmp_path: Path) -> None:
    graph = lstms({"dtype": "int8", "recurrent": 0.02})
    assert "gates lack 2.61 at most" in only(graph).differs
    options: Any = {"board": "mps2-an386", "external": {"cmsis-nn": copy_of(tmp_path / "copy", state=True)}}
    told = [
        json.loads(
            microc.compile(graph, external_choice=choice, dump=tmp_path / choice, **options).files()["manifest.json"]
        )
        for choice in ("all", "cost")
    ]
    assert told[0]["external"]["kernels"][0]["differs"].startswith("ours cuts recurrent products off at 8")
    assert (
        "external" not in told[1]
        and "ours, cmsis-nn lstm: ours cuts" in (tmp_path / "cost" / "external.txt").read_text()
    )


def test_a_copy_that_keeps_no_hidden_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="clears the state") as caught:
        collect_library_sources(str(copy_of(tmp_path)), target_for("cortex-m4"), ["arm_lstm_unidirectional_s8"])
    assert "June 2026" in caught.value.hint


def test_without_external_code_and_with_streams_it_is_a_loop(tmp_path: Path) -> None:
    """Also where a backend knows it, but sequences are not whole."""
    graph, options = (
        lstms({"dtype": "int8"}),
        {"external": {"cmsis-nn": copy_of(tmp_path, state=True)}, "external_choice": "all"},
    )
    for more in ({}, {"stream": 1, **options}, {"rounding": "single", **options}):
        program = microc.compile(graph, board="mps2-an386", **more)
        assert not any("cmsis-nn" in call.rule for call in program.module.calls), more


@copied
def test_runs_go_on_from_each_other_as_ours() -> None:
    """All layers in one network; its plain C."""
    graph = lstms(*LAYERS.values())
    theirs = microc.compile(graph, external={"cmsis-nn": COPY}, external_choice="all")
    ours = microc.compile(graph)
    assert sum("cmsis-nn" in kernel["rule"] for kernel in theirs.manifest["kernels"]) == len(LAYERS)
    for seed in range(8):
        rng, ends = np.random.default_rng(seed), [(np.iinfo(t["dtype"]), t["shape"]) for t in theirs.inputs]
        inputs = [rng.integers(i.min, i.max, shape, i.dtype, endpoint=True) for i, shape in ends]
        for mine, other in zip(ours(*inputs), theirs(*inputs), strict=True):
            np.testing.assert_array_equal(mine, other)


@copied
@pytest.mark.parametrize("board", ["mps2-an386", "mps3-an547"])
@needs("arm-none-eabi-gcc")
@needs("qemu-system-arm")
def test_emulated_boards_agree_with_our_code(board: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = lstms(*LAYERS.values())
    folder = microc.compile(graph, board=board, external={"cmsis-nn": COPY}, external_choice="all").write(
        tmp_path / "f"
    )
    assert main(["verify", str(folder)]) == 0
    assert "every bit" in capsys.readouterr().out
