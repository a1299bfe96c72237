# SPDX-License-Identifier: Apache-2.0
"""Build the contents of a module: values, views, kernels, calls, state updates, inputs and outputs."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.codegen.c.identifiers import is_free_identifier, is_free_in_network
from microc.codegen.c.interface import TENSOR_FUNCTION_SUFFIXES
from microc.compiler.fit.budget import BoardCapacity, io_bytes
from microc.compiler.lowering.kernel_builder import KernelBuilder, Origin
from microc.compiler.options import Options
from microc.errors import UsageError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.isa import SCALAR
from microc.module import AppliedOperator, Call, ConstantOperand, Kernel, Module, Value, View
from microc.ops import registry
from microc.plan.code_and_constants import move_hot_code_to_memory
from microc.plan.liveness import Overlaps
from microc.target import CodeMemory, Target
from microc.tir import ir
from microc.tir.rewrite import walk_all_exprs
from microc.tir.verify import verify
from microc.transform.boundary import rounding_of_ties

# ---- Description of a call in terms of the model: its operators, their attributes as text, and their constants.

_MAX_ATTRIBUTE_LENGTH = 120
"""Maximum length of an attribute's text in characters."""
_INTERNAL_ATTRIBUTES = frozenset({"algorithm", "bound", "shift_range", "multiplier", "shift"})
"""Attributes that graph passes add for their own use, and that are therefore not described."""


def describe_operators(graph: Graph, nodes: Sequence[Node]) -> tuple[AppliedOperator, ...]:
    """Describe the operators of nodes, in order, with their attributes as text and their constants."""
    return tuple(
        AppliedOperator(node.op, _describe_attributes(node), _describe_constants(graph, node)) for node in nodes
    )


def _describe_attributes(node: Node) -> tuple[tuple[str, str], ...]:
    """Return the names and the values, as text, of a node's attributes. Attributes without a value are left out."""
    described = (
        (name, value)
        for name, value in node.attrs.items()
        if name not in _INTERNAL_ATTRIBUTES and value not in (None, "", ())
    )
    return tuple((name, _format_attribute(value)) for name, value in described)


def _format_attribute(value: Attr) -> str:
    """Format the value of an attribute, shortened."""
    if isinstance(value, Graph):
        return f"{len(value.nodes)} operators"
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= _MAX_ATTRIBUTE_LENGTH else text[: _MAX_ATTRIBUTE_LENGTH - 3] + "..."


def _describe_constants(graph: Graph, node: Node) -> tuple[ConstantOperand, ...]:
    """Describe the constants that a node reads."""
    weights = []
    for name in node.inputs:
        if name in graph.consts:
            type_ = graph.types[name]
            quant = type_.quant
            scales = (min(quant.scale), max(quant.scale), len(quant.scale)) if quant else None
            weights.append(ConstantOperand(name, type_.dtype, type_.shape, scales, quant.axis if quant else None))
    return tuple(weights)


# ---- Fingerprint of a firmware, by which a host recognises it.


def firmware_fingerprint(module: Module, target: Target) -> str:
    """Return 32 hex digits that identify a firmware. They change if the code or the constants change."""
    digest = hashlib.sha256(f"{module.name} {target.cpu}".encode())
    for kernel in module.kernels:
        digest.update(repr(kernel.func).encode())
    externs = set(SCALAR) - set(SCALAR.permanent_names)
    if externs and not externs.isdisjoint(_list_called_functions(module)):
        digest.update(repr([SCALAR[name] for name in sorted(externs)]).encode())
    for sources in module.sources:
        for path, data in sources.files.items():
            digest.update(f"{path} {len(data)} ".encode() + data)
    for call in module.calls:
        digest.update(repr((call.kernel, call.args)).encode())
    for name in sorted(module.values):
        value = module.values[name]
        digest.update(f"{name} {value.shape} {value.dtype} {value.storage}".encode())
        if value.data is not None:
            digest.update(value.data.tobytes())
    return digest.hexdigest()[:32]


def _list_called_functions(module: Module) -> set[str]:
    """Return the names of the functions that the kernels of a module call."""
    return {x.name for kernel in module.kernels for x in walk_all_exprs(kernel.func.body) if isinstance(x, ir.Call)}


