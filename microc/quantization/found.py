"""What was found of where a float network becomes integers (:mod:`.places`)."""

from __future__ import annotations

from microc.frozen import frozen
from microc.quantization.scheme import Activation


@frozen
class Places:
    """``values``: the activations that become integers, in the order of the graph. ``leader``: value -> the first of those that
    share its scale. ``weights``: constants with a scale for each channel; ``constants``: with one scale. ``tables``:
    constants whose elements are moved -> the value that they become, whose scale they have.

    ``given``: what a loop hands to all its turns; outside it is a value as well. ``wide``: the values that have 16 bits;
    ``narrowed``: those of them that a layer reads with fewer, unless its result is in ``widened``; ``known``: how those are
    stored whose range is no question; ``reach``: by leader, what values cannot exceed; ``opened``: weights of layers that
    compute in floats, which open them."""

    values: tuple[str, ...]
    leader: dict[str, str]
    weights: tuple[str, ...]
    constants: tuple[str, ...]
    tables: dict[str, str]
    given: frozenset[str]
    wide: frozenset[str]
    narrowed: frozenset[str]
    widened: frozenset[str]
    known: dict[str, Activation]
    reach: dict[str, tuple[float, float]]
    opened: tuple[str, ...] = ()

    @property
    def seen(self) -> list[str]:
        """The values to observe."""
        return [value for value in self.values if value not in self.given]

    def groups(self) -> dict[str, list[str]]:
        """Leader -> the values that share its scale, in order."""
        found: dict[str, list[str]] = {}
        for value in self.values:
            found.setdefault(self.leader[value], []).append(value)
        return found
