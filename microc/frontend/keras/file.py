"""Archives of Keras models (``.keras``), HDF5 weights, and whole models in HDF5."""

from __future__ import annotations

import io
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError, ToolError, UnsupportedError
from microc.frontend.model_limits import MAX_STORED, archive_names, check_shape, read_json

# ---- Groups and arrays that are stored in the HDF5 file itself.
#
# HDF5 follows soft and external links, and reads data sets from any other file that they name (external storage, virtual data
# sets). A model's file needs none of these: groups are hard links, arrays are stored in the file, with HDF5's own filters. All
# else is refused.

_FILTERS = (1, 2, 3, 4, 5, 6, 32000)
"""Filters that HDF5 itself brings, and lzf; for others it would load plugins."""
_MOST_TEXT = 1 << 24
"""Bytes of one attribute."""
BROKEN = (KeyError, OSError, TypeError, ValueError, RuntimeError, OverflowError, MemoryError)
"""Exceptions that h5py raises for damaged files; MemoryError comes from invalid lengths."""


@dataclass(slots=True)
class _ReadBudget:
    """The number of bytes of arrays that may still be read. Several names may refer to one array, so every read counts."""

    bytes: int = MAX_STORED


@frozen
class Group:
    """A group of an HDF5 file. All groups of a file share one budget of bytes to read."""

    node: Any
    file: str
    left: _ReadBudget

    @property
    def path(self) -> str:
        return str(self.node.name)

    def names(self) -> tuple[str, ...]:
        """Return the names of the group's members, in h5py's order."""
        try:
            return tuple(self.node)
        except BROKEN as error:
            raise self._damage_error(error) from error

    def group(self, name: str) -> Group | None:
        """Return a group inside of this one, None if there is none of that name."""
        import h5py

        member = self._find_member(name)
        return Group(member, self.file, self.left) if isinstance(member, h5py.Group) else None

    def array(self, name: str, where: str) -> Array:
        """Return an array of numbers; ModelError if the member is none, is stored outside of the file, or is too large."""
        import h5py

        data = self._find_member(name)
        if not isinstance(data, h5py.Dataset):
            raise ModelError(f"the layer's weights cannot be read: {name!r} is no array (HDF5 dataset)", where=where)
        try:
            plist = data.id.get_create_plist()
            filters = {plist.get_filter(k)[0] for k in range(plist.get_nfilters())}
            shape, dtype = tuple(map(int, data.shape or ())), data.dtype
            if data.is_virtual or data.external or not filters <= set(_FILTERS) or data.shape is None:
                what = f"{self.path}/{name} is stored outside the file or with a filter that HDF5 does not include"
                raise ModelError(what, where=self.file, hint="save the model again: model.save('model.keras')")
            if dtype.kind not in "biuf" or dtype.itemsize > 8:
                raise ModelError(
                    f"{self.path}/{name} holds {dtype}, expected numbers of at most 8 bytes", where=self.file
                )
            check_shape(shape, dtype.name, where)
            self.left.bytes -= data.size * dtype.itemsize
            if self.left.bytes < 0:
                raise UnsupportedError(f"the weights take more than {MAX_STORED} bytes", where=self.file)
            return np.asarray(data[()])
        except BROKEN as error:
            raise self._damage_error(error) from error

    def layer(self) -> str:
        """Return the layer's name that the group's variables carry, empty if they carry none."""
        import h5py

        variables = self.group("vars")
        try:
            if variables is None or "name" not in variables.node.attrs:
                return ""
            attribute = variables.node.attrs.get_id("name")
            is_text = attribute.shape == () and h5py.check_string_dtype(attribute.dtype) is not None
            return str(variables.node.attrs["name"]) if is_text else ""
        except BROKEN as error:
            raise self._damage_error(error) from error

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the strings in an attribute; empty if it is absent. Keras splits a long one into numbered attributes."""
        return self._attribute_texts(name) or tuple(
            text for part in self._numbered_attributes(name) for text in self._attribute_texts(part)
        )

    def _numbered_attributes(self, name: str) -> Iterator[str]:
        """Yield the names of the numbered attributes that a long one was split into."""
        number = 0
        while f"{name}{number}" in self.node.attrs:
            yield f"{name}{number}"
            number += 1

    def _attribute_texts(self, name: str) -> tuple[str, ...]:
        """Return the strings in one attribute; empty if it is absent or holds no strings."""
        import h5py

        try:
            if name not in self.node.attrs:
                return ()
            attribute = self.node.attrs.get_id(name)
            shape, dtype = tuple(map(int, attribute.shape or ())), attribute.dtype
            if (dtype.kind != "S" and h5py.check_string_dtype(dtype) is None) or len(shape) > 1:
                return ()
            if prod(shape) * max(dtype.itemsize, 1) > _MOST_TEXT:
                raise ModelError(
                    f"the attribute {name!r} of {self.path} is too long, expected at most {_MOST_TEXT} bytes",
                    where=self.file,
                )
            values = np.asarray(self.node.attrs[name], object).reshape(-1)
            return tuple(_decode_text(text) for text in values)
        except BROKEN as error:
            raise self._damage_error(error) from error

    def _find_member(self, name: str) -> Any:
        """Return the group or array of a name, None if there is none; ModelError for a soft or external link."""
        import h5py

        try:
            link = self.node.get(name, getlink=True)
            if link is not None and not isinstance(link, h5py.HardLink):
                what = f"{self.path}/{name} is a soft or external link, expected data in the file"
                raise ModelError(what, where=self.file, hint="save the model again: model.save('model.keras')")
            return None if link is None else self.node[name]
        except BROKEN as error:
            raise self._damage_error(error) from error

    def _damage_error(self, error: Exception) -> ModelError:
        """Return the error for an exception of h5py, which means that the file is damaged."""
        return ModelError(f"the weights cannot be read: {error}", where=f"{self.file} {self.path}")


def _decode_text(text: Any) -> str:
    """Return a string of an HDF5 file as text; bytes that are no UTF-8 are replaced."""
    raw = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogateescape")
    return raw.decode("utf-8", "replace")


def open_hdf5(data: bytes, file_name: str) -> Group:
    """Open an HDF5 file's bytes and return the root group; ToolError without h5py, one of ``BROKEN`` if the file is damaged."""
    try:
        import h5py
    except ImportError as error:
        raise ToolError(
            "Keras models are read with h5py, which is not installed", where=file_name, hint="pip install microc[keras]"
        ) from error
    return Group(h5py.File(io.BytesIO(data), "r")["/"], file_name, _ReadBudget())


