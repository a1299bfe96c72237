# SPDX-License-Identifier: Apache-2.0
"""Shapes of a network's tensors in a run. The arrays passed as inputs determine the dynamic sizes, and the sizes
determine all other shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import UsageError
from microc.run.data.pictures import reshape_expression

Tensor = Mapping[str, Any]
"""Description of a tensor in a manifest (the JSON description of a compiled network)."""


def as_array(array_name: str, value: Any) -> Array:
    """Convert ``value`` to a numpy array of numbers or bools; UsageError for any other value.

    ``array_name``: the name of the value in the error.
    """
    try:
        array = np.asarray(value)
    except Exception as error:  # ragged lists, and objects whose own __array__ fails
        raise UsageError(f"{array_name} cannot be converted to an array: {error}", hint="give a numpy array") from error
    if array.dtype.kind not in "biufcV":
        raise UsageError(
            f"{array_name}: got an array of {array.dtype}, expected an array of numbers or bools",
            hint="give a numpy array of numbers",
        )
    return array


class RunShapes:
    """The dynamic sizes of a network in its next run, which determine the shapes of all tensors. Initially each size is
    its maximum.

    ``manifest``: the description of the network. A network without dynamic sizes has no sizes here.
    """

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        self._known: Sequence[Mapping[str, Any]] = manifest.get("sizes", ())
        self.sizes: dict[str, int] = {size["name"]: size["maximum"] for size in self._known}

    @property
    def vector(self) -> Array:
        """The sizes as an array of int32, in the order in which the network expects them."""
        return np.array([self.sizes[size["name"]] for size in self._known], np.int32)

    def shape_of(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the shape of a tensor of the manifest at the current sizes."""
        return tuple(_evaluate_extent(extent, self.sizes) for extent in tensor.get("extents", tensor["shape"]))

    def set_size(self, name: str, value: int) -> None:
        """Set a size, given by its name or its label; UsageError if the network does not support the value."""
        for size in self._known:
            if name in (size["name"], size["label"]):
                if not size["minimum"] <= value <= size["maximum"] or value % size["step"]:
                    step = f" in steps of {size['step']}" if size["step"] > 1 else ""
                    raise UsageError(
                        f"size {size['label']!r}: got {value}, expected {size['minimum']} to {size['maximum']}{step}",
                        hint="give inputs with sizes in this range, or compile with another --bound",
                    )
                self.sizes[size["name"]] = int(value)
                return
        known = ", ".join(size["name"] for size in self._known) or "it has none"
        raise UsageError(
            f"the network has no dynamic size {name!r}", hint=f"name one of the network's dynamic sizes: {known}"
        )

    def draw_sizes(self, generator: np.random.Generator) -> None:
        """Set all sizes to random values that the network supports."""
        for size in self._known:
            low, high = (size[end] // size["step"] for end in ("minimum", "maximum"))
            self.sizes[size["name"]] = int(generator.integers(low, high, endpoint=True)) * size["step"]

    def set_sizes_from_inputs(self, tensors: Sequence[Tensor], arrays: Sequence[Any]) -> None:
        """Set the sizes to those of the input arrays; UsageError if two inputs contradict each other."""
        known: dict[str, int] = {}
        for tensor, array in zip(tensors, arrays, strict=True):
            extents = tensor.get("extents", ())
            for extent, given in zip(extents, as_array("an input", array).shape if extents else (), strict=False):
                if isinstance(extent, str) and known.setdefault(extent, given) != given:
                    raise UsageError(
                        f"input {tensor['name']} has {extent} = {given}, another input has {extent} = {known[extent]}",
                        hint="give all inputs of a run with the same sizes",
                    )
        for name, value in known.items():
            self.set_size(name, value)

    def check_inputs(self, tensors: Sequence[Tensor], arrays: Sequence[Any]) -> list[Array]:
        """Convert the inputs of a run to arrays, and set the dynamic sizes to the sizes of these arrays.

        Raises UsageError for a wrong number of inputs, a wrong shape or a wrong dtype. ``tensors``: the descriptions of
        the inputs. ``arrays``: the values of the inputs, in the same order.
        """
        if len(arrays) != len(tensors):
            wanted = "; ".join(
                f"{t['name']}: {t['dtype']} {'x'.join(map(str, self.shape_of(t))) or 'scalar'}" for t in tensors
            )
            raise UsageError(
                f"the network takes {len(tensors)} inputs, {len(arrays)} were given",
                where=f"inputs {', '.join(t['name'] for t in tensors)}",
                hint=f"give one array for each of {wanted}",
            )
        self.set_sizes_from_inputs(tensors, arrays)
        return [self.check_array(array, tensor) for array, tensor in zip(arrays, tensors, strict=True)]

    def check_array(self, value: Any, tensor: Tensor) -> Array:
        """Convert ``value`` to an array; UsageError unless the array has the shape and the dtype of the tensor."""
        array = as_array(f"input {tensor['name']}", value)
        shape, dtype = self.shape_of(tensor), dtypes.to_numpy(tensor["dtype"])
        if array.shape != shape:
            raise UsageError(
                f"input {tensor['name']}: got shape {array.shape}, expected {shape}",
                hint=reshape_expression(array.shape, shape),
            )
        if array.dtype != dtype:
            hint = f'convert it: array.astype("{dtype}")'
            if tensor.get("scale") is not None and array.dtype.kind == "f":
                low, high = dtypes.int_range(tensor["dtype"])
                steps = f"numpy.round(array / {tensor['scale']:.9g}) + {tensor['zero_point']}"
                hint = (
                    "compile with --input-dtype float32, or quantise it: "
                    f'numpy.clip({steps}, {low}, {high}).astype("{dtype}")'
                )
            raise UsageError(f"input {tensor['name']}: got dtype {array.dtype}, expected {dtype}", hint=hint)
        return array


def _evaluate_extent(extent: Any, sizes: Mapping[str, int]) -> int:
    """Evaluate an extent of the manifest: a number, the name of a size, or a list of an operator and its operands."""
    if isinstance(extent, int):
        return extent
    if isinstance(extent, str):
        return sizes[extent]
    op, a, b = extent[0], _evaluate_extent(extent[1], sizes), _evaluate_extent(extent[2], sizes)
    return {"add": a + b, "sub": a - b, "mul": a * b, "floordiv": a // max(b, 1)}[op]
