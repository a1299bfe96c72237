# SPDX-License-Identifier: Apache-2.0
"""Read models as graphs, save graphs, and register plugins for the duration of a call."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

import numpy as np

from microc import __version__
from microc.codegen.c.identifiers import network_name
from microc.codegen.output_files import replace_atomically
from microc.compiler import option_values, validation
from microc.compiler.interaction import convert_flags_in_errors
from microc.compiler.options import PREPARATION, Options, make_options
from microc.errors import UsageError
from microc.graph.file import SUFFIX, to_bytes
from microc.graph.ir import Graph

if TYPE_CHECKING:
    from microc.compiler.option_values import ReadingOptions


# ---- Plugins and schedule rules of the user. They are registered for a whole command or a whole call of the Python API.
#
# Only two functions extend the registries. :func:`microc.cli.main` enters :func:`register_plugins` for the whole command, and
# :func:`registers_plugins` decorates the functions of the Python API that accept options. Some objects that these functions
# return compute results later (the files of a Program, the text of an Explanation). :func:`registers_own_plugins` decorates the
# methods that compute such results. No other code enters or leaves such a context, so that all stages of a call have the same
# registries.

P = ParamSpec("P")
R = TypeVar("R")

REGISTERS_PLUGINS = "registers_plugins"
"""Name of the attribute that :func:`registers_plugins` sets on the functions that it decorates. Tests read it."""


@contextmanager
def register_plugins(options: Mapping[str, Any]) -> Iterator[None]:
    """Register the plugins and schedule rules among ``options`` during a ``with`` block.

    ``options``: values of compilation options by name. Plugins given as paths are loaded.
    """
    plugins = option_values.load_plugins("plugins", options["plugins"]) if "plugins" in options else ()
    rules = option_values.validated_schedule_rules("schedules", options["schedules"]) if "schedules" in options else ()
    if not plugins and not rules:
        yield
        return
    from microc.plugin import active

    with active(plugins, rules):
        yield


def registers_plugins(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that accepts options, as keywords or as an :class:`Options` object. The plugins and schedule
    rules among these options are registered while the function runs."""

    @wraps(function)
    def call_with_plugins(*args: P.args, **kwargs: P.kwargs) -> R:
        chosen = next((each for each in (*args, *kwargs.values()) if isinstance(each, Options)), None)
        own = kwargs if chosen is None else {"plugins": chosen.plugins, "schedules": chosen.schedules}
        with register_plugins(own):
            return function(*args, **kwargs)

    setattr(call_with_plugins, REGISTERS_PLUGINS, True)
    return call_with_plugins


