# SPDX-License-Identifier: Apache-2.0
"""Reader of Keras models: converts Sequential and Functional models, also nested ones, layer by layer to a graph.

Neither Keras nor a backend is imported. Data is channels last. The batch is 1 unless ``input_shapes`` contains another
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from microc.base import dtypes
from microc.errors import ModelError, UnsupportedError, UsageError
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.keras import file as keras_file
from microc.frontend.keras import operators_layers, operators_merge
from microc.frontend.keras.context import LayerWeights, ModelWeights, OpContext, read_dtype
from microc.frontend.model_limits import HDF5_MAGIC
from microc.frontend.signature import merge_converters
from microc.graph.ir import Graph

CONVERTERS = merge_converters(operators_layers.CONVERTERS.by_name, operators_merge.CONVERTERS.by_name)
"""Converters by the class name of the layer."""

MODELS = ("Functional", "Model", "Sequential")
EVERY_INPUT = "*"
_QUANTISED = ("int", "float8", "gptq", "awq")
_CODE = ("Lambda", "SlicingOpLambda", "TFOpLambda", "TorchModuleWrapper")
_INT8_LAYERS = ("Dense", "Embedding")
"""Classes of layers whose int8 weights, quantised by Keras, microc reads."""


_CONFIGURATION_ERRORS = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError)
"""Errors of configurations that lack entries or have others than Keras writes. A text in place of a list of operands contains
itself."""


def read_keras(data: bytes, file_name: str, input_shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """Read the network in ``data``, the bytes of a ``.keras`` file or of a whole model in HDF5; return it as a graph.

    ``input_shapes`` maps names of inputs, or ``"*"`` for all inputs, to shapes, which bind unknown extents. Outputs
    have the model's order, and the names of their layers or of the keys if the model returns a dictionary. Raises
    ModelError for a corrupt file, UnsupportedError, which lists all layers that cannot be converted, UsageError for
    shapes that contradict the declared ones.
    """
    config, weights = read_config(data, file_name)
    reader = _ModelReader(file_name, input_shapes)
    try:
        return reader.read_graph(config, weights)
    except _CONFIGURATION_ERRORS as error:
        raise _broken_configuration(error, reader.builder.where) from error


def read_config(data: bytes, file_name: str) -> tuple[dict[str, Any], ModelWeights]:
    """Decode a ``.keras`` or HDF5 file from its bytes; return the model's configuration, in Keras 3's format, and its
    weights."""
    if data.startswith(HDF5_MAGIC):
        return keras_file.decode_hdf5_model(data, file_name)
    config, weights = keras_file.decode_keras_archive(data, file_name)
    try:
        return keras_file.convert_keras2_config(config), weights
    except _CONFIGURATION_ERRORS as error:
        raise _broken_configuration(error, file_name) from error


def _broken_configuration(error: Exception, where: str) -> ModelError:
    """Return the error for a configuration that lacks an entry, or has one of another type."""
    what = f"the entry {error} is missing" if isinstance(error, KeyError) else str(error)
    hint = "save the model again: model.save('model.keras')"
    return ModelError(f"the configuration is broken: {what}", where=where, hint=hint)


def read_declared_input_shapes(data: bytes, file_name: str) -> dict[str, tuple[int | None, ...]]:
    """Return the declared shapes of a Keras model's inputs, by input name. An unknown extent is None.

    ModelError for a corrupt file."""
    config, _ = read_config(data, file_name)
    try:
        layers = [layer["config"] for layer in config["config"]["layers"] if layer["class_name"] == "InputLayer"]
        shapes = {str(own["name"]): own.get("batch_shape") or own.get("batch_input_shape") for own in layers}
        shapes = shapes or {"input": config.get("build_config", {}).get("input_shape")}
        return {name: tuple(shape) for name, shape in shapes.items() if shape is not None}
    except _CONFIGURATION_ERRORS as error:
        raise _broken_configuration(error, file_name) from error


class _ModelReader:
    """Reader that converts the layers of one model to one graph.

    ``requested_shapes`` contains the shapes that the caller requests for inputs. ``refusals`` collects the errors of
    layers that cannot be converted. ``index`` counts the converted layers."""

    def __init__(self, file: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.file, self.requested_shapes = file, shapes
        self.builder = GraphBuilder(file)
        self.refusals: list[UnsupportedError] = []
        self.index = 0

    def read_graph(self, config: Mapping[str, Any], weights: ModelWeights) -> Graph:
        """Convert the whole network to a graph; UnsupportedError lists all layers that cannot be converted."""
        if config["class_name"] not in MODELS:
            raise UnsupportedError(
                f"a model of class {config['class_name']!r} is not supported",
                where=self.file,
                hint="build it as a Sequential or a Functional model",
            )
        unknown = [
            name for name in self.requested_shapes if name != EVERY_INPUT and name not in self.list_input_names(config)
        ]
        if unknown:
            known = ", ".join(self.list_input_names(config))
            raise UsageError(
                f"the model has no input {unknown[0]!r}", where=self.file, hint=f"use one of its inputs: {known}"
            )
        outputs = self.convert_model(config, weights, None)
        if self.refusals:
            raise _combine_errors(self.file, self.refusals)
        named: dict[str, str] = {}
        for name, value in outputs:
            named[name if name not in named else f"{name}_{len(named)}"] = value
        return self.builder.graph(str(config["config"].get("name", self.file)), named)

    def list_input_names(self, config: Mapping[str, Any]) -> list[str]:
        """Return the names of a model's inputs: those of its input layers, or ``input`` if there are none."""
        layers = config["config"]["layers"]
        return [layer["config"]["name"] for layer in layers if layer["class_name"] == "InputLayer"] or ["input"]

    def convert_model(
        self, config: Mapping[str, Any], weights: ModelWeights, call_arguments: Sequence[str] | None
    ) -> list[tuple[str, str]]:
        """Convert the whole model, or a model that is a layer of another one; return its outputs as pairs (name,
        value).

        ``call_arguments``: values of the graph on which a nested model is called; None for the whole model."""
        for layer in config["config"]["layers"]:
            name = layer["config"]["name"]
            if not isinstance(name, str) or not name:
                raise ModelError(f"layer name: got {name!r}, expected a text that is not empty", where=self.file)
        if config["class_name"] == "Sequential":
            return self.convert_sequential(config, weights, call_arguments)
        return self.convert_functional(config["config"], weights, call_arguments)

    def convert_sequential(
        self, config: Mapping[str, Any], weights: ModelWeights, call_arguments: Sequence[str] | None
    ) -> list[tuple[str, str]]:
        """Convert a Sequential model; return a list with its output as a pair (name, value).

        The list is empty if a layer cannot be converted."""
        layers = config["config"]["layers"]
        layer_weights = weights.weights_by_layer(layers)
        value = call_arguments[0] if call_arguments is not None else None
        name = ""
        for layer in layers:
            name = layer["config"]["name"]
            if layer["class_name"] == "InputLayer":
                value = value or self.add_declared_input(layer)
                continue
            if value is None:
                value = self.add_implicit_input(config)
            results = self.convert_layer(layer, layer_weights[name], [value], {})
            if results is None:
                return []
            value = results[0]
        if value is None:
            raise ModelError("got a model without layers, expected at least one", where=self.file)
        return [(name, value)]

    def add_implicit_input(self, config: Mapping[str, Any]) -> str:
        """Add the input of a Sequential model that has no input layer to the graph; return its name."""
        shape = config.get("build_config", {}).get("input_shape")
        if shape is None:
            raise UnsupportedError(
                "input shape: the file contains none, because the model was saved before it was built",
                where=self.file,
                hint="build it, or give it an Input layer",
            )
        return self.add_bound_input("input", shape, "float32")

    def add_declared_input(self, layer_json: Mapping[str, Any]) -> str:
        """Add the input that an input layer declares to the graph; return its name."""
        config = layer_json["config"]
        shape = config.get("batch_shape") or config.get("batch_input_shape")
        return self.add_bound_input(config["name"], shape, read_dtype(config))

    def add_bound_input(self, input_name: str, declared_extents: Sequence[int | None], dtype: str) -> str:
        """Add the input ``input_name`` to the graph; return its name.

        ``declared_extents``: its shape in the configuration; an unknown extent is None and is bound by the requested
        shape. UsageError if the requested shape contradicts the declared one; UnsupportedError if extents remain
        unknown."""
        given = self.requested_shapes.get(input_name, self.requested_shapes.get(EVERY_INPUT))
        shape = tuple(given) if given is not None else (declared_extents[0] or 1, *declared_extents[1:])
        fits = len(shape) == len(declared_extents) and all(
            s and d in (None, s) for s, d in zip(shape, declared_extents, strict=True)
        )
        if not fits:
            declared_text = ", ".join("?" if extent is None else str(extent) for extent in declared_extents)
            hint = f"give a shape that fits ({declared_text}) with --input-shape {input_name}=1,..."
            if given is None:
                raise UnsupportedError(f"the shape of input {input_name!r} is not known", where=self.file, hint=hint)
            raise UsageError(f"got shape {shape}, which does not fit input {input_name!r}", where=self.file, hint=hint)
        if not dtypes.is_valid(dtype):
            raise UnsupportedError(
                f"input {input_name!r}: dtype {dtype} is not supported, expected float32",
                where=self.file,
                hint="give the input dtype float32",
            )
        return self.builder.input(input_name, [int(extent) for extent in shape if extent is not None], dtype)

    def convert_functional(
        self, config: Mapping[str, Any], weights: ModelWeights, call_arguments: Sequence[str] | None
    ) -> list[tuple[str, str]]:
        """Convert a Functional model; return its outputs as pairs (name, value).

        A layer may be called several times. Each call is converted as soon as all of its operands are converted."""
        layer_weights = weights.weights_by_layer(config["layers"])
        values: dict[tuple[str, int, int], str] = {}
        entries = _list_tensor_keys(config["input_layers"])
        inputs = {layer["config"]["name"]: layer for layer in config["layers"] if layer["class_name"] == "InputLayer"}
        if call_arguments is None:
            call_arguments = [self.add_declared_input(inputs[name]) for name, _, _ in entries]
        values.update(zip(entries, call_arguments, strict=True))
        # ``pending`` has one entry for each call of a layer. The file lists calls by layer, not in order of execution: the second
        # call of a shared layer may depend on later layers. Therefore the loop passes over the pending calls until none is left.
        pending = []
        for layer in config["layers"]:
            if layer["class_name"] == "InputLayer":
                continue
            pending += [(layer, call, inbound) for call, inbound in enumerate(layer["inbound_nodes"])]
        failed: set[tuple[str, int]] = set()
        while pending:
            rest = []
            for layer, call, inbound in pending:
                name, needed = layer["config"]["name"], _list_operand_keys(inbound)
                if any(key[:2] in failed for key in needed):  # skipped silently: the refusal that caused it is reported
                    failed.add((name, call))
                elif all(key in values for key in needed):
                    results = self.convert_call(layer, layer_weights[name], inbound, values)
                    values.update({(name, call, k): value for k, value in enumerate(results or ())})
                    failed |= set() if results is not None else {(name, call)}
                else:
                    rest.append((layer, call, inbound))
            if len(rest) == len(pending):  # a pass without progress: the calls depend on each other, or on none
                raise _unresolved_inputs(rest, f"{self.file} {rest[0][0]['config']['name']}")
            pending = rest
        # If the model returns a dictionary, its keys are the names of the outputs, unless it is nested. Outputs of layers that
        # could not be converted have no value.
        output_layers = config["output_layers"]
        keys = _list_tensor_keys(output_layers)
        labels = (
            list(output_layers)
            if isinstance(output_layers, dict) and len(output_layers) == len(keys)
            else [key[0] for key in keys]
        )
        return [(label, values[key]) for label, key in zip(labels, keys, strict=True) if key in values]

    def convert_call(
        self,
        layer_json: Mapping[str, Any],
        weights: LayerWeights,
        inbound_node: Mapping[str, Any],
        values_by_tensor: Mapping[Any, str],
    ) -> list[str] | None:
        """Convert one call of a layer; return its results, or None if the layer cannot be converted.

        ``inbound_node``: arguments of the call in the configuration. ``values_by_tensor``: values of the graph, by the
        keys (layer, call, tensor) by which arguments refer to tensors."""
        args = _replace_tensor_references(inbound_node["args"], values_by_tensor)
        kwargs = {
            key: _replace_tensor_references(value, values_by_tensor)
            for key, value in inbound_node.get("kwargs", {}).items()
            if value is not None
        }
        operands = args[0] if len(args) == 1 and isinstance(args[0], list) else args
        return self.convert_layer(layer_json, weights, operands, kwargs)

    def convert_layer(
        self, layer_json: Mapping[str, Any], weights: LayerWeights, operands: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[str] | None:
        """Convert a layer that is called on ``operands``; return its results.

        If the layer cannot be converted, record the error in ``refusals`` and return None."""
        config, code = layer_json["config"], layer_json["class_name"]
        if code in MODELS:
            count = len(self.refusals)
            values = [value for _, value in self.convert_model(layer_json, weights, operands)]
            return values if len(self.refusals) == count else None
        self.builder.at(self.index, config["name"])
        self.index += 1
        try:
            converter = CONVERTERS.get(code)
            if converter is None:
                hint = "build it from layers: code in a model is not run" if code in _CODE else ""
                raise UnsupportedError(f"the layer {code} is unknown to microc", where=self.builder.where, hint=hint)
            policy = read_dtype(config)
            if policy.startswith(_QUANTISED) and not (policy == "int8" and code in _INT8_LAYERS):
                raise UnsupportedError(
                    f"dtype policy {policy!r}: this quantisation of Keras is not supported",
                    where=self.builder.where,
                    hint="save the model before quantize(), or quantise only Dense and Embedding, to int8",
                )
            result = converter(OpContext(self.builder, code, config, weights, tuple(operands), kwargs, CONVERTERS))
            return list(result) if isinstance(result, tuple) else [result]
        except UnsupportedError as error:
            self.refusals.append(error)
            return None


def _list_tensor_keys(entries: Any) -> list[tuple[str, int, int]]:
    """Return the keys (layer, call, tensor) of all tensors in a model's list or dictionary of inputs or outputs, also
    nested."""
    if isinstance(entries, dict):
        return [key for entry in entries.values() for key in _list_tensor_keys(entry)]
    if len(entries) == 3 and isinstance(entries[0], str):
        return [(entries[0], int(entries[1]), int(entries[2]))]
    return [key for entry in entries for key in _list_tensor_keys(entry)]


def _unresolved_inputs(pending: Sequence[tuple[Mapping[str, Any], int, Any]], where: str) -> ModelError:
    """Return the error for calls of layers whose operands no call computes. ``pending``: layers, numbers of their calls and
    operands, as the configuration has them."""
    calls = {(layer["config"]["name"], call) for layer, call, _ in pending}
    needed = {key[:2] for _, _, inbound in pending for key in _list_operand_keys(inbound)}
    for name, call in sorted(needed - calls):
        what = f"the layer reads the output of call {call} of {name!r}, expected an output of a layer of the model"
        return ModelError(what, where=where)
    return ModelError("the layer's inputs depend on its own output, expected layers without a cycle", where=where)


def _list_operand_keys(call_arguments: Any) -> list[tuple[str, int, int]]:
    """Return the keys (layer, call, tensor) of all tensors that the arguments of a call refer to."""
    if isinstance(call_arguments, dict):
        if call_arguments.get("class_name") == "__keras_tensor__":
            return _list_tensor_keys(call_arguments["config"]["keras_history"])
        return [key for value in call_arguments.values() for key in _list_operand_keys(value)]
    return (
        [key for value in call_arguments for key in _list_operand_keys(value)]
        if isinstance(call_arguments, list)
        else []
    )


def _replace_tensor_references(call_arguments: Any, values_by_tensor: Mapping[Any, str]) -> Any:
    """Return call arguments with references to tensors replaced by names of values of the graph."""
    if isinstance(call_arguments, dict) and call_arguments.get("class_name") == "__keras_tensor__":
        return values_by_tensor[_list_tensor_keys(call_arguments["config"]["keras_history"])[0]]
    return (
        [_replace_tensor_references(value, values_by_tensor) for value in call_arguments]
        if isinstance(call_arguments, list)
        else call_arguments
    )


def _combine_errors(file: str, refusals: Sequence[UnsupportedError]) -> UnsupportedError:
    """Combine the errors of all layers that cannot be converted into one."""
    if len(refusals) == 1:
        return refusals[0]
    lines = [f"{e.where}: {e.what}" + (f" (help: {e.hint})" if e.hint else "") for e in refusals]
    return UnsupportedError(f"{len(refusals)} layers are not supported:\n  " + "\n  ".join(lines), where=file)
