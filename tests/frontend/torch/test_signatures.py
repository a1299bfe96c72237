# SPDX-License-Identifier: Apache-2.0
"""Converters' signatures against ATen's own schemas: arguments and defaults of every overload that works on tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from microc.frontend.signature import REQUIRED, AttributeParameter, BoundConverter, OperandParameter
from microc.frontend.torch.reader import CONVERTERS

torch = pytest.importorskip("torch", reason="needs PyTorch (pip install microc[torch])")

NAMES = [
    name
    for name, converter in CONVERTERS.items()
    if isinstance(converter, BoundConverter) and name != "_adaptive_avg_pool1d"
]
ABSENT = (None, (), REQUIRED)
OF_SCRIPTS = ("a", "el", "l", "list")
"""Names of arguments that only overloads for Python's own lists and numbers have."""
UNREAD_TYPES = ("Dimname", "Dict", "where(Tensor condition)", 'str padding="valid"')
"""Types of arguments, and overloads, that programs do not contain, or whose defaults differ from the main overload's."""
SHARED = {"avg_pool1d": {"divisor_override"}}
"""Attributes of a shared converter that an operator does not have."""


def schemas_of(name: str) -> list[Any]:
    """The schemas of an operator's overloads that return new tensors; for quantisation those of exported programs."""
    import torch.ao.quantization.fx._decomposed

    if name.endswith("_affine"):
        pytest.importorskip("torchao.quantization", reason="needs torchao (pip install torchao)")
    namespace = (
        torch.ops.torchao
        if name.endswith("_affine")
        else torch.ops.quantized_decomposed
        if "quantize_per" in name
        else torch.ops.aten
    )
    packet = getattr(namespace, name)
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    return [
        schema
        for schema in schemas
        if any("Tensor" in str(argument.type) for argument in schema.arguments)
        and not any(argument.is_out or argument.name in OF_SCRIPTS for argument in schema.arguments)
        and not any(word in str(schema) for word in UNREAD_TYPES)
    ]


def parameters_of(name: str) -> Iterator[OperandParameter | AttributeParameter]:
    converter = CONVERTERS[name]
    assert isinstance(converter, BoundConverter)
    yield from converter.signature.operands
    yield from converter.signature.attributes


def mismatches(name: str) -> Iterator[str]:
    schemas = schemas_of(name)
    for parameter in parameters_of(name):
        names = ("self", "input") if parameter.name == "x" else (parameter.name,)
        declared = [argument for s in schemas for argument in s.arguments if argument.name in names]
        if not declared and parameter.name not in SHARED.get(name, set()):
            yield f"{parameter.name} is in no schema"
        if parameter.default is REQUIRED and len(declared) < len(schemas):
            yield f"{parameter.name} is required, but not in all schemas"
        for argument in declared:
            wanted = argument.default_value
            if not argument.has_default_value() or wanted is None or parameter.default in ABSENT:
                continue
            default = parameter.default if isinstance(parameter.default, tuple) else (parameter.default,)
            listed = tuple(wanted) if isinstance(wanted, (list, tuple)) else (wanted,)
            if default not in (listed, listed[:1]) or len(set(listed)) > 1:
                yield f"{parameter.name}: {parameter.default!r}, expected {wanted!r}"


@pytest.mark.parametrize("name", NAMES)
def test_parameters(name: str) -> None:
    assert list(mismatches(name)) == []
