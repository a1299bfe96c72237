# SPDX-License-Identifier: Apache-2.0
"""MicrocQuantizer: networks that torchao quantises by its annotations, in our integers, against torchao's converted model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import microc
from microc.errors import UsageError
from microc.frontend.torch import reader
from microc.graph.ir import Graph
from microc.ops import registry
from microc.ops.control import evaluate_graph
from microc.transform import PASSES
from microc.transform.pass_context import PassContext, run_passes
from tests.support.campaign import everything

torch = pytest.importorskip("torch", reason="needs PyTorch (pip install microc[torch])")
pt2e = pytest.importorskip("torchao.quantization.pt2e", reason="needs torchao")
steps = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e", reason="needs torchao")
nn, functional = torch.nn, torch.nn.functional


class Function(nn.Module):  # type: ignore[misc, name-defined]
    """A function of tensors and of the layers ``parts``, as a module."""

    def __init__(self, function: Callable[..., Any], *parts: Any) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *x: Any) -> Any:
        return self.function(self.parts, *x)


def conv(inputs: int, outputs: int, size: int = 3, activation: Any = nn.ReLU, **window: Any) -> Any:
    """A convolution that keeps extents, batch normalisation and an activation."""
    layer = nn.Conv2d(inputs, outputs, size, **{"padding": size // 2, **window})
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), activation())


def conv1d(inputs: int, outputs: int, **window: Any) -> Any:
    return nn.Sequential(nn.Conv1d(inputs, outputs, 3, **{"padding": 1, **window}), nn.BatchNorm1d(outputs), nn.ReLU())


def excite(parts: Any, x: Any) -> Any:
    """Squeeze and excitation in an inverted residual block."""
    wide = parts[1](parts[0](x))
    gate = torch.sigmoid(parts[3](functional.relu(parts[2](functional.adaptive_avg_pool2d(wide, 1)))))
    return x + parts[4](wide * gate)


def attend(parts: Any, x: Any) -> Any:
    """One head of attention and a feed-forward layer, without norms."""
    query, key, value = (part(x) for part in parts[:3])
    weights = torch.softmax(torch.matmul(query, key.transpose(1, 2)) * 0.25, -1)
    mixed = x + parts[3](torch.matmul(weights, value))
    return mixed + parts[5](functional.gelu(parts[4](mixed)))


def gate_halves(parts: Any, x: Any) -> Any:
    left, right = parts[0](x).chunk(2, 1)
    return parts[1](torch.tanh(left) * torch.sigmoid(right))


def join_scales(parts: Any, x: Any) -> Any:
    """Two scales of an image, one enlarged again."""
    fine = parts[0](x)
    coarse = functional.interpolate(parts[1](functional.max_pool2d(fine, 2)), scale_factor=2)
    return parts[2](torch.cat([fine, coarse], 1))


def shuffle(parts: Any, x: Any) -> Any:
    left, right = x.chunk(2, 1)
    joined = torch.cat([left, parts[0](right)], 1)
    return parts[1](functional.channel_shuffle(joined, 2).mean((2, 3)))


def linear(*widths: int, activation: Any = nn.ReLU) -> Any:
    layers = [part for pair in pairwise(widths) for part in (nn.Linear(*pair), activation())]
    return nn.Sequential(*layers[:-1])


IMAGE, SIGNAL, ROWS, VECTOR = (1, 4, 8, 8), (1, 4, 16), (1, 5, 16), (1, 12)

NETWORKS: Mapping[str, tuple[Callable[[], Any], tuple[tuple[int, ...], ...]]] = {
    "separable": (
        lambda: nn.Sequential(
            conv(4, 8), conv(8, 8, groups=8, activation=nn.ReLU6), conv(8, 12, 1), nn.MaxPool2d(2), nn.Flatten(),
            linear(192, 16, 10),
        ),
        (IMAGE,),
    ),
    "residual": (
        lambda: nn.Sequential(
            Function(lambda p, x: functional.relu(x + p[0](x)), nn.Sequential(conv(4, 4), nn.Conv2d(4, 4, 3, padding=1))),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
        ),
        (IMAGE,),
    ),
    "excitation": (
        lambda: Function(
            excite, conv(4, 8, 1, nn.Hardswish), conv(8, 8, groups=8, activation=nn.Hardswish), nn.Conv2d(8, 4, 1),
            nn.Conv2d(4, 8, 1), nn.Conv2d(8, 4, 1),
        ),
        (IMAGE,),
    ),
    "inception": (
        lambda: Function(
            lambda p, x: p[3](torch.cat([p[0](x), p[1](x), p[2](functional.avg_pool2d(x, 3, 1, 1))], 1)),
            conv(4, 4, 1), conv(4, 6), conv(4, 2, 1), nn.Conv2d(12, 4, 1),
        ),
        (IMAGE,),
    ),
    "dense": (lambda: linear(12, 16, 16, 5, activation=nn.Tanh), (VECTOR,)),
    "signal": (
        lambda: nn.Sequential(
            conv1d(4, 8), nn.MaxPool1d(2), conv1d(8, 8, stride=2), nn.AvgPool1d(2), nn.Flatten(), nn.Linear(16, 4)
        ),
        (SIGNAL,),
    ),
    "autoencoder": (
        lambda: nn.Sequential(
            conv(4, 8, stride=2), nn.ConvTranspose2d(8, 6, 3, 2, 1, 1), nn.ReLU(), nn.ConvTranspose2d(6, 4, 2), nn.Sigmoid()
        ),
        (IMAGE,),
    ),
    "two scales": (lambda: Function(join_scales, conv(4, 6), conv(6, 6), nn.Conv2d(12, 4, 3)), (IMAGE,)),
    "attention": (
        lambda: Function(attend, *(nn.Linear(16, 16) for _ in range(4)), nn.Linear(16, 24), nn.Linear(24, 16)),
        (ROWS,),
    ),
    "nested joins": (
        lambda: Function(
            lambda p, x: p[2](torch.cat([y := torch.cat([x, p[0](x)], 1), p[1](y)], 1)), conv(4, 4), conv(8, 4), conv(12, 3)
        ),
        (IMAGE,),
    ),
    "gates": (lambda: Function(gate_halves, nn.Conv1d(4, 12, 3), nn.Conv1d(6, 4, 1)), (SIGNAL,)),
    "functions": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3), nn.PReLU(8), nn.Conv2d(8, 8, 1), nn.ELU(), nn.Conv2d(8, 8, 1), nn.LeakyReLU(),
            nn.Conv2d(8, 4, 1), nn.Hardsigmoid(),
        ),
        (IMAGE,),
    ),
    "moments": (
        lambda: Function(lambda p, x: p[0](x.sum(2) * 0.5 - x.mean(2)) / 2 + 1, nn.Linear(4, 4)), (SIGNAL,)
    ),
    "smooth functions": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.SiLU(), nn.Conv2d(6, 6, 1), nn.Mish(), nn.Conv2d(6, 4, 1), nn.GELU()),
        (IMAGE,),
    ),
    "super-resolution": (
        lambda: nn.Sequential(conv(4, 8, 5), nn.Conv2d(8, 12, 3, padding=1), nn.PixelShuffle(2), nn.Hardtanh(0, 1)), (IMAGE,)
    ),
    "causal": (
        lambda: Function(
            lambda p, x: functional.relu(x + p[1](functional.pad(p[0](functional.pad(x, (2, 0))), (4, 0)))),
            conv1d(4, 4, padding=0), nn.Conv1d(4, 4, 3, dilation=2),
        ),
        (SIGNAL,),
    ),
    "fire": (
        lambda: nn.Sequential(
            conv(4, 3, 1), Function(lambda p, x: torch.cat([p[0](x), p[1](x)], 1), conv(3, 4, 1), conv(3, 4)),
            nn.MaxPool2d(3, 2, ceil_mode=True), nn.Conv2d(8, 5, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Softmax(1),
        ),
        (IMAGE,),
    ),
    "twins": (
        lambda: Function(lambda p, x, y: p[1](torch.abs(p[0](x) - p[0](y))), linear(12, 8, 8), nn.Linear(8, 1)),
        (VECTOR, VECTOR),
    ),
    "pooled attention": (
        lambda: Function(
            lambda p, x: p[1](torch.bmm(torch.softmax(p[0](x.flatten(1)), -1).unsqueeze(1), x).flatten(1)),
            nn.Linear(80, 5), nn.Linear(16, 3),
        ),
        (ROWS,),
    ),
    "shuffle": (lambda: Function(shuffle, conv(2, 2, groups=2), nn.Linear(4, 3)), (IMAGE,)),
}  # fmt: skip
"""Networks by name, with the shapes of their inputs."""

FEW = ("autoencoder", "excitation", "inception", "residual", "signal", "twins")
"""Networks of the suite; the campaign takes all."""


def quantise(module: Any, samples: list[tuple[Any, ...]], **options: Any) -> tuple[Any, Any]:
    """The quantizer and the module that torchao converts after two passes over the samples."""
    quantizer = microc.MicrocQuantizer(**options)
    module.train(quantizer.is_qat)
    program = torch.export.export(module, samples[0]).module()
    prepared = (steps.prepare_qat_pt2e if quantizer.is_qat else steps.prepare_pt2e)(program, quantizer)
    for sample in samples:
        prepared(*sample)
    if quantizer.is_qat:
        pt2e.move_exported_model_to_eval(prepared)
    return quantizer, steps.convert_pt2e(prepared)


def lower(graph: Graph) -> Graph:
    """The graph after all passes, node by node."""
    return run_passes(graph, [each for each in PASSES if each.name != "fuse"], PassContext())


def float_operators(graph: Graph) -> list[str]:
    """Operators that compute floats. Ends are dequantised, and may be moved as floats before or behind that."""
    computing = [node for node in graph.nodes if node.op != "dequantize" and not registry.get(node.op).moves]
    return [node.op for node in computing for name in node.outputs if name and graph.types[name].dtype == "float32"]


def compare(name: str, **options: Any) -> tuple[float, float]:
    """The largest difference from torchao's model in steps of the output, and the share of numbers that differ."""
    torch.manual_seed(0)
    build, shapes = NETWORKS[name]
    samples = [tuple(torch.randn(shape) for shape in shapes) for _ in range(4)]
    module = build()
    with torch.no_grad():
        module.train()(*samples[0])
    quantizer, converted = quantise(module, samples, **options)
    graph = lower(reader.read_program(torch.export.export(converted, samples[0])))
    assert not quantizer.float_operators and not float_operators(graph), float_operators(graph)
    (scale,) = {node.attr("scale")[0] for node in graph.nodes if node.op == "dequantize"}
    differences = []
    for sample in samples:
        (result,) = evaluate_graph(graph, [x.numpy() for x in sample])
        differences.append((result - converted(*sample).detach().numpy()) / scale)
    quanta = np.abs(np.concatenate([difference.ravel() for difference in differences]))
    np.testing.assert_allclose(quanta, np.rint(quanta), atol=1e-2)
    return float(np.rint(quanta).max()), float(np.mean(np.rint(quanta) > 0))


