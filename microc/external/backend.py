"""External backends: patterns of layers, and the C code of a matched region."""

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

# ---- A backend has patterns of layers with checks, functions that generate the C of a region, and the sources of its library.
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
    """The nodes that a pattern matched, as a graph of their own.

    Its inputs are the values that the nodes read from others, its outputs those that others read. ``nodes`` and
    ``values`` are the pattern's captures, ``root`` its last node; ``target`` is the target of the compilation.
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
    """The C code of a region.

    - ``lines``: statements, the body of a function whose parameters are ``in_0``, ``in_1`` ... (the region's inputs,
    const), ``out_0`` ... (its outputs), the names in ``data``, and ``scratch`` (``uint8_t *``, aligned to ``align``
    bytes) if ``workspace`` is not 0. Tensors are in row-major order and do not overlap.
    - ``data``: constants in flash, by parameter; each name is a C identifier.
    - ``workspace``: bytes of the arena that the code may use while it runs.
    - ``instructions``, ``code_bytes``: its cost by the backend's own model; ``instructions`` is compared with the cost
    model's estimate of microc's own kernels.
    - ``functions``: functions of the library that it calls, so that they are built.
    - ``align``: alignment of ``data`` and ``scratch`` in bytes, a power of two, at least 4.
    - ``fails``: the lines end in ``return`` of an ``int``. If it is not 0 the network's run ends with
    ``ERROR_EXTERNAL``.
    - ``differs``: empty, or a clause that tells how results may differ from those of microc's own kernels by more than
    the backend's bound; such a region is used only if the user asks for all regions."""

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


def accept_all(region: Region) -> str:
    """Return an empty reason for every region: the check of an entry that takes all matches of its pattern."""
    return ""


def unchanged_configuration(place: str, target: Target) -> str:
    """Return the user's configuration unchanged, for backends to which a board adds nothing."""
    return place


def leave_out_no_layer(region: Region) -> Mapping[str, str]:
    """Return no layers to leave out of a region, for backends that take every region unchanged."""
    return {}


@dataclass(frozen=True, slots=True)
class Span:
    """A pattern that matches as many connected layers as possible, for a library that is itself a compiler.

    It matches the layers for which ``refuses(graph, node)`` returns no reason (a clause, such as "its data are uint8").
    ``leaves(region)`` returns the layers of a region that the library does not take after all, by first output, each
    with the reason; the layers around them are matched again."""

    refuses: Callable[[Graph, Node], str]
    leaves: Callable[[Region], Mapping[str, str]] = leave_out_no_layer


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of a backend's table: a pattern, the generator of the C code for its matches, and a check.

    ``check`` returns why the library does not take a matched region, as a clause (such as "its weights are computed"),
    or an empty string."""

    name: str
    pattern: Op | Span
    code: Callable[[Region], Code]
    check: Callable[[Region], str] = accept_all


def whole_configuration_as_path(place: str) -> str:
    """Return the whole configuration as a path, for backends that are configured by a path alone."""
    return place


@dataclass(frozen=True, slots=True)
class Backend:
    """An external library.

    - ``name``: its name in ``--external NAME=PATH``.
    - ``entries``: its table; if two patterns match a node, the larger one wins, of equal ones the first.
    - ``open(place, target, functions)``: returns the sources of the ``functions`` that regions call, from the library's
      location (empty: none given). Raises UsageError if there is no such library, or if it is not for the target.
    - ``headers``: headers that the code includes.
    - ``bound``: largest difference of float results from our code's, relative to the largest magnitude; 0: bit-exact.
    - ``given(place)``: returns the backend for a configuration that is more than a path. Raises UsageError if it is
      invalid.
    - ``folder(place)``: returns the end of the configuration that is a path of code, empty if there is none.
    - ``on(place, target)``: adds facts of the target's board to the configuration. Raises UsageError if they contradict
      it.
    """

    name: str
    entries: tuple[Entry, ...]
    open: Callable[[str, Target, Iterable[str]], Sources]
    headers: tuple[str, ...] = ()
    bound: float = 0.0
    given: Callable[[str], Backend] | None = None
    folder: Callable[[str], str] = whole_configuration_as_path
    on: Callable[[str, Target], str] = unchanged_configuration

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", tuple(self.entries))
        object.__setattr__(self, "headers", tuple(self.headers))

    def beside(self, place: str, home: Path) -> str:
        """Return a configuration from a file in folder ``home``, with the path in it resolved relative to that folder."""
        path = self.folder(place)
        return f"{place.removesuffix(path)}{home / path}" if path else place


# ---- The registry of backends: the bundled ones, which plugins extend.

BACKENDS: Registry[Backend] = Registry(
    "a backend",
    {
        "cmsis-nn": LazyEntry("microc.external.cmsis_nn", "BACKEND"),
        "cblas": LazyEntry("microc.external.blas", "BACKEND"),
        "ethos-u": LazyEntry("microc.external.ethos_u", "BACKEND"),
    },
)
"""Every backend by its name in ``--external``: :attr:`Backend.name`."""
