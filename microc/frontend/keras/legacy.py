"""Whole models in HDF5 (``.h5``), as Keras 2 saves them and Keras 3 still can: the configuration is an attribute, and so are the
names of layers and weights. No code is run.

Of a layer that has layers inside, the file has one list of weights; their paths say whose each is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from microc.dtypes import Array
from microc.errors import ModelError
from microc.frontend.budget import read_json
from microc.frontend.keras.weights import BROKEN, Group, stored_groups
from microc.frozen import frozen

_CONFIG, _WEIGHTS = "model_config", "model_weights"
_PARTS: Mapping[str, str] = {
    "query_dense": "query",
    "key_dense": "key",
    "value_dense": "value",
    "output_dense": "attention_output",
}
"""Parts of a layer by what paths call them, where that is not the part's own name."""
_HALVES = ("forward_layer", "backward_layer")


@frozen
class LegacyWeights:
    """The weights of a layer, in order: of each its path, and the group that holds it."""

    held: tuple[tuple[str, Group], ...]
    where: str

    def arrays(self) -> tuple[Array, ...]:
        return tuple(_array(group, name, self.where) for name, group in self.held)

    @property
    def path(self) -> str:
        return self.where

    def inside(self, name: str) -> LegacyWeights:
        """A part of the layer. Both directions of a sequence have as many weights; cells and wrapped layers have all."""
        name = name.removeprefix("_")
        if name in _HALVES:
            half, second = len(self.held) // 2, name == _HALVES[1]
            return LegacyWeights(self.held[half:] if second else self.held[:half], f"{self.where}/{name}")
        return self._called(_PARTS[name]) if name in _PARTS else self

    def layers(self, layers: Sequence[Mapping[str, Any]]) -> dict[str, LegacyWeights]:
        """The weights of a model's layers by the layers' names."""
        return {layer["config"]["name"]: self._called(layer["config"]["name"]) for layer in layers}

    def _called(self, name: str) -> LegacyWeights:
        return LegacyWeights(tuple(each for each in self.held if name in each[0].split("/")[:-1]), name)


@frozen
class LegacyFile:
    """The weights of a whole file: a group for each of the model's own layers."""

    groups: Mapping[str, Group]

    def layers(self, layers: Sequence[Mapping[str, Any]]) -> dict[str, LegacyWeights]:
        """The weights of the layers by their names; none for a layer without a group."""
        found = {}
        for name in (layer["config"]["name"] for layer in layers):
            group = self.groups.get(name)
            held = () if group is None else tuple((path, group) for path in group.texts("weight_names"))
            found[name] = LegacyWeights(held, name)
        return found


def _array(group: Group, path: str, where: str) -> Array:
    *folders, name = path.split("/")
    inner: Group | None = group
    for folder in folders:
        inner = inner.group(folder) if inner is not None else None
    if inner is None:
        raise ModelError(f"the weight {path!r} is missing", where=where)
    return inner.array(name, where)


def decode(data: bytes, file_name: str) -> tuple[dict[str, Any], LegacyFile]:
    """The model's configuration and weights; ModelError where the file is broken or holds no whole model."""
    try:
        root = stored_groups(data, file_name)
    except BROKEN as error:
        raise ModelError(f"the HDF5 file is broken: {error}", where=file_name) from error
    (text,) = root.texts(_CONFIG) or ("",)
    weights = root.group(_WEIGHTS)
    if not text or weights is None:
        raise ModelError(
            "an HDF5 file without a Keras model in it, perhaps its weights alone",
            where=file_name,
            hint="load them into the model, then: model.save('model.keras')",
        )
    config = read_json(text.encode(), f"{file_name} {_CONFIG}")
    held = {name: weights.group(name) for name in weights.names()}
    groups = {name: group for name, group in held.items() if group is not None}
    return modern(config), LegacyFile(groups)


def modern(config: Any) -> Any:
    """A configuration with Keras 2's calls as Keras 3 writes them: lists of [layer, call, place, keywords] become arguments."""
    if isinstance(config, list):
        return [modern(each) for each in config]
    if not isinstance(config, dict):
        return config
    found = {name: modern(value) for name, value in config.items() if name != "inbound_nodes"}
    if found.get("class_name") == "Sequential" and isinstance(found.get("config"), list):  # before Keras 2.2.3
        found["config"] = {"name": "sequential", "layers": found["config"]}
    if "inbound_nodes" in config:
        found["inbound_nodes"] = [node if isinstance(node, dict) else _call(node) for node in config["inbound_nodes"]]
    return found


def _call(node: Sequence[Any]) -> dict[str, Any]:
    """What a layer was called with once; a call on several tensors has one entry for each."""
    entries = [node] if node and isinstance(node[0], str) else list(node)
    operands = [_tensor(entry) for entry in entries]
    keywords: dict[str, Any] = {}
    for entry in entries:
        if len(entry) > 3:
            keywords |= {name: _operand(value) for name, value in entry[3].items()}
    return {"args": operands if len(operands) == 1 else [operands], "kwargs": keywords}


def _operand(value: Any) -> Any:
    """A tensor where a keyword names one: [layer, call, place]."""
    is_tensor = isinstance(value, list) and len(value) >= 3 and isinstance(value[0], str) and _are_whole(value[1:3])
    return _tensor(value) if is_tensor else value


def _are_whole(values: Iterable[Any]) -> bool:
    return all(isinstance(each, int) for each in values)


def _tensor(entry: Sequence[Any]) -> dict[str, Any]:
    return {"class_name": "__keras_tensor__", "config": {"keras_history": list(entry[:3])}}
