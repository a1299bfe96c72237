# SPDX-License-Identifier: Apache-2.0
"""Checked access to the files of Keras models: ``.keras`` archives with HDF5 weights, and whole models in HDF5."""

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
from microc.frontend.model_limits import MAX_STORED, check_shape, list_archive_members, parse_model_json

# ---- Checked access to the groups and arrays of an HDF5 file.
#
# HDF5 can follow soft and external links, and can read data sets from other files (external storage, virtual data sets). The
# file of a model needs none of these: its groups are hard links, and its arrays are stored in the file, with HDF5's own
# filters. Anything else is refused, because it could read other files of the machine.

_FILTERS = (1, 2, 3, 4, 5, 6, 32000)
"""Numbers of allowed compression filters: those included in HDF5, and lzf. HDF5 would load plugins for other
filters."""
_MOST_TEXT = 1 << 24
"""Maximum number of bytes of an HDF5 attribute."""
BROKEN = (KeyError, OSError, TypeError, ValueError, RuntimeError, OverflowError, MemoryError)
"""Exceptions that h5py raises for damaged files, among them MemoryError for invalid lengths."""


@dataclass(slots=True)
class _ReadBudget:
    """Number of bytes of arrays that may still be read from an HDF5 file.

    Every read counts, because many names can refer to the same array."""

    bytes_left: int = MAX_STORED


@frozen
class Hdf5Group:
    """A group of an HDF5 file: a folder of arrays and groups, with attributes.

    ``node`` is h5py's group, ``file`` the file's name for errors. ``read_budget`` is the file's reading budget, which
    all groups of the file share."""

    node: Any
    file: str
    read_budget: _ReadBudget

    @property
    def path(self) -> str:
        return str(self.node.name)

    def list_member_names(self) -> tuple[str, ...]:
        """Return the names of the group's arrays and subgroups, in h5py's order."""
        try:
            return tuple(self.node)
        except BROKEN as error:
            raise self._make_corrupt_file_error(error) from error

    def find_group(self, member_name: str) -> Hdf5Group | None:
        """Return the subgroup ``member_name``; None if there is no subgroup of this name."""
        import h5py

        member = self._find_member(member_name)
        return Hdf5Group(member, self.file, self.read_budget) if isinstance(member, h5py.Group) else None

    def read_array(self, member_name: str, where: str) -> Array:
        """Read the array ``member_name``.

        ModelError if it is no array of numbers, or is stored outside of the file; UnsupportedError if the file's arrays
        are too large."""
        import h5py

        data = self._find_member(member_name)
        if not isinstance(data, h5py.Dataset):
            raise ModelError(
                f"weight {member_name!r}: got {'nothing' if data is None else type(data).__name__}, expected an HDF5 dataset",
                where=where,
            )
        try:
            plist = data.id.get_create_plist()
            filters = {plist.get_filter(k)[0] for k in range(plist.get_nfilters())}
            shape, dtype = tuple(map(int, data.shape or ())), data.dtype
            if data.is_virtual or data.external or not filters <= set(_FILTERS) or data.shape is None:
                what = (
                    f"{self.path}/{member_name} is stored outside the file or with a filter that HDF5 does not include"
                )
                raise ModelError(what, where=self.file, hint="save the model again: model.save('model.keras')")
            if dtype.kind not in "biuf" or dtype.itemsize > 8:
                raise ModelError(
                    f"{self.path}/{member_name}: got dtype {dtype}, expected numbers of at most 8 bytes",
                    where=self.file,
                )
            check_shape(shape, dtype.name, where)
            self.read_budget.bytes_left -= data.size * dtype.itemsize
            if self.read_budget.bytes_left < 0:
                raise UnsupportedError(
                    f"weights: got more than {MAX_STORED} bytes in total, expected at most {MAX_STORED}",
                    where=self.file,
                )
            return np.asarray(data[()])
        except BROKEN as error:
            raise self._make_corrupt_file_error(error) from error

    def read_layer_name(self) -> str:
        """Return the name of the layer whose weights the group contains, from an attribute of its variables; "" if
        absent."""
        import h5py

        variables = self.find_group("vars")
        try:
            if variables is None or "name" not in variables.node.attrs:
                return ""
            attribute = variables.node.attrs.get_id("name")
            is_text = attribute.shape == () and h5py.check_string_dtype(attribute.dtype) is not None
            return str(variables.node.attrs["name"]) if is_text else ""
        except BROKEN as error:
            raise self._make_corrupt_file_error(error) from error

    def read_text_attribute(self, attribute_name: str) -> tuple[str, ...]:
        """Return the strings in the attribute ``attribute_name``; () if the attribute is absent.

        Keras splits a long attribute into several attributes with numbered names; their strings are concatenated."""
        return self._read_single_text_attribute(attribute_name) or tuple(
            text
            for part in self._iterate_numbered_attributes(attribute_name)
            for text in self._read_single_text_attribute(part)
        )

    def _iterate_numbered_attributes(self, attribute_name: str) -> Iterator[str]:
        """Yield the names of the numbered attributes into which Keras has split the long attribute
        ``attribute_name``."""
        number = 0
        while f"{attribute_name}{number}" in self.node.attrs:
            yield f"{attribute_name}{number}"
            number += 1

    def _read_single_text_attribute(self, attribute_name: str) -> tuple[str, ...]:
        """Return the strings in one attribute; () if the attribute is absent or contains no strings."""
        import h5py

        try:
            if attribute_name not in self.node.attrs:
                return ()
            attribute = self.node.attrs.get_id(attribute_name)
            shape, dtype = tuple(map(int, attribute.shape or ())), attribute.dtype
            if (dtype.kind != "S" and h5py.check_string_dtype(dtype) is None) or len(shape) > 1:
                return ()
            if prod(shape) * max(dtype.itemsize, 1) > _MOST_TEXT:
                raise ModelError(
                    f"attribute {attribute_name!r} of {self.path} is too long; expected at most {_MOST_TEXT} bytes",
                    where=self.file,
                )
            values = np.asarray(self.node.attrs[attribute_name], object).reshape(-1)
            return tuple(_decode_text(text) for text in values)
        except BROKEN as error:
            raise self._make_corrupt_file_error(error) from error

    def _find_member(self, member_name: str) -> Any:
        """Return h5py's group or array ``member_name``; None if the group has no such member.

        ModelError for a soft or external link."""
        import h5py

        try:
            link = self.node.get(member_name, getlink=True)
            if link is not None and not isinstance(link, h5py.HardLink):
                what = f"{self.path}/{member_name} is a soft or external link, expected data in the file"
                raise ModelError(what, where=self.file, hint="save the model again: model.save('model.keras')")
            return None if link is None else self.node[member_name]
        except BROKEN as error:
            raise self._make_corrupt_file_error(error) from error

    def _make_corrupt_file_error(self, error: Exception) -> ModelError:
        """Return the ModelError that reports ``error``, an exception of h5py for a damaged file."""
        return ModelError(f"the weights cannot be read: {error}", where=f"{self.file} {self.path}")


