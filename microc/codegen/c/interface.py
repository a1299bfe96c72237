"""Inputs, outputs, arenas and constant arrays in generated C."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.codegen.c.c_expressions import ExprPrinter, float32_literal
from microc.codegen.render import Code, Name, Quoted, Text
from microc.errors import InternalError
from microc.module import Arena, Module, Plan, Value
from microc.tir import ir
from microc.tir.analysis.simplification import simplify
from microc.tir.rewrite import map_expr, substitute

# ---- Constant arrays as C initialisers.

WIDTH = 112
DEFAULT_ALIGNMENT = 8
"""Alignment in bytes that constants have by their types, or as words."""
_MARGIN = 3
"""Columns before the first number, less the blank in front of it."""


def constant_declaration(value: Value, address_space: str = "") -> str:
    """Return a constant's declaration in C, such as ``const int8_t name[24]``, without storage class or initialiser.

    ``address_space``: the address space of constants, empty if there is only one."""
    return f"const {address_space}{dtypes.c_name(value.dtype)} {value.name}[{max(1, np.prod(value.shape, dtype=int))}]"


def aligned_declaration(value: Value, attribute: str, address_space: str = "") -> str:
    """Return a constant's declaration with the attribute that aligns it.

    Kernels load small elements as words; external code may require more, which is the attribute's argument. Declaration and
    definition have the same attribute, since a compiler relies on the declaration.
    """
    suffix = f" {attribute}" if dtypes.nbytes(value.dtype) < 4 else ""
    if value.align > DEFAULT_ALIGNMENT:
        suffix = f" {attribute}_TO({value.align})"
    return constant_declaration(value, address_space) + suffix


def constant_definition(value: Value, attribute: str = "", address_space: str = "") -> list[str]:
    """Print a constant's definition, wrapped into lines; with ``attribute``, aligned as by :func:`aligned_declaration`."""
    assert value.data is not None
    lines = _wrap_words(*_distinct_literals(np.ascontiguousarray(value.data).reshape(-1), value.dtype))
    declaration_text = (
        aligned_declaration(value, attribute, address_space)
        if attribute
        else constant_declaration(value, address_space)
    )
    return [f"{declaration_text} = {{", *lines, "};"]


def _distinct_literals(flat: Array, dtype: str) -> tuple[list[str], Array]:
    """Return the distinct numbers of an array as literals of C, and for every element the index of its literal; an empty
    array is printed as a 0."""
    if not len(flat):
        return ["0"], np.zeros(1, np.int64)
    patterns = flat.view(f"u{flat.itemsize}")  # -0.0 is another number than 0.0
    if flat.itemsize == 1:
        bits, word_indices = np.arange(256, dtype=np.uint8), patterns
    else:
        bits, word_indices = np.unique(patterns, return_inverse=True)
    numbers = bits.view(flat.dtype)
    if dtype == "float32":
        return list(map(float32_literal, numbers)), word_indices
    literal = ExprPrinter().literal if dtypes.is_float(dtype) else _integer_literal
    return [literal(number, dtype) for number in numbers.tolist()], word_indices


def _integer_literal(number: int, dtype: str) -> str:
    """Print an integer as a literal in an initialiser.

    It has a suffix or macro only where a plain literal would not have the right value or type."""
    if dtype == "int32" and number == -(1 << 31):
        return "INT32_MIN"
    if dtype == "int64":
        return "INT64_MIN" if number == -(1 << 63) else f"INT64_C({number})"
    if dtype in ("uint32", "uint64"):
        return f"{number}U" if dtype == "uint32" else f"UINT64_C({number})"
    return str(int(number))


def _wrap_words(words: list[str], word_indices: Array) -> list[str]:
    """Fill lines with the words at ``word_indices``, as many as fit in each."""
    lengths = np.array([len(word) + 2 for word in words])
    ends = np.cumsum(lengths[word_indices]).tolist()
    padded_words = (
        np.array([f"{word}, " for word in words], "S")[word_indices].tobytes().translate(None, b"\0").decode("ascii")
    )
    lines, start, used = list[str](), 0, 0
    while start < len(ends):
        start = max(start + 1, bisect_right(ends, used + WIDTH - _MARGIN, start))
        lines.append(f"    {padded_words[used : ends[start - 1] - 1]}")
        used = ends[start - 1]
    return lines


# ---- Arenas: one pointer on most boards, a struct of pointers if tensors are in several memories.


@frozen
class ArenaMember:
    """A member of ``struct <name>_arenas``: the memory's name, the stem of its macros, bytes needed, end of the last tensor,
    and the attribute that places it in a project for the board."""

    name: Name
    macro: Name
    size: int
    end: int
    section: Code


@frozen
class ArenaContext:
    """The arena parameter of functions: its declaration, its name, and the members (none for a single arena).

    ``section`` places a single arena in its memory. ``aligned`` aligns an array of ``uint64_t`` for tensors that require
    more.
    """

    declaration: Code
    name: Name
    members: tuple[ArenaMember, ...]
    section: Code
    aligned: Code


