# SPDX-License-Identifier: Apache-2.0
"""Print a module that has a memory plan as C: kernels with comments, calls of kernels, and the files of a network."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.codegen.c.c_expressions import MAX_INT16, MAX_INT32, ExprPrinter
from microc.codegen.c.c_statements import (
    C_STMT_WIDTH,
    INDENT,
    StmtPrinter,
    core_count_of,
    print_helper_functions,
    thread_count_of,
    wrap_line,
)
from microc.codegen.c.interface import (
    DEFAULT_ALIGNMENT,
    REGION_MACRO_PREFIX,
    ArenaContext,
    Classes,
    InterfaceTensor,
    StorageContext,
    arena_variable_and_offset,
    caller_arena_and_offset,
    interface_tensor_of,
    make_arena_context,
    make_storage_context,
    output_classes_of,
    pack_stored_constants,
    print_attributed_declaration,
    print_bytes_definition,
    print_constant_definition,
    print_weight_copy_calls,
)
from microc.codegen.c.resources import StackBounds, stack_bounds
from microc.codegen.project.additions import (
    UNIT_NAMES,
    SelfTestContext,
    UnitContext,
    list_external_files,
    make_self_test_context,
    make_tensor_unit_context,
)
from microc.codegen.project.manifest import manifest, to_json
from microc.codegen.render import Code, Name, Note, Text, Word, render
from microc.errors import InternalError
from microc.isa import CORES, FAMILIES
from microc.module import Call, Kernel, Module, Value
from microc.tir.names import FLAGS

# ---- Print kernels as C functions with comments, and print the calls of these functions.

HOT_CODE = "MICROC_HOT_CODE"
"""Macro that is printed before the definition of each kernel that runs from RAM. The board's header or the user's build defines
the macro as the attributes that place such a kernel."""


def print_kernel_by_name(module: Module, name: str) -> Code:
    """Return the C of the kernel ``name``, as it is printed in the network's source file."""
    return print_kernel(module, make_statement_printer(module), [kernel.name for kernel in module.kernels].index(name))


def make_statement_printer(module: Module) -> StmtPrinter:
    """Build the statement printer for a network's kernels, with the ``int`` size and math functions of the network's core."""
    family = FAMILIES[CORES[module.options["cpu"]].family]
    space = f"{module.name.upper()}_FLASH " if family.flash_space else ""
    expr = ExprPrinter(MAX_INT16 if required_int_bits(module) == 16 else MAX_INT32, family.own_math)
    sizes = {size.scalar: (size.minimum, size.maximum) for size in module.sizes}
    return StmtPrinter(
        expr,
        space,
        sizes,
        runs_loops_by_function=thread_count_of(module) > 1 or core_count_of(module) > 1,
        cpu=module.options["cpu"],
    )


def required_int_bits(module: Module) -> int:
    """Return the minimum number of bits of C's ``int`` for which a network's C is correct: 16 or 32.

    It is 16 for cores with a separate address space for flash (AVR), whose ``int`` has 16 bits, and for the target ``host``,
    whose C may be compiled for any machine.
    """
    cpu = module.options["cpu"]
    return 16 if cpu == "host" or FAMILIES[CORES[cpu].family].flash_space else 32


def print_kernel(module: Module, printer: StmtPrinter, kernel_index: int) -> Code:
    """Print a kernel as a C function with a comment before it. ``kernel_index``: the kernel's index in the module."""
    # The comment lists the layers that the kernel computes, remarks on its schedule, shapes, and parameters that overlap.
    kernel = module.kernels[kernel_index]
    numbered_calls = [(k, call) for k, call in enumerate(module.calls) if call.kernel == kernel.name]
    layers = [f"{short_layer_name(module, call)} (step {k}, {call.macs} MACs)" for k, call in numbered_calls]
    shapes = {p.name: [str(n) for n in p.shape if n > 1] for p in kernel.func.params}
    arrays = ", ".join(f"{name} {' x '.join(shape)}" for name, shape in shapes.items() if len(shape) > 1)
    notes = [
        *layers,
        *kernel.comment,
        *([f"in memory: {arrays}"] if arrays else []),
        *_in_place_notes(module, kernel, numbered_calls),
    ]
    head = [
        line for note in notes for line in textwrap.wrap(f" * {Note(note)}", C_STMT_WIDTH, subsequent_indent=" *     ")
    ]
    signature = f"{module.name.upper()}_KERNEL"
    if kernel.external is None:
        code = printer.print_function(kernel.func, signature, kernel.blocks)
    else:
        signature += "_STATUS" if kernel.external.fails else ""
        code = printer.print_external_function(kernel.func, kernel.external.lines, signature)
    flags = dict(kernel.func.annotations).get(FLAGS)
    attributes = [
        *([HOT_CODE] if module.plan and module.plan.code and kernel.name in module.plan.code.kernels else []),
        *([f'{module.name.upper()}_OPTIMIZE("{flags}")'] if flags else []),
    ]
    loop_functions = f"static void {kernel.name}__"  # what cores share of the kernel
    for start in [k for k, line in enumerate(code) if line.startswith((signature, loop_functions))][::-1]:
        code[start:start] = attributes
    return Code("\n".join(["/*", *head, " */", *(line for whole in code for line in wrap_line(whole))]))


