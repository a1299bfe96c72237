"""A planned module as C text: what the templates of the generated project are filled with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from microc import dtypes
from microc.codegen.c_expr import ExprPrinter
from microc.codegen.c_stmt import INDENT, StmtPrinter, wrapped
from microc.codegen.data import declaration, definition
from microc.codegen.helpers import helper_texts
from microc.codegen.kernels import call_text, kernel_function, printer_of, short_layer, threads_of
from microc.codegen.text import Code, Name, Text, Word
from microc.errors import InternalError
from microc.module import Module, Value
from microc.tir import ir
from microc.tir.affine import simplify
from microc.tir.names import FLAGS
from microc.tir.rewrite import map_expr, substitute


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output in the header: C type and name, a macro stem, sizes, its meaning, its place in the arena."""

    name: Name
    macro: Name
    type: Code
    elements: int
    bytes: int
    meaning: Code
    label: Text
    offset: int | None
    count: Code
    """Its elements as an expression over ``sizes->...``; empty where they do not vary."""


@dataclass(frozen=True, slots=True)
class SizeMember:
    """A size in the header: its name, its macros' stem, what it may be, what the model calls it."""

    name: Name
    macro: Name
    minimum: int
    maximum: int
    step: int
    label: Text


NEAR_FLASH = 60 * 1024
"""Bytes of constants that surely lie within the first 64 KiB of flash: only the vectors stand before them."""


