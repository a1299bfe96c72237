# SPDX-License-Identifier: Apache-2.0
"""ONNX's tests of models: the simple ones, some layers and one architecture by default, all with MICROC_ONNX_NODES=all."""

from __future__ import annotations

import os

import pytest

from tests.onnx_nodes.suite import judge, model_tests, run, sample

SMALL = ("test_shufflenet",)


def test_the_models_pass_but_for_those_listed(capsys: pytest.CaptureFixture[str]) -> None:
    tests = model_tests()
    if os.environ.get("MICROC_ONNX_NODES") != "all":
        layers = [test for test in tests if test.tier == "converted"]
        tests = (*(t for t in tests if t.tier == "simple" or t.name in SMALL), *sample(layers, 10))
    with capsys.disabled():
        judge("ONNX tests of models", run(tests, processes=2))
