# SPDX-License-Identifier: Apache-2.0
"""Matrix products on MVE: small matrices, a row by many rows of weights, and float16 convolution windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from string import Template
from types import MappingProxyType

from microc.base.immutable import frozen
from microc.isa.instruction_order import Operation, Timing, order_operations
from microc.isa.instruction_set import Body, BodyLoop, BodyTable
from microc.isa.vocabulary.matrix_products import (
    BITS,
    HALF_WINDOWS,
    PRODUCT_SHAPES,
    ROW_DEPTHS,
    ROWS_SHAPES,
    TAPS,
    float16_window_name,
    product_name,
    row_product_name,
    rows_product_name,
)
from microc.tir.bit_fields import LANES as BIT_FIELDS_LANES
from microc.tir.bit_fields import BitFields
from microc.tir.lower.lane_code import NARROWING_DISTANCES
from microc.tir.lower.unit_lowering import MAX_ROWS, TWICE_COLUMNS, requantisation_name, twice_rounding_name

# ---- Products of small matrices on MVE: one instruction computes 16 products of bytes or 8 products of wider elements
#
# An iteration over K processes three vectors if 3 divides the number of vectors, else four, with an epilogue for the remainder.
# Up to four vectors need no loop. Every vector of one operand is loaded once and multiplied by all vectors of the other operand.
# ``VMLADAVA`` sums across lanes into a core register of even number, so that there are at most six sums. A byte of bit-packed
# weights contains several weights. Shifted up and masked, each bit field is a weight times a power of two, by which the sums are
# divided after the loop.
#
# A vector instruction takes two beats, and a load overlaps with a product but not with another load. So loads and products
# alternate: after each product the next vector is loaded, if one of the eight vector registers is free.

UNROLLED = (3, 4)
"""Numbers of vectors in one iteration of a loop over K: the first number if it divides the vectors of K, else the
second. Larger numbers would not pay, because the first iteration is copied before the loop."""
STRAIGHT = 4
"""Largest number of vectors of K for which no loop is written."""
_SUMS = ("r8", "r10", "r12", "r0", "r2", "r4")
_VECTOR_REGISTERS = tuple(f"q{n}" for n in range(8))
_FIELD, _MASK = "q6", "q7"
"""Vector registers for one bit field of packed weights, and for the mask of the highest bit field."""
_ADDRESSES = {8: ("r1", "r3", "r5", "r6", "r9"), 16: ("r1", "r3", "r5", "r6", "r2")}
"""Core registers for addresses, by the bits of the factors. r7 is not used, because it may be the frame pointer.
Widening loads need a register of r0 to r7."""
_COUNT = '"+r"(count)'
_NEXT_ITERATION = -1
"""Number of the vector that a rotated loop loads for its next iteration."""


def _format_product_c_text(a_dtype: str, b_dtype: str, rows: int, columns: int) -> str:
    """Return the C body of a matrix product with ``rows`` by ``columns`` sums, of operands of dtypes ``a_dtype`` and
    ``b_dtype``.

    All registers are fixed, because compilers would else report that they have run out of registers."""
    # 1. Operands of the assembly. Several rows start from zero, written by the first products (VMLADAV); a single row starts from
    # `start`, which it reads.
    form, size = BITS.get(b_dtype), 8 if a_dtype == "int8" and b_dtype != "int16" else 16
    sums = [f"c{r}{c}" for r in range(rows) for c in range(columns)]
    pointers = [f"a{r}" for r in range(rows)] + [f"b{c}" for c in range(columns)]
    advanced = [f'[{name}] "+r"({name})' for name in pointers]
    updated, written = ([f'[{name}] "{constraint}"({name})' for name in sums] for constraint in ("+r", "=&r"))
    written = written if rows > 1 else updated
    starts = [(a_dtype, f"a{f' + {r} * stride_a' if r else ''}") for r in range(rows)]
    starts += [(form.dtype if form else b_dtype, f"b{f' + {c} * stride_b' if c else ''}") for c in range(columns)]
    # 2. Declarations of pointers and sums.
    registers = _ADDRESSES[size]
    text = [
        f'register const {dtype}_t *{name} __asm__("{register}") = {start};'
        for name, register, (dtype, start) in zip(pointers, registers, starts, strict=False)
    ]
    results = {
        f"c{r}{c}": f"sums[{f'{r} * stride_sums + ' if r else ''}{c}]" for r in range(rows) for c in range(columns)
    }
    first = {name: f"start[{name[2:]}]" if rows == 1 else "0" for name in results}
    text += [
        f'register int32_t {name} __asm__("{register}") = {"0" if form else first[name]};'
        for name, register in zip(results, _SUMS, strict=False)
    ]
    text.append('register int32_t count __asm__("lr");')
    # 3. The code of each depth. The function is inlined where `depth` is a literal, so that one branch of these remains: less
    # than a vector (predicated), a few whole vectors without a loop, else loops.
    if form is not None:
        lines = _format_bit_packed_products(form, rows, columns)
        text += _format_bit_packed_loop_lines(form, lines, updated + advanced)
    else:
        terms = _build_products_of_term_vector(a_dtype, b_dtype, rows, columns, size)
        inputs = [f'[{name}] "r"({name})' for name in pointers]
        fresh = rows * columns if rows > 1 else 0
        for times in range(1, STRAIGHT + 1):
            vectors = [_build_products_of_term_vector(a_dtype, b_dtype, rows, columns, size, k) for k in range(times)]
            elements = times * 128 // size
            part = _start_sums_at_zero(
                [*_alternate_loads_and_products(vectors[:-1]), *_format_tail_predicated_loop(vectors[-1], size)], fresh
            )
            text += [f"if (depth < {elements}) {{", f"    count = depth % {128 // size};"]
            text += [
                *_format_assembly_statement_lines(part, [*written, _COUNT], inputs),
                "} else",
            ]
            straight = _start_sums_at_zero(_alternate_loads_and_products(vectors), fresh)
            text += [
                f"if (depth == {elements}) {{",
                *_format_assembly_statement_lines(straight, written, inputs),
                "} else",
            ]
        if fresh:
            text += _format_multiple_row_loop_lines(size, terms, updated + advanced, written + advanced, fresh)
        else:
            single = [f"c0{c} += (int32_t)*a0 * *b{c};" for c in range(columns)]
            text += _format_single_row_loop_lines(size, terms, updated + advanced, single)
    # 4. Stores. Fields are weights times 2 ** (8 - bits): the sums are shifted back, and a single row's start is added only then.
    for name, result in results.items():
        if name == "c02":  # else a compiler collects the sums on the stack, to store them as a vector
            text.append('__asm__ volatile("" : : : "memory");')
        field = f"{name} >> {8 - form.bits}" if form else name
        text.append(f"{result} = {f'{first[name]} + ({field})' if form and rows == 1 else field};")
    return "\n".join(text)


@frozen
class _VectorProduct:
    """A product that adds to a sum: ``instruction`` without its operands, the vectors of the loads at the positions
    ``left`` and ``right``."""

    instruction: str
    left: int
    right: int


@frozen
class _Terms:
    """Loads of vectors, and the products of these vectors. A load is its mnemonic and its address."""

    loads: tuple[tuple[str, str], ...]
    products: tuple[_VectorProduct, ...]


def _build_products_of_term_vector(
    a_dtype: str, b_dtype: str, rows: int, columns: int, element_bits: int, vector_index: int | None = None
) -> _Terms:
    """Return the loads and products of one vector of terms along K for all rows and columns.

    ``element_bits``: 8, or 16 if the loads widen bytes. The loads advance the pointers, unless ``vector_index`` is
    given: then they address the vector with this index by an offset."""
    load = {"int8": f"vldrb.{'8' if element_bits == 8 else 's16'}", "uint8": "vldrb.u16", "int16": "vldrh.u16"}
    advance = {"int8": 16 if element_bits == 8 else 8, "uint8": 8, "int16": 16}

    def build_load(dtype: str, pointer: str) -> tuple[str, str]:
        step = advance[dtype]
        return load[dtype], f"[%[{pointer}]" + (f"], #{step}" if vector_index is None else f", #{step * vector_index}]")

    loads = [build_load(a_dtype, f"a{r}") for r in range(rows)] + [build_load(b_dtype, f"b{c}") for c in range(columns)]
    products = (
        _VectorProduct(f"vmladava.s{element_bits} %[c{r}{c}]", r, rows + c) for c in range(columns) for r in range(rows)
    )
    return _Terms(tuple(loads), tuple(products))


def _alternate_loads_and_products(vectors: Sequence[_Terms], *, rotates: bool = False) -> list[str]:
    """Return the instructions of several vectors of terms in an order in which loads and products alternate.

    Products keep their order; vectors are loaded in the order in which products read them. A register is free after
    the last product that reads it. ``rotates``: the first vector is in its register already; the same vector of the next
    iteration is loaded at the end, so that the first product waits for one load instead of two."""
    loads, products = list[tuple[str, str]](), list[_VectorProduct]()
    for terms in vectors:
        first = len(loads)
        products += (_VectorProduct(p.instruction, p.left + first, p.right + first) for p in terms.products)
        loads += terms.loads
    last_reader = {vector: k for k, product in enumerate(products) for vector in (product.left, product.right)}
    waiting = list(dict.fromkeys(vector for product in products for vector in (product.left, product.right)))
    free, register_of, lines = list(_VECTOR_REGISTERS), dict[int, str](), list[str]()
    if rotates:  # nothing else occupies the register of the first vector
        register_of[waiting.pop(0)] = free.pop(0)
        waiting.append(_NEXT_ITERATION)

    def load_next_vector() -> None:
        vector = waiting.pop(0)
        register_of[vector] = _VECTOR_REGISTERS[0] if vector == _NEXT_ITERATION else free.pop(0)
        mnemonic, address = loads[max(vector, 0)]
        lines.append(f"{mnemonic} {register_of[vector]}, {address}")

    for k, product in enumerate(products):
        while not {product.left, product.right} <= register_of.keys():
            load_next_vector()
        lines.append(f"{product.instruction}, {register_of[product.left]}, {register_of[product.right]}")
        read = [v for v in dict.fromkeys((product.left, product.right)) if last_reader[v] == k]
        free += [register_of[v] for v in read if v != 0 or not rotates]
        is_first_free = not rotates or k >= last_reader[0]
        if waiting and (is_first_free if waiting[0] == _NEXT_ITERATION else free):
            load_next_vector()
    return lines


def count_vector_operations(iteration: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Count the vector instructions of a loop's iteration by type of operation, and as ``joint`` the neighbours that overlap.

    A vector instruction occupies its unit for two cycles. One of another unit begins in the second (:data:`PIPELINE`)."""
    units = [_unit_of_instruction(line) for line in iteration]
    loads, stores = (sum(line.startswith(name) for line in iteration) for name in ("vld", "vst"))
    counts = {
        "vector_load": loads,
        "vector_store": stores,
        "vector": sum(map(bool, units)) - loads - stores,
        "joint": sum(bool(a and b) and a != b for a, b in pairwise([*units, units[0]])),
    }
    return tuple((name, n) for name, n in counts.items() if n)


