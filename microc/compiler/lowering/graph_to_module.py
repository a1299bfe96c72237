# SPDX-License-Identifier: Apache-2.0
"""Lower a graph to a module: kernels, their calls, and the comments of the generated C."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.compiler.fit.striping import LoweredChain
from microc.compiler.interaction import Progress
from microc.compiler.lowering.kernel_builder import KernelBuilder, KernelGroup, ValueCopy
from microc.compiler.lowering.kernel_selection import groups_of
from microc.compiler.lowering.module_builder import (
    ModuleBuilder,
    c_identifier_of,
    declare_workspaces,
    describe_operators,
    find_in_place_writes,
    find_partial_updates,
    has_equal_elements,
    make_module_value,
    order_groups,
    order_state_copies,
    register_kernel,
)
from microc.external.backend import build_region_function
from microc.graph.ir import Graph, Node
from microc.module import Call, Kernel, Module, View
from microc.ops import registry
from microc.ops.control import EXTERNAL
from microc.ops.lowering import LoweredGroup, node_macs
from microc.schedule.primitives.tree import Step
from microc.schedule.schedule import Schedule
from microc.tir.ir import Var
from microc.tir.verify import constant_names

# ---- Comments of the generated C: the operators and the schedule of a kernel, and the formula of each block of loops.

_TITLES = {"padded": "pad", "patch": "im2col", "acc": "accumulate"}
"""Common names for the computations of the kernels of matrix products and convolutions, by the name of the computed
tensor."""
_MAX_FORMULA_LENGTH = 240
"""Maximum length in characters of a formula in a comment."""


def name_operator(graph: Graph, node: Node) -> str:
    """Return the common name of a node's operator. Convolutions are named by their type (pointwise, depthwise,
    grouped)."""
    if node.op != "conv2d":
        return node.op
    _, height, width, depth = graph.types[node.inputs[1]].shape
    if node.attrs.get("groups", 1) != 1:
        return "depthwise_conv2d" if depth == 1 else "grouped_conv2d"
    return "pointwise_conv2d" if height == width == 1 else node.op


def make_kernel_comment(
    graph: Graph, nodes: tuple[Node, ...], schedule: Schedule, tensors: tuple[te.Tensor, ...] = ()
) -> tuple[str, ...]:
    """Return the comment lines of a kernel: its operators and shapes, its schedule, and unexpected storage of data.

    ``tensors``: the tensor expressions of the kernel.
    """

    def format_shape_of(name: str) -> str:
        type_ = graph.types[name]
        return "x".join(map(str, type_.shape)) + f" {type_.dtype}"

    inputs = ", ".join(format_shape_of(i) for node in nodes[:1] for i in node.inputs[:2] if i)
    result = format_shape_of(nodes[-1].outputs[0])
    stages = te.collect_tensors(tensors)
    remarks = (remark for step in schedule.trace for remark in _list_storage_remarks(step, stages))
    return (
        f"{' + '.join(name_operator(graph, node) for node in nodes)}: {inputs} -> {result}",
        f"schedule: {describe_loop_steps(schedule.trace) or 'as written'}",
        *remarks,
    )


def _list_storage_remarks(step: Step, tensors: tuple[te.Tensor, ...]) -> Iterator[str]:
    """Yield a remark for the generated C if a schedule step changes how data is stored or how the kernel is
    compiled."""
    match step.primitive, step.args:
        case "double_reduction", (total, constant):
            yield f"{total} is twice the sum, as high products take it: {constant} is stored doubled"
        case "defer_init", (total,):
            yield f"{total} sums products alone: what it starts from is added where it is read"
        case "compile_with", (flags,):
            yield f"options of gcc for this kernel, by measurement: {flags}"
        case "tensorize_pairs", (constant, _, _, _, *woven):
            yield f"{constant} holds two rows in one, even + 256 odd; of their sums, odd = (both - even) >> 8"
            yield from (f"every {pairs} such rows alternate, four elements of each" for pairs in woven)
        case "transform_layout", (name, factors, order) if all(len(f) == 1 for f in factors):
            axes = _find_axis_names(str(name), tensors)
            if axes and list(order) != sorted(order):
                yield f"{name} is stored as {name}({', '.join(axes[k] for k in order)})"
        case _:
            pass


def _find_axis_names(name: str, tensors: tuple[te.Tensor, ...]) -> tuple[str, ...]:
    """Find the names of a tensor's axes in the formulas of the kernel. Return an empty tuple if the formulas index the
    tensor only by expressions."""
    for tensor in tensors:
        if isinstance(tensor.definition, te.ComputeDef):
            if tensor.name == name:
                return tuple(var.name for var in tensor.definition.axes)
            for read in te.tensor_reads(tensor.definition.body):
                if read.tensor.name == name and all(isinstance(i, Var) for i in read.indices):
                    return tuple(i.name for i in read.indices if isinstance(i, Var))
    return ()


def describe_loop_steps(trace: tuple[Step, ...]) -> str:
    """Format the steps of a schedule that shape the loops, in a single line."""
    shown = ("split", "fuse", "reorder", "compute_at", "tensorize", "cache_read", "cache_write")
    return " ".join(str(step) for step in trace if step.primitive in shown)


def make_block_comments(group: LoweredGroup) -> tuple[tuple[str, str], ...]:
    """Return the comment of each tensor that a kernel computes, by the tensor's name: its common name and its formula.

    An elementwise epilogue is described by its operators instead.
    """
    epilogue = group.nodes if registry.get(group.anchor.op).elementwise else group.nodes[1:]
    results = {id(tensor) for tensor in group.tensors}
    comments: list[tuple[str, str]] = []
    for tensor in te.collect_tensors(group.tensors):
        if not isinstance(tensor.definition, te.ComputeDef):
            continue
        title, formula = _TITLES.get(tensor.name, ""), te.format_formula(tensor)
        if epilogue and id(tensor) in results:
            text = "; ".join(_describe_epilogue(epilogue, comments[-1][0] if comments else "x"))
        elif len(formula) > _MAX_FORMULA_LENGTH:
            text = title or tensor.name
        else:
            text = f"{title}: {formula}" if title else formula
        comments.append((tensor.name, _tidy_formula(text)))
    return tuple(comments)


def _describe_epilogue(nodes: tuple[Node, ...], start: str) -> Iterator[str]:
    """Yield the operators of an elementwise epilogue with their formulas. ``start``: name of the operand of the first
    operator."""
    for node in nodes:
        definition = registry.get(node.op)
        formula, operands = definition.formula, {name: name for name in definition.operand_names}
        shown = {**operands, **{name: name if value is None else value for name, value in node.attrs.items()}}
        shown["x"] = start if node is nodes[0] else "x"
        yield f"{node.op}: {formula.format(**shown)}" if formula else node.op


_NEUTRAL_TERMS = re.compile(r" (?:[+-] 0(?: / \d+)?(?=[,)]| [+-] )|[*/] 2\*\*0(?=[ ,)]))")
"""Terms and factors of a formula that attributes of 0 make neutral: a zero point, a half that is not added, a shift by 0."""
_NEGATIVE_TERMS = re.compile(r" ([+-]) -(\d+)(?=[,)]| [+-] )")


def _tidy_formula(text: str) -> str:
    """Return a formula without neutral terms, and with differences instead of sums of negative numbers."""
    return _NEGATIVE_TERMS.sub(
        lambda found: f" {'-' if found[1] == '+' else '+'} {found[2]}", _NEUTRAL_TERMS.sub("", text)
    )


# ---- Adding kernels and calls to a module: for groups of nodes, control flow, chains computed row by row, and copies.


def add_copy(
    builder: ModuleBuilder,
    source: str,
    target: str,
    op: str,
    constant: Array | None = None,
    layer: str = "",
    origin: str = "",
) -> None:
    """Add to the module a kernel that copies a whole value to the value ``target``, and its call.

    ``source``: the graph value. ``constant``: its data, if it is a constant. ``origin``: the name of the module's value
    that contains the data, if it differs from the name of ``source``.
    """
    copy = ValueCopy(source, constant is not None)
    func = builder.kernel_builder.lower_value_copy(copy)
    if constant is not None:
        origin = builder.add_constant(f"{target}_value", constant)
    origin = origin or builder.name_of(source)
    name = register_kernel(builder, Kernel(func), "copy")
    reads = () if constant is not None else (origin,)
    builder.add_call(Call(name, (origin, target), reads, (target,), layer=layer or f"copy to {target}", op=op), copy)


def add_kernel(builder: ModuleBuilder, nodes: tuple[Node, ...], state: str = "") -> None:
    """Add the kernel of a group of nodes and its call to the module.

    ``state``: the name of a state that the group partly updates in place; empty if there is none.
    """
    graph = builder.graph
    uses = builder.group_count_by_shape_key[kernel_shape_key(graph, nodes)]
    group, choice = builder.kernel_builder.schedule_kernel(nodes, uses, in_place=bool(state))
    schedule, func = choice.schedule, choice.func
    stem = c_identifier_of(nodes[-1].loc.name or nodes[-1].outputs[0])
    kernel = Kernel(func, make_kernel_comment(graph, nodes, schedule, group.tensors), blocks=make_block_comments(group))
    operator, is_verified = name_operator(graph, group.anchor), choice.verified
    name = register_kernel(builder, kernel, f"{operator}_{stem}", verified=is_verified, tables=group.tables)
    args = [declare_kernel_argument(builder, group, schedule, k, stem) for k in range(len(group.params))]
    written = [builder.name_of(state)] if state else [builder.declare_value(o, "intermediate") for o in group.outputs]
    scratch = declare_workspaces(builder, stem, func.params[len(group.func.params) :])
    reads = tuple(dict.fromkeys(a for a, p in zip(args, group.params, strict=True) if p.array is None))
    builder.add_call(
        Call(
            kernel=name,
            args=(*args, *written, *scratch),
            reads=reads,
            writes=tuple(written),
            workspace=scratch,
            layer=str(nodes[0].loc),
            op="+".join(node.op for node in nodes),
            macs=group.macs,
            schedule=describe_loop_steps(schedule.trace),
            rule=schedule.rule,
            shipped=choice.shipped,
            operators=describe_operators(graph, nodes),
        ),
        KernelGroup(nodes, uses, bool(state)),
    )


def add_control_flow(builder: ModuleBuilder, node: Node) -> None:
    """Add a node of control flow to the module as one kernel, which contains the kernels of the graphs inside.

    A region for external code that microc's own code computes also becomes one kernel. Then both versions of a network
    have the same calls.
    """
    lowered = builder.kernel_builder.lower_control_node(node)
    stem = c_identifier_of(node.loc.name or node.outputs[0])
    name = register_kernel(
        builder,
        Kernel(lowered.func, (node.op,), apart=node.op == EXTERNAL),
        f"{node.op}_{stem}",
        tables=constant_names(lowered.func),
    )
    args = [
        builder.name_of(p.value) if p.array is None else builder.add_constant(f"{stem}_{p.role}", p.array)
        for p in lowered.params
    ]
    written = [builder.declare_value(output, "intermediate") for output in node.outputs]
    scratch = declare_workspaces(builder, stem, lowered.func.params[len(args) + len(written) :])
    builder.add_call(
        Call(
            kernel=name,
            args=(*args, *written, *scratch),
            reads=tuple(dict.fromkeys(a for a, p in zip(args, lowered.params, strict=True) if p.array is None)),
            writes=tuple(written),
            workspace=scratch,
            layer=str(node.loc),
            op=node.op,
            macs=node_macs(builder.graph, node),
            operators=describe_operators(builder.graph, (node,)),
        ),
        KernelGroup((node,)),
    )


def add_external_region(builder: ModuleBuilder, node: Node) -> None:
    """Add a region that external code computes to the module, as one kernel."""
    graph = builder.graph
    taken = builder.kernel_builder.configuration.external[node.attr("code")]
    func, external = build_region_function(taken)
    layers = "+".join(inner.op for inner in taken.region.graph.nodes)
    stem = c_identifier_of(node.loc.name or node.outputs[0])
    comment = (f"external code of {taken.backend.name}: {layers}",)
    name = register_kernel(builder, Kernel(func, comment, external=external), f"external_{stem}")
    read = tuple(builder.name_of(value) for value in node.inputs)
    align = taken.code.align
    data = tuple(
        builder.add_constant(f"{stem}_{role}", array.reshape(-1), align) for role, array in taken.code.data.items()
    )
    written = tuple(builder.declare_value(value, "intermediate") for value in node.outputs)
    scratch = declare_workspaces(builder, stem, func.params[len((*read, *data, *written)) :], align)
    builder.add_call(
        Call(
            kernel=name,
            args=(*read, *data, *written, *scratch),
            reads=tuple(dict.fromkeys(read)),
            writes=written,
            workspace=scratch,
            layer=str(node.loc),
            op=layers,
            macs=node_macs(graph, node),
            rule=f"external: {taken.backend.name} {taken.entry.name}",
            operators=describe_operators(taken.region.graph, taken.region.graph.nodes),
        ),
        KernelGroup((node,)),
    )


def kernel_shape_key(graph: Graph, nodes: tuple[Node, ...]) -> object:
    """Return a key that is equal for groups with the same operators, shapes and dtypes. The kernels of such groups may
    share their code."""
    types = ((graph.types[v].shape, graph.types[v].dtype) for n in nodes for v in (*n.inputs, *n.outputs) if v)
    return tuple(node.op for node in nodes), tuple(types)


def add_row_by_row_kernel(builder: ModuleBuilder, lowered: LoweredChain, groups: Sequence[tuple[Node, ...]]) -> None:
    """Add the kernel of a chain, which computes several groups row by row, and its call to the module."""
    graph = builder.graph
    func, stem = lowered.func, c_identifier_of(groups[-1][-1].loc.name or lowered.result)
    pairs = zip(groups, lowered.schedules, strict=True)
    comment = [line for nodes, schedule in pairs for line in make_kernel_comment(graph, nodes, schedule)]
    name = register_kernel(
        builder,
        Kernel(func, (f"{len(groups)} layers, row by row", *comment)),
        f"stream_{stem}",
        tables=constant_names(func),
    )
    args = [
        builder.name_of(p.value) if p.array is None else builder.add_constant(f"{stem}_{p.role}", p.array)
        for p in lowered.params
    ]
    written = builder.declare_value(lowered.result, "intermediate")
    scratch = declare_workspaces(builder, stem, func.params[len(args) + 1 :])
    builder.add_call(
        Call(
            kernel=name,
            args=(*args, written, *scratch),
            reads=tuple(dict.fromkeys(a for a, p in zip(args, lowered.params, strict=True) if p.array is None)),
            writes=(written,),
            workspace=scratch,
            layer=str(groups[0][0].loc),
            op=" > ".join("+".join(node.op for node in nodes) for nodes in groups),
            macs=sum(node_macs(graph, node) for nodes in groups for node in nodes),
            schedule=" | ".join(describe_loop_steps(s.trace) for s in lowered.schedules),
            rule=" | ".join(dict.fromkeys(s.rule for s in lowered.schedules)),
            streamed=lowered.price,
            operators=describe_operators(graph, [node for nodes in groups for node in nodes]),
        ),
        lowered.chain,
    )


def declare_kernel_argument(
    builder: ModuleBuilder, group: LoweredGroup, schedule: Schedule, parameter_index: int, stem: str
) -> str:
    """Return the name of the module's value that is passed for the parameter with index ``parameter_index`` of a group's
    kernel.

    A constant is added to the module first, packed in the layout that the schedule requires. ``stem``: the beginning of
    the constant's name.
    """
    param = group.params[parameter_index]
    if param.array is not None:
        array = schedule.packed(group.func.params[parameter_index], param.array)
        return builder.add_constant(f"{stem}_{param.role}", array)
    return builder.name_of(param.value)


# ---- Graph -> Module. Every group of nodes becomes a scheduled and lowered kernel. Equal kernels share one C function. Views
# become addresses inside of other tensors.


AddGroup = Callable[[ModuleBuilder, tuple[Node, ...], str], None]
"""Adds the kernel of a group of nodes and its call to a module. The last argument is as for :func:`add_kernel`."""


def add_kernel_or_control_flow(builder: ModuleBuilder, nodes: tuple[Node, ...], state: str = "") -> None:
    """Add the kernel of a group of nodes, or of a node with graphs of its own, and its call to the module.

    ``state``: as for :func:`add_kernel`."""
    if registry.get(nodes[0].op).regions:
        add_control_flow(builder, nodes[0])
    else:
        add_kernel(builder, nodes, state)


def build_module(
    kernel_builder: KernelBuilder,
    source: str,
    progress: Progress | None = None,
    lowered_chains: Sequence[LoweredChain] = (),
    add_group: AddGroup = add_kernel_or_control_flow,
) -> Module:
    """Lower the fused graph of the kernel builder ``kernel_builder`` to a module.

    ``source``: the name of the model in generated files. ``progress(text, done, total)`` is called for every kernel.
    ``lowered_chains``: the kernels of chains that are computed row by row. The kernel of a chain replaces all groups of
    the chain, and is called where the last of them would be. ``add_group``: adds the kernels of all other groups.
    """
    graph = kernel_builder.graph
    builder = ModuleBuilder(graph, kernel_builder)
    # Inputs, state and outputs are declared first, because ``declare_value`` keeps the storage of the first
    # declaration, and kernels declare all their results as intermediate. This also reserves the preferred C names for inputs,
    # state and outputs.
    for name in graph.inputs:
        builder.declare_value(name, "input")
    for name, data in graph.state.items():
        builder.declare_value(name, "state", data)
    for name in graph.outputs:
        if builder.name_of(name) not in builder.values:
            builder.declare_value(name, "output")
    outputs = [_declare_output_value(builder, name) for name in graph.outputs]
    # A group that overwrites a part of a state is moved after all groups that read the old contents of the state.
    partly = find_partial_updates(graph)
    groups = order_groups(graph, groups_of(graph), partly)
    # Groups of equal shapes share their code, which then takes flash once. So they are counted before any kernel is chosen.
    builder.group_count_by_shape_key.update(kernel_shape_key(graph, nodes) for nodes in groups)
    named = {nodes[0].group: nodes for nodes in groups if nodes[0].group}
    streamed = {name: stream for stream in lowered_chains for name in stream.chain.groups}
    for k, nodes in enumerate(groups):
        if progress is not None:
            progress(nodes[0].op, k, len(groups))
        stream = streamed.get(nodes[0].group)
        if (
            stream is not None
        ):  # the kernel is added at the last group, after the operands of all groups have been computed
            if stream.chain.groups[-1] == nodes[0].group:
                add_row_by_row_kernel(builder, stream, [named[name] for name in stream.chain.groups])
        elif (
            nodes[0].op == EXTERNAL and builder.kernel_builder.configuration.external
        ):  # tested before the next condition, which is true for this operator too
            add_external_region(builder, nodes[0])
        elif nodes[0].outputs[0] in partly:
            add_group(builder, nodes, partly[nodes[0].outputs[0]])
        elif len(nodes) > 1 or not _try_to_replace_by_placement(
            builder, nodes[0]
        ):  # only a single node can be replaced by placing its tensors
            add_group(builder, nodes, "")
    # Outputs are copied before states are updated, because the value of a state is its contents at the start of the run.
    _add_output_copies(builder)
    # All calls and views determine if a state can be updated in place, so the module is built before this is decided.
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
        sizes=builder.kernel_builder.sizes,
        options={"optimize": kernel_builder.goal.name, "cpu": kernel_builder.target.cpu},
    )
    _add_state_updates(builder, module, {s: value for s, value in graph.updates.items() if value not in partly})
    # A state whose initial elements are all equal is filled by a loop. Any other state is copied from a constant.
    starts = {
        builder.name_of(n): builder.add_constant(f"{builder.name_of(n)}_start", data)
        for n, data in graph.state.items()
        if not has_equal_elements(data)
    }
    return replace(
        module,
        values=builder.values,
        kernels=tuple(builder.kernels.values()),
        calls=tuple(builder.calls),
        views=tuple(builder.views),
        starts=starts,
    )


def _add_state_updates(builder: ModuleBuilder, module: Module, updates: Mapping[str, str]) -> None:
    """Add the updates of states. A state is updated in place if possible, else by a copy at the end of a run."""
    updates = {state: value for state, value in updates.items() if state != value}
    constants = {state: value for state, value in updates.items() if value in builder.graph.consts}
    named = {builder.name_of(s): builder.name_of(v) for s, v in updates.items() if s not in constants}
    in_place = find_in_place_writes(module, named)
    builder.views += [View(value, state, 0) for value, state in in_place.items()]
    sources = {
        state: value
        for state, value in updates.items()
        if in_place.get(builder.name_of(value)) != builder.name_of(state)
    }
    bases = {s: "" if s in constants else module.base_and_offset(builder.name_of(v))[0] for s, v in sources.items()}
    states = {builder.name_of(state): state for state in sources}
    saved: dict[str, str] = {}
    for name, first in order_state_copies({builder.name_of(s): place for s, place in bases.items()}):
        state = states[name]
        value = sources[state]
        if first:
            # The state is the source of another state's copy but is overwritten before it. So its next contents are saved first.
            kind = builder.graph.types[value]
            saved[state] = builder.make_internal_name(f"{name}_next")
            builder.values[saved[state]] = make_module_value(saved[state], kind, "intermediate", value)
            add_copy(builder, value, saved[state], "state")
        else:
            add_copy(builder, value, name, "state", builder.graph.consts.get(value), origin=saved.get(state, ""))


def _declare_output_value(builder: ModuleBuilder, name: str) -> str:
    """Return the name of the module's value for a graph output.

    For an output that is also an input, a state or a constant, a new value is added to the module.
    """
    value = builder.values[builder.name_of(name)]
    if value.storage == "output":
        return value.name
    copy = builder.make_io_name(f"{value.name}_out")
    builder.values[copy] = replace(value, name=copy, storage="output", data=None)
    return copy


def _add_output_copies(builder: ModuleBuilder) -> None:
    """Add copies to the outputs that are inputs, states or constants of the graph."""
    graph = builder.graph
    for name in graph.outputs:
        value = builder.values[builder.name_of(name)]
        if value.storage != "output":
            add_copy(builder, name, f"{value.name}_out", "output")
        elif name in graph.consts:
            add_copy(builder, name, value.name, "output", constant=graph.consts[name])


def _try_to_replace_by_placement(builder: ModuleBuilder, node: Node) -> bool:
    """Replace a node by the placement of its tensors in memory if the operator and the storage of the tensors allow it.

    Return True if the node was replaced, so that it needs no kernel.
    """
    graph = builder.graph
    if registry.get(node.op).view:
        _add_view(builder, node, 0)
        return True
    alias = builder.kernel_builder.find_alias(node)
    if alias is None:
        return False
    width = dtypes.nbytes(graph.types[node.inputs[0]].dtype)
    if alias.source is not None:
        movable = node.inputs[0] not in graph.consts and node.outputs[0] not in graph.outputs
        if movable:
            _add_view(builder, node, alias.source * width)
        return movable
    return _place_operands_in_result(builder, node, [start * width for start in alias.parts])


def _place_operands_in_result(builder: ModuleBuilder, node: Node, offsets: list[int]) -> bool:
    """Place the operands of a concatenation inside of its result, so that their producers write into the result.

    ``offsets``: the offset in bytes of each operand in the result. Return False if the operands cannot be placed there.
    """
    graph, views = builder.graph, {view.name for view in builder.views}
    fixed = {*graph.inputs, *graph.outputs, *graph.consts, *graph.state, *graph.updates.values()}
    names = [builder.name_of(name) for name in node.inputs]
    bases = {view.base for view in builder.views}
    # A value can be placed only once. So no operand may occur twice, be a view, or be the base of a view.
    if len(set(names)) != len(names) or any(name in views or name in bases for name in names):
        return False
    if any(name in fixed for name in node.inputs):
        return False
    whole = builder.declare_value(node.outputs[0], "intermediate")
    builder.views += [View(name, whole, offset) for name, offset in zip(names, offsets, strict=True)]
    return True


def _add_view(builder: ModuleBuilder, node: Node, offset: int) -> None:
    """Add the result of a node as a view of its operand, ``offset`` bytes after its start.

    If the storages of the two cannot share memory, a copy is added instead.
    """
    graph, source, result = builder.graph, node.inputs[0], node.outputs[0]
    whole = source not in graph.consts and _find_viewed_value(builder, builder.name_of(source))
    fixed = not whole or whole[1] != "intermediate" or builder.values[whole[0]].nbytes != graph.types[result].nbytes
    if not whole or (fixed and result in graph.outputs):
        constant = graph.consts.get(source)
        target = builder.declare_value(result, "output" if result in graph.outputs else "intermediate")
        add_copy(builder, source, target, node.op, constant, str(node.loc))
        return
    name, base = builder.declare_value(result, "intermediate"), builder.name_of(source)
    if result in graph.outputs:  # the operand becomes a view of the output, so that its producer writes into the output
        builder.views.append(View(_find_viewed_value(builder, base)[0], name, 0))
    else:
        builder.views.append(View(name, base, offset))


def _find_viewed_value(builder: ModuleBuilder, name: str) -> tuple[str, str]:
    """Return the name of the value in whose memory a value or view is stored, and the storage of that value."""
    bases = {view.name: view.base for view in builder.views}
    while name in bases:
        name = bases[name]
    return name, builder.values[name].storage
