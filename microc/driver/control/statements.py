"""The statements of control flow: loops and conditions around kernels, on flat buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from microc.driver.control.memory import ZERO, Memory, Names
from microc.errors import InternalError
from microc.frozen import frozen
from microc.graph.ir import Graph, Node
from microc.ops.control import scanned_of
from microc.ops.external import EXTERNAL
from microc.ops.lowering import LoweredGroup
from microc.schedule.choose import Choice
from microc.schedule.rules.copies import move_runs
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir import ir
from microc.tir.lower import lower_kinds
from microc.tir.names import GUARDED
from microc.tir.rewrite import map_expr, map_stmt
from microc.tir.stream import Place, placed

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
