# SPDX-License-Identifier: Apache-2.0
"""What boot ROMs look for in an image: checked in linked programs, by other means than those that made it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from microc.device.boards import load_board
from microc.device.flashing import FORMATS, join_segments, read_segments
from tests.device.smoke import build, needs

pytestmark = pytest.mark.cross


def image(name: str, folder: Path) -> tuple[int, bytes]:
    """Address and content of the smoke firmware of a board."""
    parts = read_segments(build(load_board(name), folder))
    return parts[0][0], join_segments(parts)


def crc32_mpeg2(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ (0x04C11DB7 if crc >> 31 else 0)) & 0xFFFFFFFF
    return crc


def vectors(data: bytes, flash: int, ram: int) -> None:
    """A stack in RAM, and a way from reset in flash, in Thumb."""
    stack, reset = struct.unpack("<2I", data[:8])
    assert ram < stack <= ram + 0x100000
    assert flash < reset < flash + 0x10000 and reset & 1


@needs("arm-none-eabi-gcc")
def test_rp2040(tmp_path: Path) -> None:
    start, data = image("raspberry-pi-pico", tmp_path)
    assert start == 0x10000000
    assert crc32_mpeg2(data[:252]) == int.from_bytes(data[252:256], "little")
    vectors(data[256:], start, 0x20000000)


@needs("arm-none-eabi-gcc", "riscv64-unknown-elf-gcc")
@pytest.mark.parametrize(
    ("name", "executable"), [("raspberry-pi-pico2", 0x10210142), ("raspberry-pi-pico2-riscv", 0x11010142)]
)
def test_rp2350(name: str, executable: int, tmp_path: Path) -> None:
    start, data = image(name, tmp_path)
    block = struct.pack("<5I", 0xFFFFDED3, executable, 0x1FF, 0, 0xAB123579)
    assert start == 0x10000000
    assert 0 < data.index(block) < 4096 - len(block) and data.index(block) % 4 == 0


@needs("arm-none-eabi-gcc")
@pytest.mark.parametrize("name", ["teensy40", "teensy41"])
def test_imxrt(name: str, tmp_path: Path) -> None:
    start, data = image(name, tmp_path)
    assert start == 0x60000000 and data[:4] == b"FCFB"
    assert struct.unpack_from("<2I", data, 0x80) == (0x0A1804EB, 0x26043206)
    assert struct.unpack_from("<2I", data, 0x1C0) == (256, 4096)
    header, entry, _, _, boot, itself, _, _ = struct.unpack_from("<8I", data, 0x1000)
    assert (header, entry, itself) == (0x402000D1, start + 0x2000, start + 0x1000)
    assert struct.unpack_from("<I", data, boot - start) == (start,)
    vectors(data[0x2000:], start, 0x20000000)


@needs("arm-none-eabi-gcc")
@pytest.mark.parametrize("name", ["feather-m4", "arduino-nano33ble", "nucleo-u575zi"])
def test_behind_boot_loaders(name: str, tmp_path: Path) -> None:
    board = load_board(name)
    start, data = image(name, tmp_path)
    assert start == board.regions[0].origin
    vectors(data, start, 0x20000000)


@needs("riscv64-unknown-elf-gcc")
def test_gd32_leaves_the_alias(tmp_path: Path) -> None:
    """lui and jalr to an absolute address: 0x08000000 and a bit."""
    _, data = image("longan-nano", tmp_path)
    upper, jump = struct.unpack("<2I", data[:8])
    assert upper == 0x080002B7 and jump & 0xFFFFF == 0x28067


@needs("riscv64-unknown-elf-gcc")
def test_esp32c3_runs_in_place(tmp_path: Path) -> None:
    """Two words by which the ROM knows the image, the way from reset behind them, constants read where they lie in the flash."""
    from elftools.elf.elffile import ELFFile

    path = build(load_board("esp32-c3"), tmp_path)
    with path.open("rb") as stream:
        elf = ELFFile(stream)
        found = [s for s in elf.iter_segments("PT_LOAD") if s["p_filesz"]]
        loads = [(int(s["p_vaddr"]), int(s["p_paddr"]) - 0x42000000, bytes(s.data())) for s in found]
        (trap,) = elf.get_section_by_name(".symtab").get_symbol_by_name("microc_trap")
        (handler,) = elf.get_section_by_name(".symtab").get_symbol_by_name("microc_interrupt")
        constants = elf.get_section_by_name(".rodata")["sh_addr"]
        assert elf["e_entry"] == 0x42000008
    data = join_segments(read_segments(path))
    assert struct.unpack_from("<2I", data) == (0xAEDB041D, 0xAEDB041D)
    for address, offset, content in loads:
        assert address - offset in (0x42000000, 0x3C000000) or 0x3FC80000 <= address < 0x3FCE0000
        assert data[offset : offset + len(content)] == content
    assert 0x3C000000 < constants < 0x3C400000
    table, target = trap["st_value"], handler["st_value"]
    assert table % 256 == 0
    words = struct.unpack_from("<32I", data, table - 0x42000000)
    assert [table + 4 * k + jump(word) for k, word in enumerate(words)] == [target] * 32


def jump(word: int) -> int:
    """How far RISC-V's `j` jumps."""
    assert word & 0xFFF == 0x6F
    distance = (word >> 21 & 0x3FF) << 1 | (word >> 20 & 1) << 11 | (word >> 12 & 0xFF) << 12
    return distance - (word >> 31 << 20)


@needs("arm-none-eabi-gcc")
def test_formats_agree(tmp_path: Path) -> None:
    """Intel HEX and UF2 hold the bytes of the plain binary."""
    board = load_board("raspberry-pi-pico")
    parts = read_segments(build(board, tmp_path))
    plain = join_segments(parts)
    memory: dict[int, int] = {}
    upper = 0
    for line in FORMATS["hex"](parts, board).decode().splitlines():
        record = bytes.fromhex(line[1:])
        assert sum(record) & 0xFF == 0 and record[0] == len(record) - 5
        if record[3] == 4:
            upper = int.from_bytes(record[4:6], "big") << 16
        elif record[3] == 0:
            memory |= {upper + int.from_bytes(record[1:3], "big") + k: b for k, b in enumerate(record[4:-1])}
    assert bytes(memory[a] for a in sorted(memory)) == plain and min(memory) == 0x10000000
    uf2 = FORMATS["uf2"](parts, board)
    blocks = [uf2[k : k + 512] for k in range(0, len(uf2), 512)]
    for k, block in enumerate(blocks):
        first, second, flags, address, size, number, count, family = struct.unpack("<8I", block[:32])
        assert (first, second, block[508:]) == (0x0A324655, 0x9E5D5157, b"\x30\x6f\xb1\x0a")
        assert (flags, size, number, count, family) == (0x2000, 256, k, len(blocks), 0xE48BFF56)
        assert address == 0x10000000 + 256 * k
    assert b"".join(block[32:288] for block in blocks).rstrip(b"\xff") == plain.rstrip(b"\xff")
