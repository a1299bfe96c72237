"""Which framework a model is held against: the one that is asked for, else the one that made it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from microc.compiler.options import Options
from microc.errors import ToolError, UsageError
from microc.frontend.budget import HDF5, ZIP
from microc.frontend.detect import contents, is_tflite
from microc.frontend.trees import boosters
from microc.graph.file import is_graph_file
from microc.graph.ir import Graph
from microc.run.reference.frameworks import Reference

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
    if boosters.is_xgboost(data):
        return "xgboost"
    return "lightgbm" if boosters.is_lightgbm(data) else "onnx"


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
        from microc.run.reference import engines

        if runtime == "tflm":
            return engines.Micro(data, file)
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

        return engines.loaded(data, file)
    from microc.run.reference import engines

    return engines.booster(data, file)


def _of_object(runtime: str, model: Any, file: str, inside: bool, options: Options) -> Reference:
    if runtime == "keras":
        from microc.run.reference.engines import KerasModel

        return KerasModel(model, inside)
    if runtime == "torch":
        from microc.frontend.torch import reader
        from microc.run.reference.engines import TorchProgram

        program = reader.program_of(model, options.example_inputs) if reader.is_module(model) else model
        return TorchProgram(program, file, inside)
    if runtime == "xgboost":
        from microc.run.reference.engines import Booster

        return Booster(model)
    from microc.run.reference.engines import Estimator

    return Estimator(model)
