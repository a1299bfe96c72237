# SPDX-License-Identifier: Apache-2.0
"""Files of others: pipes and devices never block a reader, sizes are bounded, and owners are compared as git does."""

from __future__ import annotations

import os
import socket
import stat
from errno import EFBIG, EINVAL
from pathlib import Path

import pytest

from microc.base import operating_system
from microc.base.file_access import open_regular_file, parse_toml, read_bytes, read_text
from microc.base.operating_system import distrust_reason

POSIX = pytest.mark.skipif(os.name != "posix", reason="needs pipes, modes and owners")


def test_whole_files_within_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"a\r\nb\rc\n")
    assert read_bytes(path, 7) == b"a\r\nb\rc\n" and read_text(path) == "a\nb\nc\n"
    with pytest.raises(OSError) as caught:
        read_bytes(path, 6)
    assert caught.value.errno == EFBIG and "more than 6 bytes" in str(caught.value.strerror)
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "absent")


@POSIX
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    line = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    line.bind("line")
    for name in ("pipe", "link", "line", "/dev/zero", "/dev/tty"):
        with pytest.raises(OSError) as caught:
            read_bytes(tmp_path / name)
        assert caught.value.errno == EINVAL and "not a file" in str(caught.value.strerror), name
    line.close()


@POSIX
def test_a_pipe_that_takes_the_place_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is looked at before and after it is opened."""
    file, pipe = tmp_path / "file", tmp_path / "pipe"
    file.write_bytes(b"x")
    os.mkfifo(pipe)
    regular = os.stat(file)
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", lambda *_, **__: regular)
        with pytest.raises(OSError, match="not a file"):
            open_regular_file(pipe)


@POSIX
def test_files_that_state_no_size_are_read_within_the_bound() -> None:
    path = Path("/proc/self/status")
    if not path.exists():
        pytest.skip("needs /proc")
    assert b"Name:" in read_bytes(path)
    with pytest.raises(OSError, match="more than"):
        read_bytes(path, 10)


@pytest.mark.parametrize(
    "text",
    [
        "x =",
        "x = " + "9" * 5000,
        "x = " + "[" * 100_000 + "]" * 100_000,
        "a" + ".a" * 20_000 + " = 1",
        "[a" + " . 'b'" * 70 + "]",
    ],
)
def test_toml_of_others_ends_in_a_table_or_a_value_error(text: str) -> None:
    """Dotted keys cost tomllib quadratic time: 32,000 parts took 20 seconds."""
    with pytest.raises(ValueError, match=r"Invalid value|digits|deeply|parts"):
        parse_toml(text)


def test_toml_of_ours_is_read() -> None:
    assert parse_toml("a.'b'.c = [" + "0.5, " * 200 + "]\nd = '1.2.3. .4'") == {
        "a": {"b": {"c": [0.5] * 200}},
        "d": "1.2.3. .4",
    }


@POSIX
def test_owners_and_modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    path = home / "microc.toml"
    path.write_text("")
    os.chmod(path, 0o644)
    assert distrust_reason(path) == ""
    for mode in (0o646, 0o666):
        os.chmod(path, mode)
        assert str(path) in distrust_reason(path)
    os.chmod(path, 0o644)
    for mode, wrong in ((0o757, True), (0o777, True), (0o1777, False)):
        os.chmod(home, mode)
        assert bool(distrust_reason(path)) == wrong, oct(mode)
    os.chmod(home, 0o755)
    away = tmp_path / "away"
    away.mkdir()
    os.chmod(away, 0o777)
    (away / "theirs").write_text("")
    path.unlink()
    path.symlink_to(away / "theirs")
    assert str(away) in distrust_reason(path), "the folder of what a link names counts"
    os.chmod(away, 0o755)
    assert distrust_reason(path) == ""
    monkeypatch.setattr(operating_system, "_trusted_users", lambda: frozenset({os.getuid() + 1}))
    assert "belongs to" in distrust_reason(path) and "the user is" in distrust_reason(path)


@POSIX
def test_a_group_of_one_is_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_text("")
    os.chmod(path, 0o664)
    monkeypatch.setattr(operating_system, "_private_group_write_bit", lambda _: stat.S_IWGRP)
    assert distrust_reason(path) == ""
    monkeypatch.setattr(operating_system, "_private_group_write_bit", lambda _: 0)
    assert "others than its owner" in distrust_reason(path)


@POSIX
def test_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "1234")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert operating_system._trusted_users() == {0, 1234}
    monkeypatch.setattr(os, "getuid", lambda: 77)
    assert operating_system._trusted_users() == {0, 77}, "nobody but root has called sudo"
    monkeypatch.setenv("SUDO_UID", "all")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert operating_system._trusted_users() == {0}
    monkeypatch.delattr(os, "getuid")
    assert distrust_reason(Path("/nowhere")) == "", "Windows has no such owners"
