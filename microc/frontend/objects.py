# SPDX-License-Identifier: Apache-2.0
"""Convert models that are Python objects to graphs: estimators, exported programs, Keras models, ONNX protobufs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from microc.errors import UsageError
from microc.frontend.torch import reader
from microc.graph.ir import Graph


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
    if "torch" in packages and hasattr(model, "graph_signature"):
        from microc.frontend.torch import reader as torch_export

        if input_shapes:
            raise UsageError(
                "input_shapes: an exported program has fixed shapes",
                hint="export the program again with example inputs of this shape",
            )
        return torch_export.read_program(model)
    if "keras" in packages and hasattr(model, "save"):
        return _read_keras_object(model, input_shapes)
    if "onnx" in packages and hasattr(model, "SerializeToString") and hasattr(model, "graph"):
        return _read_model_bytes(model.SerializeToString(), model.graph.name or "model", input_shapes)
    if reader.is_module(model):
        if input_shapes:
            raise UsageError(
                "input_shapes cannot be combined with a PyTorch module: example_inputs define the shapes",
                hint="leave out input_shapes",
            )
        from microc.frontend.torch import reader as torch_export

        program = reader.export_module(model, example_inputs)
        reader.warn_training_mode(model)
        return torch_export.read_program(program, type(model).__name__)
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
    from microc.frontend import detect

    if not 0 < len(data) <= detect.MAX_FILE_BYTES:
        raise UsageError(
            f"got a model of {len(data)} bytes, expected 1..{detect.MAX_FILE_BYTES}",
            hint="give the bytes of a whole model file",
        )
    return detect.read_model_data(data, file_name, input_shapes)


def _read_keras_object(model: Any, input_shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """Read a Keras model: save it to a temporary file, then read this file."""
    from microc.frontend.keras import reader as keras_reader

    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        return keras_reader.read_keras(path.read_bytes(), str(model.name), input_shapes)
