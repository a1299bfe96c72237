"""The machines: which cores' code runs where, and programs that are started there."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from microc.dtypes import Array
from microc.isa import CORES
from tests.native import GUARD, WARNINGS, Calls

_SERVER = Path(__file__).with_name("server.c")
_PARAMETERS, _ALIGNED = 64, 64
"""As in the program."""
_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the code of a core runs: commands that compile and link its programs, by compiler, and the one that runs them."""

    compilers: Mapping[str, tuple[str, ...]]
    runner: tuple[str, ...]

    @property
    def first(self) -> str:
        """The compiler for tests that are content with one."""
        return next(iter(self.compilers))


_AARCH64 = Machine(
    {
        "gcc": ("aarch64-linux-gnu-gcc", "-static"),
        "clang": ("clang", "--target=aarch64-linux-gnu", "-static"),
    },
    ("qemu-aarch64", "-cpu", "max"),
)
MACHINES: Mapping[str, Machine] = {"aarch64": _AARCH64, "aarch64-dotprod": _AARCH64}
"""By the name of a core."""


@contextmanager
def running(sources: Sequence[Path], names: Sequence[str], *flags: str, cpu: str, compiler: str) -> Iterator[Calls]:
    """A program of the sources, which is in their folder and calls the functions ``names`` by their numbers (``call_entry``).
    Warnings are errors. Skips, saying why, where the compiler or the emulator is missing."""
    machine, program = MACHINES[cpu], sources[0].with_name("program")
    command = machine.compilers[compiler]
    missing = [tool for tool in (command[0], machine.runner[0]) if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not on PATH")
    argv = [*command, *CORES[cpu].machine.split(), *WARNINGS, "-ffp-contract=off", *flags]
    done = subprocess.run([*argv, "-o", program, *sources, _SERVER, "-lm"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    with subprocess.Popen([*machine.runner, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:

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
