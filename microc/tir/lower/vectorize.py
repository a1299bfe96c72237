# SPDX-License-Identifier: Apache-2.0
"""Lowering of loops of kind ``vectorized`` for cores without vector registers.

Several integers of 8 or 16 bits are packed in a 32-bit word and computed at once (SWAR).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from math import prod

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.tir import ir
from microc.tir.analysis.simplification import fits_dtype, linear, simplify
from microc.tir.lower.cleanup import unroll_loops
from microc.tir.lower.region import build_address, is_consecutive, memory_stride
from microc.tir.names import WORD_LANES, lane_forms
from microc.tir.rewrite import free_vars, map_stmt, substitute, substitute_stmt, walk_stmt

# ---- Packed words: the bytes or int16 values that a loop stores are computed for all elements of a 32-bit word at once.
#
# Copies and constants need no arithmetic. Maxima and minima become the intrinsics ``max_<t>`` and ``min_<t>``, which cores with
# DSP instructions have. A select whose condition does not depend on the loop selects between words.

KINDS: Mapping[str, str] = {word.dtype: word.suffix for word in WORD_LANES}
"""Suffixes of the intrinsics on packed words, by the dtype of the elements."""


@frozen
class WordConverter:
    """Converter of scalar expressions to packed words, which contain the values in several consecutive iterations.

    ``dtype``: dtype of the elements of a word. ``var``: the loop variable. ``word_start``: value of the loop variable for the
    first element of the word. ``loop_registers``: registers of the loop, with the number that they were initialised with, or
    None if they contain a packed word. ``lane_forms``: scalar intrinsics that are intrinsics on words, too.
    """

    dtype: str
    var: ir.Var
    word_start: ir.Expr
    loop_registers: dict[ir.Expr, int | None] = field(default_factory=dict)
    lane_forms: frozenset[str] = frozenset()

    def to_word(self, value: ir.Expr) -> ir.Expr | None:
        """Return the packed word of an expression's values in consecutive iterations; None if it cannot be computed."""
        match value:
            case ir.Const(int() as number) if fits_dtype(number, self.dtype):
                return repeat_in_word(number, self.dtype)
            case ir.Load() if value in self.loop_registers:
                held = self.loop_registers[value]
                return value if held is None else repeat_in_word(held, self.dtype)
            case ir.Load(buffer, indices) if buffer.dtype == self.dtype and is_consecutive(indices, self.var):
                lanes = 4 // dtypes.nbytes(self.dtype)
                place = build_address(buffer, indices, {self.var: self.word_start}, lanes, writes=False)
                return ir.Call(f"load_{KINDS[self.dtype]}", (place,), "int32")
            case ir.Cast("int32", ir.Load(buffer) as load) if buffer.dtype == self.dtype:
                return self.to_word(load)
            case ir.Cast(to, inner) if to == self.dtype and inner.dtype == "int32":
                return self.to_word(inner)
            case ir.Call(name, args) if name in self.lane_forms:
                parts = [self.to_word(arg) for arg in args]
                operands = tuple(part for part in parts if part is not None)
                return ir.Call(f"{name}_{KINDS[self.dtype]}", operands, "int32") if len(operands) == len(args) else None
            case ir.Bin("max" | "min" as op, a, b):
                return self._convert_min_or_max(op, a, b)
            case ir.Select(condition, a, b) if self.var not in free_vars(condition):
                first, second = self.to_word(a), self.to_word(b)
                return None if first is None or second is None else ir.Select(condition, first, second)
            case _:
                return None

    def _convert_min_or_max(self, op: str, a: ir.Expr, b: ir.Expr) -> ir.Expr | None:
        """Return the packed word of a minimum or maximum; None if it cannot be computed.

        If ``a`` is the neutral element of the operation, the initial value of a reduction, the word of ``b`` is returned."""
        low, high = dtypes.int_range(self.dtype)
        if self.loop_registers.get(a) == (low if op == "max" else high):
            return self.to_word(b)
        first, second = self.to_word(a), self.to_word(b)
        name = f"{op}_{KINDS[self.dtype]}"
        return None if first is None or second is None else ir.Call(name, (first, second), "int32")


