"""Archives of Keras models, HDF5 weights, legacy models."""

from __future__ import annotations

import io
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError, ToolError, UnsupportedError
from microc.frontend.budget import MAX_STORED, check_shape, members, read_json

# ---- Groups and arrays of an HDF5 file that lie in the file itself.
#
# HDF5 follows soft and external links, and reads data sets from other files (external storage, virtual data sets) wherever they
# say. A model's file has none of these: groups are linked directly, arrays are stored in the file, in the ways that come with
# HDF5.

_FILTERS = (1, 2, 3, 4, 5, 6, 32000)
"""Of HDF5 itself, and lzf: for others it looks for plugins to load."""
_MOST_TEXT = 1 << 24
"""Bytes of one attribute."""
BROKEN = (KeyError, OSError, TypeError, ValueError, RuntimeError, OverflowError, MemoryError)
"""What h5py raises for files that are damaged; MemoryError, too, for lengths that are none."""


@dataclass(slots=True)
class _Left:
    """Bytes of arrays that may still be read: many names may stand for one array."""

    bytes: int = MAX_STORED


@frozen
class Group:
    """A group of the file; all of a file share what is left to read."""

    held: Any
    file: str
    left: _Left

    @property
    def path(self) -> str:
        return str(self.held.name)

    def names(self) -> tuple[str, ...]:
        """What is in the group, in h5py's order."""
        try:
            return tuple(self.held)
        except BROKEN as error:
            raise self._broken(error) from error

    def group(self, name: str) -> Group | None:
        """A group inside of this one, None where there is none of that name."""
        import h5py

        found = self._linked(name)
        return Group(found, self.file, self.left) if isinstance(found, h5py.Group) else None

    def array(self, name: str, where: str) -> Array:
        """An array of numbers; ModelError where it is none, lies elsewhere or is too large."""
        import h5py

        data = self._linked(name)
        if not isinstance(data, h5py.Dataset):
            raise ModelError(f"the layer's weights cannot be read: {name!r} is no array", where=where)
        try:
            plist = data.id.get_create_plist()
            filters = {plist.get_filter(k)[0] for k in range(plist.get_nfilters())}
            shape, dtype = tuple(map(int, data.shape or ())), data.dtype
            if data.is_virtual or data.external or not filters <= set(_FILTERS) or data.shape is None:
                raise ModelError(f"{self.path}/{name} is stored elsewhere, or in a way of others", where=self.file)
            if dtype.kind not in "biuf" or dtype.itemsize > 8:
                raise ModelError(f"{self.path}/{name} holds {dtype}, no numbers", where=self.file)
            check_shape(shape, dtype.name, where)
            self.left.bytes -= data.size * dtype.itemsize
            if self.left.bytes < 0:
                raise UnsupportedError(f"the weights take more than {MAX_STORED} bytes", where=self.file)
            return np.asarray(data[()])
        except BROKEN as error:
            raise self._broken(error) from error

    def layer(self) -> str:
        """The name of the layer that the group is of, where its variables carry one."""
        import h5py

        held = self.group("vars")
        try:
            if held is None or "name" not in held.held.attrs:
                return ""
            kept = held.held.attrs.get_id("name")
            text = kept.shape == () and h5py.check_string_dtype(kept.dtype) is not None
            return str(held.held.attrs["name"]) if text else ""
        except BROKEN as error:
            raise self._broken(error) from error

    def texts(self, name: str) -> tuple[str, ...]:
        """The texts of an attribute, which Keras cuts into numbered ones where it is long; none where there is none."""
        return self._texts(name) or tuple(text for part in self._numbered(name) for text in self._texts(part))

    def _numbered(self, name: str) -> Iterator[str]:
        number = 0
        while f"{name}{number}" in self.held.attrs:
            yield f"{name}{number}"
            number += 1

    def _texts(self, name: str) -> tuple[str, ...]:
        import h5py

        try:
            if name not in self.held.attrs:
                return ()
            kept = self.held.attrs.get_id(name)
            shape, dtype = tuple(map(int, kept.shape or ())), kept.dtype
            if (dtype.kind != "S" and h5py.check_string_dtype(dtype) is None) or len(shape) > 1:
                return ()
            if prod(shape) * max(dtype.itemsize, 1) > _MOST_TEXT:
                raise ModelError(f"the attribute {name!r} of {self.path} is too long", where=self.file)
            found = np.asarray(self.held.attrs[name], object).reshape(-1)
            return tuple(_decoded(text) for text in found)
        except BROKEN as error:
            raise self._broken(error) from error

    def _linked(self, name: str) -> Any:
        """What a name stands for in this file; None where nothing does."""
        import h5py

        try:
            link = self.held.get(name, getlink=True)
            if link is not None and not isinstance(link, h5py.HardLink):
                raise ModelError(f"{self.path}/{name} is a link to elsewhere", where=self.file)
            return None if link is None else self.held[name]
        except BROKEN as error:
            raise self._broken(error) from error

    def _broken(self, error: Exception) -> ModelError:
        return ModelError(f"the weights cannot be read: {error}", where=f"{self.file} {self.path}")


