# SPDX-License-Identifier: Apache-2.0
"""Print the inputs, outputs, arenas and constant arrays of a network in C."""

from __future__ import annotations

import re
import struct
import zlib
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
from microc.module import WEIGHTS_HEADER_BYTES, Arena, Module, Plan, Value
from microc.tir import ir
from microc.tir.analysis.simplification import simplify
from microc.tir.rewrite import map_expr, substitute

# ---- Constant arrays as C initialisers.

WIDTH = 112
"""Maximum number of columns of a line of an initialiser."""
DEFAULT_ALIGNMENT = 8
"""Alignment in bytes of constants that need no attribute with a number. Their types align them, or the attribute for constants
that kernels load as words."""
_INDENT_MARGIN = 3
"""Width of the indentation of a line of numbers, less 1: the text of each number includes a blank."""
REGION_MACRO_PREFIX = "MICROC_CONSTANTS_"
"""Prefix of the macros that place constants in a flash region: a board's header, or a build, defines them."""


def print_constant_declaration(value: Value, address_space: str = "") -> str:
    """Return the C declaration of a constant array, such as ``const int8_t name[24]``, without storage class and initialiser.

    ``address_space``: the qualifier of the address space for constants and a blank; empty if the core has a single address
    space."""
    return f"const {address_space}{dtypes.c_name(value.dtype)} {value.name}[{max(1, np.prod(value.shape, dtype=int))}]"


def print_attributed_declaration(value: Value, attribute: str, address_space: str = "", region: str = "") -> str:
    """Return the C declaration of a constant array with the attributes that align and place the array.

    Constants with elements below 4 bytes are aligned, because kernels load several elements at once as a word. External code may
    require a larger alignment, which is then the argument of the attribute. Declaration and definition must have the same
    attribute, since a compiler relies on the declaration. ``attribute``: name of the macro that expands to the attribute.
    ``region``: the flash region of the array; empty for the board's first.
    """
    suffix = f" {attribute}" if dtypes.nbytes(value.dtype) < 4 else ""
    if value.align > DEFAULT_ALIGNMENT:
        suffix = f" {attribute}_TO({value.align})"
    if region:
        suffix += f" {REGION_MACRO_PREFIX}{region.upper()}"
    return print_constant_declaration(value, address_space) + suffix


def print_constant_definition(
    value: Value, attribute: str = "", address_space: str = "", region: str = ""
) -> list[str]:
    """Print the C definition of a constant array with its initialiser, as lines.

    If ``attribute`` is given, the array is aligned and placed as by :func:`print_attributed_declaration`."""
    assert value.data is not None
    lines = _wrap_literals(*_distinct_literals_and_indices(np.ascontiguousarray(value.data).reshape(-1), value.dtype))
    declaration_text = (
        print_attributed_declaration(value, attribute, address_space, region)
        if attribute
        else print_constant_declaration(value, address_space)
    )
    return [f"{declaration_text} = {{", *lines, "};"]


def _distinct_literals_and_indices(flat: Array, dtype: str) -> tuple[list[str], Array]:
    """Return the distinct numbers of an array as C literals, and for every element the index of its literal.

    An empty array is returned as the single literal 0, because C has no empty arrays."""
    if not len(flat):
        return ["0"], np.zeros(1, np.int64)
    patterns = flat.view(f"u{flat.itemsize}")  # -0.0 is another number than 0.0
    if flat.itemsize == 1:
        bits, literal_indices = np.arange(256, dtype=np.uint8), patterns
    else:
        bits, literal_indices = np.unique(patterns, return_inverse=True)
    numbers = bits.view(flat.dtype)
    if dtype == "float32":
        return list(map(float32_literal, numbers)), literal_indices
    literal = ExprPrinter().print_literal if dtypes.is_float(dtype) else _print_integer_literal
    return [literal(number, dtype) for number in numbers.tolist()], literal_indices


def _print_integer_literal(number: int, dtype: str) -> str:
    """Return the C literal of an integer in an initialiser.

    It has a suffix or a macro, such as ``INT64_C``, only where a plain number would not have the right value or type."""
    if dtype == "int32" and number == -(1 << 31):
        return "INT32_MIN"
    if dtype == "int64":
        return "INT64_MIN" if number == -(1 << 63) else f"INT64_C({number})"
    if dtype in ("uint32", "uint64"):
        return f"{number}U" if dtype == "uint32" else f"UINT64_C({number})"
    return str(int(number))