@pytest.mark.parametrize("name", NETWORKS if everything() else FEW)
def test_integers_throughout_as_torchao_computes_them(name: str) -> None:
    """int32 biases make sums equal: what differs is half way between two integers, where float sums round either way."""
    most, share = compare(name)
    assert most <= 1 and share <= 0.02


SIXTEEN_BITS = ("inception", "nested joins", "separable", "shuffle", "signal", "super-resolution", "two scales")
# torchao takes a minute for a network with training: it compiles each pattern of a convolution and its normalisation.
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"weights": 4, "activations": "uint8"}) for name in (NETWORKS if everything() else ("functions",))),
    *((name, {"activations": "int16"}) for name in (SIXTEEN_BITS if everything() else ("signal",))),
    *((name, {"is_qat": True}) for name in (("separable", "excitation", "gates") if everything() else ())),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_other_bits_and_training(name: str, options: dict[str, Any]) -> None:
    """Float biases, of 16 bits and of a batch normalisation that training folds, are rounded to the scale of the sums."""
    most, share = compare(name, **options)
    assert most <= 1 and share <= 0.2


def test_every_float_operator_is_reported_with_a_reason() -> None:
    parts = nn.Linear(16, 16), nn.LayerNorm(16), nn.GRU(16, 4, batch_first=True), nn.Linear(4, 4)
    module = Function(lambda p, x: p[3](p[2](torch.cumsum(p[1](p[0](x)), 1))[0]).softmax(1), *parts)
    quantizer, converted = quantise(module, [(torch.randn(ROWS),)], float_layers=["parts.3"])
    reasons = quantizer.float_operators
    assert list(reasons) == ["layer_norm", "cumsum", "gru", "linear_1", "softmax"]
    assert "batch_norm" in reasons["layer_norm"] and "float_layers" in reasons["linear_1"]
    assert "last axis" in reasons["softmax"] and "dynamic_range" in reasons["gru"]
    graph = lower(reader.read_program(torch.export.export(converted, (torch.randn(ROWS),))))
    assert [node.op for node in graph.nodes if node.op == "dense" and graph.types[node.outputs[0]].dtype == "int32"]


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_layers_behind_a_recurrent_one_are_integers(kind: str) -> None:
    """Its rows are observed, not the tuple that it returns."""
    torch.manual_seed(0)
    layer = getattr(nn, kind)(16, 8, batch_first=True)
    x = torch.randn(ROWS)
    quantizer, converted = quantise(Function(lambda p, x: p[1](p[0](x)[0][:, -1]), layer, nn.Linear(8, 4)), [(x,)])
    assert list(quantizer.float_operators) == [kind.lower()]
    graph = lower(reader.read_program(torch.export.export(converted, (x,))))
    assert [node.op for node in graph.nodes if node.op == "dense" and graph.types[node.outputs[0]].dtype == "int32"]
    (result,) = evaluate_graph(graph, [x.numpy()])
    (scale,) = {node.attr("scale")[0] for node in graph.nodes if node.op == "dequantize"}
    assert np.abs(result - converted(x).detach().numpy()).max() <= 1.01 * scale


def test_16_bits_have_fewer_integer_forms() -> None:
    quantizer, _ = quantise(
        Function(lambda p, x: x.tanh() + p[0](x), nn.Linear(12, 12)), [(torch.randn(VECTOR),)], activations="int16"
    )
    assert list(quantizer.float_operators) == ["tanh", "add"]


@pytest.mark.parametrize("options", [{"weights": 3}, {"activations": "int4"}])
def test_other_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected one of"):
        microc.MicrocQuantizer(**options)


def test_a_clamp_without_an_upper_limit_on_integers() -> None:
    quantizer, converted = quantise(
        Function(lambda p, x: p[0](x).clamp_min(0.25), nn.Linear(12, 5)), [(torch.randn(VECTOR),)]
    )
    graph = lower(reader.read_program(torch.export.export(converted, (torch.randn(VECTOR),))))
    assert not quantizer.float_operators and not float_operators(graph)
