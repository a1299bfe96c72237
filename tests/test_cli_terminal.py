# SPDX-License-Identifier: Apache-2.0
"""What a person sees on a terminal: tables that fit, colours where they are wanted, progress, and one line after Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.cli.parser import COMMANDS
from tests.support import digits
from tests.support.campaign import in_turn

MODEL = str(digits.INT8)


def on_terminal(*words: str, seconds: float = 60, width: int = 0, **environment: str) -> tuple[int, str]:
    """A command whose standard error is a terminal (``width``: in columns): its exit code, and what it wrote there."""
    master, slave = pty.openpty()
    if width:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")} | {"TERM": "xterm", **environment}
    argv = [sys.executable, "-m", "microc", *words]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=slave, env=env)
    os.close(slave)
    said, end = b"", time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([master], [], [], 0.1)[0]:
            try:
                said += os.read(master, 65536)
            except OSError:  # nobody holds the other end any more
                break
    os.close(master)
    return process.wait(), said.decode()


def test_colours_only_where_they_are_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b[1;31merror[E0201]" in on_terminal("boards", "show", "x")[1]
    assert "\x1b" not in on_terminal("boards", "show", "x", NO_COLOR="1")[1]
    assert "\x1b" not in on_terminal("boards", "show", "x", TERM="dumb")[1]
    assert main(["boards", "show", "x"]) == 2 and "\x1b" not in capsys.readouterr().err


@pytest.fixture(scope="module")
def long_names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network whose layers are called as Keras and TensorFlow call them."""
    net, folder = microc.GraphBuilder(), tmp_path_factory.mktemp("long")
    value = net.input("serving_default_input_features_of_the_encoder:0", (1, 16))
    for k in range(3):
        path = f"functional_1/feature_extractor_backbone/stage_{k}/residual_block_{k}"
        weight = net.new_constant(f"weight{k}", np.ones((16, 16), np.float32))
        value = net.op("dense", value, weight, name=f"{path}/dense_{k}/BiasAdd;{path}/dense_{k}/MatMul/ReadVariableOp")
    graph = net.graph("long", {"StatefulPartitionedCall:0": value})
    return microc.save(graph, folder / "a_model_with_quite_a_long_name.mcg")


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_lines_fit(
    columns: int, long_names: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables, facts, prose, help and commands to copy, whatever the layers are called."""
    monkeypatch.chdir(long_names.parent)
    monkeypatch.setenv("COLUMNS", str(columns))
    model, board, out = long_names.name, ("--board", "mps2-an386"), str(tmp_path / "report.json")
    commands = [
        ["boards"], ["options"], ["operators"], ["boards", "show", "mps2-an386"], ["export", "--list"],
        ["check", model, *board, "--tensors"], ["report", model, *board, "-o", out], ["report", model, "--board", "microbit"],
        ["compare", out, model, *board], ["explain", model, *board], ["tune", model, *board, "--space"],
        ["compile", model, *board, "-o", str(tmp_path / "firmware")], ["quantize", "--help"], ["tune", "--help"], ["--help"],
    ]  # fmt: skip
    for words in commands:
        assert main(words) == 0
        wide = [line for line in capsys.readouterr().out.splitlines() if len(line) > columns]
        assert not [line for line in wide if str(tmp_path) not in line], words  # a path is one word


def test_errors_fit_a_narrow_terminal() -> None:
    said = on_terminal("compile", MODEL, "--board", "arduino-uno", "--format", "x", NO_COLOR="1", width=50)[1]
    lines = said.replace("\r\n", "\n").split("\n")
    assert "error[E0201]" in said and max(map(len, lines)) <= 50


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_begins_with_what_is_the_commands_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    said = capsys.readouterr().out
    usage, _, rest = said.partition("\n\n")
    assert len(usage.splitlines()) <= 14 and "--json" not in usage
    assert said.index("everywhere:") > max(rest.find(own) for own in ("options:\n", "the model:", "the board's line:"))


def test_progress_is_told_after_a_second(tmp_path: Path) -> None:
    """Of a command that has none of its own: make is what takes long."""
    folder = tmp_path / "digits"
    assert main(["compile", MODEL, "-o", str(folder), "-q"]) == 0
    makefile = folder / "Makefile"
    makefile.write_text("all:\n\tsleep 2.5; exit 1\n" + makefile.read_text())
    code, said = on_terminal("build", str(folder))
    assert code == 5 and "build: 1 s" in said and "build: 2 s" in said
    assert "build: " not in on_terminal("build", str(folder), "-q")[1]


INTERRUPTED = {
    "compile": [MODEL, "-o", "out", "--no-cache"],
    "check": [MODEL, "--exact", "--board", "microbit"],
    "explain": [MODEL],
    "export": [MODEL, "--format", "c", "-o", "out"],
    "import": [MODEL, "-o", "out.mcg"],
    "new": ["out"],
    "run": [MODEL],
    "size": [MODEL],
    "verify": [MODEL],
    "demo": ["--board", "host"],
}


@pytest.mark.parametrize(("name", "after"), in_turn(list(INTERRUPTED), [1.0, 0.5, 0.15]))
def test_control_c_leaves_a_line_and_nothing_else(name: str, after: float, tmp_path: Path) -> None:
    """Wherever it comes: while files are imported, compiled, written."""
    (tmp_path / "tmp").mkdir()
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "MICROC_CACHE": str(tmp_path / "cache")}
    process = subprocess.Popen(
        [sys.executable, "-m", "microc", name, *INTERRUPTED[name]],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    time.sleep(after)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to compilers that were started, too
    _, err = process.communicate(timeout=60)
    if process.returncode == 0:
        return  # it was done
    early = ("Fatal Python error: init_", "Could not import runpy module")
    if (process.returncode == -signal.SIGINT and "runpy" in err) or any(words in err for words in early):
        pytest.skip("Python itself was not up")
    assert err == "interrupted\n" and process.returncode in (130, -signal.SIGINT)  # both are 130 to a shell
    left = {path.name for path in tmp_path.iterdir()} - {"tmp", "cache"}
    assert left <= {"out", "out.mcg"} and not list((tmp_path / "tmp").iterdir())
    assert "out" not in left or any((tmp_path / "out" / made).exists() for made in ("manifest.json", "microc.toml"))
