"""Which reader a model file needs, told by its contents, never by its suffix alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from microc.errors import ModelError, OutputError
from microc.graph.file import is_graph_file
from microc.graph.ir import Graph

MAX_FILE_BYTES = 256 << 20
_FOREIGN = (
    (b"PK\x03\x04", "a zip archive (Keras 3 or PyTorch)"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file (Keras)"),
    (b"\x80\x02", "a Python pickle (PyTorch)"),
)


def load(path: Path, input_shapes: Mapping[str, tuple[int, ...]] = {}) -> Graph:
    """Read a TFLite or ONNX model file, or a graph file that ``microc import`` wrote.

    ``input_shapes`` binds unknown extents of inputs by name. Raises OutputError where the file cannot be read,
    ModelError (or UnsupportedError) where it is no model that microc understands.
    """
    data = _contents(path)
    if is_tflite(data):
        from microc.frontend import tflite

        return tflite.read(data, path.name, input_shapes)
    if is_graph_file(data):
        from microc.frontend import graph_file

        return graph_file.read(data, path.name, input_shapes)
    _refuse_foreign(data, path)
    from microc.frontend import onnx_reader

    return onnx_reader.read(data, path.name, input_shapes)


def is_tflite(data: bytes) -> bool:
    """Whether the file carries TFLite's identifier."""
    return data[4:8] == b"TFL3"


def _contents(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ModelError(f"{size} bytes are too many for a microcontroller's network", where=path.name)
        data = path.read_bytes()
    except OSError as error:
        raise OutputError(f"cannot read the model: {error.strerror}", where=str(path)) from error
    if not data:
        raise ModelError("the model file is empty", where=path.name)
    return data


def _refuse_foreign(data: bytes, path: Path) -> None:
    """Say what a file is that some other tool wrote."""
    for start, what in _FOREIGN:
        if data.startswith(start):
            raise ModelError(
                f"this is {what}, not a TFLite or ONNX model",
                where=path.name,
                hint="convert it: TFLite from Keras, ONNX from PyTorch",
            )
    if path.suffix.lower() in (".tflite", ".lite"):
        raise ModelError(
            "not a TFLite model: the identifier TFL3 is missing at byte 4",
            where=path.name,
            hint="copy or export the model again",
        )
