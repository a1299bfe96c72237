"""Correlations along a row of 16-bit numbers by ``dot2``: several outputs from one pass over the row.

``correlate_<outputs>x<taps>_s<stride>`` replaces the loops of ``c[n] += a[n * stride + k] * b[k]``. The row is read by aligned
words: an output that starts at an even element multiplies whole pairs, with its odd last element apart; one that
starts at an odd element has its first element apart. Two neighbours of three taps take two loads and four multiplications:

    row words (x0, x1), (x2, x3); weight words (w0, w1), (w1, w2)
    c0 += x0 w0 + x1 w1 (dot2) + x2 w2 (mac_low_high)     c1 += x1 w0 (mac_high_low) + x2 w1 + x3 w2 (dot2)

A single tap, one of several that lie apart, multiplies both halves of words that start at any element.
"""

from __future__ import annotations

from functools import cache

from microc.isa.tensor import Part, Step, TensorIntrin

MOST_TAPS = 16
SHAPES = ((1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (6, 1), (6, 2))
"""Outputs and stride."""
_HALVES = ("low", "high")


def correlation(outputs: int, taps: int, stride: int) -> str:
    """The name of a correlation."""
    return f"correlate_{outputs}x{taps}_s{stride if outputs > 1 else 1}"


@cache
def _row(element: int) -> Part:
    """The aligned word of the row that holds an element."""
    return Part(element - element % 2, ("load_i16x2_aligned",), 2)


@cache
def _pair(tap: int) -> Part:
    """The weights ``tap`` and ``tap + 1``."""
    return Part(tap, ("load_i16x2",), 2)


def _product_of(left: int, right: int) -> str:
    """The product of one half of each word, by the numbers of the elements that are meant."""
    return f"mac_{_HALVES[left % 2]}_{_HALVES[right % 2]}"


def _apart(outputs: int) -> TensorIntrin:
    """One tap for neighbouring outputs."""
    weight = Part(0, (), 1)
    steps = tuple(Step(Part(n - n % 2, ("load_i16x2",), 2), weight, _product_of(n, 0), n) for n in range(outputs))
    order = tuple(range(outputs))
    return TensorIntrin(correlation(outputs, 1, 1), "int16", "int16", order, (0,) * outputs, steps, outputs=outputs)


def _single(output: int, element: int, tap: int, taps: int) -> Step:
    """One product. Weight words start at the tap itself, the last tap is the top of the word before."""
    top = tap == taps - 1
    return Step(_row(element), _pair(tap - 1 if top else tap), _product_of(element, top), output)


def _steps(output: int, start: int, taps: int) -> list[Step]:
    """The products of one output whose first element is ``start``."""
    steps, tap = [], 0
    if start % 2:
        steps.append(_single(output, start, 0, taps))
        tap = 1
    while tap + 1 < taps:
        steps.append(Step(_row(start + tap), _pair(tap), "dot2", output))
        tap += 2
    if tap < taps:
        steps.append(_single(output, start + tap, tap, taps))
    return steps


def _correlate(outputs: int, taps: int, stride: int) -> TensorIntrin:
    """Steps run along the row by two words, which one instruction can load, so that few are held at once."""
    places = [(n, k) for n in range(outputs) for k in range(taps)]
    steps = [step for n in range(outputs) for step in _steps(n, n * stride, taps)]
    return TensorIntrin(
        correlation(outputs, taps, stride),
        "int16",
        "int16",
        tuple(n * stride + k for n, k in places),
        tuple(k for _, k in places),
        tuple(sorted(steps, key=lambda step: (step.left.offset // 4, step.output))),
        aligned_a=True,
        outputs=outputs,
    )


CORRELATIONS = (
    *(_apart(outputs) for outputs, stride in SHAPES if stride == 1 and outputs > 1),
    *(_correlate(outputs, taps, stride) for outputs, stride in SHAPES for taps in range(2, MOST_TAPS + 1)),
)
