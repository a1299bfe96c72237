# SPDX-License-Identifier: Apache-2.0
"""Firmware images that contain many candidates of a kernel, and the candidates for regions that external code can
compute."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf, prod
from pathlib import Path
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.compiler.lowering.graph_to_module import declare_kernel_argument, describe_loop_steps
from microc.compiler.lowering.kernel_builder import Configuration, KernelBuilder
from microc.compiler.lowering.kernel_selection import add_estimates
from microc.compiler.lowering.module_builder import (
    ModuleBuilder,
    declare_workspaces,
    firmware_fingerprint,
    make_module_value,
    register_kernel,
)
from microc.compiler.options import make_options
from microc.compiler.tuned.measured_regions import OURS, OwnCode, RegionTask, best_own_code, replay_own_code
from microc.compiler.tuned.records import SOURCES, UNTUNED, Record, Task
from microc.external.backend import build_region_function
from microc.module import Call, Kernel, Module, Value, View
from microc.ops.lowering import Param, node_macs
from microc.plan.plan import plan_module
from microc.schedule.choose import Choice
from microc.schedule.cost.cost_model import estimate
from microc.schedule.schedule import Schedule
from microc.target import SPEED
from microc.tir import ir, statements
from microc.tir.ir import Buffer, Expr, For, PrimFunc, Stmt, Store, Var
from microc.tuning.runner import is_external_code
from microc.tuning.search_space import Candidate, Point, RegionData

# ---- Candidates for a region that external code can compute: the backend's code, and microc's own code. microc's code is
# measured again when better schedules of its kernels are known.
#
# There is no search space as for a kernel. The backend has only one candidate, and microc has one for each optimisation goal.

_TUNED_DECISIONS = (("kernels", "tuned"),)
"""Decisions of the candidate that is microc's code for a region with the fastest known schedules of its kernels."""


class RegionSpace:
    """The candidates for a region that external code can compute: microc's code first, the backend's code last.

    The class has the interface of :class:`microc.tuning.search_space.Space`.
    """

    def __init__(self, task: RegionTask) -> None:
        self.task = task
        by_body: dict[object, Candidate] = {}
        for own_code in task.ours:
            candidate = make_own_code_candidate(task, own_code, ((UNTUNED, own_code.goal.name),))
            by_body.setdefault(candidate.choice.func.body, candidate)
        self.candidates = [*by_body.values(), make_backend_code_candidate(task)]

    @property
    def points(self) -> Sequence[Point]:
        """The points of all candidates."""
        return [candidate.point for candidate in self.candidates]

    @property
    def default(self) -> Candidate:
        """The candidate that is microc's code with default schedules."""
        return self.candidates[0]

    def candidate_of(self, record: Record) -> Candidate | None:
        """Return the candidate that a record measured; None if the code has changed since then."""
        if record.theirs:
            return self.candidates[-1] if record.theirs == self.task.digest else None
        return next(
            (candidate for candidate in self.candidates[:-1] if candidate.choice.schedule.trace == record.trace), None
        )

    def domains(self) -> Mapping[str, tuple[Any, ...]]:
        """Return the values of the space's only decision, ``code``: whose code computes the region, microc's or the
        backend's."""
        return {"code": tuple(map(_describe_region_candidate, self.candidates))}


def _describe_region_candidate(candidate: Candidate) -> str:
    """Describe a candidate of a region. For microc's code with default schedules, the description contains their
    goal."""
    goal = dict(candidate.point.decisions).get(UNTUNED)
    return f"{candidate.point}, for {goal}" if goal else str(candidate.point)


class RegionSearch:
    """Search over the candidates of a region, which proposes each candidate once."""

    def __init__(self, task: RegionTask) -> None:
        self.task, self.space = task, RegionSpace(task)
        self.waiting = list(self.space.candidates)

    @property
    def is_exhausted(self) -> bool:
        """True if every candidate has been proposed."""
        return not self.waiting

    def propose(self, count: int) -> list[Candidate]:
        """Return up to ``count`` candidates that have not been proposed yet."""
        proposed, self.waiting = self.waiting[:count], self.waiting[count:]
        return proposed

    def add_earlier_measurement(self, candidate: Candidate, ticks: float) -> None:
        """Record that a candidate was measured in an earlier run, so that it is not proposed."""
        self.waiting = [each for each in self.waiting if each is not candidate]

    def tell(self, measured: Sequence[tuple[Candidate, float]]) -> None:
        """Ignore measurements, because this search does not learn."""

    def add_fastest_own_code(self, records: Callable[[str], Sequence[Record]]) -> None:
        """Add a candidate that is microc's code with the fastest known schedules of its kernels, unless there is an
        equal one.

        ``records``: returns the records of a kernel, measured with the same board and compiler, given its key.
        """
        task = self.task
        best = best_own_code(task, records)
        if all(known.choice.schedule.trace != best.trace for known in self.space.candidates[:-1]):
            candidate = make_own_code_candidate(task, best, _TUNED_DECISIONS)
            self.space.candidates.insert(-1, candidate)
            self.waiting.append(candidate)