def _in_place_notes(module: Module, kernel: Kernel, numbered_calls: list[tuple[int, Call]]) -> list[str]:
    """Return notes for the comment of a kernel whose output overwrites an input in memory.

    ``numbered_calls``: the number of each step that calls the kernel, with the call. A note lists the steps in which two
    parameters overlap, unless they overlap in all of these steps."""
    steps: dict[str, list[int]] = {}
    for step, call in numbered_calls:
        ranges = [
            (p.name, name, _arena_range(module, name)) for p, name in zip(kernel.func.params, call.args, strict=False)
        ]
        for written_param, written, a in ranges:
            for read_param, read, b in ranges:
                if written in call.writes and read in call.reads and max(a.start, b.start) < min(a.stop, b.stop):
                    steps.setdefault(f"{written_param} is written over {read_param}", []).append(step)
    return [
        f"in place: {overlap}"
        + (f" in step {', '.join(map(str, overlap_steps))}" if len(overlap_steps) < len(numbered_calls) else "")
        for overlap, overlap_steps in steps.items()
    ]


def _arena_range(module: Module, name: str) -> range:
    """Return the range of the bytes that a value occupies in the memory plan. It is empty if the value is not in an arena."""
    assert module.plan is not None
    base, offset = module.base_and_offset(name)
    start = module.plan.offsets.get(base)
    return range(0) if start is None else range(start + offset, start + offset + module.values[name].nbytes)


def short_layer_name(module: Module, call: Call, max_length: int = 100) -> str:
    """Return the name of the layer that a call computes, shortened to at most ``max_length`` characters, for comments.

    Converters join the names of fused layers by ``;``. Of joined names that are too long only the first is returned."""
    layer = call.layer.removeprefix(f"{module.source} ")
    if len(layer) <= max_length:
        return layer
    first = layer.partition(";")[0]
    return f"{first};..." if len(first) < max_length else layer[: max_length - 3] + "..."


def print_kernel_call(module: Module, call: Call) -> Code:
    """Print the call of a kernel in the network's step function.

    If the kernel is external code that can fail, the printed statements return an error when it fails."""
    kernel = next(k for k in module.kernels if k.name == call.kernel)
    written = set(call.writes) | set(call.workspace)
    args = [
        print_value_pointer(module, name, param.dtype, const=name not in written)
        for name, param in zip(call.args, kernel.func.params, strict=True)
    ]
    names = {size.scalar: size.name for size in module.sizes}
    args += [f"sizes->{names[scalar]}" for scalar in kernel.func.scalars]
    indent = 2 * INDENT
    call_expression = f"{call.kernel}({', '.join(args)})"
    if kernel.external is not None and kernel.external.fails:
        lines = (
            *wrap_line(f"{indent}if ({call_expression} != 0) {{"),
            f"{indent}{INDENT}return {external_error_name(module)};",
            f"{indent}}}",
        )
    else:
        lines = tuple(wrap_line(f"{indent}{call_expression};"))
    return Code("\n".join(lines).removeprefix(indent))


def external_error_name(module: Module) -> Name:
    """Return the C enumerator of the error code that a run returns if external code failed."""
    return Name(f"{module.name.upper()}_ERROR_EXTERNAL")


def print_value_pointer(module: Module, name: str, dtype: str, *, const: bool) -> str:
    """Print the address of the value ``name`` as a C expression, whose type is a pointer to ``dtype``."""
    base, offset = module.base_and_offset(name)
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
    arena, offset = arena_variable_and_offset(module, module.plan.offsets[base] + offset)
    where = f"{arena} + {offset}" if offset else arena
    step = "" if dtypes.nbytes(dtype) == 1 else "(void *)"
    return f"({qualifier}{kind} *){step}({where})" if offset else f"({qualifier}{kind} *){step}{where}"


