"""Spellings of TFLite's plain recurrent cells: h = f(W x + R h + b), where h lives across calls.

RNN takes a step, UNIDIRECTIONAL_SEQUENCE_RNN a sequence, BIDIRECTIONAL_SEQUENCE_RNN one both ways. Weights are floats, or bytes
that are widened (``--hybrid dynamic`` quantises rows instead). Sources: LiteRT ``basic_rnn.cc`` and
``bidirectional_sequence_rnn.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.tflite.application import Application
from microc.frontend.tflite.options import Fields
from microc.frontend.tflite.sequence import Sequence, both, sequence
from microc.frontend.tflite.spelling import FLOAT, Spelling, activation
from microc.graph.ir import Attr, Graph, TensorType
from microc.ops.rounding import Rounding
from microc.ops.surface import ACTIVATIONS


def rnn(application: Application) -> None:
    """RNN: one step of data (batch, depth)."""
    fields = application.operator.options.fields("RNNOptions", required=True)
    data = application.operand(0)
    batch, depth = application.rank(data, 2)
    rows = _recur(application, fields, Sequence(application.reshaped(data, (1, batch, depth)), 0, 1, batch, depth), 1)
    application.result_reshape(rows, (batch, application.type(rows).shape[2]))


def sequence_rnn(application: Application) -> None:
    """UNIDIRECTIONAL_SEQUENCE_RNN: data (batch, time, depth), or time first."""
    fields = application.operator.options.fields("SequenceRNNOptions", required=True)
    rows = _recur(application, fields, sequence(application, fields), 1)
    application.result_reshape(rows, application.type(rows).shape)


def bidirectional_rnn(application: Application) -> None:
    """BIDIRECTIONAL_SEQUENCE_RNN: two layers, one of which begins with the last step."""
    fields = application.operator.options.fields("BidirectionalSequenceRNNOptions", required=True)
    if any(application.has(position) for position in _AUXILIARY):
        application.refuse("a second input", "join it to the first one")
    data = sequence(application, fields)
    forwards = _recur(application, fields, data, 1)
    both(application, fields, (forwards, _recur(application, fields, data.turned(application), 5)))


_AUXILIARY = (9, 10, 11)


def _recur(application: Application, fields: Fields, data: Sequence, first: int) -> str:
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


def _step(application: Application, fields: Fields, data: Sequence, units: int, first: int) -> Graph:
    """One turn: the state and all data; the next state, and once more as the row."""
    body = GraphBuilder(application.loc.file)
    body.at(application.loc.index, application.loc.name)
    turn, hidden = body.input("turn", (), "int32"), body.input("hidden", (data.batch, units))
    now = body.emit("gather", (body.input("data", application.type(data.data).shape), turn), {"axis": data.axis})
    bias = body.new_constant("bias", application.constant(first + 2).reshape(-1))
    sums = []
    for position, operand, depth in ((first, now, data.depth), (first + 1, hidden, units)):
        weight, attrs = _weights(
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


def _weights(
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


SPELLINGS: Mapping[str, Spelling] = {
    "BIDIRECTIONAL_SEQUENCE_RNN": Spelling(bidirectional_rnn, FLOAT),
    "RNN": Spelling(rnn, FLOAT),
    "UNIDIRECTIONAL_SEQUENCE_RNN": Spelling(sequence_rnn, FLOAT),
}
