# SPDX-License-Identifier: Apache-2.0
"""Compilers, make, linked programs, instruction sets of this computer, and installation of missing programs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from microc.base.file_access import open_regular_file, write_text
from microc.base.immutable import frozen
from microc.base.operating_system import (
    MACOS,
    is_administrator,
    is_windows,
    list_make_programs,
    position_independent_flags,
    shared_library_flags,
    system_name,
)
from microc.codegen.project.firmware import webassembly_options
from microc.errors import ToolError, UsageError
from microc.isa import ALIASES, CORES, FAMILIES
from microc.target import Board, Target, target_for

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile


# ---- Packages of the programs that microc starts, by package manager.
#
# The tests install those of apt; names for the other managers are taken from their package lists.


def _map_managers_to_packages(
    apt: str = "", dnf: str = "", brew: str = "", winget: str = "", choco: str = "", npm: str = ""
) -> Mapping[str, str]:
    """Map package managers to the packages of a program, separated by blanks.

    ``npm``: packages of Node.js, which are the same on all computers."""
    return MappingProxyType({"apt": apt, "dnf": dnf, "brew": brew, "winget": winget, "choco": choco, "npm": npm})


def _map_managers_to_qemu_packages(apt: str, dnf: str) -> Mapping[str, str]:
    """Map package managers to the packages of a QEMU emulator. Only apt and dnf have one package for each emulator."""
    return _map_managers_to_packages(apt, dnf, "qemu", "SoftwareFreedomConservancy.QEMU", "qemu")


PACKAGES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "cc": _map_managers_to_packages(
            "gcc libc6-dev", "gcc glibc-devel", "gcc", "BrechtSanders.WinLibs.POSIX.UCRT", "mingw"
        ),
        "make": _map_managers_to_packages("make", "make", "make", "ezwinports.make", "make"),
        "arm-none-eabi-gcc": _map_managers_to_packages(
            "gcc-arm-none-eabi libnewlib-arm-none-eabi",
            "arm-none-eabi-gcc-cs arm-none-eabi-newlib",
            "gcc-arm-embedded",
            "Arm.GnuArmEmbeddedToolchain",
            "gcc-arm-embedded",
        ),
        "riscv64-unknown-elf-gcc": _map_managers_to_packages("gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf"),
        "xtensa-lx106-elf-gcc": _map_managers_to_packages("gcc-xtensa-lx106 picolibc-xtensa-lx106-elf"),
        "avr-gcc": _map_managers_to_packages("gcc-avr avr-libc", "avr-gcc avr-libc"),
        "qemu-system-arm": _map_managers_to_qemu_packages("qemu-system-arm", "qemu-system-arm"),
        "simavr": _map_managers_to_packages("libsimavr-dev", "simavr-devel", "simavr"),
        "qemu-system-riscv32": _map_managers_to_qemu_packages("qemu-system-misc", "qemu-system-riscv"),
        "qemu-system-riscv64": _map_managers_to_qemu_packages("qemu-system-misc", "qemu-system-riscv"),
        "node": _map_managers_to_packages("nodejs npm", "nodejs npm", "node", "OpenJS.NodeJS", "nodejs"),
        "rp2040js": _map_managers_to_packages(npm="rp2040js"),
        "qemu-system-xtensa": _map_managers_to_qemu_packages("qemu-system-misc", "qemu-system-xtensa"),
        "llvm-mca-19": _map_managers_to_packages("llvm-19"),
        "llvm-objdump-19": _map_managers_to_packages("llvm-19"),
        "verilator": _map_managers_to_packages("verilator", "verilator", "verilator"),
        "gdb-multiarch": _map_managers_to_packages("gdb-multiarch"),
        "openocd": _map_managers_to_packages("openocd", "openocd", "open-ocd", choco="openocd"),
        "avrdude": _map_managers_to_packages("avrdude", "avrdude", "avrdude", choco="avrdude"),
        "bossac": _map_managers_to_packages("bossa-cli", "bossa"),
        "st-flash": _map_managers_to_packages("stlink-tools", "stlink", "stlink"),
        "teensy_loader_cli": _map_managers_to_packages("teensy-loader-cli", brew="teensy_loader_cli"),
    }
)
"""Packages of every program by manager; empty if a manager has none."""
_NPM = "npm"
_INSTALL: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "apt": ("apt-get", "install", "-y", "--no-install-recommends"),
        "dnf": ("dnf", "install", "-y"),
        "brew": ("brew", "install"),
        "winget": ("winget", "install", "--exact"),
        "choco": ("choco", "install", "-y"),
        "npm": ("npm", "install", "--global", "--prefix", sys.prefix),
    }
)
NPM_FOLDER = Path(sys.prefix) if is_windows() else Path(sys.prefix, "lib")
"""Folder below which npm installs with the prefix of this Python environment: no administrator is needed."""
_LINUX: Mapping[str, str] = MappingProxyType({"debian": "apt", "ubuntu": "apt", "fedora": "dnf", "rhel": "dnf"})


def find_package_manager() -> str:
    """Return the name of this computer's package manager; empty if it is none of those in :data:`PACKAGES`."""
    if system_name() == MACOS:
        return "brew"
    if is_windows():
        return "choco" if shutil.which("choco") and not shutil.which("winget") else "winget"
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ""
    names = (release["ID"], *release.get("ID_LIKE", "").split())
    return next((_LINUX[name] for name in names if name in _LINUX), "")


