"""``microc.verify``: a model beside the framework that made it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from microc import __version__
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.codegen.c.source import shared_files
from microc.compiler.interaction import Progress, speaks_python
from microc.compiler.model import knows_plugins, read_model, source_of
from microc.compiler.options import ENDS, Options, make_options
from microc.compiler.pipeline import compile_model, optimise
from microc.device.boards import load_board
from microc.errors import MicrocError, UsageError, VerificationError
from microc.frontend.trees.known_rows import known_rows
from microc.graph import interp
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.run.data.pictures import fit, with_colours
from microc.run.data.samples import read_samples
from microc.run.desktop.library import Library
from microc.run.desktop.load import build_library
from microc.run.reference.agreement import TOLERANCES, Comparison, Tally, compared
from microc.run.reference.framework_choice import AGAINST, NATURAL, reference_for
from microc.run.reference.frameworks import Reference, RuntimeRefusal, draws
from microc.target import Board, Target, target_for

if TYPE_CHECKING:
    from microc.compiler.option_values import CompileOptions


# ---- A few random rows through a network and the object that it was compiled from, whose framework is imported
# anyway.

Run = Callable[[Sequence[Array]], Sequence[Array]]

_MOST_ROWS = 8
_COMPILED, _INTERPRETED = 100_000_000, 1_000_000
"""Multiply-accumulates that the rows may take together, compiled or by the operators' references: tenths of a second."""
_TOLERANCE, _QUANTISED = 1e-3, 5e-2
"""Relative to the largest magnitude of an output. Quantised networks and those with halves have coarse
steps, of which a sum that is rounded otherwise may take a few."""
_SEED = 20


def quick_check(
    model: Any, network: Run | None, tensors: Sequence[Mapping[str, Any]], graph: Graph, options: Options
) -> None:
    """Compare answers; VerificationError where they differ by more than rounding can explain.

    ``model``: the object; ``network``: what was compiled (None: the graph by the operators' references); ``tensors``: its inputs,
    as a manifest describes them; ``graph``: the network as it was read. Nothing is compared where that would take long, where
    the options make another network of it, or where the framework does not take such inputs. Floats decide where there are any,
    for classes of equal scores are rounding's.
    """
    rows = _rows(graph, compiled=network is not None)
    if not rows or options.bounds or any(getattr(options, name) for name in (*ENDS, "stream", "inputs", "outputs")):
        return
    run, tallies = network or _interpreted(graph), _tallies(graph)
    try:
        reference = reference_for(model, NATURAL, options, inside=False)
    except MicrocError:
        return
    inputs = draws({}, tensors, graph, 3 * rows, _SEED)[::3]  # numbers of every kind, none extreme
    for arrays in [*inputs, *_known(model, graph, rows)]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answer = reference.run(arrays)
        except RuntimeRefusal:
            return
        for position, (tally, mine, theirs) in enumerate(zip(tallies, run(arrays), answer.outputs, strict=False)):
            if mine.size != theirs.size:
                raise VerificationError(
                    f"the network's output {tally.tensor} has {mine.size} elements, that of {reference.name} {theirs.size}",
                    where=type(model).__name__,
                    hint="compile(..., check=False) leaves this comparison out",
                )
            tally.add(mine, theirs.reshape(mine.shape), answer.undecided.get(position))
    found = [tally.agreement() for tally in tallies if tally.pairs]
    deciding = tuple(a for a in found if dtypes.is_float(a.dtype)) or tuple(found)
    comparison = Comparison(reference.name, reference.version, rows, deciding, ())
    if not comparison.agrees:
        raise comparison.error(
            type(model).__name__,
            "microc.verify(model) shows outputs and layers; compile(..., check=False) leaves this comparison out",
        )