@dataclass(frozen=True, slots=True)
class ModelContext:
    """Everything that ``model.h.j2``, ``model.c.j2``, ``model_data.h.j2`` and ``model_data.c.j2`` show."""

    name: Name
    upper: Name
    source: Text
    fingerprint: Word
    version: Word
    arena_size: int
    arena_align: int
    lower_bound: int
    planner: Text
    kernel_count: int
    macs: int
    const_bytes: int
    stack_bound: int
    needs_math: bool
    needs_string: bool
    io_in_arena: bool
    sizes: tuple[SizeMember, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    helpers: tuple[Code, ...]
    kernels: tuple[Code, ...]
    steps: tuple[Step, ...]
    resets: tuple[Code, ...]
    data_declarations: tuple[Code, ...]
    data_definitions: tuple[Code, ...]
    flash_space: Name | None
    data_needs_math: bool
    arena_end: int
    stem: Name
    threads: int
    optimized: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One case of the step function: the call and where it comes from."""

    number: int
    call: Code
    layer: Text


def tensor_of(module: Module, name: str) -> Tensor:
    """The header's view of an input or output."""
    value = module.values[name]
    shape = "x".join(map(str, value.shape)) or "scalar"
    meaning = shape
    if value.scale is not None:
        meaning += f", real = {value.scale:.9g} * (q - {value.zero_point})"
    elements = value.nbytes // dtypes.nbytes(value.dtype)
    offset = module.plan.offsets.get(name) if module.plan else None
    count = Code()
    if value.extents:
        meaning = meaning.replace(shape, " x ".join(extent_text(module, e) for e in value.extents), 1)
        count = Code(_count(module, value.extents))
    kind = Code(dtypes.c_name(value.dtype))
    macro, label = Name(name.upper()), Text(value.label)
    return Tensor(Name(name), macro, kind, elements, value.nbytes, Code(meaning), label, offset, count)


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


def model_context(module: Module, version: str, stack_bound: int, stem: str = "model") -> ModelContext:
    """Print every part of the module once. ``stem``: what the names of the files begin with."""
    plan = module.plan
    if plan is None:
        raise InternalError("the module has no memory plan")
    printer = printer_of(module)
    space = printer.space
    kernels = tuple(kernel_function(module, printer, k) for k in range(len(module.kernels)))
    helpers = _helpers(module, printer)
    consts = sorted((v for v in module.values.values() if v.storage == "const"), key=lambda v: v.name)
    steps = tuple(
        Step(k, call_text(module, call), Text(short_layer(module, call))) for k, call in enumerate(module.calls)
    )
    prefixed = [_prefixed(module, v) for v in consts]
    resets = _resets(module)
    return ModelContext(
        name=Name(module.name),
        upper=Name(module.name.upper()),
        source=Text(module.source),
        fingerprint=Word(module.fingerprint),
        version=Word(version),
        arena_size=plan.size,
        arena_align=plan.align,
        lower_bound=plan.lower_bound,
        planner=Text(plan.planner),
        kernel_count=len(module.calls),
        macs=module.macs,
        const_bytes=module.const_bytes,
        stack_bound=stack_bound,
        needs_math=printer.expr.needs_math,
        needs_string=bool(resets) or any("memcpy" in h for h in helpers),
        io_in_arena=plan.io_in_arena,
        sizes=tuple(
            SizeMember(Name(s.name), Name(s.name.upper()), s.minimum, s.maximum, s.step, Text(s.label))
            for s in module.sizes
        ),
        inputs=tuple(tensor_of(module, n) for n in module.inputs),
        outputs=tuple(tensor_of(module, n) for n in module.outputs),
        helpers=helpers,
        kernels=kernels,
        steps=steps,
        resets=resets,
        data_declarations=tuple(Code(f"extern {declaration(v, space)};") for v in prefixed),
        data_definitions=tuple(
            Code("\n".join(definition(v, f"{module.name.upper()}_ALIGNED", space)))
            for v in prefixed
            if v.data is not None
        ),
        flash_space=_flash_space(module) if space else None,
        data_needs_math=not all(np.isfinite(v.data).all() for v in prefixed if v.data is not None),
        arena_end=max((offset + module.values[name].nbytes for name, offset in plan.offsets.items()), default=0),
        stem=Name(stem),
        threads=threads_of(module),
        optimized=any(FLAGS in dict(kernel.func.annotations) for kernel in module.kernels),
    )


def _flash_space(module: Module) -> Name:
    """gcc's name of the address space for the constants: pointers of 16 bits into the first 64 KiB while they do."""
    return Name("__flash" if module.const_bytes <= NEAR_FLASH else "__memx")


def _prefixed(module: Module, value: Value) -> Value:
    """A constant under its public C name."""
    return Value(f"{module.name}_{value.name}", value.shape, value.dtype, "const", value.data)


def _helpers(module: Module, printer: StmtPrinter) -> tuple[Code, ...]:
    """All helpers that the kernels use, and those that helpers use, each after what it needs."""
    texts = helper_texts(printer.expr.helpers, module.options["cpu"], printer.expr).values()
    return tuple(Code("\n".join(part for line in lines for part in wrapped(line))) for lines in texts)


def _resets(module: Module) -> tuple[Code, ...]:
    """Statements that put every state tensor to its initial content: one byte, one number of more bytes, or a constant."""
    lines = []
    for name in module.state:
        value = module.values[name]
        assert value.data is not None and module.plan is not None
        place, raw = f"(uint8_t *)arena + {module.plan.offsets[name]}", value.data.reshape(-1).view(np.uint8)
        width = value.data.itemsize
        if name in module.starts:
            kind = dtypes.c_name(value.dtype)
            lines += [
                f"for (int32_t i = 0; i < {value.data.size}; ++i) {{",
                f"{INDENT}(({kind} *)(void *)({place}))[i] = {module.name}_{module.starts[name]}[i];",
                "}",
            ]
        elif len(set(raw.tolist())) <= 1:
            lines.append(f"(void)memset({place}, {raw[0] if raw.size else 0}, {value.nbytes});")
        else:
            number = int(value.data.reshape(-1)[:1].view(f"u{width}")[0])
            lines += [
                f"for (int32_t i = 0; i < {value.nbytes}; i += {width}) {{",
                f"{INDENT}const uint{8 * width}_t start = UINT{8 * width}_C({number:#x});",
                f"{INDENT}(void)memcpy({place} + i, &start, {width});",
                "}",
            ]
    return tuple(map(Code, lines))
