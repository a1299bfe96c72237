"""The archive of a Keras 3 model (``.keras``): its configuration as plain data, its weights as arrays. No code is run."""

from __future__ import annotations

import io
import re
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from microc.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend.archive import members
from microc.frontend.budget import MAX_STORED, read_json
from microc.frontend.keras.weights import BROKEN, Group, stored_groups

_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"


def is_keras(data: bytes) -> bool:
    """Whether a zip archive's bytes hold a Keras 3 model."""
    return {_CONFIG, "metadata.json"} <= set(members(data))


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


def decode(data: bytes, file_name: str) -> tuple[dict[str, Any], Weights]:
    """The model's configuration and weights; ModelError where the archive is broken, ToolError without h5py."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_STORED:
                raise UnsupportedError(f"the archive unfolds to more than {MAX_STORED} bytes", where=file_name)
            config, stored = read_json(archive.read(_CONFIG), f"{file_name} {_CONFIG}"), archive.read(_WEIGHTS)
        return config, Weights(stored_groups(stored, file_name), file_name)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, *BROKEN) as error:
        raise ModelError(f"the Keras archive is broken: {error}", where=file_name) from error
