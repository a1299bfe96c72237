# SPDX-License-Identifier: Apache-2.0
"""The example of a language model: its letters are ONNX Runtime's, its caches lie in place, and its gradients are right."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import microc
from tests.support.onnx_session import session

HERE = Path(__file__).parents[1] / "examples" / "language_model"
MODEL = HERE / "model.onnx"
MODULES = ("network", "run", "train", "write_onnx")
CACHES = {f"past_{what}_{k}" for what in ("key", "value") for k in range(3)}
STATE = {**{name: name.replace("past", "present") for name in CACHES}, "position": "next_position"}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports the example's files, whose names other examples have, too."""
    monkeypatch.syspath_prepend(str(HERE))
    taken = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(taken)


def letters() -> str:
    found = next(p.value for p in onnx.load(MODEL).metadata_props if p.key == "letters")
    return str(found)


def test_letters_are_those_of_onnxruntime(example: Any) -> None:
    prompt = [letters().index(letter) for letter in "the fisher "]
    ours = example("run").generate(microc.compile(MODEL, state=STATE), prompt, 40)
    runtime = session(MODEL, fused=False)
    names = [output.name for output in runtime.get_outputs()]
    held = {
        given.name: np.zeros(given.shape, np.int32 if given.name == "position" else np.float32)
        for given in runtime.get_inputs()
    }
    del held["token"]

    def step(token: Any) -> Any:
        found = dict(zip(names, runtime.run(None, {"token": token, **held}), strict=True))
        held.update({name: found[output] for name, output in STATE.items()})
        return found["next"]

    assert ours == example("run").generate(step, prompt, 40)
    said = "the fisher " + "".join(letters()[token] for token in ours)
    assert said in (HERE / "text.txt").read_text(encoding="utf-8")


def test_caches_are_updated_where_they_lie() -> None:
    """Weights stay packed, and nothing holds the caches twice."""
    found = microc.compile(MODEL, board="mps2-an500", state=STATE).report()
    caches = sum(4 * 2 * 96 * 16 for _ in CACHES)
    assert caches < found["arena"] < caches + 16_000
    assert found["weight_bytes"] < 110_000


def test_gradients_are_differences(example: Any) -> None:
    train, network = example("train"), example("network")
    shape = network.Shape(tokens=5, room=6, layers=2, depth=8, queries=4, shared=2, width=4, inner=6)
    dice = np.random.default_rng(2)
    weights = {name: w.astype(np.float64) for name, w in train.first_weights(shape, dice).items()}
    tokens = dice.integers(0, 5, (2, 6))
    tape = train.Tape(weights)
    train.loss_of(tape, tokens, shape)
    for name, weight in weights.items():
        place = tuple(dice.integers(0, extent) for extent in weight.shape)
        kept, losses = weight[place], []
        for step in (1e-5, -1e-5):
            weight[place] = kept + step
            losses.append(train.loss_of(train.Tape(weights), tokens, shape))
        weight[place] = kept
        assert tape.found[name][place] == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-3, abs=1e-7), name


def test_the_file_holds_what_was_rounded(example: Any, tmp_path: Path) -> None:
    """Every product of the file with its weights is that of the rounded ones."""
    train, network, write_onnx = (example(name) for name in ("train", "network", "write_onnx"))
    shape = network.Shape(tokens=7, room=8, layers=1, depth=32, queries=2, shared=1, width=16, inner=32)
    weights = train.first_weights(shape, np.random.default_rng(4))
    write_onnx.write(tmp_path / "small.onnx", weights, shape, "abcdefg")
    graph = microc.load(tmp_path / "small.onnx")
    stored = [data for data in graph.consts.values() if data.dtype == np.float32 and data.ndim == 2]
    for name, weight in network.rounded(weights).items():
        if network.bits_of(name):
            assert any(data.shape == weight.shape and np.array_equal(data, weight) for data in stored), name