# ---- Contexts (variables) of the templates of a generated project.


@frozen
class SizeMember:
    """A size that varies between runs, as the network's header declares it.

    ``name``: name of the member of the header's struct of sizes. ``macro``: stem of the names of the size's macros.
    ``minimum`` and ``maximum``: permitted values. ``step``: the number that the size must be a multiple of. ``label``: the
    size's name in the model."""

    name: Name
    macro: Name
    minimum: int
    maximum: int
    step: int
    label: Text


NEAR_FLASH = 60 * 1024
"""Maximum number of bytes of constants that certainly fit in the first 64 KiB of AVR's flash, where only the interrupt vectors
precede them."""


@frozen
class ModelContext:
    """Variables of the templates of a network's C files.

    The templates are ``model.h.j2``, ``model.c.j2``, ``model_data.h.j2`` and ``model_data.c.j2``. Sizes are in bytes.

    ``upper``: the network's name in capitals, the prefix of macros. ``stem``: common beginning of the names of the files.
    ``arena_end``: end of the last tensor in the memory plan. ``lower_bound``: no memory plan can be smaller. ``int_bits``: least
    number of bits that C's ``int`` must have. ``resets``: statements of the reset function. ``copies``: True if steps copy
    weights to RAM. ``kept``: True if reset copies weights to RAM. ``fails``: True if external code can fail. ``aligned``: True
    if a constant needs a larger alignment than :data:`DEFAULT_ALIGNMENT`. ``hot_code``: True if kernels run from RAM.
    ``optimized``: True if a kernel has compiler options of its own. ``constant_macros``: macros that place constants in other
    flash regions than the first. ``flash_space``: gcc's address space for constants; None if the core has one address space.
    ``threads``, ``cores``: number of threads, or of cores, that share large loops. ``binds_threads``: True if each thread runs
    on a CPU of its own. ``unit``: the tensor unit; None if no kernel uses one."""

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
    inputs: tuple[InterfaceTensor, ...]
    outputs: tuple[InterfaceTensor, ...]
    classes: Classes | None
    self_test: SelfTestContext | None
    helpers: tuple[Code, ...]
    kernels: tuple[Code, ...]
    steps: tuple[StepContext, ...]
    resets: tuple[Code, ...]
    copies: bool
    kept: bool
    data_declarations: tuple[Code, ...]
    data_definitions: tuple[Code, ...]
    constant_macros: tuple[Name, ...]
    flash_space: Name | None
    data_needs_math: bool
    arena_end: int
    int_bits: int
    stem: Name
    threads: int
    binds_threads: bool
    cores: int
    optimized: bool
    hot_code: bool
    unit: UnitContext | None
    includes: tuple[Word, ...]
    fails: bool
    aligned: bool
    learning: Learning | None
    """The learning of a network that learns; None for other networks."""
    storage: StorageContext | None
    """The constants that a run reads from storage; None if there are none."""


@frozen
class Learning:
    """The part of a network that learns which ``<name>_run`` computes: its first ``kernel_count`` kernels.

    ``inputs``, ``outputs``: names of the tensors that these kernels use. ``others``: names of those that only
    ``<name>_learn`` uses, as text. ``learned``: address in the arena, bytes and name in the model of each tensor that
    learning changes."""

    kernel_count: int
    inputs: tuple[Name, ...]
    outputs: tuple[Name, ...]
    others: Text
    learned: tuple[tuple[Code, int, Text], ...]


@frozen
class StepContext:
    """A step of a network: one case of the switch in the network's step function.

    ``before``: statements that copy weights to RAM before the kernel runs. ``call``: the call of the kernel. ``layer``: the
    name of the layer that the kernel computes."""

    number: int
    before: tuple[Code, ...]
    call: Code
    layer: Text


