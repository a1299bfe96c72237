# SPDX-License-Identifier: Apache-2.0
"""The frontend of microWakeWord is pymicro-features' in every bit, in numpy, compiled, and as a run of several frames."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.errors import UsageError
from microc.features import MicroFrontend, join, read
from microc.features.feature_pipeline import SCALE
from tests.features.sounds import int16, sound
from tests.features.test_joined import network

LOUD = np.random.default_rng(0).integers(-32768, 32767, 4000, endpoint=True).astype(np.int16)


@pytest.mark.skipif(importlib.util.find_spec("pymicro_features") is None, reason="pymicro-features is not installed")
@pytest.mark.parametrize("x", [int16(sound(0.5)), LOUD, np.zeros(1000, np.int16)], ids=["sound", "loud", "silence"])
def test_every_frame_is_pymicro_features(x: Array) -> None:
    package: Any = importlib.import_module("pymicro_features")
    theirs, raw, rows = package.MicroFrontend(), x.tobytes(), []
    for at in range(0, len(raw) - 319, 320):
        row = theirs.process_samples(raw[at : at + 320]).features
        rows += [row] if row else []
    made, scale = MicroFrontend().stored(x)
    np.testing.assert_array_equal(made * scale, np.array(rows))


@pytest.mark.parametrize("frames", [1, 3])
def test_compiled_runs_go_on(frames: int) -> None:
    """Runs of several frames begin with zeros, until a frame has all of its samples; a reset begins anew."""
    front = MicroFrontend(pcan=frames == 3)
    want, _ = front.stored(LOUD)
    run, hop = microc.compile(front.graph(front.samples(frames))), front.samples(frames)
    for _ in range(2):
        steps = range(0, len(LOUD) - hop + 1, hop)
        made = np.concatenate([np.asarray(run(LOUD[None, at : at + hop]))[0] for at in steps])
        assert not made[: front.lead].any()
        np.testing.assert_array_equal(made[front.lead :], want[: len(made) - front.lead])
        run.reset()


def test_in_front_of_a_network(tmp_path: Path) -> None:
    (tmp_path / "features.toml").write_text('preset = "microfrontend"\nwindow_ms = 25\nbands = 40\n')
    front = read(tmp_path / "features.toml").pipeline
    assert front == MicroFrontend(window_ms=25)
    graph = join(front, network((1, 3, 40)))
    assert graph.types["samples"].shape == (1, 480) and len(graph.state) == 3
    run = microc.compile(graph)
    made = np.concatenate([np.asarray(run(LOUD[None, at : at + 480]))[0] for at in range(0, 1920, 480)])
    assert isinstance(front, MicroFrontend)
    np.testing.assert_allclose(made[front.lead :], front(LOUD)[: len(made) - front.lead])
    assert front.stored(LOUD)[1] == SCALE


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError):
        MicroFrontend(lower=5000.0, upper=400.0)
    with pytest.raises(UsageError):
        MicroFrontend(step_ms=40)
    with pytest.raises(UsageError):
        MicroFrontend().graph(200)
    with pytest.raises(UsageError):
        MicroFrontend()(np.zeros(100, np.int16))
