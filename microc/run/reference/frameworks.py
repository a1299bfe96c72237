"""Common interface of reference frameworks, and random inputs for comparisons."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from importlib import metadata
from typing import Any, Protocol

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.compiler.sizes.run_shapes import RunShapes
from microc.errors import ToolError
from microc.graph.ir import Graph
from microc.ops import registry

# ---- Interface.

EXTRA = "pip install microc[reference]"
"""Command that installs the frameworks, for hints."""


@frozen
class FrameworkAnswer:
    """Results of one inference in a framework.

    ``outputs``: outputs in the model's order. ``tensors``: intermediate values and outputs, as far as the framework
    returns them, by their names in the model. ``undecided``: for an output's position, a mask (bool, in the output's
    shape) of the elements that depend on rounding alone, such as the class of two equal scores."""

    outputs: tuple[Array, ...]
    tensors: Mapping[str, Array] = field(default_factory=dict)
    undecided: Mapping[int, Array] = field(default_factory=dict)


class Reference(Protocol):
    """A model that is loaded in its framework. ``name``: name of the framework; ``version``: version of its package."""

    name: str
    version: str

    def run(self, arrays: Sequence[Array]) -> FrameworkAnswer:
        """Run one inference on inputs in the model's order. FrameworkRejectsInputs if the framework rejects them."""

    def reset(self) -> None:
        """Reset the state to its initial content."""


class FrameworkRejectsInputs(Exception):
    """Raised if a framework rejects the inputs of a run, with the framework's message."""


def import_framework(module: str, display_name: str, install_command: str = EXTRA) -> Any:
    """Import and return a module of a framework; raise ToolError if it is not installed.

    ``display_name``: the framework's name in the error; ``install_command``: the error's hint."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ToolError(f"the comparison needs {display_name}, which is not installed", hint=install_command) from error


def package_version(distribution: str) -> str:
    """Return the version of an installed package; empty if it has no metadata."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def flatten_results(results: Any) -> list[Any]:
    """Flatten a framework's results, nested in tuples, lists and dictionaries, to a list of tensors."""
    if isinstance(results, dict):
        return [x for part in results.values() for x in flatten_results(part)]
    if isinstance(results, (tuple, list)):
        return [x for part in results for x in flatten_results(part)]
    return [results]


# ---- Random inputs for a comparison: ordinary values, extremes, and values near decisions of the network.
#
# Indices of a table stay within the table, since frameworks refuse others. Features of trees are on or next to the trees'
# thresholds, where a wrong comparison becomes visible.

_WIDE = 8.0
"""Standard deviation of large floats: most activation functions saturate there."""

ValueGenerator = Callable[[tuple[int, ...], np.random.Generator], Array]
"""Generates an input's array of a shape."""


def draw_input_arrays(
    manifest: Mapping[str, Any], inputs: Sequence[Mapping[str, Any]], graph: Graph | None, set_count: int, seed: int
) -> list[list[Array]]:
    """Generate ``set_count`` sets of inputs from a seed: for each set an array per input.

    Three kinds of sets alternate. Floats are standard normal in the first set, normal with standard deviation
    :data:`_WIDE` in the second, and zeros in the third. Integers are random in the first set, the lowest and highest
    integers of the dtype in the second, and zeros in the third; the ``range`` of an input replaces the range of its
    dtype. If sizes of the network vary, the first set has the largest sizes, the others have random sizes. ``inputs``:
    the network's inputs, as the manifest describes them. ``graph``: the model as it was read, with inputs in the same
    order; None if unknown."""
    generator = np.random.default_rng(seed)
    shapes, sets = RunShapes(manifest), []
    rules = [
        _choose_generator_of_valid_inputs(graph, position) if graph is not None else None
        for position in range(len(inputs))
    ]
    for number in range(set_count):
        pairs = zip(inputs, rules, strict=True)
        sets.append(
            [
                rule(shapes.shape_of(t), generator).astype(dtypes.to_numpy(t["dtype"]))
                if rule
                else _generate_random_tensor(t, shapes.shape_of(t), number, generator)
                for t, rule in pairs
            ]
        )
        shapes.draw_sizes(generator)
    return sets


def _generate_random_tensor(
    tensor: Mapping[str, Any], shape: tuple[int, ...], set_number: int, generator: np.random.Generator
) -> Array:
    """Generate values of a tensor's dtype: random if ``set_number`` modulo 3 is 0, extremes if 1, zeros if 2."""
    dtype, kind = tensor["dtype"], set_number % 3
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if kind == 2:
        return np.full(shape, tensor["zero_point"] or 0, dtypes.to_numpy(dtype))
    if dtypes.is_float(dtype):
        return (generator.standard_normal(shape) * (_WIDE if kind else 1.0)).astype(dtypes.to_numpy(dtype))
    low, high = tensor.get("range") or dtypes.int_range(dtype)
    if kind:
        return generator.choice(np.array([low, high], dtypes.to_numpy(dtype)), shape)
    return generator.integers(low, high, shape, dtype=dtypes.to_numpy(dtype), endpoint=True)


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
        x = _generate_random_tensor({"dtype": dtype, "zero_point": 0}, shape, 0, generator)
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
