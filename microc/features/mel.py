"""The mel scale, and filter banks of triangles over it.

Two scales: ``htk``, 2595 log10(1 + f / 700), and ``slaney``, linear up to 1 kHz and logarithmic above (Slaney, *Auditory
Toolbox*). Triangles are linear in ``hertz`` (librosa) or in ``mel`` (``tf.signal.linear_to_mel_weight_matrix``, HTK, where
frequency 0 has no part). ``slaney`` normalises a triangle's area to 1 in hertz.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from microc.dtypes import Array

SCALES = ("htk", "slaney")
TRIANGLES = ("hertz", "mel")
NORMS = ("none", "slaney")
_LINEAR, _KNEE, _STEP = 200 / 3, 1000.0, np.log(6.4) / 27


def to_mel(hertz: Array, scale: str) -> Array:
    """Frequencies on a mel scale."""
    f = np.asarray(hertz, np.float64)
    if scale == "htk":
        return np.asarray(2595 * np.log10(1 + f / 700))
    return np.where(f < _KNEE, f / _LINEAR, _KNEE / _LINEAR + np.log(np.maximum(f, _KNEE) / _KNEE) / _STEP)


def to_hertz(mel: Array, scale: str) -> Array:
    """And back."""
    m = np.asarray(mel, np.float64)
    if scale == "htk":
        return np.asarray(700 * (10 ** (m / 2595) - 1))
    knee = _KNEE / _LINEAR
    return np.where(m < knee, m * _LINEAR, _KNEE * np.exp(_STEP * (np.maximum(m, knee) - knee)))


def mel_weights(
    bins: int, rate: float, bands: int, fmin: float, fmax: float, scale: str, triangles: str, norm: str
) -> Array:
    """Weights (bands, bins) by which ``bins`` frequencies from 0 to rate / 2 make ``bands``; float64."""
    frequencies = np.linspace(0, rate / 2, bins)
    first, last = (float(each) for each in to_mel(np.array([fmin, fmax]), scale))
    ends = np.linspace(first, last, bands + 2)
    corners = to_hertz(ends, scale)
    places, edges = (frequencies, corners) if triangles == "hertz" else (to_mel(frequencies, scale), ends)
    rising = (places - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - places) / (edges[2:] - edges[1:-1])[:, None]
    weights: Array = np.maximum(0, np.minimum(rising, falling))
    if triangles == "mel":
        weights[:, 0] = 0
    if norm == "slaney":
        weights *= (2 / (corners[2:] - corners[:-2]))[:, None]
    return weights


def packed(weights: Array) -> tuple[Array, tuple[int, ...], tuple[int, ...]]:
    """The weights of bands from their first to their last that is not zero, one band behind the other; where each begins, how
    many it has."""
    starts, widths, parts = [], [], []
    for row in weights:
        (inside,) = np.nonzero(row)
        first, end = (int(inside[0]), int(inside[-1]) + 1) if inside.size else (0, 0)
        starts.append(first)
        widths.append(end - first)
        parts.append(row[first:end])
    return np.concatenate(parts), tuple(starts), tuple(widths)


def box_weights(bins: int, rate: float, edges: Sequence[float]) -> Array:
    """Weights (len(edges) - 1, bins): one for the frequencies f with edge <= f < next edge."""
    frequencies = np.linspace(0, rate / 2, bins)
    return np.array([(frequencies >= low) & (frequencies < high) for low, high in pairwise(edges)], np.float64)