def _decoded(text: Any) -> str:
    found = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogateescape")
    return found.decode("utf-8", "replace")


def stored_groups(data: bytes, file_name: str) -> Group:
    """The outermost group of an HDF5 file's bytes; ToolError without h5py, one of ``BROKEN`` where the file is damaged."""
    try:
        import h5py
    except ImportError as error:
        raise ToolError(
            "Keras models are read with h5py, which is not installed", where=file_name, hint="pip install microc[keras]"
        ) from error
    return Group(h5py.File(io.BytesIO(data), "r")["/"], file_name, _Left())


# ---- The archive of a Keras 3 model (``.keras``): its configuration as plain data, its weights as arrays. No code is
# run.

_FILE_CONFIG, _FILE_WEIGHTS = "config.json", "model.weights.h5"


def is_keras(data: bytes) -> bool:
    """Whether a zip archive's bytes hold a Keras 3 model."""
    return {_FILE_CONFIG, "metadata.json"} <= set(members(data))


class Weights:
    """One group of the weights' file: a layer's own arrays, and the groups of what is inside the layer."""

    def __init__(self, group: Group | None, where: str) -> None:
        self._group, self.where = group, where

    def arrays(self) -> tuple[Array, ...]:
        """The layer's variables in order."""
        held = self._group.group("vars") if self._group is not None else None
        if held is None:
            return ()
        return tuple(held.array(str(k), self.where) for k in range(len(held.names())))

    @property
    def path(self) -> str:
        """The group's place in the file, which no two layers have in common."""
        return self.where if self._group is None else self._group.path

    def inside(self, name: str) -> Weights:
        """A part that has a name in the layer (``cell``, ``forward_layer``)."""
        return Weights(self._group.group(name) if self._group is not None else None, self.where)

    def layers(self, layers: Sequence[Mapping[str, Any]]) -> dict[str, Weights]:
        """The weights of a model's layers by the layers' names.

        Groups carry the names; where they do not (early versions), they are called after the classes, numbered.
        """
        parts = self._group.group("layers") if self._group is not None else None
        held = {name: parts.group(name) for name in parts.names()} if parts is not None else {}
        named = {group.layer(): group for group in held.values() if group is not None}
        counted: Counter[str] = Counter()
        found = {}
        for layer in layers:
            stem, name = snake_case(layer["class_name"]), layer["config"]["name"]
            numbered = f"{stem}_{counted[stem]}" if counted[stem] else stem
            counted[stem] += 1
            found[name] = Weights(named.get(name) or held.get(numbered), name)
        return found


def snake_case(name: str) -> str:
    """A class's name as Keras spells it in paths."""
    name = re.sub(r"\W+", "", name)
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def decode_config(data: bytes, file_name: str) -> tuple[dict[str, Any], Weights]:
    """The model's configuration and weights; ModelError where the archive is broken, ToolError without h5py."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_STORED:
                raise UnsupportedError(f"the archive unfolds to more than {MAX_STORED} bytes", where=file_name)
            config, stored = (
                read_json(archive.read(_FILE_CONFIG), f"{file_name} {_FILE_CONFIG}"),
                archive.read(_FILE_WEIGHTS),
            )
        return config, Weights(stored_groups(stored, file_name), file_name)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, *BROKEN) as error:
        raise ModelError(f"the Keras archive is broken: {error}", where=file_name) from error


# ---- Whole models in HDF5 (``.h5``), as Keras 2 saves them and Keras 3 still can: the configuration is an attribute,
# and so are the names of layers and weights. No code is run.
#
# Of a layer that has layers inside, the file has one list of weights; their paths say whose each is.

_LEGACY_CONFIG, _LEGACY_WEIGHTS = "model_config", "model_weights"
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
    (text,) = root.texts(_LEGACY_CONFIG) or ("",)
    weights = root.group(_LEGACY_WEIGHTS)
    if not text or weights is None:
        raise ModelError(
            "an HDF5 file without a Keras model in it, perhaps its weights alone",
            where=file_name,
            hint="load them into the model, then: model.save('model.keras')",
        )
    config = read_json(text.encode(), f"{file_name} {_LEGACY_CONFIG}")
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
