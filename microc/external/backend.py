# SPDX-License-Identifier: Apache-2.0
"""External backends, and the division of a network between them and microc's own code."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import LazyEntry, Registry, frozen
from microc.errors import ProgramError
from microc.graph.ir import Graph, Node, TensorType
from microc.graph.match import Match, Op, Scope, find_matches
from microc.module import ExternalBody, Sources
from microc.ops.control import EXTERNAL
from microc.ops.meaning import expand_composed_operator
from microc.target import Target
from microc.tir import ir

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
        "onemkl": LazyEntry("microc.external.blas", "ONEMKL_BACKEND"),
        "ethos-u": LazyEntry("microc.external.ethos_u", "BACKEND"),
    },
)
"""Every backend, by its name in ``--external NAME=PATH`` (:attr:`Backend.name`)."""


# ---- Operations on regions (sets of nodes): convexity, extraction as a graph, replacement by one node.


def is_convex(graph: Graph, nodes: Iterable[Node]) -> bool:
    """Test whether a region is convex: no path between its nodes goes through a node outside."""
    inside = {id(node) for node in nodes}
    results = {name for node in nodes for name in node.outputs if name}
    dependent: set[str] = set()
    for node in graph.nodes:
        if id(node) in inside:
            if not dependent.isdisjoint(node.inputs):
                return False
        elif not (results | dependent).isdisjoint(node.inputs):
            dependent.update(name for name in node.outputs if name)
    return True


def extract_subgraph(graph: Graph, chosen_nodes: Sequence[Node]) -> Graph:
    """Return some nodes of a graph as a graph of their own.

    The inputs of the new graph are the values that ``chosen_nodes`` read from other nodes or from the inputs of
    ``graph``; constants are no inputs. Its outputs are the results of ``chosen_nodes`` that other nodes read, or that
    are outputs or state updates of ``graph``."""
    own = {id(node) for node in chosen_nodes}
    nodes = [node for node in graph.nodes if id(node) in own]
    results = {name for node in nodes for name in node.outputs if name}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in results)
    inputs = tuple(name for name in read if name not in graph.consts)
    outside = {name for node in graph.nodes if id(node) not in own for name in node.inputs if name}
    wanted = outside | {*graph.outputs, *graph.updates.values()}
    outputs = tuple(name for node in nodes for name in node.outputs if name in wanted)
    return replace(graph, name="region", inputs=inputs, outputs=outputs, state={}, updates={}).with_nodes(nodes)


def replace_region_by_node(
    graph: Graph, nodes: Sequence[Node], region_graph: Graph, code_attribute: tuple[str, ...]
) -> Graph:
    """Replace the nodes of a convex region by one node of operator ``external``.

    ``region_graph``: a graph that computes the same values; it becomes the attribute ``body`` of the new node.
    ``code_attribute``: value of the new node's attribute ``code``."""
    inside = {id(node) for node in nodes}
    node = Node(
        EXTERNAL,
        region_graph.inputs,
        region_graph.outputs,
        {"body": region_graph, "code": code_attribute},
        region_graph.nodes[-1].loc,
    )
    before: list[Node] = []
    after: list[Node] = []
    dependent = set(region_graph.outputs)
    for other in graph.nodes:
        if id(other) in inside:
            continue
        if dependent.isdisjoint(other.inputs):
            before.append(other)
        else:
            dependent.update(name for name in other.outputs if name)
            after.append(other)
    return graph.with_nodes((*before, node, *after))


# ---- Maximal regions of a span: connected layers that a library accepts, split where a refused layer is between two of them.
#
# Every layer gets a level: on a path from the network's inputs to the layer, count the changes between accepted and refused
# layers, and take the largest count over all paths. Connected accepted layers of the same level form a region. The region is
# convex: a path that leaves it reaches a refused layer, and levels after that layer are higher. For the same reason the regions
# can be ordered.

MAX_SPAN_SEARCHES = 8
"""Largest number of times that the regions of a span are searched; the search is repeated if the library leaves out
layers."""
SpanRegion = tuple[tuple[Node, ...], Region]


def find_span_regions(graph: Graph, span: Span, target: Target) -> tuple[list[SpanRegion], list[tuple[str, str]]]:
    """Return all regions that a span (a pattern of connected layers) matches, and the layers that are in no region.

    A region is returned as its nodes and its :class:`Region`; the largest region is first. A layer in no region is
    returned as its location in the model and the reason why the library does not compute it."""
    why = {node.outputs[0]: refusal for node in graph.nodes if (refusal := span.refuses(graph, node))}
    regions = list[SpanRegion]()
    for _ in range(MAX_SPAN_SEARCHES):
        regions = [(nodes, make_region_of_nodes(graph, nodes, target)) for nodes in find_connected_regions(graph, why)]
        left = {name: reason for _, region in regions for name, reason in span.leaves(region).items()}
        if not left:
            break
        why |= left
    else:
        regions = []
    locations = {node.outputs[0]: str(node.loc) for node in graph.nodes}
    return sorted(regions, key=lambda each: -len(each[0])), [(locations[name], reason) for name, reason in why.items()]