def _decode_text(stored_text: Any) -> str:
    """Decode a string of an HDF5 file as UTF-8. Invalid bytes are replaced."""
    raw = stored_text if isinstance(stored_text, bytes) else str(stored_text).encode("utf-8", "surrogateescape")
    return raw.decode("utf-8", "replace")


def open_hdf5(data: bytes, file_name: str) -> Hdf5Group:
    """Open an HDF5 file from its bytes; return the root group.

    ToolError if h5py is not installed. h5py raises one of the exceptions ``BROKEN`` if the file is damaged."""
    try:
        import h5py
    except ImportError as error:
        raise ToolError(
            "Keras models are read with h5py, which is not installed",
            where=file_name,
            hint='pip install "microc[keras]"',
        ) from error
    return Hdf5Group(h5py.File(io.BytesIO(data), "r")["/"], file_name, _ReadBudget())


# ---- The archive of a Keras 3 model (``.keras``): a zip archive with the configuration as JSON and the weights in HDF5. No code
# of the file is run.

_FILE_CONFIG, _FILE_WEIGHTS = "config.json", "model.weights.h5"


def is_keras(data: bytes) -> bool:
    """Test whether ``data`` are the bytes of a zip archive with a Keras 3 model."""
    return {_FILE_CONFIG, "metadata.json"} <= set(list_archive_members(data))


class ArchiveWeights:
    """Weights of a layer or model in a ``.keras`` archive: a group of its HDF5 file, with the layer's own arrays and
    the groups of layers inside of the layer.

    ``group`` is None for a layer without weights; ``where`` is the layer's location for errors."""

    def __init__(self, group: Hdf5Group | None, where: str) -> None:
        self._group, self.where = group, where

    def arrays(self) -> tuple[Array, ...]:
        """Return the arrays of the layer's variables, in order."""
        variables = self._group.find_group("vars") if self._group is not None else None
        if variables is None:
            return ()
        return tuple(variables.read_array(str(k), self.where) for k in range(len(variables.list_member_names())))

    @property
    def path(self) -> str:
        """Path of the group in the file, or the layer's name if there is no group. It is different for every layer."""
        return self.where if self._group is None else self._group.path

    def weights_of_inner_layer(self, part_name: str) -> ArchiveWeights:
        """Return the weights of a layer inside of this layer, by its attribute name, such as ``cell`` or
        ``forward_layer``."""
        return ArchiveWeights(self._group.find_group(part_name) if self._group is not None else None, self.where)

    def weights_by_layer(self, layer_configs: Sequence[Mapping[str, Any]]) -> dict[str, ArchiveWeights]:
        """Return the weights of the layers of a model, by layer name.

        In current files an attribute of each group contains the name of its layer. In files of early versions the group
        itself is named after the layer's class, with a number."""
        parts = self._group.find_group("layers") if self._group is not None else None
        groups = {name: parts.find_group(name) for name in parts.list_member_names()} if parts is not None else {}
        by_layer_name = {group.read_layer_name(): group for group in groups.values() if group is not None}
        class_counts: Counter[str] = Counter()
        weights = {}
        for layer in layer_configs:
            stem, name = to_snake_case(layer["class_name"]), layer["config"]["name"]
            group_name = f"{stem}_{class_counts[stem]}" if class_counts[stem] else stem
            class_counts[stem] += 1
            weights[name] = ArchiveWeights(by_layer_name.get(name) or groups.get(group_name), name)
        return weights