# ---- Builder of a module: values, views, functions and calls, with unique C names.


def c_identifier_of(name: str, max_length: int = 32) -> str:
    """Convert a name of the model to a short C identifier: the last two components of its path, in lower case."""
    path = [part for part in re.split(r"[/:]+", name.split(";")[0]) if part]
    words = "_".join(re.sub(r"[^0-9A-Za-z]+", "_", part).strip("_") for part in path[-2:])
    short = re.sub(r"_+", "_", words).strip("_").lower()[-max_length:].strip("_")
    return f"t_{short}" if not short or short[0].isdigit() or short.startswith("assert_") else short


def list_derived_c_names(name: str) -> tuple[str, ...]:
    """Return all C identifiers that are derived from the name of an input or output, in all generated files."""
    behind = (*TENSOR_FUNCTION_SUFFIXES, "memory", "values")
    return (name, *(f"{name}_{word}" for word in behind), f"buffer_{name}", f"your_{name}")


@dataclass
class ModuleBuilder:
    """Collects the contents of a module while the graph is lowered: values, views, kernels and calls, with unique C
    names.

    ``kernel_builder``: builds the kernels. ``group_count_by_shape_key``: number of groups of nodes that have equal
    operators, shapes and dtypes, by :func:`.graph_to_module.kernel_shape_key`.
    """

    graph: Graph
    kernel_builder: KernelBuilder
    group_count_by_shape_key: Counter[object] = field(default_factory=Counter)
    values: dict[str, Value] = field(default_factory=dict)
    views: list[View] = field(default_factory=list)
    kernels: dict[tuple[object, ...], Kernel] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    c_names: set[str] = field(default_factory=set)
    end_names: set[str] = field(default_factory=set)
    value_names: dict[str, str] = field(default_factory=dict)

    def make_internal_name(self, stem: str) -> str:
        """Make a new C name for a value that is internal to the network. ``stem``: the preferred name."""
        return self._first_free_name(stem, lambda name: is_free_in_network(self.graph.name, name))

    def make_function_name(self, stem: str) -> str:
        """Make a new C name for a kernel. It never begins with the network's name, unlike the names in the header."""
        stem = re.sub(r"[^0-9A-Za-z_]", "_", stem)
        return self._first_free_name(
            f"kernel_{stem}" if stem.startswith(f"{self.graph.name}_") else stem, is_free_identifier
        )

    def make_io_name(self, stem: str) -> str:
        """Make a new C name for an input or output. No identifier derived from the name is in use either."""

        def is_name_and_its_derived_names_free(name: str) -> bool:
            return is_free_in_network(self.graph.name, name) and self.end_names.isdisjoint(list_derived_c_names(name))

        name = self._first_free_name(stem, is_name_and_its_derived_names_free)
        self.end_names.update(list_derived_c_names(name))
        self.c_names.update(f"{name}_{word}" for word in TENSOR_FUNCTION_SUFFIXES)
        return name

    def _first_free_name(self, stem: str, is_free: Callable[[str], bool]) -> str:
        """Return the first of ``stem``, ``stem_2``, ``stem_3`` ... that is not used yet and for which ``is_free`` returns
        True.

        The name is then recorded as used.
        """
        name, number = stem, 2
        while name in self.c_names or not is_free(name):
            name, number = f"{stem}_{number}", number + 1
        self.c_names.add(name)
        return name

    def name_of(self, value: str) -> str:
        """Return the C name of a graph value. The name is chosen at the first call."""
        if value not in self.value_names:
            end = value in self.graph.inputs or value in self.graph.outputs
            self.value_names[value] = (
                self.make_io_name(c_identifier_of(value)) if end else self.make_internal_name(c_identifier_of(value))
            )
        return self.value_names[value]

    def declare_value(self, value: str, storage: str, data: Array | None = None) -> str:
        """Add a graph value to the module, unless the module contains it already; return its C name."""
        name = self.name_of(value)
        if name not in self.values:
            made = make_module_value(name, self.graph.types[value], storage, value, data)
            self.values[name] = replace(made, extents=self.kernel_builder.dynamic_extents(value))
        return name

    def add_call(self, call: Call, origin: Origin) -> None:
        """Add a call to the module, and record the origin from which the call was made."""
        self.calls.append(call)
        self.kernel_builder.origins[call.writes] = origin

    def add_constant(self, stem: str, array: Array, alignment: int = 0) -> str:
        """Add a constant array to the module, and return its C name.

        Equal arrays are stored once, with the largest of the requested alignments.
        """
        for name, value in self.values.items():
            data = value.data
            if value.storage != "const" or data is None or data.dtype != array.dtype or data.shape != array.shape:
                continue
            if np.array_equal(data, array):
                self.values[name] = replace(value, alignment=max(alignment, value.alignment))
                return name
        name, data = self.make_internal_name(stem), np.ascontiguousarray(array)
        self.values[name] = Value(name, array.shape, str(array.dtype), "const", data, label=stem, alignment=alignment)
        return name


