# SPDX-License-Identifier: Apache-2.0
"""Data structures of a compiled network: kernels, calls, values, the memory plan.

Lowering creates these, the memory planner assigns addresses, and code generation prints C from them."""

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
    """A tensor extent that is known only at run time: a multiple of ``step`` from ``minimum`` to ``maximum``.

    ``name`` is an identifier for C; ``label`` is the name of the dynamic dimension in the model."""

    name: str
    label: str
    minimum: int
    maximum: int
    step: int = 1

    @property
    def scalar(self) -> Var:
        """The scalar parameter by which kernels receive the size."""
        return Var(f"size_{self.name}")


@frozen
class Value:
    """A tensor of the module.

    - ``storage``: ``input``, ``output``, ``const``, ``state``, ``intermediate`` or ``workspace``.
    - ``data``: contents of a ``const``, initial contents of a ``state``. A constant without data is defined outside of
      the generated C.
    - ``scale``, ``zero_point``: per-tensor quantisation, for the host and the reports.
    - ``label``: the tensor's name in the model, for comments.
    - ``shape``: if it depends on run-time sizes, the shape at their maxima; ``extents`` then contains expressions over
      the sizes.
    - ``alignment``: bytes of alignment that external code requires; 0 if the alignment of the dtype suffices."""

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
        """Alignment in bytes: the largest of 4, the element size, and ``alignment``."""
        return max(4, dtypes.nbytes(self.dtype), self.alignment)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor, at the maxima of its sizes."""
        return prod(self.shape) * dtypes.nbytes(self.dtype)


@frozen
class View:
    """A value ``name`` that shares the memory of the value ``base``, from byte ``offset`` on: a reshape, an outer
    slice, or a part of a concatenation."""

    name: str
    base: str
    offset: int


@frozen
class ExternalBody:
    """The C code of a kernel that calls an external library (``backend``) instead of loops of microc.

    - ``lines``: C statements over the function's parameters; ``includes``: headers that the statements need.
    - ``instructions``: the backend's estimate for one call; ``code_bytes``: its estimate of the code's size.
    - ``bound``: largest difference of float results from those of microc's own code, relative to the largest magnitude.
    - ``fails``: True if the statements return an ``int`` that is non-zero on failure.
    - ``differs``: sentence that describes when results may differ beyond ``bound``; empty if never."""

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
    """Source files and libraries of an external backend, to be copied into the generated project.

    - ``name``: the backend, and the folder of its files.
    - ``files``: contents by path. Paths that end in ``.c`` are compiled, with ``defines`` (``NAME`` or ``NAME=1``).
    - ``include``: folders of headers among the files.
    - ``libraries``: libraries to link, without ``-l``; ``folders``: folders in which the linker looks for them.
    - ``licence``: SPDX expression for the bill of materials; ``version``: version of the code, if known."""

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
    def c_paths(self) -> tuple[str, ...]:
        """Paths of the C files."""
        return tuple(path for path in self.files if path.endswith(".c"))


@frozen
class BackendDecision:
    """The decision whether a backend's code (``theirs``) or microc's own code computes a region that the backend
    supports.

    - ``layer``: location of the region in the model; ``pattern``: the backend's pattern that matches it.
    - ``by``: criterion of the decision: ``cost``, ``measurement``, ``choice`` (the user requires the backend wherever
      it is possible) or ``difference`` (the backend's results differ from microc's).
    - ``ours``, ``other``: cost of microc's code and of the backend's code, in ``unit``; None if unknown.
    - ``why``: the reason as a sentence."""

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
    """A C function: its lowered loops, its comment, and the cost model's estimate of its size.

    - ``blocks``: (buffer, comment) pairs; the comment is printed before the block that writes the buffer.
    - ``external``: external code that is printed instead of the loops. The loops then only describe which operands are
      read and written.
    - ``apart``: True if operands must not share memory, even if the order of the loops would permit it.
    - ``fetches``: estimated instruction fetches of one call."""

    func: PrimFunc
    comment: tuple[str, ...] = ()
    code_bytes: int = 0
    blocks: tuple[tuple[str, str], ...] = ()
    external: ExternalBody | None = None
    apart: bool = False
    fetches: Fetches = NOTHING

    @property
    def name(self) -> str:
        """Name of the C function."""
        return self.func.name


@frozen
class Streamed:
    """Additional work of a call that computes several layers row by row in order to save memory.

    ``layers``: locations of these layers in the model. ``extra_macs``: multiply-accumulates for rows outside of the
    image. ``moved``: bytes that are copied when windows of rows advance."""

    layers: tuple[str, ...]
    extra_macs: int
    moved: int


@frozen
class UnlimitedArenaCost:
    """Cost of the network if its arena had no limit: bytes of the arena, and estimated instructions. Without a limit
    no layers are computed row by row, and workspaces are not reduced."""

    arena: int
    instructions: int


@frozen
class Trial:
    """A configuration of the network that the compiler tried, in order to fit limits or to trade memory for time.

    - ``move``: type of the change; ``change``: description of what was changed.
    - ``arena``, ``flash``: bytes; ``instructions``: the estimate.
    - ``kept``: True if this configuration became the best."""

    move: str
    change: str
    arena: int
    flash: int
    instructions: int
    kept: bool


@frozen
class Arithmetic:
    """Use of float arithmetic and of two-byte weights in a network.

    - ``macs``: all multiply-accumulates; ``float_macs``: those in floats; ``reasons``: sentences that explain the
      floats.
    - ``float_scaled``: number of integer results of a run that are requantised with a float factor, as ONNX defines it.
    - ``double_weights``: number of weights that the model stores in one byte, but the compiler in two: subtracting
      their zero point yields 9 bits.
    - ``half_weights``: number of weights that are stored in two bytes because float16 or bfloat16 was requested.
    - ``wide_weights``: constants that stay float32 in spite of that request, because some of their numbers are
      beyond the range of float16."""

    macs: int = 0
    float_macs: int = 0
    reasons: tuple[str, ...] = ()
    float_scaled: int = 0
    half_weights: int = 0
    double_weights: int = 0
    wide_weights: tuple[str, ...] = ()


@frozen
class StreamedOutput:
    """Frames of an output that one step of a streaming network computes.

    Step number ``step`` computes ``frames`` frames along ``axis``. They are the frames from ``step * frames -
    delay`` on of the output that a run over the whole sequence would compute. ``first``: number of the first step,
    from 0, whose frames all exist in that output. If the output summarises all recent frames, ``axis`` is -1 and
    ``frames`` is 0."""

    axis: int
    frames: int
    delay: int
    first: int


@frozen
class Streaming:
    """Time axes of a streaming network, which accepts ``hop`` frames per run.

    ``inputs``: time axis of each input, by name. ``outputs``: the frames that a run computes of each output, by
    name."""

    hop: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, StreamedOutput]


@frozen
class ConstantOperand:
    """A constant operand of a model's operator.

    ``scales``: smallest scale, largest scale and number of scales if the operand is quantised, else None. ``axis``:
    axis along which the scales differ; None if there is one scale for all elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    scales: tuple[float, float, int] | None
    axis: int | None


