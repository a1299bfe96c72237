"""Inputs, outputs, arenas and constant arrays as the generated C shows them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.codegen.c.c_expressions import ExprPrinter, single
from microc.codegen.render import Code, Name, Quoted, Text
from microc.errors import InternalError
from microc.module import Arena, Module, Plan, Value
from microc.tir import ir
from microc.tir.analysis.simplification import simplify
from microc.tir.rewrite import map_expr, substitute

# ---- Constant arrays as C initialisers.

WIDTH = 112
ALIGNED = 8
"""What constants are aligned to by their types, or as words."""
_MARGIN = 3
"""Columns in front of the first number, the blank before it left out."""


def declaration(value: Value, space: str = "") -> str:
    """``const int8_t name[24]``, without storage class or initialiser. ``space`` is the address space that it lies in."""
    return f"const {space}{dtypes.c_name(value.dtype)} {value.name}[{max(1, np.prod(value.shape, dtype=int))}]"


def aligned_declaration(value: Value, attribute: str, space: str = "") -> str:
    """Declare a constant with the attribute that aligns it: kernels read small elements by words, and external code may ask for
    more, which is the attribute's argument. Declaration and definition have the same one: a compiler believes the declaration."""
    suffix = f" {attribute}" if dtypes.nbytes(value.dtype) < 4 else ""
    if value.align > ALIGNED:
        suffix = f" {attribute}_TO({value.align})"
    return declaration(value, space) + suffix


def definition(value: Value, attribute: str = "", space: str = "") -> list[str]:
    """Print the whole definition, wrapped into lines; with ``attribute``, aligned as :func:`aligned_declaration` says."""
    assert value.data is not None
    lines = _wrapped(*_words(np.ascontiguousarray(value.data).reshape(-1), value.dtype))
    declared = aligned_declaration(value, attribute, space) if attribute else declaration(value, space)
    return [f"{declared} = {{", *lines, "};"]


def _words(flat: Array, dtype: str) -> tuple[list[str], Array]:
    """Numbers, each printed once, and which of them every element is; a lone 0 stands for no element."""
    if not len(flat):
        return ["0"], np.zeros(1, np.int64)
    patterns = flat.view(f"u{flat.itemsize}")  # -0.0 is another number than 0.0
    if flat.itemsize == 1:
        bits, places = np.arange(256, dtype=np.uint8), patterns
    else:
        bits, places = np.unique(patterns, return_inverse=True)
    numbers = bits.view(flat.dtype)
    if dtype == "float32":
        return list(map(single, numbers)), places
    literal = ExprPrinter().literal if dtypes.is_float(dtype) else _integer
    return [literal(number, dtype) for number in numbers.tolist()], places


def _integer(number: int, dtype: str) -> str:
    """An integer in an initialiser; the array's type says the rest, except where a plain literal would not fit."""
    if dtype == "int32" and number == -(1 << 31):
        return "INT32_MIN"
    if dtype == "int64":
        return "INT64_MIN" if number == -(1 << 63) else f"INT64_C({number})"
    if dtype in ("uint32", "uint64"):
        return f"{number}U" if dtype == "uint32" else f"UINT64_C({number})"
    return str(int(number))


def _wrapped(words: list[str], places: Array) -> list[str]:
    """Lines as full as they can be, of the words at ``places``."""
    lengths = np.array([len(word) + 2 for word in words])
    ends = np.cumsum(lengths[places]).tolist()
    every = np.array([f"{word}, " for word in words], "S")[places].tobytes().translate(None, b"\0").decode("ascii")
    lines, start, used = list[str](), 0, 0
    while start < len(ends):
        start = max(start + 1, bisect_right(ends, used + WIDTH - _MARGIN, start))
        lines.append(f"    {every[used : ends[start - 1] - 1]}")
        used = ends[start - 1]
    return lines


# ---- Arenas as the generated C shows them: one pointer on most boards, a struct of them where tensors lie in several
# memories.


@frozen
class ArenaMember:
    """A member of ``struct <name>_arenas``: the memory's name, its macros' stem, bytes that are needed there, where the last
    tensor ends, what puts it there in a project for the board."""

    name: Name
    macro: Name
    size: int
    end: int
    section: Code


@frozen
class ArenaContext:
    """How functions are given memory: the parameter's declaration, its name, and the members, none where it is one arena.
    ``section``: what puts the one arena into its memory; ``aligned``: what aligns an array of ``uint64_t``, where tensors ask
    for more."""

    declaration: Code
    name: Name
    members: tuple[ArenaMember, ...]
    section: Code
    aligned: Code


