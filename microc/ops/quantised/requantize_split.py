# SPDX-License-Identifier: Apache-2.0
"""Operators ``requantize_split`` and ``requantize_split_away``: requantisations by two products of 32 bits. They replace the
``requantize`` of a layer where this is exact.

Cores that multiply 32 by 32 bits to 32 have no high half of a product (Armv6-M). There the multiplier of ``requantize_floor`` is
split, M = 2**B M1 + M0, so that both products of a sum fit int32:

    clamp((x * M1 + (((x >> E) * M0) >> (B - E)) + C) >> S)

M1 and M0 are the halves of one constant. That takes eight instructions, where the product of two 32-bit numbers by parts takes
thirty. C includes the bias, too. The inner shifts round down, so that the thresholds are those of x without its bias. E is 0
unless the product with M0 is too large; then x loses its last E bits, which matter little there.

Its steps are regular, as those of ``requantize_floor``. TFLite rounds half away from zero, and after it rounded to multiples of
2**-s, where s is the shift of the channel. So the steps of negative sums are regular, too, but 2**-s further up. A third constant
D of a channel, of about 2**(S - s), is subtracted from negative sums (``requantize_split_away``):

    u = x * M1 + (((x >> E) * M0) >> (B - E)) + C
    clamp((((u - (D if u < 0 else 0)) >> (S - 1)) + 2 * zero_point + 1) >> 1)

Thresholds of results above the zero point give an interval of C, the others one of C - D. The sum u changes its sign between
them, because D is at most half a step of the result, 2**(S - 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Graph, Node, TensorType
from microc.numerics import INT32_MAX
from microc.ops.arithmetic import clamp_to_dtype
from microc.ops.attributes import STORED, Attributes, integer, integers
from microc.ops.constants import CheckedNode, NumberUse, OperandBounds, ends_of_products, stored_range_error_message
from microc.ops.quantised.requantize import REQUANTIZE, infer_requantize
from microc.ops.quantised.requantize_floor import (
    ADDEND_AND_MULTIPLIER_BOUNDS,
    MAX_FRACTION_BITS,
    NO_THRESHOLD,
    AttrItems,
    Numbers,
    Thresholds,
    are_steps_regular,
    bound_of_sums,
    constant_bias,
    find_thresholds_of_requantize,
    replace_requantize,
    requantisation_key,
    scales_sums_of_anchor,
)
from microc.ops.registry import Case, OpDef
from microc.tir import ir
from microc.tir.ir import Expr

# ---- Search of the constants

SPLIT_SHIFTS = (19, 20, 18, 21, 22, 17, 16, 15)
"""Shifts S of ``requantize_split`` in the order in which they are tried, the same for all layers as
:data:`requantize_floor.SHIFTS`. With fewer bits the rounding of the inner shift moves more thresholds."""
LOW_BITS = (13, 14, 12, 15, 11, 16)
"""Bits B of the low part of a multiplier, in the order in which they are tried."""
DROPPED_BITS = (0, 1, 2, 3, 4)
"""Bits E that a sum loses before it is multiplied by the low part. They take an instruction, and let larger products fit."""
_SPLIT_TRIES = 17
"""Number of multipliers around the exact quotient that are tried for each channel and B: others are off by 2**-17."""


@frozen
class SplitScale:
    """Constants of ``requantize_split``, or of ``requantize_split_away`` if there are ``steps``.

    ``high`` M1, ``low`` M0, ``addends`` C and ``steps`` D: int64 arrays with one number for each channel. ``dropped_bits``: E.
    ``low_shift``: B - E. ``shift``: S."""

    high: Array
    low: Array
    addends: Array
    steps: Array | None
    dropped_bits: int
    low_shift: int
    shift: int


def find_split_scale(thresholds: Thresholds, bias: Array, largest_sums: Array) -> SplitScale | None:
    """Find the constants with which ``requantize_split`` or ``requantize_split_away`` has the given thresholds; None if a
    channel has none.

    ``bias``: int64 array with the bias of each channel or of all, which the addends include. ``largest_sums``: int64 array
    with the largest magnitude of the sums without bias, alike. All products and sums fit int32."""
    forms: list[tuple[slice, ...]] = [(slice(None),)]
    if thresholds.minimum < thresholds.zero_point < thresholds.maximum:
        zero = thresholds.zero_point - thresholds.minimum
        forms.append((slice(zero), slice(zero, None)))
    for branches in forms:
        if not all(are_steps_regular(thresholds, MAX_FRACTION_BITS, branch) for branch in branches):
            continue
        search = _SplitSearch(thresholds, bias, largest_sums, branches)
        for dropped_bits, shift, low_bits in product(DROPPED_BITS, SPLIT_SHIFTS, LOW_BITS):
            scale = search.find_scale(low_bits, dropped_bits, shift)
            if scale is not None:
                return scale
    return None


class _SplitSearch:
    """Search of the constants of ``requantize_split``, or of ``requantize_split_away`` if there are two ``branches``: the
    rows of thresholds up to the zero point, and those above it."""

    def __init__(self, thresholds: Thresholds, bias: Array, largest_sums: Array, branches: tuple[slice, ...]) -> None:
        self.factors, self.branches, self.rounds_away = thresholds.factors, branches, len(branches) > 1
        self.channels = np.broadcast_shapes(self.factors.shape, bias.shape, largest_sums.shape)
        self.bias, self.largest = np.broadcast_to(bias, self.channels), np.broadcast_to(largest_sums, self.channels)
        biased = np.broadcast_to(thresholds.least_operands, (len(thresholds.results), *self.channels))
        bound = thresholds.bound
        self.least = biased - bias
        self.is_reached = (biased <= bound) & (self.least <= largest_sums)
        self.is_passed = (biased > -bound) & (self.least > -largest_sums)
        self.zero_point = thresholds.zero_point
        self.results = thresholds.results - (self.zero_point if self.rounds_away else 0)
        self.hardest = np.zeros(0, np.int64)
        """Some channels that had no constants last time. They are tried first."""

    def find_scale(self, low_bits: int, dropped_bits: int, shift: int) -> SplitScale | None:
        """Find a multiplier, an addend and a step for every channel, given B, E and S; None if a channel has none."""
        exact = np.broadcast_to(np.rint(self.factors * 2.0 ** (shift + low_bits)).astype(np.int64), self.channels)
        tries = sorted(range(-(_SPLIT_TRIES // 2), _SPLIT_TRIES // 2 + 1), key=abs)
        multipliers = np.maximum(exact + np.array(tries)[:, None], 1)
        fits = self._products_fit(multipliers, low_bits, dropped_bits)
        if not fits.any(axis=0).all():
            return None
        for channels in (self.hardest, np.arange(len(exact))):
            found, left = self._find_constants(channels, multipliers, fits, low_bits, dropped_bits, shift)
            if left.size:
                self.hardest = left[:4]
                return None
        tried, addends, steps = found
        parts = _split_multipliers(tried[: len(self.factors)], low_bits)
        all_steps = steps if self.rounds_away else None
        return SplitScale(*parts, addends, all_steps, dropped_bits, low_bits - dropped_bits, shift)

    def _find_constants(
        self, channels: Array, multipliers: Array, fits: Array, low_bits: int, dropped_bits: int, shift: int
    ) -> tuple[Array, Array]:
        """Find a multiplier out of ``multipliers`` (tries, channels) that ``fits``, an addend and a step for some channels.
        Return an array (3, all channels), and the channels that have none."""
        found, left = np.zeros((3, *self.channels), np.int64), channels
        for tried, fit in zip(multipliers, fits, strict=True):
            if not left.size:
                break
            is_found, addends, steps = self._find_addends(left, tried[left], low_bits, dropped_bits, shift)
            is_found &= fit[left]
            if len(self.factors) == 1:  # all channels share one multiplier
                is_found &= is_found.all()
            found[:, left[is_found]] = np.stack((tried[left], addends, steps))[:, is_found]
            left = left[~is_found]
        return found, left

    def _products_fit(self, multipliers: Array, low_bits: int, dropped_bits: int) -> Array:
        """Test whether the parts of multipliers (..., channels) fit 16 bits, the products of the low part int32, and whether
        results do not decrease where x grows.

        M1 is added for each unit of x. A negative M0, of B - 1 bits, takes at most 2**(E - 1) away."""
        high, low = _split_multipliers(multipliers, low_bits)
        largest_low = np.minimum(INT32_MAX // ((self.largest >> dropped_bits) + 1), np.iinfo(np.int16).max)
        fits: Array = (np.abs(low) <= largest_low) & (high <= np.iinfo(np.int16).max)
        fits &= (low >= 0) | (2 * high >= 1 << dropped_bits)
        return fits

    def _find_addends(
        self, channels: Array, multipliers: Array, low_bits: int, dropped_bits: int, shift: int
    ) -> tuple[Array, Array, Array]:
        """Find addends and steps of some channels, given their multipliers. Return an array that is True for channels that have
        both, and the numbers."""
        high, low = _split_multipliers(multipliers, low_bits)

        def scale(x: Array) -> Array:
            scaled: Array = x * high + ((x >> dropped_bits) * low >> (low_bits - dropped_bits))
            return scaled

        half, least = 1 << (shift - 1), self.least[:, channels]
        needed = (self.results << shift) - (half if self.rounds_away else 0)
        lowest = np.where(self.is_reached[:, channels], needed - scale(least), -NO_THRESHOLD)
        highest = np.where(self.is_passed[:, channels], needed - 1 - scale(least - 1), NO_THRESHOLD)
        ends = [
            (lowest[b].max(axis=0, initial=-NO_THRESHOLD), highest[b].min(axis=0, initial=NO_THRESHOLD))
            for b in self.branches
        ]
        # Any number of the interval is exact. Without thresholds it is the one that rounds to the nearest.
        nearest = scale(self.bias[channels]) + (0 if self.rounds_away else (self.zero_point << shift) + half)
        addends = np.clip(nearest, *ends[-1])
        steps = np.maximum(addends - ends[0][1], 0) if self.rounds_away else np.zeros_like(addends)
        is_found = np.logical_and.reduce([low_end <= high_end for low_end, high_end in ends])
        is_found &= (addends - steps >= ends[0][0]) & (steps <= half)
        sums = self.largest[channels] * (high + 1) + (1 << dropped_bits)
        is_found &= sums + np.abs(addends) + steps <= INT32_MAX
        return is_found, addends, steps


def _split_multipliers(multipliers: Array, low_bits: int) -> tuple[Array, Array]:
    """Split multipliers into a high and a low part, the low part as near to zero as possible."""
    high = (multipliers + (1 << (low_bits - 1))) >> low_bits
    return high, multipliers - (high << low_bits)


# ---- Replacement of the requantisation of a layer


def use_split_requantisation(graph: Graph, nodes: Sequence[Node]) -> tuple[Graph, tuple[Node, ...]]:
    """Replace the ``requantize`` that follows the anchor of a fusion group by ``requantize_split`` or
    ``requantize_split_away``, if this is exact.

    Return as :func:`requantize_floor.use_floor_requantisation` does."""
    if len(nodes) < 2 or not scales_sums_of_anchor(graph, nodes[0], nodes[1]):
        return graph, tuple(nodes)
    bias = constant_bias(graph, nodes[0])
    bounds = tuple(_largest_sums(graph, nodes[0], bias, bound_of_sums(nodes[1])).tolist())
    scale = _find_split_scale_of_requantize(*requantisation_key(graph, nodes[1]), tuple(bias.tolist()), bounds)
    if scale is None:
        return graph, tuple(nodes)
    constants = {"addend": scale.addends, "multiplier": (scale.high << 16) + (scale.low & 0xFFFF)}
    attrs = {"dropped_bits": scale.dropped_bits, "low_shift": scale.low_shift, "shift": scale.shift, "bounds": bounds}
    if scale.steps is None:
        return replace_requantize(graph, nodes, "requantize_split", {**attrs, "zero_point": 0}, constants)
    zero_point = {**REQUANTIZE, **nodes[1].attrs}["zero_point"]
    constants["step"] = scale.steps
    return replace_requantize(graph, nodes, "requantize_split_away", {**attrs, "zero_point": zero_point}, constants)


def _largest_sums(graph: Graph, anchor: Node, bias: Array, bound: int) -> Array:
    """Return the largest magnitude of the sums of a layer without ``bias``, for each channel or for all, as an int64 array.
    ``bound``: that of the sums with the bias."""
    by_bound = bound + np.abs(bias)
    weights = graph.consts.get(anchor.inputs[1]) if anchor.op in ("conv2d", "dense") else None
    if weights is None or not dtypes.is_integer(str(weights.dtype)):
        return by_bound
    low, high = ends_of_products(weights, dtypes.int_range(graph.types[anchor.inputs[0]].dtype))
    largest: Array = np.minimum(by_bound, np.maximum(-low, high).astype(np.int64))
    return largest


@lru_cache(maxsize=256)
def _find_split_scale_of_requantize(
    attr_items: AttrItems, numbers: Numbers, bias: tuple[int, ...], largest_sums: tuple[int, ...]
) -> SplitScale | None:
    """Find the constants that make ``requantize_split`` or ``requantize_split_away`` of sums without ``bias`` equal to a
    ``requantize`` node; memoised."""
    thresholds = find_thresholds_of_requantize(attr_items, numbers)
    arrays = (np.array(values, np.int64) for values in (bias, largest_sums))
    return None if thresholds is None else find_split_scale(thresholds, *arrays)


# ---- The operators

REQUANTIZE_SPLIT_ATTRS: Attributes = {
    "dropped_bits": integer("bits of x that the product with the low half ignores", least=0, most=max(DROPPED_BITS)),
    "low_shift": integer(
        "bits by which the product with the low half is shifted to the right", least=1, most=max(LOW_BITS)
    ),
    "shift": integer("bits by which the sum of the products is shifted to the right", least=2, most=max(SPLIT_SHIFTS)),
    **STORED,
    "bounds": integers("the largest magnitudes of x, for each channel or for all", least=0),
}


def _build_split_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    x, addend, multiplier, *steps = args
    low = ir.cast("int32", ir.cast("int16", multiplier))
    dropped = x >> attrs["dropped_bits"] if attrs["dropped_bits"] else x
    total = x * (multiplier >> 16) + ((dropped * low) >> attrs["low_shift"]) + addend
    if steps:
        total = total - ((total >> 31) & steps[0])
        result = ((total >> (attrs["shift"] - 1)) + (2 * attrs["zero_point"] + 1)) >> 1
    else:
        result = total >> attrs["shift"]
        result = result + attrs["zero_point"] if attrs["zero_point"] else result
    return clamp_to_dtype(result, attrs["minimum"], attrs["maximum"], attrs["out_dtype"])


def _split_halves(multipliers: Any) -> tuple[Array, Array]:
    """Return the high and the low half of int32 multipliers as signed int64 numbers."""
    numbers = np.asarray(multipliers, np.int64)
    return numbers >> 16, numbers.astype(np.int16).astype(np.int64)


def _evaluate_split_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, addend = (np.asarray(array, np.int64) for array in arrays[:2])
    high, low = _split_halves(arrays[2])
    total = x * high + (((x >> attrs["dropped_bits"]) * low) >> attrs["low_shift"]) + addend
    for step in arrays[3:]:
        total = total - np.where(total < 0, np.asarray(step, np.int64), 0) + (1 << (attrs["shift"] - 1))
    result = (total >> attrs["shift"]) + attrs["zero_point"]
    return (np.clip(result, attrs["minimum"], attrs["maximum"]).astype(dtypes.to_numpy(attrs["out_dtype"])),)


def _split_overflow_message(checked_node: CheckedNode) -> str:
    """Return a message if a product or a sum can overflow int32, or if the data are not int32; else an empty string."""
    if checked_node.types[0].dtype != "int32":
        return f"the data have an unsupported dtype; got {checked_node.types[0].dtype}, expected int32"
    addends, multipliers, *steps = (
        np.zeros(1, np.int64) if data is None else data.astype(np.int64).reshape(-1) for data in checked_node.data[1:]
    )
    bounds, (high, low) = np.array(checked_node.attrs["bounds"], np.int64), np.abs(_split_halves(multipliers))
    counts = {array.size for array in (bounds, high, addends, *steps)} - {1}
    if not bounds.size or len(counts) > 1:
        return f"bounds has a wrong length; got {bounds.size}, expected 1 or the number of channels"
    dropped_product = ((bounds >> checked_node.attrs["dropped_bits"]) + 1) * low
    total = (
        bounds * high
        + (dropped_product >> checked_node.attrs["low_shift"])
        + 1
        + np.abs(addends)
        + sum(map(np.abs, steps))
    )
    largest = int(max(dropped_product.max(initial=0), total.max(initial=0)))
    return (
        ""
        if largest <= INT32_MAX
        else f"products or their sum can overflow int32; got up to {largest}, expected at most {INT32_MAX}"
    )


def _make_split_cases(steps: tuple[int, ...] = ()) -> Iterable[Case]:
    """Yield cases per channel and per tensor, with a zero point beside the addends, and with sums near the ends of int32.
    ``steps``: of four channels."""
    x = np.array([0, 1, -1, 127, -128, 9999, -9999, 54321, -54321, 80000, -80000, 4096], np.int32).reshape(3, 4)
    for high, low, addends, (dropped, low_shift, shift), zero, lowest, dtype in (
        ((401, 399, 17, 1), (-4096, 4095, 0, 7), (0, 77, -(1 << 25), 1 << 24), (0, 13, 18), 0, -128, "int8"),
        ((300,), (-3000,), (1 << 17,), (2, 10, 15), -7, -7, "int8"),
        ((26000,), (26000,), (-(60 << 20), 0, 5, -1), (0, 16, 20), 100, 0, "uint8"),
    ):
        attrs: dict[str, Any] = {"dropped_bits": dropped, "low_shift": low_shift, "shift": shift, "bounds": (80000,)}
        attrs |= {"zero_point": zero, "minimum": lowest, "maximum": dtypes.int_range(dtype)[1], "out_dtype": dtype}
        multipliers = np.array([(a << 16) + (b & 0xFFFF) for a, b in zip(high, low, strict=True)], np.int32)
        constants = [np.array(addends, np.int32), multipliers]
        constants += [np.array(steps[: len(addends)], np.int32)] if steps else []
        types = tuple(TensorType(array.shape, "int32") for array in (x, *constants))
        name = f"{dtype} of {len(high)} channels, shift {shift}"
        yield Case(attrs, types, tuple(range(1, len(types))), (x, *constants), name=name)


def _make_split_away_cases() -> Iterable[Case]:
    return _make_split_cases((1 << 14, 1 << 10, 0, 99))


_SPLIT_SUM = (
    "{x} * high({multiplier}) + floor(floor({x} / 2**{dropped_bits}) * low({multiplier}) / 2**{low_shift}) + {addend}"
)

OPERATORS = tuple(
    OpDef(
        name,
        infer=infer_requantize,
        reference=_evaluate_split_reference,
        scalar=_build_split_expr,
        cases=cases,
        constants={**ADDEND_AND_MULTIPLIER_BOUNDS, **step_bounds},
        sound=(stored_range_error_message, _split_overflow_message),
        attrs=REQUANTIZE_SPLIT_ATTRS,
        operand_names=("x", "addend", "multiplier", "step")[: 3 + len(step_bounds)],
        formula=formula,
    )
    for name, cases, step_bounds, formula in (
        (
            "requantize_split",
            _make_split_cases,
            {},
            f"clamp(floor(({_SPLIT_SUM}) / 2**{{shift}}) + {{zero_point}}, {{minimum}}, {{maximum}})",
        ),
        (
            "requantize_split_away",
            _make_split_away_cases,
            {3: OperandBounds(NumberUse.TERM, 0, INT32_MAX)},
            "clamp(floor((u - (u < 0) * {step}) / 2**{shift} + 1 / 2) + {zero_point}, {minimum}, {maximum}), u = "
            + _SPLIT_SUM,
        ),
    )
)
