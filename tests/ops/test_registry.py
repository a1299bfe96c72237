# SPDX-License-Identifier: Apache-2.0
"""Every operator of the registry on every one of its cases."""

from __future__ import annotations

from typing import Any

import pytest

from microc import te
from microc.ops.registry import Case, OpDef, registry
from microc.tir import ir
from microc.tir.rewrite import walk_expr
from microc.transform.fuse import MANDATORY
from tests.ops.harness import check_expression, check_inference, named_cases
from tests.support.campaign import table_row

_OPERATORS = tuple(registry().values())
OFTEN = 15


def test_every_operator_is_complete() -> None:
    for name, definition in registry().items():
        assert definition.name == name
        forms = (definition.scalar, definition.compute, definition.composed or None)
        assert sum(form is not None for form in forms) == 1, name
        assert list(definition.cases()), f"{name} has no cases"


@pytest.mark.parametrize("name", sorted(n for n, d in registry().items() if d.elementwise and n not in MANDATORY))
def test_operators_that_write_an_operand_down_often_say_so(name: str) -> None:
    """Fused behind other work, each would print that work as many times: C and compile time explode."""
    definition = registry()[name]
    assert any(_often(definition, case) for case in definition.cases()) == definition.repeats


def _often(definition: OpDef, case: Case) -> bool:
    """Whether one result element names its operands' elements more than :data:`OFTEN` times, or in several places of a table."""
    assert definition.scalar is not None
    args: list[Any] = [
        te.placeholder(t.shape, t.dtype, f"t{k}") if k in definition.whole else ir.Var(f"x{k}", t.dtype)
        for k, t in enumerate(case.types)
    ]
    parts = list(walk_expr(definition.scalar(case.attrs, args)))
    places = {id(part) for part in parts if isinstance(part, te.TensorRead)}
    return len(places) > 1 or sum(part in args for part in parts if isinstance(part, ir.Var)) > OFTEN


@pytest.mark.parametrize("definition", _OPERATORS, ids=lambda definition: definition.name)
def test_cases_equal_the_reference(definition: OpDef) -> None:
    """Inferred shapes and dtypes of every operator, and what the expressions of those that are not composed compute."""
    for name, _, case in named_cases([definition]):
        with table_row(name):
            check_inference(definition, case)
            if not definition.composed:
                check_expression(definition, case)
