# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Arm's driver on an emulated board: it checks what it is given as the driver and the accelerator would,
and computes regions in our own code, from and to the places of scratch memory that the commands mean. Where it was set
up, a region is done when the accelerator's interrupt, which it raises itself, has come back to it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import microc
from microc.external.backend import ClaimedRegion
from microc.external.ethos_u.accelerator import VelaModel
from microc.external.ethos_u.driver import LIBRARY
from microc.frontend.tflite.writer import tflite_names

PREFIX, FLAGS = "arm-none-eabi-", ("-mcpu=cortex-m55", "-mthumb", "-mfloat-abi=hard", "-O2")
HEADER = """
#include <stddef.h>
#include <stdint.h>
struct ethosu_driver { int reserved; volatile int finished; };
int ethosu_init(struct ethosu_driver *driver, void *const base, const void *fast, const size_t fast_bytes, uint32_t secure,
    uint32_t privileged);
void ethosu_irq_handler(struct ethosu_driver *driver);
struct ethosu_driver *ethosu_reserve_driver(void);
void ethosu_release_driver(struct ethosu_driver *driver);
int ethosu_invoke_v3(struct ethosu_driver *driver, const void *commands, const int size, uint64_t *const places,
    const size_t *sizes, const int count, void *user);
"""
DRIVER = """
#include "ethosu_driver.h"
#include <string.h>
#define PENDING (*(volatile uint32_t *)(0xE000E200u + 4u * (IRQ / 32u)))
static struct ethosu_driver elsewhere;
static struct ethosu_driver *only = &elsewhere;
int ethosu_init(struct ethosu_driver *driver, void *const base, const void *fast, const size_t fast_bytes, uint32_t secure,
    uint32_t privileged)
{
    if (only != &elsewhere || (uintptr_t)base != BASE || fast != NULL || fast_bytes != 0 || secure != 1 || privileged != 1) {
        return -3;
    }
    only = driver;
    return 0;
}
void ethosu_irq_handler(struct ethosu_driver *driver)
{
    driver->finished = 1;
}
struct ethosu_driver *ethosu_reserve_driver(void)
{
    only->reserved += 1;
    only->finished = 0;
    return only;
}
void ethosu_release_driver(struct ethosu_driver *driver)
{
    driver->reserved -= 1;
}
static int computed(void)
{
    if (only != &elsewhere) {
        PENDING = 1u << (IRQ % 32u);
        while (!only->finished) {
        }
    }
    return 0;
}
"""
SUM = """
static uint32_t sum(const void *data, size_t bytes)
{
    uint32_t total = 0;
    for (size_t k = 0; k < bytes; ++k) {
        total = total * 31u + ((const uint8_t *)data)[k];
    }
    return total;
}
"""
INVOKE = """
int ethosu_invoke_v3(struct ethosu_driver *driver, const void *commands, const int size, uint64_t *const places,
    const size_t *sizes, const int count, void *user)
{
    const int aligned = (((uintptr_t)commands | places[0] | places[1] | places[2]) & 15u) == 0;
    uint8_t *const scratch = (uint8_t *)(uintptr_t)places[1];
    (void)user;
    if (driver != only || only->reserved != 1 || count != 3 || !aligned || memcmp(commands, "COP1", 4) != 0) {
        return -1;
    }
    const uint32_t known[3] = { sum(commands, (size_t)size), sum((const void *)(uintptr_t)places[0], sizes[0]), sizes[1] };
    memset((void *)(uintptr_t)places[2], 0xA5, places[2] == places[1] ? 0 : sizes[2]);
%s
    return -2;
}
"""


REGISTERS = """
#include <string.h>
#define REGISTER(offset) (*(volatile uint32_t *)(uintptr_t)(BASE + (offset)))
#define PENDING (*(volatile uint32_t *)(0xE000E200u + 4u * (IRQ / 32u)))
void ethosu_inference_begin(struct ethosu_driver *driver, void *user)
{
    PENDING = 1u << (IRQ & 31u); /* when its handler has run the driver goes on, and sets registers */
    __asm volatile("dsb\\n\\tisb" ::: "memory");
}
void ethosu_inference_end(struct ethosu_driver *driver, void *user)
{
    static const uint32_t stream[] = { %s };
    uint8_t *const scratch = (uint8_t *)(uintptr_t)REGISTER(0x88);
    if ((REGISTER(0x08) & 1u) == 0u || REGISTER(0x20) != sizeof stream || REGISTER(0x90) != REGISTER(0x88)
        || memcmp((const void *)(uintptr_t)REGISTER(0x10), stream, sizeof stream) != 0
        || sum((const void *)(uintptr_t)REGISTER(0x80), %d) != %du) {
        return;
    }
%s
}
"""
ID, STATUS, PROTECTION, CONFIG = 0x00, 0x04, 0x24, 0x28
"""Of its registers, which the driver reads."""
DONE, PRIVILEGED = 0x20, 0x1


