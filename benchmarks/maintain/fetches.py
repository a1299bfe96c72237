# SPDX-License-Identifier: Apache-2.0
"""What code misses caches: the cost model's rule against every instruction that an emulated core executed.

    python benchmarks/maintain/fetches.py MODEL [--board mps2-an386] [--line 16] [--caches 64,256,1024] [--json FILE]

QEMU prints the address of each instruction of a run; those of kernels go through caches that drop the line that was used least
recently, and hold nothing when a call begins. Bytes of a run, as estimated (:class:`microc.target.Fetches`) and as executed.
Boards of a Cortex-M alone; the network has one arena and inputs of zeros.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from elftools.elf.elffile import ELFFile

import microc
from microc.device.toolchain import run_make
from microc.module import Module

MAIN = """#include "model.h"

static uint64_t arena[({upper}_ARENA_SIZE + 7) / 8 + 1];

void finished(void);
void __attribute__((noinline)) finished(void)
{{
    for (;;) {{
        __asm volatile("nop");
    }}
}}

int main(void)
{{
    {name}_reset(arena);
    const struct {name}_inputs inputs = {{ {inputs} }};
    const struct {name}_outputs outputs = {{ {outputs} }};
    (void){name}_run(arena, &inputs, &outputs);
    finished();
}}
"""
WIDE = 0xE800
"""First halfwords of Thumb's instructions of four bytes, from here on."""
PLACE = re.compile(rb"\[[0-9a-f]+/([0-9a-f]+)/")

Fetch = tuple[int, int]
"""Address and bytes of an instruction."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--board", default="mps2-an386")
    parser.add_argument("--line", type=int, default=16)
    parser.add_argument("--caches", default="64,128,256,512,1024,4096")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    program = microc.compile(chosen.model, board=chosen.board)
    caches = [int(size) for size in chosen.caches.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        runs = executed(build(program, Path(folder)), program.module, program.board.raw["emulator"]["argv"][2])
    rows = [compared(program.module, runs, cache, chosen.line) for cache in (0, *caches)]
    for row in rows:
        what = f"{row['cache']:>5} bytes of cache" if row["cache"] else "all that is executed"
        print(f"{what:<20} {row['estimated']:>12,} {row['fetched']:>12,} {row['estimated'] / row['fetched']:6.2f}")
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n")


def build(program: microc.Program, folder: Path) -> Path:
    """The network with a main that runs it once."""
    program.write(folder)
    module = program.module

    def members(names: Iterable[str]) -> str:
        return ", ".join(f".{name} = {module.name}_{name}(arena)" for name in names)

    text = MAIN.format(
        upper=module.name.upper(),
        name=module.name,
        inputs=members(module.inputs),
        outputs=members(module.outputs),
    )
    (folder / "main.c").write_text(text)
    makefile = folder / "Makefile"
    makefile.write_text(makefile.read_text().replace(" rpc_model.c", "", 1))
    run_make(folder)
    return folder / "firmware.elf"


def executed(elf: Path, module: Module, machine: str) -> dict[str, list[list[Fetch]]]:
    """By kernel, call by call, the instructions in their order."""
    with elf.open("rb") as stream:
        file = ELFFile(stream)
        section = file.get_section_by_name(".text")
        code, base = section.data(), section["sh_addr"]
        symbols = [s for s in file.get_section_by_name(".symtab").iter_symbols() if s["st_info"]["type"] == "STT_FUNC"]
    places = {s.name.partition(".")[0]: (s["st_value"] & ~1, s["st_size"]) for s in symbols}
    own = {kernel.name: places[kernel.name] for kernel in module.kernels}
    owners = {at: name for name, (start, size) in own.items() for at in range(start, start + size, 2)}
    found: dict[str, list[list[Fetch]]] = {name: [] for name in own}
    for at in trace(elf, machine, places["finished"][0]):
        name = owners.get(at)
        if name is None:
            continue
        if at == own[name][0]:
            found[name].append([])
        half = int.from_bytes(code[at - base : at - base + 2], "little")
        found[name][-1].append((at, 4 if half >= WIDE else 2))
    return found


def trace(elf: Path, machine: str, end: int) -> Iterator[int]:
    """Addresses of all instructions up to ``end``."""
    command = ["qemu-system-arm", "-M", machine, "-nodefaults", "-display", "none", "-monitor", "none"]
    command += ["-singlestep", "-d", "exec,nochain", "-kernel", str(elf)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            place = PLACE.search(line)
            at = int(place[1], 16) if place else -1
            if at == end:
                break
            yield at
        process.kill()


def compared(module: Module, runs: dict[str, list[list[Fetch]]], cache: int, line: int) -> dict[str, int]:
    """Bytes of a run that miss a cache; without one, all that is executed."""
    estimated = sum(kernel.fetches.count_missed_bytes(cache) * len(runs[kernel.name]) for kernel in module.kernels)
    calls = [call for each in runs.values() for call in each]
    fetched = sum(line * misses(call, cache // line, line) if cache else sum(n for _, n in call) for call in calls)
    return {"cache": cache, "line": line, "estimated": round(estimated), "fetched": fetched}


def misses(call: Sequence[Fetch], lines: int, line: int) -> int:
    """Of a cache of so many lines, empty at first."""
    held: OrderedDict[int, None] = OrderedDict()
    count = 0
    for at, size in call:
        for wanted in range(at // line, (at + size - 1) // line + 1):
            if wanted in held:
                held.move_to_end(wanted)
                continue
            count += 1
            held[wanted] = None
            if len(held) > lines:
                held.popitem(last=False)
    return count


if __name__ == "__main__":
    main()
