"""Kernels and their calls: a group of nodes, control flow, layers row by row, a copy."""

from __future__ import annotations

from collections.abc import Sequence

from microc.driver.compile.applied import applied
from microc.driver.compile.builder import Builder, register, slug, workspaces
from microc.driver.compile.comments import block_comments, describe, kernel_comment, kind_of
from microc.driver.compile.maker import Copy, Group
from microc.driver.stripes.kernel import LoweredStream
from microc.dtypes import Array
from microc.external.kernel import function
from microc.graph.ir import Graph, Node
from microc.module import Call, Kernel
from microc.ops.external import EXTERNAL
from microc.ops.lowering import LoweredGroup, macs_of
from microc.schedule.schedule import Schedule
from microc.tir.verify import constants_of


def add_copy(
    builder: Builder,
    source: str,
    target: str,
    op: str,
    constant: Array | None = None,
    layer: str = "",
    origin: str = "",
) -> None:
    """A kernel that copies a whole value; ``origin``: where it lies, if elsewhere."""
    copy = Copy(source, constant is not None)
    func = builder.make.copy(copy)
    if constant is not None:
        origin = builder.constant(f"{target}_value", constant)
    origin = origin or builder.name_of(source)
    name = register(builder, Kernel(func), "copy")
    reads = () if constant is not None else (origin,)
    builder.call(Call(name, (origin, target), reads, (target,), layer=layer or f"copy to {target}", op=op), copy)


def add_kernel(builder: Builder, nodes: tuple[Node, ...], state: str = "") -> None:
    """A kernel and its call; ``state``: what it changes a part of."""
    graph = builder.graph
    uses = builder.alike[shapes_of(graph, nodes)]
    group, choice = builder.make.group(nodes, uses, in_place=bool(state))
    schedule, func = choice.schedule, choice.func
    stem = slug(nodes[-1].loc.name or nodes[-1].outputs[0])
    kernel = Kernel(func, kernel_comment(graph, nodes, schedule, group.tensors), blocks=block_comments(group, nodes))
    kind, seen = kind_of(graph, group.anchor), choice.verified
    name = register(builder, kernel, f"{kind}_{stem}", verified=seen, tables=group.tables)
    args = [argument(builder, group, schedule, k, stem) for k in range(len(group.params))]
    written = [builder.name_of(state)] if state else [builder.declare(o, "intermediate") for o in group.outputs]
    scratch = workspaces(builder, stem, func.params[len(group.func.params) :])
    reads = tuple(dict.fromkeys(a for a, p in zip(args, group.params, strict=True) if p.array is None))
    builder.call(
        Call(
            kernel=name,
            args=(*args, *written, *scratch),
            reads=reads,
            writes=tuple(written),
            workspace=scratch,
            layer=str(nodes[0].loc),
            op="+".join(node.op for node in nodes),
            macs=group.macs,
            schedule=describe(schedule.trace),
            rule=schedule.rule,
            shipped=choice.shipped,
            operators=applied(graph, nodes),
        ),
        Group(nodes, uses, bool(state)),
    )


def add_control(builder: Builder, node: Node) -> None:
    """Control flow: one kernel with those of its graphs inside. So is a region in our code, which has the steps that it has in
    somebody else's: state is copied there as here."""
    lowered = builder.make.control(node)
    stem = slug(node.loc.name or node.outputs[0])
    name = register(
        builder,
        Kernel(lowered.func, (node.op,), apart=node.op == EXTERNAL),
        f"{node.op}_{stem}",
        tables=constants_of(lowered.func),
    )
    args = [
        builder.name_of(p.value) if p.array is None else builder.constant(f"{stem}_{p.role}", p.array)
        for p in lowered.params
    ]
    written = [builder.declare(output, "intermediate") for output in node.outputs]
    scratch = workspaces(builder, stem, lowered.func.params[len(args) + len(written) :])
    builder.call(
        Call(
            kernel=name,
            args=(*args, *written, *scratch),
            reads=tuple(dict.fromkeys(a for a, p in zip(args, lowered.params, strict=True) if p.array is None)),
            writes=tuple(written),
            workspace=scratch,
            layer=str(node.loc),
            op=node.op,
            macs=macs_of(builder.graph, node),
            operators=applied(builder.graph, (node,)),
        ),
        Group((node,)),
    )


