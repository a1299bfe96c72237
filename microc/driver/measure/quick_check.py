"""A few random rows through a network and the object that it was compiled from, whose framework is imported anyway."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import dtypes
from microc.driver.options import ENDS, Options
from microc.driver.reference.agreement import Comparison
from microc.driver.reference.choice import NATURAL, reference_for
from microc.driver.reference.draws import draws
from microc.driver.reference.measures import Tally
from microc.driver.reference.runtime import RuntimeRefusal
from microc.dtypes import Array
from microc.errors import MicrocError, VerificationError
from microc.frontend.trees.known_rows import known_rows
from microc.graph import interp
from microc.graph.ir import Graph, Node
from microc.ops import registry

Run = Callable[[Sequence[Array]], Sequence[Array]]

_MOST_ROWS = 8
_COMPILED, _INTERPRETED = 100_000_000, 1_000_000
"""Multiply-accumulates that the rows may take together, compiled or by the operators' references: tenths of a second."""
_TOLERANCE, _QUANTISED = 1e-3, 5e-2
"""Relative to the largest magnitude of an output. Quantised networks and those with halves have coarse
steps, of which a sum that is rounded otherwise may take a few."""
_SEED = 20


def quick_check(
    model: Any, network: Run | None, tensors: Sequence[Mapping[str, Any]], graph: Graph, options: Options
) -> None:
    """Compare answers; VerificationError where they differ by more than rounding can explain.

    ``model``: the object; ``network``: what was compiled (None: the graph by the operators' references); ``tensors``: its inputs,
    as a manifest describes them; ``graph``: the network as it was read. Nothing is compared where that would take long, where
    the options make another network of it, or where the framework does not take such inputs. Floats decide where there are any,
    for classes of equal scores are rounding's.
    """
    rows = _rows(graph, compiled=network is not None)
    if not rows or options.bounds or any(getattr(options, name) for name in (*ENDS, "stream", "inputs", "outputs")):
        return
    run, tallies = network or _interpreted(graph), _tallies(graph)
    try:
        reference = reference_for(model, NATURAL, options, inside=False)
    except MicrocError:
        return
    inputs = draws({}, tensors, graph, 3 * rows, _SEED)[::3]  # numbers of every kind, none extreme
    for arrays in [*inputs, *_known(model, graph, rows)]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answer = reference.run(arrays)
        except RuntimeRefusal:
            return
        for position, (tally, mine, theirs) in enumerate(zip(tallies, run(arrays), answer.outputs, strict=False)):
            if mine.size != theirs.size:
                raise VerificationError(
                    f"the network's output {tally.tensor} has {mine.size} elements, that of {reference.name} {theirs.size}",
                    where=type(model).__name__,
                    hint="compile(..., check=False) leaves this comparison out",
                )
            tally.add(mine, theirs.reshape(mine.shape), answer.undecided.get(position))
    found = [tally.agreement() for tally in tallies if tally.pairs]
    deciding = tuple(a for a in found if dtypes.is_float(a.dtype)) or tuple(found)
    comparison = Comparison(reference.name, reference.version, rows, deciding, ())
    if not comparison.agrees:
        raise comparison.error(
            type(model).__name__,
            "microc.verify(model) shows outputs and layers; compile(..., check=False) leaves this comparison out",
        )


def _known(model: Any, graph: Graph, count: int) -> list[list[Array]]:
    """Rows like those that an estimator was fitted on; none for other models."""
    kind = graph.types[graph.inputs[0]]
    if len(graph.inputs) != 1 or len(kind.shape) != 2 or not hasattr(model, "get_params"):
        return []
    rows = known_rows(model, kind.shape[1], count * kind.shape[0]).astype(dtypes.to_numpy(kind.dtype))
    return [[part] for part in np.split(rows, len(rows) // kind.shape[0])] if len(rows) else []


def _rows(graph: Graph, compiled: bool) -> int:
    """How many inferences are cheap enough."""
    work = max(sum(_work(graph, node) for node in graph.nodes), 1)
    return min(_MOST_ROWS, (_COMPILED if compiled else _INTERPRETED) // work)


def _work(graph: Graph, node: Node) -> int:
    """About how much an operator does: elements that it makes, times what each of them sums up."""
    size = sum(graph.types[name].size for name in node.outputs if name)
    if node.op == "tree_ensemble":
        return graph.types[node.inputs[4]].size * int(node.attr("depth")) * graph.types[node.inputs[0]].shape[0] * 100
    if node.op in ("loop", "branch"):
        return _INTERPRETED
    weights = [graph.types[name].size for name in node.inputs[1:] if name in graph.consts]
    return size * max(1, max(weights, default=1) // max(graph.types[node.outputs[0]].shape[-1:] or (1,)))


def _interpreted(graph: Graph) -> Run:
    """The network by the operators' references, which what is compiled must equal."""

    def apply(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
        definition = registry.get(node.op)
        return definition.reference({**definition.defaults, **node.attrs}, arrays)

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        values = interp.run(graph, dict(zip(graph.inputs, arrays, strict=True)), apply)
        return [values[name] for name in graph.outputs]

    return run


def _tallies(graph: Graph) -> list[Tally]:
    coarse = any(node.op in ("quantize", "dequantize", "dynamic_quantize") for node in graph.nodes)
    coarse |= any(kind.dtype in dtypes.HALF for kind in graph.types.values())
    bound = _QUANTISED if coarse else _TOLERANCE
    kinds = [(name, graph.types[name].dtype) for name in graph.outputs]
    return [Tally(name, dtype, bound if dtypes.is_float(dtype) else 0.0) for name, dtype in kinds]
