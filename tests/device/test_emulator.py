# SPDX-License-Identifier: Apache-2.0
"""The ports on emulated boards: echo, ticks that repeat exactly, stack watermark; and the emulator's life and death."""

from __future__ import annotations

import contextlib
import random
import re
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from microc.device.boards import load_board
from microc.device.emulators import Emulator, QmpSession
from microc.errors import DeviceError, ToolError, UsageError
from microc.run.profile import ticks_to_instructions
from microc.target import Board
from tests.device.smoke import FAMILIES, Line, build, needs

ROUNDED = ("emcraft-sf2",)
"""Boards whose emulated timer has rounding errors of its own."""

arm = needs("arm-none-eabi-gcc", "qemu-system-arm")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(load_board("mps2-an386"), tmp_path_factory.mktemp("smoke"))


@pytest.fixture(scope="module", params=FAMILIES)
def booted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Board, Path, Line]]:
    board = load_board(request.param)
    elf = build(board, tmp_path_factory.mktemp(request.param))
    with Emulator(board, elf) as emulator, Line(emulator.url) as line:
        yield board, elf, line


@pytest.mark.cross
@pytest.mark.emulator
@arm
class TestPorts:
    def test_memory_floats_and_libraries(self, booted: tuple[Board, Path, Line]) -> None:
        board, _, line = booted
        line.command("M", 7)
        assert line.words(4) == (0x12345678, 0, 10, board.raw["timer"]["hz"])
        line.command("L", 7)
        assert line.words(2) == ((7 << 32) // 3000000000, 2398)

    def test_echo(self, booted: tuple[Board, Path, Line]) -> None:
        line = booted[2]
        data = random.Random(1).randbytes(4096)
        line.command("E", len(data), data)
        assert line.receive(len(data)) == data

    def test_nothing_is_lost_while_the_core_is_busy(self, booted: tuple[Board, Path, Line]) -> None:
        """More bytes than the ring holds, twice, so that masking and unmasking the interrupt both happen."""
        line = booted[2]
        data = random.Random(2).randbytes(2000)
        for _ in range(2):
            line.command("B", 300_000, b"E" + struct.pack("<I", len(data)) + data)
            assert line.receive(len(data)) == data

    def test_ticks_are_instructions(self, booted: tuple[Board, Path, Line]) -> None:
        """Two instructions a turn, exactly, whatever the moment at which the loop starts."""
        board, elf, line = booted
        turns = (1, 10, 1000, 10_000, 10_001, 1_000_000)
        rounds = []
        for _ in range(5):
            rounds.append(self.measure(line, turns))
        assert all(ticks == rounds[0] for ticks in rounds)
        counts = [ticks_to_instructions(board, ticks) for ticks in rounds[0]]
        for count, n in zip(counts, turns, strict=True):
            assert abs(count - counts[0] - 2 * (n - 1)) <= (n / 100_000 if board.name in ROUNDED else 0)
        assert counts[0] < 25  # the price of two readings
        with Emulator(board, elf) as emulator, Line(emulator.url) as again:
            assert self.measure(again, turns) == rounds[0]

    @staticmethod
    def measure(line: Line, turns: tuple[int, ...]) -> list[int]:
        ticks: list[int] = []
        for count in turns:
            line.command("T", count)
            ticks += line.words(1)
        return ticks

    def test_long_intervals(self, booted: tuple[Board, Path, Line]) -> None:
        """Past the 24 bits of SysTick, whose wraps cost a few instructions of their own; the same each time."""
        board, _, line = booted
        counts = [ticks_to_instructions(board, ticks) for ticks in self.measure(line, (12_000_000, 12_000_000))]
        assert counts[0] == counts[1]
        assert 0 <= counts[0] - 24_000_000 < (100 if board.name in ROUNDED else 50)

    def test_stack_watermark(self, booted: tuple[Board, Path, Line]) -> None:
        line = booted[2]
        used: list[int] = []
        for depth in (1, 800, 300):
            line.command("S", depth)
            used += line.words(1)
        assert 256 < used[0] < 1024  # the frame of an interrupt may lie there, too
        assert used[1] - used[0] >= 2 * 256
        assert used[2] == used[1]  # a high-water mark never falls


def sample_pc(control: QmpSession) -> int:
    """The program counter of the first core, by the emulator's monitor."""
    shown = control.execute("human-monitor-command", {"command-line": "info registers"})
    found = re.search(r"\b(?:R15=|pc +|PC=)([0-9a-f]+)", shown)
    assert found is not None, shown
    return int(found[1], 16)


@pytest.mark.cross
@pytest.mark.emulator
@pytest.mark.parametrize("name", [*FAMILIES, "qemu-xtensa"])
def test_the_core_sleeps_until_a_byte_arrives(name: str, tmp_path: Path) -> None:
    """Where nothing arrives the core stays in the function that stops it, whose symbol is all that this test knows of it."""
    board = load_board(name)
    elf = build(board, tmp_path)
    monitor = tmp_path / "monitor"
    table = board.raw["emulator"]
    extended = {**table, "argv": [*table["argv"], "-qmp", f"unix:{monitor},server=on,wait=off"]}
    nm = subprocess.run([board.raw["build"]["prefix"] + "nm", "-S", elf], capture_output=True, text=True, check=True)
    begin, size = next(line.split()[:2] for line in nm.stdout.splitlines() if line.endswith(" microc_core_sleep"))
    asleep = range(int(begin, 16), int(begin, 16) + int(size, 16))
    with (
        Emulator(replace(board, raw={**board.raw, "emulator": extended}), elf) as emulator,
        Line(emulator.url) as line,
        contextlib.closing(QmpSession(monitor)) as control,
    ):
        for number in range(50):
            line.command("E", 1, bytes([number]))
            assert line.receive(1) == bytes([number])
            deadline = time.monotonic() + 20
            while sample_pc(control) not in asleep and time.monotonic() < deadline:
                pass
        assert all(sample_pc(control) in asleep for _ in range(3))


@pytest.mark.cross
@pytest.mark.emulator
@arm
class TestLife:
    def test_it_ends_with_the_block(self, image: Path) -> None:
        board = load_board("mps2-an386")
        with pytest.raises(RuntimeError), Emulator(board, image) as emulator:
            assert emulator.running
            raise RuntimeError
        assert not emulator.running
        emulator.close()
        with pytest.raises(DeviceError, match="has ended"):
            emulator.reset()

    @pytest.mark.parametrize(
        "end", ["sys.exit(3)", "os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getpid(), signal.SIGTERM)"]
    )
    def test_it_ends_with_the_interpreter(self, image: Path, end: str) -> None:
        script = (
            "import os, pathlib, signal, sys\n"
            "from microc.device.boards import load_board\nfrom microc.device.emulators import Emulator\n"
            f"e = Emulator(load_board('mps2-an386'), pathlib.Path({str(image)!r})).__enter__()\n"
            f"print(e.argv[-3], flush=True)\n{end}\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=60, check=False
        )
        socket_name = done.stdout.strip()
        assert "unix:" in socket_name
        deadline = time.monotonic() + 10
        while alive(socket_name) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive(socket_name)

    def test_many_at_once(self, image: Path) -> None:
        board = load_board("mps2-an386")
        with (
            Emulator(board, image) as one,
            Emulator(board, image) as two,
            Line(one.url) as first,
            Line(two.url) as second,
        ):
            for line, text in ((first, b"first"), (second, b"other")):
                line.command("E", 5, text)
            assert (first.receive(5), second.receive(5)) == (b"first", b"other")

    def test_reset(self, image: Path) -> None:
        with Emulator(load_board("mps2-an386"), image) as emulator:
            with Line(emulator.url) as line:
                line.command("S", 4000)
                deep = line.words(1)[0]
            emulator.reset()
            with Line(emulator.url) as line:
                line.command("S", 1)
                assert line.words(1)[0] < deep

    def test_death_is_told(self, image: Path) -> None:
        with Emulator(load_board("mps2-an386"), image) as emulator:
            emulator.execute_qmp_command("quit")
            end = time.monotonic() + 10
            while emulator.running and time.monotonic() < end:
                time.sleep(0.01)
            with pytest.raises(DeviceError, match="has ended"):
                emulator.execute_qmp_command("cont")

    def test_refusal_carries_its_words(self, image: Path) -> None:
        board = with_emulator(argv=["qemu-system-arm", "-M", "no-such-machine"])
        with pytest.raises(ToolError) as caught, Emulator(board, image):
            pass
        assert "no-such-machine" in caught.value.where
        assert "unsupported machine type" in caught.value.hint
        assert caught.value.exit_code == 5


def alive(argument: str) -> bool:
    """Whether any process was started with this argument."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it may end meanwhile
            if argument.encode() in file.read_bytes().split(b"\0"):
                return True
    return False


def with_emulator(**changes: object) -> Board:
    board = load_board("mps2-an386")
    return replace(board, raw={**board.raw, "emulator": {**board.raw["emulator"], **changes}})


def test_a_missing_emulator_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.elf").write_bytes(b"")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolError) as caught, Emulator(load_board("mps2-an386"), tmp_path / "x.elf"):
        pass
    assert "apt-get install -y --no-install-recommends qemu-system-arm" in caught.value.hint


def test_wrong_use(tmp_path: Path) -> None:
    board = load_board("mps2-an386")
    with pytest.raises(UsageError, match="no emulator"):
        Emulator(load_board("host"), None, debug=True)
    with pytest.raises(UsageError, match="got no image"):
        Emulator(board, None)
    with pytest.raises(UsageError, match="the image does not exist"), Emulator(board, tmp_path / "none.elf"):
        pass


@pytest.mark.parametrize("ratio", ["1.0", "1.6", "2.048", "1.024"])
def test_instructions_are_exact(ratio: str) -> None:
    board = with_emulator(ticks_per_instruction=float(ratio))
    thousandths = int(ratio.replace(".", "").ljust(4, "0"))
    for count in (*range(2000), 10**9, 10**9 + 1):
        assert ticks_to_instructions(board, count * thousandths // 1000) == count
