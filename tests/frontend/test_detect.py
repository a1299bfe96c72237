"""Formats are told by content, and files that are no models are refused with advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from microc.errors import ModelError, OutputError
from microc.frontend import detect
from tests.frontend.tflite.test_reader import small_cnn


def test_a_tflite_model_is_known_by_its_identifier_under_any_name(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(small_cnn(None))
    assert detect.load(path).name == "model"
    assert detect.load(path, {"x": (2, 9, 8, 2)}).types["x"].shape == (2, 9, 8, 2)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("m.keras", b"PK\x03\x04" + bytes(60), "zip archive"),
        ("m.h5", b"\x89HDF\r\n\x1a\n" + bytes(60), "HDF5"),
        ("m.pt", b"\x80\x02" + bytes(60), "pickle"),
        ("m.tflite", b"\x18\0\0\0TFL2" + bytes(60), "identifier TFL3"),
        ("m.onnx", b"", "empty"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ModelError, match=message) as caught:
        detect.load(path)
    assert caught.value.where == name


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No such file"):
        detect.load(tmp_path / "absent.tflite")
    with pytest.raises(OutputError, match="directory"):
        detect.load(tmp_path)
