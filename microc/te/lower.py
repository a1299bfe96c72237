"""Tensor expressions to loops: one block per computed tensor, in dependence order, nothing clever."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from microc import dtypes
from microc.errors import ProgramError
from microc.te.tensor import ComputeDef, ExternDef, Reduce, Tensor, TensorRead
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Var
from microc.tir.names import EXTERN
from microc.tir.rewrite import ExprMap, children, map_children
from microc.tir.symbolic import sizes_in


def stages(outputs: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Every tensor that the outputs depend on, producers first (placeholders included)."""
    order: dict[int, Tensor] = {}

    def visit(tensor: Tensor) -> None:
        if id(tensor) in order:
            return
        match tensor.definition:
            case ComputeDef(_, body):
                for read in tensor_reads(body):
                    visit(read.tensor)
            case ExternDef(_, operands):
                for operand in operands:
                    visit(operand)
        order[id(tensor)] = tensor

    for tensor in outputs:
        visit(tensor)
    return tuple(order.values())


def tensor_reads(expr: Expr) -> Iterable[TensorRead]:
    """Every tensor element that an expression reads, outer ones before those in their indices; what is shared is seen once."""
    seen: set[int] = set()
    waiting = [expr]
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        match found:
            case TensorRead(_, indices):
                yield found
                waiting += indices[::-1]
            case Reduce(_, value, _, init):
                waiting += (init, value)
            case _:
                waiting += children(found)[::-1]


class _Lowering:
    def __init__(self, params: Sequence[tuple[Tensor, str]], outputs: Sequence[Tensor], sizes: Iterable[Var]) -> None:
        self.taken = {size.name for size in sizes}
        self.buffers: dict[int, Buffer] = {}
        for tensor, scope in params:
            self.buffers[id(tensor)] = Buffer(self.fresh(tensor.name), tensor.shape, tensor.dtype, scope)
        for tensor in outputs:
            self.buffers[id(tensor)] = Buffer(self.fresh(tensor.name), tensor.shape, tensor.dtype)

    def fresh(self, stem: str) -> str:
        name, number = stem, 1
        while name in self.taken:
            name, number = f"{stem}_{number}", number + 1
        self.taken.add(name)
        return name

    def buffer(self, tensor: Tensor) -> Buffer:
        if id(tensor) not in self.buffers:
            if tensor.definition is None:
                raise ProgramError(f"placeholder {tensor.name} is not among the parameters")
            name = self.fresh(tensor.name)
            self.buffers[id(tensor)] = Buffer(name, tensor.shape, tensor.dtype, "workspace")
        return self.buffers[id(tensor)]

    def expr(self, x: Expr, values: Mapping[Var, Expr]) -> Expr:
        return self.shared(x, values, {})

    def shared(self, x: Expr, values: Mapping[Var, Expr], known: dict[int, Expr]) -> Expr:
        """The same; ``known``: what its parts became, by identity, so that one which is shared stays shared."""
        if id(x) not in known:
            known[id(x)] = self.rebuilt(x, values, lambda part: self.shared(part, values, known))
        return known[id(x)]

    def rebuilt(self, x: Expr, values: Mapping[Var, Expr], go: ExprMap) -> Expr:
        match x:
            case Var():
                return values.get(x, x)
            case TensorRead(tensor, indices):
                return ir.Load(self.buffer(tensor), tuple([go(i) for i in indices]))
            case Reduce():
                raise ProgramError("a reduction must be the whole body of its compute")
            case _:
                return map_children(x, go)

    def extern(self, definition: ExternDef, made: Sequence[Tensor]) -> ir.Stmt:
        """One block without iterators; results that nobody asked for (not in ``made``) live in it."""
        operands = tuple(self.buffer(operand) for operand in definition.operands)
        known = {tensor.position: self.buffer(tensor) for tensor in made}
        unread: list[Buffer] = []
        for position, (name, shape, dtype) in enumerate(definition.results):
            if position not in known:
                known[position] = Buffer(self.fresh(name), shape, dtype, "workspace")
                unread.append(known[position])
        results = tuple(known[position] for position in range(len(definition.results)))
        body: ir.Stmt = ir.Block(definition.name, (), definition.build(operands, results), annotations=((EXTERN, 1),))
        for buffer in unread:
            body = ir.Alloc(buffer, body)
        return body

    def stage(self, tensor: Tensor, name: str) -> ir.Stmt:
        """The loops of one tensor, around a block ``name``."""
        definition = tensor.definition
        assert isinstance(definition, ComputeDef)
        buffer, body = self.buffer(tensor), definition.body
        if isinstance(body, Reduce) and any(not axis.extent for axis in body.axes):
            body = body.init  # of nothing
        axes = [(var, extent, "space") for var, extent in zip(definition.axes, tensor.shape, strict=True)]
        if isinstance(body, Reduce):
            axes += [(axis.var, axis.extent, "reduce") for axis in body.axes]
        loops: list[tuple[Var, int]] = []
        iters: list[ir.IterVar] = []
        values: dict[Var, Expr] = {}
        for var, extent, kind in axes:
            stem = var.name if var.name not in self.taken else f"{var.name}_{tensor.name}"
            loop = Var(self.fresh(stem))
            inner = Var(self.fresh(f"v_{stem}"))
            loops.append((loop, extent))
            iters.append(ir.IterVar(inner, extent, kind, loop))
            values[var] = inner
        where = tuple(i.var for i in iters[: len(tensor.shape)])
        init: ir.Stmt | None = None
        if isinstance(body, Reduce):
            init = ir.Store(buffer, where, self.expr(body.init, values))
            value: Expr = combined(body.combine, ir.Load(buffer, where), self.expr(body.value, values))
        else:
            value = self.expr(body, values)
        block = ir.Block(name, tuple(iters), ir.Store(buffer, where, value), init, annotations=definition.notes)
        return ir.loops(loops, block)


