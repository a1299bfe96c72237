# SPDX-License-Identifier: Apache-2.0
"""Simulated boards: a program that a board's file names runs the firmware, and is asked as a board on a line is."""

from __future__ import annotations

import shlex
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.base import file_access
from microc.device import emulators
from microc.device.boards import load_board
from microc.device.emulators import make_simulator_address
from microc.device.transport import open_transport
from microc.errors import ToolError, UsageError
from microc.run.board_project import build_project, open_project
from microc.run.session import Device
from microc.target import Board
from microc.tuning.meters import BoardRunner
from tests.device.smoke import build as smoke_firmware
from tests.device.smoke import needs, skip_without

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_int8.tflite"


def simulated_host(*argv: str) -> Board:
    """This computer, whose firmware is started by a program."""
    host = load_board("host")
    return replace(host, raw={**host.raw, "simulator": {"argv": [*argv], "install": "make one"}})


def test_the_program_is_started_with_the_image(tmp_path: Path) -> None:
    project = open_project(microc.compile(DIGITS, board=simulated_host("env", "{elf}")).write(tmp_path / "project"))
    with pytest.raises(UsageError, match="the image does not exist"):
        Device(project)
    build_project(project)
    with Device(project) as device:
        device.set_inputs(np.zeros(device.inputs[0]["shape"], np.int8))
        assert device.time(1).max > 0
        assert (device.emulated, device.clock.unit) == (False, "ticks")


def test_a_missing_program_is_told_with_the_way_to_get_it(tmp_path: Path) -> None:
    program = microc.compile(DIGITS, board=simulated_host("no-such-simulator", "{elf}"))
    project = open_project(program.write(tmp_path / "project"))
    project.elf.write_bytes(b"")
    with pytest.raises(ToolError, match="no-such-simulator is not on PATH") as caught:
        Device(project)
    assert caught.value.hint == "make one"


@pytest.mark.parametrize("name", ["hazard3-sim", "raspberry-pi-pico"])
def test_a_simulated_board_can_be_measured_on(name: str) -> None:
    skip_without(load_board(name))
    assert BoardRunner(load_board(name)).unit == "ticks"


DELAY = """
#include "microc_port.h"
#include <util/delay_basic.h>

int main(void)
{
    microc_port_init();
    for (;;) {
        uint8_t turns;
        uint32_t ticks;
        while (microc_port_read(&turns, 1) == 0) {
        }
        ticks = microc_port_ticks();
        for (uint8_t turn = 0; turn < turns; ++turn) {
            _delay_loop_2(10000);
        }
        ticks = microc_port_ticks() - ticks;
        (void)microc_port_write((const uint8_t *)&ticks, sizeof ticks);
    }
}
"""
"""A loop of avr-libc that takes four cycles an iteration."""


@pytest.mark.cross
@pytest.mark.emulator
@pytest.mark.parametrize("name", ["arduino-uno", "arduino-mega"])
def test_ticks_of_an_avr_are_its_cycles(name: str, tmp_path: Path) -> None:
    board = load_board(name)
    skip_without(board)
    program = tmp_path / "delay.c"
    program.write_text(DELAY)
    elf = smoke_firmware(board, tmp_path, program=[program])
    transport = open_transport(make_simulator_address(board, elf))
    for turns in (1, 1, 10, 100, 250):
        transport.write(bytes([turns]))
        answer = b""
        while len(answer) < 4:
            answer += transport.read(1.0)
        (ticks,) = struct.unpack("<I", answer)
        interrupts = 40_000 * turns // 65_536 + 1
        assert 40_000 * turns < ticks < 40_020 * turns + 60 * interrupts + 200
    transport.close()


@pytest.mark.cross
@pytest.mark.emulator
@needs("avr-gcc")
def test_a_network_on_an_avr_takes_the_same_cycles_again(tmp_path: Path) -> None:
    board = load_board("arduino-mega")
    skip_without(board)
    project = open_project(microc.compile(DIGITS, board=board).write(tmp_path / "project"))
    build_project(project)
    with Device(project) as device:
        rounds = []
        for _ in range(2):  # inputs may be overwritten
            device.set_inputs(np.zeros(device.inputs[0]["shape"], np.int8))
            rounds.append(device.kernel_ticks())
        first, again = rounds
        assert device.clock.seconds(sum(first)) == sum(first) / 16_000_000
    assert all(1000 < a < 10_000_000 and abs(a - b) < 200 for a, b in zip(first, again, strict=True))


