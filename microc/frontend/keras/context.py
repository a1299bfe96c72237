"""One call of a Keras layer as its converter sees it, and Keras's activations."""

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
    """Return a layer's dtype, which its configuration gives by name or as a policy; for a quantised layer the quantised
    dtype."""
    dtype = config.get("dtype", "float32")
    if isinstance(dtype, str):
        return dtype
    return str(dtype["config"].get("mode") or dtype["config"]["name"])


class Weights(Protocol):
    """The weights that a file has for a model."""

    def layers(self, layers: Sequence[Mapping[str, Any]]) -> Mapping[str, LayerWeights]:
        """Return the weights of each layer, by its name."""


class LayerWeights(Weights, Protocol):
    """The weights that a file holds for a layer; the layer may itself be a model."""

    def arrays(self) -> tuple[Array, ...]:
        """Return the layer's variables, in Keras's order."""

    @property
    def path(self) -> str:
        """A path that identifies the layer among all layers of the file."""

    def inside(self, part_name: str) -> LayerWeights:
        """Return the weights of the layer's part ``part_name``, such as a cell or a wrapped layer."""


@dataclass(frozen=True)
class Layer:
    """One call of a layer.

    ``operands``: values of the graph, or numbers in arithmetic. ``weights``: the layer's weights in the file.
    ``converters``: the table of converters, for layers that wrap others."""

    write: GraphBuilder
    code: str
    config: Mapping[str, Any]
    weights: LayerWeights
    operands: Sequence[Any]
    kwargs: Mapping[str, Any]
    converters: Mapping[str, Converter]

    def refuse(self, what: str, hint: str) -> NoReturn:
        """Raise UnsupportedError, with the layer's class and position."""
        raise UnsupportedError(f"{self.code}: {what}", where=self.write.where, hint=hint)

    @property
    def has_int8_weights(self) -> bool:
        """True if Keras quantised the weights by ``quantize("int8")``.

        They are then integers, and the last arrays are their scale factors."""
        return dtype_of(self.config) == "int8"

    @property
    def x(self) -> str:
        """The layer's only operand."""
        return str(self.operands[0])

    def shape(self, value: str = "") -> tuple[int, ...]:
        """Return the shape of ``value`` (default: the only operand)."""
        return self.write.shape(value or self.x)

    def arrays(self, array_count: int) -> tuple[Array, ...]:
        """Return the layer's weights; raise ModelError unless they are ``array_count`` arrays."""
        arrays = self.weights.arrays()
        if len(arrays) != array_count:
            raise ModelError(f"got {len(arrays)} weights, expected {array_count}", where=self.write.where)
        return arrays

    def pair(self, setting_name: str, axis_count: int = 2) -> tuple[int, ...]:
        """Return a setting of the layer, such as its strides, with one number for each of ``axis_count`` spatial axes."""
        setting = self.config.get(setting_name)
        return (
            (int(setting),) * axis_count
            if isinstance(setting, int)
            else tuple(int(n) for n in setting or (1,) * axis_count)
        )

    def require_channels_last(self) -> None:
        """Refuse data with channels first."""
        if self.config.get("data_format", "channels_last") != "channels_last":
            self.refuse("data with channels first", "build the model with data_format='channels_last'")

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS) -> str:
        return self.write.emit(op, inputs, attrs)

    def constant(self, stem: str, array: Array) -> str:
        """Add a float32 constant under a new name made from ``stem``."""
        return self.write.new_constant(stem, np.ascontiguousarray(array, np.float32))

    def scalar(self, number: float) -> str:
        return self.write.scalar(number)

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        return self.write.reshape(value, shape)

    def activate(self, value: str, name: str = "activation") -> str:
        """Return the value after the layer's activation."""
        return self.apply_activation(value, self.config.get(name))

    def apply_activation(self, input_value: str, activation: Any) -> str:
        """Return the value after an activation, given by name or as a configuration."""
        if isinstance(activation, Mapping):
            activation = (
                activation["config"] if isinstance(activation.get("config"), str) else activation.get("class_name")
            )
        if activation in (None, "linear"):
            return input_value
        if activation in _PLAIN:
            op, attrs = _PLAIN[activation]
            return self.emit(op, (input_value,), attrs)
        formula = _COMPOSED.get(str(activation))
        if formula is None:
            self.refuse(f"the activation {activation!r}", "use linear, " + ", ".join(sorted({*_PLAIN, *_COMPOSED})))
        return formula(composer(self.write), input_value)


Converter = Callable[[Layer], str | tuple[str, ...]]
"""Type of a converter: it writes a layer and returns its value or values."""


_COMPOSED: Mapping[str, Callable[[Compose, str], str]] = {
    "gelu": formulas.gelu,
    "hard_sigmoid": formulas.hard_sigmoid,
    "mish": formulas.mish,
    "selu": formulas.selu,
    "silu": formulas.swish,
    "softsign": formulas.softsign,
    "swish": formulas.swish,
}
"""Activations that are several operators. Gelu is exact when given by name, in layers too."""
