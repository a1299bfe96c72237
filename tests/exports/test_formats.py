# SPDX-License-Identifier: Apache-2.0
"""Formats as data: all render for all boards, alike everywhere; the network's C is one; mistakes are told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.codegen.c.source import network_files
from microc.codegen.exports import IN_TESTS, TEST_STATUS, build_package, load_format
from microc.codegen.project.additions import first_sample
from microc.codegen.project.firmware import project_files
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model
from microc.device.boards import list_boards, load_board, make_board_of_core
from microc.errors import OutputError, UsageError
from microc.isa import CORES
from microc.module import Module
from tests.exports.programs import FORMATS, awkward, export, program
from tests.support import digits
from tests.support.campaign import everything


def test_all_formats_for_all_boards() -> None:
    """Nothing is undefined, left over or empty in any file of any board's project and of its exports: of all, or by default of
    every sixth format in turn."""
    modules: dict[object, Module] = {}
    boards = [load_board(name) for name in list_boards()] + [make_board_of_core(cpu) for cpu in CORES]
    for number, board in enumerate(boards):
        if board.target not in modules:
            modules[board.target] = compile_model(awkward(), board.target, Options())
        module = modules[board.target]
        texts = dict(project_files((module,), board, "test"))
        real = board.raw.get("memory") and not {"emulator", "simulator"} & board.raw.keys()
        for name in FORMATS if everything() else FORMATS[number % 6 :: 6]:
            families = load_format(name).families
            unknown = name == "esp-idf" and real and name not in board.ids
            if unknown or (families and board.target.isa not in (*families, "host")):
                with pytest.raises(
                    UsageError, match=f"format {name}: (board .* has no id|its build system does not build for) "
                ):
                    build_package(module, board, name, "test")
                continue
            texts |= {f"{name}/{k}": v for k, v in build_package(module, board, name, "test").files.items()}
        for path, text in texts.items():
            whole = text.decode() if isinstance(text, bytes) else text
            assert whole.strip() and "{{" not in whole.replace("= {{", "") and "{%" not in whole, (board.name, path)
            assert whole.endswith("\n") and "\r" not in whole and "{#" not in whole, (board.name, path)


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_person_finds(name: str) -> None:
    """README with two commands, the package's names, licence; a manifest that says what it is."""
    package = program().module
    made = build_package(package, program().board, name, "test")
    readme = made.files["README.md"]
    assert isinstance(readme, str) and len(made.commands) == 2
    assert all(command in readme for command in made.commands) and load_format(name).checked in readme
    assert "\n\n\n" not in readme and "  for " not in readme
    assert "WITHOUT WARRANTY" in str(made.files["LICENSE"])
    manifest = json.loads(made.files["manifest.json"])
    assert manifest["format"] == name and manifest["fingerprint"] == package.fingerprint
    assert load_format(name).status in TEST_STATUS
    assert all(not path.startswith(("/", "..")) for path in made.files)


def test_one_network_in_all() -> None:
    """The network's files are the same bytes in all formats, and those of a project but for the names of the files."""
    module = program().module
    network: dict[str, set[str]] = {}
    for name in FORMATS:
        for path, text in build_package(module, program().board, name, "test").files.items():
            base = path.rpartition("/")[2]
            if base.startswith("digits_int8_model") and base.endswith((".c", ".h")):
                network.setdefault(base, set()).add(str(text))
    assert set(network) == {
        f"digits_int8_model{end}" for end in (".c", ".h", "_data.c", "_data.h", "_sample.c", "_sample.h")
    }
    assert all(len(texts) == 1 for texts in network.values())
    for path, text in network_files(module, "test").items():
        (exported,) = network[f"digits_int8_{path}"]
        assert exported.replace('#include "digits_int8_model', '#include "model') == text


_EXPORT = """
import hashlib, sys
from microc.cli import main
for _ in range(2):
    assert main(["export", sys.argv[1], "--format", "rust", "-o", "out", "-q"]) == 0
from pathlib import Path
for path in sorted(Path("out").rglob("*")):
    if path.is_file():
        sys.stdout.write(f"{path} {hashlib.sha256(path.read_bytes()).hexdigest()}\\n")
"""


