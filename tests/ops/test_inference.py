# SPDX-License-Identifier: Apache-2.0
"""Every operator infers types from extents that depend on a size as it does from the numbers that these are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from microc.errors import MicrocError
from microc.graph.ir import TensorType
from microc.ops.registry import Case, OpDef, registry
from microc.tir import ir
from microc.tir.analysis.size_forms import evaluate_at_sizes
from microc.tir.extents import SizeDomain, as_expr, broadcast_shapes
from tests.support.campaign import table_row

Axes = tuple[tuple[int, int], ...]
"""Pairs of an operand and an axis that have the same size."""


def axes_of(case: Case) -> Iterator[Axes]:
    """Each axis of each operand, and all axes together that have the same extent."""
    axes = [(k, axis) for k, kind in enumerate(case.types) for axis in range(len(kind.shape))]
    yield from ((axis,) for axis in axes)
    for extent in sorted({case.types[k].shape[axis] for k, axis in axes}):
        yield tuple((k, axis) for k, axis in axes if case.types[k].shape[axis] == extent)


def types_with(case: Case, axes: Axes, size: int) -> list[TensorType]:
    """The types of a case with another size of some axes."""
    shapes = [list(kind.shape) for kind in case.types]
    for k, axis in axes:
        shapes[k][axis] = size
    return [replace(kind, shape=tuple(shape)) for kind, shape in zip(case.types, shapes, strict=True)]


@pytest.mark.parametrize("definition", registry().values(), ids=lambda definition: definition.name)
def test_types_of_extents(definition: OpDef) -> None:
    for case in definition.cases():
        attrs = {**definition.defaults, **case.attrs}
        for axes in dict.fromkeys(axes_of(case)):
            extent = case.types[axes[0][0]].shape[axes[0][1]]
            allowed, large = [extent * k for k in (1, 2, 3, 5, 7)], [extent * k for k in (100, 103)]
            try:
                wanted = [definition.infer(attrs, types_with(case, axes, n)) for n in (*allowed, *large)]
            except MicrocError:
                continue  # the operator fixes the extent
            domain = SizeDomain([{"n": n} for n in allowed], [{"n": n} for n in large])
            with table_row((case.name, axes)):
                inferred = definition.infer(attrs, types_with(case, axes, domain.extent_of(ir.Var("n"))))
                for n, want in zip(allowed, wanted, strict=False):
                    at = [[evaluate_at_sizes(as_expr(e), {"n": n}) for e in kind.shape] for kind in inferred]
                    assert at == [list(kind.shape) for kind in want]


def test_shapes_broadcast_as_in_numpy() -> None:
    domain = SizeDomain([{"n": n} for n in range(1, 9)], [{"n": 99}, {"n": 101}])
    n = domain.extent_of(ir.Var("n"))
    assert (
        broadcast_shapes((4, 1, n), (n, 1), (1,)) == (4, n, n)
        and broadcast_shapes() == ()
        and broadcast_shapes((), (2,)) == (2,)
    )
    for shapes in ([(n,), (3,)], [(2, 3), (3, 2)], [(n,), (n + 1,)]):
        with pytest.raises(ValueError, match="broadcast"):
            broadcast_shapes(*shapes)
