"""External backends: patterns of layers, the C of a region."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import Later, Registry
from microc.graph.ir import Graph, Node, TensorType
from microc.graph.match import Op
from microc.module import Sources
from microc.target import Target

# ---- What a backend is: patterns of layers that it computes, with checks; how a region becomes its C; what that is
# built from.
#
# ::
#
#     def code(region: Region) -> Code:
#         return Code((f"vendor_relu(in_0, out_0, {region.input_types[0].size});",), functions=("vendor_relu",))
#
#     BACKEND = Backend("vendor", (Entry("relu", P.op("relu"), code, check),), open=vendor_sources, headers=("vendor.h",))
#
# Patterns are those of :mod:`microc.graph.match`, over operators as the formats have them (docs/operators.md): quantisation is on
# the types, layouts are canonical, paddings and activations are attributes of their layers.


@dataclass(frozen=True, slots=True, repr=False)
class Region:
    """Nodes that a pattern found, alone: ``graph`` has what they read from others as its inputs, what others read of them as
    its outputs, and their constants. ``nodes`` and ``values`` are the pattern's captures, ``root`` its last node; ``target`` is
    what the code is for."""

    graph: Graph
    root: Node
    nodes: Mapping[str, Node]
    values: Mapping[str, str]
    target: Target

    def __repr__(self) -> str:
        return f"<Region of {'+'.join(node.op for node in self.graph.nodes)}>"

    def type(self, value: str) -> TensorType:
        """The type of a value by its name in the graph."""
        return self.graph.types[value]

    def const(self, value: str) -> Array | None:
        """The data of a value; None where they are not known when compiling."""
        return self.graph.consts.get(value)

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        return tuple(self.graph.types[name] for name in self.graph.inputs)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        return tuple(self.graph.types[name] for name in self.graph.outputs)


@dataclass(frozen=True, slots=True)
class Code:
    """A region as C.

    - ``lines``: statements, the body of a function whose parameters are ``in_0``, ``in_1`` ... (the region's inputs, const),
      ``out_0`` ... (its outputs), the names in ``data``, and ``scratch`` (``uint8_t *``, a multiple of 4) if ``workspace`` is
      not 0. Tensors lie in row-major order; none overlaps another.
    - ``data``: constants in flash, by parameter; each name is an identifier of C.
    - ``workspace``: bytes of the arena that the code may use while it runs.
    - ``instructions``, ``code_bytes``: what it costs, by the backend's own model; the first is compared with our code's.
    - ``functions``: of the library that it calls, so that what they need is built.
    - ``align``: of ``data`` and ``scratch``, in bytes, where whole words are not enough: a power of two.
    - ``fails``: the lines end in ``return`` of an ``int``. Where it is not 0 the network's run ends with ``ERROR_EXTERNAL``.
    - ``differs``: where its results may be others than our code's by more than the backend's bound, as the end of a sentence;
      such a region is taken where a user asks for all of them.
    """

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


def always(region: Region) -> str:
    """A check that nothing fails."""
    return ""


def as_said(place: str, target: Target) -> str:
    """For backends to which a board adds nothing."""
    return place


def always_whole(region: Region) -> Mapping[str, str]:
    """For what takes every region as it is."""
    return {}


@dataclass(frozen=True, slots=True)
class Span:
    """A pattern of as many connected layers as there are, for a library that is a compiler: those against which
    ``refuses(graph, node)`` says nothing (a sentence's end). ``leaves(region)``: of a region, the layers that it does not take
    after all, by their first outputs, each with why; what is around them is looked through again."""

    refuses: Callable[[Graph, Node], str]
    leaves: Callable[[Region], Mapping[str, str]] = always_whole


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of a backend's table: the pattern called ``name``, how a region of it becomes C, and ``check``: why one does not,
    as the end of a sentence, or nothing where it does."""

    name: str
    pattern: Op | Span
    code: Callable[[Region], Code]
    check: Callable[[Region], str] = always


def whole(place: str) -> str:
    """For backends of which the user says nothing but where they are."""
    return place


@dataclass(frozen=True, slots=True)
class Backend:
    """Somebody's code.

    - ``name``: what users call it: ``--external NAME=PATH``.
    - ``entries``: its table; of two patterns that fit a node the larger is taken, of two as large the first.
    - ``open(place, target, functions)``: what the ``functions`` that regions call are built from, taken from where the user says
      that the library is (empty: nothing was said). UsageError where that is no such library, or not for the target.
    - ``headers``: what the code includes.
    - ``bound``: by what floats may differ from our code's, as a share of the largest magnitude; 0: in no bit.
    - ``given(place)``: the backend for what the user says behind its name, where that is more than a place. UsageError where it
      makes no sense.
    - ``folder(place)``: the end of what the user says that is a path of code, or nothing where there is none.
    - ``on(place, target)``: what the user says, with what the target's board adds. UsageError where they differ.
    """

    name: str
    entries: tuple[Entry, ...]
    open: Callable[[str, Target, Iterable[str]], Sources]
    headers: tuple[str, ...] = ()
    bound: float = 0.0
    given: Callable[[str], Backend] | None = None
    folder: Callable[[str], str] = whole
    on: Callable[[str, Target], str] = as_said

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", tuple(self.entries))
        object.__setattr__(self, "headers", tuple(self.headers))

    def beside(self, place: str, home: Path) -> str:
        """What the user says in a file that lies in ``home``, with the path from there."""
        path = self.folder(place)
        return f"{place.removesuffix(path)}{home / path}" if path else place


# ---- The backends that there are: those of the wheel, which plugins extend.

BACKENDS: Registry[Backend] = Registry(
    "a backend",
    {
        "cmsis-nn": Later("microc.external.cmsis_nn", "BACKEND"),
        "cblas": Later("microc.external.blas", "BACKEND"),
        "ethos-u": Later("microc.external.ethos_u", "BACKEND"),
    },
)
"""Every backend by what ``--external`` calls it: :attr:`Backend.name`."""
