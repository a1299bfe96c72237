# SPDX-License-Identifier: Apache-2.0
"""Runs on a board, one after the other."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.reports.live import FROM_BOARD, iter_runs, render_watch_page, run_to_event_data
from microc.run import board_project
from microc.run.data.samples import Samples
from tests.run.test_profile import Page
from tests.support import digits


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> board_project.Project:
    folder = tmp_path_factory.mktemp("live") / "digits"
    made = board_project.open_project(microc.compile(digits.INT8, board="host").write(folder))
    board_project.build_project(made)
    return made


def test_samples_in_a_loop(project: board_project.Project) -> None:
    images = np.random.default_rng(0).integers(-128, 128, (3, 1, 8, 8, 1)).astype(np.int8)
    samples = Samples((images,), np.array([4, 5, 6]), {}, ())
    library = microc.compile(digits.INT8)
    with microc.Device(project) as device:
        found = list(itertools.islice(iter_runs(device, samples), 5))
        data = [run_to_event_data(device, run) for run in found]
    assert [run.sample for run in found] == [0, 1, 2, 0, 1] and [run.label for run in found] == [4, 5, 6, 4, 5]
    for run in found:
        assert np.array_equal(run.outputs[0], library(images[run.number % 3]))
    assert data[3]["inputs"][0]["kind"] == "picture" and data[3]["outputs"][0]["kind"] == "bars"
    assert data[3]["answer"] == int(np.argmax(found[3].outputs[0])) and data[3]["label"] == 4
    assert json.loads(json.dumps(data[0], allow_nan=False)) == data[0] and data[0]["seconds"] > 0


def test_random_numbers_and_what_the_board_has(project: board_project.Project) -> None:
    with microc.Device(project) as device:
        first, second = itertools.islice(iter_runs(device, 7), 2)
        assert not np.array_equal(first.inputs[0], second.inputs[0]) and first.label is None
        device.set_inputs(first.inputs[0])
        (again,) = itertools.islice(iter_runs(device, FROM_BOARD), 1)
    assert np.array_equal(again.inputs[0], first.inputs[0]) and np.array_equal(again.outputs[0], first.outputs[0])


def test_page(project: board_project.Project, tmp_path: Path) -> None:
    evil = board_project.Project(project.folder, {**project.manifest, "model": "</script><script>x"}, project.board)
    with microc.Device(project) as device:
        text = render_watch_page(device, "<b> in a loop")
        device.project = evil
        assert "<script>x" not in render_watch_page(device, "")
    page = Page(text)
    assert sum(tag == "script" for tag, _ in page.tags) == 1 and "&lt;b&gt; in a loop" in text and "src=" not in text
