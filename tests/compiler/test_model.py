# SPDX-License-Identifier: Apache-2.0
"""Saving and loading: a model by way of a graph file is the same firmware."""

from __future__ import annotations

import os
from errno import EDQUOT, ENOSPC, EROFS
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.codegen.output_files import unwritable_error
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model
from microc.errors import OutputError, UsageError
from microc.graph.ir import Graph, Node, TensorType
from microc.graph.text import to_text
from microc.target import target_for
from tests.support import digits
from tests.support.corpus import models


@pytest.mark.parametrize("path", [digits.INT8, digits.QDQ], ids=lambda p: p.name)
def test_the_way_over_a_file_changes_nothing(path: Path, tmp_path: Path) -> None:
    graph = microc.load(path)
    saved = microc.save(graph, tmp_path / f"{path.stem}.mcg")
    target = target_for("cortex-m4")
    made = [compile_model(source, target, Options()) for source in (path, graph, saved)]
    assert len({module.fingerprint for module in made}) == 1
    assert made[0].plan == made[1].plan == made[2].plan
    assert [module.source for module in made] == [path.name, saved.name, saved.name]
    assert to_text(microc.load(saved)) == to_text(graph)


@pytest.mark.parametrize("path", [digits.INT8, digits.QDQ, *models("*")[::25]], ids=lambda path: path.stem)
def test_loaded_graph_equals_saved_graph(path: Path, tmp_path: Path) -> None:
    graph = microc.load(path)
    assert microc.load(microc.save(graph, tmp_path / "any.mcg")) == graph


def test_a_view_of_a_constant_is_no_output() -> None:
    """Where nothing folds constants, one that is reshaped is copied to the arena, and only the result is an output."""
    x, y = TensorType((2, 3), "int8"), TensorType((3, 2), "int8")
    nodes = (
        Node("reshape", ("c",), ("r",), {"shape": (2, 3)}),
        Node("add", ("x", "r"), ("s",), {}),
        Node("transpose", ("s",), ("y",), {"axes": (1, 0)}),
    )
    consts = {"c": np.arange(6, dtype=np.int8)}
    graph = Graph(
        "view", ("x",), ("y",), nodes, {"x": x, "c": TensorType((6,), "int8"), "r": x, "s": x, "y": y}, consts
    )
    module = compile_model(graph, target_for("host"), Options(disabled=frozenset({"fold_constants"})))
    assert [name for name, value in module.values.items() if value.storage == "output"] == ["y"]


def test_equal_graphs_give_equal_files(tmp_path: Path) -> None:
    files = [microc.save(microc.load(digits.INT8), tmp_path / name).read_bytes() for name in ("a.mcg", "b.mcg")]
    assert files[0] == files[1]


def test_a_graph_compiles_to_a_function() -> None:
    image = digits.images(1)[0]
    np.testing.assert_array_equal(microc.compile(microc.load(digits.INT8))(image), microc.compile(digits.INT8)(image))


def test_the_parts_of_a_network_are_the_whole() -> None:
    """Cut in the middle, both halves compiled: together they compute what the network computes."""
    image = digits.images(1)[0]
    middle = next(node.outputs[0] for node in microc.load(digits.INT8).nodes if node.op == "conv2d")
    head = microc.compile(digits.INT8, outputs=(middle,))
    tail = microc.compile(digits.INT8, inputs=middle)
    assert [t["label"] for t in tail.inputs] == [middle]
    np.testing.assert_array_equal(tail(head(image)), microc.compile(digits.INT8)(image))


def test_load_takes_what_compile_takes() -> None:
    graph = microc.load(digits.INT8)
    assert to_text(microc.load(graph, outputs="flat")) == to_text(microc.load(digits.INT8, outputs="flat"))


def test_a_wrong_name_is_refused_with_near_ones() -> None:
    with pytest.raises(UsageError, match="no tensor 'pointwise'") as caught:
        microc.load(digits.INT8, outputs=("pointwise",))
    assert "pointwise3" in caught.value.hint


@pytest.mark.parametrize("code", [ENOSPC, EDQUOT, EROFS])
def test_full_disk_is_not_suggested_again(code: int, tmp_path: Path) -> None:
    error = unwritable_error(tmp_path / "net.mcg", OSError(code, os.strerror(code)))
    assert "disk" in str(error.hint) and str(tmp_path) not in str(error.hint)


def test_an_unwritable_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        microc.save(microc.load(digits.INT8), tmp_path / "file" / "net.mcg")
