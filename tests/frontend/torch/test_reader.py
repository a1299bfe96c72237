# SPDX-License-Identifier: Apache-2.0
"""PyTorch programs, compiled, against PyTorch."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from microc.errors import UnsupportedError, UsageError
from microc.frontend.torch import reader
from tests.frontend.run import library
from tests.support.growth import network_size

torch = pytest.importorskip("torch", reason="needs PyTorch (pip install microc[torch])")
nn, functional = torch.nn, torch.nn.functional

PLACES: Any = torch.tensor([[[0, 1, 2, 1]], [[2, 2, 0, 0]]])

BOUND = 2e-5
"""Sums of float32 in another order than PyTorch's, relative above one and absolute below."""


class Function(nn.Module):  # type: ignore[misc, name-defined]
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: Any) -> Any:
        return self.function(*x)


def flat(results: Any) -> list[Any]:
    return [x for part in results for x in flat(part)] if isinstance(results, (tuple, list)) else [results]


def compare(module: Any, *inputs: Any, bound: float = BOUND) -> None:
    """The compiled program gives what the module gives."""
    module = module.eval()
    with torch.no_grad():
        wanted = flat(module(*inputs))
        program = torch.export.export(module, inputs)
    found = flat(library(reader.read_program(program))(*(x.numpy() for x in flat(inputs))))
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted, strict=True):
        assert got.shape == tuple(want.shape)
        np.testing.assert_allclose(got, want.numpy(), rtol=bound, atol=bound)


def settled(module: Any, *inputs: Any) -> Any:
    """The module with all shapes known, and statistics of batches that are not those of new layers."""
    with torch.no_grad():
        module(*inputs)
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.uniform_(-1, 1)
                part.running_var.uniform_(0.5, 2)
    return module


def test_an_image_network() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 3, 8, 8)
    layers = (
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 8, 3, 1, 1, groups=8),
        nn.Hardswish(), nn.Conv2d(8, 16, 1), nn.ELU(), nn.AvgPool2d(2, 1, 1), nn.ConvTranspose2d(16, 4, 3, 2, 1, 1),
        nn.LeakyReLU(), nn.MaxPool2d(3, 2, ceil_mode=True), nn.Upsample(scale_factor=2), nn.GroupNorm(2, 4), nn.Flatten(),
        nn.Dropout(), nn.LazyLinear(10), nn.LogSoftmax(1),
    )  # fmt: skip
    compare(settled(nn.Sequential(*layers), x), x)


def test_a_signal_network() -> None:
    torch.manual_seed(1)
    x = torch.randn(1, 4, 16)
    layers = (
        nn.Conv1d(4, 6, 3, padding="same"),
        nn.PReLU(),
        nn.MaxPool1d(2),
        nn.AvgPool1d(2),
        nn.ConvTranspose1d(6, 2, 3, 2),
    )
    compare(
        settled(nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.LazyLinear(3), nn.Softmax(-1)), x), x
    )


def test_a_transformer() -> None:
    torch.manual_seed(2)
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
    compare(nn.Sequential(nn.Embedding(20, 8), block, nn.Linear(8, 3)), torch.randint(0, 20, (1, 5)))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers(kind: str) -> None:
    torch.manual_seed(3)
    layer = getattr(nn, kind)(4, 5, batch_first=True)
    compare(layer, torch.randn(1, 3, 4))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_deep_recurrent_layers_both_ways(kind: str) -> None:
    """Two layers, forwards and backwards, of a batch, without biases, from a state that is an input."""
    torch.manual_seed(4)
    extra = {"nonlinearity": "relu"} if kind == "RNN" else {}
    layer = getattr(nn, kind)(4, 3, num_layers=2, bidirectional=True, bias=False, **extra)
    state = torch.randn(4, 2, 3)
    compare(layer, torch.randn(5, 2, 4), (state, torch.randn(4, 2, 3)) if kind == "LSTM" else state)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_c_does_not_grow_with_the_number_of_steps(kind: str) -> None:
    layer = getattr(nn, kind)(4, 5, batch_first=True).eval()
    programs = [torch.export.export(layer, (torch.randn(1, steps, 4),)) for steps in (8, 80)]
    sizes = [network_size(reader.read_program(program)) for program in programs]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("shared", [1, 2, 4])
