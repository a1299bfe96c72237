# SPDX-License-Identifier: Apache-2.0
"""Plugins, which add operators, cores and external code: the names that a plugin file imports, and the loader of such files.

A plugin is a Python file that defines ``PLUGIN``::

    from microc.plugin import Case, OpDef, Plugin, TensorType, Value, ir

    SNAKE = OpDef("snake", infer=..., reference=..., scalar=..., cases=...)     # an operator: microc.ops.registry.OpDef

    def from_onnx(application, x: Value, *, alpha: float = 1.0):                # converts a node of the model
        application.result("snake", (x,), {"alpha": alpha})

    PLUGIN = Plugin(operators=(SNAKE,), onnx={"com.example::Snake": from_onnx})

``microc compile model.onnx --plugin snake.py`` uses the plugin, ``microc plugin check snake.py`` runs the tests (``cases``) of
its operators. Plugins are programs: load only files that you trust. ``examples/custom_operator`` is a complete plugin."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from microc import te
from microc.base.dtypes import Array
from microc.base.file_access import read_bytes
from microc.errors import MicrocError, ModelError, OutputError, UnsupportedError, UsageError, similar_files_hint
from microc.external.backend import BACKENDS, Backend, Code, Entry, Region, Span
from microc.frontend.signature import Rank, Value, bind_converter
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.graph.match import P
from microc.isa import (
    CORES,
    FAMILIES,
    SCALAR,
    TENSOR,
    Body,
    Core,
    Costs,
    InstructionSet,
    Intrin,
    VectorUnit,
    list_intrinsics,
)
from microc.isa.instruction_set import Scratchpad, TensorUnit
from microc.isa.portable import UNALIGNED
from microc.isa.small_families import with_unit
from microc.module import Sources
from microc.ops.arithmetic import is_quantised, legalize_in_float
from microc.ops.attributes import Attribute, choice, element_type, flag, integer, integers, names, number, numbers, real
from microc.ops.gradients.call import GradientCall
from microc.ops.registry import Case, Legalized, OpCall, OpDef, Operand, registry
from microc.schedule.rules import RULES, ScheduleRule
from microc.tir import ir
from microc.tir.operators import FUNCTIONS

if TYPE_CHECKING:
    from microc.frontend.onnx.context import OpContext as OnnxApplication
    from microc.frontend.tflite.context import OpContext as TfliteApplication


__all__ = (
    "CORES",
    "UNALIGNED",
    "Array",
    "Attr",
    "Attribute",
    "Backend",
    "Body",
    "Case",
    "Code",
    "Core",
    "Costs",
    "Entry",
    "GradientCall",
    "InstructionSet",
    "Intrin",
    "ModelError",
    "OnnxApplication",
    "OpCall",
    "OpDef",
    "Operand",
    "P",
    "Plugin",
    "Rank",
    "Region",
    "Scratchpad",
    "Sources",
    "Span",
    "TensorType",
    "TensorUnit",
    "TfliteApplication",
    "UnsupportedError",
    "Value",
    "VectorUnit",
    "active",
    "choice",
    "element_type",
    "extern",
    "flag",
    "in_floats",
    "integer",
    "integers",
    "ir",
    "load_plugin",
    "names",
    "number",
    "numbers",
    "real",
    "te",
    "with_unit",
)

PORTABLE = "MICROC_PORTABLE"
"""C macro that replaces all C bodies of externs by C that is printed from their TIR meanings, if it is defined when
the project is compiled."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """Operators, converters, cores and backends that a plugin file adds to microc.

    - ``operators``: definitions of operators. The name of an operator of microc is an error.
    - ``tflite``: functions that convert a custom node of a TFLite model to operators, by the node's custom code;
      ``onnx``: such functions for ONNX nodes, by ``domain::operator``. Their parameters after the context are the node's
      operands and attributes (:mod:`microc.frontend.signature`).
    - ``externs``: C functions with a meaning in TIR (:func:`extern`). Expressions call them by
      :func:`microc.tir.ir.call`.
    - ``cores``: cores (:class:`microc.isa.instruction_set.Core`) as targets, with instruction sets of their own.
    - ``backends``: external code for parts of networks (:mod:`microc.external.backend`), selected by ``--external``.
    - ``source``: name of the plugin file, for messages; ``digest``: its SHA-256."""

    operators: tuple[OpDef, ...] = ()
    tflite: Mapping[str, Callable[..., None]] = field(default_factory=dict)
    onnx: Mapping[str, Callable[..., None]] = field(default_factory=dict)
    externs: tuple[Intrin, ...] = ()
    cores: tuple[Core, ...] = ()
    backends: tuple[Backend, ...] = ()
    source: str = ""
    digest: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "operators", tuple(self.operators))
        object.__setattr__(self, "externs", tuple(self.externs))
        object.__setattr__(self, "cores", tuple(self.cores))
        object.__setattr__(self, "backends", tuple(self.backends))
        for name in ("tflite", "onnx"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))


def __getattr__(name: str) -> Any:
    if name in ("OnnxApplication", "TfliteApplication"):
        module = importlib.import_module(f"microc.frontend.{name.removesuffix('Application').lower()}.context")
        return module.OpContext
    raise AttributeError(f"module 'microc.plugin' has no attribute {name!r}")


def extern(
    name: str,
    params: Iterable[ir.Var | ir.Buffer],
    meaning: ir.Expr | ir.Stmt,
    body: str,
    *,
    guard: str = f"!defined({PORTABLE})",
    operations: Mapping[str, int] = MappingProxyType({}),
) -> Intrin:
    """Define a C function that TIR expressions may call.

    - ``meaning``: value of the function, an expression over ``params`` (scalars, or buffers for pointers); or its
      effect, a statement that stores to these buffers. The interpreter runs the meaning, and the cost model counts its
      operations.
    - ``body``: C statements of the function, used if the preprocessor condition ``guard`` holds. Else C is printed from
      the meaning. Both must return the same bits; ``microc plugin check`` compares them.
    - ``operations``: cost of the body, by type of operation (``isa/instruction_set.py``). The default is the cost of
      the meaning."""
    return Intrin(name, tuple(params), meaning, bodies=(Body(body, tuple(sorted(operations.items())), guard=guard),))


def in_floats(node: Node, graph: Graph) -> Legalized | None:
    """Compute a quantised operator in floats: dequantise its operands before it and quantise its result. For use as
    ``OpDef.legalize``.

    Return None if the operator is not quantised. An operator of a single 8-bit tensor becomes a table of 256
    numbers."""
    return legalize_in_float(node, graph) if is_quantised(node, graph) else None


@contextmanager
def active(plugins: Iterable[Plugin], rules: Iterable[ScheduleRule] = ()) -> Iterator[None]:
    """Register the additions of plugins and the schedule rules while the ``with`` block runs. Raise UsageError if a
    name exists already.

    Commands and functions of the library enter this context once for all their work (:mod:`microc.compiler.model`)."""
    with ExitStack() as stack:
        stack.enter_context(RULES.extend({rule.name: rule for rule in rules}))
        for plugin in plugins:
            try:
                _register_additions(plugin, stack)
            except UsageError as error:
                raise UsageError(error.what, where=plugin.source, hint=error.hint) from error
        yield


def _register_additions(plugin: Plugin, stack: ExitStack) -> None:
    """Register the additions of a plugin until ``stack`` is closed. Raise UsageError if a name exists already."""
    stack.enter_context(registry().extend({operator.name: operator for operator in plugin.operators}))
    if plugin.tflite:
        from microc.frontend.tflite.context import Converter as TfliteConverter
        from microc.frontend.tflite.reader import CONVERTERS

        tflite = {
            f"CUSTOM:{code}": TfliteConverter(bind_converter(convert), ()) for code, convert in plugin.tflite.items()
        }
        stack.enter_context(CONVERTERS.extend(tflite))
    if plugin.onnx:
        from microc.frontend.onnx.context import Converter as OnnxConverter
        from microc.frontend.onnx.reader import PLUGIN_CONVERTERS

        onnx = {name: OnnxConverter(bind_converter(convert), ()) for name, convert in plugin.onnx.items()}
        stack.enter_context(PLUGIN_CONVERTERS.extend(onnx))
    sets = {s.name: s for core in plugin.cores for s in core.sets}.values()
    words = (*plugin.externs, *(word for s in sets for word in list_intrinsics(s)))
    stack.enter_context(SCALAR.extend({intrinsic.name: intrinsic for intrinsic in words}))
    stack.enter_context(TENSOR.extend({tensor.name: tensor for s in sets for tensor in s.tensors}))
    stack.enter_context(CORES.extend({core.name: core for core in plugin.cores}))
    stack.enter_context(BACKENDS.extend({backend.name: backend for backend in plugin.backends}))


_LOADED: dict[tuple[Path, str], Plugin] = {}
"""Plugins by path and SHA-256 of their files. Two networks of one firmware, or a command and the functions that it
calls, may name the same file. Running the file twice would define different operators with the same names."""


def load_plugin(path: str | Path) -> Plugin:
    """Return the ``PLUGIN`` of a file. The file runs again in the same process only if its bytes have changed.

    Raise OutputError if the file cannot be read, and UsageError if running it fails or if its ``PLUGIN`` is missing
    or incomplete."""
    source = Path(path)
    if not source.is_file():
        hint = (
            similar_files_hint(source) or "a plugin is a file of Python: examples/custom_operator/operators.py is one"
        )
        raise OutputError(f"--plugin: there is no file {source}", where=str(source), hint=hint)
    try:
        known = source.resolve(), hashlib.sha256(read_bytes(source)).hexdigest()
    except OSError as error:
        raise OutputError(f"cannot read the plugin: {error.strerror or error}", where=str(source)) from error
    if known not in _LOADED:
        _LOADED[known] = replace(_run_plugin(source), source=source.name, digest=known[1])
    return _LOADED[known]


def _run_plugin(source: Path) -> Plugin:
    """Run a plugin file, check its ``PLUGIN`` and return it."""
    spec = importlib.util.spec_from_file_location(f"microc_plugin_{source.stem}", source)
    if spec is None or spec.loader is None:
        raise UsageError(
            f"--plugin: expected a Python file; got {source.name}",
            where=str(source),
            hint="give a file whose name ends in .py",
        )
    module = importlib.util.module_from_spec(spec)
    try:
        sys.modules[spec.name] = module  # while it runs, dataclasses look their module up
        spec.loader.exec_module(module)
    except MicrocError:
        raise
    except Exception as error:
        raise UsageError(
            f"the plugin fails: {type(error).__name__}: {error}",
            where=f"{source.name} line {_failing_line(error, source)}",
        ) from error
    finally:
        sys.modules.pop(spec.name, None)
    plugin = getattr(module, "PLUGIN", None)
    if not isinstance(plugin, Plugin):
        raise UsageError(
            f"the file defines no plugin; got PLUGIN of type {type(plugin).__name__}"
            if plugin is not None
            else "the file defines no plugin: PLUGIN is missing",
            where=source.name,
            hint="write PLUGIN = microc.plugin.Plugin(...)",
        )
    _check_plugin(plugin, source.name)
    return plugin


def _failing_line(error: Exception, source: Path) -> int:
    """Return the line of the plugin file at which an exception occurred; 0 if its traceback has no line of that
    file."""
    if isinstance(error, SyntaxError):
        return error.lineno or 0
    frames = [f.lineno or 0 for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == source]
    return frames[-1] if frames else 0


def _check_plugin(plugin: Plugin, file_name: str) -> None:
    """Check the constraints on a plugin that its type annotations do not express. Raise UsageError if one is
    violated."""
    for operator in plugin.operators:
        if (operator.scalar is None) == (operator.compute is None):
            raise UsageError(
                f"operator {operator.name!r} needs either scalar or compute; got "
                f"{'none' if operator.scalar is None else 'both'}",
                where=file_name,
                hint="give scalar for one element, or compute for a tensor expression",
            )
        if not tuple(operator.cases()):
            raise UsageError(
                f"operator {operator.name!r} has no test cases",
                where=file_name,
                hint="return at least one Case from OpDef.cases",
            )
    for name in plugin.onnx:
        if not all(name.partition("::")[::2]):
            raise UsageError(
                f"wrong name of an ONNX operator; got {name!r}, expected domain::operator",
                where=file_name,
                hint="write it as domain::operator",
            )
    # Sets of known cores also have bodies of functions that generated C calls by name, such as conversions of float16.
    known = {*SCALAR, *(extern.name for extern in plugin.externs)}
    known.update(name for core in CORES.values() for s in core.sets for name in s.bodies)
    for core in plugin.cores:
        if core.family not in FAMILIES:
            raise UsageError(
                f"core {core.name!r} has an unknown family; got {core.family!r}",
                where=file_name,
                hint="choose one of " + ", ".join(FAMILIES),
            )
        for s in core.sets:
            strange = sorted(s.bodies.keys() - known - {word.name for word in list_intrinsics(s)})
            if strange:
                raise UsageError(
                    f"instruction set {s.name!r} has bodies of unknown intrinsics: {', '.join(strange)}",
                    where=file_name,
                    hint="use intrinsics of microc/isa/vocabulary, or define new ones in InstructionSet(intrinsics=...)",
                )
    for intrinsic in plugin.externs:
        if (
            not intrinsic.name.isidentifier()
            or not intrinsic.name.isascii()
            or intrinsic.name in (*FUNCTIONS, ir.REINTERPRET)
        ):
            raise UsageError(
                f"{intrinsic.name!r} cannot be the name of an extern",
                where=file_name,
                hint="choose a C identifier that is not the name of a TIR function",
            )