def to_snake_case(class_name: str) -> str:
    """Convert a class name to snake case as Keras does for paths, such as Conv2DTranspose to ``conv2d_transpose``."""
    class_name = re.sub(r"\W+", "", class_name)
    class_name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", class_name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", class_name).lower()


def decode_keras_archive(data: bytes, file_name: str) -> tuple[dict[str, Any], ArchiveWeights]:
    """Decode a ``.keras`` archive from its bytes; return the model's configuration and its weights.

    ModelError if the archive is corrupt, ToolError if h5py is not installed."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_STORED:
                raise UnsupportedError(
                    f"archive: got more than {MAX_STORED} bytes after decompression, expected at most {MAX_STORED}",
                    where=file_name,
                )
            if missing := [name for name in (_FILE_CONFIG, _FILE_WEIGHTS) if name not in archive.namelist()]:
                raise ModelError(
                    f"the archive has no {missing[0]}; got {', '.join(archive.namelist()[:8]) or 'an empty archive'}",
                    where=file_name,
                    hint="save the model again: model.save('model.keras')",
                )
            where = f"{file_name} {_FILE_CONFIG}"
            config, weights = parse_model_json(archive.read(_FILE_CONFIG), where), archive.read(_FILE_WEIGHTS)
            if not isinstance(config, dict):
                raise ModelError(f"the configuration: got {config!r:.40}, expected an object of JSON", where=where)
        return config, ArchiveWeights(open_hdf5(weights, file_name), file_name)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, *BROKEN) as error:
        raise ModelError(f"the Keras archive is broken: {error}", where=file_name) from error


# ---- Whole models in HDF5 (``.h5``), which Keras 2 saves and Keras 3 still can. No code of the file is run.
#
# The configuration and the names of layers and weights are HDF5 attributes. A layer that contains other layers has one list of
# weights; the path of each weight contains the name of the inner layer.

_LEGACY_CONFIG, _LEGACY_WEIGHTS = "model_config", "model_weights"
_PARTS: Mapping[str, str] = {
    "query_dense": "query",
    "key_dense": "key",
    "value_dense": "value",
    "output_dense": "attention_output",
}
"""Names of inner layers in paths of weights, by the attribute name of the inner layer, where both differ."""
_HALVES = ("forward_layer", "backward_layer")


@frozen
class LegacyWeights:
    """Weights of a layer in a whole HDF5 model. ``paths_and_groups`` contains the path of each weight, in order, and
    the group that the path begins at."""

    paths_and_groups: tuple[tuple[str, Hdf5Group], ...]
    where: str

    def arrays(self) -> tuple[Array, ...]:
        return tuple(_read_array_at_path(group, name, self.where) for name, group in self.paths_and_groups)

    @property
    def path(self) -> str:
        return self.where

    def weights_of_inner_layer(self, part_name: str) -> LegacyWeights:
        """Return the weights of a layer inside of this layer.

        Each direction of a bidirectional layer has half of the weights. A cell or a wrapped layer has all weights of
        the layer around it."""
        part_name = part_name.removeprefix("_")
        if part_name in _HALVES:
            half, second = len(self.paths_and_groups) // 2, part_name == _HALVES[1]
            return LegacyWeights(
                self.paths_and_groups[half:] if second else self.paths_and_groups[:half], f"{self.where}/{part_name}"
            )
        return self._weights_of_layer(_PARTS[part_name]) if part_name in _PARTS else self

    def weights_by_layer(self, layer_configs: Sequence[Mapping[str, Any]]) -> dict[str, LegacyWeights]:
        """Return the weights of the layers of a model, by layer name."""
        return {layer["config"]["name"]: self._weights_of_layer(layer["config"]["name"]) for layer in layer_configs}

    def _weights_of_layer(self, layer_name: str) -> LegacyWeights:
        """Return the weights whose paths contain the folder ``layer_name``."""
        return LegacyWeights(
            tuple(entry for entry in self.paths_and_groups if layer_name in entry[0].split("/")[:-1]), layer_name
        )


@frozen
class LegacyModelWeights:
    """Weights of a whole HDF5 model: an HDF5 group for each layer, by layer name."""

    groups: Mapping[str, Hdf5Group]

    def weights_by_layer(self, layer_configs: Sequence[Mapping[str, Any]]) -> dict[str, LegacyWeights]:
        """Return the weights of the layers, by layer name. A layer without a group has no weights."""
        weights = {}
        for name in (layer["config"]["name"] for layer in layer_configs):
            group = self.groups.get(name)
            entries = (
                () if group is None else tuple((path, group) for path in group.read_text_attribute("weight_names"))
            )
            weights[name] = LegacyWeights(entries, name)
        return weights


def _read_array_at_path(group: Hdf5Group, path: str, where: str) -> Array:
    """Read the array at ``path`` below a group; ModelError if it is missing."""
    *folders, name = path.split("/")
    inner: Hdf5Group | None = group
    for folder in folders:
        inner = inner.find_group(folder) if inner is not None else None
    if inner is None:
        raise ModelError(f"the weight {path!r} is missing", where=where)
    return inner.read_array(name, where)


def decode_hdf5_model(data: bytes, file_name: str) -> tuple[dict[str, Any], LegacyModelWeights]:
    """Decode a whole model in HDF5 from its bytes; return the model's configuration and its weights.

    ModelError if the file is corrupt, or contains only weights."""
    try:
        root = open_hdf5(data, file_name)
    except BROKEN as error:
        raise ModelError(f"the HDF5 file is broken: {error}", where=file_name) from error
    (text,) = root.read_text_attribute(_LEGACY_CONFIG) or ("",)
    weights = root.find_group(_LEGACY_WEIGHTS)
    if not text or weights is None:
        raise ModelError(
            "HDF5 file: got no model_config or model_weights, expected a whole Keras model",
            where=file_name,
            hint="load the weights into the model, then: model.save('model.keras')",
        )
    config = parse_model_json(text.encode(), f"{file_name} {_LEGACY_CONFIG}")
    groups_or_arrays = {name: weights.find_group(name) for name in weights.list_member_names()}
    groups = {name: group for name, group in groups_or_arrays.items() if group is not None}
    return convert_keras2_config(config), LegacyModelWeights(groups)


def convert_keras2_config(config: Any) -> Any:
    """Convert the calls of layers in a configuration from Keras 2's format to Keras 3's; return the converted
    configuration.

    Keras 2 stores the operands of a call as lists [layer, call, tensor, keywords], Keras 3 as arguments and keyword
    arguments."""
    if isinstance(config, list):
        return [convert_keras2_config(item) for item in config]
    if not isinstance(config, dict):
        return config
    converted = {name: convert_keras2_config(value) for name, value in config.items() if name != "inbound_nodes"}
    if converted.get("class_name") == "Sequential" and isinstance(converted.get("config"), list):  # before Keras 2.2.3
        converted["config"] = {"name": "sequential", "layers": converted["config"]}
    if "inbound_nodes" in config:
        converted["inbound_nodes"] = [
            node if isinstance(node, dict) else _convert_keras2_call(node) for node in config["inbound_nodes"]
        ]
    return converted


def _convert_keras2_call(keras2_call: Sequence[Any]) -> dict[str, Any]:
    """Convert one call of a layer from Keras 2's format to Keras 3's. A call on several tensors is a list with an entry
    for each tensor."""
    entries = [keras2_call] if keras2_call and isinstance(keras2_call[0], str) else list(keras2_call)
    operands = [_convert_keras2_tensor(entry) for entry in entries]
    keywords: dict[str, Any] = {}
    for entry in entries:
        if len(entry) > 3:
            keywords |= {name: _convert_keras2_keyword(value) for name, value in entry[3].items()}
    return {"args": operands if len(operands) == 1 else [operands], "kwargs": keywords}


def _convert_keras2_keyword(value: Any) -> Any:
    """Convert the value of a keyword argument if it is a reference [layer, call, tensor] to a tensor; return others
    unchanged."""
    is_tensor = (
        isinstance(value, list)
        and len(value) >= 3
        and isinstance(value[0], str)
        and all(isinstance(index, int) for index in value[1:3])
    )
    return _convert_keras2_tensor(value) if is_tensor else value


def _convert_keras2_tensor(keras2_tensor: Sequence[Any]) -> dict[str, Any]:
    """Convert a reference [layer, call, tensor] to a tensor from Keras 2's format to Keras 3's."""
    return {"class_name": "__keras_tensor__", "config": {"keras_history": list(keras2_tensor[:3])}}
