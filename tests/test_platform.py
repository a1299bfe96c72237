# SPDX-License-Identifier: Apache-2.0
"""Windows and macOS: one file knows operating systems, commands work without POSIX modules, the host board builds by MinGW."""

from __future__ import annotations

import os
import platform
import re
import shutil
import struct
import subprocess
import sys
from errno import EINVAL
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microc import cli
from microc.base import operating_system
from microc.base.operating_system import LINUX, MACOS, OTHER_POSIX, WINDOWS
from microc.codegen.c.source import shared_files
from microc.codegen.output_files import write_tree
from microc.codegen.project.firmware import project_files
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model
from microc.device.boards import load_board
from microc.device.emulators import Emulator
from microc.device.toolchain import has_symbol_sizes, read_linked_sizes
from microc.errors import ToolError
from microc.reports.saved_reports import report
from microc.target import target_for
from tests.support.campaign import in_campaign
from tests.support.native import WARNINGS

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ROOT / "examples" / "digits" / "digits_int8.tflite"
WINE = shutil.which("wine64") or shutil.which("wine")
MINGW = shutil.which("x86_64-w64-mingw32-gcc-posix") or shutil.which("x86_64-w64-mingw32-gcc")
ASKS = re.compile(
    r"sys\.platform|os\.name\b|platform\.system\(|\b(?:import|from) (?:fcntl|termios|pwd|grp|pty|tty|resource|msvcrt)\b"
    r"|os\.(?:fork|getuid|geteuid|getpgid|setsid|killpg|mkfifo|sched_\w+|set_blocking|uname)\b|shlex\.(?:quote|join|split)"
)
"""Names that differ between systems, which only one file may use. ``resource`` bounds Vela in a program of its own, which does
without."""
LOCALE_DEPENDENT = re.compile(r"\.write_text\(|\.read_text\(\)|\btext=True|\.open\(\"[wa]\"(?![^)]*encoding)")
EXEMPT = {"base/operating_system.py": ".", "cli/shell_files.py": "shlex", "external/ethos_u/accelerator.py": "resource"}


def test_one_file_knows_operating_systems() -> None:
    for path in (ROOT / "microc").rglob("*.py"):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT / "microc").as_posix()
        asked = [word for word in ASKS.findall(text) if name not in EXEMPT or not re.search(EXEMPT[name], word)]
        assert not asked, f"{name} asks for the system: {asked}; add a function to base/operating_system.py"
        assert not (found := LOCALE_DEPENDENT.findall(text)), (
            f"{name}: {found} depends on the locale; write_text, encoding="
        )


