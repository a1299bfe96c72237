# SPDX-License-Identifier: Apache-2.0
"""What operators declare about axes holds for their references."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.graph.ir import Node, TensorType
from microc.ops.registry import AxisMap, Case, OpDef, registry
from microc.transform.transposes import axis_independent_operators, invert_axes, permute_attrs
from tests.ops.edges import case_arrays
from tests.ops.harness import attributes, named_cases, reference


def _map(definition: OpDef, case: Case) -> AxisMap:
    names = tuple(f"x{k}" for k in range(len(case.types)))
    return definition.axis_map(
        Node(definition.name, names, ("y",), case.attrs), dict(zip(names, case.types, strict=True))
    )


def _mapped() -> Iterator[Any]:
    for name, definition, case in named_cases(list(registry().values())):
        if not definition.regions and any(places is not None for places in _map(definition, case)):
            yield pytest.param(definition, case, id=name)


def _same(got: Array, want: Array, tolerance: float) -> None:
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("definition", "case"), list(_mapped()))
def test_indices_of_a_shared_axis_are_independent_and_alike(definition: OpDef, case: Case) -> None:
    """Operands rolled along an axis that they share with the result give the result rolled."""
    arrays, found = list(case_arrays(case)), _map(definition, case)
    wanted = reference(definition, case, arrays)
    for axis in range(wanted[0].ndim):
        rolled = [
            np.roll(array, 1, places.index(axis)) if places is not None and axis in places else array
            for array, places in zip(arrays, found, strict=True)
        ]
        if any(places is not None and axis in places for places in found):
            for got, want in zip(reference(definition, case, rolled), wanted, strict=True):
                _same(got, np.roll(want, 1, axis), case.tolerance)


@pytest.mark.parametrize(
    ("definition", "case"), [p for p in _mapped() if p.values[0].name in axis_independent_operators()]
)
def test_attributes_follow_a_transposition(definition: OpDef, case: Case) -> None:
    """The operator on operands in another order of axes, its attributes permuted, gives the result in that order."""
    arrays, found = list(case_arrays(case)), _map(definition, case)
    wanted = reference(definition, case, arrays)
    rank = wanted[0].ndim
    if any(places is not None and array.ndim != rank for array, places in zip(arrays, found, strict=True)):
        return
    axes = tuple(np.roll(range(rank), 1).tolist())
    attrs = permute_attrs(definition.attrs, attributes(definition, case), axes)
    if attrs is None:
        return
    back = [a if p is None else a.transpose(invert_axes(axes)) for a, p in zip(arrays, found, strict=True)]
    other = Case(attrs, tuple(TensorType(a.shape, a.dtype.name) for a in back))
    for got, want in zip(reference(definition, other, back), wanted, strict=True):
        _same(got.transpose(axes), want, case.tolerance)
