# SPDX-License-Identifier: Apache-2.0
"""Convolutions over one row, and of single numbers: which of them CMSIS-NN computes as they are meant."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

import microc
from microc.cli import main
from microc.external.cmsis_nn.layers import wrong_convolution_reason
from microc.ops.convolution.geometry import Geometry
from tests.device.smoke import needs
from tests.external.test_cmsis_nn import COPY, OUT, _layer, copied, parted

Row = list[int | None]
"""Which numbers of the data a window reads; None: padding, or what the library left in its buffer."""


def row(width: int, kernel: int, step: int, left: int, right: int) -> Geometry:
    return Geometry(1, 1, width, 4, 8, (1, kernel), (1, step), (0, left, 0, right), (1, 1), 1)


def meant(g: Geometry) -> list[Row]:
    starts = (g.strides[1] * k - g.padding[1] for k in range(g.out_width))
    return [[n if 0 <= n < g.width else None for n in range(start, start + g.kernel[1])] for start in starts]


def read(g: Geometry) -> list[Row] | None:
    """What ``arm_convolve_1_x_n_s8`` reads with MVE; None where it returns an error. A number beyond the data stays
    one."""
    left, step, kernel = g.padding[1], g.strides[1], g.kernel[1]
    total = (g.out_width - 1) * step + kernel - g.width
    odd = int(math.fmod(total, 2))
    if 2 * left + odd != total:
        return None
    last = max(1, int((left + odd + step - 1) / step)) if left + odd != 0 else 0
    first = max(1, int((left + step - 1) / step)) if left != 0 else 0
    middle = max(g.out_width - first - last, 0)
    if last + middle + first != g.out_width:
        return meant(g)  # arm_convolve_s8
    buffer: Row = [None] * left + list(range(kernel))
    found = [buffer[step * k : step * k + kernel] for k in range(first)]
    begin = step * first - left
    if begin < 0:
        return None
    found += [list(range(begin + step * k, begin + step * k + kernel)) for k in range(middle)]
    begin = step * (first + middle) - left
    buffer = [*range(begin, begin + kernel - 1), *[None] * (last if odd else left)]
    return found + [buffer[step * k : step * k + kernel] for k in range(last)]


def rows() -> Iterator[Geometry]:
    for width, kernel, step, left, right in product((5, 8, 11, 20), range(1, 8), (1, 2, 3), range(5), range(6)):
        if width + left + right >= kernel and left < kernel and kernel > 1:
            yield row(width, kernel, step, left, right)


def test_rows_are_the_librarys_where_it_reads_what_is_meant() -> None:
    wrong = [g for g in rows() if (not wrong_convolution_reason(g, uses_mve=True)) != (read(g) == meant(g))]
    assert not wrong
    assert {bool(wrong_convolution_reason(g, uses_mve=True)) for g in rows()} == {True, False}
    assert not any(wrong_convolution_reason(g, uses_mve=False) for g in rows())


def test_other_convolutions_are_the_librarys() -> None:
    tall = Geometry(1, 6, 20, 4, 8, (1, 3), (1, 1), (0, 2, 0, 0), (1, 1), 1)
    narrow = Geometry(1, 1, 20, 3, 8, (1, 3), (1, 1), (0, 2, 0, 0), (1, 1), 1)
    assert not wrong_convolution_reason(tall, uses_mve=True) and not wrong_convolution_reason(narrow, uses_mve=True)
    higher = Geometry(1, 1, 20, 4, 8, (1, 3), (1, 1), (1, 1, 0, 1), (1, 1), 1)
    assert wrong_convolution_reason(higher, uses_mve=True) and not wrong_convolution_reason(higher, uses_mve=False)
    one = Geometry(1, 6, 6, 4, 8, (1, 1), (1, 1), (0, 0, 1, 1), (1, 1), 1)
    assert (
        wrong_convolution_reason(one, uses_mve=False)
        == "it pads the end of an axis, which the version for 1x1 windows ignores"
    )


def test_what_is_read_otherwise_stays_ours() -> None:
    graph = _layer("conv2d", (1, 1, 20, 4), (8, 1, 3, 4), result=OUT, padding=(0, 2, 0, 0))
    assert parted(graph).taken
    found = parted(graph, "cortex-m55")
    assert not found.taken and "over one row" in found.refused[0][1]


ROWS = [
    ((1, 1, 20, 4), 3, 1, 1, 1),
    ((1, 1, 20, 4), 4, 1, 1, 2),
    ((2, 1, 20, 4), 3, 2, 0, 1),
    ((1, 1, 3, 4), 5, 1, 2, 2),
]


@copied
@pytest.mark.emulator
@pytest.mark.parametrize("case", ROWS)
@needs("arm-none-eabi-gcc")
@needs("qemu-system-arm")
def test_rows_agree_on_an_emulated_m55(case: tuple[tuple[int, ...], int, int, int, int], tmp_path: Path) -> None:
    x, kernel, step, left, right = case
    assert not wrong_convolution_reason(row(x[2], kernel, step, left, right), uses_mve=True)
    graph = _layer("conv2d", x, (8, 1, kernel, 4), result=OUT, strides=(1, step), padding=(0, left, 0, right))
    program = microc.compile(graph, board="mps3-an547", external={"cmsis-nn": COPY}, external_choice="all")
    assert any("cmsis-nn" in call.rule for call in program.module.calls)
    assert main(["verify", str(program.write(tmp_path / "firmware"))]) == 0
