# SPDX-License-Identifier: Apache-2.0
"""LSTM and SVDF layers by CMSIS-NN: checks, and calls of the library."""

from __future__ import annotations

import math

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.external.backend import Code, Region
from microc.external.cmsis_nn.cmsis_library import (
    MVE,
    RequantizeParams,
    format_dims,
    format_structure,
    function_suffix,
    kernel_variant,
    legalised_nodes_by_operator,
    requantize_params,
    unsupported_reason,
    zero_point,
)
from microc.external.cmsis_nn.layers import CALL, RESULT, ROW
from microc.graph.ir import Graph, Node
from microc.ops.meaning import expand_composed_operator
from microc.transform.pass_context import PassContext
from microc.transform.quantised.legalize import legalize

# ---- LSTM over a sequence. The library updates the hidden state and the cell state in place, so it gets copies of both.
#
# A gate adds two products: of the input and of the hidden state (the recurrent product). Our code saturates the recurrent product
# to 16 bits before it adds them, as TFLite Micro does; the library saturates only their sum. If the weights prove that the
# recurrent product fits into 16 bits, results are bit-exact; else ``Code.differs`` bounds the difference.

GATES = ("input", "forget", "cell", "output")
"""Gates of an LSTM in the order of microc's weights."""
CURVE, ELEMENT = {"mve": 43.0, "dsp": 55.0, "plain": 27.0}, {"mve": 12.0, "dsp": 30.0, "plain": 40.0}
"""Estimated instructions for a sigmoid or tanh, and for an elementwise product of the gates, by kernel variant
(docs/external.md)."""
_INT16_SPAN = 1 << 15  # int16 saturates just below


@frozen
class _LoopBody:
    """The loop body of an LSTM in microc's own code, legalised to operators on integers.

    It computes one time step."""

    graph: Graph

    def nodes_of_operator(self, op: str) -> list[Node]:
        """Return the body's nodes of operator ``op``."""
        return [node for node in self.graph.nodes if node.op == op]

    @property
    def cell_state_limit(self) -> int:
        """Limit to which the magnitude of the cell state is clipped; 0 if only the range of int16 limits it."""
        low, high = (self.nodes_of_operator("clip")[1].attr(name) for name in ("minimum", "maximum"))
        return 0 if low < -high else int(high)


def _legalised_loop_body(region: Region) -> _LoopBody:
    """Expand a region's LSTM to a loop over time steps; return the loop's body, legalised to operators on integers."""
    (loop,) = (node for node in expand_composed_operator(region.graph).nodes if node.op == "loop")
    return _LoopBody(legalize(loop.attr("body"), PassContext()))


def check_lstm(region: Region) -> str:
    """Return why the library cannot compute an LSTM, as a clause; empty if it can."""
    why = unsupported_reason(region, ("lstm",))
    if why:
        return why
    _, weights, recurrent, hidden, _, *bias = region.root.inputs
    if any(region.const(name) is None for name in (weights, recurrent, *bias) if name):
        return "its weights are computed"
    if len(region.graph.outputs) != 3:
        return "its rows or its states are read by no operator"
    if region.type(hidden).quant != region.type(region.root.outputs[0]).quant:
        return "its rows and its hidden state have different scales or zero points"
    body = _legalised_loop_body(region)
    products = body.nodes_of_operator("requantize")
    if len(products) != 2 or len(body.nodes_of_operator("qmul")) != 3 or len(body.nodes_of_operator("qsigmoid16")) != 5:
        return "its iteration is not two layers, five activations and three products"
    return _describe_gate_sum_mismatch(region, body, products) or _describe_cell_state_mismatch(region, body)


def _describe_gate_sum_mismatch(region: Region, body: _LoopBody, products: list[Node]) -> str:
    """Return why the sums of an LSTM's gates would differ between the library and microc's kernels; empty if they
    agree."""
    for node in products:
        quant = requantize_params(body.graph, node)
        by_gate = [
            array.reshape(4, -1) for array in _multipliers_and_shifts_by_row(quant, 4 * _count_lstm_units(region))
        ]
        if any((array != array[:, :1]).any() for array in by_gate):
            return "weights of a gate have several scales"
        if node.attr("bound") >= 1 << 31 or node.attr("bound") * _largest_requantisation_scale(quant) >= 1 << 30:
            return "its sums do not fit into 32 bits"
    return ""


