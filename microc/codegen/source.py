"""A planned module as C text: what the templates of the generated project are filled with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from microc import dtypes
from microc.codegen.arenas import ArenaContext, arena_context, copying, given_at
from microc.codegen.c_stmt import INDENT, StmtPrinter, wrapped
from microc.codegen.data import ALIGNED, aligned_declaration, definition
from microc.codegen.ends import Classes, Tensor, classes_of, tensor_of
from microc.codegen.helpers import helper_texts
from microc.codegen.kernels import call_text, kernel_function, printer_of, short_layer, threads_of
from microc.codegen.self_test import TestContext, test_context
from microc.codegen.stack import StackBounds, stack_bounds
from microc.codegen.tensor_unit import UNIT_NAMES, UnitContext, unit_context
from microc.codegen.text import Code, Name, Text, Word
from microc.errors import InternalError
from microc.frozen import frozen
from microc.module import Module, Value
from microc.tir.names import FLAGS


@frozen
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


@frozen
class ModelContext:
    """Everything that ``model.h.j2``, ``model.c.j2``, ``model_data.h.j2`` and ``model_data.c.j2`` show."""

    name: Name
    upper: Name
    source: Text
    fingerprint: Word
    version: Word
    arenas: ArenaContext
    arena_size: int
    arena_align: int
    lower_bound: int
    planner: Text
    kernel_count: int
    macs: int
    const_bytes: int
    stack_bounds: StackBounds
    external: bool
    needs_math: bool
    needs_string: bool
    io_in_arena: bool
    sizes: tuple[SizeMember, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    classes: Classes | None
    self_test: TestContext | None
    helpers: tuple[Code, ...]
    kernels: tuple[Code, ...]
    steps: tuple[Step, ...]
    resets: tuple[Code, ...]
    copies: bool
    kept: bool
    data_declarations: tuple[Code, ...]
    data_definitions: tuple[Code, ...]
    flash_space: Name | None
    data_needs_math: bool
    arena_end: int
    stem: Name
    threads: int
    optimized: bool
    hot_code: bool
    unit: UnitContext | None
    includes: tuple[Word, ...]
    fails: bool
    aligned: bool


@frozen
class Step:
    """One case of the step function: the call and where it comes from, and ``before`` it copies of weights."""

    number: int
    before: tuple[Code, ...]
    call: Code
    layer: Text


def model_context(module: Module, version: str, stem: str = "model") -> ModelContext:
    """Print every part of the module once. ``stem``: what the names of the files begin with."""
    plan = module.plan
    if plan is None:
        raise InternalError("the module has no memory plan")
    printer = printer_of(module)
    space = printer.space
    kernels = tuple(kernel_function(module, printer, k) for k in range(len(module.kernels)))
    helpers = _helpers(module, printer)
    tests = module.self_test.values if module.self_test else ()
    consts = sorted((*(v for v in module.values.values() if v.storage == "const"), *tests), key=lambda v: v.name)
    steps = tuple(
        Step(k, copying(module, k), call_text(module, call), Text(short_layer(module, call)))
        for k, call in enumerate(module.calls)
    )
    prefixed = [_prefixed(module, v) for v in consts]
    attribute = f"{module.name.upper()}_ALIGNED"
    resets = _resets(module)
    return ModelContext(
        name=Name(module.name),
        upper=Name(module.name.upper()),
        source=Text(module.source),
        fingerprint=Word(module.fingerprint),
        version=Word(version),
        arenas=arena_context(module),
        arena_size=plan.size,
        arena_align=plan.align,
        lower_bound=plan.lower_bound,
        planner=Text(plan.planner),
        kernel_count=len(module.calls),
        macs=module.macs,
        const_bytes=module.const_bytes,
        stack_bounds=stack_bounds(module),
        external=any(kernel.external is not None for kernel in module.kernels),
        needs_math=printer.expr.needs_math,
        needs_string=bool(resets) or bool(plan.copies) or any("memcpy" in h for h in helpers),
        io_in_arena=plan.io_in_arena,
        sizes=tuple(
            SizeMember(Name(s.name), Name(s.name.upper()), s.minimum, s.maximum, s.step, Text(s.label))
            for s in module.sizes
        ),
        inputs=tuple(tensor_of(module, n) for n in module.inputs),
        outputs=tuple(tensor_of(module, n) for n in module.outputs),
        classes=classes_of(module),
        self_test=test_context(module),
        helpers=helpers,
        kernels=kernels,
        steps=steps,
        resets=resets,
        copies=any(step >= 0 for step in plan.copies.values()),
        kept=any(step < 0 for step in plan.copies.values()),
        data_declarations=tuple(Code(f"extern {aligned_declaration(v, attribute, space)};") for v in prefixed),
        data_definitions=tuple(
            Code("\n".join(definition(v, attribute, space))) for v in prefixed if v.data is not None
        ),
        flash_space=_flash_space(module) if space else None,
        data_needs_math=not all(np.isfinite(v.data).all() for v in prefixed if v.data is not None),
        arena_end=max((offset + module.values[name].nbytes for name, offset in plan.offsets.items()), default=0),
        stem=Name(stem),
        threads=threads_of(module),
        unit=unit_context(module, printer.expr.helpers),
        includes=tuple(Word(name) for name in dict.fromkeys(_includes(module))),
        fails=any(kernel.external is not None and kernel.external.fails for kernel in module.kernels),
        aligned=any(value.align > ALIGNED for value in consts),
        hot_code=plan.code is not None,
        optimized=any(FLAGS in dict(kernel.func.annotations) for kernel in module.kernels),
    )


def _includes(module: Module) -> Iterator[str]:
    """The headers of external code."""
    for kernel in module.kernels:
        if kernel.external is not None:
            yield from kernel.external.includes


def _flash_space(module: Module) -> Name:
    """gcc's name of the address space for the constants: pointers of 16 bits into the first 64 KiB while they do."""
    constants = module.const_bytes + (module.self_test.nbytes if module.self_test else 0)
    return Name("__flash" if constants <= NEAR_FLASH else "__memx")


def _prefixed(module: Module, value: Value) -> Value:
    """A constant under its public C name."""
    return replace(value, name=f"{module.name}_{value.name}", storage="const")


def _helpers(module: Module, printer: StmtPrinter) -> tuple[Code, ...]:
    """All helpers that the kernels use, and those that helpers use, each after what it needs."""
    names = (name for name in printer.expr.helpers if name not in UNIT_NAMES)
    texts = helper_texts(names, module.options["cpu"], printer.expr).values()
    return tuple(Code("\n".join(part for line in lines for part in wrapped(line))) for lines in texts)


def _resets(module: Module) -> tuple[Code, ...]:
    """Statements that copy the weights that lie in RAM, and put every state tensor to its initial content: one byte, one number
    of more bytes, or a constant."""
    assert module.plan is not None
    lines = []
    for name in (name for name, step in module.plan.copies.items() if step < 0):
        arena, offset = given_at(module, module.plan.offsets[name])
        lines.append(
            f"(void)memcpy((uint8_t *){arena} + {offset}, {module.name}_{name}, {module.values[name].nbytes});"
        )
    for name in module.state:
        value = module.values[name]
        assert value.data is not None
        arena, offset = given_at(module, module.plan.offsets[name])
        place, raw = f"(uint8_t *){arena} + {offset}", value.data.reshape(-1).view(np.uint8)
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
