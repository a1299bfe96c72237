"""What lowering makes, planning places and codegen prints: kernels, their call sequence, values, the memory plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from math import prod
from types import MappingProxyType

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.graph.ir import short
from microc.target import NOTHING, Fetches, Traffic
from microc.tir.ir import Expr, PrimFunc, Var


@frozen
class Size:
    """A size that is known when the network runs only: a multiple of ``step`` from ``minimum`` to ``maximum``.

    ``name`` is an identifier, ``label`` the model's own name for it.
    """

    name: str
    label: str
    minimum: int
    maximum: int
    step: int = 1

    @property
    def scalar(self) -> Var:
        """What kernels call it."""
        return Var(f"size_{self.name}")


@frozen
class Value:
    """A tensor of the module. ``storage`` is one of ``input``, ``output``, ``const``, ``state``,
    ``intermediate`` and ``workspace``; ``data`` belongs to ``const`` and ``state`` (initial);
    a constant without is defined outside of the generated C.

    ``scale`` and ``zero_point`` are those of per-tensor quantisation, for the host and the reports. ``label`` is the
    source's name for it, for comments. Where the shape depends on sizes, ``shape`` is the one at their maxima, and ``extents``
    are expressions over them. ``alignment``: what external code asks for beyond that of the dtype, in bytes.
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
        """Alignment in bytes: that of the dtype, and whole words at least."""
        return max(4, dtypes.nbytes(self.dtype), self.alignment)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * dtypes.nbytes(self.dtype)


@frozen
class View:
    """``name`` occupies ``base``'s memory from byte ``offset`` on (a reshape, an outer slice, a part of a concatenation)."""

    name: str
    base: str
    offset: int


@frozen
class External:
    """The body of a kernel that somebody else's code computes: ``lines`` of C over the function's parameters, the headers that
    they need. ``instructions`` of a call and ``code_bytes`` are what ``backend`` says that it costs; floats may differ from our
    code's by ``bound``, a share of the largest magnitude. ``fails``: they return an ``int``, which is not 0 where it failed.
    ``differs``: where results may be others all the same, in words."""

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
    """What external code is built from. ``files``: contents by path, in a folder of the backend's (``name``); those that end in
    ``.c`` are compiled, with ``defines`` (``NAME`` or ``NAME=1``). ``include``: folders of headers among them. ``libraries``:
    what is linked, without ``-l``; ``folders``: where they are, beside the linker's own. ``licence``: for the bill of materials,
    in SPDX's words; ``version``: of the code, if known.
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
class Decision:
    """Whose code computes a region that a backend has code for: theirs (``theirs``) or ours, at the place ``layer`` in the model.

    ``by``: ``cost``, ``measurement``, ``choice`` (the user wants all of them) or ``difference`` (theirs has not our bits).
    ``ours`` and ``other``: what either takes, in ``unit``; None where that is unknown. ``why``: in words, for people."""

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
    """One C function: its lowered loops, what its comment says, the cost model's estimate of its size.

    ``blocks``: what the comment before a block of its loops says, by the name of the buffer that the block writes. ``external``:
    what is printed in the place of the loops, which then only say what is read and written. ``apart``: its operands share no
    memory, though its loops may let them. ``fetches``: its code as a call fetches it, estimated.
    """

    func: PrimFunc
    comment: tuple[str, ...] = ()
    code_bytes: int = 0
    blocks: tuple[tuple[str, str], ...] = ()
    external: External | None = None
    apart: bool = False
    fetches: Fetches = NOTHING

    @property
    def name(self) -> str:
        return self.func.name


@frozen
class Streamed:
    """What a call that works through several layers row by row pays for the memory it saves.

    ``layers``: where they come from; ``extra_macs``: products for rows outside the image; ``moved``: bytes that windows copy.
    """

    layers: tuple[str, ...]
    extra_macs: int
    moved: int


@frozen
class Plain:
    """A network that no limit of the arena holds back, neither by streamed layers nor by smaller workspaces: bytes of its arena,
    instructions by the cost model's estimate."""

    arena: int
    instructions: int


@frozen
class Arithmetic:
    """What a network computes in floats: ``float_macs`` of its ``macs``, and why. ``float_scaled``: integers of a run that are
    scaled by a float, as ONNX defines it. ``double_weights``: bytes of the model that take two, as their zero point makes nine
    bits of them. ``half_weights``: numbers that take two bytes because halves were asked for;
    ``wide_weights``: constants that are float32 all the same, since they have numbers beyond these."""

    macs: int = 0
    float_macs: int = 0
    reasons: tuple[str, ...] = ()
    float_scaled: int = 0
    half_weights: int = 0
    double_weights: int = 0
    wide_weights: tuple[str, ...] = ()


@frozen
class StreamedOutput:
    """What a step of a stream gives: frames step * frames - delay and on of the whole run's, ``frames`` of them along ``axis``.

    A value made of all the last frames has no axis (-1) and no frames. ``first``: the first step, counted from 0, whose result is
    wholly one of the whole run's.
    """

    axis: int
    frames: int
    delay: int
    first: int


@frozen
class Streaming:
    """A network that takes ``hop`` frames in a run: the time axes of its inputs, and what its outputs are."""

    hop: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, StreamedOutput]


