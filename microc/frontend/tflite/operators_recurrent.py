"""TFLite recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.tflite.context import FLOAT, Application, Spelling, activation
from microc.frontend.tflite.options import Fields
from microc.graph.ir import Attr, Graph, Quant, TensorType
from microc.ops.arithmetic import ACTIVATIONS
from microc.ops.attributes import Rounding

# ---- What TFLite's layers over time have in common: data, forwards or backwards, and results in the order of time.


@frozen
class SequenceLayer:
    """The data of a layer, (batch, steps, depth) or time first; ``axis`` is that of time. ``backwards``: the last step of the
    network's comes first."""

    data: str
    axis: int
    steps: int
    batch: int
    depth: int
    backwards: bool = False

    def turned(self, application: Application) -> SequenceLayer:
        """The same from its last step on."""
        data = application.emit("reverse", (self.data,), {"axes": (self.axis,)})
        return replace(self, data=data, backwards=not self.backwards)

    def in_time(self, application: Application, rows: str) -> str:
        """The rows of all turns, (steps, batch, units), as the data lie."""
        if self.backwards:
            rows = application.emit("reverse", (rows,), {"axes": (0,)})
        return application.emit("transpose", (rows,), {"axes": (1, 0, 2)}) if self.axis else rows


def sequence(application: Application, fields: Fields) -> SequenceLayer:
    """The first operand, a sequence."""
    data, axis = application.operand(0), 0 if fields.integer("TimeMajor") else 1
    shape = application.rank(data, 3)
    return SequenceLayer(data, axis, shape[axis], shape[1 - axis], shape[2])


def both(application: Application, fields: Fields, rows: tuple[str, str]) -> None:
    """The results of both directions: one behind the other along the last axis, or two outputs."""
    if fields.integer("MergeOutputs"):
        application.result("concat", rows, {"axis": 2, "rounding": Rounding.NONE})
        return
    for position, name in enumerate(rows):
        application.result_reshape(name, application.type(name).shape, position)


# ---- Spellings of TFLite's plain recurrent cells: h = f(W x + R h + b), where h lives across calls.
#
# RNN takes a step, UNIDIRECTIONAL_SEQUENCE_RNN a sequence, BIDIRECTIONAL_SEQUENCE_RNN one both ways. Weights are floats, or bytes
# that are widened (``--hybrid dynamic`` quantises rows instead). Sources: LiteRT ``basic_rnn.cc`` and
# ``bidirectional_sequence_rnn.cc``.


def rnn(application: Application) -> None:
    """RNN: one step of data (batch, depth)."""
    fields = application.operator.options.fields("RNNOptions", required=True)
    data = application.operand(0)
    batch, depth = application.rank(data, 2)
    rows = _recur(
        application, fields, SequenceLayer(application.reshaped(data, (1, batch, depth)), 0, 1, batch, depth), 1
    )
    application.result_reshape(rows, (batch, application.type(rows).shape[2]))


def sequence_rnn(application: Application) -> None:
    """UNIDIRECTIONAL_SEQUENCE_RNN: data (batch, time, depth), or time first."""
    fields = application.operator.options.fields("SequenceRNNOptions", required=True)
    rows = _recur(application, fields, sequence(application, fields), 1)
    application.result_reshape(rows, application.type(rows).shape)


def bidirectional_rnn(application: Application) -> None:
    """BIDIRECTIONAL_SEQUENCE_RNN: two layers, one of which begins with the last step."""
    fields = application.operator.options.fields("BidirectionalSequenceRNNOptions", required=True)
    if any(application.has(position) for position in _RNN_AUXILIARY):
        application.refuse("a second input", "join it to the first one")
    data = sequence(application, fields)
    forwards = _recur(application, fields, data, 1)
    both(application, fields, (forwards, _recur(application, fields, data.turned(application), 5)))


_RNN_AUXILIARY = (9, 10, 11)


