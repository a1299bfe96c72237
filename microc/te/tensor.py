# SPDX-License-Identifier: Apache-2.0
"""Tensor expressions, as in TVM, and their lowering to loops."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from microc.base import dtypes
from microc.errors import ProgramError
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Var
from microc.tir.names import EXTERN
from microc.tir.rewrite import ExprMap, children, declared_names, map_children
from microc.tir.symbolic import convert_extent, symbolic_sizes_in
from microc.tir.text.print import ATOM, COMPARISON, INFIX, NAMED_BINARY, PREFIX

# ---- Tensor expressions: tensors defined by an expression of one element, as in TVM.
#
# An example is ``compute((n, m), lambda i, j: a[i, j] + b[j])``.


@dataclass(frozen=True, slots=True)
class ReduceAxis:
    """A reduction axis: an axis over which a :class:`Reduce` combines values, for example by addition.

    Expressions refer to the axis as ``axis.var``."""

    var: Var
    extent: int


@dataclass(frozen=True, slots=True)
class TensorRead(Expr):
    """A read of one element of a tensor. Lowering replaces it by a load from a buffer."""

    tensor: Tensor
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.tensor.dtype


@dataclass(frozen=True, slots=True)
class Reduce(Expr):
    """Reduction of ``value`` over ``axes`` by the operation ``combine``, starting from ``init``.

    ``combine`` is ``add``, ``mul``, ``fma`` (a sum of products; a product and its addition are rounded once), ``max``,
    ``min``, ``maximum`` or ``minimum``. The last two differ from ``max`` and ``min`` for NaN
    (:func:`microc.te.tensor.build_reduction_step`). A reduction must be the whole expression of a :func:`compute`. ``init`` may
    depend on the spatial axes, for example a bias.
    """

    combine: str
    value: Expr
    axes: tuple[ReduceAxis, ...]
    init: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.value.dtype


@dataclass(frozen=True, slots=True)
class ComputeDef:
    """Definition of a tensor by one expression of an element, over the variables ``axes``.

    ``notes``: annotations of the block to which the tensor is lowered."""

    axes: tuple[Var, ...]
    body: Expr
    notes: tuple[tuple[str, int | str], ...] = ()


Build = Callable[[tuple[ir.Buffer, ...], tuple[ir.Buffer, ...]], ir.Stmt]
"""Function that returns the loops of an :class:`ExternDef`. Its arguments are the buffers of the operands and of the results."""


@dataclass(frozen=True, eq=False, slots=True)
class ExternDef:
    """Definition of tensors by loops, for operations that no expression of a single element can describe.

    Examples are sorting, recurrences and the FFT. ``build`` returns the loops, which may also read elements that they have
    written. ``results``: (name, shape, dtype) of every tensor that the loops fill.
    """

    name: str
    operands: tuple[Tensor, ...]
    results: tuple[tuple[str, tuple[int, ...], str], ...]
    build: Build


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A tensor: a placeholder (``definition`` is None), or a tensor computed by its definition. Compared by identity.

    Extents may be expressions over symbolic sizes (:mod:`microc.tir.symbolic`); such tensors cannot be operands of
    operators. ``position``: index of the tensor among the results of its :class:`ExternDef`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    definition: ComputeDef | ExternDef | None = None
    position: int = 0

    @property
    def size(self) -> int:
        return prod(self.shape)

    def __getitem__(self, indices: Expr | int | tuple[Expr | int, ...]) -> TensorRead:
        items = indices if isinstance(indices, tuple) else (indices,)
        if len(items) != len(self.shape):
            raise ProgramError(f"{self.name}: wrong number of indices; got {len(items)}, expected {len(self.shape)}")
        return TensorRead(self, tuple(ir.as_index(item) for item in items))


def var(name: str) -> Var:
    """Return an int32 variable for a symbolic size, whose value is given at run time.

    The variable, and expressions over it, may be extents of tensors and operands of expressions."""
    return Var(name)


def placeholder(shape: Sequence[int | Expr], dtype: str, name: str) -> Tensor:
    """Return a placeholder: an input tensor of a function. ProgramError for an unknown dtype or a wrong shape."""
    if not dtypes.is_valid(dtype):
        raise ProgramError(f"{name}: unknown dtype; got {dtype!r}", hint="name one, such as float32, int8 or uint16")
    return Tensor(name, _convert_extents(name, shape), dtype)


def reduce_axis(extent: int | Expr, name: str) -> ReduceAxis:
    """Return a reduction axis whose index runs from 0 to ``extent`` - 1."""
    return ReduceAxis(Var(name), *_convert_extents(name, (extent,)))


def _convert_extents(name: str, shape: object) -> tuple[int, ...]:
    """Convert a shape to extents. ProgramError if it is no sequence, or if an extent is negative or no extent."""
    if not isinstance(shape, Iterable):
        raise ProgramError(f"{name}: the shape is no tuple of extents; got {shape!r}", hint="write (8,) for one axis")
    extents = tuple(convert_extent(extent, name) for extent in shape)
    if negative := [extent for extent in extents if isinstance(extent, int) and extent < 0]:
        raise ProgramError(f"{name}: an extent is negative; got {negative[0]}, expected 0 at least")
    return extents


def compute(
    shape: Sequence[int | Expr],
    f: Callable[..., Expr],
    name: str,
    axes: tuple[str, ...] | None = None,
    notes: tuple[tuple[str, int | str], ...] = (),
) -> Tensor:
    """Return the tensor whose element at ``(i, j, ...)`` is ``f(i, j, ...)``. ProgramError if ``f`` returns no expression.

    ``axes``: names of the loop variables. ``notes``: annotations of the tensor's block, which schedules read as hints.
    """
    extents = _convert_extents(name, shape)
    variables = tuple(Var(axis) for axis in axes or (f"i{k}" for k in range(len(extents))))
    try:
        inspect.signature(f).bind(*variables)
        arity_fault = "" if len(variables) == len(extents) else f"{len(variables)} names of axes"
    except TypeError as error:
        arity_fault = f"a function of other parameters: {error}"
    except ValueError:  # a builtin function without signature
        arity_fault = ""
    if arity_fault:
        raise ProgramError(
            f"{name}: the expression does not take one index for each axis; got {arity_fault}, expected {len(extents)}",
            hint="write te.compute((n, m), lambda i, j: ...)",
        )
    body = f(*variables)
    if not isinstance(body, Expr):
        raise ProgramError(
            f"{name}: an element is no expression; got {body!r}", hint='write a constant as tir.ir.const(1, "float32")'
        )
    return Tensor(name, extents, body.dtype, ComputeDef(variables, body, notes))


def extern(
    name: str, operands: Sequence[Tensor], results: Sequence[tuple[str, tuple[int, ...], str]], build: Build
) -> tuple[Tensor, ...]:
    """Return the tensors that the loops of ``build`` compute: one for every (name, shape, dtype) in ``results``."""
    definition = ExternDef(name, tuple(operands), tuple(results), build)
    return tuple(Tensor(*result, definition, position) for position, result in enumerate(results))


Axes = ReduceAxis | Sequence[ReduceAxis]
"""An axis of a reduction, or several in a list as in TVM."""


def _make_reduce(combine: str, value: Expr, axes: tuple[Axes, ...], init: Expr | int | float) -> Reduce:
    """Return a reduction. ProgramError if an axis is none, or if ``init`` and ``value`` have different dtypes."""
    flat = tuple(
        axis
        for axes_or_axis in axes
        for axis in (axes_or_axis if isinstance(axes_or_axis, Sequence) else [axes_or_axis])
    )
    if wrong := [axis for axis in flat if not isinstance(axis, ReduceAxis)]:
        raise ProgramError(
            f"a reduction along no axis; got {wrong[0]!r}, expected a reduction axis",
            hint="make the axis by te.reduce_axis(extent, name)",
        )
    start = ir.as_expr(init, value.dtype)
    if start.dtype != value.dtype:
        raise ProgramError(
            f"a reduction has an initial value of another dtype; got {start.dtype}, expected {value.dtype}",
            hint=f"cast init to {value.dtype}",
        )
    return Reduce(combine, value, flat, start)


def sum_reduce(value: Expr, *axes: Axes, init: Expr | int | float = 0) -> Reduce:
    """Return the sum of ``value`` over ``axes``, plus ``init``."""
    return _make_reduce("add", value, axes, init)


def fma_reduce(a: Expr, b: Expr, *axes: Axes, init: Expr | int | float = 0) -> Reduce:
    """Return the sum of ``a * b`` over ``axes``, plus ``init``. Terms are added in the order of the axes.

    Each product is added to the sum with a single rounding (fused multiply-add), in the dtype of the factors."""
    return _make_reduce("fma", ir.binary("mul", a, b), axes, init)


def max_reduce(value: Expr, *axes: Axes, init: Expr | int | float) -> Reduce:
    """Return the maximum of ``init`` and of ``value`` over ``axes``."""
    return _make_reduce("max", value, axes, init)


def min_reduce(value: Expr, *axes: Axes, init: Expr | int | float) -> Reduce:
    """Return the minimum of ``init`` and of ``value`` over ``axes``."""
    return _make_reduce("min", value, axes, init)


# ---- Tensor expressions to loops: one block per computed tensor, in order of dependence, without optimisation.


def collect_tensors(outputs: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return ``outputs`` and all tensors on which they depend, including placeholders; producers precede their readers."""
    order: dict[int, Tensor] = {}

    def append_after_producers(tensor: Tensor) -> None:
        if id(tensor) in order:
            return
        match tensor.definition:
            case ComputeDef(_, body):
                for read in tensor_reads(body):
                    append_after_producers(read.tensor)
            case ExternDef(_, operands):
                for operand in operands:
                    append_after_producers(operand)
        order[id(tensor)] = tensor

    for tensor in outputs:
        append_after_producers(tensor)
    return tuple(order.values())