def test_heads_that_share_keys_and_values(shared: int) -> None:
    q, k = torch.randn(1, 4, 5, 3), torch.randn(1, shared, 6, 3)
    attend = functional.scaled_dot_product_attention
    compare(Function(lambda q, k, v: attend(q, k, v, enable_gqa=True)), q, k, k + 1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_halves(dtype: str) -> None:
    """Weights, constants and arithmetic in halves between float32 ends."""
    torch.manual_seed(5)
    half = getattr(torch, dtype)
    layers = nn.Sequential(nn.Conv1d(3, 4, 2), nn.GroupNorm(2, 4), nn.GELU(), nn.AvgPool1d(2), nn.Linear(1, 3)).to(half)
    compare(Function(lambda x: (layers(x.to(half)) / 3 + 1).float()), torch.randn(1, 3, 4), bound=3e-2)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[x > 0],
        lambda x: (x * 3).int() ** 3,
        lambda x: torch.fft.rfft(x),
        lambda x: torch.fft.fft(torch.zeros(2, 3, 4) + x.mean(), 1 << 12).abs(),
        lambda x: (x > 0).sort(1),
        lambda x: (x.sum(), 3),
        lambda x: functional.max_pool2d(x, 2, return_indices=True),
    ],
)
def test_what_microc_lacks_is_not_blamed_on_the_program(function: Any) -> None:
    program = torch.export.export(Function(function).eval(), (torch.randn(2, 3, 4),), strict=False)
    with pytest.raises(UnsupportedError):
        reader.read_program(program)