WITHOUT_POSIX = r"""
import builtins, os, pty, subprocess, sys, tty

import serial.tools.list_ports  # asks for the system when it is imported

import microc.cli
from microc.base import operating_system

HIDDEN, real_import = {"fcntl", "grp", "pwd", "pty", "resource", "select_poll", "termios", "tty"}, builtins.__import__


def import_without_posix(name, globals=None, *rest, **named):
    if name in HIDDEN and str((globals or {}).get("__name__")).startswith("microc"):
        raise ModuleNotFoundError(f"No module named {name!r}")
    return real_import(name, globals, *rest, **named)


builtins.__import__ = import_without_posix
for name in ("fork", "forkpty", "getuid", "geteuid", "getgid", "killpg", "mkfifo", "sched_getaffinity", "set_blocking", "uname"):
    delattr(os, name)
os.environ["PATHEXT"] = ":".join("abcdefghijklmnopqrstuvwxyz0123456789")  # every program of Linux ends like one of Windows
flags = operating_system.shared_library_flags()
sys.platform = "win32"
operating_system.shared_library_flags = lambda: flags  # the compiler is that of Linux
from microc.device import toolchain

toolchain.shared_library_flags = lambda: flags


def run(line, code=0):
    words = [word.replace("{port}", port) for word in line.split()]
    assert microc.cli.main(words) == code, line


model, port = sys.argv[1], ""
run(f"check {model} --board nucleo-l476rg")
run(f"report {model} --board nucleo-l476rg -o report.html")
run(f"export {model} --board nucleo-l476rg --format make -o exported")
run(f"quantize {sys.argv[2]} --data {sys.argv[3]} -o quantised.mcg")
run(f"compile {model} --board host -o host")
run("build host")
run("verify host")
run("profile host")
run("ports")
host, board = pty.openpty()
tty.setraw(board)
port = os.ttyname(board)
firmware = subprocess.Popen(["host/firmware.elf"], stdin=host, stdout=host)
try:
    run("run host --port {port}")
    run("verify host --port {port}")
finally:
    firmware.kill()
    firmware.wait()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="hides the modules that only POSIX systems have")
def test_commands_need_no_posix_module(tmp_path: Path) -> None:
    """The cache is in its place, so that most commands find the network that the first one compiled."""
    with np.load(DIGITS.parent / "digits_test.npz") as data:
        np.savez(tmp_path / "images.npz", image=data["images"][:7].reshape(-1, 1, 8, 8))
    kept = {name: value for name, value in os.environ.items() if name != "MICROC_CACHE"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX, DIGITS, DIGITS.with_name("digits_float.onnx"), "images.npz"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        env=kept | {"PYTHONPATH": str(ROOT), "LOCALAPPDATA": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    written = [*(tmp_path / "host").glob("*.*"), *(tmp_path / "exported").rglob("*"), tmp_path / "report.html"]
    assert not [path for path in written if path.is_file() and b"\r\n" in path.read_bytes() and path.suffix != ".elf"]


def test_emulated_boards_are_refused_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ToolError, match="emulated boards need Linux or macOS; got Windows") as caught:
        Emulator(load_board("mps2-an386"), None, debug=True).__enter__()
    assert "WSL" in caught.value.hint


SYSTEMS = {"linux": LINUX, "darwin": MACOS, "win32": WINDOWS, "freebsd14": OTHER_POSIX}


@pytest.mark.parametrize("platform", SYSTEMS)
def test_every_system_has_an_answer(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("LOCALAPPDATA", "local")
    monkeypatch.setenv("USER", "someone")
    monkeypatch.setattr(operating_system, "_list_drive_roots", lambda: ["D:\\", "E:\\"])
    monkeypatch.setattr(operating_system, "_volume_label", lambda root: "RPI-RP2" if root == "E:\\" else "")
    assert operating_system.system_name() == SYSTEMS[platform]
    port, cache = operating_system.example_serial_port(), operating_system.user_cache_folder()
    drives = [str(path) for path in operating_system.list_mount_points("RPI-RP2")]
    if platform == "win32":
        assert (port, str(cache), drives) == ("COM3", "local", ["E:\\"])
        assert (
            operating_system.list_make_programs() == ("make", "mingw32-make")
            and not operating_system.can_lock_serial_port()
        )
        assert not operating_system.exchange_folders(Path("a"), Path("b"))
    elif platform == "darwin":
        assert port.startswith("/dev/cu.") and cache.parts[-1] == "Caches" and drives == ["/Volumes/RPI-RP2"]
    else:
        assert port == "/dev/ttyACM0" and "/media/someone/RPI-RP2" in drives


ARGUMENTS = st.lists(
    st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=8), min_size=1, max_size=3
)


@pytest.mark.parametrize(("platform", "code"), [("win32", 141), ("linux", 70)])
def test_a_closed_pipe_is_no_error_of_ours(
    platform: str, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Windows calls it an invalid argument, which anywhere else is an internal error."""

    def fail(words: list[str]) -> int:
        raise OSError(EINVAL, os.strerror(EINVAL))

    monkeypatch.setattr(cli, "_run_command", fail)
    monkeypatch.setattr(sys, "platform", platform)
    kept = os.dup(1)
    try:
        assert cli.main(["boards"]) == code
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@pytest.mark.parametrize("platform", ["linux", "win32"])
@given(arguments=ARGUMENTS)
def test_command_lines_are_split_as_they_were_joined(platform: str, arguments: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "platform", platform)
        assert operating_system.split_command(operating_system.join_arguments(arguments)) == arguments


def test_a_path_of_windows_is_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert operating_system.split_command(r'C:\work\fw.elf "C:\my files\x" --a') == [
        r"C:\work\fw.elf",
        r"C:\my files\x",
        "--a",
    ]
    assert operating_system.quote_argument(r"C:\work\fw.elf") == r"C:\work\fw.elf"
    assert operating_system.quote_argument("a; $(calc)") == '"a; `$(calc)"', "PowerShell computes nothing"
    with pytest.raises(ValueError):
        operating_system.split_command('a "b')


