"""``microc.verify``: compile a model, run it beside the framework that made it, on data of the user's own or at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from microc import __version__, dtypes
from microc.codegen.network import shared_files
from microc.device.boards import load_board
from microc.driver.compile.pipeline import compile_model, optimise
from microc.driver.data.fit import fit
from microc.driver.data.pictures import with_colours
from microc.driver.data.samples import read_samples
from microc.driver.desktop.library import Library
from microc.driver.desktop.load import build_library
from microc.driver.extended import knows_plugins
from microc.driver.model import read_model, source_of
from microc.driver.options import ENDS, Options, make_options
from microc.driver.progress import Progress
from microc.driver.reference.agreement import Comparison, compared
from microc.driver.reference.choice import AGAINST, NATURAL, reference_for
from microc.driver.reference.draws import draws
from microc.driver.reference.measures import TOLERANCES
from microc.driver.reference.runtime import Reference
from microc.driver.spoken import speaks_python
from microc.dtypes import Array
from microc.errors import UsageError
from microc.graph.ir import Graph
from microc.target import Board, Target, target_for

if TYPE_CHECKING:
    from microc.driver.options.typed import CompileOptions

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
    mapping of such by the inputs' names; None: ``samples`` random sets, by ``seed`` (:mod:`microc.driver.reference.draws`).
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
    from microc.driver.reference.rounded import Rounded

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
