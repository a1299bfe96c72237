"""Which levels of its instruction set this computer has, as its C compiler tells."""

from __future__ import annotations

import platform
import re
import subprocess
from functools import cache

from microc.device.toolchain import host_compiler
from microc.errors import UsageError
from microc.isa import ALIASES, CORES, FAMILIES
from microc.target import Target, target_for

NATIVE, PORTABLE = "native", "portable"
HERE = ("host", NATIVE)
"""What libraries are compiled for: this computer, or any."""
MOST_CORES = 4
"""Cores that one library holds kernels for."""
PLAIN = "host"
"""The core of which nothing is known."""
_SECONDS = 30
_UNIT = re.compile(r"#define (__(?:AVX|FMA|SSE|BMI|F16C|ARM_|riscv_)\w*)", re.ASCII)
"""Macros that tell of instructions."""


@cache
def _units(option: str) -> frozenset[str] | None:
    """Macros under a compiler's option; None where it does not know it."""
    command = [host_compiler(), *option.split(), "-dM", "-E", "-x", "c", "-"]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=_SECONDS, check=False)
    return frozenset(_UNIT.findall(done.stdout)) if done.returncode == 0 else None


def runs(machine: str) -> bool:
    """Whether this computer runs what is compiled with such options (``-march=x86-64-v3``): it has all the instructions that they
    allow."""
    asked, own = _units(machine), _units("-march=native") or _units("-mcpu=native")
    return bool(asked) and own is not None and asked is not None and asked <= own


def machine_flags(machine: str) -> tuple[str, ...]:
    """The options of a core, where this computer is one; else none, and portable C."""
    return tuple(machine.split()) if machine and runs(machine) else ()


def native() -> str:
    """The core whose instructions this computer has, the most capable one; ``host`` where none is known."""
    vectors = [core for core in CORES.values() if core.lanes and platform.machine() in FAMILIES[core.family].computers]
    return next((core.name for core in reversed(vectors) if runs(core.machine)), PLAIN)


def library_core(name: str) -> Target:
    """What a library for this computer is compiled for. ``host`` and ``native``: the most capable core that it is;
    ``portable``: none in particular; others by their name. UsageError for what is neither."""
    if name in HERE:
        return target_for(native())
    if name != PORTABLE and name not in CORES and name not in ALIASES:
        known = (*HERE, PORTABLE, *(core for core in CORES if core != PLAIN))
        raise UsageError(f"unknown core {name!r}", hint="known: " + ", ".join(known))
    return target_for(PLAIN if name == PORTABLE else name)


def library_cores(names: str) -> tuple[Target, ...]:
    """What a library for several cores is compiled for, by their names with commas, the first to be taken first. UsageError for
    cores that no computer of this kind is, for one that stands twice, and for too many."""
    cores = tuple(library_core(name.strip()) for name in names.split(","))
    known = [core.cpu for core in cores]
    if len(set(known)) < len(known) or len(known) > MOST_CORES:
        raise UsageError(f"a library for {names}", hint=f"name {MOST_CORES} different cores at most")
    other = [c for c in known if c != PLAIN and platform.machine() not in FAMILIES[CORES[c].family].computers]
    if other:
        raise UsageError(
            f"{other[0]} is no computer of this kind ({platform.machine()})",
            hint="a library holds kernels for one kind",
        )
    return cores