def registers_own_plugins(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method. The plugins in the attribute ``plugins`` of its object are registered while the method
    runs."""

    @wraps(method)
    def call_with_plugins(*args: P.args, **kwargs: P.kwargs) -> R:
        own: Any = args[0]
        with register_plugins({"plugins": own.plugins}):
            return method(*args, **kwargs)

    return call_with_plugins


# ---- Models as graphs: read from a file of any supported format, and saved with their parameters.

ONNX = ".onnx"
_TEMPORARY_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
"""Temporary folders of model files, into which framework objects with dynamic sizes were written. The files are read
once for every size, so the folders are removed only when the process exits."""
MIN_INPUT_SCALE, MAX_INPUT_SCALE = 1e-37, 1e37
"""Smallest and largest accepted scale of integer inputs. Both are normal numbers of float32."""


def read_model(source: Path | Graph, options: Options, *, stored_name: bool = False) -> Graph:
    """Read a model file, or accept a graph, and apply the options for reading.

    These options bind inputs to constants, select inputs and outputs, convert inputs to state, change dtype and layout
    of inputs and outputs, and rename them. ``stored_name``: name the graph of a graph file (``.mcg``) as it was saved,
    instead of after the file.
    """
    from microc.frontend.detect import load_model_file as load_file
    from microc.graph.cut import bind_inputs, convert_inputs_to_state, cut_graph
    from microc.transform.boundary import (
        Boundary,
        adapt_inputs_and_outputs,
        collect_preparations,
        rename_inputs_and_outputs,
    )

    if isinstance(source, Graph):
        graph, stem = bind_inputs(source, options.input_values), source.name
    else:
        graph, stem = load_file(source, options.input_shapes, options.input_values), source.stem
        if stored_name and source.suffix == SUFFIX:  # the name that the graph was saved under
            stem = graph.name
    if options.inputs or options.outputs:
        graph = cut_graph(graph, options.inputs, options.outputs)
    graph = convert_inputs_to_state(graph, options.state) if options.state else graph
    raw = collect_preparations(**{name: getattr(options, f"input_{name}") for name in PREPARATION})
    ends = Boundary(options.input_dtype, options.output_dtype, options.input_layout, options.output_layout, raw)
    graph = rename_inputs_and_outputs(adapt_inputs_and_outputs(graph, ends), options.rename)
    if options.learn is not None:
        from microc.compiler.validation import load_head
        from microc.transform.training.learning import append_learning

        graph = append_learning(graph, load_head(options.learn)).graph
    return replace(graph, name=network_name(options.name or stem))


def resolve_model(model: Any, options: Options) -> Path | Graph:
    """Convert a model to the path of its file or to a graph.

    A path stays a path, and a graph stays a graph. Objects of a framework are converted to graphs. If the options set
    bounds of symbolic dimensions or values of inputs, objects that represent a model file (bytes, ONNX and Keras models)
    are saved to a temporary file instead.
    """
    from microc.frontend import detect

    if len(options.example_inputs):
        from microc.frontend.torch.reader import is_module

        if not is_module(model):
            raise UsageError(
                f"example_inputs: got a model of type {type(model).__name__}, expected a torch.nn.Module",
                hint="leave out example_inputs: other models contain the shapes of their inputs",
            )
    if isinstance(model, (str, os.PathLike)):
        return validation.as_path("a model", model)
    if isinstance(model, Graph):
        return model
    # Only a model file declares symbolic sizes and has branches to choose by input values: it is read once for every size.
    data = detect.serialise_to_file_name_and_bytes(model) if options.bounds or options.input_values else None
    if data is not None:
        folder = tempfile.TemporaryDirectory(prefix="microc-")
        _TEMPORARY_FOLDERS.append(folder)
        path = Path(folder.name) / data[0]
        path.write_bytes(data[1])
        return path
    return detect.read_object(model, options.input_shapes, options.example_inputs)


def import_sklearn(
    estimator: Any,
    input_shape: Sequence[int] | None = None,
    *,
    input_dtype: str = "float32",
    input_scale: float | Sequence[float] = 1.0,
    leaf_dtype: str = "float32",
) -> Graph:
    """Import a fitted scikit-learn or LightGBM estimator as a graph that computes in floats or, for trees, only in
    integers.

    An integer q of ``input_dtype`` (int8, int16, int32, or their unsigned types) represents the feature q *
    ``input_scale``. ``input_scale`` is one number for all features or one number for each feature. The leaves of trees
    are rounded to ``leaf_dtype``. ``input_shape``: the shape of one row; required if the estimator does not define it.
    Raises ModelError or UnsupportedError for an estimator that is not fitted or not known, and UsageError for an
    invalid dtype or scale.
    """
    from microc.frontend.trees import sklearn

    shape = None if input_shape is None else validation.as_integers("input_shape", input_shape)
    dtypes = {
        "input_dtype": validation.as_text("input_dtype", input_dtype),
        "leaf_dtype": validation.as_text("leaf_dtype", leaf_dtype),
    }
    return sklearn.read_estimator(estimator, shape, input_scale=_validated_input_scale(input_scale), **dtypes)


def _validated_input_scale(value: Any) -> float | tuple[float, ...]:
    """Return the scale of integer features as a float, or as a tuple with one float for each feature.

    Raises UsageError unless every scale is a number from :data:`MIN_INPUT_SCALE` to :data:`MAX_INPUT_SCALE`.
    """
    if not isinstance(value, (list, tuple, np.ndarray)):
        return validation.as_number("input_scale", value, MIN_INPUT_SCALE, MAX_INPUT_SCALE)
    return tuple(validation.as_number("input_scale", scale, MIN_INPUT_SCALE, MAX_INPUT_SCALE) for scale in value)


def model_file_name(source: Path | Graph) -> str:
    """Return the name of a model for reports: its file name, or the name of the graph with the suffix ``.mcg``."""
    return source.name + SUFFIX if isinstance(source, Graph) else source.name


@convert_flags_in_errors
@registers_plugins
def load(model: Any, **options: Unpack[ReadingOptions]) -> Graph:
    """Read a model as a graph without running any graph pass. ``model`` is any model that :func:`microc.compile`
    accepts.

    ``options``: the keywords of :class:`microc.CompileOptions` that concern reading. Among them, ``input_shapes`` sets
    symbolic dimensions. The graph can be passed to :func:`microc.compile` instead of the model. Raises UsageError for
    the option ``bounds``, and the errors of reading a model.
    """
    chosen = make_options(**options)
    if chosen.bounds:
        raise UsageError(
            f"bounds: a graph has fixed shapes; got bounds of {', '.join(map(str, chosen.bounds))}, expected none",
            hint="give input_shapes instead, or give bounds to microc.compile",
        )
    return read_model(resolve_model(model, chosen), chosen, stored_name=True)


def save(graph: Graph, path: str | Path) -> Path:
    """Write a graph and its parameters to a file that :func:`load` and ``microc compile`` read, and return the file's
    path.

    If ``path`` ends in ``.onnx``, the file is an ONNX model, in QDQ form if the graph is quantised. Otherwise it is a
    graph file of microc (``.mcg``), which is lossless. Equal graphs give identical files. Raises OutputError if the
    file cannot be written, and UnsupportedError if the graph has operators that cannot be written as ONNX; the error
    lists all of them.
    """
    validation.as_instance("a graph", graph, Graph, "a microc.Graph, which microc.load returns")
    target = validation.as_path("a graph file", path)
    if target.suffix == ONNX:
        from microc.frontend.onnx.writer.model_proto import to_onnx

        content = to_onnx(graph, __version__)
    else:
        content = to_bytes(graph)
    with replace_atomically(target) as temporary:
        temporary.write_bytes(content)
    return target
