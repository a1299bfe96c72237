"""The Python API: :func:`compile` for this computer or for a board, and :class:`Program`, its result for a board."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from microc import __version__
from microc.codegen.c.identifiers import network_name
from microc.codegen.output_files import write_tree
from microc.codegen.project.protocols import BLOB_SUFFIX, RELOCATABLE_SCRIPT
from microc.codegen.render import format_signature, html_table
from microc.compiler import validation
from microc.compiler.cache import CachedNetwork, CacheEntry, find_entry
from microc.compiler.interaction import Progress, as_callback, with_python_errors
from microc.compiler.model import model_source, registers_own_plugins, registers_plugins
from microc.compiler.option_values import refuse_board_options, refuse_conflicting_board_options
from microc.compiler.options import Options, make_options
from microc.device.boards import load_board
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


class Program:
    """A network compiled for a board, in memory.

    ``plugins``: the plugins that it was compiled with. ``module`` may be a function that compiles it on first use, for
    a network whose files are in the cache.
    """

    def __init__(
        self,
        module: Module | Callable[[], Module],
        board: Board,
        plugins: tuple[Plugin, ...] = (),
        entry: CacheEntry | None = None,
        found: CachedNetwork | None = None,
    ) -> None:
        self._make, self.board, self.plugins, self._entry, self._found = module, board, plugins, entry, found

    @cached_property
    @registers_own_plugins
    def module(self) -> Module:
        """The kernels, their calls, constants and the memory plan."""
        return self._make() if callable(self._make) else self._make

    @cached_property
    @registers_own_plugins
    def in_one_arena(self) -> Module:
        """The module planned with one arena, for firmware of several networks and for other build systems."""
        from microc.plan.plan import plan_in_one_arena

        return plan_in_one_arena(self.module, self.board.target.flash_wait)

    def __repr__(self) -> str:
        return f"<Program {self._describe_signature()} for {self.board.name}>"

    def _repr_html_(self) -> str:
        report = self.report()
        names = {"flash": "flash, bytes", "ram": "RAM, bytes", "arena": "arena, bytes", "macs": "multiply-accumulates"}
        rows = [(shown, report[name]) for name, shown in names.items() if name in report]
        return html_table(
            f"{self._describe_signature()} for {self.board.name}", [*rows, ("kernels", len(report["layers"]))]
        )

    def _describe_signature(self) -> str:
        report = self.report()
        return format_signature(report["model"], report["inputs"], report["outputs"])

    def report(self) -> dict[str, Any]:
        """Return the figures of the network as plain data.

        Memory is in bytes. ``layers`` has one entry for each kernel, in order of execution.

        - ``flash``, ``ram``: needs of the firmware (flash is an upper estimate); ``board_flash``, ``board_ram``: what
          the board has (0: unlimited).
        - Cycles are estimates; ``share`` is a layer's part of them; milliseconds are None if no clock is known.
        - ``in_place`` of a layer: bytes of its results that overlap its operands; ``streamed``: the layers that it
          computes row by row with their additional cost, or None.
        - ``memories``: the contents of each memory of the board, if tensors may be in several.
        - ``external``: for each region that a backend can compute, the chosen code, the reason, and the cost of both.
        - ``streaming``: frames per run of a streaming network, or None; ``state``: the tensors kept between runs.
        - ``without_streams``: arena and estimated instructions before the network had to fit its RAM limit, or None.
        """
        return deepcopy(dict(self._found.report if self._found is not None else self._report))

    @cached_property
    @registers_own_plugins
    def _report(self) -> dict[str, Any]:
        from microc.reports.summary import summarise_module

        return summarise_module(self.module, self.board)

    def files(self) -> dict[str, str | bytes]:
        """Return the C project: contents by file name."""
        return dict(self._found.files if self._found is not None else self._files)

    @cached_property
    @registers_own_plugins
    def _files(self) -> dict[str, str | bytes]:
        from microc.codegen.project.firmware import project_files

        files = project_files((self.module,), self.board, __version__)
        if self._entry is not None:
            self._entry.write(files, self._report)
        return files

    @with_python_errors
    @registers_own_plugins
    def write(self, folder: str | Path) -> Path:
        """Write the C project into a folder that is new, empty or holds such a project; FitError if the board is too small.

        A relocatable network (``relocatable=True``) may be written as a single file whose name ends in ``.bin``; this
        runs the board's compiler. Raises ToolError if the build fails, or if the code is not position-independent.
        """
        if self._found is None:
            from microc.compiler.fit.footprint import footprint_that_fits

            footprint_that_fits((self.module,), self.board)
        target, files = validation.as_path("a folder", folder), self.files()
        if target.suffix == BLOB_SUFFIX and RELOCATABLE_SCRIPT in files:
            from microc.run.board_project import build_network_file

            build_network_file(files, target)
        else:
            write_tree(target, files)
        return target

    @registers_own_plugins
    def export(self, name: str, folder: str | Path, inputs: Sequence[Any] | None = None) -> Package:
        """Write the network wrapped for a build system, and return the written package.

        ``name``: a format, or the path of a format of the user's own (:func:`microc.codegen.exports.load_format`).
        ``folder`` as in :meth:`write`. ``inputs``: one array for each input, the data of the example in the package.
        For a network with state they may have one axis more, the first one: a sequence of frames, one per run. The
        package has one arena, also for a board with several memories.
        """
        from microc.codegen.exports import build_package
        from microc.device.toolchain import compile_webassembly_module

        target = validation.as_path("a folder", folder)
        validation.as_text("a format", name)
        frames = None if inputs is None else self._example_frames(validation.as_arrays("inputs", inputs))
        package = build_package(self.in_one_arena, self.board, name, __version__, frames)
        if package.compiled:
            package = package.with_module(compile_webassembly_module(package.code, self.board.target))
        write_tree(target, package.files)
        return package

    def _example_frames(self, inputs: Sequence[Any]) -> list[tuple[Array, ...]]:
        """Return the inputs of each run of the example; UsageError if they do not match the inputs of the network."""
        from microc.compiler.sizes.run_shapes import RunShapes, as_array
        from microc.reports.summary import value_data

        tensors = [value_data(self.module, name) for name in self.module.inputs]
        arrays = [as_array(f"input {k}", array) for k, array in enumerate(inputs)]
        longer = [array.ndim == len(tensor["shape"]) + 1 for array, tensor in zip(arrays, tensors, strict=False)]
        if not self.module.state or not longer or not all(longer):
            return [tuple(RunShapes({}).fitting(tensors, arrays))]
        lengths = {len(array) for array in arrays}
        if lengths == {0} or len(lengths) > 1:
            counts = ", ".join(str(len(array)) for array in arrays)
            raise UsageError(
                f"example: the inputs need one number of frames; got {counts}, expected one number, at least 1",
                hint="give as many frames for each input",
            )
        return [tuple(RunShapes({}).fitting(tensors, frame)) for frame in zip(*arrays, strict=True)]

    @registers_own_plugins
    def library(self) -> Library:
        """Build the same kernels as a library for this computer: the bit-exact reference of the board.

        External regions are computed by microc's own code there.
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
@with_python_errors
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

    ``model``: the path of a file (TFLite, ONNX, Keras, a PyTorch program, LightGBM's text, XGBoost's JSON or UBJSON, a
    graph file) or its bytes, a graph of :func:`microc.load`, a fitted scikit-learn, LightGBM or XGBoost estimator, an
    ONNX or Keras model, PyTorch's ``ExportedProgram``, or a ``torch.nn.Module`` with ``example_inputs``.

    Without ``board`` the network becomes a :class:`Library` in this process, called with numpy arrays in the order of
    the graph's inputs. ``target``: ``host`` and ``native`` use the vector instructions of this computer, and the
    exported library runs on any; ``portable`` uses none; the name of a core (``x86-64-v3``) uses that core's if this
    computer has them, else that core's kernels run as portable C. Several with commas (``x86-64-v3,portable``) become
    one library that selects the first variant a computer supports. With ``board``, a name or the path of a board file,
    the network becomes a :class:`Program`, which writes the C project of a firmware.

    The result of an object of a framework is compared with the object on a few random rows, where that takes tenths of
    a second. VerificationError reports the largest difference; ``check=False`` skips the comparison
    (:mod:`microc.run.against`).

    ``options`` are :class:`microc.CompileOptions`; ``input_shapes`` of them binds symbolic dimensions:
    ``{"input": (1, 3, 96, 96)}``. ``progress``: True shows stages, a function is called with each. Raises subclasses of
    :class:`~microc.errors.MicrocError`.
    """
    callback = as_callback(progress)
    validation.as_boolean("check", check)
    chosen = make_options(**options)
    source = model_source(model, chosen)
    target = validation.as_text("a target", target)
    compared = source if check and isinstance(source, Graph) and source is not model else None
    if board is None:
        refuse_board_options(chosen)
        library = _build_desktop_library(source, target, chosen, callback)
        if compared:
            from microc.run.against import check_against_framework

            check_against_framework(model, lambda arrays: _as_tuple(library(*arrays)), library.inputs, compared, chosen)
            library.reset()
        return library
    refuse_conflicting_board_options(chosen)
    found = board if isinstance(board, Board) else load_board(validation.as_path("a board", board))
    entry = find_entry(source, found.target, chosen, {"name": found.name, **found.raw})
    known = entry.read() if entry else None
    make = partial(_compile_for_board, source, found, chosen, callback)
    if known is not None:
        return Program(make, found, chosen.plugins, entry, known)
    module = make()
    program = Program(module, found, chosen.plugins, entry)
    if compared:
        from microc.reports.summary import value_data
        from microc.run.against import check_against_framework

        inputs = [value_data(program.module, name) for name in program.module.inputs]
        check_against_framework(model, None, inputs, compared, chosen)
    return program


@registers_plugins  # the portable variant is compiled later, when the plugins of `compile` are no longer registered
def _build_desktop_library(source: Path | Graph, target: str, options: Options, progress: Progress | None) -> Library:
    """Build the network for this computer. Its portable variant, for export, is compiled when it is asked for."""
    if "," in target:
        return _multi_target_library(source, target, options, progress)
    from microc.device.toolchain import PORTABLE, THIS_COMPUTER, flags_if_machine_available, library_target
    from microc.run.desktop.load import build_library

    core = library_target(target)
    flags = flags_if_machine_available(core.core.machine)
    elsewhere = (
        partial(_build_desktop_library, source, PORTABLE, options, None) if flags and target in THIS_COMPUTER else None
    )
    return build_library(_desktop_sources(source, core, options, progress), *flags, elsewhere=elsewhere)


def _multi_target_library(source: Path | Graph, targets: str, options: Options, progress: Progress | None) -> Library:
    """Build one library with kernels for several cores; at load time it selects the first variant that the computer supports."""
    from microc.device.toolchain import library_targets

    if options.external:
        raise UsageError(
            f"external: not possible in a library for several cores; got target {targets!r}, expected one core",
            hint="name one target, or leave out external",
        )
    from microc.run.desktop.load import build_levels, merge_levels

    cores = library_targets(targets)
    name = network_name(options.name or (source.name if isinstance(source, Graph) else source.stem))
    variants = [
        _desktop_sources(source, core, replace(options, name=f"level{level}_{name}"), progress)
        for level, core in enumerate(cores)
    ]
    return build_levels(merge_levels(variants, name))


def _compile_for_board(source: Path | Graph, board: Board, options: Options, progress: Progress | None) -> Module:
    """Compile the network for a board, check that it fits, and return its module; FitError if it does not fit."""
    from microc.compiler.fit.footprint import board_capacity, footprint_that_fits
    from microc.compiler.pipeline import compile_model

    module = compile_model(
        source, board.target, options, progress, board_capacity(board, external=bool(options.external))
    )
    if options.self_test is not None:
        from microc.run.data.samples import with_self_test

        module = with_self_test(module, options.self_test)
    footprint_that_fits((module,), board)
    return module


def _desktop_sources(
    source: Path | Graph, target: Target, options: Options, progress: Progress | None
) -> dict[str, str]:
    """Return the C sources of a library for this computer, from the cache if it has them."""
    entry = find_entry(source, target, options)
    known = entry.read() if entry else None
    if known is not None:
        return {name: str(text) for name, text in known.files.items()}
    from microc.codegen.c.source import shared_files
    from microc.compiler.pipeline import compile_model

    files = shared_files(compile_model(source, target, options, progress), __version__)
    if entry is not None:
        entry.write(files, {})
    return files


def _as_tuple(result: Array | tuple[Array, ...]) -> tuple[Array, ...]:
    return result if isinstance(result, tuple) else (result,)