def make_model_context(module: Module, version: str, file_stem: str = "model") -> ModelContext:
    """Print all parts of a module, and return them as the variables of the templates of the network's C files.

    ``file_stem``: the common beginning of the names of these files."""
    plan = module.plan
    if plan is None:
        raise InternalError(f"module {module.name}: it has no memory plan; expected one before C is printed")
    # The printer records the helpers and headers that the printed code needs. Kernels are therefore printed first, then helpers,
    # then the parts that depend on both.
    printer = make_statement_printer(module)
    space = printer.address_space
    kernels = tuple(print_kernel(module, printer, k) for k in range(len(module.kernels)))
    helpers = _print_helpers(module, printer)
    tests = module.self_test.values if module.self_test else ()
    linked = (v for name, v in module.values.items() if v.storage == "const" and name not in plan.stored_offsets)
    stored = sorted((*linked, *tests), key=lambda v: v.name)
    steps = tuple(
        StepContext(
            k, print_weight_copy_calls(module, k), print_kernel_call(module, call), Text(short_layer_name(module, call))
        )
        for k, call in enumerate(module.calls)
    )
    constants = [(_with_public_name(module, v), plan.constant_regions.get(v.name, "")) for v in stored]
    attribute = f"{module.name.upper()}_ALIGNED"
    resets = _print_reset_statements(module)
    return ModelContext(
        name=Name(module.name),
        upper=Name(module.name.upper()),
        source=Text(module.source),
        fingerprint=Word(module.fingerprint),
        version=Word(version),
        arenas=make_arena_context(module),
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
        needs_string=bool(resets) or bool(plan.copies) or any("memcpy" in h or "memmove" in h for h in helpers),
        io_in_arena=plan.io_in_arena,
        sizes=tuple(
            SizeMember(Name(s.name), Name(s.name.upper()), s.minimum, s.maximum, s.step, Text(s.label))
            for s in module.sizes
        ),
        inputs=tuple(interface_tensor_of(module, n) for n in module.inputs),
        outputs=tuple(interface_tensor_of(module, n) for n in module.outputs),
        classes=output_classes_of(module),
        self_test=make_self_test_context(module),
        helpers=helpers,
        kernels=kernels,
        steps=steps,
        resets=resets,
        copies=any(step >= 0 for name, step in plan.copies.items() if name not in plan.stored_offsets),
        kept=any(step < 0 for step in plan.copies.values()),
        data_declarations=tuple(
            Code(f"extern {print_attributed_declaration(v, attribute, space, region)};") for v, region in constants
        ),
        data_definitions=tuple(
            Code("\n".join(print_constant_definition(v, attribute, space, region)))
            for v, region in constants
            if v.data is not None
        ),
        constant_macros=tuple(
            Name(f"{REGION_MACRO_PREFIX}{region.memory}".upper()) for region in plan.flash[1:] if region.constants
        ),
        flash_space=_flash_address_space(module) if space else None,
        data_needs_math=not all(np.isfinite(v.data).all() for v, _ in constants if v.data is not None),
        arena_end=max((offset + module.values[name].nbytes for name, offset in plan.offsets.items()), default=0),
        int_bits=required_int_bits(module),
        stem=Name(file_stem),
        threads=thread_count_of(module),
        binds_threads=thread_count_of(module) > 1 and module.options.get("bind_threads") == "True",
        cores=core_count_of(module),
        unit=make_tensor_unit_context(module, printer.expr.helpers),
        includes=tuple(Word(name) for name in dict.fromkeys(_list_external_headers(module))),
        fails=any(kernel.external is not None and kernel.external.fails for kernel in module.kernels),
        aligned=any(value.align > DEFAULT_ALIGNMENT for value in stored),
        hot_code=plan.code is not None,
        optimized=any(FLAGS in dict(kernel.func.annotations) for kernel in module.kernels),
        learning=_make_learning_context(module),
        storage=make_storage_context(module),
    )


def _make_learning_context(module: Module) -> Learning | None:
    """Return the template variables of a network that learns; None if the network does not learn."""
    if not module.inference_calls:
        return None
    read = {module.base_and_offset(n)[0] for call in module.calls[: module.inference_calls] for n in call.reads}
    inputs = tuple(name for name in module.inputs if name in read)
    others = [name for name in (*module.inputs, module.outputs[-1]) if name not in inputs]
    outputs = tuple(map(Name, module.outputs[:-1]))
    learned = []
    for name in module.state:
        arena, offset = caller_arena_and_offset(module, module.plan.offsets[name]) if module.plan else ("arena", 0)
        value = module.values[name]
        learned.append((Code(f"(uint8_t *){arena} + {offset}"), value.nbytes, Text(value.label)))
    return Learning(module.inference_calls, tuple(map(Name, inputs)), outputs, Text(", ".join(others)), tuple(learned))


def _list_external_headers(module: Module) -> Iterator[str]:
    """Yield the names of the headers that the external code of kernels includes. A name may occur several times."""
    for kernel in module.kernels:
        if kernel.external is not None:
            yield from kernel.external.includes


