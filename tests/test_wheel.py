"""A wheel, installed into an empty environment and used from another folder, brings everything it needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ROOT / "examples" / "digits" / "digits_int8.tflite"


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run without anything of this environment leaking in."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP", "VIRTUAL"))}
    environment |= {k: v for k, v in os.environ.items() if k.startswith("PIP_")}
    return subprocess.run(
        [str(c) for c in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` folder of an environment with nothing but the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("wheel")
    built = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    assert built.returncode == 0, built.stderr
    wheel = next(folder.glob("*.whl"))
    assert run(sys.executable, "-m", "venv", folder / "venv", cwd=folder).returncode == 0
    binaries = folder / "venv" / "bin"
    pip = run(binaries / "python", "-m", "pip", "install", "--quiet", wheel, cwd=folder)
    if pip.returncode != 0:
        pytest.skip(f"the wheel's dependencies cannot be installed here: {pip.stderr.strip().splitlines()[-1]}")
    return binaries


def test_compile_and_verify_from_elsewhere(installed: Path, tmp_path: Path) -> None:
    model = tmp_path / "digits.tflite"
    shutil.copyfile(DIGITS, model)
    compiled = run(installed / "microc", "compile", model, "--board", "host", "-o", "out", cwd=tmp_path)
    assert compiled.returncode == 0, compiled.stderr
    assert (tmp_path / "out" / "model.c").is_file()
    verified = run(installed / "microc", "verify", "out", cwd=tmp_path)
    assert verified.returncode == 0, verified.stderr


def test_boards_travel_inside(installed: Path, tmp_path: Path) -> None:
    listed = run(installed / "microc", "boards", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "netduinoplus2" in listed.stdout
