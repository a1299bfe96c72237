"""Compilers, make, linked programs, instruction sets of this computer, and installers of what is missing."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from microc.base.file_access import open_regular
from microc.base.immutable import frozen
from microc.codegen.project.firmware import webassembly
from microc.errors import ToolError, UsageError
from microc.isa import ALIASES, CORES, FAMILIES
from microc.target import Board, Target, target_for

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile


# ---- What installs the programs that microc starts, by the package managers of the systems that people have.
#
# Those of apt are what the tests install; the others are as their lists of packages have them.


def _packages(apt: str = "", dnf: str = "", brew: str = "", winget: str = "", choco: str = "") -> Mapping[str, str]:
    return MappingProxyType({"apt": apt, "dnf": dnf, "brew": brew, "winget": winget, "choco": choco})


def _qemu(apt: str, dnf: str) -> Mapping[str, str]:
    return _packages(apt, dnf, "qemu", "SoftwareFreedomConservancy.QEMU", "qemu")


PACKAGES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "cc": _packages("gcc libc6-dev", "gcc glibc-devel", "gcc", "BrechtSanders.WinLibs.POSIX.UCRT", "mingw"),
        "make": _packages("make", "make", "make", "ezwinports.make", "make"),
        "arm-none-eabi-gcc": _packages(
            "gcc-arm-none-eabi libnewlib-arm-none-eabi",
            "arm-none-eabi-gcc-cs arm-none-eabi-newlib",
            "gcc-arm-embedded",
            "Arm.GnuArmEmbeddedToolchain",
            "gcc-arm-embedded",
        ),
        "riscv64-unknown-elf-gcc": _packages("gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf"),
        "avr-gcc": _packages("gcc-avr avr-libc", "avr-gcc avr-libc"),
        "qemu-system-arm": _qemu("qemu-system-arm", "qemu-system-arm"),
        "simavr": _packages("libsimavr-dev", "simavr-devel", "simavr"),
        "qemu-system-riscv32": _qemu("qemu-system-misc", "qemu-system-riscv"),
        "qemu-system-riscv64": _qemu("qemu-system-misc", "qemu-system-riscv"),
        "verilator": _packages("verilator", "verilator", "verilator"),
        "gdb-multiarch": _packages("gdb-multiarch"),
        "openocd": _packages("openocd", "openocd", "open-ocd", choco="openocd"),
        "avrdude": _packages("avrdude", "avrdude", "avrdude", choco="avrdude"),
        "bossac": _packages("bossa-cli", "bossa"),
        "st-flash": _packages("stlink-tools", "stlink", "stlink"),
        "teensy_loader_cli": _packages("teensy-loader-cli", brew="teensy_loader_cli"),
    }
)
"""Of every program the packages, by manager; empty where a manager has none."""
_INSTALL: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "apt": ("apt-get", "install", "-y", "--no-install-recommends"),
        "dnf": ("dnf", "install", "-y"),
        "brew": ("brew", "install"),
        "winget": ("winget", "install", "--exact"),
        "choco": ("choco", "install", "-y"),
    }
)
_LINUX: Mapping[str, str] = MappingProxyType({"debian": "apt", "ubuntu": "apt", "fedora": "dnf", "rhel": "dnf"})


def manager() -> str:
    """The package manager of this computer; empty where it is none of ours."""
    if sys.platform == "darwin":
        return "brew"
    if sys.platform == "win32":
        return "choco" if shutil.which("choco") and not shutil.which("winget") else "winget"
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ""
    names = (release["ID"], *release.get("ID_LIKE", "").split())
    return next((_LINUX[name] for name in names if name in _LINUX), "")


def install_commands(programs: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """The commands that install programs here, each a program and its arguments, through sudo where that is needed and there;
    none where no package of this computer's manager has any of them."""
    here = manager()
    packages = _packages_of(programs, here)
    if not packages:
        return ()
    refresh = (("apt-get", "update"),) if here == "apt" else ()
    root = here not in ("apt", "dnf") or os.geteuid() == 0 or not shutil.which("sudo")
    return tuple(each if root else ("sudo", *each) for each in (*refresh, (*_INSTALL[here], *packages)))


def install_hint(program: str) -> str:
    """How to get one program, for whoever lacks it."""
    here = manager()
    packages = _packages_of([program], here)
    return " ".join((*_INSTALL[here], *packages)) if packages else f"install {program} and put it on PATH"


def _packages_of(programs: Iterable[str], manager: str) -> tuple[str, ...]:
    cells = (PACKAGES[program][manager] for program in programs if manager and program in PACKAGES)
    return tuple(dict.fromkeys(package for cell in cells for package in cell.split()))


