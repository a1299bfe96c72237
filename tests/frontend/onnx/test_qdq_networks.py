# SPDX-License-Identifier: Apache-2.0
"""Networks that onnxruntime quantised, at random and extreme inputs, by ONNX's arithmetic.

ONNX's arithmetic is that of its operators one by one, which onnxruntime applies when its optimisations are off. (Those replace
dequantised operators by integer ones, softmax and average pools among them, that round in ways of their own.) In what order
floats are summed ONNX leaves open: our sums of products are exact, onnxruntime's are off by some 1e-7. Where that lies between
two quanta one comes out for the other, about once in 100,000 numbers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from microc.ops.meaning import evaluate
from tests.frontend.onnx_model import expected, node, onnx, proto, read
from tests.frontend.qdq_networks import encoder, kinds_of_data, quantised, separable, shape_of, unet
from tests.frontend.run import library
from tests.support.onnx_session import skip_if_saturating

NETWORKS: dict[str, Callable[[], Any]] = {
    "unet linear": lambda: quantised(unet("linear")),
    "unet transposed": lambda: quantised(unet("transposed", "Softmax"), weight="QUInt8"),
    "separable, int8 by channel": lambda: quantised(separable("LeakyRelu"), "QInt8", per_channel=True),
    "encoder of opset 20": lambda: quantised(encoder(20), "QInt8"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_quanta(name: str) -> None:
    model = NETWORKS[name]()
    made, quantum = library(read(model)), _last_scale(model)
    differing = total = 0
    for kind, data in kinds_of_data(shape_of(model)).items():
        (wanted,) = expected(model, [data])
        steps = np.rint(np.abs(made(data) - wanted) / quantum)
        assert steps.max() <= 1, kind
        differing, total = differing + int(np.count_nonzero(steps)), total + steps.size
    assert differing <= 2e-4 * total


@pytest.mark.parametrize("scales", [(2.0, 2.0), (3.0, 1.5), (0.7, 2.3)])
def test_images_grow_as_they_do_in_onnxruntime(scales: tuple[float, float]) -> None:
    """To the last bit, and only the elements that a pixel lies between bring NaN and infinities into it."""
    sizes = np.array([1, 1, *scales], np.float32)
    model = proto([node("Resize", ("x", "", "s"), mode="linear")], {"x": (1, 2, 6, 7)}, {"s": sizes}, opset=17)
    data = np.random.default_rng(3).normal(0, 1, (1, 2, 6, 7)).astype(np.float32)
    made = library(read(model))
    for number in (1.0, np.nan, np.inf):
        data[0, 0, 3, 3] = number
        np.testing.assert_array_equal(made(data), expected(model, [data])[0])


def _last_scale(model: Any) -> float:
    """The scale that the output is dequantised with."""
    (last,) = (node for node in model.graph.node if node.output[0] == model.graph.output[0].name)
    scales = (each for each in model.graph.initializer if each.name == last.input[1])
    return float(numpy_helper.to_array(next(scales)))


def test_data_that_are_quantised_at_run_time() -> None:
    """DynamicQuantizeLinear and MatMulInteger; floats between them differ by some 1e-7. NaN goes through: onnxruntime passes over
    it where it looks for the range, or does not, by its place."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    skip_if_saturating()
    with tempfile.TemporaryDirectory() as folder:
        source, target = (Path(folder) / name for name in ("float.onnx", "dynamic.onnx"))
        onnx.save(encoder(17), str(source))
        quantization.quantize_dynamic(str(source), str(target))
        model = onnx.load(str(target))
    graph = read(model)
    assert {"DynamicQuantizeLinear", "MatMulInteger"} <= {node.op_type for node in model.graph.node}
    for kind, data in kinds_of_data(shape_of(model)).items():
        (wanted,) = expected(model, [data])
        with np.errstate(all="ignore"):
            ((got,), _) = evaluate(graph, {"x": data})
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5, err_msg=kind)