def arena_context(module: Module) -> ArenaContext:
    """Return the arenas of a planned module."""
    plan = _memory_plan(module)
    members = tuple(
        ArenaMember(
            Name(arena.memory),
            Name(arena.memory.upper()),
            arena.size,
            _arena_end(module, arena),
            _section_attribute(plan, arena),
        )
        for arena in separate_arenas(plan)
    )
    if members:
        declared = Code(f"const struct {module.name}_arenas *arenas")
        return ArenaContext(declared, Name("arenas"), members, Code(""), alignment_attribute(plan.align))
    section = next((_section_attribute(plan, arena) for arena in plan.used), Code(""))
    return ArenaContext(Code("void *arena"), Name("arena"), (), section, alignment_attribute(plan.align))


def alignment_attribute(align: int) -> Code:
    """Return the attribute that aligns an array of ``uint64_t``; empty if its type suffices."""
    return Code(f"__attribute__((aligned({align})))" if align > 8 else "")


def separate_arenas(plan: Plan) -> tuple[Arena, ...]:
    """Return the arenas that are passed as members of a struct; none if there is only one."""
    return plan.used if len(plan.used) > 1 else ()


def pointer_inside_run(module: Module, offset: int) -> tuple[str, int]:
    """Return the C name of the pointer to the arena of a byte of the plan, and the byte's offset from that pointer.

    The name is that inside of the network's functions. ``offset``: of the byte in the memory plan."""
    arena = _arena_of(_memory_plan(module), offset)
    return (f"arena_{arena.memory}", offset - arena.start) if arena else ("arena", offset)


def pointer_from_caller(module: Module, offset: int) -> tuple[str, int]:
    """Return the C expression of the pointer to the arena of a byte of the plan, and the byte's offset from that pointer.

    The expression is that in callers of the network's functions. ``offset``: of the byte in the memory plan."""
    arena = _arena_of(_memory_plan(module), offset)
    return (f"arenas->{arena.memory}", offset - arena.start) if arena else ("arena", offset)


def weight_copy_calls(module: Module, step: int) -> tuple[Code, ...]:
    """Return the calls that copy weights at the start of a step: wait for its own copies, then begin those for the next
    step."""
    copies = _memory_plan(module).copies
    copies_used = [name for name in copies if copies[name] >= 0 and name in module.calls[step].args]
    wait = (Code(f"{module.name}_copy_wait();"),) if copies_used else ()
    begin_here = [
        name for name in copies_used if copies[name] == step
    ]  # only the first step begins its own: no step is before it
    begin_for_next = [name for name, begin in copies.items() if begin == step and name not in copies_used]
    return (
        *(_begin_copy(module, name) for name in begin_here),
        *wait,
        *(_begin_copy(module, name) for name in begin_for_next),
    )


def _begin_copy(module: Module, name: str) -> Code:
    arena, offset = pointer_inside_run(module, _memory_plan(module).offsets[name])
    return Code(f"{module.name}_copy_begin({arena} + {offset}, {module.name}_{name}, {module.values[name].nbytes}u);")


def _arena_of(plan: Plan, offset: int) -> Arena | None:
    """Return the arena that holds a byte of the plan; None if the plan has a single arena."""
    several = separate_arenas(plan)
    return next((arena for arena in reversed(several) if arena.start <= offset), None)


def _memory_plan(module: Module) -> Plan:
    """Return a module's memory plan. InternalError if it has none."""
    if module.plan is None:
        raise InternalError("the module has no memory plan")
    return module.plan


def _section_attribute(plan: Plan, arena: Arena) -> Code:
    """Return the attribute that places an arena in its memory.

    The board's first RAM needs none, others have sections in the linker script."""
    return Code("" if arena == plan.arenas[0] else f'__attribute__((section(".{arena.memory}")))')


def _arena_end(module: Module, arena: Arena) -> int:
    """Return the end of the last tensor in an arena, in bytes from the arena's start."""
    span = range(arena.start, arena.start + arena.size)
    ends = (at + module.values[name].nbytes for name, at in _memory_plan(module).offsets.items() if at in span)
    return max(ends) - arena.start


# ---- Inputs and outputs in the header: types, shapes, quantisation, names of classes.

CONVERTIBLE = ("int8", "uint8", "int16", "uint16", "int32")
"""Dtypes for which the header's functions quantise and dequantise: all values, less a zero point, fit C99's exact
integers."""
TENSOR_FUNCTION_SUFFIXES = ("elements", "quantize", "dequantize")
"""Suffixes that the header appends to an input's or output's name, for functions."""
_LONGEST = 64
"""Maximum length of a class's name in an enumerator."""