@frozen
class AppliedOperator:
    """An operator of the model that a call computes. ``attributes``: (name, value as text) pairs. ``weights``: its
    constant operands."""

    op: str
    attributes: tuple[tuple[str, str], ...]
    weights: tuple[ConstantOperand, ...]


@frozen
class UnitUse:
    """Use of a tensor unit (matrix accelerator) by one call, estimated by the unit's cost rule
    (:mod:`microc.isa.instruction_set`).

    - ``cycles``: cycles from the start of the first instruction to the end of the last instruction.
    - ``load``, ``compute``, ``store``: cycles in which the unit's queue of load, compute and store instructions is
      busy.
    - ``macs``: multiply-accumulates that the unit computes.
    - ``utilisation``: fraction (0 to 1) of the unit's peak rate that the multiply-accumulates of the network reach."""

    cycles: int
    load: int
    compute: int
    store: int
    macs: int
    utilisation: float


@frozen
class Call:
    """A call of a kernel: one step of the network. ``args`` are the names of its values, in the order of the kernel's
    parameters.

    - ``reads``, ``writes``: names of the values that the call reads and writes; ``workspace``: values that exist only
      during the call.
    - ``layer``: location in the model; ``operators``: operators of the model that the kernel computes.
    - ``rule``: name of the schedule rule; ``shipped``: True if its schedule is bundled with the compiler.
    - ``instructions``, ``cycles``: estimates of the cost model.
    - ``streamed``: additional work if several layers are computed row by row; ``unit``: use of a tensor unit, if any.
    - ``traffic``: memory accesses to each argument, in the order of ``args``.
    - ``waits``: cycles (included in ``cycles``) that the core waits for the memories of the arguments and, once the
      code is placed in memory, for instructions."""

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
    """The arena in one memory of a board that has several: ``size`` bytes from byte ``start`` of the memory plan on, in
    a memory of ``capacity`` bytes.

    ``accesses``: number of accesses of a run to this arena. ``waits``: wait states of these accesses, in cycles."""

    memory: str
    start: int
    size: int
    capacity: int
    accesses: int
    waits: int


