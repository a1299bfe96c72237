"""Operators of your own: what a plugin file imports, and how microc loads one.

A plugin is a Python file that defines ``PLUGIN``::

    from microc.plugin import Case, OpDef, Plugin, TensorType, ir

    SNAKE = OpDef("snake", infer=..., reference=..., scalar=..., cases=...)     # one operator: microc.ops.registry.OpDef

    def from_onnx(application):                                                  # a reader line for a format
        alpha = application.operator.attributes.real("alpha", 1.0)
        application.result("snake", (application.operand(0),), {"alpha": alpha})

    PLUGIN = Plugin(operators=(SNAKE,), onnx={"com.example::Snake": from_onnx})

``microc compile model.onnx --plugin snake.py`` uses it, ``microc plugin check snake.py`` runs its cases. Plugins are programs:
load only files that you trust. ``examples/custom_operator`` is a whole one.
"""

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
from microc.errors import MicrocError, ModelError, OutputError, UnsupportedError, UsageError, nearest_file
from microc.external.backend import BACKENDS, Backend, Code, Entry, Region, Span
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.graph.match import P
from microc.isa import CORES, FAMILIES, SCALAR, TENSOR, Body, Core, Costs, InstructionSet, Intrin
from microc.isa.host import with_unit
from microc.isa.instruction_set import Scratchpad, TensorUnit
from microc.isa.portable import UNALIGNED
from microc.module import Sources
from microc.ops.arithmetic import is_quantised, through_float
from microc.ops.attributes import Attribute, choice, element_type, flag, integer, integers, names, number, numbers, real
from microc.ops.registry import Case, Legalized, OpCall, OpDef, Operand, registry
from microc.schedule.rules import RULES, ScheduleRule
from microc.tir import ir
from microc.tir.operators import FUNCTIONS

