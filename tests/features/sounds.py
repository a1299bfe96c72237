# SPDX-License-Identifier: Apache-2.0
"""Sounds that are not, and what a stream makes of them beside a whole run."""

from __future__ import annotations

from typing import Any

import numpy as np

import microc
from microc.base.dtypes import Array
from microc.features import Pipeline


def sound(seconds: float = 0.5, rate: int = 16000, seed: int = 0) -> Array:
    """Tones that fade in noise, within -1 .. 1: float32."""
    rng, t = np.random.default_rng(seed), np.arange(int(seconds * rate)) / rate
    tones = sum(np.sin(2 * np.pi * f * t + f) / (k + 2) for k, f in enumerate((220, 440, 1375, 3100)))
    return (0.6 * tones * np.exp(-2 * t) + 0.01 * rng.normal(size=t.size)).astype(np.float32)


def int16(x: Array) -> Array:
    """Floats within -1 .. 1 as int16."""
    scaled: Array = np.clip(np.rint(x * 32768), -32768, 32767)
    return scaled.astype(np.int16)


def compared(front: Pipeline, x: Array, tolerance: float = 0.0, **options: Any) -> None:
    """The compiled whole run gives what numpy gives, and a stream, frame by frame, what the whole run gives: twice."""
    graph = front.graph(len(x))
    want = front.stored(x)[0]
    whole, step = microc.compile(graph), microc.compile(graph, stream=1, **options)
    np.testing.assert_allclose(np.asarray(whole(x[None]))[0], want, rtol=tolerance, atol=tolerance)
    streaming = step.manifest["streaming"]
    hop, output = streaming["hop"], streaming["outputs"]["features"]
    more = np.zeros((hop * (output["delay"] // output["frames"] + 2), *x.shape[1:]), x.dtype)
    line = np.concatenate([x, more])[None]
    for _ in range(2):
        hops = range(0, line.shape[1] - hop + 1, hop)
        made = np.concatenate([np.asarray(step(line[:, n : n + hop]))[0] for n in hops])[output["delay"] :]
        np.testing.assert_allclose(made[: len(want)], want, rtol=tolerance, atol=tolerance)
        step.reset()