def convert_to_word_stores(loop: ir.For, word: ir.Var) -> tuple[int, ir.Stmt] | None:
    """Convert the body of a loop to a body that computes and stores a packed word.

    Returns (number of elements in a word, body of a loop over ``word``). None if the body does more than store to registers
    and finally store one element to memory.
    """
    body, var = unroll_loops(loop.body), loop.var
    stores = body.body if isinstance(body, ir.Seq) else (body,)
    last = stores[-1]
    if not isinstance(last, ir.Store) or last.buffer.dtype not in KINDS or not is_consecutive(last.indices, var):
        return None
    lanes = 4 // dtypes.nbytes(last.buffer.dtype)
    words = WordConverter(last.buffer.dtype, var, word * lanes, lane_forms=lane_forms(loop))
    word_body: list[ir.Store] = []
    for store in stores:
        if not isinstance(store, ir.Store) or (store.buffer.scope == "register") != (store is not last):
            return None
        place, number = ir.Load(store.buffer, store.indices), ir.int_value(store.value)
        if store is not last and number is not None and fits_dtype(number, words.dtype):
            words.loop_registers[place] = number
            continue
        value = words.to_word(store.value)
        if value is None:
            return None
        words.loop_registers[place] = None
        word_body.append(ir.Store(store.buffer, store.indices, value))
    target = build_address(last.buffer, last.indices, {var: word * lanes}, lanes, writes=True)
    stored = ir.Evaluate(ir.Call(f"store_{KINDS[words.dtype]}", (target, word_body[-1].value), "int32"))
    return lanes, ir.seq(*word_body[:-1], stored)


def repeat_in_word(element: int, dtype: str) -> ir.Expr:
    """Return a 32-bit word in which every element of ``dtype`` has the value ``element``, as an int32 literal."""
    # Both words are patterns of bits; the constant is int32, so patterns from 2**31 on become negative.
    packed = (element & 0xFF) * 0x01010101 if dtypes.nbytes(dtype) == 1 else (element & 0xFFFF) * 0x10001
    return ir.const(packed - (1 << 32) if packed >= 1 << 31 else packed, "int32")


# ---- Sums of bytes as pairs of int16: a loop of kind ``vectorized`` with four iterations stores sums and differences of widened
# bytes.
#
#     for c in 4: p[.. crossed c ..] = int16(int32(a[c]) - int32(b[c]))
#
# becomes stores of two words. The intrinsic ``evens`` returns bytes 0 and 2 of a loaded word as a pair of int16, ``odds`` returns
# bytes 1 and 3. ``add_i16x2`` and ``sub_i16x2`` add and subtract pairs; their results are the exact results narrowed to int16.
# The schedule chooses the layout of the destination for this: elements in the order 0, 2, 1, 3, word-aligned. The loop may
# contain unrolled loops, which are kept.

LANES = 4
"""Number of bytes in a word."""
CROSSED = (0, 2, 1, 3)
"""Offsets of elements 0 to 3 in the destination, in elements."""
_WIDENED = {"int8": "i8", "uint8": "u8"}
_LANEWISE = {"add": "add_i16x2", "sub": "sub_i16x2"}


def convert_to_pair_stores(loop: ir.For) -> ir.Stmt | None:
    """Return two stores of int16 pairs in place of a loop that stores sums of four widened bytes; None for other loops."""
    if ir.int_value(loop.extent) != LANES:
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
                for k in range(LANES)
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
            word = ir.Call(f"load_{kind}x4", (ir.AddressOf(buffer, start, LANES),), "int32")
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

FEW = 4
"""Most words that are moved without a loop; also the number of words that an iteration of a long loop moves."""
MANY = 24
"""Smallest number of words for which an iteration of the loop moves FEW words, if FEW divides the number."""
MOST = 20
"""Most statements that unrolling a loop over words may create."""
_BYTES = ("int8", "uint8")
SHORT = 16
"""Most elements of a copy that is unrolled if it cannot move words."""
GUARDED = 8
"""Most elements of a copy that is unrolled if a guard selects each element."""


