"""What layers do on a tensor unit, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from microc.driver.report.tables import count, table

if TYPE_CHECKING:
    from microc.module import UnitUse


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
