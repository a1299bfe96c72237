# SPDX-License-Identifier: Apache-2.0
"""Parser of the statements of TIR text, and of the declarations of buffers, annotations, loops and blocks that they contain."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from microc.tir import ir
from microc.tir.analysis.context import early_exit_branch
from microc.tir.analysis.simplification import simplify
from microc.tir.names import LANES, parse_lanes
from microc.tir.rewrite import accesses_of, free_vars, substitute_stmt, walk_stmt
from microc.tir.text.parse_expressions import (
    BufferView,
    CallParts,
    ExprReader,
    Names,
    check_dtype,
    convert,
    format_excerpt,
    is_int64_literal,
    is_number_literal,
    is_widening,
    raise_parse_error,
    read_dtype_name,
    read_integer_literal,
    read_string_literal,
)
from microc.tir.text.print import AXES, LOOPS, THREAD_BINDING, TVM_REFUSED, unescape_keyword, while_name

_LOOP_KINDS: Mapping[str, str] = MappingProxyType({word: kind for kind, word in LOOPS.items()})
_AXIS_KINDS: Mapping[str, str] = MappingProxyType({word: kind for kind, word in AXES.items()})

_LETTERS: Mapping[str, str] = MappingProxyType({"S": _AXIS_KINDS["spatial"], "R": _AXIS_KINDS["reduce"]})
_BLOCK_WORDS = ("block", "sblock")
"""Names of a block: ``T.block``, and ``T.sblock`` as TVM calls it since 0.23."""
_PROLOGUE = frozenset(f"{word}_attr" for word in _BLOCK_WORDS) | {"where", "reads", "writes"}
"""Calls between the iterators and the statements of a block. Regions (``T.reads``, ``T.writes``) are derived from the body."""
_ALLOCATIONS = ("alloc_buffer", "sblock_alloc_buffer", "allocate", "decl_buffer")
_VIEWS = ("Buffer", "decl_buffer", "buffer_decl")
"""Declarations of a buffer over the memory of another one, which the option ``data`` names."""
_ORDERED_AXES = ("opaque", "scan")
"""Axes along which the instances of a block depend on each other."""

Annotations = tuple[tuple[str, int | str], ...]


def _read_annotations(node: ast.expr) -> Annotations:
    """Return the annotations in a dictionary literal, whose values are integers, booleans (as 0 and 1) or strings."""
    if not isinstance(node, ast.Dict):
        raise_parse_error(node, f"annotations: got {format_excerpt(node)}, expected {{'key': value}}")
    pairs: list[tuple[str, int | str]] = []
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            raise_parse_error(node, f"annotations: got {format_excerpt(node)}, expected {{'key': value}}")
        match value:
            case ast.Constant(str(text)):
                pairs.append((read_string_literal(key), text))
            case ast.Constant(bool(flag)) | ast.Call(ast.Attribute(ast.Name("T"), "bool"), [ast.Constant(bool(flag))]):
                pairs.append((read_string_literal(key), int(flag)))
            case _:
                pairs.append((read_string_literal(key), read_integer_literal(value)))
    return tuple(pairs)


def _read_loop_annotations(node: ast.expr) -> Annotations:
    """Return the annotations of a loop. ModelError if it has lanes that do not exist."""
    notes = _read_annotations(node)
    lanes = dict(notes).get(LANES, 1)
    if (lanes < 1) if isinstance(lanes, int) else parse_lanes(lanes) is None:
        raise_parse_error(
            node,
            f"annotation {LANES!r} of a loop: got {lanes!r}, expected a number of lanes or their name",
            "write the number of iterations that run side by side, such as 4, or dtype and number, such as 'i16x4'",
        )
    return notes


def _read_thread_axis(parts: CallParts) -> str:
    """Return the thread axis, such as ``threadIdx.x``, to which a call of ``T.thread_binding`` binds its loop.

    It is the kind of the loop (:data:`ir.FOR_KINDS`)."""
    kind = read_string_literal(parts.options["thread"]) if "thread" in parts.options else ""
    if kind not in (*ir.GROUPS, *ir.ITEMS):
        raise_parse_error(
            parts.node,
            f"unknown thread axis of a loop; got thread={kind!r}",
            "use one of " + ", ".join((*ir.GROUPS, *ir.ITEMS)),
        )
    return kind


def read_target_name(node: ast.expr) -> str:
    """Return the name in the target of an assignment or of a loop. ModelError if the target is no single name."""
    if not isinstance(node, ast.Name):
        raise_parse_error(node, f"got {format_excerpt(node)}, expected a name")
    return unescape_keyword(node.id)


def is_call(node: ast.stmt, *names: str) -> bool:
    """Test whether a statement is the expression ``T.name(...)`` of one of ``names``."""
    functions = [f"T.{name}" for name in names]
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in functions


def _list_axis_declarations(node: ast.stmt) -> list[tuple[ast.expr, CallParts]]:
    """List the targets and calls of a statement such as ``vi = T.axis.spatial(8, i)``, or of a tuple of these.

    The list is empty for any other statement."""
    match node:
        case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if len(targets) == len(values):
            pairs = list(zip(targets, values, strict=True))
        case ast.Assign([target], value):
            pairs = [(target, value)]
        case _:
            return []
    is_axis = all(ast.unparse(value).startswith("T.axis.") for _, value in pairs)
    return [(target, CallParts(value)) for target, value in pairs] if is_axis else []


def read_call_annotations(node: ast.stmt) -> Annotations:
    """Return the annotations in a call whose only argument they are, such as ``T.func_attr({...})``."""
    assert isinstance(node, ast.Expr)
    parts = CallParts(node.value)
    parts.check_arguments(1, 1)
    return _read_annotations(parts.args[0])


class NameScope(ExprReader):
    """Parser of statements in one scope: the variables and buffers that names refer to at a position in the text.

    The statements after a declaration are read in a new scope. ``extents``: known extents of the enclosing loops by the name
    of the loop variable, which ``T.axis.remap`` uses as extents of block iterators. ``sizes``: symbolic sizes (scalar
    parameters) of the function. ``while_count``: iterator that counts the function's ``while`` loops, which names them."""

    def __init__(
        self,
        names: Names,
        extents: Mapping[str, int] = MappingProxyType({}),
        sizes: frozenset[ir.Var] = frozenset(),
        wide: frozenset[str] = frozenset(),
        while_count: Iterator[int] | None = None,
    ) -> None:
        super().__init__(names, wide)
        self.extents, self.sizes = extents, sizes
        self.while_count = while_count or itertools.count()

    def with_declared(
        self, *added: ir.Var | ir.Buffer, extents: Mapping[str, int] = MappingProxyType({}), wide: Sequence[ir.Var] = ()
    ) -> NameScope:
        """Return a scope in which the variables and buffers ``added`` are declared, too.

        ``extents``: extents of loops among them, by the name of the variable. ``wide``: those that the text counts in
        int64."""
        names = {x.name for x in added}
        narrower = frozenset(name for name in self.wide if name not in names)
        return NameScope(
            {**self.names, **{x.name: x for x in added}},
            {**self.extents, **extents},
            self.sizes,
            narrower | {var.name for var in wide},
            self.while_count,
        )

    def with_view(self, name: str, view: ir.Buffer | BufferView) -> NameScope:
        """Return a scope in which ``name`` is a second name or shape of a declared buffer."""
        names, wide = {**self.names, name: view}, self.wide - {name}
        return NameScope(names, self.extents, self.sizes, wide, self.while_count)

    def read_extent(self, node: ast.expr) -> Any:
        """Read an extent: an integer literal, or an expression over the symbolic sizes of the function."""
        value = self.read_index(node)
        if not self.depends_on_sizes_only(value):
            raise_parse_error(
                node,
                f"wrong extent; got {ast.unparse(node)}, expected an integer or an expression over symbolic sizes",
                "write an integer literal, or an expression over the scalar parameters",
            )
        return _simplify_extent(value)

    def depends_on_sizes_only(self, extent: ir.Expr) -> bool:
        """Test whether an extent depends only on literals and on the symbolic sizes of the function."""
        return extent.dtype == "int32" and free_vars(extent) <= self.sizes and not accesses_of(extent)

    def read_buffer(self, name: str, parts: CallParts, scope: str) -> ir.Buffer:
        """Read the declaration of a buffer, a call such as ``T.Buffer(shape, dtype)``.

        The dtype is float32 if the call has none. ``scope``: memory scope of the buffer if the call has none."""
        parts.check_arguments(0, 2, "shape", "dtype", "scope", "align", "slots")
        words = dict(zip(("shape", "dtype"), parts.args, strict=False))
        if repeated := words.keys() & parts.options.keys():
            raise_parse_error(parts.node, f"buffer {name}: {min(repeated)} is given twice")
        options = {**words, **parts.options}
        if "shape" not in options:
            raise_parse_error(parts.node, f"buffer {name}: the shape is missing", "write T.Buffer((4, 4), 'float32')")
        shape = options["shape"]
        extents = shape.elts if isinstance(shape, (ast.Tuple, ast.List)) else [shape]
        memory = read_string_literal(options["scope"]) if "scope" in options else scope
        if memory not in ir.SCOPES:
            raise_parse_error(
                parts.node, f"buffer {name}: unknown scope; got {memory!r}", "use one of " + ", ".join(ir.SCOPES)
            )
        align = read_integer_literal(options["align"]) if "align" in options else 0
        slots = read_integer_literal(options["slots"]) if "slots" in options else 0
        dtype = read_dtype_name(options["dtype"]) if "dtype" in options else "float32"
        return ir.Buffer(name, tuple(map(self.read_extent, extents)), dtype, memory, align, slots)

    def read_allocation(self, name: str, parts: CallParts) -> ir.Buffer:
        """Read the declaration of a buffer that the function allocates: ``T.alloc_buffer``, or ``T.allocate`` of TVM, whose
        third and fourth arguments are the scope and a condition."""
        if parts.name == "allocate":
            parts.check_arguments(0, 4, "extents", "shape", "dtype", "scope", "condition", "annotations")
            extra = dict(zip(("scope", "condition"), parts.args[2:], strict=False))
            if repeated := extra.keys() & parts.options.keys():
                raise_parse_error(parts.node, f"buffer {name}: {min(repeated)} is given twice")
            parts.args, parts.options = parts.args[:2], {**parts.options, **extra}
            if "extents" in parts.options:
                parts.options["shape"] = parts.options.pop("extents")
            for option, default in (("condition", "True"), ("annotations", "{}")):
                if option in parts.options and ast.unparse(value := parts.options.pop(option)) not in (default, "None"):
                    raise_parse_error(
                        value, f"buffer {name}: {option}: got {format_excerpt(value)}", f"leave out {option}"
                    )
        parts.remove_dense_layout()
        buffer = self.read_buffer(name, parts, "workspace")
        # Global memory is TVM's default; here it belongs to the caller.
        return replace(buffer, scope="workspace") if buffer.scope == "global" else buffer

    def read_view(self, name: str, parts: CallParts) -> ir.Buffer | BufferView:
        """Read the declaration of a buffer over the memory of another one: ``T.Buffer(shape, dtype, data=other)``.

        ``other``: a buffer, what ``T.allocate`` returns, or ``buffer.data``."""
        data = parts.options.pop("data")
        source = data.value if isinstance(data, ast.Attribute) and data.attr == "data" else data
        declared, seen = self.find_buffer(data, ast.unparse(source))
        base = declared.base if isinstance(declared, BufferView) else declared
        parts.remove_dense_layout()
        if len(parts.args) < 2:
            parts.options.setdefault("dtype", ast.Constant(base.dtype))
        buffer = self.read_buffer(name, parts, base.scope)
        if buffer.dtype != base.dtype:
            raise_parse_error(
                parts.node,
                f"buffer {name}: wrong dtype; got {buffer.dtype}, expected {base.dtype}, that of {seen.name}",
                "allocate a buffer for each dtype, or read elements by T.reinterpret",
            )
        if buffer.shape == base.shape:
            return base
        excess = ir.int_value(simplify(ir.as_index(buffer.size) - ir.as_index(base.size)))
        if excess is None or excess > 0:
            raise_parse_error(
                parts.node,
                f"buffer {name}: got a shape of more elements than {seen.name} has, expected at most as many",
                f"reduce the shape, or allocate more elements for {seen.name}",
            )
        return BufferView(buffer, base)

    def read_suite(self, nodes: list[ast.stmt]) -> ir.Stmt:
        """Read the statements of an indented block of text; return them as one statement."""
        body = self.read_statements(nodes)
        return body[0] if len(body) == 1 else ir.Seq(body)

    def read_statements(self, nodes: list[ast.stmt]) -> tuple[ir.Stmt, ...]:
        found: list[ir.Stmt] = []
        for k, node in enumerate(nodes):
            rest = nodes[k + 1 :]
            match node:
                case ast.Pass():
                    continue
                case ast.AnnAssign(target, annotation, value) if value is not None:
                    bound = self.read_annotated_value(annotation, value)
                    var = ir.Var(read_target_name(target), bound.dtype)
                    return (*found, ir.Let(var, bound, self.with_declared(var).read_suite(rest)))
                case ast.Assign([ast.Name() as target], ast.Call() as value) if self.is_buffer_declaration(value):
                    return (*found, self.read_buffer_declaration(target, value, rest))
                case ast.Assign([ast.Name() as target], value):
                    bound = self.read_expr(value)
                    var = ir.Var(read_target_name(target), bound.dtype)
                    return (*found, ir.Let(var, bound, self.with_declared(var).read_suite(rest)))
                case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if len(targets) == len(values):
                    return (*found, self.read_tuple_assignment(node, targets, values, rest))
                case ast.Expr(ast.Call(args=[argument])) if is_call(node, "evaluate") and is_number_literal(argument):
                    continue  # T.evaluate(0): TVM's statement without effect
                case ast.Expr(ast.Call(args=[argument])) if is_call(node, "assume") or (
                    is_call(node, "evaluate") and is_call(ast.Expr(argument), "assume")
                ):
                    continue  # a fact that nothing here uses
                case _:
                    found.append(self.read_statement(node))
        return tuple(found)

    def read_tuple_assignment(
        self, node: ast.Assign, targets: list[ast.expr], values: list[ast.expr], rest: list[ast.stmt]
    ) -> ir.Stmt:
        """Read ``a, b = x, y`` and the statements ``rest`` behind it. ModelError if a value reads a name or a buffer that a
        target writes: the value would be read after that, as in ``A[0], A[1] = A[1], A[0]``."""
        written, read = (
            {part.id for expr in exprs for part in ast.walk(expr) if isinstance(part, ast.Name)}
            for exprs in ([t.value if isinstance(t, ast.Subscript) else t for t in targets], values)
        )
        if clashing := sorted(written & read):
            raise_parse_error(
                node,
                f"{format_excerpt(node)}: a value reads {clashing[0]}",
                "assign one after the other, by a third name",
            )
        pairs = zip(targets, values, strict=True)
        single = [ast.copy_location(ast.Assign([target], value), node) for target, value in pairs]
        return self.read_suite([*single, *rest])

    def is_buffer_declaration(self, call: ast.Call) -> bool:
        """Test whether a call in the body of a function declares a buffer: an allocation, or a view of another buffer."""
        has_data = any(keyword.arg == "data" for keyword in call.keywords)
        return is_call(ast.Expr(call), *(_VIEWS if has_data else _ALLOCATIONS))

    def read_buffer_declaration(self, target: ast.expr, call: ast.Call, rest: list[ast.stmt]) -> ir.Stmt:
        """Read the declaration of a buffer, and the statements ``rest`` in which it is declared."""
        name, parts = read_target_name(target), CallParts(call)
        if "data" in parts.options:
            return self.with_view(name, self.read_view(name, parts)).read_suite(rest)
        buffer = self.read_allocation(name, parts)
        return ir.Alloc(buffer, self.with_declared(buffer).read_suite(rest))

    def read_annotated_value(self, annotation: ast.expr, value: ast.expr) -> ir.Expr:
        """Read the value of a variable with its type: ``T.int32``, ``T.let[T.int32]``, or ``T.let`` for the value's own."""
        match annotation:
            case ast.Attribute(ast.Name("T"), "let"):
                return self.read_expr(value)
            case ast.Subscript(ast.Attribute(ast.Name("T"), "let"), inner):
                return self.read_annotated_value(inner, value)
        name = annotation.attr if isinstance(annotation, ast.Attribute) else ast.unparse(annotation)
        return self.read_expr_of_type(value, check_dtype(name, annotation))

    def read_statement(self, node: ast.stmt) -> ir.Stmt:
        match node:
            case ast.Assign([ast.Subscript() as target], value):
                if any(isinstance(part, ast.Slice) for part in ast.walk(target)):
                    return self.read_slice_store(node)
                buffer, indices = self.read_element(target)
                return ir.Store(buffer, indices, self.read_stored_value(value, buffer.dtype))
            case ast.AugAssign(ast.Subscript() as target, op, value):
                sum_ = ast.copy_location(ast.BinOp(target, op, value), node)
                return self.read_statement(ast.copy_location(ast.Assign([target], sum_), node))
            case ast.For(target, source, body, []):
                return self.read_loop(target, CallParts(source, builtins=("range",)), body)
            case ast.If(test, body, orelse):
                otherwise = self.read_suite(orelse) if orelse else None
                return ir.If(self.read_condition(test), self.read_suite(body), otherwise)
            case ast.With([ast.withitem(ast.Call(args=[value]) as context, ast.Name(name))], body) if (
                CallParts(context).name == "LetStmt"
            ):
                bound = self.read_expr(value)
                var = ir.Var(unescape_keyword(name), bound.dtype)
                return ir.Let(var, bound, self.with_declared(var).read_suite(body))
            case ast.With([ast.withitem(ast.Call() as context, ast.Name() as name)], body) if (
                self.is_buffer_declaration(context)
            ):
                return self.read_buffer_declaration(name, context, body)
            case ast.With([ast.withitem(ast.Call(args=[test]) as context, None)], body) if is_call(
                ast.Expr(context), "While"
            ):
                return self.read_while_loop(node, test, body)
            case ast.With([ast.withitem(context, None)], body):
                return self.read_with_statement(CallParts(context), body)
            case ast.Expr(value):
                parts = CallParts(value)
                if parts.name != "evaluate":
                    hint = TVM_REFUSED.get(parts.name, "write T.evaluate(...)")
                    raise_parse_error(node, f"T.{parts.name} is no statement", hint)
                parts.check_arguments(1, 1)
                return ir.Evaluate(self.read_expr(parts.args[0]))
            case ast.While(test, body, []):
                return self.read_while_loop(node, test, body)
            case ast.While():
                raise_parse_error(node, "while has no else in TIR", "write the statements behind the loop")
            case ast.Return():
                raise_parse_error(
                    node, "return is no statement of TIR", "store the result to a parameter: B: T.Buffer(shape, dtype)"
                )
            case ast.Assert():
                raise_parse_error(
                    node, "assert is no statement of TIR", "leave it out: shapes and dtypes of arguments are checked"
                )
            case ast.Break() | ast.Continue():
                raise_parse_error(
                    node,
                    f"{type(node).__name__.lower()} is no statement of TIR",
                    "write an if around the statements that it skips; a while loop also ends by a flag in its condition",
                )
            case _:
                raise_parse_error(node, f"{type(node).__name__} is no statement of TIR")

    def read_stored_value(self, node: ast.expr, dtype: str) -> ir.Expr:
        """Read a value that is stored to a buffer of ``dtype``, and convert it if that loses no range.

        TVM also converts to narrower dtypes; here the text must say so."""
        if is_number_literal(node):
            return self.read_expr_of_type(node, dtype)
        value = self.read_expr(node)
        if value.dtype != dtype and not is_widening(dtype, value.dtype):
            raise_parse_error(
                node,
                f"{format_excerpt(node)}: wrong dtype; got {value.dtype}, expected {dtype}",
                f"write T.cast(value, {dtype!r})",
            )
        return convert(value, dtype)

    def read_slice_store(self, node: ast.Assign) -> ir.Stmt:
        """Read ``B[i, 0:4] = A[i, 0:4] + 1``: a vectorised loop over the elements of the slices, which have one length.

        TVM reads all elements before it stores the first one. So the value may only read elements of the buffer that it
        replaces itself."""
        node = self.complete_slices(node)
        slices = [part for part in ast.walk(node) if isinstance(part, ast.Slice)]
        counts = {self.read_slice_length(part, node) for part in slices}
        if len(counts) > 1:
            raise_parse_error(node, f"slices have different lengths; got {', '.join(map(str, sorted(counts)))}")
        name = next(label for k in range(len(self.names) + 1) if (label := f"lane{k or ''}") not in self.names)
        var = ir.Var(name)
        scope = self.with_declared(var, extents={name: min(counts)})
        store = scope.read_statement(_SliceIndexer(name).visit(node))
        assert isinstance(store, ir.Store)
        others = [a for a in accesses_of(store.value) if isinstance(a, ir.AddressOf) or a.indices != store.indices]
        if any(a.buffer == store.buffer for a in (*others, *(a for i in store.indices for a in accesses_of(i)))):
            raise_parse_error(
                node,
                f"{format_excerpt(node)}: reads other elements of {store.buffer.name} than it stores",
                "copy them to a buffer of their own first",
            )
        return ir.For(var, ir.const(min(counts), "int32"), store, _LOOP_KINDS["vectorized"])

    def complete_slices(self, node: ast.Assign) -> ast.Assign:
        """Return an assignment with ends of slices that it leaves out, as in ``A[i, :]``: the extents of their axes."""
        node = copy.deepcopy(node)
        for element in ast.walk(node):
            if isinstance(element, ast.Subscript) and isinstance(element.value, ast.Name):
                indices = element.slice.elts if isinstance(element.slice, ast.Tuple) else [element.slice]
                _, buffer = self.find_buffer(element, element.value.id)
                for part, extent in zip(indices, buffer.shape, strict=False):
                    if isinstance(part, ast.Slice) and part.upper is None and isinstance(extent, int):
                        part.upper = ast.copy_location(ast.Constant(extent), element)
        return node

    def read_slice_length(self, part: ast.Slice, node: ast.stmt) -> int:
        """Read the number of elements of a slice. ModelError unless both ends differ by a constant."""
        step = 1 if part.step is None else read_integer_literal(part.step)
        if part.upper is None or step < 1:
            raise_parse_error(
                node,
                f"{format_excerpt(node)}: got a slice without end, or whose step is no positive number",
                "write both ends, as in A[0:4]",
            )
        lower = self.read_index(part.lower) if part.lower is not None else ir.const(0, "int32")
        length = ir.int_value(simplify(self.read_index(part.upper) - lower))
        if length is None or length < 1:
            raise_parse_error(
                node,
                f"{format_excerpt(node)}: the slice has no constant length of at least 1",
                "write a loop over its elements: for k in range(begin, end)",
            )
        return -(-length // step)

    def read_loop(self, target: ast.expr, parts: CallParts, body: list[ast.stmt]) -> ir.Stmt:
        """Read a ``for`` loop over ``T.grid(...)``, ``T.serial(...)`` or another kind of loop.

        ``target``: the loop variables; ``parts``: the call of ``T``."""
        if parts.name == "grid":
            parts.check_arguments(1, 1000)
            targets = target.elts if isinstance(target, ast.Tuple) else [target]
            if len(targets) != len(parts.args):
                raise_parse_error(
                    target, f"T.grid: got {len(targets)} loop variables for {len(parts.args)} extents, expected as many"
                )
            variables, counts = (
                [ir.Var(read_target_name(t)) for t in targets],
                [self.read_loop_extent(count, "int32") for count in parts.args],
            )
            wide = [var for var, node in zip(variables, parts.args, strict=True) if self.counts_in_int64(node)]
            extents = self.find_known_extents(variables, counts)
            result = self.with_declared(*variables, extents=extents, wide=wide).read_suite(body)
            for var, count in reversed(list(zip(variables, counts, strict=True))):
                result = ir.For(var, count, result)
            return result
        word = "serial" if parts.name == "range" else parts.name
        if word not in _LOOP_KINDS and word != THREAD_BINDING:
            raise_parse_error(
                parts.node,
                f"unknown kind of loop; got T.{word}",
                f"use one of grid, {THREAD_BINDING}, " + ", ".join(_LOOP_KINDS),
            )
        if (
            word == THREAD_BINDING
            and parts.args
            and isinstance(parts.args[-1], ast.Constant)
            and isinstance(parts.args[-1].value, str)
        ):
            parts.options.setdefault("thread", parts.args.pop())
        if word == "serial" and len(parts.args) == 3:
            parts.options.setdefault("step", parts.args.pop())
        own = {THREAD_BINDING: ("thread",), "serial": ("step",)}
        parts.check_arguments(1, 2, "dtype", "annotations", *own.get(word, ()))
        dtype = read_dtype_name(parts.options["dtype"]) if "dtype" in parts.options else "int32"
        notes = _read_loop_annotations(parts.options["annotations"]) if "annotations" in parts.options else ()
        var = ir.Var(read_target_name(target), dtype)
        first = self.read_loop_extent(parts.args[0], dtype) if len(parts.args) == 2 else ir.const(0, dtype)
        extent = self.read_loop_extent(parts.args[-1], dtype)
        step = read_integer_literal(parts.options["step"]) if "step" in parts.options else 1
        if step < 1:
            raise_parse_error(parts.node, f"step of a loop: got {step}, expected a positive number")
        starts_at_0 = ir.int_value(first) == 0 and step == 1
        if not starts_at_0:
            extent = simplify((extent - first + (step - 1)) // step)
        wide = [var] if "dtype" not in parts.options and self.counts_in_int64(parts.args[-1]) else []
        extents = self.find_known_extents([var], [extent]) if starts_at_0 else {}
        suite = self.with_declared(var, extents=extents, wide=wide).read_suite(body)
        if not starts_at_0:  # loops count from 0
            suite = substitute_stmt(suite, {var: simplify(var * step + first)})
        kind = _LOOP_KINDS[word] if word in _LOOP_KINDS else _read_thread_axis(parts)
        return ir.For(var, extent, suite, kind, notes)

    def read_while_loop(self, node: ast.stmt, test: ast.expr, body: list[ast.stmt]) -> ir.Stmt:
        """Read ``while condition: body``: an endless loop whose body is a branch.

        ModelError if the body writes no buffer that the condition loads, because the loop would never end once it begins."""
        var = ir.Var(while_name(next(self.while_count)))
        condition = self.read_condition(test)
        loop = ir.For(var, ir.const(ir.ENDLESS, "int32"), ir.If(condition, self.with_declared(var).read_suite(body)))
        if early_exit_branch(loop) is None:
            raise_parse_error(
                node,
                f"while {format_excerpt(test)}: the loop cannot end; its body stores to no buffer that the condition loads",
                "keep what changes in a buffer of one element: n = T.alloc_buffer((1,), 'int32'), while n[0] > 0",
            )
        return loop

    def read_loop_extent(self, node: ast.expr, dtype: str) -> ir.Expr:
        """Read the number of iterations of a loop over a variable of ``dtype``."""
        if dtype != "int32":
            return self.read_expr_of_type(node, dtype)
        extent = self.read_index(node)
        if extent.dtype != dtype:
            raise_parse_error(node, f"{ast.unparse(node)}: wrong dtype; got {extent.dtype}, expected {dtype}")
        return extent

    def counts_in_int64(self, extent: ast.expr) -> bool:
        """Test whether the text counts a loop or an iterator of this extent in int64."""
        return is_int64_literal(extent) or self.has_wide_indices(extent)

    def read_with_statement(self, parts: CallParts, body: list[ast.stmt]) -> ir.Stmt:
        """Read a ``with`` statement: ``with T.block(name)``, ``with T.scope()`` or ``with T.seq()``."""
        match parts.name:
            case "seq":
                parts.check_arguments(0, 0)
                return ir.Seq(self.read_statements(body))
            case "scope":
                parts.check_arguments(0, 0)
                return self.read_suite(body)
            case "block" | "sblock":
                parts.check_arguments(0, 1)
                return self.read_block(read_string_literal(parts.args[0]) if parts.args else None, body)
            case _:
                raise_parse_error(
                    parts.node, f"unknown with statement; got T.{parts.name}", "use one of block, init, scope, seq"
                )

    def read_block(self, name: str | None, body: list[ast.stmt]) -> ir.Stmt:
        """Read the body of ``with T.block(name)``: iterators, predicate, annotations, init and statements."""
        iters: list[ir.IterVar] = []
        init: ir.Stmt | None = None
        predicate: ir.Expr | None = None
        annotations: Annotations = ()
        wide: set[str] = set()
        rest = list(body)
        attributes: list[ast.stmt] = []  # read behind the iterators, which they may name
        while rest:
            if is_call(rest[0], *_PROLOGUE):
                attributes.append(rest[0])
            elif declarations := _list_axis_declarations(rest[0]):
                for target, parts in declarations:
                    declared, declared_wide = self.read_iterators(target, parts)
                    iters += declared
                    wide |= declared_wide
            else:
                break
            rest = rest[1:]
        inner = self.with_declared(*(i.var for i in iters), wide=[i.var for i in iters if i.var.name in wide])
        for node in attributes:
            assert isinstance(node, ast.Expr)
            parts = CallParts(node.value)
            match parts.name:
                case "where":
                    parts.check_arguments(1, 1)
                    condition = self.read_condition(parts.args[0])
                    predicate = condition if predicate is None else ir.Bin("and", predicate, condition)
                case "reads" | "writes":
                    inner.check_regions(parts)
                case _:
                    annotations = read_call_annotations(node)
        if rest and isinstance(rest[0], ast.With) and ast.unparse(rest[0].items[0].context_expr) == "T.init()":
            init = inner.read_suite(rest[0].body)
            rest = rest[1:]
        suite = inner.read_suite(rest)
        if any(i.kind in _ORDERED_AXES for i in iters):
            if annotations:
                raise_parse_error(attributes[0], "a block of opaque axes has no annotations", "leave out T.block_attr")
            return _write_without_block(iters, suite, init, predicate)
        if (
            not iters
            and predicate is None
            and any(isinstance(s, ir.Block) for s in walk_stmt(suite))
            and name == "root"
        ):
            return suite  # TVM's block around all blocks of a function
        return ir.Block(
            _default_block_name(suite) if name is None else name, tuple(iters), suite, init, predicate, annotations
        )

    def check_regions(self, parts: CallParts) -> None:
        """Check that ``T.reads(...)`` or ``T.writes(...)`` names declared buffers, with an index or a slice of each axis."""
        regions = parts.args[0].elts if parts.args and isinstance(parts.args[0], ast.List) else parts.args
        for region in regions:
            if not isinstance(region, ast.Subscript) or not isinstance(region.value, ast.Name):
                raise_parse_error(region, f"T.{parts.name}: got {format_excerpt(region)}, expected buffer[indices]")
            _, buffer = self.find_buffer(region, region.value.id)
            axes = region.slice.elts if isinstance(region.slice, ast.Tuple) else [region.slice]
            if len(axes) != len(buffer.shape):
                raise_parse_error(
                    region, f"{buffer.name}: wrong number of indices; got {len(axes)}, expected {len(buffer.shape)}"
                )

    def read_iterators(self, target: ast.expr, parts: CallParts) -> tuple[list[ir.IterVar], set[str]]:
        """Read the iterators that a call of ``T.axis`` declares, and the names of those that the text counts in int64."""
        if parts.name == "axis.remap":
            remapped = self.read_remapped_iterators(target, parts)
            return remapped, {
                i.var.name for i in remapped if isinstance(i.binding, ir.Var) and i.binding.name in self.wide
            }
        iterator = self.read_block_iterator(read_target_name(target), parts)
        return [iterator], {iterator.var.name} if self.counts_in_int64(parts.args[0]) else set()

    def read_block_iterator(self, name: str, parts: CallParts) -> ir.IterVar:
        """Read a block iterator, ``name = T.axis.spatial(extent, binding)`` or ``T.axis.reduce``."""
        word = parts.name.removeprefix("axis.")
        kind = word if word in _ORDERED_AXES else _LETTERS.get(word, _AXIS_KINDS.get(word, ""))
        if not kind:
            raise_parse_error(
                parts.node, f"unknown kind of axis; got T.{parts.name}", "use axis.spatial or axis.reduce"
            )
        parts.check_arguments(2, 2, "dtype")
        dtype = read_dtype_name(parts.options["dtype"]) if "dtype" in parts.options else "int32"
        if isinstance(parts.args[0], ast.Tuple):
            raise_parse_error(
                parts.args[0],
                f"T.{parts.name}: got the domain {format_excerpt(parts.args[0])}, expected the extent of one from 0",
                "write the extent, and add the beginning where the iterator is used",
            )
        binding = self.read_loop_extent(parts.args[1], dtype)
        return ir.IterVar(ir.Var(name, dtype), self.read_extent(parts.args[0]), kind, binding)

    def read_remapped_iterators(self, target: ast.expr, parts: CallParts) -> list[ir.IterVar]:
        """Read ``v_i, v_k = T.axis.remap("SR", [i, k])``: block iterators that are bound to enclosing loops.

        An iterator has the extent of its loop."""
        parts.check_arguments(2, 2)
        kinds, loops = read_string_literal(parts.args[0]), parts.args[1]
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        if not isinstance(loops, (ast.List, ast.Tuple)) or not len(kinds) == len(loops.elts) == len(targets):
            raise_parse_error(
                parts.node,
                "T.axis.remap: expected one letter and one loop for each iterator",
                'write v_i, v_k = T.axis.remap("SR", [i, k])',
            )
        found = []
        for name, letter, loop in zip(targets, kinds, loops.elts, strict=True):
            if letter not in _LETTERS:
                raise_parse_error(
                    parts.node, f"T.axis.remap: unknown letter; got {letter!r}", "use S (spatial) or R (reduce)"
                )
            label = read_target_name(loop)
            var = self.names.get(label)
            if label not in self.extents or not isinstance(var, ir.Var):
                raise_parse_error(loop, f"{label} is no enclosing loop with a known number of iterations")
            found.append(
                ir.IterVar(ir.Var(read_target_name(name), var.dtype), self.extents[label], _LETTERS[letter], var)
            )
        return found

    def find_known_extents(self, variables: Sequence[ir.Var], counts: Sequence[ir.Expr]) -> dict[str, int]:
        """Return the extents that depend only on the function's symbolic sizes, by the names of the loop variables.

        ``counts``: extents of the loops over ``variables``."""
        pairs = zip(variables, counts, strict=True)
        return {var.name: _simplify_extent(count) for var, count in pairs if self.depends_on_sizes_only(count)}


class _SliceIndexer(ast.NodeTransformer):
    """Replaces each slice by the index ``begin + lane * step`` of an element."""

    def __init__(self, lane: str) -> None:
        self.lane = lane

    def visit_Slice(self, node: ast.Slice) -> ast.expr:
        index: ast.expr = ast.Name(self.lane, ast.Load())
        if node.step is not None:
            index = ast.BinOp(index, ast.Mult(), node.step)
        if node.lower is not None and ast.unparse(node.lower) != "0":
            index = ast.BinOp(node.lower, ast.Add(), index)
        return ast.fix_missing_locations(ast.copy_location(index, node.lower or node.upper or index))


def _write_without_block(
    iters: Sequence[ir.IterVar], suite: ir.Stmt, init: ir.Stmt | None, predicate: ir.Expr | None
) -> ir.Stmt:
    """Return what a block with opaque axes does as statements outside of blocks, with the bindings in place of its iterators.

    Schedules keep the order of such statements unless they prove that iterations share no element."""
    if init is not None:
        first = [ir.Bin("eq", i.var, ir.const(0, "int32")) for i in iters if i.kind == "reduce"]
        condition = ir.all_of(first)
        suite = ir.Seq((init if condition is None else ir.If(condition, init), suite))
    if predicate is not None:
        suite = ir.If(predicate, suite)
    return substitute_stmt(suite, {i.var: i.binding for i in iters})


def _default_block_name(suite: ir.Stmt) -> str:
    """Return the name of a block that the text leaves without name: that of the buffer to which it stores last."""
    stores = [s.buffer.name for s in walk_stmt(suite) if isinstance(s, ir.Store)]
    return stores[-1] if stores else "block"


def _simplify_extent(extent: ir.Expr) -> Any:
    """Return the value of an extent of literals; an expression over symbolic sizes (:mod:`microc.tir.symbolic`) is returned
    unchanged."""
    number = ir.int_value(extent if free_vars(extent) else simplify(extent))
    return extent if number is None else number
