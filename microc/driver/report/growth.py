"""Has a firmware grown? Its flash, RAM and time beside those of an earlier one, and what was allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from microc.errors import GrowthError, UsageError
from microc.frozen import frozen

WHAT = ("flash", "ram", "time")
"""What has bounds. The first two are bytes."""


@frozen
class Growth:
    """One figure, before and after; ``allowed``: the share of the first by which it may grow, None for any."""

    what: str
    before: int
    after: int
    allowed: float | None

    @property
    def share(self) -> float:
        """By how much of what was it has grown; infinite from nothing on."""
        if self.before:
            return (self.after - self.before) / self.before
        return float("inf") if self.after else 0.0

    @property
    def exceeds(self) -> bool:
        return self.allowed is not None and self.share > self.allowed

    def to_data(self) -> dict[str, Any]:
        """Plain data; ``share`` is None where there was nothing before."""
        share = self.share if self.before or not self.after else None
        return {**asdict(self), "change": self.after - self.before, "share": share, "exceeds": self.exceeds}


def figures_of(data: Any, where: str) -> dict[str, Any]:
    """What a report has of :data:`WHAT`, and the ``unit`` of its time: that of `microc size --json`, or `microc profile --json`.
    UsageError for any other."""
    totals = data.get("totals") if isinstance(data, Mapping) else None
    if isinstance(totals, Mapping):
        found = {name: totals.get(name) for name in ("flash", "ram")}
    elif isinstance(data, Mapping) and "time" in data and "kernels" in data:
        found = {name: data.get(name) for name in WHAT}
    else:
        found = {}
    known = {name: value for name, value in found.items() if value is not None}
    if not known or not all(type(value) is int and value >= 0 for value in known.values()):
        raise UsageError(
            "this is no report of a firmware",
            where=where,
            hint="microc size DIR --json > FILE, or microc profile DIR --json > FILE for its time, too",
        )
    return {**known, "unit": f"{data.get('board')} {data.get('unit')}"} if "time" in known else known


def growth(before: Mapping[str, Any], after: Mapping[str, Any], allowed: Mapping[str, float]) -> tuple[Growth, ...]:
    """Every figure that both have; ``allowed``: by their names, or by an empty name for all. UsageError where a bound is on what
    is not in both, and where times are of two units."""
    both = [name for name in WHAT if name in before and name in after]
    for name in allowed:
        if name and name not in both:
            raise UsageError(
                f"there is no {name} in both reports",
                hint="time is in those of microc profile --json" if name == "time" else f"they have {', '.join(both)}",
            )
    if "time" in both and before["unit"] != after["unit"]:
        raise UsageError(
            f"a time in {before['unit']} and one in {after['unit']} cannot be compared",
            hint="profile both on the same board, both emulated or both not",
        )
    everything = allowed.get("")
    return tuple(Growth(name, before[name], after[name], allowed.get(name, everything)) for name in both)


def refusal(found: Sequence[Growth], where: str) -> GrowthError | None:
    """The error for what has grown beyond its bound."""
    beyond = [each for each in found if each.exceeds]
    if not beyond:
        return None
    parts = [
        f"{each.what} grew from {each.before:,} to {each.after:,}, by {_percent(each.share)}; allowed: {_percent(each.allowed)}"
        for each in beyond
    ]
    return GrowthError(
        "; ".join(parts),
        where=where,
        hint="microc size --against shows what has changed; or keep the new report as the base",
    )


def _percent(share: float | None) -> str:
    return "any" if share in (None, float("inf")) else f"{100 * share:.2f} %"