def make_region_of_nodes(graph: Graph, nodes: tuple[Node, ...], target: Target) -> Region:
    """Return a region of connected nodes. It has no captures, and its root is the last node."""
    return Region(extract_subgraph(graph, nodes), nodes[-1], {}, {}, target)


def find_connected_regions(graph: Graph, excluded_outputs: Collection[str]) -> Iterator[tuple[Node, ...]]:
    """Yield the largest convex regions of connected nodes, the nodes of each in the order of the graph.

    ``excluded_outputs``: first outputs of the nodes that no region may contain."""
    producers = {name: node for node in graph.nodes for name in node.outputs if name}
    level: dict[str, int] = {}
    group: dict[str, list[Node]] = {}
    for node in graph.nodes:
        key = node.outputs[0]
        is_kind = key not in excluded_outputs
        before = list(dict.fromkeys(producers[name].outputs[0] for name in node.inputs if name in producers))
        level[key] = max(
            (level[each] + (is_kind is (each in excluded_outputs)) for each in before), default=int(is_kind)
        )
        if is_kind:
            group[key] = [node]
            for each in before:
                if each in group and level[each] == level[key] and group[each] is not group[key]:
                    less, more = sorted((group[each], group[key]), key=len)
                    more += less
                    group |= {member.outputs[0]: more for member in less}
    order = {node.outputs[0]: k for k, node in enumerate(graph.nodes)}
    seen = {id(nodes): nodes for nodes in group.values()}
    for nodes in seen.values():
        yield tuple(sorted(nodes, key=lambda node: order[node.outputs[0]]))


# ---- Partition: first the regions of spans, then the matches of other patterns, the largest first. Every region is convex.
#
# A region is convex if no path leaves it and comes back, so that all values that it reads are available before it runs. Regions
# are replaced by nodes one after the other. Each region must be convex in the graph that the earlier replacements have left, so
# that all regions together can be ordered too.


@frozen
class ClaimedRegion:
    """A region that was replaced by a node of operator ``external``: its backend, the pattern that matched, the region
    itself, and its C code."""

    backend: Backend
    entry: Entry
    region: Region
    code: Code

    @property
    def key(self) -> str:
        """Key that identifies the region: name of the value that its root computes."""
        return self.region.root.outputs[0]


@frozen
class Partition:
    """A graph in which every region that a backend computes is a node of operator ``external``.

    ``taken``: these regions; the attribute ``code`` of a node contains the index of its region in ``taken``.
    ``refused``: pairs (location in the model, reason), one for every region that matched a pattern but failed its
    check, and for every layer that a span does not match."""

    graph: Graph
    taken: tuple[ClaimedRegion, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


def partition(
    graph: Graph, backends: Sequence[Backend], target: Target, excluded_roots: Collection[str] = ()
) -> Partition:
    """Replace the regions that ``backends`` can compute by nodes of operator ``external``.

    Regions whose root computes a value named in ``excluded_roots`` are not replaced. Afterwards every composed operator
    outside of the regions is expanded to the operators that it consists of; backends see regions before the
    expansion."""
    taken: list[ClaimedRegion] = []
    refused: list[tuple[str, str]] = []

    def claim_region(backend: Backend, entry: Entry, region: Region, nodes: Sequence[Node]) -> None:
        """Replace a region by a node with the backend's code; if the entry's check refuses the region, record the
        reason."""
        nonlocal graph
        if why := entry.check(region):
            refused.append((str(region.root.loc), f"{backend.name} {entry.name}: {why}"))
            return
        taken.append(ClaimedRegion(backend, entry, region, entry.code(region)))
        graph = replace_region_by_node(
            graph, nodes, expand_composed_operator(region.graph), (backend.name, str(len(taken) - 1))
        )

    for backend, entry, span in _iterate_entries_with_span(backends):
        regions, left = find_span_regions(graph, span, target)
        refused += [(location, f"{backend.name} {entry.name}: {why}") for location, why in left]
        for nodes, region in regions:
            if region.root.outputs[0] not in excluded_roots:
                claim_region(backend, entry, region, nodes)
    candidates = [
        candidate
        for candidate in _iterate_pattern_matches(graph, backends)
        if candidate.match.root.outputs[0] not in excluded_roots
    ]
    for candidate in sorted(candidates, key=lambda candidate: -len(candidate.nodes)):
        here = {id(node) for node in graph.nodes}
        if all(id(node) in here for node in candidate.nodes) and is_convex(graph, candidate.nodes):
            match = candidate.match
            region = Region(extract_subgraph(graph, candidate.nodes), match.root, match.nodes, match.values, target)
            claim_region(candidate.backend, candidate.entry, region, candidate.nodes)
    return Partition(expand_composed_operator(graph), tuple(taken), tuple(refused))


@frozen
class _MatchCandidate:
    """A match of a backend's pattern that may be replaced by a node."""

    backend: Backend
    entry: Entry
    match: Match

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.match.covered_nodes


def _iterate_pattern_matches(graph: Graph, backends: Sequence[Backend]) -> Iterator[_MatchCandidate]:
    """Yield the matches of all patterns that are no spans, with every node as the root of a match.

    There is at most one match for each pattern and root."""
    scope = Scope(graph)
    scope.producers.update({name: node for node in graph.nodes for name in node.outputs if name})
    for node in graph.nodes:
        for backend in backends:
            for entry in backend.entries:
                match = next(find_matches(entry.pattern, node, scope), None) if isinstance(entry.pattern, Op) else None
                if match is not None:
                    yield _MatchCandidate(backend, entry, match)


def _iterate_entries_with_span(backends: Sequence[Backend]) -> Iterator[tuple[Backend, Entry, Span]]:
    """Yield the entries whose pattern is a span, each with its backend and its span."""
    for backend in backends:
        for entry in backend.entries:
            if isinstance(entry.pattern, Span):
                yield backend, entry, entry.pattern


# ---- The kernel of a region: a function whose body declares the kernel's memory accesses.
#
# For the memory planner and its checker the body is one call that accesses all elements of every operand. It counts as writing
# results and workspace before it last reads its operands, so that they may not share memory. The generated C contains the
# backend's code instead of this body.

SCRATCH = "scratch"
_IDENTIFIER = re.compile("[a-z][a-z0-9_]*")
_HEADER_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-+./]*")


