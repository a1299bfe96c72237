# SPDX-License-Identifier: Apache-2.0
"""The client against emulated boards: the protocol over their own UARTs, ticks that repeat, the line's speed and faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from microc.base import file_access
from microc.codegen.project.protocols import max_payload
from microc.device.boards import load_board
from microc.device.client import Client
from microc.device.emulators import Emulator
from microc.device.transport import open_transport
from microc.errors import DeviceError
from microc.target import Board
from tests.device.faults import FaultyTransport, Rates
from tests.device.smoke import FAMILIES, build, needs

pytestmark = [pytest.mark.cross, pytest.mark.emulator, needs("arm-none-eabi-gcc", "qemu-system-arm")]

A, B, OUT, SUM, TOTAL = range(5)
ONES = np.ones(150, "<i4")


def firmware(board: Board, folder: Path) -> Path:
    runtime = file_access.runtime_c_folder()
    program = [Path(__file__).with_name("rpc_firmware.c"), runtime / "tests" / "fake_model.c"]
    program += [runtime / "src" / "microc_frame.c", runtime / "src" / "microc_rpc.c"]
    payload = f"-DMICROC_RPC_MAX_PAYLOAD={max_payload(board)}"
    return build(board, folder, "-I", str(runtime / "tests"), payload, program=program)


@pytest.fixture(scope="module", params=FAMILIES)
def booted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Board, Emulator]]:
    board = load_board(request.param)
    with Emulator(board, firmware(board, tmp_path_factory.mktemp(request.param))) as emulator:
        yield board, emulator


def test_runs_on_the_board(booted: tuple[Board, Emulator]) -> None:
    board, emulator = booted
    with Client(open_transport(emulator.url)) as client:
        assert client.info.tick_hz == board.raw["timer"]["hz"]
        assert client.info.max_payload == max_payload(board)
        client.reset_state()
        for index, value in ((A, 3), (B, 4)):
            client.write_tensor(index, (value * ONES).tobytes())
        first = client.run()
        assert client.read_tensor(OUT) == (14 * ONES).tobytes()
        ticks = client.profile()
        assert client.read_tensor(OUT) == (28 * ONES).tobytes()
        assert client.read_tensor(SUM) == (7 * ONES).tobytes()
        assert 1000 < sum(ticks) < first.mean + 1000
        timing = client.run(repeat=20)
        assert timing.max - timing.min <= 1  # instructions, converted to ticks
        stats = client.stats()
        assert stats.stack_bytes is not None and 64 <= stats.stack_bytes <= 1024
        assert (stats.bad_frames, stats.refusals) == (0, 0)


def test_a_faulty_line(booted: tuple[Board, Emulator]) -> None:
    if booted[0].name not in FAMILIES[:2]:
        pytest.skip("the protocol is the same on all boards: two are enough")
    line = FaultyTransport(open_transport(booted[1].url), Rates(0.02, 0.02, 0.02, 0.02, 0.2), seed=5)
    with Client(line, timeout=0.05, retries=12) as client:
        client.reset_state()
        client.write_tensor(B, (0 * ONES).tobytes())
        for step in range(1, 21):
            client.write_tensor(A, (step * ONES).tobytes())
            client.run()
            assert client.read_tensor(OUT) == (step * (step + 1) * ONES).tobytes()


def test_a_reset_is_noticed(booted: tuple[Board, Emulator]) -> None:
    with Client(open_transport(booted[1].url)) as client:
        client.run()
        booted[1].reset()
        with pytest.raises(DeviceError, match="restarted"):
            client.run()
        client.hello()
        client.run()