def tensor_reads(expr: Expr) -> Iterable[TensorRead]:
    """Yield the reads of tensor elements in an expression. A read is yielded before the reads in its indices.

    A subexpression that occurs several times as the same object is visited once."""
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
    """Lowering of tensors to the loops of one function, with the buffers of the tensors and the names in use.

    ``reserved_names``: names that neither a buffer nor a loop may have."""

    def __init__(
        self,
        params: Sequence[tuple[Tensor, str]],
        outputs: Sequence[Tensor],
        sizes: Iterable[Var],
        reserved_names: Iterable[str],
    ) -> None:
        self.taken = {size.name for size in sizes} | set(reserved_names)
        self.buffers: dict[int, Buffer] = {}
        self.buffer_names: set[str] = set()
        self.extern_names: set[str] = set()
        """Names that the loops of externs declare."""
        for tensor, scope in params:
            self.buffers[id(tensor)] = self.create_buffer(tensor.name, tensor.shape, tensor.dtype, scope)
        for tensor in outputs:
            self.buffers[id(tensor)] = self.create_buffer(tensor.name, tensor.shape, tensor.dtype, "global")

    def create_buffer(self, stem: str, shape: tuple[int, ...], dtype: str, scope: str) -> Buffer:
        """Return a buffer whose name is derived from ``stem``."""
        name = self.unused_name(stem)
        self.buffer_names.add(name)
        return Buffer(name, shape, dtype, scope)

    def unused_name(self, stem: str) -> str:
        """Return a name, derived from ``stem``, that the function does not use yet."""
        name, number = stem, 1
        while name in self.taken:
            name, number = f"{stem}_{number}", number + 1
        self.taken.add(name)
        return name

    def get_buffer(self, tensor: Tensor) -> Buffer:
        """Return the buffer of a tensor; a workspace is created for an intermediate tensor."""
        if id(tensor) not in self.buffers:
            if tensor.definition is None:
                raise ProgramError(
                    f"placeholder {tensor.name} is read, but is no parameter of the function",
                    hint="pass it to te.create_prim_func in inputs or consts",
                )
            self.buffers[id(tensor)] = self.create_buffer(tensor.name, tensor.shape, tensor.dtype, "workspace")
        return self.buffers[id(tensor)]

    def lower_expr(self, x: Expr, values: Mapping[Var, Expr]) -> Expr:
        """Lower an expression over tensors to an expression over buffers, with variables replaced as in ``values``."""
        return self.lower_shared(x, values, {})

    def lower_shared(self, x: Expr, values: Mapping[Var, Expr], lowered_by_id: dict[int, Expr]) -> Expr:
        """Lower an expression, keeping shared subexpressions shared.

        ``lowered_by_id``: lowered subexpressions by the identity of the original."""
        if id(x) not in lowered_by_id:
            lowered_by_id[id(x)] = self.lower_by_operands(
                x, values, lambda part: self.lower_shared(part, values, lowered_by_id)
            )
        return lowered_by_id[id(x)]

    def lower_by_operands(self, x: Expr, values: Mapping[Var, Expr], lower_operand: ExprMap) -> Expr:
        """Lower an expression. ``lower_operand``: function that lowers each of its operands."""
        match x:
            case Var():
                return values.get(x, x)
            case TensorRead(tensor, indices):
                return ir.Load(self.get_buffer(tensor), tuple([lower_operand(i) for i in indices]))
            case Reduce():
                raise ProgramError(
                    "a reduction is part of a larger expression; expected it as the whole expression of a te.compute",
                    hint="compute it by itself, and the rest in a compute that reads it",
                )
            case _:
                return map_children(x, lower_operand)

    def lower_extern(self, definition: ExternDef, needed_results: Sequence[Tensor]) -> ir.Stmt:
        """Lower tensors that are defined by loops to one block without iterators.

        Results of the definition that are not in ``needed_results`` become local buffers, allocated around the block."""
        operands = tuple(self.get_buffer(operand) for operand in definition.operands)
        known = {tensor.position: self.get_buffer(tensor) for tensor in needed_results}
        unread: list[Buffer] = []
        for position, (name, shape, dtype) in enumerate(definition.results):
            if position not in known:
                known[position] = self.create_buffer(name, shape, dtype, "workspace")
                unread.append(known[position])
        results = tuple(known[position] for position in range(len(definition.results)))
        loops = definition.build(operands, results)
        self.extern_names.update(declared_names(loops))
        body: ir.Stmt = ir.Block(definition.name, (), loops, annotations=((EXTERN, 1),))
        for buffer in unread:
            body = ir.Alloc(buffer, body)
        return body

    def lower_compute(self, tensor: Tensor, block_name: str) -> ir.Stmt:
        """Lower a tensor that is defined by an expression to loops around a block named ``block_name``."""
        definition = tensor.definition
        assert isinstance(definition, ComputeDef)
        buffer, body = self.get_buffer(tensor), definition.body
        if isinstance(body, Reduce) and any(not axis.extent for axis in body.axes):
            body = body.init  # a reduction over nothing
        axes = [(var, extent, "space") for var, extent in zip(definition.axes, tensor.shape, strict=True)]
        if isinstance(body, Reduce):
            axes += [(axis.var, axis.extent, "reduce") for axis in body.axes]
        loops: list[tuple[Var, int]] = []
        iters: list[ir.IterVar] = []
        values: dict[Var, Expr] = {}
        for var, extent, kind in axes:
            stem = var.name if var.name not in self.taken else f"{var.name}_{tensor.name}"
            loop = Var(self.unused_name(stem))
            inner = Var(self.unused_name(f"v_{stem}"))
            loops.append((loop, extent))
            iters.append(ir.IterVar(inner, extent, kind, loop))
            values[var] = inner
        where = tuple(i.var for i in iters[: len(tensor.shape)])
        init: ir.Stmt | None = None
        if isinstance(body, Reduce):
            init = ir.Store(buffer, where, self.lower_expr(body.init, values))
            value: Expr = build_reduction_step(
                body.combine, ir.Load(buffer, where), self.lower_expr(body.value, values)
            )
        else:
            value = self.lower_expr(body, values)
        block = ir.Block(block_name, tuple(iters), ir.Store(buffer, where, value), init, annotations=definition.notes)
        return ir.loops(loops, block)


