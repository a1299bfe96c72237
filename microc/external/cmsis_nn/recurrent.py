"""SVDF: a dense layer over time whose state the library moves on where it lies, so that it gets a copy to do so."""

from __future__ import annotations

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.external.backend import Code, Region
from microc.external.cmsis_nn.layers import CALL, RESULT, ROW
from microc.external.cmsis_nn.numbers import MVE, core_of, dims, kind_of, refused, structure, zero_point

FUNCTIONS = {"int8": "arm_svdf_s8", "int16": "arm_svdf_state_s16_s8"}
"""By the dtype of the state."""


def check_svdf(region: Region) -> str:
    why = refused(region, ("qsvdf",))
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
        return "its result or its state is read by nobody"
    return ""


def svdf(region: Region) -> Code:
    """``arm_svdf_s8``, or ``arm_svdf_state_s16_s8``."""
    node, kind = core_of(region)["qsvdf"], kind_of(region.target)
    data, *names, state = region.root.inputs
    feature, time, bias = (_const(region, name) for name in names)
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
        *([structure("cmsis_nn_context", "context", **sums)] if short else []),
        structure("cmsis_nn_context", "features", buf="scratch", size=4 * batch * filters),
        structure("cmsis_nn_context", "totals", buf=f"scratch + {4 * batch * filters}", size=4 * batch * units),
        structure(
            "cmsis_nn_svdf_params", "params", rank=node.attr("rank"), input_offset=offset,
            output_offset=node.attr("zero_point"), input_activation={"min": least, "max": most},
            output_activation={"min": node.attr("minimum"), "max": node.attr("maximum")},
        ),
        structure(quant, "into", multiplier=node.attr("feature_multiplier"), shift=node.attr("feature_shift")),
        structure(quant, "out", multiplier=node.attr("multiplier"), shift=node.attr("shift")),
        dims("input", batch, depth, 1, 1),
        dims("state", batch, memory * filters, 1, 1),
        dims("filters", filters, depth, 1, 1),
        dims("times", filters, memory, 1, 1),
        dims("biases", units, 1, 1, 1),
        dims("output", batch, units, 1, 1),
        f"return (int){FUNCTIONS[dtype]}({first}&features, &totals, &params, &into, &out, &input, {given}, &state, {moved}, "
        f"&filters, feature, &times, time, &biases, bias, &output, {result});",
    )  # fmt: skip
    cost = CALL + batch * (filters * (ROW[kind] * depth + RESULT[kind] + 4.0 * memory) + units * RESULT[kind])
    return Code(lines, constants, 4 * batch * (filters + units), cost, 900, (FUNCTIONS[dtype],), fails=True)


def _const(region: Region, name: str) -> Array:
    array = region.const(name)
    assert array is not None
    return array