def _wrap_literals(literals: list[str], literal_indices: Array) -> list[str]:
    """Return the lines of an initialiser, with as many literals in each line as fit in :data:`WIDTH` columns.

    ``literals``: the distinct literals. ``literal_indices``: for each element of the array the index of its literal."""
    lengths = np.array([len(literal) + 2 for literal in literals])
    ends = np.cumsum(lengths[literal_indices]).data  # a list would hold an object for each element
    most_in_a_line = (WIDTH - _INDENT_MARGIN) // int(lengths.min())
    padded_literals = (
        np.array([f"{literal}, " for literal in literals], "S")[literal_indices]
        .tobytes()
        .translate(None, b"\0")
        .decode("ascii")
    )
    lines, start, used = list[str](), 0, 0
    while start < len(ends):
        end = min(start + most_in_a_line, len(ends))
        start = max(start + 1, bisect_right(ends, used + WIDTH - _INDENT_MARGIN, start, end))
        lines.append(f"    {padded_literals[used : ends[start - 1] - 1]}")
        used = ends[start - 1]
    return lines


# ---- Arenas: a single pointer on most boards, or a struct of pointers if tensors are in several memories of the board.


@frozen
class ArenaMember:
    """A member of ``struct <name>_arenas``: the pointer to the arena in one memory of the board.

    ``name``: name of the memory. ``macro``: stem of the names of the arena's macros. ``size``: bytes of the arena. ``end``: end
    of the last tensor in the arena, in bytes from its start. ``section``: the attribute that places the arena in its memory in a
    project for the board."""

    name: Name
    macro: Name
    size: int
    end: int
    section: Code


@frozen
class ArenaContext:
    """The parameter of a network's functions that passes the arena or arenas.

    ``declaration`` and ``name`` are those of the parameter. ``members`` are the members of the struct that it points to; there
    are none if there is a single arena. ``section`` is the attribute that places a single arena in its memory. ``aligned`` is the
    attribute of an array of ``uint64_t`` if tensors require a larger alignment than that type has.
    """

    declaration: Code
    name: Name
    members: tuple[ArenaMember, ...]
    section: Code
    aligned: Code


def make_arena_context(module: Module) -> ArenaContext:
    """Return the template variables of the arenas of a module that has a memory plan."""
    plan = _memory_plan(module)
    members = tuple(
        ArenaMember(
            Name(arena.memory),
            Name(arena.memory.upper()),
            arena.size,
            _arena_used_bytes(module, arena),
            _section_attribute(plan, arena),
        )
        for arena in list_separate_arenas(plan)
    )
    if members:
        declared = Code(f"const struct {module.name}_arenas *arenas")
        return ArenaContext(declared, Name("arenas"), members, Code(""), print_alignment_attribute(plan.align))
    section = next((_section_attribute(plan, arena) for arena in plan.used_arenas), Code(""))
    return ArenaContext(Code("void *arena"), Name("arena"), (), section, print_alignment_attribute(plan.align))


def print_alignment_attribute(align: int) -> Code:
    """Return the C attribute that aligns an array of ``uint64_t`` to ``align`` bytes. It is empty if the type's own alignment,
    8 bytes, suffices."""
    return Code(f"__attribute__((aligned({align})))" if align > 8 else "")


def list_separate_arenas(plan: Plan) -> tuple[Arena, ...]:
    """Return the arenas that functions receive as members of a struct: all arenas in use, or none if only one is in use."""
    return plan.used_arenas if len(plan.used_arenas) > 1 else ()


def arena_variable_and_offset(module: Module, offset: int) -> tuple[str, int]:
    """Return the C variable and the offset with which the network's own functions address a byte of the memory plan.

    The variable points to the arena that contains the byte. The offset is in bytes from that pointer.
    ``offset``: the offset of the byte in the memory plan."""
    arena = _arena_containing(_memory_plan(module), offset)
    return (f"arena_{arena.memory}", offset - arena.start) if arena else ("arena", offset)


