"""Which reader a model file needs, told by its contents, never by its suffix alone."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from errno import EFBIG
from pathlib import Path

from microc.errors import ModelError, OutputError, UnsupportedError, nearest_file
from microc.frontend import foreign
from microc.frontend.archive import HDF5, ZIP
from microc.graph.file import is_graph_file
from microc.graph.ir import Graph
from microc.reading import read_bytes

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
        found = _archive(data, name, input_shapes)
        if found is not None:
            return found
    if data.startswith(HDF5):
        from microc.frontend.keras import reader as keras_reader

        return keras_reader.read(data, name, input_shapes)
    from microc.frontend.trees import lightgbm, sklearn, xgboost

    if lightgbm.is_lightgbm(data) or xgboost.is_xgboost(data):
        return sklearn.read_file(data, name, input_shapes)
    _refuse_foreign(data, name)
    from microc.frontend.onnx import reader as onnx_reader
    from microc.frontend.onnx.file import NotOnnxError

    try:
        return onnx_reader.read(data, name, input_shapes)
    except NotOnnxError:
        if Path(name).suffix.lower() == ".onnx":
            raise
    raise foreign.refusal(foreign.by_name(name), name, name)


def _archive(data: bytes, name: str, input_shapes: Mapping[str, tuple[int, ...]]) -> Graph | None:
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
            raise foreign.folder(path)
        data = read_bytes(path, MAX_FILE_BYTES)
    except OSError as error:
        if error.errno == EFBIG:
            what = f"more than {MAX_FILE_BYTES} bytes are no microcontroller's network"
            raise UnsupportedError(what, where=path.name) from error
        if not path.exists():
            hint = nearest_file(path) or f"give the path of a model: {foreign.READ}"
            raise OutputError(f"there is no model file {path}", where=str(path), hint=hint) from error
        hint = f"make it readable: chmod u+r {shlex.quote(str(path))}"
        raise OutputError(f"cannot read the model: {error.strerror}", where=str(path), hint=hint) from error
    if not data:
        raise ModelError("the model file is empty", where=path.name, hint=AGAIN)
    return data


def _refuse_foreign(data: bytes, name: str) -> None:
    """Say what a file is that some other tool wrote."""
    found = foreign.by_content(data)
    if found is not None:
        raise foreign.refusal(found, name, name)
    if Path(name).suffix.lower() in (".tflite", ".lite"):
        raise ModelError(
            "not a TFLite model: the identifier TFL3 is missing at byte 4",
            where=name,
            hint=AGAIN,
        )