@frozen
class Conversion:
    """Constants of a tensor's quantisation: q = clamp(round(clamp(x / scale, least, most)) + zero_point, low, high).

    ``even``: ties are rounded to even, else away from zero.
    """

    scale: Code
    zero_point: int
    least: Code
    most: Code
    low: Code
    high: Code
    even: bool


@frozen
class InterfaceTensor:
    """An input or output in the header: C type and name, stem of macros, sizes, meaning, position in an arena."""

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
    """Number of elements as an expression over ``sizes->...``; empty if it is fixed."""
    conversion: Conversion | None
    """None if the stored numbers are the values themselves."""


@frozen
class Classes:
    """The classes of an output: their enumerators, and their names as C string literals."""

    output: Name
    enumerators: tuple[Name, ...]
    names: tuple[Quoted, ...]


def interface_tensor_of(module: Module, name: str) -> InterfaceTensor:
    """Return the variables of an input or output for the template of the header."""
    value = module.values[name]
    shape = "x".join(map(str, value.shape)) or "scalar"
    meaning = shape
    if value.scale is not None:
        meaning += f", real = {value.scale:.9g} * (q - {value.zero_point})"
    count = Code()
    if value.extents:
        meaning = meaning.replace(shape, " x ".join(extent_text(module, e) for e in value.extents), 1)
        count = Code(_element_count_expression(module, value.extents))
    at = module.plan.offsets.get(name) if module.plan else None
    arena, offset = ("", None) if at is None else pointer_from_caller(module, at)
    return InterfaceTensor(
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
        conversion=_quantisation_constants(value, ties_to_even=module.ties == "even"),
    )


def _element_count_expression(module: Module, extents: Sequence[ir.Expr]) -> str:
    """Print the number of elements of a tensor of varying size as a C expression over the members of ``sizes``."""
    total: ir.Expr = ir.const(1, "int32")
    for extent in extents:
        total = total * extent
    members = {size.scalar: ir.Var(f"sizes->{size.name}") for size in module.sizes}
    bounds = {members[size.scalar]: (size.minimum, size.maximum) for size in module.sizes}

    def use_c_division(expr: ir.Expr) -> ir.Expr:  # an extent is not negative, so that C's division is the floored one
        return ir.Bin("truncdiv", expr.a, expr.b) if isinstance(expr, ir.Bin) and expr.op == "floordiv" else expr

    return ExprPrinter()(map_expr(simplify(substitute(total, members), bounds), use_c_division))


def extent_text(module: Module, extent: ir.Expr) -> str:
    """Print an extent for readers, over the names of sizes."""
    members = {size.scalar: ir.Var(size.name) for size in module.sizes}
    text = ExprPrinter()(substitute(extent, members))
    return text if isinstance(extent, (ir.Const, ir.Var)) else f"({text})"


def _quantisation_constants(value: Value, *, ties_to_even: bool) -> Conversion | None:
    """Return the constants by which the header's functions repeat the operator ``quantize`` bit for bit
    (:mod:`microc.ops.quantised.quantization`).

    None for a tensor without quantisation, or of a dtype that is not CONVERTIBLE."""
    if value.scale is None or value.zero_point is None or value.dtype not in CONVERTIBLE:
        return None
    low, high = dtypes.int_range(value.dtype)
    zero, (least, most) = value.zero_point, dtypes.int_range("int32")
    first, last = np.float32(max(low - zero, least)), min(high - zero, most)
    # ``most`` must be a float32 whose conversion to int32 is defined: the largest one that is not above the limit.
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
        even=ties_to_even,
    )


def output_classes_of(module: Module) -> Classes | None:
    """Return the enumerators and names of an output's classes for the template of the header; None without class names."""
    if not module.classes:
        return None
    used_names = set(_header_macros(module))
    enumerators = []
    for number, label in enumerate(module.classes):
        word = re.sub(r"[^0-9A-Za-z]+", "_", label).strip("_").upper()[:_LONGEST].strip("_") or str(number)
        enumerator, number_behind = f"{module.name.upper()}_CLASS_{word}", 2
        while enumerator in used_names:
            enumerator, number_behind = f"{module.name.upper()}_CLASS_{word}_{number_behind}", number_behind + 1
        used_names.add(enumerator)
        enumerators.append(Name(enumerator))
    return Classes(Name(module.class_output), tuple(enumerators), tuple(map(Quoted, module.classes)))


def _header_macros(module: Module) -> Iterable[str]:
    """Yield the macros of inputs, outputs and sizes in the header that a class's enumerator could equal."""
    upper = module.name.upper()
    ends = ("SIZE", "BYTES", "TYPE", "RANK", "SHAPE", "SCALE", "ZERO_POINT", *(f"DIM_{k}" for k in range(32)))
    for name in (*module.inputs, *module.outputs):
        yield from (f"{upper}_{name.upper()}_{end}" for end in ends)
    yield from (f"{upper}_{size.name.upper()}_{end}" for size in module.sizes for end in ("MIN", "MAX", "STEP"))
    yield f"{upper}_CLASS_COUNT"
