"""Kernels as C functions with their comments, and the calls of them."""

from __future__ import annotations

import textwrap

from microc import dtypes
from microc.codegen.arenas import placed_at
from microc.codegen.c_expr import ExprPrinter
from microc.codegen.c_stmt import INDENT, WIDTH, StmtPrinter, wrapped
from microc.codegen.rows import NARROWEST, WIDEST
from microc.codegen.text import Code, Name, Note
from microc.isa import CORES, FAMILIES
from microc.module import Call, Kernel, Module
from microc.tir import ir
from microc.tir.names import FLAGS
from microc.tir.rewrite import walk_stmt

HOT_CODE = "MICROC_HOT_CODE"
"""The macro before kernels that run from RAM; what it is says the board's header, or whoever builds."""


def kernel_text(module: Module, name: str) -> Code:
    """One kernel as it stands in the network's C."""
    return kernel_function(module, printer_of(module), [kernel.name for kernel in module.kernels].index(name))


def printer_of(module: Module) -> StmtPrinter:
    """A printer for all kernels of a network. Cores whose flash is a space of its own have an ``int`` of 16 bits."""
    family = FAMILIES[CORES[module.options["cpu"]].family]
    small = family.flash_space
    space = f"{module.name.upper()}_FLASH " if small else ""
    expr = ExprPrinter(NARROWEST if small else WIDEST, family.own_math)
    sizes = {size.scalar: (size.minimum, size.maximum) for size in module.sizes}
    return StmtPrinter(expr, space, sizes, threads=threads_of(module) > 1)


def threads_of(module: Module) -> int:
    """How many threads run the parallel loops of a network; 1 where there are none."""
    parallel = any(
        isinstance(s, ir.For) and s.kind == "parallel" for k in module.kernels for s in walk_stmt(k.func.body)
    )
    return int(module.options.get("threads", 1)) if parallel else 1


def kernel_function(module: Module, printer: StmtPrinter, position: int) -> Code:
    kernel = module.kernels[position]
    uses = [(k, call) for k, call in enumerate(module.calls) if call.kernel == kernel.name]
    layers = [f"{short_layer(module, call)} (step {k}, {call.macs} MACs)" for k, call in uses]
    shapes = {p.name: [str(n) for n in p.shape if n > 1] for p in kernel.func.params}
    arrays = ", ".join(f"{name} {' x '.join(shape)}" for name, shape in shapes.items() if len(shape) > 1)
    notes = [*layers, *kernel.comment, *([f"in memory: {arrays}"] if arrays else []), *_in_place(module, kernel, uses)]
    head = [line for note in notes for line in textwrap.wrap(f" * {Note(note)}", WIDTH, subsequent_indent=" *     ")]
    declared = f"{module.name.upper()}_KERNEL"
    if kernel.external is None:
        code = printer.function(kernel.func, declared, kernel.blocks)
    else:
        declared += "_STATUS" if kernel.external.fails else ""
        code = printer.foreign(kernel.func, kernel.external.lines, declared)
    flags = dict(kernel.func.annotations).get(FLAGS)
    start = next(k for k, line in enumerate(code) if line.startswith(declared))
    code[start:start] = [
        *([HOT_CODE] if module.plan and module.plan.code and kernel.name in module.plan.code.kernels else []),
        *([f'{module.name.upper()}_OPTIMIZE("{flags}")'] if flags else []),
    ]
    return Code("\n".join(["/*", *head, " */", *(line for whole in code for line in wrapped(whole))]))


def _in_place(module: Module, kernel: Kernel, uses: list[tuple[int, Call]]) -> list[str]:
    """Which parameters lie over each other, and in which steps."""
    steps: dict[str, list[int]] = {}
    for step, call in uses:
        places = [(p.name, name, _place(module, name)) for p, name in zip(kernel.func.params, call.args, strict=False)]
        for over, written, a in places:
            for under, read, b in places:
                if written in call.writes and read in call.reads and max(a.start, b.start) < min(a.stop, b.stop):
                    steps.setdefault(f"{over} is written over {under}", []).append(step)
    return [
        f"in place: {what}" + (f" in step {', '.join(map(str, found))}" if len(found) < len(uses) else "")
        for what, found in steps.items()
    ]


def _place(module: Module, name: str) -> range:
    """The bytes of the arena that a value takes; none elsewhere."""
    assert module.plan is not None
    base, offset = module.base_of(name)
    start = module.plan.offsets.get(base)
    return range(0) if start is None else range(start + offset, start + offset + module.values[name].nbytes)


def short_layer(module: Module, call: Call, limit: int = 100) -> str:
    """A layer's location in its file; converters glue the names of fused layers together, of which the first says enough."""
    layer = call.layer.removeprefix(f"{module.source} ")
    if len(layer) <= limit:
        return layer
    first = layer.partition(";")[0]
    return f"{first};..." if len(first) < limit else layer[: limit - 3] + "..."


def call_text(module: Module, call: Call) -> Code:
    kernel = next(k for k in module.kernels if k.name == call.kernel)
    written = set(call.writes) | set(call.workspace)
    args = [
        pointer(module, name, param.dtype, const=name not in written)
        for name, param in zip(call.args, kernel.func.params, strict=True)
    ]
    names = {size.scalar: size.name for size in module.sizes}
    args += [f"sizes->{names[scalar]}" for scalar in kernel.func.scalars]
    indent = 2 * INDENT
    called = f"{call.kernel}({', '.join(args)})"
    if kernel.external is not None and kernel.external.fails:
        lines = (
            *wrapped(f"{indent}if ({called} != 0) {{"),
            f"{indent}{INDENT}return {error_of(module)};",
            f"{indent}}}",
        )
    else:
        lines = tuple(wrapped(f"{indent}{called};"))
    return Code("\n".join(lines).removeprefix(indent))


def error_of(module: Module) -> Name:
    """What a run returns where external code failed."""
    return Name(f"{module.name.upper()}_ERROR_EXTERNAL")


def pointer(module: Module, name: str, dtype: str, *, const: bool) -> str:
    """A C expression for the address of a value, as a pointer to ``dtype``."""
    base, offset = module.base_of(name)
    value = module.values[base]
    kind = dtypes.c_name(dtype)
    qualifier = "const " if const else ""
    assert module.plan is not None
    if value.storage == "const" and base not in module.plan.offsets:
        return f"{module.name}_{base}"
    if value.storage in ("input", "output"):
        place = f"{'inputs' if value.storage == 'input' else 'outputs'}->{base}"
        if offset or value.dtype != dtype:
            return f"({qualifier}{kind} *)(({qualifier}uint8_t *){place} + {offset})"
        return place
    arena, offset = placed_at(module, module.plan.offsets[base] + offset)
    where = f"{arena} + {offset}" if offset else arena
    step = "" if dtypes.nbytes(dtype) == 1 else "(void *)"
    return f"({qualifier}{kind} *){step}({where})" if offset else f"({qualifier}{kind} *){step}{where}"
