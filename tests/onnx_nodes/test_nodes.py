# SPDX-License-Identifier: Apache-2.0
"""ONNX's node tests: an even sample of those in scope by default, all of them with MICROC_ONNX_NODES=all."""

from __future__ import annotations

import os

import pytest

from tests.onnx_nodes.suite import in_scope, judge, model_tests, needs_scope, refused, run, sample

pytestmark = [pytest.mark.corpus, needs_scope]


def test_the_node_tests_pass_but_for_those_listed(capsys: pytest.CaptureFixture[str]) -> None:
    tests = in_scope() if os.environ.get("MICROC_ONNX_NODES") == "all" else sample(in_scope(), 50)
    with capsys.disabled():
        judge("ONNX node tests", run(tests, processes=2))


def test_the_list_names_tests_in_scope() -> None:
    assert set(refused()) <= {test.name for test in (*in_scope(), *model_tests())}
