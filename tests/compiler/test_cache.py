# SPDX-License-Identifier: Apache-2.0
"""The cache of compilations: the same files again, nothing that is damaged or strange, and never more than its bound."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.codegen.c.source import shared_files
from microc.compiler import cache, pipeline
from microc.compiler.cache import ChoiceFile
from microc.compiler.lowering import kernel_selection
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_network
from microc.errors import MicrocError
from microc.graph.file import to_bytes
from microc.graph.ir import Graph
from microc.schedule.rules import RULES, ScheduleRule
from microc.target import target_for
from tests.graph.graphs import diamond

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits_qdq.onnx"
BOARD = "nrf52840dk"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("MICROC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was compiled for real. The layers that advice is priced by, once in a process, do not count."""
    real: Callable[..., Any] = pipeline.compile_model
    seen: list[object] = []

    def compile_model(source: object, *rest: Any) -> Any:
        if getattr(source, "name", "") not in ("layer", "reals"):
            seen.append(source)
        return real(source, *rest)

    monkeypatch.setattr("microc.compiler.pipeline.compile_model", compile_model)
    return seen


def files(**options: Any) -> dict[str, str | bytes]:
    return microc.compile(DIGITS, board=BOARD, **options).files()


def entry(folder: Path) -> Path:
    (found,) = folder.glob("*.entry")
    return found


def forged(path: Path, files: list[tuple[str, bool, str]]) -> None:
    """An entry that is whole."""
    packed = zlib.compress(json.dumps({"files": files, "report": {}}).encode())
    path.write_bytes(b"microc 1 " + hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed)


def test_a_second_compilation_gives_the_same(folder: Path, compiled: list[object], tmp_path: Path) -> None:
    first = microc.compile(DIGITS, board=BOARD)
    report, made = first.report(), first.files()
    second = microc.compile(DIGITS, board=BOARD)
    assert list(second.files().items()) == list(made.items())
    assert second.report() == json.loads(json.dumps(report))
    second.write(tmp_path / "project")
    assert len(compiled) == 1
    assert second.module.fingerprint == first.module.fingerprint  # made when it is asked for
    assert len(compiled) == 2


def test_a_library_comes_from_it_too(folder: Path, compiled: list[object]) -> None:
    x = np.random.default_rng(0).normal(size=(1, 1, 8, 8)).astype(np.float32)
    first, second = microc.compile(DIGITS), microc.compile(DIGITS)
    assert len(compiled) == 1
    assert np.array_equal(first(x.reshape(first.inputs[0]["shape"])), second(x.reshape(first.inputs[0]["shape"])))


@pytest.mark.parametrize("options", [{"optimize": "size"}, {"name": "other"}, {"io_in_arena": False}])
def test_other_options_are_another_network(folder: Path, compiled: list[object], options: dict[str, Any]) -> None:
    assert files() != files(**options)
    assert len(compiled) == 2


def test_nothing_is_kept_without_it(folder: Path, compiled: list[object]) -> None:
    for _ in range(2):
        files(cache=False)
    files(instruments=[type("Watch", (), {"before": lambda *_: None, "after": lambda *_: None})()])
    assert len(compiled) == 3
    assert not folder.exists() or not any(folder.iterdir())


def test_an_empty_name_means_none(monkeypatch: pytest.MonkeyPatch, compiled: list[object], tmp_path: Path) -> None:
    monkeypatch.setenv("MICROC_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files()
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
        lambda data: data.replace(b"microc 1", b"microc 2", 1),
    ],
)
def test_what_is_damaged_is_compiled_anew(
    folder: Path, compiled: list[object], damage: Callable[[bytes], bytes]
) -> None:
    made = files()
    path = entry(folder)
    path.write_bytes(damage(path.read_bytes()))
    assert files() == made
    assert len(compiled) == 2


@pytest.mark.parametrize(
    "name", ["../escaped.c", "/tmp/escaped.c", "..\\escaped.c", "a/../../escaped.c", "C:escaped.c"]
)
def test_no_entry_writes_outside_of_a_project(folder: Path, compiled: list[object], name: str) -> None:
    made = files()
    forged(entry(folder), [(name, True, "")])
    assert files() == made
    assert len(compiled) == 2


def test_strange_contents_are_ignored(folder: Path, compiled: list[object]) -> None:
    made = files()
    stranges: tuple[Any, ...] = (
        [],
        {"files": 3},
        {"files": [["a", False, "zz"]], "report": {}},
        {"files": [], "report": 1},
    )
    for strange in stranges:
        packed = zlib.compress(json.dumps(strange).encode())
        entry(folder).write_bytes(b"microc 1 " + hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed)
        assert files() == made


