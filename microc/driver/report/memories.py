"""A board's memories as a network uses them: what lies where, how full they are, what goes over their buses at what cost."""

from __future__ import annotations

from collections import Counter
from typing import Any

from microc.module import HotCode, Module


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
