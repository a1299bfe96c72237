# SPDX-License-Identifier: Apache-2.0
"""What GridSample, RoiAlign and DeformConv are spelled as, by our operators' references, against ONNX's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from tests.frontend.onnx_model import evaluate, expected, node, proto, read

RNG = np.random.default_rng(3)


def f(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def deform(
    offsets: tuple[int, ...], weight: tuple[int, ...], mask: bool = False, x: Any = (2, 4, 5, 6), **attrs: Any
) -> Any:
    shapes = {"x": x, "w": weight, "offset": offsets}
    constants: dict[str, Array] = {"b": f(weight[0])} if mask else {}
    if mask:
        shapes["mask"] = (offsets[0], offsets[1] // 2, *offsets[2:])
    names = ["x", "w", "offset", *(["b", "mask"] if mask else [])]
    return proto([node("DeformConv", names, **attrs)], shapes, constants, opset=19)


BOXES = np.array([[1, 0.5, 6, 7], [0, 0, 12, 3], [4, 4, 4.2, 4.1]], np.float32)
IMAGES = np.array([1, 0, 1], np.int64)


def boxes(opset: int = 16, **attrs: Any) -> Any:
    attrs = {"output_height": 2, "output_width": 3, "sampling_ratio": 2, **attrs}
    constants: dict[str, Array] = {"r": BOXES, "i": IMAGES}
    return proto([node("RoiAlign", ["x", "r", "i"], **attrs)], {"x": (2, 3, 5, 6)}, constants, opset=opset)


MODELS = {
    "deform, plain": deform((2, 18, 3, 4), (3, 4, 3, 3)),
    "deform, groups": deform((2, 32, 4, 3), (4, 2, 2, 2), group=2, offset_group=4, strides=[1, 2]),
    "deform, all": deform(
        (2, 36, 3, 4), (6, 2, 3, 3), True, group=2, offset_group=2, pads=[1, 2, 2, 1], strides=[2, 2]
    ),
    "deform, dilated": deform((2, 8, 3, 5), (2, 4, 2, 2), dilations=[2, 1]),
    "boxes, average": boxes(spatial_scale=0.5),
    "boxes, largest, edges": boxes(mode="max", coordinate_transformation_mode="output_half_pixel"),
    "boxes, before half pixels": boxes(opset=10, sampling_ratio=3),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_spelling_computes_what_onnx_computes(name: str) -> None:
    model = MODELS[name]
    shapes = [[d.dim_value for d in value.type.tensor_type.shape.dim] for value in model.graph.input]
    inputs = [f(*shape) for shape in shapes]
    (found,), (wanted,) = evaluate(read(model), inputs), expected(model, inputs)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=4e-6)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="sampling_ratio is 0") as caught:
        read(boxes(sampling_ratio=0))
    assert "sampling_ratio" in caught.value.hint
    for wrong in (deform((2, 17, 3, 4), (3, 4, 3, 3)), deform((2, 18, 3, 4), (3, 4, 3, 3), offset_group=3)):
        with pytest.raises(ModelError, match=r"offset.*, expected") as broken:
            read(wrong)
        assert "small.onnx #0" in broken.value.where
