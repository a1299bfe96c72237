# SPDX-License-Identifier: Apache-2.0
"""The C of an operator does not grow with its tensors, nor with what its attributes count.

Cases are scaled by themselves: axes of one extent together, then axes that lie alike, then axis by axis, with and without the
attributes; whatever inference accepts is compiled at two sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import MicrocError
from microc.graph.ir import TensorType
from microc.ops.registry import FAMILIES, Case, OpDef
from tests.ops.compiled import compiled_case, definitions
from tests.ops.harness import attributes, named_cases
from tests.support.campaign import everything, in_turn
from tests.support.growth import c_size, c_text, memory_faults

SMALL, LARGE = 64, 256
"""Factors of a case's extents: tiles, and loops that are short enough to be written out, are full with the smaller one."""
BOUND = 1.5
"""What is linear grows fourfold. The Fourier transform has one loop for every radix: one more here."""
MOST = 1 << 25
"""Elements of a tensor: constants of a scaled case are made."""
CASES = 3 if everything() else 1
"""Cases of an operator, of dtypes, ranks and constants that differ; of a single one, another kind for each operator in turn."""

COUNTS = frozenset(
    (
        "begin",
        "channels",
        "depth",
        "diagonal",
        "dilation",
        "end",
        "fft_length",
        "groups",
        "k",
        "kernel",
        "padding",
        "shape",
    )
) | frozenset(("rank", "size", "start", "strides", "targets"))
"""Attributes that count elements."""

Axis = tuple[int, int]
"""An operand's number, and one of its axes."""


@dataclass(frozen=True)
class Growth:
    """``axes`` of operands, and the attribute ``attr``, times a factor; with ``extent``, also what equals it there."""

    axes: frozenset[Axis]
    extent: int = 0
    attr: str = ""

    @property
    def covers(self) -> frozenset[object]:
        return frozenset((*self.axes, self.attr)) if self.attr else frozenset(self.axes)

    def of(self, case: Case, factor: int) -> Case:
        """The case, larger; without its data."""
        shapes = [
            tuple(e * factor if (k, axis) in self.axes else e for axis, e in enumerate(kind.shape))
            for k, kind in enumerate(case.types)
        ]
        types = tuple(replace(kind, shape=shape) for kind, shape in zip(case.types, shapes, strict=True))
        attrs = {n: self._attribute(n, v, factor) if n in COUNTS else v for n, v in case.attrs.items()}
        return replace(case, types=types, arrays=(), attrs=attrs)

    def with_data(self, case: Case, factor: int) -> Case:
        """The case, larger; its data are repeated."""
        arrays = tuple(self._repeated(k, array, factor) for k, array in enumerate(case.arrays))
        return replace(self.of(case, factor), arrays=arrays)

    def _repeated(self, k: int, array: Array | None, factor: int) -> Array | None:
        if array is None or not array.ndim:
            return array
        return np.tile(array, [factor if (k, axis) in self.axes else 1 for axis in range(array.ndim)])

    def _attribute(self, name: str, value: Any, factor: int) -> Any:
        if isinstance(value, tuple):
            return tuple(self._attribute(name, item, factor) for item in value)
        counts = isinstance(value, int) and not isinstance(value, bool)
        return value * factor if counts and (name == self.attr or (self.extent > 1 and value == self.extent)) else value


def growths(case: Case) -> Iterator[Growth]:
    """Ways to scale a case, those of many axes first."""
    places = [(k, axis) for k, kind in enumerate(case.types) for axis in range(len(kind.shape))]
    extents: dict[int, list[Axis]] = {}
    alike: dict[int, list[Axis]] = {}
    for k, axis in places:
        extents.setdefault(case.types[k].shape[axis], []).append((k, axis))
        alike.setdefault(axis - len(case.types[k].shape), []).append((k, axis))
    sets = [frozenset(found) for found in (*extents.values(), *alike.values(), *([place] for place in places))]
    for extent, found in extents.items():
        yield Growth(frozenset(found), extent)
    for chosen in sets:
        yield Growth(chosen)
    for attr in sorted(COUNTS & set(case.attrs)):
        yield from (Growth(chosen, attr=attr) for chosen in (*sets, frozenset(places), frozenset[Axis]()))


def sizes_of(definition: OpDef, case: Case) -> list[int]:
    """Elements of operands and results; nothing if the operator does not take the case."""
    try:
        results = definition.infer(attributes(definition, case), case.types)
    except (MicrocError, ValueError, IndexError):
        return []
    return [kind.size for kind in (*case.types, *results)]


def accepted(definition: OpDef, case: Case) -> Iterator[tuple[Growth, Case, Case]]:
    """Every axis and attribute that can be scaled, scaled at least once."""
    covered: set[object] = set()
    for growth in growths(case):
        small, large = growth.of(case, SMALL), growth.of(case, LARGE)
        sizes = [sizes_of(definition, c) for c in (small, large)]
        fits = all(sizes) and sizes[0] != sizes[1] and max(sizes[1]) <= MOST
        if fits and (small.attrs != large.attrs or growth.axes) and not growth.covers <= covered:
            covered |= growth.covers
            yield growth, growth.with_data(case, SMALL), growth.with_data(case, LARGE)


def chosen(definition: OpDef, position: int) -> list[tuple[str, Case]]:
    """A few cases that differ in kind, from that at ``position`` on."""
    found: dict[object, tuple[str, Case]] = {}
    for name, _, case in named_cases([definition]):
        has_axes = not case.types or any(kind.shape for kind in case.types)
        if has_axes and all(0 not in kind.shape for kind in case.types):
            kinds = tuple((kind.dtype, len(kind.shape)) for kind in case.types)
            found.setdefault((kinds, case.consts), (name, case))
    apart = -(-len(found) // CASES)
    return list(found.values())[position % apart :: apart]


def spectrum(factor: int) -> Case:
    length = 4 * factor
    return Case({"fft_length": length}, (TensorType((length + 2,), "int16"),))


OWN: Mapping[str, Sequence[Callable[[int], Case]]] = {
    "irfft": [spectrum],
    "mean_multiplier": [lambda n: Case({"multiplier": 1 << 30, "shift": 0, "count": n}, ())],
    "mean_scale": [lambda n: Case({"scale_in": 0.5, "scale_out": 0.1, "count": n}, ())],
}
"""Cases that are no multiples of each other."""


@pytest.mark.parametrize(
    ("family", "cpu"), in_turn([family for family in FAMILIES if definitions(family)], ["cortex-m4", "cortex-m55"])
)
def test_c_does_not_grow(family: str, cpu: str) -> None:
    for position, definition in enumerate(definitions(family)):
        pairs = [
            (f"{name} {sorted(growth.axes)} {growth.attr}", small, large)
            for name, case in chosen(definition, position)
            for growth, small, large in accepted(definition, case)
        ]
        pairs += [("own", make(SMALL), make(LARGE)) for make in OWN.get(definition.name, ())]
        assert pairs, f"{definition.name}: nothing can be scaled"
        for what, small, large in pairs:
            texts = [c_text([compiled_case(definition, case, cpu, "kernel").func]) for case in (small, large)]
            assert c_size(texts[1]) <= BOUND * c_size(texts[0]), f"{definition.name} {what}:\n{texts[1]}"
            assert not memory_faults(texts[1]), what
