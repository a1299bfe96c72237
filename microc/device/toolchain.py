"""Compilers, make, and what is in a linked program: sizes by section and symbol."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from microc.device.packages import install_hint
from microc.errors import ToolError
from microc.frozen import frozen
from microc.reading import open_regular
from microc.target import Board

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

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
