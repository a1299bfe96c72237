"""Weights of float32 rounded to what 16 bits hold, where the user asks for float16 or bfloat16: to the nearest, ties to even.

They stay float32 here: what the network is from this pass on is a network of rounded numbers, for the interpreter and whatever it
is compared with; who stores constants finds that two bytes hold them. Weights are constants that products multiply data by, or
whose rows are looked up; biases, and what elementwise operators take, stay as they are. So do weights that are integers times
scales, which take a byte or less, and those with a number that is finite and would be infinite: from 65,520 on for float16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.graph.ir import Graph, Node
from microc.graph.text import regions
from microc.ops import registry
from microc.ops.matrix.levels import find_levels
from microc.transform.context import Pass, PassContext

LEAST = 64
"""Elements that a constant has at least."""
LOOKED_UP = "gather"
BIASES = "bias"
"""What operands that are added end with."""


def weights_of(graph: Graph) -> Iterator[str]:
    """Names of the constants of float32 that are weights for all that read them, in the order of the nodes."""
    roles: dict[str, set[bool]] = {}
    for node in graph.nodes:
        for position, name in enumerate(node.inputs):
            if name in graph.consts and graph.types[name].dtype == "float32":
                roles.setdefault(name, set()).add(_weighs(node, position))
    kept = {*graph.outputs, *graph.updates.values()}
    yield from (n for n, role in roles.items() if role == {True} and n not in kept and graph.consts[n].size >= LEAST)


def _weighs(node: Node, position: int) -> bool:
    """Whether an operand is multiplied or looked up."""
    known = registry.get(node.op)
    if known.regions or (known.macs is None and node.op != LOOKED_UP):
        return False
    role = known.operand_names[position] if position < len(known.operand_names) else ""
    return not role.endswith(BIASES) and not (node.op == LOOKED_UP and position > 0)


def too_large(graph: Graph, dtype: str) -> tuple[str, ...]:
    """The weights with a number that a half has no finite one for, of the graphs inside, too."""
    return tuple(n for each in (graph, *regions(graph)) for n in weights_of(each) if _overflows(each.consts[n], dtype))


def halved(graph: Graph) -> int:
    """How many numbers of weights there are that a half holds, in the graphs inside, too."""
    found = (each.consts[name] for each in (graph, *regions(graph)) for name in weights_of(each))
    return sum(array.size for array in found if any(dtypes.keeps(array, half) for half in dtypes.HALF))


def _overflows(array: Array, dtype: str) -> bool:
    return bool((np.isfinite(array) & ~np.isfinite(dtypes.narrowed(array, dtype).astype(np.float32))).any())


def weight_dtype(graph: Graph, context: PassContext) -> Graph:
    """The graph with weights rounded to the option's half, if it is one."""
    dtype = str(context.options.get("weight_dtype", ""))
    if dtype not in dtypes.HALF:
        return graph
    consts = dict(graph.consts)
    for name in weights_of(graph):
        array = consts[name]
        exact = any(dtypes.keeps(array, half) for half in dtypes.HALF)
        levels = np.isfinite(array).all() and find_levels(array.reshape(len(array), -1)) is not None
        if not (exact or levels or np.isnan(array).any() or _overflows(array, dtype)):
            consts[name] = dtypes.narrowed(array, dtype).astype(np.float32)
    return replace(graph, consts=consts)


PASS = Pass("weight_dtype", weight_dtype, 0)
