# SPDX-License-Identifier: Apache-2.0
"""Choose the framework that a compiled model is compared with: the framework that the user names, else the framework
that made the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from microc.compiler.model import read_model, resolve_model
from microc.compiler.options import Options
from microc.errors import ToolError, UsageError
from microc.frontend.detect import is_tflite, read_model_bytes
from microc.frontend.model_limits import HDF5_MAGIC, ZIP_MAGIC
from microc.frontend.onnx.reader import read_bound_inputs
from microc.frontend.torch import reader
from microc.frontend.trees import boosters
from microc.frontend.trees.catboost_json import is_catboost
from microc.graph.cut import make_bound_constant
from microc.graph.file import is_graph_file
from microc.graph.ir import Graph
from microc.run.engine import Engine
from microc.run.reference import engines

NATURAL = "reference"
"""Value of ``against`` that selects the framework that made the model or defines its arithmetic."""

RUNTIMES: Mapping[str, tuple[str, ...]] = {
    "tflite": ("tflm", "litert"),
    "onnx": ("onnxruntime",),
    "torch": ("torch",),
    "keras": ("keras",),
    "sklearn": ("sklearn",),
    "lightgbm": ("lightgbm",),
    "xgboost": ("xgboost",),
    "catboost": ("catboost",),
}
"""Frameworks that run each format. :data:`NATURAL` selects the first."""

AGAINST = (NATURAL, *(name for names in RUNTIMES.values() for name in names))
"""Values of ``against``: :data:`NATURAL` and the names of all frameworks."""


def load_in_framework(model: Any, against: str, options: Options) -> Engine:
    """Load a model in a framework.

    ``model``: the path of a model, or a Python object that a reader accepts. ``against``: a name of :data:`AGAINST`.

    For a TFLite file, :data:`NATURAL` selects the runtime whose rounding the options select; if this runtime does not
    support the model, the other runtime is selected. Raises UsageError if the framework cannot run this format, or none
    can; raises ToolError if it is not installed or does not run this model."""
    if isinstance(model, Graph):
        raise UsageError("no framework runs a graph of microc", hint="give the model that it was read from")
    data = read_model_bytes(Path(model)) if isinstance(model, (str, Path)) else b""
    file_name = Path(model).name if data else type(model).__name__
    format_name = _check_framework_runs_format(
        against, _detect_format_of_file(data, file_name) if data else _detect_format_of_object(model), file_name
    )
    first, *others = _order_runtimes(format_name, options) if against == NATURAL else (against,)
    try:
        engine = (
            _load_file_in_framework(first, data, file_name, options)
            if data
            else _wrap_object_in_framework(first, model, file_name, options)
        )
    except ToolError:
        if not others:
            raise
        engine = _load_file_in_framework(others[0], data, file_name, options)
    return _bind_inputs(engine, model, options) if options.input_values and format_name != "onnx" else engine


def _bind_inputs(engine: Engine, model: Any, options: Options) -> Engine:
    """Return an engine that gives the framework the input values of the options, besides the network's inputs."""
    unbound = replace(options, input_values={})
    graph = read_model(resolve_model(model, unbound), replace(unbound, outputs=(), state={}, rename={}))
    constants = {
        position: make_bound_constant(name, options.input_values[name], graph.types[name], graph.name)
        for position, name in enumerate(graph.inputs)
        if name in options.input_values
    }
    return engines.BoundInputs(engine, constants)


def check_framework_for_file(model: Path, against: str) -> None:
    """Raise UsageError if the framework ``against`` cannot run the model in a file. Called before the model is
    compiled."""
    _check_framework_runs_format(against, _detect_format_of_file(read_model_bytes(model), model.name), model.name)


