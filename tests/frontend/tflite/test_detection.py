# SPDX-License-Identifier: Apache-2.0
"""Boxes chosen by their scores: TFLite_Detection_PostProcess as TFLite Micro does it, NON_MAX_SUPPRESSION by its definition."""

from __future__ import annotations

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.frontend.tflite import reader as tflite
from tests.frontend.run import library
from tests.frontend.tflite_model import Op, Tensor, constant
from tests.ops.oracle import run, single

BOXES, CLASSES, MOST = 30, 3, 6


def post_process(regular: bool, background: int, **changes: float) -> bytes:
    rng = np.random.default_rng(2)
    anchors = np.concatenate([rng.uniform(0, 1, (BOXES, 2)), rng.uniform(0.1, 0.3, (BOXES, 2))], 1).astype(np.float32)
    fields = {
        "max_detections": MOST,
        "max_classes_per_detection": 1,
        "detections_per_class": 4,
        "use_regular_nms": regular,
        "nms_score_threshold": 0.3,
        "nms_iou_threshold": 0.5,
        "num_classes": CLASSES,
        "y_scale": 10.0,
        "x_scale": 10.0,
        "h_scale": 5.0,
        "w_scale": 5.0,
    }
    tensors = (
        Tensor("encodings", (1, BOXES, 4)),
        Tensor("scores", (1, BOXES, CLASSES + background)),
        constant("anchors", anchors),
        Tensor("boxes", (1, MOST, 4)),
        Tensor("classes", (1, MOST)),
        Tensor("kept", (1, MOST)),
        Tensor("count", (1,)),
    )
    names = [tensor.name for tensor in tensors]
    name = "TFLite_Detection_PostProcess"
    return single(
        Op("CUSTOM", tuple(names[:3]), tuple(names[3:]), custom=name, custom_fields={**fields, **changes}), tensors
    )


@pytest.mark.parametrize("regular", [False, True])
@pytest.mark.parametrize("background", [0, 1])
def test_detections_are_those_of_tflite_micro(regular: bool, background: int) -> None:
    runtime, rng = pytest.importorskip("tflite_micro").runtime, np.random.default_rng(5)
    data = post_process(regular, background)
    interpreter = runtime.Interpreter.from_bytes(data, arena_size=1 << 20)
    lib = library(tflite.read_tflite(data, "detections.tflite"))
    for least in (0.0, 0.0, 0.9):  # few boxes are good enough in the end
        scores = rng.uniform(0, 1, (1, BOXES, CLASSES + background)).astype(np.float32)
        scores[scores < least] = 0
        arrays = (rng.normal(size=(1, BOXES, 4)).astype(np.float32), scores)
        for position, array in enumerate(arrays):
            interpreter.set_input(array, position)
        interpreter.invoke()
        wanted = [np.asarray(interpreter.get_output(position)) for position in range(4)]
        count = int(wanted[3][0])
        assert count <= MOST
        for found in (run(tflite.read_tflite(data, "detections.tflite"), arrays), lib(*arrays)):
            assert found[3][0] == count
            for ours, theirs in zip(found[:3], wanted[:3], strict=True):
                np.testing.assert_allclose(ours[0, :count], theirs[0, :count], rtol=1e-5, atol=1e-6)
                assert not ours[0, count:].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nms_iou_threshold": 0.0}, "nms_iou_threshold 0.0"),
        ({"y_scale": 0.0}, "y_scale 0.0"),
        ({"num_classes": 9}, "9 or 10"),
        ({"max_detections": -1}, "max_detections is -1"),
        ({"w_scale": float("nan")}, "expected a number"),
    ],
)
def test_options_that_make_no_sense(change: dict[str, float], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        tflite.read_tflite(post_process(False, 0, **change), "broken.tflite")


def overlap(a: Array, b: Array) -> float:
    low, high = np.minimum(a[:2], a[2:]), np.maximum(a[:2], a[2:])
    lower, higher = np.minimum(b[:2], b[2:]), np.maximum(b[:2], b[2:])
    common = np.prod(np.maximum(np.minimum(high, higher) - np.maximum(low, lower), 0))
    return float(common / (np.prod(high - low) + np.prod(higher - lower) - common))


@pytest.mark.parametrize("most", [4, 20])
@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_no_two_boxes_overlap_much(most: int, sigma: float) -> None:
    rng = np.random.default_rng(3)
    corner = rng.uniform(0, 4, (20, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(0.5, 3, (20, 2))], 1).astype(np.float32)
    boxes[::3] = boxes[::3][:, [2, 1, 0, 3]]
    scores, limit, least = rng.uniform(0, 1, 20).astype(np.float32), 0.4, 0.2
    chosen, left = list[int](), scores.astype(np.float64)
    kept = []
    while len(chosen) < most and left.max() > least:
        best = int(left.argmax())
        chosen.append(best)
        kept.append(left[best])
        for other in range(20):
            share = overlap(boxes[best], boxes[other])
            if share >= limit or other == best:
                left[other] = -np.inf
            elif sigma:
                left[other] *= np.exp(-0.5 / sigma * share**2)
    ends = [
        (name, np.array(value, np.float32)) for name, value in (("limit", limit), ("least", least), ("sigma", sigma))
    ]
    tensors = [Tensor("boxes", (20, 4)), Tensor("scores", (20,)), constant("most", np.array(most, np.int32))]
    tensors += [constant(name, value) for name, value in ends]
    outputs = [Tensor("places", (most,), "INT32"), Tensor("kept", (most,)), Tensor("count", (), "INT32")]
    names = tuple(tensor.name for tensor in tensors)
    five = single(Op("NON_MAX_SUPPRESSION_V5", names, ("places", "kept", "count")), (*tensors, *outputs))
    found = library(tflite.read_tflite(five, "five.tflite"))(boxes, scores)
    assert found[2] == len(chosen) and list(found[0]) == chosen + [0] * (most - len(chosen))
    np.testing.assert_allclose(found[1][: len(kept)], kept, rtol=1e-5)
    if not sigma:
        four = single(
            Op("NON_MAX_SUPPRESSION_V4", names[:5], ("places", "count")), (*tensors[:5], outputs[0], outputs[2])
        )
        places, count = run(tflite.read_tflite(four, "four.tflite"), (boxes, scores))
        assert count == len(chosen) and list(places[:count]) == chosen
