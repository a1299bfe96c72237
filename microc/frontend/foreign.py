"""Models of other tools: what a file or a folder is that no reader takes, and the way from there.

What a file starts with tells most; a suffix tells only of files that are nothing that is read.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from microc.errors import ModelError
from microc.frontend.archive import ZIP, members

_WRITTEN = "manifest.json"
"""What is in every folder that microc writes."""
_MODELS = (".tflite", ".onnx", ".keras", ".h5", ".pt2", ".mcg")
READ = ".tflite, .onnx, .keras, .h5, .pt2, .mcg, LightGBM's text, or XGBoost's JSON or UBJSON"

_HEAD = 256
"""Bytes that a web page begins in."""
MOST = 1000
"""Names of a folder that are looked at."""


class Foreign(NamedTuple):
    """What something is, and what to do."""

    what: str
    hint: str


_UNPICKLED = "load it yourself and compile the object: microc.compile(model)"
_PICKLE = Foreign("a Python pickle: to read one is to run it", _UNPICKLED)
_EXPORTED = "with the module in Python: torch.export.save(torch.export.export(module, inputs), 'model.pt2')"
_AGAIN = "export the network as ONNX or TFLite from the framework that it was made in"
_SAVED = Foreign(
    "a TensorFlow SavedModel",
    "python -m tf2onnx.convert --saved-model {0} --output model.onnx; or tf.lite.TFLiteConverter.from_saved_model({0})",
)
_FROZEN = Foreign(
    "a graph of TensorFlow, or no model",
    "python -m tf2onnx.convert --graphdef {0} --inputs NAME:0 --outputs NAME:0 --output model.onnx",
)
_PADDLE = Foreign(
    "a network of PaddlePaddle",
    "paddle2onnx --model_dir FOLDER --model_filename {0} --params_filename PARAMETERS --save_file model.onnx",
)
_CAFFE = Foreign(
    "a network of Caffe", "python -m caffe2onnx.convert --prototxt TEXT --caffemodel WEIGHTS --onnx model.onnx"
)
_CORE_ML = Foreign("a network of Core ML", _AGAIN)
_WEIGHTS = Foreign("a file of weights without their network", "load them into the module; then, " + _EXPORTED)
_PAGE = Foreign(
    "a web page (HTML), not the file that it links to",
    "download the file itself, by its own address: curl -L -o {0} URL",
)
_POINTER = Foreign(
    "a pointer of Git LFS: the model itself was not fetched", "in its repository: git lfs pull --include {0}"
)
_STARTS: Sequence[tuple[int, bytes, Foreign]] = (
    *((0, bytes((0x80, version)), _PICKLE) for version in range(2, 6)),
    (4, b"ORTM", Foreign("a network in ONNX Runtime's own format", "give the .onnx file that it was made from")),
    (4, b"ET12", Foreign("a program of ExecuTorch", "give the program that it was made from: " + _EXPORTED)),
    (0, b"GGUF", Foreign("a language model of llama.cpp", "networks for microcontrollers are smaller: " + _AGAIN)),
    (0, b"7767517\n", Foreign("a network of ncnn", _AGAIN)),
    (0, b"version https://git-lfs", _POINTER),
    (0, b"\x93NUMPY", Foreign("an array of numpy", "give it as data: --input, --data or --inputs")),
    (0, b"\x7fELF", Foreign("a program", "give the model that it was built from")),
)
"""Where in a file what stands, and what that tells."""
_SUFFIXES: Mapping[str, Foreign] = MappingProxyType(
    {
        ".pb": _FROZEN,
        ".pbtxt": _FROZEN,
        ".pdmodel": _PADDLE,
        ".pdiparams": _PADDLE,
        ".prototxt": _CAFFE,
        ".caffemodel": _CAFFE,
        ".mlmodel": _CORE_ML,
        ".safetensors": _WEIGHTS,
        ".weights": Foreign("a network of Darknet, or its weights", _AGAIN),
        ".mnn": Foreign("a network of MNN", _AGAIN),
        ".rknn": Foreign("a network of RKNN", _AGAIN),
        ".engine": Foreign("a network of TensorRT", _AGAIN),
    }
)
_MEMBERS: Sequence[tuple[str, Foreign]] = (
    ("constants.pkl", Foreign("a TorchScript archive (torch.jit): to read one is to run it", _EXPORTED)),
    ("data.pkl", Foreign("a pickle of PyTorch (torch.save): to read one is to run it", _EXPORTED)),
    (".npy", Foreign("an archive of arrays of numpy", "give it as data: --input, --data or --inputs")),
)
"""How the name of a member of a zip archive ends, and what that tells; the first that is there counts."""
_ARCHIVE = Foreign(
    "a zip archive, but neither a Keras 3 model nor a PyTorch program", "save with model.save or torch.export.save"
)


def by_content(data: bytes) -> Foreign | None:
    """What a file is that another tool wrote, if its bytes tell."""
    if data.startswith(ZIP):
        return _archive(data)
    if data[:_HEAD].lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return _PAGE
    return next((foreign for at, word, foreign in _STARTS if data[at : at + len(word)] == word), None)


def _archive(data: bytes) -> Foreign:
    names = members(data)
    inside = next((name for name in names if name.isprintable() and Path(name).suffix.lower() in _MODELS), "")
    if inside:
        return Foreign(
            f"a zip archive that holds {inside}",
            f"take it out: python -m zipfile -e {{0}} . ; then give {shlex.quote(inside)}",
        )
    return next((foreign for end, foreign in _MEMBERS if any(name.endswith(end) for name in names)), _ARCHIVE)


def by_name(name: str) -> Foreign:
    """What a file may be that no reader knows."""
    return _SUFFIXES.get(Path(name).suffix.lower(), Foreign("no format that microc knows", f"give one of {READ}"))


def folder(path: Path) -> ModelError:
    """Why a folder is no model."""
    try:
        names = {each.name for each in islice(path.iterdir(), MOST)}
    except OSError:  # what is in it stays unknown
        names = set[str]()
    if "saved_model.pb" in names:
        found = _SAVED
    elif _WRITTEN in names:
        found = Foreign(
            "a folder that microc wrote, not a model", "give the model that it was made from; or: microc build {0}"
        )
    elif path.suffix == ".mlpackage":
        found = _CORE_ML
    elif any(name.endswith(".pdmodel") for name in names):
        found = _PADDLE
    else:
        found = Foreign("a folder", _models_among(path, names))
    model = next((name for name in sorted(names) if name.endswith(".pdmodel")), str(path))
    return refusal(found, str(path), model)


def _models_among(folder: Path, names: Iterable[str]) -> str:
    models = sorted(name for name in names if Path(name).suffix.lower() in _MODELS)
    inside = (shlex.quote(str(folder / name)) for name in models[:3])
    return f"give a file in it: {', '.join(inside)}" if models else f"give a file: {READ}"


def refusal(foreign: Foreign, where: str, name: str) -> ModelError:
    """The error of a file or folder; ``name``: as the hint spells it."""
    return ModelError(f"this is {foreign.what}", where=where, hint=foreign.hint.replace("{0}", shlex.quote(name)))
