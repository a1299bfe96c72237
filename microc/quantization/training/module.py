"""A network that PyTorch trains while it answers as its integers do.

What the integers are is not written again here: at every step the integer network of the present weights is made and run, as
``microc.quantize`` makes it. Its values take the place of the float network's, value by value, and gradients are those of the
float network: straight through rounding, and zero where a value saturates (Bengio et al., 2013). Scales of weights are trained
as well ("Learned Step Size Quantization", Esser et al., 2020); those of activations stay.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import torch

from microc import dtypes
from microc.dtypes import Array
from microc.errors import UnsupportedError, UsageError
from microc.graph.ir import Graph, Names, Quant
from microc.quantization.by_hand import BITS
from microc.quantization.quantized import Quantized
from microc.quantization.repairs import Attempt
from microc.quantization.scheme import SMALLEST, Activation, Weight, levels, rounded
from microc.quantization.training import batch, operators
from microc.quantization.weights import least_scales
from microc.quantization.write import Recipe, Written, quantised
from microc.transform.qdq import LAYERS

Tensor = Any


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
        values = batch.run(written.graph, dict(zip(self._graph.inputs, arrays, strict=True)))
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
            made = operators.apply(graph, node, [values[name] for name in node.inputs if name])
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
    operators.check(graph)
    for name in graph.inputs:
        if graph.types[name].shape[:1] != (1,):
            raise UsageError(
                f"{name!r} has shape {graph.types[name].shape}", hint="the network is to take one sample: export it so"
            )
