# SPDX-License-Identifier: Apache-2.0
"""Operator ``requantize_floor``: requantisation by one product that is rounded down. It replaces the ``requantize`` of a layer
where this is exact. The thresholds of a requantisation, by which this is proved.

A requantisation to 8 bits is a monotone step function of its operand x. It is known by its thresholds: T(v) is the least x
whose result is at least v. Two requantisations are equal if and only if their thresholds are. The function

    clamp(((((x << k) + C) * M) >> 32) >> S)

has the threshold T(v) if and only if ``(T(v) << k) + C`` is at least ``v * 2**(32 + S) / M``, and ``((T(v) - 1) << k) + C`` is
less. So C has an interval for every M, S and k, and an integer in it proves equality for all x; no x is tried. C counts
fractions of 1 / 2**k of a sum. It includes the bias of the layer and the zero point of the result, and M the factor of the
channel, while k and S are common to all channels. That takes four instructions on a core with a multiplication that returns
the high half of a product, and two constants for each channel.

Vectors of MVE narrow with a rounding shift in one instruction. There ``2**(S - 1)`` is added before the shift by S (``rounds``),
which only moves the interval of C.

A step function whose steps are not regular has no such form: rounding half away from zero, unless negative results are clamped
as by relu. 138 of the 232 requantisations of the int8 TFLite networks in the tests' corpus have one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import Graph, Node, TensorType, fresh_name
from microc.numerics import INT32_MAX, INT32_MIN
from microc.ops import registry
from microc.ops.arithmetic import clamp_to_dtype
from microc.ops.attributes import STORED, Attributes, Multiplier, integer
from microc.ops.constants import CheckedNode, NumberUse, OperandBounds, stored_range_error_message
from microc.ops.quantised.requantize import (
    REQUANTIZE,
    evaluate_requantize_reference,
    infer_requantize,
    multiplier_and_shift,
)
from microc.ops.registry import Case, OpDef
from microc.tir import ir
from microc.tir.ir import Expr

# ---- Search of the constants

FRACTION_BITS = 8
"""Preferred k. Products of pairs of columns yield the sum of the odd column times 2**8 (``tensorize_pairs``)."""
MAX_FRACTION_BITS = 12
"""Largest k that is tried."""
SHIFTS = (9, 10, 8, 11, 12, 7, 13, 6, 14, 5, 15, 4, 3, 2, 1)
"""Shifts S in the order in which they are tried. The order is the same for all layers, so that equal layers with different
scales have the same S, and share a kernel. A saturating instruction shifts its operand at no cost."""
LEAST_MULTIPLIER_BITS = 25
"""Least number of bits of the largest multiplier. With fewer bits, products are too coarse for most channels."""
MULTIPLIER_TRIES = 65
"""Number of multipliers around the exact quotient that are tried for each channel."""
NO_THRESHOLD = 1 << 61
"""Operand that stands for no threshold: it gives no bound of an addend."""
_ELEMENTS_AT_ONCE = 1 << 15
"""Most operands that are computed at once, so that they stay in the caches."""
_THRESHOLD_STEPS = 8
"""Most corrections by one of the thresholds that float arithmetic gives."""

Requantisation = Callable[[Array], Array]
"""Monotone function from int64 operands (thresholds, channels) to results of the same shape."""


@frozen
class Thresholds:
    """Thresholds of a requantisation to the results ``minimum`` .. ``maximum``, for |x| <= ``bound``.

    ``least_operands``: int64 array (results, channels) with the least x whose result is at least ``minimum + 1``, ...,
    ``maximum``; ``bound + 1`` where there is none. ``factors``: real factors of the channels, greater than 0.
    ``zero_point``: result of x = 0."""

    least_operands: Array
    factors: Array
    zero_point: int
    minimum: int
    maximum: int
    bound: int

    @property
    def results(self) -> Array:
        """The results that have a threshold, as a column."""
        return np.arange(self.minimum + 1, self.maximum + 1, dtype=np.int64)[:, None]


@frozen
class FloorScale:
    """Constants of ``requantize_floor``.

    ``multipliers`` M and ``addends`` C: int64 arrays with one number for each channel. ``fraction_bits``: k. ``shift``:
    S. ``zero_point`` is added to the shifted product; it is 0 if the addends include the zero point. ``rounds``: the shift by S
    rounds half up."""

    multipliers: Array
    addends: Array
    fraction_bits: int
    shift: int
    zero_point: int
    rounds: bool


def find_thresholds(
    requantise: Requantisation, factors: Array, zero_point: int, minimum: int, maximum: int, bound: int
) -> Thresholds | None:
    """Find the thresholds of a requantisation near those of ``x * factor + zero_point``. Return None if the function is
    not monotone there, or too far from it."""
    results = np.arange(minimum + 1, maximum + 1, dtype=np.int64)[:, None]
    estimates = np.ceil((results - zero_point - 0.5) / factors)
    least = np.clip(estimates, -bound, bound + 1).astype(np.int64)
    for _ in range(_THRESHOLD_STEPS):
        is_low = (least <= bound) & (requantise(np.minimum(least, bound)) < results)
        is_high = (least > -bound) & (requantise(np.maximum(least - 1, -bound)) >= results)
        if (is_low & is_high).any():
            return None
        if not (is_low | is_high).any():
            return Thresholds(least, factors, zero_point, minimum, maximum, bound)
        least += is_low.astype(np.int64) - is_high
    return None


def find_floor_scale(thresholds: Thresholds, largest_bias: int = 0, *, rounds: bool = False) -> FloorScale | None:
    """Find the constants with which ``requantize_floor`` has the given thresholds; None if a channel has none.

    ``largest_bias``: largest magnitude of the biases. The operand x without its bias, and the addend that includes the
    bias, then also fit int32. ``rounds``: the shift by S rounds half up."""
    room = INT32_MAX // (thresholds.bound + largest_bias + 1)
    most = min(room.bit_length() - 1, MAX_FRACTION_BITS)
    if most < 1 or not are_steps_regular(thresholds, most):
        return None
    for fraction_bits in dict.fromkeys((min(FRACTION_BITS, most), most)):
        for shift in SHIFTS:
            largest = float(thresholds.factors.max()) * 2.0 ** (32 + shift - fraction_bits)
            if not 1 << (LEAST_MULTIPLIER_BITS - 1) <= largest <= INT32_MAX - MULTIPLIER_TRIES:
                continue
            for zero_point in dict.fromkeys((0, thresholds.zero_point)):
                scale = _find_addends(thresholds, largest_bias, fraction_bits, shift, zero_point, rounds=rounds)
                if scale is not None:
                    return scale
    return None


def are_steps_regular(thresholds: Thresholds, fraction_bits: int, steps: slice = slice(None)) -> bool:
    """Test whether the thresholds of every channel may be ``ceil(v / factor + offset)`` with one offset, as far as ``steps``
    selects them.

    This is necessary, up to the rounding of multipliers, and takes a fraction of the time of the search."""
    least, bound = thresholds.least_operands[steps], thresholds.bound
    offsets = least - thresholds.results[steps] / thresholds.factors
    highest = np.where(least <= bound, offsets, np.inf).min(axis=0, initial=np.inf)
    lowest = np.where(least > -bound, offsets - 1, -np.inf).max(axis=0, initial=-np.inf)
    return bool((highest - lowest > -(2.0**-fraction_bits)).all())


def _find_addends(
    thresholds: Thresholds, largest_bias: int, fraction_bits: int, shift: int, zero_point: int, *, rounds: bool
) -> FloorScale | None:
    """Find a multiplier and an addend for every channel, given k, S and the zero point that is added to the product."""
    least, bound = thresholds.least_operands, thresholds.bound
    needed = ((thresholds.results - zero_point) << (32 + shift)) - (int(rounds) << (31 + shift))
    starts = np.where(least <= bound, least << fraction_bits, NO_THRESHOLD)
    ends = np.where(least > -bound, (least - 1) << fraction_bits, -NO_THRESHOLD)
    exact = np.rint(thresholds.factors * 2.0 ** (32 + shift - fraction_bits)).astype(np.int64)
    multipliers, addends = np.zeros_like(exact), np.zeros_like(exact)
    left = np.arange(len(exact))
    largest_addend = INT32_MAX - ((bound + largest_bias) << fraction_bits)
    steps = np.array(sorted(range(-(MULTIPLIER_TRIES // 2), MULTIPLIER_TRIES // 2 + 1), key=abs))[:, None]
    start, count = 0, 1
    while start < len(steps):
        tried = np.maximum(exact[left] + steps[start : start + count], 1)
        # the least operands of the product with which its high half, shifted, is at least the result
        operands = -(-needed[:, :, None] // tried)
        low = (operands - starts[:, None, left]).max(axis=0, initial=-largest_addend)
        high = (operands - 1 - ends[:, None, left]).min(axis=0, initial=largest_addend)
        first, columns = (low <= high).argmax(axis=0), np.arange(len(left))
        chosen = columns[(low <= high)[first, columns]]
        rows = first[chosen]
        multipliers[left[chosen]] = tried[rows, chosen]
        addends[left[chosen]] = (low[rows, chosen] + high[rows, chosen]) >> 1
        left = np.delete(left, chosen)
        if not left.size:
            return FloorScale(multipliers, addends, fraction_bits, shift, zero_point, rounds)
        # Most channels have a multiplier at the first try. Others may have none: their tries are computed many at once.
        start += count
        count = max(1, _ELEMENTS_AT_ONCE // (len(needed) * len(left)))
    return None


# ---- Replacement of the requantisation of a layer


def use_floor_requantisation(
    graph: Graph, nodes: Sequence[Node], *, rounds: bool = False
) -> tuple[Graph, tuple[Node, ...]]:
    """Replace the ``requantize`` that follows the anchor of a fusion group by ``requantize_floor``, if this is exact.

    Return the nodes of the group, and a graph with their types and constants, from which the group is lowered. The
    constant bias of a layer becomes part of the addends. ``rounds``: the last shift rounds."""
    if len(nodes) < 2 or not scales_sums_of_anchor(graph, nodes[0], nodes[1]):
        return graph, tuple(nodes)
    bias = constant_bias(graph, nodes[0])
    largest_bias = int(np.abs(bias).max(initial=0))
    scale = _find_scale_of_requantize(*requantisation_key(graph, nodes[1]), largest_bias, rounds)
    if scale is None:
        return graph, tuple(nodes)
    constants = {"addend": scale.addends + (bias << scale.fraction_bits), "multiplier": scale.multipliers}
    attrs = {
        "zero_point": scale.zero_point,
        "fraction_bits": scale.fraction_bits,
        "shift": scale.shift,
        "halves": int(rounds),
        "bound": bound_of_sums(nodes[1]) + largest_bias,
    }
    return replace_requantize(graph, nodes, "requantize_floor", attrs, constants)


def replace_requantize(
    graph: Graph, nodes: Sequence[Node], op: str, attrs: Mapping[str, Any], constants: Mapping[str, Array]
) -> tuple[Graph, tuple[Node, ...]]:
    """Replace the second node of a group by the operator ``op`` with int32 ``constants``, by the names of its operands. The
    anchor loses its constant bias, which the constants include."""
    anchor, old, *rest = nodes
    if _bias_name(graph, anchor):
        anchor = replace(anchor, inputs=anchor.inputs[:2])
    names = [fresh_name(graph.types, f"{old.outputs[0]}.{stem}") for stem in constants]
    consts = {name: array.astype(np.int32) for name, array in zip(names, constants.values(), strict=True)}
    types = {name: TensorType(array.shape, "int32") for name, array in consts.items()}
    stored = {name: {**REQUANTIZE, **old.attrs}[name] for name in ("minimum", "maximum", "out_dtype")}
    new = replace(old, op=op, inputs=(old.inputs[0], *names), attrs={**stored, **attrs})
    whole = replace(graph, types={**graph.types, **types}, consts={**graph.consts, **consts})
    return whole, (anchor, new, *rest)


def bound_of_sums(node: Node) -> int:
    """Return the largest magnitude of the sums that a ``requantize`` node declares; -1 if it declares none."""
    attrs: Mapping[str, Any] = {**REQUANTIZE, **node.attrs}
    return int(attrs["bound"])


def _bias_name(graph: Graph, anchor: Node) -> str:
    """Return the name of the constant bias of a layer; empty if there is none."""
    has_bias = len(anchor.inputs) > 2 and registry.get(anchor.op).operand_names[2:3] == ("bias",)
    return anchor.inputs[2] if has_bias and anchor.inputs[2] in graph.consts else ""


def constant_bias(graph: Graph, anchor: Node) -> Array:
    """Return the constant bias of a layer as an int64 array, of one zero if there is none."""
    name = _bias_name(graph, anchor)
    return graph.consts[name].astype(np.int64).reshape(-1) if name else np.zeros(1, np.int64)


def scales_sums_of_anchor(graph: Graph, anchor: Node, node: Node) -> bool:
    """Test whether a node is the ``requantize`` of the bounded int32 sums of ``anchor`` to 8 bits, by constants for each
    channel or for all."""
    if node.op != "requantize" or node.inputs[0] != anchor.outputs[0] or graph.types[node.inputs[0]].dtype != "int32":
        return False
    attrs: Mapping[str, Any] = {**REQUANTIZE, **node.attrs}
    if attrs["bound"] <= 0 or attrs["input_zero_point"] or attrs["rounding"] == Multiplier.WIDE:
        return False
    channels = graph.types[node.outputs[0]].shape[-1:]
    constants = [graph.consts.get(name) for name in node.inputs[1:]]
    return dtypes.nbytes(attrs["out_dtype"]) == 1 and all(
        array is not None and array.shape in ((1,), channels) for array in constants
    )


AttrItems = tuple[tuple[str, Any], ...]
Numbers = tuple[tuple[str, tuple[int, ...]], ...]


def requantisation_key(graph: Graph, node: Node) -> tuple[AttrItems, Numbers]:
    """Return the attributes of a ``requantize`` node, and the dtypes and numbers of its constant operands multiplier and shift,
    as far as these are operands."""
    operands = (graph.consts[name] for name in node.inputs[1:])
    numbers = tuple((array.dtype.str, tuple(array.tolist())) for array in operands)
    return tuple({**REQUANTIZE, **node.attrs}.items()), numbers


@lru_cache(maxsize=256)
def _find_scale_of_requantize(
    attr_items: AttrItems, numbers: Numbers, largest_bias: int, rounds: bool
) -> FloorScale | None:
    """Find the constants that make ``requantize_floor`` equal to a ``requantize`` node.

    Memoised, because fitting a network to a board lowers the same layers many times."""
    thresholds = find_thresholds_of_requantize(attr_items, numbers)
    return None if thresholds is None else find_floor_scale(thresholds, largest_bias, rounds=rounds)


def find_thresholds_of_requantize(attr_items: AttrItems, numbers: Numbers) -> Thresholds | None:
    """Find the thresholds of a ``requantize`` node; None if a factor is not positive or the function has none."""
    attrs = dict(attr_items)
    arrays = [np.array(values, dtype) for dtype, values in numbers]
    multipliers, shifts = multiplier_and_shift(attrs, [None, *arrays])
    factors = np.ldexp(np.asarray(multipliers, np.float64), np.asarray(shifts, np.int64) - 31).reshape(-1)
    if not (factors > 0).all():
        return None

    def requantise(x: Array) -> Array:
        return evaluate_requantize_reference(attrs, (x, *arrays))[0].astype(np.int64)

    ends = attrs["zero_point"], attrs["minimum"], attrs["maximum"], attrs["bound"]
    return find_thresholds(requantise, factors, *ends)


# ---- The operators

REQUANTIZE_FLOOR_ATTRS: Attributes = {
    "fraction_bits": integer("bits by which x is shifted to the left", least=0, most=MAX_FRACTION_BITS),
    "shift": integer("bits by which the high half of the product is shifted to the right", least=1, most=max(SHIFTS)),
    "halves": integer("halves of a result that are added before the result is rounded down", least=0, most=1),
    **STORED,
    "bound": integer("the largest magnitude of x", least=0),
}


def _build_floor_expr(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    x, addend, multiplier = args
    if attrs["halves"]:
        high = ir.call("high_product", addend + x * (1 << attrs["fraction_bits"]), multiplier)
        rounded = ((high >> (attrs["shift"] - 1)) + 1) >> 1
        return clamp_to_dtype(rounded + attrs["zero_point"], attrs["minimum"], attrs["maximum"], attrs["out_dtype"])
    operand = (x << attrs["fraction_bits"]) + addend
    if attrs["zero_point"]:
        zero = ir.const(attrs["zero_point"] << attrs["shift"], "int32")
        high = ir.call("high_mac", operand, multiplier, zero)
    else:
        high = ir.call("high_product", operand, multiplier)
    return clamp_to_dtype(high >> attrs["shift"], attrs["minimum"], attrs["maximum"], attrs["out_dtype"])


def _evaluate_floor_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, addend, multiplier = (np.asarray(array, np.int64) for array in arrays)
    high = (((x << attrs["fraction_bits"]) + addend) * multiplier) >> 32
    result = ((high + (attrs["halves"] << (attrs["shift"] - 1))) >> attrs["shift"]) + attrs["zero_point"]
    return (np.clip(result, attrs["minimum"], attrs["maximum"]).astype(dtypes.to_numpy(attrs["out_dtype"])),)


def _floor_overflow_message(checked_node: CheckedNode) -> str:
    """Return a message if the operand of the product can overflow int32, or if the data are not int32; else an empty
    string."""
    if checked_node.types[0].dtype != "int32":
        return f"the data have an unsupported dtype; got {checked_node.types[0].dtype}, expected int32"
    addends = checked_node.data[1]
    largest = int(np.abs(np.asarray(addends, np.int64)).max(initial=0)) if addends is not None else 0
    total = (checked_node.attrs["bound"] << checked_node.attrs["fraction_bits"]) + largest
    return (
        ""
        if total <= INT32_MAX
        else f"operands of the product can overflow int32; got up to {total}, expected at most {INT32_MAX}"
    )


def _make_floor_cases() -> Iterable[Case]:
    """Yield cases per channel and per tensor, with and without a zero point beside the addends, and with the ends of int32.
    The operands of the products fit int32."""
    x = np.array([0, 1, -1, 127, -128, 9999, -9999, 54321, -54321, 80000, -80000, 4096], np.int32).reshape(3, 4)
    for multipliers, addends, zero, fraction, shift, low, dtype in (
        ((1 << 30, 1 << 28, 123456789, 99), (0, 77, -(1 << 20), 1 << 22), 0, 8, 10, -128, "int8"),
        ((1 << 29, 1 << 27, 987654321, 1), (5, -77, 1 << 21, -(1 << 22)), -7, 8, 9, -7, "int8"),
        ((1 << 30,), (1 << 19,), 100, 12, 15, 0, "uint8"),
        ((1 << 24,), (-1,), 0, 0, 1, -90, "int8"),
    ):
        high = dtypes.int_range(dtype)[1]
        attrs: dict[str, Any] = {"fraction_bits": fraction, "shift": shift, "zero_point": zero, "bound": 80000}
        attrs |= {"minimum": low, "maximum": high, "out_dtype": dtype}
        attrs["halves"] = int(len(multipliers) == 4)
        count = len(multipliers)
        types = (TensorType((3, 4), "int32"), TensorType((count,), "int32"), TensorType((count,), "int32"))
        arrays = (x, np.array(addends, np.int32), np.array(multipliers, np.int32))
        yield Case(attrs, types, (1, 2), arrays, name=f"{dtype} of {count} channels, shift {shift}")
    ends = np.array([[INT32_MIN, INT32_MAX, 1, 0]] * 3, np.int32)
    exact = {**attrs, "bound": INT32_MAX, "shift": 15}
    arrays = (ends, np.zeros(1, np.int32), np.array([1 << 23], np.int32))
    yield Case(exact, types, (1, 2), arrays, name="ends of int32")


ADDEND_AND_MULTIPLIER_BOUNDS = MappingProxyType(
    {1: OperandBounds(NumberUse.TERM, -INT32_MAX, INT32_MAX), 2: OperandBounds(NumberUse.FACTOR, 0, INT32_MAX)}
)
"""Bounds of the constants of requantisations by a multiplication, by the number of the operand."""

OPERATORS = (
    OpDef(
        "requantize_floor",
        infer=infer_requantize,
        reference=_evaluate_floor_reference,
        scalar=_build_floor_expr,
        cases=_make_floor_cases,
        constants=ADDEND_AND_MULTIPLIER_BOUNDS,
        sound=(stored_range_error_message, _floor_overflow_message),
        attrs=REQUANTIZE_FLOOR_ATTRS,
        operand_names=("x", "addend", "multiplier"),
        formula="clamp(floor(({x} * 2**{fraction_bits} + {addend}) * {multiplier} / 2**(32 + {shift}) + {halves} / 2) "
        "+ {zero_point}, {minimum}, {maximum})",
    ),
)
