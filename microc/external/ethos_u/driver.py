# SPDX-License-Identifier: Apache-2.0
"""Regions of a network for an Ethos-U: the layers that they may contain, the generated C, and Arm's driver that runs
them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from microc.base.file_access import read_bytes
from microc.errors import ToolError, UnsupportedError, UsageError
from microc.external.backend import Backend, Code, Entry, Region, Span
from microc.external.ethos_u.accelerator import (
    ALIGN,
    NAME,
    Configuration,
    OperatorsLeftToProcessor,
    VelaModel,
    check_payload,
    compile_model,
    parse_configuration,
    require_vela,
)
from microc.frontend.tflite.writer import convert_node, tflite_names, to_tflite
from microc.graph.ir import Graph, Node
from microc.module import Sources
from microc.target import Target

# ---- Arm's driver (ethos-u-core-driver): the code that calls it, and the driver's sources or library if the user provides them.
#
# If the board file contains the accelerator's address, the generated code sets the driver up before the first run and handles the
# accelerator's interrupt; else the user's firmware must do both.

HEADER, LIBRARY, DRIVER = "microc_ethos_u.h", "ethosu_core_driver", "ethosu_driver.h"
SOURCES = ("ethosu_driver.c", "ethosu_device_u55_u65.c", "ethosu_pmu.c")
"""Source files of Arm's driver, in the folder ``src`` of its repository."""
_HEADERS = ("include", "")
"""Subfolders of the driver's folder that may contain its header :data:`DRIVER`."""
_PRODUCTS = ("ETHOSU55", "ETHOSU65")
_MAX_FILE_BYTES = 1 << 20
_FAMILIES = ("arm", "aarch64")
_DRIVER_HINT = "a clone of Arm's ethos-u-core-driver, or a folder with the library that it builds and its headers"
_LICENCE = "Apache-2.0"
_DECLARED = b"""/* Regions of a network that an Ethos-U computes. */
#ifndef MICROC_ETHOS_U_H
#define MICROC_ETHOS_U_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Commands of Vela over weights and scratch memories; all pointers are multiples of 16. Returns 0, or what the driver says. */
int microc_ethos_u(const uint8_t *commands, int command_bytes, const uint8_t *weights, size_t weight_bytes,
    uint8_t *scratch, size_t scratch_bytes, uint8_t *fast, size_t fast_bytes);

#endif
"""
_ELSEWHERE = """
/* Of Arm's driver (ethos-u-core-driver), which the firmware has set up by ethosu_init before the first run. */
struct ethosu_driver;
struct ethosu_driver *ethosu_reserve_driver(void);
void ethosu_release_driver(struct ethosu_driver *driver);
int ethosu_invoke_v3(struct ethosu_driver *driver, const void *custom_data_ptr, const int custom_data_size,
    uint64_t *const base_addr, const size_t *base_addr_size, const int num_base_addr, void *user_arg);

static int set_up(void)
{
    return 0;
}
"""
_HERE = """
#include "ethosu_driver.h"

#define NVIC_ENABLE (*(volatile uint32_t *)(uintptr_t)(0xE000E100u + 4u * (MICROC_NPU_IRQ / 32u)))
#define HEAP_BYTES 512u

static struct ethosu_driver npu;

/* In the vector table. */
void microc_npu_interrupt(void);
void microc_npu_interrupt(void)
{
    ethosu_irq_handler(&npu);
}

/* What the C library takes memory from, if nothing else is there: the driver allocates a few words when it is set up. */
void *_sbrk(ptrdiff_t bytes);
__attribute__((weak)) void *_sbrk(ptrdiff_t bytes)
{
    static uint64_t heap[HEAP_BYTES / 8u];
    static size_t used;
    const size_t begin = used;
    if (bytes < 0 || (size_t)bytes > HEAP_BYTES - used) {
        return (void *)UINTPTR_MAX;
    }
    used += (size_t)bytes;
    return (uint8_t *)heap + begin;
}

/* The accelerator that microc_board.h tells of, before the first run. */
static int set_up(void)
{
    static int done;
    int status = 0;
    if (!done) {
        status = ethosu_init(&npu, (void *)(uintptr_t)MICROC_NPU_BASE, NULL, 0, MICROC_NPU_SECURE, MICROC_NPU_PRIVILEGED);
        done = status == 0;
        NVIC_ENABLE = (uint32_t)done << (MICROC_NPU_IRQ % 32u);
    }
    return status;
}
"""
_CALLED = """#include "microc_ethos_u.h"
%s
int microc_ethos_u(const uint8_t *commands, int command_bytes, const uint8_t *weights, size_t weight_bytes,
    uint8_t *scratch, size_t scratch_bytes, uint8_t *fast, size_t fast_bytes)
{
    uint64_t places[3];
    size_t sizes[3];
    struct ethosu_driver *driver;
    int status = set_up();
    if (status != 0) {
        return status;
    }
    driver = ethosu_reserve_driver();
    places[0] = (uint64_t)(uintptr_t)weights;
    places[1] = (uint64_t)(uintptr_t)scratch;
    places[2] = (uint64_t)(uintptr_t)fast;
    sizes[0] = weight_bytes;
    sizes[1] = scratch_bytes;
    sizes[2] = fast_bytes;
    status = ethosu_invoke_v3(driver, commands, command_bytes, places, sizes, 3, NULL);
    ethosu_release_driver(driver);
    return status;
}
"""
_CMSIS = b"""/* What the driver takes of CMSIS. */
#ifndef MICROC_CMSIS_COMPILER_H
#define MICROC_CMSIS_COMPILER_H

#define __NOP() __asm volatile("nop")
#define __WFE() __asm volatile("wfe" ::: "memory")
#define __SEV() __asm volatile("sev" ::: "memory")
#define __ISB() __asm volatile("isb" ::: "memory")
#define __DSB() __asm volatile("dsb" ::: "memory")
#define __DMB() __asm volatile("dmb" ::: "memory")

#endif
"""


