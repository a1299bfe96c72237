"""What comments of the printed C say: a kernel's operators and schedule, and what each block of its loops computes."""

from __future__ import annotations

from collections.abc import Iterator

from microc import te
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.lowering import LoweredGroup
from microc.schedule.schedule import Schedule
from microc.schedule.step import Step
from microc.tir.ir import Var

_TITLES = {"padded": "pad", "patch": "im2col", "acc": "accumulate"}
"""What the blocks of products are called where people write them by hand, by the tensor that they make."""
_LONGEST = 240
"""Letters of a formula that helps."""


def kind_of(graph: Graph, node: Node) -> str:
    """What people call an operator; convolutions by what they do."""
    if node.op != "conv2d":
        return node.op
    _, height, width, depth = graph.types[node.inputs[1]].shape
    if node.attrs.get("groups", 1) != 1:
        return "depthwise_conv2d" if depth == 1 else "grouped_conv2d"
    return "pointwise_conv2d" if height == width == 1 else node.op


def kernel_comment(
    graph: Graph, nodes: tuple[Node, ...], schedule: Schedule, tensors: tuple[te.Tensor, ...] = ()
) -> tuple[str, ...]:
    """What a kernel computes, of which shapes, how its loops were made, and what in them a reader would not expect.
    ``tensors``: what it was made of."""

    def spell(name: str) -> str:
        kind = graph.types[name]
        return "x".join(map(str, kind.shape)) + f" {kind.dtype}"

    inputs = ", ".join(spell(i) for node in nodes[:1] for i in node.inputs[:2] if i)
    result = spell(nodes[-1].outputs[0])
    made = te.stages(tensors)
    remarks = (remark for step in schedule.trace for remark in _remarks(step, made))
    return (
        f"{' + '.join(kind_of(graph, node) for node in nodes)}: {inputs} -> {result}",
        f"schedule: {describe(schedule.trace) or 'as written'}",
        *remarks,
    )


def _remarks(step: Step, tensors: tuple[te.Tensor, ...]) -> Iterator[str]:
    match step.primitive, step.args:
        case "double_reduction", (total, constant):
            yield f"{total} is twice the sum, as high products take it: {constant} is stored doubled"
        case "defer_init", (total,):
            yield f"{total} sums products alone: what it starts from is added where it is read"
        case "compile_with", (flags,):
            yield f"options of gcc for this kernel, by measurement: {flags}"
        case "tensorize_pairs", (constant, *_):
            yield f"{constant} holds two rows in one, even + 256 odd; of their sums, odd = (both - even) >> 8"
        case "transform_layout", (name, factors, order) if all(len(f) == 1 for f in factors):
            axes = _axes(str(name), tensors)
            if axes and list(order) != sorted(order):
                yield f"{name} is stored as {name}({', '.join(axes[k] for k in order)})"
        case _:
            pass


def _axes(name: str, tensors: tuple[te.Tensor, ...]) -> tuple[str, ...]:
    """What formulas call the axes of a tensor; nothing where they only compute with them."""
    for tensor in tensors:
        if isinstance(tensor.definition, te.ComputeDef):
            if tensor.name == name:
                return tuple(var.name for var in tensor.definition.axes)
            for read in te.tensor_reads(tensor.definition.body):
                if read.tensor.name == name and all(isinstance(i, Var) for i in read.indices):
                    return tuple(i.name for i in read.indices if isinstance(i, Var))
    return ()


def describe(trace: tuple[Step, ...]) -> str:
    """A schedule in a line: the steps that shape the loops, without bookkeeping."""
    shown = ("split", "fuse", "reorder", "compute_at", "tensorize", "cache_read", "cache_write")
    return " ".join(str(step) for step in trace if step.primitive in shown)


def block_comments(group: LoweredGroup, nodes: tuple[Node, ...]) -> tuple[tuple[str, str], ...]:
    """What every tensor that a kernel makes is, by its name: a title where there is one, and the formula. Elementwise work, the
    epilogue of an anchor, is told by its operators."""
    behind = nodes if registry.get(nodes[0].op).elementwise else nodes[1:]
    results = {id(tensor) for tensor in group.tensors}
    comments: list[tuple[str, str]] = []
    for tensor in te.stages(group.tensors):
        if not isinstance(tensor.definition, te.ComputeDef):
            continue
        title, formula = _TITLES.get(tensor.name, ""), te.formula(tensor)
        if behind and id(tensor) in results:
            text = "; ".join(_epilogue(behind, comments[-1][0] if comments else "x"))
        elif len(formula) > _LONGEST:
            text = title or tensor.name
        else:
            text = f"{title}: {formula}" if title else formula
        comments.append((tensor.name, text))
    return tuple(comments)


def _epilogue(nodes: tuple[Node, ...], start: str) -> Iterator[str]:
    """Operators with their formulas; ``start``: what the first is applied to."""
    for node in nodes:
        formula = registry.get(node.op).formula
        shown = {name: name if value is None else value for name, value in node.attrs.items()}
        shown["x"] = start if node is nodes[0] else "x"
        yield f"{node.op}: {formula.format(**shown)}" if formula else node.op
