# SPDX-License-Identifier: Apache-2.0
"""Lowering of loops to lanes narrower than int32, and of copies to words.

Several integers of 8 or 16 bits are packed in a 32-bit word (SWAR), or in a vector of an instruction set that has operations on
such lanes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import prod

from microc.base import dtypes
from microc.tir import ir
from microc.tir.analysis.linear_forms import within
from microc.tir.analysis.region import build_address, is_consecutive, memory_stride
from microc.tir.analysis.simplification import bounds_of, fits_dtype, linear, simplify
from microc.tir.lower.cleanup import unroll_loops
from microc.tir.lower.lane_scope import LaneScope, NotVectorizableError, is_repeatable
from microc.tir.names import LANE_OPERATORS, Lanes, lane_forms, lanes_of
from microc.tir.rewrite import free_vars, substitute, substitute_stmt, walk_stmt

# ---- Lanes narrower than int32: the numbers that a loop stores are computed side by side in their own dtype, in a word (SWAR) or
# in a vector of an instruction set.
#
# A lane holds a value modulo 2**bits, which is all that a store keeps. Sums, differences, products and bitwise operations need
# no more of their operands. Maxima, minima and the forms of scalar intrinsics need the values themselves
# (:meth:`PackedLaneRewriter.is_exact`). A select whose condition does not depend on the loop selects between registers.

WORD_FORMS = frozenset({"max", "min"})
"""Operators that the vocabulary has in the lanes of all words."""
_MOST_SINGLE_ELEMENTS = 4
"""Number of remaining elements up to which each has code of its own: the code of more is longer than their loop."""


@dataclass
class PackedLaneRewriter(LaneScope):
    """Rewriter of the body of a loop whose iterations become lanes narrower than int32.

    ``constants``: registers of the loop that hold a number, which is not stored. ``inexact``: registers and variables whose
    lanes hold only the low bits of their values."""

    constants: dict[ir.Expr, int] = field(default_factory=dict)
    inexact: set[ir.Expr] = field(default_factory=set)

    @property
    def scalar_dtypes(self) -> tuple[str, ...]:
        """The dtypes of scalar variables whose values, or low bits, lanes can hold."""
        return "int32", self.lanes.dtype

    def vector_dtype(self, element: str = "") -> str:
        """Return the dtype of the register, whatever the dtype of the scalars that it holds."""
        return self.lanes.register_dtype

    def rewrite_statement(self, stmt: ir.Stmt) -> ir.Stmt:
        """Return a statement rewritten for lanes. NotVectorizableError if it cannot be computed in lanes."""
        if isinstance(stmt, ir.For):
            raise NotVectorizableError(f"loop {stmt.var.name} is inside of the loop, and not unrolled")
        if isinstance(stmt, ir.Let) and not self.is_exact(stmt.value):
            self.inexact.add(stmt.var)
        return super().rewrite_statement(stmt)

    def rewrite_store(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], value: ir.Expr) -> ir.Stmt:
        """Return the statement for a store to a register, or to consecutive elements. A register that is set to a number needs
        none."""
        if buffer in self.vector_of_register_array:
            element, number = ir.Load(buffer, indices), ir.int_value(value)
            if number is not None and fits_dtype(number, self.lanes.dtype):
                self.constants[element] = number
                self.inexact.discard(element)
                return ir.seq()
            vector = self.to_vector(value)
            (self.inexact.discard if self.is_exact(value) else self.inexact.add)(element)
            self.constants.pop(element, None)
            return ir.Store(self.vector_of_register_array[buffer], indices, vector)
        if buffer.scope == "register" or buffer.dtype != self.lanes.dtype:
            raise NotVectorizableError(f"it stores {buffer.dtype} to {buffer.name}")
        if memory_stride(buffer, indices, self.var) != 1:
            raise NotVectorizableError(f"elements of {buffer.name} are not stored one after the other")
        target = self.first_lane_address(buffer, indices, 1, writes=True)
        store = self.call_intrinsic("store", target, self.to_vector(value))
        return ir.Evaluate(replace(store, dtype="int32"))

    def to_vector(self, expr: ir.Expr) -> ir.Expr:
        """Return the register with the values of an integer expression in all lanes, modulo 2**bits."""
        match expr:
            case ir.Const(int() as number) if fits_dtype(number, self.lanes.dtype):
                return self.broadcast_number(number)
            case ir.Load() if expr in self.constants:
                return self.broadcast_number(self.constants[expr])
            case ir.Load(buffer, indices) if buffer in self.vector_of_register_array:
                return ir.Load(self.vector_of_register_array[buffer], indices)
            case ir.Var() if expr in self.vector_of_variable:
                return self.vector_of_variable[expr]
            case _ if (
                "dup" in self.lane_forms and expr.dtype in self.scalar_dtypes and not self.varies_between_lanes(expr)
            ):
                return self.call_intrinsic("dup", ir.cast("int32", expr))
            case ir.Load(buffer, indices) if buffer.dtype == self.lanes.dtype:
                if buffer.scope == "register" or self.lane_stride(expr) != 1:
                    raise NotVectorizableError(f"elements of {buffer.name} are not read one after the other")
                return self.call_intrinsic("load", self.first_lane_address(buffer, indices, 1, writes=False))
            # Conversions between integers that have no fewer bits than a lane keep these bits.
            case ir.Cast(to, a) if all(dtypes.is_integer(x) and self.has_bits_of_lane(x) for x in (to, a.dtype)):
                return self.to_vector(a)
            case ir.Call(name, args) if name in self.lane_forms:
                return self.call_intrinsic(name, *map(self.to_exact_vector, args))
            case ir.Bin("max" | "min" as op, a, b):
                return self.convert_min_or_max(op, a, b)
            case ir.Bin(op, a, b) if op in LANE_OPERATORS:
                self.require_form(LANE_OPERATORS[op])
                return self.call_intrinsic(LANE_OPERATORS[op], self.to_vector(a), self.to_vector(b))
            case ir.Select(condition, a, b) if not self.varies_between_lanes(condition):
                return ir.Select(condition, self.to_vector(a), self.to_vector(b))
            case ir.Load(buffer):
                raise NotVectorizableError(f"it reads {buffer.dtype} from {buffer.name}")
            case ir.Bin(op) | ir.Call(op):
                raise NotVectorizableError(f"{op} has no form in these lanes")
            case _:
                raise NotVectorizableError(f"{expr.dtype} numbers are computed with more bits than a lane has")

    def to_exact_vector(self, expr: ir.Expr) -> ir.Expr:
        """Return the register with the values of an expression that all lanes hold. NotVectorizableError if they may not."""
        if not self.is_exact(expr):
            raise NotVectorizableError("an operand of a maximum, a minimum or an intrinsic may exceed a lane")
        return self.to_vector(expr)

    def is_exact(self, expr: ir.Expr) -> bool:
        """Test whether lanes hold the values of an expression, not only their low bits."""
        match expr:
            case ir.Load(buffer) if buffer in self.vector_of_register_array:
                return expr not in self.inexact
            case ir.Var() if expr in self.vector_of_variable:
                return expr not in self.inexact
            case ir.Cast(to, a) if to != self.lanes.dtype and dtypes.contains_range_of(to, self.lanes.dtype):
                return self.is_exact(a)
            case ir.Call(name, args) if name in self.lane_forms:  # those whose results fit the lanes alone are selected
                return all(map(self.is_exact, args))
            case ir.Bin("max" | "min", a, b) | ir.Select(_, a, b):
                return self.is_exact(a) and self.is_exact(b)
            case _:
                reach, room = bounds_of(expr), dtypes.int_range(self.lanes.dtype)
                return reach is not None and within(reach, room)

    def has_bits_of_lane(self, dtype: str) -> bool:
        """Test whether a dtype has at least as many bits as a lane."""
        return dtypes.nbytes(dtype) >= dtypes.nbytes(self.lanes.dtype)

    def convert_min_or_max(self, op: str, a: ir.Expr, b: ir.Expr) -> ir.Expr:
        """Return the register of a minimum or maximum.

        If ``a`` is the neutral element of the operation, the initial value of a reduction, it is that of ``b``."""
        low, high = dtypes.int_range(self.lanes.dtype)
        if self.constants.get(a) == (low if op == "max" else high):
            return self.to_exact_vector(b)
        self.require_form(op)
        return self.call_intrinsic(op, self.to_exact_vector(a), self.to_exact_vector(b))

    def require_form(self, name: str) -> None:
        """Raise NotVectorizableError if the core does not have an operation in these lanes."""
        if name not in self.lane_forms:
            raise NotVectorizableError(f"the core has no C body for {name}_{self.lanes.suffix}")

    def broadcast_number(self, number: int) -> ir.Expr:
        """Return the register whose lanes hold a number: a literal, or a vector that is computed before the loop."""
        if self.lanes.is_word:
            return repeat_in_word(number, self.lanes.dtype)
        self.require_form("dup")
        sign = "minus" if number < 0 else "all"
        return self.hoist_value(f"{sign}{abs(number)}", self.call_intrinsic("dup", ir.const(number, "int32")))


def repeat_in_word(element: int, dtype: str) -> ir.Expr:
    """Return a 32-bit word in which every element of ``dtype`` has the value ``element``, as an int32 literal."""
    # Both words are patterns of bits; the constant is int32, so patterns from 2**31 on become negative.
    packed = (element & 0xFF) * 0x01010101 if dtypes.nbytes(dtype) == 1 else (element & 0xFFFF) * 0x10001
    return ir.const(packed - (1 << 32) if packed >= 1 << 31 else packed, "int32")


def to_packed_loop(loop: ir.For, lanes: Lanes) -> ir.Stmt:
    """Return a loop over registers of ``lanes``, and its remainder, in place of a loop over elements.

    The remainder is one more register that overlaps the last one, if an iteration may be repeated; else single elements.
    Raises NotVectorizableError."""
    extent, body, registers = ir.int_value(loop.extent), loop.body, []
    while isinstance(body, ir.Alloc) and body.buffer.scope == "register":
        registers.append(body.buffer)
        body = body.body
    if extent is None or extent < lanes.count:
        raise NotVectorizableError(
            f"the loop has fewer than {lanes.count} iterations, or a number known at run time only"
        )
    position, forms = ir.Var(f"{loop.var.name}_0", loop.var.dtype), lane_forms(loop)
    code = PackedLaneRewriter(
        *(loop.var, position * lanes.count, lanes.count, lanes),
        lane_forms={**dict.fromkeys(WORD_FORMS, ""), **forms} if lanes.is_word else forms,
        vector_of_register_array={b: _replace_register(b, lanes) for b in registers},
    )
    body = unroll_loops(body)
    packed = _build_word_loop(position, extent // lanes.count, code.rewrite_statement(body))
    done = extent // lanes.count * lanes.count
    if done < extent and not lanes.is_word and is_repeatable(body):
        last = replace(code, start=ir.const(extent - lanes.count, "int32"), constants={}, inexact=set())
        packed, done = ir.seq(packed, last.rewrite_statement(body)), extent
    if extent - done > _MOST_SINGLE_ELEMENTS:
        shifted = substitute_stmt(body, {loop.var: loop.var + done})
        whole = ir.seq(packed, ir.For(loop.var, ir.const(extent - done, "int32"), shifted))
    else:
        whole = ir.seq(packed, _unroll_iterations(replace(loop, body=body), done, extent))
    scalars = registers if done < extent else []
    for buffer in reversed(tuple(dict.fromkeys((*scalars, *code.vector_of_register_array.values())))):
        whole = ir.Alloc(buffer, whole)
    return code.hoist_constants(whole)


def _replace_register(buffer: ir.Buffer, lanes: Lanes) -> ir.Buffer:
    """Return the register that holds the lanes of a scalar one: itself if it holds a word."""
    if lanes.is_word and buffer.dtype == "int32":
        return buffer
    return replace(buffer, name=f"{buffer.name}_{lanes.suffix}", dtype=lanes.register_dtype)


# ---- Sums of bytes as pairs of int16: a loop of kind ``vectorized`` with four iterations stores sums and differences of widened
# bytes.
#
#     for c in 4: p[.. crossed c ..] = int16(int32(a[c]) - int32(b[c]))
#
# becomes stores of two words. The intrinsic ``evens`` returns bytes 0 and 2 of a loaded word as a pair of int16, ``odds`` returns
# bytes 1 and 3. ``add_i16x2`` and ``sub_i16x2`` add and subtract pairs; their results are the exact results narrowed to int16.
# The schedule chooses the layout of the destination for this: elements in the order 0, 2, 1, 3, word-aligned. The loop may
# contain unrolled loops, which are kept.

BYTES_PER_WORD = 4
CROSSED = (0, 2, 1, 3)
"""Offsets of elements 0 to 3 in the destination, in elements."""
_WIDENED = {"int8": "i8", "uint8": "u8"}
_LANEWISE = {"add": "add_i16x2", "sub": "sub_i16x2"}


def convert_to_pair_stores(loop: ir.For) -> ir.Stmt | None:
    """Return two stores of int16 pairs in place of a loop that stores sums of four widened bytes; None for other loops."""
    if ir.int_value(loop.extent) != BYTES_PER_WORD:
        return None
    halves = [_build_pair_store(loop.body, loop.var, half) for half in (0, 1)]
    return ir.seq(*halves) if None not in halves else None


def _build_pair_store(stmt: ir.Stmt, var: ir.Var, first_element: int) -> ir.Stmt | None:
    """Return the store of elements ``first_element`` and ``first_element + 2`` of a loop as a pair of int16.

    These elements are adjacent in the destination. None if the loop's body ``stmt`` has another form."""
    match stmt:
        case ir.For(inner, extent, body, "unrolled", annotations):
            part = _build_pair_store(body, var, first_element)
            return None if part is None else ir.For(inner, extent, part, "unrolled", annotations)
        case ir.Store(buffer, indices, ir.Cast("int16", value)) if buffer.dtype == "int16":
            pair = _build_pair_value(value, var, first_element)
            places = [
                simplify(_element_offset(buffer, indices, var, k) - _element_offset(buffer, indices, var, 0))
                for k in range(BYTES_PER_WORD)
            ]
            if (
                pair is None
                or [ir.int_value(p) for p in places] != list(CROSSED)
                or not _starts_at_word(buffer, indices, var)
            ):
                return None
            at = {var: ir.const(first_element, "int32")}
            target = ir.AddressOf(buffer, tuple(simplify(substitute(i, at)) for i in indices), 2, writes=True)
            return ir.Evaluate(ir.Call("store_i16x2_aligned", (target, pair), "int32"))
        case _:
            return None


