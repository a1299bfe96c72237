# SPDX-License-Identifier: Apache-2.0
"""Arrays of others: read as numpy reads them, refused in bounded time and memory."""

from __future__ import annotations

import io
import pickle
import resource
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from microc.errors import UsageError
from microc.run.data import array_files
from microc.run.data.array_files import ROWS, load_npy_file

ARRAYS = (
    np.arange(24, dtype=np.int8).reshape(2, 3, 4),
    np.asfortranarray(np.arange(24, dtype=np.float32).reshape(4, 6)),
    np.arange(6).astype(">i2"),
    np.zeros((0, 3), np.uint8),
    np.float64(2.5).reshape(()),
    np.array(["a", "bc"]),
    np.array([True, False]),
)


def header(shape: object, descr: str = "<f4", order: bool = False, version: bytes = b"\x01\x00") -> bytes:
    text = f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}}}".encode()
    return b"\x93NUMPY" + version + len(text).to_bytes(2 if version[0] == 1 else 4, "little") + text


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_what_numpy_writes(array: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array)
    np.savez(tmp_path / "x.npz", a=array, b=ARRAYS[0])
    np.savez_compressed(tmp_path / "y.npz", a=array)
    for name, key in (("x.npy", ROWS), ("x.npz", "a"), ("y.npz", "a")):
        found = array_files.read_arrays(tmp_path / name)[key]
        assert found.dtype == array.dtype and found.shape == array.shape
        np.testing.assert_array_equal(found, array)


def bomb(path: Path) -> None:
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        file.write(header((1 << 24,), "|i1"))
        for _ in range(16):
            file.write(bytes(1 << 20))


def member(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", content)

    return write


def objects(path: Path) -> None:
    np.savez(path, x=np.array([{}], object))


def twice(path: Path) -> None:
    whole = io.BytesIO()
    np.save(whole, ARRAYS[0])
    with zipfile.ZipFile(path, "w") as archive, pytest.warns(UserWarning):
        archive.writestr("x.npy", whole.getvalue())
        archive.writestr("x.npy", whole.getvalue())


def directory(path: Path) -> None:
    """An end that promises a list of 4 GB."""
    member(header((1,)) + bytes(4))(path)
    data = bytearray(path.read_bytes())
    data[-10:-6] = b"\xff\xff\xff\x7f"
    path.write_bytes(data)


HUGE = f"({1 << 40},)"
DAMAGED: dict[str, tuple[str, bytes | Callable[[Path], None], str]] = {
    "2**40 numbers": (".npy", header(HUGE) + bytes(64), "declares"),
    "a product beyond 64 bits": (".npy", header((1 << 40, 1 << 40)) + bytes(64), "declares"),
    "a product of zero": (".npy", header((1 << 70, 0)) + bytes(64), "declares"),
    "a negative extent": (".npy", header((-1,)) + bytes(64), "shape"),
    "an extent that is no number": (".npy", header("(True,)") + bytes(64), "shape"),
    "40 axes": (".npy", header((1,) * 40) + bytes(64), "shape"),
    "objects": (".npy", header((1,), "|O") + pickle.dumps([{}]), "objects"),
    "a record": (".npy", header((1,), "|V8") + bytes(64), "dtype"),
    "texts of no characters": (".npy", header((1 << 40,), "<U0") + bytes(64), "texts of no characters"),
    "half a file": (".npy", header((16,)) + bytes(63), "declares"),
    "a header of 1 GB": (
        ".npy",
        b"\x93NUMPY\x02\x00" + (1 << 30).to_bytes(4, "little") + bytes(64),
        "cannot read arrays|no .npy",
    ),
    "a deep header": (
        ".npy",
        b"\x93NUMPY\x01\x00" + (9000).to_bytes(2, "little") + b"(" * 9000,
        "cannot read arrays|no .npy",
    ),
    "another version": (".npy", header((1,), version=b"\x09\x00") + bytes(4), "version"),
    "nothing": (".npy", b"", "NumPy"),
    "a pickle": (".npy", pickle.dumps([1, 2]), "NumPy"),
    "an archive of 2**40 numbers": (".npz", member(header(HUGE) + bytes(64)), "declares"),
    "an archive of a text": (".npz", member(b"hello"), "cannot read arrays"),
    "an archive of objects": (".npz", objects, "objects"),
    "a bomb": (".npz", bomb, "unpack"),
    "two of one name": (".npz", twice, "two arrays"),
    "a large list": (".npz", directory, "directory"),
    "no archive": (".npz", b"PK\x03\x04" + bytes(64), "cannot read arrays|no .npy"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_refused_at_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_files, "_UNPACKED_BASE", 1 << 20)
    end, content, words = DAMAGED[name]
    path = tmp_path / f"x{end}"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # The best of two: Python may look for cycles, once, in all that the tests before left (2 s in a whole run).
    assert min(seconds_to_refuse(path, words) for _ in range(2)) < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


def seconds_to_refuse(path: Path, words: str) -> float:
    """Processor time of every reader of arrays on a damaged file; each must refuse it with ``words``."""
    start = time.process_time()
    with pytest.raises(UsageError, match=words):
        array_files.read_arrays(path)
    if path.suffix == ".npy":
        with pytest.raises(UsageError, match=words):
            load_npy_file(path)
        with pytest.raises(UsageError):
            array_files.read_arrays(path.parent)
    return time.process_time() - start


def test_an_archive_is_no_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=ARRAYS[0])
    with pytest.raises(UsageError, match="an archive of arrays"):
        load_npy_file(tmp_path / "x.npz")
    with (tmp_path / "x.npz").open("rb") as file:
        assert set(array_files.load_numpy_file(file)) == {"a"}
