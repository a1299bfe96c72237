# SPDX-License-Identifier: Apache-2.0
"""Operators as tensor expressions of their own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import microc
from microc import te, tir, topi
from microc.base.dtypes import Array
from microc.errors import ModelError, ProgramError
from microc.ops.registry import Case, OpDef, registry

_TABLES = ("rfft", "irfft", "power_spectrum", "band_sums")


def _of_others(definition: OpDef) -> bool:
    """Whether an operator is made of others, so that it is no expression."""
    return bool(definition.regions) or definition.expand is not None


def _cases() -> Iterator[tuple[str, Case]]:
    """The first case of every operator of floats."""
    for name, definition in registry().items():
        for case in definition.cases():
            plain = case.types and all(k.dtype == "float32" and k.size and k.quant is None for k in case.types)
            if (
                plain
                and name not in _TABLES
                and not _of_others(definition)
                and not any(a is not None for a in case.arrays)
            ):
                yield name, case
                break


@pytest.mark.parametrize(("op", "case"), list(_cases()), ids=lambda each: each if isinstance(each, str) else "")
def test_an_operator_is_its_reference(op: str, case: Case) -> None:
    dice = np.random.default_rng(0)
    arrays = [dice.uniform(0.1, 0.9, kind.shape).astype(np.float32) for kind in case.types]
    definition = registry()[op]
    wanted = definition.reference({**definition.defaults, **case.attrs}, arrays)
    tensors = [te.placeholder(kind.shape, kind.dtype, f"p{k}") for k, kind in enumerate(case.types)]
    made = topi.apply(op, *tensors, **case.attrs)
    outputs = list(made) if isinstance(made, tuple) else [made]
    func = te.create_prim_func("alone", tensors, outputs)
    found = [np.zeros(array.shape, array.dtype) for array in wanted]
    tir.run(tir.lower_func(func), [*arrays, *found, *_workspaces(func)])
    for got, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5)


def _workspaces(func: tir.PrimFunc) -> list[Array]:
    return [np.zeros(b.shape, b.dtype) for b in tir.lower_func(func).params[len(func.params) :]]


def test_operators_follow_one_another() -> None:
    x, weight = te.placeholder((2, 6), "float32", "x"), te.placeholder((4, 6), "float32", "weight")
    second = te.placeholder((3, 8), "float32", "second")
    value = topi.dense(topi.reshape_view(topi.dense(x, weight), (1, 8)), second)
    func = te.create_prim_func("two", [x, weight, second], [value])
    a, b, c = (
        np.random.default_rng(k).normal(size=shape).astype(np.float32)
        for k, shape in enumerate([(2, 6), (4, 6), (3, 8)])
    )
    np.testing.assert_allclose(microc.build(func)(a, b, c), (a @ b.T).reshape(1, 8) @ c.T, rtol=1e-4, atol=1e-5)


def test_what_is_refused() -> None:
    x = te.placeholder((2, 6), "float32", "x")
    with pytest.raises(AttributeError, match="no operator 'reluu'"):
        topi.reluu(x)
    with pytest.raises(ProgramError) as caught:
        topi.apply("reluu", x)
    assert caught.value.hint.startswith("did you mean relu")
    with pytest.raises(ProgramError, match="'loop' is a tensor expression"):
        topi.loop(x)
    with pytest.raises(ModelError, match="attribute 'axes' is missing"):
        topi.transpose(x)
    with pytest.raises(ProgramError, match="cannot be viewed"):
        topi.reshape_view(x, (5,))