# ---- Compilers, make, and what is in a linked program: sizes by section and symbol.

_HOST_COMPILERS = ("cc", "gcc", "clang")
_SHOWN_LINES = 20
_COMPILE_SECONDS = 300
STACK = ".stack"
"""The section that reserves room for the stack."""
HOT_CODE = ".hot_code"
"""The section of kernels that run from RAM: in flash until start-up copies it."""

DAMAGED_ELF = (
    ValueError,
    OverflowError,
    MemoryError,
    LookupError,
    AttributeError,
    TypeError,
    AssertionError,
    RecursionError,
)
"""What pyelftools raises, beside its own ELFError, for a program whose tables are damaged."""


@frozen
class Compiler:
    """A C compiler: the program to call, and the first line of its ``--version``."""

    program: str
    version: str


@frozen
class Symbol:
    """A function or an object of a linked program; ``size`` in bytes; ``address``: that of a function says Thumb in bit 0."""

    name: str
    section: str
    size: int
    address: int


@frozen
class Sizes:
    """Memory of a linked program in bytes. ``flash``: code, constants and initial values. ``static_ram``: data, bss and arena.
    ``reserved_stack``: the section that the linker script keeps for the stack. ``sections``: allocated ones with their sizes, in
    file order."""

    flash: int
    static_ram: int
    reserved_stack: int
    sections: tuple[tuple[str, int], ...]
    symbols: tuple[Symbol, ...]


def require(program: str, install: str = "") -> str:
    """The path of a program. :class:`ToolError` with the way to install it (``install`` if given) when it is missing."""
    found = shutil.which(program)
    if found is None:
        raise ToolError(f"{program} is not on PATH", hint=install or install_hint(program))
    return found


def board_tools(board: Board) -> tuple[str, ...]:
    """The programs that building for a board and booting it takes; those of this computer by the name they have here."""
    prefix = board.raw["build"]["prefix"]
    here = next((name for name in (os.environ.get("CC") or "", *_HOST_COMPILERS) if shutil.which(name)), "cc")
    framework = [board.raw["framework"]["tool"]] if "framework" in board.raw else []
    emulators = [board.raw[kind]["argv"][0] for kind in ("emulator", "simulator") if kind in board.raw]
    return (*(framework or [prefix + "gcc" if prefix else here, "make"]), *emulators)


def find_compiler(board: Board) -> Compiler:
    """The compiler of a board: ``<prefix>gcc``, or on the host ``$CC`` and then the first of cc, gcc and clang."""
    prefix = board.raw["build"]["prefix"]
    program = require(prefix + "gcc") if prefix else host_compiler()
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolError(f"{program} --version failed: {error}", where=program) from error
    return Compiler(program, done.stdout.partition("\n")[0])


def host_compiler() -> str:
    """``$CC``, or the first that there is."""
    named = os.environ.get("CC")
    if named:
        return require(named)
    for program in _HOST_COMPILERS:
        found = shutil.which(program)
        if found is not None:
            return found
    return require(_HOST_COMPILERS[0])


