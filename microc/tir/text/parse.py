# SPDX-License-Identifier: Apache-2.0
"""Parser of TIR text, which is in the style of TVMScript: functions and modules."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from microc.errors import ModelError
from microc.tir import ir
from microc.tir.statements import IRModule
from microc.tir.text.parse_expressions import (
    CallParts,
    ExprReader,
    check_dtype,
    format_excerpt,
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
_FUNCTION_DECORATORS = ("T.prim_func", "T.prim_func()", "T.prim_func(private=True)", "tvm.script.tir.prim_func")


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

    Imports of ``tvm`` and ``numpy`` are skipped.
    ``N = 128`` outside of the functions is a constant that shapes and expressions may use."""
    try:
        module = ast.parse(textwrap.dedent(text))
    except SyntaxError as fault:
        raise ModelError(f"TIR text is malformed: {fault.msg}", where=f"line {fault.lineno or 1}") from fault
    except (ValueError, MemoryError, RecursionError) as fault:
        raise ModelError(f"TIR text is malformed: {fault}", where="line 1") from fault
    constants: dict[str, ir.Const] = {}
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


def _read_definitions(nodes: Sequence[ast.stmt], constants: dict[str, ir.Const]) -> list[ir.PrimFunc]:
    """Read the functions of a module or of a class in it; add the constants that it defines to ``constants``."""
    functions: list[ir.PrimFunc] = []
    for node in nodes:
        match node:
            case ast.FunctionDef():
                functions.append(_FunctionReader(node, constants).read())
            case ast.ClassDef():
                if [ast.unparse(d) for d in node.decorator_list] not in [[name] for name in _MODULE_DECORATORS]:
                    raise_parse_error(node, "the class is not marked @I.ir_module")
                functions += _read_definitions(node.body, constants)
            case ast.Assign([ast.Name(name)], value):
                constants[name] = ExprReader(constants).read_literal(value, "int32")
            case ast.Import(names) if all(alias.name.split(".")[0] in _SKIPPED_IMPORTS for alias in names):
                continue
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in _SKIPPED_IMPORTS:
                continue
            case ast.Expr(ast.Constant(str())) | ast.Pass():
                continue
            case _:
                raise_parse_error(
                    node,
                    "TIR text contains something else than functions",
                    "write only functions that begin with @T.prim_func, and constants such as N = 128",
                )
    return functions


class _FunctionReader:
    """Reader of a function definition, which must be decorated with ``@T.prim_func``.

    ``params``: buffers by the names of the parameters; None for a ``T.handle`` until ``T.match_buffer`` declares its buffer.
    ``scope``: what is declared so far. ``constants``: integers that are declared outside of the function."""

    def __init__(self, node: ast.FunctionDef, constants: Mapping[str, ir.Const]) -> None:
        self.node = node
        self.params: dict[str, ir.Buffer | None] = {}
        self.scalars: list[ir.Var] = []
        self.scope = NameScope(dict(constants))
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
        if len(decorators) != 1 or decorators[0] not in _FUNCTION_DECORATORS:
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
        self.scope = NameScope(scope.names, scope.extents, frozenset(self.scalars), scope.wide)

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