def rebuild_candidate_of_region_record(task: RegionTask, record: Record) -> Candidate:
    """Return the candidate that a region's record measured, so that it can be measured again.

    Raises MicrocError if the schedule steps of the record can no longer be applied.
    """
    return (
        make_backend_code_candidate(task)
        if record.theirs
        else make_own_code_candidate(task, replay_own_code(task, record.trace), record.decisions)
    )


def make_own_code_candidate(task: RegionTask, own_code: OwnCode, decisions: tuple[tuple[str, Any], ...]) -> Candidate:
    """Return microc's code for a region as a candidate. ``decisions``: decisions to store in the candidate's tuning
    record."""
    func, params = own_code.control.func, own_code.control.params
    cost = estimate(func, task.target)
    scratch = func.params[len(params) + len(task.graph.outputs) :]
    choice = Choice(Schedule(func, own_code.trace, own_code.rule), func)
    workspace = sum(each.nbytes for each in scratch)
    point = Point(OURS, own_code.rule, decisions)
    return Candidate(
        point, 0, choice, cost.instructions, cost.code_bytes, own_code.constants, workspace, RegionData(params)
    )


def make_backend_code_candidate(task: RegionTask) -> Candidate:
    """Return the backend's code for a region as a candidate."""
    taken, code = task.taken, task.taken.code
    func, external = build_region_function(taken)
    inputs = [Param(f"in_{k}", name) for k, name in enumerate(task.graph.nodes[0].inputs)]
    data = [Param(role, "", array.reshape(-1)) for role, array in code.data.items()]
    bound = inf if code.differs else taken.backend.bound
    whole = RegionData((*inputs, *data), external, code.align, bound)
    decisions: tuple[tuple[str, Any], ...] = ((SOURCES, task.digest), ("version", task.sources.version))
    point = Point(taken.backend.name, taken.entry.name, decisions)
    constants = sum(array.nbytes for array in code.data.values())
    choice = Choice(Schedule(func), func)
    return Candidate(point, 0, choice, code.instructions, code.code_bytes, constants, code.workspace, whole)


# ---- On a board, the output of a candidate is wiped (filled with a pattern) before the candidate runs. Afterwards a digest
# of the output is computed on the board, so that only four bytes are sent over the serial line.
#
# Equal outputs have equal digests. So if one output was read and found correct, all outputs with the same digest count as
# correct, also in later images. If two outputs differ in a single word, their digests always differ, because the multiplier
# is odd. Of other differences one in 2 ** 32 is missed.

WORD_DTYPE = "uint32"
_MULTIPLIER = 0x01000193  # the prime of the hash function FNV-1a
_WIPE_BYTE = 0x55  # value of every wiped element; the interpreter of TIR fills workspaces with it too


def make_overwrite_func(dtype: str, element_count: int) -> PrimFunc:
    """Create a function that fills the buffer ``values`` with a pattern that a previous candidate is unlikely to have
    computed."""
    values, i = Buffer("values", (element_count,), dtype), Var("i")
    wiped = ir.const(dtype == "bool" or _WIPE_BYTE, dtype)
    return PrimFunc("wipe", (values,), For(i, ir.const(element_count, "int32"), Store(values, (i,), wiped)))


def make_digest_func(dtype: str, element_count: int) -> PrimFunc:
    """Create a function that computes the digest of the buffer ``values`` and stores it in ``digest[0]``.

    The digest starts as 1. For each 32-bit word of the elements, in order, it becomes ``digest * multiplier +
    word``."""
    values, digest, i = Buffer("values", (element_count,), dtype), Buffer("digest", (1,), WORD_DTYPE), Var("i")
    index = (ir.const(0, "int32"),)

    def add_word_to_digest(word: Expr) -> Stmt:
        return Store(digest, index, digest[index] * ir.const(_MULTIPLIER, WORD_DTYPE) + word)

    steps = statements.seq(*map(add_word_to_digest, _split_element_into_words(values[i], dtype)))
    begin = Store(digest, index, ir.const(1, WORD_DTYPE))
    return PrimFunc("digest", (values, digest), statements.seq(begin, For(i, ir.const(element_count, "int32"), steps)))


