"""Networks that PyTorch trains while they answer as their integers do."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod, sqrt
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import UnsupportedError, UsageError
from microc.graph.ir import Graph, Names, Node, Quant
from microc.ops import registry
from microc.ops.arithmetic import ACTIVATIONS
from microc.quantization.decisions import BITS
from microc.quantization.integer_scheme import SMALLEST, Activation, Weight, least_scales, levels, rounded
from microc.quantization.quantization_steps import Quantized
from microc.quantization.repairs import Attempt
from microc.quantization.write import Recipe, Written, quantised
from microc.transform.quantised.qdq import LAYERS
from microc.transform.quantised.qdq_values import moves

# ---- What the operators of a float graph are in PyTorch, which differentiates them: of one sample, with the graph's
# own shapes.

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


# ---- A graph on many samples at once, each operator as ``ops/meaning.py`` has it: integers as compiled networks
# compute them.
#
# Products, the bulk of the work, are PyTorch's on integers that floats hold exactly.

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
        return apply(graph, node, list(given))

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


# ---- A network that PyTorch trains while it answers as its integers do.
#
# What the integers are is not written again here: at every step the integer network of the present weights is made and run, as
# ``microc.quantize`` makes it. Its values take the place of the float network's, value by value, and gradients are those of the
# float network: straight through rounding, and zero where a value saturates (Bengio et al., 2013). Scales of weights are trained
# as well ("Learned Step Size Quantization", Esser et al., 2020); those of activations stay.


class FakeQuantized(torch.nn.Module):  # type: ignore[misc]
    """``microc.fake_quantize`` makes it. Parameters are the float network's constants of more than one element, by their names
    there, and ``NAME_scale`` of weights: batch normalisation is folded into them.

    It takes tensors of the network's inputs, any number of samples along the first axis, and gives the outputs likewise.
    """

    def __init__(self, found: Quantized) -> None:
        super().__init__()
        self._graph = Attempt(found.recipe, found.biases).graph(found.float_graph)
        self._recipe = found.recipe
        _check(self._graph)
        names = Names(())
        self._names: dict[str, str] = {}
        self._layers = {node.inputs[1]: node for node in self._graph.nodes if node.op in LAYERS}
        for name, data in self._graph.consts.items():
            if data.dtype == np.float32 and data.size > 1:
                stored = self._recipe.weights.get(name)
                start = data if stored is None else _at(data, stored)
                self._names[name] = names.fresh(re.sub(r"\W", "_", name))
                self.register_parameter(self._names[name], torch.nn.Parameter(torch.tensor(start)))
        for name in self._layers:
            if name in self._recipe.weights:
                scale = np.array(self._recipe.weights[name].quant.scale, np.float32)
                self.register_parameter(self._scale(name), torch.nn.Parameter(torch.tensor(scale)))

    def forward(self, *inputs: Any) -> Any:
        """The outputs: one tensor, or a tuple of them."""
        rows = [self._row(*each) for each in zip(self._graph.inputs, inputs, strict=True)]
        recipe = self._present()
        graph = self._floats()
        written = quantised(graph, recipe)
        exact = self._exact(written, rows)
        if torch.is_grad_enabled():
            constants = self._constants(recipe)
            made = torch.func.vmap(
                lambda given, known: self._sample(graph, recipe, constants, given, known)
            )(rows, exact)  # fmt: skip
        else:
            made = [exact[name] for name in graph.outputs]
        results = tuple(result.flatten(0, 1) if result.ndim > 1 else result for result in made)
        return results if len(results) > 1 else results[0]

    def quantized(self) -> Quantized:
        """The integer network of the present weights, which answers as this module does. Its report is empty."""
        graph, recipe = self._floats(), self._present()
        written = quantised(graph, recipe)
        return Quantized(written.graph, written.exact, graph, recipe)

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeQuantized:
        """Graphs never change: copies share them."""
        memo |= {id(shared): shared for shared in (self._graph, self._recipe, self._layers)}
        made = copy.copy(self)
        made.__dict__ = copy.deepcopy(self.__dict__, memo)
        return made

    # ---------------------------------------------------------------- parameters

    def _scale(self, weight: str) -> str:
        return f"{self._names[weight]}_scale"

    def _array(self, parameter: str) -> Array:
        found: Array = getattr(self, parameter).detach().cpu().numpy()
        return found

    def _floats(self) -> Graph:
        """The float network with the present parameters."""
        consts = {**self._graph.consts, **{name: self._array(own) for name, own in self._names.items()}}
        return replace(self._graph, consts=consts)

    def _present(self) -> Recipe:
        """The recipe with the present weights."""
        weights = dict(self._recipe.weights)
        for name, stored in weights.items():
            if name in self._names:
                reals = self._array(self._names[name])
                if name in self._layers:
                    quant, span = self._quant(name), _span(stored)
                    weights[name] = Weight(np.clip(rounded(reals, quant, "int8"), *span).astype(np.int8), quant)
                else:
                    weights[name] = Weight(rounded(reals, stored.quant, stored.data.dtype.name), stored.quant)
        return replace(self._recipe, weights=weights)

    def _quant(self, weight: str) -> Quant:
        """Of a layer's weights: positive, and large enough for the bias."""
        node = self._layers[weight]
        scales = np.maximum(np.abs(self._array(self._scale(weight))), SMALLEST)
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        if bias in self._names:
            data = self._recipe.read(node)
            scales = np.maximum(scales, least_scales(self._array(self._names[bias]), data.scale).reshape(-1))
        return Quant(tuple(map(float, scales.astype(np.float32))), (0,) * len(scales), 0)

    # ---------------------------------------------------------------- values

    def _row(self, name: str, given: Any) -> Tensor:
        """Samples as the graph takes them, one by one: (samples, 1, ...)."""
        shape = self._graph.types[name].shape
        if not isinstance(given, torch.Tensor) or tuple(given.shape[1:]) != shape[1:]:
            shown = tuple(given.shape) if hasattr(given, "shape") else type(given).__name__
            raise UsageError(f"{name!r} is a tensor (samples, {', '.join(map(str, shape[1:]))}), {shown} given")
        return given.unsqueeze(1)

    def _exact(self, written: Written, rows: Sequence[Tensor]) -> dict[str, Tensor]:
        """What the integer network says: outputs, and the reals that integers stand for, by the float network's names."""
        arrays = [row.detach().cpu().numpy() for row in rows]
        values = run(written.graph, dict(zip(self._graph.inputs, arrays, strict=True)))
        device, found = rows[0].device, dict[str, Tensor]()
        for name, stored in written.stored.items():
            quant = written.graph.types[stored].quant if stored in written.graph.types else None
            if quant is not None and values[stored].many:
                steps = values[stored].array.astype(np.float32) - np.float32(quant.zero_point[0])
                found[name] = torch.from_numpy(steps * np.float32(quant.scale[0])).to(device)
        return found | {name: torch.from_numpy(values[name].array).to(device) for name in self._graph.outputs}

    def _constants(self, recipe: Recipe) -> dict[str, Tensor]:
        """All constants as the integer network has them, with gradients of the parameters."""
        device = next(self.parameters()).device
        found = {name: torch.tensor(data, device=device) for name, data in self._graph.consts.items()}
        for name, own in self._names.items():
            reals, stored = getattr(self, own), recipe.weights.get(name)
            found[name] = reals if stored is None else self._stored(name, reals, stored)
        return found

    def _stored(self, name: str, reals: Tensor, stored: Weight) -> Tensor:
        if name not in self._layers:
            return _through(reals, torch.tensor(stored.real, dtype=reals.dtype, device=reals.device))
        (least, most), trained = _span(self._recipe.weights[name]), getattr(self, self._scale(name))
        damped = _damped(trained, 1 / sqrt(reals[0].numel() * most))
        present = torch.tensor(stored.quant.scale, dtype=reals.dtype, device=reals.device)
        scales = _through(damped, present).reshape(-1, *(1,) * (reals.ndim - 1))
        steps = torch.tensor(stored.data, dtype=reals.dtype, device=reals.device)
        return _through((reals / scales).clamp(least, most), steps) * scales

    def _sample(
        self,
        graph: Graph,
        recipe: Recipe,
        constants: Mapping[str, Tensor],
        given: Sequence[Tensor],
        exact: Mapping[str, Tensor],
    ) -> list[Tensor]:
        """The outputs for one sample: the float network's, corrected to the integer network's value by value."""
        values = dict(constants)
        for name, row in zip(graph.inputs, given, strict=True):
            values[name] = _corrected(row, exact.get(name), recipe.activations.get(name))
        for node in graph.nodes:
            made = apply(graph, node, [values[name] for name in node.inputs if name])
            name = node.outputs[0]
            values[name] = _corrected(made, exact.get(name), recipe.activations.get(name))
        return [values[name] for name in graph.outputs]


