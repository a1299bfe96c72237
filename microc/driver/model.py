"""Models as graphs: read from a file of any format, and saved with their parameters."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from microc import __version__
from microc.codegen.files import replacing
from microc.codegen.names import network_name
from microc.driver import accepted
from microc.driver.extended import knows_plugins
from microc.driver.options import PREPARATION, Options, make_options
from microc.driver.spoken import speaks_python
from microc.errors import UsageError
from microc.graph.file import SUFFIX, to_bytes
from microc.graph.ir import Graph

if TYPE_CHECKING:
    from microc.driver.options.typed import ReadingOptions

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
    from microc.graph.carry import carry
    from microc.graph.cut import cut
    from microc.transform.boundary import Boundary, adapt
    from microc.transform.preparation import preparations
    from microc.transform.renaming import rename_ends

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
    from microc.frontend.torch.module import is_module

    if len(options.example_inputs) and not is_module(model):
        raise UsageError("example_inputs are for a torch.nn.Module", hint="other models say themselves what they take")
    if isinstance(model, (str, os.PathLike)):
        return accepted.path("a model", model)
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

    shape = None if input_shape is None else accepted.integers("input_shape", input_shape)
    dtypes = {
        "input_dtype": accepted.text("input_dtype", input_dtype),
        "leaf_dtype": accepted.text("leaf_dtype", leaf_dtype),
    }
    return sklearn.read(estimator, shape, input_scale=_scale(input_scale), **dtypes)


def _scale(value: Any) -> float | tuple[float, ...]:
    """What an integer stands for, or what for every feature."""
    if not isinstance(value, (list, tuple, np.ndarray)):
        return accepted.number("input_scale", value, SMALLEST, LARGEST)
    return tuple(accepted.number("input_scale", scale, SMALLEST, LARGEST) for scale in value)


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
    accepted.instance("a graph", graph, Graph, "what microc.load gives")
    target = accepted.path("a graph file", path)
    if target.suffix == ONNX:
        from microc.frontend.onnx.writer.model import to_onnx

        content = to_onnx(graph, __version__)
    else:
        content = to_bytes(graph)
    with replacing(target) as temporary:
        temporary.write_bytes(content)
    return target
