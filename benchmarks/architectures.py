# SPDX-License-Identifier: Apache-2.0
"""Small float networks of every kind that microcontrollers run, in torch: what the quantisers are compared on.

Each is made for images of ``side`` by ``side`` pixels or series of ``side`` rows, with ``width`` channels at its input; widths
set the size, so that the same architecture serves the comparison (28) and the test suite (8).
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


def normed(conv: nn.Module, channels: int) -> nn.Sequential:
    """A convolution, batch normalisation, ReLU."""
    return nn.Sequential(conv, nn.BatchNorm2d(channels), nn.ReLU())


def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return normed(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), outputs)


def separable(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """A depthwise convolution and a pointwise one, as MobileNet has them."""
    depthwise = nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False)
    return nn.Sequential(normed(depthwise, inputs), normed(nn.Conv2d(inputs, outputs, 1, bias=False), outputs))


def classifier(channels: int, classes: int = 10) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def plain(side: int, width: int) -> nn.Module:
    """A plain CNN: convolutions, max pooling, two dense layers."""
    body = (conv(1, width), nn.MaxPool2d(2), conv(width, 2 * width), nn.MaxPool2d(2))
    dense = (nn.Linear(2 * width * (side // 4) ** 2, 4 * width), nn.ReLU(), nn.Linear(4 * width, 10))
    return nn.Sequential(*body, nn.Flatten(), *dense)


def depthwise(side: int, width: int) -> nn.Module:
    """A depthwise-separable CNN; a larger image is halved once more."""
    last = separable(2 * width, 4 * width, 2 if side > 16 else 1)
    return nn.Sequential(conv(1, width, 2), separable(width, 2 * width), last, classifier(4 * width))


class Residual(nn.Module):
    """Two convolutions beside a shortcut, which is a pointwise convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = outputs // inputs
        self.first = conv(inputs, outputs, stride)
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(self.first(x)) + self.shortcut(x))


def residual(side: int, width: int) -> nn.Module:
    """A ResNet of three blocks."""
    blocks = (Residual(width, width), Residual(width, 2 * width), Residual(2 * width, 4 * width))
    return nn.Sequential(conv(1, width), *blocks, classifier(4 * width))


class Recurrent(nn.Module):
    """An LSTM or a GRU over the rows; the last state is classified."""

    def __init__(
        self, cell: type[nn.RNNBase], features: int, width: int, classes: int = 10, both: bool = False
    ) -> None:
        super().__init__()
        self.cell = cell(features, width, batch_first=True, bidirectional=both)
        self.dense = nn.Linear((1 + both) * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.cell(x)
        return self.dense(states[:, -1])


class Attention(nn.Module):
    """Self-attention of several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        split = self.inward(x).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = split[0], split[1], split[2]
        scores = query @ key.transpose(-1, -2) * (width // self.heads) ** -0.5
        return self.outward((torch.softmax(scores, -1) @ value).transpose(1, 2).reshape(batch, tokens, width))


class Layer(nn.Module):
    """A transformer's layer, normalised before attention and before its two dense layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList((nn.LayerNorm(width), nn.LayerNorm(width)))
        self.attention = Attention(width, 2)
        self.dense = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.dense(self.norms[1](x))


class Transformer(nn.Module):
    """A vision transformer: patches as tokens, learned places, two layers, the mean of all tokens."""

    def __init__(self, side: int, width: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, patch, patch)
        self.places = nn.Parameter(0.1 * torch.randn((side // patch) ** 2, width))
        self.layers = nn.Sequential(Layer(width), Layer(width), nn.LayerNorm(width))
        self.dense = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.dense(self.layers(tokens).mean(1))


def autoencoder(side: int, width: int) -> nn.Module:
    """Dense layers through a bottleneck, as MLPerf's anomaly detector has them; pixels in rows."""
    widths = (side * side, 8 * width, 8 * width, width, 8 * width, 8 * width, side * side)
    layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths[:-1])]
    return nn.Sequential(*layers, nn.Linear(*widths[-2:]))


class UNet(nn.Module):
    """Two levels down and up, with a shortcut at each; a logit for every pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList((conv(1, width), conv(width, 2 * width)))
        self.bottom = conv(2 * width, 4 * width)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * n, n, 2, 2) for n in (2 * width, width))
        self.joined = nn.ModuleList(conv(2 * n, n) for n in (2 * width, width))
        self.pixel = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for step in self.down:
            x = step(x)
            kept.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, joined in zip(self.up, self.joined, strict=True):
            x = joined(torch.cat((up(x), kept.pop()), 1))
        return self.pixel(x)


def series(features: int, width: int, classes: int) -> nn.Module:
    """Convolutions over time."""
    body = (nn.Conv1d(features, width, 5, 1, 2), nn.ReLU(), nn.Conv1d(width, 2 * width, 5, 2, 2), nn.ReLU())
    return nn.Sequential(*body, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2 * width, classes))