def arena_context(module: Module) -> ArenaContext:
    """The arenas of a planned module."""
    plan = _plan(module)
    members = tuple(
        ArenaMember(
            Name(arena.memory), Name(arena.memory.upper()), arena.size, _end(module, arena), _section(plan, arena)
        )
        for arena in arenas_apart(plan)
    )
    if members:
        declared = Code(f"const struct {module.name}_arenas *arenas")
        return ArenaContext(declared, Name("arenas"), members, Code(""), aligned_to(plan.align))
    section = next((_section(plan, arena) for arena in plan.used), Code(""))
    return ArenaContext(Code("void *arena"), Name("arena"), (), section, aligned_to(plan.align))


def aligned_to(align: int) -> Code:
    """What aligns an array of ``uint64_t``; nothing where its type does."""
    return Code(f"__attribute__((aligned({align})))" if align > 8 else "")


def arenas_apart(plan: Plan) -> tuple[Arena, ...]:
    """The arenas that functions are given one by one; none where there is one."""
    return plan.used if len(plan.used) > 1 else ()


def placed_at(module: Module, offset: int) -> tuple[str, int]:
    """For a byte of the plan: the pointer to the arena inside the functions of the network, and the offset there."""
    arena = _around(_plan(module), offset)
    return (f"arena_{arena.memory}", offset - arena.start) if arena else ("arena", offset)


def given_at(module: Module, offset: int) -> tuple[str, int]:
    """The same, the pointer as the functions are given it."""
    arena = _around(_plan(module), offset)
    return (f"arenas->{arena.memory}", offset - arena.start) if arena else ("arena", offset)


def copying(module: Module, step: int) -> tuple[Code, ...]:
    """Calls around the copies of weights at the start of a step: it waits for its own, and begins those of the next one."""
    copies = _plan(module).copies
    mine = [name for name in copies if copies[name] >= 0 and name in module.calls[step].args]
    wait = (Code(f"{module.name}_copy_wait();"),) if mine else ()
    now = [name for name in mine if copies[name] == step]  # of the first step, which no other is before
    later = [name for name, begin in copies.items() if begin == step and name not in mine]
    return (*(_begun(module, name) for name in now), *wait, *(_begun(module, name) for name in later))


def _begun(module: Module, name: str) -> Code:
    arena, offset = placed_at(module, _plan(module).offsets[name])
    return Code(f"{module.name}_copy_begin({arena} + {offset}, {module.name}_{name}, {module.values[name].nbytes}u);")


def _around(plan: Plan, offset: int) -> Arena | None:
    several = arenas_apart(plan)
    return next((arena for arena in reversed(several) if arena.start <= offset), None)


def _plan(module: Module) -> Plan:
    if module.plan is None:
        raise InternalError("the module has no memory plan")
    return module.plan


def _section(plan: Plan, arena: Arena) -> Code:
    """Variables lie in the board's first RAM by themselves; for the others its linker script has sections."""
    return Code("" if arena == plan.arenas[0] else f'__attribute__((section(".{arena.memory}")))')


def _end(module: Module, arena: Arena) -> int:
    inside = range(arena.start, arena.start + arena.size)
    ends = (at + module.values[name].nbytes for name, at in _plan(module).offsets.items() if at in inside)
    return max(ends) - arena.start


# ---- Inputs and outputs as the header shows them: types, shapes, what their integers stand for, names of classes.

CONVERTED = ("int8", "uint8", "int16", "uint16", "int32")
"""dtypes whose every number, and every difference of it and a zero point, the header's functions compute in C99's integers."""
SUFFIXES = ("elements", "quantize", "dequantize")
"""What the header puts behind the name of an input or output, for functions."""
_LONGEST = 64
"""Letters of an enumerator that are a class's."""


@frozen
class Conversion:
    """How reals become the stored integers of a tensor: steps of ``scale``, brought into ``least`` to ``most``, the nearest one
    with ties to ``even`` or away from zero, plus ``zero_point``; from ``low`` to ``high``."""

    scale: Code
    zero_point: int
    least: Code
    most: Code
    low: Code
    high: Code
    even: bool


@frozen
class Tensor:
    """An input or output in the header: C type and name, a macro stem, sizes, its meaning, its place in an arena."""

    name: Name
    macro: Name
    type: Code
    shape: tuple[int, ...]
    elements: int
    bytes: int
    meaning: Code
    label: Text
    arena: Code
    offset: int | None
    count: Code
    """Its elements as an expression over ``sizes->...``; empty where they do not vary."""
    conversion: Conversion | None
    """None where its numbers stand for themselves."""


@frozen
class Classes:
    """The classes that an output tells apart: their enumerators, and their names as string literals of C."""

    output: Name
    enumerators: tuple[Name, ...]
    names: tuple[Quoted, ...]


