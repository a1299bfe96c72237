"""A wheel, installed into an empty environment and used from another folder, brings everything it needs, and says what it is."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

import microc
from scripts.release import ROOT, CheckError, build, check_source, check_wheel, install, metadata, run

DIGITS = ROOT / "examples" / "digits" / "digits_int8.tflite"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` folder of an environment with nothing but the wheel and what it depends on."""
    try:
        return install(built[0], tmp_path_factory.mktemp("empty") / "venv")
    except CheckError as error:
        pytest.skip(f"the wheel's dependencies cannot be installed here: {str(error).strip().splitlines()[-1]}")


def test_what_is_built_is_complete(built: tuple[Path, Path]) -> None:
    wheel, sdist = built
    check_wheel(wheel)
    check_source(sdist, wheel)
    assert metadata(wheel)["Version"] == microc.__version__ and wheel.stat().st_size < 8 << 20


def test_what_is_not_complete_is_told(built: tuple[Path, Path], tmp_path: Path) -> None:
    import zipfile

    part = tmp_path / built[0].name
    with zipfile.ZipFile(built[0]) as whole, zipfile.ZipFile(part, "w") as archive:
        for name in whole.namelist():
            if name != "microc/py.typed" and not name.endswith("/LICENSE"):
                archive.writestr(name, whole.read(name))
    with pytest.raises(CheckError, match=r"lacks microc/py\.typed, the licence"):
        check_wheel(part)


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


def test_the_demonstration_and_a_project_travel_inside(installed: Path, tmp_path: Path) -> None:
    said = run(installed / "microc", "demo", "--board", "host", cwd=tmp_path)
    assert said.returncode == 0 and "passed" in said.stdout, said.stderr
    made = run(installed / "microc", "new", "first", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    ran = run(installed / "microc", "run", cwd=tmp_path / "first")
    assert ran.returncode == 0 and "probabilities" in ran.stdout, ran.stderr
    assert run(installed / "microc", "doctor", "--board", "host", cwd=tmp_path).returncode == 0


def test_the_page_lists_the_extras() -> None:
    rows = re.findall(r"^\| `microc\[(\w+)\]` \| (.*?) \|", (ROOT / "docs" / "install.md").read_text(), re.M)
    named = {extra: set(re.findall(r"`([\w-]+)`", packages)) for extra, packages in rows}
    declared = {
        extra: {re.match(r"[\w-]+", package)[0] for package in packages}  # type: ignore[index]
        for extra, packages in PROJECT["optional-dependencies"].items()
        if extra != "test"
    }
    assert named == declared


def test_refusals_name_extras_that_are() -> None:
    text = "".join(path.read_text() for path in (ROOT / "microc").rglob("*.py"))
    assert set(re.findall(r"microc\[(\w+)\]", text)) <= set(PROJECT["optional-dependencies"])


def test_one_place_has_the_version() -> None:
    assert "version" in PROJECT["dynamic"] and "version" not in PROJECT
    assert re.search(rf"^## (Unreleased|{re.escape(microc.__version__)})", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_python_is_new_enough() -> None:
    assert sys.version_info >= tuple(map(int, PROJECT["requires-python"].removeprefix(">=").split(".")))
