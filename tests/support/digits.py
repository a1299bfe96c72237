# SPDX-License-Identifier: Apache-2.0
"""The digits example as test material: small, committed, with its accuracy known."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from microc.base import file_access
from microc.base.dtypes import Array

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "digits"
INT8 = FOLDER / "digits_int8.tflite"
FLOAT = FOLDER / "digits_float.onnx"
QDQ = FOLDER / "digits_qdq.onnx"

SMALL = """
[[memory]]
name = "flash"
kind = "flash"
origin = 0x0800_0000
size = {flash}

[[memory]]
name = "sram"
kind = "ram"
origin = 0x2000_0000
size = {ram}
"""


def images(count: int) -> Array:
    """Test images as the int8 network takes them: (count, 1, 8, 8, 1)."""
    with np.load(FOLDER / "digits_test.npz") as data:
        pixels = data["images"][:count]
    quantised: Array = (np.round(pixels / 16 * 255) - 128).astype(np.int8)
    return quantised[:, None]


def labels(count: int) -> Array:
    with np.load(FOLDER / "digits_test.npz") as data:
        found: Array = data["labels"][:count]
    return found


def small_board(folder: Path, flash: int, ram: int) -> Path:
    """netduinoplus2 with other memory, as a board file of its own."""
    text = (file_access.boards_folder() / "netduinoplus2.toml").read_text()
    start, end = text.index("[[memory]]"), text.index("[link]")
    path = folder / "small.toml"
    path.write_text(text[:start] + SMALL.format(flash=flash, ram=ram).lstrip() + "\n" + text[end:])
    return path
