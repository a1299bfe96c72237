"""ONNX's tests of models: the simple ones, some layers and one architecture by default, all with MICROC_ONNX_NODES=all."""

from __future__ import annotations

import os
import sys

import pytest

from tests.onnx_nodes.suite import REFUSED, model_tests, refused, run, sample

SMALL = ("test_shufflenet",)


def test_the_models_pass_but_for_those_listed(capsys: pytest.CaptureFixture[str]) -> None:
    tests = model_tests()
    if os.environ.get("MICROC_ONNX_NODES") != "all":
        layers = [test for test in tests if test.tier == "converted"]
        tests = (*(t for t in tests if t.tier == "simple" or t.name in SMALL), *sample(layers, 20))
    outcomes = tuple(run(tests, processes=2))
    failed = {outcome.name: outcome for outcome in outcomes if outcome.stage}
    with capsys.disabled():
        sys.stdout.write(f"\nONNX tests of models: {len(outcomes) - len(failed)} of {len(outcomes)} pass\n")
    news = [f"{o.name}: {o.stage}: {o.message}" for o in failed.values() if o.name not in refused()]
    assert not news, "\n".join(news)
    stale = [test.name for test in tests if test.name in refused() and test.name not in failed]
    assert not stale, f"{REFUSED.name} lists tests that pass: {', '.join(stale)}"
