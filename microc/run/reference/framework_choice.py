"""Choose the framework to compare a model with: the one that is asked for, else the one that made the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from microc.compiler.options import Options
from microc.errors import ToolError, UsageError
from microc.frontend.detect import is_tflite, read_model_bytes
from microc.frontend.model_limits import HDF5_MAGIC, ZIP_MAGIC
from microc.frontend.trees import boosters
from microc.graph.file import is_graph_file
from microc.graph.ir import Graph
from microc.run.reference.frameworks import Reference

NATURAL = "reference"
"""Choice of the framework that made the model or defines its arithmetic."""

RUNTIMES: Mapping[str, tuple[str, ...]] = {
    "tflite": ("tflm", "litert"),
    "onnx": ("onnxruntime",),
    "torch": ("torch",),
    "keras": ("keras",),
    "sklearn": ("sklearn",),
    "lightgbm": ("lightgbm",),
    "xgboost": ("xgboost",),
}
"""Frameworks that run each format; the first is the natural choice."""

AGAINST = (NATURAL, *(name for names in RUNTIMES.values() for name in names))


def load_in_framework(model: Any, against: str, options: Options, *, show_layers: bool = True) -> Reference:
    """Load a model in a framework.

    ``model``: a path, or an object that a reader accepts. ``show_layers``: show the layers of objects, too. For TFLite
    the natural choice is the runtime whose rounding the options select; if that does not run the model, the other.
    UsageError if the framework cannot run this format, or none can; ToolError if it is not installed or does not run
    this model."""
    if isinstance(model, Graph):
        raise UsageError("a graph has no framework that runs it", hint="give the model that it was read from")
    data = read_model_bytes(Path(model)) if isinstance(model, (str, Path)) else b""
    file = Path(model).name if data else type(model).__name__
    format_name = _check_framework_runs_format(
        against, _format_of_file(data, file) if data else _format_of_object(model), file
    )
    first, *others = _order_runtimes(format_name, options) if against == NATURAL else (against,)
    try:
        return (
            _load_file_in_framework(first, data, file, options)
            if data
            else _wrap_object_in_framework(first, model, file, show_layers, options)
        )
    except ToolError:
        for name in others:
            return _load_file_in_framework(name, data, file, options)
        raise


def check_framework_for_file(model: Path, against: str) -> None:
    """Raise UsageError, before the work begins, if the framework ``against`` cannot run the model of a file."""
    _check_framework_runs_format(against, _format_of_file(read_model_bytes(model), model.name), model.name)


def _check_framework_runs_format(against: str, format_name: str, file: str) -> str:
    """Return a model's format, after checking that the framework ``against`` can run it; UsageError if not."""
    if against not in (NATURAL, *RUNTIMES[format_name]):
        hint = "choose one of " + ", ".join((NATURAL, *RUNTIMES[format_name]))
        raise UsageError(f"{against} does not run this model, which is of {format_name}", where=file, hint=hint)
    return format_name


def _order_runtimes(format_name: str, options: Options) -> tuple[str, ...]:
    """List the runtimes of a format, the natural one first."""
    return RUNTIMES[format_name][:: -1 if format_name == "tflite" and options.rounding == "litert" else 1]


def _format_of_file(data: bytes, file: str) -> str:
    """Detect the format of a model file from its bytes; UsageError for a graph file of microc."""
    if is_tflite(data):
        return "tflite"
    if is_graph_file(data):
        raise UsageError(
            "a graph file has no framework that runs it", where=file, hint="give the model it was made from"
        )
    if data.startswith(ZIP_MAGIC):
        from microc.frontend.keras import file as keras_file

        return "keras" if keras_file.is_keras(data) else "torch"
    if data.startswith(HDF5_MAGIC):
        return "keras"
    if boosters.is_xgboost(data):
        return "xgboost"
    return "lightgbm" if boosters.is_lightgbm(data) else "onnx"


def _format_of_object(model: Any) -> str:
    """Detect the framework of a model object from the modules of its base classes; UsageError if it is unknown."""
    modules = {base.__module__.split(".")[0] for base in type(model).__mro__}
    framework = next((name for name in ("lightgbm", "xgboost", "sklearn", "keras", "torch") if name in modules), None)
    if framework is None:
        raise UsageError(f"no framework is known for {type(model).__name__}", hint="give a path or a model's object")
    return framework


def _load_file_in_framework(runtime: str, data: bytes, file: str, options: Options) -> Reference:
    """Load the model of a file in a runtime; UsageError if the runtime cannot feed back ``--state``."""
    if options.state and runtime != "onnxruntime":
        raise UsageError(f"--state cannot be compared with {runtime}", where=file, hint="use --against onnxruntime")
    if runtime in RUNTIMES["tflite"]:
        from microc.run.reference import engines

        if runtime == "tflm":
            return engines.TfliteMicro(data, file)
        own = options.rounding == "litert" and engines.quantises_to_int16(data)
        return engines.LiteRT(data, file, own=own)
    if runtime == "onnxruntime":
        from microc.run.reference.engines import OnnxRuntime

        return OnnxRuntime(data, file, options.state)
    if runtime == "keras":
        from microc.run.reference import engines

        return engines.load_keras_model(data, file)
    if runtime == "torch":
        from microc.run.reference import engines

        return engines.load_torch_program(data, file)
    if runtime == "xgboost":
        from microc.run.reference import engines

        return engines.load_xgboost_booster(data, file)
    from microc.run.reference import engines

    return engines.load_lightgbm_booster(data, file)


def _wrap_object_in_framework(runtime: str, model: Any, file: str, show_layers: bool, options: Options) -> Reference:
    """Wrap a model object as a reference in its framework. ``show_layers``: show its layers, too."""
    if runtime == "keras":
        from microc.run.reference.engines import KerasModel

        return KerasModel(model, show_layers)
    if runtime == "torch":
        from microc.frontend.torch import reader
        from microc.run.reference.engines import TorchProgram

        program = reader.export_module(model, options.example_inputs) if reader.is_module(model) else model
        return TorchProgram(program, file, show_layers)
    if runtime == "xgboost":
        from microc.run.reference.engines import XgboostBooster

        return XgboostBooster(model)
    from microc.run.reference.engines import Estimator

    return Estimator(model)