def create_prim_func(
    name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], consts: Sequence[Tensor] = ()
) -> ir.PrimFunc:
    """Return the function whose loops compute ``outputs``.

    Its parameters are the inputs, the constants and the outputs, in this order. Intermediate tensors become ``workspace``
    buffers that are allocated around the body. Each block is named after its tensor; a number is appended if names repeat.
    Symbolic sizes in extents become scalar parameters of the function."""
    lowering, func = _lower_tensors(name, inputs, outputs, consts, ())
    if not lowering.buffer_names.isdisjoint(lowering.extern_names):
        # An extern declares its names itself, so the buffers get others: a constant called b beside an extern's loop b.
        _, func = _lower_tensors(name, inputs, outputs, consts, lowering.extern_names)
    return func


def _lower_tensors(
    name: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    consts: Sequence[Tensor],
    reserved_names: Iterable[str],
) -> tuple[_Lowering, ir.PrimFunc]:
    """Lower tensors to a function, none of whose buffers is called as in ``reserved_names``."""
    order = collect_tensors(outputs)
    scalars = symbolic_sizes_in(
        extent for tensor in (*inputs, *consts, *order) for extent in _spatial_and_reduction_extents(tensor)
    )
    params = [(t, "global") for t in inputs] + [(t, "const") for t in consts]
    lowering = _Lowering(params, outputs, scalars, reserved_names)
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
                    body.append(lowering.lower_extern(definition, made))
                if id(tensor) not in kept:
                    workspaces.append(lowering.get_buffer(tensor))
                continue
        block, number = tensor.name, 1
        while block in blocks:
            block, number = f"{tensor.name}_{number}", number + 1
        blocks.add(block)
        body.append(lowering.lower_compute(tensor, block))
        if id(tensor) not in kept:
            workspaces.append(lowering.get_buffer(tensor))
    result = ir.seq(*body)
    for buffer in reversed(workspaces):
        result = ir.Alloc(buffer, result)
    buffers = tuple(lowering.buffers[id(t)] for t in (*inputs, *consts, *outputs))
    return lowering, ir.PrimFunc(name, buffers, result, scalars=scalars)


