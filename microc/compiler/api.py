# SPDX-License-Identifier: Apache-2.0
"""The Python API: :func:`compile` for this computer or for a board, :class:`Program`, its result for a board, and training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from microc import __version__
from microc.codegen.c.identifiers import network_name
from microc.codegen.output_files import write_tree
from microc.codegen.project.protocols import BLOB_SUFFIX, RELOCATABLE_SCRIPT
from microc.codegen.render import format_signature
from microc.compiler import validation
from microc.compiler.cache import CachedNetwork, CacheEntry, find_cache_entry
from microc.compiler.interaction import Progress, as_callback, convert_flags_in_errors
from microc.compiler.model import registers_own_plugins, registers_plugins, resolve_model
from microc.compiler.option_values import refuse_board_options, refuse_conflicting_board_options
from microc.compiler.options import Options, make_options
from microc.compiler.validation import load_head, validated_head
from microc.device.boards import load_board
from microc.document.blocks import Document, document, facts
from microc.document.renderers import Showable
from microc.errors import UsageError
from microc.graph.ir import Graph
from microc.plugin import Plugin
from microc.target import Board, Target

if TYPE_CHECKING:
    from microc.base.dtypes import Array
    from microc.codegen.exports import Package
    from microc.compiler.option_values import CompileOptions
    from microc.module import Module
    from microc.run.desktop.library import Library
    from microc.transform.training.learning import Head


class Program(Showable):
    """A network compiled for a board, in memory. It writes the C project of the firmware.

    ``module``: the compiled network, or a function that compiles it when it is first needed. The function is passed if
    the files of the network were found in the cache. ``plugins``: the plugins that were registered for the compilation.
    ``cache_entry``: the entry of the compilation cache to write. ``cached_network``: the contents of this entry, if it
    exists.
    """

    def __init__(
        self,
        module: Module | Callable[[], Module],
        board: Board,
        plugins: tuple[Plugin, ...] = (),
        cache_entry: CacheEntry | None = None,
        cached_network: CachedNetwork | None = None,
    ) -> None:
        self._module_or_compile, self.board, self.plugins = module, board, plugins
        self._cache_entry, self._cached_network = cache_entry, cached_network

    @cached_property
    @registers_own_plugins
    def module(self) -> Module:
        """The compiled network: kernels, calls, constants and the memory plan."""
        return self._module_or_compile() if callable(self._module_or_compile) else self._module_or_compile

    @cached_property
    @registers_own_plugins
    def module_in_one_arena(self) -> Module:
        """The module with all tensors planned in a single arena.

        Firmware that contains several networks and packages for other build systems require a single arena.
        """
        from microc.compiler.fit.budget import constant_regions
        from microc.compiler.fit.search import board_capacity
        from microc.plan.plan import plan_in_one_arena

        relocatable, capacity = "relocatable" in self.module.options, board_capacity(self.board)
        flash = constant_regions((self.module,), capacity, self.board.target.flash_wait, relocatable=relocatable)
        return plan_in_one_arena(self.module, flash, None if relocatable else capacity.storage)

    def __repr__(self) -> str:
        return f"<Program {self._describe_signature()} for {self.board.name}>"

    def document(self) -> Document:
        """Return memory, multiply-accumulates and the number of kernels as a document, for a notebook."""
        report = self.report()
        names = {"flash": "flash, bytes", "ram": "RAM, bytes", "arena": "arena, bytes", "macs": "multiply-accumulates"}
        rows = [(shown, report[name]) for name, shown in names.items() if name in report]
        return document(
            facts((*rows, ("kernels", len(report["layers"])))),
            title=f"{self._describe_signature()} for {self.board.name}",
        )

    def _describe_signature(self) -> str:
        report = self.report()
        return format_signature(report["model"], report["inputs"], report["outputs"])

    def report(self) -> dict[str, Any]:
        """Return a summary of the compiled network as a dict of plain data.

        Memory is in bytes. ``layers`` has one entry for each kernel, in order of execution.

        - ``flash``, ``ram``: memory that the firmware needs (flash is an upper estimate); ``board_flash``,
          ``board_ram``: memory of the board (0: unlimited).
        - Cycles are estimates. ``share`` is the fraction of the network's cycles that a layer takes. Milliseconds are
          None if the clock rate is not known.
        - ``in_place`` of a layer: number of bytes of its results that overlap its operands. ``streamed``: the layers
          that the kernel computes row by row and what this costs additionally, or None.
        - ``memories``: the contents of each memory of the board, if the board has several memories for tensors.
        - ``external``: for each region of the graph that a backend can compute, the code that was chosen, the reason,
          and the cost of the backend's code and of microc's code.
        - ``streaming``: frames per run of a streaming network, or None; ``state``: the tensors kept between runs.
        - ``without_streams``: arena bytes and estimated instructions of the network before it was changed to fit its
          RAM limit, or None if it was not changed.
        """
        return deepcopy(dict(self._cached_network.report if self._cached_network is not None else self._module_report))

    @cached_property
    @registers_own_plugins
    def _module_report(self) -> dict[str, Any]:
        from microc.reports.report import summarise_module

        return summarise_module(self.module, self.board)

    def files(self) -> dict[str, str | bytes]:
        """Return the C project as a dict from file names to contents."""
        return dict(self._cached_network.files if self._cached_network is not None else self._project_files)

    @cached_property
    @registers_own_plugins
    def _project_files(self) -> dict[str, str | bytes]:
        from microc.codegen.project.firmware import project_files

        files = project_files((self.module,), self.board, __version__)
        if self._cache_entry is not None:
            self._cache_entry.write(files, self._module_report)
        return files

    @convert_flags_in_errors
    @registers_own_plugins
    def write(self, folder: str | Path) -> Path:
        """Write the C project into a folder that is new, is empty, or contains a project that microc wrote before.

        If the network is relocatable (``relocatable=True``) and the name ends in ``.bin``, the network is written as a
        single binary file, which is built with the board's C compiler. Raises FitError if the board has too little
        memory, and ToolError if the build fails or the code is not position-independent.
        """
        if self._cached_network is None:
            from microc.compiler.fit.search import compute_and_check_footprint

            compute_and_check_footprint((self.module,), self.board)
        target, files = validation.as_path("a folder", folder), self.files()
        if target.suffix == BLOB_SUFFIX and RELOCATABLE_SCRIPT in files:
            from microc.run.board_project import build_network_file

            build_network_file(files, target)
        else:
            write_tree(target, files)
        return target

    @registers_own_plugins
    def export(
        self,
        name: str,
        folder: str | Path,
        inputs: Sequence[Any] | None = None,
        *,
        author: str = "",
        url: str = "",
        license: str = "",
        version: str = "",
    ) -> Package:
        """Write the network as a package for another build system, and return the package.

        ``name``: the name of a package format, or the path of a format file of the user
        (:func:`microc.codegen.exports.load_format`). ``folder``: as in :meth:`write`. ``inputs``: one array for each
        input of the network, which become the data of the package's example. If the network has state, each array may
        have an additional first axis: a sequence of frames, one for each run. All tensors of the package are in one
        arena, even if the board has several memories. ``author`` (``Ada Lovelace <ada@lab.org>``), ``url``,
        ``license`` (an SPDX expression) and ``version`` (1.0.0 by default) are for the manifests of registries.
        UsageError if one has the wrong form.
        """
        from microc.codegen.exports import build_package, make_publisher
        from microc.device.toolchain import compile_webassembly_module

        target = validation.as_path("a folder", folder)
        validation.as_text("a format", name)
        frames = None if inputs is None else self._example_inputs_per_run(validation.as_arrays("inputs", inputs))
        publisher = make_publisher(author, url, license, version)
        package = build_package(self.module_in_one_arena, self.board, name, __version__, frames, publisher)
        if package.compiled:
            package = package.with_webassembly(compile_webassembly_module(package.code, self.board.target))
        if package.archive:
            package = package.with_archive()
        write_tree(target, package.files)
        return package

    def _example_inputs_per_run(self, inputs: Sequence[Any]) -> list[tuple[Array, ...]]:
        """Split the example's arrays into one tuple of arrays for each run, with one array for each input.

        Raises UsageError if the arrays do not match the network's inputs.
        """
        from microc.compiler.sizes.general import RunShapes, as_array
        from microc.reports.report import describe_value

        tensors = [describe_value(self.module, name) for name in self.module.inputs]
        arrays = [as_array(f"input {k}", array) for k, array in enumerate(inputs)]
        longer = [array.ndim == len(tensor["shape"]) + 1 for array, tensor in zip(arrays, tensors, strict=False)]
        if not self.module.state or not longer or not all(longer):
            return [tuple(RunShapes({}).check_inputs(tensors, arrays))]
        lengths = {len(array) for array in arrays}
        if lengths == {0} or len(lengths) > 1:
            counts = ", ".join(str(len(array)) for array in arrays)
            raise UsageError(
                f"example: the inputs differ in their number of frames, or have none; got {counts}, "
                "expected equal numbers, at least 1",
                hint="give the same number of frames for each input",
            )
        return [tuple(RunShapes({}).check_inputs(tensors, frame)) for frame in zip(*arrays, strict=True)]

    @registers_own_plugins
    def library(self) -> Library:
        """Build the kernels as a library for this computer. Its results are bit-identical to those of the board.

        Regions that a backend computes on the board are computed by microc's own code in the library.
        """
        from microc.codegen.c.source import shared_files
        from microc.run.desktop.load import build_library

        return build_library(shared_files(self.module.own or self.module, __version__))


@overload
def compile(
    model: Any,
    target: str = "host",
    *,
    board: None = None,
    progress: Progress | bool | None = None,
    check: bool = True,
    **options: Unpack[CompileOptions],
) -> Library: ...
@overload
def compile(
    model: Any,
    target: str = "host",
    *,
    board: str | Path | Board,
    progress: Progress | bool | None = None,
    check: bool = True,
    **options: Unpack[CompileOptions],
) -> Program: ...
@convert_flags_in_errors
@registers_plugins
def compile(
    model: Any,
    target: str = "host",
    *,
    board: str | Path | Board | None = None,
    progress: Progress | bool | None = None,
    check: bool = True,
    **options: Unpack[CompileOptions],
) -> Library | Program:
    """Compile a model.

    ``model``: one of

    - the path of a model file (TFLite, ONNX, Keras, a PyTorch program, LightGBM's text, XGBoost's JSON or UBJSON, a
      graph file of microc), or the bytes of such a file
    - a graph that :func:`microc.load` returned
    - a fitted scikit-learn, LightGBM or XGBoost estimator, an ONNX or Keras model, or PyTorch's ``ExportedProgram``
    - a ``torch.nn.Module``, with the option ``example_inputs``.

    Without ``board`` the result is a :class:`Library` in this process. It is called with numpy arrays in the order of
    the graph's inputs. ``target`` selects its instructions:

    - ``host`` and ``native`` use the vector instructions of this computer; the library that they export also contains
      portable code and runs on any computer.
    - ``portable`` uses no vector instructions.
    - The name of a core (``x86-64-v3``) uses the vector instructions of that core. If this computer lacks them, the
      kernels of that core run as portable C.
    - Several names separated by commas (``x86-64-v3,portable``) give one library with a variant for each core. It
      selects the first variant that the computer supports.

    With ``board``, the name of a board or the path of a board file, the result is a :class:`Program`, which writes the
    C project of a firmware.

    If ``model`` is an object of a framework, the compiled network is compared with the object on a few random rows,
    provided that this takes only tenths of a second. VerificationError reports the largest difference. ``check=False``
    skips the comparison (:mod:`microc.run.against`).

    ``options``: the keywords of :class:`microc.CompileOptions`. Among them, ``input_shapes`` sets symbolic dimensions:
    ``{"input": (1, 3, 96, 96)}``. ``progress``: True prints the stages; a function is called at each stage. Raises
    subclasses of :class:`~microc.errors.MicrocError`.
    """
    callback = as_callback(progress)
    validation.as_boolean("check", check)
    chosen = make_options(**options)
    source = resolve_model(model, chosen)
    target = validation.as_text("a target", target)
    compared = source if check and isinstance(source, Graph) and source is not model else None
    if board is None:
        refuse_board_options(chosen)
        library = _build_desktop_library(source, target, chosen, callback)
        if compared:
            from microc.run.against import check_against_framework

            check_against_framework(model, library, library.inputs, compared, chosen)
            library.reset()
        return library
    refuse_conflicting_board_options(chosen)
    found = board if isinstance(board, Board) else load_board(validation.as_path("a board", board))
    entry = find_cache_entry(source, found.target, chosen, {"name": found.name, **found.raw})
    known = entry.read() if entry else None
    make = partial(_compile_for_board, source, found, chosen, callback)
    if known is not None:
        return Program(make, found, chosen.plugins, entry, known)
    module = make()
    program = Program(module, found, chosen.plugins, entry)
    if compared:
        from microc.reports.report import describe_value
        from microc.run.against import check_against_framework

        inputs = [describe_value(program.module, name) for name in program.module.inputs]
        check_against_framework(model, None, inputs, compared, chosen)
    return program


@registers_plugins  # the portable variant is compiled later, when the plugins of `compile` are no longer registered
def _build_desktop_library(source: Path | Graph, target: str, options: Options, progress: Progress | None) -> Library:
    """Build the network as a library for this computer.

    The portable variant, which the library needs for export, is compiled only when it is requested.
    """
    if "," in target:
        return _build_multi_target_library(source, target, options, progress)
    from microc.device.toolchain import PORTABLE, THIS_COMPUTER, flags_if_machine_available, parse_library_target
    from microc.run.desktop.load import build_library

    core = parse_library_target(target)
    flags = flags_if_machine_available(core.core.machine)
    build_for_export = (
        partial(_build_desktop_library, source, PORTABLE, options, None) if flags and target in THIS_COMPUTER else None
    )
    return build_library(
        _generate_desktop_sources(source, core, options, progress), *flags, build_for_export=build_for_export
    )


def _build_multi_target_library(
    source: Path | Graph, targets: str, options: Options, progress: Progress | None
) -> Library:
    """Build one library with a variant of the kernels for each of several cores. When the library is loaded, it selects
    the first variant that the computer supports."""
    from microc.device.toolchain import parse_library_targets

    if options.external:
        raise UsageError(
            f"external: not possible in a library for several cores; got target {targets!r}, expected one core",
            hint="name one target, or leave out external",
        )
    from microc.run.desktop.load import build_library_for_cores, merge_sources_of_cores

    cores = parse_library_targets(targets)
    name = network_name(options.name or (source.name if isinstance(source, Graph) else source.stem))
    variants = [
        _generate_desktop_sources(source, core, replace(options, name=f"level{level}_{name}"), progress)
        for level, core in enumerate(cores)
    ]
    return build_library_for_cores(merge_sources_of_cores(variants, name))


def _compile_for_board(source: Path | Graph, board: Board, options: Options, progress: Progress | None) -> Module:
    """Compile a network for a board and return its module; FitError if the firmware does not fit the board."""
    from microc.compiler.fit.search import board_capacity, compute_and_check_footprint
    from microc.compiler.pipeline import compile_model

    module = compile_model(
        source,
        board.target,
        options,
        progress,
        board_capacity(board, external=bool(options.external), cores=options.cores),
    )
    if options.self_test is not None:
        from microc.run.data.samples import with_self_test

        module = with_self_test(module, options.self_test)
    compute_and_check_footprint((module,), board)
    return module


def _generate_desktop_sources(
    source: Path | Graph, target: Target, options: Options, progress: Progress | None
) -> dict[str, str]:
    """Generate the C sources of a library for this computer, by file name, or read them from the compilation cache."""
    entry = find_cache_entry(source, target, options)
    known = entry.read() if entry else None
    if known is not None:
        return {name: str(text) for name, text in known.files.items()}
    from microc.codegen.c.source import shared_files
    from microc.compiler.pipeline import compile_model

    files = shared_files(compile_model(source, target, options, progress), __version__)
    if entry is not None:
        entry.write(files, {})
    return files


# ---- Training: from graph to graph.

_GRAPH = "a microc.Graph, which microc.load returns"


@convert_flags_in_errors
def add_loss(graph: Graph, kind: str, output: str = "") -> Graph:
    """Append a loss to a network: an input ``labels`` and an output ``loss``, a float of shape ().

    ``kind``: ``cross_entropy`` (labels int32, the class of each row), ``binary_cross_entropy`` (labels from 0 to 1, of
    the output's shape) or ``mean_squared_error`` (labels of the output's shape). Each is a mean. A softmax or sigmoid
    that computes the output is passed by for the first two, which start from logits. ``output``: the float value that
    is compared with the labels; by default the only output. Raises UsageError for an unknown name and an output of
    another type."""
    from microc.transform.training.graph_extensions import append_loss

    validation.as_instance("a graph", graph, Graph, _GRAPH)
    return append_loss(graph, validation.as_text("a loss", kind), validation.as_text("output", output))


@convert_flags_in_errors
@registers_plugins
def gradient(
    graph: Graph, loss: str, of: Sequence[str], *, plugins: str | Path | Plugin | Sequence[str | Path | Plugin] = ()
) -> Graph:
    """Append the gradients of a loss to a network, in reverse mode. The result is a graph like any other.

    ``loss``: name of a float value of one element, such as the output of :func:`add_loss`. ``of``: names of inputs,
    constants (weights), states or computed values, of floats. The gradient by ``w`` is the output ``w.gradient``, of
    the type of ``w``. The outputs of the result are those of ``graph``, then ``loss`` unless it is one of them, then
    the gradients in the order of ``of``. Loops and recurrent layers between a value and the loss are unrolled.
    ``plugins``: plugins whose operators the graph has. Raises UsageError for an unknown name, a loss or value of
    another type, and a value on which the loss does not depend; raises UnsupportedError for quantised operators and
    for operators without a gradient (:attr:`microc.plugin.OpDef.gradient`) between a value and the loss."""
    from microc.transform.training.gradient import append_gradients

    validation.as_instance("a graph", graph, Graph, _GRAPH)
    names = tuple(validation.as_text("of", name) for name in ((of,) if isinstance(of, str) else of))
    return append_gradients(graph, validation.as_text("a loss", loss), names)


@convert_flags_in_errors
@registers_plugins
def learn(
    graph: Graph,
    head: str | Path | Mapping[str, Any] | Head,
    *,
    plugins: str | Path | Plugin | Sequence[str | Path | Plugin] = (),
) -> Graph:
    """Return the network that learns in every run: its last layers in float32, a loss, and an optimiser's step.

    ``head``: a mapping of the fields of :class:`microc.transform.training.learning.Head` (layers, loss, optimiser ...),
    or the path of a TOML file with a table ``[learn]`` of them. The result has the further inputs ``labels`` and ``rate`` and the
    further output ``loss``. Weights that learn are state. The other outputs are those before the step. A rate of 0
    changes no weight. ``microc.compile(model, learn=head)`` compiles it with a function for inference alone.
    ``plugins``: those whose operators the graph contains. Raises UsageError for wrong fields and layers, and
    UnsupportedError as :func:`gradient` does."""
    from microc.transform.training.learning import append_learning

    validation.as_instance("a graph", graph, Graph, _GRAPH)
    declared = validated_head("head", head)
    if declared is None:
        raise validation.invalid_value_error("head", head, "a mapping, or the path of a TOML file")
    return append_learning(graph, load_head(declared)).graph