def digest_of_array(values: Array) -> int:
    """Return the digest of an array, as the function of :func:`make_digest_func` computes it on the board."""
    bits = 8 * values.dtype.itemsize
    raw = values.reshape(-1) if values.dtype.kind == "i" else values.reshape(-1).view(f"u{bits // 8}")
    words = raw.astype(WORD_DTYPE) if bits <= 32 else raw.view(WORD_DTYPE)
    terms = np.append(np.ones(1, WORD_DTYPE), words)
    powers = np.full(terms.size, _MULTIPLIER, WORD_DTYPE)
    powers[0] = 1
    return int((terms * powers.cumprod(dtype=WORD_DTYPE)[::-1]).sum(dtype=WORD_DTYPE))


def _split_element_into_words(value: Expr, dtype: str) -> list[Expr]:
    """Return expressions for the bits of an element, as one or two 32-bit words."""
    bits = 8 * dtypes.nbytes(dtype)
    if dtypes.is_float(dtype):
        value = statements.reinterpret(f"uint{bits}", value)
    if bits <= 32:
        return [ir.cast(WORD_DTYPE, value)]
    whole = ir.cast(f"uint{bits}", value)
    return [ir.cast(WORD_DTYPE, whole), ir.cast(WORD_DTYPE, ir.binary("shr", whole, ir.const(32, whole.dtype)))]


# ---- Object files of the runtime. All images for a board share them: they are built for the first image, and copied into the
# projects of the others.

RUNTIME_OBJECTS = Path("build", "runtime")
"""Folder of a project in which ``make`` puts the object files that do not depend on its networks."""


class RuntimeObjectCache:
    """Cache of the runtime's object files for projects of one board. It is removed together with this object."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="microc-kept-"))
        self._end = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def copy_into_project(self, project: Path) -> None:
        """Copy the cached object files into a project that has not been built yet.

        The copies are newer than the sources of the project, so that ``make`` uses them.
        """
        if any(self._folder.iterdir()):
            shutil.copytree(self._folder, project / RUNTIME_OBJECTS, copy_function=shutil.copyfile)

    def copy_from_project(self, project: Path) -> None:
        """Copy the object files of the first project that was built into the cache.

        A project that is built by a framework (such as Arduino) has no such files, and nothing is copied.
        """
        if (project / RUNTIME_OBJECTS).is_dir() and not any(self._folder.iterdir()):
            shutil.copytree(project / RUNTIME_OBJECTS, self._folder, dirs_exist_ok=True)


# ---- A firmware image that contains many candidates of a kernel: a network whose calls are the candidates, all with the same
# inputs.
#
# So a board is flashed once for dozens of measurements, and everything that runs networks can be used: projects, emulators,
# the RPC, the checks of the arena. The inputs are outside of the arena, where no candidate writes. The outputs of all
# candidates share the arena. An image for a board also wipes every output before its candidate runs, and computes its digest
# afterwards.

DIGESTS = "digests"
"""Name of the image's output that contains the digest of each output of each candidate."""


def make_candidates_module(
    task: Task, candidates: Sequence[Candidate], *, with_digests: bool = False, input_data: Sequence[Array] = ()
) -> Module:
    """Create a module with a memory plan that calls every candidate once, in order.

    ``with_digests``: each output is filled with a pattern before its candidate runs, and its digest (a hash) is
    computed afterwards. The module then has a single output, :data:`DIGESTS`, with all digests in order.
    ``input_data``: the contents of the inputs, which are then stored in the image as states. If it is empty, the inputs
    are sent to the board.
    """
    graph, target = task.graph, task.target
    builder = ModuleBuilder(graph, KernelBuilder(Configuration(graph, SPEED), target))
    arrays: Sequence[Array | None] = input_data or [None] * len(graph.inputs)
    storage = "state" if input_data else "input"
    inputs = tuple(
        builder.declare_value(name, storage, array) for name, array in zip(graph.inputs, arrays, strict=True)
    )
    starts = {
        name: builder.add_constant(f"{name}_start", array)
        for name, array in zip(inputs, input_data, strict=bool(input_data))
    }
    last = -1 if with_digests else len(candidates) - 1
    calls = [
        _add_candidate_call(builder, task, c, number, writes_module_outputs=number == last)
        for number, c in enumerate(candidates)
    ]
    outputs = calls[-1].writes
    if with_digests:
        calls, outputs = _add_wipe_and_digest_calls(builder, calls), (DIGESTS,)
    region = task if isinstance(task, RegionTask) else None  # its image is compiled for the goal of the network
    optimize = region.ours[0].goal.name if region is not None else "speed"
    chosen = {**make_options().format_changed_options(), "optimize": optimize, "cpu": target.cpu, "protocol": "rpc"}
    module = Module(
        graph.name,
        builder.values,
        tuple(builder.kernels.values()),
        tuple(calls),
        () if input_data else inputs,
        outputs,
        state=inputs if input_data else (),
        views=tuple(builder.views),
        starts=starts,
        source=task.name,
        options=chosen,
        sources=(region.sources,) if region is not None and any(map(is_external_code, candidates)) else (),
    )
    module = add_estimates(module, target)
    module = plan_module(module, io_in_arena=False, order_like=module)
    return replace(module, fingerprint=firmware_fingerprint(module, target))