def caller_arena_and_offset(module: Module, offset: int) -> tuple[str, int]:
    """Return the C expression and the offset with which a function that has the arena parameter addresses a byte.

    The expression points to the arena that contains the byte. The offset is in bytes from that pointer.
    ``offset``: the offset of the byte in the memory plan."""
    arena = _arena_containing(_memory_plan(module), offset)
    return (f"arenas->{arena.memory}", offset - arena.start) if arena else ("arena", offset)


def print_weight_copy_calls(module: Module, step: int) -> tuple[Code, ...]:
    """Print the calls that copy weights to RAM, or read them from storage, at the start of a step.

    They wait until the weights that the step uses are there, then begin to copy and read the weights that the memory plan copies
    during this step."""
    plan = _memory_plan(module)
    copies, stored = plan.copies, plan.stored_offsets
    # The first step that uses weights waits for them; later steps need not.
    copies_used = [n for n in copies if copies[n] >= 0 and n in module.calls[step].args]
    copies_used = [n for n in copies_used if not any(n in call.args for call in module.calls[:step])]
    wait: list[Code] = []
    if not stored.keys() >= set(copies_used):
        wait.append(Code(f"{module.name}_copy_wait();"))
    if not stored.keys().isdisjoint(copies_used):
        wait.append(_print_checked_read(module, f"{module.name}_read_wait()"))
    # A step begins copies of its own weights if no step precedes it, and reads of its own if none of them is ahead.
    begin_here = [name for name in copies_used if copies[name] == step]
    begin_for_next = [name for name, begin in copies.items() if begin == step and name not in copies_used]
    return (
        *(_print_copy_begin_call(module, name) for name in begin_here),
        *wait,
        *(_print_copy_begin_call(module, name) for name in begin_for_next),
    )


def _print_copy_begin_call(module: Module, name: str) -> Code:
    """Print the call that begins to bring the constant ``name`` from flash or storage to its place in the arena."""
    plan, nbytes = _memory_plan(module), module.values[name].nbytes
    arena, offset = arena_variable_and_offset(module, plan.offsets[name])
    if name in plan.stored_offsets:
        return _print_checked_read(
            module, f"{module.name}_read({plan.stored_offsets[name]}u, {arena} + {offset}, {nbytes}u)"
        )
    return Code(f"{module.name}_copy_begin({arena} + {offset}, {module.name}_{name}, {nbytes}u);")


def _print_checked_read(module: Module, call: str) -> Code:
    """Print a statement of the step function that returns an error if ``call``, a read from storage, fails."""
    return Code(f"if ({call} != 0) {{\n            return {module.name.upper()}_ERROR_READ;\n        }}")


def _arena_containing(plan: Plan, offset: int) -> Arena | None:
    """Return the arena that contains the byte at ``offset`` of the memory plan; None if the plan has a single arena."""
    several = list_separate_arenas(plan)
    return next((arena for arena in reversed(several) if arena.start <= offset), None)


def _memory_plan(module: Module) -> Plan:
    """Return a module's memory plan. InternalError if it has none."""
    if module.plan is None:
        raise InternalError(f"module {module.name}: it has no memory plan; expected one before C is printed")
    return module.plan


def _section_attribute(plan: Plan, arena: Arena) -> Code:
    """Return the C attribute that places an arena in its memory.

    It is empty for the board's first RAM. Other memories have a section in the linker script."""
    return Code("" if arena == plan.arenas[0] else f'__attribute__((section(".{arena.memory}")))')


def _arena_used_bytes(module: Module, arena: Arena) -> int:
    """Return the end of the last tensor in an arena, in bytes from the arena's start."""
    span = range(arena.start, arena.start + arena.size)
    ends = (at + module.values[name].nbytes for name, at in _memory_plan(module).offsets.items() if at in span)
    return max(ends) - arena.start


# ---- Stored constants: a file of weights on a memory that the core cannot address, and the code that reads and checks it.
#
# The file is little-endian: a header (magic, version, bytes of the file, CRC-32 of zlib of what follows the header), then the
# constants at the offsets of the memory plan, as the core has them in memory; gaps are zeros.

WEIGHTS_FILE = "weights.bin"
"""Name of the file of stored constants in a project."""
_MAGIC, _VERSION = b"mcw1", 1
_HEADER = struct.Struct("<4sIII")
assert _HEADER.size == WEIGHTS_HEADER_BYTES


