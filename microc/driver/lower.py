"""Graph -> Module: every group becomes a scheduled, lowered kernel; equal kernels become one; views become addresses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from microc import dtypes
from microc.codegen.names import RESERVED
from microc.driver.kernel import groups_of
from microc.driver.maker import Maker
from microc.driver.state import copied, in_order, partly_updated, starts_uniform, written_in_place
from microc.driver.stream import LoweredStream
from microc.dtypes import Array
from microc.graph.ir import Graph, Node, TensorType
from microc.module import Call, Kernel, Module, Value, View
from microc.ops import registry
from microc.ops.lowering import LoweredGroup, macs_of
from microc.schedule.schedule import Schedule, Step
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.verify import verify

Progress = Callable[[str, int, int], None]


def slug(name: str, limit: int = 32) -> str:
    """A short C identifier for a name of the model: the last two parts of its path, lower case."""
    path = [part for part in re.split(r"[/:]+", name.split(";")[0]) if part]
    words = "_".join(re.sub(r"[^0-9A-Za-z]+", "_", part).strip("_") for part in path[-2:])
    short = re.sub(r"_+", "_", words).strip("_").lower()[-limit:].strip("_")
    return f"t_{short}" if not short or short[0].isdigit() else short


@dataclass
class _Builder:
    """Grows the parts of a module while the graph is walked."""

    graph: Graph
    make: Maker
    alike: Counter[object] = field(default_factory=Counter)
    values: dict[str, Value] = field(default_factory=dict)
    views: list[View] = field(default_factory=list)
    kernels: dict[tuple[object, ...], Kernel] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    c_names: dict[str, None] = field(default_factory=lambda: dict.fromkeys(RESERVED))
    value_names: dict[str, str] = field(default_factory=dict)

    def unique(self, stem: str) -> str:
        name, number = stem, 2
        while name in self.c_names:
            name, number = f"{stem}_{number}", number + 1
        self.c_names[name] = None
        return name

    def name_of(self, value: str) -> str:
        """The C name of a graph value."""
        if value not in self.value_names:
            self.value_names[value] = self.unique(slug(value))
        return self.value_names[value]

    def declare(self, value: str, storage: str, data: Array | None = None) -> str:
        name = self.name_of(value)
        if name not in self.values:
            made = make_value(name, self.graph.types[value], storage, value, data)
            self.values[name] = replace(made, extents=self.make.extents(value))
        return name

    def constant(self, stem: str, array: Array) -> str:
        """A constant array; equal arrays are stored once."""
        for name, value in self.values.items():
            data = value.data
            if value.storage != "const" or data is None or data.dtype != array.dtype or data.shape != array.shape:
                continue
            if np.array_equal(data, array):
                return name
        name = self.unique(stem)
        self.values[name] = Value(name, array.shape, str(array.dtype), "const", np.ascontiguousarray(array), label=stem)
        return name


def make_value(name: str, kind: TensorType, storage: str, label: str, data: Array | None = None) -> Value:
    """A module value for a graph value."""
    scale = zero_point = None
    if kind.quant is not None and kind.quant.axis is None:
        scale, zero_point = kind.quant.scale[0], kind.quant.zero_point[0]
    return Value(name, kind.shape, kind.dtype, storage, data, scale, zero_point, label)


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
    builder = _Builder(graph, make or Maker(graph, target, goal))
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
    builder.alike.update(_shapes(graph, nodes) for nodes in groups)
    named = {nodes[0].group: nodes for nodes in groups if nodes[0].group}
    streamed = {name: stream for stream in streams for name in stream.chain.groups}
    for k, nodes in enumerate(groups):
        if progress is not None:
            progress(nodes[0].op, k, len(groups))
        stream = streamed.get(nodes[0].group)
        if stream is not None:
            if stream.chain.groups[-1] == nodes[0].group:
                _stream(builder, stream, [named[name] for name in stream.chain.groups])
        elif registry.get(nodes[0].op).regions:
            _control(builder, nodes[0])
        elif nodes[0].outputs[0] in partly:
            _kernel(builder, nodes, partly[nodes[0].outputs[0]])
        elif len(nodes) > 1 or not _placed(builder, nodes[0]):
            _kernel(builder, nodes)
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
        options={"optimize": goal.name, "isa": target.isa},
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


def _update_state(builder: _Builder, module: Module, updates: Mapping[str, str]) -> None:
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
            _copy(builder, value, aside[state], "state")
        else:
            _copy(builder, value, name, "state", builder.graph.consts.get(value), origin=aside.get(state, ""))


def _output(builder: _Builder, name: str) -> str:
    """The value behind a graph output; an input, state or constant that is returned as it is gets a copy."""
    value = builder.values[builder.name_of(name)]
    if value.storage == "output":
        return value.name
    copy = builder.unique(f"{value.name}_out")
    builder.values[copy] = replace(value, name=copy, storage="output", data=None)
    return copy


def _forward_outputs(builder: _Builder) -> None:
    """Outputs that are inputs, states or constants of the graph are copied there by a kernel."""
    graph = builder.graph
    for name in graph.outputs:
        value = builder.values[builder.name_of(name)]
        if value.storage != "output":
            _copy(builder, name, f"{value.name}_out", "output")
        elif name in graph.consts:
            _copy(builder, name, value.name, "output", constant=graph.consts[name])


def _placed(builder: _Builder, node: Node) -> bool:
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


def _join_parts(builder: _Builder, node: Node, offsets: list[int]) -> bool:
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


def _view(builder: _Builder, node: Node, offset: int) -> None:
    """The same memory under another name, or a copy between storages that cannot be one."""
    graph, source, result = builder.graph, node.inputs[0], node.outputs[0]
    whole = source not in graph.consts and _root(builder, builder.name_of(source))
    fixed = not whole or whole[1] != "intermediate" or builder.values[whole[0]].nbytes != graph.types[result].nbytes
    if not whole or (fixed and result in graph.outputs):
        constant = graph.consts.get(source)
        _copy(builder, source, builder.declare(result, "output"), node.op, constant, str(node.loc))
        return
    name, base = builder.declare(result, "intermediate"), builder.name_of(source)
    if result in graph.outputs:  # the producer writes straight into the output
        builder.views.append(View(_root(builder, base)[0], name, 0))
    else:
        builder.views.append(View(name, base, offset))


def _root(builder: _Builder, name: str) -> tuple[str, str]:
    """The value whose memory a name lives in, and its storage."""
    bases = {view.name: view.base for view in builder.views}
    while name in bases:
        name = bases[name]
    return name, builder.values[name].storage


def _copy(
    builder: _Builder,
    source: str,
    target: str,
    op: str,
    constant: Array | None = None,
    layer: str = "",
    origin: str = "",
) -> None:
    """A kernel that copies a whole value; ``origin``: where it lies, if elsewhere."""
    func = builder.make.copy(source, constant=constant is not None)
    if constant is not None:
        origin = builder.constant(f"{target}_value", constant)
    origin = origin or builder.name_of(source)
    name = _register(builder, func, "copy", ())
    reads = () if constant is not None else (origin,)
    builder.calls.append(Call(name, (origin, target), reads, (target,), layer=layer or f"copy to {target}", op=op))


def _kernel(builder: _Builder, nodes: tuple[Node, ...], state: str = "") -> None:
    """A kernel and its call; ``state``: what it changes a part of."""
    graph = builder.graph
    uses = builder.alike[_shapes(graph, nodes)]
    group, choice = builder.make.group(nodes, uses, in_place=bool(state))
    schedule, func = choice.schedule, choice.func
    stem = slug(nodes[-1].loc.name or nodes[-1].outputs[0])
    name = _register(builder, func, f"{group.anchor.op}_{stem}", _comment(graph, nodes, schedule))
    args = [_argument(builder, group, schedule, k, stem) for k in range(len(group.params))]
    written = [builder.name_of(state)] if state else [builder.declare(o, "intermediate") for o in group.outputs]
    scratch = _workspaces(builder, stem, func.params[len(group.func.params) :])
    reads = tuple(dict.fromkeys(a for a, p in zip(args, group.params, strict=True) if p.array is None))
    builder.calls.append(
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
        )
    )


def _control(builder: _Builder, node: Node) -> None:
    """Control flow: one kernel with those of its graphs inside."""
    lowered = builder.make.control(node)
    stem = slug(node.loc.name or node.outputs[0])
    name = _register(builder, lowered.func, f"{node.op}_{stem}", (node.op,))
    args = [
        builder.name_of(p.value) if p.array is None else builder.constant(f"{stem}_{p.role}", p.array)
        for p in lowered.params
    ]
    written = [builder.declare(output, "intermediate") for output in node.outputs]
    scratch = _workspaces(builder, stem, lowered.func.params[len(args) + len(written) :])
    builder.calls.append(
        Call(
            kernel=name,
            args=(*args, *written, *scratch),
            reads=tuple(dict.fromkeys(a for a, p in zip(args, lowered.params, strict=True) if p.array is None)),
            writes=tuple(written),
            workspace=scratch,
            layer=str(node.loc),
            op=node.op,
            macs=macs_of(builder.graph, node),
        )
    )


def _shapes(graph: Graph, nodes: tuple[Node, ...]) -> object:
    """What kernels have in common that share their code: operators, shapes and dtypes."""
    kinds = ((graph.types[v].shape, graph.types[v].dtype) for n in nodes for v in (*n.inputs, *n.outputs) if v)
    return tuple(node.op for node in nodes), tuple(kinds)


def _stream(builder: _Builder, lowered: LoweredStream, groups: Sequence[tuple[Node, ...]]) -> None:
    """A kernel that works row by row for several groups."""
    graph = builder.graph
    func, stem = lowered.func, slug(groups[-1][-1].loc.name or lowered.result)
    comment = [line for nodes, s in zip(groups, lowered.schedules, strict=True) for line in _comment(graph, nodes, s)]
    name = _register(builder, func, f"stream_{stem}", (f"{len(groups)} layers, row by row", *comment))
    args = [
        builder.name_of(p.value) if p.array is None else builder.constant(f"{stem}_{p.role}", p.array)
        for p in lowered.params
    ]
    written = builder.declare(lowered.result, "intermediate")
    scratch = _workspaces(builder, stem, func.params[len(args) + 1 :])
    builder.calls.append(
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
        )
    )


def _workspaces(builder: _Builder, stem: str, buffers: Sequence[ir.Buffer]) -> tuple[str, ...]:
    """Values for the workspaces of a kernel."""
    names = []
    for buffer in buffers:
        name = builder.unique(f"{stem}_{buffer.name}")
        builder.values[name] = Value(name, buffer.shape, buffer.dtype, "workspace")
        names.append(name)
    return tuple(names)


def _argument(builder: _Builder, group: LoweredGroup, schedule: Schedule, position: int, stem: str) -> str:
    param = group.params[position]
    if param.array is not None:
        array = schedule.packed(group.func.params[position], param.array)
        return builder.constant(f"{stem}_{param.role}", array)
    return builder.name_of(param.value)


def _register(builder: _Builder, func: ir.PrimFunc, stem: str, comment: tuple[str, ...]) -> str:
    """Equal loops become one C function, named after the first layer that uses it."""
    key = (func.params, func.body)
    if key not in builder.kernels:
        if not func.scalars:  # what depends on sizes was verified at some of them
            verify(func, trust_data=True)
        public = f"{builder.graph.name}_"  # what the header declares begins like this
        stem = f"kernel_{stem}" if stem.startswith(public) else stem
        builder.kernels[key] = Kernel(replace(func, name=builder.unique(stem)), comment)
    return builder.kernels[key].name


def _comment(graph: Graph, nodes: tuple[Node, ...], schedule: Schedule) -> tuple[str, ...]:
    def spell(name: str) -> str:
        kind = graph.types[name]
        return "x".join(map(str, kind.shape)) + f" {kind.dtype}"

    inputs = ", ".join(spell(i) for node in nodes[:1] for i in node.inputs[:2] if i)
    result = spell(nodes[-1].outputs[0])
    return (
        f"{' + '.join(node.op for node in nodes)}: {inputs} -> {result}",
        f"schedule: {describe(schedule.trace) or 'as written'}",
    )


def describe(trace: tuple[Step, ...]) -> str:
    """A schedule in a line: the steps that shape the loops, without bookkeeping."""
    shown = ("split", "fuse", "reorder", "compute_at", "tensorize", "cache_read", "cache_write")
    return " ".join(str(step) for step in trace if step.primitive in shown)