def _recur(application: Application, fields: Fields, data: SequenceLayer, first: int) -> str:
    """A loop over time whose turns stack their states; weights, recurrent weights, bias, state are operands from ``first`` on."""
    memory, units = application.source(first + 3), application.source(first).type.shape[0]
    if not memory.variable or memory.type.dtype != "float32" or memory.type.size != data.batch * units:
        wanted = f"a variable tensor of float32 {(data.batch, units)}"
        application.refuse(f"the state {memory.name!r}, {memory.type.dtype} {memory.type.shape}", wanted)
    state = application.builder.define_state(
        memory.name, TensorType((data.batch, units), "float32"), None, application.where
    )
    body = _step(application, fields, data, units, first)
    attrs: Mapping[str, Attr] = {"body": body, "count": data.steps, "carried": 1, "guarded": False}
    names = [application.builder.file.unique(f"{state}_{stem}") for stem in ("hidden", "rows")]
    kinds = application.inferred("loop", (state, data.data), attrs)
    application.append("loop", (state, data.data), attrs, names, kinds)
    application.builder.updates[state] = names[0]
    return data.in_time(application, names[1])


def _step(application: Application, fields: Fields, data: SequenceLayer, units: int, first: int) -> Graph:
    """One turn: the state and all data; the next state, and once more as the row."""
    body = GraphBuilder(application.loc.file)
    body.at(application.loc.index, application.loc.name)
    turn, hidden = body.input("turn", (), "int32"), body.input("hidden", (data.batch, units))
    now = body.emit("gather", (body.input("data", application.type(data.data).shape), turn), {"axis": data.axis})
    bias = body.new_constant("bias", application.constant(first + 2).reshape(-1))
    sums = []
    for position, operand, depth in ((first, now, data.depth), (first + 1, hidden, units)):
        weight, attrs = _rnn_weights(
            application, body, position, (units, depth), bool(fields.integer("AsymmetricQuantizeInputs"))
        )
        sums.append(
            body.emit(
                "dense",
                (operand, weight, *((bias,) if position == first else ())),
                {"rounding": Rounding.NONE, **attrs},
            )
        )
    total = body.emit("add", sums, {"rounding": Rounding.NONE})
    name = activation(application, fields.integer("FusedActivationFunction"))
    if name:
        op, attrs = ACTIVATIONS[name]
        total = body.emit(op, (total,), attrs)
    return body.graph("rnn", {"next_hidden": total, "row": total})


def _rnn_weights(
    application: Application, body: GraphBuilder, position: int, shape: tuple[int, int], asymmetric: bool
) -> tuple[str, Mapping[str, Attr]]:
    """Constant weights, and what the layer says of them."""
    kind, values = application.source(position).type, application.constant(position)
    if kind.shape != shape or kind.dtype not in ("float32", "int8") or (kind.dtype == "int8" and kind.quant is None):
        application.refuse(f"weights {kind.dtype} {kind.shape}", f"float32 {shape}, or int8 with a scale")
    name = body.set_quant(body.new_constant("weights", np.ascontiguousarray(values)), kind.quant)
    if kind.quant is None or kind.dtype == "float32":
        return name, {}
    attrs: Mapping[str, Attr] = {
        "scale": kind.quant.scale,
        "zero_point": kind.quant.zero_point,
        "axis": kind.quant.axis,
    }
    return body.emit("dequantize", (name,), attrs), {"dynamic": "asymmetric" if asymmetric else "symmetric"}


RNN_SPELLINGS: Mapping[str, Spelling] = {
    "BIDIRECTIONAL_SEQUENCE_RNN": Spelling(bidirectional_rnn, FLOAT),
    "RNN": Spelling(rnn, FLOAT),
    "UNIDIRECTIONAL_SEQUENCE_RNN": Spelling(sequence_rnn, FLOAT),
}


# ---- LSTM cells of floats with everything that LiteRT's have but layer normalisation, in one direction or both.
#
#     i = sigmoid(Wi x + Ri h + pi c + bi)        f = sigmoid(Wf x + Rf h + pf c + bf)        g = a(Wg x + Rg h + bg)
#     c' = clip(f c + i g)                        o = sigmoid(Wo x + Ro h + po c' + bo)       h' = clip(P (o a(c')) + q)
#
# Without weights of the input gate i = 1 - f; p (peepholes) and P (a projection) are optional. Hidden and cell live across calls.
# Weights are floats, or bytes that are widened (``--hybrid dynamic`` quantises rows instead). Source: LiteRT ``lstm_eval.cc``,
# ``bidirectional_sequence_lstm.cc``.

