# SPDX-License-Identifier: Apache-2.0
"""Functions with dynamic sizes: the shapes of a run, and building of functions that serve all sizes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
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
from microc.compiler.sizes.family import NetworkFamily
from microc.errors import ScheduleError, UnsupportedError, UsageError
from microc.graph.ir import Attr, Graph, Node
from microc.ops import registry
from microc.ops.lowering import LoweredGroup, lower_group
from microc.ops.registry import Alias
from microc.run.data.pictures import reshape_expression
from microc.schedule.choose import Choice, choose_schedule
from microc.schedule.identities import intrinsic_functions
from microc.schedule.rules import candidate_schedules, schedule_as_written
from microc.schedule.rules.rule import HALF_WEIGHTS, product_multiples
from microc.schedule.schedule import Schedule, generalise_trace, replay_trace
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.analysis.generalise import StructureMismatch, generalise, lower_with_hidden_sizes
from microc.tir.interp import execute
from microc.tir.lower import lower
from microc.tir.rewrite import stmt_children
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


# ---- Build functions with dynamic sizes. Each function is built for several static sizes, generalised to one
# function for all sizes, and compared with a function for the smallest sizes.


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


# ---- Functions for all sizes of a network family. Each is scheduled once, lowered at every point (combination of sizes), and
# generalised.
#
# A schedule is refused if the structure of its loops differs between sizes, for example because some sizes leave a tail. The
# loops without a schedule are the last candidate. The general function is compared with a function for the smallest sizes, at
# which a window may reach opposite borders of an image at once.

Nodes = Sequence[Node]
_NOTHING = ir.PrimFunc("nothing", (), ir.Seq(()))


@frozen
class FunctionVariant:
    """A candidate for the function of a group: the name of an algorithm for its first node, and a schedule."""

    algorithm: str
    schedule: Schedule

    def apply_to_group(self, graph: Graph, nodes: Nodes, target: Target) -> tuple[LoweredGroup, Schedule]:
        """Apply the schedule to the group at another size; return the lowered group and its schedule.

        Raises ScheduleError if the schedule cannot be applied.
        """
        graph, nodes = adapt_group_to_core(graph, nodes, target)
        first = nodes[0]
        if self.algorithm:
            first = replace(first, attrs={**first.attrs, "algorithm": self.algorithm})
        group = lower_group(graph, (first, *nodes[1:]), product_multiples(target), "kernel")
        return group, replay_trace(group.func, self.schedule.trace).named(self.schedule.rule)


@frozen
class GeneralFunction:
    """A function for all sizes. ``groups``: the lowered group at every size. ``choices``: the schedule at every
    size."""

    groups: tuple[LoweredGroup, ...]
    choices: tuple[Choice, ...]
    func: ir.PrimFunc


class GeneralKernelBuilder(KernelBuilder):
    """Builds the functions of a network with dynamic sizes. Groups and constants are those of the graph at the largest
    sizes."""

    def __init__(self, family: NetworkFamily, target: Target, goal: Goal) -> None:
        super().__init__(Configuration(family.largest, goal), target)
        self.family, self.sizes = family, family.sizes
        all_graphs = (*family.graphs, family.largest, *(graph for _, graph in family.small))
        self.all_graphs = all_graphs
        self.groups = {id(g): {nodes[-1].outputs: nodes for nodes in groups_of(g)} for g in all_graphs}
        self.nodes = {id(g): {node.outputs: node for node in g.nodes} for g in all_graphs}

    # ------------------------------------------------------------ overrides of KernelBuilder

    def schedule_kernel(self, nodes: Nodes, uses: int, *, in_place: bool = False) -> tuple[LoweredGroup, Choice]:
        if in_place:
            raise _unsupported_error("it updates a part of a state in place", str(nodes[0].loc))
        made = self.build_general_function(self.group_at_all_sizes(nodes), uses)
        largest = len(self.family.graphs)
        return made.groups[largest], Choice(made.choices[largest].schedule, made.func)

    def lower_control_node(self, node: Node) -> LoweredControl:
        own = [self.nodes[id(g)][node.outputs] for g in self.all_graphs]
        made = [
            self.build_general_function(together, 1, inside=True) for together in self.inner_groups_at_all_sizes(node)
        ]
        # A group whose comparison would take too long has no function at the smallest sizes.
        count = min((len(m.choices) for m in made), default=len(own))
        lowered_sizes = []
        for k, (graph, mine) in enumerate(zip(self.all_graphs[:count], own[:count], strict=True)):
            kernels = iter([(m.groups[k], m.choices[k]) for m in made])
            lowered_sizes.append(lower_control_flow(graph, mine, lambda *_, kernels=kernels: next(kernels), None))
        arrays = [[p.array for p in lowered.params if p.array is not None] for lowered in lowered_sizes]
        try:
            func = self.generalise_functions(
                [p.func for p in lowered_sizes], arrays, constant_names(lowered_sizes[-1].func)
            )
        except StructureMismatch as error:
            raise _unsupported_error(str(error), str(node.loc)) from error
        return replace(lowered_sizes[len(self.family.graphs)], func=func)

    def lower_value_copy(self, copy: ValueCopy) -> ir.PrimFunc:
        funcs = [lower(lower_copy(g, copy).func) for g in self.all_graphs]
        arrays = [[g.consts[copy.value].reshape(-1)] if copy.constant else [] for g in self.all_graphs]
        try:
            return self.generalise_functions(funcs, arrays)
        except StructureMismatch as error:
            raise _unsupported_error(str(error), f"copy of {copy.value}") from error

    def find_alias(self, node: Node) -> Alias | None:
        found = [find_node_alias(g, self.nodes[id(g)][node.outputs]) for g in self.all_graphs]
        return found[0] if all(alias == found[0] for alias in found) else None

    def dynamic_extents(self, value: str) -> tuple[ir.Expr, ...]:
        return self.family.extents.get(value, ())

    # ------------------------------------------------------------ candidates

    def group_at_all_sizes(self, nodes: Nodes) -> list[tuple[Graph, Nodes]]:
        """Return the graph and the nodes of a group at every size. ``nodes``: the nodes of the group at the largest
        sizes."""
        return [(g, self.groups[id(g)][nodes[-1].outputs]) for g in self.all_graphs]

    def inner_groups_at_all_sizes(self, node: Node) -> list[tuple[tuple[Graph, Nodes], ...]]:
        """Return, for each group of nodes inside of a control-flow node, the group's graph and nodes at every size."""
        own = [(g, self.nodes[id(g)][node.outputs]) for g in self.all_graphs]
        inside = [[(inner, nodes) for inner, nodes, _ in list_groups_in_control_flow(g, mine)] for g, mine in own]
        return list(zip(*inside, strict=True))

    def build_general_function(
        self, group_at_sizes: Sequence[tuple[Graph, Nodes]], uses: int, *, inside: bool = False
    ) -> GeneralFunction:
        """Build the function of a group for all sizes from the first candidate (algorithm and schedule) whose loops
        have the same structure at all sizes."""
        reason = ""
        for _, made in self.try_variants(group_at_sizes, uses, inside=inside):
            if isinstance(made, GeneralFunction):
                return made
            reason = made
        raise _unsupported_error(reason, str(group_at_sizes[0][1][0].loc))

    def try_variants(
        self, group_at_sizes: Sequence[tuple[Graph, Nodes]], uses: int, *, inside: bool = False
    ) -> Iterator[tuple[FunctionVariant, GeneralFunction | str]]:
        """Try candidates for the function of a group, the cheapest first. Yield each candidate with the function, or
        with the reason why the candidate was refused.

        At the smallest sizes, which are used only for comparison, the loops are not scheduled, because operators omit
        axes of one element there.
        """
        group_at_sizes, count = unify_bounds(group_at_sizes), len(self.family.graphs) + 1
        multiples = product_multiples(self.target)
        adapted = (adapt_group_to_core(g, nodes, self.target) for g, nodes in group_at_sizes[count:])
        small = [lower_group(g, nodes, multiples, "kernel") for g, nodes in adapted]
        plain = [schedule_as_written(group.func, self.target) for group in small]
        compared = max((group.macs for group in small), default=0) <= MAX_INTERPRETED_STORES
        direct = [lower(schedule.func) for schedule in plain] if compared else []
        for variant in self.list_variants(*group_at_sizes[0], uses):
            try:
                narrowed_variant = self.narrow_tiles(variant, group_at_sizes)
                made = [
                    narrowed_variant.apply_to_group(graph, nodes, self.target)
                    for graph, nodes in group_at_sizes[:count]
                ]
                groups, schedules = [*(g for g, _ in made), *small], [*(s for _, s in made), *plain]
                *points, largest = (schedule.func for _, schedule in made)
                funcs = [*lower_with_hidden_sizes(points, lower), lower(largest) if inside else largest, *direct]
                arrays = [_pack_constants(group, schedule) for group, schedule in zip(groups, schedules, strict=True)]
                func = self.generalise_functions(funcs, arrays, groups[count - 1].tables)
                yield variant, GeneralFunction(tuple(groups), tuple(map(Choice, schedules, funcs)), func)
            except (StructureMismatch, ScheduleError) as error:
                yield variant, str(error)

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

    def narrow_tiles(self, variant: FunctionVariant, group_at_sizes: Sequence[tuple[Graph, Nodes]]) -> FunctionVariant:
        """Reduce the tile sizes in a candidate's schedule so that they divide the loop extents at every combination of
        sizes."""
        points = group_at_sizes[: len(self.family.graphs)]
        funcs = [
            replace(variant, schedule=Schedule(_NOTHING)).apply_to_group(g, nodes, self.target)[0].func
            for g, nodes in points
        ]
        trace = generalise_trace(variant.schedule.trace, funcs, self.family.fitter.has_rule_divisible_by)
        return replace(variant, schedule=replace(variant.schedule, trace=trace))

    def generalise_functions(
        self,
        funcs: Sequence[ir.PrimFunc],
        arrays: Sequence[Sequence[Array]],
        tables: Container[str] = (),
    ) -> ir.PrimFunc:
        """Generalise the functions of the points, and compare the result with the functions of the largest and the
        smallest sizes.

        ``funcs``: the function at each of the points, at the largest sizes, and at the smallest sizes. ``arrays``: the
        constants of each function. Constants of a point must be the leading elements of those of the largest sizes.
        ``tables``: names of the constants whose elements may be used as indices, as the verifier accepts them.
        Functions with dynamic sizes are verified only here.
        """
        count = len(self.family.graphs)
        largest = arrays[count]
        for parts in arrays[:count]:
            if not all(_is_leading_part(part, whole) for part, whole in zip(parts, largest, strict=True)):
                raise StructureMismatch("a constant is computed from the sizes")
        general = generalise(funcs[:count], self.family.fitter, [a.shape for a in largest], self.family.maxima)
        if general.func.scalars:
            _require_valid(general.specialised_to(self.family.maxima), "at the largest sizes", tables)
            for k, (point, _) in enumerate(self.family.small, count + 1):
                small = _require_valid(
                    general.specialised_to(self.family.sizes_by_scalar_name(point)), f"at sizes {point}", tables
                )
                if (
                    k >= len(funcs)
                    or count_executed_stores(small.body) + count_executed_stores(funcs[k].body) > MAX_INTERPRETED_STORES
                ):
                    continue
                if not have_same_results(small, largest, funcs[k], arrays[k]):
                    raise StructureMismatch(f"the function for all sizes gives other results at sizes {point}")
        return general.func


