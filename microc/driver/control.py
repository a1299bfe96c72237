"""Control flow becomes one function: loops and conditions around the kernels of the graphs inside.

Each graph's groups are scheduled and lowered as any others; their statements are then placed, in order, on flat buffers: what is
computed inside lives in workspaces, what a loop carries in the loop's own results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from microc.driver.control_check import Workspaces
from microc.driver.kernel import alias_of, groups_of, schedule_group
from microc.dtypes import Array
from microc.errors import InternalError
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.lowering import LoweredGroup, Param
from microc.schedule.choose import Choice
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.affine import simplify_stmt
from microc.tir.rewrite import map_stmt, replace_buffers, substitute_stmt, walk_stmt
from microc.tir.stream import Place, names_of, placed

_ZERO = ir.const(0, "int32")
Places = dict[str, Place]
"""Where the values of a graph lie."""
Inside = Callable[[Graph, Sequence[Node]], tuple[LoweredGroup, Choice]]
"""What schedules the groups inside."""


@dataclass(frozen=True, slots=True)
class LoweredControl:
    """The function; ``params`` are what its parameters are bound to, all but results and workspaces."""

    func: ir.PrimFunc
    params: tuple[Param, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """One group of a graph: a kernel, a view (``source`` from element ``start`` on), or control flow with its graphs' steps."""

    nodes: tuple[Node, ...]
    kernel: tuple[LoweredGroup, Choice] | None = None
    start: int | None = None
    inside: Mapping[str, tuple[_Step, ...]] | None = None


@dataclass(slots=True, eq=False)
class _Slot:
    """Memory for values inside, one after another; ``buffer`` stands for it until its size is known."""

    stem: str
    buffer: ir.Buffer
    size: int


def lower_control(graph: Graph, node: Node, target: Target, goal: Goal) -> LoweredControl:
    """The function of a node that has graphs inside."""
    return place_control(graph, node, lambda inner, nodes: schedule_group(inner, nodes, target, goal, "kernel"))


def place_control(graph: Graph, node: Node, schedule: Inside, *, reuse: bool = True) -> LoweredControl:
    """The same with the groups inside as ``schedule`` makes them. Without ``reuse`` values inside never share memory, so that
    where they lie does not depend on what is larger."""
    step = _lowered(graph, (node,), schedule)
    taken = {name for func in _functions(step) for name in names_of(func)}
    return _Control(graph, node, step, taken, reuse=reuse).build()


def groups_inside(graph: Graph, node: Node) -> list[tuple[Graph, tuple[Node, ...]]]:
    """The groups that a node's graphs need kernels for, with their graphs, in the order that they are scheduled in."""
    if not registry.get(node.op).regions:
        return [] if _start_of_view(graph, (node,)) is not None else [(graph, (node,))]
    found = []
    for name in registry.get(node.op).regions:
        inner: Graph = node.attr(name)
        for nodes in groups_of(inner):
            found += groups_inside(inner, nodes[0]) if len(nodes) == 1 else [(inner, nodes)]
    return found


def _start_of_view(graph: Graph, nodes: tuple[Node, ...]) -> int | None:
    """The element of its first operand from which on a group's result lies there; None where it needs a kernel."""
    if registry.get(nodes[0].op).view:
        return 0
    alias = alias_of(graph, nodes[0]) if len(nodes) == 1 else None
    return None if alias is None else alias.source


def _lowered(graph: Graph, nodes: tuple[Node, ...], schedule: Inside) -> _Step:
    """A group with its kernel, or with the steps of the graphs inside."""
    first = nodes[0]
    definition = registry.get(first.op)
    if definition.regions:
        inside = {
            name: tuple(_lowered(first.attr(name), group, schedule) for group in groups_of(first.attr(name)))
            for name in definition.regions
        }
        return _Step(nodes, inside=inside)
    start = _start_of_view(graph, nodes)
    return _Step(nodes, kernel=schedule(graph, nodes)) if start is None else _Step(nodes, start=start)


def _functions(step: _Step) -> list[ir.PrimFunc]:
    if step.inside is not None:
        return [func for steps in step.inside.values() for each in steps for func in _functions(each)]
    return [] if step.kernel is None else [step.kernel[1].func]


