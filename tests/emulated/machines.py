# SPDX-License-Identifier: Apache-2.0
"""The machines: which cores' code runs where, and programs that are started there."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.device.emulators import find_program_or_simulator
from microc.isa import CORES
from tests.support.native import GUARD, WARNINGS, Calls

_SERVER = Path(__file__).with_name("server.c")
_PARAMETERS, _ALIGNED = 64, 64
"""As in the program."""
_SECONDS = 60
_OPTIONS = ("-ffp-contract=off",)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the code of the core ``cpu`` runs: commands that compile and link its programs, by compiler, and the one that runs
    them, with the ``arguments`` behind its name. ``needs``: the program whose package has its C library. ``server``: the program
    around the functions, which holds ``most`` bytes of parameters. ``libraries``: what stands behind the sources. ``stops``: how
    words begin at whose instructions the emulator fails."""

    cpu: str
    needs: str
    compilers: Mapping[str, str]
    runner: str
    libraries: tuple[str, ...] = ("-lm",)
    stops: tuple[str, ...] = ()
    server: Path = _SERVER
    arguments: tuple[str, ...] = ()
    most: int = 1 << 24

    def runs(self, code: str) -> bool:
        """Whether the emulator has the instructions of all words in code."""
        return not any(word in code for word in self.stops)

    @property
    def first(self) -> str:
        """The compiler for tests that are content with one."""
        return next(iter(self.compilers))


def _aarch64(cpu: str) -> Machine:
    compilers = {"gcc": "aarch64-linux-gnu-gcc -static", "clang": "clang --target=aarch64-linux-gnu -static"}
    return Machine(cpu, "aarch64-linux-gnu-gcc", compilers, "qemu-aarch64 -cpu max")


def _armhf(cpu: str) -> Machine:
    """With Debian's C library, which is for Armv7-A: the emulated core has more instructions than an ARM1176, compilers and
    assemblers refuse those."""
    compilers = {"gcc": "arm-linux-gnueabihf-gcc -static", "clang": "clang --target=arm-linux-gnueabihf -static"}
    return Machine(cpu, "arm-linux-gnueabihf-gcc", compilers, "qemu-arm -cpu max")


_QEMU_7 = ("toward_zero",)
"""It has an assertion that vectors' conversions with a rounding mode of their own violate; version 8 has none."""


def _riscv(bits: int, length: int) -> str:
    """Runs programs on a machine whose vectors have so many bits."""
    return f"qemu-riscv{bits} -cpu rv{bits},v=true,vext_spec=v1.0,vlen={length}"


def _rv64(length: int) -> Machine:
    clang = "clang-19 --target=riscv64-linux-gnu -static"
    return Machine("rv64gcv", "riscv64-linux-gnu-gcc", {"clang": clang}, _riscv(64, length), stops=_QEMU_7)


_PICOLIBC = "/usr/lib/picolibc/riscv64-unknown-elf"
_LIBGCC = sorted(Path("/usr/lib/gcc/riscv64-unknown-elf").glob("*"))[-1:]


def _rv32(cpu: str, variant: str, length: int) -> Machine:
    """By a variant of the bare-metal libraries of boards, for want of some for Linux."""
    clang = f"clang-19 --target=riscv32-unknown-elf -mabi={variant.partition('/')[2]} -isystem {_PICOLIBC}/include"
    linker = "-nostdlib -static --ld-path=/usr/bin/riscv64-unknown-elf-ld -Wl,-m,elf32lriscv"
    folders = [f"-L{folder}/{variant}" for folder in (f"{_PICOLIBC}/lib/release", *_LIBGCC)]
    libraries = (str(_SERVER.with_name("riscv32.c")), *folders, "-lm", "-lc", "-lgcc")
    compilers = {"clang": f"{clang} {linker}"}
    return Machine(cpu, "riscv64-unknown-elf-gcc", compilers, _riscv(32, length), libraries, _QEMU_7)


_WASM = Machine(
    "wasm-simd128",
    "wasm-ld-19",
    {"clang": "clang-19"},
    f"node --no-warnings {_SERVER.with_name('wasi.mjs')}",
)
AVR = Machine(
    "avr",
    "avr-gcc",
    {
        "gcc": "avr-gcc -mmcu=atmega2560 -fwrapv -fno-jump-tables "
        "-Wl,--defsym=__stack=0xffff,--defsym=__DATA_REGION_LENGTH__=0xfe00"
    },
    "simavr atmega2560 16000000",
    server=_SERVER.with_name("avr.c"),
    arguments=("0xffff",),
    most=32_000,
)
"""As the Mega, with external RAM; no array is larger than 32,767 bytes."""
MACHINES: Mapping[str, Machine] = {
    "aarch64": _aarch64("aarch64"),
    "aarch64-dotprod": _aarch64("aarch64-dotprod"),
    "arm1176": _armhf("arm1176"),
    "armv7a-neon": _armhf("armv7a-neon"),
    "rv32imc_zve32x": _rv32("rv32imc_zve32x", "rv32im/ilp32", 128),
    "rv32imafc_zve32f-256": _rv32("rv32imafc_zve32f", "rv32imafc/ilp32f", 256),
    "rv64gcv": _rv64(128),
    "rv64gcv-256": _rv64(256),
    "wasm-simd128": _WASM,
}
"""By the name of a core, and the length of its vectors where that is not 128 bits."""


@contextmanager
def running(
    sources: Sequence[Path], names: Sequence[str], *flags: str, machine: Machine, compiler: str
) -> Iterator[Calls]:
    """A program of the sources, which is in their folder and calls the functions ``names`` by their numbers (``call_entry``).
    Warnings are errors. Skips, saying why, where the compiler or the emulator is missing."""
    command, runner = machine.compilers[compiler].split(), machine.runner.split()
    missing = [tool for tool in (command[0], runner[0], machine.needs) if not find_program_or_simulator(tool)]
    if missing:
        pytest.skip(f"{', '.join(missing)} not on PATH")
    runner[:1] = find_program_or_simulator(runner[0])
    program = sources[0].with_name("program")
    options = [*CORES[machine.cpu].machine.split(), *WARNINGS, *_OPTIONS, *flags]
    files = [str(path) for path in (program, *sources, machine.server)]
    argv = [*command, *options, "-o", *files, *machine.libraries]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    with subprocess.Popen(
        [*runner, program, *machine.arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:

        def calls(name: str, memory: Sequence[Array]) -> None:
            assert process.stdin is not None and process.stdout is not None
            sizes = [-(-part.size // _ALIGNED) * _ALIGNED for part in memory]
            starts = list(accumulate(sizes, initial=0))
            asked = np.zeros(starts[-1], np.uint8)
            for start, part in zip(starts, memory, strict=False):
                asked[start : start + part.size] = part
            places = [*(start + GUARD for start in starts[:-1]), *[0] * (_PARAMETERS - len(memory))]
            process.stdin.write(struct.pack(f"<iI{_PARAMETERS}I", names.index(name), asked.size, *places))
            process.stdin.write(asked.tobytes())
            process.stdin.flush()
            answer = np.frombuffer(process.stdout.read(asked.size), np.uint8)
            assert answer.size == asked.size, f"{name}: the program ended"
            for start, part in zip(starts, memory, strict=False):
                part[:] = answer[start : start + part.size]

        yield calls
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(_SECONDS) == 0
