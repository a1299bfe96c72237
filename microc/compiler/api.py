"""What Python programs call: :func:`compile` for this computer or for a board, and :class:`Program`, its result for a board."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from microc import __version__
from microc.codegen.c.identifiers import network_name
from microc.codegen.output_files import write_tree
from microc.codegen.project.protocols import BLOB_SUFFIX, RELOCATABLE_SCRIPT
from microc.compiler import validation
from microc.compiler.cache import Entry, Found, entry_of
from microc.compiler.interaction import Progress, speaks_python, teller
from microc.compiler.model import knows_its_plugins, knows_plugins, source_of
from microc.compiler.option_values import for_board, for_library
from microc.compiler.options import Options, make_options
from microc.compiler.representation import signature, table
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
    """A network compiled for a board, in memory; ``plugins`` are those that it was compiled with.

    ``module`` may be what makes it, where the cache knows the files: it is made when it is asked for.
    """

    def __init__(
        self,
        module: Module | Callable[[], Module],
        board: Board,
        plugins: tuple[Plugin, ...] = (),
        entry: Entry | None = None,
        found: Found | None = None,
    ) -> None:
        self._make, self.board, self.plugins, self._entry, self._found = module, board, plugins, entry, found

    @cached_property
    @knows_its_plugins
    def module(self) -> Module:
        """The kernels, their calls, constants and the memory plan."""
        return self._make() if callable(self._make) else self._make

    @cached_property
    @knows_its_plugins
    def in_one_arena(self) -> Module:
        """The same for what has one memory for tensors: firmware of several networks, and other build systems."""
        from microc.plan.plan import in_one_arena

        return in_one_arena(self.module, self.board.target.flash_wait)

    def __repr__(self) -> str:
        return f"<Program {self._signature()} for {self.board.name}>"

    def _repr_html_(self) -> str:
        report = self.report()
        names = {"flash": "flash, bytes", "ram": "RAM, bytes", "arena": "arena, bytes", "macs": "multiply-accumulates"}
        rows = [(shown, report[name]) for name, shown in names.items() if name in report]
        return table(f"{self._signature()} for {self.board.name}", [*rows, ("kernels", len(report["layers"]))])

    def _signature(self) -> str:
        report = self.report()
        return signature(report["model"], report["inputs"], report["outputs"])

    @knows_its_plugins
    def report(self) -> dict[str, Any]:
        """Numbers of the network, plain data: memory in bytes, one entry of ``layers`` for each kernel in order. ``flash`` and
        ``ram`` are what the firmware needs (flash: estimated from above), ``board_flash`` and ``board_ram`` what there is (0: no
        bound); cycles are estimates, ``share`` a layer's part of them, milliseconds None where no clock is known.
        ``in_place`` of a layer: bytes of its results that lie over its operands; ``streamed``: the layers that it computes row
        by row, and what that costs, or None. ``memories``: what lies in each of the board's, where tensors have several.
        ``external``: whose code computes each region that a backend has code for, why, and what either takes.
        ``streaming``: how a run takes frames of a sequence, or None; ``state``: what is kept.
        ``without_streams``: where the arena's limit asks for such kernels, or for smaller workspaces: arena and estimated
        instructions without; else None.
        """
        if self._found is not None:
            return dict(self._found.report)
        from microc.reports.summary import summary

        return summary(self.module, self.board)

    @knows_its_plugins
    def files(self) -> dict[str, str | bytes]:
        """The C project: contents by file name."""
        if self._found is not None:
            return dict(self._found.files)
        from microc.codegen.project.firmware import project_files

        files = project_files((self.module,), self.board, __version__)
        if self._entry is not None:
            self._entry.write(files, self.report())
        return files

    @speaks_python
    @knows_its_plugins
    def write(self, folder: str | Path) -> Path:
        """Write the C project into a folder that is new, empty or holds such a project; FitError if the board is too small.

        A network that was compiled to be loaded (``relocatable=True``) may be a file alone, whose name ends in ``.bin``: it is
        built for that. ToolError where it does not build, or cannot lie anywhere.
        """
        if self._found is None:
            from microc.compiler.fit.footprint import check_modules

            check_modules((self.module,), self.board)
        target, files = validation.path("a folder", folder), self.files()
        if target.suffix == BLOB_SUFFIX and RELOCATABLE_SCRIPT in files:
            from microc.run.board_project import write_network

            write_network(files, target)
        else:
            write_tree(target, files)
        return target

    @knows_its_plugins
    def export(self, name: str, folder: str | Path, inputs: Sequence[Any] | None = None) -> Package:
        """Write the network wrapped for a build system; what was written.

        ``name`` of a format, or the path of one of the user's own (:func:`microc.codegen.exports.load_format`). ``folder`` as in
        :meth:`write`. ``inputs``, one array for each input, are what the example in it runs on; for a network that keeps
        something from run to run they may have an axis more, the first: the frames of a sequence, a run each. The network has
        one arena, also for a board with several memories.
        """
        from microc.codegen.exports import export_files
        from microc.device.toolchain import compile_module

        target = validation.path("a folder", folder)
        validation.text("a format", name)
        frames = None if inputs is None else self._frames(validation.arrays("inputs", inputs))
        package = export_files(self.in_one_arena, self.board, name, __version__, frames)
        if package.compiled:
            package = package.with_module(compile_module(package.code, self.board.target))
        write_tree(target, package.files)
        return package

    def _frames(self, inputs: Sequence[Any]) -> list[tuple[Array, ...]]:
        """What each run of the example takes; UsageError where that are no inputs of the network."""
        from microc.compiler.sizes.run_shapes import RunShapes, as_array
        from microc.reports.summary import tensor_data

        given = [tensor_data(self.module, name) for name in self.module.inputs]
        arrays = [as_array(f"input {k}", array) for k, array in enumerate(inputs)]
        longer = [array.ndim == len(tensor["shape"]) + 1 for array, tensor in zip(arrays, given, strict=False)]
        if not self.module.state or not longer or not all(longer):
            return [tuple(RunShapes({}).fitting(given, arrays))]
        lengths = {len(array) for array in arrays}
        if lengths == {0} or len(lengths) > 1:
            counts = ", ".join(str(len(array)) for array in arrays)
            raise UsageError(
                f"the inputs of the example have {counts} frames", hint="one or more, as many of each input"
            )
        return [tuple(RunShapes({}).fitting(given, frame)) for frame in zip(*arrays, strict=True)]

    @knows_its_plugins
    def library(self) -> Library:
        """The same kernels as a library for this computer: what the board must agree with, bit by bit. External code is ours
        there."""
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
@speaks_python
@knows_plugins
def compile(
    model: Any,
    target: str = "host",
    *,
    board: str | Path | Board | None = None,
    progress: Progress | bool | None = None,
    check: bool = True,
    **options: Unpack[CompileOptions],
) -> Library | Program:
    """Compile a model: the path of a file (TFLite, ONNX, Keras, a PyTorch program, LightGBM's text, XGBoost's JSON or UBJSON, a
    graph file) or its bytes, a graph that :func:`microc.load` gave, a fitted scikit-learn, LightGBM or XGBoost estimator, an ONNX
    or Keras model, PyTorch's ``ExportedProgram``, or a ``torch.nn.Module`` with ``example_inputs``.

    Without ``board`` the network becomes a :class:`Library` in this process, called with numpy arrays in the graph's order.
    ``target``: ``host``, as ``native``, uses the vectors that this computer has, and what is exported runs on any;
    ``portable`` uses none; a core by its name (``x86-64-v3``) uses those of that core where this computer is one, else it is
    that core's kernels in portable C. Several with commas (``x86-64-v3,portable``) are one library with the kernels of each,
    of which the first are taken that a computer runs. With ``board``, a name or the path of a board file, it becomes a
    :class:`Program`, which writes the C project of a firmware.

    An object of a framework is asked itself: a few random rows go through both, where that takes tenths of a second, and
    VerificationError says by how much the answers differ; ``check=False`` leaves that out
    (:mod:`microc.run.against`).

    ``options`` are :class:`microc.CompileOptions`; ``input_shapes`` of them binds symbolic dimensions,
    ``{"input": (1, 3, 96, 96)}``. ``progress``: True shows stages, a function hears of them. Refusals are
    :class:`~microc.errors.MicrocError`.
    """
    told = teller(progress)
    validation.truth("check", check)
    chosen = make_options(**options)
    source = source_of(model, chosen)
    target = validation.text("a target", target)
    asked = source if check and isinstance(source, Graph) and source is not model else None
    if board is None:
        for_library(chosen)
        library = _library(source, target, chosen, told)
        if asked:
            from microc.run.against import quick_check

            quick_check(model, lambda arrays: _tuple(library(*arrays)), library.inputs, asked, chosen)
            library.reset()
        return library
    for_board(chosen)
    found = board if isinstance(board, Board) else load_board(validation.path("a board", board))
    entry = entry_of(source, found.target, chosen, {"name": found.name, **found.raw})
    known = entry.read() if entry else None
    make = partial(_compiled, source, found, chosen, told)
    if known is not None:
        return Program(make, found, chosen.plugins, entry, known)
    module = make()
    program = Program(module, found, chosen.plugins, entry)
    if asked:
        from microc.reports.summary import tensor_data
        from microc.run.against import quick_check

        inputs = [tensor_data(program.module, name) for name in program.module.inputs]
        quick_check(model, None, inputs, asked, chosen)
    return program


@knows_plugins  # of a network for this computer alone, portable C is made when it is asked for
def _library(source: Path | Graph, target: str, options: Options, progress: Progress | None) -> Library:
    """The network for this computer; made for it alone, it is exported as portable C, which is made when that is asked for."""
    if "," in target:
        return _several(source, target, options, progress)
    from microc.device.toolchain import HERE, PORTABLE, library_core, machine_flags
    from microc.run.desktop.load import build_library

    core = library_core(target)
    flags = machine_flags(core.core.machine)
    elsewhere = partial(_library, source, PORTABLE, options, None) if flags and target in HERE else None
    return build_library(_desktop_files(source, core, options, progress), *flags, elsewhere=elsewhere)


def _several(source: Path | Graph, targets: str, options: Options, progress: Progress | None) -> Library:
    """The network for several cores in one library, the first of which is taken that a computer is."""
    from microc.device.toolchain import library_cores

    if options.external:
        raise UsageError(
            "a library for several cores has no external code", hint="name one target, or leave out external"
        )
    from microc.run.desktop.load import build_levels, levels_of

    cores = library_cores(targets)
    name = network_name(options.name or (source.name if isinstance(source, Graph) else source.stem))
    made = [
        _desktop_files(source, core, replace(options, name=f"level{level}_{name}"), progress)
        for level, core in enumerate(cores)
    ]
    return build_levels(levels_of(made, name))


def _compiled(source: Path | Graph, board: Board, options: Options, progress: Progress | None) -> Module:
    """The module for a board, which it fits."""
    from microc.compiler.fit.footprint import check_modules, room_of
    from microc.compiler.pipeline import compile_model

    module = compile_model(source, board.target, options, progress, room_of(board, external=bool(options.external)))
    if options.self_test is not None:
        from microc.run.data.samples import with_self_test

        module = with_self_test(module, options.self_test)
    check_modules((module,), board)
    return module


def _desktop_files(source: Path | Graph, target: Target, options: Options, progress: Progress | None) -> dict[str, str]:
    """The sources of a library, those of an earlier compilation if the cache has them."""
    entry = entry_of(source, target, options)
    known = entry.read() if entry else None
    if known is not None:
        return {name: str(text) for name, text in known.files.items()}
    from microc.codegen.c.source import shared_files
    from microc.compiler.pipeline import compile_model

    files = shared_files(compile_model(source, target, options, progress), __version__)
    if entry is not None:
        entry.write(files, {})
    return files


def _tuple(result: Array | tuple[Array, ...]) -> tuple[Array, ...]:
    return result if isinstance(result, tuple) else (result,)
