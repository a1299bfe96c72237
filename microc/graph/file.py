# SPDX-License-Identifier: Apache-2.0
"""Reading and writing of ``.mcg`` files, which contain a graph and its parameters.

The file is a zip archive of these members, uncompressed and in this order:

- ``microc-graph``: the version of the format, ``1``;
- ``graph.txt``: the graph as text (:mod:`microc.graph.text`);
- ``const0.npy``, ``const1.npy`` ... and ``state0.npy`` ...: the data of the constants and of the state, little-endian,
  in the order in which the text declares them. An array of a dtype that numpy itself lacks is stored as unsigned
  integers with the same bits, and the member's name contains the dtype: ``const0.bfloat16.npy``.

``numpy.load`` opens such a file too. Equal graphs are written as equal bytes.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from math import prod

import numpy as np
from numpy.lib import format as npy

from microc.base.dtypes import Array, to_numpy
from microc.errors import InternalError, ModelError
from microc.graph.ir import Graph
from microc.graph.text import from_text, nested_graphs, to_text

SUFFIX = ".mcg"
VERSION = 1
_VERSION_MEMBER, _TEXT_MEMBER = "microc-graph", "graph.txt"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_LOCAL_HEADER_BYTES = 30
_ARRAY_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|][biuf][1-8])', 'fortran_order': False, 'shape': \(([0-9, ]*)\), \} *\n",
    re.DOTALL,
)
_DAMAGE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, TypeError, EOFError, OverflowError)
"""Exceptions that zipfile and numpy raise for archives that are damaged, encrypted or unsupported."""


def is_graph_file(data: bytes) -> bool:
    """Test whether ``data``, the contents of a file, begins like a graph file that :func:`to_bytes` writes."""
    mark = _VERSION_MEMBER.encode()
    return data.startswith(b"PK\x03\x04") and data[_LOCAL_HEADER_BYTES : _LOCAL_HEADER_BYTES + len(mark)] == mark


def to_bytes(graph: Graph) -> bytes:
    """Return the contents of the ``.mcg`` file for a graph."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in _list_archive_members(graph):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system, info.external_attr = 3, 0o644 << 16
            archive.writestr(info, content)
    return file.getvalue()


def _list_archive_members(graph: Graph) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the contents of every member of the archive that stores a graph, in order."""
    yield _VERSION_MEMBER, f"{VERSION}\n".encode()
    yield _TEXT_MEMBER, to_text(graph).encode("ascii")
    constants = [array for each in (graph, *nested_graphs(graph)) for array in each.consts.values()]
    for stem, arrays in (("const", constants), ("state", list(graph.state.values()))):
        for number, array in enumerate(arrays):
            member, dtype = io.BytesIO(), ""
            if array.dtype.kind not in "biuf":
                dtype = f".{array.dtype.name}"
                array = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            npy.write_array(member, np.asarray(little, order="C"), version=(1, 0), allow_pickle=False)
            yield f"{stem}{number}{dtype}.npy", member.getvalue()


def from_bytes(data: bytes, file_name: str) -> Graph:
    """Read a graph from ``data``, the contents of an ``.mcg`` file. ``file_name``: name of the file, for error messages.

    Safe for untrusted files: reading needs at most a few times ``len(data)`` bytes of memory, and nothing is unpickled
    or evaluated. Operators and attributes are not checked. Raises ModelError if the file is damaged or has another
    version of the format."""
    try:
        members = _read_archive(data)
        _check_version(members.pop(_VERSION_MEMBER, b""), file_name)
        text = members.pop(_TEXT_MEMBER, b"").decode("ascii")
        arrays = dict(_read_named_array(member, content) for member, content in members.items())
    except (*_DAMAGE, InternalError) as error:
        raise ModelError(
            f"the graph file is damaged: {error}", where=file_name, hint="write it again with microc import"
        ) from error
    try:
        return from_text(text, arrays, arrays, numbered=True)
    except ModelError as error:
        raise ModelError(error.what, where=f"{file_name} graph.txt {error.where}") from error


def _read_archive(data: bytes) -> dict[str, bytes]:
    """Return the contents of all members of a zip archive by name.

    Raises ValueError for compressed, overlapping or repeated members, which microc never writes."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = archive.infolist()
        stored = all(i.compress_type == zipfile.ZIP_STORED and i.compress_size == i.file_size for i in infos)
        if not stored or sum(info.file_size for info in infos) > len(data):
            raise ValueError("its members are compressed or overlap, expected uncompressed members one after another")
        if len({info.filename for info in infos}) != len(infos):
            raise ValueError("a member is listed twice")
        return {info.filename: archive.read(info) for info in infos}


def _check_version(version_content: bytes, file_name: str) -> None:
    """Check the version of a graph file's format.

    Raises ModelError if it is not the current version, ValueError if it is no number. ``version_content``: contents of
    the archive member that stores the version."""
    text = version_content.decode("ascii").strip()
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(f"it contains no version number; got {text[:20]!r}")
    if int(text) != VERSION:
        raise ModelError(
            f"the graph file has another version of the format; got {int(text)}, expected {VERSION}",
            where=file_name,
            hint="import the model again with this microc",
        )


def _read_named_array(member: str, content: bytes) -> tuple[str, Array]:
    """Return the name and the array of a ``.npy`` member of the archive.

    If the member's name contains a dtype, the bits of the array are viewed as this dtype."""
    name, _, dtype = member.removesuffix(".npy").partition(".")
    array = _read_array(content)
    return name, array.view(to_numpy(dtype)).reshape(array.shape) if dtype else array


def _read_array(content: bytes) -> Array:
    """Read the array in a ``.npy`` member of the archive.

    Raises ValueError unless the header has exactly the form that numpy writes and fits the number of bytes after it."""
    header = _ARRAY_HEADER.match(content)
    if header is None:
        raise ValueError("the header of an array has a form that microc does not write")
    dtype, start = np.dtype(header[1].decode()), header.end()
    shape = tuple(int(extent) for extent in header[2].replace(b",", b" ").split())
    if prod(shape) * dtype.itemsize != len(content) - start:
        raise ValueError(f"an array has a wrong size; got {len(content) - start} bytes, expected {dtype}{list(shape)}")
    return np.ndarray(shape, dtype, content, start).copy()
