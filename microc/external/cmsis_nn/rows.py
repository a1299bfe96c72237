"""Convolutions of bytes that the library has ways of its own for, and of which these do not compute what is meant.

Over windows of one number it takes what there is of the data for results that padding behind it makes. Over one row MVE computes
the first, the middle and the last results apart (``arm_convolve_1_x_n_s8``): padding is to be alike on both sides, on the right
one more perhaps, and the last windows are to begin where nothing but padding is missing at their ends.
"""

from __future__ import annotations

import math

from microc.ops.convolution.geometry import Geometry


def misread(g: Geometry, *, vectors: bool) -> str:
    """Why the library would compute something else, or read what is not there; ``vectors``: in its version for MVE."""
    top, left, bottom, right = g.padding
    if g.kernel == (1, 1) and g.dilation == (1, 1) and not (top or left):
        return "it pads behind windows of one number" if bottom or right else ""
    one_row = g.height == g.kernel[0] == g.dilation[1] == 1 and g.strides[1] * g.channels % 4 == 0
    if vectors and one_row and (top or bottom or not _whole(g)):
        return "its windows over one row end elsewhere than the library takes for granted"
    return ""


def _whole(g: Geometry) -> bool:
    """Whether the three parts of a row together are the row; where they are not as many, the library takes its usual way."""
    left, step, kernel = g.padding[1], g.strides[1], g.kernel[1]
    total = (g.out_width - 1) * step + kernel - g.width
    more = int(math.fmod(total, 2))  # as C has it
    if 2 * left + more != total:
        return False
    first = max(1, -(-left // step)) if left else 0
    last = max(1, -(-(left + more) // step)) if left + more else 0
    middle = max(g.out_width - first - last, 0)
    if first + middle + last != g.out_width:
        return True
    begin = step * (first + middle) - left
    within = (first - 1) * step - left + kernel <= g.width if first else True
    behind = last if more else left
    ends = begin + kernel - 1 == g.width and (last - 1) * step + 1 <= behind if last else True
    return within and ends
