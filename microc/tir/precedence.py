"""Which places of two buffers a function touches in the wrong order for sharing memory, at any of many sizes.

A byte of one buffer may be a byte of another if it is touched for the last time as the former before it is written for the
first time as the latter. :mod:`microc.tir.order` answers that for one size, element by element. Here it is proved for all sizes
at once, from how loops are nested: of two statements, one comes later than the other if it is further down in the same turns
of all loops around both, or if the outermost of them whose turns differ has come further. For each of these cases the
distance of the two places is a sum over loop variables (:mod:`microc.tir.forms`), whose range is known at every size
(:mod:`microc.tir.ranges`); all of it is a :class:`Conflict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.frozen import frozen
from microc.tir import ir
from microc.tir.accesses import FOLLOWED, Scope, Touch, leaf, row
from microc.tir.forms import Form, Forms
from microc.tir.ranges import Conflict, Ranges
from microc.tir.rewrite import walk_stmt

_ZERO = np.zeros(1, np.int64)
Guard = tuple[ir.Expr, bool]
"""A condition, and how it comes out."""


@frozen
class _Found:
    """A touch in the function: the loops around it, the number of its statement, which rises with time, what holds there."""

    touch: Touch
    loops: tuple[ir.Var, ...]
    number: int
    guards: tuple[Guard, ...]


@frozen
class _Place:
    """The same as forms: the bytes that are touched, and what is not negative there. ``order`` rises with time."""

    bytes: Form
    facts: tuple[Form, ...]
    loops: tuple[ir.Var, ...]
    order: tuple[int, int]
    write: bool


class Precedence:
    """Conflicts between the buffers of a lowered function. ``sizes``: its scalars at all sizes of a run, side by side."""

    def __init__(self, func: ir.PrimFunc, sizes: Mapping[str, Array]) -> None:
        self.forms = Forms(sizes)
        self._number = 0
        loops = (s for s in walk_stmt(func.body) if isinstance(s, ir.For))
        self._ordered = all(loop.kind != "parallel" for loop in loops)
        followed = {b for b in func.params if b.scope in FOLLOWED}
        found = [x for x in self._statements(func.body, Scope({}), (), ()) if x.touch.buffer in followed]
        self._places: dict[ir.Buffer, list[_Place]] = {}
        digits = -1
        while digits < len(self.forms.digits):  # until it is known which loops have them
            digits = len(self.forms.digits)
            self._places = {b: [] for b in followed}
            for x in found:
                self._places[x.touch.buffer].append(self._place(x))

    def conflicts(self, old: ir.Buffer, new: ir.Buffer) -> list[Conflict]:
        """Distances from ``old`` to ``new`` at which some byte of ``old`` is touched when ``new`` was written there already."""
        if not self._ordered:
            return [Conflict(-new.nbytes, old.nbytes)]
        touched, written = self._places[old], [place for place in self._places[new] if place.write]
        found = [self._conflict(a, b, _common(a, b), None) for a in touched for b in written if a.order >= b.order]
        for a in self._merged(touched, old.name):
            for b in self._merged(written, new.name):
                common = _common(a, b)
                found += [self._conflict(a, b, common[:k], var) for k, var in enumerate(common)]
        return list(dict.fromkeys(conflict for conflict in found if conflict is not None))

    # ------------------------------------------------------------ touches

    def _statements(
        self, stmt: ir.Stmt, around: Scope, loops: tuple[ir.Var, ...], guards: tuple[Guard, ...]
    ) -> Iterator[_Found]:
        """All touches. Variables of loops get names of their own."""
        scope = Scope(dict(around.names))
        for item in row(stmt):
            self._number += 1
            own, number = leaf(item, scope), self._number
            match item:
                case ir.If(condition, then, otherwise):
                    decided = scope.expr(condition)
                    yield from self._statements(then, scope, loops, (*guards, (decided, True)))
                    if otherwise is not None:
                        yield from self._statements(otherwise, scope, loops, (*guards, (decided, False)))
                case ir.For(var, extent, body):
                    unique, turns = ir.Var(f"{var.name}.{number}"), scope.expr(extent)
                    self.forms.loop(unique, turns)
                    inner = Scope({**scope.names, var: unique})
                    yield from self._statements(body, inner, (*loops, unique), (*guards, (unique < turns, True)))
                    self._number = number = self._number + 1  # C looks at the extent for the last time at the end
            for touch in own:
                yield _Found(touch, loops, number, guards)

    def _place(self, found: _Found) -> _Place:
        loops = tuple(digit for var in found.loops for digit in self.forms.variables(var))
        facts = tuple(fact for guard in found.guards for fact in self.forms.facts(*guard) if fact.terms)
        order = found.number, found.touch.tick
        return _Place(self._bytes(found.touch), facts, loops, order, found.touch.write)

    def _bytes(self, touch: Touch) -> Form:
        """The bytes that an access touches; all of the buffer where data decide."""
        buffer, width = touch.buffer, dtypes.nbytes(touch.buffer.dtype)
        total = Form({}, _ZERO, _ZERO + (touch.extent - 1) * touch.step * width + width - 1)
        for index, stride in zip(touch.indices, buffer.strides, strict=True):
            form = self.forms.of(index)
            if form is None:
                return Form({}, _ZERO, _ZERO + buffer.nbytes - 1)
            total = total.plus(form.times(_ZERO + stride * width))
        return total

    # ------------------------------------------------------------ distances

    def _merged(self, places: Sequence[_Place], name: str) -> Iterator[_Place]:
        """Places in the same loops that differ by a constant, as one in another loop around them."""
        found: dict[object, list[_Place]] = {}
        for place in places:
            found.setdefault((place.loops, place.bytes.slopes, frozenset(f.key for f in place.facts)), []).append(place)
        for k, group in enumerate(found.values()):
            unrolled = ir.Var(f"{k} of {name}")
            bytes_, self.forms.extents[unrolled] = Form.around([place.bytes for place in group], unrolled)
            yield replace(group[0], bytes=bytes_, loops=(*group[0].loops, unrolled))

    def _conflict(self, a: _Place, b: _Place, same: tuple[ir.Var, ...], later: ir.Var | None) -> Conflict | None:
        """Distances of two places in the same turns of some loops and, if told, a later turn of another one at the first."""
        extents = self.forms.extents
        mine, other = {var: _number(var) for var in same}, {var: _number(var) for var in same}
        reach = {var: self.forms.reach(var) for var in same if extents[var] is not None}
        for names, place, mark in ((mine, a, "'"), (other, b, '"')):
            for var in place.loops[len(same) :]:
                if extents[var] is not None:
                    names[var] = _number(ir.Var(var.name + mark))
                    reach[ir.Var(var.name + mark)] = self.forms.reach(var)
        ranges = Ranges(reach)
        if later is not None and (extent := extents[later]) is not None:
            mine[later], other[later] = ranges.turns(later, extent)
        facts = [*(f.renamed(mine) for f in a.facts), *(f.renamed(other) for f in b.facts)]
        return ranges.conflict(a.bytes.renamed(mine).plus(b.bytes.renamed(other).times(_ZERO - 1)), facts)


def _number(var: ir.Var) -> Form:
    return Form({var: _ZERO + 1}, _ZERO, _ZERO)


def _common(a: _Place, b: _Place) -> tuple[ir.Var, ...]:
    """The loops around both."""
    pairs = zip(a.loops, b.loops, strict=False)
    return tuple(x for x, y in takewhile(lambda pair: pair[0] == pair[1], pairs))
