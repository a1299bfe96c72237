"""Bytes of workspace that the library's functions ask for, in the version that a core compiles: what its own
``arm_*_get_buffer_size`` functions say, against which a copy's are held by the tests."""

from __future__ import annotations

from microc.external.cmsis_nn.numbers import DSP, MVE
from microc.ops.convolution.geometry import Geometry

BLOCK = 124
"""Channels that the version for MVE takes at once of a depthwise layer of bytes (``CH_IN_BLOCK_MVE``)."""
_LARGEST = 512
"""Taps from which on a depthwise layer of int16 goes without."""


def convolution_bytes(g: Geometry, kind: str, *, wide: bool) -> int:
    """``arm_convolve_wrapper_s8`` or (``wide``) ``_s16``: patches of the data, four with MVE, else two of int16."""
    depth = g.kernel[0] * g.kernel[1] * g.channels
    if wide:
        return 8 * _whole(depth, 8) if kind == MVE else 4 * depth
    if g.kernel == (1, 1) and g.dilation == (1, 1) and not any(g.padding[:2]):
        return 4 * g.channels if kind == DSP and g.strides == (1, 1) else 0  # of one compiler: another needs nothing
    if kind != MVE:
        return 4 * _whole(depth, 4)
    row = (g.kernel[1] + g.padding[1]) * g.channels if g.height == 1 else 0
    return _whole(max(4 * _whole(depth, 16), row), 4)


def depthwise_bytes(g: Geometry, kind: str, *, wide: bool) -> int:
    """``arm_depthwise_conv_wrapper_s8`` or ``_s16``: a patch of int16, or four of blocks of channels, where the library has a
    fast way."""
    taps = g.kernel[0] * g.kernel[1]
    fast = g.out_channels == g.channels and g.dilation == (1, 1) and (taps < _LARGEST if wide else g.batch == 1)
    if not fast or kind not in (MVE, DSP):
        return 0
    if kind == MVE:
        return 8 * g.channels * taps + 8 if wide else 4 * BLOCK * taps
    small = g.kernel == (3, 3) and max(g.padding[:2]) <= 1
    return 0 if small and not wide else _whole(2 * g.channels * taps, 4)


def average_bytes(channels: int, kind: str) -> int:
    """``arm_avgpool_s8`` and ``_s16``: a sum for every channel."""
    return 4 * channels if kind == DSP else 0


def _whole(count: int, step: int) -> int:
    return -(-count // step) * step
