# SPDX-License-Identifier: Apache-2.0
"""External backends: libraries that compute parts of a network, declared as patterns of layers and generators of C
code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import LazyEntry, Registry
from microc.graph.ir import Graph, Node, TensorType
from microc.graph.match import Op
from microc.module import Sources
from microc.target import Target

# ---- A backend declares patterns of layers with checks, functions that generate the C code of a matched region, and the sources
# of its library.
#
# ::
#
#     def code(region: Region) -> Code:
#         return Code((f"vendor_relu(in_0, out_0, {region.input_types[0].size});",), functions=("vendor_relu",))
#
#     BACKEND = Backend("vendor", (Entry("relu", P.op("relu"), code, check),), open=vendor_sources, headers=("vendor.h",))
#
# Patterns are those of :mod:`microc.graph.match`, over operators as the formats define them (docs/operators.md): quantisation is
# part of the types, layouts are canonical, paddings and activations are attributes of their layers.


@dataclass(frozen=True, slots=True, repr=False)
class Region:
    """A part of a network that a backend's pattern matched, as a graph of its own.

    The inputs of ``graph`` are the values that its nodes read from nodes outside; its outputs are the values that nodes
    outside read. ``nodes`` and ``values``: the nodes and values that the pattern captured, by the name of the capture;
    ``root``: the last matched node; ``target``: the target of the compilation.
    """

    graph: Graph
    root: Node
    nodes: Mapping[str, Node]
    values: Mapping[str, str]
    target: Target

    def __repr__(self) -> str:
        return f"<Region of {'+'.join(node.op for node in self.graph.nodes)}>"

    def type(self, value: str) -> TensorType:
        """Return the type of a value by its name in the graph."""
        return self.graph.types[value]

    def const(self, value: str) -> Array | None:
        """Return the data of a value; None if it is not constant."""
        return self.graph.consts.get(value)

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        return tuple(self.graph.types[name] for name in self.graph.inputs)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        return tuple(self.graph.types[name] for name in self.graph.outputs)


@dataclass(frozen=True, slots=True)
class Code:
    """The C code that computes a region by calls of the library.

    - ``lines``: C statements, the body of a function. The function's parameters are pointers: ``in_0``, ``in_1`` ...
    (inputs of the region, const), ``out_0`` ... (outputs of the region), the names in ``data``, and ``scratch``
    (``uint8_t *``, aligned to ``align`` bytes) if ``workspace`` is not 0. Tensors are in row-major order and do not
    overlap.
    - ``data``: constant arrays in flash, by parameter name; each name is a C identifier.
    - ``workspace``: number of bytes of the arena that the code may use while it runs.
    - ``instructions``, ``code_bytes``: executed instructions and code size of the region, estimated by the backend.
    ``instructions`` is compared with the cost model's estimate for microc's own kernels.
    - ``functions``: names of the library functions that the code calls, so that these functions are built.
    - ``align``: alignment of ``data`` and ``scratch`` in bytes, a power of two, at least 4.
    - ``fails``: True if the last line returns an ``int`` status. If the status is not 0, the run of the network ends
    with ``ERROR_EXTERNAL``.
    - ``differs``: empty, or a clause that describes by how much results may differ from those of microc's own kernels,
    beyond the backend's error bound. A region with such a clause is used only if the user asks for all regions."""

    lines: tuple[str, ...]
    data: Mapping[str, Array] = field(default_factory=dict)
    workspace: int = 0
    instructions: float = 0
    code_bytes: int = 0
    functions: tuple[str, ...] = ()
    align: int = 4
    fails: bool = False
    differs: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", tuple(self.lines))
        data = {name: np.ascontiguousarray(array) for name, array in self.data.items()}
        object.__setattr__(self, "data", MappingProxyType(data))


def accept_every_region(region: Region) -> str:
    """Return an empty reason for every region. This is the check of an entry that accepts all matches of its
    pattern."""
    return ""


def keep_configuration(configuration: str, target: Target) -> str:
    """Return the user's configuration unchanged, for backends whose configuration does not depend on the board."""
    return configuration


def leave_out_no_layer(region: Region) -> Mapping[str, str]:
    """Return an empty mapping of layers to leave out of a region, for backends that accept every region as it is."""
    return {}


@dataclass(frozen=True, slots=True)
class Span:
    """A pattern that matches as many connected layers as possible, for a library that is itself a compiler.

    ``refuses(graph, node)`` returns why the library cannot compute a layer, as a clause (such as "its data are uint8"),
    or an empty string; the pattern matches layers without such a reason. ``leaves(region)`` returns the layers that the
    library, after compiling the region, does not compute: it maps the first output of each such layer to the reason.
    The remaining layers are then matched again without these."""

    refuses: Callable[[Graph, Node], str]
    leaves: Callable[[Region], Mapping[str, str]] = leave_out_no_layer


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry in a backend's table of patterns: a pattern, the generator of C code for its matches, and a check.

    ``check`` returns why the library cannot compute a matched region, as a clause (such as "its weights are computed"),
    or an empty string."""

    name: str
    pattern: Op | Span
    code: Callable[[Region], Code]
    check: Callable[[Region], str] = accept_every_region


def configuration_as_path(configuration: str) -> str:
    """Return the whole configuration, for backends whose configuration is nothing but a path."""
    return configuration


@dataclass(frozen=True, slots=True)
class Backend:
    """An external library that can compute parts of a network, as microc sees it.

    In the following, ``configuration`` is the text that the user writes after ``--external NAME=``: for most backends
    the folder of the library, empty if the user writes none.

    - ``name``: the backend's name in ``--external NAME=PATH``.
    - ``entries``: its table of patterns. If two patterns match a node, the match with more nodes is used; of two equally
      large matches, the first in the table.
    - ``open(configuration, target, functions)``: returns the sources of the library functions ``functions``, which
      regions call. Raises UsageError if there is no such library, or if it does not support the target.
    - ``headers``: headers that the generated code includes.
    - ``bound``: largest difference between float results of the library and of microc's own code, relative to the
      largest magnitude. 0 means bit-exact.
    - ``given(configuration)``: parses a configuration that is more than a path, and returns the backend configured by
      it. Raises UsageError if the configuration is invalid.
    - ``folder(configuration)``: returns the path of code at the end of the configuration, empty if it contains none.
    - ``on(configuration, target)``: returns the configuration completed by facts about the target's board. Raises
      UsageError if configuration and board contradict each other.
    """

    name: str
    entries: tuple[Entry, ...]
    open: Callable[[str, Target, Iterable[str]], Sources]
    headers: tuple[str, ...] = ()
    bound: float = 0.0
    given: Callable[[str], Backend] | None = None
    folder: Callable[[str], str] = configuration_as_path
    on: Callable[[str, Target], str] = keep_configuration

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", tuple(self.entries))
        object.__setattr__(self, "headers", tuple(self.headers))

    def beside(self, configuration: str, home: Path) -> str:
        """Return a configuration with its path resolved relative to ``home``, the folder of the file that contains the
        configuration."""
        path = self.folder(configuration)
        return f"{configuration.removesuffix(path)}{home / path}" if path else configuration


# ---- The registry of backends: the bundled backends; plugins add theirs.

BACKENDS: Registry[Backend] = Registry(
    "a backend",
    {
        "cmsis-nn": LazyEntry("microc.external.cmsis_nn", "BACKEND"),
        "cblas": LazyEntry("microc.external.blas", "BACKEND"),
        "ethos-u": LazyEntry("microc.external.ethos_u", "BACKEND"),
    },
)
"""Every backend, by its name in ``--external NAME=PATH`` (:attr:`Backend.name`)."""
