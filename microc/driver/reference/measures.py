"""How far two tensors are apart, over all samples of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.frozen import frozen

TOLERANCES: Mapping[str, float] = MappingProxyType(
    {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
)
"""What floats may differ by unless told, relative to the largest magnitude of the tensor.

A sum of K products in another order moves by K * 2**-24 of the sum of their sizes at most, by about sqrt(K) * 2**-24 as a
rule: 1e-6 to 1e-5 for a layer of float32 with thousands of products, which tens of layers hand on and add to. Halves are rounded
behind every operator, by 2**-11 or 2**-8.
"""


@frozen
class Agreement:
    """One tensor of the network against the framework's, over all samples.

    ``differing`` of ``elements`` differ in any bit of their value; ``largest``: the largest absolute difference, of stored
    integers in quanta; ``relative``: the same over the largest magnitude of the framework's tensor (floats); ``cosine`` of the
    angle between both (None where one is all zeros); ``top``: the share of rows whose largest element is in the same place
    (None where rows have one). ``wrong``: elements beyond ``tolerance``, not counting the ``undecided``, which rounding decides.
    """

    tensor: str
    dtype: str
    layer: str
    op: str
    elements: int
    differing: int
    wrong: int
    undecided: int
    largest: float
    relative: float
    cosine: float | None
    top: float | None
    tolerance: float

    @property
    def agrees(self) -> bool:
        return not self.wrong


@dataclass(slots=True)
class Tally:
    """A tensor's differences so far. ``tolerance``: for floats, relative to the largest magnitude; for integers, in quanta."""

    tensor: str
    dtype: str
    tolerance: float
    layer: str = ""
    op: str = ""
    pairs: list[tuple[Array, Array, Array | None]] = field(default_factory=list)

    def add(self, mine: Array, theirs: Array, undecided: Array | None = None) -> None:
        """What both gave for one sample, in one shape."""
        self.pairs.append((mine, theirs, undecided))

    def agreement(self) -> Agreement:
        """The figures over all samples."""
        real = dtypes.is_float(self.dtype)
        elements = differing = wrong = free = rows = same = 0
        largest = dot = mine_length = their_length = 0.0
        most = max((_largest(theirs) for _, theirs, _ in self.pairs), default=0.0)
        bound = self.tolerance * most if real else self.tolerance
        for mine, theirs, undecided in self.pairs:
            a, b = (
                x.astype(np.float64)
                if real
                else x.astype(object if x.dtype.kind == "u" and x.itemsize == 8 else np.int64)
                for x in (mine, theirs)
            )
            distance, unlike = _distance(a, b)
            beyond = unlike | (distance > bound)
            loose = np.zeros(beyond.shape, bool) if undecided is None else undecided.reshape(beyond.shape)
            elements, differing = elements + a.size, differing + int(np.count_nonzero(unlike | (distance != 0)))
            wrong, free = wrong + int(np.count_nonzero(beyond & ~loose)), free + int(np.count_nonzero(beyond & loose))
            largest = max(largest, float(distance.max(initial=0.0)))
            x, y = (np.nan_to_num(v.astype(np.float64).reshape(-1), posinf=0.0, neginf=0.0) for v in (a, b))
            dot, mine_length, their_length = dot + float(x @ y), mine_length + float(x @ x), their_length + float(y @ y)
            if mine.ndim and mine.shape[-1] > 1:
                tops = [v.reshape(-1, mine.shape[-1]).argmax(axis=1) for v in (mine, theirs)]
                rows, same = rows + len(tops[0]), same + int(np.count_nonzero(tops[0] == tops[1]))
        lengths = (mine_length * their_length) ** 0.5
        return Agreement(
            self.tensor,
            self.dtype,
            self.layer,
            self.op,
            elements,
            differing,
            wrong,
            free,
            largest,
            largest / most if real and most else 0.0,
            dot / lengths if lengths else None,
            same / rows if rows else None,
            self.tolerance,
        )


def _largest(x: Array) -> float:
    if x.dtype.kind in "biu":
        return float(max((abs(int(x.max())), abs(int(x.min()))), default=0)) if x.size else 0.0
    wide = np.abs(x.astype(np.float64))
    return float(wide[np.isfinite(wide)].max(initial=0.0))


def _distance(a: Array, b: Array) -> tuple[Array, Array]:
    """How far elements are apart (0 where one is not finite), and where NaN or an infinity meets something else."""
    if a.dtype.kind != "f":
        return np.abs((a - b).astype(np.float64)), np.zeros(a.shape, bool)
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(invalid="ignore"):
        distance = np.where(finite, np.abs(a - b), 0.0)
    alike = (a == b) | (np.isnan(a) & np.isnan(b))
    return distance, ~finite & ~alike