@frozen
class ConstantRegion:
    """The constants in one flash region of a board that has several for them.

    - ``constants``: their names; ``memory``: the region.
    - ``size``: bytes of the constants; ``capacity``: most bytes that the region can take.
    - ``accesses``: number of reads of a run from this region; ``waits``: wait states of these reads, in cycles."""

    memory: str
    constants: tuple[str, ...]
    size: int
    capacity: int
    accesses: int
    waits: int


WEIGHTS_HEADER_BYTES = 16
"""Bytes of the header of the file of weights: magic, version, size of the file, CRC-32 of what follows the header."""


@frozen
class StoredConstants:
    """The constants that a run reads from a board's storage, a memory that the core cannot address.

    - ``memory``: name of the storage. ``offsets``: first byte of each constant in the file of weights, by name.
    - ``size``: bytes of the file; ``capacity``: most bytes that the storage can take. ``block_bytes``: bytes that the
      storage transfers at once.
    - ``reads``: number of reads of a run; ``waits``: cycles that a run waits for them."""

    memory: str
    offsets: Mapping[str, int]
    size: int
    capacity: int
    block_bytes: int
    reads: int
    waits: int


@frozen
class HotCode:
    """Kernels that are copied to RAM and run there.

    - ``kernels``: their names; ``memory``: the RAM region.
    - ``size``: bytes of their code, an estimate with a margin; ``capacity``: most bytes that the region can take.
    - ``waits``: cycles that a run waits for instructions of all kernels; ``saved``: number of these cycles that a
      run would wait in addition with all code in flash."""

    memory: str
    kernels: tuple[str, ...]
    size: int
    capacity: int
    waits: int
    saved: int


@frozen
class Plan:
    """The memory plan: a byte offset for every value in the arena, the arena's total size, and a lower bound of the
    size for these kernels.

    - ``io_in_arena``: True if inputs and outputs are in the arena.
    - ``planner``: name of the planning algorithm whose result was the best.
    - ``arenas``: for a board with several memories for tensors one arena each, consecutive, beginning with the memory
      of the stack; empty for other boards.
    - ``copies``: constants that are copied to an arena, or read from storage, with the index of the call before which
      the copy begins (-1: once, when the state is reset).
    - ``code``: kernels that run from RAM; None if all code runs from where it is linked.
    - ``flash``: for a board with several flash regions for constants one entry each, beginning with the first region
      of the board; empty for other boards.
    - ``storage``: constants that a run reads from a memory that the core cannot address; None if there are none."""

    offsets: Mapping[str, int]
    size: int
    lower_bound: int
    planner: str
    io_in_arena: bool = True
    align: int = 16
    arenas: tuple[Arena, ...] = ()
    copies: Mapping[str, int] = field(default_factory=dict)
    code: HotCode | None = None
    flash: tuple[ConstantRegion, ...] = ()
    storage: StoredConstants | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", MappingProxyType(dict(self.offsets)))
        object.__setattr__(self, "copies", MappingProxyType(dict(self.copies)))

    @property
    def main_arena_size(self) -> int:
        """Bytes of the arena in the RAM that also contains the stack."""
        return self.arenas[0].size if self.arenas else self.size

    @property
    def constant_regions(self) -> dict[str, str]:
        """The flash region of each constant that is not in the board's first flash region, by the constant's name."""
        return {name: region.memory for region in self.flash[1:] for name in region.constants}

    @property
    def stored_offsets(self) -> Mapping[str, int]:
        """Offset in the file of weights of each constant that is read from storage, by the constant's name."""
        return self.storage.offsets if self.storage is not None else {}

    @property
    def used_arenas(self) -> tuple[Arena, ...]:
        """The arenas that contain values. If there is only one, the generated C is the same as for a board with a
        single memory."""
        return tuple(arena for arena in self.arenas if arena.size)