@pytest.mark.cross
@pytest.mark.emulator
def test_an_rp2040_counts_cycles_and_runs_code_from_ram(tmp_path: Path) -> None:
    board = load_board("raspberry-pi-pico")
    skip_without(board)
    cycles = []
    for code_in_ram in (False, True):
        program = microc.compile(DIGITS, board=board, code_in_ram=code_in_ram)
        project = open_project(program.write(tmp_path / f"{code_in_ram}"))
        build_project(project)
        with Device(project) as device:
            for _ in range(2):  # inputs may be overwritten
                device.set_inputs(np.zeros(device.inputs[0]["shape"], np.int8))
                cycles.append(sum(device.kernel_ticks()))
            assert device.clock.seconds(cycles[-1]) == cycles[-1] / 125_000_000
    assert max(cycles) < 1.01 * min(cycles), "the emulator has no waits of memories: only interrupts differ"
    assert 30_528 < min(cycles) < 1_000_000


@pytest.mark.cross
@pytest.mark.emulator
def test_both_cores_of_an_rp2040_compute_a_network(tmp_path: Path) -> None:
    board = load_board("raspberry-pi-pico")
    skip_without(board)
    cycles, outputs, stacks = [], [], []
    image = np.random.default_rng(5).integers(-128, 128, (1, 8, 8, 1), np.int8)
    for cores in (1, 2):
        project = open_project(microc.compile(DIGITS, board=board, cores=cores).write(tmp_path / f"{cores}"))
        build_project(project)
        with Device(project) as device:
            device.set_inputs(image.reshape(device.inputs[0]["shape"]))
            cycles.append(sum(device.kernel_ticks()))
            outputs.append(np.asarray(device.run(image)))
            stacks.append(device.stats().core1_stack_bytes)
    assert np.array_equal(outputs[0], outputs[1]) and not stacks[0] and stacks[1]
    assert 0.5 * cycles[0] < cycles[1] < 0.6 * cycles[0], "cores do not wait for each other's accesses here"


CORES = r"""
#include "driver.h"
#include "microc_port.h"

#define SIO(offset) MICROC_REGISTER(0xD0000000u + (offset))
#define CPUID SIO(0x000u)
#define FIFO_ST SIO(0x050u)
#define FIFO_WR SIO(0x054u)
#define FIFO_RD SIO(0x058u)
#define UDIVIDEND SIO(0x060u)
#define UDIVISOR SIO(0x064u)
#define QUOTIENT SIO(0x070u)
#define SPINLOCK SIO(0x10Cu)
#define PENDING MICROC_REGISTER(0xE000E200u)

static uint32_t stack[256];
static volatile uint32_t results[16];
static volatile uint32_t step;

static void wait_for(uint32_t number)
{
    while (step != number) {
        __asm volatile("wfe" ::: "memory");
    }
}

static void go_to(uint32_t number)
{
    step = number;
    __asm volatile("dsb\n\tsev" ::: "memory");
}

void microc_core1_work(void)
{
    results[0] = CPUID;
    UDIVIDEND = 200u;
    UDIVISOR = 9u;
    go_to(2u);
    wait_for(3u);
    results[1] = QUOTIENT;
    results[2] = SPINLOCK;
    for (uint32_t k = 0; k < 8u; ++k) {
        FIFO_WR = 100u + k;
    }
    results[3] = FIFO_ST;
    FIFO_WR = 200u;
    results[4] = FIFO_ST;
    FIFO_ST = 0xFu;
    results[5] = FIFO_ST;
    go_to(4u);
    wait_for(5u);
    results[6] = SPINLOCK;
    go_to(6u);
    for (;;) {
        __asm volatile("wfe" ::: "memory");
    }
}

int main(void)
{
    uint8_t rounds;
    microc_port_init();
    while (microc_port_read(&rounds, 1) == 0) {
    }
    for (; rounds != 0u; --rounds) {
        step = 1u;
        microc_core1_start(stack + 256);
        wait_for(2u);
        results[7] = CPUID;
        UDIVIDEND = 100u;
        UDIVISOR = 7u;
        results[8] = SPINLOCK;
        FIFO_ST = 0xFu;
        results[9] = PENDING & (3u << 15);
        go_to(3u);
        wait_for(4u);
        results[10] = QUOTIENT;
        results[11] = PENDING & (3u << 15);
        results[12] = 0u;
        for (uint32_t k = 0; k < 8u; ++k) {
            results[12] += FIFO_RD;
        }
        results[13] = FIFO_ST;
        (void)FIFO_RD;
        results[14] = FIFO_ST;
        FIFO_ST = 0xFu;
        results[15] = FIFO_ST;
        SPINLOCK = 1u;
        go_to(5u);
        wait_for(6u);
        SPINLOCK = 1u;
        (void)microc_port_write((const uint8_t *)results, sizeof results);
    }
    for (;;) {
    }
}
"""
"""What two cores of an RP2040 share (spinlocks, the FIFO between them, events), and what each has (number, divider)."""

