"""Parser of TIR text, which is in the style of TVMScript."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from microc.base import dtypes
from microc.errors import InternalError, ModelError
from microc.tir import ir
from microc.tir.operators import TOKENS
from microc.tir.rewrite import accesses_of, free_vars
from microc.tir.text.print import AXES, INFIX, LOOPS, NAMED_BINARY, THREAD_BINDING, unescape_keyword

# ---- Expressions of TIR text, and the literals and calls that statements also contain.

Names = Mapping[str, ir.Var | ir.Buffer]


def raise_parse_error(node: ast.AST, problem: str, hint: str = "") -> NoReturn:
    """Raise ModelError for a problem at a node of Python's syntax tree. The error contains the line of the node."""
    raise ModelError(problem, where=f"line {getattr(node, 'lineno', 1)}", hint=hint)


def _format_excerpt(node: ast.AST) -> str:
    """Return the text of a syntax tree node for an error, shortened to 60 characters."""
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:60]}..."


class CallParts:
    """The parts of a call ``T.a.b(positional, keyword=...)`` in TIR text.

    ``name``: name of the function without ``T.``, here ``a.b``. ``args``: positional arguments. ``options``: keyword
    arguments by name."""

    def __init__(self, node: ast.AST) -> None:
        if not isinstance(node, ast.Call):
            raise_parse_error(node, f"got {_format_excerpt(node)}, expected a call of a function of T")
        self.node = node
        self.name = _read_name_in_namespace_T(node.func)
        self.args = node.args
        self.options = {k.arg: k.value for k in node.keywords if k.arg is not None}
        if len(self.options) != len(node.keywords) or any(isinstance(a, ast.Starred) for a in node.args):
            raise_parse_error(node, f"T.{self.name}: unpacking is not possible here")

    def check_arguments(self, min_arguments: int, max_arguments: int, *options: str) -> None:
        """Check the number of positional arguments of a call, and that it has no keyword arguments but ``options``.

        Raises ModelError if the check fails."""
        if not min_arguments <= len(self.args) <= max_arguments:
            wanted = str(min_arguments) if min_arguments == max_arguments else f"{min_arguments} to {max_arguments}"
            raise_parse_error(
                self.node, f"T.{self.name}: wrong number of arguments; got {len(self.args)}, expected {wanted}"
            )
        for name in self.options:
            if name not in options:
                raise_parse_error(
                    self.node,
                    f"T.{self.name}: unknown keyword argument; got {name}",
                    "use one of " + ", ".join(options),
                )


def _read_name_in_namespace_T(node: ast.expr) -> str:
    """Return the name of a function in the namespace ``T``, such as ``axis.spatial`` for ``T.axis.spatial``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id != "T" or not parts:
        raise_parse_error(node, f"wrong call; got {_format_excerpt(node)}, expected one of the functions of T")
    return ".".join(reversed(parts))


def read_integer_literal(node: ast.expr) -> int:
    """Return the value of an integer literal. ModelError if the node is no integer literal."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -read_integer_literal(node.operand)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise_parse_error(node, f"got {_format_excerpt(node)}, expected an integer literal")


def read_string_literal(node: ast.expr) -> str:
    """Return the value of a string literal. ModelError if the node is no string literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise_parse_error(node, f"got {_format_excerpt(node)}, expected a string literal")


def read_boolean_literal(node: ast.expr) -> bool:
    """Return the value of the literal ``True`` or ``False``. ModelError if the node is neither."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return node.value
    raise_parse_error(node, f"got {_format_excerpt(node)}, expected True or False")


def read_dtype_name(node: ast.expr) -> str:
    """Return the dtype that a string literal names. ModelError if the dtype is unknown."""
    return check_dtype(read_string_literal(node), node)


def check_dtype(name: str, node: ast.AST) -> str:
    """Return ``name`` if it is the name of a dtype. ModelError with the line of ``node`` if it is not."""
    if not dtypes.is_valid(name):
        raise_parse_error(node, f"unknown dtype; got {name!r}")
    return name


