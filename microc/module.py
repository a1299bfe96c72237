"""Data structures of a compiled network: kernels, calls, values, the memory plan.

Lowering creates them, the memory plan assigns addresses, and code generation prints them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from math import prod
from types import MappingProxyType

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import shorten_text
from microc.target import NOTHING, Fetches, Traffic
from microc.tir.ir import Expr, PrimFunc, Var


@frozen
class Size:
    """A size that is known only at run time: a multiple of ``step`` from ``minimum`` to ``maximum``.

    ``name`` is an identifier, ``label`` the model's own name for it.
    """

    name: str
    label: str
    minimum: int
    maximum: int
    step: int = 1

    @property
    def scalar(self) -> Var:
        """The parameter of kernels that holds the size."""
        return Var(f"size_{self.name}")


@frozen
class Value:
    """A tensor of the module.

    ``storage`` is one of ``input``, ``output``, ``const``, ``state``, ``intermediate`` and ``workspace``. ``data``
    belongs to ``const`` and ``state`` (initial contents); a constant without data is defined outside of the generated
    C. ``scale`` and ``zero_point``: per-tensor quantisation, for the host and the reports. ``label``: the source's
    name, for comments. If the shape depends on sizes, ``shape`` is that at their maxima, and ``extents`` are
    expressions over them. ``alignment``: bytes that external code requires beyond the alignment of the dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    storage: str
    data: Array | None = None
    scale: float | None = None
    zero_point: int | None = None
    label: str = ""
    extents: tuple[Expr, ...] = ()
    alignment: int = 0

    @property
    def align(self) -> int:
        """Alignment in bytes: that of the dtype, at least 4."""
        return max(4, dtypes.nbytes(self.dtype), self.alignment)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * dtypes.nbytes(self.dtype)


@frozen
class View:
    """A value ``name`` in the memory of ``base``, from byte ``offset`` on (a reshape, an outer slice, a part of a
    concatenation)."""

    name: str
    base: str
    offset: int


@frozen
class ExternalBody:
    """The body of a kernel that external code computes.

    ``lines``: C over the function's parameters; ``includes``: headers that these need. ``instructions`` of a call and
    ``code_bytes`` are estimates of ``backend``. ``bound``: largest difference of floats from our code, relative to the
    largest magnitude. ``fails``: the lines return an ``int``, non-zero on failure. ``differs``: in which cases results
    may differ nevertheless, in words.
    """

    backend: str
    lines: tuple[str, ...]
    includes: tuple[str, ...]
    instructions: int
    code_bytes: int
    bound: float = 0.0
    fails: bool = False
    differs: str = ""


@frozen
class Sources:
    """Sources of external code.

    ``files``: contents by path, in a folder of the backend (``name``); those that end in ``.c`` are compiled, with
    ``defines`` (``NAME`` or ``NAME=1``). ``include``: folders of headers among them. ``libraries``: libraries to link,
    without ``-l``; ``folders``: where these are, besides the linker's own. ``licence``: SPDX expression for the bill of
    materials; ``version``: of the code, if known.
    """

    name: str
    files: Mapping[str, bytes]
    include: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    licence: str = "NOASSERTION"
    version: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", MappingProxyType(dict(sorted(self.files.items()))))

    def __repr__(self) -> str:
        return f"<Sources of {self.name}: {len(self.files)} files>"

    @property
    def compiled(self) -> tuple[str, ...]:
        """Paths of the C files."""
        return tuple(path for path in self.files if path.endswith(".c"))


@frozen
class BackendDecision:
    """Decision who computes a region that a backend supports: the backend's code (``theirs``) or ours. ``layer``: location
    in the model.

    ``by``: ``cost``, ``measurement``, ``choice`` (the user requires all of them) or ``difference`` (the backend's
    results differ from ours). ``ours`` and ``other``: cost of either, in ``unit``; None if unknown. ``why``: reason in
    words."""

    layer: str
    backend: str
    pattern: str
    theirs: bool
    by: str
    why: str = ""
    ours: float | None = None
    other: float | None = None
    unit: str = "instructions"

    def __str__(self) -> str:
        whose = f"{self.backend} {self.pattern}" if self.theirs else "ours"
        return f"{self.layer}: " + ("; " if self.theirs else ", ").join(filter(None, (whose, self.why)))


@frozen
class Kernel:
    """A C function: its lowered loops, its comment, the cost model's estimate of its size.

    ``blocks``: comments before blocks of its loops, by the name of the buffer that a block writes. ``external``: code
    printed instead of the loops, which then only tell what is read and written. ``apart``: its operands share no
    memory, even if its loops permit it. ``fetches``: estimated instruction fetches of a call.
    """

    func: PrimFunc
    comment: tuple[str, ...] = ()
    code_bytes: int = 0
    blocks: tuple[tuple[str, str], ...] = ()
    external: ExternalBody | None = None
    apart: bool = False
    fetches: Fetches = NOTHING

    @property
    def name(self) -> str:
        return self.func.name


