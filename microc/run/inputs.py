# SPDX-License-Identifier: Apache-2.0
"""Random inputs of a network: ordinary values, extremes, and values near decisions of the network.

Indices of a table stay within the table, since frameworks refuse others. Features of trees are on or next to the trees'
thresholds, where a wrong comparison becomes visible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.compiler.sizes.run_shapes import RunShapes
from microc.errors import UsageError
from microc.graph.ir import Graph
from microc.ops import registry

Tensors = Sequence[Mapping[str, Any]]
"""A network's inputs, as a manifest describes them."""

SEED = 20
"""Default seed."""
ORDINARY, EXTREMES, ZEROS = "ordinary", "extremes", "zeros"
"""Kinds of a set of inputs.

``ordinary``: standard normal floats, integers over the whole dtype. ``extremes``: normal floats with standard deviation
:data:`_WIDE`, the lowest and highest integers of the dtype. ``zeros``: zeros, or zero points. The ``range`` of an input
replaces the range of its dtype. Bools are random in all kinds."""
ALL_KINDS = (ORDINARY, EXTREMES, ZEROS)

_WIDE = 8.0
"""Standard deviation of large floats: most activation functions saturate there."""

ValueGenerator = Callable[[tuple[int, ...], np.random.Generator], Array]
"""Generates an input's array of a shape."""


def draw_input_sets(
    manifest: Mapping[str, Any],
    inputs: Tensors,
    set_count: int,
    seed: int = SEED,
    *,
    kinds: Sequence[str] = (ORDINARY,),
    graph: Graph | None = None,
) -> list[list[Array]]:
    """Generate ``set_count`` sets of inputs from a seed: for each set an array per input.

    The ``kinds`` of sets alternate. If sizes of the network vary, which the ``manifest`` tells, the first set has the
    largest sizes and the others have random sizes. ``graph``: as for :func:`draw_inputs`. Raises UsageError if
    ``set_count`` is less than 1."""
    if set_count < 1:
        raise UsageError(f"samples: got {set_count}, expected 1 at least", hint="give 1 or more")
    generator, shapes, sets = np.random.default_rng(seed), RunShapes(manifest), []
    for kind in islice(cycle(kinds), set_count):
        sets.append(draw_inputs(inputs, generator, shapes, kind=kind, graph=graph))
        shapes.draw_sizes(generator)
    return sets


def draw_inputs(
    inputs: Tensors,
    generator: np.random.Generator,
    shapes: RunShapes | None = None,
    *,
    kind: str = ORDINARY,
    graph: Graph | None = None,
) -> list[Array]:
    """Generate one array for each input.

    ``shapes``: shapes for the sizes of this run, if sizes of the network vary; None for the largest sizes. ``graph``:
    the model as it was read, with inputs in the same order, to generate valid values for inputs that index tables or
    contain features of trees; None if unknown."""
    arrays = []
    for position, tensor in enumerate(inputs):
        shape = shapes.shape_of(tensor) if shapes else tuple(tensor["shape"])
        generate = _choose_generator_of_valid_inputs(graph, position) if graph is not None else None
        if generate is not None:
            arrays.append(generate(shape, generator).astype(dtypes.to_numpy(tensor["dtype"])))
        else:
            arrays.append(_draw_tensor(tensor, shape, kind, generator))
    return arrays


def _draw_tensor(tensor: Mapping[str, Any], shape: tuple[int, ...], kind: str, generator: np.random.Generator) -> Array:
    """Generate values of a tensor's dtype for a set of a kind."""
    dtype = tensor["dtype"]
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if kind == ZEROS:
        return np.full(shape, tensor["zero_point"] or 0, dtypes.to_numpy(dtype))
    if dtypes.is_float(dtype):
        deviation = _WIDE if kind == EXTREMES else 1.0
        return (generator.standard_normal(shape) * deviation).astype(dtypes.to_numpy(dtype))
    low, high = tensor.get("range") or dtypes.int_range(dtype)
    if kind == EXTREMES:
        return generator.choice(np.array([low, high], dtypes.to_numpy(dtype)), shape)
    return generator.integers(low, high, shape, dtype=dtypes.to_numpy(dtype), endpoint=True)


# ---- Inputs whose values decide: indices of tables, and features of decision trees.


def _choose_generator_of_valid_inputs(graph: Graph, position: int) -> ValueGenerator | None:
    """Return a generator of valid values for an input that indexes a table, or that contains features of decision
    trees; None for other inputs.

    Generated indices are within the table. Generated features are near the trees' thresholds. ``position``: position of
    the input in the graph."""
    name = graph.inputs[position]
    trees = [node for node in graph.nodes if node.op == "tree_ensemble" and node.inputs[0] == name]
    if trees:
        thresholds = [(graph.consts[node.inputs[1]], graph.consts[node.inputs[2]]) for node in trees]
        return _make_generator_near_thresholds(thresholds, graph.types[name].dtype)
    if graph.types[name].quant is not None or not dtypes.is_integer(graph.types[name].dtype):
        return None
    least_extent = min(_indexed_table_sizes(graph, name, set()), default=None)
    return None if least_extent is None else lambda shape, generator: generator.integers(0, max(least_extent, 1), shape)


def _indexed_table_sizes(graph: Graph, value_name: str, visited_values: set[str]) -> list[int]:
    """List the extents of the tables that a value indexes, directly or after operators that only move, cast or
    concatenate it.

    ``visited_values``: names of the values that were visited, extended by this function."""
    extents = []
    visited_values.add(value_name)
    for node in graph.nodes:
        if value_name not in node.inputs:
            continue
        if node.op == "gather" and node.inputs[1] == value_name:
            extents.append(graph.types[node.inputs[0]].shape[node.attr("axis")])
        elif node.op == "one_hot" and node.inputs[0] == value_name:
            extents.append(int(node.attr("depth")))
        elif (registry.get(node.op).moves or node.op in ("cast", "concat")) and node.outputs[0] not in visited_values:
            extents += _indexed_table_sizes(graph, node.outputs[0], visited_values)
    return extents


def _make_generator_near_thresholds(trees: Sequence[tuple[Array, Array]], dtype: str) -> ValueGenerator:
    """Return a generator that sets every feature to one of its thresholds, or to the next number below or above.

    A feature without thresholds is random. ``trees``: for each ensemble, arrays of feature numbers and thresholds."""
    feature, threshold = (np.concatenate([pair[k] for pair in trees]) for k in (0, 1))

    def draw(shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        x = _draw_tensor({"dtype": dtype}, shape, ORDINARY, generator)
        for column in np.unique(feature).tolist():
            thresholds = threshold[feature == column]
            thresholds = thresholds[np.isfinite(thresholds)] if thresholds.dtype.kind == "f" else thresholds
            if thresholds.size:
                x[:, column] = _next_representable(
                    generator.choice(thresholds, len(x)), generator.integers(-1, 2, len(x))
                )
        return x

    return draw


def _next_representable(numbers: Array, directions: Array) -> Array:
    """Step each number to the previous or next number that its dtype represents, or leave it unchanged.

    ``directions``: for each number -1 (the number before), 0 (itself) or 1 (the number after)."""
    if numbers.dtype.kind in "iu":
        info = np.iinfo(numbers.dtype)
        return np.clip(numbers.astype(np.int64) + directions, info.min, info.max)
    ends = np.where(directions < 0, -np.inf, np.inf).astype(numbers.dtype)
    return np.where(directions == 0, numbers, np.nextafter(numbers, ends))
