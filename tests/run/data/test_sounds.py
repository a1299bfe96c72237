# SPDX-License-Identifier: Apache-2.0
"""WAV files are numbers from -1 to 1, one file a sample."""

from __future__ import annotations

import struct
import wave
from pathlib import Path

import numpy as np
import pytest

from microc.errors import UsageError
from microc.run.data.array_files import CLASSES, ROWS, read_arrays


def recorded(path: Path, data: bytes, width: int, channels: int = 1) -> Path:
    path.parent.mkdir(exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(8000)
        file.writeframes(data)
    return path


@pytest.mark.parametrize(
    ("width", "data"),
    [
        (1, bytes((0, 128, 192))),
        (2, struct.pack("<3h", -(2**15), 0, 2**14)),
        (3, b"\x00\x00\x80\x00\x00\x00\x00\x00\x40"),
        (4, struct.pack("<3i", -(2**31), 0, 2**30)),
    ],
)
def test_widths(width: int, data: bytes, tmp_path: Path) -> None:
    found = read_arrays(recorded(tmp_path / "a.wav", data, width))[ROWS]
    assert found.dtype == np.float32 and found.tolist() == [[-1.0, 0.0, 0.5]]


def test_a_folder_by_class_of_two_channels(tmp_path: Path) -> None:
    for kind in ("no", "yes"):
        recorded(tmp_path / kind / "a.WAV", struct.pack("<4h", 0, 2**14, 0, 2**14), 2, 2)
    found = read_arrays(tmp_path)
    assert found[ROWS].tolist() == [[[0.0, 0.5], [0.0, 0.5]]] * 2 and found[CLASSES].tolist() == [0, 1]


def test_what_is_refused(tmp_path: Path) -> None:
    """Other files of that name, and sounds of different length."""
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    with pytest.raises(UsageError, match="as a WAV file") as caught:
        read_arrays(tmp_path / "a.wav")
    assert "linear PCM" in caught.value.hint
    for name, count in (("a.wav", 3), ("b.wav", 4)):
        recorded(tmp_path / "folder" / name, bytes(2 * count), 2)
    with pytest.raises(UsageError, match="give all samples one shape"):
        read_arrays(tmp_path / "folder")
