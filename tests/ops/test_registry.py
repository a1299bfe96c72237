"""Every operator of the registry on every one of its cases."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from microc.ops.registry import Case, OpDef, registry
from tests.ops.harness import check_expression, check_inference, named_cases


def _cases(definitions: Iterable[OpDef]) -> list[Any]:
    return [pytest.param(definition, case, id=name) for name, definition, case in named_cases(list(definitions))]


_OPERATORS = tuple(registry().values())


def test_every_operator_is_complete() -> None:
    for name, definition in registry().items():
        assert definition.name == name
        forms = (definition.scalar, definition.compute, definition.regions or None)
        assert sum(form is not None for form in forms) == 1, name
        assert list(definition.cases()), f"{name} has no cases"


@pytest.mark.parametrize(("definition", "case"), _cases(_OPERATORS))
def test_inference(definition: OpDef, case: Case) -> None:
    check_inference(definition, case)


@pytest.mark.parametrize(("definition", "case"), _cases(d for d in _OPERATORS if not d.regions))
def test_expression(definition: OpDef, case: Case) -> None:
    check_expression(definition, case)
