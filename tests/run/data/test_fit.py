# SPDX-License-Identifier: Apache-2.0
"""Samples that do not fit are refused with what would make them fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from microc.errors import UsageError
from microc.run.data.pictures import convert_samples

TENSOR = {"name": "x", "dtype": "float32", "shape": (1, 8, 12, 3), "scale": None, "zero_point": None}


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((8, 12, 3), "one sample"),
        ((5, 3, 8, 12), "reorder the axes"),
        ((5, 1, 12, 8, 3), "reorder the axes"),
        ((5, 8, 12, 4), "a batch of one may be left out"),
        ((5, 8, 12, 1, 3), "array.reshape(-1, 8, 12, 3)"),
        ((5,), "count the samples"),
    ],
)
def test_shapes(shape: tuple[int, ...], hint: str) -> None:
    with pytest.raises(UsageError, match="samples of shape Nx1x8x12x3") as caught:
        convert_samples(np.zeros(shape, np.float32), TENSOR, Path("data"))
    assert hint in caught.value.hint


def test_what_single_precision_does_not_hold() -> None:
    """Infinities, of which the caller tells; nothing is said beside."""
    found, _ = convert_samples(np.full((5, 8, 12, 3), 1e300), TENSOR, Path("data"))
    assert np.isinf(found).all()