def _flash_address_space(module: Module) -> Name:
    """Return the name of gcc's address space for constants in AVR's flash.

    It is ``__flash``, with 16-bit pointers, if all constants fit in the first 64 KiB of flash. Otherwise it is ``__memx``, with
    24-bit pointers."""
    constants = module.const_bytes + (module.self_test.nbytes if module.self_test else 0)
    return Name("__flash" if constants <= NEAR_FLASH else "__memx")


def _with_public_name(module: Module, value: Value) -> Value:
    """Return a constant renamed to its public C name, which begins with the network's name."""
    return replace(value, name=f"{module.name}_{value.name}", storage="const")


def _print_helpers(module: Module, printer: StmtPrinter) -> tuple[Code, ...]:
    """Print the definitions of all helper functions that kernels and other helpers call.

    Each definition follows those of the helpers that it calls."""
    names = (name for name in printer.expr.helpers if name not in UNIT_NAMES)
    portable = printer.expr.portable_helpers
    texts = print_helper_functions(names, module.options["cpu"], printer.expr, portable).values()
    return tuple(Code("\n".join(part for line in lines for part in wrap_line(line))) for lines in texts)


def _print_reset_statements(module: Module) -> tuple[Code, ...]:
    """Print the statements that reset a network: they copy weights to RAM and initialise every state tensor.

    The initial content of a state tensor is printed in the shortest way: as a repeated byte, as a repeated number, or as a
    constant array that is copied.
    """
    assert module.plan is not None
    lines = []
    for name in (name for name, step in module.plan.copies.items() if step < 0):
        arena, offset = caller_arena_and_offset(module, module.plan.offsets[name])
        lines.append(
            f"(void)memcpy((uint8_t *){arena} + {offset}, {module.name}_{name}, {module.values[name].nbytes});"
        )
    for name in module.state:
        value = module.values[name]
        assert value.data is not None
        arena, offset = caller_arena_and_offset(module, module.plan.offsets[name])
        place, content_bytes = f"(uint8_t *){arena} + {offset}", value.data.reshape(-1).view(np.uint8)
        width = value.data.itemsize
        if name in module.starts:
            kind = dtypes.c_name(value.dtype)
            lines += [
                f"for (int32_t i = 0; i < {value.data.size}; ++i) {{",
                f"{INDENT}(({kind} *)(void *)({place}))[i] = {module.name}_{module.starts[name]}[i];",
                "}",
            ]
        elif len(set(content_bytes.tolist())) <= 1:
            lines.append(f"(void)memset({place}, {content_bytes[0] if content_bytes.size else 0}, {value.nbytes});")
        else:
            number = int(value.data.reshape(-1)[:1].view(f"u{width}")[0])
            lines += [
                f"for (int32_t i = 0; i < {value.nbytes}; i += {width}) {{",
                f"{INDENT}const uint{8 * width}_t start = UINT{8 * width}_C({number:#x});",
                f"{INDENT}(void)memcpy({place} + i, &start, {width});",
                "}",
            ]
    return tuple(map(Code, lines))


# ---- Render the files of a network alone, or with the entry points of a shared library for desktop computers.


@frozen
class SharedContext:
    """Variables of the template ``shared.c.j2``, which prints the entry points of a network's shared library for a desktop
    computer."""

    name: Name
    upper: Name
    prototypes: tuple[Code, ...]
    manifest_lines: tuple[Code, ...]
    inputs: tuple[Name, ...]
    outputs: tuple[Name, ...]
    sizes: tuple[Name, ...]
    arenas: tuple[ArenaStart, ...]
    end: Code
    probe: ProbeContext
    weights_lines: tuple[Code, ...]
    """Definition of the array with the file of stored constants; empty if the network has none."""


@frozen
class ArenaStart:
    """Position of one of several arenas in the single block of memory that the caller of a desktop library passes.

    ``start``: offset of the arena in the block, in bytes."""

    name: Name
    start: int


@frozen
class ProbeContext:
    """Variables of the C function that tests whether this computer has the instructions that a library was compiled for.

    They are the parts of a :class:`microc.isa.instruction_set.Probe`."""

    guard: Code
    text: Code
    header: Code
    attribute: Code


def network_files(module: Module, version: str) -> dict[str, str]:
    """Return the text of a network's C files by name: ``model.c``, ``model.h``, ``model_data.c`` and ``model_data.h``.

    ``version``: microc's version, which the files state."""
    return render_network(make_model_context(module, version))


def render_network(context: ModelContext) -> dict[str, str]:
    """Render a network's two C sources and two headers. Return their text by file name; names begin with the context's stem."""
    ends = (".c", ".h", "_data.c", "_data.h")
    return {context.stem + end: render(f"project/model{end}.j2", context) for end in ends}