def _spatial_and_reduction_extents(tensor: Tensor) -> tuple[int, ...]:
    """Return the extents of a tensor's axes, followed by the extents of its reduction axes."""
    body = tensor.definition.body if isinstance(tensor.definition, ComputeDef) else None
    return (*tensor.shape, *(axis.extent for axis in body.axes)) if isinstance(body, Reduce) else tensor.shape


def build_reduction_step(operation: str, total: Expr, value: Expr) -> Expr:
    """Return the result of one step of a reduction, which combines the running ``total`` with the next ``value``.

    ``max`` and ``min`` of floats ignore NaN values: these operators return their second operand in a comparison with NaN,
    and the total is the second operand. ``maximum`` and ``minimum`` return NaN if any value is NaN.
    """
    if operation in ("maximum", "minimum"):
        plain = "max" if operation == "maximum" else "min"
        if not dtypes.is_float(total.dtype):
            return ir.Bin(plain, total, value)
        beyond = ir.binary("gt" if operation == "maximum" else "lt", value, total)
        return ir.select(ir.Bin("or", beyond, value.ne(value)), value, total)
    if operation == "fma" and isinstance(value, ir.Bin):
        return ir.call("fma", value.a, value.b, total)
    swapped = operation in ("max", "min") and dtypes.is_float(total.dtype)
    return ir.Bin(operation, value, total) if swapped else ir.Bin(operation, total, value)


