"""LSTM cells of floats with everything that LiteRT's have but layer normalisation, in one direction or both.

    i = sigmoid(Wi x + Ri h + pi c + bi)        f = sigmoid(Wf x + Rf h + pf c + bf)        g = a(Wg x + Rg h + bg)
    c' = clip(f c + i g)                        o = sigmoid(Wo x + Ro h + po c' + bo)       h' = clip(P (o a(c')) + q)

Without weights of the input gate i = 1 - f; p (peepholes) and P (a projection) are optional. Hidden and cell live across calls.
Weights are floats, or bytes that are widened (``--hybrid dynamic`` quantises rows instead). Source: LiteRT ``lstm_eval.cc``,
``bidirectional_sequence_lstm.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.tflite.application import Application
from microc.frontend.tflite.options import Fields
from microc.frontend.tflite.sequence import Sequence, both, sequence
from microc.frontend.tflite.spelling import FLOAT, Spelling, activation
from microc.graph.ir import Attr, Graph, TensorType
from microc.ops.rounding import Rounding
from microc.ops.surface import ACTIVATIONS

_INPUT, _RECURRENT, _PEEPHOLES, _BIASES, _PROJECTION, _PROJECTION_BIAS = 0, 4, 8, 11, 15, 16
"""Operands of a cell, from its first on: four each in the order input, forget, cell, output; peepholes have no cell's."""
_AUXILIARY = range(39, 48)


def bidirectional_lstm(application: Application) -> None:
    """BIDIRECTIONAL_SEQUENCE_LSTM: two layers, one of which begins with the last step."""
    fields = application.operator.options.fields("BidirectionalSequenceLSTMOptions", required=True)
    if any(application.has(position) for position in _AUXILIARY):
        application.refuse("a second input", "join it to the first one")
    data = sequence(application, fields)
    rows = (
        float_lstm(application, fields, data, 1, (35, 36)),
        float_lstm(application, fields, data.turned(application), 18, (37, 38)),
    )
    both(application, fields, rows)


def float_lstm(application: Application, fields: Fields, data: Sequence, first: int, states: tuple[int, int]) -> str:
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
    data: Sequence
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
        sums = [self.dense(body, now, _INPUT, self.data.depth, self.vector(body, _BIASES))]
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


SPELLINGS: Mapping[str, Spelling] = {"BIDIRECTIONAL_SEQUENCE_LSTM": Spelling(bidirectional_lstm, FLOAT)}
