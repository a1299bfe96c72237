# SPDX-License-Identifier: Apache-2.0
"""The sizes of the network, the angles of its positions, and how its weights are rounded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray
BLOCK = 32
"""Neighbours among a row's weights that share a scale."""
BITS = {"head": 8}
"""Of a layer's weights, where they are not 4."""


@dataclass(frozen=True)
class Shape:
    """Tokens that there are, room for how many positions, layers, numbers of a token, heads of queries, heads of keys and values,
    numbers of a head, numbers between two halves of a layer."""

    tokens: int
    room: int = 96
    layers: int = 3
    depth: int = 64
    queries: int = 4
    shared: int = 2
    width: int = 16
    inner: int = 192


def angles(shape: Shape) -> tuple[Array, Array]:
    """Cosines and sines of every position (room, width / 2)."""
    half = shape.width // 2
    turns = np.arange(shape.room)[:, None] / 1000.0 ** (np.arange(half) / half)
    return np.cos(turns).astype(np.float32), np.sin(turns).astype(np.float32)


def levels(weight: Array, bits: int) -> tuple[Array, Array]:
    """Whole numbers of so many bits, and the scale of every block of :data:`BLOCK`: both (outputs, blocks, ...)."""
    highest = (1 << (bits - 1)) - 1
    blocks = weight.reshape(len(weight), -1, BLOCK)
    scales = np.maximum(np.abs(blocks).max(-1), 1e-6).astype(np.float32) / np.float32(highest)
    return np.clip(np.rint(blocks / scales[:, :, None]), -highest - 1, highest), scales


def bits_of(name: str) -> int:
    """How many bits a weight's numbers get; 0: it stays as it is."""
    return 0 if name == "embedding" or name.endswith("norm") else BITS.get(name, 4)


def rounded(weights: dict[str, Array]) -> dict[str, Array]:
    """What rounding leaves of the weights."""
    made = dict(weights)
    for name, weight in weights.items():
        if bits_of(name):
            numbers, scales = levels(weight, bits_of(name))
            made[name] = (numbers * scales[:, :, None]).astype(np.float32).reshape(weight.shape)
    return made
