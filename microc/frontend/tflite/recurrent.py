"""Spelling of TFLite's UNIDIRECTIONAL_SEQUENCE_LSTM: a loop over time whose state lives across calls, as in TFLite Micro.

Cells with peepholes, a projection or coupled gates are in ``tflite_lstm``, of floats.
Of integers, the sums of the gates are int16 with twelve fractional bits, what sigmoid and tanh give has fifteen; the cell has the
scale of its state, a power of two. Source: TFLite Micro ``lstm_eval.h``, ``lstm_eval_common.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from microc.dtypes import Array
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.tflite.application import Application
from microc.frontend.tflite.lstm import float_lstm
from microc.frontend.tflite.sequence import sequence
from microc.frontend.tflite.spelling import Spelling
from microc.graph.ir import Attr, Graph, Quant, TensorType
from microc.ops.rounding import Rounding

_SUMS, _BENT = Quant((2.0**-12,), (0,)), Quant((2.0**-15,), (0,))
_INPUT_WEIGHTS, _RECURRENT_WEIGHTS, _BIASES = (1, 2, 3, 4), (5, 6, 7, 8), (12, 13, 14, 15)
"""Positions of the operands, in the order input, forget, cell, output."""
_VARIANTS, _NORMALISED = (9, 10, 11, 16, 17), (20, 21, 22, 23)
"""Operands of peepholes and projections, and of layer normalisation, which TFLite Micro has not."""
_HIDDEN, _CELL = 18, 19
_TANH = 4
_PLAIN_CELL = "use a plain LSTM cell, which is what TFLite Micro has, or unroll the layer when converting"
_NAMES = ("hidden", "cell", "data")
_WEIGHT_DTYPES = {"float32": ("float32", "int8"), "int8": ("int8",), "int16": ("int8",)}


@dataclass(frozen=True, slots=True)
class _Weights:
    """The four gates' weights as one matrix (4 H, depth), their scales, and the biases as one vector."""

    input: Array
    input_quant: Quant | None
    recurrent: Array
    recurrent_quant: Quant | None
    bias: Array


def lstm(application: Application) -> None:
    """UNIDIRECTIONAL_SEQUENCE_LSTM of floats, or of int8 or int16 data with int8 weights."""
    fields = application.operator.options.fields("UnidirectionalSequenceLSTMOptions", required=True)
    if any(application.has(position) for position in _NORMALISED):
        application.refuse("layer normalisation inside of the cell", _PLAIN_CELL)
    if any(application.has(position) for position in _VARIANTS) or not application.has(_INPUT_WEIGHTS[0]):
        if application.target().type.dtype != "float32":
            application.refuse("integers with peepholes, a projection or coupled gates", _PLAIN_CELL)
        rows = float_lstm(application, fields, sequence(application, fields), 1, (_HIDDEN, _CELL))
        application.result_reshape(rows, application.type(rows).shape)
        return
    if fields.integer("FusedActivationFunction") != _TANH:
        application.refuse(
            f"the activation number {fields.integer('FusedActivationFunction')}", "tanh is what TFLite Micro has"
        )
    data = application.operand(0)
    time_major = bool(fields.integer("TimeMajor"))
    first, second, depth = application.rank(data, 3)
    steps, batch = (first, second) if time_major else (second, first)
    weights = _weights(application, depth)
    units = len(weights.bias) // 4
    states = [_state(application, position, (batch, units)) for position in (_HIDDEN, _CELL)]
    clip = float(np.float32(fields.real("CellClip")))
    dynamic = "asymmetric" if fields.integer("AsymmetricQuantizeInputs") else "symmetric"
    body = _step(application, weights, data, states, 0 if time_major else 1, clip, dynamic)
    attrs: Mapping[str, Attr] = {"body": body, "count": steps, "carried": 2, "guarded": False}
    target = application.target()
    kinds = [application.type(state) for state in states]
    made = [application.builder.file.unique(f"{target.name}_{stem}") for stem in ("hidden", "cell", "rows")]
    application.append("loop", (*states, data), attrs, made, (*kinds, kinds[0]))
    for state, value in zip(states, made, strict=False):
        application.builder.updates[state] = value
    stacked = made[2]
    if not time_major and batch > 1:
        stacked = application.emit("transpose", (stacked,), {"axes": (1, 0, 2)})
    shape = (steps, batch, units) if time_major else (batch, steps, units)
    if (target.type.dtype, target.type.quant) != (kinds[0].dtype, kinds[0].quant):
        application.refuse(
            "an output that is quantised otherwise than the state", "give both one scale, as the converter does"
        )
    application.result_reshape(stacked, shape)


