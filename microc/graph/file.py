"""A graph and its parameters as the bytes of one file, and back.

The file is a zip archive of these members, in this order, stored as they are:

- ``microc-graph``: the version of the format, ``1``;
- ``graph.txt``: the text of :mod:`microc.graph.text`;
- ``const0.npy``, ``const1.npy`` ... and ``state0.npy`` ...: the data of constants and state, in the text's order, little-endian.
  Dtypes that numpy does not have of its own are stored as their bits, and named: ``const0.bfloat16.npy``.

``numpy.load`` opens such a file too. Equal graphs give equal bytes.
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
_MARK, _TEXT = "microc-graph", "graph.txt"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_LOCAL_HEADER = 30
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|][biuf][1-8])', 'fortran_order': False, 'shape': \(([0-9, ]*)\), \} *\n",
    re.DOTALL,
)
_DAMAGE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, TypeError, EOFError, OverflowError)
"""What zipfile and numpy raise for archives that are damaged, encrypted or of a kind that they do not know."""


def is_graph_file(data: bytes) -> bool:
    """Test whether ``data`` begins like :func:`to_bytes` output."""
    mark = _MARK.encode()
    return data.startswith(b"PK\x03\x04") and data[_LOCAL_HEADER : _LOCAL_HEADER + len(mark)] == mark


def to_bytes(graph: Graph) -> bytes:
    """Return the bytes of a file that contains ``graph``."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in _archive_members(graph):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system, info.external_attr = 3, 0o644 << 16
            archive.writestr(info, content)
    return file.getvalue()


def _archive_members(graph: Graph) -> Iterator[tuple[str, bytes]]:
    """Yield name and contents of every member of the archive for a graph, in order."""
    yield _MARK, f"{VERSION}\n".encode()
    yield _TEXT, to_text(graph).encode("ascii")
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


def from_bytes(data: bytes, name: str) -> Graph:
    """Return the graph in ``data``, the contents of a file; ``name`` is the file's, for messages.

    Nothing takes more memory than a few times ``len(data)``, and nothing is unpickled or evaluated. Operators and
    attributes are not checked. ModelError if the file is damaged or of a newer version."""
    try:
        members = _read_archive(data)
        _check_version(members.pop(_MARK, b""), name)
        text = members.pop(_TEXT, b"").decode("ascii")
        arrays = dict(_named_array(member, content) for member, content in members.items())
    except (*_DAMAGE, InternalError) as error:
        raise ModelError(
            f"the graph file is damaged: {error}", where=name, hint="write it again: microc import"
        ) from error
    try:
        return from_text(text, arrays, arrays, numbered=True)
    except ModelError as error:
        raise ModelError(error.what, where=f"{name} graph.txt {error.where}") from error


def _read_archive(data: bytes) -> dict[str, bytes]:
    """Return the contents of all members of an archive by name. ValueError for compressed, overlapping or repeated
    members, which microc does not write."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = archive.infolist()
        stored = all(i.compress_type == zipfile.ZIP_STORED and i.compress_size == i.file_size for i in infos)
        if not stored or sum(info.file_size for info in infos) > len(data):
            raise ValueError("its members are compressed or overlap; expected them stored one behind the other")
        if len({info.filename for info in infos}) != len(infos):
            raise ValueError("a member is listed twice")
        return {info.filename: archive.read(info) for info in infos}


def _check_version(version_content: bytes, file_name: str) -> None:
    """Check the version of a graph file; ModelError if it is not the current one.

    ``version_content``: the content of the member with the version."""
    text = version_content.decode("ascii").strip()
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(f"it names no version; got {text[:20]!r}")
    if int(text) != VERSION:
        raise ModelError(
            f"the graph file has another version of the format; got {int(text)}, expected {VERSION}",
            where=file_name,
            hint="import the model again with this microc",
        )


def _named_array(member: str, content: bytes) -> tuple[str, Array]:
    """Return the name and the array of a .npy member; its bits are viewed as the dtype in the member's name."""
    name, _, dtype = member.removesuffix(".npy").partition(".")
    array = _read_array(content)
    return name, array.view(to_numpy(dtype)).reshape(array.shape) if dtype else array


def _read_array(content: bytes) -> Array:
    """Read a .npy member. Its header must have exactly numpy's form and match the bytes after it."""
    header = _HEADER.match(content)
    if header is None:
        raise ValueError("the header of an array has a form that microc does not write")
    dtype, start = np.dtype(header[1].decode()), header.end()
    shape = tuple(int(extent) for extent in header[2].replace(b",", b" ").split())
    if prod(shape) * dtype.itemsize != len(content) - start:
        raise ValueError(f"an array has a wrong size; got {len(content) - start} bytes, expected {dtype}{list(shape)}")
    return np.ndarray(shape, dtype, content, start).copy()