if TYPE_CHECKING:
    from microc.frontend.onnx.context import Application as OnnxApplication
    from microc.frontend.tflite.context import Application as TfliteApplication


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
    "InstructionSet",
    "ModelError",
    "OnnxApplication",
    "OpCall",
    "OpDef",
    "Operand",
    "P",
    "Plugin",
    "Region",
    "Scratchpad",
    "Sources",
    "Span",
    "TensorType",
    "TensorUnit",
    "TfliteApplication",
    "UnsupportedError",
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
"""Defined when compiling C, this macro puts the printed meanings in the place of all C bodies of externs."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """What a plugin adds.

    - ``operators``: definitions; names that microc has already are refused.
    - ``tflite``: by custom code, ``onnx``: by ``domain::operator``, the function that spells an application in operators.
    - ``externs``: C functions with a meaning (:func:`extern`), which expressions call by :func:`microc.tir.ir.call`.
    - ``cores``: rows of cores (:class:`microc.isa.instruction_set.Core`) that compilations may be for, with instruction sets of
      their own.
    - ``backends``: other people's code for parts of networks (:mod:`microc.external.backend`), which ``--external`` names.
    - ``source``: the file's name, for messages; ``digest``: its SHA-256.
    """

    operators: tuple[OpDef, ...] = ()
    tflite: Mapping[str, Callable[[TfliteApplication], None]] = field(default_factory=dict)
    onnx: Mapping[str, Callable[[OnnxApplication], None]] = field(default_factory=dict)
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
        return module.Application
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
    """A C function that expressions may call.

    ``meaning`` is its value in TIR over ``params`` (scalars, or buffers for pointers), or its effect on buffers: the interpreter
    runs it, the cost model counts it, and C is printed from it where the preprocessor condition ``guard`` does not hold.
    ``body`` are the statements of C where it does. Both must give the same bits; ``microc plugin check`` compares them.
    ``operations``: what the body costs, by kind of operation (``isa/instruction_set.py``); the meaning's cost unless given.
    """
    return Intrin(name, tuple(params), meaning, bodies=(Body(body, tuple(sorted(operations.items())), guard=guard),))


def in_floats(node: Node, graph: Graph) -> Legalized | None:
    """For ``OpDef.legalize``: quantised tensors are dequantised before the operator and quantised behind it.

    An operator of one 8-bit tensor becomes a table of 256 numbers that way.
    """
    return through_float(node, graph) if is_quantised(node, graph) else None


@contextmanager
def active(plugins: Iterable[Plugin], rules: Iterable[ScheduleRule] = ()) -> Iterator[None]:
    """Inside the ``with`` microc knows what the plugins add, and schedule rules; UsageError where a name is taken.

    Commands and functions of the library enter it once for all that they do (:mod:`microc.compiler.model`).
    """
    with ExitStack() as stack:
        stack.enter_context(RULES.extended({rule.name: rule for rule in rules}))
        for plugin in plugins:
            try:
                _extend(plugin, stack)
            except UsageError as error:
                raise UsageError(error.what, where=plugin.source, hint=error.hint) from error
        yield


def _extend(plugin: Plugin, stack: ExitStack) -> None:
    stack.enter_context(registry().extended({operator.name: operator for operator in plugin.operators}))
    if plugin.tflite:
        from microc.frontend.tflite.context import Spelling as TfliteSpelling
        from microc.frontend.tflite.reader import SPELLINGS

        tflite = {f"CUSTOM:{code}": TfliteSpelling(spell, ()) for code, spell in plugin.tflite.items()}
        stack.enter_context(SPELLINGS.extended(tflite))
    if plugin.onnx:
        from microc.frontend.onnx.context import Spelling as OnnxSpelling
        from microc.frontend.onnx.reader import CUSTOM

        onnx = {name: OnnxSpelling(spell, ()) for name, spell in plugin.onnx.items()}
        stack.enter_context(CUSTOM.extended(onnx))
    sets = {s.name: s for core in plugin.cores for s in core.sets}.values()
    words = (*plugin.externs, *(word for s in sets for word in s.intrinsics))
    stack.enter_context(SCALAR.extended({intrinsic.name: intrinsic for intrinsic in words}))
    stack.enter_context(TENSOR.extended({tensor.name: tensor for s in sets for tensor in s.tensors}))
    stack.enter_context(CORES.extended({core.name: core for core in plugin.cores}))
    stack.enter_context(BACKENDS.extended({backend.name: backend for backend in plugin.backends}))


_LOADED: dict[tuple[Path, str], Plugin] = {}
"""Plugins by the path and the SHA-256 of their files. Two networks of one firmware, a command and the functions that it calls
name one file: run again, it would define other operators of the same names."""


def load_plugin(path: str | Path) -> Plugin:
    """The ``PLUGIN`` of a file, whose code runs once in a process as long as its bytes are the same.

    Raises OutputError where the file cannot be read, UsageError where it fails, defines no plugin or one that is not whole.
    """
    source = Path(path)
    if not source.is_file():
        hint = nearest_file(source) or "a plugin is a file of Python: examples/custom_operator/operators.py is one"
        raise OutputError(f"there is no plugin {source}", where=str(source), hint=hint)
    try:
        known = source.resolve(), hashlib.sha256(read_bytes(source)).hexdigest()
    except OSError as error:
        raise OutputError(f"cannot read the plugin: {error.strerror or error}", where=str(source)) from error
    if known not in _LOADED:
        _LOADED[known] = replace(_loaded(source), source=source.name, digest=known[1])
    return _LOADED[known]


def _loaded(source: Path) -> Plugin:
    spec = importlib.util.spec_from_file_location(f"microc_plugin_{source.stem}", source)
    if spec is None or spec.loader is None:
        raise UsageError("a plugin is a Python file", where=str(source), hint="its name ends in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        sys.modules[spec.name] = module  # while it runs, dataclasses look their module up
        spec.loader.exec_module(module)
    except MicrocError:
        raise
    except Exception as error:
        raise UsageError(
            f"the plugin fails: {type(error).__name__}: {error}", where=f"{source.name} line {_line(error, source)}"
        ) from error
    finally:
        sys.modules.pop(spec.name, None)
    plugin = getattr(module, "PLUGIN", None)
    if not isinstance(plugin, Plugin):
        raise UsageError("the file defines no plugin", where=source.name, hint="PLUGIN = microc.plugin.Plugin(...)")
    _check(plugin, source.name)
    return plugin


def _line(error: Exception, source: Path) -> int:
    """The plugin's line that an exception went through last."""
    if isinstance(error, SyntaxError):
        return error.lineno or 0
    frames = [f.lineno or 0 for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == source]
    return frames[-1] if frames else 0


def _check(plugin: Plugin, where: str) -> None:
    """What types cannot say about a plugin."""
    for operator in plugin.operators:
        if (operator.scalar is None) == (operator.compute is None):
            raise UsageError(
                f"operator {operator.name!r} needs scalar or compute, not both",
                where=where,
                hint="scalar gives one element, compute a tensor expression",
            )
        if not tuple(operator.cases()):
            raise UsageError(f"operator {operator.name!r} has no cases", where=where, hint="they are its tests")
    for name in plugin.onnx:
        if not all(name.partition("::")[::2]):
            raise UsageError(f"{name!r} names no ONNX operator", where=where, hint="write it as domain::operator")
    known = {*SCALAR, *(extern.name for extern in plugin.externs)}
    for core in plugin.cores:
        if core.family not in FAMILIES:
            raise UsageError(f"core {core.name!r} is of no family", where=where, hint="known: " + ", ".join(FAMILIES))
        for s in core.sets:
            strange = sorted(s.bodies.keys() - known - {word.name for word in s.intrinsics})
            if strange:
                raise UsageError(
                    f"instruction set {s.name!r} has bodies of words that nobody knows: {', '.join(strange)}",
                    where=where,
                    hint="take those of microc/isa/vocabulary, or give their meanings as intrinsics",
                )
    for intrinsic in plugin.externs:
        if (
            not intrinsic.name.isidentifier()
            or not intrinsic.name.isascii()
            or intrinsic.name in (*FUNCTIONS, ir.REINTERPRET)
        ):
            raise UsageError(
                f"{intrinsic.name!r} cannot be the name of an extern",
                where=where,
                hint="a name of C that no function of TIR has",
            )
