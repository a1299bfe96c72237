# SPDX-License-Identifier: Apache-2.0
"""Every operator that is written as ONNX, on the cases that it is tested with everywhere: ONNX Runtime computes its reference."""

from __future__ import annotations

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, NotImplemented

from microc.errors import UnsupportedError
from microc.frontend.onnx.writer import rows_elementwise
from microc.frontend.onnx.writer.model_proto import OP_WRITERS, to_onnx
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.registry import Case, OpDef
from tests.ops.edges import case_arrays
from tests.ops.harness import assert_same, attributes, reference
from tests.support.campaign import table_row
from tests.support.onnx_session import session, skip_if_saturating

TOLERANCE = 2e-6
"""Relative above one, absolute below: two roundings of float32 and a function of the runtime's own."""
OUTSIDE = "what lies outside of the operand is clamped here, and refused by ONNX Runtime"
BY_ZERO = "integers divided by zero are zero here, and refused by ONNX Runtime"
REFUSES = {
    **dict.fromkeys(("gather", "gather_elements", "gather_nd", "roi_align"), OUTSIDE),
    **dict.fromkeys(("div", "floor_div", "floor_mod", "fmod"), BY_ZERO),
}
UNDEFINED = {
    "cast": "ONNX leaves open what becomes of floats that the integers do not hold",
    "quantize": "ties go to even in ONNX",
    "scatter_elements": "ONNX Runtime loses NaN in max and min",
    "scatter_nd": "ONNX Runtime loses NaN in max and min",
}
"""Where numbers may differ, and why: some cases of these are left out."""


def _left_out(case: Case, name: str) -> bool:
    """Whether a case is one of those for which ONNX has another answer, or none."""
    known = [array for array in case.arrays if array is not None and array.dtype.kind == "f"]
    lost = name.startswith("scatter") and any(np.isnan(array).any() for array in known)
    to_integer = name == "cast" and case.types[0].dtype == "float32" and "int" in str(case.attrs["dtype"])
    return lost or to_integer or (name == "quantize" and case.attrs["rounding"] != "even")


@pytest.mark.parametrize("name", sorted((*OP_WRITERS, *rows_elementwise.CONTROL_WRITERS)))
def test_onnxruntime_computes_the_reference(name: str) -> None:
    """Every case that can be written, and that ONNX defines; skipped where an operator has none of these."""
    definition = registry.get(name)
    reasons: list[str] = []
    for number, case in enumerate(definition.cases()):
        try:
            with table_row(f"{number} {case.name}"):
                compare_with_onnxruntime(definition, case)
                reasons.append("")
        except pytest.skip.Exception as left_out:
            reasons.append(str(left_out))
    assert reasons, f"{name} has no cases"
    if all(reasons):
        pytest.skip(reasons[0])


def compare_with_onnxruntime(definition: OpDef, case: Case) -> None:
    """Compare one case; skip it, with the reason, where ONNX or its runtime has no such answer."""
    if _left_out(case, definition.name):
        pytest.skip(UNDEFINED[definition.name])
    if [kind.dtype for kind in case.types[:2]] == ["uint8", "int8"]:
        skip_if_saturating()
    arrays, attrs = case_arrays(case), attributes(definition, case)
    results = definition.infer(attrs, case.types)
    names, made = [f"x{k}" for k in range(len(case.types))], tuple(f"y{k}" for k in range(len(results)))
    graph = Graph(
        definition.name,
        tuple(name for k, name in enumerate(names) if k not in case.consts),
        made,
        (Node(definition.name, tuple(names), made, attrs),),
        {**dict(zip(names, case.types, strict=True)), **dict(zip(made, results, strict=True))},
        {names[k]: arrays[k] for k in case.consts},
    )
    try:
        model = to_onnx(graph, "0")
    except UnsupportedError as refusal:
        assert refusal.hint and refusal.where
        pytest.skip(refusal.what)
    try:
        found = session(model).run(None, {name: np.asarray(arrays[names.index(name)]) for name in graph.inputs})
    except NotImplemented as error:
        pytest.skip(str(error))
    except (InvalidArgument, Fail) as error:
        assert definition.name in REFUSES, error
        pytest.skip(REFUSES[definition.name])
    for got, want in zip(found, reference(definition, case, arrays), strict=True):
        assert_same(got, want, max(case.tolerance, TOLERANCE) if want.dtype.kind == "f" else 0.0)
