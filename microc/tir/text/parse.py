# SPDX-License-Identifier: Apache-2.0
"""Parser of TIR text, which is in the style of TVMScript: functions and modules."""

from __future__ import annotations

import ast
import copy
import math
import operator
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from microc.errors import ModelError
from microc.tir import ir
from microc.tir.statements import IRModule
from microc.tir.text.parse_expressions import (
    CallParts,
    check_dtype,
    format_excerpt,
    is_number_literal,
    raise_parse_error,
    read_dtype_name,
)
from microc.tir.text.parse_statements import Annotations, NameScope, is_call, read_call_annotations, read_target_name
from microc.tir.text.print import unescape_keyword

# Python's module ``ast`` parses the text, and its syntax tree is translated node by node. The text
# is never executed.

_MODULE_DECORATORS = ("I.ir_module", "ir_module", "tvm.script.ir_module", "tvm.script.ir.ir_module")
_SKIPPED_IMPORTS = ("tvm", "numpy", "__future__")
"""Packages whose imports lectures write before a module. Nothing is imported; a use of ``np`` is refused where it stands."""
_FUNCTION_DECORATORS = ("T.prim_func", "tvm.script.tir.prim_func")
_DECORATOR_OPTIONS = ("private", "check_well_formed", "s_tir")
"""Options of TVM's decorators that change nothing here."""
_SKIPPED_CALLS = ("I.module_attrs", "I.module_global_infos")
"""Notes on a module for TVM's own passes."""


def from_text(text: str) -> ir.PrimFunc:
    """Parse the text of one function, as :func:`microc.tir.text.to_text` prints it or as TVMScript.

    Raises :class:`ModelError` with the number of the line that is invalid."""
    functions = module_from_text(text)
    if len(functions) != 1:
        raise ModelError(
            f"TIR text: wrong number of functions; got {len(functions)}, expected exactly one function",
            where="line 1",
            hint="write one function that begins with @T.prim_func, or read several with tir.module_from_text",
        )
    return functions[0]


def module_from_text(text: str) -> IRModule:
    """Parse the text of several functions, which follow each other or are in a class decorated with ``@I.ir_module``.

    Imports of ``tvm`` and ``numpy`` are skipped. Assignments outside of the functions, such as ``N = 128``,
    ``H, W = N // 2, 8`` or ``dtype = "float32"``, are constants that functions may use as literals."""
    try:
        module = ast.parse(textwrap.dedent(text))
    except SyntaxError as fault:
        raise ModelError(f"TIR text is malformed: {fault.msg}", where=f"line {fault.lineno or 1}") from fault
    except (ValueError, MemoryError, RecursionError) as fault:
        raise ModelError(f"TIR text is malformed: {fault}", where="line 1") from fault
    constants: dict[str, ast.expr] = {}
    try:
        functions = _read_definitions(module.body, constants)
    except RecursionError as fault:
        raise ModelError("TIR text nests too deeply", where="line 1") from fault
    if len({func.name for func in functions}) != len(functions):
        raise ModelError(
            "TIR text contains two functions of one name",
            where="line 1",
            hint="give each function a name of its own",
        )
    return IRModule(functions)


def _read_definitions(nodes: Sequence[ast.stmt], constants: dict[str, ast.expr]) -> list[ir.PrimFunc]:
    """Read the functions of a module or of a class in it; add the literals that it gives names to ``constants``."""
    functions: list[ir.PrimFunc] = []
    for node in nodes:
        match node:
            case ast.FunctionDef():
                functions.append(_FunctionReader(_insert_constants(node, constants)).read())
            case ast.ClassDef():
                if not _is_decorated(node, _MODULE_DECORATORS):
                    raise_parse_error(node, "the class is not marked @I.ir_module")
                functions += _read_definitions(node.body, constants)
            case ast.Assign([ast.Name(name)], value):
                constants[name] = _evaluate_constant(value, constants)
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if len(targets) == len(values):
                literals = [_evaluate_constant(value, constants) for value in values]
                constants |= zip(map(read_target_name, targets), literals, strict=True)
            case ast.Import(names) if all(alias.name.split(".")[0] in _SKIPPED_IMPORTS for alias in names):
                continue
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in _SKIPPED_IMPORTS:
                continue
            case ast.Expr(ast.Constant(str())) | ast.Pass():
                continue
            case ast.Expr(ast.Call(function)) if ast.unparse(function) in _SKIPPED_CALLS:
                continue
            case _:
                raise_parse_error(
                    node,
                    "TIR text contains something else than functions",
                    "write only functions that begin with @T.prim_func, and constants such as N = 128",
                )
    return functions


