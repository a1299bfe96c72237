"""Which framework a model is held against: the one that is asked for, else the one that made it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from microc.driver.options import Options
from microc.driver.reference.runtime import Reference
from microc.errors import ToolError, UsageError
from microc.frontend.archive import HDF5, ZIP
from microc.frontend.detect import contents, is_tflite
from microc.frontend.trees import lightgbm, xgboost
from microc.graph.file import is_graph_file
from microc.graph.ir import Graph

NATURAL = "reference"
"""The choice of the framework that made the model, or that defines its numbers."""

RUNTIMES: Mapping[str, tuple[str, ...]] = {
    "tflite": ("tflm", "litert"),
    "onnx": ("onnxruntime",),
    "torch": ("torch",),
    "keras": ("keras",),
    "sklearn": ("sklearn",),
    "lightgbm": ("lightgbm",),
    "xgboost": ("xgboost",),
}
"""What runs each format; the first is the natural choice."""

AGAINST = (NATURAL, *(name for names in RUNTIMES.values() for name in names))


def reference_for(model: Any, against: str, options: Options, *, inside: bool = True) -> Reference:
    """The model in a framework. ``model``: a path, or an object that a reader knows; ``inside``: objects show their layers too.

    TFLite's natural choice is the runtime whose rounding the options ask for, the other where that does not run the model.
    UsageError where the framework does not run such models, or none does; ToolError where it is not installed or does not run
    this one.
    """
    if isinstance(model, Graph):
        raise UsageError("a graph has no framework that runs it", hint="give the model that it was read from")
    data = contents(Path(model)) if isinstance(model, (str, Path)) else b""
    file = Path(model).name if data else type(model).__name__
    kind = _runs(against, _format_of_file(data, file) if data else _format_of_object(model), file)
    first, *others = _natural(kind, options) if against == NATURAL else (against,)
    try:
        return _of_file(first, data, file, options) if data else _of_object(first, model, file, inside, options)
    except ToolError:
        for name in others:
            return _of_file(name, data, file, options)
        raise


def check_runtime(model: Path, against: str) -> None:
    """UsageError, before the work, where a framework does not run the model of a file."""
    _runs(against, _format_of_file(contents(model), model.name), model.name)


def _runs(against: str, kind: str, file: str) -> str:
    """The format, which the framework runs."""
    if against not in (NATURAL, *RUNTIMES[kind]):
        hint = "one of " + ", ".join((NATURAL, *RUNTIMES[kind]))
        raise UsageError(f"{against} does not run this model, which is of {kind}", where=file, hint=hint)
    return kind


def _natural(kind: str, options: Options) -> tuple[str, ...]:
    """The runtimes of a format, the natural one first."""
    return RUNTIMES[kind][:: -1 if kind == "tflite" and options.rounding == "litert" else 1]


def _format_of_file(data: bytes, file: str) -> str:
    if is_tflite(data):
        return "tflite"
    if is_graph_file(data):
        raise UsageError(
            "a graph file has no framework that runs it", where=file, hint="give the model it was made from"
        )
    if data.startswith(ZIP):
        from microc.frontend.keras import file as keras_file

        return "keras" if keras_file.is_keras(data) else "torch"
    if data.startswith(HDF5):
        return "keras"
    if xgboost.is_xgboost(data):
        return "xgboost"
    return "lightgbm" if lightgbm.is_lightgbm(data) else "onnx"


def _format_of_object(model: Any) -> str:
    homes = {kind.__module__.split(".")[0] for kind in type(model).__mro__}
    found = next((name for name in ("lightgbm", "xgboost", "sklearn", "keras", "torch") if name in homes), None)
    if found is None:
        raise UsageError(f"no framework is known for {type(model).__name__}", hint="give a path or a model's object")
    return found


def _of_file(runtime: str, data: bytes, file: str, options: Options) -> Reference:
    if options.state and runtime != "onnxruntime":
        raise UsageError(f"{runtime} is not fed with what it made", where=file, hint="--state is compared for ONNX")
    if runtime in RUNTIMES["tflite"]:
        from microc.driver.reference import tflite_runtimes

        if runtime == "tflm":
            return tflite_runtimes.Micro(data, file)
        own = options.rounding == "litert" and tflite_runtimes.quantises_to_int16(data)
        return tflite_runtimes.LiteRT(data, file, own=own)
    if runtime == "onnxruntime":
        from microc.driver.reference.onnx_runtime import OnnxRuntime

        return OnnxRuntime(data, file, options.state)
    if runtime == "keras":
        from microc.driver.reference import keras_model

        return keras_model.loaded(data, file)
    if runtime == "torch":
        from microc.driver.reference import torch_program

        return torch_program.loaded(data, file)
    if runtime == "xgboost":
        from microc.driver.reference import xgboost_model

        return xgboost_model.loaded(data, file)
    from microc.driver.reference import estimators

    return estimators.booster(data, file)


def _of_object(runtime: str, model: Any, file: str, inside: bool, options: Options) -> Reference:
    if runtime == "keras":
        from microc.driver.reference.keras_model import KerasModel

        return KerasModel(model, inside)
    if runtime == "torch":
        from microc.driver.reference.torch_program import TorchProgram
        from microc.frontend.torch import module

        program = module.program_of(model, options.example_inputs) if module.is_module(model) else model
        return TorchProgram(program, file, inside)
    if runtime == "xgboost":
        from microc.driver.reference.xgboost_model import Booster

        return Booster(model)
    from microc.driver.reference.estimators import Estimator

    return Estimator(model)