@frozen
class Streamed:
    """Cost of a call that works through several layers row by row to save memory.

    ``layers``: their locations in the model; ``extra_macs``: products for rows outside of the image; ``moved``: bytes
    that windows copy.
    """

    layers: tuple[str, ...]
    extra_macs: int
    moved: int


@frozen
class UnlimitedArenaCost:
    """Cost of the network without a limit of the arena, that is, without streamed layers and smaller workspaces: bytes of
    its arena, estimated instructions."""

    arena: int
    instructions: int


@frozen
class Trial:
    """A configuration of the network that the compiler tried, to fit limits or to trade memory for time.

    ``move``: the kind of change; ``change``: what was changed; ``arena``, ``flash``: bytes, and estimated
    ``instructions``; ``kept``: it was better than the best before."""

    move: str
    change: str
    arena: int
    flash: int
    instructions: int
    kept: bool


@frozen
class Arithmetic:
    """Float arithmetic of a network: ``float_macs`` of its ``macs``, and the reasons.

    ``float_scaled``: integers of a run that are scaled by a float, as ONNX defines it. ``double_weights``: bytes of the
    model that are stored in two bytes, since their zero point makes them 9 bits. ``half_weights``: numbers stored in
    two bytes because float16 was requested; ``wide_weights``: constants that stay float32 nevertheless, since some
    numbers are beyond its range.
    """

    macs: int = 0
    float_macs: int = 0
    reasons: tuple[str, ...] = ()
    float_scaled: int = 0
    half_weights: int = 0
    double_weights: int = 0
    wide_weights: tuple[str, ...] = ()


@frozen
class StreamedOutput:
    """Output of a step of a stream: ``frames`` frames of the whole run's, from step * frames - delay on, along
    ``axis``.

    A value computed from all recent frames has no axis (-1) and no frames. ``first``: first step, counted from 0, whose
    result consists of frames of the whole run only.
    """

    axis: int
    frames: int
    delay: int
    first: int


@frozen
class Streaming:
    """Streaming of a network that takes ``hop`` frames per run: time axes of its inputs, and the contents of its
    outputs."""

    hop: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, StreamedOutput]


@frozen
class ConstantOperand:
    """A constant operand of a model's operator. ``scales``: smallest and largest quantisation scale, and their
    number along ``axis`` (None: one for all); None if not quantised."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    scales: tuple[float, float, int] | None
    axis: int | None


@frozen
class AppliedOperator:
    """An operator of the model that a call computes: its attributes as text, by name, and its constants."""

    op: str
    attributes: tuple[tuple[str, str], ...]
    weights: tuple[ConstantOperand, ...]


@frozen
class UnitUse:
    """Use of a tensor unit in a call, as the unit's cost rule estimates it (:mod:`microc.isa.instruction_set`).

    ``cycles`` from the first instruction to the end of the last; ``load``, ``compute``, ``store``: cycles in which the
    queues for loads, computing and stores are busy; ``macs``; ``utilisation``: macs of the network as a fraction (0 to
    1) of those that the unit could compute in that time."""

    cycles: int
    load: int
    compute: int
    store: int
    macs: int
    utilisation: float


@frozen
class Call:
    """A step of the network: a kernel applied to values, in the order of its parameters.

    ``reads`` and ``writes``: names of accessed values; ``workspace``: values that exist only during the call.
    ``layer``: location in the model. ``rule``: name of the schedule rule; ``shipped``: its schedule is bundled with the
    compiler. ``instructions`` and ``cycles``: estimates of the cost model. ``streamed``: cost of several layers
    computed row by row. ``operators``: operators of the model in the kernel. ``unit``: use of a tensor unit, if any.
    ``traffic``: accesses to each argument, in their order. ``waits``: cycles, included in ``cycles``, that the core
    waits for the memories of arguments and, once code is placed, of code.
    """

    kernel: str
    args: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    workspace: tuple[str, ...] = ()
    layer: str = ""
    op: str = ""
    macs: int = 0
    schedule: str = ""
    rule: str = ""
    shipped: bool = False
    instructions: int = 0
    cycles: int = 0
    streamed: Streamed | None = None
    operators: tuple[AppliedOperator, ...] = ()
    unit: UnitUse | None = None
    traffic: tuple[Traffic, ...] = ()
    waits: int = 0


@frozen
class Arena:
    """The part of a memory plan in one memory of the board, of ``capacity`` bytes: ``size`` bytes from ``start`` on.

    ``accesses``: accesses of a run to it; ``waits``: cycles that these take beyond the core's own."""

    memory: str
    start: int
    size: int
    capacity: int
    accesses: int
    waits: int


@frozen
class HotCode:
    """Kernels that run from RAM (``kernels``): ``size`` bytes, an estimate with a margin, of at most ``capacity`` in
    ``memory``.

    ``waits``: cycles that a run waits for the code of all kernels; ``saved``: how many more these would be with all
    code in flash."""

    memory: str
    kernels: tuple[str, ...]
    size: int
    capacity: int
    waits: int
    saved: int