def _known(model: Any, graph: Graph, count: int) -> list[list[Array]]:
    """Rows like those that an estimator was fitted on; none for other models."""
    kind = graph.types[graph.inputs[0]]
    if len(graph.inputs) != 1 or len(kind.shape) != 2 or not hasattr(model, "get_params"):
        return []
    rows = known_rows(model, kind.shape[1], count * kind.shape[0]).astype(dtypes.to_numpy(kind.dtype))
    return [[part] for part in np.split(rows, len(rows) // kind.shape[0])] if len(rows) else []


def _rows(graph: Graph, compiled: bool) -> int:
    """How many inferences are cheap enough."""
    work = max(sum(_work(graph, node) for node in graph.nodes), 1)
    return min(_MOST_ROWS, (_COMPILED if compiled else _INTERPRETED) // work)


def _work(graph: Graph, node: Node) -> int:
    """About how much an operator does: elements that it makes, times what each of them sums up."""
    size = sum(graph.types[name].size for name in node.outputs if name)
    if node.op == "tree_ensemble":
        return graph.types[node.inputs[4]].size * int(node.attr("depth")) * graph.types[node.inputs[0]].shape[0] * 100
    if node.op in ("loop", "branch"):
        return _INTERPRETED
    weights = [graph.types[name].size for name in node.inputs[1:] if name in graph.consts]
    return size * max(1, max(weights, default=1) // max(graph.types[node.outputs[0]].shape[-1:] or (1,)))


def _interpreted(graph: Graph) -> Run:
    """The network by the operators' references, which what is compiled must equal."""

    def apply(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
        definition = registry.get(node.op)
        return definition.reference({**definition.defaults, **node.attrs}, arrays)

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        values = interp.run(graph, dict(zip(graph.inputs, arrays, strict=True)), apply)
        return [values[name] for name in graph.outputs]

    return run


def _tallies(graph: Graph) -> list[Tally]:
    coarse = any(node.op in ("quantize", "dequantize", "dynamic_quantize") for node in graph.nodes)
    coarse |= any(kind.dtype in dtypes.HALF for kind in graph.types.values())
    bound = _QUANTISED if coarse else _TOLERANCE
    kinds = [(name, graph.types[name].dtype) for name in graph.outputs]
    return [Tally(name, dtype, bound if dtypes.is_float(dtype) else 0.0) for name, dtype in kinds]


# ---- ``microc.verify``: compile a model, run it beside the framework that made it, on data of the user's own or at
# random.

SAMPLES = 4
SEED = 20


@speaks_python
@knows_plugins
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

    ``model``: a path or an object, as :func:`microc.compile` takes it; ``target``, ``board``, ``options``
    too: the kernels of that core are run, in portable C on this computer. ``against``: ``tflm``, ``litert``, ``onnxruntime``,
    ``torch``, ``keras``, ``sklearn``, ``lightgbm``, or ``reference`` for the natural one: the runtime whose rounding is compiled,
    or where ``weight_dtype`` rounds weights, numpy on the network of these.

    ``data``: a path (as ``--data`` of the command), an array or one for every input with the samples along the first axis, or a
    mapping of such by the inputs' names; None: ``samples`` random sets, by ``seed`` (:mod:`microc.run.reference.frameworks`).
    ``layers``: compare these, too, not the outputs alone; ``progress(what, done, of)`` is told of every stage. ``tolerance``:
    for floats, relative to the largest magnitude of a tensor (default 1e-4 for float32); ``quanta``: for integers.

    ``.agrees`` of the result says whether all outputs do. Raises ToolError where the framework is not installed, UsageError
    where it does not run such a model or the options change what the model is, and what compiling raises.
    """
    chosen = make_options(**options)
    reference = reference_of(model, against, chosen)
    source = source_of(model, chosen)
    found = load_board(board) if isinstance(board, (str, Path)) else board
    library = host_kernels(source, chosen, found.target if found else target_for(target), progress)
    graph = graph_of(source, chosen)
    inputs = given_sets(library, data) if data is not None else random_sets(library, graph, samples, seed)
    return hold(library, reference, inputs, chosen, graph, tolerance, quanta, layers=layers, progress=progress)


def reference_of(model: Any, against: str, options: Options) -> Reference:
    """The model in a framework; UsageError under options with which the network is another one than the framework runs."""
    changed = [name for name in (*ENDS, "stream", "inputs") if getattr(options, name)]
    if changed:
        raise UsageError(
            f"with {changed[0]} the network takes or gives something else than the framework's model",
            hint="compare without it; what it adds is operators at the network's ends, or a walk over the sequence",
        )
    if against == NATURAL and options.weight_dtype in dtypes.HALF:
        return _rounded(model, options)
    return reference_for(model, against, options)


def _rounded(model: Any, options: Options) -> Reference:
    """The network of rounded weights; UsageError where its sizes vary."""
    if options.bounds:
        raise UsageError("a network whose sizes vary is compared with a framework alone", hint="name it: --against")
    from microc.run.reference.engines import Rounded

    return Rounded(optimise(read_model(source_of(model, options), options), options))


def host_kernels(source: Path | Graph, options: Options, target: Target, progress: Progress | None = None) -> Library:
    """The network with a core's kernels, as a library for this computer."""
    module = compile_model(source, target, options, progress)
    return build_library(shared_files(module, __version__))


def graph_of(source: Path | Graph, options: Options) -> Graph | None:
    """The network as it was read, whole: what its inputs choose, and what its layers are called. None where sizes are open."""
    return None if options.bounds else read_model(source, replace(options, outputs=()))


def hold(
    library: Library,
    reference: Reference,
    inputs: Sequence[Sequence[Array]],
    options: Options,
    graph: Graph | None,
    tolerance: float | None = None,
    quanta: int = 0,
    *,
    layers: bool = True,
    progress: Progress | None = None,
) -> Comparison:
    """A compiled network beside its framework. ``graph``: as it was read (:func:`graph_of`). Where weights were rounded and
    the framework's were not, or products are summed in halves, outputs may differ as halves do, unless told."""
    if tolerance is None and options.math == "half":
        tolerance = TOLERANCES["float16"]
    if tolerance is None and options.weight_dtype in dtypes.HALF and reference.name in AGAINST:
        tolerance = TOLERANCES[options.weight_dtype]
    return compared(
        library,
        reference,
        inputs,
        tolerance=tolerance,
        quanta=quanta,
        names=options.outputs,
        layers=layers,
        called=by_layer(graph) if reference.name in ("torch", "keras") else None,
        progress=progress,
    )


def by_layer(graph: Graph | None) -> Mapping[str, str]:
    """The values that are the results of layers, by the layers' names: what was written last for each."""
    return {node.loc.name: node.outputs[0] for node in graph.nodes if node.loc.name} if graph is not None else {}


def random_sets(library: Library, graph: Graph | None, samples: int, seed: int) -> list[list[Array]]:
    """Random sets of inputs; UsageError for no sets."""
    if samples < 1:
        raise UsageError(f"cannot compare {samples} samples", hint="take 1 or more")
    return draws(library.manifest, library.inputs, graph, samples, seed)


def given_sets(library: Library, data: Any) -> list[list[Array]]:
    """The sets of inputs in a user's data; UsageError says what does not fit."""
    if isinstance(data, (str, Path)):
        inputs = with_colours(library.inputs, library.manifest["options"])
        found = read_samples(inputs, library.outputs, Path(data))
        return [list(found.sample(k)) for k in range(len(found))]
    arrays = _by_position(library, data)
    fitting = [
        fit(array[None] if array.shape == tuple(tensor["shape"]) else array, tensor, Path("data"))[0]
        for array, tensor in zip(arrays, library.inputs, strict=True)
    ]
    counts = {len(array) for array in fitting}
    if len(counts) != 1 or 0 in counts:
        raise UsageError(f"the inputs hold {sorted(counts)} samples", hint="give as many of each, one at least")
    return [[array[k] for array in fitting] for k in range(counts.pop())]


def _by_position(library: Library, data: Any) -> list[Array]:
    """One array for every input."""
    if isinstance(data, Mapping):
        names = [next((n for n in (t["name"], t["label"]) if n in data), None) for t in library.inputs]
        if None in names or len(data) != len(names):
            known = ", ".join(t["label"] or t["name"] for t in library.inputs)
            raise UsageError(f"the data are called {', '.join(map(str, data))}", hint=f"the inputs are {known}")
        return [np.asarray(data[name]) for name in names]
    several: Sequence[Any] = data if isinstance(data, (list, tuple)) and len(library.inputs) > 1 else [data]
    if len(several) != len(library.inputs):
        raise UsageError(
            f"the network takes {len(library.inputs)} inputs, {len(several)} were given", hint="one array for each"
        )
    return [np.asarray(array) for array in several]
