"""Numbers of a report in words, the same on the page, in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"


def milliseconds(cycles: float, clock_hz: int | None) -> float | None:
    """What cycles take at a board's clock; None where that is not known."""
    return 1000 * cycles / clock_hz if clock_hz else None


def shown_ms(value: float) -> str:
    """Milliseconds with three digits that say something."""
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms" if value >= 0.001 else f"{1000 * value:.3g} µs"


def time_words(data: Mapping[str, Any]) -> str:
    """One inference: what was measured, else what is estimated."""
    measured, totals = data["measured"], data["totals"]
    if measured:
        seconds = measured["seconds"]
        return f"{measured['time']:,} {measured['unit']}" + (
            f", {shown_ms(1000 * seconds)}" if seconds is not None else ""
        )
    return estimate_words(totals["cycles"], totals["milliseconds"])


def estimate_words(cycles: int, ms: float | None) -> str:
    """What the cost model says."""
    return f"about {cycles:,} cycles" + (f", {shown_ms(ms)}" if ms is not None else "")


def stack_words(data: Mapping[str, Any]) -> str:
    """The stack, and how it is known."""
    stack = data["stack"]
    if stack["measured"] is not None:
        return f"{stack['measured']:,} bytes, measured"
    return f"{stack['bytes']:,} bytes at most, estimated" if stack["bytes"] is not None else "unknown"


def clock_words(hertz: int | None) -> str:
    """``168 MHz``."""
    return f"{hertz / 1e6:.4g} MHz" if hertz else ""


def shape_words(shape: Sequence[int]) -> str:
    """``1x8x8x1``, with the sign that multiplies."""
    return TIMES.join(map(str, shape)) or "scalar"


def quant_words(tensor: Mapping[str, Any]) -> str:
    """``real = 0.0111 (q + 128)``; empty where a tensor stands for itself."""
    if tensor["scale"] is None:
        return ""
    zero = tensor["zero_point"] or 0
    return f"{tensor['scale']:.4g}" + (f" (q {MINUS if zero > 0 else '+'} {abs(zero)})" if zero else " q")


def change_words(before: float | None, after: float | None) -> str:
    """By how much, in percent."""
    if before is None or after is None:
        return ""
    if before == after:
        return "same"
    if not before:
        return "new"
    return f"{100 * (after / before - 1):+.1f} %".replace("-", MINUS)


def memory_rows(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """A board's memories (:func:`microc.driver.report.memories.memories_data`) as facts, one line for each."""
    return [(f"  {row['memory']}", _memory_words(row)) for row in rows]


def _memory_words(row: Mapping[str, Any]) -> str:
    used = f"{row['bytes']:,} of {row['capacity']:,} bytes"
    if not row["bytes"]:
        return f"{used}, nothing lies there"
    kinds = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in row["holds"].items())
    if "saved" in row:
        waits = f"{row['waits']:,} cycles of waiting for code" if row["waits"] else "no waiting for code"
        return f"{used}: code of {kinds}; {waits}, {row['saved']:,} fewer than from flash, estimated"
    waits = f"{row['waits']:,} cycles of waiting, estimated" if row["waits"] else "no waiting"
    return f"{used}: {kinds}; {row['accesses']:,} accesses, {waits}"
