# SPDX-License-Identifier: Apache-2.0
"""Recognition of models: files by their format, and Python objects."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from errno import EFBIG
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from microc.base.file_access import read_bytes
from microc.base.operating_system import quote_argument
from microc.errors import ModelError, OutputError, UnsupportedError, UsageError, similar_files_hint
from microc.frontend.model_limits import HDF5_MAGIC, ZIP_MAGIC, list_archive_members
from microc.graph.cut import bind_inputs
from microc.graph.file import is_graph_file
from microc.graph.ir import Graph

# ---- Convert models that are Python objects to graphs: estimators, exported programs, Keras models, ONNX protobufs.


def read_object(model: Any, input_shapes: Mapping[str, tuple[int, ...]] = {}, example_inputs: Any = ()) -> Graph:
    """Convert a model that is a Python object to a graph.

    Supported objects are fitted estimators of scikit-learn, LightGBM, XGBoost and CatBoost, a PyTorch ``ExportedProgram``, a
    PyTorch module (with ``example_inputs``, see :func:`microc.frontend.torch.reader.export_module`), a Keras model, an
    ``onnx.ModelProto``, and the bytes of a model file. Only packages that the object belongs to are imported. Raises
    UsageError for any other object, and the errors of the reader."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _read_model_bytes(bytes(model), "model", input_shapes)
    packages = {class_.__module__.split(".")[0] for class_ in type(model).__mro__}
    if packages & {"sklearn", "lightgbm", "xgboost", "catboost"}:
        from microc.frontend.trees import sklearn

        return sklearn.read_estimator(model, sklearn.single_input_shape(input_shapes, type(model).__name__))
    if "keras" in packages and hasattr(model, "save"):
        return _read_keras_object(model, input_shapes)
    if "onnx" in packages and hasattr(model, "SerializeToString") and hasattr(model, "graph"):
        return _read_model_bytes(model.SerializeToString(), model.graph.name or "model", input_shapes)
    if "torch" in packages:
        from microc.frontend.torch import reader

        if hasattr(model, "graph_signature"):
            if input_shapes:
                raise UsageError(
                    "input_shapes: an exported program has fixed shapes",
                    hint="export the program again with example inputs of this shape",
                )
            return reader.read_program(model)
        if reader.is_module(model):
            if input_shapes:
                raise UsageError(
                    "input_shapes cannot be combined with a PyTorch module: example_inputs define the shapes",
                    hint="leave out input_shapes",
                )
            program = reader.export_module(model, example_inputs)
            reader.warn_training_mode(model)
            return reader.read_program(program, type(model).__name__)
    hint = "a path, its bytes, a Graph, a fitted estimator, a Keras, ONNX or PyTorch model"
    raise UsageError(
        f"got a model of type {type(model).__name__}, expected a supported model object", hint=f"give {hint}"
    )


def serialise_to_file_name_and_bytes(model: Any) -> tuple[str, bytes] | None:
    """Return a model object as the name and the bytes of a model file; None if it has no file format.

    Objects with a file format are the bytes of a file, an ``onnx.ModelProto``, and a Keras model, which is saved to a
    temporary file."""
    packages = {class_.__module__.split(".")[0] for class_ in type(model).__mro__}
    if isinstance(model, (bytes, bytearray, memoryview)):
        return "model", bytes(model)
    if "onnx" in packages and hasattr(model, "SerializeToString") and hasattr(model, "graph"):
        name = "".join(c if c.isalnum() or c in "_-" else "_" for c in model.graph.name[:64])
        return f"{name or 'model'}.onnx", model.SerializeToString()
    if "keras" in packages and hasattr(model, "save"):
        with tempfile.TemporaryDirectory(prefix="microc-") as folder:
            path = Path(folder) / "model.keras"
            model.save(path)
            return path.name, path.read_bytes()
    return None


