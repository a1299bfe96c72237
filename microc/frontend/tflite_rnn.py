"""Spellings of TFLite's plain recurrent cells, RNN and UNIDIRECTIONAL_SEQUENCE_RNN: h = f(W x + R h + b), h lives across calls.

Weights are floats, or bytes that are widened (``--hybrid dynamic`` quantises rows instead). Source: LiteRT ``basic_rnn.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.frontend.tflite_application import Application
from microc.frontend.tflite_options import Fields
from microc.frontend.tflite_spelling import FLOAT, Spelling, activation
from microc.frontend.writer import GraphWriter
from microc.graph.ir import Attr, Graph, TensorType
from microc.ops.surface import ACTIVATIONS

_HIDDEN = 4


def rnn(application: Application) -> None:
    """RNN: one step of data (batch, depth)."""
    fields = application.operator.options.fields("RNNOptions", required=True)
    data = application.operand(0)
    batch, depth = application.rank(data, 2)
    _recur(application, fields, application.reshaped(data, (1, batch, depth)), 0)


def sequence_rnn(application: Application) -> None:
    """UNIDIRECTIONAL_SEQUENCE_RNN: data (batch, time, depth), or time first."""
    fields = application.operator.options.fields("SequenceRNNOptions", required=True)
    data = application.operand(0)
    application.rank(data, 3)
    _recur(application, fields, data, 0 if fields.integer("TimeMajor") else 1)


def _recur(application: Application, fields: Fields, data: str, axis: int) -> None:
    """A loop over ``axis`` whose turns stack their states."""
    kind, memory = application.type(data), application.source(_HIDDEN)
    batch, steps, units = kind.shape[1 - axis], kind.shape[axis], application.source(1).type.shape[0]
    if not memory.variable or memory.type.dtype != "float32" or memory.type.size != batch * units:
        wanted = f"a variable tensor of float32 {(batch, units)}"
        application.refuse(f"the state {memory.name!r}, {memory.type.dtype} {memory.type.shape}", wanted)
    state = application.builder.define_state(
        memory.name, TensorType((batch, units), "float32"), None, application.where
    )
    body = _step(application, fields, kind, axis, units)
    attrs: Mapping[str, Attr] = {"body": body, "count": steps, "carried": 1, "guarded": False}
    names = [application.builder.file.unique(f"{application.target().name}_{stem}") for stem in ("hidden", "rows")]
    kinds = application.inferred("loop", (state, data), attrs)
    application.append("loop", (state, data), attrs, names, kinds)
    application.builder.updates[state] = names[0]
    rows = application.emit("transpose", (names[1],), {"axes": (1, 0, 2)}) if axis else names[1]
    declared = application.target().type.shape
    application.result_reshape(rows, declared if len(declared) == 2 else application.type(rows).shape)


def _step(application: Application, fields: Fields, kind: TensorType, axis: int, units: int) -> Graph:
    """One turn: the state and all data; the next state, and once more as the row."""
    body = GraphWriter(application.loc.file)
    body.at(application.loc.index, application.loc.name)
    turn, hidden = body.input("turn", (), "int32"), body.input("hidden", (kind.shape[1 - axis], units))
    data = body.input("data", kind.shape)
    now = body.emit("gather", (data, turn), {"axis": axis})
    bias = body.new_constant("bias", application.constant(3).reshape(-1))
    sums = []
    for position, operand, depth in ((1, now, kind.shape[-1]), (2, hidden, units)):
        weight, attrs = _weights(
            application, body, position, (units, depth), bool(fields.integer("AsymmetricQuantizeInputs"))
        )
        sums.append(
            body.emit("dense", (operand, weight, *((bias,) if position == 1 else ())), {"rounding": "", **attrs})
        )
    total = body.emit("add", sums, {"rounding": ""})
    name = activation(application, fields.integer("FusedActivationFunction"))
    if name:
        op, attrs = ACTIVATIONS[name]
        total = body.emit(op, (total,), attrs)
    return body.graph("rnn", {"next_hidden": total, "row": total})


def _weights(
    application: Application, body: GraphWriter, position: int, shape: tuple[int, int], asymmetric: bool
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


SPELLINGS: Mapping[str, Spelling] = {
    "RNN": Spelling(rnn, FLOAT),
    "UNIDIRECTIONAL_SEQUENCE_RNN": Spelling(sequence_rnn, FLOAT),
}
