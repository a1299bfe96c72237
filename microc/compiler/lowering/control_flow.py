# SPDX-License-Identifier: Apache-2.0
"""Lower control flow: a node with graphs inside (a loop, a condition, or an external region) becomes one function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.compiler.lowering.kernel_selection import find_node_alias, groups_of
from microc.errors import InternalError
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.control import EXTERNAL, max_iterations, scanned_operand_count
from microc.ops.lowering import LoweredGroup, Param
from microc.schedule.choose import Choice
from microc.schedule.rules.movement import vectorize_copy_loops
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.analysis.simplification import simplify_stmt
from microc.tir.lower import lower_annotated_loops
from microc.tir.names import GUARDED
from microc.tir.rewrite import map_expr, map_stmt, replace_buffers, substitute_stmt, walk_stmt
from microc.tir.striped_layers import BufferLocation, names_in_function, redirect_to_locations
from microc.tir.verify import verify

# ---- A check that no workspace is overwritten too early inside control flow. It is independent of the code that assigns
# workspaces.
#
# Every value in a workspace has a number. While statements are emitted, in order, the check records the number of the value
# that each workspace contains. It is a defect if a statement reads a workspace that contains another value than expected. The
# second iteration of a loop must find the same values as the first.

_EITHER = -1
"""Number recorded for a workspace whose contents differ between the two branches of a condition."""


class WorkspaceReuseCheck:
    """Check that every value in a workspace is intact when it is read.

    ``contents``: the number of the value in each workspace. ``reads``: the locations that were read in the current loop
    body.
    """

    def __init__(self) -> None:
        self.count = 0
        self.contents: dict[ir.Buffer, int] = {}
        self.reads: list[BufferLocation] = []

    def new_value_number(self) -> int:
        """Return a new number for a value that is stored in a workspace."""
        self.count += 1
        return self.count

    def record_write(self, *locations: BufferLocation) -> None:
        """Record that the workspaces of ``locations`` now contain the values with the numbers of these locations."""
        self.contents |= {location.buffer: location.owner for location in locations if location.owner}

    def check_and_record_read(self, *locations: BufferLocation) -> None:
        """Check that the workspaces of ``locations`` still contain their values, and record that these are read.

        Raises InternalError if a value was overwritten.
        """
        for location in locations:
            if location.owner and self.contents.get(location.buffer) != location.owner:
                raise InternalError(
                    f"control flow: a value is read from workspace {location.buffer.name}, which contains another value"
                )
        self.reads += [location for location in locations if location.owner]

    def check_statement(self, reads: Iterable[BufferLocation], writes: Iterable[BufferLocation]) -> None:
        """Check that a statement reads intact values, even if it reads some operands only after all results are
        written."""
        reads, writes = tuple(reads), tuple(writes)
        self.record_write(*writes)
        self.check_and_record_read(*reads, *writes)

    @contextmanager
    def check_loop_body(self) -> Iterator[None]:
        """Check the body of a loop. Values from before the loop that the body reads must still be intact at the end of
        the body, for the next iteration."""
        outer, self.reads, before = self.reads, [], self.count
        yield
        self.check_and_record_read(*(location for location in self.reads if location.owner <= before))
        self.reads = outer + self.reads

    @contextmanager
    def check_branch(self, contents_at_ends: list[dict[ir.Buffer, int]]) -> Iterator[None]:
        """Check one branch of a condition, and append the contents of the workspaces at its end to
        ``contents_at_ends``."""
        before = dict(self.contents)
        yield
        contents_at_ends.append(self.contents)
        self.contents = before

    def merge_branches(self, contents_at_ends: list[dict[ir.Buffer, int]]) -> None:
        """Merge the contents of the workspaces at the ends of all branches of a condition."""
        buffers = {buffer for end in contents_at_ends for buffer in end}
        numbers = {buffer: {end.get(buffer, 0) for end in contents_at_ends} for buffer in buffers}
        self.contents = {buffer: owners.pop() if len(owners) == 1 else _EITHER for buffer, owners in numbers.items()}


# ---- Names and memory of the function that control flow becomes: constants, and workspaces shared by the values inside.

ZERO = ir.const(0, "int32")


class UniqueNames:
    """Generates names that are unique in a function. ``used_names``: names that its kernels use already."""

    def __init__(self, used_names: set[str]) -> None:
        self.used_names = used_names
        self.scoped: set[str] = set()

    def make_unique(self, stem: str) -> str:
        """Return a new name that begins with ``stem``."""
        name, number = stem, 1
        while name in self.used_names:
            name, number = f"{stem}{number}", number + 1
        self.used_names.add(name)
        return name

    def rename_repeated_declarations(self, body: ir.Stmt) -> ir.Stmt:
        """Rename the variables and local buffers of ``body`` that an earlier kernel declares too, because both
        declarations may be in one C scope."""
        declared = set[str]()
        values: dict[ir.Var, ir.Var] = {}
        buffers: dict[ir.Buffer, ir.Buffer] = {}
        for stmt in walk_stmt(body):
            match stmt:
                case ir.Let(var) if var.name in self.scoped:
                    values[var] = replace(var, name=self.make_unique(var.name))
                case ir.Alloc(buffer) if buffer.name in self.scoped:
                    buffers[buffer] = replace(buffer, name=self.make_unique(buffer.name))
                case ir.Let(var):
                    declared.add(var.name)
                case ir.Alloc(buffer):
                    declared.add(buffer.name)
                case _:
                    pass
        self.scoped |= declared

        def rename_declaration(stmt: ir.Stmt) -> ir.Stmt:
            if isinstance(stmt, ir.Let) and stmt.var in values:
                return replace(stmt, var=values[stmt.var])
            return stmt

        return replace_buffers(map_stmt(substitute_stmt(body, values), rename_declaration), buffers)


@dataclass(slots=True, eq=False)
class _SharedWorkspace:
    """A workspace that stores several values one after another.

    ``stem``: the beginning of its name. ``buffer``: a placeholder for it until its size is known. ``element_count``:
    the number of elements that the largest value so far needs.
    """

    stem: str
    buffer: ir.Buffer
    element_count: int


class FunctionMemory:
    """The parameters of the function without its results, and its workspaces.

    ``reuse``: a workspace may store several values one after another.
    """

    def __init__(self, names: UniqueNames, *, reuse: bool) -> None:
        self.names, self.reuse = names, reuse
        self.params: list[tuple[ir.Buffer, Param]] = []
        self.constants: dict[tuple[str, tuple[int, ...], bytes], ir.Buffer] = {}
        self.slots: list[_SharedWorkspace] = []
        self.idle: list[_SharedWorkspace] = []
        self.workspaces = WorkspaceReuseCheck()

    def add_data_param(self, name: str, element_count: int, dtype: str) -> BufferLocation:
        """Add a parameter for the value ``name``, which is computed outside of the control flow, and return its
        location."""
        buffer = ir.Buffer(self.names.make_unique("data"), (element_count,), dtype)
        self.params.append((buffer, Param("data", name)))
        return BufferLocation(buffer, ZERO)

    def allocate_workspace(self, stem: str, element_count: int, dtype: str) -> BufferLocation:
        """Return the location of a new value of ``element_count`` elements in a workspace.

        The workspace is allocated until :meth:`release_workspaces` is called.

        The smallest idle workspace that is large enough is used. If none is large enough, the largest idle one is
        enlarged.
        """
        idle = [slot for slot in self.idle if slot.buffer.dtype == dtype]
        if idle:
            slot = min(
                idle,
                key=lambda s: (
                    s.element_count < element_count,
                    s.element_count if s.element_count >= element_count else -s.element_count,
                ),
            )
            self.idle.remove(slot)
            slot.element_count = max(slot.element_count, element_count)
        else:
            name = f"slot {len(self.slots)}"  # until its size is known
            slot = _SharedWorkspace(stem, ir.Buffer(name, (1,), dtype, "workspace"), element_count)
            self.slots.append(slot)
        return BufferLocation(slot.buffer, ZERO, self.workspaces.new_value_number())

    def release_workspaces(self, locations: Iterable[BufferLocation]) -> None:
        """Release the workspaces of values, so that later values may use them.

        This is correct in loops too, because an iteration reads nothing that the iteration before it left in a
        workspace.
        """
        for location in locations if self.reuse else ():
            self.idle += [slot for slot in self.slots if slot.buffer == location.buffer]

    def add_constant(self, role: str, array: Array) -> ir.Buffer:
        """Return the parameter for a constant. Equal constants share a parameter."""
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self.constants:
            buffer = ir.Buffer(self.names.make_unique(role), array.shape, array.dtype.name, "const")
            self.constants[key] = buffer
            self.params.append((buffer, Param(role, "", np.ascontiguousarray(array))))
        return self.constants[key]

    def finish_function(
        self, body: ir.Stmt, results: Iterable[ir.Buffer]
    ) -> tuple[ir.Stmt, tuple[ir.Buffer, ...], tuple[Param, ...]]:
        """Return the parts of the finished function: its body with the final workspaces, its parameters, and the values
        or constants that are passed as parameters."""
        params = sorted(self.params, key=lambda item: item[1].array is not None)
        workspaces = {
            slot.buffer: ir.Buffer(
                self.names.make_unique(slot.stem), (slot.element_count,), slot.buffer.dtype, "workspace"
            )
            for slot in self.slots
        }
        body = redirect_to_locations(body, {key: BufferLocation(buffer, ZERO) for key, buffer in workspaces.items()})
        buffers = (*(buffer for buffer, _ in params), *results, *workspaces.values())
        return body, buffers, tuple(param for _, param in params)


# ---- The statements of control flow: loops and conditions with kernels inside, which access one-dimensional buffers.

LocationsByName = dict[str, BufferLocation]
"""Location of each value of a graph, by the value's name."""


