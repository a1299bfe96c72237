"""NumPy's .npy and .npz files of others, in bounded time and memory.

A header is believed only as far as the file, or the member of the archive, has the bytes for it. ValueError, whose words are for
the user, for all that is refused; zipfile's and numpy's own errors for damaged files.
"""

from __future__ import annotations

import os
import struct
import zipfile
from math import prod
from types import MappingProxyType
from typing import BinaryIO, cast

import numpy as np
from numpy.lib import format as npy

from microc.dtypes import Array

_MAGIC = b"\x93NUMPY"
_HEADERS = MappingProxyType({(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0})
"""Readers of headers, which take 10,000 characters at most."""
_KINDS = "biufcSU"
"""Kinds of dtypes that are numbers or texts."""
_MOST_AXES = 32
_MOST_MEMBERS = 1 << 16
_MOST_DIRECTORY = 16 << 20
"""Bytes of an archive's list of members, 200 each: zipfile makes an object of every one before anybody is asked."""
_ROOM = 1 << 30
_RATIO = 16
"""All members may unpack to ``_ROOM`` bytes and so many times the archive's size: masks and spectrograms pack by 10 to 1,
zeros, which bombs are made of, by 1,030 to 1."""
_ZIP64 = 20
"""Bytes of the record in front of an archive's end where the archive is a large one."""


def load(file: BinaryIO) -> Array | dict[str, Array]:
    """The array of a .npy file, or the arrays of a .npz file by their names."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(len(_MAGIC))
    file.seek(0)
    if start == _MAGIC:
        return _array(file, size, "it")
    if not start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        raise ValueError("it is no file of NumPy's")
    return _arrays(file, size)


def _arrays(file: BinaryIO, size: int) -> dict[str, Array]:
    _check_directory(file, size)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) > _MOST_MEMBERS:
            raise ValueError(f"it has {len(members):,} arrays; the most are {_MOST_MEMBERS:,}")
        total, most = sum(member.file_size for member in members), _ROOM + _RATIO * size
        if total > most:
            raise ValueError(f"its {size:,} bytes unpack to {total:,}; the most are {most:,}")
        found = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in found:
                raise ValueError(f"it has two arrays {name[:80]!r}")
            with archive.open(member) as part:
                found[name] = _array(cast(BinaryIO, part), member.file_size, repr(name[:80]))
        return found


def _check_directory(file: BinaryIO, size: int) -> None:
    """ValueError for a list of members that is too large to be read."""
    longest = 22 + (1 << 16) + _ZIP64
    file.seek(max(0, size - longest))
    end = file.read(longest)
    file.seek(0)
    at = end.rfind(b"PK\x05\x06")
    if at < 0 or at + 22 > len(end):
        return  # zipfile says that it is no archive
    sizes = [struct.unpack_from("<I", end, at + 12)[0]]
    if at >= _ZIP64 and end[at - _ZIP64 :].startswith(b"PK\x06\x07"):
        file.seek(min(struct.unpack_from("<Q", end, at - _ZIP64 + 8)[0], size))
        record = file.read(56)
        file.seek(0)
        sizes = [struct.unpack_from("<Q", record, 40)[0]] if len(record) == 56 else sizes
    if max(sizes) > _MOST_DIRECTORY:
        raise ValueError(f"its list of arrays has {max(sizes):,} bytes; the most are {_MOST_DIRECTORY:,}")


def _array(file: BinaryIO, size: int, what: str) -> Array:
    """The array of ``size`` bytes of a file, header included."""
    version = npy.read_magic(file)
    if version not in _HEADERS:  # 3.0 is written for records alone
        raise ValueError(f"{what} is of version {version}, expected 1.0 or 2.0")
    shape, by_columns, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError(f"{what} holds Python objects, which would be run: save numbers")
    if dtype.kind not in _KINDS or dtype.subdtype is not None:
        raise ValueError(f"{what} is of dtype {dtype}, expected numbers")
    if len(shape) > _MOST_AXES or any(type(extent) is not int or extent < 0 for extent in shape):
        raise ValueError(f"{what} has the shape {str(shape)[:80]}")
    count, taken = prod(shape), file.tell()
    if count * dtype.itemsize > size - taken or max(shape, default=0) > 1 << 62:
        raise ValueError(f"{what} promises {count:,} numbers of {dtype}; there are {max(size - taken, 0):,} bytes")
    data = _exactly(file, count * dtype.itemsize)
    array = np.frombuffer(data, dtype) if dtype.itemsize else np.zeros(0 if not count else 1, dtype)
    if array.size != count:
        raise ValueError(f"{what} holds empty texts")
    return array.reshape(shape[::-1]).T if by_columns else array.reshape(shape)


def _exactly(file: BinaryIO, count: int) -> bytearray:
    data, step = bytearray(), 1 << 20
    while len(data) < count:
        part = file.read(min(step, count - len(data)))
        if not part:
            raise EOFError("the file ends before its numbers do")
        data += part
    return data