@frozen
class StorageContext:
    """The stored constants of a network, as a template variable.

    ``memory``: name of the storage. ``size``, ``crc``: size of the file in bytes, and its CRC-32. ``header``: bytes of the file's
    header. ``chunk``: bytes that the check of the file reads at once into ``arena``, an expression of the arena parameter."""

    memory: Text
    size: int
    crc: int
    header: tuple[int, ...]
    chunk: int
    arena: Code


def pack_stored_constants(module: Module) -> bytes:
    """Return the content of the file of weights; empty if the network has no stored constants."""
    storage = _memory_plan(module).storage
    if storage is None:
        return b""
    body = bytearray(storage.size)
    for name, offset in storage.offsets.items():
        data = module.values[name].data
        assert data is not None
        stored = np.ascontiguousarray(data).astype(data.dtype.newbyteorder("<"), copy=False).tobytes()
        body[offset : offset + len(stored)] = stored
    body[: _HEADER.size] = _HEADER.pack(_MAGIC, _VERSION, len(body), zlib.crc32(body[_HEADER.size :]))
    return bytes(body)


def print_bytes_definition(name: str, content: bytes) -> list[str]:
    """Print the C definition of the constant array ``name`` of uint8, as lines; no lines for no content."""
    data = np.frombuffer(content, dtype=np.uint8)
    return print_constant_definition(Value(name, data.shape, "uint8", "const", data)) if content else []


def make_storage_context(module: Module) -> StorageContext | None:
    """Return the template variables of a network's stored constants; None if it has none."""
    plan = _memory_plan(module)
    if plan.storage is None:
        return None
    content = pack_stored_constants(module)
    # The file is checked through the arena that its constants are read into: a DMA controller need not reach the others.
    buffers = [
        arena for name in plan.stored_offsets if (arena := _arena_containing(plan, plan.offsets[name])) is not None
    ]
    arena = max(buffers, key=lambda arena: arena.size, default=None)
    size = arena.size if arena else plan.size
    step = plan.storage.block_bytes if plan.storage.block_bytes <= size else 4
    return StorageContext(
        memory=Text(plan.storage.memory),
        size=len(content),
        crc=zlib.crc32(content[_HEADER.size :]),
        header=tuple(content[: _HEADER.size]),
        chunk=size // step * step,
        arena=Code(f"arenas->{arena.memory}" if arena else "arena"),
    )


# ---- Inputs and outputs in the network's header: types, shapes, quantisation, names of classes.

CONVERTIBLE = ("int8", "uint8", "int16", "uint16", "int32")
"""Dtypes of tensors for which the header defines functions that quantise and dequantise.

The difference of a number of such a dtype and a zero point fits a C99 integer of exact width."""
TENSOR_FUNCTION_SUFFIXES = ("elements", "quantize", "dequantize")
"""Suffixes of the header's functions for an input or output. They follow the name of the tensor."""
_MAX_CLASS_NAME_LENGTH = 64
"""Maximum number of letters of a class's name in the name of its C enumerator."""


@frozen
class Conversion:
    """Constants of the functions that quantise and dequantise a tensor.

    A real number x becomes q = clamp(round(clamp(x / scale, least, most)) + zero_point, low, high). ``even`` is True if ties
    are rounded to even, and False if they are rounded away from zero.
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
    """An input or output of a network, as its header declares it.

    ``macro``: stem of the names of the tensor's macros. ``elements`` and ``bytes``: number of elements and of bytes, at the
    largest sizes. ``meaning``: text of shape and quantisation, for a comment. ``label``: name in the model. ``arena`` and
    ``offset``: C expression of the pointer to the tensor's arena, and bytes from there to the tensor; empty and None if it is
    not in an arena."""

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
    """Number of elements as a C expression of the members of ``sizes``; empty if the number is fixed."""
    conversion: Conversion | None
    """Constants of the tensor's quantisation; None if the header has no functions that quantise and dequantise it."""


@frozen
class Classes:
    """The classes of a classifier's output: the C enumerators of the classes, and their names as C string literals.

    ``output``: name of the output."""

    output: Name
    enumerators: tuple[Name, ...]
    names: tuple[Quoted, ...]