def _unit_of_instruction(line: str) -> str:
    """Return the unit of a vector instruction, as :data:`PIPELINE` names it; empty for other instructions."""
    if line.startswith(("vld", "vst")):
        return "memory"
    if line.startswith(("vmla", "vmul", "vfma")):
        return "multiplier"
    return "lanes" if line.startswith("v") else ""


def _format_bit_packed_products(packing: BitFields, rows: int, columns: int) -> list[str]:
    """Return the instructions that multiply 16 bytes of bit-packed weights of every column. For each bit field of
    the bytes, the lowest first, a vector of every row is loaded and multiplied."""
    lines = [f"vldrb.8 q{rows + c}, [%[b{c}]], #{BIT_FIELDS_LANES}" for c in range(columns)]
    for field in range(packing.count):
        up = 8 - packing.bits * (field + 1)
        lines += [f"vldrb.8 q{r}, [%[a{r}]], #{BIT_FIELDS_LANES}" for r in range(rows)]
        for c in range(columns):
            lines += [f"vshl.i8 {_FIELD}, q{rows + c}, #{up}"] if up else []
            if field:  # the shift of the lowest field removes all others
                lines.append(f"vand {_FIELD}, {_FIELD if up else f'q{rows + c}'}, {_MASK}")
            lines += [f"vmladava.s8 %[c{r}{c}], q{r}, {_FIELD}" for r in range(rows)]
    return lines


