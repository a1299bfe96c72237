"""The range of a distance that is a sum over loop variables, at every size: of these distances some two places conflict."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from microc.dtypes import Array
from microc.frozen import frozen
from microc.tir import ir
from microc.tir.forms import Form

_ZERO = np.zeros(1, np.int64)


@frozen
class Conflict:
    """Distances in bytes from ``low`` to ``high`` that are not safe, as far as they are from ``first`` to ``last`` modulo
    ``modulus``; with 1 all of them are."""

    low: int
    high: int
    modulus: int = 1
    first: int = 0
    last: int = 0

    def moved(self, by: int) -> Conflict:
        """The same, of buffers that are further apart."""
        return Conflict(self.low + by, self.high + by, self.modulus, self.first + by, self.last + by)


class Ranges:
    """Ranges of forms. ``reach``: the last turns of the loops; two of them may be tied together (:meth:`turns`)."""

    def __init__(self, reach: dict[ir.Var, Array]) -> None:
        self.reach = reach
        self.tied: tuple[ir.Var, ...] = ()
        self.possible: Array = np.ones(1, bool)

    def turns(self, var: ir.Var, extent: Array) -> tuple[Form, Form]:
        """A later turn and an earlier turn of one loop: k + 1 + n and k, where k + n are at most the extent less two."""
        earlier, more = ir.Var(f"{var.name} earlier"), ir.Var(f"{var.name} more")
        self.tied, self.possible = (earlier, more), extent > 1
        self.reach |= dict.fromkeys(self.tied, np.maximum(extent - 2, 0))
        one = _ZERO + 1
        return Form({earlier: one, more: one}, one, one), Form({earlier: one}, _ZERO, _ZERO)

    def least(self, form: Form) -> Array:
        """The smallest that it can be, at every size."""
        ends = [_ZERO, *(form.terms[var] * self.reach[var] for var in self.tied if var in form.terms)]
        free = (factor * self.reach[var] for var, factor in form.terms.items() if var not in self.tied)
        total: Array = form.low + np.minimum.reduce(np.broadcast_arrays(*ends))
        return sum((np.minimum(end, 0) for end in free), total)

    def least_where(self, form: Form, facts: Sequence[Form]) -> Array:
        """The same where none of the facts is negative: subtracting multiples of them can only make it smaller."""
        best = self.least(form)
        for fact in facts:
            upper = Form(fact.terms, fact.high, fact.high)
            for var, slope in fact.terms.items():
                times = np.maximum(form.terms.get(var, _ZERO) // np.where(slope == 0, 1, slope), 0)
                if not times.any():
                    continue
                tried = form.plus(upper.times(-times))
                least = self.least(tried)
                if least.min() > best.min():
                    form = tried
                best = np.maximum(best, least)
        return best

    def conflict(self, distance: Form, facts: Sequence[Form]) -> Conflict | None:
        """The range over all sizes, with the most telling of all remainders: by a common divisor of large steps. None where
        no size has such turns."""
        opposite = distance.times(_ZERO - 1)
        possible, low, high = np.broadcast_arrays(
            self.possible, self.least_where(distance, facts), -self.least_where(opposite, facts)
        )
        if not possible.any():
            return None
        found, share = Conflict(int(low[possible].min()), int(high[possible].max())), 1.0
        divisors = {var: int(np.gcd.reduce(factor)) for var, factor in distance.terms.items()}
        for modulus in sorted({divisor for divisor in divisors.values() if divisor > 1}):
            rest = {var: factor for var, factor in distance.terms.items() if divisors[var] % modulus}
            first = int(self.least(Form(rest, distance.low, distance.high)).min())
            last = -int(self.least(Form(rest, distance.low, distance.high).times(_ZERO - 1)).min())
            if (last - first + 1) / modulus < share:
                share = (last - first + 1) / modulus
                found = Conflict(found.low, found.high, modulus, first, last)
        return found
