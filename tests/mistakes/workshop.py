# SPDX-License-Identifier: Apache-2.0
"""The folder that the mistakes are made in: models, data and projects, right ones and wrong ones."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from microc.cli import main
from tests.support import digits

ROOT = Path(__file__).resolve().parents[2]
DOMAIN = "com.example"
Extents = Mapping[str, tuple[int, ...]]
PAGE = "<!DOCTYPE html>\n<html><body>Sign in to download</body></html>\n"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 31812\n"
RIGHT = {
    "page.onnx": digits.FLOAT,
    "pointer.onnx": digits.FLOAT,
    "empty.tflite": digits.INT8,
    "half.tflite": digits.INT8,
}
"""What a file would be if it had been got as it should."""


def prepare(folder: Path) -> None:
    """Write everything; paths are relative to the folder, which is the current one."""
    _models(folder)
    _arrays(folder)
    _data(folder)
    _projects(folder)


def _models(folder: Path) -> None:
    shutil.copyfile(digits.INT8, folder / "digits.tflite")
    shutil.copyfile(digits.FLOAT, folder / "float.onnx")
    shutil.copyfile(ROOT / "tests" / "data" / "quantize" / "cnn.onnx", folder / "large.onnx")
    (folder / "models").mkdir()
    shutil.copyfile(digits.INT8, folder / "models" / "digits.tflite")
    shutil.copyfile(ROOT / "examples" / "custom_operator" / "operators.py", folder / "operators.py")
    (folder / "page.onnx").write_text(PAGE)
    (folder / "pointer.onnx").write_text(POINTER)
    (folder / "empty.tflite").write_bytes(b"")
    (folder / "half.tflite").write_bytes(digits.INT8.read_bytes()[:5000])
    (folder / "notes.txt").write_text("ask for the model\n")
    (folder / "records.jsonl").write_text("")
    for name in ("packed.zip", "packed.keras"):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.write(digits.INT8, "inside.tflite")
    for name, member in (("weights.pth", "weights/data.pkl"), ("script.pt", "script/constants.pkl")):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr(member, b"")
    (folder / "model.pkl").write_bytes(pickle.dumps(str(digits.INT8)))
    snake = helper.make_node("Snake", ["x"], ["y"], domain=DOMAIN, alpha=0.5)
    _network(folder / "snake.onnx", [snake], {"x": (1, 4)})
    weight = helper.make_tensor("w", TensorProto.FLOAT, (3, 3), np.linspace(-1, 1, 9))
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    _network(folder / "wide.onnx", [product], {"x": (1, 2, 4, 3)}, weight)
    weight = helper.make_tensor("w", TensorProto.FLOAT, (64, 3), np.linspace(-1, 1, 192))
    row, product = helper.make_node("Flatten", ["image"], ["row"]), helper.make_node("MatMul", ["row", "w"], ["y"])
    _network(folder / "small.onnx", [row, product], {"image": (1, 1, 8, 8)}, weight)


def _network(path: Path, nodes: Sequence[onnx.NodeProto], inputs: Extents, *weights: onnx.TensorProto) -> None:
    """A network whose result is y."""
    x = [helper.make_tensor_value_info(name, TensorProto.FLOAT, extents) for name, extents in inputs.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    domains = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph(nodes, path.stem, x, [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=9), str(path))


def _arrays(folder: Path) -> None:
    good = digits.images(1)[0]
    arrays = {
        "x": good,
        "flat": good.reshape(-1),
        "float": good.astype(np.float32) / 255,
        "int64": good.astype(np.int64),
        "hwc": np.zeros((1, 4, 3, 2), np.float32),
        "objects": np.array([{}]),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    (folder / "text.npy").write_text("0.1 0.2\n")


def _data(folder: Path) -> None:
    with np.load(digits.FOLDER / "digits_test.npz") as data:
        images = (data["images"][:50] / 16).astype(np.float32).reshape(-1, 1, 1, 8, 8)
        labels = data["labels"][:50].astype(np.int64)
    broken = images.copy()
    broken[3, 0, 0, 2, 2] = np.nan
    files = {
        "samples": {"image": images, "x": images, "label": labels},
        "short": {"image": images, "label": labels[:40]},
        "below": {"image": images, "label": labels - 1},
        "nan": {"image": broken},
        "names": {"a": images, "b": images},
        "one": {"image": images[0, 0]},
        "x": {"image": digits.images(1)[0]},
        "none": {"image": images[:0]},
        "hwc": {"x": np.random.default_rng(0).normal(size=(20, 4, 3, 2)).astype(np.float32)},
    }
    for name, arrays in files.items():
        np.savez(folder / f"{name}.npz", **arrays)
    np.savetxt(folder / "table.npz", images.reshape(50, 64), delimiter=",")


def _projects(folder: Path) -> None:
    _microc("compile", "digits.tflite", "--board", "host", "-o", "project")
    _microc("build", "project")
    _microc("compile", "float.onnx", "--board", "host", "-o", "wholefloat")
    _microc("compile", "wide.onnx", "--board", "host", "-o", "wide")
    _microc("compile", "digits.tflite", "--board", "netduinoplus2", "-o", "unbuilt")
    for name in ("stale", "without-tools", "built"):
        shutil.copytree(folder / "unbuilt", folder / name)
    (folder / "built" / "firmware.elf").write_bytes(b"\x7fELF")
    manifest = folder / "stale" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema_version": 1}))
    _microc("export", "digits.tflite", "--format", "c", "-o", "exported")


def _microc(*words: str) -> None:
    assert main([*words, "-q"]) == 0, words
