# SPDX-License-Identifier: Apache-2.0
"""Feature pipelines declared in a TOML file, and joined to a network."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from errno import EFBIG
from pathlib import Path
from types import MappingProxyType
from typing import Any

from microc.base.file_access import parse_toml, read_bytes
from microc.compiler import validation
from microc.compiler.model import load
from microc.errors import MicrocError, OutputError, UnsupportedError, UsageError, known_names_hint
from microc.features.feature_pipeline import MicroFrontend, Pipeline, log_mel, mfcc, spectrogram
from microc.features.filters import Biquads, Fir, Preemphasis, Resample, Signal, Stage
from microc.features.spectral import Bands, Dct, Frames, Log, Mel, Spectrogram
from microc.features.statistics import MinMax, Normalise, Pcen, Spectral, Statistics
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph, Node, TensorType
from microc.ops import registry

# ---- A graph of features and network: its input is raw samples.

Front = Pipeline | MicroFrontend


def join(front: Front, model: Any, *, input: str = "", bands_first: bool = False) -> Graph:
    """Join a feature pipeline and a network to one graph, whose input is as many raw samples as the network needs.

    ``model``: a path or object, as for :func:`microc.compile`. ``input``: name of the network's input for the features,
    needed if it has several. Its shape is (1, frames, numbers), possibly with further axes of extent 1, or flattened.
    ``bands_first``: its shape is (1, numbers, frames). Features for an integer input are quantised to its dtype and
    scale. UsageError if the shapes do not fit.
    """
    if not isinstance(front, (Pipeline, MicroFrontend)):
        raise validation.invalid_value_error(
            "front", front, "a pipeline, such as microc.features.log_mel(), or a MicroFrontend"
        )
    network = load(model)
    name = _find_feature_input(network, input)
    input_type, width = network.types[name], _features_per_frame(front)
    frames = input_type.size // width
    if frames * width != input_type.size or not frames:
        hint = "give the pipeline as many features a frame as the network was trained on"
        raise UsageError(
            f"input {name!r}: got shape {list(input_type.shape)}, expected a multiple of {width} features a frame",
            where=network.name,
            hint=hint,
        )
    _check_axis_order(input_type, frames, width, bands_first, network.name, name)
    net = GraphBuilder("features")
    net.types.update(network.types)
    signal = front.write(net, front.samples(frames))
    if signal.shape[1] != frames:
        raise UsageError(
            f"the pipeline: got {signal.shape[1]} frames, expected {frames} as in input {name!r}",
            where=network.name,
            hint="put Frames in front of the stages that combine frames",
        )
    signal = _transpose_to_axis_order(signal, bands_first)
    features = net.graph("features", {"features": _convert_to_input_type(signal, input_type, network.name, name)})
    reshaped = Node("reshape", features.outputs, (name,), {"shape": input_type.shape}, network.location_of_input(name))
    inputs = tuple(features.inputs[0] if input_name == name else input_name for input_name in network.inputs)
    types = {**features.types, **network.types}
    consts, state = {**features.consts, **network.consts}, {**features.state, **network.state}
    updates = {**features.updates, **network.updates}
    joined = replace(network, inputs=inputs, types=types, consts=consts, state=state, updates=updates)
    return joined.with_nodes((*features.nodes, reshaped, *network.nodes))


def _find_feature_input(network: Graph, input_name: str) -> str:
    """Return the name of the network's input for the features: ``input_name``, or the only input if that is empty.

    UsageError if there is no such input, or if the name is empty and there are several."""
    if not input_name and len(network.inputs) == 1:
        return network.inputs[0]
    if input_name not in network.inputs:
        what = (
            f"the network has no input {input_name!r}" if input_name else "input: got no name, expected one of several"
        )
        hint = (
            known_names_hint(input_name, network.inputs, "inputs")
            if input_name
            else "give input: " + " or ".join(network.inputs)
        )
        raise UsageError(what, where=network.name, hint=hint)
    return input_name


def _features_per_frame(front: Front) -> int:
    """Return the number of features that a pipeline computes for each frame."""
    shape = front.graph(front.samples(1)).types["features"].shape
    if len(shape) < 3:
        raise UsageError(
            f"the pipeline: got samples of shape {list(shape)}, expected frames",
            hint="add a stage Frames, which cuts samples into frames",
        )
    width = 1
    for extent in shape[2:]:
        width *= extent
    return width


def _check_axis_order(
    input_type: TensorType, frame_count: int, features_per_frame: int, bands_first: bool, where: str, input_name: str
) -> None:
    """Raise UsageError if the axes of frames and features are in the opposite order in the input's shape."""
    found = [extent for extent in input_type.shape if extent != 1]
    expected = [
        extent
        for extent in ((features_per_frame, frame_count) if bands_first else (frame_count, features_per_frame))
        if extent != 1
    ]
    if found == expected[::-1] and found != expected:
        raise UsageError(
            f"input {input_name!r}: got shape {list(input_type.shape)}, expected axes of {' and '.join(map(str, expected))}",
            where=where,
            hint=f"give bands_first={not bands_first}",
        )


