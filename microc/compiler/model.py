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
from microc.compiler.interaction import with_python_errors
from microc.compiler.options import PREPARATION, Options, make_options
from microc.errors import UsageError
from microc.graph.file import SUFFIX, to_bytes
from microc.graph.ir import Graph

if TYPE_CHECKING:
    from microc.compiler.option_values import ReadingOptions


# ---- Plugins and schedule rules of the user: registered for the whole of a command, or of a call of the library.
#
# Registries are extended in two places alone. :func:`microc.cli.main` enters :func:`register_plugins` around the command, and
# :func:`registers_plugins` decorates the functions of the library that take options. Objects that they return compute some
# results later (the files of a Program, the text of an Explanation): :func:`registers_own_plugins` decorates those methods. No
# other code enters or leaves such a context, so that all stages of a call have the same registries.

P = ParamSpec("P")
R = TypeVar("R")

REGISTERS_PLUGINS = "registers_plugins"
"""Attribute that :func:`registers_plugins` sets on the functions it decorates, for tests."""


@contextmanager
def register_plugins(options: Mapping[str, Any]) -> Iterator[None]:
    """Extend the registries by the plugins and schedule rules of a mapping of options. Plugin files are loaded."""
    plugins = option_values.load_plugins("plugins", options["plugins"]) if "plugins" in options else ()
    rules = option_values.validated_schedule_rules("schedules", options["schedules"]) if "schedules" in options else ()
    if not plugins and not rules:
        yield
        return
    from microc.plugin import active

    with active(plugins, rules):
        yield