# ---- Printing of tensor expressions: one tensor per line, producers first. Reductions are written as sums over indices.
#
# ::
#
#     x: int8[64, 9]
#     acc[p < 64, o < 8]: int32 = bias[o] + sum(int32(x[p, k]) * int32(weight[o, k]) for k < 9)

WIDTH = 120
"""Most characters of a line. A definition that is longer is continued on a second line."""
_SUMS = {"add": ("sum", "+"), "mul": ("product", "*")}


def to_text(outputs: Iterable[Tensor], consts: Sequence[Tensor] = ()) -> str:
    """Return the definitions of ``outputs``, and of all tensors on which they depend, as text.

    Placeholders in ``consts`` are marked as constant."""
    known = {id(tensor) for tensor in consts}
    return "".join(
        f"{_format_tensor_definition(tensor, is_constant=id(tensor) in known)}\n" for tensor in collect_tensors(outputs)
    )


def format_formula(tensor: Tensor) -> str:
    """Return the definition of a computed tensor as text without types, for comments in generated code.

    An example is ``acc[p, o] = bias[o] + sum(x[p, k] * weight[o, k] for k < 9)``."""
    made = tensor.definition
    assert isinstance(made, ComputeDef)
    return (
        f"{tensor.name}[{', '.join(var.name for var in made.axes)}] = {_format_body(_simplify_for_display(made.body))}"
    )


def _simplify_for_display(expr: Expr) -> Expr:
    """Return an expression simplified for display: without casts between integers, the dtypes of literals, and sums with 0.

    Formulas that evaluate expressions and arrays alike write a literal of the dtype of ``x`` as ``x * 0 + 31``."""
    match expr:
        case ir.Cast(dtype, a) if dtypes.is_integer(dtype) and dtypes.is_integer(a.dtype):
            return _simplify_for_display(a)
        case ir.Const(value, dtype) if dtype != "bool":
            return ir.Const(float(f"{value:.9g}") if dtypes.is_float(dtype) else value, "int32")
        case Reduce(combine, value, axes, init):
            return Reduce(combine, _simplify_for_display(value), axes, _simplify_for_display(init))
        case TensorRead(tensor, indices):
            return TensorRead(tensor, tuple(_simplify_for_display(i) for i in indices))
        case ir.Bin("mul", _, ir.Const(0, dtype)) if dtypes.is_integer(dtype):
            return ir.Const(0, "int32")
        case ir.Bin("add", a, b):
            shown = _simplify_for_display(a), _simplify_for_display(b)
            terms = [term for term in shown if ir.int_value(term) != 0]
            return ir.Bin("add", *shown) if len(terms) == 2 else terms[0] if terms else shown[0]
        case _:
            return map_children(expr, _simplify_for_display)


