"""Layers and memories of a report, and their work on a tensor unit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from microc.module import HotCode, Module
from microc.reports.firmware_size import live_bytes, shares
from microc.reports.text_tables import count as count
from microc.reports.text_tables import milliseconds, table
from microc.run.profile import short_layer

if TYPE_CHECKING:
    from microc.module import UnitUse
    from microc.run.profile import Profile


# ---- What layers do on a tensor unit, for people.


def unit_words(use: UnitUse) -> str:
    """One layer's use, in a line."""
    busy = f"loads {use.load:,}, computing {use.compute:,}, stores {use.store:,}"
    return f"{use.cycles:,} cycles of the unit ({busy}), {100 * use.utilisation:.1f} % of its products used"


def unit_table(uses: Mapping[int, UnitUse | None], width: int = 0) -> str:
    """A row for every step that works on the unit, and the total; empty where none does."""
    known = {step: use for step, use in uses.items() if use is not None}
    if not known:
        return ""
    rows = [(str(step), *_row(use)) for step, use in known.items()]
    cycles = sum(use.cycles for use in known.values())
    parts = (sum(getattr(use, name) for use in known.values()) for name in ("load", "compute", "store", "macs"))
    share = sum(use.utilisation * use.cycles for use in known.values()) / (cycles or 1)
    rows.append(("total", count(cycles), *map(count, parts), f"{100 * share:.1f}"))
    head = ("step", "unit cycles", "loads", "computing", "stores", "unit MACs", "used, %")
    return f"{table(head, rows, 1, width)}\ncycles of the tensor unit by its rule, in which the processor takes no time"


def _row(use: UnitUse) -> tuple[str, ...]:
    numbers = map(count, (use.cycles, use.load, use.compute, use.store, use.macs))
    return (*numbers, f"{100 * use.utilisation:.1f}")


# ---- A board's memories as a network uses them: what lies where, how full they are, what goes over their buses at
# what cost.


def memories_data(module: Module) -> list[dict[str, Any]]:
    """Plain data, a row for each memory that may hold tensors; none on boards that have one.

    ``bytes`` of its arena, and ``capacity`` for that; ``accesses`` of a run, ``waits``: cycles that these take beyond the core's
    own, estimated; ``holds``: how many values of each kind lie there, copies of constants among them. A row of its own is about
    code that runs from RAM, with the ``kernels`` by name.
    """
    plan = module.plan
    assert plan is not None
    rows = []
    for arena in plan.arenas:
        inside = range(arena.start, arena.start + arena.size)
        lying = (module.values[name].storage for name, at in plan.offsets.items() if at in inside)
        kinds = Counter("constant" if storage == "const" else storage for storage in lying)
        rows.append(
            {
                "memory": arena.memory,
                "bytes": arena.size,
                "capacity": arena.capacity,
                "accesses": arena.accesses,
                "waits": arena.waits,
                "holds": dict(sorted(kinds.items())),
            }
        )
    return [*rows, *([_code_row(plan.code)] if plan.code else [])]


def _code_row(code: HotCode) -> dict[str, Any]:
    """Kernels in RAM: ``waits`` of the code of all kernels, wherever it is; ``saved``: by how many cycles these are fewer."""
    return {
        "memory": code.memory,
        "bytes": code.size,
        "capacity": code.capacity,
        "accesses": 0,
        "waits": code.waits,
        "holds": {"kernel": len(code.kernels)} if code.kernels else {},
        "kernels": list(code.kernels),
        "saved": code.saved,
    }


# ---- The layers of a report: what each is, what it costs, and its C.

_FUNCTION = re.compile(
    r"^/\*\n(?: \*[^\n]*\n)+(?:[A-Z0-9_]+_OPTIMIZE\([^\n]*\)\n)?[A-Z0-9_]+_KERNEL (\w+)\([^\n]*\n(?:(?!\}\n)[^\n]*\n)*\}$",
    re.MULTILINE,
)
"""A kernel as :mod:`microc.codegen.c.source` prints it, with the comment before it."""


def layers_of(
    manifest: Mapping[str, Any], model_c: str, clock_hz: int | None, profile: Profile | None
) -> list[dict[str, Any]]:
    """One entry for each step, plain data. ``share``: of the time that was measured, or of the estimated cycles. Code of a
    function that several steps share is divided among them; ``linked`` says whether it was measured."""
    kernels = manifest["kernels"]
    functions = {found[1]: found[0].split("\n") for found in _FUNCTION.finditer(model_c)}
    code, arena = _code(manifest), live_bytes(manifest)
    total = sum(kernel["estimated_cycles"] for kernel in kernels) or 1
    names = short_names([kernel["layer"] for kernel in kernels])
    layers = []
    for step, kernel in enumerate(kernels):
        timed = profile.kernels[step] if profile else None
        linked = timed is not None and timed.code is not None
        constants = sum(each["bytes"] for each in kernel["constants"])
        sizes = (timed.code, timed.constants) if timed is not None and linked else (code[step], constants)
        cycles = kernel["estimated_cycles"]
        layers.append(
            {
                "step": step,
                "name": names[step],
                "layer": kernel["layer"],
                "op": kernel["op"],
                "function": kernel["function"],
                "operators": [_operator(each) for each in kernel.get("operators", ())],
                "inputs": list(kernel["inputs"]),
                "outputs": list(kernel["outputs"]),
                "workspaces": list(kernel["workspaces"]),
                "rows_of": list(kernel["streamed"]),
                "macs": kernel["macs"],
                "cycles": cycles,
                "milliseconds": milliseconds(cycles, clock_hz),
                "instructions": kernel["estimated_instructions"],
                "time": timed.time if timed else None,
                "share": timed.share if timed else cycles / total,
                "code": sizes[0],
                "constants": sizes[1],
                "linked": linked,
                "arena": arena[step],
                "rule": kernel["rule"],
                "shipped": kernel.get("shipped", False),
                "schedule": kernel["schedule"],
                "c": functions.get(kernel["function"], []),
                **({"tensor_unit": dict(kernel["tensor_unit"])} if "tensor_unit" in kernel else {}),
            }
        )
    return layers


def short_names(layers: Sequence[str]) -> list[str]:
    """Layers without the model's file, and without the beginning of a path that all paths share."""
    found = [short_layer(layer) for layer in layers]
    paths = [name.partition(" ")[2].split("/")[:-1] for name in found]
    inner = [path for path in paths if path]
    together = takewhile(lambda words: len(set(words)) == 1, zip(*inner, strict=False)) if len(inner) > 1 else ()
    start = "".join(f"{words[0]}/" for words in together)
    return [name.replace(f" {start}", " ", 1) if path else name for name, path in zip(found, paths, strict=True)]


def slowest(data: Mapping[str, Any], count: int = 3) -> list[Mapping[str, Any]]:
    """The layers that take most of the time."""
    return sorted(data["layers"], key=lambda layer: (-layer["share"], layer["step"]))[:count]


def _code(manifest: Mapping[str, Any]) -> list[int]:
    """Bytes of every step's function, by the cost model; those that several share in parts."""
    kernels = manifest["kernels"]
    uses = Counter(kernel["function"] for kernel in kernels)
    parts = {k["function"]: iter(shares(k.get("estimated_code", 0), uses[k["function"]])) for k in kernels}
    return [next(parts[kernel["function"]]) for kernel in kernels]


def _operator(applied: Mapping[str, Any]) -> dict[str, Any]:
    attributes = [list(pair) for pair in applied["attributes"]]
    weights = [{**each, "shape": list(each["shape"])} for each in applied["weights"]]
    return {"op": applied["op"], "attributes": attributes, "weights": weights}
