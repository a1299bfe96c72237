# SPDX-License-Identifier: Apache-2.0
"""Counts of the machine operations that a C compiler selects for an expression, on a core with given features.

The counts follow the instruction set of Thumb-2: an addition can shift an operand, one instruction multiplies and
accumulates, loads widen their value, and ``max(x, 0)`` is one instruction. No number is fitted to a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from microc.base import dtypes
from microc.isa import CORES, SCALAR, Costs, c_bodies_of_intrinsic, c_body_for_cost_model
from microc.isa.instruction_set import SILENT, Body, split_lane_form
from microc.target import Target
from microc.tir import ir
from microc.tir.lower.lane_code import LANE_CALLS
from microc.tir.rewrite import children, walk_expr, walk_stmt

Operations = Mapping[str, float]
"""Number of executed operations by type, all positive. Fractions are probabilities."""

_NOTHING: Operations = {}
_SHIFTABLE = frozenset({"add", "sub", "bitand", "bitor", "bitxor"})
_COMPARE = ir.COMPARISONS
_HALF = 0.5
"""Probability of a branch whose condition depends on data."""
_SMALL = 255
"""Largest constant that instructions can encode as an immediate."""


def _sum(*counts: Operations) -> Operations:
    """Add up counts of operations; zeros are dropped. The types are in the order in which they occur first."""
    # Plain dictionaries are added in a quarter of the time of Counter, whose operators create three objects.
    total: dict[str, float] = {}
    for part in counts:
        for kind, n in part.items():
            if n:
                total[kind] = total.get(kind, 0) + n
    return total


class Selector:
    """Instruction selector: counts the machine operations that a C compiler selects for expressions on a target.

    ``core``: costs of the target's core. ``bodies``: memo of the C bodies of intrinsics, by name.
    ``operations_by_intrinsic``: memo of the operations of intrinsics, by name and dtype. ``operations_by_expr_id``: memo
    of expressions and their operations, by the ``id`` of the expression. ``widened_vars``: 64-bit variables whose value
    was widened from 32 bits."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.core: Costs = target.core.costs  # kept, because Target.core is a lookup in a registry
        self.bodies: dict[str, Body | None] = {}
        self.operations_by_intrinsic: dict[tuple[str, str], Operations] = {}
        self.operations_by_expr_id: dict[int, tuple[ir.Expr, Operations]] = {}
        self.widened_vars: set[ir.Expr] = set()

    def count(self, expr: ir.Expr) -> Operations:
        """Count the operations that compute a value, without the address arithmetic of its loads. The result must
        not be modified."""
        if isinstance(expr, (ir.Const, ir.Var, ir.AddressOf)):
            return _NOTHING
        entry = self.operations_by_expr_id.get(id(expr))
        if entry is None:  # the expression is stored, too, so that its id is not reused
            entry = self.operations_by_expr_id[id(expr)] = (expr, self._count_by_type(expr))
        return entry[1]

    def count_shared(self, expr: ir.Expr) -> Operations:
        """Count the operations that compute a value if equal subexpressions are computed only once.

        The operands of a select between a computed value and a constant are not shared further."""
        counts: Counter[str] = Counter()
        parts, seen = [expr], {expr}
        for part in parts:
            counts.update(self.count(part))
            if not isinstance(part, (ir.Load, ir.AddressOf)) and not self._is_guarded_select(part):
                for operand in children(part):
                    counts.subtract(self.count(operand))
                    if operand not in seen:
                        seen.add(operand)
                        parts.append(operand)
        return +counts

    def has_own_operations(self, expr: ir.Expr) -> bool:
        """Test whether an expression needs operations besides those of its operands. A cast that changes no bits needs
        none."""
        return self.count(expr) != _sum(*map(self.count, children(expr)))

    def needs_constant_register(self, whole: ir.Expr, part: ir.Expr) -> bool:
        """Test whether the operand ``part`` of ``whole`` is a constant that needs a register, because intrinsics and
        products accept only small constants as immediates."""
        number = ir.int_value(part)
        if number is None or abs(number) <= _SMALL:
            return False
        product = isinstance(whole, ir.Bin) and whole.op == "mul" and not _is_power_of_two(part)
        return product or (isinstance(whole, ir.Call) and whole.name in SCALAR)

    def _count_by_type(self, expr: ir.Expr) -> Operations:
        """Count the operations of an expression with its operands, by the class of its outermost node."""
        match expr:
            case ir.Load(buffer):
                return _NOTHING if buffer.scope == "register" else self._count_load(buffer)
            case ir.Cast(dtype, a):
                return self._count_cast(dtype, a)
            case ir.Un(_, a):
                return _sum(self.count(a), self._count_add_or_compare(expr.dtype, "add"))
            case ir.Select():
                return self._count_select(expr)
            case ir.Call(name, args):
                loop = self._intrinsic_loop_operations(name, args)
                return _sum(self.count_call(name, expr.dtype), loop, *map(self.count, args))
            case ir.Bin("and" | "or"):
                return self.count_branch(expr)
            case ir.Bin():
                return self._count_binary(expr)
            case _:
                return _NOTHING

    def count_branch(self, condition: ir.Expr) -> Operations:
        """Count the operations that evaluate a condition, and the branch instructions on it."""
        match condition:
            case ir.Bin("and" | "or", a, b):
                return _sum(self.count_branch(a), self.count_branch(b))
            case ir.Un("not", a):
                return self.count_branch(a)
            case ir.Bin(op, a, b) if op in _COMPARE:
                return _sum(self.count(a), self.count(b), self._count_compare_and_branch(a.dtype))
            case _:
                return _sum(self.count(condition), {"alu": 1, "branch": 1})

    def _count_compare_and_branch(self, dtype: str) -> Operations:
        """Count the operations of a comparison of two values of a dtype, and of the branch on its result."""
        is_word = dtypes.is_integer(dtype) and dtypes.nbytes(dtype) <= 4
        is_fused = is_word and self.core.has("compared")
        return _sum({"branch": 1}, _NOTHING if is_fused else self._count_add_or_compare(dtype, "compare"))

    def count_store(self, buffer: ir.Buffer, value: ir.Expr) -> Operations:
        """Count the operations of a store and of the stored value. A cast that only drops upper bits is free."""
        if isinstance(value, ir.Cast) and dtypes.is_integer(value.dtype) and dtypes.is_integer(value.a.dtype):
            value = value.a
        counts = self.count_shared(value) if dtypes.is_float(value.dtype) else self.count(value)
        if buffer.scope == "register":
            return counts
        if self._is_in_fpu(buffer.dtype):
            return _sum(counts, {"float_store": 1})
        return _sum(counts, {"store": 2 if dtypes.nbytes(buffer.dtype) > 4 else 1})

    def count_call(self, name: str, dtype: str) -> Operations:
        """Count the operations of an intrinsic or a mathematical function, without its arguments and without the
        loop in its C body."""
        if (name, dtype) not in self.operations_by_intrinsic:
            self.operations_by_intrinsic[name, dtype] = self._count_intrinsic(name, dtype)
        return self.operations_by_intrinsic[name, dtype]

    def _count_intrinsic(self, name: str, dtype: str) -> Operations:
        """Count the operations of an intrinsic: of its C body on the core, or of its meaning in portable C if the
        core has no body or an empty one, for which the meaning is printed."""
        if name == ir.REINTERPRET:
            return {"alu": 1}
        if name not in SCALAR:
            return self._count_math_function(name, dtype)
        body = self._body_of_intrinsic(name)
        if body is not None and not body.is_empty:
            return _sum(body.counts())
        lane = self._count_portable_meaning(SCALAR[name].meaning)
        return {kind: n * max(SCALAR[name].lanes, 1) for kind, n in lane.items()}

    def cost_of_intrinsic(self, name: str) -> IntrinsicCost:
        """Count the instructions of the C body of a scalar intrinsic, and of its meaning."""
        intrin = SCALAR[name]
        counts = self.count_call(name, intrin.result), self._count_portable_meaning(intrin.meaning)
        return IntrinsicCost(name, *map(self.core.instructions, counts))

    def _body_of_intrinsic(self, name: str) -> Body | None:
        """Return the C body of an intrinsic on the core. None if the core has none, and for mathematical functions."""
        if name not in self.bodies:
            self.bodies[name] = c_body_for_cost_model(name, self.target.cpu) if name in SCALAR else None
        return self.bodies[name]

    def _intrinsic_loop_operations(self, name: str, args: tuple[ir.Expr, ...]) -> Operations:
        """Count the operations in all iterations of the loop in the C body of an intrinsic."""
        iteration, runs = self._intrinsic_loop(name, args)
        return {kind: runs * n for kind, n in iteration}

    def repeated_instructions(self, expr: ir.Expr) -> float:
        """Return the number of instructions that the loop in the C body of an intrinsic executes in all iterations
        except the first. They repeat the printed instructions of the first iteration."""
        if not isinstance(expr, ir.Call):
            return 0
        iteration, runs = self._intrinsic_loop(expr.name, expr.args)
        return (runs - 1) * sum(n for kind, n in iteration if kind not in SILENT)

    def _intrinsic_loop(self, name: str, args: tuple[ir.Expr, ...]) -> tuple[tuple[tuple[str, float], ...], int]:
        """Return (operations of one iteration, number of iterations) of the loop in the C body of an intrinsic.
        Without a loop, return no operations and 1."""
        body = self._body_of_intrinsic(name)
        if body is None or body.loop is None:
            return (), 1
        names = [param.name for param in SCALAR[name].params]
        elements = ir.int_value(args[names.index(body.loop.count_parameter)]) or 1
        return body.loop.operations_per_iteration, -(-elements // body.loop.elements_per_iteration)

    def _count_math_function(self, name: str, dtype: str) -> Operations:
        """Count the operations of a mathematical function: an instruction of the FPU, or a library call."""
        if self._is_in_fpu(dtype) and (name == "fabs" or (name == "fma" and self.target.has("fma"))):
            return {"float_fma" if name == "fma" else "float": 1}
        own = f"call_{name}"
        return {own if own in self.core.lengths else "call_math": 1}

    def _count_portable_meaning(self, meaning: ir.Expr | ir.Stmt) -> Operations:
        """Count the operations of the portable C that is printed for an intrinsic which the core lacks."""
        if isinstance(meaning, ir.Expr):
            products = Counter(x for x in walk_expr(meaning) if isinstance(x, ir.Bin) and x.op == "mul")
            twice = _sum(*(self.count(x) for x, n in products.items() for _ in range(n - 1)))
            return Counter(self.count(meaning)) - Counter(twice)  # a compiler multiplies equal factors once
        stores = (s for s in walk_stmt(meaning) if isinstance(s, ir.Store))
        return _sum(*(self.count_store(s.buffer, s.value) for s in stores))

    def _count_load(self, buffer: ir.Buffer) -> Operations:
        """Count the operations of a load from a buffer: two for 64 bits, else one. Some cores load no signed bytes: these
        are extended."""
        if self._is_in_fpu(buffer.dtype):
            return {"float_load": 1}
        if buffer.dtype == "int8" and "signed_byte" in self.core.lengths:
            return {"load": 1, "signed_byte": 1}
        return {"load": 2 if dtypes.nbytes(buffer.dtype) > 4 else 1}

    def _is_in_fpu(self, dtype: str) -> bool:
        """Test whether values of a dtype are kept in registers of the FPU."""
        return dtype == "float32" and self.target.has("fpu")

    def _count_low_word(self, wide_expr: ir.Expr) -> Operations:
        """Count the operations that compute the low 32 bits of a 64-bit value."""
        match wide_expr:
            case ir.Bin("shr", a, ir.Const(int() as by)) if by >= 32:
                return _sum(self.count(a), {"alu": int(by > 32)})
            case ir.Bin("shr", a, ir.Const(int())):
                return _sum(self.count(a), {"alu": 2 if self.core.has("shifted") else 3})
            case ir.Bin("bitand", ir.Bin("shr", a, ir.Const(int() as by)), ir.Const(int() as mask)) if (
                0 < mask < 1 << (32 - by)
            ):
                return _sum(self.count(a), {"alu": 1 if mask + 1 == 1 << (32 - by) else 2})
            case ir.Bin("add" | "sub" | "bitand" | "bitor" | "bitxor", a, b):
                return _sum(self._count_low_word(a), self._count_low_word(b), {"alu": 1})
            case _:
                return self.count(wide_expr)

    def _count_cast(self, dtype: str, a: ir.Expr) -> Operations:
        """Count the operations of a cast of ``a`` to ``dtype``, and of ``a``."""
        if dtypes.is_integer(dtype) and a.dtype in ("int64", "uint64") and dtypes.nbytes(dtype) <= 4:
            return _sum(self._count_low_word(a), _count_extension(dtype) if dtypes.nbytes(dtype) < 4 else _NOTHING)
        counts = self.count(a)
        if dtypes.is_float(dtype) != dtypes.is_float(a.dtype):
            return _sum(counts, {"float": 2} if self.target.has("fpu") else {"call_float_convert": 1})
        if a.dtype in dtypes.HALF:
            return _sum(counts, self._count_16_bit_float_to_float32(a.dtype))
        if dtypes.is_float(dtype):
            return _sum(counts, {"call_double" if "float64" in (dtype, a.dtype) else "float": 1})
        grows = dtypes.nbytes(dtype) - dtypes.nbytes(a.dtype)
        if dtypes.nbytes(dtype) == 8 and grows:
            return _sum(counts, {"alu": 1})
        if grows >= 0 or dtypes.nbytes(dtype) == 4:
            return counts
        return _sum(counts, _count_extension(dtype))

    def _count_16_bit_float_to_float32(self, source_dtype: str) -> Operations:
        """Count the operations that convert a 16-bit float in an integer register to float32.

        ``source_dtype``: ``float16`` or ``bfloat16``. The conversion is the core's C body if it has one, else the C
        of ``codegen/c/libm.py``."""
        body = next((body for _, body in c_bodies_of_intrinsic(f"{source_dtype}_to_float", self.target.cpu)), None)
        if body:
            return _sum(body.counts())
        return _sum({"float": int(self.target.has("fpu"))}, {"alu": 1 if source_dtype == "bfloat16" else 10})

    def _is_guarded_select(self, expr: ir.Expr) -> bool:
        """Test whether an expression selects between a computed float and a constant, without an FPU: a branch around calls of
        the library."""
        if not isinstance(expr, ir.Select) or not dtypes.is_float(expr.dtype) or self._is_in_fpu(expr.dtype):
            return False
        return isinstance(expr.a, ir.Const) != isinstance(expr.b, ir.Const)

    def _count_select(self, select: ir.Select) -> Operations:
        """Count the operations of a select and of its operands.

        Two cheap values are selected by predicated instructions, if the core has them. A value that needs a load is
        computed behind a branch, in half of all cases."""
        condition, a, b = select.condition, select.a, select.b
        if self._is_guarded_select(select):
            return self._count_guarded_value(condition, b if isinstance(a, ir.Const) else a)
        left, right = self.count(a), self.count(b)
        if self._is_in_fpu(a.dtype):
            return _sum(self.count_condition(condition), left, right, {"alu": 1, "float": 1})
        if "load" in left or "load" in right or not self.core.has("predicated"):
            sides = {k: _HALF * v for k, v in _sum(left, right).items()}
            return _sum(self.count_branch(condition), sides, {"taken": _HALF, "alu": _HALF})
        return _sum(self.count_condition(condition), left, right, {"alu": 2})

    def _count_guarded_value(self, condition: ir.Expr, value: ir.Expr) -> Operations:
        """Count the operations of a select between a computed value and a constant (a clamp, an underflow).

        The value is needed in most iterations, so that its library calls count fully, equal calls once. Its other
        operations count half."""
        whole = self.count_shared(value)
        calls = {k: v if k.startswith("call_") else _HALF * v for k, v in whole.items()}
        return _sum(self.count_branch(condition), calls, {"taken": _HALF, "alu": _HALF})

    def count_condition(self, condition: ir.Expr) -> Operations:
        """Count the operations that evaluate a condition for predicated instructions, which need no branch."""
        return _sum({kind: n - (kind == "branch") for kind, n in self.count_branch(condition).items()})

    def _count_binary(self, expr: ir.Bin) -> Operations:
        """Count the operations of a binary expression and of its operands."""
        op, a, b = expr.op, expr.a, expr.b
        if op in _COMPARE:
            return _sum(self.count_branch(expr), {"alu": 1})
        if dtypes.is_float(a.dtype):
            return _sum(self.count(a), self.count(b), self._count_float_operation(op, a.dtype))
        if dtypes.nbytes(a.dtype) == 8:
            return self._count_64_bit_operation(op, a, b)
        if op in ("min", "max"):
            return _sum(self.count(a), self.count(b), self._count_min_or_max(expr))
        if op in ("floordiv", "floormod", "truncdiv", "truncmod"):
            return _sum(self.count(a), self.count(b), self._count_division(op, b))
        if op == "mul":
            product = {"alu" if _is_power_of_two(b) else "multiply": 1}
            # Armv6-M multiplies in place: a copy keeps an operand that has other uses.
            needs_copy = not self.target.has("mul64") and _is_variable(a) and _is_variable(b)
            return _sum(self.count(a), self.count(b), product, {"alu": int(needs_copy)})
        if op in _SHIFTABLE and self._is_fused_with_operand(op, a, b):
            return _sum(self.count(a), self.count(b))
        return _sum(self.count(a), self.count(b), {"alu": 1})

    def _count_min_or_max(self, expr: ir.Bin) -> Operations:
        """Count the operations of the minimum or maximum of two integers. ``max(x, 0)`` is one instruction, which
        masks x by its sign."""
        relu = expr.op == "max" and ir.int_value(expr.b) == 0
        if self.target.has("minmax") or (relu and self.core.has("shifted")):
            return {"alu": 1}
        if self.core.has("predicated"):
            return {"alu": 3}
        return _sum(self._count_compare_and_branch(expr.dtype), {"alu": _HALF, "taken": _HALF})

    def _is_fused_with_operand(self, op: str, a: ir.Expr, b: ir.Expr) -> bool:
        """Test whether a sum, difference or bitwise operation is free, because the core has an instruction that
        includes the shift or product which computes one of its operands."""
        core = self.core
        for side in (b, a):
            match _skip_reinterpretations(side):
                case ir.Bin("mul", _, factor) if not _is_power_of_two(factor):
                    is_free = core.has("accumulated") and op in ("add", "sub")
                case ir.Bin("mul") | ir.Bin("shl" | "shr", _, ir.Const()):
                    is_free = core.has("shifted")
                case ir.Select(_, _, ir.Const(0)):  # the sum itself is predicated
                    is_free = core.has("predicated")
                case _:
                    is_free = False
            if is_free:
                return True
        return False

    def _count_division(self, op: str, b: ir.Expr) -> Operations:
        """Count the operations of a division or remainder: a shift or mask for a power of two, a high product for
        another constant, else a division."""
        modulo = op.endswith("mod")
        if _is_power_of_two(b):
            return {"alu": 1}
        if isinstance(b, ir.Const) and self.target.has("mul64"):
            return {"multiply_long": 1, "alu": 1, "multiply": int(modulo)}
        if self.target.has("mul64"):
            return {"divide": 1, "multiply": int(modulo)}
        return {"call_divide": 1}

    def _count_float_operation(self, op: str, dtype: str) -> Operations:
        """Count the operations of a binary float expression without its operands: an instruction of the FPU, or a
        library call."""
        if dtype == "float64":
            return {"call_double": 1}
        if self.target.has("fpu"):
            if op in ("min", "max"):
                return {"float": 2, "alu": 1, "float_move": 1}
            return {{"mul": "float_multiply", "div": "float_divide"}.get(op, "float"): 1}
        name = {"mul": "call_float_multiply", "div": "call_float_divide"}.get(op, "call_float_add")
        return {"call_float_compare" if op in ("min", "max") else name: 1}

    def _count_64_bit_operation(self, op: str, a: ir.Expr, b: ir.Expr) -> Operations:
        """Count the operations of a binary expression of 64-bit integers, and of its operands, on a 32-bit core."""
        if op == "mul":
            words = [word for x in (a, b) if (word := self._word_before_widening(x)) is not None]
            if not self.target.has("mul64"):
                return _sum(self.count(a), self.count(b), {"call_multiply_long": 1})
            if len(words) == 2 or (len(words) == 1 and isinstance(b, ir.Const)):  # one long multiplication
                return _sum(*map(self.count, words), {"multiply_long": 1})
            return _sum(self.count(a), self.count(b), {"multiply_long": 1, "multiply": 2})
        if op in ("shl", "shr"):
            if isinstance(b, ir.Const):
                return _sum(self.count(a), {"alu": 1 if (b.value or 0) >= 32 else 3})
            return _sum(
                self.count(a), self.count(b), {"alu": 7} if self.target.has("mul64") else {"call_shift_long": 1}
            )
        if op in ("truncdiv", "truncmod", "floordiv", "floormod"):
            return _sum(self.count(a), self.count(b), {"call_divide_long": 1})
        return _sum(self.count(a), self.count(b), {"alu": 5 if op in ("min", "max") else 2})

    def widened_word(self, var: ir.Var, value: ir.Expr) -> ir.Expr:
        """Return the 32-bit word from which a 64-bit value was widened, if the core has a widening product; else return
        the value.

        ``var``: the variable to which the value is assigned; it is recorded as widened."""
        if not (isinstance(value, ir.Cast) and dtypes.nbytes(var.dtype) == 8 and self.target.has("mul64")):
            return value
        word = self._word_before_widening(value)
        if word is None:
            return value
        self.widened_vars.add(var)
        return word

    def _word_before_widening(self, wide_value: ir.Expr) -> ir.Expr | None:
        """Return the 32-bit word from which a 64-bit value was widened; None if it was not.

        The product of two widened words is a single instruction."""
        if isinstance(wide_value, ir.Cast):
            return wide_value.a if dtypes.nbytes(wide_value.a.dtype) <= 4 else None
        return wide_value if wide_value in self.widened_vars else None

    def _count_add_or_compare(self, dtype: str, operation: str) -> Operations:
        """Count the operations of one addition (``operation`` is "add") or one comparison ("compare") of two values
        of a dtype."""
        if dtypes.is_float(dtype):
            if not self.target.has("fpu") or dtype == "float64":
                return {"call_float_compare" if operation == "compare" else "call_float_add": 1}
            return {"float": 1, "alu": int(operation == "compare")}
        return {"alu": 2 if dtypes.nbytes(dtype) > 4 else 1}


class IntrinsicCost(NamedTuple):
    """Instructions of a scalar intrinsic on a core. ``body``: of its C body there. ``meaning``: of the portable C that
    computes the same."""

    name: str
    body: float
    meaning: float


def list_scalar_intrinsic_costs(target: Target) -> tuple[IntrinsicCost, ...]:
    """Return the costs of the scalar intrinsics for which the target's core, or a plugin, has C bodies, and of those that it
    computes in lanes, sorted by name.

    Schedules call an intrinsic where its meaning occurs if its body takes fewer instructions."""
    return _list_costs_by_registries(target, CORES.entries, SCALAR.entries)


@lru_cache(maxsize=64)
def _list_costs_by_registries(target: Target, _cores: object, _intrinsics: object) -> tuple[IntrinsicCost, ...]:
    """Return :func:`list_scalar_intrinsic_costs`. The contents of the registries are part of the key, since plugins extend
    them."""
    selector, features = Selector(target), target.core.has
    costs: list[IntrinsicCost] = []
    for name in sorted(features | {name for name, intrin in SCALAR.items() if intrin.bodies}):
        scalar, lanes = split_lane_form(name)
        if name not in SCALAR:
            continue
        if lanes and scalar in SCALAR and SCALAR[scalar].is_scalar:
            if scalar not in LANE_CALLS:  # lanes compute what one number takes
                body = selector.cost_of_intrinsic(name).body
                costs.append(IntrinsicCost(name, body, selector.cost_of_intrinsic(scalar).meaning))
        elif SCALAR[name].is_scalar or (SCALAR[name].is_formula and name not in SCALAR.permanent_names):
            costs.append(selector.cost_of_intrinsic(name))
    return tuple(costs)


def _skip_reinterpretations(expr: ir.Expr) -> ir.Expr:
    """Return an expression without its outermost casts between integers of equal size."""
    while isinstance(expr, ir.Cast) and all(map(dtypes.is_integer, (expr.dtype, expr.a.dtype))):
        if dtypes.nbytes(expr.dtype) != dtypes.nbytes(expr.a.dtype):
            break
        expr = expr.a
    return expr


def _is_variable(expr: ir.Expr) -> bool:
    """Test whether a value is a variable, with or without casts.

    An instruction that overwrites its first operand needs a copy of a variable."""
    return isinstance(expr, ir.Var) or (isinstance(expr, ir.Cast) and _is_variable(expr.a))


def _is_power_of_two(expr: ir.Expr) -> bool:
    """Test whether an expression is a constant power of two."""
    value = ir.int_value(expr)
    return value is not None and value > 0 and value & (value - 1) == 0


def _count_extension(dtype: str) -> Operations:
    """Count the operation that fits a word to a dtype of 8 or 16 bits: an extension, but for unsigned bytes a mask."""
    return {"extension" if dtype in ("int8", "int16", "uint16") else "alu": 1}