@frozen
class FlowStep:
    """A group of nodes inside of control flow, lowered to a kernel, to a view, or to nested control flow.

    One of the fields is set. ``kernel``: the kernel. ``view_start``: the element of the group's operand at which the
    view begins. ``inner_steps``: the lowered groups of each graph inside of a control-flow node, by the name of the
    graph.
    """

    nodes: tuple[Node, ...]
    kernel: tuple[LoweredGroup, Choice] | None = None
    view_start: int | None = None
    inner_steps: Mapping[str, tuple[FlowStep, ...]] | None = None


class ControlFlowEmitter:
    """Emits the statements for the graphs inside of a node: the body of a loop, or the branches of a condition.

    ``where``: the location of the node, for errors.

    ``target``: the core, or None with dynamic sizes. Without a target, copies are emitted as plain loops, which are the
    same at all sizes.
    """

    def __init__(self, names: UniqueNames, memory: FunctionMemory, where: str, target: Target | None) -> None:
        self.names, self.memory, self.where, self.target = names, memory, where, target

    def emit_node(
        self, step: FlowStep, locations_by_name: LocationsByName, results: Sequence[BufferLocation], stem: str
    ) -> ir.Stmt:
        """Emit the statements of a node with graphs inside: a loop, a condition, or a region that external code could
        compute."""
        node = step.nodes[0]
        assert step.inner_steps is not None
        if node.op == "loop":
            return self.emit_loop(node, step.inner_steps["body"], locations_by_name, results, stem)
        if node.op == EXTERNAL:
            return self.emit_external_region(node, step.inner_steps["body"], locations_by_name, results)
        condition = locations_by_name[node.inputs[0]]
        assert condition.start is not None
        self.memory.workspaces.check_and_record_read(condition)
        sides, ends = [], list[dict[ir.Buffer, int]]()
        for name in ("then", "otherwise"):
            graph: Graph = node.attr(name)
            bound = {own: locations_by_name[given] for own, given in zip(graph.inputs, node.inputs[1:], strict=True)}
            with self.memory.workspaces.check_branch(ends):
                made, found, kept = self.emit_graph(graph, step.inner_steps[name], bound, {})
                copies = [
                    self.emit_copy(result, found[value], graph.types[value].size)
                    for result, value in zip(results, graph.outputs, strict=True)
                ]
            self.memory.release_workspaces(kept)
            sides.append(ir.seq(*made, *copies))
        self.memory.workspaces.merge_branches(ends)
        return ir.If(condition.buffer[condition.start], sides[0], sides[1])

    def emit_external_region(
        self,
        node: Node,
        steps: Sequence[FlowStep],
        locations_by_name: LocationsByName,
        results: Sequence[BufferLocation],
    ) -> ir.Stmt:
        """Emit the statements with which microc's own code computes a region that external code could compute."""
        graph: Graph = node.attr("body")
        bound = {own: locations_by_name[given] for own, given in zip(graph.inputs, node.inputs, strict=True)}
        wanted = dict(zip(graph.outputs, results, strict=True))
        made, found, kept = self.emit_graph(graph, steps, bound, wanted)
        made += [
            self.emit_copy(result, found[name], graph.types[name].size)
            for name, result in wanted.items()
            if found[name] != result
        ]
        self.memory.release_workspaces(kept)
        return ir.seq(*made)

    def emit_loop(
        self,
        node: Node,
        steps: Sequence[FlowStep],
        locations_by_name: LocationsByName,
        results: Sequence[BufferLocation],
        stem: str,
    ) -> ir.Stmt:
        """Emit a loop node.

        The carried values are stored in the results of the node. They are copied there before the loop, and at the end
        of each iteration they are replaced by the values for the next iteration.
        """
        graph: Graph = node.attr("body")
        carried, count = int(node.attr("carried")), node.attr("count")
        first = [
            self.emit_copy(result, locations_by_name[name], graph.types[own].size)
            for result, name, own in zip(results[:carried], node.inputs, graph.inputs[1:], strict=False)
        ]
        iteration = ir.Var(self.names.make_unique(stem))
        number = self.memory.allocate_workspace("number", 1, "int32")
        bound = {graph.inputs[0]: number} | dict(zip(graph.inputs[1:], results[:carried], strict=False))
        bound |= {
            own: locations_by_name[n] for own, n in zip(graph.inputs[1 + carried :], node.inputs[carried:], strict=True)
        }
        for name in graph.inputs[len(graph.inputs) - scanned_operand_count(node) :]:
            bound[name] = replace(
                bound[name], start=_first_element_index(bound[name]) + iteration * graph.types[name].size
            )
        row_places: LocationsByName = {}
        for name, result in zip(graph.outputs[carried:], results[carried:], strict=True):
            row_places[name] = replace(result, start=_first_element_index(result) + iteration * graph.types[name].size)
        with self.memory.workspaces.check_loop_body():
            self.memory.workspaces.record_write(number)
            body_statements, locations, kept = self.emit_graph(graph, steps, bound, row_places)
            body_statements = [
                ir.Store(number.buffer, (ZERO,), iteration),
                *(_replace_counter_loads(statement, number.buffer, iteration) for statement in body_statements),
            ]
            for name in graph.outputs[carried:]:
                if locations[name] != row_places[name]:
                    body_statements.append(self.emit_copy(row_places[name], locations[name], graph.types[name].size))
            body_statements += self.emit_carried_copies(graph, results[:carried], locations)
        self.memory.release_workspaces((*kept, number))
        body, annotations = ir.seq(*body_statements), dict[str, int]()
        if node.attr("guarded"):
            zeros = [
                self.emit_zero_fill(row, graph.types[name].size, graph.types[name].dtype)
                for name, row in row_places.items()
            ]
            body = ir.If(results[0].buffer[_first_element_index(results[0])], body, ir.seq(*zeros) if zeros else None)
            annotations = {GUARDED: 1}
        return ir.seq(*first, ir.For(iteration, ir.const(count, "int32"), body, annotations=tuple(annotations.items())))

    def emit_zero_fill(self, destination: BufferLocation, element_count: int, dtype: str) -> ir.Stmt:
        """Emit a loop that fills ``element_count`` elements from the location ``destination`` on with zeros."""
        k = ir.Var(self.names.make_unique("k"))
        return ir.For(
            k,
            ir.const(element_count, "int32"),
            ir.Store(destination.buffer, (_first_element_index(destination) + k,), ir.const(0, dtype)),
        )

    def emit_carried_copies(
        self, graph: Graph, results: Sequence[BufferLocation], locations: LocationsByName
    ) -> list[ir.Stmt]:
        """Emit copies of the carried values for the next iteration.

        A copy may overwrite the source of a later copy. Such sources are first copied to a workspace.
        """
        own = {result.buffer for result in results}
        saved, saving, moving = list[BufferLocation](), list[ir.Stmt](), list[ir.Stmt]()
        for result, name in zip(results, graph.outputs, strict=False):
            source, type_ = locations[name], graph.types[name]
            if source == result:
                continue
            if source.buffer in own:
                saved.append(self.memory.allocate_workspace("saved", type_.size, type_.dtype))
                saving.append(self.emit_copy(saved[-1], source, type_.size))
                source = saved[-1]
            moving.append(self.emit_copy(result, source, type_.size))
        self.memory.release_workspaces(saved)
        return saving + moving

    def emit_graph(
        self,
        graph: Graph,
        steps: Sequence[FlowStep],
        known_locations: Mapping[str, BufferLocation],
        preferred_locations: Mapping[str, BufferLocation],
    ) -> tuple[list[ir.Stmt], LocationsByName, list[BufferLocation]]:
        """Emit the statements of a graph; return the statements, the locations of its values, and the workspaces to
        release.

        ``known_locations``: locations of the inputs of the graph. ``preferred_locations``: locations that some values
        should have, if possible.
        """
        locations_by_name: LocationsByName = dict(known_locations)
        last, own = _find_last_reading_steps(graph, steps), dict[str, BufferLocation]()
        for name in graph.outputs:
            if name in graph.consts:
                self.locate_operand(graph, name, locations_by_name)
        made: list[ir.Stmt] = []
        for number, step in enumerate(steps):
            node = step.nodes[0]
            if step.view_start is not None:
                source = self.locate_operand(graph, node.inputs[0], locations_by_name)
                locations_by_name[node.outputs[0]] = replace(
                    source, start=_first_element_index(source) + step.view_start
                )
                continue
            outputs = step.kernel[0].outputs if step.kernel is not None else node.outputs
            for name in outputs:
                kind = graph.types[name]
                if name not in preferred_locations:
                    own[name] = self.memory.allocate_workspace("value", kind.size, kind.dtype)
                locations_by_name[name] = preferred_locations.get(name) or own[name]
            if step.kernel is not None:
                made.append(self.emit_kernel(graph, *step.kernel, locations_by_name))
            else:
                for name in node.inputs:
                    self.locate_operand(graph, name, locations_by_name)
                made.append(
                    self.emit_node(step, locations_by_name, [locations_by_name[name] for name in outputs], "iteration")
                )
            self.memory.release_workspaces(own.pop(name) for name in list(own) if last.get(name, 0) <= number)
        return made, locations_by_name, list(own.values())

    def locate_operand(self, graph: Graph, name: str, locations_by_name: LocationsByName) -> BufferLocation:
        """Return the location of an operand. A constant becomes a parameter of the function when it is first used."""
        if name not in locations_by_name:
            if name not in graph.consts:
                raise InternalError(f"control flow: value {name!r} is read before a step computes it", where=self.where)
            locations_by_name[name] = BufferLocation(
                self.memory.add_constant("value", graph.consts[name].reshape(-1)), ZERO
            )
        return locations_by_name[name]

    def emit_kernel(
        self, graph: Graph, group: LoweredGroup, choice: Choice, locations_by_name: LocationsByName
    ) -> ir.Stmt:
        """Emit the statements of a kernel inside of control flow. Its workspaces are released after it."""
        func, at = choice.func, dict[ir.Buffer, BufferLocation]()
        for position, param in enumerate(group.params):
            own = func.params[position]
            if param.array is None:
                at[own] = self.locate_operand(graph, param.value, locations_by_name)
            else:
                packed = choice.schedule.packed(group.func.params[position], param.array)
                at[own] = BufferLocation(self.memory.add_constant(param.role, packed), None)
        first = len(group.params)
        for own, name in zip(func.params[first:], group.outputs, strict=False):
            at[own] = locations_by_name[name]
        scratch = func.params[first + len(group.outputs) :]
        for own in scratch:
            at[own] = self.memory.allocate_workspace("scratch", own.size, own.dtype)
        self.memory.workspaces.check_statement(
            (at[own] for own in func.params[:first]), (at[own] for own in func.params[first:])
        )
        self.memory.release_workspaces(at[own] for own in scratch)
        return self.names.rename_repeated_declarations(redirect_to_locations(func.body, at))

    def emit_copy(self, destination: BufferLocation, source: BufferLocation, element_count: int) -> ir.Stmt:
        """Emit a copy of ``element_count`` elements from the location ``source`` to the location ``destination``."""
        k = ir.Var(self.names.make_unique("k"))
        assert destination.start is not None and source.start is not None
        self.memory.workspaces.check_statement((source,), (destination,))
        store = ir.Store(destination.buffer, (destination.start + k,), source.buffer[source.start + k])
        loop = ir.loops([(k, element_count)], store)
        if self.target is None:
            return loop
        func = ir.PrimFunc("copy", (destination.buffer, source.buffer), loop)
        return lower_annotated_loops(vectorize_copy_loops(Schedule(func), self.target).func.body)


