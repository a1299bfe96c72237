# SPDX-License-Identifier: Apache-2.0
"""Files and folders appear whole, whatever ends the process that writes them, and what dead processes left is cleared."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from microc.codegen import output_files
from microc.codegen.output_files import remove_leftovers, replace_atomically, replace_folder_atomically, write_tree
from microc.errors import OutputError

POSIX = pytest.mark.skipif(os.name != "posix", reason="needs fork and links")
OLD, NEW = ({"manifest.json": '{"schema_version": 1, "microc": "0"}', "a/b.c": text * 9, "c.c": text} for text in "on")


def killed_in(call: str, count: int, work: Callable[[], None], module: object = os) -> None:
    """Run ``work`` in a process that is killed at the ``count``-th call of a function of ``module``."""
    child = os.fork()
    if child == 0:
        own, left = getattr(module, call), [count]

        def die(*words: object, **named: object) -> object:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return own(*words, **named)

        setattr(module, call, die)
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def content(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}


@POSIX
@pytest.mark.parametrize("exchanges", [True, False])
def test_a_folder_is_old_or_new_wherever_its_writer_dies(
    exchanges: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at every call that changes a name: the folder is whole, or comes back with the next write, which clears the rest."""
    if not exchanges:
        monkeypatch.setattr(output_files, "exchange_folders", lambda *_: False)
    folder = tmp_path / "out"
    for call in ("rename", "replace", "chmod", "unlink", "rmdir", "mkdir"):
        for count in (1, 2, 3, 4):
            shutil.rmtree(tmp_path)
            tmp_path.mkdir()
            write_tree(folder, OLD)
            killed_in(call, count, lambda: write_tree(folder, NEW))
            if exchanges or folder.exists():
                assert content(folder) in (OLD, NEW), (call, count)
            remove_leftovers(tmp_path, "out")
            assert content(folder) in (OLD, NEW), (call, count)
            write_tree(folder, NEW)
            assert content(folder) == NEW
            assert [name for name in os.listdir(tmp_path) if "microc" in name or "out" in name] == ["out"]


@POSIX
def test_a_file_is_old_or_new_wherever_its_writer_dies(tmp_path: Path) -> None:
    target = tmp_path / "x.json"

    def write() -> None:
        with replace_atomically(target) as temporary:
            temporary.write_text("new" * 9)

    for call in ("rename", "replace", "open", "close"):
        for count in (1, 2):
            target.write_text("old")
            killed_in(call, count, write)
            assert target.read_text() in ("old", "new" * 9)
            write()
            assert not [name for name in os.listdir(tmp_path) if name.endswith("-new")]


@POSIX
def test_only_what_the_dead_left_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Siblings of writers that live, of other targets, users and programs stay."""
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom microc.codegen.output_files import replace_folder_atomically\n"
        "with replace_folder_atomically(Path(sys.argv[1])) as t:\n"
        " (t / 'x').write_text('x'); print(t.name, flush=True); time.sleep(99)"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, tmp_path / "out"], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    alive = writer.stdout.readline().strip()
    others = [
        ".out.new",
        ".out.0123.microc-new",
        ".other.0123456789abcdef.microc-new",
        "out.0123456789abcdef.microc-new",
    ]
    for name in others:
        (tmp_path / name).write_text("")
    dead = tmp_path / ".out.0123456789abcdef.microc-new"
    dead.mkdir()
    (tmp_path / ".out.00000000000000ff.microc-new").symlink_to(tmp_path)
    monkeypatch.setattr(output_files, "ABANDONED_SECONDS", -time.time())
    remove_leftovers(tmp_path, "out")
    assert sorted(os.listdir(tmp_path)) == sorted([alive, *others])
    writer.kill()
    writer.wait()
    dead.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getuid", lambda: -1)
        remove_leftovers(tmp_path, "out")
        assert dead.exists(), "of another user"
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(set(others) - {".other.0123456789abcdef.microc-new"})


@POSIX
def test_links_are_not_followed(tmp_path: Path) -> None:
    away = tmp_path / "away"
    write_tree(away, OLD)
    (tmp_path / "out").symlink_to(away)
    with pytest.raises(OutputError, match="is a link"):
        write_tree(tmp_path / "out", NEW)
    (tmp_path / "file").symlink_to(away / "c.c")
    with replace_atomically(tmp_path / "file") as temporary:
        temporary.write_text("mine")
    assert content(away) == OLD and (tmp_path / "file").read_text() == "mine"


@POSIX
def test_devices_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    for name in ("pipe", "null"):
        with pytest.raises(OutputError, match="device"), replace_atomically(tmp_path / name):
            pass
    assert sorted(os.listdir(tmp_path)) == ["null", "pipe"] and not (tmp_path / "pipe").is_file()


def test_a_long_name(tmp_path: Path) -> None:
    name = "ü" * 125
    with replace_atomically(tmp_path / name) as temporary:
        temporary.write_text("x")
    with replace_folder_atomically(tmp_path / f"{name}o") as folder:
        (folder / "x").write_text("x")
    assert sorted(os.listdir(tmp_path)) == [name, f"{name}o"]
