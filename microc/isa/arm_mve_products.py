"""Products of matrices on MVE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from microc.isa.instruction_set import Body, Turns
from microc.isa.vocabulary.matrix_products import (
    BITS,
    HALF_WINDOWS,
    PRODUCT_SHAPES,
    ROW_DEPTHS,
    TAPS,
    half_window_name,
    product_name,
    row_name,
)
from microc.tir.bit_fields import LANES as BIT_FIELDS_LANES
from microc.tir.bit_fields import BitFields

# ---- Products of small matrices on MVE: 16 (bytes) or 8 (wider) products an instruction.
#
# The instructions are a loop of three vectors an iteration where that comes out even, else of four, with what these leave behind
# it, and none where there are no more vectors than that. Every vector is loaded once and multiplied with all of the other side
# (``VMLADAVA`` sums across lanes into a core register, which must have an even number, so that there are at most six sums).
# Weights of few bits are loaded as bytes of several; shifted up and masked, each field is a vector of weights times a power of
# two, by which the sums are divided behind the loop.

UNROLLED = (3, 4)
"""Vectors of an iteration: the first where they come out even, since of more the turn that stands apart would be longer."""
STRAIGHT = 4
"""Vectors that take no loop."""
_SUMS = ("r8", "r10", "r12", "r0", "r2", "r4")
_FIELD, _MASK = "q6", "q7"
"""A field of the bytes of a column, and what masks the highest."""
_ADDRESSES = {8: ("r1", "r3", "r5", "r6", "r9"), 16: ("r1", "r3", "r5", "r6", "r2")}
"""Registers by bits of the products; r7 may be the frame pointer, and loads that widen want one of r0 to r7."""
_COUNT = '"+r"(count)'


def _instructions(a: str, b: str, rows: int, columns: int) -> str:
    """The loop: a load right before the multiplications that use it, so that loads and products overlap. Registers are
    chosen here, since a compiler that is short of them would give up."""
    form, size = BITS.get(b), 8 if a == "int8" and b != "int16" else 16
    lines = _plain_lines(a, b, rows, columns, size) if form is None else _field_lines(form, rows, columns)
    sums = [f"c{r}{c}" for r in range(rows) for c in range(columns)]
    pointers = [f"a{r}" for r in range(rows)] + [f"b{c}" for c in range(columns)]
    moved = [f'[{name}] "+r"({name})' for name in pointers]
    kept, made = ([f'[{name}] "{how}"({name})' for name in sums] for how in ("+r", "=&r"))
    made = made if rows > 1 else kept
    clobbers = ", ".join(f'"q{n}"' for n in range(8 if form else rows + columns))
    starts = [(a, f"a{f' + {r} * stride_a' if r else ''}") for r in range(rows)]
    starts += [(form.dtype if form else b, f"b{f' + {c} * stride_b' if c else ''}") for c in range(columns)]
    registers = _ADDRESSES[size]
    text = [
        f'register const {kind}_t *{name} __asm__("{register}") = {start};'
        for name, register, (kind, start) in zip(pointers, registers, starts, strict=False)
    ]
    places = {
        f"c{r}{c}": f"sums[{f'{r} * stride_sums + ' if r else ''}{c}]" for r in range(rows) for c in range(columns)
    }
    first = {name: f"start[{name[2:]}]" if rows == 1 else "0" for name in places}
    text += [
        f'register int32_t {name} __asm__("{register}") = {"0" if form else first[name]};'
        for name, register in zip(places, _SUMS, strict=False)
    ]
    text.append('register int32_t count __asm__("lr");')
    if form is not None:
        text += _groups(form, lines, kept + moved, clobbers)
    else:
        inputs = [f'[{name}] "r"({name})' for name in pointers]
        fresh = rows * columns if rows > 1 else 0
        for times in range(1, STRAIGHT + 1):
            vectors, elements = [_plain_lines(a, b, rows, columns, size, k) for k in range(times)], times * 128 // size
            part = _begun([line for lines in (*vectors[:-1], _first(vectors[-1], size)) for line in lines], fresh)
            text += [f"if (depth < {elements}) {{", f"    count = depth % {128 // size};"]
            text += [*_assembly(part, made, [*inputs, '[count] "r"(count)'], clobbers), "} else"]
            straight = _begun([line for lines in vectors for line in lines], fresh)
            text += [f"if (depth == {elements}) {{", *_assembly(straight, made, inputs, clobbers), "} else"]
        if fresh:
            text += _loops(size, lines, kept + moved, made + moved, clobbers, fresh)
        else:
            single = [f"c0{c} += (int32_t)*a0 * *b{c};" for c in range(columns)]
            text += _row(size, lines, kept + moved, clobbers, single)
    for name, place in places.items():
        if name == "c02":  # or a compiler gathers the sums on the stack, to store them as a vector
            text.append('__asm__ volatile("" : : : "memory");')
        field = f"{name} >> {8 - form.bits}" if form else name
        text.append(f"{place} = {f'{first[name]} + ({field})' if form and rows == 1 else field};")
    return "\n".join(text)


def _plain_lines(a: str, b: str, rows: int, columns: int, size: int, number: int | None = None) -> list[str]:
    """A vector of every row and column: bytes, or what loads widen to 16 bits; the next ones, or those of a ``number``."""
    load = {"int8": f"vldrb.{'8' if size == 8 else 's16'}", "uint8": "vldrb.u16", "int16": "vldrh.u16"}
    advance = {"int8": 16 if size == 8 else 8, "uint8": 8, "int16": 16}

    def loaded(kind: str, register: int, pointer: str) -> str:
        step = advance[kind]
        return f"{load[kind]} q{register}, [%[{pointer}]{f'], #{step}' if number is None else f', #{step * number}]'}"

    lines = [loaded(a, r, f"a{r}") for r in range(rows)]
    for c in range(columns):
        lines.append(loaded(b, rows + c, f"b{c}"))
        lines += [f"vmladava.s{size} %[c{r}{c}], q{r}, q{rows + c}" for r in range(rows)]
    return lines


def _field_lines(form: BitFields, rows: int, columns: int) -> list[str]:
    """16 bytes of every column; of each of their fields, the lowest first, a vector of every row and the products."""
    lines = [f"vldrb.8 q{rows + c}, [%[b{c}]], #{BIT_FIELDS_LANES}" for c in range(columns)]
    for field in range(form.count):
        up = 8 - form.bits * (field + 1)
        lines += [f"vldrb.8 q{r}, [%[a{r}]], #{BIT_FIELDS_LANES}" for r in range(rows)]
        for c in range(columns):
            lines += [f"vshl.i8 {_FIELD}, q{rows + c}, #{up}"] if up else []
            if field:  # the shift of the lowest leaves nothing else
                lines.append(f"vand {_FIELD}, {_FIELD if up else f'q{rows + c}'}, {_MASK}")
            lines += [f"vmladava.s8 %[c{r}{c}], q{r}, {_FIELD}" for r in range(rows)]
    return lines


def _groups(form: BitFields, lines: list[str], outputs: list[str], clobbers: str) -> Iterator[str]:
    """The loop over 16 bytes of weights at a time."""
    yield f"count = depth / {form.group};"
    mask = (0xFF << 8 - form.bits) & 0xFF
    loop = (f"vmov.i8 {_MASK}, #{mask}", "dls lr, lr", "0:", *lines, "le lr, 0b")
    yield from _assembly(loop, [*outputs, _COUNT], [], clobbers)


def _first(lines: list[str], size: int) -> list[str]:
    """The lines of a vector for its first ``count`` numbers: zeros are loaded behind them."""
    loads = [line.replace(".", "t.", 1) for line in lines if line.startswith("vldr")]
    runs = [loads[k : k + 4] for k in range(0, len(loads), 4)]
    chosen = [line for run in runs for line in (f"vps{'t' * len(run)}", *run)]
    return [f"vctp.{size} %[count]", *chosen, *(line for line in lines if not line.startswith("vldr"))]


def _begun(lines: list[str], sums: int) -> list[str]:
    """The lines whose first products of so many sums start these."""
    first = [k for k, line in enumerate(lines) if line.startswith("vmladava")][:sums]
    return [line.replace("vmladava", "vmladav") if k in first else line for k, line in enumerate(lines)]


def _loops(
    size: int, lines: list[str], outputs: list[str], made: list[str], clobbers: str, fresh: int
) -> Iterator[str]:
    """Three vectors in a loop where that comes out even; else four, in a loop, too, where they are more than once there, and what
    these leave tail-predicated. The turn that so many ``fresh`` sums start in stands apart."""
    (few, most), lanes = UNROLLED, 128 // size
    turn = lines * few
    yield from (f"if (depth % {few * lanes} == 0) {{", f"    count = depth / {few * lanes} - 1;")
    text = [*_begun(turn, fresh), "dls lr, lr", "0:", *turn, "le lr, 0b"]
    yield from _assembly(text, [*made, _COUNT], [], clobbers)
    turn = lines * most
    yield "} else {"
    yield from _assembly(_begun(turn, fresh), made, [], clobbers)
    yield from (f"    if (depth >= {2 * most * lanes}) {{", f"        count = depth / {most * lanes} - 1;")
    yield from _assembly(("dls lr, lr", "0:", *turn, "le lr, 0b"), [*outputs, _COUNT], [], clobbers)
    yield from ("    }", f"    if (depth % {most * lanes} > 0) {{", f"        count = depth % {most * lanes};")
    loop = (f"dlstp.{size} lr, lr", "0:", *lines, "letp lr, 0b")
    yield from _assembly(loop, [*outputs, _COUNT], [], clobbers)
    yield from ("    }", "}")


def _row(size: int, lines: list[str], outputs: list[str], clobbers: str, single: list[str]) -> Iterator[str]:
    """Three vectors in a loop where that comes out even; else four, in a loop where they are more than once there, then up to
    three, and the first numbers of one, or a ``single`` one without vectors."""
    lanes, most = 128 // size, max(UNROLLED)
    yield from (f"if (depth % {UNROLLED[0] * lanes} == 0) {{", f"    count = depth / {UNROLLED[0] * lanes};")
    yield from _assembly(("dls lr, lr", "0:", *lines * UNROLLED[0], "le lr, 0b"), [*outputs, _COUNT], [], clobbers)
    yield from ("} else {", f"    if (depth / {most * lanes} == 1) {{")
    yield from _assembly(lines * most, outputs, [], clobbers)
    yield from ("    } else {", f"        count = depth / {most * lanes};")
    yield from _assembly(("dls lr, lr", "0:", *lines * most, "le lr, 0b"), [*outputs, _COUNT], [], clobbers)
    yield "    }"
    for times in range(1, most):
        yield f"    if (depth % {most * lanes} / {lanes} == {times}) {{"
        yield from _assembly(lines * times, outputs, [], clobbers)
        yield "    }"
    yield from (f"    if (depth % {lanes} == 1) {{", *(f"        {line}" for line in single), "    }")
    yield from (f"    if (depth % {lanes} > 1) {{", f"        count = depth % {lanes};")
    yield from _assembly(_first(lines, size), outputs, ['[count] "r"(count)'], clobbers)
    yield from ("    }", "}")


def _assembly(lines: Sequence[str], outputs: list[str], inputs: list[str], clobbers: str) -> Iterator[str]:
    """The statement around instructions, ``inline``: else their number keeps compilers from inlining the function,
    whose depth then is no literal."""
    yield "    __asm__ volatile inline("
    yield from (f'        "{line}\\n"' for line in lines)
    yield f"        : {', '.join(outputs)}"
    yield f"        : {', '.join(inputs)}"
    yield f'        : "memory", {clobbers});'


def _arm_mve_products_body(a: str, b: str, rows: int, columns: int) -> Body:
    form, half = BITS.get(b), (rows * columns + 1) // 2  # two neighbours are loaded, and stored, by one instruction
    text = _instructions(a, b, rows, columns)
    edges, alu = (("load", half), ("store", half)), 3 + rows + columns
    if form is None:
        turn = (("vector_load", rows + columns), ("vector", rows * columns), ("branch", 1))
        return Body(text, (*edges, ("alu", alu)), Turns("depth", 16 if a == b == "int8" else 8, turn))
    lines = _field_lines(form, rows, columns)
    loads = sum(line.startswith("vldr") for line in lines)
    turn = (("vector_load", loads), ("vector", len(lines) - loads), ("branch", 1))
    return Body(text, (*edges, ("alu", alu + 1 + 2 * rows * columns)), Turns("depth", form.group, turn))


PRODUCT_BODIES: Mapping[str, Body] = MappingProxyType(
    {product_name(*shape): _arm_mve_products_body(*shape) for shape in PRODUCT_SHAPES}
)


# ---- A row of bytes by many rows of weights on MVE: the row stays in vector registers while the weights pass, one
# after the other.
#
# Two sums an iteration: one instruction loads what they start with and one stores them; of every vector of weights a load and a
# product remain, where a product of one row by four loads five vectors for four products.

LANES = 16
_ARM_MVE_ROWS_WEIGHTS, _AGAIN = 7, 6
"""Registers of a vector of weights, and of one of the row that has none of its own."""
_PAIR = ("c0", "c1")


def _arm_mve_rows_body(depth: int) -> Body:
    vectors = depth // LANES
    kept = vectors if vectors <= _ARM_MVE_ROWS_WEIGHTS else _AGAIN
    lines = [_arm_mve_rows_row(k, k) for k in range(kept)]
    lines += ["dls lr, lr", "0:", "ldrd %[c0], %[c1], [%[start]], #8"]
    for total in _PAIR:
        for k in range(vectors):
            again = [] if k < kept else [_arm_mve_rows_row(k, _AGAIN)]
            product = f"vmladava.s8 %[{total}], q{_AGAIN if again else k}, q{_ARM_MVE_ROWS_WEIGHTS}"
            lines += [*again, f"vldrb.8 q{_ARM_MVE_ROWS_WEIGHTS}, [%[b]], #{LANES}", product]
    lines += ["strd %[c0], %[c1], [%[sums]], #8", "le lr, 0b"]
    clobbers = ", ".join(f'"q{n}"' for n in range(_ARM_MVE_ROWS_WEIGHTS + 1))
    text = "\n".join(
        (
            'register int32_t c0 __asm__("r8");',
            'register int32_t c1 __asm__("r10");',
            'register int32_t count __asm__("lr") = columns / 2;',
            "__asm__ volatile inline(",
            *(f'    "{line}\\n"' for line in lines),
            '    : [c0] "=&r"(c0), [c1] "=&r"(c1), [b] "+r"(b), [start] "+r"(start), [sums] "+r"(sums), "+r"(count)',
            '    : [a] "r"(a)',
            f'    : "memory", {clobbers});',
        )
    )
    loads = len(_PAIR) * (2 * vectors - kept)
    turn = (("load", 1), ("paired", 1), ("store", 1), ("vector_load", loads), ("vector", len(_PAIR) * vectors))
    return Body(text, (("vector_load", kept), ("alu", 4)), Turns("columns", len(_PAIR), (*turn, ("branch", 1))))


def _arm_mve_rows_row(number: int, register: int) -> str:
    return f"vldrb.8 q{register}, [%[a], #{LANES * number}]"


ROW_BODIES: Mapping[str, Body] = MappingProxyType({row_name(depth): _arm_mve_rows_body(depth) for depth in ROW_DEPTHS})


# ---- MVE's windows over halves: a row's three taps in registers while its pixels are loaded, each once for all its
# products.

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


def _lines(stride: int, pixels: int) -> Iterator[str]:
    """Rows of taps, one after the other."""
    yield from (f"vmov.i32 q{x}, #0" for x in range(pixels))
    yield from ("0:", "mov %[next], %[row]", "add %[row], %[row], %[row_bytes]")
    for weights in _ARM_MVE_WINDOWS_WEIGHTS:
        yield from (f"vldrh.u16 {weights}, [%[tap]]", "add %[tap], %[tap], %[pixel_bytes]")
    for place in range((pixels - 1) * stride + TAPS):
        used = [(x, place - x * stride) for x in range(pixels) if 0 <= place - x * stride < TAPS]
        yield from (f"vldrh.u16 {_PIXEL}, [%[next]]",) if used else ()
        yield "add %[next], %[next], %[pixel_bytes]"
        yield from (f"vfma.f16 q{x}, {_PIXEL}, {_ARM_MVE_WINDOWS_WEIGHTS[tap]}" for x, tap in used)
    yield from ("subs %[left], %[left], #1", "bne 0b")
    yield from (f"vstrh.16 q{x}, [%[where], #{16 * x}]" for x in range(pixels))


def _body(stride: int, pixels: int) -> Body:
    values = {
        "row": "a",
        "tap": "b",
        "left": "rows",
        "pixel_bytes": "2 * step",
        "row_bytes": "2 * row_step",
        "where": "sums",
    }
    kinds = {"row": "const uint16_t *", "tap": "const uint16_t *", "next": "const uint16_t *", "where": "uint16_t *"}
    text = [
        f'register {kinds.get(name, "int32_t ")}{name} __asm__("{register}"){f" = {values[name]}" if name in values else ""};'
        for name, register in _REGISTERS.items()
    ]
    lines = list(_lines(stride, pixels))
    clobbers = ", ".join(
        f'"{name}"' for name in ("cc", "memory", *(f"q{x}" for x in range(pixels)), *_ARM_MVE_WINDOWS_WEIGHTS, _PIXEL)
    )
    moved = ", ".join(
        f'[{name}] "{how}"({name})' for name, how in (("row", "+r"), ("tap", "+r"), ("left", "+r"), ("next", "=&r"))
    )
    given = ", ".join(f'[{name}] "r"({name})' for name in ("pixel_bytes", "row_bytes", "where"))
    text += ["__asm__ volatile inline(", *(f'    "{line}\\n"' for line in lines), f"    : {moved}", f"    : {given}"]
    text.append(f"    : {clobbers});")
    loads = sum(line.startswith("vldr") for line in lines)
    turn = (("vector_load", loads), ("vector", TAPS * pixels), ("alu", loads + 3), ("branch", 1))
    edges = (("alu", 8), ("vector", pixels), ("vector_store", pixels))
    return Body("\n".join(text), edges, Turns("rows", 1, turn))


WINDOW_BODIES = {half_window_name(*shape): _body(*shape) for shape in HALF_WINDOWS}
