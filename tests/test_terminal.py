# SPDX-License-Identifier: Apache-2.0
"""Text of strangers on a terminal: whatever a model, a board, a record or a file is called, no byte of it is obeyed."""

from __future__ import annotations

import ast
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from microc import cli, errors
from microc.base import file_access
from microc.cli import main
from microc.errors import UsageError
from microc.frontend.tflite import reader as tflite
from microc.graph.file import to_bytes
from tests.frontend import onnx_model
from tests.frontend.tflite_model import Op, Tensor
from tests.ops.oracle import single
from tests.support import digits

EVIL = "n\x1b]0;owned\x07\x1b[2J\r\x9b3J\u202eevil\u2066\x7f\x00"
PACKAGE = Path(errors.__file__).parent


def refuse_control(text: str) -> None:
    obeyed = {c for c in text if not c.isprintable() and c not in "\n\t"}
    assert not obeyed, (obeyed, text[:2000])


def tflite_model(name: str) -> bytes:
    return single(Op("RELU", (name,), (f"{name}y",)), (Tensor(name, (1, 4)), Tensor(f"{name}y", (1, 4))))


def onnx_file(name: str) -> bytes:
    wrong = onnx_model.node("Relu", [name], [f"{name}y"])
    model = onnx_model.proto([wrong], {name: (1, 4)}, {}, [f"{name}y"])
    return bytes(model.SerializeToString())


def unknown_onnx(name: str) -> bytes:
    model = onnx_model.proto([onnx_model.node(name, ["x"], ["y"], domain=name)], {"x": (1, 4)})
    return bytes(model.SerializeToString())


MODELS: dict[str, Callable[[], bytes]] = {
    "names.tflite": lambda: tflite_model(EVIL.rstrip("\0")),
    "custom.tflite": lambda: single(
        Op("CUSTOM", ("x",), ("y",), custom=EVIL.rstrip("\0")), (Tensor("x", (1, 4)), Tensor("y", (1, 4)))
    ),
    "names.onnx": lambda: onnx_file(EVIL),
    "unknown.onnx": lambda: unknown_onnx(EVIL),
    "names.mcg": lambda: to_bytes(tflite.read_tflite(tflite_model(EVIL.rstrip("\0")), "x.tflite")),
    "forest.txt": lambda: f"tree\nversion=v4\nobjective={EVIL}\nfeature_names={EVIL}\n".encode(),
    "trees.json": lambda: b'{"learner": {"objective": {"name": "\\u001b[2J"}}, "version": [2, 0, 0]}',
}


