"""Groups and arrays of an HDF5 file that lie in the file itself.

HDF5 follows soft and external links, and reads data sets from other files (external storage, virtual data sets) wherever they
say. A model's file has none of these: groups are linked directly, arrays are stored in the file, in the ways that come with HDF5.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.errors import ModelError, ToolError, UnsupportedError
from microc.frontend.budget import MAX_STORED, check_shape
from microc.frozen import frozen

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
