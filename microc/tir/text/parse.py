"""Text to TIR. The text is parsed by Python's ``ast`` and translated node by node; nothing of it is ever executed."""

from __future__ import annotations

import ast

from microc.errors import ModelError
from microc.tir import ir
from microc.tir.text.names import read
from microc.tir.text.parse_expr import CallParts, fail, known_dtype
from microc.tir.text.parse_stmt import Annotations, Scope, is_call, sole_annotations


def from_text(text: str) -> ir.PrimFunc:
    """The function that a text of :func:`microc.tir.text.to_text` spells; :class:`ModelError` names the faulty line."""
    functions = module_from_text(text)
    if len(functions) != 1:
        raise ModelError(
            "TIR text must hold exactly one function",
            where="line 1",
            hint="@T.prim_func def name(...): ...; module_from_text reads several",
        )
    return functions[0]


def module_from_text(text: str) -> tuple[ir.PrimFunc, ...]:
    """The functions of a text one after the other, or in a class that is marked ``@I.ir_module``."""
    try:
        module = ast.parse(text)
    except SyntaxError as fault:
        raise ModelError(f"TIR text is malformed: {fault.msg}", where=f"line {fault.lineno or 1}") from fault
    except (ValueError, MemoryError, RecursionError) as fault:
        raise ModelError(f"TIR text is malformed: {fault}", where="line 1") from fault
    body = module.body
    if len(body) == 1 and isinstance(body[0], ast.ClassDef):
        if [ast.unparse(d) for d in body[0].decorator_list] != ["I.ir_module"]:
            fail(body[0], "the class is not marked @I.ir_module")
        body = body[0].body
    try:
        functions = tuple(_function(node) for node in body if isinstance(node, ast.FunctionDef))
    except RecursionError as fault:
        raise ModelError("TIR text nests too deeply", where="line 1") from fault
    if len(functions) != len(body) or len({func.name for func in functions}) != len(functions):
        raise ModelError(
            "TIR text must hold functions of different names, and nothing else",
            where="line 1",
            hint="@T.prim_func def name(...): ...",
        )
    return functions


def _function(node: ast.FunctionDef) -> ir.PrimFunc:
    decorators = [ast.unparse(d) for d in node.decorator_list]
    if decorators != ["T.prim_func"]:
        fail(node, "the function is not marked @T.prim_func")
    a = node.args
    if a.posonlyargs or a.kwonlyargs or a.vararg or a.kwarg or a.defaults:
        fail(node, "parameters are written name: T.Buffer(shape, dtype)")
    scalars = tuple(
        ir.Var(read(arg.arg), known_dtype(arg.annotation.attr, arg))
        for arg in a.args
        if isinstance(arg.annotation, ast.Attribute)
    )
    scope = Scope({v.name: v for v in scalars}, sizes=frozenset(scalars))
    params: list[ir.Buffer] = []
    for k, arg in enumerate(a.args):
        if arg.annotation is None:
            fail(arg, f"parameter {arg.arg} has no T.Buffer(shape, dtype)")
        if isinstance(arg.annotation, ast.Attribute):
            continue
        if k > len(params):
            fail(arg, f"parameter {arg.arg}: buffers stand before scalars")
        parts = CallParts(arg.annotation)
        if parts.name != "Buffer":
            fail(arg, f"parameter {arg.arg} is no T.Buffer")
        params.append(scope.buffer(read(arg.arg), parts, "global"))
    body = node.body
    annotations: Annotations = ()
    if body and is_call(body[0], "func_attr"):
        annotations = sole_annotations(body[0])
        body = body[1:]
    return ir.PrimFunc(read(node.name), tuple(params), scope.having(*params).suite(body), annotations, scalars)
