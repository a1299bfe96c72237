"""How much work the searches for memory may do. It is counted in steps of the search, never in seconds, so that a network
is planned alike on every machine.

What is below a bound is searched in full, as nearly all networks are; beyond it a search follows fewer ways, or ends with
the best that it has. No search is needed for a plan to be right.
"""

from __future__ import annotations

from microc.plan.liveness import Demand, conflicts

ORDERING = 1 << 17
"""Calls that are put behind a partial order (:mod:`microc.plan.sequence`); every place in the order has an equal share."""
BEAM = 1 << 18
"""Neighbours that partial placements are held against, in each order of units (:mod:`microc.plan.beam`)."""
CLIMBING = 1 << 22
"""Pairs of units that conflict, over all placements of :func:`microc.plan.planners.hill_climbing`."""
EXACT = 1 << 16
"""Places that are looked for by :func:`microc.plan.planners.exact`."""
SPLITS = 1 << 12
"""Values that :func:`microc.plan.split.split` puts into a memory to try, in its search; whole splits are few among them."""
PLACEMENTS = 1 << 1
"""Memories of whole splits that all planners try to place, after the quick ones. Those of few values, which are placed exactly,
do not count."""
PAIRS = 1 << 22
"""Pairs of values that quick planners look at for it: beyond, only what fits in any order is known to fit."""
BRANCHED = 1 << 8
"""Values up to which its search follows branches, one below the other: of more, so few steps would hardly leave the first."""
COPIES = 1 << 7
"""Constants, those that gain most by a byte, that are thought of as copies in a memory."""
HOT = 1 << 7
"""Kernels, those that gain most by a byte, that are thought of in a memory for code (:mod:`microc.plan.code`)."""
MOVES = 1 << 9
"""Values that it moves, before that, into a better memory."""

CHAINS = 1 << 12
"""Chains of layers that :mod:`microc.driver.stripes.limit` appraises before it takes what it knows."""
LOWERED = 1 << 8
"""Chains that it lowers, to know their scratch."""


def affordable(wanted: Demand, effort: int, most: int) -> int:
    """How often, up to ``most`` times, all units can be held against their neighbours. A unit counts as one of its own."""
    return min(most, effort // max(conflicts(wanted) + len(wanted.units), 1))