def _build_pair_value(value: ir.Expr, var: ir.Var, first_element: int) -> ir.Expr | None:
    """Return the values in iterations ``first_element`` and ``first_element + 2`` of ``var`` as a pair of int16.

    None if the pair cannot be computed."""
    match value:
        case ir.Bin(("add" | "sub") as op, a, b):
            first, second = _build_pair_value(a, var, first_element), _build_pair_value(b, var, first_element)
            return None if first is None or second is None else ir.Call(_LANEWISE[op], (first, second), "int32")
        case ir.Select(condition, a, b) if var not in free_vars(condition):
            first, second = _build_pair_value(a, var, first_element), _build_pair_value(b, var, first_element)
            return None if first is None or second is None else ir.Select(condition, first, second)
        case ir.Cast("int32", ir.Load(buffer, indices)) if buffer.dtype in _WIDENED:
            if memory_stride(buffer, indices, var) != 1:
                return None
            kind = _WIDENED[buffer.dtype]
            start = tuple(simplify(substitute(i, {var: ir.const(0, "int32")})) for i in indices)
            word = ir.Call(f"load_{kind}x4", (ir.AddressOf(buffer, start, BYTES_PER_WORD),), "int32")
            return ir.Call(f"{'odds' if first_element else 'evens'}_{kind}", (word,), "int32")
        case _:
            return None


