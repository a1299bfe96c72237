# SPDX-License-Identifier: Apache-2.0
"""Schedules in strips: where they are chosen, and the same numbers by any number of lanes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_network
from microc.schedule.identities import intrinsic_functions
from microc.target import target_for
from microc.tir import ir
from microc.tir.interp import execute
from microc.tir.rewrite import walk_stmt
from microc.tir.symbolic import LENGTH
from tests.golden.kernels import convolution

NETS = {
    "matrix strips": partial(convolution, (3, 3), 8, 40, 1),
    "window strips": partial(convolution, (4, 12), 4, 20, 3, 1),
    "depthwise strips": partial(convolution, (12, 12), 64, 64, 3, 1, 64),
}


def kernel(rule: str) -> ir.PrimFunc:
    made = compile_network(NETS[rule](), target_for("rv64gcv"), make_options()).module
    assert [call.rule for call in made.calls] == [rule]
    return made.kernels[0].func


def random(func: ir.PrimFunc) -> list[Array]:
    dice = np.random.default_rng(1)
    return [dice.integers(-9, 9, p.shape).astype(p.dtype) for p in func.params]


@pytest.mark.parametrize("rule", NETS)
def test_kernels_by_any_number_of_lanes(rule: str) -> None:
    func = kernel(rule)
    assert any(isinstance(s, ir.For) and s.kind == "scalable" for s in walk_stmt(func.body))
    arrays, known = random(func), intrinsic_functions()
    want = execute(func, arrays, known)
    for lanes in (1, 7, 128):
        lengths = {name: lambda args, most=lanes: min(args[0], most) for name in known if name.startswith(LENGTH)}
        for got, expected in zip(execute(func, arrays, {**known, **lengths}), want, strict=True):
            np.testing.assert_array_equal(got, expected)


def test_columns_are_not_filled_up() -> None:
    func = kernel("matrix strips")
    assert {p.shape for p in func.params if p.name == "weight"} == {(8, 40)}