def _corrected(made: Tensor, exact: Tensor | None, how: Activation | None) -> Tensor:
    """``exact`` with the gradients of ``made``, none where it saturates."""
    if exact is None:
        return made
    if how is not None:
        low, high = ((end - how.zero_point) * how.scale for end in dtypes.int_range(how.dtype))
        made = made.clamp(low, high)
    return _through(made, exact)


def _through(made: Tensor, exact: Tensor) -> Tensor:
    """``exact``, with the gradients of ``made``."""
    return exact + (made - made.detach())


def _damped(parameter: Tensor, factor: float) -> Tensor:
    """The parameter, with its gradients times ``factor``."""
    return parameter.detach() + factor * (parameter - parameter.detach())


def _span(stored: Weight) -> tuple[int, int]:
    """The least and the largest level of as many bits as these weights take."""
    low, high = int(stored.data.min(initial=0)), int(stored.data.max(initial=0))
    return next(span for span in map(levels, sorted(BITS)) if span[0] <= low and high <= span[1])


def _at(reals: Array, stored: Weight) -> Array:
    """The numbers nearest to ``reals`` that round to what is stored."""
    shape = (-1, *(1,) * (reals.ndim - 1)) if stored.quant.axis == 0 else ()
    reach = 0.49 * np.array(stored.quant.scale).reshape(shape)
    return np.asarray(np.clip(reals, stored.real - reach, stored.real + reach), np.float32)


def _check(graph: Graph) -> None:
    if graph.state:
        raise UnsupportedError(
            f"{graph.name} keeps state from call to call", hint="microc.quantize takes such networks as they are"
        )
    check(graph)
    for name in graph.inputs:
        if graph.types[name].shape[:1] != (1,):
            raise UsageError(
                f"{name!r} has shape {graph.types[name].shape}", hint="the network is to take one sample: export it so"
            )