def make_module_value(name: str, tensor_type: TensorType, storage: str, label: str, data: Array | None = None) -> Value:
    """Create the module's value for a graph value of type ``tensor_type``. ``label``: the name of the graph value."""
    scale = zero_point = None
    if tensor_type.quant is not None and tensor_type.quant.axis is None:
        scale, zero_point = tensor_type.quant.scale[0], tensor_type.quant.zero_point[0]
    return Value(name, tensor_type.shape, tensor_type.dtype, storage, data, scale, zero_point, label)


def declare_workspaces(
    builder: ModuleBuilder, stem: str, buffers: Sequence[ir.Buffer], alignment: int = 0
) -> tuple[str, ...]:
    """Add a value for each workspace of a kernel to the module, and return their C names."""
    names = []
    for buffer in buffers:
        name = builder.make_internal_name(f"{stem}_{buffer.name}")
        builder.values[name] = Value(name, buffer.shape, buffer.dtype, "workspace", alignment=alignment)
        names.append(name)
    return tuple(names)


def register_kernel(
    builder: ModuleBuilder, kernel: Kernel, stem: str, *, verified: bool = False, tables: Container[str] | None = None
) -> str:
    """Add a kernel to the module, and return its name.

    Kernels with equal functions become one, which is named after the first layer that uses it. ``verified``: the
    function has been verified already. ``tables``: names of the constants whose elements may be used as indices, as in
    :func:`microc.tir.verify.verify`.
    """
    func = kernel.func
    key = (func.params, func.body, func.annotations)
    if key not in builder.kernels:
        if (
            not verified and not func.scalars
        ):  # functions with dynamic sizes have been verified at several sizes already
            verify(func, tables=tables)
        builder.kernels[key] = replace(kernel, func=replace(func, name=builder.make_function_name(stem)))
    return builder.kernels[key].name


# ---- Facts about inputs and outputs in addition to their types: rounding of ties, requested names, class names.


def collect_io_fields(module: Module, read_graph: Graph, options: Options) -> dict[str, Any]:
    """Return the fields ``ties``, ``classes`` and ``class_output`` of a module, by name.

    ``read_graph``: the graph as read, before all passes. Raises UsageError if a requested name is not free in C, or if
    no output distinguishes the classes.
    """
    for name in (*module.inputs, *module.outputs):
        wanted = module.values[name].label
        if wanted in options.rename.values() and name != wanted:
            raise UsageError(
                f"rename: {wanted!r} is already used in the generated header, or reserved in C",
                where=module.source,
                hint="choose another name (rename)",
            )
    return {"ties": str(rounding_of_ties(read_graph)), **_collect_class_fields(module, options.class_names)}


