# SPDX-License-Identifier: Apache-2.0
"""Functions with dynamic sizes: the shapes of a run, and building of functions that serve all sizes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array, to_numpy
from microc.base.immutable import frozen
from microc.compiler.lowering.control_flow import LoweredControl, list_groups_in_control_flow, lower_control_flow
from microc.compiler.lowering.kernel_builder import Configuration, KernelBuilder, ValueCopy, lower_copy
from microc.compiler.lowering.kernel_selection import (
    adapt_group_to_core,
    find_node_alias,
    group_algorithms,
    groups_of,
    variants_with_16_bit_constants,
)
from microc.compiler.sizes.family import NetworkFamily, Sizes, instantiate_graph
from microc.errors import ScheduleError, UnsupportedError, UsageError
from microc.graph.ir import Attr, Graph, Node
from microc.ops import registry
from microc.ops.lowering import LoweredGroup, lower_group, node_macs
from microc.ops.registry import Alias
from microc.run.data.pictures import reshape_expression
from microc.schedule.choose import Choice, choose_schedule
from microc.schedule.identities import intrinsic_functions
from microc.schedule.rules import candidate_schedules, schedule_as_written
from microc.schedule.rules.rule import HALF_WEIGHTS, product_multiples
from microc.schedule.schedule import Schedule, generalise_trace, replay_trace
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.extents import DependsOnSize, Extent
from microc.tir.interp import execute
from microc.tir.lower import lower
from microc.tir.rewrite import stmt_children
from microc.tir.symbolic import evaluate_shape, write_sizes
from microc.tir.verify import constant_names, explain_fault

# ---- Shapes of a network's tensors in a run. The arrays passed as inputs determine the dynamic sizes, and the sizes
# determine all other shapes.


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
            hint="give a numpy array of numbers; of several inputs each by its name: library(x=array)",
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


# ---- Comparison of two functions by running both in the interpreter of TIR.

MAX_INTERPRETED_STORES = 200_000
"""Maximum number of stores that are interpreted to compare two functions at small sizes. If there are more, the
functions are only verified."""


def have_same_results(
    general_func: ir.PrimFunc,
    general_constants: Sequence[Array],
    direct_func: ir.PrimFunc,
    direct_constants: Sequence[Array],
) -> bool:
    """Test whether a general function and a function for fixed sizes compute bit-identical results from random data.

    Corresponding tensors may have different shapes with the same number of elements. ``general_constants``: the
    constants of the largest sizes.
    """
    generator = np.random.default_rng(0)
    data = [_random_data(p, generator) for p in direct_func.params if p.scope == "global"]
    actual, expected = (
        _interpret(general_func, general_constants, data),
        _interpret(direct_func, direct_constants, data),
    )
    return all(a.tobytes() == b.tobytes() for a, b in zip(actual, expected, strict=True))


def count_executed_stores(stmt: ir.Stmt) -> int:
    """Count the stores and calls that a statement executes. All trip counts must be constant. Both branches of
    conditions are counted."""
    match stmt:
        case ir.For(_, extent, body):
            return (ir.int_value(extent) or 1) * count_executed_stores(body)
        case ir.Store() | ir.Evaluate():
            return 1
        case _:
            return sum(map(count_executed_stores, stmt_children(stmt)))


def _interpret(func: ir.PrimFunc, constants: Sequence[Array], data: Sequence[Array]) -> list[Array]:
    """Run a function in the interpreter, and return the contents of its tensors after the run.

    ``constants``, ``data``: the contents of the constants and of the tensors before the run, in the order of the
    parameters. A schedule may store weights as several constants, so two functions of one group may have different
    numbers of constants.
    """
    contents = {"const": iter(constants), "global": iter(data)}
    arrays = [
        np.array(next(contents[p.scope])).reshape(p.shape)
        if p.scope in contents
        else np.zeros(p.shape, to_numpy(p.dtype))
        for p in func.params
    ]
    results = execute(func, arrays, intrinsic_functions())
    return [result for p, result in zip(func.params, results, strict=False) if p.scope == "global"]


def _random_data(buffer: ir.Buffer, generator: np.random.Generator) -> Array:
    """Return random data for a buffer: normally distributed floats, integers from 0 to 7, or bools."""
    kind = to_numpy(buffer.dtype)
    if kind.kind == "f":
        return generator.standard_normal(buffer.shape).astype(kind)
    return generator.integers(0, 2 if kind.kind == "b" else 8, buffer.shape).astype(kind)


# ---- Functions for all sizes of a network family. Each is lowered once, with extents that depend on the sizes.
#
# Candidates are schedules of the group at sizes of its own, the cheapest first. A candidate is refused if it needs a number
# that depends on the sizes. The loops without a schedule are the last candidate. The function is compared with functions for
# fixed sizes: at the smallest sizes, where a window may reach opposite borders of an image at once, and at sizes for which
# an answer of the general case is wrong (:class:`microc.tir.extents.SizeDomain`).

Nodes = Sequence[Node]
DirectFunction = tuple[ir.PrimFunc, list[Array]]
"""A lowered function for fixed sizes, and its constants."""
_MAX_EXCEPTIONS = 8
"""Maximum number of exceptions at which a function is compared, the largest of them."""


class WrongAtSomeSize(Exception):
    """Raised if the function for all sizes is wrong at some sizes. The message says why."""


@frozen
class FunctionVariant:
    """A candidate for the function of a group: the name of an algorithm for its first node, and a schedule."""

    algorithm: str
    schedule: Schedule

    def apply_to_group(self, graph: Graph, nodes: Nodes, target: Target) -> tuple[LoweredGroup, Schedule]:
        """Apply the schedule to the group in another graph; return the lowered group and its schedule.

        Raises ScheduleError if the schedule cannot be applied, and DependsOnSize if it needs a number that depends on
        the sizes.
        """
        graph, nodes = adapt_group_to_core(graph, nodes, target)
        first = nodes[0]
        if self.algorithm:
            first = replace(first, attrs={**first.attrs, "algorithm": self.algorithm})
        group = lower_group(graph, (first, *nodes[1:]), product_multiples(target), "kernel")
        trace = generalise_trace(self.schedule.trace, group.func)
        return group, replay_trace(group.func, trace).named(self.schedule.rule)


@frozen
class GeneralFunction:
    """A function for all sizes. ``group``: the lowered group, whose extents depend on the sizes. ``schedule``: its schedule.
    ``lowered``: the lowered function. ``func``: the same function with extents written as expressions."""

    group: LoweredGroup
    schedule: Schedule
    lowered: ir.PrimFunc
    func: ir.PrimFunc


class GeneralKernelBuilder(KernelBuilder):
    """Builds the functions of a network with dynamic sizes. Groups and constants are those of the graph at the largest
    sizes."""

    def __init__(self, family: NetworkFamily, target: Target, goal: Goal) -> None:
        super().__init__(Configuration(family.largest, goal), target)
        self.family, self.sizes = family, family.sizes
        self.graphs = (*family.graphs, family.largest, family.symbolic)
        self.groups = {id(g): {nodes[-1].outputs: nodes for nodes in groups_of(g)} for g in self.graphs}
        self.symbolic_nodes = {node.outputs: node for node in family.symbolic.nodes}

    # ------------------------------------------------------------ overrides of KernelBuilder

    def schedule_kernel(self, nodes: Nodes, uses: int, *, in_place: bool = False) -> tuple[LoweredGroup, Choice]:
        if in_place:
            raise _unsupported_error("it updates a part of a state in place", str(nodes[0].loc))
        made = self.build_general_function(self.group_at_all_sizes(nodes), uses)
        return self.with_largest_shapes(made.group), Choice(made.schedule, made.func)

    def lower_control_node(self, node: Node) -> LoweredControl:
        names = [name for name in node.inputs if name]
        made = iter([self.build_general_function(together, 1) for together in self.inner_groups_at_all_sizes(node)])

        def next_kernel(*_: object) -> tuple[LoweredGroup, Choice]:
            kernel = next(made)
            return kernel.group, Choice(kernel.schedule, kernel.lowered)

        try:
            require_common_constants(names, self.graphs[:-1])
            lowered = lower_control_flow(self.family.symbolic, self.symbolic_nodes[node.outputs], next_kernel, None)
            arrays = [param.array for param in lowered.params if param.array is not None]
            func = self.write_and_compare(lowered.func, arrays, (), constant_names(lowered.func))
        except (WrongAtSomeSize, DependsOnSize) as error:
            raise _unsupported_error(str(error), str(node.loc)) from error
        return replace(lowered, func=func)

    def lower_value_copy(self, copy: ValueCopy) -> ir.PrimFunc:
        arrays = [self.family.largest.consts[copy.value].reshape(-1)] if copy.constant else []
        try:
            require_common_constants((copy.value,), self.graphs[:-1])
            return self.write_and_compare(lower(lower_copy(self.family.symbolic, copy).func), arrays)
        except WrongAtSomeSize as error:
            raise _unsupported_error(str(error), f"copy of {copy.value}") from error

    def find_alias(self, node: Node) -> Alias | None:
        alias = find_node_alias(self.family.symbolic, self.symbolic_nodes[node.outputs])
        # The planner needs numbers: a place that depends on the sizes is a copy.
        return alias if alias is None or not any(isinstance(n, Extent) for n in (alias.source, *alias.parts)) else None

    def dynamic_extents(self, value: str) -> tuple[ir.Expr, ...]:
        return self.family.extents.get(value, ())

    # ------------------------------------------------------------ candidates

    def group_at_all_sizes(self, nodes: Nodes) -> list[tuple[Graph, Nodes]]:
        """Return the graph and the nodes of a group at the points, at the largest sizes, and with symbolic sizes.

        ``nodes``: the nodes of the group at the largest sizes."""
        return [(g, self.groups[id(g)][nodes[-1].outputs]) for g in self.graphs]

    def inner_groups_at_all_sizes(self, node: Node) -> list[tuple[tuple[Graph, Nodes], ...]]:
        """Return, for each group of nodes inside of a control-flow node, its graph and nodes at every size."""
        own = [(g, next(n for n in g.nodes if n.outputs == node.outputs)) for g in self.graphs]
        inside = [[(inner, nodes) for inner, nodes, _ in list_groups_in_control_flow(g, mine)] for g, mine in own]
        return list(zip(*inside, strict=True))

    def build_general_function(self, group_at_sizes: Sequence[tuple[Graph, Nodes]], uses: int) -> GeneralFunction:
        """Build the function of a group for all sizes from the first candidate (algorithm and schedule) that needs no
        number that depends on the sizes."""
        reason = ""
        for _, made in self.try_variants(group_at_sizes, uses):
            if isinstance(made, GeneralFunction):
                return made
            reason = made
        raise _unsupported_error(reason, str(group_at_sizes[0][1][0].loc))

    def try_variants(
        self, group_at_sizes: Sequence[tuple[Graph, Nodes]], uses: int
    ) -> Iterator[tuple[FunctionVariant, GeneralFunction | str]]:
        """Try candidates for the function of a group, the cheapest first. Yield each candidate with the function, or
        with the reason why the candidate was refused."""
        unified = unify_bounds(group_at_sizes)
        (largest, at_largest), (symbolic, nodes) = unified[-2:]
        for variant in self.list_variants(*unified[0], uses):
            try:
                names = [name for node in nodes for name in node.inputs]
                require_common_constants(names, [graph for graph, _ in unified[:-1]])
                group, schedule = variant.apply_to_group(symbolic, nodes, self.target)
                lowered = lower(schedule.func)
                group = replace(group, macs=sum(node_macs(largest, node) for node in at_largest))
                arrays = _pack_constants(self.with_largest_shapes(group), schedule)
                func = self.write_and_compare(
                    lowered, arrays, self.list_direct_functions(symbolic, nodes), group.tables
                )
                yield variant, GeneralFunction(group, schedule, lowered, func)
            except (WrongAtSomeSize, ScheduleError, DependsOnSize) as error:
                yield variant, str(error)

    def with_largest_shapes(self, group: LoweredGroup) -> LoweredGroup:
        """Return a group whose parameters have the shapes of the largest sizes, by which constants are packed."""
        params = (replace(p, shape=evaluate_shape(p.shape, self.family.maxima)) for p in group.func.params)
        return replace(group, func=replace(group.func, params=tuple(params)))

    def list_direct_functions(self, symbolic: Graph, nodes: Nodes) -> Iterator[tuple[Sizes, DirectFunction]]:
        """Yield sizes, and the function of a group for these sizes: its loops as operators define them, with their constants.

        Nothing is yielded for sizes at which the comparison would take too long."""
        names = {name for node in nodes for name in (*node.inputs, *node.outputs) if name}
        types = {name: symbolic.types[name] for name in names}
        consts = {name: symbolic.consts[name] for name in names if name in symbolic.consts}
        only_nodes = replace(symbolic, nodes=tuple(nodes), types=types, consts=consts)
        exceptions = sorted(self.family.domain.exceptions.items())[-_MAX_EXCEPTIONS:]
        lowered: list[tuple[Graph, DirectFunction | None]] = []
        for sizes in (*self.family.small, *(sizes for _, sizes in exceptions)):
            graph = instantiate_graph(only_nodes, sizes)
            # Behind strides several small sizes give the same extents. Constants are equal if types are.
            same = [k for k, (at, _) in enumerate(lowered) if (at.nodes, at.types) == (graph.nodes, graph.types)]
            if not same:
                lowered.append((graph, self.lower_direct_function(graph)))
            direct = lowered[same[0] if same else -1][1]
            if direct is not None:
                yield sizes, direct

    def lower_direct_function(self, graph: Graph) -> DirectFunction | None:
        """Lower a group for fixed sizes; None if its comparison would take too long."""
        group = lower_group(
            *adapt_group_to_core(graph, graph.nodes, self.target), product_multiples(self.target), "kernel"
        )
        if group.macs > MAX_INTERPRETED_STORES:
            return None
        schedule = schedule_as_written(group.func, self.target)
        return lower(schedule.func), _pack_constants(group, schedule)

    def list_variants(self, graph: Graph, nodes: Nodes, uses: int) -> Iterator[FunctionVariant]:
        """Yield the candidates for a group: every schedule of every algorithm, the cheapest first, and last the
        unscheduled loops."""
        left = []
        algorithms: dict[int, str] = {}
        for group in group_algorithms(graph, nodes, self.target, "kernel"):
            algorithm = str(group.anchor.attrs.get("algorithm", ""))
            for schedule in candidate_schedules(group.func, group.anchor.op, self.target, self.goal):
                for variant in self.list_storage_variants(group, schedule):
                    left.append(variant)
                    algorithms[id(variant)] = algorithm
        plain = FunctionVariant(algorithm, schedule_as_written(group.func, self.target))
        while left:
            best = choose_schedule(left, self.target, self.goal, uses).schedule
            yield FunctionVariant(algorithms[id(best)], best)
            left = [schedule for schedule in left if schedule is not best]
        yield plain

    def list_storage_variants(self, group: LoweredGroup, schedule: Schedule) -> Sequence[Schedule]:
        """Return the variants of a schedule that store float constants in 16 bits, if the user requests 16 bits.

        If the user does not, or if there are no such variants, the schedule itself is returned.
        """
        return (
            variants_with_16_bit_constants(group, schedule, self.target) if self.target.has(HALF_WEIGHTS) else ()
        ) or (schedule,)

    def write_and_compare(
        self,
        func: ir.PrimFunc,
        arrays: Sequence[Array],
        direct_functions: Iterable[tuple[Sizes, DirectFunction]] = (),
        tables: Container[str] = (),
    ) -> ir.PrimFunc:
        """Return a lowered function with its extents written as expressions over scalar parameters, verified and compared.

        ``arrays``: its constants at the largest sizes. ``direct_functions``: functions for fixed sizes, with which it is
        compared. ``tables``: names of the constants whose elements may be used as indices, as the verifier accepts them.
        Functions with dynamic sizes are verified only here.
        """
        general = write_sizes(func, [a.shape for a in arrays], self.family.maxima)
        if general.func.scalars or any(isinstance(n, Extent) for p in func.params for n in p.shape):
            valid: set[ir.PrimFunc] = set()
            for sizes in (self.family.maxima, *self.family.small):
                own = general.specialised_to(sizes)
                if own not in valid:  # different sizes may give the same extents
                    valid.add(_require_valid(own, f"at sizes {_format_sizes(sizes)}", tables))
            compared: set[tuple[ir.PrimFunc, int]] = set()
            for sizes, (direct, constants) in direct_functions:
                own = general.specialised_to(sizes)
                if (own, id(direct)) in compared:
                    continue
                if count_executed_stores(own.body) + count_executed_stores(direct.body) > MAX_INTERPRETED_STORES:
                    continue
                if not have_same_results(own, arrays, direct, constants):
                    raise WrongAtSomeSize(
                        f"the function for all sizes gives other results at sizes {_format_sizes(sizes)}"
                    )
                compared.add((own, id(direct)))
        return general.func


def unify_bounds(group_at_sizes: Sequence[tuple[Graph, Nodes]]) -> list[tuple[Graph, Nodes]]:
    """Assign to each node of a group the same bounds at all sizes: the largest of its bounds on data values and, for
    the first node, the largest padding. The last graph is the symbolic one; the others determine the bounds."""
    columns = [
        _assign_common_bounds([nodes[k] for _, nodes in group_at_sizes], anchor=k == 0)
        for k in range(min(len(nodes) for _, nodes in group_at_sizes))
    ]
    return [(graph, nodes) for (graph, _), nodes in zip(group_at_sizes, zip(*columns, strict=True), strict=True)]


def _assign_common_bounds(nodes: Nodes, *, anchor: bool) -> list[Node]:
    """Assign the same bounds on data values and padding to a node at all sizes.

    ``nodes``: the node at every size, and in the symbolic graph. ``anchor``: the node is the first node of its group."""
    bounds_attrs: dict[str, Attr] = {}
    if anchor and "open" in registry.get(nodes[0].op).attrs:
        paddings: list[Any] = [node.attr("padding") for node in nodes[:-1]]
        bounds_attrs["open"] = tuple(max(column) for column in zip(*paddings, strict=True))
    bounds = {bound for node in nodes[:-1] if isinstance(bound := node.attrs.get("bound"), int)}
    if len(bounds) > 1:
        bounds_attrs["bound"] = -1 if min(bounds) < 0 else max(bounds)
    return [replace(node, attrs={**node.attrs, **bounds_attrs}) for node in nodes]


def _pack_constants(group: LoweredGroup, schedule: Schedule) -> list[Array]:
    """Pack the constants of a group in the layout that its schedule requires."""
    given = zip(group.func.params, group.params, strict=False)
    return [schedule.packed(buffer, param.array) for buffer, param in given if param.array is not None]


def _is_leading_part(part: Array, whole: Array) -> bool:
    """Test whether an array equals the first elements of another array along every axis."""
    if part.size == whole.size:
        return part.tobytes() == whole.tobytes()
    if part.ndim != whole.ndim:
        return False
    shared = map(min, part.shape, whole.shape)  # the sizes of a point may exceed the largest sizes
    common = tuple(slice(n) for n in shared)
    return part[common].tobytes() == whole[common].tobytes()


def require_common_constants(names: Iterable[str], graphs: Sequence[Graph]) -> None:
    """Raise WrongAtSomeSize unless the values ``names`` that are constants have common elements at all sizes.

    ``graphs``: the network at several sizes, last at the largest ones."""
    *points, largest = graphs
    for name, graph in product(dict.fromkeys(names), points):
        is_constant = name in largest.consts and name in graph.consts
        if is_constant and not _is_leading_part(graph.consts[name], largest.consts[name]):
            raise WrongAtSomeSize(f"constant {name} is computed from the sizes")


def _require_valid(func: ir.PrimFunc, size_description: str, tables: Container[str]) -> ir.PrimFunc:
    """Return the function if it is valid; otherwise raise :class:`WrongAtSomeSize` with the reason.

    ``size_description``: the sizes, for the message. ``tables``: names of the constants whose elements may be used as
    indices.
    """
    if wrong := explain_fault(func, tables=tables):
        raise WrongAtSomeSize(f"{size_description} {wrong}")
    return func


def _format_sizes(sizes: Sizes) -> str:
    """Format sizes, by the name of their variables, for messages."""
    return ", ".join(f"{name}={n}" for name, n in sizes.items())


def _unsupported_error(reason: str, where: str) -> UnsupportedError:
    """Create the UnsupportedError for an operator whose function cannot have dynamic sizes."""
    return UnsupportedError(
        f"this operator does not support dynamic sizes: {reason}", where=where, hint="fix the sizes with --input-shape"
    )
