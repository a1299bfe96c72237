"""Spelling of TFLite's UNIDIRECTIONAL_SEQUENCE_LSTM, whose state lives across calls, as in TFLite Micro.

Cells with peepholes, a projection or coupled gates are in ``lstm.py``, of floats. What a plain cell computes is the operator's
business (``ops/recurrent/lstm.py``). Source: TFLite Micro ``lstm_eval.h``, ``lstm_eval_common.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from microc.dtypes import Array
from microc.frontend.tflite.application import Application
from microc.frontend.tflite.lstm import float_lstm
from microc.frontend.tflite.options import Fields
from microc.frontend.tflite.sequence import sequence
from microc.frontend.tflite.spelling import Spelling
from microc.frozen import frozen
from microc.graph.ir import Attr, Quant, TensorType

_INPUT_WEIGHTS, _RECURRENT_WEIGHTS, _BIASES = (1, 2, 3, 4), (5, 6, 7, 8), (12, 13, 14, 15)
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


SPELLINGS: Mapping[str, Spelling] = {
    "UNIDIRECTIONAL_SEQUENCE_LSTM": Spelling(lstm, ("float32", "int8", "int16")),
}
