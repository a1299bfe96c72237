"""Graph -> Module: every group becomes a scheduled, lowered kernel; equal kernels become one; views become addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from microc import dtypes
from microc.driver.compile.builder import Builder, make_value
from microc.driver.compile.calls import add_control, add_copy, add_external, add_kernel, add_stream, shapes_of
from microc.driver.compile.kernel import groups_of
from microc.driver.compile.maker import Maker
from microc.driver.compile.state import copied, in_order, partly_updated, starts_uniform, written_in_place
from microc.driver.progress import Progress
from microc.driver.stripes.kernel import LoweredStream
from microc.graph.ir import Graph, Node
from microc.module import Module, View
from microc.ops import registry
from microc.ops.external import EXTERNAL
from microc.target import Goal, Target


def build_module(
    graph: Graph,
    target: Target,
    source: str,
    goal: Goal,
    progress: Progress | None = None,
    streams: Sequence[LoweredStream] = (),
    make: Maker | None = None,
) -> Module:
    """Lower a fused graph. ``progress(text, done, total)`` is told of every kernel.

    Every stream is one kernel for several groups; it runs where the last of them stands. ``make``: what makes the functions.
    """
    builder = Builder(graph, make or Maker(graph, target, goal))
    for name in graph.inputs:
        builder.declare(name, "input")
    for name, data in graph.state.items():
        builder.declare(name, "state", data)
    for name in graph.outputs:
        if builder.name_of(name) not in builder.values:
            builder.declare(name, "output")
    outputs = [_output(builder, name) for name in graph.outputs]
    partly = partly_updated(graph)
    groups = in_order(graph, groups_of(graph), partly)
    builder.alike.update(shapes_of(graph, nodes) for nodes in groups)
    named = {nodes[0].group: nodes for nodes in groups if nodes[0].group}
    streamed = {name: stream for stream in streams for name in stream.chain.groups}
    for k, nodes in enumerate(groups):
        if progress is not None:
            progress(nodes[0].op, k, len(groups))
        stream = streamed.get(nodes[0].group)
        if stream is not None:
            if stream.chain.groups[-1] == nodes[0].group:
                add_stream(builder, stream, [named[name] for name in stream.chain.groups])
        elif nodes[0].op == EXTERNAL and builder.make.external:
            add_external(builder, nodes[0])
        elif registry.get(nodes[0].op).regions:
            add_control(builder, nodes[0])
        elif nodes[0].outputs[0] in partly:
            add_kernel(builder, nodes, partly[nodes[0].outputs[0]])
        elif len(nodes) > 1 or not _placed(builder, nodes[0]):
            add_kernel(builder, nodes)
    _forward_outputs(builder)
    module = Module(
        name=graph.name,
        values=builder.values,
        kernels=tuple(builder.kernels.values()),
        calls=tuple(builder.calls),
        inputs=tuple(builder.name_of(n) for n in graph.inputs),
        outputs=tuple(outputs),
        state=tuple(builder.name_of(n) for n in graph.state),
        views=tuple(builder.views),
        source=source,
        sizes=builder.make.sizes,
        options={"optimize": goal.name, "cpu": target.cpu},
    )
    _update_state(builder, module, {s: value for s, value in graph.updates.items() if value not in partly})
    starts = {
        builder.name_of(n): builder.constant(f"{builder.name_of(n)}_start", data)
        for n, data in graph.state.items()
        if not starts_uniform(data)
    }
    return replace(
        module,
        values=builder.values,
        kernels=tuple(builder.kernels.values()),
        calls=tuple(builder.calls),
        views=tuple(builder.views),
        starts=starts,
    )


def _update_state(builder: Builder, module: Module, updates: Mapping[str, str]) -> None:
    """The next contents of state: in their place when they are made, or copied there at the end."""
    updates = {state: value for state, value in updates.items() if state != value}
    constants = {state: value for state, value in updates.items() if value in builder.graph.consts}
    named = {builder.name_of(s): builder.name_of(v) for s, v in updates.items() if s not in constants}
    placed = written_in_place(module, named)
    builder.views += [View(value, state, 0) for value, state in placed.items()]
    sources = {
        state: value for state, value in updates.items() if placed.get(builder.name_of(value)) != builder.name_of(state)
    }
    where = {s: "" if s in constants else module.base_of(builder.name_of(v))[0] for s, v in sources.items()}
    states = {builder.name_of(state): state for state in sources}
    aside: dict[str, str] = {}
    for name, first in copied({builder.name_of(s): place for s, place in where.items()}):
        state = states[name]
        value = sources[state]
        if first:
            kind = builder.graph.types[value]
            aside[state] = builder.unique(f"{name}_next")
            builder.values[aside[state]] = make_value(aside[state], kind, "intermediate", value)
            add_copy(builder, value, aside[state], "state")
        else:
            add_copy(builder, value, name, "state", builder.graph.consts.get(value), origin=aside.get(state, ""))


def _output(builder: Builder, name: str) -> str:
    """The value behind a graph output; an input, state or constant that is returned as it is gets a copy."""
    value = builder.values[builder.name_of(name)]
    if value.storage == "output":
        return value.name
    copy = builder.end(f"{value.name}_out")
    builder.values[copy] = replace(value, name=copy, storage="output", data=None)
    return copy


def _forward_outputs(builder: Builder) -> None:
    """Outputs that are inputs, states or constants of the graph are copied there by a kernel."""
    graph = builder.graph
    for name in graph.outputs:
        value = builder.values[builder.name_of(name)]
        if value.storage != "output":
            add_copy(builder, name, f"{value.name}_out", "output")
        elif name in graph.consts:
            add_copy(builder, name, value.name, "output", constant=graph.consts[name])


def _placed(builder: Builder, node: Node) -> bool:
    """Do a node by placing tensors, if its operator says how and the values' storages allow it."""
    graph = builder.graph
    if registry.get(node.op).view:
        _view(builder, node, 0)
        return True
    alias = builder.make.alias(node)
    if alias is None:
        return False
    width = dtypes.nbytes(graph.types[node.inputs[0]].dtype)
    if alias.source is not None:
        movable = node.inputs[0] not in graph.consts and node.outputs[0] not in graph.outputs
        if movable:
            _view(builder, node, alias.source * width)
        return movable
    return _join_parts(builder, node, [start * width for start in alias.parts])


