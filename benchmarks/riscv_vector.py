# SPDX-License-Identifier: Apache-2.0
"""RISC-V's vectors beside its scalar code: instructions of an inference under QEMU, counted one by one.

    python benchmarks/riscv_vector.py [--networks FILE ...] [--bits 128]

Both cores' kernels are compiled by clang (-O2) for Linux and run by qemu-riscv64 in steps of one instruction; what a program
without an inference takes is subtracted. Without files: the networks of MLPerf Tiny in the corpus (MICROC_CORPUS).
"""

from __future__ import annotations

import argparse
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import microc
from benchmarks.tables import INT8, network_path
from microc.base.dtypes import nbytes
from microc.isa import CORES

SCALAR, VECTOR = "rv64imafdc", "rv64gcv"
CLANG = ("clang-19", "--target=riscv64-linux-gnu", "-static", "-O2")
PROGRAM = """#include "model.h"
void microc_reset(void *arena);
int microc_run(void *arena, const void *const *inputs, void *const *outputs);
static uint8_t memory[ARENA + INPUTS + OUTPUTS] __attribute__((aligned(64)));
int main(int count, char **words)
{
    const void *const inputs[] = {&memory[ARENA]};
    void *const outputs[] = {&memory[ARENA + INPUTS]};
    (void)words;
    for (int k = 0; k < INPUTS; ++k) {
        memory[ARENA + k] = (uint8_t)(k * 7);
    }
    microc_reset(memory);
    return count > 1 ? microc_run(memory, inputs, outputs) : 0;
}
"""


def instructions(model: Path, cpu: str, bits: int) -> int:
    """Of one inference of a network with one input and one output."""
    library = microc.compile(model, cpu)
    assert isinstance(library, microc.Library) and len(library.inputs) == len(library.outputs) == 1
    sizes = {
        "ARENA": -(-library.manifest["arena_size"] // 64) * 64,
        "INPUTS": -(-_bytes(library.inputs[0]) // 64) * 64,
        "OUTPUTS": _bytes(library.outputs[0]),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with tarfile.open(library.export_library(folder / "library.tar")) as archive:
            archive.extractall(folder, filter="data")
        (folder / "main.c").write_text(PROGRAM)
        files = [str(folder / f"{stem}.c") for stem in ("main", "model", "model_data", "shared")]
        defined = [f"-D{key}={value}" for key, value in sizes.items()]
        machine = CORES[cpu].machine.split()
        subprocess.run([*CLANG, *machine, *defined, *files, "-o", str(folder / "program"), "-lm"], check=True)
        return counted(folder / "program", bits, "run") - counted(folder / "program", bits)


def _bytes(tensor: Mapping[str, Any]) -> int:
    return prod(tensor["shape"]) * nbytes(tensor["dtype"])


def counted(program: Path, bits: int, *words: str) -> int:
    """Instructions of a whole program: lines of the emulator's trace."""
    machine = ("-cpu", f"rv64,v=true,vext_spec=v1.0,vlen={bits}", "-singlestep", "-d", "exec,nochain")
    command = ["qemu-riscv64", *machine, str(program), *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        return sum(line.startswith(b"Trace") for line in process.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--bits", type=int, default=128, help="of a vector register")
    options = parser.parse_args()
    networks = options.networks or [network_path(name) for name in sorted(INT8)]
    print(f"{'network':24}{SCALAR:>14}{VECTOR:>14}{'ratio':>8}")
    for model in networks:
        plain, vector = (instructions(model, cpu, options.bits) for cpu in (SCALAR, VECTOR))
        print(f"{model.stem:24}{plain:14,}{vector:14,}{vector / plain:8.3f}", flush=True)


if __name__ == "__main__":
    main()