def _weights(application: Application, depth: int) -> _Weights:
    """The operands, checked against each other."""
    dtype = application.target().type.dtype
    units = application.source(_INPUT_WEIGHTS[0]).type.shape[:1]
    joined: list[tuple[Array, Quant | None]] = []
    for positions, columns in ((_INPUT_WEIGHTS, (depth,)), (_RECURRENT_WEIGHTS, units)):
        arrays, scales = [], []
        for position in positions:
            kind = application.source(position).type
            if kind.shape != (*units, *columns) or kind.dtype not in _WEIGHT_DTYPES[dtype]:
                application.refuse(
                    f"weights {kind.dtype} {kind.shape} for {dtype} data of depth {depth}",
                    f"{dtype} cells take {' or '.join(_WEIGHT_DTYPES[dtype])} weights (units, depth)",
                )
            arrays.append(application.constant(position))
            if kind.dtype != "float32":
                if kind.quant is None or kind.quant.axis is not None or any(kind.quant.zero_point):
                    application.refuse(
                        "weights that have no single scale, or a zero point", "quantise each matrix per tensor"
                    )
                scales += [kind.quant.scale[0]] * units[0]
        if len({array.dtype for array in arrays}) > 1:
            application.refuse("weights of float32 and int8 in one cell", "quantise all weights of the layer, or none")
        quant = Quant(tuple(scales), (0,) * len(scales), 0) if scales else None
        joined.append((np.concatenate(arrays), quant))
    biases = []
    for position in _BIASES:
        given = application.constant(position) if application.has(position) else np.zeros(units, np.float32)
        if given.shape != units:
            application.broken(f"a bias of shape {given.shape} for {units} units")
        biases.append(given)
    kinds = {"float32": np.float32, "int8": np.int32, "int16": np.int64}
    bias = np.concatenate(biases).astype(kinds[dtype])
    return _Weights(*joined[0], *joined[1], bias)


def _state(application: Application, position: int, shape: tuple[int, int]) -> str:
    """A variable tensor as state of the graph, (batch, units)."""
    memory, dtype = application.source(position), application.target().type.dtype
    wanted = "int16" if position == _CELL and dtype != "float32" else dtype
    if not memory.variable or memory.type.dtype != wanted or int(np.prod(memory.type.shape)) != shape[0] * shape[1]:
        application.refuse(
            f"the state {memory.name!r}, {memory.type.dtype} {memory.type.shape}",
            f"a variable tensor of {wanted} {shape}",
        )
    if wanted != "float32" and memory.type.quant is None:
        application.refuse(f"the state {memory.name!r} has no quantisation", "give it a scale")
    kind = TensorType(shape, wanted, memory.type.quant)
    return application.builder.define_state(memory.name, kind, None, application.where)