def test_the_same_bytes_everywhere(tmp_path: Path) -> None:
    """Another folder, another hash seed, and over an older export: not a byte changes."""
    listings = []
    for place, seed in (("a", "0"), ("b", "4711")):
        (tmp_path / place).mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(microc.__file__).parents[1])}
        argv = [sys.executable, "-c", _EXPORT, str(digits.INT8)]
        done = subprocess.run(argv, cwd=tmp_path / place, env=environment, capture_output=True, text=True, check=True)
        listings.append(done.stdout)
    assert listings[0] == listings[1] and listings[0].count("\n") > 10


def test_the_sample_is_a_pattern_or_the_users(tmp_path: Path) -> None:
    image = digits.images(1)[0]
    program().export("c", tmp_path / "own", [image])
    own = (tmp_path / "own" / "digits_int8_model_sample.c").read_text()
    words = own.partition("= {")[2].partition("}")[0].replace("\n", " ").replace(",", " ").split()
    assert [int(word) for word in words] == image.reshape(-1).tolist()
    (given,) = first_sample(program().module)
    assert given.shape == (1, 8, 8, 1) and given.dtype == np.int8 and len(np.unique(given)) == 64
    rows, flags = first_sample(program("awkward").module)
    assert (
        rows.dtype == np.float32
        and -1 <= rows.min() < rows.max() < 1
        and set(flags.reshape(-1).tolist()) == {True, False}
    )
    for wrong, text in (([], "takes 1 inputs, 0"), ([image.astype(np.float32)], "quantise"), ([image[0]], "reshape")):
        with pytest.raises(UsageError) as caught:
            program().export("c", tmp_path / "own", wrong)
        assert text in str(caught.value)


# ---------------------------------------------------------------- formats of the user's own

OWN = """
title = "Notes"
status = "run"
checked = "by us."
sources = "{{ package }}/network"
headers = "{{ package }}"
commands = ["ls {{ package }}"]

[files]
"{{ package }}/{{ model.name }}.txt" = "notes.j2"
"""


def write_format(folder: Path, text: str = OWN, notes: str = "{{ package }} on {{ cpu }}\n") -> str:
    folder.mkdir(exist_ok=True)
    (folder / "format.toml").write_text(text)
    (folder / "notes.j2").write_text(notes)
    return f"{folder}/"


def test_a_format_is_a_folder(tmp_path: Path) -> None:
    made = build_package(program().module, program().board, write_format(tmp_path / "notes"), "test")
    assert made.files["digits_int8_model/digits_int8.txt"] == "digits_int8_model on host\n"
    assert "digits_int8_model/network/digits_int8_model.c" in made.files
    assert "digits_int8_model/digits_int8_model.h" in made.files and made.commands == ("ls digits_int8_model",)


