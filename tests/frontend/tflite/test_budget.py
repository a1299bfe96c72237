# SPDX-License-Identifier: Apache-2.0
"""What reading a file may take: ten times what real files need, and no more than memory and seconds hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from microc.errors import ModelError
from microc.frontend.tflite import file as tflite_file
from microc.frontend.tflite import reader
from microc.frontend.tflite.file import ReadBudget, TfliteFile
from tests.frontend.tflite_model import Op, Sparsity, Tensor, model
from tests.support.corpus import models

TFLITE = [path for path in models("*.tflite") if path.suffix == ".tflite"]
FACTOR = 10


def detector(layers: int, rows: int, columns: int = 64) -> bytes:
    """Layers with sparse weights of 16 bits, which become dense, then floats, as face detectors for phones have them."""
    rng = np.random.default_rng(0)
    tensors, ops = [Tensor("x", (1, columns))], []
    for k in range(layers):
        held = rng.random((rows, columns)) < 0.15
        segments, indices = np.append(0, held.sum(axis=1).cumsum()), np.nonzero(held)[1]
        values = rng.normal(size=len(indices)).astype(np.float16).tobytes()
        levels = (rows, (tuple(segments.tolist()), tuple(indices.tolist())))
        shape = (rows, columns)
        tensors += [Tensor(f"sparse{k}", shape, "FLOAT16", values, sparsity=Sparsity((0, 1), (), levels))]
        tensors += [Tensor(f"dense{k}", shape, "FLOAT16"), Tensor(f"float{k}", shape), Tensor(f"y{k}", (1, rows))]
        ops += [Op("DENSIFY", (f"sparse{k}",), (f"dense{k}",)), Op("DEQUANTIZE", (f"dense{k}",), (f"float{k}",))]
        ops += [Op("FULLY_CONNECTED", ("x", f"float{k}"), (f"y{k}",), "FullyConnectedOptions")]
    return model(tensors, ops, ["x"], [f"y{k}" for k in range(layers)])


def test_a_detector_with_sparse_weights_is_read() -> None:
    """What it unfolds to is a tenth of what may be."""
    data, budget = detector(60, 400), ReadBudget.for_file_size(0)
    assert len(reader.read_tflite(data, "detector.tflite").outputs) == 60
    assert budget.elements > 60 * 400 * 64 * FACTOR
    assert budget.bytes > 60 * 400 * 64 * (2 * 2 + 4) * FACTOR


@pytest.mark.parametrize("path", TFLITE, ids=lambda path: path.stem)
def test_real_files_need_a_tenth(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, budgets = path.read_bytes(), list[ReadBudget]()
    of = ReadBudget.for_file_size

    def noted(size: int) -> ReadBudget:
        budgets.append(of(0))
        budgets[-1].tables, budgets[-1].bytes = of(size).tables // FACTOR, of(size).bytes // FACTOR
        budgets[-1].elements //= FACTOR
        return budgets[-1]

    monkeypatch.setattr(tflite_file.ReadBudget, "for_file_size", staticmethod(noted))
    try:
        reader.read_tflite(data, path.name)
    except ModelError as error:
        assert "too often" not in error.what
    assert budgets


@pytest.mark.parametrize("what", ["bytes", "tables", "elements"])
def test_a_file_that_asks_too_often_is_refused(what: str) -> None:
    data = detector(4, 64)
    budget = ReadBudget.for_file_size(len(data))
    setattr(budget, what, 5)
    with pytest.raises(ModelError, match=f"the same {what} too often"):
        file = TfliteFile(data, "m.tflite", budget=budget)
        for index in range(file.tensor_count):
            tensor = file.tensor(index)
            if tensor.is_constant:
                file.array(tensor)


def test_constants_that_share_their_bytes_are_refused() -> None:
    """A thousand constants of a megabyte each from one."""
    data = np.zeros((1 << 10, 1 << 8), np.float32)
    shared = [
        Tensor(f"w{k}", data.shape, data=data if not k else None, buffer=None if not k else 1) for k in range(1500)
    ]
    ops = [Op("FULLY_CONNECTED", ("x", f"w{k}"), (f"y{k}",), "FullyConnectedOptions") for k in range(1500)]
    tensors = [Tensor("x", (1, 256)), *shared, *(Tensor(f"y{k}", (1, 1 << 10)) for k in range(1500))]
    with pytest.raises(ModelError, match="the same bytes too often"):
        reader.read_tflite(model(tensors, ops, ["x"], ["y0"]), "m.tflite")
