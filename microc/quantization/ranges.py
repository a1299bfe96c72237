"""Which reals the integers of an activation span: estimators, and the choice among them by the error that they cause.

A wide range rounds coarsely, a narrow one saturates. Every estimator proposes a range; each is tried on the elements that
were drawn, and the least mean squared error wins. Other samples will exceed what these hold: by how much is told by the
extremes of each sample, and added to the error, so that 16 bits have room to spare. Sources: TensorRT's entropy calibration
(Migacz, 2017), "A White Paper on Neural Network Quantization" (Nagel et al., 2021) for the search by squared error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.quantization.observe import Statistics
from microc.quantization.scheme import Activation, activation, faked

Range = tuple[float, float]
Estimator = Callable[[Statistics, Array, str], Range]
_STRETCHES = np.array([*np.linspace(0.3, 1.0, 15), 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5])
_TAIL = 0.1
"""Of the samples, those of the largest extremes."""
_DECAY = 0.9
_BINS, _LEVELS = 2048, 128


def minmax(seen: Statistics, elements: Array, dtype: str) -> Range:
    """Everything that was seen."""
    return seen.low, seen.high


def moving_average(seen: Statistics, elements: Array, dtype: str) -> Range:
    """Minima and maxima of the samples, averaged with weights that fall by a tenth."""
    low, high = seen.lows[0], seen.highs[0]
    for a, b in zip(seen.lows, seen.highs, strict=True):
        low, high = _DECAY * low + (1 - _DECAY) * a, _DECAY * high + (1 - _DECAY) * b
    return low, high


def percentile(seen: Statistics, elements: Array, dtype: str) -> Range:
    """All but one element in ten thousand, at either end."""
    low, high = np.quantile(elements, (0.0001, 0.9999))
    return float(low), float(high)


def squared_error(seen: Statistics, elements: Array, dtype: str) -> Range:
    """The least squared error of those that shrink or stretch everything that was seen: either end for itself, then both."""
    low, high = min(seen.low, 0.0), max(seen.high, 0.0)
    highs, lows = np.unique(high * _STRETCHES), np.unique(low * _STRETCHES)
    for _ in range(2):
        high = min(highs, key=lambda top: _error(seen, (low, top), elements, dtype))
        low = min(lows, key=lambda bottom: _error(seen, (bottom, high), elements, dtype))
    return low, high


def entropy(seen: Statistics, elements: Array, dtype: str) -> Range:
    """The threshold at which the histogram of magnitudes loses least information in 128 levels (Kullback and Leibler's
    divergence)."""
    top = max(-seen.low, seen.high)
    if not top > 0:
        return seen.low, seen.high
    counts, edges = np.histogram(np.abs(elements), bins=_BINS, range=(0.0, top))
    best = min(range(_LEVELS, _BINS + 1, _LEVELS // 4), key=lambda bins: _divergence(counts.astype(np.float64), bins))
    threshold = float(edges[best])
    return max(seen.low, -threshold), min(seen.high, threshold)


def _divergence(counts: Array, bins: int) -> float:
    """Of the first ``bins``, the rest counted at their end, from the same in 128 levels."""
    told = counts[:bins].copy()
    told[-1] += counts[bins:].sum()
    owner = np.minimum(np.arange(bins) * _LEVELS // bins, _LEVELS - 1)
    filled = counts[:bins] > 0
    mass = np.bincount(owner, counts[:bins], _LEVELS)
    width = np.bincount(owner, filled, _LEVELS)
    spread = np.where(filled, (mass / np.maximum(width, 1))[owner], 0.0)
    p, q = told / told.sum(), spread / max(spread.sum(), 1.0)
    known = (p > 0) & (q > 0)
    lost = float(p[(p > 0) & (q == 0)].sum())
    return float((p[known] * np.log(p[known] / q[known])).sum()) + lost * _LEVELS


ESTIMATORS: Mapping[str, Estimator] = MappingProxyType(
    {
        "minmax": minmax,
        "percentile": percentile,
        "mse": squared_error,
        "entropy": entropy,
        "moving-average": moving_average,
    }
)
AUTO = "auto"
METHODS = (AUTO, *ESTIMATORS)


def chosen(seen: Statistics, dtype: str, method: str, power_of_two: bool = False) -> tuple[Activation, str]:
    """The quantisation of an activation, and the estimator that gave its range (``auto``: the one of the least squared error)."""
    elements = seen.elements.astype(np.float64)
    tried = ESTIMATORS if method == AUTO else {method: ESTIMATORS[method]}
    found = {name: _reachable(estimate(seen, elements, dtype), seen) for name, estimate in tried.items()}
    best = min(found, key=lambda name: _error(seen, found[name], elements, dtype)) if len(found) > 1 else method
    return activation(*found[best], dtype, power_of_two), best


def _reachable(span: Range, seen: Statistics) -> Range:
    """A range without what no sample reaches; a little more where these did, for floats round."""
    low, high = seen.reach
    return max(span[0], min(low, seen.low)), min(span[1], max(high, seen.high))


def _error(seen: Statistics, span: Range, elements: Array, dtype: str) -> float:
    """The mean squared error of what was drawn, as integers of a range, and of what other samples will hold beyond."""
    how = activation(*span, dtype)
    first, last = ((end - how.zero_point) * how.scale for end in dtypes.int_range(dtype))
    beyond = excess(np.array(seen.highs), last) if last < seen.reach[1] else 0.0
    beyond += excess(-np.array(seen.lows), -first) if first > seen.reach[0] else 0.0
    return float(np.mean(np.square(faked(elements, how) - elements))) + beyond / max(1, seen.size)


def excess(extremes: Array, end: float) -> float:
    """The expected square of what a sample exceeds ``end`` by, from the extremes of others.

    By how much they exceed a threshold is taken to be exponentially distributed (peaks over threshold: Pickands, 1975, in its
    simplest case), which tells about what is beyond all of them, too.
    """
    count = int(len(extremes) * _TAIL) or 1
    if len(extremes) <= count:
        return 0.0
    ordered = np.sort(extremes)
    threshold = ordered[-count - 1]
    mean = float((ordered[-count:] - threshold).mean())
    if not mean > 0:
        return 0.0
    return count / len(extremes) * float(np.exp(-max(end - threshold, 0.0) / mean)) * 2 * mean**2
