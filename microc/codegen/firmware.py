"""Flash of a firmware before it is linked, estimated from above.

``firmware.json`` is measured by ``benchmarks/firmware.py``. It has two tables. ``boards``: bytes of flash and static RAM around a
network (start-up, drivers, the protocol's runtime, its share of the C library), by protocol. ``cores``: bytes of code for each of
:data:`PARTS` of a network. Library functions of kernels come from :mod:`microc.codegen.library`.

An optimising compiler makes of a kernel between 0.7 and 6 times what the cost model counts, so that the sum is no
prediction, and no proof either (docs/measuring.md has the errors). Where a compiler is there, linking gives the number
(:func:`microc.driver.measure.firmware.linked_sizes`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from microc.codegen.c_expr import MATH
from microc.codegen.library import LIKE, kernel_operations, library_of, operation_count, operations_of
from microc.module import Module
from microc.target import Board

TABLE = Path(__file__).with_name("firmware.json")
PARTS = ("network", "calls", "tensors", "integer code", "float code", "float operations", "functions")
"""Terms of the bound of a network's code: one a network, its calls, its values that are no constants, bytes of kernels that
the cost model counts (of integers alone, with floats), operations of floats in these, functions that the library of the core
lacks, which are printed."""


@cache
def _tables() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return found


def around(board: Board, protocol: str) -> tuple[int, int]:
    """Least and most bytes of flash around the networks. A board without a row is between those of its core, or between all.
    What a vendor's framework takes is not counted."""
    rows = _tables()["boards"]
    core = board.target.cpu.partition("+")[0]
    like = [row for row in rows.values() if LIKE.get(row["core"], row["core"]) == LIKE.get(core, core)]
    named = [rows[board.name]] if board.name in rows and rows[board.name]["core"] == core else like
    measured = [row for row in named if protocol in row] or [row for row in rows.values() if protocol in row]
    found = [row[protocol][0] for row in measured]
    return min(found), max(found)


def parts_of(module: Module) -> tuple[float, ...]:
    """Count each of PARTS of a network."""
    integers = floats = operations = 0
    for kernel in module.kernels:
        if any("float" in name for name in kernel_operations(kernel.func)):
            floats += kernel.code_bytes
            operations += operation_count(kernel.func, "float")
        else:
            integers += kernel.code_bytes
    values = sum(value.storage != "const" for value in module.values.values())
    library = library_of(module.options["cpu"])
    lacking = {name for name in operations_of(module) if name.partition(".")[2] in MATH} - library.operations.keys()
    return 1, len(module.calls), values, integers, floats, operations, len(lacking)


def code_bound(module: Module) -> int:
    """Estimate from above the bytes of a network's code, without library functions."""
    rows: Mapping[str, Sequence[float]] = _tables()["cores"]
    core = module.options["cpu"].partition("+")[0]
    row = rows.get(LIKE.get(core, core)) or [max(column) for column in zip(*rows.values(), strict=True)]
    return round(sum(factor * part for factor, part in zip(row, parts_of(module), strict=True)))


def library_bytes(modules: Sequence[Module]) -> int:
    """Bytes of library functions that kernels call, beside those that every firmware has; the most of all cores where that of the
    networks is not measured. Compilers subtract where a negative constant is added, and the other way."""
    used = set().union(*map(operations_of, modules))
    for dtype in ("float32", "float64"):
        both = {f"{dtype}.add", f"{dtype}.sub"}
        used |= both if both & used else set()
    own = library_of(modules[0].options["cpu"])
    libraries = [own] if own.sections else [library_of(core) for core in _tables()["cores"]]
    return max(each.memory(used)[0] - each.memory({"copy"})[0] for each in libraries)
