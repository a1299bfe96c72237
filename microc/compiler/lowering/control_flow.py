"""Control flow becomes one function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.compiler.lowering.kernel_selection import alias_of, groups_of
from microc.errors import InternalError
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.control import scanned_of, turns_of
from microc.ops.external_region import EXTERNAL
from microc.ops.lowering import LoweredGroup, Param
from microc.schedule.choose import Choice
from microc.schedule.rules.movement import move_runs
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.analysis.simplification import simplify_stmt
from microc.tir.lower import lower_kinds
from microc.tir.names import GUARDED
from microc.tir.rewrite import map_expr, map_stmt, replace_buffers, substitute_stmt, walk_stmt
from microc.tir.striped_layers import Place, names_of, placed
from microc.tir.verify import verify

# ---- A check of the workspaces inside control flow, apart from what decides when they are used again.
#
# Every value that gets a workspace has a number. As statements are written, in order, the check notes whose value lies where; a
# statement that reads a workspace which holds another value is a defect. A second turn of a loop must find what the first found.

_EITHER = -1
"""The value that lies there depends on a condition."""


class Workspaces:
    """Whose value lies in which workspace."""

    def __init__(self) -> None:
        self.count = 0
        self.lying: dict[ir.Buffer, int] = {}
        self.reads: list[Place] = []

    def number(self) -> int:
        """A number for a new value."""
        self.count += 1
        return self.count

    def written(self, *places: Place) -> None:
        self.lying |= {place.buffer: place.owner for place in places if place.owner}

    def read(self, *places: Place) -> None:
        """InternalError where a value has been written over."""
        for place in places:
            if place.owner and self.lying.get(place.buffer) != place.owner:
                raise InternalError(
                    f"a value inside control flow is read from {place.buffer.name}, which holds another"
                )
        self.reads += [place for place in places if place.owner]

    def statement(self, reads: Iterable[Place], writes: Iterable[Place]) -> None:
        """A statement whose operands must be there until its results are."""
        reads, writes = tuple(reads), tuple(writes)
        self.written(*writes)
        self.read(*reads, *writes)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The body of a loop: what it reads from before the loop is there for the next turn, too."""
        outer, self.reads, before = self.reads, [], self.count
        yield
        self.read(*(place for place in self.reads if place.owner <= before))
        self.reads = outer + self.reads

    @contextmanager
    def side(self, others: list[dict[ir.Buffer, int]]) -> Iterator[None]:
        """One side of a condition; ``others`` collects how the sides end."""
        before = dict(self.lying)
        yield
        others.append(self.lying)
        self.lying = before

    def joined(self, ends: list[dict[ir.Buffer, int]]) -> None:
        """Behind a condition with sides that end so."""
        buffers = {buffer for end in ends for buffer in end}
        found = {buffer: {end.get(buffer, 0) for end in ends} for buffer in buffers}
        self.lying = {buffer: owners.pop() if len(owners) == 1 else _EITHER for buffer, owners in found.items()}


# ---- Names and memory of a function of control flow: constants, workspaces that values inside share, scopes of
# statements.

ZERO = ir.const(0, "int32")


