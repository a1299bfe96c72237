# SPDX-License-Identifier: Apache-2.0
"""TIR functions on other machines, by the interface of :mod:`tests.support.native`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from microc.isa import CORES
from microc.tir import ir
from tests.emulated.machines import Machine, running
from tests.support.native import Calls, entry, kernels_source

ENTRY = "void call_entry(int32_t number, uint8_t *const *p)"
"""What the program calls: a function by its number."""


@contextmanager
def emulated(
    funcs: Sequence[ir.PrimFunc], folder: Path, *flags: str, machine: Machine, compiler: str
) -> Iterator[Calls]:
    """What calls the functions on a machine, in the instructions of its core, which the compiler must know."""
    known = [f"#if !({s.guard})\n#error no {s.name}\n#endif" for s in CORES[machine.cpu].sets]
    cases = [f"    case {number}: {_called(func)}; break;" for number, func in enumerate(funcs)]
    switch = [f"{ENTRY};", ENTRY, "{", "    switch (number) {", *cases, "    default: break;", "    }", "}", ""]
    source = folder / "kernels.c"
    source.write_text("\n".join([*known, kernels_source(funcs, machine.cpu), *map(entry, funcs), *switch]))
    with running([source], [func.name for func in funcs], *flags, machine=machine, compiler=compiler) as calls:
        yield calls


def _called(func: ir.PrimFunc) -> str:
    return f"call_{func.name}({', '.join(f'p[{k}]' for k in range(len(func.params)))})"
