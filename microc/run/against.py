# SPDX-License-Identifier: Apache-2.0
"""Verification against a framework: its choice, and the comparison."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from microc import __version__
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.codegen.c.source import shared_files
from microc.compiler.interaction import Progress, convert_flags_in_errors
from microc.compiler.model import read_model, registers_plugins, resolve_model
from microc.compiler.options import ENDS, Options, make_options
from microc.compiler.pipeline import compile_model, optimise_graph
from microc.device.boards import load_board
from microc.errors import MicrocError, ToolError, UsageError, VerificationError
from microc.frontend.detect import is_tflite, read_model_bytes
from microc.frontend.model_limits import HDF5_MAGIC, ZIP_MAGIC
from microc.frontend.trees import boosters
from microc.frontend.trees.catboost_json import is_catboost
from microc.frontend.trees.known_rows import sample_known_rows
from microc.graph.cut import make_bound_constant
from microc.graph.file import is_graph_file
from microc.graph.ir import Graph, Node
from microc.run import AGAINST, FRAMEWORKS, NATURAL, Framework, reference_engines
from microc.run.comparison import TOLERANCES, WORD_QUANTA, WORDS, Comparison, compare_with_reference
from microc.run.data.pictures import add_channel_orders, convert_samples
from microc.run.data.samples import ALL_KINDS, SEED, draw_input_sets, read_samples
from microc.run.desktop.library import Library
from microc.run.desktop.load import build_library
from microc.run.engine import Engine, HostKernels, InputsRejected, NumpyReference
from microc.target import Board, Target, target_for

if TYPE_CHECKING:
    from microc.compiler.option_values import CompileOptions


# ---- Choose the framework that a compiled model is compared with: the framework that the user names, else the
# framework that made the model.


def load_in_framework(model: Any, against: str, options: Options) -> Engine:
    """Load a model in a framework.

    ``model``: the path of a model, or a Python object that a reader accepts. ``against``: a name of :data:`microc.run.AGAINST`.

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
    first, *others = _order_frameworks(against, format_name, options)
    try:
        engine = (
            _load_file_in_framework(first, data, file_name, options)
            if data
            else getattr(reference_engines, first.engine).from_object(model, file_name, options)
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
    return reference_engines.BoundInputs(engine, constants)


def check_framework_for_file(model: Path, against: str) -> None:
    """Raise UsageError if the framework ``against`` cannot run the model in a file. Called before the model is
    compiled."""
    _check_framework_runs_format(against, _detect_format_of_file(read_model_bytes(model), model.name), model.name)


def _check_framework_runs_format(against: str, format_name: str, file_name: str) -> str:
    """Check that the framework ``against`` can run a model's format, and return the format; raise UsageError if it
    cannot.

    ``file_name``: name of the model's file or class, for the error."""
    names = (NATURAL, *(framework.name for framework in FRAMEWORKS if framework.model_format == format_name))
    if against not in names:
        hint = "choose one of " + ", ".join(names)
        raise UsageError(f"{against} does not run this model; got format {format_name}", where=file_name, hint=hint)
    return format_name


def _order_frameworks(against: str, format_name: str, options: Options) -> list[Framework]:
    """List the frameworks of a format that ``against`` allows, in the order of trial.

    The framework that the option ``rounding`` names is the first."""
    frameworks = [
        framework
        for framework in FRAMEWORKS
        if framework.model_format == format_name and against in (NATURAL, framework.name)
    ]
    return sorted(frameworks, key=lambda framework: framework.name != options.rounding)


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
    names = [framework.model_format for framework in FRAMEWORKS if framework.has_objects]
    format_name = next((name for name in names if name in modules), None)
    if format_name is None:
        *most, last = names
        raise UsageError(
            f"model: got a {type(model).__name__}, expected an object of {', '.join(most)} or {last}",
            hint="give a path",
        )
    return format_name


def _load_file_in_framework(framework: Framework, data: bytes, file_name: str, options: Options) -> Engine:
    """Load the model of a file in a framework. ``data``: bytes of the file; ``file_name``: its name, for errors.

    Raises UsageError if the options name ``--state`` and the framework cannot feed outputs back to inputs."""
    if options.state and framework.name != "onnxruntime":
        raise UsageError(
            f"--state: {framework.name} cannot feed outputs back to inputs, expected onnxruntime",
            where=file_name,
            hint="use --against onnxruntime",
        )
    engine: Engine = getattr(reference_engines, framework.engine).from_file(data, file_name, options)
    return engine


# ---- The quick check after compiling a Python object: a few random rows, compared with the object's own framework,
# which is imported anyway.

_MAX_ROWS = 8
_MAX_COMPILED_MACS, _MAX_REFERENCE_MACS = 100_000_000, 1_000_000
"""Multiply-accumulates of all rows together, for compiled code and for the operators' numpy references: tenths of a
second each."""
_TOLERANCE, _COARSE_TOLERANCE = 1e-3, 5e-2
"""Tolerated difference, relative to the largest magnitude of an output. Networks that quantise or use 16-bit floats get
more: one different rounding moves a result by a whole quantisation step."""


def check_against_framework(
    model: Any, library: Library | None, tensors: Sequence[Mapping[str, Any]], graph: Graph, options: Options
) -> None:
    """Compare the outputs of a compiled model with those of its framework, for a few sets of inputs. Raises
    VerificationError if they differ by more than rounding.

    ``model``: the model as a Python object. ``library``: the compiled code; if it is None, numpy runs ``graph`` by the
    reference implementations of its operators. ``tensors``: the network's inputs as its manifest describes them.
    ``graph``: the model as the reader returned it, before any optimisation.

    The check is skipped if it would take long, if options change what the network computes, or if the framework does
    not take the inputs. If there are float outputs, only these are compared, because the class of two equal scores
    depends on rounding. Of a network that learns, numpy runs the model as it was read: the framework knows neither
    labels nor rate, and ``classes`` may change the outputs.
    """
    if options.learn is not None:
        library, tensors = None, tensors[: len(graph.inputs)]
    rows = _count_affordable_inferences(graph, runs_compiled_code=library is not None)
    if not rows or options.bounds or any(getattr(options, name) for name in (*ENDS, "stream", "inputs", "outputs")):
        return
    try:
        reference = load_in_framework(model, NATURAL, options)
    except MicrocError:
        return
    network = HostKernels(library) if library is not None else NumpyReference(graph)
    inputs = draw_input_sets({}, tensors, rows, SEED, graph=graph)
    inputs += _draw_rows_like_training_data(model, graph, rows)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            comparison = compare_with_reference(
                network, reference, inputs, tolerance=_choose_tolerance(graph), layers=False
            )
    except InputsRejected:
        return
    except VerificationError as error:
        hint = "compile(..., check=False) leaves this comparison out"
        raise VerificationError(error.what, where=type(model).__name__, hint=hint) from error
    floats = tuple(output for output in comparison.outputs if dtypes.is_float(output.dtype))
    comparison = replace(comparison, outputs=floats or comparison.outputs)
    if not comparison.agrees:
        raise comparison.error(
            type(model).__name__,
            "microc.verify(model) shows outputs and layers; compile(..., check=False) leaves this comparison out",
        )


def _draw_rows_like_training_data(model: Any, graph: Graph, set_count: int) -> list[list[Array]]:
    """Generate ``set_count`` sets of inputs that resemble the rows on which an estimator was trained; none for other
    models."""
    tensor_type = graph.types[graph.inputs[0]]
    if len(graph.inputs) != 1 or len(tensor_type.shape) != 2 or not hasattr(model, "get_params"):
        return []
    rows = sample_known_rows(model, tensor_type.shape[1], set_count * tensor_type.shape[0]).astype(
        dtypes.to_numpy(tensor_type.dtype)
    )
    return [[row] for row in np.split(rows, len(rows) // tensor_type.shape[0])] if len(rows) else []


def _count_affordable_inferences(graph: Graph, runs_compiled_code: bool) -> int:
    """Return the number of inferences whose multiply-accumulates are within the limit for a quick comparison, at most
    :data:`_MAX_ROWS`.

    ``runs_compiled_code``: True for the limit of compiled code, False for the lower limit of the operators' numpy
    references."""
    work = max(sum(_estimate_macs(graph, node) for node in graph.nodes), 1)
    return min(_MAX_ROWS, (_MAX_COMPILED_MACS if runs_compiled_code else _MAX_REFERENCE_MACS) // work)


def _estimate_macs(graph: Graph, node: Node) -> int:
    """Estimate the multiply-accumulates of an operator: the elements of its result, multiplied by the products for each
    element."""
    size = sum(graph.types[name].size for name in node.outputs if name)
    if node.op == "tree_ensemble":
        return graph.types[node.inputs[4]].size * int(node.attr("depth")) * graph.types[node.inputs[0]].shape[0] * 100
    if node.op in ("loop", "branch"):
        return _MAX_REFERENCE_MACS
    weights = [graph.types[name].size for name in node.inputs[1:] if name in graph.consts]
    return size * max(1, max(weights, default=1) // max(graph.types[node.outputs[0]].shape[-1:] or (1,)))


def _choose_tolerance(graph: Graph) -> float:
    """Choose the tolerance of floats: the larger one if the graph quantises or uses 16-bit floats."""
    coarse = any(node.op in ("quantize", "dequantize", "dynamic_quantize") for node in graph.nodes)
    coarse |= any(tensor_type.dtype in dtypes.HALF for tensor_type in graph.types.values())
    return _COARSE_TOLERANCE if coarse else _TOLERANCE


# ---- ``microc.verify``: compile a model and compare it with its framework, on the user's data or on random inputs.

SAMPLES = 4


@convert_flags_in_errors
@registers_plugins
def verify(
    model: Any,
    against: str = NATURAL,
    *,
    data: Any = None,
    samples: int = SAMPLES,
    seed: int = SEED,
    tolerance: float | None = None,
    quanta: int = 0,
    target: str = "host",
    board: str | Path | Board | None = None,
    layers: bool = True,
    progress: Progress | None = None,
    **options: Unpack[CompileOptions],
) -> Comparison:
    """Compile a model and compare its answers with those of the framework that made it, by output and by layer.

    ``model``: a path or an object, as for :func:`microc.compile`; so are ``target``, ``board`` and ``options``. The
    kernels for that core run as portable C on this computer. ``against``: ``tflm``, ``litert``, ``onnxruntime``,
    ``torch``, ``keras``, ``sklearn``, ``lightgbm``, ``xgboost``, or ``reference`` for the natural choice: the runtime
    whose rounding the options select. With a 16-bit ``weight_dtype`` it is numpy on the network with rounded weights.

    ``data``: a path (as for ``--data`` of the command), an array or one per input with the samples along the first
    axis, or a mapping from input names to such arrays. None: ``samples`` random sets generated from ``seed``
    (:mod:`microc.run.data.samples`). ``layers``: compare layers, too. ``progress(what, done, total)`` is called
    for every stage. ``tolerance``: tolerance of floats, relative to the largest magnitude of a tensor (default 1e-4 for
    float32). ``quanta``: tolerance of integers in quantisation steps.

    The result's ``.agrees`` is True if all outputs agree. Raises ToolError if the framework is not installed; raises
    UsageError if it does not run such a model or the options change what the model computes; and what compiling raises.
    """
    parsed_options = make_options(**options)
    reference = load_reference(model, against, parsed_options)
    source = resolve_model(model, parsed_options)
    board_object = load_board(board) if isinstance(board, (str, Path)) else board
    library = build_kernels_for_host(
        source, parsed_options, board_object.target if board_object else target_for(target), progress
    )
    graph = read_whole_graph(source, parsed_options)
    inputs = (
        split_user_data(library, data)
        if data is not None
        else draw_input_sets(library.manifest, library.inputs, samples, seed, kinds=ALL_KINDS, graph=graph)
    )
    return compare_library(
        library, reference, inputs, parsed_options, graph, tolerance, quanta, layers=layers, progress=progress
    )


def load_reference(model: Any, against: str, options: Options) -> Engine:
    """Load a model in the framework ``against``, as the reference of a comparison.

    Raises UsageError for options that change the inputs, the outputs or the result of the network."""
    changed = [name for name in (*ENDS, "stream", "inputs") if getattr(options, name)]
    if changed:
        raise UsageError(
            f"{changed[0]}: this option changes inputs or outputs, which then differ from those of the framework's model",
            hint=f"leave out {changed[0]} for the comparison",
        )
    if against == NATURAL and options.weight_dtype in dtypes.HALF:
        return _rounded_weights_reference(model, options)
    return load_in_framework(model, against, options)


def _rounded_weights_reference(model: Any, options: Options) -> Engine:
    """Build the reference for a network whose weights are rounded to 16 bits: its optimised graph, which numpy runs.

    Raises UsageError if sizes of the network vary."""
    if options.bounds:
        raise UsageError(
            f"weight_dtype: {options.weight_dtype} weights of a network with variable sizes have no reference",
            hint="compare with a framework instead: --against onnxruntime, for example",
        )
    graph = optimise_graph(read_model(resolve_model(model, options), options), options)
    return NumpyReference(graph, "the network of rounded weights")


def build_kernels_for_host(
    source: Path | Graph, options: Options, target: Target, progress: Progress | None = None
) -> Library:
    """Compile the kernels that a network has on the core ``target``, but as portable C; return a library for this
    computer."""
    module = compile_model(source, target, options, progress)
    return build_library(shared_files(module, __version__))


def read_whole_graph(source: Path | Graph, options: Options) -> Graph | None:
    """Read the whole model as a graph, without cutting it at ``options.outputs``; return None if sizes of the network
    vary.

    A comparison takes the ranges of inputs and the names of layers from this graph."""
    return None if options.bounds else read_model(source, replace(options, outputs=()))


def compare_library(
    library: Library,
    reference: Engine,
    inputs: Sequence[Sequence[Array]],
    options: Options,
    graph: Graph | None,
    tolerance: float | None = None,
    quanta: int = 0,
    *,
    layers: bool = True,
    progress: Progress | None = None,
) -> Comparison:
    """Compare a compiled network with its framework. ``graph``: the model as it was read (:func:`read_whole_graph`).

    If ``tolerance`` is None, the tolerance of 16-bit floats applies to networks that sum products in float16, and to
    networks whose weights were rounded to 16 bits while the framework's were not. ONNX Runtime sums products of 16-bit
    integers in float32: such networks may differ by :data:`WORD_QUANTA`.
    """
    word_quanta = WORD_QUANTA if reference.name == "onnxruntime" and _has_quantised_int16_kernel(library) else 0
    if tolerance is None and options.math == "half":
        tolerance = TOLERANCES["float16"]
    if tolerance is None and options.weight_dtype in dtypes.HALF and reference.name in AGAINST:
        tolerance = TOLERANCES[options.weight_dtype]
    if tolerance is None and word_quanta:
        tolerance = word_quanta / (1 << 15)
    try:
        return compare_with_reference(
            HostKernels(library),
            reference,
            inputs,
            tolerance=tolerance,
            quanta=quanta,
            word_quanta=word_quanta,
            output_names=options.outputs,
            layers=layers,
            network_names=map_layers_to_values(graph) if reference.name in ("torch", "keras") else None,
            progress=progress,
        )
    except InputsRejected as error:
        raise UsageError(
            f"{reference.name} rejects the inputs: {error}",
            hint="give inputs that it accepts: --data or --input",
        ) from error


def _has_quantised_int16_kernel(library: Library) -> bool:
    """Test whether a kernel of the library writes a quantised tensor of int16 or uint16."""
    return any(t["dtype"] in WORDS and t["scale"] is not None and t["written_by"] for t in library.manifest["tensors"])


def map_layers_to_values(graph: Graph | None) -> Mapping[str, str]:
    """Map the name of each layer to the name of its output value, which the last node with the layer's name computes."""
    return {node.loc.name: node.outputs[0] for node in graph.nodes if node.loc.name} if graph is not None else {}


def split_user_data(library: Library, data: Any) -> list[list[Array]]:
    """Split the user's data into one set of inputs for each sample.

    ``data``: as for :func:`verify`. Raises UsageError for data that do not fit the network's inputs."""
    if isinstance(data, (str, Path)):
        inputs = add_channel_orders(library.inputs, library.manifest["options"])
        dataset = read_samples(inputs, library.outputs, Path(data))
        return [list(dataset.sample(k)) for k in range(len(dataset))]
    arrays = _arrays_by_input_position(library, data)
    converted = [
        convert_samples(array[None] if array.shape == tuple(tensor["shape"]) else array, tensor, Path("data"))[0]
        for array, tensor in zip(arrays, library.inputs, strict=True)
    ]
    counts = {len(array) for array in converted}
    if len(counts) != 1 or 0 in counts:
        raise UsageError(
            f"the inputs hold {sorted(counts)} samples, expected one number, at least 1",
            hint="give the same number of samples for each input",
        )
    return [[array[k] for array in converted] for k in range(counts.pop())]


def _arrays_by_input_position(library: Library, data: Any) -> list[Array]:
    """Return the user's arrays in the order of the network's inputs. Raises UsageError if names or their number do not
    match.

    ``data``: an array, a list of arrays, or a mapping from input names to arrays."""
    if isinstance(data, Mapping):
        names = [next((n for n in (t["name"], t["label"]) if n in data), None) for t in library.inputs]
        if None in names or len(data) != len(names):
            input_names = ", ".join(t["label"] or t["name"] for t in library.inputs)
            raise UsageError(
                f"data: got arrays called {', '.join(map(str, data))}, expected {input_names}", hint="rename the arrays"
            )
        return [np.asarray(data[name]) for name in names]
    arrays: Sequence[Any] = data if isinstance(data, (list, tuple)) and len(library.inputs) > 1 else [data]
    if len(arrays) != len(library.inputs):
        raise UsageError(
            f"data: got {len(arrays)} arrays, expected {len(library.inputs)}, one for each input",
            hint="give one array for each input",
        )
    return [np.asarray(array) for array in arrays]