def install_commands(programs: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """List the commands that install ``programs`` on this computer, each as a list of arguments.

    The commands begin with sudo if it is needed and available. Empty if the package manager has no package."""
    package_manager = find_package_manager()
    programs = tuple(programs)
    node_packages = _list_packages_of_programs(programs, _NPM)
    for_node = ((*_INSTALL[_NPM], *node_packages),) if node_packages else ()
    packages = _list_packages_of_programs(programs, package_manager)
    if not packages:
        return for_node
    refresh = (("apt-get", "update"),) if package_manager == "apt" else ()
    root = package_manager not in ("apt", "dnf") or is_administrator() or not shutil.which("sudo")
    commands = (*refresh, (*_INSTALL[package_manager], *packages))
    return (*(command if root else ("sudo", *command) for command in commands), *for_node)


def install_hint(program: str) -> str:
    """Return the hint with the command that installs ``program`` on this computer."""
    package_manager = _NPM if PACKAGES.get(program, {}).get(_NPM) else find_package_manager()
    packages = _list_packages_of_programs([program], package_manager)
    return " ".join((*_INSTALL[package_manager], *packages)) if packages else f"install {program} and put it on PATH"


def _list_packages_of_programs(programs: Iterable[str], package_manager: str) -> tuple[str, ...]:
    """List the packages that contain ``programs`` for a package manager, without duplicates.

    Programs without a package of this manager are skipped."""
    cells = (PACKAGES[program][package_manager] for program in programs if package_manager and program in PACKAGES)
    return tuple(dict.fromkeys(package for cell in cells for package in cell.split()))


# ---- Compilers, make, and sizes of linked programs by section and symbol.

_HOST_COMPILERS = ("cc", "gcc", "clang")
_SHOWN_LINES = 20
_COMPILE_SECONDS = 300
STACK = ".stack"
"""Section that reserves memory for the stack."""
HOT_CODE = ".hot_code"
"""Section of kernels that run from RAM; start-up code copies it from flash."""

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
"""Errors that pyelftools raises for damaged files, in addition to its ELFError."""


@frozen
class Compiler:
    """A C compiler: its program, and the first line of its ``--version``."""

    program: str
    version: str


@frozen
class Symbol:
    """A function or object of a linked program. ``size``: size in bytes. ``address``: address; that of a Thumb function
    has bit 0 set."""

    name: str
    section: str
    size: int
    address: int


_CLONE_SUFFIX = re.compile(r"[.$].*")
"""Suffix that gcc adds to the names of cloned functions: ``f.constprop.0``, for Xtensa ``f$constprop$0``."""


def strip_clone_suffix(symbol_name: str) -> str:
    """Return the name of the function that gcc has cloned as ``symbol_name``, or the name itself."""
    return _CLONE_SUFFIX.sub("", symbol_name)


@frozen
class LinkedSizes:
    """Memory of a linked program in bytes.

    ``flash``: code, constants and initial values. ``static_ram``: data, bss and arena. ``reserved_stack``: stack that
    the linker script reserves. ``sections``: name and size of each allocated section, in file order. ``symbols``:
    functions and objects, largest first."""

    flash: int
    static_ram: int
    reserved_stack: int
    sections: tuple[tuple[str, int], ...]
    symbols: tuple[Symbol, ...]


def require_program(program: str, install: str = "") -> str:
    """Return the path of a program on PATH. Raises ToolError if it is missing.

    ``install``: the error's hint; by default the command of this computer's package manager."""
    path = shutil.which(program)
    if path is None:
        raise ToolError(f"{program} is not on PATH", hint=install or install_hint(program))
    return path


def list_tools_of_board(board: Board) -> tuple[str, ...]:
    """List the programs that build a board's firmware and run it in an emulator or simulator: the compiler first."""
    prefix = board.raw["build"]["prefix"]
    host_name = next((name for name in (os.environ.get("CC") or "", *_HOST_COMPILERS) if shutil.which(name)), "cc")
    framework = [board.raw["framework"]["tool"]] if "framework" in board.raw else []
    emulators = [board.raw[kind]["argv"][0] for kind in ("emulator", "simulator") if kind in board.raw]
    return (*(framework or [prefix + "gcc" if prefix else host_name, "make"]), *emulators)


def find_compiler(board: Board) -> Compiler:
    """Return a board's compiler with its version: ``<prefix>gcc``, or for the host :func:`host_compiler`.

    Raises ToolError if it is missing or does not run."""
    prefix = board.raw["build"]["prefix"]
    program = require_program(prefix + "gcc") if prefix else host_compiler()
    try:
        result = subprocess.run(
            [program, "--version"], capture_output=True, encoding="utf-8", errors="replace", check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolError(f"the compiler does not answer --version: {error}", where=program) from error
    return Compiler(program, result.stdout.partition("\n")[0])


def host_compiler() -> str:
    """Return the path of this computer's C compiler: that of the environment variable CC, else the first of cc, gcc and
    clang on PATH."""
    override = os.environ.get("CC")
    if override:
        return require_program(override)
    for program in _HOST_COMPILERS:
        path = shutil.which(program)
        if path is not None:
            return path
    return require_program(_HOST_COMPILERS[0])


def run_make(folder: Path, make_arguments: Sequence[str] = ()) -> None:
    """Run ``make ARGS`` in a project folder. Raises ToolError with the last lines of the output if it fails."""
    program = next(filter(None, map(shutil.which, list_make_programs())), None) or require_program("make")
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")} | {
        "LC_ALL": "C"
    }
    result = subprocess.run(
        [program, "-C", str(folder), *make_arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if result.returncode != 0:
        lines = result.stdout.strip().splitlines()[-_SHOWN_LINES:]
        raise ToolError(
            f"the build failed: make exited with {result.returncode}\n" + "\n".join(f"    {line}" for line in lines),
            where=str(folder),
        )


def read_linked_sizes(elf: Path) -> LinkedSizes:
    """Read the memory sizes of a linked ELF file, its sections and its symbols.

    Programs for this computer may be those of Windows (PE) or macOS (Mach-O, of 64 bits), whose symbols have no sizes and are
    not listed. Raises ToolError if the file is missing or none of these."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with open_regular_file(elf) as stream:
            magic = stream.read(4)
            if magic[:2] == _PE_MAGIC or magic == _MACH_O_MAGIC:
                data = magic + stream.read(_MAX_HEADER_BYTES)
                return _sum_pe_sections(data) if magic[:2] == _PE_MAGIC else _sum_mach_o_sections(data)
            return _sum_section_sizes(ELFFile(stream))
    except OSError as error:
        raise ToolError(f"cannot read the program: {error.strerror or error}", where=str(elf)) from error
    except (ELFError, struct.error, *DAMAGED_ELF) as error:
        raise ToolError(f"not a program that microc can read: {error}", where=str(elf)) from error


def has_symbol_sizes(program: Path) -> bool:
    """Test whether the format of a linked program records the sizes of symbols: that of Windows (PE) and that of macOS (Mach-O)
    do not. True for a missing file."""
    try:
        with open_regular_file(program) as stream:
            magic = stream.read(4)
    except OSError:
        return True
    return magic[:2] != _PE_MAGIC and magic != _MACH_O_MAGIC


# Tables of sections: "PE Format" in Microsoft's documentation, <mach-o/loader.h> of macOS. Debug sections are not loaded.

_PE_MAGIC, _MACH_O_MAGIC = b"MZ", b"\xcf\xfa\xed\xfe"
_MAX_HEADER_BYTES = 1 << 16  # bytes that are read of a PE or Mach-O file; the tables of sections are at its beginning
_PE_ZEROED, _PE_DISCARDED, _PE_WRITABLE = 0x80, 0x0200_0000, 0x8000_0000  # flags of a section
_MACH_O_SEGMENT, _MACH_O_WRITABLE, _MACH_O_ZEROED = 0x19, 2, 1  # LC_SEGMENT_64, VM_PROT_WRITE, S_ZEROFILL


def _sum_pe_sections(data: bytes) -> LinkedSizes:
    """Sum the sizes of the sections that Windows loads. Raises ValueError or struct.error for a damaged file."""
    start: int = struct.unpack_from("<I", data, 0x3C)[0]
    if data[start : start + 4] != b"PE\0\0":
        raise ValueError("no PE header")
    count, optional_header_bytes = struct.unpack_from("<2xH12xH", data, start + 4)
    sections = []
    for k in range(count):
        name, size, flags = struct.unpack_from("<8sI24xI", data, start + 24 + optional_header_bytes + 40 * k)
        if not flags & _PE_DISCARDED:
            sections.append((name, size, not flags & _PE_ZEROED, bool(flags & _PE_WRITABLE)))
    return _sum_host_sections(sections)


def _sum_mach_o_sections(data: bytes) -> LinkedSizes:
    """Sum the sizes of the sections that macOS loads. Raises struct.error for a damaged file."""
    sections, position = [], 32
    for _ in range(struct.unpack_from("<I", data, 16)[0]):
        command, command_bytes = struct.unpack_from("<II", data, position)
        if command == _MACH_O_SEGMENT:
            protection, count = struct.unpack_from("<2I", data, position + 60)
            for k in range(count):
                name, size, flags = struct.unpack_from("<16s24xQ16xI", data, position + 72 + 80 * k)
                sections.append((name, size, flags & 0xFF != _MACH_O_ZEROED, bool(protection & _MACH_O_WRITABLE)))
        position += max(command_bytes, 8)
    return _sum_host_sections(sections)


def _sum_host_sections(sections: Sequence[tuple[bytes, int, bool, bool]]) -> LinkedSizes:
    """Sum sections of a program for this computer: name, bytes, True if it has content, True if it is writable."""
    return LinkedSizes(
        flash=sum(size for _, size, has_content, _ in sections if has_content),
        static_ram=sum(size for _, size, _, is_writable in sections if is_writable),
        reserved_stack=0,
        sections=tuple((name.rstrip(b"\0").decode("ascii", "replace"), size) for name, size, _, _ in sections if size),
        symbols=(),
    )


def _sum_section_sizes(elf: ELFFile) -> LinkedSizes:
    """Sum the sizes of an ELF file's allocated sections.

    Flash contains all sections with content. RAM contains writable sections and code that runs from RAM."""
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
    return LinkedSizes(flash, ram, stack, tuple(sections), _list_symbols_with_size(elf))


def _list_symbols_with_size(elf: ELFFile) -> tuple[Symbol, ...]:
    """List the functions and objects of an ELF file that have a size, largest first; none in a stripped program."""
    table = elf.get_section_by_name(".symtab")
    names = [section.name for section in elf.iter_sections()]
    symbols = [
        Symbol(symbol.name, names[symbol["st_shndx"]], symbol["st_size"], symbol["st_value"])
        for symbol in (table.iter_symbols() if table is not None else ())
        if symbol["st_info"]["type"] in ("STT_FUNC", "STT_OBJECT")
        and symbol["st_size"]
        and isinstance(symbol["st_shndx"], int)
    ]
    return tuple(sorted(symbols, key=lambda s: (-s.size, s.name, s.section)))


def compile_shared_library(
    folder: Path, sources: Sequence[Path], target: Path, *flags: str, libraries: Sequence[str] = ()
) -> Path:
    """Compile C sources with the host's compiler into the shared library ``target``.

    ``folder``: folder of the headers. ``flags``: further arguments of the compiler; they follow microc's own flags, so
    that another ``-O`` takes precedence. ``libraries``: arguments after the sources, such as ``-lname``.
    """
    return _compile_and_link_shared_library(folder, [*flags, *map(str, sources), *libraries], target)


def link_shared_library(folder: Path, objects: Sequence[Path], target: Path) -> Path:
    """Link object files from :func:`compile_library_object` into the shared library ``target``; return it."""
    return _compile_and_link_shared_library(folder, [*map(str, objects)], target)


def compile_library_object(folder: Path, sources: Sequence[Path], target: Path, *flags: str) -> Path:
    """Compile C sources into one object file ``target`` for a shared library.

    ``flags``: arguments of the compiler, which may differ for other objects of the library."""
    inputs = [*flags, *map(str, sources)]
    return _run_host_compiler(folder, ("-r", "-nostdlib", *position_independent_flags()), inputs, target)


def _compile_and_link_shared_library(folder: Path, inputs: Sequence[str], target: Path) -> Path:
    """Compile and link ``inputs`` (sources, objects, flags) into the shared library ``target``."""
    return _run_host_compiler(folder, ("-shared", *shared_library_flags()), inputs, target, "-lm")


def _run_host_compiler(
    folder: Path, output_flags: Sequence[str], inputs: Sequence[str], target: Path, *trailing_arguments: str
) -> Path:
    """Run the host's compiler on ``inputs`` (sources, objects, flags); return ``target``.

    ``output_flags``: flags that select the type of output, such as ``-shared``, and of code. ``trailing_arguments``:
    arguments after the output's name. Raises ToolError if the compiler fails."""
    run_compiler(
        (
            host_compiler(),
            "-std=c99",
            "-O2",
            *output_flags,
            "-pthread",
            f"-I{folder}",
            *inputs,
            "-o",
            str(target),
            *trailing_arguments,
        ),
        folder,
    )
    return target


def compile_and_link_for_board(
    board: Board, folder: Path, source_names: Sequence[str], linker_script: str, *flags: str
) -> Path:
    """Compile C sources for a board and link them to ``image.elf`` in ``folder``; return its path.

    ``source_names``, ``linker_script``: names of files in ``folder``. Raises ToolError if the compiler or linker
    fails."""
    build = board.raw["build"]
    kind = ("-std=c99", *build["c_flags"], "-ffunction-sections", "-fdata-sections", f"-I{folder}")
    link = (f"-T{folder / linker_script}", *build["ld_flags"], "-lm", "-o", str(folder / "image.elf"))
    run_compiler(
        (require_program(build["prefix"] + "gcc"), *kind, *flags, *(str(folder / s) for s in source_names), *link),
        folder,
    )
    return folder / "image.elf"


def run_compiler(command: Sequence[str], folder: Path) -> None:
    """Run a compiler ``command``. Raises ToolError with the first lines of its messages if it fails. ``folder``: for
    errors."""
    try:
        result = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=_COMPILE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ToolError(
            f"{command[0]} did not finish within {_COMPILE_SECONDS} s",
            where=str(folder),
            hint="close other programs, and repeat",
        ) from error
    if result.returncode != 0:
        messages = "\n".join(result.stderr.strip().splitlines()[:_SHOWN_LINES])
        raise ToolError("the generated C does not compile", where=str(folder), hint=messages)


# ---- Instruction sets of this computer, determined by the macros that its C compiler defines.

NATIVE, PORTABLE = "native", "portable"
THIS_COMPUTER = ("host", NATIVE)
"""Names of this computer as the target of a library; ``portable`` stands for any computer."""
MOST_CORES = 4
"""Maximum number of cores in one library."""
PLAIN = "host"
"""Core without special instructions."""
_SECONDS = 30
_EXTENSION_MACRO = re.compile(r"#define (__(?:AVX|FMA|SSE|BMI|F16C|ARM_|riscv_)\w*)", re.ASCII)
"""Macros that stand for instruction set extensions."""


@cache
def _query_extension_macros(compiler_option: str) -> frozenset[str] | None:
    """Return the macros of instruction set extensions that the host's compiler defines under a compiler option.

    None if the compiler does not know the option."""
    command = [host_compiler(), *compiler_option.split(), "-dM", "-E", "-x", "c", "-"]
    result = subprocess.run(
        command, input="", capture_output=True, encoding="utf-8", errors="replace", timeout=_SECONDS, check=False
    )
    return frozenset(_EXTENSION_MACRO.findall(result.stdout)) if result.returncode == 0 else None


def is_machine_available(machine_option: str) -> bool:
    """Test whether this computer has all instructions that a compiler option such as ``-march=x86-64-v3`` allows."""
    needed = _query_extension_macros(machine_option)
    available = _query_extension_macros("-march=native") or _query_extension_macros("-mcpu=native")
    return bool(needed) and available is not None and needed is not None and needed <= available


def flags_if_machine_available(machine_option: str) -> tuple[str, ...]:
    """Split the compiler option of a core, such as ``-march=x86-64-v3``, into flags.

    Empty if this computer lacks the core's instructions."""
    return tuple(machine_option.split()) if machine_option and is_machine_available(machine_option) else ()


def native_core() -> str:
    """Return the name of the most capable core whose code this computer can run; ``host`` if no core is known."""
    candidates = [
        core for core in CORES.values() if core.lanes and platform.machine() in FAMILIES[core.family].computers
    ]
    return next((core.name for core in reversed(candidates) if is_machine_available(core.machine)), PLAIN)


def parse_library_target(core_name: str) -> Target:
    """Return the target of a library by the name of a core.

    ``host`` and ``native`` stand for the most capable core that this computer can run, ``portable`` for any core.
    Raises UsageError for an unknown name."""
    if core_name in THIS_COMPUTER:
        return target_for(native_core())
    if core_name != PORTABLE and core_name not in CORES and core_name not in ALIASES:
        known = (*THIS_COMPUTER, PORTABLE, *(core for core in CORES if core != PLAIN))
        raise UsageError(f"unknown core {core_name!r}", hint="choose one of " + ", ".join(known))
    return target_for(PLAIN if core_name == PORTABLE else core_name)


def parse_library_targets(comma_separated_names: str) -> tuple[Target, ...]:
    """Return the targets of a library for several cores, the preferred core first.

    ``comma_separated_names``: names as for :func:`parse_library_target`. Raises UsageError for cores of other processor
    architectures, repeated cores, and more than :data:`MOST_CORES` cores."""
    cores = tuple(parse_library_target(name.strip()) for name in comma_separated_names.split(","))
    names_of_cores = [core.cpu for core in cores]
    if len(set(names_of_cores)) < len(names_of_cores) or len(names_of_cores) > MOST_CORES:
        raise UsageError(
            f"library: got cores {comma_separated_names}, expected up to {MOST_CORES} different cores",
            hint="name each core once",
        )
    foreign = [
        c for c in names_of_cores if c != PLAIN and platform.machine() not in FAMILIES[CORES[c].family].computers
    ]
    if foreign:
        raise UsageError(
            f"library: got core {foreign[0]}, expected cores of this kind of computer ({platform.machine()})",
            hint=f"leave out {foreign[0]}",
        )
    return cores


# ---- WebAssembly.

_WASM_PACKAGES = "clang-19 lld-19 wasi-libc libclang-rt-19-dev-wasm32"


def compile_webassembly_module(sources: Mapping[str, str], target: Target) -> bytes:
    """Compile C sources into a WebAssembly module for browsers and Node.js; return its bytes.

    ``sources``: contents of the C files and headers by file name. Raises ToolError if no suitable clang is installed or
    it fails."""
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        for name, text in sources.items():
            write_text(Path(folder) / name, text)
        code = [str(Path(folder) / name) for name in sources if name.endswith(".c")]
        module = Path(folder) / "network.wasm"
        run_compiler(
            (_find_webassembly_clang(), *webassembly_options(target).split(), f"-I{folder}", *code, "-o", str(module)),
            Path(folder),
        )
        return module.read_bytes()


def _find_webassembly_clang() -> str:
    """Return the name of a clang on PATH with a wasm-ld of the same version; raise ToolError if there is none."""
    for end in ("", *(f"-{version}" for version in range(22, 13, -1))):
        if shutil.which(f"clang{end}") and shutil.which(f"wasm-ld{end}"):
            return f"clang{end}"
    raise ToolError(
        "there is no clang with a linker for WebAssembly (wasm-ld) on PATH",
        hint=f"install it: apt-get install -y --no-install-recommends {_WASM_PACKAGES}",
    )
