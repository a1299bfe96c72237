"""Which reader a model file needs, what to do about files that none takes, extents that a file leaves open."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from errno import EFBIG
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from microc.base.file_access import read_bytes
from microc.errors import ModelError, OutputError, UnsupportedError, nearest_file
from microc.frontend.budget import HDF5, ZIP, members
from microc.frontend.trees.boosters import is_lightgbm, is_xgboost
from microc.graph.file import is_graph_file
from microc.graph.ir import Graph

# ---- Models of other tools: what a file or a folder is that no reader takes, and the way from there.
#
# What a file starts with tells most; a suffix tells only of files that are nothing that is read.

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


# ---- Which reader a model file needs, told by its contents, never by its suffix alone.

MAX_FILE_BYTES = 256 << 20
AGAIN = "copy or export the model again"


def load(path: Path, input_shapes: Mapping[str, tuple[int, ...]] = {}) -> Graph:
    """Read a model file: TFLite, ONNX, Keras (.keras or .h5), a PyTorch program, LightGBM's text,
    XGBoost's JSON or UBJSON, or a graph file that ``microc import`` wrote.

    ``input_shapes`` binds unknown extents of inputs by name. Raises OutputError where the file cannot be read,
    ModelError (or UnsupportedError) where it is no model that microc understands.
    """
    return read(contents(path), path.name, input_shapes)


def read(data: bytes, name: str, input_shapes: Mapping[str, tuple[int, ...]] = {}) -> Graph:
    """The same from the bytes of a file of this name."""
    if is_tflite(data):
        from microc.frontend.tflite import reader as tflite

        return tflite.read(data, name, input_shapes)
    if is_graph_file(data):
        from microc.frontend import graph_file

        return graph_file.read(data, name, input_shapes)
    if data.startswith(ZIP):
        found = _detect_archive(data, name, input_shapes)
        if found is not None:
            return found
    if data.startswith(HDF5):
        from microc.frontend.keras import reader as keras_reader

        return keras_reader.read(data, name, input_shapes)
    from microc.frontend.trees import boosters, sklearn

    if boosters.is_lightgbm(data) or boosters.is_xgboost(data):
        return sklearn.read_file(data, name, input_shapes)
    _refuse_foreign(data, name)
    from microc.frontend.onnx import reader as onnx_reader
    from microc.frontend.onnx.file import NotOnnxError

    try:
        return onnx_reader.read(data, name, input_shapes)
    except NotOnnxError:
        if Path(name).suffix.lower() == ".onnx":
            raise
    raise refusal(by_name(name), name, name)


def _detect_archive(data: bytes, name: str, input_shapes: Mapping[str, tuple[int, ...]]) -> Graph | None:
    """The model in a zip archive, if it is one."""
    from microc.frontend.keras import file as keras_file
    from microc.frontend.torch import reader as torch_export

    if keras_file.is_keras(data):
        from microc.frontend.keras import reader as keras_reader

        return keras_reader.read(data, name, input_shapes)
    return torch_export.read(data, name, input_shapes) if torch_export.is_torch(data) else None


def is_tflite(data: bytes) -> bool:
    """Whether the file carries TFLite's identifier."""
    return data[4:8] == b"TFL3"


def contents(path: Path) -> bytes:
    """The bytes of a model file; OutputError where it cannot be read, ModelError where it is empty, too large or no file."""
    try:
        if not path.is_file() and path.exists() and not path.is_dir():
            raise ModelError("a device or a pipe is no model file", where=path.name)
        if path.is_dir():
            raise folder(path)
        data = read_bytes(path, MAX_FILE_BYTES)
    except OSError as error:
        if error.errno == EFBIG:
            what = f"more than {MAX_FILE_BYTES} bytes are no microcontroller's network"
            raise UnsupportedError(what, where=path.name) from error
        if not path.exists():
            hint = nearest_file(path) or f"give the path of a model: {READ}"
            raise OutputError(f"there is no model file {path}", where=str(path), hint=hint) from error
        hint = f"make it readable: chmod u+r {shlex.quote(str(path))}"
        raise OutputError(f"cannot read the model: {error.strerror}", where=str(path), hint=hint) from error
    if not data:
        raise ModelError("the model file is empty", where=path.name, hint=AGAIN)
    return data


def _refuse_foreign(data: bytes, name: str) -> None:
    """Say what a file is that some other tool wrote."""
    found = by_content(data)
    if found is not None:
        raise refusal(found, name, name)
    if Path(name).suffix.lower() in (".tflite", ".lite"):
        raise ModelError(
            "not a TFLite model: the identifier TFL3 is missing at byte 4",
            where=name,
            hint=AGAIN,
        )


# ---- The extents that a model file leaves open, by name: what its inputs are in terms of them.

Shape = tuple[int | str, ...]
"""Extents, and names of those that are open."""


def symbolic_inputs(path: Path) -> Mapping[str, Shape]:
    """The shapes of a model's inputs. An open extent is called by its symbol, or else ``<input>:<axis>``.

    Inputs of unknown rank are left out; so are all of a format whose shapes are fixed. Raises what reading raises.
    """
    data = contents(path)
    if is_graph_file(data):
        return {}
    if is_tflite(data):
        return _tflite(data, path.name)
    if data.startswith((ZIP, HDF5)):
        return _keras(data, path.name)
    if is_lightgbm(data) or is_xgboost(data):
        return {}
    return _onnx(data, path.name)


def _named(name: str, extents: Sequence[int | str | None]) -> Shape:
    return tuple(f"{name}:{axis}" if extent is None else extent for axis, extent in enumerate(extents))


def _tflite(data: bytes, file_name: str) -> dict[str, Shape]:
    from microc.frontend.tflite.file import TfliteFile

    file = TfliteFile(data, file_name)
    tensors = [file.tensor(index) for index in file.inputs]
    return {
        t.name: _named(t.name, [None if axis in t.unknown else n for axis, n in enumerate(t.type.shape)])
        for t in tensors
    }


def _onnx(data: bytes, file_name: str) -> dict[str, Shape]:
    from microc.frontend.onnx.file import decode

    return {i.name: _named(i.name, i.shape) for i in decode(data, file_name).inputs if i.shape is not None}


def _keras(data: bytes, file_name: str) -> dict[str, Shape]:
    from microc.frontend.keras import file as keras_file
    from microc.frontend.keras import reader as keras_reader

    if not data.startswith(HDF5) and not keras_file.is_keras(data):
        return {}
    return {name: _named(name, extents) for name, extents in keras_reader.declared_inputs(data, file_name).items()}
