"""The Keras reader: Sequential and Functional models, nested too, layer by layer. Neither Keras nor a backend is needed.

Data is channels last. The batch is 1 unless ``input_shapes`` gives another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from microc.base import dtypes
from microc.errors import ModelError, UnsupportedError, UsageError
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.keras import file as keras_file
from microc.frontend.keras import file as legacy
from microc.frontend.keras import operators_layers as keras_layers
from microc.frontend.keras import operators_layers as keras_normalisation
from microc.frontend.keras import operators_merge as keras_attention
from microc.frontend.keras import operators_merge as keras_merge
from microc.frontend.keras import operators_recurrent as keras_recurrent
from microc.frontend.keras.context import Converter, Layer, LayerWeights, Weights, dtype_of
from microc.frontend.model_limits import HDF5_MAGIC
from microc.graph.ir import Graph

CONVERTERS: Mapping[str, Converter] = {
    **keras_attention.ATTENTION_CONVERTERS,
    **keras_layers.LAYER_CONVERTERS,
    **keras_merge.MERGE_CONVERTERS,
    **keras_normalisation.NORMALISATION_CONVERTERS,
    **keras_recurrent.RECURRENT_CONVERTERS,
}
"""Converters by the class of the layer."""

MODELS = ("Functional", "Model", "Sequential")
EVERY_INPUT = "*"
_QUANTISED = ("int", "float8", "gptq", "awq")
_CODE = ("Lambda", "SlicingOpLambda", "TFOpLambda", "TorchModuleWrapper")
_INT8_LAYERS = ("Dense", "Embedding")
"""Layers whose weights Keras may quantise to int8."""


def read_keras(data: bytes, file_name: str, input_shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """Read the network of a ``.keras`` file, or of a whole model in HDF5.

    ``input_shapes`` binds unknown extents by the input's name, or ``"*"`` for all. Outputs keep the model's order and are named
    after their layers, or by the keys of a dictionary of outputs. Raises ModelError for a broken file, UnsupportedError, which
    lists all layers that cannot be converted, UsageError for shapes that do not fit.
    """
    config, weights = read_config(data, file_name)
    reader = _ModelReader(file_name, input_shapes)
    try:
        return reader.graph(config, weights)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise ModelError(f"the configuration is broken: {error!r}", where=reader.write.where) from error


def read_config(data: bytes, file_name: str) -> tuple[dict[str, Any], Weights]:
    """Return the configuration and the weights of a file of either format."""
    if data.startswith(HDF5_MAGIC):
        return legacy.decode_hdf5_model(data, file_name)
    config, weights = keras_file.decode_keras_archive(data, file_name)
    return legacy.modernise_config(config), weights


def declared_inputs(data: bytes, file_name: str) -> dict[str, tuple[int | None, ...]]:
    """Return the extents of a Keras model's inputs by name, None for unknown ones; ModelError for a broken file."""
    config, _ = read_config(data, file_name)
    try:
        layers = [layer["config"] for layer in config["config"]["layers"] if layer["class_name"] == "InputLayer"]
        shapes = {str(own["name"]): own.get("batch_shape") or own.get("batch_input_shape") for own in layers}
        shapes = shapes or {"input": config.get("build_config", {}).get("input_shape")}
        return {name: tuple(shape) for name, shape in shapes.items() if shape is not None}
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"the configuration is broken: {error!r}", where=file_name) from error