def create_prim_func(
    name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], consts: Sequence[Tensor] = ()
) -> ir.PrimFunc:
    """The loops that compute ``outputs``. Parameters in order: inputs, constants, outputs. Intermediate tensors become
    ``workspace`` buffers allocated around the body. Block names are the tensors' names, numbered where two are equal.

    Extents that are no numbers make it a function of symbolic extents, whose scalars are their sizes."""
    order = stages(outputs)
    scalars = sizes_in(extent for tensor in (*inputs, *consts, *order) for extent in _extents(tensor))
    lowering = _Lowering([(t, "global") for t in inputs] + [(t, "const") for t in consts], outputs, scalars)
    body: list[ir.Stmt] = []
    workspaces: list[Buffer] = []
    kept = {id(t) for t in outputs}
    blocks: set[str] = set()
    for tensor in order:
        match tensor.definition:
            case None:
                continue
            case ExternDef() as definition:
                made = [t for t in order if t.definition is definition]
                if tensor is made[0]:
                    body.append(lowering.extern(definition, made))
                if id(tensor) not in kept:
                    workspaces.append(lowering.buffer(tensor))
                continue
        block, number = tensor.name, 1
        while block in blocks:
            block, number = f"{tensor.name}_{number}", number + 1
        blocks.add(block)
        body.append(lowering.stage(tensor, block))
        if id(tensor) not in kept:
            workspaces.append(lowering.buffer(tensor))
    result = ir.seq(*body)
    for buffer in reversed(workspaces):
        result = ir.Alloc(buffer, result)
    params = tuple(lowering.buffers[id(t)] for t in (*inputs, *consts, *outputs))
    return ir.PrimFunc(name, params, result, scalars=scalars)


def _extents(tensor: Tensor) -> tuple[int, ...]:
    """Those of its axes, and of those that it reduces."""
    body = tensor.definition.body if isinstance(tensor.definition, ComputeDef) else None
    return (*tensor.shape, *(axis.extent for axis in body.axes)) if isinstance(body, Reduce) else tensor.shape


def combined(combine: str, total: Expr, value: Expr) -> Expr:
    """A reduction's next total. ``max`` and ``min`` of floats pass over NaN: the total stays unless the value is beyond it, since
    these take their second operand where they compare with NaN. ``maximum`` and ``minimum`` are NaN from the first NaN on."""
    if combine in ("maximum", "minimum"):
        plain = "max" if combine == "maximum" else "min"
        if not dtypes.is_float(total.dtype):
            return ir.Bin(plain, total, value)
        beyond = ir.binary("gt" if combine == "maximum" else "lt", value, total)
        return ir.select(ir.Bin("or", beyond, value.ne(value)), value, total)
    if combine == "fma" and isinstance(value, ir.Bin):
        return ir.call("fma", value.a, value.b, total)
    swapped = combine in ("max", "min") and dtypes.is_float(total.dtype)
    return ir.Bin(combine, value, total) if swapped else ir.Bin(combine, total, value)