def _read_model_bytes(data: bytes, file_name: str, input_shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """Read a model of any format from the bytes of a file."""
    if not 0 < len(data) <= MAX_FILE_BYTES:
        raise UsageError(
            f"got a model of {len(data)} bytes, expected 1..{MAX_FILE_BYTES}",
            hint="give the bytes of a whole model file",
        )
    return read_model_data(data, file_name, input_shapes)


def _read_keras_object(model: Any, input_shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """Read a Keras model: save it to a temporary file, then read this file."""
    from microc.frontend.keras import reader as keras_reader

    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        return keras_reader.read_keras(path.read_bytes(), str(model.name), input_shapes)


# ---- Files and folders of other tools: their format, and how to convert them.
#
# The first bytes decide; a suffix is used only for files that no reader takes.

PROJECT_MARKER = "manifest.json"
"""File in every folder that microc writes."""
MODEL_SUFFIXES = (".tflite", ".onnx", ".keras", ".h5", ".pt2", ".mcg")
READABLE_FORMATS = (
    ".tflite, .onnx, .keras, .h5, .pt2, .mcg, LightGBM's text, XGBoost's JSON or UBJSON, or CatBoost's JSON"
)

HTML_PREFIX_BYTES = 256
"""Number of leading bytes in which HTML is recognised."""
MAX_FOLDER_ENTRIES = 1000
"""Maximum number of names of a folder that are looked at."""


class ForeignFormat(NamedTuple):
    """A format that microc does not read.

    ``description`` completes the sentence "this is ...". ``hint`` says how to convert such a file to a format that
    microc reads; ``{0}`` in it stands for the name of the file."""

    description: str
    hint: str


_UNPICKLED = "load it yourself and compile the object: microc.compile(model)"
_PICKLE = ForeignFormat("a Python pickle: to read one is to run it", _UNPICKLED)
_EXPORTED = "with the module in Python: torch.export.save(torch.export.export(module, inputs), 'model.pt2')"
_EXPORT_AGAIN = "export the network as ONNX or TFLite from the framework that it was made in"
_SAVED = ForeignFormat(
    "a TensorFlow SavedModel",
    "python -m tf2onnx.convert --saved-model {0} --output model.onnx; or tf.lite.TFLiteConverter.from_saved_model({0})",
)
_FROZEN = ForeignFormat(
    "a graph of TensorFlow, or no model",
    "python -m tf2onnx.convert --graphdef {0} --inputs NAME:0 --outputs NAME:0 --output model.onnx",
)
_PADDLE = ForeignFormat(
    "a network of PaddlePaddle",
    "paddle2onnx --model_dir FOLDER --model_filename {0} --params_filename PARAMETERS --save_file model.onnx",
)
_CAFFE = ForeignFormat(
    "a network of Caffe", "python -m caffe2onnx.convert --prototxt TEXT --caffemodel WEIGHTS --onnx model.onnx"
)
_CORE_ML = ForeignFormat("a network of Core ML", _EXPORT_AGAIN)
_MXNET = ForeignFormat(
    "a network of MXNet, or its weights",
    "in Python: mxnet.onnx.export_model('NET-symbol.json', 'NET.params', [SHAPE], numpy.float32, 'model.onnx')",
)
_OPENVINO = ForeignFormat(
    "a network in OpenVINO's intermediate representation, or its weights",
    "give the ONNX or TFLite file that it was converted from",
)
_TF_JS = ForeignFormat(
    "a network of TensorFlow.js",
    "tensorflowjs_converter --input_format tfjs_layers_model --output_format keras {0} model.h5",
)
_DARKNET = ForeignFormat(
    "a network of Darknet, or its weights", "build the network in PyTorch, load the weights; then, " + _EXPORTED
)
_CATBOOST = ForeignFormat(
    "a model of CatBoost in its binary form", "in Python: model.save_model('model.json', format='json')"
)
_WEIGHTS = ForeignFormat("a file of weights without their network", "load them into the module; then, " + _EXPORTED)
_PAGE = ForeignFormat(
    "a web page (HTML), not the file that it links to",
    "download the file itself, by its own address: curl -L -o {0} URL",
)
_POINTER = ForeignFormat(
    "a pointer of Git LFS: the model itself was not fetched", "in its repository: git lfs pull --include {0}"
)
SIGNATURES: Sequence[tuple[int, bytes, ForeignFormat]] = (
    *((0, bytes((0x80, version)), _PICKLE) for version in range(2, 6)),
    (4, b"ORTM", ForeignFormat("a network in ONNX Runtime's own format", "give the .onnx file that it was made from")),
    (4, b"ET12", ForeignFormat("a program of ExecuTorch", "give the program that it was made from: " + _EXPORTED)),
    (
        0,
        b"GGUF",
        ForeignFormat("a language model of llama.cpp", "networks for microcontrollers are smaller: " + _EXPORT_AGAIN),
    ),
    (0, b"7767517\n", ForeignFormat("a network of ncnn", _EXPORT_AGAIN)),
    (0, b"CBM1", _CATBOOST),
    (0, b"\x12\x01\0\0\0\0\0\0", _MXNET),  # a list of arrays
    (0, b"[net]", _DARKNET),
    (0, b"version https://git-lfs", _POINTER),
    (0, b"\x93NUMPY", ForeignFormat("an array of numpy", "give it as data: --input, --data or --inputs")),
    (0, b"\x7fELF", ForeignFormat("a program", "give the model that it was built from")),
)
"""Offset and bytes of signatures of other formats."""
_SUFFIXES: Mapping[str, ForeignFormat] = MappingProxyType(
    {
        ".pb": _FROZEN,
        ".pbtxt": _FROZEN,
        ".pdmodel": _PADDLE,
        ".pdiparams": _PADDLE,
        ".prototxt": _CAFFE,
        ".caffemodel": _CAFFE,
        ".mlmodel": _CORE_ML,
        ".safetensors": _WEIGHTS,
        ".weights": _DARKNET,
        ".params": _MXNET,
        ".cbm": _CATBOOST,
        ".mnn": ForeignFormat("a network of MNN", _EXPORT_AGAIN),
        ".rknn": ForeignFormat("a network of RKNN", _EXPORT_AGAIN),
        ".engine": ForeignFormat("a network of TensorRT", _EXPORT_AGAIN),
    }
)
ARCHIVE_MEMBERS: Sequence[tuple[str, ForeignFormat]] = (
    ("constants.pkl", ForeignFormat("a TorchScript archive (torch.jit): to read one is to run it", _EXPORTED)),
    ("data.pkl", ForeignFormat("a pickle of PyTorch (torch.save): to read one is to run it", _EXPORTED)),
    (".npy", ForeignFormat("an archive of arrays of numpy", "give it as data: --input, --data or --inputs")),
)
"""Suffixes of names in a zip archive, and the format that they indicate; the first match counts."""
_ARCHIVE = ForeignFormat(
    "a zip archive, but neither a Keras 3 model nor a PyTorch program", "save with model.save or torch.export.save"
)


KEYS: Sequence[tuple[bytes, bytes, ForeignFormat]] = (
    (b"{", b'"modelTopology"', _TF_JS),
    (b"{", b'"arg_nodes"', _MXNET),
    (b"<", b"<net ", _OPENVINO),
)
"""First byte of a text, and a key or an element of JSON or XML in it that only one format has."""


def identify_by_content(data: bytes) -> ForeignFormat | None:
    """Identify the format of a file from its bytes, for formats that microc does not read.

    The bytes are compared with signatures of such formats, with the start of an HTML page, with keys of JSON and XML, and
    with the names of members of a zip archive. Return None if nothing matches."""
    if data.startswith(ZIP_MAGIC):
        return _identify_archive(data)
    start = data[:HTML_PREFIX_BYTES].lstrip()
    if start.lower().startswith((b"<!doctype html", b"<html")):
        return _PAGE
    for first, key, foreign in KEYS:
        if start.startswith(first) and key in data:
            return foreign
    return next((foreign for at, word, foreign in SIGNATURES if data[at : at + len(word)] == word), None)


def _identify_archive(data: bytes) -> ForeignFormat:
    """Identify the foreign format of a zip archive from the names of its members.

    An archive that contains a model file is described as such, with a hint how to extract the file."""
    names = list_archive_members(data)
    inside = next((name for name in names if name.isprintable() and Path(name).suffix.lower() in MODEL_SUFFIXES), "")
    if inside:
        return ForeignFormat(
            f"a zip archive that holds {inside}",
            f"take it out: python -m zipfile -e {{0}} . ; then give {quote_argument(inside)}",
        )
    return next((foreign for end, foreign in ARCHIVE_MEMBERS if any(name.endswith(end) for name in names)), _ARCHIVE)


def identify_by_suffix(file_name: str) -> ForeignFormat:
    """Return the description of the format that the suffix of ``file_name`` indicates.

    It is called for files that no reader accepts."""
    return _SUFFIXES.get(
        Path(file_name).suffix.lower(), ForeignFormat("no format that microc knows", f"give one of {READABLE_FORMATS}")
    )


def make_folder_error(folder: Path) -> ModelError:
    """Return the error for a path that is a folder instead of a model file.

    Its hint lists model files in the folder. For folders that a known tool wrote, it says how to convert their
    model."""
    try:
        names = {entry.name for entry in islice(folder.iterdir(), MAX_FOLDER_ENTRIES)}
    except OSError:  # what is in it stays unknown
        names = set[str]()
    if "saved_model.pb" in names:
        foreign = _SAVED
    elif PROJECT_MARKER in names:
        foreign = ForeignFormat(
            "a folder that microc wrote, not a model", "give the model that it was made from; or: microc build {0}"
        )
    elif folder.suffix == ".mlpackage":
        foreign = _CORE_ML
    elif any(name.endswith(".pdmodel") for name in names):
        foreign = _PADDLE
    else:
        models = sorted(name for name in names if Path(name).suffix.lower() in MODEL_SUFFIXES)
        inside = ", ".join(quote_argument(str(folder / name)) for name in models[:3])
        hint = f"give a file in it: {inside}" if models else f"give a file: {READABLE_FORMATS}"
        foreign = ForeignFormat("a folder", hint)
    model = next((name for name in sorted(names) if name.endswith(".pdmodel")), str(folder))
    return make_foreign_format_error(foreign, str(folder), model)


def make_foreign_format_error(foreign: ForeignFormat, where: str, file_name: str) -> ModelError:
    """Return the error for a file or folder of a foreign format.

    ``where``: location of the error. ``file_name``: name of the file in the conversion command of the hint."""
    return ModelError(
        f"this is {foreign.description}", where=where, hint=foreign.hint.replace("{0}", quote_argument(file_name))
    )


# ---- Choice of the reader, by content, never by suffix alone.

MAX_FILE_BYTES = 256 << 20
AGAIN = "copy or export the model again"


def load_model_file(
    path: Path, input_shapes: Mapping[str, tuple[int, ...]] = {}, input_values: Mapping[str, Any] = {}
) -> Graph:
    """Read a model file and convert it to a graph. The content decides the format, not the suffix.

    Formats are TFLite, ONNX, Keras (.keras or .h5), PyTorch programs (.pt2), LightGBM's text, XGBoost's JSON or
    UBJSON, CatBoost's JSON, and graph files (.mcg) of ``microc import``. ``input_shapes`` maps names of inputs to
    shapes, which bind unknown extents, and ``input_values`` to values, which bind inputs to constants
    (:func:`microc.graph.cut.make_bound_constant`). Raises OutputError if the file cannot be read, ModelError or
    UnsupportedError if microc cannot convert it, UsageError for shapes and values that do not fit the model."""
    return read_model_data(read_model_bytes(path), path.name, input_shapes, input_values)


def read_model_data(
    data: bytes,
    file_name: str,
    input_shapes: Mapping[str, tuple[int, ...]] = {},
    input_values: Mapping[str, Any] = {},
) -> Graph:
    """Convert a model of any format, given as the bytes ``data`` of its file, to a graph.

    Errors mention ``file_name``. For ``input_shapes`` and ``input_values`` see :func:`load_model_file`."""
    graph = _read_other_than_onnx(data, file_name, input_shapes)
    if graph is not None:
        return bind_inputs(graph, input_values)
    from microc.frontend.onnx import reader as onnx_reader
    from microc.frontend.onnx.file import NotOnnxError

    # Shapes and branches of an ONNX model may depend on the values of its inputs, so they are bound before it is converted.
    try:
        return onnx_reader.read_onnx(data, file_name, input_shapes, input_values)
    except NotOnnxError:
        if Path(file_name).suffix.lower() == ".onnx":
            raise
    raise make_foreign_format_error(identify_by_suffix(file_name), file_name, file_name)


def _read_other_than_onnx(data: bytes, file_name: str, input_shapes: Mapping[str, tuple[int, ...]]) -> Graph | None:
    """Convert a model of any format except ONNX to a graph; return None for a file that may be ONNX."""
    if is_tflite(data):
        from microc.frontend.tflite import reader as tflite

        return tflite.read_tflite(data, file_name, input_shapes)
    if is_graph_file(data):
        from microc.frontend import graph_file

        return graph_file.read_graph_file(data, file_name, input_shapes)
    if data.startswith(ZIP_MAGIC):
        graph = _read_archived_model(data, file_name, input_shapes)
        if graph is not None:
            return graph
    if data.startswith(HDF5_MAGIC):
        from microc.frontend.keras import reader as keras_reader

        return keras_reader.read_keras(data, file_name, input_shapes)
    from microc.frontend.trees.sklearn import is_booster_file, read_booster_file

    if is_booster_file(data):
        return read_booster_file(data, file_name, input_shapes)
    _refuse_foreign_file(data, file_name)
    return None


def _read_archived_model(data: bytes, file_name: str, input_shapes: Mapping[str, tuple[int, ...]]) -> Graph | None:
    """Convert a Keras or PyTorch model in a zip archive to a graph; return None for any other archive."""
    from microc.frontend.keras import file as keras_file
    from microc.frontend.torch import reader

    if keras_file.is_keras(data):
        from microc.frontend.keras import reader as keras_reader

        return keras_reader.read_keras(data, file_name, input_shapes)
    return reader.read_pt2(data, file_name, input_shapes) if reader.is_torch(data) else None


def is_tflite(data: bytes) -> bool:
    """Test whether the bytes of a file contain TFLite's identifier ``TFL3`` at byte 4."""
    return data[4:8] == b"TFL3"


def read_model_bytes(path: Path) -> bytes:
    """Read the bytes of a model file.

    Raises OutputError if the file cannot be read, ModelError if it is empty or no regular file, UnsupportedError if it
    has more than MAX_FILE_BYTES bytes.
    """
    try:
        if not path.is_file() and path.exists() and not path.is_dir():
            raise ModelError("got a device or a pipe, expected a model file", where=path.name)
        if path.is_dir():
            raise make_folder_error(path)
        data = read_bytes(path, MAX_FILE_BYTES)
    except OSError as error:
        if error.errno == EFBIG:
            what = f"the model file is too large; got more than {MAX_FILE_BYTES} bytes, which no microcontroller holds"
            raise UnsupportedError(what, where=path.name) from error
        if not path.exists():
            hint = similar_files_hint(path) or f"give the path of a model: {READABLE_FORMATS}"
            raise OutputError(f"there is no model file {path}", where=str(path), hint=hint) from error
        hint = f"make it readable: chmod u+r {quote_argument(str(path))}"
        raise OutputError(f"cannot read the model: {error.strerror}", where=str(path), hint=hint) from error
    if not data:
        raise ModelError("the model file is empty", where=path.name, hint=AGAIN)
    return data


def _refuse_foreign_file(data: bytes, file_name: str) -> None:
    """Raise ModelError for a file of a foreign format, and for a .tflite file without TFLite's identifier."""
    foreign = identify_by_content(data)
    if foreign is not None:
        raise make_foreign_format_error(foreign, file_name, file_name)
    if Path(file_name).suffix.lower() in (".tflite", ".lite"):
        raise ModelError(
            f"not a TFLite model: got {data[4:8]!r} at byte 4, expected b'TFL3'",
            where=file_name,
            hint=AGAIN,
        )


# ---- Unknown extents of a model file's inputs, by name.

SymbolicShape = tuple[int | str, ...]
"""Extents, with names for unknown ones."""


def read_symbolic_input_shapes(path: Path) -> Mapping[str, SymbolicShape]:
    """Return the shape of each input of a model file, by input name.

    An unknown extent is represented by its symbol in the file, or by ``<input>:<axis>``. Inputs of unknown rank are
    omitted. The result is empty for formats with fixed shapes: graph files, boosters of trees and PyTorch programs."""
    data = read_model_bytes(path)
    if is_graph_file(data):
        return {}
    if is_tflite(data):
        return _read_tflite_input_shapes(data, path.name)
    if data.startswith((ZIP_MAGIC, HDF5_MAGIC)):
        return _read_keras_input_shapes(data, path.name)
    from microc.frontend.trees.sklearn import is_booster_file

    if is_booster_file(data):
        return {}
    return _read_onnx_input_shapes(data, path.name)


def _name_unknown_extents(input_name: str, extents: Sequence[int | str | None]) -> SymbolicShape:
    """Return an input's shape in which each unknown extent (None) is replaced by the name ``<input>:<axis>``."""
    return tuple(f"{input_name}:{axis}" if extent is None else extent for axis, extent in enumerate(extents))


def _read_tflite_input_shapes(data: bytes, file_name: str) -> dict[str, SymbolicShape]:
    """Return the shapes of a TFLite model's inputs by name."""
    from microc.frontend.tflite.file import TfliteFile

    file = TfliteFile(data, file_name)
    tensors = [file.tensor(index) for index in file.inputs]
    return {
        t.name: _name_unknown_extents(
            t.name, [None if axis in t.unknown_axes else n for axis, n in enumerate(t.type.shape)]
        )
        for t in tensors
    }


def _read_onnx_input_shapes(data: bytes, file_name: str) -> dict[str, SymbolicShape]:
    """Return the shapes of an ONNX model's inputs by name. Inputs of unknown rank are omitted."""
    from microc.frontend.onnx.file import decode_onnx

    return {
        i.name: _name_unknown_extents(i.name, i.shape)
        for i in decode_onnx(data, file_name).inputs
        if i.shape is not None
    }


def _read_keras_input_shapes(data: bytes, file_name: str) -> dict[str, SymbolicShape]:
    """Return the shapes of a Keras model's inputs by name; an empty dictionary if the archive is no Keras model."""
    from microc.frontend.keras import file as keras_file
    from microc.frontend.keras import reader as keras_reader

    if not data.startswith(HDF5_MAGIC) and not keras_file.is_keras(data):
        return {}
    return {
        name: _name_unknown_extents(name, extents)
        for name, extents in keras_reader.read_declared_input_shapes(data, file_name).items()
    }
