# SPDX-License-Identifier: Apache-2.0
"""Formats are told by content, and files that are no models are refused with advice."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from microc.compiler.model import read_model
from microc.compiler.options import Options
from microc.errors import ModelError, OutputError
from microc.frontend import detect
from microc.frontend.detect import identify_by_suffix, make_foreign_format_error
from tests.frontend.tflite.test_reader import small_cnn


def test_a_tflite_model_is_known_by_its_identifier_under_any_name(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(small_cnn(None))
    assert detect.load_model_file(path).name == "model"
    assert detect.load_model_file(path, {"x": (2, 9, 8, 2)}).types["x"].shape == (2, 9, 8, 2)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("m.keras", b"PK\x03\x04" + bytes(60), "zip archive"),
        ("m.h5", b"\x89HDF\r\n\x1a\n" + bytes(60), "HDF5"),
        ("m.pt", b"\x80\x02" + bytes(60), "pickle"),
        ("m.tflite", b"\x18\0\0\0TFL2" + bytes(60), "at byte 4, expected b'TFL3'"),
        ("m.onnx", b"", "empty"),
        ("m.onnx", b"\0", "no ONNX model"),
        ("m.pb", b"\0", "TensorFlow"),
        ("m.prototxt", b"name: 'net'", "Caffe"),
        ("m.bin", b"\0", "no format that microc knows"),
        ("m.json", b'{"learner":{}}', "model of XGBoost is broken"),
        ("m.ort", b"\x18\0\0\0ORTM", "ONNX Runtime's own"),
        ("m.param", b"7767517\n3 3", "ncnn"),
        ("m.cbm", b"CBM1" + bytes(8), "CatBoost"),
        ("m.json", b'{"features_info": {}, "oblivious_trees": []}', "model of CatBoost is broken"),
        ("m-symbol.json", b'{\n  "nodes": [], "arg_nodes": []}', "MXNet"),
        ("m.params", b"\x12\x01" + bytes(30), "MXNet"),
        ("m.json", b' {"format": "layers-model", "modelTopology": {}}', "TensorFlow.js"),
        ("m.xml", b'<?xml version="1.0"?>\n<net name="n" version="11">', "OpenVINO"),
        ("m.cfg", b"[net]\nbatch=1", "Darknet"),
        ("m.weights", b"\0", "Darknet"),
        ("m.caffemodel", b"\0", "Caffe"),
        ("m.mlmodel", b"\0", "Core ML"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ModelError, match=message) as caught:
        detect.load_model_file(path)
    assert caught.value.where == name


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="there is no model file"):
        detect.load_model_file(tmp_path / "absent.tflite")
    with pytest.raises(ModelError, match="a folder"):
        detect.load_model_file(tmp_path)


@pytest.mark.parametrize(
    ("member", "what"), [("m/constants.pkl", "TorchScript"), ("m/data.pkl", "torch.save"), ("x.npy", "arrays of numpy")]
)
def test_archives_are_told_by_their_members(tmp_path: Path, member: str, what: str) -> None:
    path = tmp_path / "m.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, b"")
    with pytest.raises(ModelError, match=what):
        detect.load_model_file(path)


@pytest.mark.parametrize(
    ("name", "held", "what", "hint"),
    [
        ("saved", "saved_model.pb", "SavedModel", "--saved-model {0} --output"),
        ("net.mlpackage", "Manifest.json", "Core ML", "export the network"),
        ("net", "net.pdmodel", "PaddlePaddle", "--model_filename net.pdmodel"),
        ("net", "a.tflite", "a folder", "give a file in it: {0}/a.tflite"),
        ("net", "a.txt", "a folder", "give a file: .tflite"),
    ],
)
def test_folders_of_other_tools_are_named(tmp_path: Path, name: str, held: str, what: str, hint: str) -> None:
    path = tmp_path / name
    path.mkdir()
    (path / held).write_text("")
    with pytest.raises(ModelError, match=what) as caught:
        read_model(path, Options())
    assert hint.format(path) in caught.value.hint


def test_a_name_is_a_word_of_a_hint() -> None:
    """Commands of hints are copied into shells."""
    assert (
        "'$(reboot).pb'"
        in make_foreign_format_error(identify_by_suffix("$(reboot).pb"), "$(reboot).pb", "$(reboot).pb").hint
    )
