# SPDX-License-Identifier: Apache-2.0
"""Texts of strangers in generated files: whatever a node, a tensor or a file is called, it stays text."""

from __future__ import annotations

import itertools
import json
import string
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import microc
from microc.base import file_access
from microc.codegen.output_files import write_tree
from microc.codegen.project.firmware import project_files
from microc.codegen.render import Label, Name, Note, Setting, Text, Word, render_line
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model
from microc.device.boards import load_board
from microc.errors import InternalError

ATTACKS = (
    r'*\;__attribute__((constructor))void evil(){system("touch ran");}\*',
    r'*\;__attribute__((constructor))void evil(){system("touch ran");}/*',
    '*/__attribute__((constructor))void evil(){system("touch ran");}/*',
    '*\\\r\n/__attribute__((constructor))void evil(){system("touch ran");}/*',
    '*??/\n/__attribute__((constructor))void evil(){system("touch ran");}/*',
    '*\0/__attribute__((constructor))void evil(){system("touch ran");}/*',
    '\u202e*/__attribute__((constructor))void evil(){system("touch ran");}/*',
    "$(shell touch ran)`touch ran`;touch ran #",
    '{{ 7 * 7 }}{% include "LICENSE.j2" %}',
)


def test_three_letters() -> None:
    """Of all strings of three printable letters, between any neighbours, none quotes, escapes, ends or continues a line."""
    bad = set("*\\$`\"'<&{}%\r\n\t\0!|~^")
    for letters in itertools.product(string.printable, repeat=3):
        text = Text("".join(letters))
        assert not bad.intersection(text) and "??" not in text
    assert Text("a" * 300) == "a" * 197 + "..." and len(Note("a" * 9000)) == 4000
    assert Text("model/conv_1/Relu;a.b:0 (x) -> #3") == "model/conv_1/Relu;a.b:0 (x) -> #3"


def evil_model(path: Path, name: str) -> Path:
    """A network whose node, tensors and file have the name."""
    graph = helper.make_graph(
        [helper.make_node("Exp", [name + "in"], [name], name=name)],
        name,
        [helper.make_tensor_value_info(name + "in", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, str(path))
    return path


def test_names_do_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attacks that once ran a command on the host, as names of everything in a file and of the file."""
    monkeypatch.chdir(tmp_path)
    for k, name in enumerate(ATTACKS):
        stem = "".join(c if c not in "/\0" else "_" for c in name)[:200]
        library = microc.compile(evil_model(tmp_path / f"{stem}.onnx", name), name="net")
        assert np.allclose(library(np.zeros(2, np.float32)), 1)
        target = tmp_path / f"{k}.so"
        library.export_library(target)
        symbols = subprocess.run(["nm", "--defined-only", target], capture_output=True, text=True, check=True).stdout
        assert "evil" not in symbols.split(), name
    assert not (tmp_path / "ran").exists()


@dataclass(frozen=True, slots=True)
class Context:
    """What a template might be given by mistake."""

    parts: tuple[object, ...]


def test_what_was_not_filtered_is_refused() -> None:
    """A string of no kind is a defect wherever in a context it is, and so is what could hold one."""
    assert render_line("{{ parts[0] }}", Context((Text("a$b"), 1, True, None))) == "a?b"
    for part in (
        "plain",
        ("plain",),
        {"plain": 1},
        {Name("a"): "plain"},
        Path("plain"),
        [b"plain"],
        Context(("plain",)),
    ):
        with pytest.raises(InternalError, match=r"Context\.parts"):
            render_line("fixed", Context((part,)))


def test_kinds_check_what_they_are() -> None:
    for kind, good, bad in (
        (Name, ("a", "A_1", "_"), ("", "1a", "a b", "a\n", "a-b", "é", "a" * 201)),
        (Word, ("", "-Wl,--a=b", "a/b.c"), ("a b", "a\n", "$(a)", "`a`", "@a", "a;b", "a#", "a\\", "é")),
        (Setting, ("CONFIG_A=y", 'CONFIG_A="b c"'), ("A=y", "CONFIG_A=y\n", 'CONFIG_A="$(b)"', "CONFIG_A=y z")),
    ):
        assert all(kind(text) == text for text in good)
        for text in bad:
            with pytest.raises(InternalError, match=f"pattern of class {kind.__name__}"):
                kind(text)
    assert (
        Label("Faltung \N{GREEK SMALL LETTER ALPHA}\u202e\u200b\n<b>") == "Faltung \N{GREEK SMALL LETTER ALPHA}???<b>"
    )


TITLES = (
    "x */ int evil; /*\n$(shell touch ran)\n\t@touch ran\n#",
    "x\n$(shell touch ran)\nexecute_process(COMMAND touch ran)\n]] \\",
    "x\r$(error stop) ${evil} \u2028 `touch ran`",
)


@pytest.mark.parametrize("board", ["host", "mps2-an386"])
def test_a_boards_title_stays_text(tmp_path: Path, board: str) -> None:
    """Board files of strangers: title and file's name in Makefile, CMake, C, linker script and pages."""
    module = compile_model(evil_model(tmp_path / "net.onnx", ATTACKS[0]), load_board(board).target, Options())
    plain = {k: v for k, v in project_files((module,), load_board(board), "test").items() if k != "board/board.json"}
    original = load_board(board).title
    for k, title in enumerate(TITLES):
        path = tmp_path / f"$(shell touch ran{k}).toml"
        text = (file_access.boards_folder() / f"{board}.toml").read_text()
        path.write_text(text.replace(f'title = "{original}"', f"title = {json.dumps(title)}"))
        folder = tmp_path / f"project{k}"
        write_tree(folder, project_files((module,), load_board(path), "test"))
        for name, before in plain.items():
            after = (folder / name).read_text()
            if name.endswith(".json"):  # JSON escapes what strangers say, and needs no filter
                assert after.isascii() and json.loads(after).keys() == json.loads(before).keys(), name
            else:
                assert after.replace(Text(title), Text(original)) == str_of(before), name
        subprocess.run(["make", "-n"], cwd=folder, check=True, capture_output=True)
        if board == "host" and k == 0:
            subprocess.run(["make", "-s"], cwd=folder, check=True)
            subprocess.run(["cmake", "-S", ".", "-B", "build/cmake"], cwd=folder, check=True, capture_output=True)
    assert [str(path) for path in tmp_path.rglob("ran*")] == []


def str_of(content: str | bytes) -> str:
    return content if isinstance(content, str) else content.decode()
