# SPDX-License-Identifier: Apache-2.0
"""Files of strangers that are no models: archives of sources, pictures, arrays. They reach no other file and run nothing."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from microc.errors import ModelError, UsageError
from microc.frontend import detect
from microc.run.data import array_files as data_files
from microc.run.data.pictures import PictureReader
from microc.run.desktop.load import MEMBERS, load_library


def archive(path: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as written:
        for entry, data in entries:
            entry.size = len(data)
            written.addfile(entry, io.BytesIO(data))
    return path


def linked(name: str, target: str, kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry, b""


def test_members_of_an_archive_of_sources_are_files_of_known_names(tmp_path: Path) -> None:
    """Links, paths and devices are no members: nothing is written or read outside of the folder that is built in."""
    (tmp_path / "secret").write_text("int secret;")
    entries = [
        linked("model.c", str(tmp_path / "secret"), tarfile.SYMTYPE),
        linked("model_data.c", "model.c", tarfile.LNKTYPE),
        linked("shared.c", "", tarfile.CHRTYPE),
        (tarfile.TarInfo("../model.h"), b"x"),
        (tarfile.TarInfo("/model_data.h"), b"x"),
    ]
    with pytest.raises(ModelError, match="lacks the files " + ", ".join(MEMBERS)):
        load_library(archive(tmp_path / "lib.tar", *entries))


def test_an_archive_of_sources_is_not_packed(tmp_path: Path) -> None:
    plain = archive(tmp_path / "plain.tar", *((tarfile.TarInfo(name), b"x") for name in MEMBERS))
    packed = tmp_path / "packed.tar"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    with pytest.raises(ModelError, match="no source archive"):
        load_library(packed)


def test_a_picture_is_none_of_the_kinds_that_pillow_runs_programs_for(tmp_path: Path) -> None:
    """PostScript under the name of a picture: Pillow would start its interpreter."""
    pytest.importorskip("PIL", reason="needs Pillow (pip install microc[pictures])")
    path = tmp_path / "cat.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n%%EOF\n")
    tensor = {"name": "x", "shape": (1, 4, 4, 3), "dtype": "uint8", "scale": None, "zero_point": None}
    with pytest.raises(UsageError, match="as a picture"):
        PictureReader(tensor).read(path)


def header(path: Path, shape: str) -> Path:
    """An array that says it were larger than it is."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape},), }}\n".encode()
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    return path


@pytest.mark.parametrize("shape", ["1 << 50", str(1 << 50), "-1", "__import__('os').getpid()"])
def test_arrays_that_are_none(shape: str, tmp_path: Path) -> None:
    for read in (data_files.read_arrays, data_files.load_npy_file):
        with pytest.raises(UsageError):
            read(header(tmp_path / "x.npy", shape))


def test_arrays_are_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
    (tmp_path / "y.npy").write_bytes(pickle.dumps([1]))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes())
    for path in (tmp_path / "x.npy", tmp_path / "y.npy", folder):
        with pytest.raises(UsageError):
            data_files.read_arrays(path)


def test_a_model_is_a_file(tmp_path: Path) -> None:
    """Not a pipe, which would be waited for, nor a device, which may never end."""
    os.mkfifo(tmp_path / "model.onnx")
    for path in (tmp_path / "model.onnx", Path(os.devnull), Path("/dev/zero")):
        if path.exists():
            with pytest.raises(ModelError, match="expected a model file"):
                detect.load_model_file(path)