class _Control:
    """The function being built."""

    def __init__(self, graph: Graph, node: Node, step: _Step, taken: set[str], *, reuse: bool) -> None:
        self.graph, self.node, self.step, self.taken, self.reuse = graph, node, step, taken, reuse
        self.params: list[tuple[ir.Buffer, Param]] = []
        self.constants: dict[tuple[str, tuple[int, ...], bytes], ir.Buffer] = {}
        self.slots: list[_Slot] = []
        self.idle: list[_Slot] = []
        self.scoped: set[str] = set()
        self.workspaces = Workspaces()

    def build(self) -> LoweredControl:
        graph, node = self.graph, self.node
        places: Places = {}
        for name in dict.fromkeys(name for name in node.inputs if name):
            if name in graph.consts:
                places[name] = Place(self.constant("value", graph.consts[name].reshape(-1)), _ZERO)
            else:
                kind = graph.types[name]
                buffer = ir.Buffer(self.fresh("data"), (kind.size,), kind.dtype)
                self.params.append((buffer, Param("data", name)))
                places[name] = Place(buffer, _ZERO)
        results = []
        for name in node.outputs:
            kind = graph.types[name]
            results.append(ir.Buffer(self.fresh("result"), (kind.size,), kind.dtype))
        body = self.control(self.step, places, [Place(buffer, _ZERO) for buffer in results], "turn")
        params = sorted(self.params, key=lambda item: item[1].array is not None)
        workspaces = {
            slot.buffer: ir.Buffer(self.fresh(slot.stem), (slot.size,), slot.buffer.dtype, "workspace")
            for slot in self.slots
        }
        body = placed(body, {key: Place(buffer, _ZERO) for key, buffer in workspaces.items()})
        buffers = (*(buffer for buffer, _ in params), *results, *workspaces.values())
        return LoweredControl(ir.PrimFunc("control", buffers, simplify_stmt(body)), tuple(param for _, param in params))

    # ------------------------------------------------------------ buffers

    def fresh(self, stem: str) -> str:
        name, number = stem, 1
        while name in self.taken:
            name, number = f"{stem}{number}", number + 1
        self.taken.add(name)
        return name

    def workspace(self, stem: str, size: int, dtype: str) -> Place:
        """Memory until it is released: the smallest idle slot that is large enough, else the largest, which grows."""
        idle = [slot for slot in self.idle if slot.buffer.dtype == dtype]
        if idle:
            found = min(idle, key=lambda slot: (slot.size < size, slot.size if slot.size >= size else -slot.size))
            self.idle.remove(found)
            found.size = max(found.size, size)
        else:
            name = f"slot {len(self.slots)}"  # until its size is known
            found = _Slot(stem, ir.Buffer(name, (1,), dtype, "workspace"), size)
            self.slots.append(found)
        return Place(found.buffer, _ZERO, self.workspaces.number())

    def release(self, places: Iterable[Place]) -> None:
        """Nothing reads these any more: later values may lie there. In a loop, turns start anew and read nothing from before."""
        for place in places if self.reuse else ():
            self.idle += [slot for slot in self.slots if slot.buffer == place.buffer]

    def constant(self, role: str, array: Array) -> ir.Buffer:
        """The parameter for a constant; equal ones are one."""
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self.constants:
            buffer = ir.Buffer(self.fresh(role), array.shape, array.dtype.name, "const")
            self.constants[key] = buffer
            self.params.append((buffer, Param(role, "", np.ascontiguousarray(array))))
        return self.constants[key]

    def copy(self, into: Place, source: Place, size: int) -> ir.Stmt:
        k = ir.Var(self.fresh("k"))
        assert into.start is not None and source.start is not None
        self.workspaces.statement((source,), (into,))
        store = ir.Store(into.buffer, (into.start + k,), source.buffer[source.start + k])
        return ir.For(k, ir.const(size, "int32"), store)

    # ------------------------------------------------------------ statements

    def control(self, step: _Step, places: Places, results: Sequence[Place], stem: str) -> ir.Stmt:
        node = step.nodes[0]
        assert step.inside is not None
        if node.op == "loop":
            return self.loop(node, step.inside["body"], places, results, stem)
        condition = places[node.inputs[0]]
        assert condition.start is not None
        self.workspaces.read(condition)
        sides, ends = [], list[dict[ir.Buffer, int]]()
        for name in ("then", "otherwise"):
            graph: Graph = node.attr(name)
            bound = {own: places[given] for own, given in zip(graph.inputs, node.inputs[1:], strict=True)}
            with self.workspaces.side(ends):
                made, found, kept = self.steps(graph, step.inside[name], bound, {})
                copies = [
                    self.copy(result, found[value], graph.types[value].size)
                    for result, value in zip(results, graph.outputs, strict=True)
                ]
            self.release(kept)
            sides.append(ir.seq(*made, *copies))
        self.workspaces.joined(ends)
        return ir.If(condition.buffer[condition.start], sides[0], sides[1])

    def loop(self, node: Node, steps: Sequence[_Step], places: Places, results: Sequence[Place], stem: str) -> ir.Stmt:
        """What is carried lies in the results from the start; a turn's values replace it when all of them are there."""
        graph: Graph = node.attr("body")
        carried, count = int(node.attr("carried")), int(node.attr("count"))
        first = [
            self.copy(result, places[name], graph.types[own].size)
            for result, name, own in zip(results[:carried], node.inputs, graph.inputs[1:], strict=False)
        ]
        turn = ir.Var(self.fresh(stem))
        number = self.workspace("number", 1, "int32")
        bound = {graph.inputs[0]: number} | dict(zip(graph.inputs[1:], results[:carried], strict=False))
        bound |= {own: places[n] for own, n in zip(graph.inputs[1 + carried :], node.inputs[carried:], strict=True)}
        rows: Places = {}
        for name, result in zip(graph.outputs[carried:], results[carried:], strict=True):
            rows[name] = replace(result, start=_start(result) + turn * graph.types[name].size)
        with self.workspaces.turn():
            self.workspaces.written(number)
            made, found, kept = self.steps(graph, steps, bound, rows)
            made.insert(0, ir.Store(number.buffer, (_ZERO,), turn))
            for name in graph.outputs[carried:]:
                if found[name] != rows[name]:
                    made.append(self.copy(rows[name], found[name], graph.types[name].size))
            made += self.next_carried(graph, results[:carried], found)
        self.release((*kept, number))
        body = ir.seq(*made)
        if node.attr("guarded"):
            body = ir.If(results[0].buffer[_start(results[0])], body)
            first += [
                self.zeros(result, graph.types[name].size * count, graph.types[name].dtype)
                for name, result in zip(graph.outputs[carried:], results[carried:], strict=True)
            ]
        return ir.seq(*first, ir.For(turn, ir.const(count, "int32"), body))

    def zeros(self, into: Place, size: int, dtype: str) -> ir.Stmt:
        k = ir.Var(self.fresh("k"))
        return ir.For(k, ir.const(size, "int32"), ir.Store(into.buffer, (_start(into) + k,), ir.const(0, dtype)))

    def next_carried(self, graph: Graph, results: Sequence[Place], found: Places) -> list[ir.Stmt]:
        """Copies of the carried values of the next turn; those that are carried now, elsewhere, are saved first."""
        own = {result.buffer for result in results}
        saved, saving, moving = list[Place](), list[ir.Stmt](), list[ir.Stmt]()
        for result, name in zip(results, graph.outputs, strict=False):
            source, kind = found[name], graph.types[name]
            if source == result:
                continue
            if source.buffer in own:
                saved.append(self.workspace("saved", kind.size, kind.dtype))
                saving.append(self.copy(saved[-1], source, kind.size))
                source = saved[-1]
            moving.append(self.copy(result, source, kind.size))
        self.release(saved)
        return saving + moving

    def steps(
        self, graph: Graph, steps: Sequence[_Step], bound: Mapping[str, Place], wanted: Mapping[str, Place]
    ) -> tuple[list[ir.Stmt], Places, list[Place]]:
        """The statements of a graph, where its values lie, and what it leaves to be released.

        ``wanted`` says where some values should lie if they can.
        """
        places: Places = dict(bound)
        last, own = _last_uses(graph, steps), dict[str, Place]()
        for name in graph.outputs:
            if name in graph.consts:
                self.value(graph, name, places)
        made: list[ir.Stmt] = []
        for number, step in enumerate(steps):
            node = step.nodes[0]
            if step.start is not None:
                source = self.value(graph, node.inputs[0], places)
                places[node.outputs[0]] = replace(source, start=_start(source) + step.start)
                continue
            outputs = step.kernel[0].outputs if step.kernel is not None else node.outputs
            for name in outputs:
                kind = graph.types[name]
                if name not in wanted:
                    own[name] = self.workspace("value", kind.size, kind.dtype)
                places[name] = wanted.get(name) or own[name]
            if step.kernel is not None:
                made.append(self.kernel(graph, *step.kernel, places))
            else:
                for name in node.inputs:
                    self.value(graph, name, places)
                made.append(self.control(step, places, [places[name] for name in outputs], "turn"))
            self.release(own.pop(name) for name in list(own) if last.get(name, 0) <= number)
        return made, places, list(own.values())

    def value(self, graph: Graph, name: str, places: Places) -> Place:
        """Where an operand lies; constants come in when they are first asked for."""
        if name not in places:
            if name not in graph.consts:
                raise InternalError(f"{name!r} is read before it is made", where=str(self.node.loc))
            places[name] = Place(self.constant("value", graph.consts[name].reshape(-1)), _ZERO)
        return places[name]

    def kernel(self, graph: Graph, group: LoweredGroup, choice: Choice, places: Places) -> ir.Stmt:
        """A kernel's statements. Its workspaces are free again behind it."""
        func, at = choice.func, dict[ir.Buffer, Place]()
        for position, param in enumerate(group.params):
            own = func.params[position]
            if param.array is None:
                at[own] = self.value(graph, param.value, places)
            else:
                packed = choice.schedule.packed(group.func.params[position], param.array)
                at[own] = Place(self.constant(param.role, packed), None)
        first = len(group.params)
        for own, name in zip(func.params[first:], group.outputs, strict=False):
            at[own] = places[name]
        scratch = func.params[first + len(group.outputs) :]
        for own in scratch:
            at[own] = self.workspace("scratch", own.size, own.dtype)
        self.workspaces.statement((at[own] for own in func.params[:first]), (at[own] for own in func.params[first:]))
        self.release(at[own] for own in scratch)
        return self.renamed(placed(func.body, at))

    def renamed(self, body: ir.Stmt) -> ir.Stmt:
        """The statements with names for values and registers that no kernel before has used: in C they may share a scope."""
        declared = set[str]()
        values: dict[ir.Var, ir.Var] = {}
        buffers: dict[ir.Buffer, ir.Buffer] = {}
        for stmt in walk_stmt(body):
            match stmt:
                case ir.Let(var) if var.name in self.scoped:
                    values[var] = replace(var, name=self.fresh(var.name))
                case ir.Alloc(buffer) if buffer.name in self.scoped:
                    buffers[buffer] = replace(buffer, name=self.fresh(buffer.name))
                case ir.Let(var):
                    declared.add(var.name)
                case ir.Alloc(buffer):
                    declared.add(buffer.name)
                case _:
                    pass
        self.scoped |= declared

        def on_stmt(stmt: ir.Stmt) -> ir.Stmt:
            if isinstance(stmt, ir.Let) and stmt.var in values:
                return replace(stmt, var=values[stmt.var])
            return stmt

        return replace_buffers(map_stmt(substitute_stmt(body, values), on_stmt), buffers)


def _last_uses(graph: Graph, steps: Sequence[_Step]) -> dict[str, int]:
    """By value: the number of the last step that reads it, itself or through views; beyond all steps for outputs."""
    root: dict[str, str] = {}
    last: dict[str, int] = {}
    for number, step in enumerate(steps):
        for name in (name for node in step.nodes for name in node.inputs):
            last[root.get(name, name)] = number
        if step.start is not None:
            source, made = step.nodes[0].inputs[0], step.nodes[0].outputs[0]
            root[made] = root.get(source, source)
        for name in (name for node in step.nodes for name in node.outputs):
            last[root.get(name, name)] = number
    return last | {root.get(name, name): len(steps) for name in graph.outputs}


def _start(place: Place) -> ir.Expr:
    assert place.start is not None
    return place.start
