"""Models as graphs, and plugins for the whole of a command."""

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
from microc.codegen.output_files import replacing
from microc.compiler import option_values, validation
from microc.compiler.interaction import speaks_python
from microc.compiler.options import PREPARATION, Options, make_options
from microc.errors import UsageError
from microc.graph.file import SUFFIX, to_bytes
from microc.graph.ir import Graph

if TYPE_CHECKING:
    from microc.compiler.option_values import ReadingOptions


# ---- Plugins and schedule rules of the user: known for the whole of a command, or of a call of the library.
#
# Registries are extended in two places alone. :func:`microc.cli.main` enters :func:`extended_by` around the command, and
# :func:`knows_plugins` decorates the functions of the library that take options. What they return computes more when it is asked
# (the files of a Program, the text of an Explanation): :func:`knows_its_plugins` decorates those methods. Nothing in between
# enters or leaves a context of its own, so that no stage of a call knows less than another.

P = ParamSpec("P")
R = TypeVar("R")

KNOWS = "knows_plugins"
"""The attribute of functions that :func:`knows_plugins` decorates, for tests."""


@contextmanager
def extended_by(options: Mapping[str, Any]) -> Iterator[None]:
    """Extend the registries by the plugins and schedule rules among options by name. Files of plugins are loaded."""
    plugins = option_values.plugins("plugins", options["plugins"]) if "plugins" in options else ()
    rules = option_values.schedules("schedules", options["schedules"]) if "schedules" in options else ()
    if not plugins and not rules:
        yield
        return
    from microc.plugin import active

    with active(plugins, rules):
        yield


def knows_plugins(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function whose keywords are options, or which takes :class:`Options`: it knows their plugins and rules."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        chosen = next((each for each in (*args, *kwargs.values()) if isinstance(each, Options)), None)
        own = kwargs if chosen is None else {"plugins": chosen.plugins, "schedules": chosen.schedules}
        with extended_by(own):
            return function(*args, **kwargs)

    setattr(call, KNOWS, True)
    return call


def knows_its_plugins(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method of what a function of the library returned: it knows the ``plugins`` of its object."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        own: Any = args[0]
        with extended_by({"plugins": own.plugins}):
            return method(*args, **kwargs)

    return call


# ---- Models as graphs: read from a file of any format, and saved with their parameters.

ONNX = ".onnx"
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
"""Files of objects that are compiled for open sizes, which are read once for every size; removed when the process ends."""
SMALLEST, LARGEST = 1e-37, 1e37
"""Scales of integers, as float32 has them."""


def read_model(source: Path | Graph, options: Options, *, stored_name: bool = False) -> Graph:
    """The graph of a model file (or a given one), cut and adapted by the options, under the name that the C code will carry.

    ``stored_name``: a graph file's graph keeps the name that it was saved under, instead of its file's.
    """
    from microc.frontend.detect import load as load_file
    from microc.graph.cut import carry, cut
    from microc.transform.boundary import Boundary, adapt, preparations, rename_ends

    if isinstance(source, Graph):
        graph, stem = source, source.name
    else:
        graph, stem = load_file(source, options.input_shapes), source.stem
        if stored_name and source.suffix == SUFFIX:  # the name that the graph was saved under
            stem = graph.name
    if options.inputs or options.outputs:
        graph = cut(graph, options.inputs, options.outputs)
    graph = carry(graph, options.state) if options.state else graph
    raw = preparations(**{name: getattr(options, f"input_{name}") for name in PREPARATION})
    ends = Boundary(options.input_dtype, options.output_dtype, options.input_layout, options.output_layout, raw)
    graph = rename_ends(adapt(graph, ends), options.rename)
    return replace(graph, name=network_name(options.name or stem))


def source_of(model: Any, options: Options) -> Path | Graph:
    """What may be given as a model: a path, a graph, or an object that a reader knows, as its graph."""
    from microc.frontend import objects
    from microc.frontend.torch.reader import is_module

    if len(options.example_inputs) and not is_module(model):
        raise UsageError("example_inputs are for a torch.nn.Module", hint="other models say themselves what they take")
    if isinstance(model, (str, os.PathLike)):
        return validation.path("a model", model)
    if isinstance(model, Graph):
        return model
    data = objects.file_of(model) if options.bounds else None
    if data is not None:  # symbolic sizes are declared in the file: the object is read as its file is
        folder = tempfile.TemporaryDirectory(prefix="microc-")
        _FOLDERS.append(folder)
        path = Path(folder.name) / data[0]
        path.write_bytes(data[1])
        return path
    return objects.read(model, options.input_shapes, options.example_inputs)


def import_sklearn(
    estimator: Any,
    input_shape: Sequence[int] | None = None,
    *,
    input_dtype: str = "float32",
    input_scale: float | Sequence[float] = 1.0,
    leaf_dtype: str = "float32",
) -> Graph:
    """The graph of a fitted scikit-learn or LightGBM estimator, in floats or (trees) in integers only.

    Integers q of ``input_dtype`` (int8, int16, int32, or unsigned) stand for features q * ``input_scale``, one number or one for
    each; leaves are rounded to ``leaf_dtype``. ``input_shape``: of one row where the estimator does not say. Raises ModelError or
    UnsupportedError where the estimator is not fitted or not known, UsageError for a dtype or a scale that cannot be.
    """
    from microc.frontend.trees import sklearn

    shape = None if input_shape is None else validation.integers("input_shape", input_shape)
    dtypes = {
        "input_dtype": validation.text("input_dtype", input_dtype),
        "leaf_dtype": validation.text("leaf_dtype", leaf_dtype),
    }
    return sklearn.read(estimator, shape, input_scale=_scale(input_scale), **dtypes)


def _scale(value: Any) -> float | tuple[float, ...]:
    """What an integer stands for, or what for every feature."""
    if not isinstance(value, (list, tuple, np.ndarray)):
        return validation.number("input_scale", value, SMALLEST, LARGEST)
    return tuple(validation.number("input_scale", scale, SMALLEST, LARGEST) for scale in value)


def source_name(source: Path | Graph) -> str:
    """What reports call a model: its file's name."""
    return source.name + SUFFIX if isinstance(source, Graph) else source.name


@speaks_python
@knows_plugins
def load(model: Any, **options: Unpack[ReadingOptions]) -> Graph:
    """The graph of a model, anything that :func:`microc.compile` takes, as it was read: no pass has run.

    ``options`` are those of :class:`microc.CompileOptions` that speak of reading; ``input_shapes`` binds symbolic
    dimensions. :func:`microc.compile` takes the graph in the place of a path. Raises what reading raises.
    """
    chosen = make_options(**options)
    if chosen.bounds:
        raise UsageError("a graph has one shape: bounds are for compile", hint="give input_shapes here")
    return read_model(source_of(model, chosen), chosen, stored_name=True)


def save(graph: Graph, path: str | Path) -> Path:
    """Write a graph and its parameters to one file, which :func:`load` and ``microc compile`` read; its path.

    A path that ends in ``.onnx`` makes an ONNX model, in QDQ form where the graph is quantised;
    any other a graph file (``.mcg``), which holds all there is. Equal graphs give equal files. Raises OutputError where the file
    cannot be written, UnsupportedError, which lists all operators that ONNX models of ours cannot have.
    """
    validation.instance("a graph", graph, Graph, "what microc.load gives")
    target = validation.path("a graph file", path)
    if target.suffix == ONNX:
        from microc.frontend.onnx.writer.model import to_onnx

        content = to_onnx(graph, __version__)
    else:
        content = to_bytes(graph)
    with replacing(target) as temporary:
        temporary.write_bytes(content)
    return target