def _collect_class_fields(module: Module, names: Sequence[str]) -> dict[str, Any]:
    """Return the fields ``classes`` and ``class_output`` of a module, by name; empty if there are no class names.

    The class output is the first output with a score for every class on its last axis, or else the first output that is
    a class index. Raises UsageError if there is no such output.
    """
    if not names:
        return {}
    outputs = [module.values[name] for name in module.outputs]
    scores = [each for each in outputs if each.shape[-1:] == (len(names),)]
    integral = [each for each in outputs if dtypes.is_integer(each.dtype) and each.scale is None]
    indices = [each for each in integral if each.shape[-1:] in ((), (1,))]
    if not scores and not indices:
        shapes = ", ".join(f"{each.name} has {'x'.join(map(str, each.shape)) or 'one number'}" for each in outputs)
        raise UsageError(
            f"class_names: got {len(names)} names, expected as many as an output has elements on its last axis",
            where=module.source,
            hint=f"give a name for each class of an output, in order: {shapes}",
        )
    return {"classes": tuple(names), "class_output": (scores or indices)[0].name}


# ---- Updates of state. The kernel that computes the next contents writes them into the state, if nothing reads the old contents
# afterwards. Otherwise they are copied into the state at the end of a run.


def find_partial_updates(graph: Graph) -> dict[str, str]:
    """Find the values that are the next contents of a state and differ from its present contents only in a part. Return
    the name of the state by the name of the value.

    The nodes that compute these values write only the changed part into the state (``OpDef.update``), after all readers
    of the state.
    """
    results: dict[str, str] = {}
    readers, producers, updated = graph.consumers(), graph.producer(), list(graph.updates.values())
    for state, value in graph.updates.items():
        node = producers.get(value)
        if node is None or registry.get(node.op).update is None or node.inputs[0] != state or state in node.inputs[1:]:
            continue
        read = value in readers or value in graph.outputs or updated.count(value) > 1
        if not read and not _list_views_of_state(graph, state) & {*updated, *graph.outputs}:
            results[value] = state
    return results


def _list_views_of_state(graph: Graph, state: str) -> set[str]:
    """Return a state and all values that may be views of it."""
    names = {state}
    for node in graph.nodes:
        definition = registry.get(node.op)
        if node.inputs and node.inputs[0] in names and (definition.view or definition.alias is not None):
            names.update(node.outputs)
    return names


def order_groups(
    graph: Graph, groups: Sequence[tuple[Node, ...]], partial_updates: Mapping[str, str]
) -> list[tuple[Node, ...]]:
    """Sort the groups of nodes so that a group that writes into a state follows all groups that read the state."""
    order = list(groups)
    for value, state in partial_updates.items():
        (node,) = own = next(nodes for nodes in order if nodes[-1].outputs[0] == value)
        names = _list_views_of_state(graph, state)
        order.remove(own)
        last = max((k for k, nodes in enumerate(order) if any(names & set(n.inputs) for n in nodes)), default=-1)
        ready = max(
            (k for k, nodes in enumerate(order) if any(set(node.inputs) & set(n.outputs) for n in nodes)), default=-1
        )
        order.insert(max(last, ready) + 1, own)
    return order


def find_in_place_writes(module: Module, updates: Mapping[str, str]) -> dict[str, str]:
    """Find the values that their kernel may write directly into the state that they update. Return the name of the
    state by the name of the value.

    No later call reads the state, and the kernel reads every byte of the state before it overwrites the byte.
    ``updates``: the name of the value of the next contents, by the name of the state.
    """
    overlaps, values_in_place = Overlaps(module), dict[str, str]()
    for state, value in sorted(updates.items()):
        makers = [k for k, call in enumerate(module.calls) if value in call.writes]
        is_whole_intermediate = module.values[value].storage == "intermediate" and module.base_and_offset(value) == (
            value,
            0,
        )
        has_other_writer = any(
            module.base_and_offset(name)[0] == value for call in module.calls for name in call.writes if name != value
        )
        is_next_of_other = any(module.base_and_offset(other)[0] == state for other in updates.values())
        if (
            not is_whole_intermediate
            or has_other_writer
            or len(makers) != 1
            or value in values_in_place
            or is_next_of_other
        ):
            continue
        maker, later = module.calls[makers[0]], module.calls[makers[0] + 1 :]
        if any(state in _list_base_values(module, call.reads) for call in later):
            continue
        if state in _list_base_values(module, maker.reads):
            room = overlaps.safe_offsets(maker, state, value)
            if room is None or room.next_allowed(0) != 0:
                continue
        values_in_place[value] = state
    return values_in_place