def _element_offset(buffer: ir.Buffer, indices: tuple[ir.Expr, ...], var: ir.Var, lane: int) -> ir.Expr:
    """Return the row-major offset of the element that is accessed in iteration ``lane`` of ``var``."""
    total: ir.Expr = ir.const(0, "int32")
    for axis, index in enumerate(indices):
        total = total + substitute(index, {var: ir.const(lane, "int32")}) * prod(buffer.shape[axis + 1 :])
    return total


def _starts_at_word(buffer: ir.Buffer, indices: tuple[ir.Expr, ...], var: ir.Var) -> bool:
    """Test whether the element of iteration 0 is word-aligned. The start of the buffer is word-aligned."""
    terms, offset = linear(simplify(_element_offset(buffer, indices, var, 0)))
    return not any(factor % 2 for factor in (*terms.values(), offset))


# ---- Loops of kind ``vectorized``: copies and fills move words; any other loop becomes a serial loop.
#
# Bytes are moved by the intrinsics ``load_<t>`` and ``store_<t>`` (``t`` is ``i8x4`` or ``u8x4``), 16-bit integers by those with
# ``i16x2``. Schedules create ``vectorized`` loops if the core loads and stores unaligned words. Arithmetic on words needs DSP
# instructions: maxima, and copies of bytes to 16-bit integers (``widen_<t>``, or ``widen_less_<t>`` if a constant is subtracted),
# whose destination must be word-aligned. Elements of 32 bits are words already; four of them are moved at a time, at any
# alignment.