def _format_bit_packed_loop_lines(packing: BitFields, instructions: list[str], outputs: list[str]) -> Iterator[str]:
    """Yield the C lines of the loop over bit-packed weights, which processes 16 bytes of every column in an
    iteration."""
    yield f"count = depth / {packing.group};"
    mask = (0xFF << 8 - packing.bits) & 0xFF
    loop = (f"vmov.i8 {_MASK}, #{mask}", "dls lr, lr", "0:", *instructions, "le lr, 0b")
    yield from _format_assembly_statement_lines(loop, [*outputs, _COUNT], [])


def _format_tail_predicated_loop(terms: _Terms, element_bits: int) -> list[str]:
    """Return the instructions that load and multiply ``count`` elements of every operand, by vectors of terms.

    In a tail-predicated loop, even of one iteration, no instruction (VPST) precedes predicated ones, so that loads and products
    alternate."""
    return [f"dlstp.{element_bits} lr, lr", "0:", *_alternate_loads_and_products([terms]), "letp lr, 0b"]


def _start_sums_at_zero(instructions: list[str], sum_count: int) -> list[str]:
    """Replace the first VMLADAVA of each of the first ``sum_count`` sums by VMLADAV, which starts the sum at zero."""
    first = [k for k, line in enumerate(instructions) if line.startswith("vmladava")][:sum_count]
    return [line.replace("vmladava", "vmladav") if k in first else line for k, line in enumerate(instructions)]


def _format_multiple_row_loop_lines(
    element_bits: int,
    terms: _Terms,
    outputs: list[str],
    first_outputs: list[str],
    started_sums: int,
) -> Iterator[str]:
    """Yield the C lines of the loops over K in a product of several rows.

    The loops process three vectors at once if 3 divides the number of vectors; else four, with a tail-predicated
    remainder. The first iteration is copied before the loop, where it starts ``started_sums`` sums. The loops are rotated: the
    last iteration loads one vector behind the first row, which therefore has to be in the other rows. If rows begin at a smaller
    distance, all vectors are predicated. ``first_outputs``: assembly operands that the copy writes."""
    (few, most), lanes = UNROLLED, 128 // element_bits
    zeros = [f"mov {product.instruction.split()[1]}, #0" for product in terms.products]
    yield from (f"if (stride_a < {lanes}) {{", "    count = depth;")
    predicated = [*zeros, *_format_tail_predicated_loop(terms, element_bits)]
    yield from _format_assembly_statement_lines(predicated, [*first_outputs, _COUNT], [])
    yield from (f"}} else if (depth % {few * lanes} == 0) {{", f"    count = depth / {few * lanes} - 1;")
    mnemonic, address = terms.loads[0]
    load = f"{mnemonic} {_VECTOR_REGISTERS[0]}, {address}"
    iteration = _alternate_loads_and_products([terms] * few, rotates=True)
    text = [load, *_start_sums_at_zero(iteration, started_sums), "dls lr, lr", "0:", *iteration, "le lr, 0b"]
    yield from _format_assembly_statement_lines(text, [*first_outputs, _COUNT], [])
    iteration = _alternate_loads_and_products([terms] * most, rotates=True)
    yield "} else {"
    first = [load, *_start_sums_at_zero(iteration, started_sums)]
    loop = ["dls lr, lr", "0:", *iteration, "le lr, 0b"]
    yield from (f"    if (depth >= {2 * most * lanes}) {{", f"        count = depth / {most * lanes} - 1;")
    yield from _format_assembly_statement_lines([*first, *loop], [*first_outputs, _COUNT], [])
    yield "    } else {"
    yield from _format_assembly_statement_lines(first, first_outputs, [])
    yield "    }"
    yield from (f"    if (depth % {most * lanes} > 0) {{", f"        a0 -= {lanes};")
    yield f"        count = depth % {most * lanes};"
    yield from _format_assembly_statement_lines(
        _format_tail_predicated_loop(terms, element_bits), [*outputs, _COUNT], []
    )
    yield from ("    }", "}")


