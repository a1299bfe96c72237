"""The extents that a model file leaves open, by name: what its inputs are in terms of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from microc.frontend.archive import HDF5, ZIP
from microc.frontend.detect import contents, is_tflite
from microc.frontend.trees.lightgbm import is_lightgbm
from microc.frontend.trees.xgboost import is_xgboost
from microc.graph.file import is_graph_file

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