def open_driver(configuration: Configuration, target: Target) -> Sources:
    """Return the sources that call Arm's driver and, if the configuration names a folder, the driver itself.

    The driver is compiled from the folder ``src`` of a clone, or linked as ``libethosu_core_driver.a``. Raises
    UsageError if the target is no Cortex-M, if the folder contains neither, or if it lacks the header that setting the
    driver up needs.
    """
    if target.isa not in _FAMILIES:
        raise UsageError(
            f"{NAME} needs a Cortex-M as its host; got {target.cpu}",
            hint="choose a board with a Cortex-M",
        )
    if not configuration.driver_folder:
        return Sources(NAME, _generate_caller_files(_ELSEWHERE), include=("",), licence=_LICENCE)
    folder = Path(configuration.driver_folder).resolve()
    header = next((folder / inner for inner in _HEADERS if (folder / inner / DRIVER).is_file()), None)
    own = _generate_caller_files(_HERE if target.npu else _ELSEWHERE)
    if header is not None and all((folder / "src" / name).is_file() for name in SOURCES):
        return _collect_driver_sources(folder, header, own, _PRODUCTS[configuration.accelerator_model.product_number])
    if not (folder / f"lib{LIBRARY}.a").is_file():
        raise UsageError(
            f"there is no lib{LIBRARY}.a in {folder}", where=configuration.driver_folder, hint=f"name {_DRIVER_HINT}"
        )
    if target.npu and header is None:
        raise UsageError(
            f"there is no {DRIVER} in {folder}, nor in its folder include",
            where=configuration.driver_folder,
            hint=f"name {_DRIVER_HINT}",
        )
    if not re.fullmatch(r"[A-Za-z0-9_\-+./:=]+", str(folder)):
        raise UsageError(
            "the folder's name has characters that make and shells interpret",
            where=str(folder),
            hint="rename the folder",
        )
    headers = dict(_read_driver_files(folder, header, "*.h")) if header is not None and target.npu else {}
    return Sources(
        NAME,
        {**own, **headers},
        include=("", *sorted({Path(path).parent.as_posix() for path in headers})),
        libraries=(LIBRARY,),
        folders=(str(folder),),
        licence=_LICENCE,
    )


