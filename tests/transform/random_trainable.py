# SPDX-License-Identifier: Apache-2.0
"""Random networks of layers that learn, as graphs and as modules of PyTorch with the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np

import microc
from microc.base.dtypes import Array
from microc.graph.ir import Graph

ACTIVATIONS = ("relu", "tanh", "sigmoid", "softplus", "leaky_relu", "elu", "hard_swish", "exp", "abs", "erf")


class RandomNetwork:
    """A network over images, of layers that a seed draws.

    ``graph``: the network with a loss. ``steps``: its layers, each a name and settings, that :meth:`evaluate_in_torch`
    follows. ``parameters``: initial weights by name."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.net = microc.GraphBuilder()
        self.steps: list[tuple[str, dict[str, Any]]] = []
        self.parameters: dict[str, Array] = {}
        batch, rows, columns, channels = (
            int(self.rng.integers(low, high)) for low, high in ((1, 4), (5, 9), (5, 9), (1, 4))
        )
        self.shape = (batch, rows, columns, channels)
        value = self.net.input("x", self.shape)
        for _ in range(int(self.rng.integers(2, 5))):
            value = self._add_image_layer(value)
        value = self._add_flat_layers(self.net.reshape(value, (batch, self.net.type(value).size // batch)))
        self.loss = ("cross_entropy", "mean_squared_error", "binary_cross_entropy")[int(self.rng.integers(3))]
        self.graph: Graph = microc.add_loss(self.net.graph("random", {"y": value}), self.loss)
        self.x = self._draw(self.shape, 1.0)
        labels = self.graph.types["labels"]
        self.labels = (
            self.rng.integers(0, self.graph.types["y"].shape[-1], labels.shape).astype(np.int32)
            if labels.dtype == "int32"
            else self.rng.uniform(0, 1, labels.shape).astype(np.float32)
        )

    def _draw(self, shape: tuple[int, ...], scale: float) -> Array:
        return (self.rng.normal(size=shape) * scale).astype(np.float32)

    def _parameter(self, *shape: int) -> str:
        fan_in = max(1, int(np.prod(shape[1:], dtype=int)))
        name = self.net.constant(f"p{len(self.parameters)}", self._draw(shape, 1.0 / np.sqrt(fan_in)))
        self.parameters[name] = self.net.consts[name]
        return name

    def _add(self, step: str, **settings: Any) -> None:
        self.steps.append((step, settings))

    def _add_image_layer(self, value: str) -> str:
        _, rows, columns, channels = self.net.shape(value)
        choice = int(self.rng.integers(6))
        if choice <= 2:
            return self._add_convolution(value, rows, columns, channels)
        if choice == 3 and min(rows, columns) >= 3:
            kernel = tuple(int(k) for k in self.rng.integers(1, 4, 2))
            strides = tuple(int(k) for k in self.rng.integers(1, 3, 2))
            before = min(int(self.rng.integers(2)), (min(kernel)) // 2)
            op = ("max_pool2d", "avg_pool2d")[int(self.rng.integers(2))]
            self._add(op, kernel=kernel, strides=strides, padding=before)
            return self.net.op(op, value, kernel=kernel, strides=strides, padding=(before,) * 4)
        if choice == 4:
            scale, shift = self._parameter(channels), self._parameter(channels)
            self._add("affine", scale=scale, shift=shift)
            return self.net.op("add", self.net.op("mul", value, scale), shift)
        function = ACTIVATIONS[int(self.rng.integers(len(ACTIVATIONS)))]
        self._add(function)
        return self.net.op(function, value)

    def _add_convolution(self, value: str, rows: int, columns: int, channels: int) -> str:
        kernel = (int(self.rng.integers(1, min(4, rows + 1))), int(self.rng.integers(1, min(4, columns + 1))))
        groups = channels if self.rng.integers(2) else 1
        outputs = groups * int(self.rng.integers(1, 4))
        strides = tuple(int(k) for k in self.rng.integers(1, 3, 2))
        dilation = tuple(
            1 + int(self.rng.integers(2)) * (2 * (k - 1) < extent)
            for k, extent in zip(kernel, (rows, columns), strict=True)
        )
        padding = tuple(int(k) for k in self.rng.integers(0, 2, 2))
        weight, bias = self._parameter(outputs, *kernel, channels // groups), self._parameter(outputs)
        settings: dict[str, Any] = {"strides": strides, "dilation": dilation, "groups": groups}
        self._add("conv2d", weight=weight, bias=bias, padding=padding, **settings)
        return self.net.op("conv2d", value, weight, bias, padding=(*padding, *padding), **settings)

    def _add_flat_layers(self, value: str) -> str:
        self._add("flatten")
        for _ in range(int(self.rng.integers(1, 3))):
            units = int(self.rng.integers(2, 6))
            weight, bias = self._parameter(units, self.net.shape(value)[1]), self._parameter(units)
            self._add("dense", weight=weight, bias=bias)
            value = self.net.op("dense", value, weight, bias)
            choice = int(self.rng.integers(4))
            if choice == 0 and units > 2:  # of two elements it is a sign, whose gradients are nothing but roundings
                self._add("layer_norm")
                value = self.net.op("layer_norm", value, epsilon=1e-5)
            elif choice == 1:
                self._add("residual")
                value = self.net.op("add", value, self.net.op("tanh", value))
            elif choice == 2:
                self._add("softmax")
                value = self.net.op("softmax", value)
        return value

    def evaluate_in_torch(self, torch: Any) -> dict[str, Array]:
        """Return the loss and its gradients by all parameters and by x, in float64 by PyTorch's autograd."""
        f = torch.nn.functional
        tensors = {
            name: torch.tensor(data.astype(np.float64), requires_grad=True)
            for name, data in {**self.parameters, "x": self.x}.items()
        }
        value, channels_last = tensors["x"].permute(0, 3, 1, 2), (0, 2, 3, 1)
        plain = {
            "hard_swish": f.hardswish,
            "erf": torch.erf,
            "exp": torch.exp,
            "abs": torch.abs,
            "elu": f.elu,
            "leaky_relu": f.leaky_relu,
        }
        logits = value
        for step, s in self.steps:
            before = value
            if step == "conv2d":
                kernel = tensors[s["weight"]].permute(0, 3, 1, 2)
                value = f.conv2d(
                    value, kernel, tensors[s["bias"]], s["strides"], s["padding"], s["dilation"], s["groups"]
                )
            elif step == "max_pool2d":
                value = f.max_pool2d(value, s["kernel"], s["strides"], s["padding"])
            elif step == "avg_pool2d":
                value = f.avg_pool2d(value, s["kernel"], s["strides"], s["padding"], count_include_pad=False)
            elif step == "affine":
                value = value * tensors[s["scale"]].view(1, -1, 1, 1) + tensors[s["shift"]].view(1, -1, 1, 1)
            elif step == "flatten":
                value = value.permute(channels_last).flatten(1)
            elif step == "dense":
                value = f.linear(value, tensors[s["weight"]], tensors[s["bias"]])
            elif step == "layer_norm":
                value = f.layer_norm(value, value.shape[1:], eps=1e-5)
            elif step == "residual":
                value = value + torch.tanh(value)
            elif step == "softmax":
                value = torch.softmax(value, 1)
            else:
                function: Any = plain.get(step, getattr(f, step, None) or getattr(torch, step, None))
                value = function(value)
            logits = before if step == "softmax" else value
        labels = torch.tensor(self.labels.astype(np.int64 if self.loss == "cross_entropy" else np.float64))
        if self.loss == "cross_entropy":
            loss = f.cross_entropy(logits, labels)
        elif self.loss == "binary_cross_entropy":
            loss = f.binary_cross_entropy_with_logits(value, labels)
        else:
            loss = f.mse_loss(value, labels)
        loss.backward()
        return {
            "loss": loss.detach().numpy(),
            **{name: tensor.grad.numpy() for name, tensor in tensors.items() if tensor.grad is not None},
        }