@frozen
class SelfTest:
    """Samples of a network's self-test: for every input and output name a constant that contains all ``samples``
    samples, one after the other.

    ``bounds``: largest permitted difference of the float elements of an output, by name."""

    samples: int
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    bounds: Mapping[str, float]

    @property
    def values(self) -> tuple[Value, ...]:
        """The constants with the samples."""
        return (*self.inputs.values(), *self.outputs.values())

    @property
    def nbytes(self) -> int:
        """Bytes of flash that the samples need."""
        return sum(value.nbytes for value in self.values)


@frozen
class Module:
    """A compiled network, from which C is printed. ``plan`` is None until the memory planner has run.

    - ``nominal_macs``: multiply-accumulates of the model as read; ``macs``: those after optimisation.
    - ``arithmetic``: use of float arithmetic.
    - ``plain``: cost without layers that are computed row by row; None if there are no such layers.
    - ``trials``: configurations that the compiler tried, the requested one first.
    - ``streaming``: time axes, if each run consumes a few frames of a sequence; None if a run consumes the whole input.
    - ``starts``: for each state whose initial elements are not all equal, the constant with its initial contents.
    - ``sizes``: tensor extents that the caller passes to each run.
    - ``hashes``: SHA-256 of the model (``model``) and of plugins, by name.
    - ``ties``: rounding of ties at the network's inputs and outputs, ``away`` from zero or to ``even``.
    - ``classes``: names of the classes in output ``class_output``, if given.
    - ``self_test``: samples of the self-test, if requested; their bytes are not included in ``const_bytes``.
    - ``sources``: sources of external backends; ``decisions``: decisions between external code and microc's code.
    - ``own``: the same network with microc's kernels only, if some kernels are external.
    - ``inference_calls``: number of first calls that compute all outputs but the last, the loss, of a network that
      learns; the calls behind them learn. 0: the network does not learn."""

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
    inference_calls: int = 0

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
        """Return the module with a memory plan."""
        return replace(self, plan=plan)

    def base_and_offset(self, name: str) -> tuple[str, int]:
        """Follow views from a value to the value that owns the memory. Return the owner's name, and the byte offset
        in its memory."""
        views, offset = {view.name: view for view in self.views}, 0
        while name in views:
            offset += views[name].offset
            name = views[name].base
        return name, offset

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return sum(call.macs for call in self.calls)

    @property
    def instructions(self) -> int:
        """Estimated instructions of one inference."""
        return sum(call.instructions for call in self.calls)

    def estimated_time(self, unit: str) -> int:
        """Return the estimated time of one inference. ``unit``: ``instructions``, or ``cycles`` with the waits for flash."""
        return sum(call.cycles for call in self.calls) if unit == "cycles" else self.instructions

    @property
    def const_bytes(self) -> int:
        """Bytes of weights and tables in flash."""
        stored = self.plan.stored_offsets if self.plan is not None else {}
        return sum(v.nbytes for name, v in self.values.items() if v.storage == "const" and name not in stored)
