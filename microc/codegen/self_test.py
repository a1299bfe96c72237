"""The samples that a network checks itself with, as its C shows them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from microc.codegen.c_expr import ExprPrinter
from microc.codegen.text import Code, Name
from microc.frozen import frozen
from microc.module import Module, Value


@frozen
class TestTensor:
    """An input or output of the self-test: its constant with all samples, elements of one, what floats may differ by."""

    name: Name
    constant: Name
    elements: int
    bound: Code


@frozen
class TestContext:
    """What ``model.c.j2`` shows of the self-test."""

    samples: int
    inputs: tuple[TestTensor, ...]
    outputs: tuple[TestTensor, ...]


def test_context(module: Module) -> TestContext | None:
    """The self-test of a module, if it has one."""
    found = module.self_test
    if found is None:
        return None

    def tensors(values: Mapping[str, Value]) -> tuple[TestTensor, ...]:
        return tuple(_tensor(module, name, value) for name, value in values.items())

    return TestContext(found.samples, tensors(found.inputs), tensors(found.outputs))


def _tensor(module: Module, name: str, value: Value) -> TestTensor:
    assert module.self_test is not None
    bound = module.self_test.bounds.get(name)
    literal = "" if bound is None else ExprPrinter().literal(bound, module.values[name].dtype)
    return TestTensor(
        name=Name(name),
        constant=Name(f"{module.name}_{value.name}"),
        elements=prod(module.values[name].shape),
        bound=Code(literal),
    )


def test_data(module: Module) -> dict[str, Any] | None:
    """What a manifest says of it, plain data: samples, bytes of flash, the symbols that hold them."""
    found = module.self_test
    if found is None:
        return None
    symbols = [f"{module.name}_{value.name}" for value in found.values]
    return {"samples": found.samples, "bytes": found.nbytes, "symbols": symbols, "bounds": dict(found.bounds)}
