# SPDX-License-Identifier: Apache-2.0
"""Which passes run, what instruments see, and what is refused."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from microc.errors import InternalError, OutputError, UsageError
from microc.graph.file import from_bytes
from microc.graph.ir import Graph, Node, TensorType
from microc.graph.text import to_text
from microc.transform.pass_context import DumpInstrument, Pass, PassContext, TimingInstrument, run_passes

KIND = TensorType((4,), "float32")
GRAPH = Graph("net", ("x",), ("y",), (Node("relu", ("x",), ("y",)),), {"x": KIND, "y": KIND})


def renaming(name: str, level: int = 1) -> Pass:
    """A pass that leaves its name in the graph's."""
    return Pass(name, lambda graph, context: replace(graph, name=f"{graph.name}_{name}"), level)


PASSES = (renaming("base", 0), renaming("tidy"), renaming("fast", 2), renaming("tidy"), renaming("wild", 5))


@pytest.mark.parametrize(
    ("context", "ran"),
    [
        (PassContext(), "base tidy fast tidy"),
        (PassContext(opt_level=0), "base"),
        (PassContext(opt_level=1), "base tidy tidy"),
        (PassContext(disabled=frozenset({"tidy"})), "base fast"),
        (PassContext(opt_level=0, required=frozenset({"wild"})), "base wild"),
    ],
)
def test_which_passes_run(context: PassContext, ran: str) -> None:
    assert run_passes(GRAPH, PASSES, context).name.split("_")[1:] == ran.split()


@pytest.mark.parametrize(
    "context", [PassContext(disabled=frozenset({"tidi"})), PassContext(required=frozenset({"tidi"}))]
)
def test_unknown_passes_are_refused(context: PassContext) -> None:
    with pytest.raises(UsageError) as caught:
        run_passes(GRAPH, PASSES, context)
    assert caught.value.hint == "did you mean tidy?"


def test_mandatory_passes_cannot_be_disabled() -> None:
    with pytest.raises(UsageError, match="cannot be disabled"):
        run_passes(GRAPH, PASSES, PassContext(disabled=frozenset({"base"})))


def test_a_pass_that_breaks_the_graph_is_named() -> None:
    def spoil(graph: Graph, context: PassContext) -> Graph:
        return replace(graph, outputs=("nowhere",))

    with pytest.raises(InternalError) as caught:
        run_passes(GRAPH, (Pass("spoil", spoil),), PassContext())
    assert "after pass spoil" in caught.value.where


def test_options_reach_the_pass() -> None:
    def rename(graph: Graph, context: PassContext) -> Graph:
        return replace(graph, name=str(context.options["requantize"]))

    context = PassContext(options={"requantize": "fixed"})
    assert run_passes(GRAPH, (Pass("rename", rename),), context).name == "fixed"


def test_timing_adds_up_by_pass() -> None:
    def sleep(graph: Graph, context: PassContext) -> Graph:
        time.sleep(0.01)
        return graph

    timing = TimingInstrument()
    run_passes(
        GRAPH, (Pass("sleep", sleep), renaming("tidy"), Pass("sleep", sleep)), PassContext(instruments=(timing,))
    )
    assert list(timing.seconds) == ["sleep", "tidy"]
    assert timing.seconds["sleep"] >= 0.02 > timing.seconds["tidy"] >= 0


def test_dump_writes_every_stage(tmp_path: Path) -> None:
    result = run_passes(GRAPH, PASSES, PassContext(instruments=(DumpInstrument(tmp_path),)))
    stems = ["00-read", "01-base", "02-tidy", "03-fast", "04-tidy"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{s}{e}" for s in stems for e in (".mcg", ".txt")]
    assert from_bytes((tmp_path / "00-read.mcg").read_bytes(), "00-read.mcg") == GRAPH
    assert (tmp_path / "04-tidy.txt").read_text() == to_text(result)


def test_dump_into_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        run_passes(GRAPH, PASSES, PassContext(instruments=(DumpInstrument(tmp_path / "file"),)))