def _list_base_values(module: Module, names: Sequence[str]) -> set[str]:
    """Return the values in whose memory the named values are stored."""
    return {module.base_and_offset(name)[0] for name in names}


def order_state_copies(sources: Mapping[str, str]) -> Iterable[tuple[str, bool]]:
    """Yield the names of the states in an order in which the next contents can be copied into them, each with a
    boolean.

    The boolean is True if the next contents of the state must first be saved to another value, because the state that
    holds them is overwritten earlier.

    ``sources``: for each state the memory of its next contents, which may be another state.
    """
    pending = dict(sorted(sources.items()))
    while pending:
        ready = [s for s in pending if all(source != s for other, source in pending.items() if other != s)]
        if ready:
            del pending[ready[0]]
            yield ready[0], False
        else:  # the remaining states form cycles: saving the next contents of one state breaks its cycle
            first = next(iter(pending))
            pending[first] = ""
            yield first, True


def separate_learning(module: Module) -> Module:
    """Move the calls that an inference needs before those that learn, and count them.

    An inference computes all outputs but the last, the loss. Its calls read no result of the others: states change at the
    end of a run."""
    bases = {name: module.base_and_offset(name)[0] for name in module.values}
    needed, inference = {bases[name] for name in module.outputs[:-1]}, set[int]()
    for k in reversed(range(len(module.calls))):
        call = module.calls[k]
        if needed.intersection(bases[name] for name in call.writes if bases[name] not in module.state):
            inference.add(k)
            needed.update(bases[name] for name in call.reads)
    first = [call for k, call in enumerate(module.calls) if k in inference]
    rest = [call for k, call in enumerate(module.calls) if k not in inference]
    return replace(module, calls=(*first, *rest), inference_calls=len(first))


def has_equal_elements(data: Array) -> bool:
    """Test whether all elements have the same bits, so that a single number describes the initial state."""
    raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8).reshape(data.size, -1)
    return bool((raw == raw[:1]).all())


# ---- Hot code that is executed from RAM (``--code-in-ram``), and the memory that is left for it.


def refuse_without_code_memory(options: Options, capacity: BoardCapacity | None) -> None:
    """Raise UsageError if code is to be executed from RAM but no memory for code is known."""
    if options.code_in_ram and (capacity is None or capacity.code is None):
        raise UsageError(
            f"code_in_ram: the file of board {capacity.board} names no memory for code"
            if capacity
            else "code_in_ram: got no board, expected a board with RAM for code",
            hint='leave out code_in_ram, or set holds = ["code"] for a RAM region in a board file (docs/memories.md)',
        )


def place_hot_code(module: Module, options: Options, capacity: BoardCapacity | None) -> Module:
    """Place hot kernels in the memory for code that the arena leaves free, if the options request it."""
    if not options.code_in_ram:
        return module
    assert capacity is not None and capacity.code is not None
    return move_hot_code_to_memory(module, _remaining_code_memory(module, capacity.code, options.io_in_arena))


def code_in_ram_gain(module: Module, capacity: BoardCapacity) -> float:
    """Return the fraction of the run time that ``--code-in-ram`` would save.

    The fraction is 0 if the board has no memory for code or the code is there already. The run time includes waits for
    code, which are estimated only for boards with such a memory.
    """
    if capacity.code is None or module.plan is None or module.plan.code is not None:
        return 0.0
    with_code = move_hot_code_to_memory(module, _remaining_code_memory(module, capacity.code, module.plan.io_in_arena))
    saved = with_code.plan.code.saved if with_code.plan is not None and with_code.plan.code is not None else 0
    return saved / max(1, saved + sum(call.cycles for call in with_code.calls))


def _remaining_code_memory(module: Module, code: CodeMemory, io_in_arena: bool) -> CodeMemory:
    """Return the memory for code, reduced by the arenas in it and by inputs and outputs outside of the arena."""
    plan = module.plan
    assert plan is not None
    arena = sum(each.size for each in plan.arenas if each.memory == code.name) if plan.arenas else plan.main_arena_size
    outside = 0 if io_in_arena else io_bytes(module)
    taken = arena + outside if code.main else arena if plan.arenas else 0
    return replace(code, size=max(code.size - taken, 0))
