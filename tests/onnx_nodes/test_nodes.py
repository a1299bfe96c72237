"""ONNX's node tests: an even sample of those in scope by default, all of them with MICROC_ONNX_NODES=all."""

from __future__ import annotations

import os
import sys

import pytest

from tests.onnx_nodes.suite import REFUSED, in_scope, model_tests, needs_scope, refused, run, sample

pytestmark = needs_scope


def test_the_node_tests_pass_but_for_those_listed(capsys: pytest.CaptureFixture[str]) -> None:
    tests = in_scope() if os.environ.get("MICROC_ONNX_NODES") == "all" else sample(in_scope(), 100)
    outcomes = tuple(run(tests, processes=2))
    failed = {outcome.name: outcome for outcome in outcomes if outcome.stage}
    with capsys.disabled():
        sys.stdout.write(f"\nONNX node tests: {len(outcomes) - len(failed)} of {len(outcomes)} pass\n")
    news = [f"{o.name}: {o.stage}: {o.message}" for o in failed.values() if o.name not in refused()]
    assert not news, "\n".join(news)
    stale = [test.name for test in tests if test.name in refused() and test.name not in failed]
    assert not stale, f"{REFUSED.name} lists tests that pass: {', '.join(stale)}"


def test_the_list_names_tests_in_scope() -> None:
    assert set(refused()) <= {test.name for test in (*in_scope(), *model_tests())}
