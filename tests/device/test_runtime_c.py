# SPDX-License-Identifier: Apache-2.0
"""The C runtime: its own tests, its size, and its frames against those of Python."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from microc.base import file_access
from microc.device import board_info, line_protocol
from microc.device.line_protocol import Frame, FrameDecoder, Operation, Status, encode_frame
from tests.device.firmware import make

ORDINARY = [operation for operation in Operation if operation < Operation.REGION]
"""What firmware knows that was not built for tuning."""
SANITIZED = ["SANITIZE=1", "OPTIMIZE=-O1"]
"""Sanitizers watch what the C does, which the optimiser does not change; at -O2 they take twice as long to build."""


@pytest.mark.parametrize(
    ("compiler", "options"),
    [("gcc", SANITIZED), ("gcc", [*SANITIZED, "PAYLOAD=32"]), ("clang", [])],
    ids=["gcc", "gcc-small", "clang"],
)
def test_the_c_tests_pass(compiler: str, options: list[str], tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    assert make("test", f"CC={compiler}", f"BUILD={tmp_path}", *options).count(": ok") == 5


def test_frames_agree_with_python(tmp_path: Path) -> None:
    make(f"{tmp_path}/echo", f"BUILD={tmp_path}", "SANITIZE=1")
    chance = Random(1)
    sent = [_frame(chance) for _ in range(5000)]
    line = b"".join(map(encode_frame, sent))
    echo = subprocess.run([tmp_path / "echo"], input=line, capture_output=True, check=False, timeout=60)
    assert echo.returncode == 0, echo.stderr
    assert echo.stdout == line
    assert FrameDecoder().feed(echo.stdout) == sent


def _frame(chance: Random) -> Frame:
    size = chance.choice([0, 1, 8, 242, 243, 244, 256, 500, chance.randrange(600)])
    alphabet = chance.choice([bytes(256), bytes(range(256)), bytes(range(1, 256)), b"\0\0\0\1"])
    payload = bytes(chance.choices(alphabet, k=size))
    operation, sequence, argument, version = chance.randbytes(4)
    return Frame(operation, chance.randrange(65536), sequence, argument, payload, version)


@pytest.mark.cross
def test_code_and_state_fit_small_boards(tmp_path: Path) -> None:
    if shutil.which("arm-none-eabi-gcc") is None:
        pytest.skip("arm-none-eabi-gcc is not installed")
    table = make("size", f"BUILD={tmp_path}", "PAYLOAD=64")
    rows = [tuple(map(int, line.split()[:3])) for line in table.splitlines() if line.split()[0].isdecimal()]
    (frame_text, *_), (rpc_text, *_), (_, _, state) = rows
    assert frame_text + rpc_text <= 2048
    assert all(data == bss == 0 for _, data, bss in rows[:2])
    assert state <= 512 - 200  # the rest is for the stack of the dispatcher


@pytest.mark.cross
@pytest.mark.skipif(shutil.which("avr-gcc") is None, reason="avr-gcc is not installed")
def test_int_may_have_16_bits(tmp_path: Path) -> None:
    """Sizes of banks exceed 64 KB there, too: units are masked in 32 bits."""
    units = tmp_path / "units.c"
    units.write_text(
        '#include "microc_store.h"\nextern char even[(0x12345 & ~(MICROC_STORE_UNIT - 1u)) == 0x12340 ? 1 : -1];\n'
    )
    root = file_access.runtime_c_folder()
    sources = [root / "src" / f"microc_{name}.c" for name in ("frame", "rpc", "store")]
    warnings = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror")
    defines = ("-DMICROC_RPC_STORE", "-DMICROC_PORT_TICK_HZ=1000u", f"-I{root}/include")
    command: list[str | Path] = ["avr-gcc", "-mmcu=atmega2560", "-fsyntax-only", *warnings, *defines, units, *sources]
    built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert built.returncode == 0, built.stderr


def _compiles(file: str, *options: str) -> bool:
    command = ["gcc", "-fsyntax-only", "-DMICROC_PORT_TICK_HZ=1", '-DMICROC_SLOT_CORE="core"', "-DMICROC_SLOT_ABI=1"]
    root = file_access.runtime_c_folder()
    return subprocess.run([*command, f"-I{root}/include", *options, root / file], check=False).returncode == 0


def test_no_firmware_takes_networks_and_calls(capfd: pytest.CaptureFixture[str]) -> None:
    """CALL runs what came over the line, which no signature covers."""
    load, slots = "-DMICROC_RPC_LOAD", "-DMICROC_RPC_SLOTS"
    assert _compiles("src/microc_rpc.c", load) and _compiles("src/microc_rpc.c", slots)
    assert not _compiles("src/microc_rpc.c", load, slots)
    assert "CALL would run what no signature covers" in capfd.readouterr().err


NVMC = """
#include <stdio.h>
#include "microc_slot.h"
static uint32_t ready = 1, configuration, page = PAGE, erased[9];
static unsigned count;
uint32_t *reach(uint32_t address)
{
    if (address == 0x4001E508u) {
        return &erased[count++];
    }
    return address == 0x4001E400u ? &ready : address == 0x10000010u ? &page : &configuration;
}
int main(void)
{
    int failed = microc_port_slot_erase(1, 64 + 4096);
    printf("%d %u %u %x", failed, configuration, count, erased[0]);
    return 0;
}
"""
"""Erases a slot of 8 KB by a controller whose registers are variables."""


@pytest.mark.parametrize(
    ("page", "base", "said"),
    [
        (1024, 0x10000, "0 0 5 12000"),
        (4096, 0x10000, "0 0 2 12000"),
        (1024, 0x10200, "-1 0 0 0"),
        (8192, 0x11000, "-1 0 0 0"),
        (16384, 0x10000, "-1 0 0 0"),
        (0, 0x10000, "-1 0 0 0"),
    ],
)
def test_nrf_slots_are_whole_pages(page: int, base: int, said: str, tmp_path: Path) -> None:
    """A page that a slot shares with the other, or with the firmware, is never erased."""
    (tmp_path / "main.c").write_text(NVMC)
    (tmp_path / "driver.h").write_text("#define MICROC_DRIVER_H\n#include <stdint.h>\nuint32_t *reach(uint32_t);\n")
    root, program = file_access.runtime_c_folder(), tmp_path / "main"
    facts = [f"-DPAGE={page}", f"-DMICROC_SLOTS_BASE={base}u", "-DMICROC_SLOTS_BYTES=8192u", "-DMICROC_SLOTS_UNIT=4"]
    options: list[str | Path] = [
        "-include",
        tmp_path / "driver.h",
        "-DMICROC_REGISTER(at)=(*reach(at))",
        f"-I{root}/include",
        *facts,
    ]
    subprocess.run(["gcc", *options, tmp_path / "main.c", root / "ports" / "nrf_nvmc.c", "-o", program], check=True)
    assert subprocess.run([program], capture_output=True, text=True, check=True, timeout=10).stdout == said
    assert not _compiles("ports/nrf_nvmc.c", "-DMICROC_SLOTS_UNIT=2")


def _enum(name: str, prefix: str = "") -> dict[str, int]:
    header = (file_access.runtime_c_folder() / "include" / "microc_rpc.h").read_text()
    match = re.search(rf"enum {name} {{(.*?)}};", header, re.DOTALL)
    assert match is not None
    return {key: int(value, 0) for key, value in re.findall(r"MICROC_(\w+) = (-?\w+)", match[1])}


def test_numbers_agree_with_the_header() -> None:
    assert _enum("microc_operation") == {op.name: op.value for op in Operation} | {"REPLY": line_protocol.REPLY}
    assert _enum("microc_status") == {status.name: status.value for status in Status}
    assert _enum("microc_dtype") == {name.upper(): number for number, name in enumerate(board_info.DTYPES)}
    assert _enum("microc_kind") == {name.upper(): number for number, name in enumerate(board_info.KINDS)}
    header = (file_access.runtime_c_folder() / "include" / "microc_rpc.h").read_text()
    assert f"#define MICROC_RPC_VERSION {line_protocol.VERSION}\n" in header


def test_the_specification_lists_every_number() -> None:
    text = (file_access.runtime_c_folder() / "SPEC.md").read_text()
    for number, name in [*((op.value, op.name) for op in Operation), *((s.value, s.name) for s in Status)]:
        assert re.search(rf"^\| {number} \| `{name}` \|", text, re.MULTILINE), name


@pytest.mark.fuzz
def test_twenty_thousand_random_frames(firmware: Path) -> None:
    """Frames made by Python, right and wrong, into the sanitized firmware: it neither stops nor steps out of a tensor."""
    chance = Random(7)
    pieces = []
    session, last = 0, 0  # as the board sees them
    asked = 1
    for _ in range(20000):
        request = _hostile(chance, session or 5, last)
        line = _damage(chance, encode_frame(request))
        pieces.append(line)
        dropped = len(request.payload) > 256 or request.operation & line_protocol.REPLY
        if dropped or FrameDecoder().feed(line + b"\0") != [request]:
            continue  # the board drops it, and a reply
        asked += 1
        if request.operation == Operation.HELLO and request.session not in (0, session):
            session, last = request.session, request.sequence
        elif request.session == session and request.sequence == (last + 1) & 0xFF:
            last = request.sequence
    pieces.append(encode_frame(Frame(Operation.HELLO, 6, 0)))
    done = subprocess.run([firmware], input=b"".join(pieces), capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    replies = FrameDecoder().feed(done.stdout)
    assert len(replies) == asked > 14000
    counts = Counter(reply.status for reply in replies)
    assert set(counts) == {s for s in Status if s > Status.BAD_IMAGE} - {Status.BAD_VERSION, Status.RUN_FAILED}
    assert counts[Status.OK] > 2000, counts
    assert (replies[-1].session, replies[-1].status) == (6, 0)


@pytest.mark.fuzz
def test_the_fuzzer_finds_nothing(tmp_path: Path) -> None:
    """Half a million frames in two seconds each, `make fuzz FUZZ_RUNS=430000 FUZZ_SLOT_RUNS=40000` tries ten million."""
    if shutil.which("clang") is None:
        pytest.skip("clang is not installed")
    folder = subprocess.run(["clang", "-print-runtime-dir"], capture_output=True, text=True, check=False).stdout.strip()
    if not list(Path(folder).glob("libclang_rt.fuzzer-*")):
        pytest.skip("clang's fuzzer is not installed (libclang-rt-dev)")
    runs = ("FUZZ_RUNS=20000", "FUZZ_SLOT_RUNS=2000")
    make("fuzz", f"BUILD={tmp_path}", *runs, f"FUZZ_FLAGS=-artifact_prefix={tmp_path}/")


def _hostile(chance: Random, session: int, last: int) -> Frame:
    operation = chance.choice([*ORDINARY, chance.randrange(256)])
    payload = chance.randbytes(chance.choice([0, 2, 4, 8, 8, 20, 256, 257, 300]))
    if operation in (Operation.WRITE, Operation.READ):
        offset = chance.choice([0, 1, 500, 599, 600, 601, 2**32 - 1])
        payload = struct.pack("<HIH", chance.randrange(9), offset, chance.choice([0, 1, 99, 100, 256, 257])) + payload
        payload = payload[: 8 if operation == Operation.READ else chance.choice([6, 8, 9, 40, 250, 600])]
    if operation in (Operation.RUN, Operation.PROFILE):
        payload = struct.pack("<HHI", chance.randrange(4), chance.randrange(4), chance.randrange(3))
        payload = payload[: 4 if operation == Operation.PROFILE else 8]
    sequence = (last + chance.choice([1] * 18 + [0, 2])) & 0xFF
    session = session if chance.random() < 0.95 else chance.choice([0, 4, 5])
    return Frame(operation, session, sequence, chance.choice([0, 0, 0, 0, 0, 1]), payload)


def _damage(chance: Random, line: bytes) -> bytes:
    damaged = bytearray(line)
    if chance.random() < 0.05:
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
    if chance.random() < 0.05:
        del damaged[chance.randrange(len(damaged)) :]
    return bytes(damaged)