def _generate_caller_files(setup_code: str) -> dict[str, bytes]:
    """Return the generated files that call the driver, by file name.

    ``setup_code``: the C code that defines ``set_up``, which the call runs first."""
    return {HEADER: _DECLARED, "microc_ethos_u.c": (_CALLED % setup_code).encode()}


def _collect_driver_sources(folder: Path, headers: Path, caller_files: dict[str, bytes], product_macro: str) -> Sources:
    """Return the source files of Arm's driver, with the files that call it and the macros for compiling both.

    The driver's logging is disabled, so that it does not write to a firmware's console. ``headers``: the folder that
    contains the driver's header; ``caller_files``: the generated files that call the driver; ``product_macro``: the
    driver's macro that selects the product family of the accelerator."""
    files = {
        **caller_files,
        "cmsis_compiler.h": _CMSIS,
        **dict(_read_driver_files(folder, headers, "*.h")),
        **dict(_read_driver_files(folder, folder / "src", "*.h")),
        **{path: text for name in SOURCES for path, text in _read_driver_files(folder, folder / "src", name)},
    }
    return Sources(
        NAME,
        files,
        include=("", "driver/src", *sorted({Path(path).parent.as_posix() for path in files if path.endswith(DRIVER)})),
        defines=(product_macro, f"ETHOSU_ARCH={product_macro[-3:].lower()}", "ETHOSU_LOG_SEVERITY=-1", "NDEBUG"),
        licence=_LICENCE,
    )