def _transpose_to_axis_order(signal: Signal, bands_first: bool) -> Signal:
    """Transpose features (1, frames, numbers) to (1, numbers, frames) if ``bands_first``, else return them
    unchanged."""
    if not bands_first:
        return signal
    axes: Sequence[int] = (0, *range(2, len(signal.shape)), 1)
    quant = signal.net.type(signal.value).quant
    transposed = signal.op("transpose", axes=tuple(axes))
    signal.net.set_quant(transposed.value, quant)
    return transposed


def _convert_to_input_type(signal: Signal, input_type: TensorType, where: str, input_name: str) -> str:
    """Convert features to the dtype and scale of the network's input; return the name of the converted value."""
    if input_type.dtype == "float32":
        return signal.to_float32().value
    if (
        input_type.quant is None
        or len(input_type.quant.scale) != 1
        or input_type.dtype not in ("int8", "uint8", "int16", "uint16")
    ):
        raise UnsupportedError(
            f"input {input_name!r}: got {input_type.dtype} without a scale, expected float32, or integers with one scale",
            where=where,
            hint="export the network with a float32 input, or with one scale and zero point",
        )
    net = signal.net
    attrs = {
        "scale": input_type.quant.scale,
        "zero_point": input_type.quant.zero_point,
        "axis": None,
        "out_dtype": input_type.dtype,
    }
    quantised = net.emit("quantize", (signal.value,), {**registry.get("quantize").defaults, **attrs})
    return net.set_quant(quantised, input_type.quant)


# ---- A pipeline declared in a TOML file: ``microc import MODEL --features FILE``.
#
# Either a preset with its arguments::
#
#     preset = "log_mel"
#     input_dtype = "int16"
#     n_mels = 40
#
# or a pipeline's own fields and its stages in order, ``kind`` being the name of a stage in small letters::
#
#     sample_rate = 16000
#     input_dtype = "int16"
#
#     [[stage]]
#     kind = "frames"
#     length = 480
#     step = 320
#
# Both may have arguments of :func:`microc.features.join`: ``input``, ``bands_first``.

MAX_FILE_BYTES = 1 << 20
"""Maximum size of a file, in bytes."""
_STAGES: tuple[type[Stage], ...] = (
    *(Bands, Biquads, Dct, Fir, Frames, Log, Mel, MinMax, Normalise),
    *(Pcen, Preemphasis, Resample, Spectral, Spectrogram, Statistics),
)
STAGE_KINDS: Mapping[str, type[Stage]] = MappingProxyType(
    {stage_class.__name__.lower(): stage_class for stage_class in _STAGES}
)
PRESETS: Mapping[str, Callable[..., Front]] = MappingProxyType(
    {"log_mel": log_mel, "mfcc": mfcc, "microfrontend": MicroFrontend, "spectrogram": spectrogram}
)
JOIN_ARGUMENTS = {"input": str, "bands_first": bool}
_TOML_TYPES = {str: "string", bool: "boolean"}


@dataclass(frozen=True)
class Declared:
    """Content of a feature file: a pipeline, and the arguments ``input`` and ``bands_first`` of :func:`join`."""

    pipeline: Front
    input: str = ""
    bands_first: bool = False


