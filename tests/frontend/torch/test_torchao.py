# SPDX-License-Identifier: Apache-2.0
"""What torchao's PT2E makes, with and without training: integers throughout, one step from PyTorch's floats at most."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import microc
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
