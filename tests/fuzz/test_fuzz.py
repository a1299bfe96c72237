# SPDX-License-Identifier: Apache-2.0
"""The fuzzer itself: mutants repeat and differ, crashes are findings, and a little of everything finds nothing."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from microc.base.dtypes import to_numpy
from microc.errors import ModelError
from tests.fuzz import lines, native, trial, workers
from tests.fuzz.__main__ import main
from tests.fuzz.flatbuffer import places
from tests.fuzz.seeds import FORMATS, seeds
from tests.fuzz.workers import BATCH, Campaign, run_batch

EMPTY = trial.Outcome("refused")


@pytest.mark.parametrize("kind", FORMATS)
def test_mutants_repeat_and_differ(kind: str) -> None:
    if not seeds(kind):
        pytest.skip("h5py is not installed (pip install microc[keras])")
    found = [trial.mutant(kind, 3, number) for number in range(40)]
    assert found == [trial.mutant(kind, 3, number) for number in range(40)]
    assert len({data for _, data in found}) > 25  # a Keras file of two layers has few words
    assert sum(data == seeds(kind)[name] for name, data in found) < 5


def test_every_part_of_a_flatbuffer_is_a_place() -> None:
    kinds = {place.what for place in places(seeds("tflite")["network"])}
    assert {"field", "length", "f", "i", "b", "I", "q", "Tensor", "Operator", "Quantization", "?"} <= kinds


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", FORMATS)
def test_a_batch_finds_nothing(kind: str, tmp_path: Path) -> None:
    """24 mutants: read, compiled, and their C under sanitizers against the references."""
    if not seeds(kind):
        pytest.skip("h5py is not installed (pip install microc[keras])")
    campaign = Campaign(tmp_path)
    run_batch(campaign, kind, 11, 0, sanitize=True)
    assert not campaign.signatures, campaign.signatures
    assert campaign.counts["refused"] + campaign.counts["compiled"] == BATCH
    assert campaign.counts["refused"] > 1 and campaign.counts["ran"] > 0


def test_what_dies_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is ended by a signal, hangs, asks for too much, or raises: each is told, and the next mutant is tried."""

    def attempt(path: Path, chance: random.Random, name: str) -> trial.Outcome:
        number = int(name[1:])
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            if number == 2:
                with trial.limited(1):
                    while True:
                        pass
            if number == 3:
                np.ones(1 << 30)
            if number == 4:
                raise IndexError("here")
        except (Exception, trial.TooLong) as error:  # noqa: BLE001
            return trial._finding("read", error)
        return EMPTY

    monkeypatch.setattr(trial, "attempt", attempt)
    monkeypatch.setattr(workers, "BATCH", 6)
    campaign = Campaign(tmp_path)
    run_batch(campaign, "tflite", 1, 0, sanitize=False)
    kinds = sorted(signature.partition(": ")[2] for signature in campaign.signatures)
    assert [kind.split()[-1] if "signal" in kind else kind.split()[1] for kind in kinds] == [
        "IndexError", "MemoryError", "TooLong", "9",
    ]  # fmt: skip
    assert campaign.counts["refused"] == 2 and campaign.counts["finding"] == 4
    assert len(list(tmp_path.glob("*.tflite"))) == 4 == len(list(tmp_path.glob("*.tflite.txt")))


def _net(body: str) -> native.Net:
    """A network of one input and one output of four bytes, whose run does something of its own."""
    model = f"""
        int microc_run(void *arena, const void *const *inputs, void *const *outputs)
        {{ const signed char *x = inputs[0]; signed char *y = outputs[0], *a = arena; (void)a; {body} return 0; }}
        void microc_reset(void *arena) {{ (void)arena; }}"""
    tensor = {"bytes": 4, "dtype": "int8", "shape": [4]}
    table = {"tensors": [{"name": n, **tensor} for n in "xy"], "inputs": ["x"], "outputs": ["y"], "arena_size": 5}
    return native.Net({"shared.c": "", "model_data.c": "", "model.c": model}, table, [np.arange(4, dtype=np.int8)])


def test_faults_of_c_are_seen(tmp_path: Path) -> None:
    bodies = (
        "for (int k = 0; k < 4; k++) y[k] = x[k] + 1;",
        "y[4] = 0;",
        "a[5] = 0;",
        "y[0] = x[4];",
        "int big = 2147483647; y[0] = (signed char)(big + x[1]);",
        "float f = 1e30f; y[0] = (signed char)f;",
        "y[0] = 1 / x[0];",
        "for (;;) y[0]++;",
    )
    native_seconds, native._SECONDS = native._SECONDS, 1
    try:
        rans = native.run_all([_net(body) for body in bodies], tmp_path / "native")
    finally:
        native._SECONDS = native_seconds
    assert rans[0].fault == "" and rans[0].outputs[1][0].tolist() == [1, 2, 3, 4]
    assert ["overflow" in ran.fault for ran in rans[1:5]] == [True] * 4, rans
    assert all(ran.fault for ran in rans[1:])
    with pytest.raises(native.BuildFault) as fault:
        native.run_all([_net("y[0] = nothing;"), _net("y[0] = 1;")], tmp_path / "native")
    assert list(fault.value.nets) == [0]


def test_results_that_differ_are_seen() -> None:
    right = ((np.arange(4, dtype=np.int8),),) * 2
    assert trial.difference(right, right) == ""
    wrong = (right[0], (np.array([0, 1, 2, 4], np.int8),))
    assert "output 0 in run 1: [4] for [3]" in trial.difference(right, wrong)
    halves = np.array([np.nan, 1.5], to_numpy("bfloat16"))
    assert trial.difference(((halves,),), ((halves.copy(),),)) == ""
    assert trial.difference(((halves,),), ((halves * 2,),))
    one, two = ((np.array([1, 3], np.int16),),), ((np.array([1, 2], np.int16),),)
    assert trial.difference(one, two) and not trial.difference(one, two, frozenset({0}))
    assert "int8(4,) for int16(4,)" in trial.difference(((np.arange(4, dtype=np.int16),),), right)
    nan, inf = np.float32("nan"), np.float32("inf")
    a = np.array([nan, inf, 1e6, 0], np.float32)
    assert trial._same(a, np.array([nan, inf, 1e6, 999], np.float32))
    assert not trial._same(a, np.array([0, inf, 1e6, 0], np.float32))
    assert not trial._same(a, np.array([nan, -inf, 1e6, 0], np.float32))


@pytest.mark.fuzz
def test_answers_of_any_kind() -> None:
    begin = time.monotonic()
    count, found = lines.answers(3.0, seed=2)
    assert not found and count > 5
    assert time.monotonic() - begin < 15


def test_the_command_counts_and_says_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "attempt", lambda *_: trial._finding("read", ModelError("no", where="x")))
    assert main(["--minutes", "5", "--batches", "1", "--what", "mcg", "--folder", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "whole compilations  0" in said and f"finding, {BATCH} times: mcg: read ModelError" in said
    assert len(list(tmp_path.glob("*.mcg"))) == 2  # of one kind two are kept