@frozen
class Weights:
    """A constant that an operator of the model reads. ``scales``: the least and the largest of its quantisation, and how many
    there are along ``axis`` (None: one for all); None where it is not quantised."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    scales: tuple[float, float, int] | None
    axis: int | None


@frozen
class Applied:
    """An operator of the model in a call: its attributes in words, by name, and its constants."""

    op: str
    attributes: tuple[tuple[str, str], ...]
    weights: tuple[Weights, ...]


@frozen
class UnitUse:
    """What a call keeps a tensor unit busy with, by the unit's rule (:mod:`microc.isa.instruction_set`): ``cycles`` from its
    first instruction to its last, those in which the queues for loads, computing and stores are busy, the ``macs`` that it
    does, and the part of all that it could do in that time that the network's are, ``utilisation``, from 0 to 1."""

    cycles: int
    load: int
    compute: int
    store: int
    macs: int
    utilisation: float


@frozen
class Call:
    """One step of the network: a kernel applied to values (in the order of its parameters).

    ``reads``/``writes`` name the values it touches; ``workspace`` those that live only during the call. ``layer`` is the
    source location, ``rule`` the name of the schedule, which came with the compiler where it is ``shipped``; ``instructions``
    and ``cycles`` are the cost model's estimates.
    ``streamed`` says what several layers cost that are computed row by row; ``operators``: what the kernel is made of, as the
    model has it; ``unit``: what it does on a tensor unit, if it does. ``traffic``: what every argument is read and written, in
    their order; ``waits``: cycles among the others that the core waits for them where they lie, and where code is placed, for it.
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
    operators: tuple[Applied, ...] = ()
    unit: UnitUse | None = None
    traffic: tuple[Traffic, ...] = ()
    waits: int = 0


@frozen
class Arena:
    """The part of a plan's bytes, ``size`` of them from ``start`` on, that lies in one memory of the board, of ``capacity``
    bytes. ``accesses``: those of a run to it; ``waits``: cycles that they take beyond the core's own."""

    memory: str
    start: int
    size: int
    capacity: int
    accesses: int
    waits: int


@frozen
class HotCode:
    """``kernels`` that run from a memory of the board, ``size`` bytes of at most ``capacity``: an estimate with a margin.
    ``waits``: cycles that a run waits for the code of all kernels; ``saved``: how many more those would be from flash alone."""

    memory: str
    kernels: tuple[str, ...]
    size: int
    capacity: int
    waits: int
    saved: int


@frozen
class Plan:
    """Where every arena value lies: byte offsets, total size, and beside it a lower bound of that for these kernels.

    ``io_in_arena``: inputs and outputs have offsets too. ``planner`` names the algorithm that won. ``arenas``: where the board
    has several memories for tensors all of these, one behind the other, the one with the stack first; else empty. ``copies``:
    constants that lie in an arena, by the call at whose start their copy begins (-1: before all runs, when state is reset).
    ``code``: kernels that run from RAM; None where all run from where they are linked.
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
        """Bytes in the RAM that holds the stack, too."""
        return self.arenas[0].size if self.arenas else self.size

    @property
    def used(self) -> tuple[Arena, ...]:
        """The arenas that hold something: one of them, and the network's C has one as on any board."""
        return tuple(arena for arena in self.arenas if arena.size)


@frozen
class SelfTest:
    """Samples that a network checks itself with, one after the other: constants of all of them, by the name of an input or
    output. ``bounds``: what the floats of an output may differ by."""

    samples: int
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    bounds: Mapping[str, float]

    @property
    def values(self) -> tuple[Value, ...]:
        return (*self.inputs.values(), *self.outputs.values())

    @property
    def nbytes(self) -> int:
        """Bytes of flash."""
        return sum(value.nbytes for value in self.values)


@frozen
class Module:
    """A compiled network before printing. ``plan`` is None until planning.

    ``nominal_macs``: multiply-accumulates of the model as it was read; ``macs`` are those that are left to do.
    ``arithmetic``: what is computed in floats. ``plain``: what it would take if no layers were streamed; None if none are.
    ``streaming``: how it takes a sequence a few frames at a time; None if a run is the whole. ``starts``: constants with the
    initial contents of state that is not all one number. ``sizes``: what the caller of a run tells. ``hashes``: SHA-256 of the
    model (``model``) and of plugins by their names. ``ties``: where reals in the middle of two integers go at the network's
    ends, ``away`` from zero or to ``even``. ``classes``: names of the classes that ``class_output`` tells apart, if given.
    ``self_test``: what it checks itself with, if asked for; its bytes are beside those of weights and tables. ``sources``: what
    external kernels are built from; ``own``: the same steps in code of ours, where some are external; ``decisions``: whose code
    computes what a backend has code for.
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
    plain: Plain | None = None
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
    decisions: tuple[Decision, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "hashes", MappingProxyType(dict(sorted(self.hashes.items()))))
        object.__setattr__(self, "values", MappingProxyType(dict(self.values)))
        object.__setattr__(self, "starts", MappingProxyType(dict(self.starts)))
        object.__setattr__(self, "options", MappingProxyType(dict(sorted(self.options.items()))))

    def __repr__(self) -> str:
        ends = " -> ".join(", ".join(names) for names in (self.inputs, self.outputs))
        return f"<Module {short(f'{self.name}({ends})')}, {len(self.calls)} calls of {len(self.kernels)} kernels>"

    def with_plan(self, plan: Plan) -> Module:
        return replace(self, plan=plan)

    def base_of(self, name: str) -> tuple[str, int]:
        """The value whose memory a name lives in, and the byte offset there."""
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
        """The cost model's estimate of one inference."""
        return sum(call.instructions for call in self.calls)

    @property
    def const_bytes(self) -> int:
        """Bytes of weights and tables in flash."""
        return sum(v.nbytes for v in self.values.values() if v.storage == "const")
