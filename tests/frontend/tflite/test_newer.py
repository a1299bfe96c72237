# SPDX-License-Identifier: Apache-2.0
"""What newer writers of TFLite do that the generated classes misread or do not know: operator codes, float16, new dtypes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from microc.errors import ModelError, UnsupportedError
from microc.frontend.tflite import reader as tflite
from microc.frontend.tflite.file import TfliteFile
from microc.frontend.tflite.reader import CONVERTERS
from tests.frontend.run import library
from tests.frontend.tflite_model import Op, Sparsity, Tensor, constant, model, quantised

RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=(3, 4)).astype(np.float32)
X, Y = Tensor("x", (1, 4)), Tensor("y", (1, 3))
DENSE = Op("FULLY_CONNECTED", ("x", "w"), ("y",), "FullyConnectedOptions")


def test_the_code_of_an_operator_is_the_larger_of_both_fields() -> None:
    """Writers that leave the deprecated field out: RELU and FULLY_CONNECTED were read as ADD."""
    tensors = (X, constant("w", WEIGHTS), Tensor("h", (1, 3)), Y)
    ops = (replace(DENSE, outputs=("h",)), Op("RELU", ("h",), ("y",)))
    data = model(tensors, ops, ("x",), ("y",), deprecated=False)
    x = RNG.normal(size=(1, 4)).astype(np.float32)
    found = library(tflite.read_tflite(data, "newer.tflite"))(x)
    np.testing.assert_allclose(found, np.maximum(x @ WEIGHTS.T, 0), rtol=1e-5, atol=1e-6)


def test_quantised_operators_by_the_newer_field_alone() -> None:
    tensors = (quantised("a", (1, 8), 0.5, 0), quantised("b", (1, 8), 0.5, 0), quantised("y", (1, 8), 1.0, 0))
    data = [
        model(tensors, (Op("MUL", ("a", "b"), ("y",), "MulOptions"),), ("a", "b"), ("y",), deprecated=old)
        for old in (True, False)
    ]
    operands = [RNG.integers(-20, 20, (1, 8)).astype(np.int8) for _ in range(2)]
    old, new = (library(tflite.read_tflite(each, "mul.tflite"))(*operands) for each in data)
    np.testing.assert_array_equal(old, new)
    assert np.abs(new - operands[0].astype(np.float64) * operands[1] * 0.25).max() <= 0.5


def test_every_operator_is_found_by_either_field() -> None:
    """What a code means does not depend on which field says it."""
    names = [name for name in CONVERTERS if not name.startswith("CUSTOM")]
    ops = [Op(name, (), ()) for name in names]
    for deprecated in (True, False):
        file = TfliteFile(model((X,), ops, ("x",), ("x",), deprecated=deprecated), "all.tflite")
        assert [file.operator(index).code for index in range(len(ops))] == names


@pytest.mark.parametrize("how", ["DEQUANTIZE", "CAST"])
@pytest.mark.parametrize("sparse", [False, True])
def test_float16_weights_are_widened(how: str, sparse: bool) -> None:
    """Constants of float16, stored dense or sparse behind DENSIFY."""
    half = WEIGHTS.astype(np.float16)
    half[:, 1] = 0
    rows = Sparsity((0, 1), (), (3, ((0, 3, 6, 9), (0, 2, 3) * 3)))
    values = half[:, [0, 2, 3]] if sparse else half
    stored = Tensor("s", (3, 4), "FLOAT16", values.tobytes(), sparsity=rows if sparse else None)
    tensors = (X, stored, Tensor("half", (3, 4), "FLOAT16"), Tensor("w", (3, 4)), Y)
    wide = Op(how, ("half" if sparse else "s",), ("w",), "CastOptions" if how == "CAST" else "DequantizeOptions")
    ops = (*((Op("DENSIFY", ("s",), ("half",)),) if sparse else ()), wide, DENSE)
    graph = tflite.read_tflite(model(tensors, ops, ("x",), ("y",)), "half.tflite")
    x = RNG.normal(size=(1, 4)).astype(np.float32)
    wanted = x @ half.astype(np.float32).T
    np.testing.assert_allclose(library(graph)(x), wanted, rtol=1e-5, atol=1e-6)


def test_float16_made_twice_is_refused() -> None:
    stored = Tensor("s", (2, 2), "FLOAT16", np.ones(4, np.float16).tobytes(), sparsity=Sparsity((0, 1), (), (2, 2)))
    tensors = (Tensor("x", (2, 2)), stored, Tensor("h", (2, 2), "FLOAT16"), Tensor("y", (2, 2)))
    again = Op("DENSIFY", ("s",), ("h",))
    with pytest.raises(ModelError, match="twice"):
        tflite.read_tflite(model(tensors, (again, again, Op("DEQUANTIZE", ("h",), ("y",))), ("x",), ("y",)), "h.tflite")


@pytest.mark.parametrize(("number", "name"), [(18, "bfloat16"), (19, "int2"), (20, "uint4"), (99, "type_99")])
def test_dtypes_that_are_not_built_are_refused_by_name(number: int, name: str) -> None:
    weights = Tensor("w", (3, 4), data=bytes(24), type_number=number)
    with pytest.raises(UnsupportedError, match=name):
        tflite.read_tflite(model((X, weights, Y), (DENSE,), ("x",), ("y",)), "dtype.tflite")


@pytest.mark.parametrize(("details", "what"), [(2, "blockwise scales"), (7, "type 7")])
def test_details_of_quantisation_that_are_not_known_are_refused(details: int, what: str) -> None:
    weights = Tensor("w", (3, 4), "INT8", bytes(12), details=details)
    with pytest.raises(UnsupportedError, match=what):
        tflite.read_tflite(model((X, weights, Y), (DENSE,), ("x",), ("y",)), "blocks.tflite")


def test_custom_details_are_ignored_as_tflite_does() -> None:
    weights = Tensor("w", (3, 4), data=WEIGHTS, details=1)
    assert tflite.read_tflite(model((X, weights, Y), (DENSE,), ("x",), ("y",)), "custom.tflite").nodes
