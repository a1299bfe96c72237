# SPDX-License-Identifier: Apache-2.0
"""What cppcheck's MISRA addon, clang-tidy and gcc's analyser say of a generated project."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from microc.codegen.c import misra

_VIOLATION = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+):misra-c2012-(?P<rule>\d+\.\d+)$", re.MULTILINE)
_INCLUDES = ("-I.", "-Iruntime/include", "-Iruntime/ports", "-includeboard/microc_board.h")


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """A line of C that a rule of MISRA C:2012 objects to."""

    rule: str
    part: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: rule {self.rule} ({misra.rule_category(self.rule)})"


def part_of(file: str) -> str:
    """The part of a project that a file of it belongs to."""
    if file.startswith(("runtime/ports/", "board/")):
        return misra.PORTS
    return misra.RUNTIME if file.startswith("runtime/") else misra.GENERATED


def sources(project: Path) -> tuple[str, ...]:
    """The C files of a generated project, by their paths inside it."""
    return tuple(sorted(str(path.relative_to(project)) for path in project.rglob("*.c")))


def violations(project: Path, *files: str, data: bool = True) -> tuple[Violation, ...]:
    """Return the violations that the addon reports in the C files of a project, or in ``files`` of them.

    ``data``: if False, ``model_data.c`` is left out, whose arrays take as long as all other files together.
    """
    files = files or tuple(path for path in sources(project) if data or path != "model_data.c")
    command = ["cppcheck", "--addon=misra", "--std=c99", "--quiet", "--enable=style", "--template={file}:{line}:{id}"]
    command += ["-I.", "-Iruntime/include", "-Iruntime/ports", "--include=board/microc_board.h", *files]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    found = _VIOLATION.finditer(done.stdout + done.stderr)
    return tuple(sorted({Violation(m["rule"], part_of(m["file"]), m["file"], int(m["line"])) for m in found}))


def not_allowed(found: Iterable[Violation]) -> tuple[Violation, ...]:
    """Those that no deviation of ``microc.codegen.c.misra`` covers."""
    return tuple(v for v in found if misra.find_deviation(v.rule, v.part) is None)


def tidy(project: Path, target: str, compiler: str) -> str:
    """What clang-tidy's ``bugprone-*`` and ``cert-*`` say, those aside that ``microc.codegen.c.misra`` leaves out.

    The C library is that of ``compiler``, ``target`` what clang calls the machine.
    """
    checks = ",".join(["-*", "bugprone-*", "cert-*", *(f"-{name}" for name, _ in misra.ANALYSERS)])
    flags = [f"--target={target}", "-std=c99", *_INCLUDES, *(f"-isystem{path}" for path in _system_headers(compiler))]
    command = ["clang-tidy", "--quiet", f"--checks={checks}", *sources(project), "--", *flags]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=600)
    return done.stdout + ("" if done.returncode == 0 else done.stderr)


def _system_headers(compiler: str) -> list[str]:
    """Where a cross compiler has its C library's headers; those of the compiler itself are clang's own."""
    specs = ["--specs=picolibc.specs"] if "riscv" in compiler else []
    command = [compiler, *specs, "-E", "-v", "-x", "c", "/dev/null"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr
    listed = said.split("<...> search starts here:")[1].split("End of search list")[0]
    return [path for path in listed.split() if "/gcc/" not in str(Path(path).resolve())]


def analysed(project: Path) -> str:
    """What ``gcc -fanalyzer`` says as the project is built."""
    command = ["make", "-s", "CFLAGS=-fanalyzer"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=600)
    return done.stderr + ("" if done.returncode == 0 else done.stdout)
