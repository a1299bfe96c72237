# SPDX-License-Identifier: Apache-2.0
"""ONNX's own tests of models as test cases: ``simple`` ones, layers and models that PyTorch once exported, and architectures
with generated weights (``light``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import onnx.backend.test
from onnx import numpy_helper
from onnx.backend.test.case.model import collect_testcases
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from microc.base.dtypes import Array

NO_TENSORS = ("Sequence", "SplitToSequence", "ConcatFromSequence", "StringNormalizer", "Gradient")
"""Beginnings of operators that work on sequences and strings, or train: out of scope."""
_LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"


def simple() -> Iterator[TestCase]:
    """The simple tests on tensors."""
    for case in collect_testcases():
        if case.kind == "simple" and not any(node.op_type.startswith(NO_TENSORS) for node in case.model.graph.node):
            yield case


def converted() -> Iterator[TestCase]:
    """Layers and models as PyTorch exported them, with the data in the files beside."""
    for kind in ("pytorch-converted", "pytorch-operator"):
        for case in load_model_tests(kind=kind):
            folder = Path(case.model_dir)
            sets = [
                (_stored(each, "input"), _stored(each, "output")) for each in sorted(folder.glob("test_data_set_*"))
            ]
            yield replace(case, model=onnx.load(folder / "model.onnx"), data_sets=sets)


def light() -> Iterator[TestCase]:
    """Known architectures whose weights are made by operators, on the data that ONNX's runner makes for them."""
    for case in collect_testcases():
        if case.kind == "real":
            path = _LIGHT / f"light_{case.model_name}.onnx"
            model = onnx.load(path)
            free = free_inputs(model)
            inputs = [
                Runner.generate_dummy_data(value, seed=0, name=case.model_name, random=False)
                for value in model.graph.input
                if value.name in free
            ]
            yield replace(
                case, model=model, data_sets=[(inputs, [_tensor(path.with_name(f"{path.stem}_output_0.pb"))])]
            )


def free_inputs(model: onnx.ModelProto) -> list[str]:
    """Names of the inputs that are no initialisers."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in weights]


def _stored(folder: Path, what: str) -> list[Array]:
    """The tensors of ``input_0.pb``, ``input_1.pb`` and so on."""
    return [_tensor(folder / f"{what}_{k}.pb") for k in range(len(list(folder.glob(f"{what}_*.pb"))))]


def _tensor(path: Path) -> Array:
    array: Array = numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))
    return array