def registers_plugins(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function whose keywords are options, or which takes :class:`Options`: their plugins and rules are
    registered while it runs."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        chosen = next((each for each in (*args, *kwargs.values()) if isinstance(each, Options)), None)
        own = kwargs if chosen is None else {"plugins": chosen.plugins, "schedules": chosen.schedules}
        with register_plugins(own):
            return function(*args, **kwargs)

    setattr(call, REGISTERS_PLUGINS, True)
    return call


def registers_own_plugins(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method: the ``plugins`` of its object are registered while it runs."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        own: Any = args[0]
        with register_plugins({"plugins": own.plugins}):
            return method(*args, **kwargs)

    return call


# ---- Models as graphs: read from a file of any format, and saved with their parameters.

ONNX = ".onnx"
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
"""Files of framework objects compiled with dynamic sizes. They are read once for every size, and removed at exit."""
SMALLEST, LARGEST = 1e-37, 1e37
"""Range of the scale of integer inputs, within that of float32."""


def read_model(source: Path | Graph, options: Options, *, stored_name: bool = False) -> Graph:
    """Read a model file (or take a graph) and apply the options for cutting, state, boundary and names.

    ``stored_name``: a graph file keeps the name that its graph was saved under, instead of the file's name.
    """
    from microc.frontend.detect import load_model_file as load_file
    from microc.graph.cut import convert_to_state, cut_graph
    from microc.transform.boundary import Boundary, adapt_ends, collect_preparations, rename_inputs_and_outputs

    if isinstance(source, Graph):
        graph, stem = source, source.name
    else:
        graph, stem = load_file(source, options.input_shapes), source.stem
        if stored_name and source.suffix == SUFFIX:  # the name that the graph was saved under
            stem = graph.name
    if options.inputs or options.outputs:
        graph = cut_graph(graph, options.inputs, options.outputs)
    graph = convert_to_state(graph, options.state) if options.state else graph
    raw = collect_preparations(**{name: getattr(options, f"input_{name}") for name in PREPARATION})
    ends = Boundary(options.input_dtype, options.output_dtype, options.input_layout, options.output_layout, raw)
    graph = rename_inputs_and_outputs(adapt_ends(graph, ends), options.rename)
    return replace(graph, name=network_name(options.name or stem))


def model_source(model: Any, options: Options) -> Path | Graph:
    """Return a model as a path or a graph; objects of a framework are read."""
    from microc.frontend import objects
    from microc.frontend.torch.reader import is_module

    if len(options.example_inputs) and not is_module(model):
        raise UsageError(
            f"example_inputs: got a model of type {type(model).__name__}, expected a torch.nn.Module",
            hint="leave out example_inputs: other models contain the shapes of their inputs",
        )
    if isinstance(model, (str, os.PathLike)):
        return validation.as_path("a model", model)
    if isinstance(model, Graph):
        return model
    data = objects.model_file_of(model) if options.bounds else None
    if data is not None:  # only the file declares symbolic sizes, so the object is written to one and read at each size
        folder = tempfile.TemporaryDirectory(prefix="microc-")
        _FOLDERS.append(folder)
        path = Path(folder.name) / data[0]
        path.write_bytes(data[1])
        return path
    return objects.read_object(model, options.input_shapes, options.example_inputs)


def import_sklearn(
    estimator: Any,
    input_shape: Sequence[int] | None = None,
    *,
    input_dtype: str = "float32",
    input_scale: float | Sequence[float] = 1.0,
    leaf_dtype: str = "float32",
) -> Graph:
    """Import a fitted scikit-learn or LightGBM estimator as a graph, in floats or (trees) in integers only.

    Integers q of ``input_dtype`` (int8, int16, int32, or unsigned) represent the features q * ``input_scale``, one
    number or one per feature; leaves are rounded to ``leaf_dtype``. ``input_shape``: the shape of one row, if the
    estimator does not define it. Raises ModelError or UnsupportedError for an estimator that is not fitted or not
    known, UsageError for an invalid dtype or scale.
    """
    from microc.frontend.trees import sklearn

    shape = None if input_shape is None else validation.as_integers("input_shape", input_shape)
    dtypes = {
        "input_dtype": validation.as_text("input_dtype", input_dtype),
        "leaf_dtype": validation.as_text("leaf_dtype", leaf_dtype),
    }
    return sklearn.read_estimator(estimator, shape, input_scale=_validated_input_scale(input_scale), **dtypes)


def _validated_input_scale(value: Any) -> float | tuple[float, ...]:
    """Check the scale of integer features, one number or one per feature; return it as a float or a tuple."""
    if not isinstance(value, (list, tuple, np.ndarray)):
        return validation.as_number("input_scale", value, SMALLEST, LARGEST)
    return tuple(validation.as_number("input_scale", scale, SMALLEST, LARGEST) for scale in value)


def source_name(source: Path | Graph) -> str:
    """Return the name of a model in reports: its file's name."""
    return source.name + SUFFIX if isinstance(source, Graph) else source.name


@with_python_errors
@registers_plugins
def load(model: Any, **options: Unpack[ReadingOptions]) -> Graph:
    """Read a model, anything that :func:`microc.compile` takes, as a graph; no pass has run.

    ``options`` are the options of :class:`microc.CompileOptions` that concern reading; ``input_shapes`` binds symbolic
    dimensions. :func:`microc.compile` accepts the graph instead of a path. Raises UsageError for ``bounds``, and the
    errors of reading.
    """
    chosen = make_options(**options)
    if chosen.bounds:
        raise UsageError(
            f"bounds: a graph has fixed shapes; got bounds of {', '.join(map(str, chosen.bounds))}, expected none",
            hint="give input_shapes instead, or give bounds to microc.compile",
        )
    return read_model(model_source(model, chosen), chosen, stored_name=True)


def save(graph: Graph, path: str | Path) -> Path:
    """Write a graph and its parameters to one file, which :func:`load` and ``microc compile`` read; return its path.

    A ``path`` that ends in ``.onnx`` becomes an ONNX model, in QDQ form if the graph is quantised; any other a graph
    file (``.mcg``), which is lossless. Equal graphs give equal files. Raises OutputError if the file cannot be written,
    and UnsupportedError, which lists all operators that cannot be written as ONNX.
    """
    validation.as_instance("a graph", graph, Graph, "what microc.load gives")
    target = validation.as_path("a graph file", path)
    if target.suffix == ONNX:
        from microc.frontend.onnx.writer.model_proto import to_onnx

        content = to_onnx(graph, __version__)
    else:
        content = to_bytes(graph)
    with replace_atomically(target) as temporary:
        temporary.write_bytes(content)
    return target