_LARGEST: Mapping[str, float] = MappingProxyType(
    {"float16": 65504.0, "float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308}
)


def _read_float_literal(node: ast.expr, dtype: str) -> float:
    """Return the value of a float literal, rounded to ``dtype``. Infinities and NaN are strings: ``"inf"``, ``"nan"``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if node.value not in ("inf", "-inf", "nan"):
            raise_parse_error(node, f"float literal: got {node.value!r}, expected 'inf', '-inf' or 'nan'")
        return math.nan if node.value == "nan" else float(node.value)
    sign, inner = 1.0, node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, inner = -1.0, node.operand
    if not isinstance(inner, ast.Constant) or not isinstance(inner.value, (int, float)) or dtype not in _LARGEST:
        raise_parse_error(node, f"got {_format_excerpt(node)}, expected a literal of {dtype}")
    try:
        value = sign * float(inner.value)
    except OverflowError:
        raise_parse_error(node, f"the literal {_format_excerpt(node)} does not fit {dtype}")
    rounded = float(ir.const(value, dtype).value) if abs(value) <= _LARGEST[dtype] else math.inf
    if not math.isfinite(rounded):
        raise_parse_error(node, f"the literal {_format_excerpt(node)} does not fit {dtype}")
    return rounded


class ExprReader:
    """Parser of expressions. ``names``: the variables and buffers that names refer to."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def read_expr_of_type(self, node: ast.expr, dtype: str) -> ir.Expr:
        """Read an expression. ModelError if its dtype is not ``dtype``."""
        result = self.read_expr(node)
        if result.dtype != dtype:
            raise_parse_error(node, f"{ast.unparse(node)}: wrong dtype; got {result.dtype}, expected {dtype}")
        return result

    def read_expr(self, node: ast.expr) -> ir.Expr:
        """Read an expression. ModelError if the node is no expression of TIR."""
        match node:
            case ast.Constant(bool(value)):
                return ir.Const(int(value), "bool")
            case ast.Constant(int()) | ast.UnaryOp(ast.USub(), ast.Constant(int())):
                return self.read_literal(node, "int32")
            case ast.Name(name):
                var = self.names.get(unescape_keyword(name))
                if not isinstance(var, ir.Var):
                    raise_parse_error(node, f"{name} is not a variable that is declared here")
                return var
            case ast.UnaryOp(op, a) if type(op) in TOKENS:
                return ir.Un(TOKENS[type(op)], self.read_expr(a))
            case ast.BinOp(a, op, b) if type(op) in TOKENS:
                return self.read_binary(node, TOKENS[type(op)], a, b)
            case ast.Compare(a, [op], [b]) if type(op) in TOKENS:
                return self.read_binary(node, TOKENS[type(op)], a, b)
            case ast.BoolOp(op, values):
                result = self.read_expr_of_type(values[0], "bool")
                for part in values[1:]:
                    result = ir.Bin(TOKENS[type(op)], result, self.read_expr_of_type(part, "bool"))
                return result
            case ast.Subscript():
                return ir.Load(*self.read_element(node))
            case ast.Call():
                return self.read_call(CallParts(node))
            case _:
                raise_parse_error(node, f"{ast.unparse(node)} is no expression of TIR")

    def read_binary(self, node: ast.expr, op: str, a: ast.expr, b: ast.expr) -> ir.Expr:
        """Read an operation ``op`` on the operands ``a`` and ``b``. ModelError if their dtypes differ."""
        left, right = self.read_expr(a), self.read_expr(b)
        if left.dtype != right.dtype:
            sign = INFIX[op][0] if op in INFIX else op
            raise_parse_error(
                node,
                f"{sign}: operands have different dtypes; got {left.dtype} and {right.dtype}",
                "cast one of them with T.Cast",
            )
        return ir.Bin(op, left, right)

    def read_element(self, node: ast.expr) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        """Read ``buffer[indices]``; return the buffer and the indices.

        Raises ModelError if the buffer is unknown or has another number of axes."""
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            raise_parse_error(node, f"got {_format_excerpt(node)}, expected buffer[indices]")
        buffer = self.names.get(unescape_keyword(node.value.id))
        if not isinstance(buffer, ir.Buffer):
            raise_parse_error(node, f"{node.value.id} is not a buffer that is declared here")
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(indices) != len(buffer.shape):
            raise_parse_error(
                node, f"{buffer.name}: wrong number of indices; got {len(indices)}, expected {len(buffer.shape)}"
            )
        return buffer, tuple(self.read_expr(i) for i in indices)

    def read_literal(self, node: ast.expr, dtype: str) -> ir.Const:
        """Read a literal as a constant of ``dtype``. ModelError if its value does not fit the dtype."""
        if dtypes.is_float(dtype):
            return ir.Const(_read_float_literal(node, dtype), dtype)
        try:
            return ir.const(read_integer_literal(node), dtype)
        except InternalError as fault:
            raise_parse_error(node, fault.what, fault.hint)

    def read_call(self, parts: CallParts) -> ir.Expr:
        name, args = parts.name, parts.args
        if dtypes.is_valid(name):
            parts.check_arguments(1, 1)
            return self.read_literal(args[0], name)
        if name in NAMED_BINARY:
            parts.check_arguments(2, 2)
            return self.read_binary(parts.node, name, args[0], args[1])
        match name:
            case "neg":
                parts.check_arguments(1, 1)
                return ir.Un("neg", self.read_expr(args[0]))
            case "Cast":
                parts.check_arguments(2, 2)
                return ir.Cast(read_dtype_name(args[0]), self.read_expr(args[1]))
            case "Select":
                parts.check_arguments(3, 3)
                first = self.read_expr(args[1])
                return ir.Select(
                    self.read_expr_of_type(args[0], "bool"), first, self.read_expr_of_type(args[2], first.dtype)
                )
            case "address_of":
                parts.check_arguments(1, 1, "extent", "writes", "step")
                extent = read_integer_literal(parts.options["extent"]) if "extent" in parts.options else 1
                writes = read_boolean_literal(parts.options["writes"]) if "writes" in parts.options else False
                step = read_integer_literal(parts.options["step"]) if "step" in parts.options else 1
                return ir.AddressOf(*self.read_element(args[0]), extent, writes, step)
            case "call":
                parts.check_arguments(1, 1000, "dtype")
                if "dtype" not in parts.options:
                    raise_parse_error(parts.node, "T.call: the keyword argument dtype is missing")
                return ir.Call(
                    read_string_literal(args[0]),
                    tuple(self.read_expr(a) for a in args[1:]),
                    read_dtype_name(parts.options["dtype"]),
                )
            case _:
                parts.check_arguments(1, 1000)
                values = tuple(self.read_expr(a) for a in args)
                return ir.Call(name, values, values[0].dtype)


# ---- Statements of TIR text, and the declarations of buffers, annotations, loops and blocks that they contain.

_LOOP_KINDS: Mapping[str, str] = MappingProxyType({word: kind for kind, word in LOOPS.items()})
_AXIS_KINDS: Mapping[str, str] = MappingProxyType({word: kind for kind, word in AXES.items()})

_LETTERS: Mapping[str, str] = MappingProxyType({"S": _AXIS_KINDS["spatial"], "R": _AXIS_KINDS["reduce"]})

Annotations = tuple[tuple[str, int | str], ...]


def _read_annotations(node: ast.expr) -> Annotations:
    """Return the annotations in a dictionary literal, whose values are integers or strings."""
    if not isinstance(node, ast.Dict):
        raise_parse_error(node, f"annotations: got {_format_excerpt(node)}, expected {{'key': value}}")
    pairs: list[tuple[str, int | str]] = []
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            raise_parse_error(node, f"annotations: got {_format_excerpt(node)}, expected {{'key': value}}")
        is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
        pairs.append((read_string_literal(key), read_string_literal(value) if is_text else read_integer_literal(value)))
    return tuple(pairs)


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


def _read_target_name(node: ast.expr) -> str:
    """Return the name in the target of an assignment or of a loop. ModelError if the target is no single name."""
    if not isinstance(node, ast.Name):
        raise_parse_error(node, f"got {_format_excerpt(node)}, expected a name")
    return unescape_keyword(node.id)


def is_call(node: ast.stmt, name: str) -> bool:
    """Test whether a statement is the expression ``T.name(...)``."""
    return (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == f"T.{name}"
    )


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
    parameters) of the function."""

    def __init__(
        self, names: Names, extents: Mapping[str, int] = MappingProxyType({}), sizes: frozenset[ir.Var] = frozenset()
    ) -> None:
        super().__init__(names)
        self.extents, self.sizes = extents, sizes

    def with_declared(self, *added: ir.Var | ir.Buffer, extents: Mapping[str, int] = MappingProxyType({})) -> NameScope:
        """Return a scope in which the variables and buffers ``added`` are declared, too.

        ``extents``: extents of loops among them, by the name of the variable."""
        return NameScope({**self.names, **{x.name: x for x in added}}, {**self.extents, **extents}, self.sizes)

    def read_extent(self, node: ast.expr) -> Any:
        """Read an extent: an integer literal, or an expression over the symbolic sizes of the function."""
        value = self.read_expr_of_type(node, "int32")
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

    def read_buffer(self, name: str, parts: CallParts, scope: str | None) -> ir.Buffer:
        """Read the declaration of a buffer, a call such as ``T.Buffer(shape, dtype)``.

        ``scope``: memory scope of the buffer if the call has no keyword argument ``scope``."""
        parts.check_arguments(2, 2, "scope", "align", "slots")
        shape = parts.args[0]
        if not isinstance(shape, ast.Tuple):
            raise_parse_error(
                shape, f"buffer {name}: wrong shape; got {_format_excerpt(shape)}, expected a tuple of extents"
            )
        found = read_string_literal(parts.options["scope"]) if "scope" in parts.options else scope
        if found not in ir.SCOPES:
            raise_parse_error(
                parts.node, f"buffer {name}: unknown scope; got {found!r}", "use one of " + ", ".join(ir.SCOPES)
            )
        align = read_integer_literal(parts.options["align"]) if "align" in parts.options else 0
        slots = read_integer_literal(parts.options["slots"]) if "slots" in parts.options else 0
        return ir.Buffer(
            name, tuple(map(self.read_extent, shape.elts)), read_dtype_name(parts.args[1]), found, align, slots
        )

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
                    name = annotation.attr if isinstance(annotation, ast.Attribute) else ast.unparse(annotation)
                    var = ir.Var(_read_target_name(target), check_dtype(name, node))
                    bound = self.read_expr_of_type(value, var.dtype)
                    return (*found, ir.Let(var, bound, self.with_declared(var).read_suite(rest)))
                case ast.Assign([ast.Name() as target], value):
                    parts = CallParts(value)
                    if parts.name != "alloc_buffer":
                        raise_parse_error(
                            node, f"{target.id} = T.{parts.name}(...) is no declaration that is possible here"
                        )
                    buffer = self.read_buffer(_read_target_name(target), parts, "global")
                    return (*found, ir.Alloc(buffer, self.with_declared(buffer).read_suite(rest)))
                case _:
                    found.append(self.read_statement(node))
        return tuple(found)

    def read_statement(self, node: ast.stmt) -> ir.Stmt:
        match node:
            case ast.Assign([ast.Subscript() as target], value):
                buffer, indices = self.read_element(target)
                return ir.Store(buffer, indices, self.read_expr_of_type(value, buffer.dtype))
            case ast.For(target, source, body, []):
                return self.read_loop(target, CallParts(source), body)
            case ast.If(test, body, orelse):
                otherwise = self.read_suite(orelse) if orelse else None
                return ir.If(self.read_expr_of_type(test, "bool"), self.read_suite(body), otherwise)
            case ast.With([ast.withitem(context, None)], body):
                return self.read_with_statement(CallParts(context), body)
            case ast.Expr(value):
                parts = CallParts(value)
                if parts.name != "evaluate":
                    raise_parse_error(node, f"T.{parts.name} is no statement", "write T.evaluate(...)")
                parts.check_arguments(1, 1)
                return ir.Evaluate(self.read_expr(parts.args[0]))
            case _:
                raise_parse_error(node, f"{type(node).__name__} is no statement of TIR")

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
                [ir.Var(_read_target_name(t)) for t in targets],
                [self.read_expr_of_type(count, "int32") for count in parts.args],
            )
            result = self.with_declared(*variables, extents=self.find_known_extents(variables, counts)).read_suite(body)
            for var, count in reversed(list(zip(variables, counts, strict=True))):
                result = ir.For(var, count, result)
            return result
        if parts.name not in _LOOP_KINDS and parts.name != THREAD_BINDING:
            raise_parse_error(
                parts.node,
                f"unknown kind of loop; got T.{parts.name}",
                f"use one of grid, {THREAD_BINDING}, " + ", ".join(_LOOP_KINDS),
            )
        parts.check_arguments(1, 1, "dtype", "annotations", *(["thread"] if parts.name == THREAD_BINDING else []))
        dtype = read_dtype_name(parts.options["dtype"]) if "dtype" in parts.options else "int32"
        notes = _read_annotations(parts.options["annotations"]) if "annotations" in parts.options else ()
        var = ir.Var(_read_target_name(target), dtype)
        extent = self.read_expr_of_type(parts.args[0], dtype)
        inside = self.with_declared(var, extents=self.find_known_extents([var], [extent]))
        kind = _LOOP_KINDS[parts.name] if parts.name in _LOOP_KINDS else _read_thread_axis(parts)
        return ir.For(var, extent, inside.read_suite(body), kind, notes)

    def read_with_statement(self, parts: CallParts, body: list[ast.stmt]) -> ir.Stmt:
        """Read a ``with`` statement: ``with T.block(name)``, ``with T.scope()`` or ``with T.seq()``."""
        match parts.name:
            case "seq":
                parts.check_arguments(0, 0)
                return ir.Seq(self.read_statements(body))
            case "scope":
                parts.check_arguments(0, 0)
                return self.read_suite(body)
            case "block":
                parts.check_arguments(1, 1)
                return self.read_block(read_string_literal(parts.args[0]), body)
            case _:
                raise_parse_error(
                    parts.node, f"unknown with statement; got T.{parts.name}", "use one of block, init, scope, seq"
                )

    def read_block(self, name: str, body: list[ast.stmt]) -> ir.Stmt:
        """Read the body of ``with T.block(name)``: iterators, predicate, annotations, init and statements."""
        iters: list[ir.IterVar] = []
        init: ir.Stmt | None = None
        predicate: ir.Expr | None = None
        annotations: Annotations = ()
        rest = list(body)
        while rest and isinstance(rest[0], ast.Assign) and isinstance(rest[0].targets[0], (ast.Name, ast.Tuple)):
            parts = CallParts(rest[0].value)
            if not parts.name.startswith("axis."):
                break
            if parts.name == "axis.remap":
                iters += self.read_remapped_iterators(rest[0].targets[0], parts)
            else:
                iters.append(self.read_block_iterator(_read_target_name(rest[0].targets[0]), parts))
            rest = rest[1:]
        inner = self.with_declared(*(i.var for i in iters))
        if rest and is_call(rest[0], "where"):
            assert isinstance(rest[0], ast.Expr)
            parts = CallParts(rest[0].value)
            parts.check_arguments(1, 1)
            predicate = self.read_expr_of_type(parts.args[0], "bool")
            rest = rest[1:]
        if rest and is_call(rest[0], "block_attr"):
            annotations = read_call_annotations(rest[0])
            rest = rest[1:]
        if rest and isinstance(rest[0], ast.With) and ast.unparse(rest[0].items[0].context_expr) == "T.init()":
            init = inner.read_suite(rest[0].body)
            rest = rest[1:]
        return ir.Block(name, tuple(iters), inner.read_suite(rest), init, predicate, annotations)

    def read_block_iterator(self, name: str, parts: CallParts) -> ir.IterVar:
        """Read a block iterator, ``name = T.axis.spatial(extent, binding)`` or ``T.axis.reduce``."""
        kind = parts.name.removeprefix("axis.")
        if kind not in _AXIS_KINDS:
            raise_parse_error(
                parts.node, f"unknown kind of axis; got T.{parts.name}", "use axis.spatial or axis.reduce"
            )
        parts.check_arguments(2, 2, "dtype")
        dtype = read_dtype_name(parts.options["dtype"]) if "dtype" in parts.options else "int32"
        binding = self.read_expr_of_type(parts.args[1], dtype)
        return ir.IterVar(ir.Var(name, dtype), self.read_extent(parts.args[0]), _AXIS_KINDS[kind], binding)

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
            label = _read_target_name(loop)
            var = self.names.get(label)
            if label not in self.extents or not isinstance(var, ir.Var):
                raise_parse_error(loop, f"{label} is no enclosing loop with a known number of iterations")
            found.append(
                ir.IterVar(ir.Var(_read_target_name(name), var.dtype), self.extents[label], _LETTERS[letter], var)
            )
        return found

    def find_known_extents(self, variables: Sequence[ir.Var], counts: Sequence[ir.Expr]) -> dict[str, int]:
        """Return the extents that depend only on the function's symbolic sizes, by the names of the loop variables.

        ``counts``: extents of the loops over ``variables``."""
        pairs = zip(variables, counts, strict=True)
        return {var.name: _simplify_extent(count) for var, count in pairs if self.depends_on_sizes_only(count)}


def _simplify_extent(extent: ir.Expr) -> Any:
    """Return the value of an extent that is an integer literal; any other extent is returned unchanged.

    That is an expression over symbolic sizes (:mod:`microc.tir.symbolic`)."""
    number = ir.int_value(extent)
    return extent if number is None else number


# ---- Functions of TIR text: Python's module ``ast`` parses the text, and its syntax tree is translated node by node. The text
# is never executed.


def from_text(text: str) -> ir.PrimFunc:
    """Parse the text of one function, as :func:`microc.tir.text.to_text` prints it.

    Raises :class:`ModelError` with the number of the line that is invalid."""
    functions = module_from_text(text)
    if len(functions) != 1:
        raise ModelError(
            f"TIR text: wrong number of functions; got {len(functions)}, expected exactly one function",
            where="line 1",
            hint="write one function that begins with @T.prim_func, or read several with tir.module_from_text",
        )
    return functions[0]


def module_from_text(text: str) -> tuple[ir.PrimFunc, ...]:
    """Parse the text of several functions, which follow each other or are in a class decorated with ``@I.ir_module``."""
    try:
        module = ast.parse(text)
    except SyntaxError as fault:
        raise ModelError(f"TIR text is malformed: {fault.msg}", where=f"line {fault.lineno or 1}") from fault
    except (ValueError, MemoryError, RecursionError) as fault:
        raise ModelError(f"TIR text is malformed: {fault}", where="line 1") from fault
    body = module.body
    if len(body) == 1 and isinstance(body[0], ast.ClassDef):
        if [ast.unparse(d) for d in body[0].decorator_list] != ["I.ir_module"]:
            raise_parse_error(body[0], "the class is not marked @I.ir_module")
        body = body[0].body
    try:
        functions = tuple(_read_function(node) for node in body if isinstance(node, ast.FunctionDef))
    except RecursionError as fault:
        raise ModelError("TIR text nests too deeply", where="line 1") from fault
    if len(functions) != len(body) or len({func.name for func in functions}) != len(functions):
        raise ModelError(
            "TIR text contains something else than functions, or two functions of one name",
            where="line 1",
            hint="write only functions that begin with @T.prim_func, each with a name of its own",
        )
    return functions


def _read_function(node: ast.FunctionDef) -> ir.PrimFunc:
    """Read a function definition, which must be decorated with ``@T.prim_func``."""
    decorators = [ast.unparse(d) for d in node.decorator_list]
    if decorators != ["T.prim_func"]:
        raise_parse_error(node, "the function is not marked @T.prim_func")
    a = node.args
    if a.posonlyargs or a.kwonlyargs or a.vararg or a.kwarg or a.defaults:
        raise_parse_error(
            node, "wrong kind of parameter; expected only parameters of the form name: T.Buffer(shape, dtype)"
        )
    scalars = tuple(
        ir.Var(unescape_keyword(arg.arg), check_dtype(arg.annotation.attr, arg))
        for arg in a.args
        if isinstance(arg.annotation, ast.Attribute)
    )
    scope = NameScope({v.name: v for v in scalars}, sizes=frozenset(scalars))
    params: list[ir.Buffer] = []
    for k, arg in enumerate(a.args):
        if arg.annotation is None:
            raise_parse_error(arg, f"parameter {arg.arg} has no T.Buffer(shape, dtype)")
        if isinstance(arg.annotation, ast.Attribute):
            continue
        if k > len(params):
            raise_parse_error(arg, f"parameter {arg.arg}: got a buffer after a scalar, expected all buffers first")
        parts = CallParts(arg.annotation)
        if parts.name != "Buffer":
            raise_parse_error(arg, f"parameter {arg.arg}: got T.{parts.name}, expected T.Buffer(shape, dtype)")
        params.append(scope.read_buffer(unescape_keyword(arg.arg), parts, "global"))
    body = node.body
    annotations: Annotations = ()
    if body and is_call(body[0], "func_attr"):
        annotations = read_call_annotations(body[0])
        body = body[1:]
    return ir.PrimFunc(
        unescape_keyword(node.name), tuple(params), scope.with_declared(*params).read_suite(body), annotations, scalars
    )