_INPUT, _RECURRENT, _PEEPHOLES, _LSTM_BIASES, _PROJECTION, _PROJECTION_BIAS = 0, 4, 8, 11, 15, 16
"""Operands of a cell, from its first on: four each in the order input, forget, cell, output; peepholes have no cell's."""
_LSTM_AUXILIARY = range(39, 48)


def bidirectional_lstm(application: Application) -> None:
    """BIDIRECTIONAL_SEQUENCE_LSTM: two layers, one of which begins with the last step."""
    fields = application.operator.options.fields("BidirectionalSequenceLSTMOptions", required=True)
    if any(application.has(position) for position in _LSTM_AUXILIARY):
        application.refuse("a second input", "join it to the first one")
    data = sequence(application, fields)
    rows = (
        float_lstm(application, fields, data, 1, (35, 36)),
        float_lstm(application, fields, data.turned(application), 18, (37, 38)),
    )
    both(application, fields, rows)


def float_lstm(
    application: Application, fields: Fields, data: SequenceLayer, first: int, states: tuple[int, int]
) -> str:
    """What a layer gives, in the order of time. Its operands begin at ``first``; ``states``: positions of hidden and cell."""
    cell = _Cell(application, fields, data, first)
    kinds = [TensorType((data.batch, extent), "float32") for extent in (cell.outputs, cell.units)]
    held = []
    for position, kind in zip(states, kinds, strict=True):
        memory = application.source(position)
        if not memory.variable or memory.type.dtype != "float32" or memory.type.size != kind.size:
            what = f"the state {memory.name!r}, {memory.type.dtype} {memory.type.shape}"
            application.refuse(what, f"a variable tensor of float32 {kind.shape}")
        held.append(application.builder.define_state(memory.name, kind, None, application.where))
    attrs: Mapping[str, Attr] = {"body": cell.body(), "count": data.steps, "carried": 2, "guarded": False}
    names = [application.builder.file.unique(f"{held[0]}_{stem}") for stem in ("hidden", "cell", "rows")]
    application.append("loop", (*held, data.data), attrs, names, (*kinds, kinds[0]))
    application.builder.updates |= dict(zip(held, names, strict=False))
    return data.in_time(application, names[2])


