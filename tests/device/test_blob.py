# SPDX-License-Identifier: Apache-2.0
"""Networks as files that boards load: written and read back, and refused where a byte is wrong."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from microc.device.board_info import HEADER, Blob, BlobTensor, read_blob
from microc.errors import UsageError

BLOB = Blob(
    "net",
    "00112233445566778899aabbccddeeff",
    "cortex-m4",
    77,
    128,
    300,
    2,
    (BlobTensor(0, 64, "int8", "input", None), BlobTensor(64, 40, "float32", "output", 1)),
    bytes(range(50)),
    4,
    None,
)


def written(folder: Path, data: bytes) -> Path:
    path = folder / "net.bin"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("changes", [{}, {"reset": 8}, {"signature": b"signed"}, {"name": "x" * 47}, {"tensors": ()}])
def test_what_is_written_is_read(changes: dict[str, object], tmp_path: Path) -> None:
    blob = replace(BLOB, **changes)  # type: ignore[arg-type]
    found = read_blob(written(tmp_path, blob.pack()))
    assert found == replace(blob, image=blob.image + bytes(2))  # tensors begin at a word


def test_every_byte_but_the_signature_is_checked(tmp_path: Path) -> None:
    data = replace(BLOB, signature=b"12").pack()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        path = written(tmp_path, bytes(damaged))
        if at >= len(data) - 2:
            assert read_blob(path).signature != b"12"
        else:
            with pytest.raises(UsageError, match=r"not a file of a loadable network|another format version"):
                read_blob(path)
    for size in range(len(data) - 2):
        with pytest.raises(UsageError):
            read_blob(written(tmp_path, data[:size]))


@pytest.mark.fuzz
def test_files_of_strangers_end_in_a_refusal(tmp_path: Path) -> None:
    """Headers of any numbers, whose CRC is right."""
    chance, data = Random(3), BLOB.pack()
    for _ in range(3000):
        made = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(16, HEADER - 48) // 4 * 4
            struct.pack_into("<I", made, at, chance.choice([0, 1, 127, 128, len(data), 2**31, 2**32 - 1]))
        struct.pack_into("<I", made, 12, zlib.crc32(made[16:]))
        try:
            found = read_blob(written(tmp_path, bytes(made)))
        except UsageError:
            continue
        assert all(t.offset >= 0 and t.offset + t.nbytes <= found.memory for t in found.tensors)
        assert 0 <= found.run < len(found.image)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_blob(tmp_path / "missing.bin")
    with pytest.raises(UsageError, match="does not begin with MCRN"):
        read_blob(written(tmp_path, b"\x7fELF" + bytes(500)))
    with pytest.raises(UsageError, match="got 2, expected 1"):
        read_blob(written(tmp_path, BLOB.pack()[:4] + struct.pack("<I", 2) + BLOB.pack()[8:]))
