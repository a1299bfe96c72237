# SPDX-License-Identifier: Apache-2.0
"""Networks that boards load: the same bits as in a firmware, two slots, what is refused, and what stays when one crashes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.device.board_info import Blob
from microc.device.boards import load_board
from microc.device.client import Client, query_slots, write_and_activate_slot
from microc.device.emulators import Emulator
from microc.device.transport import open_transport
from microc.errors import DeviceError, FitError, ToolError, UsageError
from microc.run import board_project
from microc.run.board_project import Project, open_project, read_network_blob, send_network
from microc.run.session import Device
from microc.run.verification import compare_board_with_host
from tests.compiler.test_state import ZERO, X, expected, graph_of, numbers
from tests.device.smoke import needs, skip_without
from tests.support import digits

pytestmark = [pytest.mark.cross, pytest.mark.emulator, needs("arm-none-eabi-gcc", "qemu-system-arm")]
BOARDS = ("mps2-an386", "mps3-an547", "microbit", "qemu-riscv32")
"""Cortex-M4, M55 and RISC-V with slots in RAM; M0 with slots in the flash that QEMU emulates."""
UDF = bytes.fromhex("00de")
"""An instruction that no Arm core has."""
SUM, DIFFERENCE = (
    graph_of({"s": ZERO}, {"s": "n0"}, [(op, ("x", "s"), {"activation": "", "rounding": ""})], X)
    for op in ("add", "sub")
)
"""Networks of a few hundred bytes, which cross an emulated line in a tenth of the time that the digits take."""


def built(folder: Path, board: str, model: Any = digits.INT8, **options: Any) -> Project:
    project = open_project(microc.compile(model, board=board, relocatable=True, **options).write(folder))
    board_project.build_project(project)
    return project


@pytest.fixture(scope="module", params=BOARDS)
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Project:
    skip_without(load_board(request.param))
    return built(tmp_path_factory.mktemp("network") / "digits", request.param)


@pytest.fixture(scope="module")
def small(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A small network for the board of ``project``."""
    return built(tmp_path_factory.mktemp("network") / "sum", project.board.name, SUM, name="sum")