@dataclass(slots=True)
class _Cell:
    """The operands of a cell, and its arithmetic."""

    application: Application
    fields: Fields
    data: SequenceLayer
    first: int

    @property
    def units(self) -> int:
        return self.application.source(self.first + _INPUT + 1).type.shape[0]

    @property
    def outputs(self) -> int:
        projected = self.has(_PROJECTION)
        return self.application.source(self.first + _PROJECTION).type.shape[0] if projected else self.units

    @property
    def gates(self) -> tuple[int, ...]:
        """Those with weights of their own."""
        return (0, 1, 2, 3) if self.has(_INPUT) else (1, 2, 3)

    def has(self, offset: int) -> bool:
        return self.application.has(self.first + offset)

    def body(self) -> Graph:
        """One turn: hidden and cell of the last step, all data; hidden, cell, and the hidden once more as the row."""
        body = GraphBuilder(self.application.loc.file)
        body.at(self.application.loc.index, self.application.loc.name)
        turn = body.input("turn", (), "int32")
        hidden, cell = (
            body.input("hidden", (self.data.batch, self.outputs)),
            body.input("cell", (self.data.batch, self.units)),
        )
        whole = body.input("data", self.application.type(self.data.data).shape)
        now = body.emit("gather", (whole, turn), {"axis": self.data.axis})
        sums = [self.dense(body, now, _INPUT, self.data.depth, self.vector(body, _LSTM_BIASES))]
        sums.append(self.dense(body, hidden, _RECURRENT, self.outputs, ()))
        total = body.emit("add", sums, {"rounding": Rounding.NONE})
        parts = {}
        for k, gate in enumerate(self.gates):
            begin, end = k * self.units, (k + 1) * self.units
            span: Mapping[str, Attr] = {"begin": (0, begin), "end": (self.data.batch, end), "strides": (1, 1)}
            parts[gate] = body.emit("slice", (total,), span)
        forget = self.opened(body, parts[1], 1, cell)
        if 0 in parts:
            keep = self.opened(body, parts[0], 0, cell)
        else:
            keep = body.emit(
                "sub", (body.new_constant("one", np.ones(1, np.float32)), forget), {"rounding": Rounding.NONE}
            )
        kept = body.emit("mul", (forget, cell), {"rounding": Rounding.NONE})
        new = body.emit("mul", (keep, self.bent(body, parts[2])), {"rounding": Rounding.NONE})
        cell = self.clipped(body, body.emit("add", (kept, new), {"rounding": Rounding.NONE}), "CellClip")
        out = body.emit(
            "mul", (self.opened(body, parts[3], 2, cell), self.bent(body, cell)), {"rounding": Rounding.NONE}
        )
        if self.has(_PROJECTION):
            bias = (self.constant(body, _PROJECTION_BIAS, (self.outputs,)),) if self.has(_PROJECTION_BIAS) else ()
            out = self.clipped(body, self.dense(body, out, _PROJECTION, self.units, bias), "ProjClip")
        return body.graph("lstm", {"next_hidden": out, "next_cell": cell, "row": out})

    # ------------------------------------------------------------ arithmetic

    def opened(self, body: GraphBuilder, total: str, peephole: int, cell: str) -> str:
        """A gate, which may look at the cell."""
        if self.has(_PEEPHOLES + peephole):
            seen = body.emit(
                "mul", (self.constant(body, _PEEPHOLES + peephole, (self.units,)), cell), {"rounding": Rounding.NONE}
            )
            total = body.emit("add", (total, seen), {"rounding": Rounding.NONE})
        return body.emit("sigmoid", (total,), {"rounding": Rounding.NONE})

    def bent(self, body: GraphBuilder, value: str) -> str:
        name = activation(self.application, self.fields.integer("FusedActivationFunction"))
        return body.emit(ACTIVATIONS[name][0], (value,), ACTIVATIONS[name][1]) if name else value

    def clipped(self, body: GraphBuilder, value: str, field: str) -> str:
        limit = float(np.float32(self.fields.real(field)))
        return body.emit("clip", (value,), {"minimum": -limit, "maximum": limit}) if limit > 0 else value

    def dense(self, body: GraphBuilder, value: str, offset: int, depth: int, bias: tuple[str, ...]) -> str:
        """The products of all gates in one layer, or the projection."""
        projection = offset == _PROJECTION
        offsets = (offset,) if projection else tuple(offset + gate for gate in self.gates)
        rows = self.outputs if projection else self.units
        kinds = [self.application.source(self.first + k).type for k in offsets]
        integers = kinds[0].dtype == "int8"
        fits = all(k.shape == (rows, depth) and k.dtype in ("float32", "int8") for k in kinds)
        scaled = all(k.quant is not None and k.quant.axis is None and not any(k.quant.zero_point) for k in kinds)
        if not fits or len({k.dtype for k in kinds}) > 1 or (integers and not scaled):
            given = ", ".join(f"{k.dtype} {k.shape}" for k in kinds)
            self.application.refuse(f"weights {given}", f"float32 {(rows, depth)}, or int8 with one scale")
        matrix = np.concatenate([self.application.constant(self.first + k) for k in offsets])
        weights, attrs = body.new_constant("weights", matrix), dict[str, Attr]()
        if integers:
            scales = tuple(k.quant.scale[0] for k in kinds if k.quant is not None for _ in range(rows))
            whole: Mapping[str, Attr] = {"scale": scales, "zero_point": (0,) * len(scales), "axis": 0}
            weights = body.emit("dequantize", (weights,), whole)
            attrs["dynamic"] = "asymmetric" if self.fields.integer("AsymmetricQuantizeInputs") else "symmetric"
        return body.emit("dense", (value, weights, *bias), {"rounding": Rounding.NONE, **attrs})

    def vector(self, body: GraphBuilder, offset: int) -> tuple[str, ...]:
        """The biases of all gates."""
        given = [self.application.constant(self.first + offset + gate) for gate in self.gates]
        if any(bias.shape != (self.units,) for bias in given):
            self.application.broken(f"biases of shapes {[bias.shape for bias in given]} for {self.units} units")
        return (body.new_constant("bias", np.concatenate(given)),)

    def constant(self, body: GraphBuilder, offset: int, shape: tuple[int, ...]) -> str:
        """A constant vector; of integers what these stand for."""
        kind, values = self.application.source(self.first + offset).type, self.application.constant(self.first + offset)
        if values.shape != shape or (kind.dtype != "float32" and kind.quant is None):
            self.application.broken(f"{kind.dtype} {values.shape} where float32 {shape} is expected")
        if kind.quant is not None and kind.dtype != "float32":
            values = (values.astype(np.float32) - np.float32(kind.quant.zero_point[0])) * np.float32(
                kind.quant.scale[0]
            )
        return body.new_constant("vector", np.ascontiguousarray(values, np.float32))


