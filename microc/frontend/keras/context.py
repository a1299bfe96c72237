"""One call of a Keras layer as its spelling function sees it, and Keras's activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np

from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend import formulas
from microc.frontend.formulas import Compose, composer
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Attr

_NO_ATTRS: Mapping[str, Attr] = {}
_PLAIN: Mapping[str, tuple[str, Mapping[str, Attr]]] = {
    "relu": ("relu", {}),
    "relu6": ("clip", {"minimum": 0.0, "maximum": 6.0}),
    "sigmoid": ("sigmoid", {}),
    "tanh": ("tanh", {}),
    "softmax": ("softmax", {"axis": -1}),
    "elu": ("elu", {"alpha": 1.0}),
    "leaky_relu": ("leaky_relu", {"alpha": 0.2}),
    "softplus": ("softplus", {}),
    "exponential": ("exp", {}),
    "hard_silu": ("hard_swish", {}),
    "hard_swish": ("hard_swish", {}),
}


def dtype_of(config: Mapping[str, Any]) -> str:
    """A layer's dtype, given by name or as a policy; of a quantised layer what it is quantised to."""
    found = config.get("dtype", "float32")
    if isinstance(found, str):
        return found
    return str(found["config"].get("mode") or found["config"]["name"])


class Weights(Protocol):
    """What a file holds for a model."""

    def layers(self, layers: Sequence[Mapping[str, Any]]) -> Mapping[str, LayerWeights]:
        """For each of its layers, by their names."""


class LayerWeights(Weights, Protocol):
    """What a file holds for a layer, which may be a model."""

    def arrays(self) -> tuple[Array, ...]:
        """The layer's variables in order."""

    @property
    def path(self) -> str:
        """A name that no two layers have in common."""

    def inside(self, name: str) -> LayerWeights:
        """For a part of the layer."""


@dataclass(frozen=True)
class Layer:
    """``operands``: values of the graph (or numbers, for arithmetic); ``weights``: what the file holds for the layer."""

    write: GraphBuilder
    code: str
    config: Mapping[str, Any]
    weights: LayerWeights
    operands: Sequence[Any]
    kwargs: Mapping[str, Any]
    spellings: Mapping[str, Spelling]

    def refuse(self, what: str, hint: str) -> NoReturn:
        raise UnsupportedError(f"{self.code}: {what}", where=self.write.where, hint=hint)

    @property
    def eight_bits(self) -> bool:
        """Whether Keras quantised the weights (``quantize("int8")``): integers; behind all else the factors that made them."""
        return dtype_of(self.config) == "int8"

    @property
    def x(self) -> str:
        """The one operand."""
        return str(self.operands[0])

    def shape(self, value: str = "") -> tuple[int, ...]:
        return self.write.shape(value or self.x)

    def arrays(self, count: int) -> tuple[Array, ...]:
        """The layer's weights, of which there must be ``count``."""
        found = self.weights.arrays()
        if len(found) != count:
            raise ModelError(f"{len(found)} weights, {count} expected", where=self.write.where)
        return found

    def pair(self, name: str, count: int = 2) -> tuple[int, ...]:
        """A setting of one number for every spatial axis."""
        found = self.config.get(name)
        return (int(found),) * count if isinstance(found, int) else tuple(int(n) for n in found or (1,) * count)

    def channels_last(self) -> None:
        if self.config.get("data_format", "channels_last") != "channels_last":
            self.refuse("data with channels first", "build the model with data_format='channels_last'")

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS) -> str:
        return self.write.emit(op, inputs, attrs)

    def constant(self, stem: str, array: Array) -> str:
        return self.write.new_constant(stem, np.ascontiguousarray(array, np.float32))

    def scalar(self, number: float) -> str:
        return self.write.scalar(number)

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        return self.write.reshape(value, shape)

    def activated(self, value: str, name: str = "activation") -> str:
        """The value after the layer's activation."""
        return self.activation(value, self.config.get(name))

    def activation(self, value: str, found: Any) -> str:
        """The value after an activation, given by name or as a configuration."""
        if isinstance(found, Mapping):
            found = found["config"] if isinstance(found.get("config"), str) else found.get("class_name")
        if found in (None, "linear"):
            return value
        if found in _PLAIN:
            op, attrs = _PLAIN[found]
            return self.emit(op, (value,), attrs)
        composed = _COMPOSED.get(str(found))
        if composed is None:
            self.refuse(f"the activation {found!r}", "known: linear, " + ", ".join(sorted({*_PLAIN, *_COMPOSED})))
        return composed(composer(self.write), value)


Spelling = Callable[[Layer], str | tuple[str, ...]]
"""Writes a layer; the value or values that it gives."""


_COMPOSED: Mapping[str, Callable[[Compose, str], str]] = {
    "gelu": formulas.gelu,
    "hard_sigmoid": formulas.hard_sigmoid,
    "mish": formulas.mish,
    "selu": formulas.selu,
    "silu": formulas.swish,
    "softsign": formulas.softsign,
    "swish": formulas.swish,
}
"""Gelu is exact by name, in layers too."""
