# SPDX-License-Identifier: Apache-2.0
"""ONNX's node tests through compiled C: which are in scope, compiled in batches, run and compared as ONNX's own runner does."""

from __future__ import annotations

import os
import sys
import tomllib
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.runner import Runner as Checker

from microc.errors import InternalError, MicrocError, ToolError
from microc.run.desktop.onnx_backend import (
    BatchNetwork,
    CompiledOnnxModel,
    Runner,
    bind_inputs_as_constants,
    build_batch,
    compile_onnx_proto,
)
from tests.onnx_nodes.models import converted, free_inputs, light, simple
from tests.support.corpus import CORPUS

REFUSED = Path(__file__).with_name("refused.toml")
_LENGTH = 48  # of a network's name, behind which it may be cut
BATCH = 64


def _scope_file() -> Path | None:
    named = os.environ.get("MICROC_ONNX_SCOPE")
    beside = CORPUS.parent / "onnx" / "node_tests_in_scope.txt" if CORPUS else None
    path = Path(named) if named else beside
    return path if path and path.is_file() else None


SCOPE = _scope_file()
needs_scope = pytest.mark.skipif(
    SCOPE is None,
    reason="the list of node tests in scope is absent: set MICROC_ONNX_SCOPE or put onnx/ beside the corpus",
)


@dataclass(frozen=True, slots=True)
class NodeTest:
    """One line of the scope file, or a test of a model: its name, the operator or the model's name, and the inputs that are bound
    as constants."""

    tier: str
    name: str
    operator: str
    bound: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a test went: the empty text if it passed."""

    name: str
    stage: str = ""
    message: str = ""


def in_scope() -> tuple[NodeTest, ...]:
    """Every test in scope, as the scope file lists them; an expanded function binds what the function binds."""
    assert SCOPE is not None
    rows = [line.split("\t") for line in SCOPE.read_text().splitlines() if line and not line.startswith("#")]
    more = {"test_loop11": ("trip_count", "cond")}  # how many turns there are is the extent of an output
    bound = {row[1]: tuple(row[7].split(",")) if row[7] != "-" else () for row in rows}
    return tuple(
        NodeTest(
            row[0], row[1], row[2], more.get(row[1]) or bound[row[1]] or bound.get(row[1].partition("_expanded")[0], ())
        )
        for row in rows
    )


def model_tests() -> tuple[NodeTest, ...]:
    """ONNX's tests of models: small ones, and known architectures (the ``light`` tier)."""
    kinds = (("simple", simple()), ("converted", converted()), ("light", light()))
    return tuple(
        NodeTest(tier, case.name, case.model_name, ("shape",) if "expand_shape" in case.name else ())
        for tier, cases in kinds
        for case in cases
    )


def sample(tests: Sequence[NodeTest], count: int) -> tuple[NodeTest, ...]:
    """About ``count`` tests, evenly spread over the list by name."""
    ordered = sorted(tests, key=lambda test: test.name)
    return tuple(ordered[:: max(1, len(ordered) // count)])


@lru_cache(maxsize=1)
def refused() -> Mapping[str, str]:
    """Tests that microc is known not to pass, with the reason."""
    groups = tomllib.loads(REFUSED.read_text())["refused"]
    return {name: group["reason"] for group in groups for name in group["tests"]}


def judge(title: str, outcomes: Iterable[Outcome]) -> None:
    """Print the count; exactly the tests that the list names may fail."""
    passed, failed = set(), dict[str, Outcome]()
    for outcome in outcomes:
        if outcome.stage:
            failed[outcome.name] = outcome
        else:
            passed.add(outcome.name)
    sys.stdout.write(f"\n{title}: {len(passed)} of {len(passed) + len(failed)} pass\n")
    news = [f"{o.name}: {o.stage}: {o.message}" for o in failed.values() if o.name not in refused()]
    assert not news, "\n".join(news)
    stale = sorted(passed & set(refused()))
    assert not stale, f"{REFUSED.name} lists tests that pass: {', '.join(stale)}"


@lru_cache(maxsize=1)
def suite() -> Mapping[str, TestCase]:
    """ONNX's tests of nodes and of models by name; making them takes seconds."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in (*collect_testcases(), *simple(), *converted(), *light())}


def run(tests: Sequence[NodeTest], processes: int = 1) -> Iterator[Outcome]:
    """The outcomes, batch by batch."""
    suite()
    batches = [tests[k : k + BATCH] for k in range(0, len(tests), BATCH)]
    if processes == 1:
        for batch in batches:
            yield from run_batch(batch)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        for outcomes in pool.map(run_batch, batches):
            yield from outcomes


def run_batch(tests: Iterable[NodeTest]) -> list[Outcome]:
    """One run of the C compiler for all."""
    outcomes: list[Outcome] = []
    compiled: list[tuple[NodeTest, CompiledOnnxModel]] = []
    for test in tests:
        try:
            compiled.append((test, compile_test(test)))
        except MicrocError as error:
            outcomes.append(refusal(test, error))
        except Exception as error:  # noqa: BLE001 a defect of one test must not hide the others
            outcomes.append(Outcome(test.name, "crash", repr(error)))
    networks = _built([one for _, one in compiled], outcomes)
    for test, one in compiled:
        if one.module.name in networks:
            outcomes.append(compare(test, one, networks[one.module.name]))
    return outcomes


def compile_test(test: NodeTest, cpu: str = "host") -> CompiledOnnxModel:
    """The kernels of a test's model; MicrocError where microc refuses it."""
    return compile_onnx_proto(
        bind_inputs_as_constants(suite()[test.name].model, _bound(test)), network_of(test.name), cpu
    )


def network_of(test: str) -> str:
    """A name of C for a test: those that differ behind the length of such names stay apart."""
    return test if len(test) <= _LENGTH else f"{test[: _LENGTH - 9]}_{zlib.crc32(test.encode()):08x}"


def refusal(test: NodeTest, error: MicrocError) -> Outcome:
    """A test that was not compiled."""
    return Outcome(test.name, "internal" if isinstance(error, InternalError) else "refused", str(error))


def _built(compiled: Sequence[CompiledOnnxModel], outcomes: list[Outcome]) -> Mapping[str, BatchNetwork]:
    """All networks; where one does not build, one by one, so that it is known which."""
    try:
        return build_batch([one.module for one in compiled])
    except ToolError as error:
        if len(compiled) == 1:
            outcomes.append(Outcome(compiled[0].module.name, "C compiler", str(error)))
            return {}
        half = len(compiled) // 2
        return {**_built(compiled[:half], outcomes), **_built(compiled[half:], outcomes)}


def _bound(test: NodeTest) -> dict[str, Any]:
    case = suite()[test.name]
    inputs, _ = case.data_sets[0]
    named = dict(zip(free_inputs(case.model), inputs, strict=True))
    return {name: _array(named[name]) for name in test.bound}


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def compare(test: NodeTest, compiled: CompiledOnnxModel, network: Runner) -> Outcome:
    """Run on the test's data and compare, with the tolerances of ONNX's own runner."""
    case = suite()[test.name]
    for inputs, outputs in case.data_sets:
        named = zip(free_inputs(case.model), inputs, strict=True)
        free = [_array(array) for name, array in named if name not in test.bound]
        try:
            got = compiled.run(network, free)
            Checker.assert_similar_outputs([_array(o) for o in outputs], got, case.rtol, case.atol)
        except AssertionError as error:
            return Outcome(test.name, "wrong", str(error))
        except (MicrocError, ValueError, TypeError) as error:
            return Outcome(test.name, "run", repr(error))
    return Outcome(test.name)
