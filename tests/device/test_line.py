# SPDX-License-Identifier: Apache-2.0
"""Lines that come and go: ports found by USB ids, rates that are tried, plugs pulled and boards reset in the middle of a run."""

from __future__ import annotations

import os
import select
import threading
import time
from pathlib import Path

import pytest

from microc.device import transport
from microc.device.boards import find_boards, find_nearest_emulated_board, list_boards, load_board
from microc.device.client import Client
from microc.device.line_protocol import FrameDecoder, Operation
from microc.device.transport import (
    ADAPTERS,
    PipeTransport,
    Port,
    find_board_port,
    open_transport,
    select_candidate_ports,
)
from microc.errors import DeviceError, UsageError
from microc.run import board_project
from tests.device.test_client import DAWDLE, TOTAL, A, first_of, ints, pipe

NUCLEO = Port("/dev/ttyACM0", "STM32 STLink", "0483:374b", "066AFF")
ADAPTER = Port("/dev/ttyUSB0", "FT232R", "0403:6001", "A1")
MODEM = Port("/dev/ttyS0", "ttyS0", "", "")


def test_a_board_is_found_by_its_usb_ids_else_behind_an_adapter() -> None:
    every = (MODEM, ADAPTER, NUCLEO)
    assert select_candidate_ports(load_board("nucleo-f401re"), every) == (NUCLEO,)
    assert select_candidate_ports(load_board("nucleo-f401re"), (MODEM, ADAPTER)) == (ADAPTER,)
    assert select_candidate_ports(load_board("raspberry-pi-pico"), every) == (ADAPTER,)
    assert select_candidate_ports(load_board("raspberry-pi-pico"), (MODEM,)) == ()


def test_ids_of_boards_are_not_those_of_bare_adapters() -> None:
    for name in list_boards():
        own = set(load_board(name).raw.get("usb", ()))
        assert not own & set(ADAPTERS) - {"0403:6010"}, name  # two lines of an FTDI chip are soldered on some boards


@pytest.mark.parametrize(
    ("found", "message"),
    [((NUCLEO, ADAPTER), ""), ((), "none"), ((MODEM,), "ttyS0"), ((ADAPTER, ADAPTER), "any of 2 ports")],
)
def test_the_port_is_found_or_the_refusal_says_what_is_there(
    found: tuple[Port, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "list_ports", lambda: found)
    board = load_board("nucleo-f401re")
    if not message:
        assert find_board_port(board) == NUCLEO.name
        return
    with pytest.raises(UsageError, match=message) as caught:
        find_board_port(board)
    assert "--port" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "core"),
    [
        ("nucleo-g071rb", "cortex-m0plus"),
        ("nucleo-f401re", "cortex-m4"),
        ("esp32-c3", "rv32imc"),
        ("d1-mini", "xtensa-lx106"),
    ],
)
def test_absent_board_has_an_emulated_relative(name: str, core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "list_ports", tuple)
    with pytest.raises(UsageError) as caught:
        find_board_port(load_board(name))
    near = load_board(caught.value.hint.rpartition("--board ")[2])
    assert near.virtual and near.target.cpu == core


def test_a_board_that_runs_in_an_emulator_needs_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "list_ports", tuple)
    with pytest.raises(UsageError) as caught:
        find_board_port(load_board("raspberry-pi-pico"))
    assert caught.value.hint.endswith("leave out --port: it runs in an emulator")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("raspberry-pi-pico", "raspberry-pi-pico"),
        ("nucleo-f446re", "netduinoplus2"),  # 512 and 128 KiB: nearer than the 4 MiB of mps2-an386
        ("stm32f746g-disco", "mps2-an500"),
        ("raspberry-pi-pico2-riscv", "qemu-hazard3"),
        ("numaker-m55m1", "mps3-an547"),
        ("frdm-mcxn947", "mps2-an505"),
        ("esp32", "qemu-xtensa"),
    ],
)
def test_the_nearest_emulated_board(name: str, nearest: str) -> None:
    found = find_nearest_emulated_board(load_board(name))
    assert found is not None and found.name == nearest and found.virtual


def test_a_word_means_boards() -> None:
    assert [board.name for board in find_boards("nucleo-f446re")] == ["nucleo-f446re"]
    picos = {board.name for board in find_boards("Pico")}
    assert {"raspberry-pi-pico", "raspberry-pi-pico2", "raspberry-pi-pico2-riscv"} <= picos
    for word in ("xyzzy", ""):
        with pytest.raises(UsageError):
            find_boards(word)