def test_an_entry_unfolds_up_to_a_bound(folder: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[object]) -> None:
    files()
    monkeypatch.setattr(cache, "MAX_ENTRY_BYTES", 1000)
    files()
    assert len(compiled) == 2


def test_a_folder_that_others_write_is_not_read(folder: Path, compiled: list[object]) -> None:
    if os.name != "posix":
        pytest.skip("rights of POSIX")
    files()
    folder.chmod(0o777)
    files()
    assert len(compiled) == 2


def test_a_folder_that_cannot_be_made_or_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiled: list[object]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MICROC_CACHE", str(tmp_path / "file" / "cache"))
    made = files()
    monkeypatch.setenv("MICROC_CACHE", str(folder))
    folder.mkdir(mode=0o700)

    def refused(*_: object) -> None:
        raise PermissionError("read only")

    monkeypatch.setattr(os, "replace", refused)
    assert files() == made
    assert not any(folder.iterdir())


def test_the_oldest_entries_go(folder: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[object]) -> None:
    files()
    first = entry(folder)
    monkeypatch.setattr(cache, "MAX_CACHE_BYTES", int(2.5 * first.stat().st_size))
    for k, name in enumerate(("b", "c")):
        os.utime(first, ns=(k, k))
        files(name=name)
    assert not first.exists()
    assert len(list(folder.glob("*.entry"))) == 2


def test_processes_share_a_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "net.mcg").write_bytes(to_bytes(diamond()))

    def run(k: int) -> int:
        words = [sys.executable, "-m", "microc", "compile", str(tmp_path / "net.mcg"), "--board", BOARD]
        words += ["-o", str(tmp_path / str(k))]
        return subprocess.run(words, capture_output=True, check=False, cwd=Path(__file__).parents[2]).returncode

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(2))) == [0, 0]
    projects = [{p.name: p.read_bytes() for p in (tmp_path / str(k)).rglob("*") if p.is_file()} for k in range(2)]
    assert projects[0] == projects[1]
    assert len(list(folder.glob("*.entry"))) == len(list(folder.glob("*.choices"))) == 1


def test_the_option_is_checked() -> None:
    with pytest.raises(MicrocError):
        microc.compile(DIGITS, board=BOARD, cache="no")  # type: ignore[call-overload]


@pytest.mark.skipif(os.name != "posix", reason="needs pipes")
def test_an_entry_that_is_no_file_is_none(folder: Path) -> None:
    """A pipe would block the command, /dev/zero feed it for ever: both are as good as no entry, and are left alone."""
    made = files()
    (entry,) = folder.glob("*.entry")
    makers: tuple[Callable[[], None], ...] = (
        lambda: os.mkfifo(entry),
        lambda: entry.symlink_to("/dev/zero"),
        lambda: entry.mkdir(),
    )
    for make in makers:
        entry.unlink()
        make()
        assert files() == made
        if entry.is_dir():
            entry.rmdir()
            break


# ---- Choices of schedules.

KEYS = [f"{k:040x}" for k in range(60)]