class _ModelReader:
    """Reader that converts a model's layers to one graph. ``refusals``: the errors of layers that cannot be converted."""

    def __init__(self, file: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.file, self.shapes = file, shapes
        self.write = GraphBuilder(file)
        self.refusals: list[UnsupportedError] = []
        self.index = 0

    def graph(self, config: Mapping[str, Any], weights: Weights) -> Graph:
        """Return the graph of the whole network."""
        if config["class_name"] not in MODELS:
            raise UnsupportedError(
                f"a model of class {config['class_name']!r} is not supported",
                where=self.file,
                hint="build it as a Sequential or a Functional model",
            )
        unknown = [name for name in self.shapes if name != EVERY_INPUT and name not in self.input_names(config)]
        if unknown:
            known = ", ".join(self.input_names(config))
            raise UsageError(
                f"the model has no input {unknown[0]!r}", where=self.file, hint=f"use one of its inputs: {known}"
            )
        outputs = self.model(config, weights, None)
        if self.refusals:
            raise _combined_error(self.file, self.refusals)
        named: dict[str, str] = {}
        for name, value in outputs:
            named[name if name not in named else f"{name}_{len(named)}"] = value
        return self.write.graph(str(config["config"].get("name", self.file)), named)

    def input_names(self, config: Mapping[str, Any]) -> list[str]:
        """Return the names of a model's inputs."""
        layers = config["config"]["layers"]
        return [layer["config"]["name"] for layer in layers if layer["class_name"] == "InputLayer"] or ["input"]

    def model(
        self, config: Mapping[str, Any], weights: Weights, call_arguments: Sequence[str] | None
    ) -> list[tuple[str, str]]:
        """Convert a model, or a model that is a layer of it; return its outputs as pairs of name and value.

        ``call_arguments``: the values on which it is called; None for the whole network."""
        for layer in config["config"]["layers"]:
            name = layer["config"]["name"]
            if not isinstance(name, str) or not name:
                raise ModelError(f"a layer is called {name!r}, expected a name", where=self.file)
        if config["class_name"] == "Sequential":
            return self.sequential(config, weights, call_arguments)
        return self.functional(config["config"], weights, call_arguments)

    def sequential(
        self, config: Mapping[str, Any], weights: Weights, call_arguments: Sequence[str] | None
    ) -> list[tuple[str, str]]:
        """Convert a Sequential model; return its output as a pair of name and value, or nothing if a layer was refused."""
        layers = config["config"]["layers"]
        layer_weights = weights.layers(layers)
        value = call_arguments[0] if call_arguments is not None else None
        name = ""
        for layer in layers:
            name = layer["config"]["name"]
            if layer["class_name"] == "InputLayer":
                value = value or self.input(layer)
                continue
            if value is None:
                value = self.implicit_input(config)
            results = self.layer(layer, layer_weights[name], [value], {})
            if results is None:
                return []
            value = results[0]
        if value is None:
            raise ModelError("got a model without layers, expected at least one", where=self.file)
        return [(name, value)]

    def implicit_input(self, config: Mapping[str, Any]) -> str:
        """Define the input of a Sequential model that has no input layer."""
        shape = config.get("build_config", {}).get("input_shape")
        if shape is None:
            raise UnsupportedError(
                "the model was saved before its input's shape was known",
                where=self.file,
                hint="build it, or give it an Input layer",
            )
        return self.bind_input("input", shape, "float32")

    def input(self, layer: Mapping[str, Any]) -> str:
        """Define the input of an input layer."""
        config = layer["config"]
        shape = config.get("batch_shape") or config.get("batch_input_shape")
        return self.bind_input(config["name"], shape, dtype_of(config))

    def bind_input(self, input_name: str, declared_extents: Sequence[int | None], dtype: str) -> str:
        """Add the input ``input_name`` to the graph, with unknown extents replaced by those that the caller gave."""
        given = self.shapes.get(input_name, self.shapes.get(EVERY_INPUT))
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
                f"input {input_name!r} has dtype {dtype}, expected float32",
                where=self.file,
                hint="give the input dtype float32",
            )
        return self.write.input(input_name, [int(extent) for extent in shape if extent is not None], dtype)

    def functional(
        self, config: Mapping[str, Any], weights: Weights, call_arguments: Sequence[str] | None
    ) -> list[tuple[str, str]]:
        """Convert a Functional model and return its outputs as pairs of name and value.

        Layers are converted in the order in which their operands become known; each may be called several times."""
        layer_weights = weights.layers(config["layers"])
        values: dict[tuple[str, int, int], str] = {}
        entries = _tensor_keys(config["input_layers"])
        inputs = {layer["config"]["name"]: layer for layer in config["layers"] if layer["class_name"] == "InputLayer"}
        if call_arguments is None:
            call_arguments = [self.input(inputs[name]) for name, _, _ in entries]
        values.update(zip(entries, call_arguments, strict=True))
        # One entry for each call of a layer. The file lists calls by layer, not in order of execution: a shared layer's second
        # call may depend on layers after it. So passes are made over the pending calls until none is left.
        pending = []
        for layer in config["layers"]:
            if layer["class_name"] == "InputLayer":
                continue
            pending += [(layer, call, inbound) for call, inbound in enumerate(layer["inbound_nodes"])]
        failed: set[tuple[str, int]] = set()
        while pending:
            rest = []
            for layer, call, inbound in pending:
                name, needed = layer["config"]["name"], _operand_keys(inbound)
                if any(key[:2] in failed for key in needed):  # skipped silently: the refusal that caused it is reported
                    failed.add((name, call))
                elif all(key in values for key in needed):
                    results = self.call(layer, layer_weights[name], inbound, values)
                    values.update({(name, call, k): value for k, value in enumerate(results or ())})
                    failed |= set() if results is not None else {(name, call)}
                else:
                    rest.append((layer, call, inbound))
            if len(rest) == len(pending):  # a pass without progress: the calls depend on each other
                raise ModelError(
                    "the layer's inputs depend on its own output; expected layers without a cycle",
                    where=f"{self.file} {rest[0][0]['config']['name']}",
                )
            pending = rest
        # A dictionary gives outputs names of their own, unless it nests others. Outputs of refused layers have no value.
        output_layers = config["output_layers"]
        keys = _tensor_keys(output_layers)
        labels = (
            list(output_layers)
            if isinstance(output_layers, dict) and len(output_layers) == len(keys)
            else [key[0] for key in keys]
        )
        return [(label, values[key]) for label, key in zip(labels, keys, strict=True) if key in values]

    def call(
        self,
        layer: Mapping[str, Any],
        weights: LayerWeights,
        inbound: Mapping[str, Any],
        values_by_tensor: Mapping[Any, str],
    ) -> list[str] | None:
        """Convert one call of a layer; tensors in its arguments are replaced by values of the graph."""
        args = _resolve_tensors(inbound["args"], values_by_tensor)
        kwargs = {
            key: _resolve_tensors(value, values_by_tensor)
            for key, value in inbound.get("kwargs", {}).items()
            if value is not None
        }
        operands = args[0] if len(args) == 1 and isinstance(args[0], list) else args
        return self.layer(layer, weights, operands, kwargs)

    def layer(
        self, layer: Mapping[str, Any], weights: LayerWeights, operands: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[str] | None:
        """Convert a layer and return its results; None, with a refusal recorded, if it cannot be converted."""
        config, code = layer["config"], layer["class_name"]
        if code in MODELS:
            count = len(self.refusals)
            values = [value for _, value in self.model(layer, weights, operands)]
            return values if len(self.refusals) == count else None
        self.write.at(self.index, config["name"])
        self.index += 1
        try:
            converter = CONVERTERS.get(code)
            if converter is None:
                hint = "build it from layers: code in a model is not run" if code in _CODE else ""
                raise UnsupportedError(f"the layer {code} is unknown to microc", where=self.write.where, hint=hint)
            policy = dtype_of(config)
            if policy.startswith(_QUANTISED) and not (policy == "int8" and code in _INT8_LAYERS):
                raise UnsupportedError(
                    f"a layer quantised by Keras ({policy})",
                    where=self.write.where,
                    hint="save the model before quantize(), or quantise only Dense and Embedding, to int8",
                )
            result = converter(Layer(self.write, code, config, weights, tuple(operands), kwargs, CONVERTERS))
            return list(result) if isinstance(result, tuple) else [result]
        except UnsupportedError as error:
            self.refusals.append(error)
            return None


def _tensor_keys(entries: Any) -> list[tuple[str, int, int]]:
    """Return the keys (layer, call, tensor) of all inputs or outputs in nested lists or a dictionary."""
    if isinstance(entries, dict):
        return [key for entry in entries.values() for key in _tensor_keys(entry)]
    if len(entries) == 3 and isinstance(entries[0], str):
        return [(entries[0], int(entries[1]), int(entries[2]))]
    return [key for entry in entries for key in _tensor_keys(entry)]


def _operand_keys(call_arguments: Any) -> list[tuple[str, int, int]]:
    """Return the keys (layer, call, tensor) of all tensors in the arguments of a call."""
    if isinstance(call_arguments, dict):
        if call_arguments.get("class_name") == "__keras_tensor__":
            return _tensor_keys(call_arguments["config"]["keras_history"])
        return [key for value in call_arguments.values() for key in _operand_keys(value)]
    return [key for value in call_arguments for key in _operand_keys(value)] if isinstance(call_arguments, list) else []


def _resolve_tensors(call_arguments: Any, values_by_tensor: Mapping[Any, str]) -> Any:
    """Return call arguments with references to tensors replaced by values of the graph."""
    if isinstance(call_arguments, dict) and call_arguments.get("class_name") == "__keras_tensor__":
        return values_by_tensor[_tensor_keys(call_arguments["config"]["keras_history"])[0]]
    return (
        [_resolve_tensors(value, values_by_tensor) for value in call_arguments]
        if isinstance(call_arguments, list)
        else call_arguments
    )


def _combined_error(file: str, refusals: Sequence[UnsupportedError]) -> UnsupportedError:
    """Return one error that lists all refusals."""
    if len(refusals) == 1:
        return refusals[0]
    lines = [f"{e.where}: {e.what}" + (f" (help: {e.hint})" if e.hint else "") for e in refusals]
    return UnsupportedError(f"{len(refusals)} layers are not supported:\n  " + "\n  ".join(lines), where=file)