def unify_bounds(group_at_sizes: Sequence[tuple[Graph, Nodes]]) -> list[tuple[Graph, Nodes]]:
    """Assign to each node of a group the same bounds at all sizes: the largest of its bounds on data values and, for
    the first node, the largest padding."""
    columns = [
        _assign_common_bounds([nodes[k] for _, nodes in group_at_sizes], anchor=k == 0)
        for k in range(min(len(nodes) for _, nodes in group_at_sizes))
    ]
    return [(graph, nodes) for (graph, _), nodes in zip(group_at_sizes, zip(*columns, strict=True), strict=True)]


def _assign_common_bounds(nodes: Nodes, *, anchor: bool) -> list[Node]:
    """Assign the same bounds on data values and padding to a node at all sizes.

    ``nodes``: the node at every size. ``anchor``: the node is the first node of its group."""
    bounds_attrs: dict[str, Attr] = {}
    if anchor and "open" in registry.get(nodes[0].op).attrs:
        paddings: list[Any] = [node.attr("padding") for node in nodes]
        bounds_attrs["open"] = tuple(max(column) for column in zip(*paddings, strict=True))
    bounds = {bound for node in nodes if isinstance(bound := node.attrs.get("bound"), int)}
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


def _require_valid(func: ir.PrimFunc, size_description: str, tables: Container[str]) -> ir.PrimFunc:
    """Return the function if it is valid; otherwise raise :class:`StructureMismatch` with the reason.

    ``size_description``: the sizes, for the message. ``tables``: names of the constants whose elements may be used as
    indices.
    """
    if wrong := explain_fault(func, tables=tables):
        raise StructureMismatch(f"{size_description} {wrong}")
    return func


def _unsupported_error(reason: str, where: str) -> UnsupportedError:
    """Create the UnsupportedError for an operator whose function cannot have dynamic sizes."""
    return UnsupportedError(
        f"this operator does not support dynamic sizes: {reason}", where=where, hint="fix the sizes with --input-shape"
    )
