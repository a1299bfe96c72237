"""What integers may stand for reals: affine scales of activations, symmetric ones of weights.

real = scale * (q - zero_point), as in TFLite's and ONNX's specifications
(https://ai.google.dev/edge/litert/conversion/tensorflow/quantization/quantization_spec).
"""

from __future__ import annotations

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.frozen import frozen
from microc.graph.ir import Quant

WIDE = "int16"
"""What a loop's turns hand on."""
SMALLEST = float(np.finfo(np.float32).tiny)
"""No scale is smaller: float32 has normal numbers from here on."""
Span = tuple[int, int]
"""The least and the largest level."""


@frozen
class Activation:
    """How an activation is stored: ``dtype`` (int8, uint8, int16) and its quantisation, of one scale."""

    dtype: str
    quant: Quant

    @property
    def scale(self) -> float:
        return self.quant.scale[0]

    @property
    def zero_point(self) -> int:
        return self.quant.zero_point[0]


@frozen
class Weight:
    """How a constant is stored: integers, and what they stand for (a scale, or one for each index of axis 0)."""

    data: Array
    quant: Quant

    @property
    def real(self) -> Array:
        """The reals that are stored."""
        scales, zeros = np.array(self.quant.scale, np.float64), np.array(self.quant.zero_point, np.float64)
        shape = (-1, *(1,) * (self.data.ndim - 1)) if self.quant.axis == 0 else ()
        return np.asarray((self.data - zeros.reshape(shape)) * scales.reshape(shape))


def activation(low: float, high: float, dtype: str, power_of_two: bool = False) -> Activation:
    """The affine quantisation of the reals from ``low`` to ``high``, and zero, which is exact.

    16 bits are symmetric: their kernels add no zero point. ``power_of_two``: the scale is the next power of two.
    """
    least, most = dtypes.int_range(dtype)
    low, high = min(low, 0.0), max(high, 0.0)
    if dtype == "int16":
        scale = _scale(max(-low, high) / most, power_of_two)
        return Activation(dtype, Quant((scale,), (0,)))
    scale = _scale((high - low) / (most - least), power_of_two)
    zero = int(np.clip(np.rint(least - low / scale), least, most))
    return Activation(dtype, Quant((scale,), (zero,)))


def _scale(real: float, power_of_two: bool) -> float:
    """A scale that float32 has; of a tensor that is zero throughout, one."""
    if not real > 0:
        return 1.0
    real = max(real, SMALLEST)
    return float(np.float32(2.0 ** np.ceil(np.log2(real)) if power_of_two else real))


def next_powers(scales: Array) -> Array:
    """The powers of two that are at least as large as positive scales."""
    return np.asarray(np.exp2(np.ceil(np.log2(scales))))


def levels(bits: int) -> Span:
    """The least and the largest level of a weight of so many bits. They are symmetric, but of the four levels of 2 bits none
    is given up: that lowers the error of normally distributed weights by 1 dB (of 4 bits by 0.4)."""
    most = (1 << (bits - 1)) - 1
    return (-2, 1) if bits == 2 else (-most, most)


def rounded(reals: Array, quant: Quant, dtype: str) -> Array:
    """``reals`` as the nearest stored integers, halves to even, saturated."""
    low, high = dtypes.int_range(dtype)
    shape = (-1, *(1,) * (reals.ndim - 1)) if quant.axis == 0 else ()
    scales = np.array(quant.scale, np.float64).reshape(shape)
    zeros = np.array(quant.zero_point, np.float64).reshape(scales.shape)
    steps = np.rint(np.asarray(reals, np.float64) / scales) + zeros
    return np.asarray(np.clip(steps, low, high), dtypes.to_numpy(dtype))


def dequantised(stored: Array, quant: Quant) -> Array:
    """The reals that integers of one scale stand for."""
    return np.asarray((stored.astype(np.float64) - quant.zero_point[0]) * quant.scale[0])


def faked(reals: Array, how: Activation) -> Array:
    """What remains of ``reals`` when they have been integers."""
    low, high = dtypes.int_range(how.dtype)
    steps = np.clip(np.rint(reals / how.scale) + how.zero_point, low, high)
    return np.asarray((steps - how.zero_point) * how.scale)
