# SPDX-License-Identifier: Apache-2.0
"""Context of the converter of a Keras layer: settings, weights and operands of one call, Keras's activations, and tables of
converters.

A converter's parameters (:mod:`microc.frontend.signature`) are the operands of the layer's call, then the arrays of its
weights in Keras's order, then its settings and the other arguments of the call, with Keras's names and defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, NoReturn, Protocol

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError
from microc.frontend.graph_builder import GraphBuilder, make_operator_emitter
from microc.frontend.operator_context import CallContext, NamedArguments
from microc.frontend.signature import REQUIRED, BoundConverter, Floats, Only, PresentIf, Value
from microc.ops.arithmetic import ACTIVATION_FUNCTIONS

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


@frozen
class OpContext(CallContext):
    """Context of the converter of one call of a Keras layer.

    ``builder`` is the builder of the graph, ``operator_name`` the layer's class, ``config`` its configuration, ``weights`` its
    weights in the file. ``operands`` are names of values of the graph, or numbers in arithmetic on a tensor and a number.
    ``kwargs`` are the keyword arguments of the call. ``converters`` is the table of all converters, for layers that wrap
    other layers. ``inputs`` are the operands and the arrays of weights by the names of the converter's parameters."""

    builder: GraphBuilder
    operator_name: str
    config: Mapping[str, Any]
    weights: LayerWeights
    operands: Sequence[Any]
    kwargs: Mapping[str, Any]
    converters: Mapping[str, Converter]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    constant_hint: ClassVar[str] = "make it a weight of the layer"

    def broken(self, what: str) -> NoReturn:
        """Raise UnsupportedError for a setting or an operand: Keras has built the layer, hence it is valid."""
        self.refuse(what, "change the layer's settings, or build it from other layers")

    # ---- Operands, weights and settings.

    @property
    def attributes(self) -> NamedArguments:
        """Settings of the layer, and the keyword arguments of its call."""
        return NamedArguments({**self.kwargs, **self.config})

    def input_count(self) -> int:
        """Return the number of operands."""
        return len(self.operands)

    def has_input(self, name: str) -> bool:
        """Test whether the layer has the operand or weight that a converter calls ``name``."""
        return self.inputs.get(name) is not None

    def value(self, input_key: int | str) -> Value:
        """Return an operand, by its index or by its name in the converter; a number becomes a constant."""
        operand = self.operands[input_key] if isinstance(input_key, int) else self.inputs[input_key]
        return self.look_up(operand) if isinstance(operand, str) else self.scalar(float(operand))

    def constant(self, weight_name: str) -> Array:
        """Return the array of the weight that the converter calls ``weight_name``."""
        array: Array = self.inputs[weight_name]
        return array

    # ---- Values and nodes of the graph.

    def add_weight(self, stem: str, array: Array) -> Value:
        """Add a float32 constant; its name is made unique from ``stem``."""
        return self.new_constant(stem, np.ascontiguousarray(array, np.float32))

    def scalar(self, number: float) -> Value:
        """Add a float32 constant of shape ()."""
        return self.look_up(self.builder.scalar(number))

    def emit_activation(self, input_value: str, activation: Any) -> Value:
        """Apply an activation function to ``input_value``; return the result.

        ``activation``: see :meth:`resolve_activation`."""
        name, parameters = self.resolve_activation(activation)
        emit_function = ACTIVATION_FUNCTIONS[name].emit
        return self.look_up(emit_function(make_operator_emitter(self.builder), input_value, *parameters))

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

    def convert_inner_layer(self, layer_json: Mapping[str, Any], weights: LayerWeights, operand: str) -> Value:
        """Convert a layer that this layer wraps, called on ``operand``; return its only result.

        ``layer_json``: class name and configuration of the wrapped layer."""
        class_name = layer_json["class_name"]
        converter = self.converters.get(class_name)
        if converter is None:
            self.refuse(f"layer: {class_name} is not supported", "use a layer that `microc operators` lists")
        inner = replace(
            self, operator_name=class_name, config=layer_json["config"], weights=weights, operands=(operand,), kwargs={}
        )
        result = converter(inner)
        if not isinstance(result, str):
            self.refuse("a wrapped layer with several results is not supported", "wrap a layer with one result")
        return self.look_up(result)


Converter = Callable[[OpContext], str | tuple[str, ...]]
"""Type of a converter: a function that appends the nodes of a layer. It returns the name of the result, or a tuple of
names."""

# ---- Signatures of converters: weights, and settings that many layers have.


def has_int8_weights(context: OpContext) -> bool:
    """Test whether Keras quantised the layer with ``quantize("int8")``.

    The weights are integers then, and the last of the layer's arrays contains the factors by which they were
    multiplied."""
    return read_dtype(context.config) == "int8"


def present_if(setting_name: str, default: bool = True) -> PresentIf:
    """Return the marker of a weight that a layer has only if a setting of it is true."""
    return PresentIf(lambda context: bool(context.config.get(setting_name, default)))


Bias = Annotated[Array | None, present_if("use_bias")]
Gamma = Annotated[Array | None, present_if("scale")]
Beta = Annotated[Array | None, present_if("center")]
Int8Factors = Annotated[Array | None, PresentIf(has_int8_weights)]
ChannelsLast = Annotated[str, Only("channels_last", "build it with data_format='channels_last'")]


@dataclass(frozen=True)
class LayerConverter(BoundConverter):
    """A converter together with its signature. ``weights_of``: attribute name of the inner layer that has the weights;
    empty if it is the layer itself."""

    weights_of: str = ""

    def __call__(self, context: OpContext) -> Any:
        return super().__call__(replace(context, inputs=self._bind_inputs(context)))

    def _bind_inputs(self, context: OpContext) -> dict[str, Any]:
        """Return the operands of a call and the arrays of its weights by the names of the converter's parameters.

        Raise an error if their numbers are not those that the signature declares, or if the call has an argument that
        the signature does not declare, such as a mask."""
        signature = self.signature
        operands = [operand for operand in signature.operands if operand.method != "constant"]
        names = [operand.name for operand in operands]
        undeclared = context.kwargs.keys() - {*names, *(a.name for a in signature.attributes), "training"}
        for name in sorted(undeclared):
            context.refuse(f"argument {name} of the call is not supported", f"call the layer without {name}")
        inputs = {**context.kwargs, **dict(zip(names, context.operands, strict=False))}
        is_missing = any(o.default is REQUIRED and o.name not in inputs for o in operands if not o.is_variadic)
        if is_missing or (len(context.operands) > len(operands) and not signature.is_variadic):
            context.refuse(
                f"got {len(context.operands)} operands, expected {', '.join(names)}",
                "call the layer on these tensors, by position",
            )
        weights = [
            o for o in signature.operands if o.method == "constant" and (o.is_present is None or o.is_present(context))
        ]
        if len(operands) == len(signature.operands):  # arrays of the layer are for training, or read by its converter
            return inputs
        inner = context.weights.weights_of_inner_layer(self.weights_of) if self.weights_of else context.weights
        arrays = inner.arrays()
        if len(arrays) != len(weights):
            listed = ", ".join(weight.name for weight in weights)
            what = f"weights: got {len(arrays)} arrays, expected {len(weights)}" + f" ({listed})" * bool(weights)
            raise ModelError(what, where=context.where)
        return inputs | {weight.name: array for weight, array in zip(weights, arrays, strict=True)}
