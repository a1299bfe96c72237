"""Inputs and outputs as the header shows them: types, shapes, what their integers stand for, names of classes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from microc import dtypes
from microc.codegen.arenas import given_at
from microc.codegen.c_expr import ExprPrinter
from microc.codegen.text import Code, Name, Quoted, Text
from microc.frozen import frozen
from microc.module import Module, Value
from microc.tir import ir
from microc.tir.affine import simplify
from microc.tir.rewrite import map_expr, substitute

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