@frozen
class Plan:
    """Memory plan: byte offset of every arena value, total size, and a lower bound of the size for these kernels.

    ``io_in_arena``: inputs and outputs have offsets, too. ``planner``: name of the winning algorithm. ``arenas``: if
    the board has several memories for tensors, one for each, consecutive, the one with the stack first; else empty.
    ``copies``: constants that are copied to an arena, with the call at whose start the copy begins (-1: before all
    runs, when state is reset). ``code``: kernels that run from RAM; None if all run from where they are linked.
    """

    offsets: Mapping[str, int]
    size: int
    lower_bound: int
    planner: str
    io_in_arena: bool = True
    align: int = 16
    arenas: tuple[Arena, ...] = ()
    copies: Mapping[str, int] = field(default_factory=dict)
    code: HotCode | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", MappingProxyType(dict(self.offsets)))
        object.__setattr__(self, "copies", MappingProxyType(dict(self.copies)))

    @property
    def main(self) -> int:
        """Bytes of the arena in the RAM that also holds the stack."""
        return self.arenas[0].size if self.arenas else self.size

    @property
    def used(self) -> tuple[Arena, ...]:
        """The arenas in use; if there is only one, the generated C is that for a board with a single memory."""
        return tuple(arena for arena in self.arenas if arena.size)


@frozen
class SelfTest:
    """Samples of a network's self-test: for every input and output, by name, a constant with all samples one after the
    other.

    ``bounds``: largest permitted difference of the floats of an output."""

    samples: int
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    bounds: Mapping[str, float]

    @property
    def values(self) -> tuple[Value, ...]:
        return (*self.inputs.values(), *self.outputs.values())

    @property
    def nbytes(self) -> int:
        """Bytes of flash that the samples take."""
        return sum(value.nbytes for value in self.values)


@frozen
class Module:
    """A compiled network before printing. ``plan`` is None until planning.

    ``nominal_macs``: multiply-accumulates of the model as read; ``macs``: those that remain. ``arithmetic``: what is
    computed in floats. ``plain``: cost without streamed layers; None if there are none. ``trials``: the configurations that
    were tried, the requested one first. ``streaming``: how it takes a
    sequence a few frames at a time; None if a run takes all. ``starts``: constants with the initial contents of state
    that is not uniform. ``sizes``: sizes that the caller of a run passes. ``hashes``: SHA-256 of the model (``model``)
    and of plugins, by name. ``ties``: rounding of ties at the network's inputs and outputs, ``away`` from zero or to
    ``even``. ``classes``: names of the classes in ``class_output``, if given. ``self_test``: samples to check itself
    with, if requested; its bytes are counted separately from weights and tables. ``sources``: sources of external
    kernels; ``own``: the same steps with our kernels, if some are external; ``decisions``: whose code computes what a
    backend supports.
    """

    name: str
    values: Mapping[str, Value]
    kernels: tuple[Kernel, ...]
    calls: tuple[Call, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    state: tuple[str, ...] = ()
    views: tuple[View, ...] = ()
    plan: Plan | None = None
    source: str = ""
    fingerprint: str = ""
    nominal_macs: int = 0
    arithmetic: Arithmetic = Arithmetic()
    plain: UnlimitedArenaCost | None = None
    trials: tuple[Trial, ...] = ()
    sizes: tuple[Size, ...] = ()
    streaming: Streaming | None = None
    starts: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    ties: str = "away"
    classes: tuple[str, ...] = ()
    class_output: str = ""
    self_test: SelfTest | None = None
    sources: tuple[Sources, ...] = ()
    own: Module | None = None
    decisions: tuple[BackendDecision, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "hashes", MappingProxyType(dict(sorted(self.hashes.items()))))
        object.__setattr__(self, "values", MappingProxyType(dict(self.values)))
        object.__setattr__(self, "starts", MappingProxyType(dict(self.starts)))
        object.__setattr__(self, "options", MappingProxyType(dict(sorted(self.options.items()))))

    def __repr__(self) -> str:
        ends = " -> ".join(", ".join(names) for names in (self.inputs, self.outputs))
        return (
            f"<Module {shorten_text(f'{self.name}({ends})')}, {len(self.calls)} calls of {len(self.kernels)} kernels>"
        )

    def with_plan(self, plan: Plan) -> Module:
        """Return the module with this memory plan."""
        return replace(self, plan=plan)

    def base_of(self, name: str) -> tuple[str, int]:
        """Return the value whose memory a name is in, and the byte offset there."""
        views, offset = {view.name: view for view in self.views}, 0
        while name in views:
            offset += views[name].offset
            name = views[name].base
        return name, offset

    @property
    def macs(self) -> int:
        return sum(call.macs for call in self.calls)

    @property
    def instructions(self) -> int:
        """Estimated instructions of one inference."""
        return sum(call.instructions for call in self.calls)

    @property
    def const_bytes(self) -> int:
        """Bytes of weights and tables in flash."""
        return sum(v.nbytes for v in self.values.values() if v.storage == "const")