def _replace_counter_loads(body: ir.Stmt, iteration_buffer: ir.Buffer, iteration: ir.Var) -> ir.Stmt:
    """Replace loads of the stored iteration number by the loop variable, so that later analysis knows the accessed
    ranges."""

    def replace_counter_load(expr: ir.Expr) -> ir.Expr:
        return iteration if isinstance(expr, ir.Load) and expr.buffer == iteration_buffer else expr

    return map_stmt(body, lambda stmt: stmt, lambda e: map_expr(e, replace_counter_load))


def _find_last_reading_steps(graph: Graph, steps: Sequence[FlowStep]) -> dict[str, int]:
    """Return the index of the last group that reads each value, directly or through views. Outputs are read after all
    groups."""
    root: dict[str, str] = {}
    last: dict[str, int] = {}
    for number, step in enumerate(steps):
        for name in (name for node in step.nodes for name in node.inputs):
            last[root.get(name, name)] = number
        if step.view_start is not None:
            source, view = step.nodes[0].inputs[0], step.nodes[0].outputs[0]
            root[view] = root.get(source, source)
        for name in (name for node in step.nodes for name in node.outputs):
            last[root.get(name, name)] = number
    return last | {root.get(name, name): len(steps) for name in graph.outputs}


def _first_element_index(location: BufferLocation) -> ir.Expr:
    """Return the index of the element at which a location starts. It must be known."""
    assert location.start is not None
    return location.start