VALID, READY, WRITTEN_WHEN_FULL, READ_WHEN_EMPTY = 1, 2, 4, 8


@pytest.mark.cross
@pytest.mark.emulator
def test_cores_of_an_rp2040_share_what_those_of_the_chip_share(tmp_path: Path) -> None:
    board = load_board("raspberry-pi-pico")
    skip_without(board)
    program = tmp_path / "cores.c"
    program.write_text(CORES)
    start = file_access.runtime_c_folder() / "ports" / "cores_rp2.c"
    elf = smoke_firmware(board, tmp_path, program=[program, start])
    transport = open_transport(make_simulator_address(board, elf))
    transport.write(b"\3")  # each round resets core 1, and starts it again
    answer = b""
    while len(answer) < 3 * 64:
        answer += transport.read(1.0)
    transport.close()
    of_core1 = (1, 200 // 9, 0, 0, WRITTEN_WHEN_FULL, 0, 1 << 3)
    of_core0 = (0, 1 << 3, 0, 100 // 7, 1 << 15, sum(range(100, 108)), READY, READY | READ_WHEN_EMPTY, READY)
    for results in struct.iter_unpack("<16I", answer):
        assert results == of_core1 + of_core0


@pytest.mark.parametrize("lacking", ["node", "rp2040js"])
def test_a_missing_rp2040js_is_told_with_both_ways_round(
    lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulators, "_find_npm_package", lambda name: None if lacking == name else tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None if lacking == name else f"/usr/bin/{name}")
    image = tmp_path / "x.elf"
    image.write_bytes(b"")
    with pytest.raises(ToolError, match="which runs" if lacking == "node" else "which emulates") as caught:
        make_simulator_address(load_board("raspberry-pi-pico"), image)
    assert "install" in caught.value.hint and "--port auto" in caught.value.hint
    assert emulators.find_program_or_simulator("rp2040js") == ()


@needs("node")
def test_the_console_of_an_rp2040_refuses_what_is_no_firmware(tmp_path: Path) -> None:
    board = load_board("raspberry-pi-pico")
    skip_without(board)
    damaged = tmp_path / "x.elf"
    for content in (b"", b"\x7fELF", b"\x7fELF" + bytes(24) + b"\xff" * 24):
        damaged.write_bytes(content)
        command = shlex.split(make_simulator_address(board, damaged).removeprefix("pipe:"))
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 1 and done.stderr.startswith(f"{damaged}: ") and "    at " not in done.stderr


def test_files_name_simulators(tmp_path: Path) -> None:
    text = (file_access.boards_folder() / "hazard3-sim.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert load_board(path).raw["simulator"]["argv"] == ["hazard3-sim", "{elf}"]
    path.write_text(text.replace('"{elf}"]', '"{elf}", "a\\nb"]'))
    with pytest.raises(UsageError, match=r"simulator\.argv"):
        load_board(path)
