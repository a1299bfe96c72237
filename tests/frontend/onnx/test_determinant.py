# SPDX-License-Identifier: Apache-2.0
"""ONNX's Det, in a loop over columns, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx_model import evaluate, node, proto, read


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (2, 3, 4, 4)])
def test_it_is_numpys(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    (found,) = evaluate(read(proto([node("Det", ["x"])], {"x": shape})), [x])
    np.testing.assert_allclose(found, np.linalg.det(x), rtol=1e-4, atol=1e-5)


def test_rows_out_of_order_and_matrices_that_are_singular() -> None:
    x = np.array(
        [[[0, 1, 0], [0, 0, 2], [3, 0, 0]], [[0, 2, 0], [2, 0, 0], [0, 0, 2]], [[1, 2, 3], [2, 4, 6], [0, 0, 0]]]
    )
    (found,) = evaluate(read(proto([node("Det", ["x"])], {"x": x.shape})), [x.astype(np.float32)])
    np.testing.assert_array_equal(found, np.array([6, -8, 0], np.float32))