def shared_files(module: Module, version: str) -> dict[str, str]:
    """Return the files from which a network's shared library (``.so``) for a desktop computer is compiled: text by file
    name.

    They are the network's C files, the entry points (``shared.c``), the manifest, and the sources of external code."""
    data = manifest(module, version)
    external_sources = {
        path: data.decode("utf-8", "replace") for path, data in list_external_files(module.sources).items()
    }
    files = {
        **network_files(module, version),
        "shared.c": render_shared_library_source(data, weights=pack_stored_constants(module)),
        "manifest.json": to_json(data),
    }
    return {**files, **external_sources}


def network_files_and_manifest(module: Module, version: str) -> dict[str, str]:
    """Return the text of a network's C files and of its manifest, by file name.

    They are compiled for this computer, to compare its results with those of a board."""
    return {**network_files(module, version), "manifest.json": to_json(manifest(module, version))}


def render_shared_library_source(
    network_manifest: Mapping[str, Any], level_index: int = 0, model: str = "", weights: bytes = b""
) -> str:
    """Render ``shared.c``, the entry points of a network's shared library for a desktop computer.

    A library may contain the same network several times, compiled for different cores. ``level_index`` distinguishes
    their entry points. ``model`` is then the network's name in all their manifests; if it is empty, the manifest stays as
    it is. ``weights``: content of the file of stored constants, which the library contains, because a library is a single
    file; the network's C reads it piece by piece, as on a board."""
    end, core = entry_point_suffix(level_index), CORES.get(network_manifest["options"]["cpu"])
    probe = core.probe if core else None
    probe_parts = (probe.guard, probe.text, probe.header, probe.attribute) if probe else ("", "", "", "")
    sizes = tuple(Name(size["name"]) for size in network_manifest.get("sizes", ()))
    sizes_arg = ", const int32_t *sizes" if sizes else ""
    several = [arena for arena in network_manifest.get("arenas", ()) if arena["size"]]
    prototypes = (
        f"extern const int8_t microc_manifest{end}[];",
        f"int microc_runs_here{end}(void);",
        f"int microc_run_kernel{end}(void *arena, const void *const *inputs, void *const *outputs, uint32_t kernel{sizes_arg});",
        f"int microc_run{end}(void *arena, const void *const *inputs, void *const *outputs{sizes_arg});",
        f"int microc_run_batch{end}(void *arena, const void *const *inputs, const size_t *input_steps, void *const *outputs,\n"
        f"    const size_t *output_steps, size_t count{sizes_arg});",
        f"void microc_reset{end}(void *arena);",
    )
    renamed_manifest = {**network_manifest, "model": model or network_manifest["model"]}
    manifest_lines = print_constant_definition(
        _text_constant(f"microc_manifest{end}", json.dumps(renamed_manifest, ensure_ascii=True))
    )
    context = SharedContext(
        name=Name(network_manifest["model"]),
        upper=Name(network_manifest["model"].upper()),
        prototypes=tuple(map(Code, prototypes)),
        manifest_lines=tuple(map(Code, manifest_lines)),
        inputs=tuple(map(Name, network_manifest["inputs"])),
        outputs=tuple(map(Name, network_manifest["outputs"])),
        sizes=sizes,
        arenas=tuple(ArenaStart(Name(a["memory"]), a["start"]) for a in several) if len(several) > 1 else (),
        end=Code(end),
        probe=ProbeContext(*map(Code, probe_parts)),
        weights_lines=tuple(map(Code, print_bytes_definition(WEIGHTS_ARRAY, weights))),
    )
    return render("project/shared.c.j2", context)


WEIGHTS_ARRAY = "microc_weights"
"""Name of the array in a shared library for a desktop computer that contains the file of stored constants."""


def entry_point_suffix(level_index: int) -> str:
    """Return the suffix of the names of the entry points in a shared library for a desktop computer.

    ``level_index``: index of the core among the cores that the library has code for. The suffix of index 0 is empty."""
    return f"_{level_index}" if level_index else ""


def _text_constant(name: str, text: str) -> Value:
    """Return ASCII text as the constant array ``name`` of int8, which ends with a zero.

    A string literal would not do, because C99 guarantees only literals of up to 4095 characters.
    """
    data = np.frombuffer(text.encode("ascii") + b"\0", dtype=np.int8)
    return Value(name, data.shape, "int8", "const", data)