def test_projected_states() -> None:
    """``proj_size``: the hidden state of an LSTM has fewer elements than its cell state."""
    compare(nn.LSTM(4, 5, num_layers=2, proj_size=2, bidirectional=True), torch.randn(3, 1, 4))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "activations": lambda x: functional.softplus(x) + functional.mish(x) + functional.gelu(x) + functional.selu(x),
    "attention": lambda x: functional.scaled_dot_product_attention(x, x + 1, x - 1, is_causal=True),
    "bilinear": lambda x: functional.interpolate(x[None], scale_factor=2, mode="bilinear"),
    "bounds": lambda x: x.clamp(-0.5, 0.5) + x.clamp(min=0) + x.clamp(max=0.3),
    "chosen": lambda x: torch.where(x > 0, x, x * 0.1).masked_fill(x < -1, 0.0),
    "constants": lambda x: x * torch.arange(4) + torch.ones(3, 1).cumsum(0),
    "indexed": lambda x: x[:, [0, 2]],
    "indexed_by_several": lambda x: (x[[0, 1], [2, 0]], x[:, [0, 2], [1, 1]], x[[0, 1], :, [3, 0]]),
    "angles": lambda x: (
        x.tan(),
        x.atan(),
        torch.atan2(x, x.flip(1)),
        x.tanh().acos() + x.sinh(),
        x.exp2() + x.expm1(),
    ),
    "truths": lambda x: ((x > 0) & ~(x > 1), (x > 0) ^ (x < 1), torch.isnan(x), (x > 1).any(1), (x > -1).all(-1)),
    "bounds_that_are_data": lambda x: x.clamp(min=x.mean(), max=torch.tensor(1.0)) + torch.fmod(x, 0.7),
    "written_into": lambda x: (
        torch.zeros(2, 3, 6).slice_scatter(x, 2, 1, 5),
        torch.ones(2, 3, 4).select_scatter(x[0], 0, 1),
    ),
    "put": lambda x: (
        torch.zeros(2, 3, 4).index_add(1, torch.tensor([0, 0, 2]), x).index_put((torch.tensor([1]),), x[:1])
    ),
    "gathered": lambda x: (x.gather(1, PLACES), torch.zeros(2, 3, 4).scatter_add(1, PLACES, x), x.diagonal(0, 1, 2)),
    "scattered": lambda x: (x.scatter(1, PLACES, x, reduce="multiply"), x.scatter(1, PLACES, 2.0, reduce="add")),
    "strided": lambda x: torch.as_strided(x, (2, 3), (5, 2), 1),
    "sorted": lambda x: (x.sort(-1), x.argsort(1, descending=True), x.cumprod(-1)),
    "distances": lambda x: (torch.cdist(x[0], x[1]), x.norm(p=3, dim=-1), torch.cdist(x, x + 1, p=1)),
    "vectors": lambda x: (x @ torch.arange(4.0), x[0, 0] @ x[0].T, torch.dot(x[0, 0], x[1, 1])),
    "sampled": lambda x: functional.grid_sample(x[None], torch.tanh(x.reshape(1, 3, 4, 2)), align_corners=False),
    "joined": lambda x: (torch.stack([x, x + 1], 1), torch.cat([x, x], -1), x.chunk(2, -1)),
    "largest": lambda x: (x.argmax(-1), x.amax(1)),
    "norms": lambda x: functional.normalize(x, dim=-1) + functional.instance_norm(x),
    "padded": lambda x: (functional.pad(x, (1, 2, 0, -1)), functional.pad(x, (1, 1), mode="reflect")),
    "powers": lambda x: (x.abs() + 1) ** 1.5 + x**2 + 1 / (x.abs() + 1),
    "products": lambda x: torch.einsum("bij,bkj->bik", x, x) @ x,
    "repeated": lambda x: x.repeat(1, 2, 1).expand(2, 6, 4),
    "sliced": lambda x: x[:, 1:, ::2] * 2 + 1,
    "rounded": lambda x: (torch.round(x), torch.trunc(x * 3), torch.sign(x), torch.remainder(x, 0.7)),
    "searched": lambda x: (x.topk(2), x.max(1), x.min(-1, keepdim=True), x.max(), torch.maximum(x, x.flip(0))),
    "divided": lambda x: (torch.div(x, 0.3, rounding_mode="floor"), torch.div(x, 0.3, rounding_mode="trunc"), 1 / x),
    "counted": lambda x: ((x > 0).to(torch.int32) + 3, (x > 0).sum(1), x.cumsum(1), x.sin() + x.cos()),
    "spread": lambda x: x.var(1) + x.std(1),
    "truths_as_numbers": lambda x: (
        (x > 0) * (x < 1),
        (x > 0) + (x < -1),
        (x > 0) < (x > -1),
        (x > 0).amax(1),
        (x > 0).max(),
        (x > 0).cumsum(1),
        torch.logical_and(x, x > 0),
        torch.logical_not(x),
        torch.isclose(x, x + 1e-9),
    ),
    "made_in_forward": lambda x: (
        x + torch.arange(4).float() * torch.hamming_window(4),
        functional.pad(x, (1, 1), mode="circular"),
        functional.rrelu(x),
    ),
    "spectra": lambda x: (
        torch.view_as_real(torch.fft.rfft(x, norm="ortho")),
        torch.fft.irfft2(torch.fft.rfft2(x) * (1 - 2j)),
        torch.fft.ifft(torch.fft.fft(x, dim=1).conj() + x, dim=1).abs(),
        torch.fft.irfft(torch.fft.rfft(x, 6)[..., :3] * torch.fft.rfft(torch.arange(4.0)), 4),
        torch.fft.fft(x).permute(1, 0, 2)[1].imag / 2,
    ),
    "short_time_spectra": lambda x: (
        torch.stft(x.reshape(1, 24), 8, 4, window=torch.hann_window(8), return_complex=True).abs(),
        torch.stft(x.reshape(2, 12), 6, 3, window=torch.ones(6), center=False, return_complex=True).real,
    ),
    "conditions": lambda x: (
        torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,)),
        torch.cond(x.mean() < 9, lambda x: torch.cond(x.sum() > 9, torch.sin, torch.cos, (x,)) + 1, torch.abs, (x,)),
    ),
    "columns": lambda x: (functional.unfold(x[None], 2), functional.fold(x.reshape(1, 4, 6), (3, 4), 2)),
    "windows": lambda x: (x.unfold(-1, 2, 1), torch.var_mean(x, -1), torch.hypot(x, x + 1), torch.erfc(x)),
    "put_by_truth": lambda x: torch.where(x > 9, x, x).index_put((x > 0,), torch.tensor(0.5)),
    "integers": lambda x: ((x * 10).int().abs().sqrt(), (x * 3).int().sigmoid(), (x * 3).int().cumsum(1)),
    "turned": lambda x: functional.pixel_shuffle(x.reshape(1, 4, 2, 3), 2).permute(0, 2, 3, 1),
}


