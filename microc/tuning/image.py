"""One firmware that holds many candidates of a kernel: a network whose calls are the candidates, all on the same inputs.

A board is flashed once for dozens of measurements, and everything that runs networks runs these: projects, emulators, the RPC,
the checks of the arena. Inputs lie outside the arena, where no candidate writes; each output shares the arena with all others.
An image for a line wipes every output before the candidate that writes it, and digests it behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from microc import dtypes
from microc.driver.compile.builder import Builder, make_value, register, workspaces
from microc.driver.compile.calls import argument
from microc.driver.compile.comments import describe
from microc.driver.compile.estimates import estimated
from microc.driver.compile.fingerprint import fingerprint
from microc.driver.compile.maker import Maker
from microc.driver.options import make_options
from microc.driver.tuned.regions import RegionTask
from microc.driver.tuned.task import Task
from microc.dtypes import Array
from microc.module import Call, Kernel, Module, Value, View
from microc.ops.lowering import macs_of
from microc.plan.plan import plan_module
from microc.target import SPEED
from microc.tuning.digest import WORD, digest_func, wipe_func
from microc.tuning.runner import foreign
from microc.tuning.space import Candidate

DIGESTS = "digests"
"""An output of the image: what each output of each candidate was digested to."""


def image_module(
    task: Task, candidates: Sequence[Candidate], *, digested: bool = False, given: Sequence[Array] = ()
) -> Module:
    """The planned module that calls every candidate once, in order; ``digested``: every
    output is wiped before and digested behind, and the digests, in order, are the output :data:`DIGESTS`.

    ``given``: what the inputs hold, which the image brings along then: they are no inputs but state.
    """
    graph, target = task.graph, task.target
    builder = Builder(graph, Maker(graph, target, SPEED))
    arrays: Sequence[Array | None] = given or [None] * len(graph.inputs)
    storage = "state" if given else "input"
    inputs = tuple(builder.declare(name, storage, array) for name, array in zip(graph.inputs, arrays, strict=True))
    starts = {name: builder.constant(f"{name}_start", array) for name, array in zip(inputs, given, strict=bool(given))}
    last = -1 if digested else len(candidates) - 1
    calls = [_call(builder, task, c, number, last=number == last) for number, c in enumerate(candidates)]
    outputs = calls[-1].writes
    if digested:
        calls, outputs = _digested(builder, calls), (DIGESTS,)
    region = task if isinstance(task, RegionTask) else None  # is compiled as the network will be
    optimize = region.ours[0].goal.name if region is not None else "speed"
    chosen = {**make_options().chosen(), "optimize": optimize, "cpu": target.cpu, "protocol": "rpc"}
    module = Module(
        graph.name,
        builder.values,
        tuple(builder.kernels.values()),
        tuple(calls),
        () if given else inputs,
        outputs,
        state=inputs if given else (),
        views=tuple(builder.views),
        starts=starts,
        source=task.name,
        options=chosen,
        sources=(region.sources,) if region is not None and any(map(foreign, candidates)) else (),
    )
    module = estimated(module, target)
    module = plan_module(module, io_in_arena=False, like=module)
    return replace(module, fingerprint=fingerprint(module, target))


def _call(builder: Builder, task: Task, candidate: Candidate, number: int, *, last: bool) -> Call:
    """A candidate as a kernel of its own, which writes values of its own."""
    schedule, func, stem = candidate.choice.schedule, candidate.choice.func, f"candidate_{number}"
    whole = candidate.whole
    external, align = (whole.external, whole.align) if whole is not None else (None, 0)
    kernel = Kernel(func, (str(candidate.point),), external=external)
    name = register(builder, kernel, stem, verified=candidate.choice.verified)
    if whole is not None:
        params, macs = whole.params, sum(macs_of(task.graph, node) for node in task.graph.nodes)
        args = [
            builder.name_of(p.value) if p.array is None else builder.constant(f"{stem}_{p.role}", p.array, align)
            for p in params
        ]
    else:
        group = task.lowered[candidate.number]
        params, macs = group.params, group.macs
        args = [argument(builder, group, schedule, position, stem) for position in range(len(params))]
    written = []
    for k, output in enumerate(task.graph.outputs):
        result = builder.end(f"result_{number}_{k}") if last else builder.unique(f"result_{number}_{k}")
        storage = "output" if last else "intermediate"
        builder.values[result] = make_value(result, task.graph.types[output], storage, output)
        written.append(result)
    scratch = workspaces(builder, stem, func.params[len(args) + len(written) :], align)
    reads = tuple(dict.fromkeys(builder.name_of(p.value) for p in params if p.array is None))
    return Call(
        name,
        (*args, *written, *scratch),
        reads,
        tuple(written),
        scratch,
        layer=f"{number}",
        op=task.op,
        macs=macs,
        schedule=describe(schedule.trace),
        rule=schedule.rule,
    )


def _digested(builder: Builder, calls: Sequence[Call]) -> list[Call]:
    """For every output of a call one that wipes it, the call itself, for every output one that writes its digest."""
    every = [result for call in calls for result in call.writes]
    builder.values[DIGESTS] = Value(DIGESTS, (len(every),), WORD, "output")
    digests = dict(zip(every, (_part(builder, place) for place in range(len(every))), strict=True))
    found = []
    for call in calls:
        wipes, digesting = [], []
        for result in call.writes:
            value, digest = builder.values[result], digests[result]
            kind = value.dtype, prod(value.shape)
            wipe = register(builder, Kernel(wipe_func(*kind)), "wipe")
            wipes.append(Call(wipe, (result,), (), (result,), op="wipe"))
            reading = register(builder, Kernel(digest_func(*kind)), "digest")
            digesting.append(Call(reading, (result, digest), (result,), (digest,), op="digest"))
        found += [*wipes, call, *digesting]
    return found


def _part(builder: Builder, place: int) -> str:
    """One of the digests."""
    name = builder.unique(f"digest_{place}")
    builder.values[name] = Value(name, (1,), WORD, "intermediate")
    builder.views.append(View(name, DIGESTS, dtypes.nbytes(WORD) * place))
    return name