@pytest.fixture
def searched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The kernels for which rules were asked."""
    list_candidates, seen = kernel_selection.list_candidates, list[object]()

    def counted(lowered: Any, *rest: Any) -> Any:
        seen.append(lowered)
        return list_candidates(lowered, *rest)

    monkeypatch.setattr(kernel_selection, "list_candidates", counted)
    monkeypatch.setattr(kernel_selection, "_CHOICES", {})
    return seen


def compile_without_memo(
    source: Path | Graph | None = None, **options: Any
) -> tuple[dict[str, str], list[tuple[str, object]]]:
    """The files as another process makes them, which remembers nothing, and the schedule of each call."""
    kernel_selection.clear_schedule_memo()
    network = compile_network(source or small(), target_for("cortex-m4"), make_options(shipped=False, **options))
    return shared_files(network.module, ""), [(call.rule, call.schedule) for call in network.module.calls]


def small() -> Graph:
    """A sum and a root: two kernels, whose schedules are found soon."""
    net = microc.GraphBuilder()
    x = net.input("x", (2, 8))
    weight = net.constant("weight", np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8))
    return net.graph("small", {"y": net.op("sqrt", net.op("dense", x, weight))})


def choices(folder: Path) -> Path:
    (found,) = folder.glob("*.choices")
    return found


def test_choices_are_the_same_from_a_file(searched: list[object]) -> None:
    """Cold and warm: equal text, by equal schedules. A network of one option more is the same kernels."""
    cold = compile_without_memo(DIGITS)
    assert searched
    searched.clear()
    assert compile_without_memo(DIGITS) == cold
    other = compile_without_memo(DIGITS, io_in_arena=False)
    assert other[0] != cold[0] and other[1] == cold[1]
    assert not searched


def test_what_decides_is_a_part_of_the_key(searched: list[object]) -> None:
    compile_without_memo()
    for options in ({"optimize": "size"}, {"math": "fast"}, {"cache": False}):
        searched.clear()
        compile_without_memo(**options)
        assert searched, options


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data.replace(b"[", b"{", 1),
        lambda data: data.replace(b"_", b"-"),
        lambda data: b"\n \n" + bytes(range(256)),
        lambda data: b"".join(forged_choice(line, ["x"]) for line in data.splitlines()),
        lambda data: b"".join(forged_choice(line, [9, "", [], []]) for line in data.splitlines()),
        lambda data: b"".join(forged_choice(line, [0, "", [[]], []]) for line in data.splitlines()),
        lambda data: b"".join(forged_choice(line, [0, "", [["no_step", 1]], []]) for line in data.splitlines()),
        lambda data: b"".join(
            forged_choice(line, [0, "", [["split", "no_loop", [2]]], 3]) for line in data.splitlines()
        ),
    ],
)
def test_damaged_choices_are_searched_again(
    folder: Path, searched: list[object], damage: Callable[[bytes], bytes]
) -> None:
    cold = compile_without_memo()
    choices(folder).write_bytes(damage(choices(folder).read_bytes()))
    searched.clear()
    assert compile_without_memo() == cold
    assert searched


def forged_choice(line: bytes, value: object) -> bytes:
    """A line that is whole."""
    data = json.dumps(value).encode()
    return line[:40] + b" " + hashlib.sha256(data).hexdigest()[:16].encode() + b" " + data + b"\n"


def test_code_of_the_user_leaves_no_choices(folder: Path, searched: list[object]) -> None:
    with RULES.extend({"mine": ScheduleRule("mine", lambda *_: ())}):
        compile_without_memo()
    watch = type("Watch", (), {"before": lambda *_: None, "after": lambda *_: None})()
    compile_without_memo(instruments=[watch])
    compile_without_memo(cache=False)
    assert not folder.exists() or not any(folder.iterdir())


def test_processes_append_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.choices"
    program = (
        "import sys; from pathlib import Path; from microc.compiler.cache import ChoiceFile\n"
        "file = ChoiceFile(Path(sys.argv[1]))\n"
        "for key in sys.argv[2:]: assert file.find(key) is None; file.add(key, [key] * 100)"
    )

    def run(k: int) -> int:
        words = [sys.executable, "-c", program, str(path), *KEYS[k::2]]
        return subprocess.run(words, check=False, cwd=Path(__file__).parents[2]).returncode

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(2))) == [0, 0]
    file = ChoiceFile(path)
    assert [file.find(key) for key in KEYS] == [[key] * 100 for key in KEYS]


def test_lines_of_others_are_found_later(tmp_path: Path) -> None:
    mine, other = (ChoiceFile(tmp_path / "x.choices") for _ in range(2))
    mine.add(KEYS[0], 0)
    assert (other.find(KEYS[0]), other.find(KEYS[1])) == (0, None)
    mine.add(KEYS[1], 1)
    assert other.find(KEYS[1]) == 1
    mine.path.unlink()  # another process begins it again
    ChoiceFile(mine.path).add(KEYS[2], 2)
    assert other.find(KEYS[2]) == 2


def test_a_file_of_choices_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_CHOICE_BYTES", 500)
    file = ChoiceFile(tmp_path / "x.choices")
    for key in KEYS:
        assert file.find(key) is None
        file.add(key, key)
        assert file.find(key) == key
        assert file.path.stat().st_size <= 500


@pytest.mark.skipif(os.name != "posix", reason="needs pipes")
def test_choices_that_are_no_file_are_none(tmp_path: Path) -> None:
    path = tmp_path / "x.choices"
    makers: tuple[Callable[[], None], ...] = (
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.mkdir(),
    )
    for make in makers:
        make()
        file = ChoiceFile(path)
        file.add(KEYS[0], 0)
        assert file.find(KEYS[0]) is None
        path.rmdir() if path.is_dir() else path.unlink()
