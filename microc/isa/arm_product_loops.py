# SPDX-License-Identifier: Apache-2.0
"""Loops of sums of products on Armv6-M. Each becomes one assembly statement.

The loops are those of :mod:`microc.ops.matrix.swar`: words of a buffer, which the loop reads in order, are multiplied by
bytes of another buffer, and the products of a block of words are added. A complete sum is added, as it is and shifted, to
elements of a register tile that last longer than the loop::

    part = word_0 * byte_0 + word_1 * byte_1 + word_2
    total_0 += part
    total_1 += part >> 16

Armv6-M computes in eight low registers. A product overwrites one of its factors, and one instruction loads several words into
ascending registers and advances their pointer. C compilers load each word on its own and copy sums between low and high
registers: 74 to 80 instructions for 32 products of two pixels, where these loops take 67. :func:`find_product_loop` matches a
loop; it loads as many words at a time as registers permit, multiplies a word by its last byte in place, and keeps the totals
in high registers, to which one instruction adds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.isa import CORES
from microc.tir import ir
from microc.tir.analysis.simplification import linear, simplify
from microc.tir.rewrite import free_vars, substitute

FEATURE = "product_loops"
"""Feature of instruction sets for which loops are printed."""
WORDS, BYTES = "r0", "r1"
"""Registers of the pointers to words and to bytes."""
SCRATCH = ("r2", "r3", "r4", "r5", "r6")
"""Registers for words, bytes and sums. r7 may be the frame pointer."""
HIGH, END = ("r8", "r10", "r11", "r12"), "lr"
"""Registers for totals, and for the address behind the words. r9 may be reserved."""
MAX_BYTE_OFFSET = 31
"""Largest offset of a load of a byte."""
MAX_STEP = 255
"""Largest constant that one instruction adds to a pointer."""
MOST_LINES = 124
"""Most instructions of a body. ADDS and CMP stand between it and the conditional branch, which jumps back by at most 252
bytes."""


@frozen
class ProductLoop:
    """A loop of sums of products, as instructions.

    - ``totals``: the elements of register tiles to which sums are added; ``%[sN]`` in the instructions.
    - ``words``, ``bytes``: addresses of the first word and of the byte at offset 0, in registers :data:`WORDS` and
      :data:`BYTES`. ``word_count``, ``byte_count``: words and bytes that all iterations read; ``%[end]`` is the address behind
      the words.
    - ``iterations``: trip count. ``lines``: instructions of an iteration, without the label ``1`` before them.
    - ``operations``: types of operations of an iteration and their numbers, for the cost model.
    - ``guard``: C preprocessor condition under which they compile."""

    totals: tuple[ir.Load, ...]
    words: ir.AddressOf
    bytes: ir.AddressOf
    word_count: int
    byte_count: int
    iterations: int
    lines: tuple[str, ...]
    operations: Mapping[str, int]
    guard: str


@frozen
class _Use:
    """A use of a word: the word times a byte at an offset, or the word itself if ``byte_offset`` is None, is added to the
    sum number ``sum_index``."""

    sum_index: int
    byte_offset: int | None


@dataclass
class _Sum:
    """A sum: the number of terms that are not added yet, and the totals to which it is added, by the shift to the right."""

    terms: int = 0
    totals: dict[int, int] = field(default_factory=dict)


def find_product_loop(loop: ir.For, cpu: str) -> ProductLoop | None:
    """Return the instructions of a loop of sums of products; None if it is no such loop, or if the core has no instructions for
    it."""
    sets = [s for s in CORES[cpu].sets if FEATURE in s.features]
    iterations = ir.int_value(loop.extent)
    if not sets or loop.kind != "serial" or iterations is None or iterations < 2:
        return None
    matcher = _Matcher(loop.var)
    if not all(matcher.match(stmt) for stmt in _flatten(loop.body)):
        return None
    return matcher.build(iterations, f"{sets[0].guard} && defined(__OPTIMIZE__)")


def _flatten(stmt: ir.Stmt) -> Iterator[ir.Stmt]:
    """Yield the statements of nested sequences and declarations in order; declarations keep their bodies."""
    match stmt:
        case ir.Seq(body):
            for child in body:
                yield from _flatten(child)
        case ir.Let(_, _, body) | ir.Alloc(_, body):
            yield stmt
            yield from _flatten(body)
        case _:
            yield stmt


class _Stream:
    """Accesses to a buffer whose addresses differ by constants within an iteration."""

    def __init__(self, loop: ir.Var) -> None:
        self.loop = loop
        self.loads: dict[int, ir.Load] = {}
        """Loads by offset in bytes."""
        self.bases: set[tuple[ir.Buffer, frozenset[tuple[ir.Expr, int]]]] = set()
        """Buffers, and the terms of addresses without offsets. There is one unless the loop is refused."""

    def locate(self, load: ir.Load) -> int:
        """Record a load; return the constant offset of its address in bytes."""
        size = dtypes.nbytes(load.buffer.dtype)
        terms: Counter[ir.Expr] = Counter()
        offset = 0
        for index, stride in zip(load.indices, load.buffer.strides, strict=True):
            coefficients, constant = linear(index)
            offset += constant * stride * size
            for term, factor in coefficients.items():
                terms[term] += factor * stride * size
        self.bases.add((load.buffer, frozenset(terms.items())))
        self.loads[offset] = load
        return offset

    @property
    def step(self) -> int | None:
        """Bytes from an iteration's first address to the next iteration's; None if there is no such number."""
        if len(self.bases) != 1:
            return None
        ((_, terms),) = self.bases
        if any(self.loop in free_vars(term) for term, _ in terms if term != self.loop):
            return None
        return dict(terms).get(self.loop, 0)

    @property
    def first(self) -> ir.AddressOf:
        """Address of the load at the smallest offset, in the first iteration."""
        load = self.loads[min(self.loads)]
        start = {self.loop: ir.const(0, "int32")}
        return ir.AddressOf(load.buffer, tuple(simplify(substitute(index, start)) for index in load.indices))


class _Matcher:
    """Words, bytes, sums and totals of a loop, as far as its statements were matched."""

    def __init__(self, loop: ir.Var) -> None:
        self.words, self.bytes = _Stream(loop), _Stream(loop)
        self.tiles: set[ir.Buffer] = set()
        """Register tiles that an iteration declares."""
        self.names: dict[ir.Var, ir.Load] = {}
        self.current: dict[ir.Load, int] = {}
        """Number of the sum that an element of these tiles contains."""
        self.sums: list[_Sum] = []
        self.uses: defaultdict[int, list[_Use]] = defaultdict(list)
        """Uses of words by offset in bytes."""
        self.totals: dict[ir.Load, int] = {}

    def match(self, stmt: ir.Stmt) -> bool:
        """Match a statement; return False if such loops have none like it."""
        match stmt:
            case ir.Alloc(buffer, _):
                self.tiles.add(buffer)
                return buffer.scope == "register"
            case ir.Let(var, ir.Load() as word, _):
                self.names[var] = word
                return _is_in_memory(word, "uint32")
            case ir.Store(buffer, indices, value) if buffer in self.tiles:
                return self._match_sum(ir.Load(buffer, indices), value)
            case ir.Store(buffer, indices, ir.Bin("add", a, b)) if buffer.scope == "register":
                total = ir.Load(buffer, indices)
                is_same_in_all_iterations = self.words.loop not in free_vars(total)
                return a == total and is_same_in_all_iterations and self._match_total(total, b)
            case _:
                return False

    def _match_sum(self, element: ir.Load, value: ir.Expr) -> bool:
        """Match the store of a sum: its first term, or a term that is added to it."""
        match value:
            case ir.Bin("add", a, term) if a == element and element in self.current:
                pass
            case term:
                self.current[element] = len(self.sums)
                self.sums.append(_Sum())
        number = self.current[element]
        byte_offset: int | None = None
        match term:
            case ir.Bin("mul", word, ir.Cast("uint32", ir.Load() as byte)) if _is_in_memory(byte, "uint8"):
                byte_offset = self.bytes.locate(byte)
            case word:
                pass
        if isinstance(word, ir.Var):
            word = self.names.get(word, word)
        if not isinstance(word, ir.Load) or not _is_in_memory(word, "uint32") or self.sums[number].totals:
            return False
        self.uses[self.words.locate(word)].append(_Use(number, byte_offset))
        self.sums[number].terms += 1
        return True

    def _match_total(self, total: ir.Load, value: ir.Expr) -> bool:
        """Match the addition of a sum to a total."""
        match value:
            case ir.Bin("shr", ir.Load() as element, ir.Const(int(shift))):
                pass
            case element:
                shift = 0
        if not isinstance(element, ir.Load) or element not in self.current or total.buffer.dtype != "uint32":
            return False
        totals = self.sums[self.current[element]].totals
        if shift in totals:
            return False
        totals[shift] = self.totals.setdefault(total, len(self.totals))
        return True

    def build(self, iterations: int, guard: str) -> ProductLoop | None:
        """Return the loop; None if it does not read its words in order, or if instructions do not reach or registers do not
        suffice."""
        offsets, step, byte_step = sorted(self.uses), self.words.step, self.bytes.step
        size = 4 * len(offsets)
        if (
            not self.uses
            or not self.bytes.loads
            or step != size
            or offsets != list(range(offsets[0], offsets[0] + size, 4))
            or byte_step is None
            or not 0 <= byte_step <= MAX_STEP
            or max(self.bytes.loads) - min(self.bytes.loads) > MAX_BYTE_OFFSET
            or len(self.totals) > len(HIGH)
            or not all(total.totals and sum(shift > 0 for shift in total.totals) <= 1 for total in self.sums)
        ):
            return None
        code = _assemble([self.uses[offset] for offset in offsets], self.sums, min(self.bytes.loads))
        if code is None or len(code.lines) > MOST_LINES:
            return None
        control = (f"adds {BYTES}, #{byte_step}", f"cmp {WORDS}, %[end]", "bne 1b")
        operations = {"load": code.loads, "paired": size // 4 - code.word_loads, "branch": 1, "taken": 1}
        operations["alu"] = len(code.lines) - code.loads + 2
        return ProductLoop(
            tuple(self.totals),
            self.words.first,
            self.bytes.first,
            len(offsets) * iterations,
            len(self.bytes.loads) * iterations,
            iterations,
            (*code.lines, *control),
            operations,
            guard,
        )


def _is_in_memory(load: ir.Load, dtype: str) -> bool:
    """Test whether a load reads an element of a dtype from memory."""
    return load.buffer.dtype == dtype and load.buffer.scope != "register"


# ---- Instructions and registers.


@dataclass
class _Code:
    """Instructions of the beginning of a body, and the registers behind them.

    ``free``: free scratch registers. ``registers``: the registers of incomplete sums. ``terms``: their missing terms."""

    lines: list[str]
    free: set[str]
    registers: dict[int, str]
    terms: list[int]
    loads: int = 0
    word_loads: int = 0

    def copy(self) -> _Code:
        """Return a copy that changes independently."""
        return _Code([*self.lines], {*self.free}, {**self.registers}, [*self.terms], self.loads, self.word_loads)

    def load_byte(self, offset: int) -> str | None:
        """Load a byte into a free register; return the register, or None if there is none."""
        if not self.free:
            return None
        register = min(self.free)
        self.free.remove(register)
        self.loads += 1
        self.lines.append(f"ldrb {register}, [{BYTES}, #{offset}]")
        return register

    def add_to_sum(self, number: int, register: str, *, may_overwrite: bool) -> bool:
        """Add a register to a sum, and free the register if ``may_overwrite``; a first term becomes the sum. Return False if
        registers run out."""
        self.terms[number] -= 1
        if number in self.registers:
            total = self.registers[number]
            self.lines.append(f"adds {total}, {total}, {register}")
            if may_overwrite:
                self.free.add(register)
            return True
        if not may_overwrite:
            if not self.free:
                return False
            copy = min(self.free)
            self.free.remove(copy)
            self.lines.append(f"movs {copy}, {register}")
            register = copy
        self.registers[number] = register
        return True

    def add_to_totals(self, number: int, totals: Mapping[int, int]) -> None:
        """Add a complete sum to its totals, the shifted one last, because the shift overwrites the sum."""
        register = self.registers.pop(number)
        for shift, total in sorted(totals.items()):
            if shift:
                self.lines.append(f"lsrs {register}, {register}, #{shift}")
            self.lines.append(f"add %[s{total}], {register}")
        self.free.add(register)

    def add_words(self, words: Sequence[Sequence[_Use]], sums: Sequence[_Sum], first_byte: int) -> bool:
        """Load words by one instruction, and add all terms that use them; return False if registers run out."""
        registers = sorted(self.free)[: len(words)]
        self.free.difference_update(registers)
        self.loads += 1
        self.word_loads += 1
        self.lines.append(f"ldmia {WORDS}!, {{{', '.join(registers)}}}")
        for register, uses in zip(registers, words, strict=True):
            for n, use in enumerate(uses):
                is_last = n == len(uses) - 1
                term = register
                if use.byte_offset is not None:
                    byte = self.load_byte(use.byte_offset - first_byte)
                    if byte is None:
                        return False
                    # The last product overwrites the word, the others their bytes.
                    term, factor = (register, byte) if is_last else (byte, register)
                    self.lines.append(f"muls {term}, {factor}, {term}")
                    if is_last:
                        self.free.add(byte)
                if not self.add_to_sum(use.sum_index, term, may_overwrite=is_last or term != register):
                    return False
                if not self.terms[use.sum_index]:
                    self.add_to_totals(use.sum_index, sums[use.sum_index].totals)
        return True


def _assemble(words: Sequence[Sequence[_Use]], sums: Sequence[_Sum], first_byte: int) -> _Code | None:
    """Return the instructions of an iteration, given the uses of its words in order; None if registers do not suffice.

    Each instruction that loads words loads as many as leave enough registers for the terms that use them."""
    code = _Code([], set(SCRATCH), {}, [total.terms for total in sums])
    position = 0
    while position < len(words):
        for count in range(min(len(code.free), len(words) - position), 0, -1):
            trial = code.copy()
            if trial.add_words(words[position : position + count], sums, first_byte):
                code, position = trial, position + count
                break
        else:
            return None
    return code