# ---- The archive of a Keras 3 model (``.keras``): configuration as plain data, weights as arrays. No code is run.

_FILE_CONFIG, _FILE_WEIGHTS = "config.json", "model.weights.h5"


def is_keras(data: bytes) -> bool:
    """Test whether a zip archive's bytes hold a Keras 3 model."""
    return {_FILE_CONFIG, "metadata.json"} <= set(archive_names(data))


class Weights:
    """One group of the weights' file: a layer's own arrays, and the groups of layers inside of it."""

    def __init__(self, group: Group | None, where: str) -> None:
        self._group, self.where = group, where

    def arrays(self) -> tuple[Array, ...]:
        """Return the layer's variables in order."""
        variables = self._group.group("vars") if self._group is not None else None
        if variables is None:
            return ()
        return tuple(variables.array(str(k), self.where) for k in range(len(variables.names())))

    @property
    def path(self) -> str:
        """The group's path in the file, which no two layers share."""
        return self.where if self._group is None else self._group.path

    def inside(self, name: str) -> Weights:
        """Return the weights of a named part of the layer (``cell``, ``forward_layer``)."""
        return Weights(self._group.group(name) if self._group is not None else None, self.where)

    def layers(self, layers: Sequence[Mapping[str, Any]]) -> dict[str, Weights]:
        """Return the weights of a model's layers, by name.

        Groups carry the names of layers. In files of early versions they do not, and are called after the classes, numbered.
        """
        parts = self._group.group("layers") if self._group is not None else None
        groups = {name: parts.group(name) for name in parts.names()} if parts is not None else {}
        by_layer_name = {group.layer(): group for group in groups.values() if group is not None}
        class_counts: Counter[str] = Counter()
        weights = {}
        for layer in layers:
            stem, name = snake_case(layer["class_name"]), layer["config"]["name"]
            group_name = f"{stem}_{class_counts[stem]}" if class_counts[stem] else stem
            class_counts[stem] += 1
            weights[name] = Weights(by_layer_name.get(name) or groups.get(group_name), name)
        return weights


def snake_case(name: str) -> str:
    """Return a class's name as Keras writes it in paths."""
    name = re.sub(r"\W+", "", name)
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def decode_keras_archive(data: bytes, file_name: str) -> tuple[dict[str, Any], Weights]:
    """Return the configuration and the weights of a ``.keras`` archive.

    ModelError if the archive is broken, ToolError without h5py."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_STORED:
                raise UnsupportedError(f"the archive unfolds to more than {MAX_STORED} bytes", where=file_name)
            config, weights = (
                read_json(archive.read(_FILE_CONFIG), f"{file_name} {_FILE_CONFIG}"),
                archive.read(_FILE_WEIGHTS),
            )
        return config, Weights(open_hdf5(weights, file_name), file_name)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, *BROKEN) as error:
        raise ModelError(f"the Keras archive is broken: {error}", where=file_name) from error


# ---- Whole models in HDF5 (``.h5``), as Keras 2 saves them and Keras 3 still can: the configuration and the names of layers and
# weights are attributes. No code is run.
#
# A layer with layers inside has one list of weights; the path of each names the inner layer.

_LEGACY_CONFIG, _LEGACY_WEIGHTS = "model_config", "model_weights"
_PARTS: Mapping[str, str] = {
    "query_dense": "query",
    "key_dense": "key",
    "value_dense": "value",
    "output_dense": "attention_output",
}
"""Parts of a layer by their names in paths, where these differ from the part's own name."""
_HALVES = ("forward_layer", "backward_layer")