def _check_framework_runs_format(against: str, format_name: str, file_name: str) -> str:
    """Check that the framework ``against`` can run a model's format, and return the format; raise UsageError if it
    cannot.

    ``file_name``: name of the model's file or class, for the error."""
    if against not in (NATURAL, *RUNTIMES[format_name]):
        hint = "choose one of " + ", ".join((NATURAL, *RUNTIMES[format_name]))
        raise UsageError(f"{against} does not run this model; got format {format_name}", where=file_name, hint=hint)
    return format_name


def _order_runtimes(format_name: str, options: Options) -> tuple[str, ...]:
    """List the runtimes of a format; the first is the runtime that :data:`NATURAL` selects."""
    return RUNTIMES[format_name][:: -1 if format_name == "tflite" and options.rounding == "litert" else 1]


def _detect_format_of_file(data: bytes, file_name: str) -> str:
    """Detect the format of a model file from its bytes; raise UsageError for a graph file of microc."""
    if is_tflite(data):
        return "tflite"
    if is_graph_file(data):
        raise UsageError(
            "no framework runs a graph file of microc", where=file_name, hint="give the model that it was made from"
        )
    if data.startswith(ZIP_MAGIC):
        from microc.frontend.keras import file as keras_file

        return "keras" if keras_file.is_keras(data) else "torch"
    if data.startswith(HDF5_MAGIC):
        return "keras"
    if is_catboost(data):
        return "catboost"
    if boosters.is_xgboost(data):
        return "xgboost"
    return "lightgbm" if boosters.is_lightgbm(data) else "onnx"


def _detect_format_of_object(model: Any) -> str:
    """Detect the framework of a Python object from the modules of its base classes; raise UsageError if it is unknown."""
    modules = {base.__module__.split(".")[0] for base in type(model).__mro__}
    framework = next(
        (name for name in ("lightgbm", "xgboost", "catboost", "sklearn", "keras", "torch") if name in modules), None
    )
    if framework is None:
        names = "lightgbm, xgboost, catboost, sklearn, keras or torch"
        raise UsageError(f"model: got a {type(model).__name__}, expected an object of {names}", hint="give a path")
    return framework


def _load_file_in_framework(runtime: str, data: bytes, file_name: str, options: Options) -> Engine:
    """Load the model of a file in a runtime. ``data``: bytes of the file; ``file_name``: its name, for errors.

    Raises UsageError if the options name ``--state`` and the runtime cannot feed outputs back to inputs."""
    if options.state and runtime != "onnxruntime":
        raise UsageError(
            f"--state: {runtime} cannot feed outputs back to inputs, expected onnxruntime",
            where=file_name,
            hint="use --against onnxruntime",
        )
    match runtime:
        case "tflm":
            return engines.TfliteMicro(data, file_name)
        case "litert":
            default_first = options.rounding == "litert" and engines.quantises_to_int16(data)
            return engines.LiteRT(data, file_name, default_kernels_first=default_first)
        case "onnxruntime":
            bound = read_bound_inputs(data, file_name, options.input_shapes, options.input_values)
            return engines.OnnxRuntime(data, file_name, options.state, bound)
        case "keras":
            return engines.load_keras_model(data, file_name)
        case "torch":
            return engines.load_torch_program(data, file_name)
        case "catboost":
            return engines.load_catboost_model(data, file_name)
        case "xgboost":
            return engines.load_xgboost_booster(data, file_name)
        case _:
            return engines.load_lightgbm_booster(data, file_name)


def _wrap_object_in_framework(runtime: str, model: Any, file_name: str, options: Options) -> Engine:
    """Wrap a Python object as an engine of its framework. ``file_name``: name of its class, for errors."""
    match runtime:
        case "keras":
            return engines.KerasModel(model)
        case "torch":
            program = reader.export_module(model, options.example_inputs) if reader.is_module(model) else model
            return engines.TorchProgram(program, file_name)
        case "catboost":
            return engines.CatBoostModel(model)
        case "xgboost":
            return engines.XgboostBooster(model)
        case _:
            return engines.Estimator(model)