class OneRate:
    """A board behind a line that says nothing at any other rate."""

    description = "one rate"

    def __init__(self, inner: PipeTransport, right: bool) -> None:
        self._inner = inner
        self._right = right

    def read(self, timeout: float) -> bytes:
        if not self._right:
            time.sleep(timeout)
        return self._inner.read(timeout) if self._right else b""

    def write(self, data: bytes) -> None:
        if self._right:
            self._inner.write(data)

    def reopen(self) -> bool:
        return False

    def close(self) -> None:
        self._inner.close()


def test_rates_are_tried_in_turn(firmware: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def opened(port: str, rate: int) -> OneRate:
        tried.append(rate)
        return OneRate(pipe(firmware), rate == 9600)

    monkeypatch.setattr(board_project, "open_transport", opened)
    board_project.open_line_probing_rates("port", (115200, 9600, 300)).close()
    assert tried == [115200, 9600]
    with pytest.raises(DeviceError, match="no answer at any of the rates 115200, 300"):
        board_project.open_line_probing_rates("port", (115200, 300))
    board_project.open_line_probing_rates("port", ()).close()
    assert tried[-1] == 115200


class Restarting:
    """A board that is reset one second into its first run."""

    description = "restarting"

    def __init__(self, firmware: Path) -> None:
        self._firmware = firmware
        self._inner = pipe(firmware)
        self.reset_at = 0.0

    def read(self, timeout: float) -> bytes:
        if self.reset_at and time.monotonic() < self.reset_at:
            time.sleep(min(timeout, self.reset_at - time.monotonic()))
            return b""
        return self._inner.read(timeout)

    def write(self, data: bytes) -> None:
        if not self.reset_at and any(f.operation == Operation.RUN for f in FrameDecoder().feed(data)):
            self._inner.close()
            self._inner = pipe(self._firmware)
            self.reset_at = time.monotonic() + 1.0
        elif time.monotonic() >= self.reset_at:
            self._inner.write(data)

    def reopen(self) -> bool:
        return False

    def close(self) -> None:
        self._inner.close()


def test_a_reset_in_the_middle_of_a_run_is_reported_within_three_seconds(firmware: Path) -> None:
    line = Restarting(firmware)
    with Client(line) as client, pytest.raises(DeviceError, match="has restarted"):
        client.run()
    assert time.monotonic() - line.reset_at < 3.0


class Plug:
    """A firmware's line as a terminal whose name stays: it is pulled out when the first run begins, and put in again."""

    def __init__(self, program: PipeTransport, name: Path) -> None:
        self.pulled = False
        self._program = program
        self._name = name
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._put_in()

    def __enter__(self) -> Plug:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(5)
        self._pull_out()
        self._program.close()

    def _put_in(self) -> None:
        self._far, self._near = os.openpty()
        self._name.unlink(missing_ok=True)
        self._name.symlink_to(os.ttyname(self._near))

    def _pull_out(self) -> None:
        os.close(self._far)
        os.close(self._near)

    def _carry(self) -> None:
        decoder = FrameDecoder()
        while not self._ended.is_set():
            if select.select([self._far], [], [], 0.01)[0]:
                data = os.read(self._far, 4096)
                self._program.write(data)
                if not self.pulled and any(f.operation == Operation.RUN for f in decoder.feed(data)):
                    self.pulled = True
                    self._pull_out()
                    time.sleep(0.2)
                    self._put_in()
            if answer := self._program.read(0.01):
                os.write(self._far, answer)


def test_a_plug_pulled_in_the_middle_of_a_run(firmware: Path, tmp_path: Path) -> None:
    """The board keeps its power: the host goes on where it was, and the run has happened exactly once."""
    name = tmp_path / "tty"
    with Plug(pipe(firmware), name) as plug, Client(open_transport(str(name)), timeout=0.1, reconnect=5.0) as client:
        client.write_tensor(A, ints(DAWDLE))
        client.reset_state()
        client.run()
        assert plug.pulled
        assert first_of(client.read_tensor(TOTAL)) == DAWDLE


def test_a_plug_that_stays_out_is_an_error_in_time(firmware: Path) -> None:
    far, terminal = os.openpty()
    with Client(open_transport(os.ttyname(terminal)), timeout=0.1, reconnect=0.5) as client:
        os.close(terminal)
        os.close(far)
        begin = time.monotonic()
        with pytest.raises(DeviceError, match="port is gone"):
            client.hello()
        assert 0.4 < time.monotonic() - begin < 3.0
