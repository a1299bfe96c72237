# SPDX-License-Identifier: Apache-2.0
"""One network on several boards, and a meter beside them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from microc.cli import main
from microc.device.boards import list_boards
from microc.errors import ToolError, UsageError
from microc.run.bench import select_boards
from microc.run.profile import MeterReading, run_meter, split_meter_command
from tests.support import digits

PYTHON = shlex.quote(sys.executable)
METER = "import os, sys; sys.stdin.read(); print({text})"


def meter(text: str) -> str:
    """A meter that prints a text, a Python expression, when it is over."""
    return f"{PYTHON} -c {shlex.quote(METER.format(text=text))}"


def bench(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[dict[str, object]]]:
    code = main(["bench", str(digits.INT8), *words, "--json"])
    return code, json.loads(capsys.readouterr().out)["boards"]


def test_every_board_has_a_row(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if shutil.which("qemu-system-arm") is None:
        pytest.skip("qemu-system-arm is not installed")
    code, rows = bench(capsys, "--boards", "host,microbit,nucleo-f446re,microbit")
    assert code == 0 and [row["board"] for row in rows] == ["host", "microbit", "nucleo-f446re"]
    here, there, absent = rows
    assert here["unit"] == "ticks" and isinstance(here["seconds"], float) and here["error"] is None
    assert there["unit"] == "instructions" and there["seconds"] is None and there["room_flash"] == 262144
    assert isinstance(there["time"], int) and 100_000 < there["time"] < 250_000
    assert isinstance(absent["flash"], int) and absent["time"] is None and "serial port" in str(absent["error"])
    assert main(["bench", str(digits.INT8), "--boards", "host,nucleo-f446re"]) == 0
    out = capsys.readouterr().out
    assert "nucleo-f446re: board 'nucleo-f446re' is on no serial port" in out and "counted" not in out


def test_what_does_not_fit_or_lacks_a_tool_is_a_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for tool in ("make", "gcc", "cc", "mkdir", "rm", "size", "as", "ld"):
        found = shutil.which(tool)
        if found:
            os.symlink(found, tmp_path / tool)
    monkeypatch.setenv("PATH", str(tmp_path))
    code, rows = bench(capsys, "--boards", "microbit,host")
    assert code == 0 and "arm-none-eabi-gcc" in str(rows[0]["error"]) and rows[1]["error"] is None
    code, rows = bench(capsys, "--boards", "microbit")
    assert code == 5


def test_names_mean_boards() -> None:
    emulated = select_boards(["all-emulated"])
    assert {board.name for board in emulated} < set(list_boards()) and all(board.virtual for board in emulated)
    with pytest.raises(UsageError, match="microbit"):
        select_boards(["micobit"])


def test_a_model_that_is_none_is_refused_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "model.tflite").write_bytes(b"not a model")
    assert main(["bench", str(tmp_path / "model.tflite"), "--boards", "host,microbit"]) == 3
    assert main(["bench", str(tmp_path / "none.tflite"), "--boards", "host"]) == 2
    assert main(["bench", str(digits.INT8), "--boards", "host", "--repeat", "0"]) == 2
    assert main(["bench", str(digits.INT8), "--boards", "host", "--meter", "'"]) == 2
    capsys.readouterr()


def test_energy_is_of_one_inference(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = "os.environ['MICROC_BOARD'] == 'host' and '2.5 mJ'"
    code, rows = bench(capsys, "--boards", "host", "--meter", meter(wanted), "--repeat", "50")
    assert code == 0 and rows[0]["joules"] == pytest.approx(5e-5)
    code, rows = bench(capsys, "--boards", "host", "--meter", meter("'18 mW'"))
    (row,) = rows
    assert isinstance(row["seconds"], float) and row["joules"] == pytest.approx(0.018 * row["seconds"])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (meter("'18'"), "expected an energy or a power"),
        (meter("'1 kWh'"), "expected an energy or a power"),
        (meter("1 / 0"), "ZeroDivisionError"),
        ("no_such_meter", "cannot start the meter"),
    ],
)
def test_a_meter_that_measures_nothing_is_told(command: str, said: str) -> None:
    with pytest.raises(ToolError, match=said), run_meter(command, "host", 1):
        pass


def test_power_without_a_time_is_no_energy() -> None:
    with pytest.raises(ToolError, match="measured power"):
        MeterReading(watts=0.1).joules_per_inference(None)
    with pytest.raises(UsageError, match="got no program"):
        split_meter_command(" ")
