# SPDX-License-Identifier: Apache-2.0
"""Figures of reports as text: times, memory, shapes, formulas and changes, for pages, terminals and notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"


def cycles_to_milliseconds(cycles: float, clock_hz: int | None) -> float | None:
    """Convert cycles to milliseconds at a board's clock frequency; None if the frequency is unknown."""
    return 1000 * cycles / clock_hz if clock_hz else None


def format_milliseconds(milliseconds: float) -> str:
    """Format a time given in milliseconds with three significant digits and its unit."""
    if milliseconds < 0.001:
        return f"{1000 * milliseconds:.3g} µs"
    return f"{milliseconds:,.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"


def format_inference_time(data: Mapping[str, Any]) -> str:
    """Format the time of one inference in a report: the measured time, else the estimated time."""
    measured, totals = data["measured"], data["totals"]
    if measured:
        seconds = measured["seconds"]
        return f"{measured['time']:,} {measured['unit']}" + (
            f", {format_milliseconds(1000 * seconds)}" if seconds is not None else ""
        )
    return format_estimated_time(totals["cycles"], totals["milliseconds"])


def format_estimated_time(cycles: int, ms: float | None) -> str:
    """Format the estimated cycles of one inference, and the time in milliseconds if it is known."""
    return f"about {cycles:,} cycles" + (f", {format_milliseconds(ms)}" if ms is not None else "")


def format_peak_stack(data: Mapping[str, Any]) -> str:
    """Format the peak stack in a report: bytes, and the remark whether they are measured or estimated."""
    stack = data["stack"]
    reserved = f"; {stack['reserved']:,} reserved" if stack.get("reserved") else ""
    if stack["measured"] is not None:
        core1 = f"; {stack['core1']:,} on core 1" if "core1" in stack else ""
        return f"{stack['measured']:,} bytes, measured{core1}{reserved}"
    return f"{stack['bytes']:,} bytes at most, estimated{reserved}" if stack["bytes"] is not None else "unknown"


def format_shared_kernels(kernels: Sequence[tuple[int, float]]) -> str:
    """Format how many kernels two cores compute, and their share of the time; empty if one core computes all of them.

    ``kernels``: for each kernel the number of its cores, and its share of the time, 0 to 1."""
    shares = [share for cores, share in kernels if cores > 1]
    return f"{len(shares)} of {len(kernels)} kernels, {100 * sum(shares):.1f} % of the time" if shares else ""


def format_clock_rate(hertz: int | None) -> str:
    """Format a clock rate, as in ``168 MHz``; empty if the rate is unknown."""
    return f"{hertz / 1e6:.4g} MHz" if hertz else ""


def format_capacity_use(byte_count: int, capacity: int) -> str:
    """Format a size in bytes, and its share of a memory's ``capacity`` in bytes (0 if unknown)."""
    return (
        f"{byte_count:,} of {capacity:,} bytes ({100 * byte_count / capacity:.1f} %)"
        if capacity
        else f"{byte_count:,} bytes"
    )


def format_shape(shape: Sequence[int]) -> str:
    """Format a tensor's shape, as in ``1x8x8x1``."""
    return "x".join(map(str, shape)) or "scalar"


def format_shape_with_times_signs(shape: Sequence[int]) -> str:
    """Format a shape, as in ``1x8x8x1`` but with multiplication signs instead of x."""
    return TIMES.join(map(str, shape)) or "scalar"


def format_dequantization_formula(tensor: Mapping[str, Any]) -> str:
    """Format the formula of a tensor's real values, as in ``0.0111 (q + 128)``; empty if the tensor is not quantised."""
    if tensor["scale"] is None:
        return ""
    zero = tensor["zero_point"] or 0
    return f"{tensor['scale']:.4g}" + (f" (q {MINUS if zero > 0 else '+'} {abs(zero)})" if zero else " q")


def format_percent_change(before: float | None, after: float | None) -> str:
    """Format the change of a figure in percent; empty if the figure before or after is unknown.

    A tie is rounded away from zero, as by ``toFixed`` in JavaScript, so that tables of pages agree."""
    if before is None or after is None:
        return ""
    if before == after:
        return "same"
    if not before:
        return "new"
    change = Decimal(100 * (after / before - 1)).quantize(Decimal("0.1"), ROUND_HALF_UP)
    return f"{change:+} %".replace("-", MINUS)


def memory_usage_rows(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return a row (name, description of its use) for each memory of a board.

    ``rows``: result of :func:`microc.reports.layers.describe_tensor_memories`."""
    return [(f"  {row['memory']}", _memory_usage_text(row)) for row in rows]


def _memory_usage_text(row: Mapping[str, Any]) -> str:
    """Describe the use of a memory as text: bytes, number of values by kind, accesses and wait cycles."""
    used = f"{row['bytes']:,} of {row['capacity']:,} bytes"
    if not row["bytes"]:
        return f"{used}, nothing lies there"
    kinds = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in row["holds"].items())
    if "saved" in row:
        waits = f"{row['waits']:,} cycles of waiting for code" if row["waits"] else "no waiting for code"
        return f"{used}: code of {kinds}; {waits}, {row['saved']:,} fewer than from flash, estimated"
    waits = f"{row['waits']:,} cycles of waiting, estimated" if row["waits"] else "no waiting"
    return f"{used}: {kinds}; {row['accesses']:,} accesses, {waits}"


def format_integer(number: int) -> str:
    """Format an integer with thousands separators."""
    return f"{number:,}"