# ---- Entry points: a node with graphs inside becomes one function.
#
# The groups of each graph inside are scheduled and lowered like groups outside of control flow. Their statements are then
# emitted in order, with one-dimensional buffers. Values that are computed inside are stored in workspaces. Values that a loop
# carries from iteration to iteration are stored in the results of the loop.

ScheduleInnerGroup = Callable[[Graph, Sequence[Node], int], tuple[LoweredGroup, Choice]]
"""Function that schedules a group inside of a node. Its last argument is the number of times that the group runs in one
run of the node."""


@frozen
class LoweredControl:
    """A node of control flow lowered to a function. ``params``: the values or constants that are passed as its
    parameters, without results and workspaces."""

    func: ir.PrimFunc
    params: tuple[Param, ...]


def goal_per_iteration(goal: Goal, iterations: int) -> Goal:
    """Return the optimisation goal for a group that runs ``iterations`` times in one run of its control-flow node.

    The code of the group is stored once, but its instructions are executed in each iteration. Therefore a byte of flash
    is worth fewer instructions of a single iteration.
    """
    return replace(goal, price=goal.price / iterations)


def lower_control_flow(
    graph: Graph, node: Node, schedule_inner_group: ScheduleInnerGroup, target: Target | None
) -> LoweredControl:
    """Lower a node with graphs inside (a loop, a condition or an external region) to a function.

    ``schedule_inner_group``: schedules a group of nodes of these graphs.

    ``target`` is None if the network has dynamic sizes. Then values inside never share memory, and copies are plain
    loops, so that the function has the same structure at all sizes.
    """
    step = _lower_flow_step(graph, (node,), schedule_inner_group)
    taken = {name for func in _list_kernel_functions(step) for name in names_in_function(func)}
    names = UniqueNames(taken)
    memory = FunctionMemory(names, reuse=target is not None)
    locations_by_name: LocationsByName = {}
    for name in dict.fromkeys(name for name in node.inputs if name):
        if name in graph.consts:
            locations_by_name[name] = BufferLocation(memory.add_constant("value", graph.consts[name].reshape(-1)), ZERO)
        else:
            locations_by_name[name] = memory.add_data_param(name, graph.types[name].size, graph.types[name].dtype)
    types = [graph.types[name] for name in node.outputs]
    results = [ir.Buffer(names.make_unique("result"), (type_.size,), type_.dtype) for type_ in types]
    flow = ControlFlowEmitter(names, memory, str(node.loc), target)
    body = flow.emit_node(step, locations_by_name, [BufferLocation(buffer, ZERO) for buffer in results], "iteration")
    body, buffers, params = memory.finish_function(body, results)
    return LoweredControl(ir.PrimFunc("control", buffers, simplify_stmt(body)), params)