def _describe_gate_difference(region: Region, body: _LoopBody) -> str:
    """Describe by how much LSTM gates may differ between the library and microc's kernels; empty if they are equal.

    They differ if a recurrent product (weights by hidden state) saturates in microc's kernels. The bound follows from
    the largest recurrent product that the weights allow."""
    recurrent, hidden = (region.root.inputs[k] for k in (2, 3))
    low, high = dtypes.int_range(region.type(hidden).dtype)
    zero = zero_point(region, hidden)
    most = np.abs(_data_of_lstm_constant(region, recurrent).astype(np.int64)).sum(axis=1) * max(high - zero, zero - low)
    multiplier, shift = _multipliers_and_shifts_by_row(
        requantize_params(body.graph, body.nodes_of_operator("requantize")[1]), 4 * _count_lstm_units(region)
    )
    product = most * np.ldexp(multiplier.astype(np.float64), shift - 31)
    over = (product.max() - (_INT16_SPAN - 1)) / (1 << 12)
    return f"ours cuts recurrent products off at 8, of which gates lack {over:.3g} at most" if over > 0 else ""


def _describe_cell_state_mismatch(region: Region, body: _LoopBody) -> str:
    """Return why an LSTM's cell state would differ between the library and microc's kernels; empty if it is equal."""
    quant = region.type(region.root.inputs[4]).quant
    assert quant is not None
    scale, power = quant.scale[0], round(math.log2(quant.scale[0]))
    if scale != 2.0**power or not -15 <= power <= -1 or any(quant.zero_point):
        return "the scale of its cell state is no power of two from 2**-15 to 2**-1"
    bent = body.nodes_of_operator("qsigmoid16")[-1]
    if math.ldexp(bent.attr("multiplier"), -bent.attr("shift")) != math.ldexp(3, power + 12):
        return "the scale of its cell state is rounded in the activation"
    return "" if body.nodes_of_operator("clip")[1].attr("maximum") >= 1 else "its cell state is clipped to 0"