POOLS: dict[str, Callable[..., Any]] = {
    "adaptive": lambda x: (functional.adaptive_avg_pool2d(x, (4, 5)), functional.adaptive_max_pool1d(x[0], 4)),
    "ceil": lambda x: (functional.avg_pool2d(x, 3, 2, 1, True), functional.avg_pool2d(x, 3, 2, 1, True, False)),
    "ceil_1d": lambda x: (functional.avg_pool1d(x[0], 3, 2, 1, True), functional.max_pool1d(x[0], 2, ceil_mode=True)),
    "dilated": lambda x: functional.max_pool2d(x, 3, 2, 1, dilation=2),
    "neighbouring_channels": nn.LocalResponseNorm(3),
    "channels_last": lambda x: functional.adaptive_avg_pool2d(x.to(memory_format=torch.channels_last), 1).flatten(1),
    "volumes": lambda x: (functional.avg_pool3d(x, 2, 2, ceil_mode=True), functional.max_pool3d(x, 2, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", POOLS)
def test_pools(name: str) -> None:
    torch.manual_seed(8)
    compare(Function(POOLS[name]), torch.randn(1, 3, 9, 11))


def test_a_convolution_of_volumes() -> None:
    torch.manual_seed(9)
    compare(nn.Conv3d(2, 3, (2, 3, 3), (1, 2, 1), 1, (1, 1, 2)), torch.randn(1, 2, 4, 5, 6))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    torch.manual_seed(4)
    compare(Function(FUNCTIONS[name]), torch.randn(2, 3, 4))


class Quantised(nn.Module):  # type: ignore[misc, name-defined]
    """A convolution and a dense layer as PyTorch's quantisation by export writes them."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in (("first", (6, 3, 3, 3)), ("second", (5, 6))):
            self.register_buffer(name, torch.randint(-127, 127, shape, dtype=torch.int8))
            self.register_buffer(f"{name}_scales", torch.rand(shape[0]) * 0.01 + 0.001)
            self.register_buffer(f"{name}_zeros", torch.zeros(shape[0], dtype=torch.int64))
            self.register_buffer(f"{name}_bias", torch.randn(shape[0]))

    def weight(self, name: str) -> Any:
        scales, zeros = getattr(self, f"{name}_scales"), getattr(self, f"{name}_zeros")
        held = getattr(self, name)
        return torch.ops.quantized_decomposed.dequantize_per_channel(held, scales, zeros, 0, -128, 127, torch.int8)

    def forward(self, x: Any) -> Any:
        ops = torch.ops.quantized_decomposed

        def rounded(x: Any, scale: float, zero: int) -> Any:
            stored = ops.quantize_per_tensor(x, scale, zero, -128, 127, torch.int8)
            return ops.dequantize_per_tensor(stored, scale, zero, -128, 127, torch.int8)

        x = rounded(x, 0.03, 3)
        x = rounded(functional.relu(functional.conv2d(x, self.weight("first"), self.first_bias, padding=1)), 0.05, -128)
        x = rounded(functional.adaptive_avg_pool2d(x, 1), 0.04, -128)
        return rounded(functional.linear(x.flatten(1), self.weight("second"), self.second_bias), 0.06, 5)


def test_a_quantised_program_computes_integers() -> None:
    import torch.ao.quantization.fx._decomposed

    from microc.compiler.options import Options
    from microc.compiler.pipeline import optimise_graph

    torch.manual_seed(5)
    x = torch.randn(1, 3, 8, 8)
    compare(Quantised(), x, bound=1e-6)
    graph = optimise_graph(reader.read_program(torch.export.export(Quantised(), (x,))), Options())
    layers = [node for node in graph.nodes if node.op in ("conv2d", "dense")]
    assert len(layers) == 2 and all(graph.types[node.inputs[1]].dtype == "int8" for node in layers)


def test_stored_weights_of_a_transposed_convolution_are_known_when_compiling() -> None:
    import torch.ao.quantization.fx._decomposed

    from microc.compiler.options import Options
    from microc.compiler.pipeline import optimise_graph

    torch.manual_seed(10)
    held, scales = torch.randint(-127, 127, (4, 3, 3, 3), dtype=torch.int8), torch.rand(3) * 0.01 + 0.001
    zeros, x = torch.zeros(3, dtype=torch.int64), torch.randn(1, 4, 5, 6)

    class Upwards(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            for name, tensor in (("held", held), ("scales", scales), ("zeros", zeros)):
                self.register_buffer(name, tensor)

        def forward(self, x: Any) -> Any:
            ops = torch.ops.quantized_decomposed
            weight = ops.dequantize_per_channel(self.held, self.scales, self.zeros, 1, -127, 127, torch.int8)
            return functional.conv_transpose2d(x, weight, None, 2, 1, 1)

    compare(Upwards(), x)
    graph = optimise_graph(reader.read_program(torch.export.export(Upwards(), (x,))), Options())
    assert "conv2d_transpose" not in {node.op for node in graph.nodes}


def test_a_file() -> None:
    torch.manual_seed(6)
    first, second, x = nn.Linear(4, 3).eval(), nn.Linear(4, 3).eval(), torch.randn(2, 4)

    class Chosen(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList((first, second))

        def forward(self, x: Any) -> Any:
            return torch.cond(x.sum() > 0, self.layers[0], self.layers[1], (x,))

    module = Chosen().eval()
    file = io.BytesIO()
    torch.export.save(torch.export.export(module, (x,)), file)
    data = file.getvalue()
    assert reader.is_torch(data)
    found = library(reader.read_pt2(data, "linear.pt2", {}))(x.numpy())
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=BOUND, atol=BOUND)
    with pytest.raises(UsageError, match="fixed shapes"):
        reader.read_pt2(data, "linear.pt2", {"x": (1, 4)})


@pytest.mark.parametrize(
    ("function", "message"),
    [(lambda x: torch.round(x, decimals=2), "decimals"), (lambda x: x.view(torch.int32), "view of float32 as int32")],
    ids=["decimals", "bits of a float"],
)
def test_arguments_that_are_not_supported_are_refused(function: Callable[..., Any], message: str) -> None:
    program = torch.export.export(Function(function), (torch.ones(3),))
    with pytest.raises(UnsupportedError, match=message):
        reader.read_program(program)


def test_what_is_unknown_is_listed() -> None:
    program = torch.export.export(Function(lambda x: torch.lgamma(x) + torch.digamma(x)), (torch.ones(3),))
    with pytest.raises(UnsupportedError, match=r"lgamma[\s\S]*digamma"):
        reader.read_program(program)