def list_groups_in_control_flow(
    graph: Graph, node: Node, iterations: int = 1
) -> list[tuple[Graph, tuple[Node, ...], int]]:
    """List the groups inside of a node that need kernels: the graph, the nodes and the number of runs of each group.

    The groups are in the order in which they are scheduled. ``iterations``: how often the node itself runs.
    """
    if not registry.get(node.op).regions:
        return [] if _find_view_start(graph, (node,)) is not None else [(graph, (node,), iterations)]
    groups, iterations = [], iterations * max_iterations(node)
    for name in registry.get(node.op).regions:
        inner: Graph = node.attr(name)
        for nodes in groups_of(inner):
            groups += (
                list_groups_in_control_flow(inner, nodes[0], iterations)
                if len(nodes) == 1
                else [(inner, nodes, iterations)]
            )
    return groups


def _find_view_start(graph: Graph, nodes: tuple[Node, ...]) -> int | None:
    """Return the index of the element of the first operand at which a view starts; None if the group needs a kernel."""
    if registry.get(nodes[0].op).view:
        return 0
    alias = find_node_alias(graph, nodes[0]) if len(nodes) == 1 else None
    return None if alias is None else alias.source


def _lower_flow_step(
    graph: Graph, nodes: tuple[Node, ...], schedule_inner_group: ScheduleInnerGroup, iterations: int = 1
) -> FlowStep:
    """Lower a group of nodes: to a kernel, to a view, or to the lowered groups of the graphs inside."""
    first = nodes[0]
    definition = registry.get(first.op)
    if definition.regions:
        iterations *= max_iterations(first)
        inside = {
            name: tuple(
                _lower_flow_step(first.attr(name), group, schedule_inner_group, iterations)
                for group in groups_of(first.attr(name))
            )
            for name in definition.regions
        }
        return FlowStep(nodes, inner_steps=inside)
    start = _find_view_start(graph, nodes)
    if start is not None:
        return FlowStep(nodes, view_start=start)
    group, choice = schedule_inner_group(graph, nodes, iterations)
    if not choice.verified:
        verify(
            choice.func, tables=group.tables
        )  # verified here, because the joined function does not show which are tables
    return FlowStep(nodes, kernel=(group, choice))


def _list_kernel_functions(step: FlowStep) -> list[ir.PrimFunc]:
    """List the functions of all kernels of a lowered group, including those inside of control flow."""
    if step.inner_steps is not None:
        return [func for steps in step.inner_steps.values() for each in steps for func in _list_kernel_functions(each)]
    return [] if step.kernel is None else [step.kernel[1].func]