@pytest.fixture(scope="module")
def m4(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return built(tmp_path_factory.mktemp("network") / "sum", "mps2-an386", SUM, name="sum")


@contextmanager
def board_of(project: Project) -> Iterator[tuple[Emulator, Client]]:
    """A board with the project's firmware, into which nothing was loaded yet."""
    with Emulator(project.board, project.elf) as emulator, Client(open_transport(emulator.url)) as client:
        yield emulator, client


def test_a_network_is_the_same_wherever_it_is(project: Project) -> None:
    library = board_project.build_host_library(project)
    with Device(project) as device:
        for image in digits.images(3):
            assert np.array_equal(np.asarray(device.run(image)), np.asarray(library(image)))
        assert device.stats().stack_bytes in (None, *range(100, 8192))
        assert len(device.profile().kernels) == len(device.kernels)
        assert compare_board_with_host(device, library, [[digits.images(1)[0]]])[1] is None


def test_state_begins_anew_with_each_network(project: Project, small: Project) -> None:
    inputs = numbers(X, 3)
    wanted = expected(SUM, inputs)
    with board_of(project) as (_, client):
        for _ in range(2):  # the second time in the other slot
            send_network(client, read_network_blob(small))
            with Device.over(small, client, emulated=True) as device:
                assert all(np.array_equal(np.asarray(device.run(x)), y) for x, y in zip(inputs, wanted, strict=True))
                device.reset()
                assert np.array_equal(np.asarray(device.run(inputs[0])), wanted[0])


def test_the_newer_network_is_there_after_a_reset(project: Project, small: Project, tmp_path: Path) -> None:
    other = built(tmp_path / "difference", project.board.name, DIFFERENCE, name="difference")
    assert other.elf.read_bytes() == small.elf.read_bytes() == project.elf.read_bytes()  # one firmware for all
    with board_of(project) as (emulator, client):
        assert client.hello().models == () and query_slots(client).active is None
        for count, each in enumerate((small, other, small), 1):
            slots = send_network(client, read_network_blob(each))
            assert (slots.active, slots.commits) == ((count - 1) % 2, count)
        emulator.reset()
        assert client.hello().models[0].fingerprint == small.manifest["fingerprint"]
        assert query_slots(client) == slots
        write_and_activate_slot(client, read_network_blob(other).pack(), slots.flash_write_bytes)
        assert client.model.name == "difference"


def test_a_device_takes_another_network(m4: Project) -> None:
    program = microc.compile(DIFFERENCE, board="mps2-an386", relocatable=True, name="difference")
    inputs = numbers(X, 2)
    with Device(m4) as device:
        for each, graph in ((None, SUM), (program, DIFFERENCE), (m4.folder, SUM)):
            if each is not None:
                device.load_network(each)
            for x, wanted in zip(inputs, expected(graph, inputs), strict=True):
                assert np.array_equal(np.asarray(device.run(x)), wanted)


def test_what_does_not_fit_is_refused_on_both_sides(m4: Project) -> None:
    blob = read_network_blob(m4)
    wrong: list[tuple[dict[str, Any], type[Exception], str, str]] = [
        ({"core": "cortex-m7"}, UsageError, "is for cortex-m7, the board's firmware for cortex-m4", "another core"),
        ({"abi": blob.abi ^ 1}, UsageError, "were compiled with different options of the compiler", "another core"),
        ({"memory": 1 << 30}, FitError, "1,073,741,824 bytes|of memory for tensors", "more flash, memory or stack"),
        (
            {"stack": 1 << 16},
            FitError,
            "takes 65,536 bytes of stack, the board has 8,192",
            "more flash, memory or stack",
        ),
    ]
    with board_of(m4) as (_, client):
        slots = send_network(client, blob)
        for changes, kind, host, board in wrong:
            other = replace(blob, **changes)
            with pytest.raises(kind, match=host):
                send_network(client, other)
            with pytest.raises(DeviceError, match=board):
                write_and_activate_slot(client, other.pack(), slots.flash_write_bytes)
        damaged = bytearray(blob.pack())
        damaged[len(damaged) // 2] ^= 1
        with pytest.raises(DeviceError, match="not there whole"):
            write_and_activate_slot(client, bytes(damaged), slots.flash_write_bytes)
        with pytest.raises(FitError, match="bytes of a slot"):
            send_network(client, replace(blob, image=bytes(slots.slot_bytes)))
        with pytest.raises(DeviceError, match="more flash"):
            write_and_activate_slot(client, bytes(slots.slot_bytes + 1), slots.flash_write_bytes)
        assert query_slots(client) == slots  # what ran before still does
        with Device.over(m4, client, emulated=True) as device:
            assert answers_as_the_host(device, m4)


def answers_as_the_host(device: Device, project: Project) -> bool:
    x = numbers(X, 1)[0]
    return np.array_equal(np.asarray(device.run(x)), np.asarray(board_project.build_host_library(project)(x)))


def test_a_network_that_crashes_costs_itself_alone(m4: Project) -> None:
    blob = read_network_blob(m4)
    crash = replace(blob, name="crash", image=UDF * (len(blob.image) // 2))
    with board_of(m4) as (_, client):
        send_network(client, crash)
        with pytest.raises(DeviceError, match="the board has restarted"):
            client.run()
        assert client.hello().models[0].name == "crash"  # nothing of it runs by itself
        send_network(client, blob)
        with Device.over(m4, client, emulated=True) as device:
            assert answers_as_the_host(device, m4)


def test_ordinary_firmware_takes_no_network(m4: Project, tmp_path: Path) -> None:
    plain = open_project(microc.compile(digits.INT8, board="mps2-an386").write(tmp_path / "plain"))
    board_project.build_project(plain)
    with board_of(plain) as (_, client), pytest.raises(DeviceError, match="does not know this operation"):
        send_network(client, read_network_blob(m4))
    with pytest.raises(UsageError, match="is part of its firmware"):
        read_network_blob(plain)


def test_functions_of_the_c_library_that_cannot_move(tmp_path: Path) -> None:
    """newlib's expf reads a table by its address; RISC-V's code, and ours, count from the program counter."""
    with pytest.raises(
        ToolError, match=r"reads its constants at fixed addresses|cannot have writable static memory"
    ) as caught:
        built(tmp_path / "m0", "microbit", digits.FLOAT)
    assert "--math fast" in caught.value.hint


def test_a_file_alone(m4: Project, tmp_path: Path) -> None:
    program = microc.compile(SUM, board="mps2-an386", relocatable=True, name="sum")
    path = program.write(tmp_path / "net.bin")
    assert path.read_bytes() == m4.blob.read_bytes() == read_network_blob(m4).pack()
    assert isinstance(read_network_blob(m4), Blob) and not list(tmp_path.glob("*.h"))


def test_a_network_that_is_loaded_has_one_memory() -> None:
    """Also on a board with several: which of them its neighbours take is not known."""
    several, one = (microc.compile(digits.INT8, board="nucleo-h743zi", relocatable=loaded) for loaded in (False, True))
    assert several.module.plan is not None and several.module.plan.arenas
    assert one.module.plan is not None and not one.module.plan.arenas


def test_a_file_needs_a_line(m4: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", str(m4.blob)]) == 2
    assert "the file does not name its board" in capsys.readouterr().err
    with Emulator(m4.board, m4.elf) as emulator:
        assert main(["load", str(m4.blob), "--port", emulator.url, "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert (data["slot"], data["commits"], data["bytes"]) == (0, 1, m4.blob.stat().st_size)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"protocol": "tuning"}, "speaks microc's protocol"),
        ({"io_in_arena": False}, "keeps inputs and outputs in its arena"),
        ({"board": "host"}, "cannot load code over the serial line"),
        ({"board": "arduino-uno"}, "cannot load code over the serial line"),
        ({"board": None}, "relocatable: applies only to the firmware of a board"),
    ],
)
def test_what_is_not_loadable(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        microc.compile(digits.INT8, **{"board": "mps2-an386", "relocatable": True, **options}).write(tmp_path / "x")