_WORDS_PER_ITERATION = 4
"""Most words that are moved without a loop; also the number of words that an iteration of a long loop moves."""
_LONG_LOOP_WORDS = 24
"""Smallest number of words for which an iteration of the loop moves several words, if that divides the number."""
_MOST_UNROLLED_STATEMENTS = 20
"""Most statements that unrolling a loop over words may create."""
_BYTES = ("int8", "uint8")
_MOST_UNROLLED_ELEMENTS = 16
"""Most elements of a copy that is unrolled if it cannot move words."""
_MOST_GUARDED_ELEMENTS = 8
"""Most elements of a copy that is unrolled if a guard selects each element."""


def lower_vectorized_loop(loop: ir.For) -> ir.Stmt:
    """Return a loop of kind ``vectorized`` lowered to words; else a serial loop."""
    return (
        _to_word_loop(loop)
        or convert_to_pair_stores(loop)
        or _unroll_guarded_loop(loop)
        or ir.For(loop.var, loop.extent, loop.body, "serial", loop.annotations)
    )


def _to_word_loop(loop: ir.For) -> ir.Stmt | None:
    """Return a loop over packed words, and a tail of single elements, in place of a loop over elements.

    None if the loop cannot be computed by words."""
    extent, store, word = ir.int_value(loop.extent), loop.body, ir.Var(f"{loop.var.name}_0", loop.var.dtype)
    if isinstance(store, ir.Store) and extent is not None:
        if dtypes.nbytes(store.buffer.dtype) == BYTES_PER_WORD and isinstance(store.value, (ir.Load, ir.Const)):
            return _copy_whole_words(loop, store, extent)
        widening = _widen_bytes(store, loop.var, word)
        if widening is not None and extent >= BYTES_PER_WORD:
            return ir.seq(
                _build_word_loop(word, extent // BYTES_PER_WORD, widening),
                _unroll_iterations(loop, extent // BYTES_PER_WORD * BYTES_PER_WORD, extent),
            )
    for lanes in lanes_of(loop):
        with suppress(NotVectorizableError):
            return to_packed_loop(loop, lanes)
    if isinstance(store, ir.Store) and extent is not None and _is_widening(store):
        return _copy_several_elements_per_iteration(loop, store, word, extent)
    return None


def _unroll_guarded_loop(loop: ir.For) -> ir.Stmt | None:
    """Return a guarded copy or fill of few elements unrolled; None for other loops. A loop would take half as long again."""
    extent, store = ir.int_value(loop.extent), loop.body
    if extent is None or extent > _MOST_GUARDED_ELEMENTS:
        return None
    if not isinstance(store, ir.Store) or not isinstance(store.value, ir.Select):
        return None
    return _unroll_iterations(loop, 0, extent)


def _build_word_loop(word: ir.Var, count: int, move: ir.Stmt) -> ir.Stmt:
    """Return a loop that moves ``count`` words, by the statement ``move`` for each ``word``.

    A loop over few words is unrolled. If words are only moved, an iteration of a long loop moves several words."""
    # Number of statements per word; 1 if the word is only moved.
    long = sum(isinstance(s, (ir.Store, ir.Evaluate)) for s in walk_stmt(move))
    if count <= _WORDS_PER_ITERATION and count * long <= _MOST_UNROLLED_STATEMENTS:
        return ir.For(word, ir.const(count, "int32"), move, "unrolled")
    size = _WORDS_PER_ITERATION if count >= _LONG_LOOP_WORDS and count % _WORDS_PER_ITERATION == 0 else 2
    if count % size or long > 1:
        return ir.For(word, ir.const(count, "int32"), move)
    iteration = ir.seq(*(substitute_stmt(move, {word: word * size + k}) for k in range(size)))
    return ir.For(word, ir.const(count // size, "int32"), iteration)


def _copy_several_elements_per_iteration(loop: ir.For, store: ir.Store, word: ir.Var, extent: int) -> ir.Stmt:
    """Return a loop that copies single elements, 8 to 16 in each iteration, so that the overhead of the loop is small."""
    if extent <= _MOST_UNROLLED_ELEMENTS:
        return _unroll_iterations(loop, 0, extent)
    # A number of elements per iteration that divides the extent leaves no tail, which would need additional code.
    most = _MOST_UNROLLED_ELEMENTS
    run = next((n for n in range(most, most // 2, -1) if extent % n == 0), most // 2)
    count = extent // run
    body = ir.seq(*(_substitute_in_store(store, {loop.var: word * run + k}) for k in range(run)))
    rest = _unroll_iterations(loop, count * run, extent)
    return ir.seq(ir.For(word, ir.const(count, "int32"), body), rest)


def _copy_whole_words(loop: ir.For, store: ir.Store, extent: int) -> ir.Stmt:
    """Return a loop that copies elements of 32 bits, four in each iteration."""
    word = ir.Var(f"{loop.var.name}_0", loop.var.dtype)
    count = extent // BYTES_PER_WORD
    four = ir.seq(*(_substitute_in_store(store, {loop.var: word * BYTES_PER_WORD + k}) for k in range(BYTES_PER_WORD)))
    body = ir.For(word, ir.const(count, "int32"), four, "serial" if count > 4 else "unrolled")
    return ir.seq(body, _unroll_iterations(loop, count * BYTES_PER_WORD, extent))


def _is_widening(store: ir.Store) -> bool:
    """Test whether a store widens a value, or a constant, to int16."""
    return store.buffer.dtype == "int16" and isinstance(store.value, (ir.Cast, ir.Const))


def _widen_bytes(store: ir.Store, var: ir.Var, word: ir.Var) -> ir.Stmt | None:
    """Return the statement that widens the four bytes from element 4 * ``word`` on to int16.

    The bytes may be reduced by a constant. None if the store does anything else."""
    if not _is_widening(store) or not is_consecutive(store.indices, var):
        return None
    target = build_address(store.buffer, store.indices, {var: word * BYTES_PER_WORD}, BYTES_PER_WORD, writes=True)
    match store.value:
        case ir.Const(int() as value) if -128 <= value <= 127:
            source = repeat_in_word(value, "int8")
            kind, less = "i8x4", 0
        case ir.Cast("int16", value) if (found := _match_byte_minus_constant(value)) is not None:
            load, less = found
            if load.dtype not in _BYTES or not is_consecutive(load.indices, var):
                return None
            kind = Lanes(load.dtype, BYTES_PER_WORD).suffix
            address = build_address(
                load.buffer, load.indices, {var: word * BYTES_PER_WORD}, BYTES_PER_WORD, writes=False
            )
            source = ir.Call(f"load_{kind}", (address,), "int32")
        case _:
            return None
    if not _is_word_aligned(target):
        return None
    if less == 0:
        return ir.Evaluate(ir.Call(f"widen_{kind}", (target, source), "int32"))
    return ir.Evaluate(ir.Call(f"widen_less_{kind}", (target, source, repeat_in_word(less, "int16")), "int32"))


def _match_byte_minus_constant(value: ir.Expr) -> tuple[ir.Load, int] | None:
    """Match an element minus a constant c with abs(c) < 256; return (load of the element, c). None for other values.

    A byte minus such a constant fits int16.
    """
    match value:
        case ir.Load():
            return value, 0
        case ir.Cast("int32", ir.Load() as load):
            return load, 0
        case ir.Bin("sub", ir.Cast("int32", ir.Load() as load), ir.Const(int() as less)) if abs(less) < 256:
            return load, less
        case ir.Bin("add", ir.Cast("int32", ir.Load() as load), ir.Const(int() as more)) if abs(more) < 256:
            return load, -more
        case _:
            return None


def _is_word_aligned(target: ir.AddressOf) -> bool:
    """Test whether an address of 16-bit elements is word-aligned. The start of its buffer is word-aligned."""
    for axis, index in enumerate(target.indices):
        terms, offset = linear(simplify(index))
        stride = prod(target.buffer.shape[axis + 1 :])
        if any(factor * stride % 2 for factor in (*terms.values(), offset)):
            return False
    return True


def _unroll_iterations(loop: ir.For, start: int, stop: int) -> ir.Stmt:
    """Return the iterations of a loop from ``start`` to ``stop``, unrolled."""
    if start == stop:
        return ir.seq()
    rest = ir.For(loop.var, ir.const(stop - start, "int32"), substitute_stmt(loop.body, {loop.var: loop.var + start}))
    return unroll_loops(replace(rest, kind="unrolled"))


def _substitute_in_store(store: ir.Store, variable_values: dict[ir.Var, ir.Expr]) -> ir.Stmt:
    """Return a store with variables replaced as in ``variable_values``."""
    return ir.Store(
        store.buffer,
        tuple(substitute(i, variable_values) for i in store.indices),
        substitute(store.value, variable_values),
    )
