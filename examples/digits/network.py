# SPDX-License-Identifier: Apache-2.0
"""The digits network in numpy: forward, backward, activation ranges. Layers are NHWC, weights HWIO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Params = dict[str, Any]


@dataclass(frozen=True)
class Layer:
    """``conv`` (with ReLU), ``depthwise`` (with ReLU) or ``dense``; kernels are square, padding keeps (n - 1) / stride + 1."""

    name: str
    kind: str
    kernel: int
    stride: int
    channels: int


LAYERS = (
    Layer("conv1", "conv", 3, 1, 8),
    Layer("depthwise2", "depthwise", 3, 2, 8),
    Layer("pointwise3", "conv", 1, 1, 24),
    Layer("conv4", "conv", 3, 2, 24),
    Layer("dense5", "dense", 0, 0, 10),
)


def shapes() -> dict[str, tuple[int, ...]]:
    """Shapes of all parameters."""
    found: dict[str, tuple[int, ...]] = {}
    size, channels = 8, 1
    for layer in LAYERS:
        if layer.kind == "conv":
            found[f"{layer.name}_w"] = (layer.kernel, layer.kernel, channels, layer.channels)
        elif layer.kind == "depthwise":
            found[f"{layer.name}_w"] = (layer.kernel, layer.kernel, channels)
        else:
            found[f"{layer.name}_w"] = (size * size * channels, layer.channels)
        found[f"{layer.name}_b"] = (layer.channels,)
        if layer.kind != "dense":
            size = -(-size // layer.stride)
        channels = layer.channels
    return found


SHAPES = shapes()


def patches(x: Any, kernel: int, stride: int) -> tuple[Any, Any]:
    """Windows (n, oh, ow, k, k, c) of the input padded by kernel // 2, and the padded input's index of each."""
    pad = kernel // 2
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    view = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(1, 2))
    return view[:, ::stride, ::stride].transpose(0, 1, 2, 4, 5, 3), padded.shape


def spread(gradient: Any, shape: Any, kernel: int, stride: int) -> Any:
    """The gradient of the input from that of its windows."""
    result = np.zeros(shape, np.float32)
    rows, columns = gradient.shape[1:3]
    for i in range(kernel):
        for j in range(kernel):
            result[:, i : i + rows * stride : stride, j : j + columns * stride : stride][:, :rows, :columns] += (
                gradient[:, :, :, i, j]
            )
    pad = kernel // 2
    return result[:, pad : shape[1] - pad, pad : shape[2] - pad]


class Network:
    """The network over given parameters."""

    def __init__(self, params: Params) -> None:
        self.params = params
        self.tape: list[tuple[Any, ...]] = []

    def forward(self, x: Any, keep: list[Any] | None = None) -> Any:
        """Logits (n, 10); ``keep`` collects the output of every layer."""
        self.tape = []
        for layer in LAYERS:
            weight, bias = self.params[f"{layer.name}_w"], self.params[f"{layer.name}_b"]
            if layer.kind == "dense":
                flat = x.reshape(len(x), -1)
                self.tape.append((flat, x.shape))
                x = flat @ weight + bias
            else:
                windows, shape = patches(x, layer.kernel, layer.stride)
                how = "nhwijc,ijco->nhwo" if layer.kind == "conv" else "nhwijc,ijc->nhwc"
                before = np.einsum(how, windows, weight, optimize=True) + bias
                self.tape.append((windows, shape, before))
                x = np.maximum(before, 0)
            if keep is not None:
                keep.append(x)
        return x

    def gradients(self, x: Any, labels: Any) -> Params:
        """Gradients of the mean cross-entropy."""
        logits = self.forward(x)
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        shares[np.arange(len(labels)), labels] -= 1
        flow, found = shares / len(labels), {}
        for layer, saved in zip(reversed(LAYERS), reversed(self.tape), strict=True):
            weight = self.params[f"{layer.name}_w"]
            if layer.kind == "dense":
                flat, shape = saved
                found[f"{layer.name}_w"], found[f"{layer.name}_b"] = flat.T @ flow, flow.sum(0)
                flow = (flow @ weight.T).reshape(shape)
                continue
            windows, shape, before = saved
            flow = flow * (before > 0)
            found[f"{layer.name}_b"] = flow.sum((0, 1, 2))
            if layer.kind == "conv":
                found[f"{layer.name}_w"] = np.einsum("nhwijc,nhwo->ijco", windows, flow, optimize=True)
                inner = np.einsum("nhwo,ijco->nhwijc", flow, weight, optimize=True)
            else:
                found[f"{layer.name}_w"] = np.einsum("nhwijc,nhwc->ijc", windows, flow, optimize=True)
                inner = np.einsum("nhwc,ijc->nhwijc", flow, weight, optimize=True)
            flow = spread(inner, shape, layer.kernel, layer.stride)
        return found

    def ranges(self, x: Any) -> dict[str, tuple[float, float]]:
        """Lowest and highest output of every layer."""
        kept: list[Any] = []
        self.forward(x, kept)
        return {layer.name: (float(k.min()), float(k.max())) for layer, k in zip(LAYERS, kept, strict=True)}
