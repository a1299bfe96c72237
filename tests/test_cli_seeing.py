# SPDX-License-Identifier: Apache-2.0
"""``microc report``, ``compare`` and ``watch`` as a user calls them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

from microc.cli import main
from tests.support import digits

BOARD = ("--board", "netduinoplus2")


def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, data = tmp_path / "report.html", tmp_path / "report.json"
    assert main(["report", str(digits.INT8), *BOARD, "-o", str(page)]) == 0
    said = capsys.readouterr().out
    for words in (
        "about 55,6",
        "0.331",
        "peak stack",
        "holds state           no",
        "est. ms",
        "what to do next",
        f"report: {page}",
    ):
        assert words in said
    assert main(["report", str(digits.INT8), *BOARD, "--json"]) == 0
    data.write_text(capsys.readouterr().out)
    found = json.loads(data.read_text())
    assert found["command"] == "report" and found["schema_version"] == 1 and found["report_version"] == 1
    assert main(["compare", str(page), str(data), "--json"]) == 0
    assert all(row["before"] == row["after"] for row in json.loads(capsys.readouterr().out)["totals"])


def test_compare_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "compared.html"
    assert main(["compare", str(digits.FLOAT), str(digits.INT8), *BOARD, "--html", str(page)]) == 0
    said = capsys.readouterr().out
    assert (
        "digits_float.onnx on netduinoplus2" in said and "flash, bytes" in said and "conv4" in said and "\u2212" in said
    )
    assert 'id="before-data"' in page.read_text(encoding="utf-8")


def test_a_network_that_does_not_fit_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """That is what one wants to see of it."""
    assert main(["report", str(digits.FLOAT), "--board", "arduino-uno"]) == 0
    assert "RAM does not fit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["report", "absent.tflite"], 2, "absent.tflite"),
        (["report", str(digits.INT8), "-o", "report.pdf"], 2, "end the name in .html"),
        (["report", str(digits.INT8), "--verified", "absent.json"], 2, "cannot read absent.json"),
        (["report", str(digits.INT8), "--verified", str(digits.INT8)], 2, "is no JSON"),
        (["compare", "a.json", "b.json"], 2, "a.json"),
        (["watch", str(digits.INT8), "--every", "0"], 2, "a number of seconds above 0"),
        (["watch", str(digits.INT8), "--http", "99999"], 2, "expected a TCP port"),
        (["watch", str(digits.INT8), "--labels", "y"], 2, "--labels requires --data"),
        (["watch", str(digits.INT8), "--from-board", "--data", "x.npz"], 2, "--from-board"),
    ],
)
def test_mistakes(words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == code
    assert told in capsys.readouterr().err


def test_watch_as_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "test.npz"
    with np.load(digits.FOLDER / "digits_test.npz") as data:
        np.savez(path, image=(data["images"][:3] / 16).astype(np.float32), labels=data["labels"][:3])
    words = [
        "watch",
        str(digits.INT8),
        "--data",
        str(path),
        "--labels",
        "labels",
        "--runs",
        "4",
        "--every",
        "0.01",
        "--json",
    ]
    assert main(words) == 0
    *lines, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert [line["run"] for line in lines] == [0, 1, 2, 3] and [line["sample"] for line in lines] == [0, 1, 2, 0]
    assert all(line["command"] == "watch" and line["answer"] == line["label"] for line in lines) and last["runs"] == 4


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent as a signal")
def test_watch_serves_until_ctrl_c() -> None:
    command = [sys.executable, "-m", "microc", "watch", str(digits.INT8), "--no-browser", "--every", "0.05"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whoever runs the tests may have it ignored
    ) as running:
        assert running.stderr is not None
        url = running.stderr.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        with urlopen(url, timeout=10) as page, urlopen(f"{url}events", timeout=10) as events:
            assert b"microc watch" in page.read()
            assert json.loads(events.readline().removeprefix(b"data: "))["outputs"]
        time.sleep(0.2)
        running.send_signal(signal.SIGINT)
        try:
            said, _ = running.communicate(timeout=20)
        finally:
            running.kill()
    assert running.returncode == 0 and said.endswith("runs\n")


def test_numbers_before_a_board(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``compile`` and ``check --exact`` tell time, stack and state; all commands tell the same."""
    assert main(["compile", str(digits.INT8), *BOARD, "-o", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["report"]
    assert (
        found["estimated_milliseconds"] == pytest.approx(found["estimated_cycles"] / 168_000) and found["state"] == []
    )
    assert sum(layer["share"] for layer in found["layers"]) == pytest.approx(1)
    assert main(["check", str(digits.INT8), *BOARD, "--exact", "--json"]) == 0
    exact = json.loads(capsys.readouterr().out)
    assert [exact[name] for name in ("estimated_cycles", "stack_bound", "layers")] == [
        found[name] for name in ("estimated_cycles", "stack_bound", "layers")
    ]
    assert main(["check", str(digits.INT8), *BOARD]) == 0
    said = capsys.readouterr().out
    assert "--exact estimates cycles and time" in said and "holds state" in said