def _format_tensor_definition(tensor: Tensor, *, is_constant: bool) -> str:
    """Return the text of a tensor's definition: its expression, the name of its loops, or for a placeholder its type."""
    shape = ", ".join(map(_format_extent, tensor.shape))
    match tensor.definition:
        case ComputeDef(axes, body, notes):
            axes_text = ", ".join(f"{v.name} < {_format_extent(n)}" for v, n in zip(axes, tensor.shape, strict=True))
            head, value = f"{tensor.name}[{axes_text}]: {tensor.dtype} =", _format_body(body)
            line = f"{head} {value}" if len(head) + len(value) < WIDTH else f"{head}\n    {value}"
            return line + "".join(f"\n    # {name} = {note}" for name, note in notes)
        case ExternDef(name, operands):
            read = ", ".join(operand.name for operand in operands)
            return f"{tensor.name}: {tensor.dtype}[{shape}] = {name}({read})[{tensor.position}]  # loops of the operator's own"
        case _:
            return f"{tensor.name}: {tensor.dtype}[{shape}]{' constant' if is_constant else ''}"


def _format_extent(extent: object) -> str:
    return _format_operand(extent, COMPARISON + 1) if isinstance(extent, Expr) else str(extent)


def _format_body(body: Expr) -> str:
    """Return the text of the expression that defines a tensor, which may be a reduction."""
    if not isinstance(body, Reduce):
        return _format_with_precedence(body)[0]
    over = ", ".join(f"{axis.var.name} < {_format_extent(axis.extent)}" for axis in body.axes)
    name, sign = _SUMS.get(body.combine, (body.combine, ""))
    reduced = f"{name}({_format_with_precedence(body.value)[0]} for {over})"
    if not sign:
        return f"{name}({_format_with_precedence(body.init)[0]}, {reduced})"
    neutral = isinstance(body.init, ir.Const) and body.init.value == (0 if sign == "+" else 1)
    return reduced if neutral else f"{_format_operand(body.init, INFIX[body.combine][1])} {sign} {reduced}"


def _format_with_precedence(expr: Expr) -> tuple[str, int]:
    """Return the text of an expression, and the precedence of its outermost operator."""
    match expr:
        case ir.Const(value, dtype):
            return _format_literal(value, dtype)
        case ir.Var(name):
            return name, ATOM
        case TensorRead(tensor, indices):
            return f"{tensor.name}[{_format_comma_separated(indices)}]", ATOM
        case ir.Bin(op, a, b) if op in NAMED_BINARY:
            return f"{op}({_format_comma_separated((a, b))})", ATOM
        case ir.Bin(op, a, b):
            sign, level = INFIX[op]
            return f"{_format_operand(a, level + (level == COMPARISON))} {sign} {_format_operand(b, level + 1)}", level
        case ir.Un(op, a):
            sign, level = PREFIX[op]
            return f"{sign}{_format_operand(a, level)}", level
        case ir.Cast(dtype, a):
            return f"{dtype}({_format_with_precedence(a)[0]})", ATOM
        case ir.Select(condition, a, b):
            return f"select({_format_comma_separated((condition, a, b))})", ATOM
        case ir.Call(name, args):
            return f"{name}({_format_comma_separated(args)})", ATOM
        case _:
            return f"<{type(expr).__name__}>", ATOM


def _format_operand(expr: Expr, min_precedence: int) -> str:
    """Return the text of an operand, in brackets if its operator's precedence is below ``min_precedence``."""
    text, binds = _format_with_precedence(expr)
    return text if binds >= min_precedence else f"({text})"


def _format_comma_separated(exprs: Iterable[Expr]) -> str:
    return ", ".join(_format_with_precedence(e)[0] for e in exprs)


def _format_literal(value: int | float | bool, dtype: str) -> tuple[str, int]:
    """Return the text of a literal, and its precedence."""
    if dtype == "bool":
        return str(bool(value)), ATOM
    if dtype == "int32":
        return str(value), ATOM if value >= 0 else PREFIX["neg"][1]
    shown = f"{value:.9g}" if dtypes.is_float(dtype) and math.isfinite(value) else str(value)
    return f"{dtype}({shown})", ATOM