def read(path: Path) -> Declared:
    """Read a feature pipeline from a TOML file.

    OutputError if the file cannot be read. UsageError, which names the file and the table, if its content is invalid.
    """
    try:
        content = read_bytes(path, MAX_FILE_BYTES)
    except OSError as error:
        if error.errno == EFBIG:
            what = f"{path.name}: got more than {MAX_FILE_BYTES:,} bytes, expected a feature file"
            raise UsageError(what, where=path.name, hint="name a TOML file of stages") from error
        hint = "give the path of a TOML file (docs/features.md)"
        raise OutputError(f"cannot read {path}: {error.strerror}", where=str(path), hint=hint) from error
    try:
        data = parse_toml(content.decode())
    except ValueError as error:
        raise UsageError(
            f"{path.name} is not valid TOML: {error}", where=path.name, hint="compare it with docs/features.md"
        ) from error
    return _parse_declaration(data, path.name)


def _parse_declaration(tables: dict[str, Any], file_name: str) -> Declared:
    """Build the pipeline that the tables of a feature file declare. ``file_name``: for errors."""
    join_arguments = {name: tables.pop(name) for name in JOIN_ARGUMENTS if name in tables}
    for name, value in join_arguments.items():
        if not isinstance(value, JOIN_ARGUMENTS[name]):
            raise UsageError(
                f"{name}: got {value!r}, expected a {_TOML_TYPES[JOIN_ARGUMENTS[name]]}",
                where=file_name,
                hint=f"change {name}",
            )
    if "preset" in tables:
        pipeline = _construct_from_table(PRESETS, "preset", tables, _parameter_names_of_preset, file_name)
    else:
        stages = tables.pop("stage", [])
        if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
            raise UsageError(
                "stage: expected a list of tables", where=file_name, hint="write [[stage]] above each stage"
            )
        stage_names = [f"{file_name} stage {number}" for number in range(1, len(stages) + 1)]
        built_stages = [
            _construct_from_table(STAGE_KINDS, "kind", s, _names_of_dataclass_fields, p)
            for s, p in zip(stages, stage_names, strict=True)
        ]
        pipeline = _call_with_keys(
            Pipeline,
            {"stages": tuple(built_stages)},
            tables,
            _names_of_dataclass_fields(Pipeline) - {"stages"},
            file_name,
        )
    return Declared(pipeline, **join_arguments)


def _names_of_dataclass_fields(dataclass_type: Any) -> set[str]:
    """Return the names of a dataclass's fields."""
    return {field.name for field in fields(dataclass_type)}


def _parameter_names_of_preset(preset: Callable[..., Front]) -> set[str]:
    """Return the parameter names of a preset.

    :func:`mfcc` passes ``others`` to :func:`log_mel`, so that it also has the parameters of :func:`log_mel`.
    """
    names = set(inspect.signature(preset).parameters)
    return names - {"others"} | (_parameter_names_of_preset(log_mel) if "others" in names else set())


def _construct_from_table(
    table_types: Mapping[str, Any],
    selector_key: str,
    table: dict[str, Any],
    valid_keys_of: Callable[[Any], set[str]],
    where: str,
) -> Any:
    """Construct the preset or stage whose name the table has under ``selector_key``, with its other values as
    arguments.

    ``table_types``: constructors by name. ``valid_keys_of``: returns the keys that a constructor accepts. ``where``:
    the file and table, for errors."""
    name = table.pop(selector_key, None)
    if not isinstance(name, str) or name not in table_types:
        what = f"there is no {selector_key} {name!r}" if name is not None else f"{selector_key} is missing"
        raise UsageError(
            what, where=where, hint=known_names_hint(str(name or ""), table_types, f"choose a {selector_key} from")
        )
    return _call_with_keys(table_types[name], {}, table, valid_keys_of(table_types[name]), where)


def _call_with_keys(
    constructor: Any, fixed_arguments: dict[str, Any], table: Mapping[str, Any], valid_keys: set[str], where: str
) -> Any:
    """Call a constructor with ``fixed_arguments`` and a table's values as keyword arguments.

    UsageError if a key is not in ``valid_keys``, or if a required key is missing. ``where``: the table, for errors."""
    for name in table:
        if name not in valid_keys:
            raise UsageError(
                f"there is no key {name!r}", where=where, hint=known_names_hint(name, sorted(valid_keys), "keys")
            )
    try:
        return constructor(**fixed_arguments, **table)
    except MicrocError as error:
        error.where = error.where or where
        raise
    except TypeError as error:
        missing = str(error).partition("missing ")[2] or str(error)
        raise UsageError(
            f"{where}: missing {missing}", where=where, hint="add it; keys: " + ", ".join(sorted(valid_keys))
        ) from error