def _read_driver_files(folder: Path, subfolder: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of the driver's files in the folder ``subfolder`` whose names match ``pattern``.

    Paths are relative to the sources of the C project. Raises UsageError if a file cannot be read, or is outside of
    ``folder`` after links are followed."""
    for path in sorted(subfolder.glob(pattern)):
        if not path.resolve().is_relative_to(folder):
            raise UsageError(
                "driver's folder: got a file whose path leads out of the folder, expected files inside of it",
                where=str(path),
                hint=f"name {_DRIVER_HINT}",
            )
        try:
            data = read_bytes(path, _MAX_FILE_BYTES)
        except OSError as error:
            raise UsageError(
                f"cannot read the driver: {error.strerror or error}", where=str(path), hint=f"name {_DRIVER_HINT}"
            ) from error
        yield f"driver/{path.relative_to(folder).as_posix()}", data


# ---- Regions of the network for an Ethos-U: their layers, and the C that passes them to Arm's driver.
#
# Vela plans the memory of a region: inputs and results have offsets in one scratch memory. In the commands, the scratch memory is
# memory region 1 (0: weights; 2: fast scratch memory, if the accelerator has one). The generated code provides the scratch memory
# as a workspace in the arena, copies the inputs into it before the run, and the results out of it afterwards.

MOVES = frozenset({"reshape", "concat"})
"""Operators that only move data: a region of these operators alone is not worth a run of the accelerator."""
CALL, WORD = 500.0, 3.0
"""Processor instructions for calling the driver once, and for copying four bytes.

In the estimate a cycle of the accelerator counts as one instruction: the accelerator's clock is no slower than the
processor's, and the processor takes at least one cycle for an instruction.
"""
_CODE_BYTES = 120  # bytes of code that the estimate charges for each region


def configured_backend(configuration_text: str) -> Backend:
    """Return the backend for the accelerator that a configuration names (see :func:`parse_configuration`)."""
    configuration = parse_configuration(configuration_text)

    def find_layers_left_to_processor(region: Region) -> Mapping[str, str]:
        """Compile a region by Vela; map the first output of each layer that Vela leaves to the processor to Vela's
        reason."""
        result = compile_model(to_tflite(region.graph), configuration) if not check_region_computes(region) else None
        return _map_layers_left_to_processor(region, result) if isinstance(result, OperatorsLeftToProcessor) else {}

    def open_driver_sources(user_configuration: str, target: Target, functions: Iterable[str]) -> Sources:
        """Return the sources that call Arm's driver; ToolError if Vela is not installed."""
        driver_sources = open_driver(configuration, target)
        require_vela()
        return driver_sources

    entry = Entry(
        "region",
        Span(layer_refusal_reason, find_layers_left_to_processor),
        lambda region: generate_driver_call(region, configuration),
        check_region_computes,
    )
    return Backend(NAME, (entry,), open=open_driver_sources, headers=(HEADER,))


def require_configuration(user_configuration: str, target: Target, functions: Iterable[str]) -> Sources:
    """Parse the configuration, and return the sources that call Arm's driver.

    Raises UsageError if neither the user's configuration nor the board names an accelerator."""
    return open_driver(parse_configuration(user_configuration), target)


def layer_refusal_reason(graph: Graph, node: Node) -> str:
    """Return why a layer cannot be in a region for Vela, namely why it cannot be written to a TFLite file; empty if it
    can."""
    try:
        convert_node(graph, node)
    except UnsupportedError as error:
        return error.what
    return ""


def check_region_computes(region: Region) -> str:
    """Return a reason to refuse a region whose layers all only move data; empty if a layer of the region computes."""
    return "" if any(node.op not in MOVES for node in region.graph.nodes) else "its layers only move data"


def _map_layers_left_to_processor(region: Region, left_operators: OperatorsLeftToProcessor) -> Mapping[str, str]:
    """Map the first output of each layer that Vela leaves to the processor to the reason.

    Vela identifies operators by the names of their results. Raises ToolError if none of its names belongs to a layer of
    the region.
    """
    names = {name.partition("_")[0]: value for value, name in tflite_names(region.graph).items()}
    producers = {value: node.outputs[0] for node in region.graph.nodes for value in node.outputs}
    values = {names.get(name.partition("_")[0], ""): why for name, why in left_operators.reasons.items()}
    prefix = "Vela leaves it to the processor"
    left = {
        producers[value]: f"{prefix}: {why}" if why else prefix for value, why in values.items() if value in producers
    }
    if not left:
        raise ToolError(
            f"Vela leaves {', '.join(left_operators.reasons)[:100]} to the processor, expected results of layers in the region",
            hint="leave out --external",
        )
    return left


def generate_driver_call(region: Region, configuration: Configuration) -> Code:
    """Generate the C code of a region: it copies the inputs to scratch memory, calls Arm's driver, and copies the
    results out."""
    compiled = compile_model(to_tflite(region.graph), configuration)
    names = tflite_names(region.graph)
    ends = (*region.graph.inputs, *region.graph.outputs)
    if not isinstance(compiled, VelaModel) or {names[value] for value in ends} != set(compiled.offsets_by_tensor):
        raise ToolError("Vela's model has other inputs and outputs than the region", hint="install ethos-u-vela 5.2.0")
    fast = compiled.fast_scratch_bytes or compiled.scratch_bytes
    check_payload(
        compiled.payload, configuration.accelerator_model, (len(compiled.weights), compiled.scratch_bytes, fast)
    )
    offsets = {value: compiled.offsets_by_tensor[names[value]] for value in ends}
    sizes = {value: region.type(value).nbytes for value in ends}
    inside = [f"(void)memcpy(&scratch[{offsets[v]}], in_{k}, {sizes[v]});" for k, v in enumerate(region.graph.inputs)]
    outside = [
        f"(void)memcpy(out_{k}, &scratch[{offsets[v]}], {sizes[v]});" for k, v in enumerate(region.graph.outputs)
    ]
    lines = (
        *inside,
        f"const int status = microc_ethos_u(commands, {len(compiled.payload)}, weights, {len(compiled.weights)}, "
        f"scratch, {compiled.scratch_bytes}, &scratch[{compiled.scratch_bytes if compiled.fast_scratch_bytes else 0}], {fast});",
        *outside,
        "return status;",
    )
    cost = CALL + WORD * sum(sizes.values()) / 4 + compiled.cycles
    data = {"commands": compiled.payload, "weights": compiled.weights or bytes(ALIGN)}
    arrays = {name: np.frombuffer(each, np.uint8) for name, each in data.items()}
    return Code(
        lines,
        arrays,
        compiled.scratch_bytes + compiled.fast_scratch_bytes,
        cost,
        _CODE_BYTES,
        ("ethosu_invoke_v3",),
        ALIGN,
        True,
    )