def tensor_of(module: Module, name: str) -> Tensor:
    """The header's view of an input or output."""
    value = module.values[name]
    shape = "x".join(map(str, value.shape)) or "scalar"
    meaning = shape
    if value.scale is not None:
        meaning += f", real = {value.scale:.9g} * (q - {value.zero_point})"
    count = Code()
    if value.extents:
        meaning = meaning.replace(shape, " x ".join(extent_text(module, e) for e in value.extents), 1)
        count = Code(_count(module, value.extents))
    at = module.plan.offsets.get(name) if module.plan else None
    arena, offset = ("", None) if at is None else given_at(module, at)
    return Tensor(
        name=Name(name),
        macro=Name(name.upper()),
        type=Code(dtypes.c_name(value.dtype)),
        shape=value.shape,
        elements=prod(value.shape),
        bytes=value.nbytes,
        meaning=Code(meaning),
        label=Text(value.label),
        arena=Code(arena),
        offset=offset,
        count=count,
        conversion=_conversion(value, even=module.ties == "even"),
    )


def _count(module: Module, extents: Sequence[ir.Expr]) -> str:
    """The number of elements as C over the members of ``sizes``."""
    total: ir.Expr = ir.const(1, "int32")
    for extent in extents:
        total = total * extent
    members = {size.scalar: ir.Var(f"sizes->{size.name}") for size in module.sizes}
    bounds = {members[size.scalar]: (size.minimum, size.maximum) for size in module.sizes}

    def truncated(expr: ir.Expr) -> ir.Expr:  # an extent is not negative, so that C's division is the floored one
        return ir.Bin("truncdiv", expr.a, expr.b) if isinstance(expr, ir.Bin) and expr.op == "floordiv" else expr

    return ExprPrinter()(map_expr(simplify(substitute(total, members), bounds), truncated))


def extent_text(module: Module, extent: ir.Expr) -> str:
    """An extent for readers: over the sizes' names."""
    members = {size.scalar: ir.Var(size.name) for size in module.sizes}
    text = ExprPrinter()(substitute(extent, members))
    return text if isinstance(extent, (ir.Const, ir.Var)) else f"({text})"


def _conversion(value: Value, *, even: bool) -> Conversion | None:
    """What the operator ``quantize`` would do in front of the network, bit for bit (:mod:`microc.ops.quantised.quantization`)."""
    if value.scale is None or value.zero_point is None or value.dtype not in CONVERTED:
        return None
    low, high = dtypes.int_range(value.dtype)
    zero, (least, most) = value.zero_point, dtypes.int_range("int32")
    first, last = np.float32(max(low - zero, least)), min(high - zero, most)
    end = np.float32(last)
    end = end if float(end) <= last else np.nextafter(end, np.float32(-np.inf))
    literal = ExprPrinter().literal
    return Conversion(
        scale=Code(literal(float(np.float32(value.scale)), "float32")),
        zero_point=zero,
        least=Code(literal(float(first), "float32")),
        most=Code(literal(float(end), "float32")),
        low=Code(literal(max(low, int(first) + zero), "int32")),
        high=Code(literal(min(high, int(end) + zero), "int32")),
        even=even,
    )


def classes_of(module: Module) -> Classes | None:
    """The classes, as far as the module has names of them."""
    if not module.classes:
        return None
    taken = set(_macros(module))
    enumerators = []
    for number, label in enumerate(module.classes):
        word = re.sub(r"[^0-9A-Za-z]+", "_", label).strip("_").upper()[:_LONGEST].strip("_") or str(number)
        found, more = f"{module.name.upper()}_CLASS_{word}", 2
        while found in taken:
            found, more = f"{module.name.upper()}_CLASS_{word}_{more}", more + 1
        taken.add(found)
        enumerators.append(Name(found))
    return Classes(Name(module.class_output), tuple(enumerators), tuple(map(Quoted, module.classes)))


def _macros(module: Module) -> Iterable[str]:
    """What the header defines of inputs, outputs and sizes that may look like a class."""
    upper = module.name.upper()
    ends = ("SIZE", "BYTES", "TYPE", "RANK", "SHAPE", "SCALE", "ZERO_POINT", *(f"DIM_{k}" for k in range(32)))
    for name in (*module.inputs, *module.outputs):
        yield from (f"{upper}_{name.upper()}_{end}" for end in ends)
    yield from (f"{upper}_{size.name.upper()}_{end}" for size in module.sizes for end in ("MIN", "MAX", "STEP"))
    yield f"{upper}_CLASS_COUNT"
