"""Keras models in Keras, loaded in its safe mode and only where nothing but Keras is named in them."""

from __future__ import annotations

import io
import json
import tempfile
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from microc.driver.reference.runtime import Answer, RuntimeRefusal, flat, imported
from microc.dtypes import Array
from microc.errors import ModelError, ToolError
from microc.frontend.archive import HDF5

EXTRA = "pip install keras and a backend (torch, jax or tensorflow)"


class KerasModel:
    """A model. Its layers' results are shown under the layers' names where each layer is called once."""

    name = "keras"

    def __init__(self, model: Any, inside: bool = True) -> None:
        keras = imported("keras", "Keras", EXTRA)
        self.version = str(keras.__version__)
        self._model, self._inside = model, None
        if inside:
            self._show(keras)

    def _show(self, keras: Any) -> None:
        """The model that gives every layer's result, where it is a graph of layers."""
        model = self._model
        try:
            layers = [layer for layer in model.layers if len(layer._inbound_nodes) == 1]
            shown = {layer.name: layer.output for layer in layers if not isinstance(layer.output, (list, tuple, dict))}
            self._inside = keras.Model(model.inputs if len(model.inputs) > 1 else model.inputs[0], shown)
        except Exception:  # noqa: BLE001 - a model that is no graph of layers: only its outputs are compared
            self._inside = None

    def run(self, arrays: Sequence[Array]) -> Answer:
        given = list(arrays) if len(arrays) > 1 else arrays[0]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about one input that is given without a list around it
                outputs = tuple(map(_array, flat(self._model(given, training=False))))
                found: dict[str, Any] = {} if self._inside is None else self._inside(given, training=False)
        except Exception as error:
            raise RuntimeRefusal(str(error)) from error
        return Answer(outputs, {name: _array(value) for name, value in found.items()})

    def reset(self) -> None:
        """Layers that keep state are refused when they are read."""


def loaded(data: bytes, file: str) -> KerasModel:
    """The model of a ``.keras`` file. ToolError for HDF5, ModelError where its configuration names anything that is not
    Keras's own."""
    if data.startswith(HDF5):
        raise ToolError(
            "Keras loads .h5 files without its safe mode, so that they may run code",
            where=file,
            hint="load it yourself and give the object: microc.verify(keras.models.load_model(path))",
        )
    keras = imported("keras", "Keras", EXTRA)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        foreign = _foreign(json.loads(archive.read("config.json")))
    if foreign:
        raise ModelError(
            f"the model names {foreign[0]!r}, which is not Keras's own",
            where=file,
            hint="load it yourself and give the object: microc.verify(model)",
        )
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        path = Path(folder) / "model.keras"
        path.write_bytes(data)
        try:
            return KerasModel(keras.saving.load_model(path, compile=False, safe_mode=True))
        except Exception as error:
            raise ToolError(f"Keras does not load the model: {error}", where=file) from error


def _foreign(config: Any) -> list[str]:
    """Modules and registered classes of others that a configuration names, which loading would look up."""
    if isinstance(config, list):
        return [name for item in config for name in _foreign(item)]
    if not isinstance(config, dict):
        return []
    named = [str(config[key]) for key in ("module", "registered_name") if config.get(key) is not None]
    own = ("keras", "builtins")
    found = [
        name for name in named if ">" in name or ("module" in config and not str(config["module"]).startswith(own))
    ]
    return found + [name for value in config.values() for name in _foreign(value)]


def _array(value: Any) -> Array:
    """A tensor of any backend."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value)
