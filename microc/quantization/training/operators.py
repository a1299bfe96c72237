"""What the operators of a float graph are in PyTorch, which differentiates them: of one sample, with the graph's own shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from microc.errors import UnsupportedError
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.surface import ACTIVATIONS
from microc.transform.qdq_moves import moves

Tensor = Any
Spelling = Callable[..., Tensor]
"""(attributes, operands) -> result."""


def conv2d(attrs: Mapping[str, Any], x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
    image = _padded(attrs, x, attrs["pad_value"])
    strides, dilation = attrs["strides"], attrs["dilation"]
    made = functional.conv2d(image, _first(weight), _row(bias), strides, 0, dilation, attrs["groups"])
    return _last(made)


def conv2d_transpose(attrs: Mapping[str, Any], x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
    groups, (outputs, rows, columns, depth) = attrs["groups"], weight.shape
    parted = weight.reshape(groups, outputs // groups, rows, columns, depth).permute(0, 4, 1, 2, 3)
    turned = parted.reshape(groups * depth, outputs // groups, rows, columns)
    made = functional.conv_transpose2d(_first(x), turned, _row(bias), attrs["strides"], 0, 0, groups, attrs["dilation"])
    top, left, bottom, right = attrs["padding"]
    return _last(made[:, :, top : made.shape[2] - bottom, left : made.shape[3] - right])


def dense(attrs: Mapping[str, Any], x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
    return functional.linear(x, weight, _row(bias))


def matmul(attrs: Mapping[str, Any], a: Tensor, b: Tensor) -> Tensor:
    sides = [
        (side.permute(attrs[f"axes_{name}"]) if attrs[f"axes_{name}"] else side) - attrs[f"zero_point_{name}"]
        for name, side in (("a", a), ("b", b))
    ]
    return torch.matmul(*sides)


def max_pool2d(attrs: Mapping[str, Any], x: Tensor) -> Tensor:
    return _last(functional.max_pool2d(_padded(attrs, x, -torch.inf), attrs["kernel"], attrs["strides"]))


def avg_pool2d(attrs: Mapping[str, Any], x: Tensor) -> Tensor:
    def means(image: Tensor) -> Tensor:
        return _last(functional.avg_pool2d(_padded(attrs, image, 0.0), attrs["kernel"], attrs["strides"]))

    return means(x) if attrs["count_include_pad"] else means(x) / means(torch.ones_like(x))


def layer_norm(attrs: Mapping[str, Any], x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], eps=attrs["epsilon"])


def _padded(attrs: Mapping[str, Any], x: Tensor, value: float) -> Tensor:
    """An image, channels first, with its padding."""
    top, left, bottom, right = attrs["padding"]
    return functional.pad(_first(x), (left, right, top, bottom), value=value)


def _first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


def _last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def _row(bias: Tensor) -> Tensor:
    return None if bias is None else bias.reshape(-1)


def function(made: Callable[..., Tensor], *names: str) -> Spelling:
    """An elementwise function, with attributes of these names."""
    return lambda attrs, *operands: made(*operands, *(attrs[name] for name in names))


def reduction(made: Callable[..., Tensor]) -> Spelling:
    def spell(attrs: Mapping[str, Any], x: Tensor) -> Tensor:
        return made(x, attrs["axes"], attrs["keepdims"]) if attrs["axes"] else x

    return spell


SPELLINGS: Mapping[str, Spelling] = {
    "abs": function(torch.abs),
    "add": function(torch.add),
    "avg_pool2d": avg_pool2d,
    "clip": function(torch.clamp, "minimum", "maximum"),
    "concat": lambda attrs, *parts: torch.cat(parts, attrs["axis"]),
    "conv2d": conv2d,
    "conv2d_transpose": conv2d_transpose,
    "dense": dense,
    "div": function(torch.div),
    "elu": function(functional.elu, "alpha"),
    "erf": function(torch.erf),
    "exp": function(torch.exp),
    "hard_swish": function(functional.hardswish),
    "layer_norm": layer_norm,
    "leaky_relu": function(functional.leaky_relu, "alpha"),
    "log": function(torch.log),
    "log_softmax": lambda attrs, x: torch.log_softmax(x, -1),
    "matmul": matmul,
    "max": reduction(torch.amax),
    "max_pool2d": max_pool2d,
    "maximum": function(torch.maximum),
    "mean": reduction(torch.mean),
    "min": reduction(torch.amin),
    "minimum": function(torch.minimum),
    "mul": function(torch.mul),
    "neg": function(torch.neg),
    "prelu": function(lambda x, slope: torch.where(x < 0, x * slope, x)),
    "relu": function(torch.relu),
    "rsqrt": function(torch.rsqrt),
    "sigmoid": function(torch.sigmoid),
    "softmax": lambda attrs, x: torch.softmax(x * attrs["beta"], attrs["axis"]),
    "softplus": function(functional.softplus),
    "sqrt": function(torch.sqrt),
    "squared_difference": function(lambda a, b: torch.square(a - b)),
    "sub": function(torch.sub),
    "sum": reduction(torch.sum),
    "tanh": function(torch.tanh),
}


def apply(graph: Graph, node: Node, operands: list[Tensor]) -> Tensor:
    """The result of a node; ``operands``: those that are present."""
    attrs = {**registry.get(node.op).defaults, **node.attrs}
    made = _moved(graph, node, attrs, operands) if moves(node) else SPELLINGS[node.op](attrs, *operands)
    activation = attrs.get("activation", "")
    if activation:
        op, of_it = ACTIVATIONS[str(activation)]
        made = SPELLINGS[op](of_it, made)
    return made


def _moved(graph: Graph, node: Node, attrs: Mapping[str, Any], operands: list[Tensor]) -> Tensor:
    """Elements of the first operand, where the operator's reference puts their numbers; what pads them is behind the last."""
    shape = graph.types[node.inputs[0]].shape
    if node.op == "reshape":
        return operands[0].reshape(attrs["shape"])
    numbers = np.arange(prod(shape)).reshape(shape)
    others = [graph.consts[name] for name in node.inputs[1:]]
    (places,) = registry.get(node.op).reference({**attrs, "value": numbers.size}, [numbers, *others])
    flat = operands[0].reshape(-1)
    if node.op == "pad":
        flat = torch.cat([flat, flat.new_full((1,), attrs["value"])])
    return flat[torch.from_numpy(places)]


def check(graph: Graph) -> None:
    """UnsupportedError that lists what cannot be trained."""
    refused = {
        node.op: node
        for node in graph.nodes
        if not (all(name in graph.consts for name in node.inputs[1:]) if moves(node) else node.op in SPELLINGS)
    }
    if refused:
        raise UnsupportedError(
            f"{', '.join(sorted(refused))}: no gradient is known", where=str(next(iter(refused.values())).loc),
            hint="microc.quantize takes such networks as they are",
        )  # fmt: skip
