# SPDX-License-Identifier: Apache-2.0
"""Runs of products in straight-line code, each of which becomes one assembly statement in a good order for the core.

A run is a sequence of statements of lowered TIR that load words, extend them and add products to register tiles, one
instruction for each operation. On a core that issues two instructions in a cycle, which has a
:class:`~microc.isa.instruction_order.Pipeline`, its cycles depend on the order. C compilers neither keep an order nor find a
good one: they join neighbouring loads, which then issue alone. :func:`split_at_runs` finds the runs of a statement, for the
printer of C and for the cost model. Products are first grouped by the loaded word that most of them read, so that few words are
live; then a list scheduler orders all operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.isa import CORES, SCALAR, c_bodies_of_intrinsic
from microc.isa.instruction_order import Operation, OrderedOperations, Pipeline, order_operations
from microc.tir import ir
from microc.tir.analysis.simplification import linear
from microc.tir.rewrite import free_vars, walk_all_exprs

LEAST_PRODUCTS = 4
"""Fewest products of a run. Fewer products leave too little to order."""
MOST_OPERANDS = 30
"""Most operands of an assembly statement in gcc and Clang. An operand that is read and written counts twice."""
LEAST_WORDS = 3
"""Fewest registers for loaded and extended words: two factors of a product, and one that is loaded meanwhile."""


@frozen
class Run:
    """A run of products.

    - ``statements``: the statements, without the bodies of declarations.
    - ``sums``: the elements of register tiles that products are added to. ``started``: those that begin with zero in the run.
    - ``pointers``: addresses to which loads add constant offsets. ``inputs``: variables from outside of the run.
    - ``words``: number of registers for loaded and extended words.
    - ``order``: the instructions; ``%[sN]``, ``%[pN]``, ``%[iN]`` and ``%[wN]`` are sums, pointers, inputs and words."""

    statements: tuple[ir.Stmt, ...]
    sums: tuple[ir.Load, ...]
    started: frozenset[ir.Load]
    pointers: tuple[ir.AddressOf, ...]
    inputs: tuple[ir.Var, ...]
    words: int
    order: OrderedOperations


def split_at_runs(stmt: ir.Stmt, cpu: str, loop: ir.Var | None) -> list[ir.Stmt | Run]:
    """Split a sequence or declaration into its runs and the statements between them; the statement itself if it has no runs.

    ``loop``: variable of the innermost loop around the statement, if any. If a few words do not depend on it, there is no run,
    because compilers keep these in registers during the loop. The body of a declaration ends before the next run. That is enough
    where declarations are printed without braces."""
    pipeline = CORES[cpu].pipeline
    if pipeline is None or not isinstance(stmt, (ir.Seq, ir.Let)):
        return [stmt]
    items = _flatten(stmt)
    parts: list[ir.Stmt | Run] = []
    between: list[ir.Stmt] = []
    start = 0
    while start < len(items):
        builder = _RunBuilder(cpu, pipeline, loop)
        end = start
        while end < len(items) and builder.add(items[end]):
            end += 1
        run = builder.build(items[end:]) if end > start else None
        if run is None:
            after = start + 1 if builder.started else end + 1  # without the first zero there may be a run
            between += items[start:after]
            start = after
            continue
        parts += [*([_nest(between)] if between else []), run]
        between = []
        start += len(run.statements)
    if not parts:
        return [stmt]
    return [*parts, *([_nest(between)] if between else [])]


def _flatten(stmt: ir.Stmt) -> list[ir.Stmt]:
    """Return the statements of nested sequences and declarations in order; a declaration has an empty body."""
    match stmt:
        case ir.Seq(body):
            return [item for child in body for item in _flatten(child)]
        case ir.Let(var, value, body):
            return [ir.Let(var, value, ir.seq()), *_flatten(body)]
        case _:
            return [stmt]


def _nest(items: Sequence[ir.Stmt]) -> ir.Stmt:
    """Return a statement whose flattened statements are ``items``."""
    nested: list[ir.Stmt] = []
    for item in reversed(items):
        if isinstance(item, ir.Let):
            nested = [ir.Let(item.var, item.value, ir.seq(*nested))]
        else:
            nested.insert(0, item)
    return ir.seq(*nested)


@frozen
class _Word:
    """A word in memory: the terms of its address, and its constant offset in bytes."""

    buffer: ir.Buffer
    terms: frozenset[tuple[ir.Expr, int]]
    offset: int


class _RunBuilder:
    """Operations of consecutive statements, as far as each is an instruction of the core.

    ``operations`` name registers: ``sumN``, ``inputN``, and a name of its own for each word."""

    def __init__(self, cpu: str, pipeline: Pipeline, loop: ir.Var | None) -> None:
        self.cpu, self.pipeline, self.loop = cpu, pipeline, loop
        self.statements: list[ir.Stmt] = []
        self.operations: list[Operation] = []
        self.loads: dict[str, tuple[_Word, ir.AddressOf]] = {}
        self.sums: dict[ir.Load, str] = {}
        self.started: set[ir.Load] = set()
        self.names: dict[ir.Var, str] = {}
        self.inputs: dict[ir.Var, str] = {}
        self.complete = 0, 0
        """Numbers of statements and of operations up to the last sum."""

    def add(self, stmt: ir.Stmt) -> bool:
        """Add a statement; return False if it is no instruction."""
        before = len(self.operations)
        match stmt:
            case ir.Let(var, ir.Call() as value, _):
                name = self._compute(value)
                if name is not None:
                    self.names[var] = name
            case ir.Store(buffer, indices, ir.Call() as value) if buffer.scope == "register":
                name = self._accumulate(ir.Load(buffer, indices), value)
            case ir.Store(buffer, indices, ir.Const(0, "int32")) if buffer.scope == "register" and not self.sums:
                name = "zero"
                self.started.add(ir.Load(buffer, indices))
            case _:
                name = None
        if name is None:
            del self.operations[before:]
            return False
        self.statements.append(stmt)
        if isinstance(stmt, ir.Store) and isinstance(stmt.value, ir.Call):
            self.complete = len(self.statements), len(self.operations)
        return True

    def _compute(self, expr: ir.Expr) -> str | None:
        """Add the operations that compute a word; return its name, or None if it is not computed by instructions."""
        match expr:
            case ir.Var() if expr in self.names:
                return self.names[expr]
            case ir.Var(_, "int32"):
                return self.inputs.setdefault(expr, f"input{len(self.inputs)}")
            case ir.Call(name, (ir.AddressOf() as address,)) if name in self.pipeline.loads:
                return self._load(address)
            case ir.Call(name, args):
                instruction = self._instruction_of(name)
                operands = [self._compute(arg) for arg in args]
                if instruction is None or None in operands:
                    return None
                result = f"word{len(self.operations)}"
                self._append(instruction, (result, *(o for o in operands if o is not None)))
                return result
            case _:
                return None

    def _accumulate(self, total: ir.Load, expr: ir.Expr) -> str | None:
        """Add the operations of products that are added to a sum; return its name, or None if they are no instructions."""
        match expr:
            case ir.Load() if expr == total:
                return self.sums.setdefault(total, f"sum{len(self.sums)}")
            case ir.Call(name, (*factors, addend)) if len(factors) == 2:
                instruction, result = self._instruction_of(name), self._accumulate(total, addend)
                operands = [self._compute(factor) for factor in factors]
                if instruction is None or result is None or None in operands:
                    return None
                self._append(instruction, (result, *(o for o in operands if o is not None), result))
                return result
            case _:
                return None

    def _instruction_of(self, name: str) -> str | None:
        """Return the instruction of an intrinsic, if the pipeline knows its type; else None."""
        bodies = c_bodies_of_intrinsic(name, self.cpu) if name in SCALAR else ()
        text = next((body.instruction for _, body in bodies), "")
        return text if text.partition(" ")[0] in self.pipeline.types else None

    def _append(self, instruction: str, operands: tuple[str, ...]) -> None:
        """Append an operation. ``operands``: names for ``%0``, ``%1`` and so on of the instruction; the first is its result."""
        text = instruction
        for n, name in enumerate(operands):
            text = text.replace(f"%{n}", f"<{name}>")
        self.operations.append(Operation(text, self.pipeline.types[text.partition(" ")[0]], operands[:1]))

    def _load(self, address: ir.AddressOf) -> str | None:
        """Add the load of a word; its address is completed by :meth:`build`."""
        buffer, size = address.buffer, dtypes.nbytes(address.buffer.dtype)
        terms: Counter[ir.Expr] = Counter()
        offset = 0
        for index, stride in zip(address.indices, buffer.strides, strict=True):
            coefficients, constant = linear(index)
            offset += constant * stride * size
            for term, factor in coefficients.items():
                terms[term] += factor * stride * size
        name = f"word{len(self.operations)}"
        self.loads[name] = _Word(buffer, frozenset(terms.items()), offset), address
        self.operations.append(Operation(f"<{name}>", self.pipeline.load_type, (name,)))
        return name

    def build(self, following: Sequence[ir.Stmt]) -> Run | None:
        """Return the run up to its last sum; None if it has too few products or needs too many registers.

        ``following``: the statements behind those that were added. They must not read words of the run."""
        count, operation_count = self.complete
        operations = self.operations[:operation_count]
        products = [o for o in operations if o.writes[0].startswith("sum")]
        declared = {s.var for s in self.statements[:count] if isinstance(s, ir.Let)}
        behind = (*self.statements[count:], *following)
        if (
            len(products) < LEAST_PRODUCTS
            or not self.started <= self.sums.keys()
            or any(declared & _variables_of(s) for s in behind)
        ):
            return None
        operations = self._start_sums(_group_by_shared_word(operations))
        used = {name for operation in operations for name in operation.names}
        inputs = tuple(var for var, name in self.inputs.items() if name in used)
        loads = {name: load for name, load in self.loads.items() if name in used}
        pointers, addresses = self._share_pointers(loads)
        words = self.pipeline.registers - len(self.sums) - len(inputs) - len(pointers)
        invariant = sum(self.loop not in free_vars(address) for _, address in loads.values())
        operand_count = 2 * len(self.sums) + len(inputs) + len(pointers) + words
        if not loads or words < LEAST_WORDS or operand_count > MOST_OPERANDS or (self.loop and 0 < invariant <= words):
            return None
        operands = {name: f"%[s{n}]" for n, name in enumerate(self.sums.values())}
        operands |= {self.inputs[var]: f"%[i{n}]" for n, var in enumerate(inputs)}
        complete = tuple(
            Operation(self.pipeline.load.format(o.text, *addresses[o.writes[0]]), o.type_, o.writes)
            if o.writes[0] in addresses
            else o
            for o in operations
        )
        order = _order(self.cpu, complete, words, tuple(operands.items()))
        if order is None:
            return None
        sums, started = tuple(self.sums), frozenset(self.started)
        return Run(tuple(self.statements[:count]), sums, started, pointers, inputs, words, order)

    def _start_sums(self, operations: Sequence[Operation]) -> list[Operation]:
        """Replace the first product of each sum that begins with zero by the instruction that adds to no sum."""
        waiting = {self.sums[total] for total in self.started}
        result: list[Operation] = []
        for operation in operations:
            (name,) = operation.writes
            if name in waiting:
                waiting.remove(name)
                mnemonic, _, operands = operation.text.rpartition(f", <{name}>")[0].partition(" ")
                operation = Operation(f"{self.pipeline.starts[mnemonic]} {operands}", operation.type_, operation.writes)
            result.append(operation)
        return result

    def _share_pointers(
        self, loads: Mapping[str, tuple[_Word, ir.AddressOf]]
    ) -> tuple[tuple[ir.AddressOf, ...], dict[str, tuple[str, int]]]:
        """Return pointers for all loads, and for each load the name of its pointer and its offset in bytes.

        Words whose addresses differ by constants share a pointer to the first of them, as far as offsets reach."""
        pointers: list[ir.AddressOf] = []
        addresses: dict[str, tuple[str, int]] = {}
        ordered = sorted(loads.items(), key=lambda load: load[1][0].offset)
        groups = dict.fromkeys((word.buffer, word.terms) for word, _ in loads.values())
        for group in groups:
            base: _Word | None = None
            for name, (word, address) in ordered:
                if (word.buffer, word.terms) != group:
                    continue
                if base is None or word.offset - base.offset > self.pipeline.max_offset:
                    base = word
                    pointers.append(address)
                addresses[name] = f"%[p{len(pointers) - 1}]", word.offset - base.offset
        return tuple(pointers), addresses


def _variables_of(stmt: ir.Stmt) -> frozenset[ir.Var]:
    """Return the variables that occur in the expressions of a statement."""
    return frozenset[ir.Var]().union(*(free_vars(expr) for expr in walk_all_exprs(stmt)))


def _group_by_shared_word(operations: Sequence[Operation]) -> list[Operation]:
    """Return operations with the products grouped by the loaded word that most of them read, each word just before its first
    reader.

    Sums wrap around or do not overflow in any order, so that their products may be added in any order."""
    producers = {o.writes[0]: o for o in operations if not o.writes[0].startswith("sum")}

    def loaded_words(name: str) -> frozenset[str]:
        operation = producers.get(name)
        operands = [n for n in operation.names if n != name] if operation else []
        return frozenset[str]().union(*map(loaded_words, operands)) if operands else frozenset({name})

    products = [o for o in operations if o.writes[0].startswith("sum")]
    words = {name: sorted(loaded_words(name)) for product in products for name in product.names[1:]}
    readers = Counter(word for product in products for name in product.names[1:] for word in words[name])
    groups: dict[str, list[Operation]] = {}
    for product in products:
        read = [word for name in product.names[1:] for word in words[name]]
        groups.setdefault(max(read, key=readers.__getitem__), []).append(product)
    ordered: dict[Operation, None] = {}

    def append(operation: Operation) -> None:
        for name in operation.names:
            if name in producers and name != operation.writes[0] and producers[name] not in ordered:
                append(producers[name])
        ordered[operation] = None

    for group in groups.values():
        for product in group:
            append(product)
    return list(ordered)


@lru_cache(maxsize=512)
def _order(
    cpu: str, operations: tuple[Operation, ...], words: int, operands: tuple[tuple[str, str], ...]
) -> OrderedOperations | None:
    """Order the operations of a run, with ``words`` registers for words; None if these are too few.

    Memoised, because many candidates contain equal runs, which are printed once more in the end."""
    pipeline = CORES[cpu].pipeline
    assert pipeline is not None
    try:
        return order_operations(operations, pipeline.timings, [f"%[w{n}]" for n in range(words)], dict(operands))
    except ValueError:
        return None
