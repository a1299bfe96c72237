# SPDX-License-Identifier: Apache-2.0
"""Kernels loaded into boards' memory and called there: `Device.load`, what is refused, and what goes wrong."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import microc
from microc import te
from microc.device.board_info import LoadedImage
from microc.device.boards import load_board
from microc.device.toolchain import read_linked_sizes
from microc.errors import DeviceError, FitError, UsageError
from microc.run import board_project
from microc.run.board_project import open_project
from microc.run.session import Device
from microc.schedule.schedule import Schedule
from tests.device.smoke import needs, skip_without
from tests.support import digits
from tests.support.campaign import in_campaign

pytestmark = [pytest.mark.cross, pytest.mark.emulator, needs("arm-none-eabi-gcc", "qemu-system-arm")]
BOARDS = (
    "mps2-an386",
    pytest.param("mps2-an500", marks=in_campaign),
    "mps3-an547",
    "microbit",
    "qemu-riscv32",
)
"""Cortex-M4, M7, M55, M0 and RISC-V. The M7's caches are what loads differently there, and QEMU has none."""
UDF = bytes.fromhex("00de")
"""An instruction that no Arm core has."""


def add() -> microc.tir.ir.PrimFunc:
    a, b = (te.placeholder((64,), "float32", name) for name in "ab")
    return te.create_prim_func("add", [a, b], [te.compute((64,), lambda i: a[i] + b[i], "c", ("i",))])


def scaled() -> microc.tir.ir.PrimFunc:
    a, w = te.placeholder((64,), "int32", "a"), te.placeholder((64,), "int32", "w")
    return te.create_prim_func("scaled", [a], [te.compute((64,), lambda i: a[i] * w[i], "c", ("i",))], [w])


def built(folder: Path, board: str, protocol: Literal["rpc", "tuning"] = "tuning") -> board_project.Project:
    project = open_project(microc.compile(digits.INT8, board=board, protocol=protocol).write(folder))
    board_project.build_project(project)
    return project


@pytest.fixture(scope="module", params=BOARDS)
def device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    skip_without(load_board(request.param))
    with Device(built(tmp_path_factory.mktemp("firmware"), request.param)) as found:
        yield found
        found.unload()


def test_two_kernels_after_each_other(device: Device) -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
    k = np.arange(64, dtype=np.int32)
    sum_, product = device.load(add()), device.load(Schedule(scaled()), w=k)
    for _ in range(2):
        assert np.array_equal(np.asarray(sum_(x, y)), x + y)
        assert np.array_equal(np.asarray(product(k + 1)), (k + 1) * k)
    timing = sum_.time_evaluator(repeat=3)(x, y)
    assert timing.count == 3 and timing.min > 64 and sum_.last is not None
    assert (
        device.run(np.zeros(device.inputs[0]["shape"], device.inputs[0]["dtype"])) is not None
    )  # the firmware's own network


def test_a_whole_network_as_the_flashed_one(device: Device) -> None:
    if device.project.board.name == "microbit":
        pytest.skip("16 KB of RAM: the network is there once")
    x = np.random.default_rng(1).integers(-128, 128, device.inputs[0]["shape"]).astype(device.inputs[0]["dtype"])
    loaded = device.load(microc.compile(digits.INT8, board=device.project.board))
    assert np.array_equal(np.asarray(loaded(x)), np.asarray(device.run(x)))
    assert loaded.last is not None and device.last is not None
    assert loaded.last.min == pytest.approx(device.last.min, rel=0.02)  # the same instructions; the way in is another


def test_constants_are_sent_once(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    device.unload()
    weights = np.arange(64, dtype=np.int32)
    device.load(scaled(), w=weights)
    sent: list[int] = []
    load = device.client.write_bytes

    def counted(offset: int, data: bytes) -> None:
        sent.append(len(data))
        load(offset, data)

    monkeypatch.setattr(device.client, "write_bytes", counted)
    again = device.load(Schedule(scaled()).split("i", (None, 4)), w=weights)
    assert sent == [again.image.nbytes]


def test_what_does_not_lie_in_the_region(device: Device) -> None:
    region = device.client.query_code_region()
    for action in (
        lambda: device.client.write_bytes(region.nbytes - 1, b"ab"),
        lambda: device.client.read_code_memory(region.nbytes, 1),
        lambda: device.client.call_image(LoadedImage(region.nbytes, 2, 0, region.nbytes), 0),
    ):
        with pytest.raises(DeviceError, match="out of range"):
            action()


def test_damaged_code_is_not_entered(device: Device) -> None:
    device.unload()
    loaded = device.load(add())
    x = np.ones(64, np.float32)
    device.client.write_bytes(loaded.image.offset + 2, b"\x12\x34")
    with pytest.raises(DeviceError, match="not there whole"):
        loaded(x, x)
    with pytest.raises(DeviceError, match="not there whole"):  # never loaded
        device.client.call_image(LoadedImage(0, 64, 1, 0), 0)
    assert np.array_equal(np.asarray(device.load(add())(x, x)), x + x)


def test_a_full_region(device: Device) -> None:
    device.unload()
    many = device.client.query_code_region().nbytes // 4
    a = te.placeholder((many,), "int32", "a")
    with pytest.raises(FitError, match="more bytes are needed"):
        device.load(te.create_prim_func("copy", [a], [te.compute((many,), lambda i: a[i], "c", ("i",))]))
    x = np.ones(64, np.float32)
    assert np.array_equal(np.asarray(device.load(add())(x, x)), x + x)  # nothing is lost of it


def test_a_fault_resets_a_cortex_m(tmp_path: Path) -> None:
    with Device(built(tmp_path, "mps2-an386"), patience=2.0) as device:
        device.client.write_bytes(0, UDF)
        with pytest.raises(DeviceError, match="restarted"):
            device.client.call_image(LoadedImage(0, 2, zlib.crc32(UDF), 0), 0)
        device.client.hello()
        device.unload()
        x = np.ones(64, np.float32)
        assert np.array_equal(np.asarray(device.load(add())(x, x)), x + x)


def test_firmware_that_was_not_built_for_it(tmp_path: Path) -> None:
    project = built(tmp_path, "mps2-an386", "rpc")
    assert not [s for s in read_linked_sizes(project.elf).symbols if "microc_load" in s.name or "region" in s.name]
    assert "region" not in (tmp_path / "board" / "linker.ld").read_text()
    with Device(project) as device:
        with pytest.raises(UsageError, match="cannot load code"):
            device.load(add())
        for action in (
            device.client.query_code_region,
            lambda: device.client.write_bytes(0, b"a"),
            lambda: device.client.read_code_memory(0, 1),
        ):
            with pytest.raises(DeviceError, match="does not know this operation"):
                action()
        with pytest.raises(DeviceError, match="does not know this operation"):
            device.client.call_image(LoadedImage(0, 1, 0, 0), 0)


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    with Device(built(tmp_path, "mps2-an386")) as device:
        with pytest.raises(UsageError, match="expected one for mps2-an386"):
            device.load(microc.build(add(), board="mps3-an547"))
        with pytest.raises(UsageError, match="a compiled program has its own"):
            device.load(microc.build(add(), board="mps2-an386"), w=1)


def test_boards_without_a_region_refuse_the_protocol(tmp_path: Path) -> None:
    for board in ("host", "arduino-uno", "esp32-c3"):
        with pytest.raises(UsageError, match="cannot load code over the serial line"):
            microc.compile(digits.INT8, board=board, protocol="tuning", ram=0).write(tmp_path / board)
