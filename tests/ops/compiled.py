"""Operator cases as C functions: lowered, scheduled, printed and compiled, many to a library, called through ctypes."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from microc import dtypes
from microc.codegen.c_stmt import StmtPrinter
from microc.codegen.helpers import helper_source
from microc.dtypes import Array
from microc.graph.ir import Graph, Node
from microc.ops.lowering import LoweredGroup, lower_group
from microc.ops.registry import Case, OpDef
from microc.schedule.rules import schedule_kernel
from microc.target import target_for
from microc.tir import ir
from microc.tir.lower import lower
from tests.ops.harness import attributes, case_arrays

WARNINGS = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror")
SANITIZERS = ("-fsanitize=undefined", "-fno-sanitize-recover=all")


def one_node(definition: OpDef, case: Case, arrays: Sequence[Array]) -> tuple[Graph, Node]:
    """A graph that applies the operator once, to inputs ``i0``, ``i1`` ... and constants."""
    attrs = attributes(definition, case)
    names = [f"i{k}" for k in range(len(case.types))]
    results = definition.infer(attrs, case.types)
    outputs = tuple(f"o{k}" for k in range(len(results)))
    node = Node(definition.name, tuple(names), outputs, attrs)
    types = {**dict(zip(names, case.types, strict=True)), **dict(zip(outputs, results, strict=True))}
    consts = {names[k]: arrays[k] for k in case.consts}
    inputs = tuple(name for name in names if name not in consts)
    return Graph("case", inputs, outputs, (node,), types, consts), node


@dataclass(frozen=True)
class CompiledCase:
    """One case as a C function, and what it is given."""

    definition: OpDef
    case: Case
    arrays: tuple[Array, ...]
    group: LoweredGroup
    func: ir.PrimFunc

    def run(self, library: ctypes.CDLL) -> tuple[Array, ...]:
        """The results of the C function; poisoned memory stands before and behind what it may write."""
        memory = [self._argument(k, buffer) for k, buffer in enumerate(self.func.params)]
        function = getattr(library, f"call_{self.func.name}")
        function(*(ctypes.c_void_p(array.ctypes.data + GUARD) for array in memory))
        for buffer, array in zip(self.func.params, memory, strict=True):
            edges = np.concatenate([array[:GUARD], array[GUARD + buffer.nbytes :]])
            assert np.all(edges == POISON), f"{buffer.name}: written outside"
        first = len(self.group.params)
        kinds = self.definition.infer(attributes(self.definition, self.case), self.case.types)
        return tuple(
            memory[first + k][GUARD : GUARD + kind.nbytes].view(dtypes.to_numpy(kind.dtype)).reshape(kind.shape).copy()
            for k, kind in enumerate(kinds)
        )

    def _argument(self, position: int, buffer: ir.Buffer) -> Array:
        memory = np.full(buffer.nbytes + 2 * GUARD, POISON, np.uint8)
        if position < len(self.group.params):
            param = self.group.params[position]
            array = param.array if param.array is not None else self.arrays[int(param.value[1:])]
            assert (array.size, str(array.dtype)) == (buffer.size, buffer.dtype)
            memory[GUARD : GUARD + buffer.nbytes] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        return memory


GUARD, POISON = 64, 0xA5


def compiled_case(definition: OpDef, case: Case, cpu: str, name: str, seed: int = 0) -> CompiledCase:
    """Lower one case for a core, as the driver does."""
    arrays = tuple(np.asarray(a, order="C") for a in case_arrays(case, seed))
    graph, node = one_node(definition, case, arrays)
    target = target_for(cpu)
    group = lower_group(graph, (node,), target, name)
    func = lower(schedule_kernel(group.func, node.op, target).func)
    return CompiledCase(definition, case, arrays, group, func)


@dataclass
class Batch:
    """Functions for one C file."""

    cases: list[CompiledCase] = field(default_factory=list)

    def source(self) -> str:
        """The file: helpers, kernels, and an exported entry for each."""
        printer = StmtPrinter()
        kernels = ["\n".join(printer.function(case.func)) for case in self.cases]
        texts: dict[str, str] = {}
        while any(name not in texts for name in printer.expr.helpers):
            for name in [n for n in printer.expr.helpers if n not in texts]:
                texts[name] = "\n".join(helper_source(name, printer.expr))
        headers = [f"#include <{name}.h>" for name in ("math", "stdbool", "stdint", "string")]
        return "\n\n".join(["\n".join(headers), *(texts[n] for n in sorted(texts)), *kernels, *map(_entry, self.cases)])

    def build(self, folder: Path, stem: str, *flags: str, compiler: str = "gcc") -> ctypes.CDLL:
        source, library = folder / f"{stem}.c", folder / f"{stem}.so"
        source.write_text(self.source() + "\n")
        argv = [
            compiler,
            *WARNINGS,
            "-ffp-contract=off",
            *flags,
            "-shared",
            "-fPIC",
            "-o",
            str(library),
            str(source),
            "-lm",
        ]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:4000]
        return ctypes.CDLL(str(library))


def _entry(case: CompiledCase) -> str:
    name = case.func.name
    params = ", ".join(f"void *p{k}" for k in range(len(case.func.params)))
    passed = ", ".join(f"p{k}" for k in range(len(case.func.params)))
    return f"void call_{name}({params});\nvoid call_{name}({params})\n{{\n    {name}({passed});\n}}"


def c_name(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z]+", "_", text).strip("_").lower()
