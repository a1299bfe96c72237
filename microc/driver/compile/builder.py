"""The parts of a module while it grows: values, views, functions and calls, under names of their own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from microc.codegen.ends import SUFFIXES
from microc.codegen.names import is_free, is_free_of
from microc.driver.compile.maker import Maker, Origin
from microc.dtypes import Array
from microc.graph.ir import Graph, TensorType
from microc.module import Call, Kernel, Value, View
from microc.tir import ir
from microc.tir.verify import verify


def slug(name: str, limit: int = 32) -> str:
    """A short C identifier for a name of the model: the last two parts of its path, lower case."""
    path = [part for part in re.split(r"[/:]+", name.split(";")[0]) if part]
    words = "_".join(re.sub(r"[^0-9A-Za-z]+", "_", part).strip("_") for part in path[-2:])
    short = re.sub(r"_+", "_", words).strip("_").lower()[-limit:].strip("_")
    return f"t_{short}" if not short or short[0].isdigit() or short.startswith("assert_") else short


def spellings(name: str) -> tuple[str, ...]:
    """What an input or output is called somewhere: in the header, in a firmware, in samples and exports."""
    behind = (*SUFFIXES, "memory", "values")
    return (name, *(f"{name}_{word}" for word in behind), f"buffer_{name}", f"your_{name}")


@dataclass
class Builder:
    """Grows the parts of a module while the graph is walked."""

    graph: Graph
    make: Maker
    alike: Counter[object] = field(default_factory=Counter)
    values: dict[str, Value] = field(default_factory=dict)
    views: list[View] = field(default_factory=list)
    kernels: dict[tuple[object, ...], Kernel] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    c_names: set[str] = field(default_factory=set)
    spelled: set[str] = field(default_factory=set)
    value_names: dict[str, str] = field(default_factory=dict)

    def unique(self, stem: str) -> str:
        """A name for a value that callers do not see."""
        return self._first(stem, lambda name: is_free_of(self.graph.name, name))

    def function(self, stem: str) -> str:
        """A name for a kernel; what the header declares begins with the network's."""
        stem = re.sub(r"[^0-9A-Za-z_]", "_", stem)
        return self._first(f"kernel_{stem}" if stem.startswith(f"{self.graph.name}_") else stem, is_free)

    def end(self, stem: str) -> str:
        """A name for an input or output, which generated code and its readers also write with words around it."""

        def free(name: str) -> bool:
            return is_free_of(self.graph.name, name) and self.spelled.isdisjoint(spellings(name))

        name = self._first(stem, free)
        self.spelled.update(spellings(name))
        self.c_names.update(f"{name}_{word}" for word in SUFFIXES)
        return name

    def _first(self, stem: str, free: Callable[[str], bool]) -> str:
        name, number = stem, 2
        while name in self.c_names or not free(name):
            name, number = f"{stem}_{number}", number + 1
        self.c_names.add(name)
        return name

    def name_of(self, value: str) -> str:
        """The C name of a graph value."""
        if value not in self.value_names:
            end = value in self.graph.inputs or value in self.graph.outputs
            self.value_names[value] = self.end(slug(value)) if end else self.unique(slug(value))
        return self.value_names[value]

    def declare(self, value: str, storage: str, data: Array | None = None) -> str:
        name = self.name_of(value)
        if name not in self.values:
            made = make_value(name, self.graph.types[value], storage, value, data)
            self.values[name] = replace(made, extents=self.make.extents(value))
        return name

    def call(self, call: Call, origin: Origin) -> None:
        """One step more of the network, and what it was made from."""
        self.calls.append(call)
        self.make.origins[call.writes] = origin

    def constant(self, stem: str, array: Array, alignment: int = 0) -> str:
        """A constant array; equal arrays are stored once, aligned for all who read them."""
        for name, value in self.values.items():
            data = value.data
            if value.storage != "const" or data is None or data.dtype != array.dtype or data.shape != array.shape:
                continue
            if np.array_equal(data, array):
                self.values[name] = replace(value, alignment=max(alignment, value.alignment))
                return name
        name, data = self.unique(stem), np.ascontiguousarray(array)
        self.values[name] = Value(name, array.shape, str(array.dtype), "const", data, label=stem, alignment=alignment)
        return name


def make_value(name: str, kind: TensorType, storage: str, label: str, data: Array | None = None) -> Value:
    """A module value for a graph value."""
    scale = zero_point = None
    if kind.quant is not None and kind.quant.axis is None:
        scale, zero_point = kind.quant.scale[0], kind.quant.zero_point[0]
    return Value(name, kind.shape, kind.dtype, storage, data, scale, zero_point, label)


def workspaces(builder: Builder, stem: str, buffers: Sequence[ir.Buffer], alignment: int = 0) -> tuple[str, ...]:
    """Values for the workspaces of a kernel."""
    names = []
    for buffer in buffers:
        name = builder.unique(f"{stem}_{buffer.name}")
        builder.values[name] = Value(name, buffer.shape, buffer.dtype, "workspace", alignment=alignment)
        names.append(name)
    return tuple(names)


def register(
    builder: Builder, kernel: Kernel, stem: str, *, verified: bool = False, tables: Container[str] | None = None
) -> str:
    """Equal loops become one C function, named after the first layer that uses it; ``verified``: they are known to be right.

    ``tables``: constants that may become indices, as :func:`microc.tir.verify.verify` takes them.
    """
    func = kernel.func
    key = (func.params, func.body, func.annotations)
    if key not in builder.kernels:
        if not verified and not func.scalars:  # what depends on sizes was verified at some of them
            verify(func, tables=tables)
        builder.kernels[key] = replace(kernel, func=replace(func, name=builder.function(stem)))
    return builder.kernels[key].name
