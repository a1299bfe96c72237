# SPDX-License-Identifier: Apache-2.0
"""Converters' signatures against ONNX's own schemas: operands, attributes and defaults of every version that we read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
import pytest
from onnx import defs

from microc.frontend.onnx.context import Converter
from microc.frontend.onnx.file import DTYPES, OLDEST_OPSET
from microc.frontend.onnx.reader import CONVERTERS
from microc.frontend.signature import REQUIRED, AttributeParameter, BoundConverter, Signature
from microc.graph.ir import Graph
from tests.frontend.onnx_model import node, ops, proto, read

UNREAD = {
    # Of training, of speed, or of nothing that we compute.
    "BatchNormalization": {"momentum"},
    "Dropout": {"seed"},
    "LayerNormalization": {"stash_type"},
    "LinearClassifier": {"multi_class"},
    "TopK": {"sorted"},
    "TreeEnsemble": {"nodes_hitrates"},
    "TreeEnsembleClassifier": {"nodes_hitrates", "nodes_hitrates_as_tensor"},
    "TreeEnsembleRegressor": {"nodes_hitrates", "nodes_hitrates_as_tensor"},
    # What the operands say.
    "FeatureVectorizer": {"inputdimensions"},
    "Split": {"num_outputs"},
    # Of dtypes that we do not have: floats of 8 bits and less, strings, sparse tensors.
    "Cast": {"round_mode", "saturate"},
    "CastLike": {"round_mode", "saturate"},
    "Constant": {"sparse_value", "value_string", "value_strings"},
    "LabelEncoder": {"default_string", "keys_strings", "values_strings"},
    "QuantizeLinear": {"precision", "saturate"},
    "ZipMap": {"classlabels_int64s", "classlabels_strings"},
}
"""Attributes that a signature leaves out, by operator."""
SHARED = {"DeformConv": {"auto_pad"}}
"""Attributes of a shared group that an operator does not have."""
ABSENT = (None, (), REQUIRED)

OPERATORS = [
    (domain, name)
    for domain in ("", "ai.onnx.ml")
    for name in CONVERTERS[domain]
    if name != "SimplifiedLayerNormalization"  # which exporters write without ONNX Runtime's domain
]


def signature_of(converter: Converter) -> Signature:
    assert isinstance(converter.convert, BoundConverter)
    return converter.convert.signature


def schemas_of(domain: str, name: str) -> list[Any]:
    """The schemas of an operator, oldest first, without those that only models before opset 7 can use."""
    found = sorted(
        (s for s in defs.get_all_schemas_with_history() if (s.domain, s.name) == (domain, name) and not s.deprecated),
        key=lambda s: s.since_version,
    )
    oldest = max((s.since_version for s in found if s.since_version <= OLDEST_OPSET), default=0)
    return found if domain else [s for s in found if s.since_version >= oldest]


def default_of(attribute: Any) -> Any:
    value = onnx.helper.get_attribute_value(attribute.default_value)
    return value.decode() if isinstance(value, bytes) else value


def declared(attribute: AttributeParameter, opset: int) -> Any:
    """The default that we declare for a version, as the schema would write it."""
    old = attribute.old_default
    default = old.value if old is not None and opset < old.opset else attribute.default
    if attribute.is_dtype and isinstance(default, str):
        return next(code for code, dtype in DTYPES.items() if dtype == default)
    return default


@pytest.mark.parametrize(("domain", "name"), OPERATORS, ids=lambda word: word or "onnx")
def test_operands(domain: str, name: str) -> None:
    signature = signature_of(CONVERTERS[domain][name])
    for schema in schemas_of(domain, name):
        opset, variadic = schema.since_version, defs.OpSchema.FormalParameterOption.Variadic
        assert any(i.option == variadic for i in schema.inputs) == signature.is_variadic, opset
        for index, formal in enumerate(schema.inputs):
            assert signature.is_variadic or index < len(signature.operands), (opset, formal.name)
            if formal.option == defs.OpSchema.FormalParameterOption.Optional and index < len(signature.operands):
                operand = signature.operands[index]
                assert operand.default is not REQUIRED or opset < operand.first_opset, (opset, formal.name)
        for operand in signature.operands[len(schema.inputs) :]:
            assert operand.default is not REQUIRED or operand.is_variadic or opset < operand.first_opset, operand.name


def mismatches(domain: str, name: str) -> Iterator[str]:
    attributes = {attribute.name: attribute for attribute in signature_of(CONVERTERS[domain][name]).attributes}
    schemas = schemas_of(domain, name)
    known = {attribute for schema in schemas for attribute in schema.attributes}
    yield from (f"{unknown} is in no schema" for unknown in attributes.keys() - known - SHARED.get(name, set()))
    missing = schemas[-1].attributes.keys() - attributes.keys() - UNREAD.get(name, set())
    yield from (f"{attribute} is not read" for attribute in missing)
    for schema in schemas:
        for attribute in schema.attributes.values():
            ours = attributes.get(attribute.name)
            if ours is None or not attribute.default_value.name or ours.default in ABSENT:
                continue
            wanted, default = default_of(attribute), declared(ours, schema.since_version)
            if default != (pytest.approx(wanted, rel=1e-6) if isinstance(wanted, float) else wanted):
                yield f"{attribute.name} {schema.since_version}: {default!r}, expected {wanted!r}"


@pytest.mark.parametrize(("domain", "name"), OPERATORS, ids=lambda word: word or "onnx")
def test_attributes(domain: str, name: str) -> None:
    assert list(mismatches(domain, name)) == []


def names_in(graph: Graph) -> Iterator[str]:
    yield from (*graph.types, *graph.consts, *graph.inputs, *graph.outputs)
    for each in graph.nodes:
        yield from (*each.inputs, *each.outputs)
        for body in each.attrs.values():
            if isinstance(body, Graph):
                yield from names_in(body)


def test_graphs_store_plain_names() -> None:
    """``Value`` is a str that knows its type; what a graph stores has none of it."""
    body = onnx.helper.make_graph(
        [node("Add", ["h", "x"], ["sum"]), node("Identity", ["on"], ["again"]), node("Neg", ["sum"], ["row"])],
        "body",
        [onnx.helper.make_tensor_value_info(name, kind, ()) for name, kind in (("k", 7), ("on", 9))]
        + [onnx.helper.make_tensor_value_info("h", 1, (2, 6))],
        [onnx.helper.make_tensor_value_info(name, kind, ()) for name, kind in (("again", 9), ("sum", 1), ("row", 1))],
    )
    nodes = [
        node("Concat", ["z", "z"], ["x"], axis=1),
        node("Loop", ["n", "", "x"], ["last", "rows"], body=body),
        node("Softmax", ["last"]),
    ]
    model = proto(nodes, {"z": (2, 3), "n": ()}, outputs=["y", "rows"], dtypes={"n": "int64"})
    rows = next(value for value in model.graph.output if value.name == "rows")
    rows.type.tensor_type.shape.dim.add(dim_value=5)
    graph = read(model)
    assert ops(graph) == ["concat", "less", "loop", "softmax"]
    assert {type(name) for name in names_in(graph)} == {str}
