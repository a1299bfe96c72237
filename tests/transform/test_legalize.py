# SPDX-License-Identifier: Apache-2.0
"""After legalisation only core operators are left, whatever they came from; refusals come all at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import UnsupportedError
from microc.frontend.detect import load_model_file
from microc.graph.ir import Graph, Quant, TensorType
from microc.ops import registry
from microc.transform import PASSES
from microc.transform.pass_context import PassContext, run_passes
from microc.transform.quantised.legalize import legalize
from tests.support.corpus import cases, models
from tests.transform.network import Network, check, evaluate, ops

QUANT, DIGITS = Quant((0.5,), (3,)), Path(__file__).resolve().parents[2] / "examples" / "digits"
INT8 = TensorType((2, 4), "int8", QUANT)


def only_core(graph: Graph) -> bool:
    """Whether no operator has anything to rewrite."""
    rules = [(registry.get(node.op).legalize, node) for node in graph.nodes]
    return all(rule is None or rule(node, graph) is None for rule, node in rules)


def quantised_layer(net: Network, rounding: str = "double") -> str:
    weight = net.constant(net.rng.integers(-99, 99, (3, 4)).astype(np.int8), Quant((0.1, 0.2, 0.3), (0, 0, 0), 0))
    bias = net.constant(np.arange(3, dtype=np.int32), Quant((0.05, 0.1, 0.15), (0, 0, 0), 0))
    return net.op("dense", "x", weight, bias, quant=Quant((4.0,), (-2,)), activation="relu", rounding=rounding)


def test_a_quantised_layer_becomes_integers_and_their_scaling() -> None:
    net = Network(x=INT8)
    quantised_layer(net)
    graph = check_interface(net.graph())
    assert ops(graph) == ["dense", "requantize"] and graph.types[graph.nodes[0].outputs[0]].dtype == "int32"
    assert graph.nodes[1].loc == net.nodes[0].loc


def check_interface(graph: Graph, context: PassContext | None = None) -> Graph:
    result = legalize(graph, context or PassContext())
    assert only_core(result) and (result.inputs, result.outputs) == (graph.inputs, graph.outputs)
    assert all(result.types[name] == graph.types[name] for name in (*graph.inputs, *graph.outputs))
    return result


def test_a_quantised_result_of_plain_operands_is_refused() -> None:
    """The verifier leaves the dtype of such a result to legalisation, which has nothing to scale it by."""
    net = Network(x=TensorType((2, 4), "int32"))
    net.op("abs", "x")
    graph = net.graph()
    types = {**graph.types, graph.outputs[0]: INT8}
    with pytest.raises(UnsupportedError, match=r"the operands are not quantised.* got int8, expected int32"):
        legalize(replace(graph, types=types), PassContext())


def test_float_activations_become_operators() -> None:
    net = Network(x=(1, 4, 4, 2))
    net.op("add", net.conv("x", 2, layout="NHWC", activation="relu6"), "x", activation="tanh")
    assert ops(check_interface(net.graph())) == ["conv2d", "clip", "add", "tanh"]


def test_what_becomes_surface_operators_again_is_settled_too() -> None:
    """softmax through floats, with scales along an axis: dequantize is legalized in turn."""
    per_axis = Quant((0.5, 0.25), (1, 0), 0)
    net = Network(x=TensorType((2, 4), "int8", per_axis))
    net.op("dequantize", "x", scale=per_axis.scale, zero_point=per_axis.zero_point, axis=0)
    graph = check(legalize, net.graph())
    assert ops(graph) == ["cast", "sub", "mul"] and only_core(graph)


def test_nothing_to_do_gives_the_same_graph() -> None:
    net = Network(x=(3,))
    net.op("relu", "x")
    graph = net.graph()
    assert legalize(graph, PassContext()) is graph


def test_new_names_do_not_collide() -> None:
    net = Network(x=INT8)
    quantised_layer(net)
    net.op("reshape", "x", shape=(8,), quant=QUANT, output="v0.acc")
    graph = check_interface(net.graph("v0", "v0.acc"))
    assert len({name for node in graph.nodes for name in node.outputs}) == len(graph.nodes)


def test_float_requantisation_becomes_fixed_point_on_request() -> None:
    net = Network(x=INT8)
    quantised_layer(net, "even")
    assert ops(check_interface(net.graph())) == ["dense", "requantize_float"]
    fixed = check_interface(net.graph(), PassContext(options={"requantize": "fixed"}))
    assert ops(fixed) == ["dense", "requantize"]


def test_refusals_are_listed_at_once() -> None:
    net = Network(x=INT8)
    for name in "ab":
        weight = net.constant(np.ones((3, 4), np.int8), Quant((1.0,) * 4, (0,) * 4, 1))
        net.op("dense", "x", weight, quant=QUANT, output=name)
    with pytest.raises(UnsupportedError) as caught:
        legalize(net.graph("a", "b"), PassContext())
    assert caught.value.what.startswith("2 operators are not supported:")
    assert "net.onnx #0 a" in caught.value.what and "net.onnx #1 b" in caught.value.what
    with pytest.raises(UnsupportedError) as caught:
        legalize(net.graph("a").with_nodes(net.nodes[:1]), PassContext())
    assert caught.value.where == "net.onnx #0 a"


# ---------------------------------------------------------------- the whole pipeline


def compare(path: Path, inputs: list[Array], wanted: list[Array]) -> None:
    """All levels give what the reference gives: integers exactly."""
    for level in range(5):
        graph = run_passes(load_model_file(path), PASSES, PassContext(opt_level=level))
        results = evaluate(graph, dict(zip(graph.inputs, inputs, strict=True)))
        for got, want in zip(results, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=0 if want.dtype.kind in "iu" else 2e-5)


@pytest.mark.parametrize("name", ["digits_int8.tflite", "digits_qdq.onnx", "digits_float.onnx"])
def test_levels_agree_on_digits(name: str) -> None:
    graph = load_model_file(DIGITS / name)
    kind = graph.types[graph.inputs[0]]
    rng = np.random.default_rng(5)
    x = (rng.uniform(0, 1, kind.shape) if kind.dtype == "float32" else rng.integers(-128, 127, kind.shape)).astype(
        kind.dtype
    )
    base = run_passes(graph, PASSES, PassContext(opt_level=0))
    compare(DIGITS / name, [x], evaluate(base, {graph.inputs[0]: x}))


@pytest.mark.corpus
@pytest.mark.parametrize(
    "path",
    models("mlperf_kws_int8*", "mlperf_ic_int8*", "gen_mobilenetv3s*", "ortq_dscnn*", "ortq_tcn*", "torch_mobilenetv3*")
    + models("torch_tcn*", "torch_unet*", "torch_vit*legacy*", "torch_espcn*legacy*", "pulsevad*"),
    ids=lambda path: path.stem,
)
def test_passes_keep_what_real_models_compute(path: Path) -> None:
    inputs, outputs = cases(path)[0]
    compare(path, inputs, outputs)