@pytest.mark.parametrize("name", MODELS)
def test_names_in_models(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    path.write_bytes(MODELS[name]())
    for words in (["check", "--tensors"], ["compile", "-o", str(tmp_path / "out")], ["explain", "--board", "host"]):
        main([words[0], str(path), *words[1:]])
        main([words[0], str(path), *words[1:], "--json", "-v"])
    refuse_control("".join(capsys.readouterr()))


@pytest.mark.skipif(os.name != "posix", reason="needs names of any bytes")
def test_names_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of models, boards, plugins, data, projects and folders, those that are there and those that are not; bytes that are no
    text among them."""
    folder = os.fsdecode(os.fsencode(str(tmp_path)) + b"/f\xff" + EVIL.rstrip("\0").encode())
    os.mkdir(folder)
    model = f"{folder}/{EVIL[:9]}.tflite"
    Path(model).write_bytes(digits.INT8.read_bytes())
    for words in (
        ["check", model],
        ["check", f"{model}x"],
        ["compile", model, "-o", f"{folder}/out"],
        ["compile", model, "-o", model],
        ["build", folder],
        ["run", f"{folder}/out", "--input", model],
        ["boards", "validate", f"{folder}/x.toml"],
        ["boards", "show", EVIL],
        ["plugin", "check", model],
        ["report", model],
        ["tune", "--show", model],
        [EVIL],
        ["check", f"--{EVIL}"],
        ["export", model, "--format", EVIL, "-o", folder],
        ["compile", model, "--board", "host", "--rename", f"{EVIL}=x", "-o", f"{folder}/2"],
    ):
        main(words)
        main([*words, "--json"])
    refuse_control("".join(capsys.readouterr()))


def test_boards_configuration_records_and_manifests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = "n\\u001b]0;owned\\u0007\\u001b[2J\\r\\u009b3J\\u202e\\u007f"
    text = (file_access.boards_folder() / "host.toml").read_text()
    title = next(line for line in text.splitlines() if line.startswith("title"))
    (tmp_path / "b.toml").write_text(text.replace(title, f'title = "{evil}"'))
    (tmp_path / "c.toml").write_text(text.replace(title, f'title = "x"\n"{evil}" = 1'))
    for board in ("b.toml", "c.toml"):
        for action in ("show", "validate"):
            main(["boards", action, str(tmp_path / board)])
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path / "own")
    for line in (f'model = "{evil}"', f'"{evil}" = 1', f'board = "{evil}"', f'[options]\nmath = "{evil}"', f'x"{EVIL}'):
        Path("microc.toml").write_text(line.replace("\0", ""))
        for command in ("check", "run", "build"):
            main([command])
    Path("microc.toml").unlink()
    assert main(["compile", str(digits.INT8), "--board", "host", "-o", "p", "-q"]) == 0
    manifest = Path("p/manifest.json")
    manifest.write_text(manifest.read_text().replace('"digits_int8', f'"{evil}').replace('"dense5', f'"{evil}dense5'))
    for command in ("size", "report", "verify"):
        main([command, "p"])
    Path("t.jsonl").write_text(f'{{"key": "{evil}"}}\n')
    main(["tune", "--show", "t.jsonl"])
    np.savez("x.npz", **{"\x1b[2J": np.ones(3, np.float32)})  # type: ignore[arg-type]
    main(["verify", str(digits.INT8), "--board", "host", "--data", "x.npz"])
    refuse_control("".join(capsys.readouterr()))


def test_an_error_forges_no_line() -> None:
    """Further lines of a message are indented; line ends that came with a name are escaped."""
    error = UsageError("x\n  help: rm\n    two", where="a\n  help: rm", hint=f"b{EVIL}")
    assert str(error).splitlines() == [
        "error[E0201]: x\\n  help: rm",
        "    two",
        "  --> a\\n  help: rm",
        f"  help: b{errors.escape_unprintable(EVIL)}",
    ]
    assert (error.what, error.where) == ("x\n  help: rm\n    two", "a\n  help: rm"), "programs get what was said"
    refuse_control(str(error))


def test_whoever_writes_is_guarded(capsys: pytest.CaptureFixture[str]) -> None:
    """Libraries, too; what an encoding lacks is escaped, and nothing is guarded twice."""
    with errors.escape_all_output(), errors.escape_all_output():
        sys.stderr.writelines(["a\tb", EVIL])
        errors.write_trusted_control_sequence("\x1b[1mours\x1b[0m")
    said = capsys.readouterr().err
    assert "\x1b[1mours\x1b[0m" in said and "a\tb" in said
    refuse_control(said.replace("\x1b[1mours\x1b[0m", ""))
    plain = io.TextIOWrapper(io.BytesIO(), "ascii")
    errors._EscapingStream(plain).write("é\udcff€\n")
    plain.flush()
    assert plain.buffer.getvalue() == b"\\xe9\\udcff\\u20ac\n"


def test_the_file_of_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    error = cli._internal_error(ValueError(EVIL))
    path = Path(error.hint.rpartition(" ")[2])
    try:
        refuse_control(path.read_text())
        refuse_control(str(error))
    finally:
        path.unlink()


def test_control_sequences_have_one_door() -> None:
    """Only the guard and the functions around it write what a terminal obeys: no other file has such a literal, but for output
    that begins a line anew through ``control``."""
    allowed = {"errors.py", "cli/show.py", "cli/tune.py", "compiler/interaction.py"}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        found: list[Any] = [
            n.value
            for n in ast.walk(ast.parse(path.read_text()))
            if isinstance(n, ast.Constant) and isinstance(n.value, str)
        ]
        assert name in allowed or not any("\x1b" in each for each in found), name
