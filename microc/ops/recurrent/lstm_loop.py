"""An ``lstm`` as a loop over time, whose turns are dense layers and elementwise work.

Of integers, the sums of the gates are int16 with twelve fractional bits, what sigmoid and tanh give has fifteen; the cell has the
scale of its state. Products and sums are saturated one by one. Source: TFLite Micro ``lstm_eval.h``, ``lstm_eval_common.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from microc.errors import UnsupportedError
from microc.graph.ir import Attr, Graph, Node, Quant, TensorType
from microc.ops.arith import Rewrite
from microc.ops.recurrent.turn import Turn
from microc.ops.registry import Legalized
from microc.ops.rounding import Rounding

_SUMS, _BENT = Quant((2.0**-12,), (0,)), Quant((2.0**-15,), (0,))
_FUNCTIONS = ("sigmoid", "sigmoid", "tanh", "sigmoid")
"""Of the gates, in their order: input, forget, cell, output."""


def as_loop(node: Node, graph: Graph) -> Legalized:
    """Loop, and what puts the rows in the order of the data. UnsupportedError where weights are computed."""
    rewrite = Rewrite(node, graph)
    data, _, _, hidden, cell, *_ = node.inputs
    if computed := [name for name in (*node.inputs[1:3], *node.inputs[5:]) if name and name not in graph.consts]:
        raise UnsupportedError(
            f"an LSTM whose {computed[0]!r} is computed", where=str(node.loc), hint="make weights and bias constants"
        )
    time_major, (batch, units) = bool(node.attr("time_major")), graph.types[hidden].shape
    shape = graph.types[data].shape
    steps = shape[0 if time_major else 1]
    attrs: Mapping[str, Attr] = {"body": _turn(node, graph), "count": steps, "carried": 2, "guarded": False}
    rows, last, state = node.outputs
    kind = graph.types[hidden]
    stacked = rewrite.value("rows", (steps, batch, units), kind.dtype, kind.quant)
    rewrite.emit("loop", (hidden, cell, data), (last, state, stacked), attrs)
    if time_major or batch == 1:
        rewrite.emit("reshape", (stacked,), rows, {"shape": graph.types[rows].shape})
    else:
        rewrite.emit("transpose", (stacked,), rows, {"axes": (1, 0, 2)})
    return rewrite.legalized()


def _turn(node: Node, graph: Graph) -> Graph:
    """Hidden and cell of the last step, the whole data; hidden, cell, and the hidden once more as the row.

    Floats by integer weights are dense layers as any others, of floats or (``dynamic``) of rows quantised as they come.
    """
    kinds = [graph.types[name] for name in node.inputs]
    body = Turn(node.loc)
    turn = body.input("turn", TensorType((), "int32"))
    hidden, cell, x = (body.input(name, kinds[k]) for name, k in (("hidden", 3), ("cell", 4), ("data", 0)))
    step = _Step(body, kinds[0].dtype == "float32", str(node.attr("rounding")), str(node.attrs.get("dynamic", "")))
    (batch, units), of_cell = kinds[3].shape, kinds[4].quant or _BENT
    now = body.emit("gather", (x, turn), kinds[0].quant, axis=0 if node.attr("time_major") else 1)
    bias = [body.constant("bias", graph.consts[name]) for name in node.inputs[5:] if name]
    matrices = [step.weights(graph, name) for name in node.inputs[1:3]]
    total = step.add(step.layer(now, matrices[0], *bias), step.layer(hidden, matrices[1]), _SUMS)
    gates = []
    for k, function in enumerate(_FUNCTIONS):
        begin, end = (0, k * units), (batch, (k + 1) * units)
        gate = body.emit("slice", (total,), body.types[total].quant, begin=begin, end=end, strides=(1, 1))
        gates.append(step.apply(function, (gate,), _BENT))
    kept = step.apply("mul", (gates[1], cell), of_cell)
    new = step.apply("mul", (gates[0], gates[2]), of_cell)
    cell = step.add(kept, new, of_cell, step.limit(float(node.attr("cell_clip")), of_cell))
    bent = step.apply("tanh", (cell,), _BENT)
    hidden = step.apply("mul", (bent, gates[3]), kinds[3].quant or _BENT, kinds[3].dtype)
    return body.graph("lstm", {"next_hidden": hidden, "next_cell": cell, "row": hidden})


class _Step:
    """The arithmetic of a step: of floats, or of integers with their scales."""

    def __init__(self, body: Turn, real: bool, rounding: str, dynamic: str) -> None:
        self.body, self.real, self.rounding, self.dynamic = body, real, Rounding.NONE if real else rounding, dynamic

    def apply(self, op: str, inputs: Sequence[str], quant: Quant, dtype: str = "int16") -> str:
        """A surface operator whose integer result has a scale."""
        if self.real:
            return self.body.emit(op, inputs, rounding=Rounding.NONE)
        return self.body.emit(op, inputs, quant, dtype, rounding=self.rounding)

    def weights(self, graph: Graph, name: str) -> str:
        """Constant weights; of floats by integers, what these stand for."""
        quant = graph.types[name].quant
        made = self.body.constant("weights", graph.consts[name], quant)
        if quant is None or not self.real:
            return made
        return self.body.emit("dequantize", (made,), scale=quant.scale, zero_point=quant.zero_point, axis=quant.axis)

    def layer(self, *inputs: str) -> str:
        """The sums of all gates."""
        if self.dynamic:
            return self.body.emit("dense", inputs, rounding=Rounding.NONE, dynamic=self.dynamic)
        return self.apply("dense", inputs, _SUMS)

    def add(self, a: str, b: str, quant: Quant, limit: float | None = None) -> str:
        """The sum within +- ``limit``; of integers the stored ones, saturated."""
        body = self.body
        if self.real:
            total = body.emit("add", (a, b), rounding=Rounding.NONE)
            return total if limit is None else body.emit("clip", (total,), minimum=-limit, maximum=limit)
        wide = [body.emit("cast", (name,), dtype="int32") for name in (a, b)]
        total = body.emit("add", wide, rounding=Rounding.NONE)
        low, high = (-32768.0, 32767.0) if limit is None else (-limit, limit)
        clipped = body.emit("clip", (total,), minimum=low, maximum=high, rounding=Rounding.NONE)
        return body.emit("cast", (clipped,), quant, dtype="int16")

    def limit(self, clip: float, of_cell: Quant) -> float | None:
        """What the cell is held within, in stored integers where it has a scale."""
        if not clip > 0:
            return None
        return clip if self.real else float(int(min(clip / of_cell.scale[0], 32767.0)))
