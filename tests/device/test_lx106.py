# SPDX-License-Identifier: Apache-2.0
"""The ESP8266's core: the arithmetic that its libgcc lacks, compiled for this computer, and the image that its ROM loads."""

from __future__ import annotations

import ctypes
import random
import re
import struct
import subprocess
from collections.abc import Callable
from functools import reduce
from operator import xor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from microc.base import file_access
from microc.device.boards import load_board
from microc.device.emulators import Emulator
from microc.device.flashing import FORMATS, encode_esp8266, read_segments
from microc.device.toolchain import host_compiler
from microc.errors import UsageError
from microc.run.profile import ticks_to_instructions
from tests.device.smoke import WARNINGS, Line, build, needs
from tests.device.test_boards import wrong

FILE = "ports/lx106_libgcc.c"
UDIVMOD = """#include <stdint.h>
uint64_t lx_udivmoddi4(uint64_t a, uint64_t b, uint64_t *rest) { if (rest != 0) { *rest = a % b; } return a / b; }
"""
TYPES: dict[str, Any] = {"i": ctypes.c_int32, "u": ctypes.c_uint32, "I": ctypes.c_int64, "U": ctypes.c_uint64}
BITS = {"f": (np.uint32, np.float32), "d": (np.uint64, np.float64)}


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The functions under names of their own: this computer's compiler needs those of its libgcc."""
    folder = tmp_path_factory.mktemp("lx106")
    text = re.sub(
        r"\b__(?=[a-z]+[234]\b)|\b__(?=(fix|float)[a-z]+\b)", "lx_", (file_access.runtime_c_folder() / FILE).read_text()
    )
    (folder / "lx106.c").write_text(UDIVMOD + text)
    library = folder / "lx106.so"
    command = [host_compiler(), *WARNINGS, "-O2", "-shared", "-fPIC", "-ffp-contract=off", "-o", str(library)]
    done = subprocess.run([*command, str(folder / "lx106.c")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


def integers(bits: int, count: int) -> list[int]:
    """Signed numbers of all magnitudes, and the ends."""
    rng = np.random.default_rng(bits)
    ends = [0, 1, -1, 2, 65535, 65536, -65536, (1 << (bits - 1)) - 1, -(1 << (bits - 1))]
    words = rng.integers(-(1 << 62), 1 << 62, count) >> rng.integers(63 - bits, 62, count)
    return [*ends, *map(int, words)]


def wrapped(value: int, bits: int, signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


INTEGER: dict[str, tuple[str, str, Callable[[int, int], int]]] = {
    "umulsidi3": ("uu", "U", lambda a, b: a * b),
    "muldi3": ("II", "I", lambda a, b: a * b),
    "udivsi3": ("uu", "u", lambda a, b: a // b),
    "umodsi3": ("uu", "u", lambda a, b: a % b),
    "divsi3": ("ii", "i", lambda a, b: abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)),
    "udivdi3": ("UU", "U", lambda a, b: a // b),
    "umoddi3": ("UU", "U", lambda a, b: a % b),
    "divdi3": ("II", "I", lambda a, b: abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)),
}


@pytest.mark.parametrize("name", INTEGER)
def test_integers_are_exact(name: str, functions: ctypes.CDLL) -> None:
    parameters, result, meaning = INTEGER[name]
    function = functions[f"lx_{name}"]
    function.argtypes, function.restype = [TYPES[letter] for letter in parameters], TYPES[result]
    bits, signed = (64 if parameters[0] in "IU" else 32), parameters[0] in "iI"
    values = [wrapped(value, bits, signed) for value in integers(bits, 60)]
    for a in values:
        for b in values:
            if b or "mul" in name:
                wanted = wrapped(meaning(a, b), 64 if result in "IU" else 32, result in "iI")
                assert function(a, b) == wanted, (a, b)


def patterns(letter: str, count: int) -> Any:
    """Floats of all exponents, and of neighbouring ones: zeros, denormals, infinities, NaN, ties."""
    word, _ = BITS[letter]
    bits = 8 * np.dtype(word).itemsize
    fraction = 23 if letter == "f" else 52
    rng = np.random.default_rng(bits)
    special = ((1 << (bits - 1 - fraction)) - 1) << fraction
    ends = [
        0,
        1,
        2,
        (1 << fraction) - 1,
        1 << fraction,
        special - 1,
        special,
        special | 1 << (fraction - 1),
        127 << fraction,
    ]
    near = (int(special >> fraction) // 2 << fraction) + rng.integers(-3 << fraction, 3 << fraction, count // 2)
    every = rng.integers(0, 1 << (bits - 1), count // 2, dtype=np.int64 if bits == 32 else np.uint64)
    coarse = np.asarray(near).astype(np.uint64) >> np.uint64(fraction - 3) << np.uint64(fraction - 3)
    positive = np.concatenate(
        [np.array(ends, np.uint64), np.asarray(near).astype(np.uint64), every.astype(np.uint64), coarse]
    )
    return np.concatenate([positive, positive | np.uint64(1 << (bits - 1))]).astype(word)


def call(function: Any, parameters: str, result: str, *arrays: Any) -> Any:
    """The function of all elements, by the bits of floats: ctypes hands floats on as they are."""
    types = {**TYPES, "f": ctypes.c_float, "d": ctypes.c_double}
    function.argtypes, function.restype = [types[letter] for letter in parameters], types[result]
    return np.array([function(*values) for values in zip(*(array.tolist() for array in arrays), strict=True)])


@pytest.mark.parametrize("letter", ["f", "d"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_floats_round_to_nearest(name: str, letter: str, functions: ctypes.CDLL) -> None:
    if (name, letter) == ("div", "f"):
        return  # libgcc has it
    word, dtype = BITS[letter]
    numbers = patterns(letter, 60).view(dtype)
    a, b = (grid.ravel() for grid in np.meshgrid(numbers, numbers))
    with np.errstate(all="ignore"):
        wanted = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[name](a, b)
    got = call(functions[f"lx_{name}{'s' if letter == 'f' else 'd'}f3"], letter * 2, letter, a, b).astype(dtype)
    same = (got.view(word) == wanted.view(word)) | (np.isnan(got) & np.isnan(wanted))
    assert same.all(), (a[~same][:3], b[~same][:3], got[~same][:3], wanted[~same][:3])


def test_conversions(functions: ctypes.CDLL) -> None:
    words = np.array(integers(32, 500), np.int64)
    signed, unsigned = words.astype(np.int32), words.astype(np.uint32)
    for name, letter, array, dtype in (
        ("floatsisf", "i", signed, np.float32),
        ("floatunsisf", "u", unsigned, np.float32),
        ("floatsidf", "i", signed, np.float64),
        ("floatunsidf", "u", unsigned, np.float64),
    ):
        result = "f" if dtype == np.float32 else "d"
        assert np.array_equal(
            call(functions[f"lx_{name}"], letter, result, array).astype(dtype), array.astype(dtype)
        ), name
    singles, doubles = patterns("f", 2000).view(np.float32), patterns("d", 2000).view(np.float64)
    widened = call(functions.lx_extendsfdf2, "f", "d", singles)
    with np.errstate(all="ignore"):
        assert np.array_equal(widened, singles.astype(np.float64), equal_nan=True)
        narrow = doubles.astype(np.float32)
    assert np.array_equal(call(functions.lx_truncdfsf2, "d", "f", doubles).astype(np.float32), narrow, equal_nan=True)
    for name, letter, result, array, least, most in (
        ("fixdfsi", "d", "i", doubles, -(1 << 31), (1 << 31) - 1),
        ("fixunsdfsi", "d", "u", doubles, 0, (1 << 32) - 1),
        ("fixunssfsi", "f", "u", singles, 0, (1 << 32) - 1),
    ):
        inside = array[np.isfinite(array) & (np.abs(array) < 2.0**40)]
        wanted = np.clip(np.trunc(inside.astype(np.float64)), least, most).astype(np.int64)
        assert np.array_equal(call(functions[f"lx_{name}"], letter, result, inside), wanted), name


def test_an_image_has_header_segments_and_checksum() -> None:
    data = encode_esp8266([(0x3FFE8000, b"abcde"), (0x40100000, b"1234")], 0x4002, 0x40100000)
    assert data[:8] == struct.pack("<4BI", 0xE9, 2, 2, 0x40, 0x40100000)
    assert data[8:24] == struct.pack("<II", 0x3FFE8000, 8) + b"abcde\0\0\0"
    assert data[24:36] == struct.pack("<II", 0x40100000, 4) + b"1234"
    assert len(data) % 16 == 0 and data[-1] == reduce(xor, b"abcde1234", 0xEF)


@pytest.mark.cross
@needs("xtensa-lx106-elf-gcc")
@pytest.mark.parametrize("name", ["nodemcu-v2", "d1-mini"])
def test_code_and_constants_are_in_two_memories(name: str, tmp_path: Path) -> None:
    board = load_board(name)
    segments = read_segments(build(board, tmp_path))
    assert segments[0][0] == 0x3FFE8000 and segments[-1][0] == 0x40100000
    assert all(start + len(data) <= 0x3FFF2000 for start, data in segments[:-1]), "with the content of .data"
    image = FORMATS["esp"](segments, board)
    entry = struct.unpack_from("<I", image, 4)[0]
    assert entry == 0x40100000 and dict(segments)[entry][0] & 0x3F == 6, "the image begins with a jump"
    with pytest.raises(UsageError, match="is no ESP8266"):
        FORMATS["esp"](segments, load_board("microbit"))


@pytest.mark.cross
@pytest.mark.emulator
@needs("xtensa-lx106-elf-gcc", "qemu-system-xtensa")
def test_the_emulated_core_takes_interrupts_and_counts(tmp_path: Path) -> None:
    """CCOUNT goes by 1.28 for each instruction, so that a count is off by one at most."""
    board = load_board("qemu-xtensa")
    elf = build(board, tmp_path)
    with Emulator(board, elf) as emulator, Line(emulator.url) as line:
        line.command("M", 7)
        assert line.words(4) == (0x12345678, 0, 10, board.raw["timer"]["hz"])
        data = random.Random(2).randbytes(2000)
        line.command("B", 300_000, b"E" + struct.pack("<I", len(data)) + data)
        assert line.receive(len(data)) == data, "more than the ring holds, while the core is busy"
        counts = []
        for turns in (1000, 1001, 100_000):
            line.command("T", turns)
            counts.append(ticks_to_instructions(board, line.words(1)[0]) - 2 * turns)
        assert max(counts) - min(counts) <= 1 and 0 < min(counts) < 25


@pytest.mark.parametrize("region", ["constants", "dram", "nothing"])
def test_code_goes_to_another_flash_region(region: str, tmp_path: Path) -> None:
    text = (file_access.boards_folder() / "d1-mini.toml").read_text()
    error = wrong(tmp_path, text.replace('code = "iram"', f'code = "{region}"'))
    assert f"[link] code: got region {region!r}" in error.what and error.where.endswith(":30")