def _add_candidate_call(
    builder: ModuleBuilder, task: Task, candidate: Candidate, candidate_number: int, *, writes_module_outputs: bool
) -> Call:
    """Return the call of the candidate with index ``candidate_number``. Its kernel and its outputs are added to the
    module.

    ``writes_module_outputs``: the outputs of the candidate are the outputs of the module.
    """
    schedule, func, stem = candidate.choice.schedule, candidate.choice.func, f"candidate_{candidate_number}"
    region = candidate.whole
    external, align = (region.external, region.align) if region is not None else (None, 0)
    kernel = Kernel(func, (str(candidate.point),), external=external)
    name = register_kernel(builder, kernel, stem, verified=candidate.choice.verified)
    if region is not None:
        params, macs = region.params, sum(node_macs(task.graph, node) for node in task.graph.nodes)
        args = [
            builder.name_of(p.value) if p.array is None else builder.add_constant(f"{stem}_{p.role}", p.array, align)
            for p in params
        ]
    else:
        group = task.lowered[candidate.number]
        params, macs = group.params, group.macs
        args = [declare_kernel_argument(builder, group, schedule, position, stem) for position in range(len(params))]
    results = []
    for k, output in enumerate(task.graph.outputs):
        result = (
            builder.make_io_name(f"result_{candidate_number}_{k}")
            if writes_module_outputs
            else builder.make_internal_name(f"result_{candidate_number}_{k}")
        )
        storage = "output" if writes_module_outputs else "intermediate"
        builder.values[result] = make_module_value(result, task.graph.types[output], storage, output)
        results.append(result)
    scratch = declare_workspaces(builder, stem, func.params[len(args) + len(results) :], align)
    reads = tuple(dict.fromkeys(builder.name_of(p.value) for p in params if p.array is None))
    return Call(
        name,
        (*args, *results, *scratch),
        reads,
        tuple(results),
        scratch,
        layer=f"{candidate_number}",
        op=task.op,
        macs=macs,
        schedule=describe_loop_steps(schedule.trace),
        rule=schedule.rule,
    )


def _add_wipe_and_digest_calls(builder: ModuleBuilder, calls: Sequence[Call]) -> list[Call]:
    """Return the calls, each surrounded by calls that wipe its outputs before it and compute their digests after it."""
    results = [result for call in calls for result in call.writes]
    builder.values[DIGESTS] = Value(DIGESTS, (len(results),), WORD_DTYPE, "output")
    digests = dict(zip(results, (_declare_digest_view(builder, place) for place in range(len(results))), strict=True))
    surrounded = []
    for call in calls:
        wipes, digest_calls = [], []
        for result in call.writes:
            value, digest = builder.values[result], digests[result]
            kind = value.dtype, prod(value.shape)
            wipe = register_kernel(builder, Kernel(make_overwrite_func(*kind)), "wipe")
            wipes.append(Call(wipe, (result,), (), (result,), op="wipe"))
            reading = register_kernel(builder, Kernel(make_digest_func(*kind)), "digest")
            digest_calls.append(Call(reading, (result, digest), (result,), (digest,), op="digest"))
        surrounded += [*wipes, call, *digest_calls]
    return surrounded


def _declare_digest_view(builder: ModuleBuilder, digest_index: int) -> str:
    """Add a view of element ``digest_index`` of the output :data:`DIGESTS` to the module, and return its C name."""
    name = builder.make_internal_name(f"digest_{digest_index}")
    builder.values[name] = Value(name, (1,), WORD_DTYPE, "intermediate")
    builder.views.append(View(name, DIGESTS, dtypes.nbytes(WORD_DTYPE) * digest_index))
    return name
