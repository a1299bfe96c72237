"""Text to TIR. The text is parsed by Python's ``ast`` and translated node by node; nothing of it is ever executed."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NoReturn

from microc import dtypes
from microc.errors import InternalError, ModelError
from microc.tir import ir
from microc.tir.text_names import AXES, INFIX, LOOPS, NAMED_BINARY, read

_OPERATORS: Mapping[type[ast.AST], str] = MappingProxyType(
    {
        ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "floormod",
        ast.LShift: "shl", ast.RShift: "shr", ast.BitAnd: "bitand", ast.BitOr: "bitor", ast.BitXor: "bitxor",
        ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
        ast.And: "and", ast.Or: "or", ast.USub: "neg", ast.Not: "not", ast.Invert: "bitnot",
    }
)  # fmt: skip
_LOOP_KINDS: Mapping[str, str] = MappingProxyType({word: kind for kind, word in LOOPS.items()})
_AXIS_KINDS: Mapping[str, str] = MappingProxyType({word: kind for kind, word in AXES.items()})

Names = Mapping[str, ir.Var | ir.Buffer]
Annotations = tuple[tuple[str, int | str], ...]


def from_text(text: str) -> ir.PrimFunc:
    """The function that a text of :func:`microc.tir.text.to_text` spells; :class:`ModelError` names the faulty line."""
    try:
        module = ast.parse(text)
    except SyntaxError as fault:
        raise ModelError(f"TIR text is malformed: {fault.msg}", where=f"line {fault.lineno or 1}") from fault
    except (ValueError, MemoryError, RecursionError) as fault:
        raise ModelError(f"TIR text is malformed: {fault}", where="line 1") from fault
    if len(module.body) != 1 or not isinstance(module.body[0], ast.FunctionDef):
        raise ModelError(
            "TIR text must hold exactly one function", where="line 1", hint="@T.prim_func def name(...): ..."
        )
    try:
        return _function(module.body[0])
    except RecursionError as fault:
        raise ModelError("TIR text nests too deeply", where="line 1") from fault


def _fail(node: ast.AST, what: str, hint: str = "") -> NoReturn:
    raise ModelError(what, where=f"line {getattr(node, 'lineno', 1)}", hint=hint)


# ---------------------------------------------------------------- pieces


class _CallParts:
    """A call ``T.a.b(positional, keyword=...)`` taken apart; ``name`` is ``a.b``."""

    def __init__(self, node: ast.AST) -> None:
        if not isinstance(node, ast.Call):
            _fail(node, "a call of T is expected")
        self.node = node
        self.name = _dotted(node.func)
        self.args = node.args
        self.options = {k.arg: k.value for k in node.keywords if k.arg is not None}
        if len(self.options) != len(node.keywords) or any(isinstance(a, ast.Starred) for a in node.args):
            _fail(node, f"T.{self.name}: unpacking is not possible here")

    def take(self, least: int, most: int, *options: str) -> None:
        """Check the number of arguments and the names of the options."""
        if not least <= len(self.args) <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            _fail(self.node, f"T.{self.name} takes {wanted} arguments, {len(self.args)} given")
        for name in self.options:
            if name not in options:
                _fail(self.node, f"T.{self.name} has no option {name}", "known: " + ", ".join(options))


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id != "T" or not parts:
        _fail(node, "only functions of T can be called")
    return ".".join(reversed(parts))


def _integer(node: ast.expr) -> int:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_integer(node.operand)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    _fail(node, "an integer literal is expected")


def _string(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    _fail(node, "a string literal is expected")


def _boolean(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return node.value
    _fail(node, "True or False is expected")


def _dtype(node: ast.expr) -> str:
    return _known_dtype(_string(node), node)


def _known_dtype(name: str, node: ast.AST) -> str:
    if not dtypes.is_valid(name):
        _fail(node, f"unknown dtype {name!r}")
    return name


def _annotations(node: ast.expr) -> Annotations:
    if not isinstance(node, ast.Dict):
        _fail(node, "annotations are written {'key': value}")
    pairs: list[tuple[str, int | str]] = []
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            _fail(node, "annotations are written {'key': value}")
        is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
        pairs.append((_string(key), _string(value) if is_text else _integer(value)))
    return tuple(pairs)


def _target(node: ast.expr) -> str:
    if not isinstance(node, ast.Name):
        _fail(node, "a name is expected")
    return read(node.id)


def _buffer(name: str, parts: _CallParts, scope: str | None) -> ir.Buffer:
    parts.take(2, 2, "scope", "align")
    shape = parts.args[0]
    if not isinstance(shape, ast.Tuple):
        _fail(shape, "a shape is a tuple of integers")
    found = _string(parts.options["scope"]) if "scope" in parts.options else scope
    if found not in ir.SCOPES:
        _fail(parts.node, f"buffer {name}: scope {found!r}", "known: " + ", ".join(ir.SCOPES))
    align = _integer(parts.options["align"]) if "align" in parts.options else 0
    return ir.Buffer(name, tuple(_integer(n) for n in shape.elts), _dtype(parts.args[1]), found, align)


# ---------------------------------------------------------------- statements


def _function(node: ast.FunctionDef) -> ir.PrimFunc:
    decorators = [ast.unparse(d) for d in node.decorator_list]
    if decorators != ["T.prim_func"]:
        _fail(node, "the function is not marked @T.prim_func")
    a = node.args
    if a.posonlyargs or a.kwonlyargs or a.vararg or a.kwarg or a.defaults:
        _fail(node, "parameters are written name: T.Buffer(shape, dtype)")
    params: list[ir.Buffer] = []
    for arg in a.args:
        if arg.annotation is None:
            _fail(arg, f"parameter {arg.arg} has no T.Buffer(shape, dtype)")
        parts = _CallParts(arg.annotation)
        if parts.name != "Buffer":
            _fail(arg, f"parameter {arg.arg} is no T.Buffer")
        params.append(_buffer(read(arg.arg), parts, "global"))
    body = node.body
    annotations: Annotations = ()
    if body and _is_call(body[0], "func_attr"):
        annotations = _sole_annotations(body[0])
        body = body[1:]
    names: Names = {p.name: p for p in params}
    return ir.PrimFunc(read(node.name), tuple(params), _Scope(names).suite(body), annotations)


def _is_call(node: ast.stmt, name: str) -> bool:
    """Whether a statement is the expression ``T.name(...)``."""
    return (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == f"T.{name}"
    )


def _sole_annotations(node: ast.stmt) -> Annotations:
    assert isinstance(node, ast.Expr)
    parts = _CallParts(node.value)
    parts.take(1, 1)
    return _annotations(parts.args[0])


class _Scope:
    """What names mean at one place; statements that declare names continue in a new scope."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def having(self, *added: ir.Var | ir.Buffer) -> _Scope:
        return _Scope({**self.names, **{x.name: x for x in added}})

    def suite(self, nodes: list[ast.stmt]) -> ir.Stmt:
        body = self.statements(nodes)
        return body[0] if len(body) == 1 else ir.Seq(body)

    def statements(self, nodes: list[ast.stmt]) -> tuple[ir.Stmt, ...]:
        found: list[ir.Stmt] = []
        for k, node in enumerate(nodes):
            rest = nodes[k + 1 :]
            match node:
                case ast.Pass():
                    continue
                case ast.AnnAssign(target, annotation, value) if value is not None:
                    name = annotation.attr if isinstance(annotation, ast.Attribute) else ast.unparse(annotation)
                    var = ir.Var(_target(target), _known_dtype(name, node))
                    bound = self.typed(value, var.dtype)
                    return (*found, ir.Let(var, bound, self.having(var).suite(rest)))
                case ast.Assign([ast.Name() as target], value):
                    parts = _CallParts(value)
                    if parts.name != "alloc_buffer":
                        _fail(node, f"{target.id} = T.{parts.name}(...) declares nothing here")
                    buffer = _buffer(_target(target), parts, "global")
                    return (*found, ir.Alloc(buffer, self.having(buffer).suite(rest)))
                case _:
                    found.append(self.statement(node))
        return tuple(found)

    def statement(self, node: ast.stmt) -> ir.Stmt:
        match node:
            case ast.Assign([ast.Subscript() as target], value):
                buffer, indices = self.element(target)
                return ir.Store(buffer, indices, self.typed(value, buffer.dtype))
            case ast.For(target, source, body, []):
                return self.loop(target, _CallParts(source), body)
            case ast.If(test, body, orelse):
                otherwise = self.suite(orelse) if orelse else None
                return ir.If(self.typed(test, "bool"), self.suite(body), otherwise)
            case ast.With([ast.withitem(context, None)], body):
                return self.block(_CallParts(context), body)
            case ast.Expr(value):
                parts = _CallParts(value)
                if parts.name != "evaluate":
                    _fail(node, f"T.{parts.name} is no statement", "write T.evaluate(...)")
                parts.take(1, 1)
                return ir.Evaluate(self.expr(parts.args[0]))
            case _:
                _fail(node, f"{type(node).__name__} is no statement of TIR")

    def loop(self, target: ast.expr, parts: _CallParts, body: list[ast.stmt]) -> ir.Stmt:
        if parts.name == "grid":
            parts.take(1, 1000)
            targets = target.elts if isinstance(target, ast.Tuple) else [target]
            if len(targets) != len(parts.args):
                _fail(target, f"{len(targets)} loop variables for {len(parts.args)} extents")
            variables = [ir.Var(_target(t)) for t in targets]
            result = self.having(*variables).suite(body)
            for var, count in reversed(list(zip(variables, parts.args, strict=True))):
                result = ir.For(var, self.typed(count, "int32"), result)
            return result
        if parts.name not in _LOOP_KINDS:
            _fail(parts.node, f"unknown loop T.{parts.name}", "known: grid, " + ", ".join(_LOOP_KINDS))
        parts.take(1, 1, "dtype", "annotations")
        dtype = _dtype(parts.options["dtype"]) if "dtype" in parts.options else "int32"
        notes = _annotations(parts.options["annotations"]) if "annotations" in parts.options else ()
        var = ir.Var(_target(target), dtype)
        extent = self.typed(parts.args[0], dtype)
        return ir.For(var, extent, self.having(var).suite(body), _LOOP_KINDS[parts.name], notes)

    def block(self, parts: _CallParts, body: list[ast.stmt]) -> ir.Stmt:
        match parts.name:
            case "seq":
                parts.take(0, 0)
                return ir.Seq(self.statements(body))
            case "scope":
                parts.take(0, 0)
                return self.suite(body)
            case "block":
                parts.take(1, 1)
                return self.unit(_string(parts.args[0]), body)
            case _:
                _fail(parts.node, f"unknown with T.{parts.name}", "known: block, init, scope, seq")

    def unit(self, name: str, body: list[ast.stmt]) -> ir.Stmt:
        iters: list[ir.IterVar] = []
        init: ir.Stmt | None = None
        predicate: ir.Expr | None = None
        annotations: Annotations = ()
        rest = list(body)
        while rest and isinstance(rest[0], ast.Assign) and isinstance(rest[0].targets[0], ast.Name):
            parts = _CallParts(rest[0].value)
            if not parts.name.startswith("axis."):
                break
            iters.append(self.axis(_target(rest[0].targets[0]), parts))
            rest = rest[1:]
        inner = self.having(*(i.var for i in iters))
        if rest and _is_call(rest[0], "where"):
            assert isinstance(rest[0], ast.Expr)
            parts = _CallParts(rest[0].value)
            parts.take(1, 1)
            predicate = self.typed(parts.args[0], "bool")
            rest = rest[1:]
        if rest and _is_call(rest[0], "block_attr"):
            annotations = _sole_annotations(rest[0])
            rest = rest[1:]
        if rest and isinstance(rest[0], ast.With) and ast.unparse(rest[0].items[0].context_expr) == "T.init()":
            init = inner.suite(rest[0].body)
            rest = rest[1:]
        return ir.Block(name, tuple(iters), inner.suite(rest), init, predicate, annotations)

    def axis(self, name: str, parts: _CallParts) -> ir.IterVar:
        kind = parts.name.removeprefix("axis.")
        if kind not in _AXIS_KINDS:
            _fail(parts.node, f"unknown axis T.{parts.name}", "known: axis.spatial, axis.reduce")
        parts.take(2, 2, "dtype")
        dtype = _dtype(parts.options["dtype"]) if "dtype" in parts.options else "int32"
        binding = self.typed(parts.args[1], dtype)
        return ir.IterVar(ir.Var(name, dtype), _integer(parts.args[0]), _AXIS_KINDS[kind], binding)

    # ------------------------------------------------------------ expressions

    def typed(self, node: ast.expr, dtype: str) -> ir.Expr:
        result = self.expr(node)
        if result.dtype != dtype:
            _fail(node, f"{dtype} is expected, {ast.unparse(node)} is {result.dtype}")
        return result

    def expr(self, node: ast.expr) -> ir.Expr:
        match node:
            case ast.Constant(bool(value)):
                return ir.Const(int(value), "bool")
            case ast.Constant(int()) | ast.UnaryOp(ast.USub(), ast.Constant(int())):
                return self.literal(node, "int32")
            case ast.Name(name):
                var = self.names.get(read(name))
                if not isinstance(var, ir.Var):
                    _fail(node, f"{name} is not a variable here")
                return var
            case ast.UnaryOp(op, a) if type(op) in _OPERATORS:
                return ir.Un(_OPERATORS[type(op)], self.expr(a))
            case ast.BinOp(a, op, b) if type(op) in _OPERATORS:
                return self.binary(node, _OPERATORS[type(op)], a, b)
            case ast.Compare(a, [op], [b]) if type(op) in _OPERATORS:
                return self.binary(node, _OPERATORS[type(op)], a, b)
            case ast.BoolOp(op, values):
                result = self.typed(values[0], "bool")
                for part in values[1:]:
                    result = ir.Bin(_OPERATORS[type(op)], result, self.typed(part, "bool"))
                return result
            case ast.Subscript():
                return ir.Load(*self.element(node))
            case ast.Call():
                return self.call(_CallParts(node))
            case _:
                _fail(node, f"{ast.unparse(node)} is no expression of TIR")

    def binary(self, node: ast.expr, op: str, a: ast.expr, b: ast.expr) -> ir.Expr:
        left, right = self.expr(a), self.expr(b)
        if left.dtype != right.dtype:
            sign = INFIX[op][0] if op in INFIX else op
            _fail(node, f"{sign} of {left.dtype} and {right.dtype}", "cast one of them with T.Cast")
        return ir.Bin(op, left, right)

    def element(self, node: ast.expr) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            _fail(node, "buffer[indices] is expected")
        buffer = self.names.get(read(node.value.id))
        if not isinstance(buffer, ir.Buffer):
            _fail(node, f"{node.value.id} is not a buffer here")
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(indices) != len(buffer.shape):
            _fail(node, f"{buffer.name} has {len(buffer.shape)} axes, {len(indices)} indices given")
        return buffer, tuple(self.expr(i) for i in indices)

    def literal(self, node: ast.expr, dtype: str) -> ir.Const:
        if dtypes.is_float(dtype):
            return ir.Const(_float(node, dtype), dtype)
        try:
            return ir.const(_integer(node), dtype)
        except InternalError as fault:
            _fail(node, fault.what)

    def call(self, parts: _CallParts) -> ir.Expr:
        name, args = parts.name, parts.args
        if dtypes.is_valid(name):
            parts.take(1, 1)
            return self.literal(args[0], name)
        if name in NAMED_BINARY:
            parts.take(2, 2)
            return self.binary(parts.node, name, args[0], args[1])
        match name:
            case "neg":
                parts.take(1, 1)
                return ir.Un("neg", self.expr(args[0]))
            case "Cast":
                parts.take(2, 2)
                return ir.Cast(_dtype(args[0]), self.expr(args[1]))
            case "Select":
                parts.take(3, 3)
                first = self.expr(args[1])
                return ir.Select(self.typed(args[0], "bool"), first, self.typed(args[2], first.dtype))
            case "address_of":
                parts.take(1, 1, "extent", "writes")
                extent = _integer(parts.options["extent"]) if "extent" in parts.options else 1
                writes = _boolean(parts.options["writes"]) if "writes" in parts.options else False
                return ir.AddressOf(*self.element(args[0]), extent, writes)
            case "call":
                parts.take(1, 1000, "dtype")
                if "dtype" not in parts.options:
                    _fail(parts.node, "T.call needs dtype=")
                return ir.Call(_string(args[0]), tuple(self.expr(a) for a in args[1:]), _dtype(parts.options["dtype"]))
            case _:
                parts.take(1, 1000)
                values = tuple(self.expr(a) for a in args)
                return ir.Call(name, values, values[0].dtype)


def _float(node: ast.expr, dtype: str) -> float:
    """A float literal, rounded to the dtype; ``"inf"``, ``"-inf"``, ``"nan"`` stand in quotes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if node.value not in ("inf", "-inf", "nan"):
            _fail(node, f"{node.value!r} is no float")
        return math.nan if node.value == "nan" else float(node.value)
    sign, inner = 1.0, node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, inner = -1.0, node.operand
    if not isinstance(inner, ast.Constant) or not isinstance(inner.value, (int, float)) or dtype not in _LARGEST:
        _fail(node, "a float literal is expected")
    try:
        value = sign * float(inner.value)
    except OverflowError:
        _fail(node, f"the literal does not fit {dtype}")
    rounded = float(ir.const(value, dtype).value) if abs(value) <= _LARGEST[dtype] else math.inf
    if not math.isfinite(rounded):
        _fail(node, f"the literal does not fit {dtype}")
    return rounded


_LARGEST: Mapping[str, float] = MappingProxyType(
    {"float16": 65504.0, "float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308}
)