class _Step:
    """The arithmetic of a step: of floats, or of integers with their scales."""

    def __init__(self, body: GraphBuilder, real: bool) -> None:
        self.body, self.real = body, real

    def apply(self, op: str, inputs: Sequence[str], quant: Quant, dtype: str = "int16") -> str:
        """A surface operator whose integer result has a scale."""
        if self.real:
            return self.body.emit(op, inputs, {"rounding": Rounding.NONE})
        return self.body.set_quant(self.body.emit(op, inputs), quant, dtype)

    def weights(self, matrix: Array, quant: Quant | None) -> str:
        """Constant weights; of floats by integers, what these stand for."""
        name = self.body.set_quant(self.body.new_constant("weights", matrix), quant)
        if quant is None or not self.real:
            return name
        attrs: Mapping[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}
        return self.body.emit("dequantize", (name,), attrs)

    def layer(self, inputs: Sequence[str], dynamic: str) -> str:
        """The sums of all gates."""
        if self.real and dynamic:
            return self.body.emit("dense", inputs, {"rounding": Rounding.NONE, "dynamic": dynamic})
        return self.apply("dense", inputs, _SUMS)

    def add(self, a: str, b: str, quant: Quant, limit: float | None = None) -> str:
        """The sum within +- ``limit``; of integers the stored ones, saturated."""
        body = self.body
        if self.real:
            total = body.emit("add", (a, b), {"rounding": Rounding.NONE})
            return total if limit is None else body.emit("clip", (total,), {"minimum": -limit, "maximum": limit})
        wide = [body.emit("cast", (name,), {"dtype": "int32"}) for name in (a, b)]
        total = body.emit("add", wide, {"rounding": Rounding.NONE})
        low, high = (-32768.0, 32767.0) if limit is None else (-limit, limit)
        clipped = body.emit("clip", (total,), {"minimum": low, "maximum": high, "rounding": Rounding.NONE})
        return body.set_quant(body.emit("cast", (clipped,), {"dtype": "int16"}), quant)


def _step(
    application: Application, weights: _Weights, data: str, states: Sequence[str], axis: int, clip: float, dynamic: str
) -> Graph:
    """One turn: hidden and cell of the last step, the whole data; hidden, cell, and the hidden once more as the row.

    Floats by integer weights are dense layers as any others, of floats or (``dynamic``) of rows quantised as they come.
    """
    body = GraphBuilder(application.loc.file)
    body.at(application.loc.index, application.loc.name)
    kinds = [application.type(name) for name in (*states, data)]
    turn = body.input("turn", (), "int32")
    hidden, cell, x = (body.input(n, k.shape, k.dtype, k.quant) for n, k in zip(_NAMES, kinds, strict=True))
    step, (batch, units), cell_quant = _Step(body, kinds[2].dtype == "float32"), kinds[0].shape, kinds[1].quant or _BENT
    now = body.set_quant(body.emit("gather", (x, turn), {"axis": axis}), kinds[2].quant)
    bias = [body.new_constant("bias", weights.bias)] if weights.bias.any() else []
    matrices = [
        step.weights(matrix, quant)
        for matrix, quant in ((weights.input, weights.input_quant), (weights.recurrent, weights.recurrent_quant))
    ]
    sums = (
        step.layer((now, matrices[0], *bias), dynamic if weights.input_quant else ""),
        step.layer((hidden, matrices[1]), dynamic if weights.input_quant else ""),
    )
    total = step.add(*sums, _SUMS)
    gates = []
    for k, function in enumerate(("sigmoid", "sigmoid", "tanh", "sigmoid")):
        part: Mapping[str, Attr] = {"begin": (0, k * units), "end": (batch, (k + 1) * units), "strides": (1, 1)}
        gate = body.set_quant(body.emit("slice", (total,), part), body.type(total).quant)
        gates.append(step.apply(function, (gate,), _BENT))
    kept = step.apply("mul", (gates[1], cell), cell_quant)
    new = step.apply("mul", (gates[0], gates[2]), cell_quant)
    cell_next = step.add(kept, new, cell_quant, _limit(clip, None if step.real else cell_quant.scale[0]))
    bent = step.apply("tanh", (cell_next,), _BENT)
    hidden_next = step.apply("mul", (bent, gates[3]), kinds[0].quant or _BENT, kinds[0].dtype)
    return body.graph("lstm", {"next_hidden": hidden_next, "next_cell": cell_next, "row": hidden_next})


def _limit(clip: float, scale: float | None) -> float | None:
    """What the cell is clipped to, in stored integers where it has a scale."""
    if not clip > 0:
        return None
    return clip if scale is None else float(int(min(clip / scale, 32767.0)))


SPELLINGS: Mapping[str, Spelling] = {
    "UNIDIRECTIONAL_SEQUENCE_LSTM": Spelling(lstm, ("float32", "int8", "int16")),
}