def _is_decorated(node: ast.FunctionDef | ast.ClassDef, names: Sequence[str]) -> bool:
    """Test whether a definition has one decorator, which is in ``names``, perhaps called with :data:`_DECORATOR_OPTIONS`."""
    if len(node.decorator_list) != 1:
        return False
    decorator = node.decorator_list[0]
    if isinstance(decorator, ast.Call) and not decorator.args:
        return ast.unparse(decorator.func) in names and all(k.arg in _DECORATOR_OPTIONS for k in decorator.keywords)
    return ast.unparse(decorator) in names


_FOLDED: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
        ast.Div: operator.truediv,
    }
)


def _evaluate_constant(node: ast.expr, constants: Mapping[str, ast.expr]) -> ast.expr:
    """Return the literal that the right-hand side of an assignment outside of functions stands for.

    It is a number, a string, a flat tuple of these, an earlier constant, or arithmetic on numbers that int64 or float64
    represents. ModelError for anything else."""
    match node:
        case ast.Name(name) if name in constants:
            return constants[name]
        case ast.Constant(bool() | str()):
            return node
        case ast.Tuple(elements) | ast.List(elements):
            values = [_evaluate_constant(each, constants) for each in elements]
            # No function uses a tuple of tuples, and each line of these could double the length of what it stands for.
            if not any(isinstance(value, ast.Tuple) for value in values):
                return ast.copy_location(ast.Tuple(values), node)
        case _ if (number := _number_of(node)) is not None and _is_represented(number):
            return node
        case ast.UnaryOp(ast.USub(), operand):
            number = _number_of(_evaluate_constant(operand, constants))
            if number is not None:
                return ast.copy_location(_number_literal(-number), node)
        case ast.BinOp(left, sign, right) if type(sign) in _FOLDED:
            a, b = (_number_of(_evaluate_constant(side, constants)) for side in (left, right))
            if a is not None and b is not None and (b or isinstance(sign, (ast.Add, ast.Sub, ast.Mult))):
                result = _FOLDED[type(sign)](a, b)
                if _is_represented(result):
                    return ast.copy_location(_number_literal(result), node)
    raise_parse_error(
        node,
        f"constant: got {format_excerpt(node)}, expected a number, a string, or arithmetic on constants",
        "write the value, such as N = 128",
    )


def _number_of(literal: ast.expr) -> int | float | None:
    """Return the number that a literal stands for; None for a string, a boolean or a tuple."""
    if not is_number_literal(literal):
        return None
    number = ast.literal_eval(literal)
    assert isinstance(number, (int, float))
    return number


def _is_represented(number: int | float) -> bool:
    """Test whether int64 or float64 represents a number. It bounds the digits of what arithmetic on constants gives."""
    return -(2**63) <= number < 2**63 if isinstance(number, int) else math.isfinite(number)


def _number_literal(value: int | float) -> ast.expr:
    """Return the literal of a number. A negative number is a minus sign before a literal, as in parsed text."""
    return ast.UnaryOp(ast.USub(), ast.Constant(-value)) if value < 0 else ast.Constant(value)