def lower_vectorized(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement with its loops of kind ``vectorized`` lowered."""

    def lower_loop(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, ir.For) or s.kind != "vectorized":
            return s
        return (
            _to_word_loop(s)
            or convert_to_pair_stores(s)
            or _unroll_guarded_loop(s)
            or ir.For(s.var, s.extent, s.body, "serial", s.annotations)
        )

    return map_stmt(stmt, lower_loop)


def _to_word_loop(loop: ir.For) -> ir.Stmt | None:
    """Return a loop over packed words, and a tail of single elements, in place of a loop over elements.

    None if the loop cannot be computed by words."""
    if isinstance(loop.body, ir.Alloc) and loop.body.buffer.scope == "register":
        words = _to_word_loop(replace(loop, body=loop.body.body))
        return words and ir.Alloc(loop.body.buffer, words)
    extent, store, word = ir.int_value(loop.extent), loop.body, ir.Var(f"{loop.var.name}_0", loop.var.dtype)
    if extent is None:
        return None
    found, widens = (
        convert_to_word_stores(loop, word),
        isinstance(store, ir.Store) and _is_widening(store),
    )
    if isinstance(store, ir.Store):
        if dtypes.nbytes(store.buffer.dtype) == LANES and isinstance(store.value, (ir.Load, ir.Const)):
            return _copy_whole_words(loop, store, extent)
        found = _widen_bytes(store, loop.var, word) or found
    if found is not None and extent >= found[0]:
        lanes, move = found
        return ir.seq(
            _build_word_loop(word, extent // lanes, move), _unroll_iterations(loop, extent // lanes * lanes, extent)
        )
    return (
        _copy_several_elements_per_iteration(loop, store, word, extent)
        if isinstance(store, ir.Store) and widens
        else None
    )


def _unroll_guarded_loop(loop: ir.For) -> ir.Stmt | None:
    """Return a guarded copy or fill of few elements unrolled; None for other loops. A loop would take half as long again."""
    extent, store = ir.int_value(loop.extent), loop.body
    if extent is None or extent > GUARDED or not isinstance(store, ir.Store) or not isinstance(store.value, ir.Select):
        return None
    return _unroll_iterations(loop, 0, extent)


def _build_word_loop(word: ir.Var, count: int, move: ir.Stmt) -> ir.Stmt:
    """Return a loop that moves ``count`` words, by the statement ``move`` for each ``word``.

    A loop over few words is unrolled. If words are only moved, an iteration of a long loop moves several words."""
    # Number of statements per word; 1 if the word is only moved.
    long = sum(isinstance(s, (ir.Store, ir.Evaluate)) for s in walk_stmt(move))
    if count <= FEW and count * long <= MOST:
        return ir.For(word, ir.const(count, "int32"), move, "unrolled")
    size = FEW if count >= MANY and count % FEW == 0 else 2
    if count % size or long > 1:
        return ir.For(word, ir.const(count, "int32"), move)
    iteration = ir.seq(*(substitute_stmt(move, {word: word * size + k}) for k in range(size)))
    return ir.For(word, ir.const(count // size, "int32"), iteration)


def _copy_several_elements_per_iteration(loop: ir.For, store: ir.Store, word: ir.Var, extent: int) -> ir.Stmt:
    """Return a loop that copies single elements, 8 to 16 in each iteration, so that the overhead of the loop is small."""
    if extent <= SHORT:
        return _unroll_iterations(loop, 0, extent)
    # A number of elements per iteration that divides the extent leaves no tail, which would need additional code.
    run = next((n for n in range(SHORT, SHORT // 2, -1) if extent % n == 0), SHORT // 2)
    count = extent // run
    body = ir.seq(*(_substitute_in_store(store, {loop.var: word * run + k}) for k in range(run)))
    rest = _unroll_iterations(loop, count * run, extent)
    return ir.seq(ir.For(word, ir.const(count, "int32"), body), rest)


def _copy_whole_words(loop: ir.For, store: ir.Store, extent: int) -> ir.Stmt:
    """Return a loop that copies elements of 32 bits, four in each iteration."""
    word = ir.Var(f"{loop.var.name}_0", loop.var.dtype)
    count = extent // LANES
    four = ir.seq(*(_substitute_in_store(store, {loop.var: word * LANES + k}) for k in range(LANES)))
    body = ir.For(word, ir.const(count, "int32"), four, "serial" if count > 4 else "unrolled")
    return ir.seq(body, _unroll_iterations(loop, count * LANES, extent))


def _is_widening(store: ir.Store) -> bool:
    """Test whether a store widens a value, or a constant, to int16."""
    return store.buffer.dtype == "int16" and isinstance(store.value, (ir.Cast, ir.Const))


def _widen_bytes(store: ir.Store, var: ir.Var, word: ir.Var) -> tuple[int, ir.Stmt] | None:
    """Return (4, statement that widens the four bytes from element 4 * ``word`` on to int16).

    The bytes may be reduced by a constant. None if the store does anything else."""
    if not _is_widening(store) or not is_consecutive(store.indices, var):
        return None
    target = build_address(store.buffer, store.indices, {var: word * LANES}, LANES, writes=True)
    match store.value:
        case ir.Const(int() as value) if -128 <= value <= 127:
            source: ir.Expr | None = repeat_in_word(value, "int8")
            kind, less = "i8x4", 0
        case ir.Cast("int16", value) if (found := _match_byte_minus_constant(value)) is not None and found[
            0
        ].dtype in _BYTES:
            load, less = found
            source = WordConverter(load.dtype, var, word * LANES).to_word(load)
            kind = KINDS[load.dtype]
        case _:
            return None
    if source is None or not _is_word_aligned(target):
        return None
    if less == 0:
        return LANES, ir.Evaluate(ir.Call(f"widen_{kind}", (target, source), "int32"))
    return LANES, ir.Evaluate(ir.Call(f"widen_less_{kind}", (target, source, repeat_in_word(less, "int16")), "int32"))


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