def driver(folder: Path, regions: Sequence[tuple[ClaimedRegion, VelaModel]], base: int = 0, irq: int = 0) -> Path:
    """A folder with the library that stands for the driver, which knows some regions, and is to be set up for an
    accelerator."""
    folder.mkdir()
    (folder / "ethosu_driver.h").write_text(HEADER)
    flags = (f"-DBASE={base}u", f"-DIRQ={irq}u")
    texts, cases, objects = [DRIVER, SUM], list[str](), list[Path]()
    for k, (taken, made) in enumerate(regions):
        name = f"region{k}"
        home = folder / name
        home.mkdir()
        computing = _computing(home, name, taken, made)
        objects += [_compiled(home / file) for file in ("model.c", "model_data.c")]
        texts.append(f'#include "{name}/model.h"\n')
        known = (_sum(made.payload), _sum(made.weights), made.scratch_bytes)
        cases.append(f"    if (known[0] == {known[0]}u && known[1] == {known[1]}u && known[2] == {known[2]}u) {{")
        cases += [*computing, "        return computed();", "    }"]
    (folder / "driver.c").write_text("".join(texts) + INVOKE % "\n".join(cases))
    objects.append(_compiled(folder / "driver.c", *flags))
    subprocess.run([f"{PREFIX}ar", "rcs", str(folder / f"lib{LIBRARY}.a"), *map(str, objects)], check=True)
    return folder


def accelerator(clone: Path, folder: Path, region: tuple[ClaimedRegion, VelaModel], base: int, irq: int) -> Path:
    """A copy of Arm's own driver with an accelerator in C beside it, whose registers are memory, and which knows one
    region."""
    taken, made = region
    for inner in ("include", "src"):
        shutil.copytree(clone / inner, folder / inner)
    home = folder / "src"
    computing = _computing(home, "region", taken, made)
    for file in ("model", "model_data"):
        (home / f"{file}.c").rename(home / f"{file}_code.h")
    numbers = ", ".join(f"{word}u" for word in stream_of(made))
    text = REGISTERS % (numbers, len(made.weights), _sum(made.weights), "\n".join(computing))
    parts = [
        f"#define BASE {base}u\n#define IRQ {irq}u\n",
        SUM,
        '#include "model_code.h"\n#include "model_data_code.h"\n',
    ]
    with (home / "ethosu_pmu.c").open("a") as file_of_theirs:
        file_of_theirs.write("".join((*parts, text)))
    return folder


def configured(made: VelaModel) -> tuple[int, int]:
    """Configuration and identity of the accelerator that a payload is for, which the driver compares with registers."""
    words = np.frombuffer(made.payload, "<u4").tolist()
    at = next(k for k, word in enumerate(words) if k and word & 0xFF == 1)
    return words[at + 1], words[at + 2]


def stream_of(made: VelaModel) -> list[int]:
    """The commands of a payload, which end it."""
    words = list(map(int, np.frombuffer(made.payload, "<u4")))
    at = next(k for k in range(4, len(words)) if words[k] & 0xFF == 2)
    return words[at + 1 : at + 1 + ((words[at] >> 8 & 0xFF) << 16 | words[at] >> 16)]


def _computing(home: Path, name: str, taken: ClaimedRegion, made: VelaModel) -> list[str]:
    """Statements that compute a region from and to ``scratch``, over the files of its network in ``home``."""
    region = taken.region
    program = microc.compile(region.graph, board="mps3-an547", name=name, opt_level=0)
    assert isinstance(program, microc.Program)
    for file in ("model.c", "model.h", "model_data.c", "model_data.h"):
        (home / file).write_text(str(program.files()[file]))
    names, module = tflite_names(region.graph), program.module
    ends = [
        (v, w, side)
        for side, a, b in (
            ("inputs", region.graph.inputs, module.inputs),
            ("outputs", region.graph.outputs, module.outputs),
        )
        for v, w in zip(a, b, strict=True)
    ]
    lines = [f"        static uint64_t arena[{name.upper()}_ARENA_SIZE / 8 + 1];"]
    lines += [f"        static int8_t {theirs}[{region.type(value).nbytes}];" for value, theirs, _ in ends]
    for value, theirs, side in ends:
        if side == "inputs":
            lines.append(
                f"        memcpy({theirs}, &scratch[{made.offsets_by_tensor[names[value]]}], sizeof {theirs});"
            )
    lines.append(f"        memset(scratch, 0x5A, {made.scratch_bytes});")
    for side in ("inputs", "outputs"):
        members = ", ".join(f".{theirs} = {theirs}" for _, theirs, at in ends if at == side)
        lines.append(f"        const struct {name}_{side} the_{side} = {{ {members} }};")
    lines += [f"        {name}_reset(arena);", f"        {name}_run(arena, &the_inputs, &the_outputs);"]
    for value, theirs, side in ends:
        if side == "outputs":
            lines.append(
                f"        memcpy(&scratch[{made.offsets_by_tensor[names[value]]}], {theirs}, sizeof {theirs});"
            )
    return lines


def _compiled(source: Path, *flags: str) -> Path:
    made = source.with_suffix(".o")
    subprocess.run([f"{PREFIX}gcc", *FLAGS, *flags, "-c", str(source), "-o", str(made)], check=True)
    return made


def _sum(data: bytes) -> int:
    total = 0
    for byte in data:
        total = (total * 31 + byte) & 0xFFFFFFFF
    return total