def _insert_constants(func: ast.FunctionDef, constants: Mapping[str, ast.expr]) -> ast.FunctionDef:
    """Return a function with literals in place of the names of constants. Names that it declares itself stay."""
    declared = {arg.arg for arg in func.args.args} | {
        node.id for node in ast.walk(func) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    literals = {name: literal for name, literal in constants.items() if name not in declared}

    class Inserter(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.copy_location(copy.copy(literals[node.id]), node) if node.id in literals else node

    return Inserter().visit(func) if literals else func


class _FunctionReader:
    """Reader of a function definition, which must be decorated with ``@T.prim_func``.

    ``params``: buffers by the names of the parameters; None for a ``T.handle`` until ``T.match_buffer`` declares its buffer.
    ``scope``: what is declared so far."""

    def __init__(self, node: ast.FunctionDef) -> None:
        self.node = node
        self.params: dict[str, ir.Buffer | None] = {}
        self.scalars: list[ir.Var] = []
        self.scope = NameScope({})
        self.annotations: Annotations = ()

    def read(self) -> ir.PrimFunc:
        node = self.node
        decorators = [ast.unparse(d) for d in node.decorator_list]
        if decorators[:1] == ["R.function"]:
            raise_parse_error(
                node,
                f"{node.name} is a function of Relax; TIR text has loops only",
                "build a graph by microc.GraphBuilder; microc.plugin.OpDef.from_prim_func makes operators of prim_funcs",
            )
        if not _is_decorated(node, _FUNCTION_DECORATORS):
            raise_parse_error(node, "the function is not marked @T.prim_func")
        self.read_parameters()
        body = list(node.body)
        while body and self.read_declaration(body[0]):
            body = body[1:]
        for name, buffer in self.params.items():
            if buffer is None:
                raise_parse_error(
                    node,
                    f"parameter {name}: got a T.handle without buffer",
                    f"write a buffer first: A = T.match_buffer({name}, shape, dtype)",
                )
        params = tuple(buffer for buffer in self.params.values() if buffer is not None)
        suite = self.scope.read_suite(body)
        # Lectures declare sizes in the body that nothing uses; no shape of an argument could give them.
        used = {arg.arg for arg in node.args.args}.union(_names_read(node)) if self.scalars else ()
        scalars = tuple(size for size in self.scalars if size.name in set(map(unescape_keyword, used)))
        return ir.PrimFunc(unescape_keyword(node.name), params, suite, self.annotations, scalars)

    def read_parameters(self) -> None:
        a = self.node.args
        if a.posonlyargs or a.kwonlyargs or a.vararg or a.kwarg or a.defaults:
            raise_parse_error(
                self.node, "wrong kind of parameter; expected only parameters of the form name: T.Buffer(shape, dtype)"
            )
        seen: set[str] = set()
        for arg in a.args:  # all sizes first: shapes of buffers before them may use them
            if arg.arg in seen:
                raise_parse_error(arg, f"two parameters have the same name; got {arg.arg}")
            seen.add(arg.arg)
            if isinstance(arg.annotation, ast.Attribute) and not _is_handle(arg.annotation):
                self.declare_size(unescape_keyword(arg.arg), arg.annotation.attr, arg)
        for k, arg in enumerate(a.args):
            name, annotation = unescape_keyword(arg.arg), arg.annotation
            if annotation is None:
                raise_parse_error(arg, f"parameter {arg.arg} has no T.Buffer(shape, dtype)")
            if isinstance(annotation, ast.Attribute) and not _is_handle(annotation):
                continue
            if k > len(self.params):
                raise_parse_error(arg, f"parameter {arg.arg}: got a buffer after a scalar, expected all buffers first")
            if _is_handle(annotation):
                self.params[name] = None
            else:
                self.params[name] = buffer = self.scope.read_buffer(name, _read_buffer_call(arg, annotation), "global")
                self.scope = self.scope.with_declared(buffer)

    def declare_size(self, name: str, dtype: str, node: ast.AST) -> None:
        """Declare a symbolic size, an int32 scalar. Sizes that the text counts in int64 are int32 as well."""
        is_wide = dtype == "int64"
        var = ir.Var(name, "int32" if is_wide else check_dtype(dtype, node))
        self.scalars.append(var)
        scope = self.scope.with_declared(var, wide=[var] if is_wide else [])
        self.scope = NameScope(scope.names, scope.extents, frozenset(self.scalars), scope.wide, scope.while_count)

    def read_declaration(self, node: ast.stmt) -> bool:
        """Read a statement of the function's prologue: attributes, sizes, buffers of handles. False if it is none."""
        if is_call(node, "func_attr"):
            self.annotations = read_call_annotations(node)
            return True
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            return (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            )
        target, value = node.targets[0], node.value
        if is_call(ast.Expr(value), "match_buffer"):
            self.match_buffer(read_target_name(target), CallParts(value))
            return True
        pairs = (
            list(zip(target.elts, value.elts, strict=False))
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            else [(target, value)]
        )
        sizes = [_read_size_dtype(source) for _, source in pairs]
        if "" in sizes:
            return False
        for (name, source), dtype in zip(pairs, sizes, strict=True):
            self.declare_size(read_target_name(name), dtype, source)
        return True

    def match_buffer(self, name: str, parts: CallParts) -> None:
        """Declare the buffer of a handle: ``A = T.match_buffer(a, shape, dtype)``."""
        handle = parts.args[0].id if parts.args and isinstance(parts.args[0], ast.Name) else ""
        if self.params.get(unescape_keyword(handle), parts) is not None:
            raise_parse_error(
                parts.node, f"T.match_buffer: got {format_excerpt(parts.node)}, expected a parameter of type T.handle"
            )
        parts.args = parts.args[1:]
        parts.remove_dense_layout()
        self.params[unescape_keyword(handle)] = buffer = self.scope.read_buffer(name, parts, "global")
        self.scope = self.scope.with_declared(buffer)


def _names_read(node: ast.AST) -> Iterator[str]:
    """Yield the names that a syntax tree reads, except those of loop variables inside their loops."""
    if isinstance(node, ast.For):
        own = {x.id for x in ast.walk(node.target) if isinstance(x, ast.Name)}
        yield from _names_read(node.iter)
        yield from (name for stmt in node.body for name in _names_read(stmt) if name not in own)
    elif isinstance(node, ast.Name):
        yield from [node.id] if isinstance(node.ctx, ast.Load) else []
    else:
        for child in ast.iter_child_nodes(node):
            yield from _names_read(child)


def _is_handle(annotation: ast.expr) -> bool:
    """Test whether a parameter is a ``T.handle``, whose buffer ``T.match_buffer`` declares."""
    return ast.unparse(annotation) == "T.handle"


def _read_size_dtype(node: ast.expr) -> str:
    """Return the dtype of a symbolic size, ``T.int32()`` or ``T.var("int32")``; an empty string for any other value."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("T.int32", "T.int64", "T.var"):
        return ""
    parts = CallParts(node)
    if parts.name == "var":
        parts.check_arguments(1, 1)
        return read_dtype_name(parts.args[0])
    is_size = parts.name in ("int32", "int64") and not parts.args
    return parts.name if is_size else ""


def _read_buffer_call(arg: ast.arg, annotation: ast.expr) -> CallParts:
    """Return the call that declares a parameter: ``T.Buffer(shape, dtype)``, or ``T.Buffer[shape, dtype]`` of older TVM."""
    if isinstance(annotation, ast.Subscript):
        inside = annotation.slice
        pair = inside.elts if isinstance(inside, ast.Tuple) and _ends_in_dtype(inside) else [inside]
        annotation = ast.copy_location(ast.Call(annotation.value, list(pair), []), annotation)
    parts = CallParts(annotation)
    if parts.name != "Buffer":
        raise_parse_error(arg, f"parameter {arg.arg}: got T.{parts.name}, expected T.Buffer(shape, dtype)")
    return parts


def _ends_in_dtype(node: ast.Tuple) -> bool:
    """Test whether a tuple ends in a string, as ``(4, 4), "float32"`` does and the shape ``4, 4`` does not."""
    return bool(node.elts) and isinstance(node.elts[-1], ast.Constant) and isinstance(node.elts[-1].value, str)
