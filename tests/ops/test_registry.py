"""Every operator of the registry on every one of its cases."""

from __future__ import annotations

import pytest

from microc.ops.registry import Case, OpDef, registry
from tests.ops.harness import check_expression, check_inference, named_cases

_CASES = [pytest.param(definition, case, id=name) for name, definition, case in named_cases(list(registry().values()))]


def test_every_operator_is_complete() -> None:
    for name, definition in registry().items():
        assert definition.name == name
        assert (definition.scalar is None) != (definition.compute is None), name
        assert list(definition.cases()), f"{name} has no cases"


@pytest.mark.parametrize(("definition", "case"), _CASES)
def test_inference(definition: OpDef, case: Case) -> None:
    check_inference(definition, case)


@pytest.mark.parametrize(("definition", "case"), _CASES)
def test_expression(definition: OpDef, case: Case) -> None:
    check_expression(definition, case)
