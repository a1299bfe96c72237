"""One firmware that holds many candidates of a kernel: a network whose calls are the candidates, all on the same inputs.

A board is flashed once for dozens of measurements, and everything that runs networks runs these: projects, emulators, the RPC,
the checks of the arena. Inputs lie outside the arena, where no candidate writes; each output shares the arena with all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from microc.driver.compile.builder import Builder, make_value, register, workspaces
from microc.driver.compile.calls import argument
from microc.driver.compile.comments import describe
from microc.driver.compile.estimates import estimated
from microc.driver.compile.fingerprint import fingerprint
from microc.driver.compile.maker import Maker
from microc.driver.options import make_options
from microc.driver.tuned.task import Task
from microc.module import Call, Kernel, Module
from microc.plan.plan import plan_module
from microc.target import SPEED
from microc.tuning.space import Candidate


def image_module(task: Task, candidates: Sequence[Candidate]) -> Module:
    """The planned module that calls every candidate once, in order."""
    graph, target = task.graph, task.target
    builder = Builder(graph, Maker(graph, target, SPEED))
    inputs = tuple(builder.declare(name, "input") for name in graph.inputs)
    calls = [
        _call(builder, task, candidate, number, last=number == len(candidates) - 1)
        for number, candidate in enumerate(candidates)
    ]
    chosen = {**make_options().chosen(), "optimize": "speed", "cpu": target.cpu, "protocol": "rpc"}
    module = Module(
        graph.name,
        builder.values,
        tuple(builder.kernels.values()),
        tuple(calls),
        inputs,
        calls[-1].writes,
        source=task.name,
        options=chosen,
    )
    module = plan_module(estimated(module, target), io_in_arena=False)
    return replace(module, fingerprint=fingerprint(module, target))


def _call(builder: Builder, task: Task, candidate: Candidate, number: int, *, last: bool) -> Call:
    """A candidate as a kernel of its own, which writes values of its own."""
    group, schedule, func = task.lowered[candidate.number], candidate.choice.schedule, candidate.choice.func
    stem = f"candidate_{number}"
    name = register(builder, Kernel(func, (str(candidate.point),)), stem)
    args = [argument(builder, group, schedule, position, stem) for position in range(len(group.params))]
    written = []
    for k, output in enumerate(group.outputs):
        result = builder.end(f"result_{number}_{k}") if last else builder.unique(f"result_{number}_{k}")
        storage = "output" if last else "intermediate"
        builder.values[result] = make_value(result, task.graph.types[output], storage, output)
        written.append(result)
    scratch = workspaces(builder, stem, func.params[len(group.func.params) :])
    reads = tuple(dict.fromkeys(builder.name_of(p.value) for p in group.params if p.array is None))
    return Call(
        name,
        (*args, *written, *scratch),
        reads,
        tuple(written),
        scratch,
        layer=f"{number}",
        op=task.op,
        macs=group.macs,
        schedule=describe(schedule.trace),
        rule=schedule.rule,
    )
