"""Inputs and outputs as the application wants them: dtype and layout converted by operators at the network's ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType

from microc import dtypes
from microc.dtypes import Array
from microc.errors import UsageError
from microc.frozen import frozen
from microc.graph.ir import Attr, Graph, Node, Quant, TensorType, fresh_name
from microc.ops.rounding import Multiplier, Rounding, Ties
from microc.transform.axes import permuted_type
from microc.transform.layout import CHANNELS_FIRST, CHANNELS_LAST
from microc.transform.preparation import Preparation, framing, normalising
from microc.transform.renaming import with_names

LAYOUTS = ("NCHW", "NHWC")
EVERY = "*"
_DTYPES = (
    *("float32", "float16", "bfloat16", "float64", "int8", "uint8", "int16", "uint16"),
    *("int32", "uint32", "int64", "uint64", "bool"),
)
_NONE: Mapping[str, str] = MappingProxyType({})


@frozen
class Boundary:
    """What inputs and outputs shall be, by name; ``*`` speaks of all others to which it can apply.

    dtypes: for ``*`` the real numbers (floats and quantised tensors). layouts: ``NCHW`` or ``NHWC``; for ``*`` the tensors of
    four axes. preparations: what becomes of an input's raw numbers; their dtype is uint8 where none is given, and images have
    channels last.
    """

    input_dtypes: Mapping[str, str] = field(default_factory=lambda: _NONE)
    output_dtypes: Mapping[str, str] = field(default_factory=lambda: _NONE)
    input_layouts: Mapping[str, str] = field(default_factory=lambda: _NONE)
    output_layouts: Mapping[str, str] = field(default_factory=lambda: _NONE)
    preparations: Mapping[str, Preparation] = field(default_factory=dict)


def adapt(graph: Graph, boundary: Boundary) -> Graph:
    """The graph with operators before its inputs and behind its outputs that make them what ``boundary`` says.

    A quantised tensor can be a float (quantize in front, dequantize behind), or have the other signedness (its zero point
    moves along); a float that is quantised at once, or was just dequantised, can be that integer: the operator goes. Numbers
    without quantisation are cast within floats or within integers. Names stay.

    Raises UsageError for names that are no inputs or outputs, and for what cannot be converted.
    """
    ends: tuple[tuple[str, tuple[str, ...], tuple[Mapping[str, object], ...]], ...] = (
        ("input", graph.inputs, (boundary.input_dtypes, boundary.input_layouts, boundary.preparations)),
        ("output", graph.outputs, (boundary.output_dtypes, boundary.output_layouts)),
    )
    for what, names, wishes in ends:
        for name in sorted({name for wish in wishes for name in wish} - {EVERY, *names}):
            raise UsageError(
                f"the network has no {what} {name!r}", where=graph.name, hint=f"its {what}s are {', '.join(names)}"
            )
    if EVERY in boundary.preparations and len(graph.inputs) != 1:
        raise UsageError(
            f"there are {len(graph.inputs)} inputs, and which of them is prepared is not said", where=graph.name,
            hint=f"name it: --input-normalize {graph.inputs[0]}=127.5 127.5; inputs: {', '.join(graph.inputs)}",
        )  # fmt: skip
    for name in graph.inputs:
        wanted = boundary.preparations.get(name) or boundary.preparations.get(EVERY)
        end = _End(graph, name, "input")
        if wanted:
            dtype = boundary.input_dtypes.get(name) or boundary.input_dtypes.get(EVERY, "uint8")
            layout = boundary.input_layouts.get(name) or boundary.input_layouts.get(EVERY, "")
            graph = end.prepared(wanted, dtype, layout)
        else:
            graph = end.adapted(boundary.input_dtypes, boundary.input_layouts)
    for name in graph.outputs:
        graph = _End(graph, name, "output").adapted(boundary.output_dtypes, boundary.output_layouts)
    return graph


@frozen
class _End:
    """One input or output of a graph."""

    graph: Graph
    name: str
    what: str

    @property
    def kind(self) -> TensorType:
        return self.graph.types[self.name]

    def refusal(self, reason: str, hint: str = "") -> UsageError:
        return UsageError(f"{self.what} {self.name!r} {reason}", where=self.graph.name, hint=hint)

    def adapted(self, wanted_dtypes: Mapping[str, str], wanted_layouts: Mapping[str, str]) -> Graph:
        end, kind = self, self.kind
        layout = wanted_layouts.get(self.name) or (wanted_layouts.get(EVERY) if len(kind.shape) == 4 else None)
        real = kind.quant is not None or dtypes.is_float(kind.dtype)
        dtype = wanted_dtypes.get(self.name) or (wanted_dtypes.get(EVERY) if real else None)
        if dtype is not None:
            self.check_dtype(dtype)
        if dtype is not None and dtypes.is_integer(dtype) and dtypes.is_float(kind.dtype):
            end = replace(end, graph=end.stored())
        if layout is not None:
            end = replace(end, graph=end.in_layout(layout, self.layout))
        return end.graph if dtype is None else end.in_dtype(dtype)

    def check_dtype(self, dtype: str) -> None:
        if dtype not in _DTYPES:
            raise self.refusal(f"cannot be {dtype!r}", "dtypes: " + ", ".join(_DTYPES))

    # ------------------------------------------------------------ preparation

    def prepared(self, wanted: Preparation, dtype: str, layout: str) -> Graph:
        """The graph with what makes this input from raw numbers of ``dtype`` in ``layout`` (empty: images have channels last,
        all else keeps its own)."""
        self.check_dtype(dtype)
        end, rank = self, len(self.kind.shape)
        if wanted.is_image and rank != 4:
            raise self.refusal(f"has {rank} axes and is no image", "only --input-normalize speaks of it")
        own = self.layout
        if not own and wanted.is_image:
            _, first, _, last = self.kind.shape
            own = "NCHW" if first in (1, 3) and last not in (1, 3) else "NHWC"
        layout = layout or ("NHWC" if wanted.is_image else own)
        if layout:
            end = replace(end, graph=end.in_layout(layout, own))
        channels = 1 if layout == "NCHW" and rank in CHANNELS_FIRST else rank - 1
        if wanted.normalize is not None:
            for step in normalising(wanted.normalize, end.kind, channels, dtype, self.refusal):
                end = replace(end, graph=end.behind(step.op, step.attrs, step.outer, step.operands))
        elif dtypes.is_float(end.kind.dtype) and dtype != end.kind.dtype:
            cast = end.behind("cast", {"dtype": end.kind.dtype}, replace(end.kind, dtype=dtype))
            end = replace(end, graph=cast)
        else:
            end = replace(end, graph=end.in_dtype(dtype))
        if wanted.is_image:
            axes = (2, 3, 1) if layout == "NCHW" else (1, 2, 3)
            for step in framing(wanted, end.kind, axes, self.refusal):
                end = replace(end, graph=end.behind(step.op, step.attrs, step.outer, step.operands))
        return end.graph

    # ------------------------------------------------------------ layout

    @property
    def layout(self) -> str:
        """What the network's convolutions and pools say; empty where they say nothing or differ."""
        own = {str(node.attrs["layout"]) for node in self.graph.nodes if "layout" in node.attrs}
        return own.pop() if len(own) == 1 else ""

    def in_layout(self, wanted: str, own: str) -> Graph:
        """The end in a layout; ``own`` is that of the network."""
        if wanted not in LAYOUTS:
            raise self.refusal(f"cannot have the layout {wanted!r}", "layouts: " + ", ".join(LAYOUTS))
        rank = len(self.kind.shape)
        if own == wanted:
            return self.graph
        if rank not in CHANNELS_LAST:
            raise self.refusal(f"has {rank} axes and no layout", "only tensors of three or four axes have one")
        if not own:
            raise self.refusal(
                "has no layout that could be told: the network has no convolutions or pools of one layout"
            )
        first, last = CHANNELS_FIRST[rank], CHANNELS_LAST[rank]
        to_wanted, back = (first, last) if wanted == "NCHW" else (last, first)
        axes: dict[str, Attr] = {"axes": back if self.what == "input" else to_wanted}
        return self.behind("transpose", axes, permuted_type(self.kind, to_wanted))

    # ------------------------------------------------------------ dtype

    def in_dtype(self, wanted: str) -> Graph:
        kind, quant = self.kind, self.kind.quant
        if wanted == kind.dtype:
            return self.graph
        if quant is not None and quant.axis is None and wanted == "float32":
            outer = TensorType(kind.shape, wanted, layout=kind.layout)
            if self.what == "output":
                return self.behind("dequantize", _parameters(quant), outer)
            return self.behind("quantize", self.quantize(kind, Ties.AWAY), outer)
        if quant is not None and quant.axis is None and _is_twin(wanted, kind.dtype):
            moved = quant.zero_point[0] + dtypes.int_range(wanted)[0] - dtypes.int_range(kind.dtype)[0]
            outer = replace(kind, dtype=wanted, quant=Quant(quant.scale, (moved,)))
            return self.behind(
                "quantize", self.quantize(kind if self.what == "input" else outer, Multiplier.DOUBLE), outer
            )
        alike = dtypes.is_float(wanted) == dtypes.is_float(kind.dtype)
        if quant is not None or not alike:
            other = "quantised " if quant is not None else ""
            hint = f"a {other}{kind.dtype} can be " + (
                "float32 or change its sign" if quant else "cast to its like only"
            )
            raise self.refusal(f"is {other}{kind.dtype} and cannot be {wanted}", hint)
        inner = kind.dtype if self.what == "input" else wanted
        return self.behind("cast", {"dtype": inner}, replace(kind, dtype=wanted))

    def quantize(self, target: TensorType, rounding: str) -> dict[str, Attr]:
        """Attributes of the ``quantize`` that makes ``target``; networks that round to even do so here too."""
        assert target.quant is not None
        even = ties_of(self.graph) is Ties.EVEN
        return {**_parameters(target.quant), "out_dtype": target.dtype, "rounding": Ties.EVEN if even else rounding}

    def stored(self) -> Graph:
        """The graph with the integers at this end that the float is quantised to at once, or dequantised from."""
        graph, name = self.graph, self.name
        op, inside = ("quantize", graph.consumers()) if self.what == "input" else ("dequantize", graph.producer())
        found = inside.get(name, ())
        nodes = found if isinstance(found, tuple) else (found,)
        attrs = {(n.op, tuple(n.attrs.items())) for n in nodes}
        values = [n.outputs[0] if self.what == "input" else n.inputs[0] for n in nodes]
        fixed = {*graph.inputs, *graph.outputs, *graph.consts, *graph.state, *graph.updates.values()} - {name}
        read = self.what == "input" and (name in graph.outputs or name in graph.updates.values())
        if len(attrs) != 1 or nodes[0].op != op or len(nodes[0].attr("scale")) != 1 or read or fixed & set(values):
            raise self.refusal(
                f"is {self.kind.dtype}, and no scale is known for integers",
                f"only a float that meets a {op} operator at once can be what is behind it",
            )
        kind = graph.types[values[0]]
        quant = Quant(nodes[0].attr("scale"), nodes[0].attr("zero_point"))
        real = fresh_name(graph.types, f"{name}.real")
        names = {name: real, **dict.fromkeys(values, name)}
        goes = self.what == "input" or name not in graph.consumers()
        kept = tuple(n for n in graph.nodes if not goes or n not in nodes)
        renamed = with_names(replace(graph, nodes=kept), names)
        types = {**renamed.types, name: replace(kind, quant=quant)}
        ends = replace(renamed, inputs=graph.inputs, outputs=graph.outputs, types=types)
        return ends.with_nodes(ends.nodes)

    # ------------------------------------------------------------ edit

    def behind(self, op: str, attrs: Mapping[str, Attr], outer: TensorType, operands: Sequence[Array] = ()) -> Graph:
        """The graph with an operator at this end: the end is ``outer`` and keeps its name, the network's value gets another.
        Of an input, constant ``operands`` follow it."""
        graph, name = self.graph, self.name
        inner = fresh_name(graph.types, f"{name}.inner")
        renamed = with_names(graph, {name: inner})
        types, consts = {**renamed.types, name: outer}, dict(renamed.consts)
        if self.what == "input":
            given = [name]
            for array in operands:
                given.append(fresh_name(types, f"{name}.{op}"))
                types[given[-1]], consts[given[-1]] = TensorType(array.shape, array.dtype.name), array
            nodes = (Node(op, tuple(given), (inner,), attrs, graph.place(name)), *renamed.nodes)
            return replace(renamed, inputs=graph.inputs, types=types, consts=consts, nodes=nodes)
        nodes = (*renamed.nodes, Node(op, (inner,), (name,), attrs, graph.place(name)))
        return replace(renamed, outputs=graph.outputs, types=types, nodes=nodes)


def ties_of(graph: Graph) -> Ties:
    """Where reals in the middle of two integers go in this network, and so at its ends."""
    even = any(node.attrs.get("rounding") == Rounding.EVEN for node in graph.nodes)
    return Ties.EVEN if even else Ties.AWAY


def _parameters(quant: Quant) -> dict[str, Attr]:
    return {"scale": quant.scale, "zero_point": quant.zero_point, "axis": None}


def _is_twin(one: str, other: str) -> bool:
    """Integers of one width, one of them signed."""
    return dtypes.info(one).bits == dtypes.info(other).bits and {dtypes.info(one).kind, dtypes.info(other).kind} == {
        "int",
        "uint",
    }
