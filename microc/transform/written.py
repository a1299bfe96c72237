"""How often the expression of an elementwise operator names each of its operands: fused chains multiply these numbers."""

from __future__ import annotations

from typing import Any

from microc import te
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.tir import ir
from microc.tir.rewrite import children


def written(graph: Graph, node: Node) -> tuple[int, ...]:
    """By operand, at least once each. ``node`` is elementwise."""
    definition = registry.get(node.op)
    assert definition.scalar is not None
    args: list[Any] = []
    for k, name in enumerate(node.inputs):
        if not name:
            args.append(None)
        elif k in definition.whole:
            args.append(te.placeholder(graph.types[name].shape, graph.types[name].dtype, f"x{k}"))
        else:
            args.append(ir.Var(f"x{k}", graph.types[name].dtype))
    known: dict[int, tuple[int, ...]] = {}
    for k, arg in enumerate(args):
        known[id(arg)] = tuple(int(k == position) for position in range(len(args)))
    return tuple(max(count, 1) for count in _counted(definition.scalar(node.attrs, args), known, len(args)))


def _counted(expr: ir.Expr, known: dict[int, tuple[int, ...]], width: int) -> tuple[int, ...]:
    """The sum over what an expression is made of; parts that it shares are counted once and added as often as they stand."""
    if id(expr) not in known:
        parts = [_counted(part, known, width) for part in children(expr)]
        known[id(expr)] = tuple(map(sum, zip(*parts, strict=True))) if parts else (0,) * width
    return known[id(expr)]