class Names:
    """Names in a function; ``taken``: those that kernels inside have."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken
        self.scoped: set[str] = set()

    def fresh(self, stem: str) -> str:
        name, number = stem, 1
        while name in self.taken:
            name, number = f"{stem}{number}", number + 1
        self.taken.add(name)
        return name

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


@dataclass(slots=True, eq=False)
class _Slot:
    """Memory for values inside, one after another; ``buffer`` stands for it until its size is known."""

    stem: str
    buffer: ir.Buffer
    size: int


class Memory:
    """The parameters of a function but its results, and its workspaces."""

    def __init__(self, names: Names, *, reuse: bool) -> None:
        self.names, self.reuse = names, reuse
        self.params: list[tuple[ir.Buffer, Param]] = []
        self.constants: dict[tuple[str, tuple[int, ...], bytes], ir.Buffer] = {}
        self.slots: list[_Slot] = []
        self.idle: list[_Slot] = []
        self.workspaces = Workspaces()

    def data(self, name: str, size: int, dtype: str) -> Place:
        """The parameter for a value from outside."""
        buffer = ir.Buffer(self.names.fresh("data"), (size,), dtype)
        self.params.append((buffer, Param("data", name)))
        return Place(buffer, ZERO)

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
        return Place(found.buffer, ZERO, self.workspaces.number())

    def release(self, places: Iterable[Place]) -> None:
        """Nothing reads these any more: later values may lie there. In a loop, turns start anew and read nothing from before."""
        for place in places if self.reuse else ():
            self.idle += [slot for slot in self.slots if slot.buffer == place.buffer]

    def constant(self, role: str, array: Array) -> ir.Buffer:
        """The parameter for a constant; equal ones are one."""
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self.constants:
            buffer = ir.Buffer(self.names.fresh(role), array.shape, array.dtype.name, "const")
            self.constants[key] = buffer
            self.params.append((buffer, Param(role, "", np.ascontiguousarray(array))))
        return self.constants[key]

    def function(
        self, body: ir.Stmt, results: Iterable[ir.Buffer]
    ) -> tuple[ir.Stmt, tuple[ir.Buffer, ...], tuple[Param, ...]]:
        """The statements with workspaces of their final sizes, all buffers in their order, and what the first are bound to."""
        params = sorted(self.params, key=lambda item: item[1].array is not None)
        workspaces = {
            slot.buffer: ir.Buffer(self.names.fresh(slot.stem), (slot.size,), slot.buffer.dtype, "workspace")
            for slot in self.slots
        }
        body = placed(body, {key: Place(buffer, ZERO) for key, buffer in workspaces.items()})
        buffers = (*(buffer for buffer, _ in params), *results, *workspaces.values())
        return body, buffers, tuple(param for _, param in params)


# ---- The statements of control flow: loops and conditions around kernels, on flat buffers.

Places = dict[str, Place]
"""Where the values of a graph lie."""


@frozen
class Step:
    """One group of a graph: a kernel, a view (``source`` from element ``start`` on), or control flow with its graphs' steps."""

    nodes: tuple[Node, ...]
    kernel: tuple[LoweredGroup, Choice] | None = None
    start: int | None = None
    inside: Mapping[str, tuple[Step, ...]] | None = None