def _format_single_row_loop_lines(
    element_bits: int, terms: _Terms, outputs: list[str], last_element_lines: list[str]
) -> Iterator[str]:
    """Yield the C lines of the loops over K in a product of a single row.

    The loops process three vectors at once if 3 divides the number of vectors. Else they process four at once, then
    up to three more, then a predicated vector. ``last_element_lines``: C lines for a single remaining element,
    without vectors."""
    lanes, most = 128 // element_bits, max(UNROLLED)

    def format_iteration(vector_count: int) -> list[str]:
        return _alternate_loads_and_products([terms] * vector_count)

    yield from (f"if (depth % {UNROLLED[0] * lanes} == 0) {{", f"    count = depth / {UNROLLED[0] * lanes};")
    yield from _format_assembly_statement_lines(
        ("dls lr, lr", "0:", *format_iteration(UNROLLED[0]), "le lr, 0b"), [*outputs, _COUNT], []
    )
    yield from ("} else {", f"    if (depth / {most * lanes} == 1) {{")
    yield from _format_assembly_statement_lines(format_iteration(most), outputs, [])
    yield from ("    } else {", f"        count = depth / {most * lanes};")
    yield from _format_assembly_statement_lines(
        ("dls lr, lr", "0:", *format_iteration(most), "le lr, 0b"), [*outputs, _COUNT], []
    )
    yield "    }"
    for times in range(1, most):
        yield f"    if (depth % {most * lanes} / {lanes} == {times}) {{"
        yield from _format_assembly_statement_lines(format_iteration(times), outputs, [])
        yield "    }"
    yield from (f"    if (depth % {lanes} == 1) {{", *(f"        {line}" for line in last_element_lines), "    }")
    yield from (f"    if (depth % {lanes} > 1) {{", f"        count = depth % {lanes};")
    yield from _format_assembly_statement_lines(
        _format_tail_predicated_loop(terms, element_bits), [*outputs, _COUNT], []
    )
    yield from ("    }", "}")


def _format_assembly_statement_lines(
    instructions: Sequence[str], outputs: list[str], inputs: list[str]
) -> Iterator[str]:
    """Yield the lines of the C statement ``__asm__`` with these instructions, which overwrite the vector registers that
    they name.

    The statement is ``inline``. Without that, compilers count its lines and do not inline the function, so that
    ``depth`` would not be a literal."""
    yield "    __asm__ volatile inline("
    yield from (f'        "{line}\\n"' for line in instructions)
    yield f"        : {', '.join(outputs)}"
    yield f"        : {', '.join(inputs)}"
    clobbers = (f'"{register}"' for register in _VECTOR_REGISTERS if any(register in line for line in instructions))
    yield "        : " + ", ".join(('"memory"', *clobbers)) + ");"