@frozen
class LegacyWeights:
    """The weights of a layer in an HDF5 model: the path of each, in order, and the group that contains it."""

    entries: tuple[tuple[str, Group], ...]
    where: str

    def arrays(self) -> tuple[Array, ...]:
        return tuple(_array_at_path(group, name, self.where) for name, group in self.entries)

    @property
    def path(self) -> str:
        return self.where

    def inside(self, name: str) -> LegacyWeights:
        """Return the weights of a part of the layer.

        Both directions of a bidirectional layer have half of the weights each; cells and wrapped layers have all.
        """
        name = name.removeprefix("_")
        if name in _HALVES:
            half, second = len(self.entries) // 2, name == _HALVES[1]
            return LegacyWeights(self.entries[half:] if second else self.entries[:half], f"{self.where}/{name}")
        return self._weights_of_layer(_PARTS[name]) if name in _PARTS else self

    def layers(self, layers: Sequence[Mapping[str, Any]]) -> dict[str, LegacyWeights]:
        """Return the weights of a model's layers, by name."""
        return {layer["config"]["name"]: self._weights_of_layer(layer["config"]["name"]) for layer in layers}

    def _weights_of_layer(self, name: str) -> LegacyWeights:
        """Return the weights whose path contains the name of a layer."""
        return LegacyWeights(tuple(entry for entry in self.entries if name in entry[0].split("/")[:-1]), name)


@frozen
class LegacyFile:
    """The weights in an HDF5 model: a group for each of the model's layers."""

    groups: Mapping[str, Group]

    def layers(self, layers: Sequence[Mapping[str, Any]]) -> dict[str, LegacyWeights]:
        """Return the weights of the layers, by name; empty for a layer without a group."""
        weights = {}
        for name in (layer["config"]["name"] for layer in layers):
            group = self.groups.get(name)
            entries = () if group is None else tuple((path, group) for path in group.texts("weight_names"))
            weights[name] = LegacyWeights(entries, name)
        return weights


def _array_at_path(group: Group, path: str, where: str) -> Array:
    """Return the array at a path below a group; ModelError if it is missing."""
    *folders, name = path.split("/")
    inner: Group | None = group
    for folder in folders:
        inner = inner.group(folder) if inner is not None else None
    if inner is None:
        raise ModelError(f"the weight {path!r} is missing", where=where)
    return inner.array(name, where)


def decode_hdf5_model(data: bytes, file_name: str) -> tuple[dict[str, Any], LegacyFile]:
    """Return the configuration and the weights of a model in HDF5; ModelError if the file is broken or has no whole
    model."""
    try:
        root = open_hdf5(data, file_name)
    except BROKEN as error:
        raise ModelError(f"the HDF5 file is broken: {error}", where=file_name) from error
    (text,) = root.texts(_LEGACY_CONFIG) or ("",)
    weights = root.group(_LEGACY_WEIGHTS)
    if not text or weights is None:
        raise ModelError(
            "the HDF5 file holds no Keras model, perhaps its weights alone",
            where=file_name,
            hint="load them into the model, then: model.save('model.keras')",
        )
    config = read_json(text.encode(), f"{file_name} {_LEGACY_CONFIG}")
    groups_or_arrays = {name: weights.group(name) for name in weights.names()}
    groups = {name: group for name, group in groups_or_arrays.items() if group is not None}
    return modernise_config(config), LegacyFile(groups)


def modernise_config(config: Any) -> Any:
    """Return a configuration with Keras 2's calls converted to Keras 3's: lists of [layer, call, tensor, keywords] become
    arguments."""
    if isinstance(config, list):
        return [modernise_config(item) for item in config]
    if not isinstance(config, dict):
        return config
    converted = {name: modernise_config(value) for name, value in config.items() if name != "inbound_nodes"}
    if converted.get("class_name") == "Sequential" and isinstance(converted.get("config"), list):  # before Keras 2.2.3
        converted["config"] = {"name": "sequential", "layers": converted["config"]}
    if "inbound_nodes" in config:
        converted["inbound_nodes"] = [
            node if isinstance(node, dict) else _convert_call(node) for node in config["inbound_nodes"]
        ]
    return converted


def _convert_call(node: Sequence[Any]) -> dict[str, Any]:
    """Convert one call of a layer; a call on several tensors has one entry for each."""
    entries = [node] if node and isinstance(node[0], str) else list(node)
    operands = [_convert_tensor(entry) for entry in entries]
    keywords: dict[str, Any] = {}
    for entry in entries:
        if len(entry) > 3:
            keywords |= {name: _convert_keyword(value) for name, value in entry[3].items()}
    return {"args": operands if len(operands) == 1 else [operands], "kwargs": keywords}


def _convert_keyword(value: Any) -> Any:
    """Convert a keyword's value if it refers to a tensor: [layer, call, tensor]."""
    is_tensor = (
        isinstance(value, list)
        and len(value) >= 3
        and isinstance(value[0], str)
        and all(isinstance(index, int) for index in value[1:3])
    )
    return _convert_tensor(value) if is_tensor else value


def _convert_tensor(entry: Sequence[Any]) -> dict[str, Any]:
    return {"class_name": "__keras_tensor__", "config": {"keras_history": list(entry[:3])}}
