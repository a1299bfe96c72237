"""What every framework looks like from here, and random inputs."""

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

# ---- What every framework looks like from here.

EXTRA = "pip install microc[reference]"


@frozen
class Answer:
    """One inference of a framework.

    ``outputs``: in the model's order. ``tensors``: all values that it shows, by the model's names. ``undecided``: by the number
    of an output, the elements (bool, in its shape) that rounding decides, such as the class of two equal scores.
    """

    outputs: tuple[Array, ...]
    tensors: Mapping[str, Array] = field(default_factory=dict)
    undecided: Mapping[int, Array] = field(default_factory=dict)


class Reference(Protocol):
    """A model in its framework. ``name`` is the framework's, ``version`` that of its package."""

    name: str
    version: str

    def run(self, arrays: Sequence[Array]) -> Answer:
        """One inference on the inputs in the model's order. RuntimeRefusal where the framework does not take them."""

    def reset(self) -> None:
        """Put the state to its initial content."""


class RuntimeRefusal(Exception):
    """The framework does not run on these inputs; the message is its own."""


def imported(module: str, what: str, extra: str = EXTRA) -> Any:
    """A module of a framework, which only references need; ToolError, which names the extra, where it is absent."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ToolError(f"{what} is not installed, which the comparison runs", hint=extra) from error


def version_of(distribution: str) -> str:
    """The version of an installed package; empty where its metadata is gone."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def flat(results: Any) -> list[Any]:
    """The tensors of nested results in order."""
    if isinstance(results, dict):
        return [x for part in results.values() for x in flat(part)]
    if isinstance(results, (tuple, list)):
        return [x for part in results for x in flat(part)]
    return [results]


# ---- Random inputs for a comparison: what the dtypes allow, extremes, and values at which the network decides.
#
# Numbers that choose rows of a table stay within the table, for frameworks refuse others; features of trees lie on and beside the
# trees' thresholds, where a decision that is wrong shows.

_WIDE = 8.0
"""Standard deviation of floats that are to be large: most functions are saturated."""

Draw = Callable[[tuple[int, ...], np.random.Generator], Array]


def draws(
    manifest: Mapping[str, Any], inputs: Sequence[Mapping[str, Any]], graph: Graph | None, count: int, seed: int
) -> list[list[Array]]:
    """``count`` sets of inputs, the same for the same seed; where sizes vary, of the largest at first, then of any.

    By turns: anything (floats: standard normal), the ends of the dtype (floats: wide), zeros. ``graph``: the network as it was
    read, whose inputs are those of the manifest in order. An input's ``range`` stands for that of its dtype.
    """
    generator = np.random.default_rng(seed)
    shapes, found = RunShapes(manifest), []
    rules = [_rule(graph, position) if graph is not None else None for position in range(len(inputs))]
    for number in range(count):
        pairs = zip(inputs, rules, strict=True)
        found.append(
            [
                rule(shapes.of(t), generator).astype(dtypes.to_numpy(t["dtype"]))
                if rule
                else _any(t, shapes.of(t), number, generator)
                for t, rule in pairs
            ]
        )
        shapes.draw(generator)
    return found


def _any(tensor: Mapping[str, Any], shape: tuple[int, ...], number: int, generator: np.random.Generator) -> Array:
    """Numbers of the tensor's dtype, of the kind that this turn has."""
    dtype, turn = tensor["dtype"], number % 3
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if turn == 2:
        return np.full(shape, tensor["zero_point"] or 0, dtypes.to_numpy(dtype))
    if dtypes.is_float(dtype):
        return (generator.standard_normal(shape) * (_WIDE if turn else 1.0)).astype(dtypes.to_numpy(dtype))
    low, high = tensor.get("range") or dtypes.int_range(dtype)
    if turn:
        return generator.choice(np.array([low, high], dtypes.to_numpy(dtype)), shape)
    return generator.integers(low, high, shape, dtype=dtypes.to_numpy(dtype), endpoint=True)


def _rule(graph: Graph, position: int) -> Draw | None:
    """How an input that is no free number is drawn; None for all others."""
    name = graph.inputs[position]
    trees = [node for node in graph.nodes if node.op == "tree_ensemble" and node.inputs[0] == name]
    if trees:
        places = [(graph.consts[node.inputs[1]], graph.consts[node.inputs[2]]) for node in trees]
        return _beside(places, graph.types[name].dtype)
    if graph.types[name].quant is not None or not dtypes.is_integer(graph.types[name].dtype):
        return None
    most = min(_extents(graph, name, set()), default=None)
    return None if most is None else lambda shape, generator: generator.integers(0, max(most, 1), shape)


def _extents(graph: Graph, name: str, seen: set[str]) -> list[int]:
    """How many rows the tables have that the numbers of a value choose from."""
    found = []
    seen.add(name)
    for node in graph.nodes:
        if name not in node.inputs:
            continue
        if node.op == "gather" and node.inputs[1] == name:
            found.append(graph.types[node.inputs[0]].shape[node.attr("axis")])
        elif node.op == "one_hot" and node.inputs[0] == name:
            found.append(int(node.attr("depth")))
        elif (registry.get(node.op).moves or node.op in ("cast", "concat")) and node.outputs[0] not in seen:
            found += _extents(graph, node.outputs[0], seen)
    return found


def _beside(trees: Sequence[tuple[Array, Array]], dtype: str) -> Draw:
    """Every feature on one of its thresholds or next to it; any number where it has none."""
    feature, threshold = (np.concatenate([pair[k] for pair in trees]) for k in (0, 1))

    def draw(shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        x = _any({"dtype": dtype, "zero_point": 0}, shape, 0, generator)
        for column in np.unique(feature).tolist():
            known = threshold[feature == column]
            known = known[np.isfinite(known)] if known.dtype.kind == "f" else known
            if known.size:
                x[:, column] = _shifted(generator.choice(known, len(x)), generator.integers(-1, 2, len(x)))
        return x

    return draw


def _shifted(x: Array, steps: Array) -> Array:
    """The number before (-1), the number itself (0), the number behind (1)."""
    if x.dtype.kind in "iu":
        info = np.iinfo(x.dtype)
        return np.clip(x.astype(np.int64) + steps, info.min, info.max)
    ends = np.where(steps < 0, -np.inf, np.inf).astype(x.dtype)
    return np.where(steps == 0, x, np.nextafter(x, ends))