def build_by_mingw(folder: Path) -> Path:
    """Write the example's project for this computer, and build it for Windows without a warning."""
    module = compile_model(DIGITS, target_for("host"), Options(name="digits"))
    write_tree(folder, project_files([module], load_board("host"), "test"))
    command = ["make", "-s", f"CC={MINGW}", "OS=Windows_NT", "CFLAGS=-Werror -pedantic-errors"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.skipif(MINGW is None, reason="needs MinGW: apt-get install gcc-mingw-w64-x86-64")
def test_the_host_board_is_built_by_mingw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = build_by_mingw(tmp_path / "host")
    sizes = read_linked_sizes(host / "firmware.elf")
    assert dict(sizes.sections)[".text"] < sizes.flash and sizes.static_ram > 1000
    assert report(host).data["firmware"] is None
    assert cli.main(["size", str(host)]) == 5
    assert "do not record the sizes of symbols" in capsys.readouterr().err


@in_campaign  # Wine's first start takes half a minute
@pytest.mark.skipif(
    MINGW is None or WINE is None, reason="needs MinGW and Wine: apt-get install gcc-mingw-w64-x86-64 wine64"
)
def test_a_program_of_windows_computes_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of this computer before a program of Windows: its pipes are those of Windows, its timer and its line ends."""
    monkeypatch.setenv("WINEPREFIX", str(tmp_path / "wine"))
    monkeypatch.setenv("WINEDEBUG", "-all")
    host = build_by_mingw(tmp_path / "host")
    subprocess.run(
        [str(WINE), "wineboot"], check=True, capture_output=True, timeout=300
    )  # takes longer than a board may
    address = f"pipe:{WINE} {operating_system.quote_argument(str(host / 'firmware.elf'))}"
    for command in ("verify", "run", "profile"):
        assert cli.main([command, str(host), "--port", address]) == 0, command


@pytest.mark.skipif(MINGW is None, reason="needs MinGW: apt-get install gcc-mingw-w64-x86-64")
def test_a_library_with_threads_is_built_by_mingw(tmp_path: Path) -> None:
    module = compile_model(DIGITS, target_for("x86-64-v3"), Options(name="digits", threads=2))
    write_tree(tmp_path / "library", shared_files(module, "test"))
    sources = sorted((tmp_path / "library").glob("*.c"))
    command = [
        str(MINGW),
        "-std=c99",
        "-O1",
        "-march=x86-64-v3",
        *WARNINGS,
        "-shared",
        "-static",
        "-pthread",
        *map(str, sources),
    ]
    done = subprocess.run([*command, "-o", str(tmp_path / "x.so")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_programs_of_windows_and_macos_have_sizes(tmp_path: Path) -> None:
    """A Mach-O of two segments, made by hand; PE as MinGW links it is above. What is damaged is no program."""
    commands = b""
    for name, protection, sections in (
        (b"__TEXT", 5, [(b"__text", 100, 0x80000400), (b"__const", 20, 0)]),
        (b"__DATA", 3, [(b"__data", 8, 0), (b"__bss", 400, 1)]),
    ):
        table = b"".join(
            struct.pack("<16s16sQQ8I", s, name, 0, n, 0, 0, 0, 0, flags, 0, 0, 0) for s, n, flags in sections
        )
        head = struct.pack(
            "<II16s4Q4I", 0x19, 72 + len(table), name, 0, 0, 0, 0, protection, protection, len(sections), 0
        )
        commands += head + table
    program = tmp_path / "firmware.elf"
    program.write_bytes(struct.pack("<8I", 0xFEEDFACF, 0x0100000C, 0, 2, 2, len(commands), 0, 0) + commands)
    sizes = read_linked_sizes(program)
    assert (sizes.flash, sizes.static_ram, sizes.symbols) == (128, 408, ()) and not has_symbol_sizes(program)
    assert sizes.sections == (("__text", 100), ("__const", 20), ("__data", 8), ("__bss", 400))
    for damaged in (
        program.read_bytes()[:200],
        b"MZ",
        b"MZ" + b"\xff" * 100,
        struct.pack("<8I", 0xFEEDFACF, *[2**32 - 1] * 7),
    ):
        program.write_bytes(damaged)
        with pytest.raises(ToolError, match="not a program that microc can read"):
            read_linked_sizes(program)


@pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="frames of Python functions are pieces of memory in CPython"
)
def test_calls_map_no_memory_where_the_stack_is_reserved() -> None:
    resource = pytest.importorskip("resource")

    def page_faults() -> int:
        return int(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)

    def call_at_depth(depth: int) -> int:
        """Call a function 500 times below ``depth`` others; return the page faults."""
        if depth:
            return call_at_depth(depth - 1)
        before = page_faults()
        for _ in range(500):
            _return_argument(None)
        return page_faults() - before

    @operating_system.reserves_stack
    def most_faults() -> int:
        return max(map(call_at_depth, range(400)))

    assert most_faults() < 500


def _return_argument(value: object) -> object:
    return value


def test_function_that_reserves_stack_keeps_results_and_errors() -> None:
    @operating_system.reserves_stack
    def divide(dividend: int, *, by: int) -> int:
        """Divide."""
        return dividend // by

    assert divide(7, by=2) == 3
    assert (divide.__name__, divide.__doc__) == ("divide", "Divide.")
    with pytest.raises(ZeroDivisionError):
        divide(1, by=0)


COUNT_FAULTS = """
import resource, sys
from microc.base.operating_system import keep_freed_memory

if sys.argv[1:]:
    keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    blocks = [bytes([1]) * 100_000 for _ in range(8)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_freed_memory_is_kept() -> None:
    """Memory that the system took back is mapped by one page fault for each of its pages: 19,500 here."""
    default, kept = (
        int(subprocess.run([sys.executable, "-c", COUNT_FAULTS, *words], capture_output=True, check=True).stdout)
        for words in ([], ["keep"])
    )
    assert kept < 1000 and kept < default
