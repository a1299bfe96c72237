# SPDX-License-Identifier: Apache-2.0
"""What a graph computes by the operators' own references, and where the arithmetic of TFLite Micro is undefined.

The references saturate exactly where TFLite's integers overflow, or where it converts floats to integers that do not hold them
(:meth:`microc.numerics.NumpyArith.clamp`), and shift 32-bit numbers by more than 31 bits as wider ones. Here it is noted which
elements that happened to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np

from microc import numerics
from microc.base.dtypes import Array, int_range
from microc.graph.ir import Graph, Node
from microc.numerics import INT32_MAX, Arith, NumpyArith
from microc.ops import registry
from microc.ops.meaning import expand_composed_operator
from microc.transform.pass_context import Pass, PassContext, run_passes

_FITS = float((1 << 31) - (1 << 17))
"""Floats below it stay within int32 when a zero point is added."""


@dataclass(frozen=True)
class Expected:
    """The outputs of a run; ``defined``: the elements of the first for which TFLite Micro has an answer; ``slack``: by how much
    the C may differ from the first, which is nothing but where integers are rounded from floats that a function made."""

    values: tuple[Array, ...]
    defined: Array
    slack: Array


@contextmanager
def saturations() -> Iterator[list[Array]]:
    """Which elements were saturated or shifted by more than 31 bits, call by call, meanwhile."""
    found: list[Array] = []
    shift_right = numerics.rounding_shift_right

    def clamp(self: NumpyArith, x: Any, low: Any, high: Any) -> Any:
        kept = np.clip(x, low, high)
        found.append(np.asarray(kept != x))
        return kept

    def shifted(x: Any, exponent: Any, k: Arith[Any]) -> Any:
        found.append(np.broadcast_to(np.asarray(exponent) > 31, np.shape(x)))
        return shift_right(x, exponent, k)

    with patch.object(NumpyArith, "clamp", clamp), patch.object(numerics, "rounding_shift_right", shifted):
        yield found


def expected(graph: Graph, runs: Sequence[tuple[Array, ...]], passes: Sequence[Pass]) -> list[Expected]:
    """Every run of what ``passes`` make of a graph, in order, with its state."""
    with saturations() as made, np.errstate(all="ignore"):
        whole = run_passes(expand_composed_operator(graph), passes, PassContext())
    tables = [mask for mask in made if mask.shape == (256,)]
    state: dict[str, Array] = dict(whole.state)
    results, lost = [], any(mask.shape == () and mask.any() for mask in made)  # a bound of everything
    for arrays in runs:
        values: dict[str, Any] = {**whole.consts, **state, **dict(zip(whole.inputs, arrays, strict=True))}
        with saturations() as found, np.errstate(all="ignore"):
            masks = [mask for node in whole.nodes for mask in _applied(whole, node, values, tables)]
        with np.errstate(all="ignore"):
            slack = _slack(whole, values)
        outputs = tuple(values[name] for name in whole.outputs)
        defined = np.ones(outputs[0].shape, bool)
        for mask in (*found, *masks):
            if mask.shape == defined.shape:
                defined &= ~mask
            elif mask.any():  # it happened on the way to several elements
                defined &= False
        lost = lost or (bool(state) and not defined.all())  # what came into the state stays there
        results.append(Expected(outputs, defined & (not lost), slack))
        state.update({name: values[value] for name, value in whole.updates.items()})
    return results


def _applied(graph: Graph, node: Node, values: dict[str, Any], tables: Sequence[Array]) -> Iterator[Array]:
    """Compute a node; masks of what it read in tables that hold saturated numbers, of sums beyond 32 bits, of what it divided by
    zero, and of floats that no integer holds."""
    operands = [values[name] for name in node.inputs if name]
    definition = registry.get(node.op)
    made = definition.reference({**definition.defaults, **node.attrs}, operands)
    values.update(zip(node.outputs, made, strict=True))
    if node.op == "lookup":
        places = operands[0].astype(np.int64) - int_range(str(operands[0].dtype))[0]
        yield from (table[places] for table in tables)
    if node.op == "qdiv":
        yield np.broadcast_to(operands[1] == node.attr("zero_point_b"), made[0].shape)
    if node.op == "qsvdf":
        _, _, _, time, bias, _ = operands
        by_filter = (made[1].astype(np.int64).reshape(-1, *time.shape) * time).sum(axis=2)
        total = by_filter.reshape(len(by_filter), -1, node.attr("rank")).sum(axis=2) + bias
        yield np.abs(total) > INT32_MAX
    if node.op == "quantize":
        steps = operands[0] / np.float32(node.attr("scale")[0])
        yield ~(np.abs(steps) < _FITS)


@cache
def _tolerance(op: str) -> float:
    """The error that an operator's own tests allow it in floats: relative above one, absolute below."""
    return max(case.tolerance for case in registry.get(op).cases())


def _slack(graph: Graph, values: dict[str, Any]) -> Array:
    """How far from each other the integers are that a quantised float within its error may become: functions of ``<math.h>`` and
    sums of floats are not the same everywhere, so that what lies close to a tie may be rounded to either side."""
    errors: dict[str, float] = {}
    for node in graph.nodes:
        error = max((errors.get(name, 0.0) for name in node.inputs), default=0.0) + _tolerance(node.op)
        errors.update(dict.fromkeys(node.outputs, error))
        if node.op == "quantize" and error and node.outputs[0] == graph.outputs[0]:
            attrs, real = {**registry.get("quantize").defaults, **node.attrs}, values[node.inputs[0]]
            reach = np.float32(error) * np.maximum(np.abs(real), np.float32(1))
            least, most = (registry.get("quantize").reference(attrs, [end])[0] for end in (real - reach, real + reach))
            return most.astype(np.int64) - least
    return np.zeros(values[graph.outputs[0]].shape, np.int64)