def generate_lstm_call(region: Region) -> Code:
    """Generate the call of ``arm_lstm_unidirectional_s8`` or ``_s16``."""
    node, kind, body = region.root, kernel_variant(region.target), _legalised_loop_body(region)
    data, _, _, hidden, cell, *_ = node.inputs
    (first, second, depth), (batch, units) = region.type(data).shape, region.type(hidden).shape
    steps = first if node.attr("time_major") else second
    kept = [f"in_{region.graph.inputs.index(name)}" for name in (hidden, cell)]
    rows, *last = (f"out_{region.graph.outputs.index(name)}" for name in node.outputs)
    layers = [_read_gate_product(region, body, number) for number in range(2)]
    gates: dict[str, object] = {}
    for k, gate in enumerate(GATES):
        fields: dict[str, object] = {}
        for name, layer in zip(("input", "hidden"), layers, strict=True):
            multiplier, shift = (int(array[k * units]) for array in layer.multipliers_and_shifts)
            fields |= {
                f"{name}_multiplier": multiplier,
                f"{name}_shift": shift,
                f"{name}_weights": f"&{name}_weights[{k * units * layer.weights.shape[1]}]",
                f"{name}_effective_bias": f"&{name}_bias[{k * units}]",
            }
        gates[f"{gate}_gate"] = {**fields, "activation_type": "ARM_TANH" if gate == "cell" else "ARM_SIGMOID"}
    forget, new, out = body.nodes_of_operator("qmul")
    function = f"arm_lstm_unidirectional_{function_suffix(region)}"
    part = -(-2 * batch * units // 4) * 4
    quant = region.type(cell).quant
    assert quant is not None
    lines = (
        *(
            f"(void)memcpy({to}, {old}, {region.type(name).nbytes});"
            for to, old, name in zip(last, kept, (hidden, cell), strict=True)
        ),
        format_structure(
            "cmsis_nn_lstm_params", "params", time_major=int(bool(node.attr("time_major"))), batch_size=batch,
            time_steps=steps, input_size=depth, hidden_size=units, input_offset=-zero_point(region, data),
            forget_to_cell_multiplier=forget.attr("multiplier"), forget_to_cell_shift=forget.attr("shift"),
            input_to_cell_multiplier=new.attr("multiplier"), input_to_cell_shift=new.attr("shift"),
            cell_clip=body.cell_state_limit, cell_scale_power=round(math.log2(quant.scale[0])),
            output_multiplier=out.attr("multiplier"), output_shift=out.attr("shift"),
            output_offset=out.attr("zero_point"), **gates,
        ),
        f"cmsis_nn_lstm_context buffers = {{.temp1 = scratch, .temp2 = scratch + {part}, .cell_state = {last[1]}, "
        f".hidden_state = {last[0]}}};",
        f"return (int){function}(in_{region.graph.inputs.index(data)}, {rows}, &params, &buffers);",
    )  # fmt: skip
    constants = {
        f"{name}_{what}": array
        for name, layer in zip(("input", "hidden"), layers, strict=True)
        for what, array in (("weights", layer.weights), ("bias", layer.bias))
    }
    each = 4 * (ROW[kind] * (depth + units) + 2 * RESULT[kind]) + 5 * CURVE[kind] + 3 * ELEMENT[kind]
    cost = CALL + batch * steps * units * each
    return Code(
        lines, constants, 2 * part, cost, 1800, (function,), fails=True, differs=_describe_gate_difference(region, body)
    )


@frozen
class _GateProduct:
    """One of the two matrix products of an LSTM: weights of all gates by the input, or by the hidden state.

    ``weights``: the matrix; ``bias``: the bias, with the terms that come from zero points added;
    ``multipliers_and_shifts``: multipliers and shifts that requantise the sums, one of each for every row of the
    matrix."""

    weights: Array
    bias: Array
    multipliers_and_shifts: tuple[Array, Array]


def _read_gate_product(region: Region, body: _LoopBody, product_index: int) -> _GateProduct:
    """Return the LSTM's matrix product by the input (``product_index`` 0) or by the hidden state (1)."""
    weights = _data_of_lstm_constant(region, region.root.inputs[1 + product_index])
    dtype = np.int32 if region.output_types[0].dtype == "int8" else np.int64
    dense = body.nodes_of_operator("dense")[product_index]
    bias = body.graph.consts[dense.inputs[2]] if len(dense.inputs) > 2 else np.zeros(len(weights))
    found = requantize_params(body.graph, body.nodes_of_operator("requantize")[product_index])
    return _GateProduct(weights, bias.reshape(-1).astype(dtype), _multipliers_and_shifts_by_row(found, len(weights)))


def _multipliers_and_shifts_by_row(requantize: RequantizeParams, row_count: int) -> tuple[Array, Array]:
    """Return the multipliers and the shifts of a requantisation for every row, repeated if all rows share them."""
    return np.broadcast_to(requantize.multiplier, row_count), np.broadcast_to(requantize.shift, row_count)


def _largest_requantisation_scale(requantize: RequantizeParams) -> float:
    """Return the largest scale of a requantisation, multiplier * 2**(shift - 31)."""
    return float(np.ldexp(requantize.multiplier.astype(np.float64), requantize.shift - 31).max())


def _count_lstm_units(region: Region) -> int:
    """Return the number of an LSTM's units, from the shape of its hidden state."""
    return region.type(region.root.inputs[3]).shape[1]


def _data_of_lstm_constant(region: Region, operand_name: str) -> Array:
    """Return the data of an LSTM's constant operand; :func:`check_lstm` has tested that the operand is constant."""
    array = region.const(operand_name)
    assert array is not None
    return array


# ---- SVDF, a dense layer over time. The library updates the layer's state in place, so it gets a copy of the state.

FUNCTIONS = {"int8": "arm_svdf_s8", "int16": "arm_svdf_state_s16_s8"}
"""Name of the library's function for an SVDF, by the dtype of its state."""


def check_svdf(region: Region) -> str:
    """Return why the library cannot compute an SVDF, as a clause; empty if it can."""
    why = unsupported_reason(region, ("qsvdf",))
    if why:
        return why
    data, *weights, state = region.root.inputs
    if region.type(data).dtype != "int8":
        return f"its data are {region.type(data).dtype}"
    kinds = tuple(region.type(name).dtype for name in (*weights, state))
    if kinds not in (("int8", "int8", "int32", "int8"), ("int8", "int16", "int32", "int16")):
        return f"its weights, bias and state are {', '.join(kinds)}"
    if zero_point(region, state):
        return "its state has a zero point"
    if len(region.graph.outputs) != 2:
        return "its result or its state is read by no operator"
    return ""


def generate_svdf_call(region: Region) -> Code:
    """Generate the call of ``arm_svdf_s8`` or ``arm_svdf_state_s16_s8``."""
    node, kind = legalised_nodes_by_operator(region)["qsvdf"], kernel_variant(region.target)
    data, *names, state = region.root.inputs
    feature, time, bias = (_data_of_svdf_constant(region, name) for name in names)
    (batch, depth), (filters, memory) = region.type(data).shape, time.shape
    units, dtype = filters // node.attr("rank"), str(time.dtype)
    given, kept = (f"in_{region.graph.inputs.index(name)}" for name in (data, state))
    result, moved = (f"out_{region.graph.outputs.index(name)}" for name in region.root.outputs)
    least, most = dtypes.int_range(dtype)
    constants = {"feature": feature, "time": time, "bias": bias}
    offset, short = zero_point(region, data), dtype == "int8"
    if short and kind == MVE:
        constants["sums"] = (-offset * feature.astype(np.int64).sum(axis=1)).astype(np.int32)
    sums = {"buf": "(void *)sums", "size": 4 * filters} if "sums" in constants else {"buf": "NULL", "size": 0}
    quant = "cmsis_nn_per_tensor_quant_params"
    first = "&context, " if short else ""
    lines = (
        f"(void)memcpy({moved}, {kept}, {region.type(state).nbytes});",
        *([format_structure("cmsis_nn_context", "context", **sums)] if short else []),
        format_structure("cmsis_nn_context", "features", buf="scratch", size=4 * batch * filters),
        format_structure("cmsis_nn_context", "totals", buf=f"scratch + {4 * batch * filters}", size=4 * batch * units),
        format_structure(
            "cmsis_nn_svdf_params", "params", rank=node.attr("rank"), input_offset=offset,
            output_offset=node.attr("zero_point"), input_activation={"min": least, "max": most},
            output_activation={"min": node.attr("minimum"), "max": node.attr("maximum")},
        ),
        format_structure(quant, "into", multiplier=node.attr("feature_multiplier"), shift=node.attr("feature_shift")),
        format_structure(quant, "out", multiplier=node.attr("multiplier"), shift=node.attr("shift")),
        format_dims("input", batch, depth, 1, 1),
        format_dims("state", batch, memory * filters, 1, 1),
        format_dims("filters", filters, depth, 1, 1),
        format_dims("times", filters, memory, 1, 1),
        format_dims("biases", units, 1, 1, 1),
        format_dims("output", batch, units, 1, 1),
        f"return (int){FUNCTIONS[dtype]}({first}&features, &totals, &params, &into, &out, &input, {given}, &state, "
        f"{moved}, "
        f"&filters, feature, &times, time, &biases, bias, &output, {result});",
    )  # fmt: skip
    cost = CALL + batch * (filters * (ROW[kind] * depth + RESULT[kind] + 4.0 * memory) + units * RESULT[kind])
    return Code(lines, constants, 4 * batch * (filters + units), cost, 900, (FUNCTIONS[dtype],), fails=True)


def _data_of_svdf_constant(region: Region, operand_name: str) -> Array:
    """Return the data of a constant operand of an SVDF."""
    array = region.const(operand_name)
    assert array is not None
    return array