class Flow:
    """Writes the statements of a node's graphs; ``where`` the node is, for what goes wrong.

    ``target``: what the code is for; None where sizes vary, so that copies must be alike at all of them.
    """

    def __init__(self, names: Names, memory: Memory, where: str, target: Target | None) -> None:
        self.names, self.memory, self.where, self.target = names, memory, where, target

    def statements(self, step: Step, places: Places, results: Sequence[Place], stem: str) -> ir.Stmt:
        node = step.nodes[0]
        assert step.inside is not None
        if node.op == "loop":
            return self.loop(node, step.inside["body"], places, results, stem)
        if node.op == EXTERNAL:
            return self.part(node, step.inside["body"], places, results)
        condition = places[node.inputs[0]]
        assert condition.start is not None
        self.memory.workspaces.read(condition)
        sides, ends = [], list[dict[ir.Buffer, int]]()
        for name in ("then", "otherwise"):
            graph: Graph = node.attr(name)
            bound = {own: places[given] for own, given in zip(graph.inputs, node.inputs[1:], strict=True)}
            with self.memory.workspaces.side(ends):
                made, found, kept = self.steps(graph, step.inside[name], bound, {})
                copies = [
                    self.copy(result, found[value], graph.types[value].size)
                    for result, value in zip(results, graph.outputs, strict=True)
                ]
            self.memory.release(kept)
            sides.append(ir.seq(*made, *copies))
        self.memory.workspaces.joined(ends)
        return ir.If(condition.buffer[condition.start], sides[0], sides[1])

    def part(self, node: Node, steps: Sequence[Step], places: Places, results: Sequence[Place]) -> ir.Stmt:
        """A region in code of ours."""
        graph: Graph = node.attr("body")
        bound = {own: places[given] for own, given in zip(graph.inputs, node.inputs, strict=True)}
        wanted = dict(zip(graph.outputs, results, strict=True))
        made, found, kept = self.steps(graph, steps, bound, wanted)
        made += [
            self.copy(result, found[name], graph.types[name].size)
            for name, result in wanted.items()
            if found[name] != result
        ]
        self.memory.release(kept)
        return ir.seq(*made)

    def loop(self, node: Node, steps: Sequence[Step], places: Places, results: Sequence[Place], stem: str) -> ir.Stmt:
        """What is carried lies in the results from the start; a turn's values replace it when all of them are there."""
        graph: Graph = node.attr("body")
        carried, count = int(node.attr("carried")), int(node.attr("count"))
        first = [
            self.copy(result, places[name], graph.types[own].size)
            for result, name, own in zip(results[:carried], node.inputs, graph.inputs[1:], strict=False)
        ]
        turn = ir.Var(self.names.fresh(stem))
        number = self.memory.workspace("number", 1, "int32")
        bound = {graph.inputs[0]: number} | dict(zip(graph.inputs[1:], results[:carried], strict=False))
        bound |= {own: places[n] for own, n in zip(graph.inputs[1 + carried :], node.inputs[carried:], strict=True)}
        for name in graph.inputs[len(graph.inputs) - scanned_of(node) :]:
            bound[name] = replace(bound[name], start=_start(bound[name]) + turn * graph.types[name].size)
        rows: Places = {}
        for name, result in zip(graph.outputs[carried:], results[carried:], strict=True):
            rows[name] = replace(result, start=_start(result) + turn * graph.types[name].size)
        with self.memory.workspaces.turn():
            self.memory.workspaces.written(number)
            made, found, kept = self.steps(graph, steps, bound, rows)
            made = [ir.Store(number.buffer, (ZERO,), turn), *(_numbered(each, number.buffer, turn) for each in made)]
            for name in graph.outputs[carried:]:
                if found[name] != rows[name]:
                    made.append(self.copy(rows[name], found[name], graph.types[name].size))
            made += self.next_carried(graph, results[:carried], found)
        self.memory.release((*kept, number))
        body, notes = ir.seq(*made), dict[str, int]()
        if node.attr("guarded"):
            zeros = [self.zeros(row, graph.types[name].size, graph.types[name].dtype) for name, row in rows.items()]
            body = ir.If(results[0].buffer[_start(results[0])], body, ir.seq(*zeros) if zeros else None)
            notes = {GUARDED: 1}
        return ir.seq(*first, ir.For(turn, ir.const(count, "int32"), body, annotations=tuple(notes.items())))

    def zeros(self, into: Place, size: int, dtype: str) -> ir.Stmt:
        k = ir.Var(self.names.fresh("k"))
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
                saved.append(self.memory.workspace("saved", kind.size, kind.dtype))
                saving.append(self.copy(saved[-1], source, kind.size))
                source = saved[-1]
            moving.append(self.copy(result, source, kind.size))
        self.memory.release(saved)
        return saving + moving

    def steps(
        self, graph: Graph, steps: Sequence[Step], bound: Mapping[str, Place], wanted: Mapping[str, Place]
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
                    own[name] = self.memory.workspace("value", kind.size, kind.dtype)
                places[name] = wanted.get(name) or own[name]
            if step.kernel is not None:
                made.append(self.kernel(graph, *step.kernel, places))
            else:
                for name in node.inputs:
                    self.value(graph, name, places)
                made.append(self.statements(step, places, [places[name] for name in outputs], "turn"))
            self.memory.release(own.pop(name) for name in list(own) if last.get(name, 0) <= number)
        return made, places, list(own.values())

    def value(self, graph: Graph, name: str, places: Places) -> Place:
        """Where an operand lies; constants come in when they are first asked for."""
        if name not in places:
            if name not in graph.consts:
                raise InternalError(f"{name!r} is read before it is made", where=self.where)
            places[name] = Place(self.memory.constant("value", graph.consts[name].reshape(-1)), ZERO)
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
                at[own] = Place(self.memory.constant(param.role, packed), None)
        first = len(group.params)
        for own, name in zip(func.params[first:], group.outputs, strict=False):
            at[own] = places[name]
        scratch = func.params[first + len(group.outputs) :]
        for own in scratch:
            at[own] = self.memory.workspace("scratch", own.size, own.dtype)
        self.memory.workspaces.statement(
            (at[own] for own in func.params[:first]), (at[own] for own in func.params[first:])
        )
        self.memory.release(at[own] for own in scratch)
        return self.names.renamed(placed(func.body, at))

    def copy(self, into: Place, source: Place, size: int) -> ir.Stmt:
        k = ir.Var(self.names.fresh("k"))
        assert into.start is not None and source.start is not None
        self.memory.workspaces.statement((source,), (into,))
        store = ir.Store(into.buffer, (into.start + k,), source.buffer[source.start + k])
        loop = ir.loops([(k, size)], store)
        if self.target is None:
            return loop
        func = ir.PrimFunc("copy", (into.buffer, source.buffer), loop)
        return lower_kinds(move_runs(Schedule(func), self.target).func.body)


def _numbered(body: ir.Stmt, number: ir.Buffer, turn: ir.Var) -> ir.Stmt:
    """Statements of a turn, which take its number from the loop where they can: what they touch is known then."""

    def on_expr(e: ir.Expr) -> ir.Expr:
        return turn if isinstance(e, ir.Load) and e.buffer == number else e

    return map_stmt(body, lambda stmt: stmt, lambda e: map_expr(e, on_expr))


def _last_uses(graph: Graph, steps: Sequence[Step]) -> dict[str, int]:
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


# ---- Control flow becomes one function: loops and conditions around the kernels of the graphs inside.
#
# Each graph's groups are scheduled and lowered as any others; their statements are then placed, in order, on flat buffers: what
# is computed inside lives in workspaces, what a loop carries in the loop's own results.

Inside = Callable[[Graph, Sequence[Node], int], tuple[LoweredGroup, Choice]]
"""What schedules the groups inside, each of which runs so many times when the node does."""


@frozen
class LoweredControl:
    """The function; ``params`` are what its parameters are bound to, all but results and workspaces."""

    func: ir.PrimFunc
    params: tuple[Param, ...]


def goal_inside(goal: Goal, turns: int) -> Goal:
    """The goal for a group that runs ``turns`` times: its code lies in flash once, an instruction is paid every time."""
    return replace(goal, price=goal.price / turns)


def place_control(graph: Graph, node: Node, schedule: Inside, target: Target | None) -> LoweredControl:
    """The function of a node that has graphs inside, whose groups ``schedule`` makes. Without a target, where sizes vary, values
    inside never share memory, so that where they lie does not depend on what is larger, and copies are plain loops."""
    step = _lowered(graph, (node,), schedule)
    taken = {name for func in _functions(step) for name in names_of(func)}
    names = Names(taken)
    memory = Memory(names, reuse=target is not None)
    places: Places = {}
    for name in dict.fromkeys(name for name in node.inputs if name):
        if name in graph.consts:
            places[name] = Place(memory.constant("value", graph.consts[name].reshape(-1)), ZERO)
        else:
            places[name] = memory.data(name, graph.types[name].size, graph.types[name].dtype)
    kinds = [graph.types[name] for name in node.outputs]
    results = [ir.Buffer(names.fresh("result"), (kind.size,), kind.dtype) for kind in kinds]
    flow = Flow(names, memory, str(node.loc), target)
    body = flow.statements(step, places, [Place(buffer, ZERO) for buffer in results], "turn")
    body, buffers, params = memory.function(body, results)
    return LoweredControl(ir.PrimFunc("control", buffers, simplify_stmt(body)), params)


def groups_inside(graph: Graph, node: Node, turns: int = 1) -> list[tuple[Graph, tuple[Node, ...], int]]:
    """The groups that a node's graphs need kernels for, with their graphs and how often they run when the node runs ``turns``
    times, in the order that they are scheduled in."""
    if not registry.get(node.op).regions:
        return [] if _start_of_view(graph, (node,)) is not None else [(graph, (node,), turns)]
    found, turns = [], turns * turns_of(node)
    for name in registry.get(node.op).regions:
        inner: Graph = node.attr(name)
        for nodes in groups_of(inner):
            found += groups_inside(inner, nodes[0], turns) if len(nodes) == 1 else [(inner, nodes, turns)]
    return found


def _start_of_view(graph: Graph, nodes: tuple[Node, ...]) -> int | None:
    """The element of its first operand from which on a group's result lies there; None where it needs a kernel."""
    if registry.get(nodes[0].op).view:
        return 0
    alias = alias_of(graph, nodes[0]) if len(nodes) == 1 else None
    return None if alias is None else alias.source


def _lowered(graph: Graph, nodes: tuple[Node, ...], schedule: Inside, turns: int = 1) -> Step:
    """A group with its kernel, or with the steps of the graphs inside."""
    first = nodes[0]
    definition = registry.get(first.op)
    if definition.regions:
        turns *= turns_of(first)
        inside = {
            name: tuple(_lowered(first.attr(name), group, schedule, turns) for group in groups_of(first.attr(name)))
            for name in definition.regions
        }
        return Step(nodes, inside=inside)
    start = _start_of_view(graph, nodes)
    if start is not None:
        return Step(nodes, start=start)
    group, choice = schedule(graph, nodes, turns)
    if not choice.verified:
        verify(choice.func, tables=group.tables)  # while it is known which of the constants these are
    return Step(nodes, kernel=(group, choice))


def _functions(step: Step) -> list[ir.PrimFunc]:
    if step.inside is not None:
        return [func for steps in step.inside.values() for each in steps for func in _functions(each)]
    return [] if step.kernel is None else [step.kernel[1].func]
