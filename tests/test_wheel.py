# SPDX-License-Identifier: Apache-2.0
"""A wheel, installed into an empty environment and used from another folder, brings everything it needs, and says what it is."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from scripts.release import ROOT, CheckError, build, check_source, check_wheel, install, metadata, run
from tests.device.smoke import needs
from tests.site.running import Runner

FIRST = ROOT / "docs" / "first_steps.md"
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
    rows = re.findall(r"^\| `microc\[([\w-]+)\]` \| (.*?) \|", (ROOT / "docs" / "install.md").read_text(), re.M)
    named = {extra: set(re.findall(r"`([\w-]+)`", packages)) for extra, packages in rows}
    declared = {
        extra: {re.match(r"[\w-]+", package)[0] for package in packages}  # type: ignore[index]
        for extra, packages in PROJECT["optional-dependencies"].items()
        if extra != "test"
    }
    assert named == declared


def test_refusals_name_extras_that_are() -> None:
    text = "".join(path.read_text() for path in (ROOT / "microc").rglob("*.py"))
    assert set(re.findall(r"microc\[([\w-]+)\]", text)) <= set(PROJECT["optional-dependencies"])


def test_one_place_has_the_version() -> None:
    assert "version" in PROJECT["dynamic"] and "version" not in PROJECT
    assert re.search(
        rf"^## \[(Unreleased|{re.escape(microc.__version__)})\]", (ROOT / "CHANGELOG.md").read_text(), re.M
    )


def test_python_is_new_enough() -> None:
    assert sys.version_info >= tuple(map(int, PROJECT["requires-python"].removeprefix(">=").split(".")))


def lines(count: int, seed: int) -> tuple[Array, list[int]]:
    """Images as those of the first page, and their classes: rows, columns, diagonals."""
    generator = np.random.default_rng(seed)
    images, classes = generator.normal(0, 0.3, (count, 1, 12, 12)).astype(np.float32), [k % 3 for k in range(count)]
    for image, kind in zip(images, classes, strict=True):
        place = np.eye(12)[generator.integers(12)]
        image[0] += (place[:, None], place, np.eye(12))[kind].astype(np.float32)
    return images, classes


@needs("arm-none-eabi-gcc", "qemu-system-arm")
@pytest.mark.cross
@pytest.mark.emulator
def test_the_first_page(installed: Path, tmp_path: Path) -> None:
    """Its five commands, by the wheel: to a measured inference on an emulated board. Without PyTorch here, the network that the
    page's program made before (``tests/data/site/first.onnx``) takes the place of the one that it makes, and what the page shows,
    which has names of PyTorch's, is not compared."""
    text = FIRST.read_text(encoding="utf-8")
    found = importlib.util.find_spec("torch")
    (first,) = re.findall(r'^(pip install "microc\[torch\]".*)$', text, re.MULTILINE)
    replaced = {first: ""}  # the wheel is installed, torch is lent
    if found is not None and found.origin is not None:
        packages = next((installed.parent / "lib").glob("python*/site-packages"))
        (packages / "lent.pth").write_text(f"{Path(found.origin).parents[1]}\n")
    else:
        shutil.copyfile(ROOT / "tests" / "data" / "site" / "first.onnx", tmp_path / "first.onnx")
        np.save(tmp_path / "calibration.npy", lines(200, 0)[0])
        images, classes = lines(200, 1)
        np.savez(tmp_path / "test.npz", x=images, label=classes)
        (quantize,) = re.findall(r"^(microc quantize .*)$", text, re.MULTILINE)
        replaced |= {"python network.py": "", quantize: quantize.replace("network.pt2", "first.onnx")}
    page = Runner(FIRST, tmp_path, str(installed / "python"), replaced, compared=found is not None)
    page.run()
    (commands,) = re.findall(r"^```shell\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(commands.splitlines()) == 5
    assert re.search(r"accuracy +\d+\.\d\d % -> (9[5-9]|100)\.", page.said)
    assert re.search(r"netduinoplus2: [\d,]{5,} instructions", page.said)
