"""Models as graphs: read from a file of any format, and saved with their parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from microc.codegen.files import replacing
from microc.codegen.names import network_name
from microc.driver.options import Options, make_options
from microc.errors import OutputError, UsageError
from microc.frontend import objects, sklearn
from microc.frontend.detect import load as load_file
from microc.graph.cut import cut
from microc.graph.file import SUFFIX, to_bytes
from microc.graph.ir import Graph
from microc.plugin import active
from microc.transform.boundary import Boundary, adapt


def read_model(source: Path | Graph, options: Options) -> Graph:
    """The graph of a model file (or a given one), cut and adapted by the options, under the name that the C code will carry."""
    with active(options.plugins):
        if isinstance(source, Graph):
            graph, stem = source, source.name
        elif source.is_file():
            graph, stem = load_file(source, options.input_shapes), source.stem
        else:
            hint = "give the path of a .tflite, .onnx, .keras, .pt2 or .mcg file"
            raise OutputError(f"there is no model file {source}", where=str(source), hint=hint)
        if options.inputs or options.outputs:
            graph = cut(graph, options.inputs, options.outputs)
        ends = Boundary(options.input_dtype, options.output_dtype, options.input_layout, options.output_layout)
        return replace(adapt(graph, ends), name=network_name(options.name or stem))


def source_of(model: Any, options: Options) -> Path | Graph:
    """What may be given as a model: a path, a graph, or an object that a reader knows, as its graph."""
    if isinstance(model, (str, Path)):
        return Path(model)
    return model if isinstance(model, Graph) else objects.read(model, options.input_shapes)


def import_sklearn(
    estimator: Any,
    input_shape: Sequence[int] | None = None,
    *,
    input_dtype: str = "float32",
    input_scale: float | Sequence[float] = 1.0,
    leaf_dtype: str = "float32",
) -> Graph:
    """The graph of a fitted scikit-learn or LightGBM estimator, in floats or (trees) in integers only.

    As :func:`microc.frontend.sklearn.read`: integers q of ``input_dtype`` stand for features q * ``input_scale``; leaves are
    rounded to ``leaf_dtype``.
    """
    return sklearn.read(estimator, input_shape, input_dtype=input_dtype, input_scale=input_scale, leaf_dtype=leaf_dtype)


def source_name(source: Path | Graph) -> str:
    """What reports call a model: its file's name."""
    return source.name + SUFFIX if isinstance(source, Graph) else source.name


def load(model: Any, *, input_shapes: Mapping[str, tuple[int, ...]] | None = None, **options: Any) -> Graph:
    """The graph of a model, anything that :func:`microc.compile` takes, as it was read: no pass has run.

    ``input_shapes`` binds symbolic dimensions; ``options`` are those fields of :class:`~microc.driver.options.Options` that
    speak of reading. :func:`microc.compile` takes the graph in the place of a path. Raises what reading raises.
    """
    chosen = make_options(input_shapes=input_shapes or {}, **options)
    if chosen.bounds:
        raise UsageError("a graph has one shape: bounds are for compile", hint="give input_shapes here")
    return read_model(source_of(model, chosen), chosen)


def save(graph: Graph, path: str | Path) -> Path:
    """Write a graph and its parameters to one file (``.mcg``), which :func:`load` and ``microc compile`` read; its path.

    Equal graphs give equal files. Raises OutputError where the file cannot be written.
    """
    target = Path(path)
    with replacing(target) as temporary:
        temporary.write_bytes(to_bytes(graph))
    return target
