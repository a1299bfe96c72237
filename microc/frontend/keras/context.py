# SPDX-License-Identifier: Apache-2.0
"""Context of the converter of a Keras layer: configuration, weights and operands of one call, and Keras's
activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np

from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend.graph_builder import GraphBuilder, make_operator_emitter
from microc.frontend.signature import Floats
from microc.graph.ir import Attr
from microc.ops.arithmetic import ACTIVATION_FUNCTIONS

_NO_ATTRS: Mapping[str, Attr] = {}
_ACTIVATIONS: Mapping[str, tuple[str, Floats]] = {
    "elu": ("elu", (1.0,)),
    "exponential": ("exp", ()),
    "gelu": ("gelu", ()),
    "hard_sigmoid": ("hard_sigmoid", (1 / 6, 0.5)),
    "hard_silu": ("hard_swish", ()),
    "hard_swish": ("hard_swish", ()),
    "leaky_relu": ("leaky_relu", (0.2,)),
    "linear": ("linear", ()),
    "mish": ("mish", ()),
    "relu": ("relu", ()),
    "relu6": ("relu6", ()),
    "selu": ("selu", ()),
    "sigmoid": ("sigmoid", ()),
    "silu": ("swish", ()),
    "softmax": ("softmax", ()),
    "softplus": ("softplus", ()),
    "softsign": ("softsign", ()),
    "swish": ("swish", ()),
    "tanh": ("tanh", ()),
}
"""microc's activation function and its parameters, by Keras's name. ``gelu`` is the exact function, not the approximation by
tanh."""


def read_dtype(config: Mapping[str, Any]) -> str:
    """Return the dtype of a layer from its configuration, which contains a name or a dtype policy.

    For a layer that Keras quantised, return the quantised dtype, such as ``int8``."""
    dtype = config.get("dtype", "float32")
    if isinstance(dtype, str):
        return dtype
    return str(dtype["config"].get("mode") or dtype["config"]["name"])


class ModelWeights(Protocol):
    """Interface of the weights of a model in a file."""

    def weights_by_layer(self, layer_configs: Sequence[Mapping[str, Any]]) -> Mapping[str, LayerWeights]:
        """Return the weights of each layer of a model, by the layer's name. ``layer_configs``: configurations of the
        layers."""


class LayerWeights(ModelWeights, Protocol):
    """Interface of the weights of a layer in a file. The layer may itself be a model with layers."""

    def arrays(self) -> tuple[Array, ...]:
        """Return the arrays of the layer's variables, in Keras's order."""

    @property
    def path(self) -> str:
        """Path of the layer in the file. It is different for every layer."""

    def weights_of_inner_layer(self, part_name: str) -> LayerWeights:
        """Return the weights of a layer inside of this layer, such as a cell or a wrapped layer, by its attribute
        name."""


@dataclass(frozen=True)
class LayerContext:
    """Context of the converter of one call of a Keras layer.

    ``builder`` is the builder of the graph, ``class_name`` the layer's class, ``config`` its configuration, ``weights``
    its weights in the file. ``operands`` are names of values of the graph, or numbers in arithmetic on a tensor and a
    number. ``kwargs`` are the keyword arguments of the call. ``converters`` is the table of all converters, for layers
    that wrap other layers."""

    builder: GraphBuilder
    class_name: str
    config: Mapping[str, Any]
    weights: LayerWeights
    operands: Sequence[Any]
    kwargs: Mapping[str, Any]
    converters: Mapping[str, Converter]

    def refuse(self, what: str, hint: str) -> NoReturn:
        """Raise UnsupportedError with the layer's class and location: microc does not support ``what``."""
        raise UnsupportedError(f"{self.class_name}: {what}", where=self.builder.where, hint=hint)

    @property
    def has_int8_weights(self) -> bool:
        """True if Keras quantised the layer with ``quantize("int8")``.

        The weights are integers then, and the last of the layer's arrays contains the factors by which they were
        multiplied."""
        return read_dtype(self.config) == "int8"

    @property
    def first_operand(self) -> str:
        """Name of the value that is the layer's first operand."""
        return str(self.operands[0])

    def shape(self, value: str = "") -> tuple[int, ...]:
        """Return the shape of ``value``, by default of the layer's first operand."""
        return self.builder.shape(value or self.first_operand)

    def read_weight_arrays(self, array_count: int) -> tuple[Array, ...]:
        """Return the arrays of the layer's weights; ModelError if their number is not ``array_count``."""
        arrays = self.weights.arrays()
        if len(arrays) != array_count:
            raise ModelError(f"weights: got {len(arrays)} arrays, expected {array_count}", where=self.builder.where)
        return arrays

    def read_setting_per_axis(self, setting_name: str, axis_count: int = 2) -> tuple[int, ...]:
        """Return a setting of the layer, such as its strides, as one number for each of ``axis_count`` spatial axes.

        An absent setting is 1 for every axis."""
        setting = self.config.get(setting_name)
        return (
            (int(setting),) * axis_count
            if isinstance(setting, int)
            else tuple(int(n) for n in setting or (1,) * axis_count)
        )

    def require_channels_last(self) -> None:
        """Refuse the layer if its data format is channels first."""
        if self.config.get("data_format", "channels_last") != "channels_last":
            self.refuse(
                "data_format: got 'channels_first', expected 'channels_last'",
                "build it with data_format='channels_last'",
            )

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS) -> str:
        return self.builder.emit(op, inputs, attrs)

    def add_constant(self, stem: str, array: Array) -> str:
        """Add a float32 constant; return its name, which is made unique from ``stem``."""
        return self.builder.new_constant(stem, np.ascontiguousarray(array, np.float32))

    def scalar(self, number: float) -> str:
        return self.builder.scalar(number)

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        return self.builder.reshape(value, shape)

    def emit_configured_activation(self, value: str, setting_name: str = "activation") -> str:
        """Apply the activation function that the setting ``setting_name`` contains to ``value``; return the result."""
        return self.emit_activation(value, self.config.get(setting_name))

    def emit_activation(self, input_value: str, activation: Any) -> str:
        """Apply an activation function to ``input_value``; return the result.

        ``activation``: see :meth:`resolve_activation`."""
        name, parameters = self.resolve_activation(activation)
        return ACTIVATION_FUNCTIONS[name].emit(make_operator_emitter(self.builder), input_value, *parameters)

    def resolve_activation(self, activation: Any) -> tuple[str, Floats]:
        """Return microc's name of an activation function, and its parameters.

        ``activation``: a name, a configuration with a class name, or None for no activation."""
        if isinstance(activation, Mapping):
            activation = (
                activation["config"] if isinstance(activation.get("config"), str) else activation.get("class_name")
            )
        function = _ACTIVATIONS.get("linear" if activation is None else str(activation))
        if function is None:
            self.refuse(f"activation {activation!r} is not supported", "use " + ", ".join(sorted(_ACTIVATIONS)))
        return function


Converter = Callable[[LayerContext], str | tuple[str, ...]]
"""Type of a converter: a function that appends the nodes of a layer. It returns the name of the result, or a tuple of
names."""
