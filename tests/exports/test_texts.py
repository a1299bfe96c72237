# SPDX-License-Identifier: Apache-2.0
"""Texts of strangers through all templates: what a layer, a file, a size or a board is called changes no token of any file."""

from __future__ import annotations

import ast
import itertools
import json
import random
import string
import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from microc.codegen.c.source import network_files
from microc.codegen.exports import build_package
from microc.codegen.output_files import write_tree
from microc.codegen.project.firmware import project_files
from microc.codegen.render import Text
from microc.device.boards import load_board
from microc.module import Module
from microc.target import Board
from tests.codegen.test_text import ATTACKS
from tests.exports.programs import FORMATS, program

PLAIN = "somewhere"
LETTERS = "".join(chr(c) for c in range(32, 127))
EDGES = (
    "/",
    "//",
    "*/",
    "/*",
    "\\",
    "?",
    "??/",
    "#",
    "]]",
    "-->",
    "'",
    '"',
    '"""',
    "`",
    "$",
    "{%",
    "}}",
    "@",
    "=",
    ": ",
    "%d",
    "<b>",
)


def joined(parts: Sequence[str], count: int) -> list[str]:
    """Texts of so many parts each."""
    return ["".join(parts[k : k + count]) for k in range(0, len(parts), count)]


def triples() -> list[str]:
    """All strings of three printable letters of ASCII, 97 to a text: a de Bruijn sequence, by its Lyndon words."""
    words: list[str] = []
    for word in map("".join, itertools.product(LETTERS, repeat=3)):
        if word == word[0] * 3:
            words.append(word[0])
        elif word < min(word[1:] + word[0], word[2] + word[:2]):
            words.append(word)
    cycle = "".join(words)
    cycle += cycle[:2]
    assert len({cycle[k : k + 3] for k in range(len(cycle) - 2)}) == 857_375 == len(cycle) - 2
    return [cycle[k : k + 99] for k in range(0, len(cycle) - 2, 97)]


def unicode_texts(count: int) -> list[str]:
    """Random strings of all planes; controls, marks of direction and what ends lines are in them more often than by chance."""
    draw = random.Random(17)
    rare = "\0\r\n\t\x0b\x0c\x1b\x85\u2028\u2029\u202e\u200b\ufeff\ud800*/\\?\"'`${}%#"

    def letter() -> str:
        return draw.choice(rare) if draw.random() < 0.4 else chr(draw.randrange(0x110000))

    return ["".join(letter() for _ in range(draw.randrange(1, 16))) for _ in range(count)]


def with_layers(module: Module, layers: list[str]) -> Module:
    """The module with its first step again and again, each from another layer."""
    return replace(module, calls=tuple(replace(module.calls[0], layer=layer) for layer in layers))


def tokens(folder: Path, source: str) -> str:
    """C without its comments, by the compiler; its own warnings of comments and trigraphs are errors."""
    path = folder / "code.c"
    path.write_text(source, encoding="utf-8")
    argv = ["gcc", "-std=c99", "-fpreprocessed", "-dD", "-E", "-P", "-Werror=comment", "-Werror=trigraphs", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    return done.stdout


def test_layers(tmp_path: Path) -> None:
    """All strings of three letters and 50,000 of Unicode, twice each in ``model.c``: its tokens are those of harmless names."""
    module = program().module
    layers = [*triples(), *joined(unicode_texts(50_000), 12)]
    hostile = network_files(with_layers(module, layers), "test")["model.c"]
    plain = network_files(with_layers(module, [PLAIN] * len(layers)), "test")["model.c"]
    assert hostile.isascii() and "\r" not in hostile and hostile.count(" MACs)") == len(layers)
    assert tokens(tmp_path, hostile) == tokens(tmp_path, plain)


def everything(module: Module, board: Board) -> dict[str, str]:
    """All text files of the project and of all exports."""
    files = dict(project_files((module,), board, "test"))
    for name in FORMATS:
        files |= {f"{name}/{path}": text for path, text in build_package(module, board, name, "test").files.items()}
    return {
        path: text for path, text in files.items() if isinstance(text, str) and not path.endswith((".json", "_data.c"))
    }


@cache
def named(text: str) -> dict[str, str]:
    """All files where the text is the name of everything that has one."""
    module = program().module
    values = {name: replace(value, label=text) for name, value in module.values.items()}
    calls = tuple(replace(call, layer=text) for call in module.calls)
    return everything(replace(module, values=values, calls=calls, source=text), replace(load_board("host"), title=text))


def test_every_position() -> None:
    """Wherever a text stands, in all templates: what comes out is the file of a harmless one with the filtered text instead."""
    plain = named(PLAIN)
    assert sum(PLAIN in content for content in plain.values()) > 20
    for text in joined("".join((*ATTACKS, *EDGES, *random.Random(4).choices(string.printable, k=180))), 90):
        shown = Text(text)
        for path, content in named(text).items():
            assert content == plain[path].replace(PLAIN, shown), path


@pytest.mark.parametrize("text", ["/" + str(Text(LETTERS)) + "/", "#@ /> = : ; ? (+) ,- ._"], ids=["letters", "marks"])
def test_tools_read_the_same(tmp_path: Path, text: str) -> None:
    """All letters that a text may have, read by compilers, parsers and build tools: as if they were not there."""
    hostile, plain = named(text), named(PLAIN)
    code = {content: plain[path] for path, content in hostile.items() if path.endswith((".c", ".h", ".ino", ".ld"))}
    assert len(code) > 10
    for content, before in code.items():
        assert tokens(tmp_path, content) == tokens(tmp_path, before)
    for path, content in hostile.items():
        if path.endswith(".py"):
            assert ast.dump(ast.parse(content)) == ast.dump(ast.parse(plain[path]))
        if path.endswith(".toml"):
            assert tomllib.loads(content) == tomllib.loads(plain[path])
    made = {path.removeprefix("make/"): content for path, content in hostile.items() if path.startswith("make/")}
    write_tree(tmp_path / "make", {**made, "src/digits_int8_model_data.c": "int none;\n"})
    subprocess.run(["make", "-n"], cwd=tmp_path / "make", check=True, capture_output=True)
    for path in (p for p in hostile if p.endswith(("CMakeLists.txt", "Makefile", ".mk", ".yml", ".yaml", ".cmake"))):
        rest = [[line for line in files[path].splitlines() if line[:2] != "# "] for files in (hostile, plain)]
        assert rest[0] == rest[1], path


def test_long_names_stay_different() -> None:
    """Names that are equal where they are cut, or but for unsafe letters, have entries of their own in a web page's manifest."""
    module = replace(program().module, hashes={"a" * 300: "1", "a" * 299 + "b": "2", "<": "3", ">": "4", "2: ?": "5"})
    script = build_package(module, load_board("host"), "web", "test").files["manifest.js"]
    assert isinstance(script, str)
    hashes = json.JSONDecoder().raw_decode(script, script.index("{"))[0]["sha256"]
    assert sorted(hashes.values()) == ["1", "2", "3", "4", "5"] and all(len(name) <= Text.LIMIT for name in hashes)