def interface_tensor_of(module: Module, name: str) -> InterfaceTensor:
    """Return the template variables of an input or output for the network's header."""
    value = module.values[name]
    shape = "x".join(map(str, value.shape)) or "scalar"
    meaning = shape
    if value.scale is not None:
        meaning += f", real = {value.scale:.9g} * (q - {value.zero_point})"
    count = Code()
    if value.extents:
        meaning = meaning.replace(shape, " x ".join(print_extent(module, e) for e in value.extents), 1)
        count = Code(_print_element_count(module, value.extents))
    at = module.plan.offsets.get(name) if module.plan else None
    arena, offset = ("", None) if at is None else caller_arena_and_offset(module, at)
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


def _print_element_count(module: Module, extents: Sequence[ir.Expr]) -> str:
    """Print the number of elements of a tensor whose size varies, as a C expression of the members of ``sizes``.

    ``extents``: the extents of the tensor's axes, expressions of the variables that stand for sizes."""
    total: ir.Expr = ir.const(1, "int32")
    for extent in extents:
        total = total * extent
    members = {size.scalar: ir.Var(f"sizes->{size.name}") for size in module.sizes}
    bounds = {members[size.scalar]: (size.minimum, size.maximum) for size in module.sizes}

    def use_c_division(expr: ir.Expr) -> ir.Expr:  # extents are not negative: C's division equals floor division
        return ir.Bin("truncdiv", expr.a, expr.b) if isinstance(expr, ir.Bin) and expr.op == "floordiv" else expr

    return ExprPrinter()(map_expr(simplify(substitute(total, members), bounds), use_c_division))


def print_extent(module: Module, extent: ir.Expr) -> str:
    """Print the extent of an axis for a comment, as an expression of the names of sizes."""
    members = {size.scalar: ir.Var(size.name) for size in module.sizes}
    text = ExprPrinter()(substitute(extent, members))
    return text if isinstance(extent, (ir.Const, ir.Var)) else f"({text})"


def _quantisation_constants(value: Value, *, ties_to_even: bool) -> Conversion | None:
    """Return the constants of the header's functions that quantise and dequantise a tensor.

    With them, the results equal those of the operator ``quantize`` bit for bit (:mod:`microc.ops.quantised.quantization`).
    None for a tensor without quantisation, or whose dtype is not in :data:`CONVERTIBLE`."""
    if value.scale is None or value.zero_point is None or value.dtype not in CONVERTIBLE:
        return None
    low, high = dtypes.int_range(value.dtype)
    zero, (least, most) = value.zero_point, dtypes.int_range("int32")
    first, last = np.float32(max(low - zero, least)), min(high - zero, most)
    # ``most`` must be a float32 whose conversion to int32 is defined: the largest float32 that is not above the limit.
    end = np.float32(last)
    end = end if float(end) <= last else np.nextafter(end, np.float32(-np.inf))
    literal = ExprPrinter().print_literal
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
    """Return the template variables of an output's classes for the network's header; None if the network has no class names."""
    if not module.classes:
        return None
    used_names = set(_list_header_macros(module))
    enumerators = []
    for number, label in enumerate(module.classes):
        word = re.sub(r"[^0-9A-Za-z]+", "_", label).strip("_").upper()[:_MAX_CLASS_NAME_LENGTH].strip("_") or str(
            number
        )
        enumerator, number_behind = f"{module.name.upper()}_CLASS_{word}", 2
        while enumerator in used_names:
            enumerator, number_behind = f"{module.name.upper()}_CLASS_{word}_{number_behind}", number_behind + 1
        used_names.add(enumerator)
        enumerators.append(Name(enumerator))
    return Classes(Name(module.class_output), tuple(enumerators), tuple(map(Quoted, module.classes)))


def _list_header_macros(module: Module) -> Iterable[str]:
    """Yield the names of the header's macros for inputs, outputs and sizes. A class's enumerator must not be one of them."""
    upper = module.name.upper()
    ends = ("SIZE", "BYTES", "TYPE", "RANK", "SHAPE", "SCALE", "ZERO_POINT", *(f"DIM_{k}" for k in range(32)))
    for name in (*module.inputs, *module.outputs):
        yield from (f"{upper}_{name.upper()}_{end}" for end in ends)
    yield from (f"{upper}_{size.name.upper()}_{end}" for size in module.sizes for end in ("MIN", "MAX", "STEP"))
    yield f"{upper}_CLASS_COUNT"