LSTM_SPELLINGS: Mapping[str, Spelling] = {"BIDIRECTIONAL_SEQUENCE_LSTM": Spelling(bidirectional_lstm, FLOAT)}


# ---- Spelling of TFLite's UNIDIRECTIONAL_SEQUENCE_LSTM, whose state lives across calls, as in TFLite Micro.
#
# Cells with peepholes, a projection or coupled gates are in ``lstm.py``, of floats. What a plain cell computes is the operator's
# business (``ops/recurrent/lstm.py``). Source: TFLite Micro ``lstm_eval.h``, ``lstm_eval_common.cc``.

_INPUT_WEIGHTS, _RECURRENT_WEIGHTS, _RECURRENT_BIASES = (1, 2, 3, 4), (5, 6, 7, 8), (12, 13, 14, 15)
"""Positions of the operands, in the order input, forget, cell, output."""
_VARIANTS, _NORMALISED = (9, 10, 11, 16, 17), (20, 21, 22, 23)
"""Operands of peepholes and projections, and of layer normalisation, which TFLite Micro has not."""
_HIDDEN, _CELL = 18, 19
_TANH = 4
_PLAIN_CELL = "use a plain LSTM cell, which is what TFLite Micro has, or unroll the layer when converting"
_WEIGHT_DTYPES = {"float32": ("float32", "int8"), "int8": ("int8",), "int16": ("int8",)}


@frozen
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
    time_major, (first, second, depth) = bool(fields.integer("TimeMajor")), application.rank(application.operand(0), 3)
    batch = second if time_major else first
    weights = _weights(application, depth)
    units = len(weights.bias) // 4
    states = [_state(application, position, (batch, units)) for position in (_HIDDEN, _CELL)]
    _emit(application, fields, weights, states)


def _emit(application: Application, fields: Fields, weights: _Weights, states: Sequence[str]) -> None:
    """The ``lstm`` node, what the states hold next, and the operator's output."""
    target, data, builder = application.target(), application.operand(0), application.builder
    kind = application.type(states[0])
    if (target.type.dtype, target.type.quant) != (kind.dtype, kind.quant):
        application.refuse(
            "an output that is quantised otherwise than the state", "give both one scale, as the converter does"
        )
    matrices = ((weights.input, weights.input_quant), (weights.recurrent, weights.recurrent_quant))
    operands = [builder.constant(builder.file.unique(f"{target.name}_weights"), *each) for each in matrices]
    operands = [data, *operands, *states]
    if weights.bias.any():
        operands.append(builder.constant(builder.file.unique(f"{target.name}_bias"), weights.bias, None))
    attrs: dict[str, Attr] = {
        "time_major": bool(fields.integer("TimeMajor")),
        "cell_clip": float(np.float32(fields.real("CellClip"))),
    }
    if kind.dtype == "float32" and weights.input_quant is not None:
        attrs["dynamic"] = "asymmetric" if fields.integer("AsymmetricQuantizeInputs") else "symmetric"
    made = [builder.file.unique(f"{target.name}_{stem}") for stem in ("hidden", "cell")]
    application.append("lstm", operands, attrs, (target.name, *made), (target.type, *map(application.type, states)))
    application.compare(target)
    builder.updates |= dict(zip(states, made, strict=True))


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
    for position in _RECURRENT_BIASES:
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


RECURRENT_SPELLINGS: Mapping[str, Spelling] = {
    "UNIDIRECTIONAL_SEQUENCE_LSTM": Spelling(lstm, ("float32", "int8", "int16")),
}
