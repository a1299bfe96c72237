# SPDX-License-Identifier: Apache-2.0
"""Attacks follow features: each file that reads has a target, and each target holds for a few mutants and for what is no file."""

from __future__ import annotations

import ast
import os
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from microc.codegen.output_files import write_tree
from microc.errors import MicrocError
from tests.fuzz.readers import CAMPAIGNS, CLOSED, READERS, TARGETS, Target, attempt, mutants
from tests.support.campaign import everything

PACKAGE = Path(__file__).resolve().parents[2] / "microc"
READS = (
    "open_regular_file", "read_bytes", "read_text", ".frombuffer", ".fromfile", ".memmap", "int.from_bytes", ".from_bytes",
    "struct.unpack",
    ".unpack_from", ".iter_unpack", "json.loads", "json.load", "tomllib.loads", "tomllib.load", "marshal.loads", "pickle.loads",
    "pickle.load", "np.load", "np.loadtxt", "np.genfromtxt", "ZipFile", "tarfile.open", "wave.open", "Image.open", "ELFFile",
    "h5py.File", ".string_at", ".extractfile", "csv.reader", "csv.DictReader", ".GetRootAs", ".ParseFromString", "ET.parse",
    "ET.fromstring", "yaml.safe_load", "os.open", "open", "torch.load", "joblib.load",
)  # fmt: skip
"""Calls that read or decode bytes, by the end of their names."""
FEW = 40


@cache
def calls_of(path: Path) -> Sequence[tuple[str, ast.Call]]:
    """Every call of a file, and the function or class of the module that it stands in."""
    return [
        (getattr(part, "name", ""), node)
        for part in ast.parse(path.read_text()).body
        for node in ast.walk(part)
        if isinstance(node, ast.Call)
    ]


def dotted_name(function: ast.expr) -> str:
    """The name by which a call calls a function: what ``ast.unparse`` gives, sooner."""
    if isinstance(function, ast.Attribute):
        return f"{dotted_name(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ast.unparse(function)


def reading_files() -> dict[str, set[str]]:
    """Files of the package that call one of these, but for functions that are closed to strangers."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        for function, node in calls_of(path):
            call = dotted_name(node.func)
            calls = {each for each in READS if call == each.lstrip(".") or (each[0] == "." and call.endswith(each))
                     or (call.endswith(f".{each}") and each != "open")}  # fmt: skip
            if calls:
                inside = f"{name}:{function}"
                found.setdefault(inside if inside in CLOSED else name, set()).update(calls)
    return found


def test_every_reader_has_a_target() -> None:
    """A file that begins to read stands in the table with what attacks it, or says why nothing in it is of strangers."""
    files = reading_files()
    missing = {name: calls for name, calls in files.items() if name not in {**READERS, **CLOSED}}
    assert not missing, f"tests/fuzz/readers.py has no target for {missing}"
    gone = {*READERS, *CLOSED} - set(files)
    assert not gone, f"tests/fuzz/readers.py names what reads nothing: {gone}"
    assert not set(READERS) & set(CLOSED)
    assert {target for several in READERS.values() for target in several} == {*TARGETS, *CAMPAIGNS}


def test_files_of_strangers_are_opened_in_one_place() -> None:
    """Only what is closed to strangers reads a path by itself: a pipe would block it."""
    plain = ("open", "os.open", "np.fromfile", "np.memmap")
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        for function, call in calls_of(path):
            if {name, f"{name}:{function}"} & {*CLOSED, "codegen/output_files.py"}:
                continue
            called = dotted_name(call.func)
            if called in plain or called.endswith((".open", ".read_text", ".read_bytes")):
                text = ast.unparse(call)
                opens = called in plain or text.endswith((".open('rb')", ".open()"))
                assert "file_access." in text or (called.endswith(".open") and not opens), text


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_read_and_mutants_refused(name: str, tmp_path: Path) -> None:
    """Seeds end in a result or a reason; so do mutants, of which a campaign tries more (``MICROC_TESTS=all``)."""
    target = TARGETS[name]
    write_tree(tmp_path / "in", target.beside())
    for file, data in target.seeds().items():
        assert attempt(target, data, file, tmp_path / "in") == ""
    found = list(mutants(name, 1, 3000 if everything() else FEW))
    assert not found, found[0]


@pytest.mark.skipif(os.name != "posix", reason="needs pipes")
@pytest.mark.parametrize(
    "name", [n for n in TARGETS if n not in ("trees", "torch", "graph text", "trace", "cache inside")]
)
def test_what_is_no_file_is_refused(name: str, tmp_path: Path) -> None:
    """A pipe, an endless device and a folder under the name of a seed: each reader says so at once."""
    target = TARGETS[name]
    folder = tmp_path / "in"
    write_tree(folder, target.beside())
    file = sorted(target.seeds())[0]
    path = folder / file
    path.parent.mkdir(exist_ok=True, parents=True)
    makers: tuple[Callable[[], None], ...] = (
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.mkdir(),
    )
    for make in makers:
        make()
        try:
            target.read(path)
            assert name in ("cache", "choices", "program"), "nothing is kept, and each of three says so"
        except (MicrocError, ValueError) as error:
            assert name == "class names" or isinstance(error, MicrocError)
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_a_finding_is_told(tmp_path: Path) -> None:
    def fails(path: Path) -> None:
        raise {b"a": KeyError("x"), b"b": MemoryError()}[path.read_bytes()]

    target = Target(dict, fails)
    assert "KeyError" in attempt(target, b"a", "x", tmp_path) and "MemoryError" in attempt(target, b"b", "x", tmp_path)
    assert [*mutants("plan", 5, 3)] == [*mutants("plan", 5, 3)]
    assert random.Random("a 1").random() == random.Random("a 1").random()
