"""Expressions as counts of machine operations: what a C compiler selects for them on a core with given features.

The counts are those of good code for Thumb-2, from the instruction set: shifts ride on additions, a product is accumulated in one
instruction, a load widens, ``max(x, 0)`` is one instruction. Nothing here is fitted to a network.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.isa import SCALAR, bodies_of, body_of
from microc.isa.instruction_set import SILENT
from microc.target import Target
from microc.tir import ir
from microc.tir.rewrite import children, walk_expr, walk_stmt

Operations = Counter[str]
"""How often an operation of each kind is executed; fractions are probabilities."""

_NOTHING: Operations = Counter()
_SHIFTABLE = frozenset({"add", "sub", "bitand", "bitor", "bitxor"})
_COMPARE = ir.COMPARISONS
_HALF = 0.5
_SMALL = 255
"""Numbers that instructions hold themselves."""
_FPU_FUNCTIONS = frozenset({"fma", "fabs"})


@frozen
class Selector:
    """Selects operations for a target. ``calls``: those of intrinsics that were asked for, by name and dtype; ``known``: those
    of values, which are counted again as parts of others. ``widened``: names of 64 bits that were made of a word."""

    target: Target
    calls: dict[tuple[str, str], Operations] = field(default_factory=dict, compare=False, repr=False)
    known: dict[int, tuple[ir.Expr, Operations]] = field(default_factory=dict, compare=False, repr=False)
    widened: set[ir.Expr] = field(default_factory=set, compare=False, repr=False)

    def count(self, expr: ir.Expr) -> Operations:
        """Operations of a value, without those of the addresses it loads from; nobody changes them."""
        if isinstance(expr, (ir.Const, ir.Var, ir.AddressOf)):
            return _NOTHING
        found = self.known.get(id(expr))
        if found is None:
            found = self.known[id(expr)] = (expr, self._count(expr))
        return found[1]

    def once(self, expr: ir.Expr) -> Operations:
        """Operations of a value whose equal parts are computed once."""
        counts: Operations = Counter()
        parts, seen = [expr], {expr}
        for part in parts:
            counts.update(self.count(part))
            if not isinstance(part, (ir.Load, ir.AddressOf)):
                for operand in children(part):
                    counts.subtract(self.count(operand))
                    if operand not in seen:
                        seen.add(operand)
                        parts.append(operand)
        return +counts

    def keeps(self, whole: ir.Expr, part: ir.Expr) -> bool:
        """Whether an operand is a number in a register: intrinsics and products hold none but small ones themselves."""
        number = ir.int_value(part)
        if number is None or abs(number) <= _SMALL:
            return False
        product = isinstance(whole, ir.Bin) and whole.op == "mul" and not _power_of_two(part)
        return product or (isinstance(whole, ir.Call) and whole.name in SCALAR)

    def _count(self, expr: ir.Expr) -> Operations:
        match expr:
            case ir.Load(buffer):
                return _NOTHING if buffer.scope == "register" else self._load(buffer)
            case ir.Cast(dtype, a):
                return self._cast(dtype, a)
            case ir.Un(_, a):
                return self.count(a) + self._kind(expr.dtype, "add")
            case ir.Select(condition, a, b):
                return self._select(condition, a, b)
            case ir.Call(name, args):
                return sum((self.count(a) for a in args), self.call(name, expr.dtype) + self._turns(name, args))
            case ir.Bin("and" | "or", a, b):
                return self.branch(expr)
            case ir.Bin():
                return self._binary(expr)
            case _:
                return Counter()

    def branch(self, condition: ir.Expr) -> Operations:
        """Operations of a test and its branches."""
        match condition:
            case ir.Bin("and" | "or", a, b):
                return self.branch(a) + self.branch(b)
            case ir.Un("not", a):
                return self.branch(a)
            case ir.Bin(op, a, b) if op in _COMPARE:
                test = self.count(a) + self.count(b)
                fused = (
                    self.target.core.costs.has("compared")
                    and dtypes.is_integer(a.dtype)
                    and dtypes.nbytes(a.dtype) <= 4
                )
                return test + Counter({"branch": 1}) + (Counter() if fused else self._kind(a.dtype, "compare"))
            case _:
                return self.count(condition) + Counter({"alu": 1, "branch": 1})

    def store(self, buffer: ir.Buffer, value: ir.Expr) -> Operations:
        """A store and the value's operations; what the store cuts off needs no operation."""
        if isinstance(value, ir.Cast) and dtypes.is_integer(value.dtype) and dtypes.is_integer(value.a.dtype):
            value = value.a
        counts = self.count(value)
        if buffer.scope == "register":
            return counts
        wide = Counter({"store": 2 if dtypes.nbytes(buffer.dtype) > 4 else 1})
        return counts + (Counter({"float_store": 1}) if self._fpu(buffer.dtype) else wide)

    def call(self, name: str, dtype: str) -> Operations:
        """An intrinsic or a function of mathematics, without its arguments."""
        if (name, dtype) not in self.calls:
            self.calls[name, dtype] = self._call(name, dtype)
        return self.calls[name, dtype]

    def _call(self, name: str, dtype: str) -> Operations:
        if name == ir.REINTERPRET:
            return Counter({"alu": 1})
        if name not in SCALAR:
            return self._function(name, dtype)
        body = body_of(name, self.target.cpu)
        if body is not None:
            return +Counter(body.counts())
        lane = self._meaning(SCALAR[name].meaning)
        return Counter({kind: n * max(SCALAR[name].lanes, 1) for kind, n in lane.items()})

    def _turns(self, name: str, args: tuple[ir.Expr, ...]) -> Operations:
        """The loop inside an intrinsic."""
        turn, runs = self._loop(name, args)
        return Counter({kind: runs * n for kind, n in turn})

    def again(self, expr: ir.Expr) -> float:
        """Instructions of an intrinsic that its loop runs once more, and that are printed once."""
        if not isinstance(expr, ir.Call):
            return 0
        turn, runs = self._loop(expr.name, expr.args)
        return (runs - 1) * sum(n for kind, n in turn if kind not in SILENT)

    def _loop(self, name: str, args: tuple[ir.Expr, ...]) -> tuple[tuple[tuple[str, int], ...], int]:
        """One turn of the loop inside an intrinsic, and how many there are."""
        body = body_of(name, self.target.cpu) if name in SCALAR else None
        if body is None or body.turns is None:
            return (), 1
        names = [param.name for param in SCALAR[name].params]
        elements = ir.int_value(args[names.index(body.turns.parameter)]) or 1
        return body.turns.operations, -(-elements // body.turns.elements)

    def _function(self, name: str, dtype: str) -> Operations:
        """A function of mathematics: an instruction of the FPU, or the library's."""
        if name in _FPU_FUNCTIONS and self._fpu(dtype):
            return Counter({"float": 1})
        own = f"call_{name}"
        return Counter({own if own in self.target.core.costs.lengths else "call_math": 1})

    def _meaning(self, meaning: ir.Expr | ir.Stmt) -> Operations:
        """An intrinsic that the core lacks, as portable C."""
        if isinstance(meaning, ir.Expr):
            products = Counter(x for x in walk_expr(meaning) if isinstance(x, ir.Bin) and x.op == "mul")
            twice = sum((self.count(x) for x, n in products.items() for _ in range(n - 1)), Counter())
            return self.count(meaning) - twice  # a compiler multiplies equal factors once
        stores = (s for s in walk_stmt(meaning) if isinstance(s, ir.Store))
        return sum((self.store(s.buffer, s.value) for s in stores), Counter())

    def _load(self, buffer: ir.Buffer) -> Operations:
        if self._fpu(buffer.dtype):
            return Counter({"float_load": 1})
        return Counter({"load": 2 if dtypes.nbytes(buffer.dtype) > 4 else 1})

    def _fpu(self, dtype: str) -> bool:
        return dtype == "float32" and self.target.has("fpu")

    def _low(self, expr: ir.Expr) -> Operations:
        """The low word of 64 bits."""
        match expr:
            case ir.Bin("shr", a, ir.Const(int() as by)) if by >= 32:
                return self.count(a) + Counter({"alu": int(by > 32)})
            case ir.Bin("shr", a, ir.Const(int())):
                return self.count(a) + Counter({"alu": 2 if self.target.core.costs.has("shifted") else 3})
            case ir.Bin("bitand", ir.Bin("shr", a, ir.Const(int() as by)), ir.Const(int() as mask)) if (
                0 < mask < 1 << (32 - by)
            ):
                return self.count(a) + Counter({"alu": 1 if mask + 1 == 1 << (32 - by) else 2})
            case ir.Bin("add" | "sub" | "bitand" | "bitor" | "bitxor", a, b):
                return self._low(a) + self._low(b) + Counter({"alu": 1})
            case _:
                return self.count(expr)

    def _cast(self, dtype: str, a: ir.Expr) -> Operations:
        if dtypes.is_integer(dtype) and a.dtype in ("int64", "uint64") and dtypes.nbytes(dtype) <= 4:
            return self._low(a) + Counter({"alu": int(dtypes.nbytes(dtype) < 4)})
        counts = self.count(a)
        if dtypes.is_float(dtype) != dtypes.is_float(a.dtype):
            return counts + Counter(
                {"float" if self.target.has("fpu") else "call_float_convert": 2 - (not self.target.has("fpu"))}
            )
        if a.dtype in dtypes.HALF:
            return counts + self._widening(a.dtype)
        if dtypes.is_float(dtype):
            return counts + Counter({"call_double" if dtype == "float64" or a.dtype == "float64" else "float": 1})
        grows = dtypes.nbytes(dtype) - dtypes.nbytes(a.dtype)
        if dtypes.nbytes(dtype) == 8 and grows:
            return counts + Counter({"alu": 1})
        if grows >= 0 or dtypes.nbytes(dtype) == 4:
            return counts
        return counts + Counter({"alu": 1})

    def _widening(self, half: str) -> Operations:
        """What makes a float of a half in an integer register: its body, else the shifts and tests of ``codegen/c/libm.py``."""
        body = next((body for _, body in bodies_of(f"{half}_to_float", self.target.cpu)), None)
        moved = Counter({"float": int(self.target.has("fpu"))})
        return +Counter(body.counts()) if body else moved + Counter({"alu": 1 if half == "bfloat16" else 10})

    def _select(self, condition: ir.Expr, a: ir.Expr, b: ir.Expr) -> Operations:
        """Two cheap values are selected by predication, where the core has it; a load in one of them takes a branch, half of the
        time."""
        if dtypes.is_float(a.dtype) and not self._fpu(a.dtype) and isinstance(a, ir.Const) != isinstance(b, ir.Const):
            return self._guarded(condition, b if isinstance(a, ir.Const) else a)
        left, right = self.count(a), self.count(b)
        if self._fpu(a.dtype):
            return self.count_condition(condition) + left + right + Counter({"alu": 1, "float": 1})
        if left["load"] or right["load"] or not self.target.core.costs.has("predicated"):
            sides = {k: _HALF * v for k, v in (left + right).items()}
            return self.branch(condition) + Counter(sides) + Counter({"taken": _HALF, "alu": _HALF})
        return self.count_condition(condition) + left + right + Counter({"alu": 2})

    def _guarded(self, condition: ir.Expr, value: ir.Expr) -> Operations:
        """A value, but for a range where it is a number (a clamp, an underflow): functions of the library are called for most,
        once for equal parts."""
        whole = self.once(value)
        calls = {k: v if k.startswith("call_") else _HALF * v for k, v in whole.items()}
        return self.branch(condition) + Counter(calls) + Counter({"taken": _HALF, "alu": _HALF})

    def count_condition(self, condition: ir.Expr) -> Operations:
        """A test that predicates, without branches."""
        counts = self.branch(condition)
        counts["branch"] -= 1
        return +counts

    def _binary(self, expr: ir.Bin) -> Operations:
        op, a, b = expr.op, expr.a, expr.b
        if op in _COMPARE:
            return self.branch(expr) + Counter({"alu": 1})
        if dtypes.is_float(a.dtype):
            return self.count(a) + self.count(b) + self._float(op, a.dtype)
        if dtypes.nbytes(a.dtype) == 8:
            return self._long(op, a, b)
        if op in ("min", "max"):
            return self.count(a) + self.count(b) + self._extreme(expr)
        if op in ("floordiv", "floormod", "truncdiv", "truncmod"):
            return self.count(a) + self.count(b) + self._division(op, b)
        if op == "mul":
            counts = self.count(a) + self.count(b) + Counter({"alu" if _power_of_two(b) else "multiply": 1})
            kept = not self.target.has("mul64") and _shared(a) and _shared(b)
            return counts + Counter({"alu": int(kept)})
        if op in _SHIFTABLE:
            return self._with_operand(op, a, b)
        return self.count(a) + self.count(b) + Counter({"alu": 1})

    def _extreme(self, expr: ir.Bin) -> Operations:
        """A minimum or maximum of two integers; ``max(x, 0)`` clears what the sign says."""
        relu = expr.op == "max" and ir.int_value(expr.b) == 0
        if self.target.has("minmax") or (relu and self.target.core.costs.has("shifted")):
            return Counter({"alu": 1})
        if self.target.core.costs.has("predicated"):
            return Counter({"alu": 3})
        test = self.branch(ir.Bin("lt", expr.a, expr.b)) - self.count(expr.a) - self.count(expr.b)
        return test + Counter({"alu": _HALF, "taken": _HALF})

    def _with_operand(self, op: str, a: ir.Expr, b: ir.Expr) -> Operations:
        """A sum takes a shifted operand or a product for nothing where the core has such sums."""
        counts = self.count(a) + self.count(b) + Counter({"alu": 1})
        core = self.target.core.costs
        for side in (b, a):
            match _reinterpreted(side):
                case ir.Bin("mul", _, factor) if not _power_of_two(factor):
                    joined = core.has("accumulated") and op in ("add", "sub")
                case ir.Bin("mul") | ir.Bin("shl" | "shr", _, ir.Const()):
                    joined = core.has("shifted")
                case ir.Select(_, _, ir.Const(0)):  # the sum itself is predicated
                    joined = core.has("predicated")
                case _:
                    joined = False
            if joined:
                return counts - Counter({"alu": 1})
        return counts

    def _division(self, op: str, b: ir.Expr) -> Operations:
        modulo = op.endswith("mod")
        if _power_of_two(b):
            return Counter({"alu": 1})
        if isinstance(b, ir.Const) and self.target.has("mul64"):
            return Counter({"multiply_long": 1, "alu": 1, "multiply": int(modulo)})
        if self.target.has("mul64"):
            return Counter({"divide": 1, "multiply": int(modulo)})
        return Counter({"call_divide": 1})

    def _float(self, op: str, dtype: str) -> Operations:
        if dtype == "float64":
            return Counter({"call_double": 1})
        if self.target.has("fpu"):
            compare = {"float": 2, "alu": 1, "float_move": 1}
            one = {"mul": "float_multiply", "div": "float_divide"}.get(op, "float")
            return Counter(compare) if op in ("min", "max") else Counter({one: 1})
        name = {"mul": "call_float_multiply", "div": "call_float_divide"}.get(op, "call_float_add")
        return Counter({"call_float_compare" if op in ("min", "max") else name: 1})

    def _long(self, op: str, a: ir.Expr, b: ir.Expr) -> Operations:
        """64-bit integers on a 32-bit core."""
        if op == "mul":
            narrow = [self._narrow(x) for x in (a, b) if self._narrow(x) is not None]
            parts = sum((self.count(x) for x in narrow if x is not None), Counter())
            if not self.target.has("mul64"):
                return self.count(a) + self.count(b) + Counter({"call_multiply_long": 1})
            if len(narrow) == 2 or (len(narrow) == 1 and isinstance(b, ir.Const)):
                return parts + Counter({"multiply_long": 1})
            return self.count(a) + self.count(b) + Counter({"multiply_long": 1, "multiply": 2})
        if op in ("shl", "shr"):
            if isinstance(b, ir.Const):
                return self.count(a) + Counter({"alu": 1 if (b.value or 0) >= 32 else 3})
            return (
                self.count(a)
                + self.count(b)
                + Counter({"alu": 7} if self.target.has("mul64") else {"call_shift_long": 1})
            )
        if op in ("truncdiv", "truncmod", "floordiv", "floormod"):
            return self.count(a) + self.count(b) + Counter({"call_divide_long": 1})
        return self.count(a) + self.count(b) + Counter({"alu": 5 if op in ("min", "max") else 2})

    def named(self, name: ir.Var, value: ir.Expr) -> ir.Expr:
        """What a name is computed from: a word, where it is one of 64 bits that products take apart again."""
        if not (isinstance(value, ir.Cast) and dtypes.nbytes(name.dtype) == 8 and self.target.has("mul64")):
            return value
        word = self._narrow(value)
        if word is None:
            return value
        self.widened.add(name)
        return word

    def _narrow(self, wide: ir.Expr) -> ir.Expr | None:
        """What 64 bits were made of, where that is a word: a product of such is one instruction."""
        if isinstance(wide, ir.Cast):
            return wide.a if dtypes.nbytes(wide.a.dtype) <= 4 else None
        return wide if wide in self.widened else None

    def _kind(self, dtype: str, what: str) -> Operations:
        """One addition or comparison of a dtype."""
        if dtypes.is_float(dtype):
            if not self.target.has("fpu") or dtype == "float64":
                return Counter({"call_float_compare" if what == "compare" else "call_float_add": 1})
            return Counter({"float": 1, "alu": int(what == "compare")})
        return Counter({"alu": 2 if dtypes.nbytes(dtype) > 4 else 1})


def _reinterpreted(expr: ir.Expr) -> ir.Expr:
    """An integer under casts that change what its bits mean, and none of them."""
    while isinstance(expr, ir.Cast) and all(map(dtypes.is_integer, (expr.dtype, expr.a.dtype))):
        if dtypes.nbytes(expr.dtype) != dtypes.nbytes(expr.a.dtype):
            break
        expr = expr.a
    return expr


def _shared(expr: ir.Expr) -> bool:
    """A value with a name, which an instruction of two operands must not overwrite."""
    return isinstance(expr, ir.Var) or (isinstance(expr, ir.Cast) and _shared(expr.a))


def _power_of_two(expr: ir.Expr) -> bool:
    value = ir.int_value(expr)
    return value is not None and value > 0 and value & (value - 1) == 0