def build_region_function(claimed_region: ClaimedRegion) -> tuple[ir.PrimFunc, ExternalBody]:
    """Return the kernel of a region as a function of the loop IR, and the C code that replaces its body.

    The function's parameters are inputs, constants, outputs and workspace, in this order."""
    code, region = claimed_region.code, claimed_region.region
    _check_backend_code(claimed_region)
    reads = [_make_flat_buffer(f"in_{k}", kind) for k, kind in enumerate(region.input_types)]
    consts = [ir.Buffer(name, (array.size,), str(array.dtype), "const") for name, array in code.data.items()]
    writes = [_make_flat_buffer(f"out_{k}", kind) for k, kind in enumerate(region.output_types)]
    scratch = [ir.Buffer(SCRATCH, (code.workspace,), "uint8", "workspace")] if code.workspace else []
    buffers = (*reads, *consts, *writes, *scratch)
    start, written = ir.const(0, "int32"), {*writes, *scratch}
    pointers = tuple(ir.AddressOf(b, (start,), b.size, b in written) for b in buffers)
    name = hashlib.sha256("\n".join((claimed_region.backend.name, *code.lines)).encode()).hexdigest()[:16]
    body = ir.Evaluate(ir.Call(f"external_{name}", pointers, "int32"))
    backend = claimed_region.backend
    instructions = round(code.instructions)
    external = ExternalBody(
        backend.name,
        code.lines,
        backend.headers,
        instructions,
        code.code_bytes,
        backend.bound,
        fails=code.fails,
        differs=code.differs,
    )
    return ir.PrimFunc("external", buffers, body), external


def _make_flat_buffer(name: str, tensor_type: TensorType) -> ir.Buffer:
    """Return a one-dimensional buffer with as many elements as a tensor, and its dtype."""
    return ir.Buffer(name, (tensor_type.size,), tensor_type.dtype)


def _check_backend_code(claimed_region: ClaimedRegion) -> None:
    """Raise ProgramError if the fields of the C code that a backend returned for a region are malformed."""
    code, where = claimed_region.code, f"{claimed_region.backend.name}, pattern {claimed_region.entry.name}"
    data: Mapping[str, Array] = code.data
    for name in data:
        if not _IDENTIFIER.fullmatch(name) or name == SCRATCH or re.fullmatch(r"(in|out)_\d+", name):
            raise ProgramError(
                f"invalid name of a constant; got {name!r}",
                where=where,
                hint="choose a lower-case C identifier other than scratch, in_N and out_N",
            )
    for header in claimed_region.backend.headers:
        if not _HEADER_PATH.fullmatch(header) or ".." in header:
            raise ProgramError(f"invalid path of a header; got {header!r}", where=where, hint="give a relative path")
    if not code.lines or code.workspace < 0 or code.instructions < 0:
        raise ProgramError(
            f"a region's code needs lines of C, and workspace and instructions of at least 0; got {len(code.lines)} lines, "
            f"workspace={code.workspace} and instructions={code.instructions}",
            where=where,
        )
    if code.align < 4 or code.align & (code.align - 1):
        raise ProgramError(
            f"wrong alignment of a region's data and scratch memory; got {code.align} bytes",
            where=where,
            hint="choose a power of two, 4 or more",
        )
