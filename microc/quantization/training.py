# SPDX-License-Identifier: Apache-2.0
"""Quantisation-aware training: a trainable PyTorch module that computes the outputs of the integer network that it
becomes."""

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
from microc.graph.ir import Graph, NameSet, Node, Quant
from microc.ops import registry
from microc.ops.arithmetic import ACTIVATIONS
from microc.quantization.decisions import BITS
from microc.quantization.integer_scheme import (
    SMALLEST_SCALE,
    Activation,
    Weight,
    level_span_of_weights,
    min_scales_for_biases,
    quantise_array,
)
from microc.quantization.quantised_page import Quantized
from microc.quantization.repairs import Attempt
from microc.quantization.write import QuantisedGraph, Recipe, write_quantised_graph
from microc.transform.quantised.qdq_values import only_moves_elements

# ---- Conversion of a float graph's operators to PyTorch functions, which have gradients. Operands are those of a single sample.

Tensor = Any
Converter = Callable[..., Tensor]
"""PyTorch implementation of an operator: a function that returns the result for the operator's attributes and
operands."""


def conv2d(attrs: Mapping[str, Any], x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
    image = _pad_image(attrs, x, attrs["pad_value"])
    strides, dilation = attrs["strides"], attrs["dilation"]
    result = functional.conv2d(
        image, _to_channels_first(weight), _flatten_bias(bias), strides, 0, dilation, attrs["groups"]
    )
    return _to_channels_last(result)


def conv2d_transpose(attrs: Mapping[str, Any], x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
    """Compute a transposed convolution by PyTorch.

    The weights (O, H, W, I) are converted to PyTorch's layout (groups * I, O, H, W), and the padding is removed from
    the result."""
    groups, (outputs, rows, columns, depth) = attrs["groups"], weight.shape
    grouped = weight.reshape(groups, outputs // groups, rows, columns, depth).permute(0, 4, 1, 2, 3)
    torch_weight = grouped.reshape(groups * depth, outputs // groups, rows, columns)
    result = functional.conv_transpose2d(
        _to_channels_first(x), torch_weight, _flatten_bias(bias), attrs["strides"], 0, 0, groups, attrs["dilation"]
    )
    top, left, bottom, right = attrs["padding"]
    return _to_channels_last(result[:, :, top : result.shape[2] - bottom, left : result.shape[3] - right])


def dense(attrs: Mapping[str, Any], x: Tensor, weight: Tensor, bias: Tensor = None) -> Tensor:
    return functional.linear(x, weight, _flatten_bias(bias))


def matmul(attrs: Mapping[str, Any], a: Tensor, b: Tensor) -> Tensor:
    sides = [
        (side.permute(attrs[f"axes_{name}"]) if attrs[f"axes_{name}"] else side) - attrs[f"zero_point_{name}"]
        for name, side in (("a", a), ("b", b))
    ]
    return torch.matmul(*sides)


def max_pool2d(attrs: Mapping[str, Any], x: Tensor) -> Tensor:
    return _to_channels_last(functional.max_pool2d(_pad_image(attrs, x, -torch.inf), attrs["kernel"], attrs["strides"]))


def avg_pool2d(attrs: Mapping[str, Any], x: Tensor) -> Tensor:
    def average_windows(image: Tensor) -> Tensor:
        return _to_channels_last(
            functional.avg_pool2d(_pad_image(attrs, image, 0.0), attrs["kernel"], attrs["strides"])
        )

    return (
        average_windows(x) if attrs["count_include_pad"] else average_windows(x) / average_windows(torch.ones_like(x))
    )


def layer_norm(attrs: Mapping[str, Any], x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], eps=attrs["epsilon"])


def _pad_image(attrs: Mapping[str, Any], x: Tensor, value: float) -> Tensor:
    """Return an image (N, H, W, C) padded with ``value`` and converted to PyTorch's layout (N, C, H, W)."""
    top, left, bottom, right = attrs["padding"]
    return functional.pad(_to_channels_first(x), (left, right, top, bottom), value=value)


def _to_channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


def _to_channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def _flatten_bias(bias: Tensor) -> Tensor:
    return None if bias is None else bias.reshape(-1)


def elementwise_converter(torch_function: Callable[..., Tensor], *attribute_names: str) -> Converter:
    """Return the converter of an elementwise operator, which calls a PyTorch function.

    ``attribute_names``: attributes of the operator that are passed to the function after the operands."""
    return lambda attrs, *operands: torch_function(*operands, *(attrs[name] for name in attribute_names))


def reduction_converter(torch_reduction: Callable[..., Tensor]) -> Converter:
    """Return the converter of a reduction, which calls a PyTorch function.

    If the attribute ``axes`` of the operator is empty, the converter returns the operand."""

    def convert(attrs: Mapping[str, Any], x: Tensor) -> Tensor:
        return torch_reduction(x, attrs["axes"], attrs["keepdims"]) if attrs["axes"] else x

    return convert


CONVERTERS: Mapping[str, Converter] = {
    "abs": elementwise_converter(torch.abs),
    "add": elementwise_converter(torch.add),
    "avg_pool2d": avg_pool2d,
    "clip": elementwise_converter(torch.clamp, "minimum", "maximum"),
    "concat": lambda attrs, *parts: torch.cat(parts, attrs["axis"]),
    "conv2d": conv2d,
    "conv2d_transpose": conv2d_transpose,
    "dense": dense,
    "div": elementwise_converter(torch.div),
    "elu": elementwise_converter(functional.elu, "alpha"),
    "erf": elementwise_converter(torch.erf),
    "exp": elementwise_converter(torch.exp),
    "hard_swish": elementwise_converter(functional.hardswish),
    "layer_norm": layer_norm,
    "leaky_relu": elementwise_converter(functional.leaky_relu, "alpha"),
    "log": elementwise_converter(torch.log),
    "log_softmax": lambda attrs, x: torch.log_softmax(x, -1),
    "matmul": matmul,
    "max": reduction_converter(torch.amax),
    "max_pool2d": max_pool2d,
    "maximum": elementwise_converter(torch.maximum),
    "mean": reduction_converter(torch.mean),
    "min": reduction_converter(torch.amin),
    "minimum": elementwise_converter(torch.minimum),
    "mul": elementwise_converter(torch.mul),
    "neg": elementwise_converter(torch.neg),
    "prelu": elementwise_converter(lambda x, slope: torch.where(x < 0, x * slope, x)),
    "relu": elementwise_converter(torch.relu),
    "rsqrt": elementwise_converter(torch.rsqrt),
    "sigmoid": elementwise_converter(torch.sigmoid),
    "softmax": lambda attrs, x: torch.softmax(x * attrs["beta"], attrs["axis"]),
    "softplus": elementwise_converter(functional.softplus),
    "sqrt": elementwise_converter(torch.sqrt),
    "squared_difference": elementwise_converter(lambda a, b: torch.square(a - b)),
    "sub": elementwise_converter(torch.sub),
    "sum": reduction_converter(torch.sum),
    "tanh": elementwise_converter(torch.tanh),
}


def compute_node(graph: Graph, node: Node, operands: list[Tensor]) -> Tensor:
    """Return the result of a float node for a single sample, computed by PyTorch, after its fused activation."""
    attrs = {**registry.get(node.op).defaults, **node.attrs}
    result = (
        _move_elements(graph, node, attrs, operands)
        if only_moves_elements(node)
        else CONVERTERS[node.op](attrs, *operands)
    )
    activation = attrs.get("activation", "")
    if activation:
        op, activation_attrs = ACTIVATIONS[str(activation)]
        result = CONVERTERS[op](activation_attrs, result)
    return result


def _move_elements(graph: Graph, node: Node, attrs: Mapping[str, Any], operands: list[Tensor]) -> Tensor:
    """Compute a node that only moves elements of its first operand, by PyTorch.

    The operator's reference implementation is applied to an array of element indices; the result selects the elements.
    The index after the last element is for padding."""
    shape = graph.types[node.inputs[0]].shape
    if node.op == "reshape":
        return operands[0].reshape(attrs["shape"])
    indices = np.arange(prod(shape)).reshape(shape)
    others = [graph.consts[name] for name in node.inputs[1:]]
    (source_indices,) = registry.get(node.op).reference({**attrs, "value": indices.size}, [indices, *others])
    flat = operands[0].reshape(-1)
    if node.op == "pad":
        flat = torch.cat([flat, flat.new_full((1,), attrs["value"])])
    return flat[torch.from_numpy(source_indices)]


def check_operators(graph: Graph) -> None:
    """Raise UnsupportedError if a graph has operators without a known gradient. The error lists these operators."""
    refused = {
        node.op: node
        for node in graph.nodes
        if not (
            all(name in graph.consts for name in node.inputs[1:])
            if only_moves_elements(node)
            else node.op in CONVERTERS
        )
    }
    if refused:
        raise UnsupportedError(
            f"training: no gradient is known of operators {', '.join(sorted(refused))}",
            where=str(next(iter(refused.values())).loc),
            hint="quantise it without training: microc.quantize",
        )  # fmt: skip


# ---- Interpreter that evaluates an integer graph on many samples at once. It follows the definitions of operators in
# ``ops/meaning.py``, so that its integers equal those of compiled networks.
#
# Matrix products and convolutions, the bulk of the work, are computed by PyTorch in floats that represent all integers exactly.

_PRODUCTS = frozenset(("conv2d", "dense", "matmul"))
_EXACT = 1 << 24
"""Integer up to which float32 represents all integers exactly."""


@frozen
class SampledValue:
    """A value of a graph for all samples.

    If ``has_sample_axis`` is True, ``array`` has an additional first axis for the samples. If it is False, the array is
    the same for all samples."""

    array: Array
    has_sample_axis: bool


def run_samples(graph: Graph, rows: Mapping[str, Array]) -> dict[str, SampledValue]:
    """Evaluate a graph without state on many samples at once, and return all its values by name.

    ``rows``: for each input an array of all samples."""
    values = {name: SampledValue(data, False) for name, data in graph.consts.items()}
    values |= {name: SampledValue(data, True) for name, data in rows.items()}
    for node in graph.nodes:
        results = _evaluate_node(graph, node, [values[name] for name in node.inputs if name])
        values |= {name: batch for name, batch in zip(node.outputs, results, strict=True) if name}
    return values


def _evaluate_node(graph: Graph, node: Node, operands: Sequence[SampledValue]) -> Sequence[SampledValue]:
    """Evaluate a node on all samples. A quantised operator is first replaced by the core operators that define it."""
    definition = registry.get(node.op)
    legalized = definition.legalize(node, graph) if definition.legalize is not None else None
    if legalized is None:
        return _evaluate_core(graph, node, operands)
    nodes, types, consts = legalized
    inner = replace(graph, types={**graph.types, **types}, consts={**graph.consts, **consts})
    values = {name: SampledValue(data, False) for name, data in consts.items()}
    values |= dict(zip((name for name in node.inputs if name), operands, strict=True))
    for part in nodes:
        for name in part.inputs:
            if name and name not in values:
                values[name] = SampledValue(inner.consts[name], False)
        results = _evaluate_node(inner, part, [values[name] for name in part.inputs if name])
        values |= {name: batch for name, batch in zip(part.outputs, results, strict=True) if name}
    return [values[name] if name else operands[0] for name in node.outputs]


def _evaluate_core(graph: Graph, node: Node, operands: Sequence[SampledValue]) -> Sequence[SampledValue]:
    """Evaluate a core operator by its reference implementation, for all samples at once if possible, else for each
    sample."""
    definition = registry.get(node.op)
    attrs = {**definition.defaults, **node.attrs}
    if not any(operand.has_sample_axis for operand in operands):
        return [
            SampledValue(array, False) for array in definition.reference(attrs, [operand.array for operand in operands])
        ]
    if node.op in _PRODUCTS:
        return [SampledValue(_compute_product(graph, node, operands), True)]
    if definition.elementwise:
        rank = max(operand.array.ndim - operand.has_sample_axis for operand in operands)
        return [
            SampledValue(array, True)
            for array in definition.reference(attrs, [_align_rank_for_broadcast(operand, rank) for operand in operands])
        ]
    count = next(len(operand.array) for operand in operands if operand.has_sample_axis)
    results = [
        definition.reference(
            attrs, [operand.array[k] if operand.has_sample_axis else operand.array for operand in operands]
        )
        for k in range(count)
    ]
    return [SampledValue(np.stack(arrays), True) for arrays in zip(*results, strict=True)]


def _align_rank_for_broadcast(operand: SampledValue, rank: int) -> Array:
    """Return an operand as an array that can be broadcast with operands of ``rank`` axes and an additional axis of
    samples."""
    if not operand.has_sample_axis:
        return operand.array
    shape = operand.array.shape
    return operand.array.reshape(shape[0], *(1,) * (rank + 1 - len(shape)), *shape[1:])


def _compute_product(graph: Graph, node: Node, operands: Sequence[SampledValue]) -> Array:
    """Compute a convolution, dense layer or matrix product on all samples by PyTorch.

    It is computed in float32 if its result is float or if float32 represents all its sums exactly, else in float64."""
    kind = graph.types[node.outputs[0]]
    is_exact_in_float32 = dtypes.is_float(kind.dtype) or _bound_magnitude_of_sums(node, operands) < _EXACT
    dtype = (
        torch.float32 if is_exact_in_float32 and torch.get_float32_matmul_precision() == "highest" else torch.float64
    )
    tensors = [torch.tensor(operand.array, dtype=dtype) for operand in operands]

    def product(*operand_tensors: Any) -> Any:
        return compute_node(graph, node, list(operand_tensors))

    result = torch.func.vmap(product, in_dims=tuple(0 if operand.has_sample_axis else None for operand in operands))(
        *tensors
    )
    return np.asarray(result.numpy(), dtypes.to_numpy(kind.dtype))


def _bound_magnitude_of_sums(node: Node, operands: Sequence[SampledValue]) -> float:
    """Return an upper bound of the magnitude of a layer's sums of products, including partial sums; infinite for
    ``matmul``."""
    if node.op == "matmul":
        return np.inf
    data, weight, *bias = (operand.array for operand in operands)
    rows = np.abs(weight.reshape(len(weight), -1).astype(np.float64)).sum(axis=1)
    return float(rows.max() * np.abs(dtypes.int_range(data.dtype.name)).max()) + sum(
        float(np.abs(b).max()) for b in bias
    )


# ---- Trainable module, whose outputs are those of the integer network that its present parameters are quantised to.
#
# The integer arithmetic is not implemented a second time here. In every forward pass, the integer network of the present
# weights is built as by ``microc.quantize``, and run. Each value of the float network is replaced by that of the integer
# network. Gradients are those of the float network: they pass straight through rounding, and are zero where a value saturates
# (Bengio et al., 2013). Scales of weights are trained as well ("Learned Step Size Quantization", Esser et al., 2020), scales
# of activations are not.


class FakeQuantized(torch.nn.Module):  # type: ignore[misc]
    """Trainable PyTorch module for quantisation-aware training, the result of ``microc.fake_quantize``.

    Its parameters are the float32 constants of the float network with more than one element, under their names there,
    and the scales of weights as ``NAME_scale``. Batch normalisation is folded into the weights. The module is called
    with a tensor for each input of the network, with any number of samples along the first axis, and returns outputs of
    the same form."""

    def __init__(self, quantized: Quantized) -> None:
        super().__init__()
        self._graph = Attempt(quantized.recipe, quantized.biases).graph(quantized.float_graph)
        self._recipe = quantized.recipe
        _check_trainable(self._graph)
        names = NameSet(())
        self._names: dict[str, str] = {}
        self._layers = {node.inputs[1]: node for node in self._graph.nodes if registry.is_layer(node)}
        for name, data in self._graph.consts.items():
            if data.dtype == np.float32 and data.size > 1:
                stored = self._recipe.weights.get(name)
                start = data if stored is None else _clip_to_storage(data, stored)
                self._names[name] = names.fresh(re.sub(r"\W", "_", name))
                self.register_parameter(self._names[name], torch.nn.Parameter(torch.tensor(start)))
        for name in self._layers:
            if name in self._recipe.weights:
                scale = np.array(self._recipe.weights[name].quant.scale, np.float32)
                self.register_parameter(self._name_of_scale_parameter(name), torch.nn.Parameter(torch.tensor(scale)))

    def forward(self, *inputs: Any) -> Any:
        """Return the outputs of the integer network of the present weights: one tensor, or a tuple of tensors."""
        rows = [self._check_samples(*each) for each in zip(self._graph.inputs, inputs, strict=True)]
        recipe = self._current_recipe()
        graph = self._current_float_graph()
        written = write_quantised_graph(graph, recipe)
        exact = self._run_integers(written, rows)
        if torch.is_grad_enabled():
            constants = self._round_constants_with_gradients(recipe)
            made = torch.func.vmap(
                lambda given, known: self._run_sample(graph, recipe, constants, given, known)
            )(rows, exact)  # fmt: skip
        else:
            made = [exact[name] for name in graph.outputs]
        results = tuple(result.flatten(0, 1) if result.ndim > 1 else result for result in made)
        return results if len(results) > 1 else results[0]

    def quantized(self) -> Quantized:
        """Return the integer network that the present weights are quantised to. Its outputs equal those of the module.

        The report of the result is empty."""
        graph, recipe = self._current_float_graph(), self._current_recipe()
        written = write_quantised_graph(graph, recipe)
        return Quantized(written.graph, written.exact, graph, recipe)

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeQuantized:
        """Return a deep copy of the module. Graphs and the recipe are shared with it, because they never change."""
        memo |= {id(shared): shared for shared in (self._graph, self._recipe, self._layers)}
        duplicate = copy.copy(self)
        duplicate.__dict__ = copy.deepcopy(self.__dict__, memo)
        return duplicate

    # ---------------------------------------------------------------- parameters

    def _name_of_scale_parameter(self, weight: str) -> str:
        """Return the name of the parameter that contains the scales of a layer's weights."""
        return f"{self._names[weight]}_scale"

    def _parameter_as_array(self, parameter: str) -> Array:
        """Return a parameter of the module as a numpy array."""
        found: Array = getattr(self, parameter).detach().cpu().numpy()
        return found

    def _current_float_graph(self) -> Graph:
        """Return the float graph with the present parameters as its constants."""
        consts = {**self._graph.consts, **{name: self._parameter_as_array(own) for name, own in self._names.items()}}
        return replace(self._graph, consts=consts)

    def _current_recipe(self) -> Recipe:
        """Return the recipe (storage of all values) with the present weights, quantised with the present scales."""
        weights = dict(self._recipe.weights)
        for name, stored in weights.items():
            if name in self._names:
                reals = self._parameter_as_array(self._names[name])
                if name in self._layers:
                    quant, span = self._current_weight_quant(name), _level_span_of_stored_weight(stored)
                    weights[name] = Weight(np.clip(quantise_array(reals, quant, "int8"), *span).astype(np.int8), quant)
                else:
                    weights[name] = Weight(quantise_array(reals, stored.quant, stored.data.dtype.name), stored.quant)
        return replace(self._recipe, weights=weights)

    def _current_weight_quant(self, weight: str) -> Quant:
        """Return the quantisation of a layer's weights with the present scales, which are made positive.

        Scales that are too small to store the layer's bias are raised."""
        node = self._layers[weight]
        scales = np.maximum(np.abs(self._parameter_as_array(self._name_of_scale_parameter(weight))), SMALLEST_SCALE)
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        if bias in self._names:
            data = self._recipe.storage_of_read_data(node)
            scales = np.maximum(
                scales, min_scales_for_biases(self._parameter_as_array(self._names[bias]), data.scale).reshape(-1)
            )
        return Quant(tuple(map(float, scales.astype(np.float32))), (0,) * len(scales), 0)

    # ---------------------------------------------------------------- values

    def _check_samples(self, name: str, samples: Any) -> Tensor:
        """Return the samples of an input, a tensor (samples, ...), in the shape (samples, 1, ...): each is a graph's
        input.

        UsageError for samples of another shape."""
        shape = self._graph.types[name].shape
        if not isinstance(samples, torch.Tensor) or tuple(samples.shape[1:]) != shape[1:]:
            shown = tuple(samples.shape) if hasattr(samples, "shape") else type(samples).__name__
            raise UsageError(
                f"input {name!r}: got {shown}, expected a tensor (samples, {', '.join(map(str, shape[1:]))})",
                hint="give a torch.Tensor of that shape",
            )
        return samples.unsqueeze(1)

    def _run_integers(self, written: QuantisedGraph, rows: Sequence[Tensor]) -> dict[str, Tensor]:
        """Run the integer network on samples. Return its outputs and its dequantised values, by their names in the
        float network.

        ``rows``: for each input a tensor of all samples."""
        arrays = [row.detach().cpu().numpy() for row in rows]
        values = run_samples(written.graph, dict(zip(self._graph.inputs, arrays, strict=True)))
        device, dequantised = rows[0].device, dict[str, Tensor]()
        for name, stored in written.stored.items():
            quant = written.graph.types[stored].quant if stored in written.graph.types else None
            if quant is not None and values[stored].has_sample_axis:
                steps = values[stored].array.astype(np.float32) - np.float32(quant.zero_point[0])
                dequantised[name] = torch.from_numpy(steps * np.float32(quant.scale[0])).to(device)
        return dequantised | {name: torch.from_numpy(values[name].array).to(device) for name in self._graph.outputs}

    def _round_constants_with_gradients(self, recipe: Recipe) -> dict[str, Tensor]:
        """Return all constants of the float network, rounded as in the integer network, with gradients of the
        parameters."""
        device = next(self.parameters()).device
        constants = {name: torch.tensor(data, device=device) for name, data in self._graph.consts.items()}
        for name, parameter in self._names.items():
            reals, stored = getattr(self, parameter), recipe.weights.get(name)
            constants[name] = reals if stored is None else self._round_weight_with_gradients(name, reals, stored)
        return constants

    def _round_weight_with_gradients(self, name: str, reals: Tensor, stored: Weight) -> Tensor:
        """Return the dequantised numbers of a stored constant, with gradients of its real numbers and of its scale."""
        if name not in self._layers:
            return _with_straight_through_gradient(
                reals, torch.tensor(stored.real, dtype=reals.dtype, device=reals.device)
            )
        (least, largest), scale_parameter = (
            _level_span_of_stored_weight(self._recipe.weights[name]),
            getattr(self, self._name_of_scale_parameter(name)),
        )
        # LSQ scales the gradient of a step size by 1 / sqrt(number of weights * largest level).
        scaled_parameter = _scale_gradient(scale_parameter, 1 / sqrt(reals[0].numel() * largest))
        present = torch.tensor(stored.quant.scale, dtype=reals.dtype, device=reals.device)
        scales = _with_straight_through_gradient(scaled_parameter, present).reshape(-1, *(1,) * (reals.ndim - 1))
        steps = torch.tensor(stored.data, dtype=reals.dtype, device=reals.device)
        return _with_straight_through_gradient((reals / scales).clamp(least, largest), steps) * scales

    def _run_sample(
        self,
        graph: Graph,
        recipe: Recipe,
        constants: Mapping[str, Tensor],
        describe_input_tensors: Sequence[Tensor],
        integer_results: Mapping[str, Tensor],
    ) -> list[Tensor]:
        """Return the outputs for a single sample, with gradients.

        The float network is computed, and each of its values is replaced by the value of the integer network.
        ``integer_results``: the integer network's values, dequantised, by their names in the float network."""
        values = dict(constants)
        for name, row in zip(graph.inputs, describe_input_tensors, strict=True):
            values[name] = _replace_value(row, integer_results.get(name), recipe.activations.get(name))
        for node in graph.nodes:
            result = compute_node(graph, node, [values[name] for name in node.inputs if name])
            name = node.outputs[0]
            values[name] = _replace_value(result, integer_results.get(name), recipe.activations.get(name))
        return [values[name] for name in graph.outputs]


def _replace_value(computed: Tensor, integer_result: Tensor | None, storage: Activation | None) -> Tensor:
    """Return a value of the integer network with the gradients of ``computed``, the same value in the float network.

    Gradients are zero where the ``storage`` of the value saturates. If the integer network does not have the value
    (``integer_result`` is None), ``computed`` is returned."""
    if integer_result is None:
        return computed
    if storage is not None:
        low, high = ((end - storage.zero_point) * storage.scale for end in dtypes.int_range(storage.dtype))
        computed = computed.clamp(low, high)
    return _with_straight_through_gradient(computed, integer_result)


def _with_straight_through_gradient(computed: Tensor, integer_result: Tensor) -> Tensor:
    """Return ``integer_result`` with the gradients of ``computed`` (straight-through estimator)."""
    return integer_result + (computed - computed.detach())


def _scale_gradient(parameter: Tensor, factor: float) -> Tensor:
    """Return ``parameter`` unchanged, but with its gradient multiplied by ``factor``."""
    return parameter.detach() + factor * (parameter - parameter.detach())


def _level_span_of_stored_weight(stored_weight: Weight) -> tuple[int, int]:
    """Return the smallest and the largest level of weights with the number of bits that stored weights need."""
    low, high = int(stored_weight.data.min(initial=0)), int(stored_weight.data.max(initial=0))
    return next(span for span in map(level_span_of_weights, sorted(BITS)) if span[0] <= low and high <= span[1])


def _clip_to_storage(reals: Array, stored_weight: Weight) -> Array:
    """Return the real numbers that round to the stored integers and are nearest to ``reals``."""
    shape = (-1, *(1,) * (reals.ndim - 1)) if stored_weight.quant.axis == 0 else ()
    reach = 0.49 * np.array(stored_weight.quant.scale).reshape(shape)
    return np.asarray(np.clip(reals, stored_weight.real - reach, stored_weight.real + reach), np.float32)


def _check_trainable(graph: Graph) -> None:
    """Check that a float graph can be trained.

    UnsupportedError if it has state or operators without a known gradient. UsageError if the first extent of an input
    is not 1, because the graph must be that of a single sample."""
    if graph.state:
        raise UnsupportedError(
            f"training: {graph.name} keeps state between calls, expected a network without state",
            hint="quantise it without training: microc.quantize",
        )
    check_operators(graph)
    for name in graph.inputs:
        if graph.types[name].shape[:1] != (1,):
            raise UsageError(
                f"input {name!r}: got shape {graph.types[name].shape}, expected 1 as its first extent",
                hint="export the network with a batch of one sample",
            )