@pytest.mark.parametrize(
    ("text", "notes", "told"),
    [
        ("title = ", "", "is not valid TOML"),
        ('title = "x"', "", "'status' is missing"),
        (OWN.replace('"run"', '"surely"'), "", "'status' is missing"),
        (OWN + "more = 3\n", "", "'files' is missing"),
        ("more = 3\n" + OWN, "", "unknown key 'more'"),
        (OWN.replace('["ls {{ package }}"]', '"ls"'), "", "'commands' is missing"),
        ("built = 3\n" + OWN, "", "'built' is missing"),
        ('built = [{ tool = "x", what = "y" }]\n' + OWN, "", "'built' is missing"),
        ('built = [{ tool = "x", what = "y", when = "soon" }]\n' + OWN, "", "'built' is missing"),
        ('linted = [{ tool = "x" }]\n' + OWN, "", "'linted' is missing"),
        (OWN, "line\n{{ unknown }}\n", "'unknown' is undefined"),
        (OWN, "line\n{% if %}\n", "notes.j2:2"),
        (OWN.replace("ls {{ package }}", "ls {{ pack }}"), "", "'pack' is undefined"),
        (OWN.replace('"notes.j2"', '"absent.j2"'), "", "absent.j2"),
        (
            OWN.replace('"{{ package }}/{{ model.name }}.txt"', '"../{{ model.name }}.txt"'),
            "",
            "expected one inside of the export",
        ),
        (OWN.replace('"{{ package }}/network"', '"/tmp"'), "", "expected one inside of the export"),
        (OWN, "{{ package.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_mistakes_in_a_format(tmp_path: Path, text: str, notes: str, told: str) -> None:
    name = write_format(tmp_path / "notes", text, notes)
    with pytest.raises(UsageError) as caught:
        program().export(name, tmp_path / "out")
    assert told in str(caught.value) and str(tmp_path) in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_there_is_no_such_format(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        program().export("ardiuno", tmp_path / "out")
    assert "did you mean arduino?" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        program().export("xyzzy", tmp_path / "out")
    assert all(name in caught.value.hint for name in FORMATS)
    with pytest.raises(UsageError, match=r"cannot read .*format\.toml"):
        load_format(f"{tmp_path}/absent")


def test_every_folder_is_a_format() -> None:
    """What lies in the folder of formats is data: TOML and templates, all of them used."""
    root = load_format("c").folder.parent
    for folder in (path for path in root.iterdir() if path.is_dir()):
        found = tomllib.loads((folder / "format.toml").read_text())
        templates = {path.name for path in folder.glob("*.j2")} - {"types.j2"}
        assert {path.suffix for path in folder.iterdir()} <= {".toml", ".j2"}
        shared = {"sample.ino.j2"} if folder.name == "arduino" else set()
        assert templates | shared == {name for name in found["files"].values() if "/" not in name} | shared


# ---------------------------------------------------------------- the command

MODEL = str(digits.INT8)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "net"
    assert main(["export", MODEL, "--format", "cmake", "-o", str(folder), "--target", "cortex-m4", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["files"] == sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    assert data["format"] == "cmake" and data["model"] == "digits_int8" and data["next"][0].startswith("cmake -B build")
    assert "__ARM_FEATURE_DSP" in (folder / "src" / "digits_int8_model.c").read_text()
    np.save(tmp_path / "x.npy", digits.images(1)[0])
    words = ["export", MODEL, "--format", "c", "-o", str(folder), "--name", "2 kws", "--input", str(tmp_path / "x.npy")]
    assert main([*words, "--force"]) == 0
    said = capsys.readouterr().out
    assert f"{len(list(folder.iterdir()))} files in {folder}" in said and "cc -O2 -o sample *.c -lm" in said
    assert (folder / "m_2_kws_model.h").is_file() and not (folder / "src").exists()


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--list"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in FORMATS) and "unbuilt" in text
    assert main(["export", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["formats"]
    assert [row["name"] for row in rows] == list(FORMATS) and all(row["checked"] for row in rows)
    assert "in the tests" in text and "ESP-IDF 6.2" in text and "compote manifest lint" in text


def test_builds_are_as_the_status_says() -> None:
    """What runs in the tests was built there; a date is no day to come; without a build nothing is called tried."""
    for name in FORMATS:
        description = load_format(name)
        days = {build.when for build in description.built}
        assert all(
            day == IN_TESTS or date.fromisoformat(day) <= date.today()
            for day in {*days, *(lint.when for lint in description.linted)}
        ), name
        assert (IN_TESTS in days) == (description.status == "run"), name
        assert days or description.status == "unbuilt", name


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "export needs MODEL, --format, -o"),
        ([MODEL, "--format", "c"], "export needs -o"),
        ([MODEL, "--format", "cobol", "-o", "x"], "arduino, c, cmake"),
        ([MODEL, "--format", "c", "-o", "x", "--target", "z80"], "unknown core 'z80'"),
        ([MODEL, "--format", "c", "-o", "x", "--target", "avr", "--board", "host"], "cannot both"),
        ([MODEL, "--format", "c", "-o", "x", "--board", "microbti"], "did you mean microbit"),
        (["absent.tflite", "--format", "c", "-o", "x"], "there is no model file"),
    ],
)
def test_wrong_usage(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", *words]) == 2
    assert told in capsys.readouterr().err


def test_foreign_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(OutputError, match="contains files that microc did not write"):
        export(tmp_path, "c")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_export_is_no_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(tmp_path / "net", "c")
    assert main(["build", str(tmp_path / "net")]) == 2
    assert "is an export" in capsys.readouterr().err
