"""Inputs that are fed with what an output was at the run before: they become state of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.errors import UsageError, suggestion
from microc.graph.ir import Graph, TensorType


def carry(graph: Graph, pairs: Mapping[str, str]) -> Graph:
    """The graph without the inputs that ``pairs`` (input -> output) name, nor the outputs: each is a state of the input's name,
    which starts as real zero and becomes the output.

    Raises UsageError for a name that is no input or output, for an output that two inputs want, where shape, dtype or
    quantisation differ, and where no output would be left.
    """
    for name, output in pairs.items():
        for what, wanted, known in (("input", name, graph.inputs), ("output", output, graph.outputs)):
            if wanted not in known:
                hint = suggestion(wanted, known, f"{what}s")
                raise UsageError(f"there is no {what} {wanted!r} to keep as state", where=graph.name, hint=hint)
        given, made = graph.types[name], graph.types[output]
        if given != made:
            raise UsageError(
                f"the state {name!r} is {_shown(given)}, what becomes of it, {output!r}, {_shown(made)}",
                where=graph.name,
                hint="a state keeps shape and type: bind the shapes with --input-shape",
            )
    kept = tuple(name for name in graph.outputs if name not in pairs.values())
    twice = [output for output in pairs.values() if list(pairs.values()).count(output) > 1]
    if twice:
        raise UsageError(f"{twice[0]!r} would become two states", where=graph.name, hint="each its own output")
    if not kept:
        raise UsageError("no output would be left", where=graph.name, hint="keep one that is no state")
    return replace(
        graph,
        inputs=tuple(name for name in graph.inputs if name not in pairs),
        outputs=kept,
        state={**graph.state, **{name: _zero(graph.types[name]) for name in pairs}},
        updates={**graph.updates, **pairs},
    )


def _zero(kind: TensorType) -> Array:
    zero = kind.quant.zero_point[0] if kind.quant else 0
    return np.full(kind.shape, zero, dtypes.to_numpy(kind.dtype))


def _shown(kind: TensorType) -> str:
    return f"{kind.dtype}[{','.join(map(str, kind.shape))}]"