def _join_parts(builder: Builder, node: Node, offsets: list[int]) -> bool:
    """Let the producers of a concatenation's operands write straight into its output."""
    graph, views = builder.graph, {view.name for view in builder.views}
    fixed = {*graph.inputs, *graph.outputs, *graph.consts, *graph.state, *graph.updates.values()}
    names = [builder.name_of(name) for name in node.inputs]
    bases = {view.base for view in builder.views}
    if len(set(names)) != len(names) or any(name in views or name in bases for name in names):
        return False
    if any(name in fixed for name in node.inputs):
        return False
    whole = builder.declare(node.outputs[0], "intermediate")
    builder.views += [View(name, whole, offset) for name, offset in zip(names, offsets, strict=True)]
    return True


def _view(builder: Builder, node: Node, offset: int) -> None:
    """The same memory under another name, or a copy between storages that cannot be one."""
    graph, source, result = builder.graph, node.inputs[0], node.outputs[0]
    whole = source not in graph.consts and _root(builder, builder.name_of(source))
    fixed = not whole or whole[1] != "intermediate" or builder.values[whole[0]].nbytes != graph.types[result].nbytes
    if not whole or (fixed and result in graph.outputs):
        constant = graph.consts.get(source)
        target = builder.declare(result, "output" if result in graph.outputs else "intermediate")
        add_copy(builder, source, target, node.op, constant, str(node.loc))
        return
    name, base = builder.declare(result, "intermediate"), builder.name_of(source)
    if result in graph.outputs:  # the producer writes straight into the output
        builder.views.append(View(_root(builder, base)[0], name, 0))
    else:
        builder.views.append(View(name, base, offset))


def _root(builder: Builder, name: str) -> tuple[str, str]:
    """The value whose memory a name lives in, and its storage."""
    bases = {view.name: view.base for view in builder.views}
    while name in bases:
        name = bases[name]
    return name, builder.values[name].storage