def add_external(builder: Builder, node: Node) -> None:
    """A region in somebody else's code."""
    graph = builder.graph
    taken = builder.make.external[node.attr("code")]
    func, external = function(taken)
    layers = "+".join(inner.op for inner in taken.region.graph.nodes)
    stem = slug(node.loc.name or node.outputs[0])
    comment = (f"external code of {taken.backend.name}: {layers}",)
    name = register(builder, Kernel(func, comment, external=external), f"external_{stem}")
    read = tuple(builder.name_of(value) for value in node.inputs)
    align = taken.code.align
    data = tuple(
        builder.constant(f"{stem}_{role}", array.reshape(-1), align) for role, array in taken.code.data.items()
    )
    written = tuple(builder.declare(value, "intermediate") for value in node.outputs)
    scratch = workspaces(builder, stem, func.params[len((*read, *data, *written)) :], align)
    builder.call(
        Call(
            kernel=name,
            args=(*read, *data, *written, *scratch),
            reads=tuple(dict.fromkeys(read)),
            writes=written,
            workspace=scratch,
            layer=str(node.loc),
            op=layers,
            macs=macs_of(graph, node),
            rule=f"external: {taken.backend.name} {taken.entry.name}",
            operators=applied(taken.region.graph, taken.region.graph.nodes),
        ),
        Group((node,)),
    )


def shapes_of(graph: Graph, nodes: tuple[Node, ...]) -> object:
    """What kernels have in common that share their code: operators, shapes and dtypes."""
    kinds = ((graph.types[v].shape, graph.types[v].dtype) for n in nodes for v in (*n.inputs, *n.outputs) if v)
    return tuple(node.op for node in nodes), tuple(kinds)


def add_stream(builder: Builder, lowered: LoweredStream, groups: Sequence[tuple[Node, ...]]) -> None:
    """A kernel that works row by row for several groups."""
    graph = builder.graph
    func, stem = lowered.func, slug(groups[-1][-1].loc.name or lowered.result)
    pairs = zip(groups, lowered.schedules, strict=True)
    comment = [line for nodes, schedule in pairs for line in kernel_comment(graph, nodes, schedule)]
    name = register(
        builder,
        Kernel(func, (f"{len(groups)} layers, row by row", *comment)),
        f"stream_{stem}",
        tables=constants_of(func),
    )
    args = [
        builder.name_of(p.value) if p.array is None else builder.constant(f"{stem}_{p.role}", p.array)
        for p in lowered.params
    ]
    written = builder.declare(lowered.result, "intermediate")
    scratch = workspaces(builder, stem, func.params[len(args) + 1 :])
    builder.call(
        Call(
            kernel=name,
            args=(*args, written, *scratch),
            reads=tuple(dict.fromkeys(a for a, p in zip(args, lowered.params, strict=True) if p.array is None)),
            writes=(written,),
            workspace=scratch,
            layer=str(groups[0][0].loc),
            op=" > ".join("+".join(node.op for node in nodes) for nodes in groups),
            macs=sum(macs_of(graph, node) for nodes in groups for node in nodes),
            schedule=" | ".join(describe(s.trace) for s in lowered.schedules),
            rule=" | ".join(dict.fromkeys(s.rule for s in lowered.schedules)),
            streamed=lowered.price,
            operators=applied(graph, [node for nodes in groups for node in nodes]),
        ),
        lowered.chain,
    )


def argument(builder: Builder, group: LoweredGroup, schedule: Schedule, position: int, stem: str) -> str:
    """The name of a group's parameter in the network: a value, or a constant as the schedule stores it."""
    param = group.params[position]
    if param.array is not None:
        array = schedule.packed(group.func.params[position], param.array)
        return builder.constant(f"{stem}_{param.role}", array)
    return builder.name_of(param.value)
