# SPDX-License-Identifier: Apache-2.0
"""Tables of what a firmware takes around its networks."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import microc
from microc.codegen.c.resources import (
    PARTS,
    _read_firmware_tables,
    estimate_library_flash_bytes,
    estimate_max_code_bytes,
    list_code_size_terms,
    min_and_max_flash_without_networks,
)
from microc.compiler.fit.search import compute_firmware_footprint
from microc.compiler.options import Options, make_options
from microc.compiler.pipeline import compile_model
from microc.device.boards import list_boards, load_board
from microc.module import Module
from microc.project.checks import check_model
from microc.run.board_project import build_project, open_project
from tests.device.smoke import needs
from tests.support import digits


def compiled(board: str) -> Module:
    return compile_model(digits.FLOAT, load_board(board).target, make_options(), None)


def test_every_board_has_a_row() -> None:
    """Frameworks alone are unknown: they bring their own start-up and drivers."""
    for name in list_boards():
        board = load_board(name)
        row = _read_firmware_tables()["boards"].get(name)
        if board.target.isa == "host" or "framework" in board.raw:
            assert row is None
        else:
            assert row is not None and row["core"] == board.target.cpu.partition("+")[0]
            assert (
                3000
                < min_and_max_flash_without_networks(board, "rpc")[0]
                == min_and_max_flash_without_networks(board, "rpc")[1]
                < 12_000
            )
    assert all(len(row) == len(PARTS) and min(row) >= 0 for row in _read_firmware_tables()["cores"].values())


def test_boards_without_a_row_are_between_those_of_their_core() -> None:
    """A framework's core has no row, and takes the bounds of all."""
    least, most = min_and_max_flash_without_networks(load_board("esp32"), "rpc")
    assert least < most
    module = compiled("esp32")
    rows = _read_firmware_tables()["cores"].values()
    assert estimate_max_code_bytes(module) >= max(np.array(list(rows)) @ list_code_size_terms(module)) - 1


@pytest.mark.parametrize(("board", "least"), [("microbit", 2000), ("mps2-an386", 0)])
def test_float_support_is_the_library_s(board: str, least: int) -> None:
    """A core without an FPU links sums, products and comparisons of floats."""
    module = compiled(board)
    need = compute_firmware_footprint((module,), load_board(board))
    assert estimate_library_flash_bytes((module,)) >= least
    assert need.least_flash < need.flash
    assert need.code == min_and_max_flash_without_networks(load_board(board), "rpc")[1] + estimate_library_flash_bytes(
        (module,)
    ) + estimate_max_code_bytes(module)


@pytest.mark.parametrize(
    ("board", "protocol"),
    [
        pytest.param("lm3s811evb", "rpc", marks=needs("arm-none-eabi-gcc")),
        pytest.param("mps2-an386", "mlperf", marks=needs("arm-none-eabi-gcc")),
        pytest.param("hifive1", "tuning", marks=needs("riscv64-unknown-elf-gcc")),
        pytest.param("arduino-mega", "rpc", marks=needs("avr-gcc")),
        pytest.param("arduino-mega", "mlperf", marks=needs("avr-gcc")),
    ],
)
@pytest.mark.cross
def test_static_ram_is_estimated_as_it_is_linked(
    board: str, protocol: Literal["rpc", "mlperf", "tuning"], tmp_path: Path
) -> None:
    """The arena is aligned beyond its size: up to 8 bytes. On AVR, constants of some kernels are variables: up to 64."""
    program = microc.compile(digits.INT8, board=board, protocol=protocol)
    linked = build_project(open_project(program.write(tmp_path / board))).sizes.static_ram
    estimated = compute_firmware_footprint((program.module,), program.board).static_ram
    assert 0 <= linked - estimated <= (64 if board == "arduino-mega" else 8)


@pytest.mark.parametrize(("room", "verdict"), [(1.05, "maybe"), (1.4, "yes")])
def test_without_a_compiler_a_network_fits_with_a_reserve(
    room: float, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate is no proof: networks are known whose firmware is larger."""
    monkeypatch.setattr("microc.project.checks.link_and_read_sizes", lambda *_: None)
    board = load_board(digits.small_board(tmp_path, 1 << 20, 1 << 17))
    need = check_model(digits.FLOAT, Options(), board, exact=True).need
    assert need is not None
    flash = need.weights + int(room * need.code)
    found = check_model(digits.FLOAT, Options(), load_board(digits.small_board(tmp_path, flash, 1 << 17)), exact=True)
    assert found.verdict == verdict and not found.built