@cache  # of PRODUCT_SHAPES
def _build_small_product_body(a_dtype: str, b_dtype: str, rows: int, columns: int) -> Body:
    """Build the body of a matrix product with ``rows`` by ``columns`` sums, of operands of dtypes ``a_dtype`` and
    ``b_dtype``, with its operation counts."""
    form = BITS.get(b_dtype)
    half = (rows * columns + 1) // 2  # two neighbours are loaded, and stored, by one instruction
    text = _format_product_c_text(a_dtype, b_dtype, rows, columns)
    edges, alu = (("load", 0 if rows > 1 else half), ("store", half)), 3 + rows + columns
    if form is None:
        size = 8 if a_dtype == b_dtype == "int8" else 16
        terms, vectors = _build_products_of_term_vector(a_dtype, b_dtype, rows, columns, size), max(UNROLLED)
        counts = count_vector_operations(_alternate_loads_and_products([terms] * vectors, rotates=rows > 1))
        iteration = tuple((name, n / vectors) for name, n in (*counts, ("branch", 1)))
        return Body(text, (*edges, ("alu", alu)), BodyLoop("depth", 128 // size, iteration))
    iteration = (*count_vector_operations(_format_bit_packed_products(form, rows, columns)), ("branch", 1.0))
    return Body(text, (*edges, ("alu", alu + 1 + 2 * rows * columns)), BodyLoop("depth", form.group, iteration))


PRODUCT_BODIES = BodyTable(
    {product_name(*shape): partial(_build_small_product_body, *shape) for shape in PRODUCT_SHAPES}
)


# ---- A row of bytes by many rows of weights on MVE: the row stays in vector registers, and each weight is loaded once
#
# An iteration computes four sums, or two: one instruction loads the initial values of two sums and one stores them (LDRD, STRD).
# Every vector of weights takes a load and a product; the product of one row by four columns loads five vectors for four
# products. LDRD and STRD are between two loads of vectors, where they cost nothing, as far as there are such loads.

LANES = 16
"""Bytes of a vector register."""
_ARM_MVE_ROWS_WEIGHTS, _SHARED = 7, 6
"""Numbers of the vector registers for weights, and for both of the last vectors of a row of eight."""
_COLUMN_SUMS = {"c0": "r8", "c1": "r10", "c2": "r12", "c3": "r2"}
"""Names and registers of the sums that an iteration computes."""


def _build_row_product_body(depth: int) -> Body:
    """Build the body of the product of a row of ``depth`` bytes by many rows of weights, with its operation counts."""
    vectors = depth // LANES
    row_loads = [_format_row_vector_load(k) for k in range(min(vectors, _ARM_MVE_ROWS_WEIGHTS))]
    names = list(_COLUMN_SUMS)
    text = [f'register int32_t {name} __asm__("{register}");' for name, register in _COLUMN_SUMS.items()]
    text.append('register int32_t count __asm__("lr");')
    for columns, condition in ((4, "if (columns % 4 == 0) {"), (2, "} else {")):
        loop = [*row_loads, "dls lr, lr", "0:", *_format_row_products(vectors, columns), "le lr, 0b"]
        outputs = [
            *(f'[{n}] "=&r"({n})' for n in names[:columns]),
            *(f'[{n}] "+r"({n})' for n in ("b", "start", "sums")),
        ]
        text += [condition, f"    count = columns / {columns};"]
        text += _format_assembly_statement_lines(loop, [*outputs, _COUNT], ['[a] "r"(a)'])
    text.append("}")
    iteration = _format_row_products(vectors, len(names))
    pairs = len(names) // 2
    counts = (("load", pairs), ("paired", pairs), ("store", pairs), *count_vector_operations(iteration), ("branch", 1))
    edges = (("vector_load", len(row_loads)), ("alu", 4))
    return Body("\n".join(text), edges, BodyLoop("columns", len(names), counts))


def _format_row_products(vectors: int, columns: int) -> list[str]:
    """Return the instructions that multiply the row by ``columns`` rows of weights, 2 or 4, from initial values to sums."""
    names = list(_COLUMN_SUMS)
    load, store = "ldrd %[{}], %[{}], [%[start]], #8", "strd %[{}], %[{}], [%[sums]], #8"
    lines = [load.format(*names[:2])]
    for column in range(columns):
        products = _format_column_products(vectors, column)
        if column in (0, 2) and columns > 2:
            # Behind the first product, and the load of a vector of the row if there is one.
            other = load.format(*names[2:]) if column == 0 else store.format(*names[:2])
            products.insert(2 + (vectors > _ARM_MVE_ROWS_WEIGHTS), other)
        lines += products
    return [*lines, store.format(*names[columns - 2 : columns])]


def _format_column_products(vectors: int, column: int) -> list[str]:
    """Return the instructions that multiply the row by row ``column`` of the weights of an iteration.

    Seven vectors of the row stay in registers. Of eight, the last two share a register: a column begins with the one that the
    column before it ended with. So each column loads one of the two: 75 cycles for four columns, 83 with both (llvm-mca 19)."""
    order = list(range(vectors))
    if vectors > _ARM_MVE_ROWS_WEIGHTS:
        first, last = (_SHARED, _SHARED + 1) if column % 2 == 0 else (_SHARED + 1, _SHARED)
        order = [first, *range(_SHARED), last]
    lines = []
    for n, k in enumerate(order):
        if k == order[0] > 0:  # its weights are not the next ones
            address = f"[%[b], #{LANES * k}]"
        else:
            following = order[n + 1] if n + 1 < vectors else vectors
            address = f"[%[b]], #{LANES * (following - k)}"
        product = f"vmladava.s8 %[c{column}], q{min(k, _SHARED)}, q{_ARM_MVE_ROWS_WEIGHTS}"
        lines += [f"vldrb.8 q{_ARM_MVE_ROWS_WEIGHTS}, {address}", product]
        if k == order[0] > 0:
            lines.append(_format_row_vector_load(order[-1]))
    return lines


def _format_row_vector_load(vector_index: int) -> str:
    """Return the instruction that loads the vector with index ``vector_index`` of the row."""
    return f"vldrb.8 q{min(vector_index, _SHARED)}, [%[a], #{LANES * vector_index}]"


# ---- Two or three rows of few bytes by many rows of weights: the rows stay in vector registers, and an iteration computes the
# sums of two columns
#
# A call for every tile of rows by columns loads its rows and pointers again: for three rows of 16 bytes it takes 20 cycles, an
# iteration 15 (llvm-mca 19).

_ROW_SUMS = (("r8", "r0"), ("r10", "r2"), ("r12", "r4"))
"""Registers of the sums of a row in even and odd columns."""
_ROW_TARGETS = ("r3", "r5", "r6")
"""Registers of the pointers to the sums of a row."""


def _build_rows_product_body(rows: int, depth: int) -> Body:
    """Build the body of the product of ``rows`` rows of ``depth`` bytes by many rows of weights, with its operation counts.

    Half a vector of bytes is widened to int16, so that no element is masked."""
    bits, vectors = (8, depth // LANES) if depth >= LANES else (16, 1)
    load, product = ("vldrb.8", "vmladav{}.s8") if bits == 8 else ("vldrb.s16", "vmladav{}.s16")
    step = 128 // bits
    first_row = [f"{load} q{r * vectors + v}, [%[a{r}], #{step * v}]" for r in range(rows) for v in range(vectors)]
    weights = [(c, v) for c in range(2) for v in range(vectors)]
    loads = [f"{load} q{6 + n % 2}, [%[b]], #{step}" for n in range(len(weights))]
    stores = [f"strd %[c{r}], %[a{r}], [%[s{r}]], #8" for r in range(rows)]
    iteration = loads[:1]
    for n, (c, v) in enumerate(weights):
        for r in range(rows):
            # The pointer to a row is not read again: its register becomes the sum of the odd column.
            total, again = f"%[{'ca'[c]}{r}]", "a" if v else ""
            iteration.append(f"{product.format(again)} {total}, q{r * vectors + v}, q{6 + n % 2}")
            if n + 1 == len(weights) and r > 0:
                iteration.append(stores[r - 1])
            elif r == 0:
                iteration += loads[n + 1 : n + 2]
    lines = [*first_row, "dls lr, lr", "0:", *iteration, stores[-1], "le lr, 0b"]
    text = ['register const int8_t *b0 __asm__("r1") = b;', 'register int32_t count __asm__("lr") = columns / 2;']
    outputs = ['[b] "+r"(b0)', '"+r"(count)']
    for r in range(rows):
        even, odd = _ROW_SUMS[r]
        text += [
            f'register int32_t c{r} __asm__("{even}");',
            f'register const int8_t *a{r} __asm__("{odd}") = a{f" + {r} * stride_a" if r else ""};',
            f'register int32_t *s{r} __asm__("{_ROW_TARGETS[r]}") = sums{f" + {r} * stride_sums" if r else ""};',
        ]
        outputs += [f'[c{r}] "=&r"(c{r})', f'[a{r}] "+r"(a{r})', f'[s{r}] "+r"(s{r})']
    text += _format_assembly_statement_lines(lines, outputs, [])
    counts = (*count_vector_operations(iteration), ("store", rows), ("paired", rows), ("branch", 1))
    return Body(
        "\n".join(text), (("vector_load", len(first_row)), ("alu", 3 + 2 * rows)), BodyLoop("columns", 2, counts)
    )


ROW_BODIES: Mapping[str, Body] = MappingProxyType(
    {row_product_name(depth): _build_row_product_body(depth) for depth in ROW_DEPTHS}
    | {rows_product_name(*shape): _build_rows_product_body(*shape) for shape in ROWS_SHAPES}
)


# ---- Convolution windows of float16 on MVE: the three taps of a filter row stay in registers while the pixels of an image row
# are loaded; each pixel is loaded once for all its products

_ARM_MVE_WINDOWS_WEIGHTS, _PIXEL = ("q4", "q5", "q6"), "q7"
_REGISTERS = {
    "row": "r0",
    "tap": "r1",
    "next": "r2",
    "left": "r3",
    "pixel_bytes": "r4",
    "row_bytes": "r5",
    "where": "r6",
}


def _format_window_instructions(stride: int, pixels: int) -> Iterator[str]:
    """Yield the instructions of a float16 convolution window of ``pixels`` output pixels: a loop over the
    rows of the filter."""
    yield from (f"vmov.i32 q{x}, #0" for x in range(pixels))
    yield from ("0:", "mov %[next], %[row]", "add %[row], %[row], %[row_bytes]")
    for weights in _ARM_MVE_WINDOWS_WEIGHTS:
        yield from (f"vldrh.u16 {weights}, [%[tap]]", "add %[tap], %[tap], %[pixel_bytes]")
    for column in range((pixels - 1) * stride + TAPS):
        used = [(x, column - x * stride) for x in range(pixels) if 0 <= column - x * stride < TAPS]
        yield from (f"vldrh.u16 {_PIXEL}, [%[next]]",) if used else ()
        yield "add %[next], %[next], %[pixel_bytes]"
        yield from (f"vfma.f16 q{x}, {_PIXEL}, {_ARM_MVE_WINDOWS_WEIGHTS[tap]}" for x, tap in used)
    yield from ("subs %[left], %[left], #1", "bne 0b")
    yield from (f"vstrh.16 q{x}, [%[where], #{16 * x}]" for x in range(pixels))


def _build_float16_window_body(stride: int, pixels: int) -> Body:
    """Build the body of a float16 convolution window of ``pixels`` output pixels at ``stride``, with its operation
    counts."""
    values = {
        "row": "a",
        "tap": "b",
        "left": "rows",
        "pixel_bytes": "2 * step",
        "row_bytes": "2 * row_step",
        "where": "sums",
    }
    types = {"row": "const uint16_t *", "tap": "const uint16_t *", "next": "const uint16_t *", "where": "uint16_t *"}
    text = [
        f'register {types.get(name, "int32_t ")}{name} __asm__("{register}"){f" = {values[name]}" if name in values else ""};'
        for name, register in _REGISTERS.items()
    ]
    lines = list(_format_window_instructions(stride, pixels))
    clobbers = ", ".join(
        f'"{name}"' for name in ("cc", "memory", *(f"q{x}" for x in range(pixels)), *_ARM_MVE_WINDOWS_WEIGHTS, _PIXEL)
    )
    outputs = ", ".join(
        f'[{name}] "{constraint}"({name})'
        for name, constraint in (("row", "+r"), ("tap", "+r"), ("left", "+r"), ("next", "=&r"))
    )
    inputs = ", ".join(f'[{name}] "r"({name})' for name in ("pixel_bytes", "row_bytes", "where"))
    text += ["__asm__ volatile inline(", *(f'    "{line}\\n"' for line in lines), f"    : {outputs}", f"    : {inputs}"]
    text.append(f"    : {clobbers});")
    loads = sum(line.startswith("vldr") for line in lines)
    iteration = (("vector_load", loads), ("vector", TAPS * pixels), ("alu", loads + 3), ("branch", 1))
    edges = (("alu", 8), ("vector", pixels), ("vector_store", pixels))
    return Body("\n".join(text), edges, BodyLoop("rows", 1, iteration))


WINDOW_BODIES = {float16_window_name(*shape): _build_float16_window_body(*shape) for shape in HALF_WINDOWS}


# ---- Requantisation of rows of sums on MVE: two vectors of a row are narrowed into one.


# ---- An iteration requantises eight columns of every row
#
# VQRSHRNB writes the even halfwords of a vector, VQRSHRNT the odd ones. So VLD2 loads even columns into one vector and odd
# columns into another, both of sums and of constants. VMLA overwrites its addend, which is copied for all rows but the last.
#
# A vector instruction occupies its unit for two cycles, and instructions of different units overlap. As gcc prints the formula,
# one vector of four columns after the other, three rows of eight columns take 92 cycles; in this order 49 (llvm-mca 19).

COLUMNS = 8
"""Columns of an iteration."""
PIPELINE: Mapping[str, Timing] = MappingProxyType(
    {
        "load": Timing("memory", 2, 1),
        "store": Timing("memory", 2, 1),
        "multiply": Timing("multiplier", 2, 2),
        "move": Timing("lanes", 2, 1),
        "narrow": Timing("lanes", 2, 3),
    }
)
"""Vector operations of Cortex-M55, as LLVM's scheduling model has them (ARMScheduleM55.td)."""
_SUM_POINTERS, _RESULT_POINTERS = ("r0", "r1", "r2"), ("r4", "r5", "r6")
"""Registers of the pointers to rows of sums and of results. VSTRB needs a register of r0 to r7; r7 is not used, because it may be
the frame pointer."""
_DTYPES = {
    "i8": ("int8_t", {"to_half": "vqrshr", "half": "s16"}),
    "u8": ("uint8_t", {"to_half": "vqrshru", "half": "u16"}),
}
"""C type of the results, and the words of the narrowing instructions, by suffix."""


def _list_operations(rows: int) -> Iterator[Operation]:
    """Yield the operations of an iteration in the order of rows, with ``$distance`` for the shift and the words of
    ``_DTYPES``."""
    yield from _load_even_and_odd("addend0", "addend1", "addend")
    yield from _load_even_and_odd("multiplier0", "multiplier1", "multiplier")
    for r in range(rows):
        yield from _load_even_and_odd(f"sum{r}0", f"sum{r}1", f"s{r}")
        even, odd = results = [f"addend{v}" if r == rows - 1 else f"result{r}{v}" for v in range(2)]
        for v, result in enumerate(results):
            if r < rows - 1:
                yield Operation(f"vmov <{result}>, <addend{v}>", "move", (result,))
            yield Operation(f"vmla.s32 <{result}>, <sum{r}{v}>, %[factor]", "multiply", (result,))
            yield Operation(f"vmulh.s32 <{result}>, <{result}>, <multiplier{v}>", "multiply", (result,))
        yield Operation(f"${{to_half}}nb.s32 <{even}>, <{even}>, #$distance", "narrow", (even,))
        yield Operation(f"${{to_half}}nt.s32 <{even}>, <{odd}>, #$distance", "narrow", (even,))
        yield Operation(f"vqmovnb.$half <{even}>, <{even}>", "narrow", (even,))
        yield Operation(f"vstrb.16 <{even}>, [%[o{r}]], #{COLUMNS}", "store")


def _load_even_and_odd(even: str, odd: str, pointer: str) -> Iterator[Operation]:
    """Yield the two halves of a load of eight words, which advances the pointer."""
    vectors = f"{{<{even}>, <{odd}>}}"
    yield Operation(f"vld20.32 {vectors}, [%[{pointer}]]", "load", (even, odd))
    yield Operation(f"vld21.32 {vectors}, [%[{pointer}]]!", "load", (even, odd))


def _build_bodies(rows: int) -> Iterator[tuple[str, Body]]:
    """Yield (intrinsic name, C body) for all dtypes and distances of a number of rows.

    All registers are fixed, because compilers would else report that they have run out of registers."""
    operations = tuple(_list_operations(rows))
    order = order_operations(operations, PIPELINE, _VECTOR_REGISTERS)
    loop = ("dls lr, lr", "0:", *order.lines, "le lr, 0b")
    counts = (*count_vector_operations(order.lines), ("branch", 1))
    clobbers = ", ".join(f'"{name}"' for name in ("memory", *_VECTOR_REGISTERS))
    for suffix, (c_type, words) in _DTYPES.items():
        pointers = {"addend": ("const int32_t", "r3", "addend"), "multiplier": ("const int32_t", "r8", "multiplier")}
        for r in range(rows):
            pointers[f"s{r}"] = ("const int32_t", _SUM_POINTERS[r], f"sums{f' + {r} * stride_sums' if r else ''}")
            pointers[f"o{r}"] = (c_type, _RESULT_POINTERS[r], f"out{f' + {r} * stride_out' if r else ''}")
        text = [
            f'register {pointee} *{name}_0 __asm__("{register}") = {start};'
            for name, (pointee, register, start) in pointers.items()
        ]
        outputs = ", ".join((*(f'[{name}] "+r"({name}_0)' for name in pointers), '"+r"(count)'))
        text += [
            'register int32_t factor_0 __asm__("r10") = factor;',
            f'register int32_t count __asm__("lr") = columns / {COLUMNS};',
            "__asm__ volatile inline(",
            *(f'    "{line}\\n"' for line in loop),
            f"    : {outputs}",
            '    : [factor] "r"(factor_0)',
            f"    : {clobbers});",
        ]
        template = Template("\n".join(text))
        for distance in NARROWING_DISTANCES:
            body = template.substitute(words, distance=distance)
            yield (
                requantisation_name(suffix, distance, rows),
                Body(body, (("alu", 4 + 2 * rows),), BodyLoop("columns", COLUMNS, counts)),
            )


# ---- A row by one factor, rounded twice: an iteration requantises 16 columns
#
# Both halves of the columns fill the latencies of each other: 34 cycles, 42 with rounding away from zero, where gcc's loops over
# four columns take 60 and 72 (llvm-mca 19). The multiplier, which is idle, adds the signs.

_TWICE_OPERANDS = {"sums": "r0", "out": "r4", "multiplier": "r8", "shift": "r10", "zero_point": "r12", "one": "r3"}
"""Registers of the operands."""


def _list_twice_rounding_operations(dtype_suffix: str, *, away: bool) -> Iterator[Operation]:
    """Yield the operations of an iteration, eight columns after eight."""
    for half in range(TWICE_COLUMNS // COLUMNS):
        even, odd = vectors = f"even{half}", f"odd{half}"
        yield from _load_even_and_odd(even, odd, "sums")
        for vector in vectors:
            if away:
                yield Operation(f"vshr.s32 <{vector}_sign>, <{vector}>, #31", "move", (f"{vector}_sign",))
            yield Operation(f"vqrdmulh.s32 <{vector}>, <{vector}>, %[multiplier]", "multiply", (vector,))
            if away:
                yield Operation(f"vmla.s32 <{vector}>, <{vector}_sign>, %[one]", "multiply", (vector,))
            yield Operation(f"vrshl.s32 <{vector}>, %[shift]", "move", (vector,))
        yield Operation(f"vqmovnb.s32 <{even}>, <{even}>", "narrow", (even,))
        yield Operation(f"vqmovnt.s32 <{even}>, <{odd}>", "narrow", (even,))
        yield Operation(f"vqadd.s16 <{even}>, <{even}>, %[zero_point]", "move", (even,))
        narrow = "vqmovnb" if dtype_suffix == "i8" else "vqmovunb"
        yield Operation(f"{narrow}.s16 <{even}>, <{even}>", "narrow", (even,))
        yield Operation(f"vstrb.16 <{even}>, [%[out]], #{COLUMNS}", "store")


def _build_twice_rounding_body(dtype_suffix: str, *, away: bool) -> Body:
    """Build the body of the requantisation of a row that rounds twice, with its operation counts."""
    operations = tuple(_list_twice_rounding_operations(dtype_suffix, away=away))
    order = order_operations(operations, PIPELINE, _VECTOR_REGISTERS)
    types = {"sums": "const int32_t *", "out": f"{_DTYPES[dtype_suffix][0]} *"}
    text = [
        f'register {types.get(name, "int32_t ")}{name}_0 __asm__("{register}") = {"1" if name == "one" else name};'
        for name, register in _TWICE_OPERANDS.items()
        if away or name != "one"
    ]
    text.append(f'register int32_t count __asm__("lr") = columns / {TWICE_COLUMNS};')
    outputs = [*(f'[{name}] "+r"({name}_0)' for name in types), _COUNT]
    inputs = [f'[{n}] "r"({n}_0)' for n in _TWICE_OPERANDS if n not in types and (away or n != "one")]
    loop = ("dls lr, lr", "0:", *order.lines, "le lr, 0b")
    text += _format_assembly_statement_lines(loop, outputs, inputs)
    counts = (*count_vector_operations(order.lines), ("branch", 1))
    return Body("\n".join(text), (("alu", 7 + away),), BodyLoop("columns", TWICE_COLUMNS, counts))


REQUANTISATION_BODIES: Mapping[str, Body] = MappingProxyType(
    {name: body for rows in range(1, MAX_ROWS + 1) for name, body in _build_bodies(rows)}
    | {
        twice_rounding_name(suffix, away=away): _build_twice_rounding_body(suffix, away=away)
        for suffix in _DTYPES
        for away in (False, True)
    }
)