def run_make(folder: Path, args: Sequence[str] = ()) -> None:
    """Run ``make ARGS`` in a project folder, quietly. :class:`ToolError` with the last lines of the output when it fails."""
    program = require("make")
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")} | {
        "LC_ALL": "C"
    }
    done = subprocess.run(
        [program, "-C", str(folder), *args],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        lines = done.stdout.strip().splitlines()[-_SHOWN_LINES:]
        raise ToolError(
            f"the build failed: make exited with {done.returncode}\n" + "\n".join(f"    {line}" for line in lines),
            where=str(folder),
        )


def section_sizes(elf: Path) -> Sizes:
    """Sizes of a linked ELF file. :class:`ToolError` when the file is missing or not ELF."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with open_regular(elf) as stream:
            return _sizes(ELFFile(stream))
    except OSError as error:
        raise ToolError(f"cannot read the program: {error.strerror or error}", where=str(elf)) from error
    except (ELFError, *DAMAGED_ELF) as error:
        raise ToolError(f"not an ELF file: {error}", where=str(elf)) from error


def _sizes(elf: ELFFile) -> Sizes:
    from elftools.elf.constants import SH_FLAGS

    flash = ram = stack = 0
    sections: list[tuple[str, int]] = []
    for section in elf.iter_sections():
        size = section["sh_size"]
        if not section["sh_flags"] & SH_FLAGS.SHF_ALLOC or size == 0:
            continue
        sections.append((section.name, size))
        if section.name == STACK:
            stack += size
            continue
        flash += size if section["sh_type"] != "SHT_NOBITS" else 0
        ram += size if section["sh_flags"] & SH_FLAGS.SHF_WRITE or section.name == HOT_CODE else 0
    return Sizes(flash, ram, stack, tuple(sections), _symbols(elf))


def _symbols(elf: ELFFile) -> tuple[Symbol, ...]:
    """Functions and objects with a size, largest first; none in a stripped program."""
    table = elf.get_section_by_name(".symtab")
    names = [section.name for section in elf.iter_sections()]
    found = [
        Symbol(symbol.name, names[symbol["st_shndx"]], symbol["st_size"], symbol["st_value"])
        for symbol in (table.iter_symbols() if table is not None else ())
        if symbol["st_info"]["type"] in ("STT_FUNC", "STT_OBJECT")
        and symbol["st_size"]
        and isinstance(symbol["st_shndx"], int)
    ]
    return tuple(sorted(found, key=lambda s: (-s.size, s.name, s.section)))


def compile_shared(
    folder: Path, sources: Sequence[Path], target: Path, *flags: str, libraries: Sequence[str] = ()
) -> Path:
    """Compile C sources with the host's compiler into the shared library ``target``; ``folder`` is searched for headers.

    ``flags``: more arguments for the compiler; a later ``-O`` counts. ``libraries``: what is linked behind the sources.
    """
    return _shared(folder, [*flags, *map(str, sources), *libraries], target)


def link_shared(folder: Path, objects: Sequence[Path], target: Path) -> Path:
    """Link what :func:`compile_object` made into the shared library ``target``."""
    return _shared(folder, [*map(str, objects)], target)


def compile_object(folder: Path, sources: Sequence[Path], target: Path, *flags: str) -> Path:
    """The same as one object, which may become part of a shared library with others that were compiled with other flags."""
    return _for_host(folder, ("-r", "-nostdlib"), [*flags, *map(str, sources)], target)


def _shared(folder: Path, what: Sequence[str], target: Path) -> Path:
    return _for_host(folder, ("-shared",), what, target, "-lm")


def _for_host(folder: Path, kind: Sequence[str], what: Sequence[str], target: Path, *ends: str) -> Path:
    run_compiler(
        (
            host_compiler(),
            "-std=c99",
            "-O2",
            *kind,
            "-fPIC",
            "-pthread",
            f"-I{folder}",
            *what,
            "-o",
            str(target),
            *ends,
        ),
        folder,
    )
    return target


def link_program(board: Board, folder: Path, sources: Sequence[str], script: str, *flags: str) -> Path:
    """Compile C sources of a folder as a board's, and link them by a script of the folder: ``image.elf`` there."""
    build = board.raw["build"]
    kind = ("-std=c99", *build["c_flags"], "-ffunction-sections", "-fdata-sections", f"-I{folder}")
    link = (f"-T{folder / script}", *build["ld_flags"], "-lm", "-o", str(folder / "image.elf"))
    run_compiler((require(build["prefix"] + "gcc"), *kind, *flags, *(str(folder / s) for s in sources), *link), folder)
    return folder / "image.elf"


def run_compiler(command: Sequence[str], folder: Path) -> None:
    """Run a compiler. ToolError with the first lines of what it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"{command[0]} did not finish within {_COMPILE_SECONDS} s", where=str(folder)) from error
    if done.returncode != 0:
        said = "\n".join(done.stderr.strip().splitlines()[:_SHOWN_LINES])
        raise ToolError("the generated C does not compile", where=str(folder), hint=said)


# ---- Which levels of its instruction set this computer has, as its C compiler tells.

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


# ---- The compiler for WebAssembly: C sources as one module, for pages and for Node.

_PACKAGES = "clang-19 lld-19 wasi-libc libclang-rt-19-dev-wasm32"


def compile_module(sources: Mapping[str, str], target: Target) -> bytes:
    """The module of C sources, which are given with their headers, all by file name. ToolError where there is no compiler for
    it, with what it says where it refuses."""
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        for name, text in sources.items():
            (Path(folder) / name).write_text(text)
        code = [str(Path(folder) / name) for name in sources if name.endswith(".c")]
        module = Path(folder) / "network.wasm"
        run_compiler((_clang(), *webassembly(target).split(), f"-I{folder}", *code, "-o", str(module)), Path(folder))
        return module.read_bytes()


def _clang() -> str:
    """A clang that has a linker for WebAssembly beside it."""
    for end in ("", *(f"-{version}" for version in range(22, 13, -1))):
        if shutil.which(f"clang{end}") and shutil.which(f"wasm-ld{end}"):
            return f"clang{end}"
    raise ToolError(
        "there is no clang with a linker for WebAssembly (wasm-ld) on PATH",
        hint=f"apt-get install -y --no-install-recommends {_PACKAGES}",
    )
