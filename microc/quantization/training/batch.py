"""A graph on many samples at once, each operator as ``ops/meaning.py`` has it: integers as compiled networks compute them.

Products, the bulk of the work, are PyTorch's on integers that floats hold exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from microc import dtypes
from microc.dtypes import Array
from microc.frozen import frozen
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.quantization.training import operators

_PRODUCTS = frozenset(("conv2d", "dense", "matmul"))
_EXACT = 1 << 24
"""float32 has all integers up to here."""


@frozen
class Batch:
    """``array``: a value of all samples along a further first axis, or where not ``many`` the one of all of them."""

    array: Array
    many: bool


def run(graph: Graph, rows: Mapping[str, Array]) -> dict[str, Batch]:
    """Every value of the graph, which has no state. ``rows``: of each input all samples."""
    values = {name: Batch(data, False) for name, data in graph.consts.items()}
    values |= {name: Batch(data, True) for name, data in rows.items()}
    for node in graph.nodes:
        made = _applied(graph, node, [values[name] for name in node.inputs if name])
        values |= {name: each for name, each in zip(node.outputs, made, strict=True) if name}
    return values


def _applied(graph: Graph, node: Node, operands: Sequence[Batch]) -> Sequence[Batch]:
    definition = registry.get(node.op)
    found = definition.legalize(node, graph) if definition.legalize is not None else None
    if found is None:
        return _core(graph, node, operands)
    nodes, types, consts = found
    inner = replace(graph, types={**graph.types, **types}, consts={**graph.consts, **consts})
    values = {name: Batch(data, False) for name, data in consts.items()}
    values |= dict(zip((name for name in node.inputs if name), operands, strict=True))
    for part in nodes:
        for name in part.inputs:
            if name and name not in values:
                values[name] = Batch(inner.consts[name], False)
        made = _applied(inner, part, [values[name] for name in part.inputs if name])
        values |= {name: each for name, each in zip(part.outputs, made, strict=True) if name}
    return [values[name] if name else operands[0] for name in node.outputs]


def _core(graph: Graph, node: Node, operands: Sequence[Batch]) -> Sequence[Batch]:
    definition = registry.get(node.op)
    attrs = {**definition.defaults, **node.attrs}
    if not any(each.many for each in operands):
        return [Batch(array, False) for array in definition.reference(attrs, [each.array for each in operands])]
    if node.op in _PRODUCTS:
        return [Batch(_product(graph, node, operands), True)]
    if definition.elementwise:
        rank = max(each.array.ndim - each.many for each in operands)
        return [
            Batch(array, True) for array in definition.reference(attrs, [_of_rank(each, rank) for each in operands])
        ]
    count = next(len(each.array) for each in operands if each.many)
    each_one = [
        definition.reference(attrs, [each.array[k] if each.many else each.array for each in operands])
        for k in range(count)
    ]
    return [Batch(np.stack(arrays), True) for arrays in zip(*each_one, strict=True)]


def _of_rank(each: Batch, rank: int) -> Array:
    """An operand that broadcasts beside others of ``rank`` axes, and that of the samples."""
    if not each.many:
        return each.array
    shape = each.array.shape
    return each.array.reshape(shape[0], *(1,) * (rank + 1 - len(shape)), *shape[1:])


def _product(graph: Graph, node: Node, operands: Sequence[Batch]) -> Array:
    kind = graph.types[node.outputs[0]]
    exact = dtypes.is_float(kind.dtype) or _largest(node, operands) < _EXACT
    wide = torch.float32 if exact and torch.get_float32_matmul_precision() == "highest" else torch.float64
    tensors = [torch.tensor(each.array, dtype=wide) for each in operands]

    def product(*given: Any) -> Any:
        return operators.apply(graph, node, list(given))

    made = torch.func.vmap(product, in_dims=tuple(0 if each.many else None for each in operands))(*tensors)
    return np.asarray(made.numpy(), dtypes.to_numpy(kind.dtype))


def _largest(node: Node, operands: Sequence[Batch]) -> float:
    """A bound of the sums of products by constant weights, and of their parts."""
    if node.op == "matmul":
        return np.inf
    data, weight, *bias = (each.array for each in operands)
    rows = np.abs(weight.reshape(len(weight), -1).astype(np.float64)).sum(axis=1)
    return float(rows.max() * np.abs(dtypes.int_range(data.dtype.name)).max()) + sum(
        float(np.abs(b).max()) for b in bias
    )
