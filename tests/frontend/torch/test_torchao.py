# SPDX-License-Identifier: Apache-2.0
"""What torchao's PT2E makes, with and without training: integers throughout, one step from PyTorch's floats at most."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import microc
from microc.errors import UnsupportedError
from microc.frontend.torch import reader
from microc.transform import NORMALISING
from microc.transform.pass_context import PassContext, run_passes

torch = pytest.importorskip("torch", reason="needs PyTorch")
pt2e = pytest.importorskip("torchao.quantization.pt2e", reason="needs torchao")
steps = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e", reason="needs torchao")
xnnpack = pytest.importorskip("torchao.testing.pt2e._xnnpack_quantizer", reason="needs torchao's quantiser for tests")


def network() -> Any:
    """A convolution, a depthwise one, a pointwise one, each with batch normalisation, and dense layers."""
    nn = torch.nn
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU6()),
        *(nn.Conv2d(8, 12, 1), nn.BatchNorm2d(12), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 10)),
    )


@pytest.mark.parametrize("trained", [False, True])
def test_integers_throughout(trained: bool) -> None:
    module, x = network(), torch.rand(24, 1, 8, 8)
    module.train(trained)
    program = torch.export.export(module, (x[:2],), dynamic_shapes=({0: torch.export.Dim("samples")},)).module()
    config = xnnpack.get_symmetric_quantization_config(is_per_channel=True, is_qat=trained)
    quantiser = xnnpack.XNNPACKQuantizer().set_global(config)
    prepared = (steps.prepare_qat_pt2e if trained else steps.prepare_pt2e)(program, quantiser)
    if trained:
        optimiser = torch.optim.Adam(prepared.parameters(), 1e-3)
        for _ in range(4):
            optimiser.zero_grad()
            prepared(x).square().mean().backward()
            optimiser.step()
        pt2e.move_exported_model_to_eval(prepared)
    else:
        prepared(x)
    converted = steps.convert_pt2e(prepared)
    graph = reader.read_program(torch.export.export(converted, (x[:1],)))
    nodes = run_passes(graph, NORMALISING, PassContext())
    assert [node.op for node in nodes.nodes if nodes.types[node.outputs[0]].dtype == "float32"] == ["dequantize"]
    wanted, library = converted(x).detach().numpy(), microc.compile(graph)
    off = np.abs(np.concatenate([np.asarray(library(row[None].numpy())) for row in x]) - wanted)
    step = np.diff(np.unique(wanted)).min()
    assert off.max() < 1.5 * step and np.mean(off > step / 2) < 0.1


# ---- Weights that quantize_ has made integers.

WEIGHTS = (("int8", None, 2_704), ("int4", 32, 1_648), ("int2", 32, 1_056))
"""dtype, elements of a group (None: a row), and bytes of weights, scales and biases of the network below: 2,368 weights of these
bits, 42 biases and a scale for each group."""


def weights_only(config: Any) -> tuple[Any, Any]:
    """Dense layers whose weights ``config`` has quantised, and an input."""
    quantization = pytest.importorskip("torchao.quantization", reason="needs torchao")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)).eval()
    quantization.quantize_(module, config(quantization))
    return module, torch.randn(1, 64)


def difference(model: Any, module: Any, x: Any) -> float:
    return float(np.abs(microc.compile(model)(x.numpy()) - module(x).detach().numpy()).max())


@pytest.mark.parametrize(("dtype", "group", "nbytes"), WEIGHTS)
def test_weights_of_few_bits_stay_narrow(dtype: str, group: int | None, nbytes: int, tmp_path: Any) -> None:
    """Both dequantise to the same float32 numbers and add their products in another order: 64 roundings of 2^-24 of sums
    below 4."""

    def config(quantization: Any) -> Any:
        granularity = quantization.PerGroup(group) if group else quantization.PerAxis(0)
        return quantization.IntxWeightOnlyConfig(weight_dtype=getattr(torch, dtype), granularity=granularity)

    module, x = weights_only(config)
    program = torch.export.export(module, (x,))
    assert difference(program, module, x) < 64 * 4 * 2.0**-24
    file = tmp_path / "x.pt2"
    torch.export.save(program.run_decompositions({}), file)
    assert microc.compile(file, board="mps2-an386").module.const_bytes == nbytes


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Int8WeightOnlyConfig", {}),
        ("Int8DynamicActivationInt8WeightConfig", {}),
        ("Int8DynamicActivationIntxWeightConfig", {"weight_dtype": torch.int4, "weight_granularity": 32}),
    ],
)
def test_other_configurations_agree(name: str, arguments: dict[str, Any]) -> None:
    """Data that are quantised at run time are of the same integers in both; sums and bounds are those above."""

    def config(quantization: Any) -> Any:
        granularity = {
            key: quantization.PerGroup(value) if key == "weight_granularity" else value
            for key, value in arguments.items()
        }
        return getattr(quantization, name)(**granularity)

    module, x = weights_only(config)
    assert difference(torch.export.export(module, (x,)), module, x) < 64 * 4 * 2.0**-24


def test_tensor_subclasses_in_files_are_refused(tmp_path: Any) -> None:
    module, x = weights_only(lambda quantization: quantization.Int8WeightOnlyConfig())
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "x.pt2")
    with pytest.raises(UnsupportedError, match="tensor subclasses") as caught:
        microc.load(tmp_path / "x.pt2")
    assert "run_decompositions({})" in caught.value.hint


def test_blocks_of_an_affine_quantisation() -> None:
    """Along several axes, of one scale, and of scales that are computed."""

    class Blocks(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("q", torch.randint(-8, 8, (4, 3, 6), dtype=torch.int8))
            self.register_buffer("scale", torch.rand(24) + 0.5)
            self.register_buffer("zero", torch.randint(-3, 3, (24,), dtype=torch.int8))

        def forward(self, x: Any) -> Any:
            result = x
            for block in ((1, 3, 6), (1, 1, 2), (4, 3, 6), (1, 1, 6), (4, 1, 1), (4, 1, 6)):
                counts = tuple(extent // size for extent, size in zip((4, 3, 6), block, strict=True))
                size = int(np.prod(counts))
                if size > 24:
                    continue
                scale, zero = self.scale[:size].reshape(counts), self.zero[:size].reshape(counts)
                result = result + torch.ops.torchao.dequantize_affine(self.q, block, scale, zero, torch.int8, -8, 7)
            scale = x.abs().amax((1, 2), keepdim=True)
            return result + torch.ops.torchao.dequantize_affine(self.q, (1, 3, 6), scale, None, torch.int8, -8, 7)

    pytest.importorskip("torchao.quantization", reason="needs torchao")
    torch.manual_seed(1)
    module, x = Blocks().eval(), torch.randn(4, 3, 6)
    # Seven terms of at most 16 times a scale of 4, each rounded.
    assert difference(torch.export.export(module, (x,)), module, x) < 7 * 64 * 2.0**-24


def test_a_zero_point_between_integers() -> None:
    class Half(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            q = torch.arange(6, dtype=torch.int8).reshape(2, 3)
            zero = torch.tensor([0.5, 2.0])
            return x + torch.ops.torchao.dequantize_affine(q, (1, 3), torch.tensor([1.0, 2.0]), zero, torch.int8, -8, 7)

    pytest.importorskip("torchao.quantization", reason="needs torchao")
    module, x = Half().eval(), torch.zeros(2, 3)
    assert difference(torch.export.export(module, (x,)), module, x) == 0
