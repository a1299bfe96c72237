# SPDX-License-Identifier: Apache-2.0
"""Operators ``lstm``, ``gru`` and ``rnn``: recurrent layers over a sequence, and their expansion to a loop over time.

::

    rnn     h' = f(W x + R h + b)
    gru     z, r = f(W x + R h + b)    n = g(W x + b + R (r h))    h' = (1 - z) n + z h
    lstm    i, f, o = f(W x + R h + p c + b)    g = g(W x + R h + b)    c' = clip(f c + i g)    h' = P (o h(c'))

With ``linear_before_reset``, n = g(W x + b + r (R h + b_r)). A gate o with a peephole reads c'. If an LSTM's weights lack one of
the gates i and f, it is one minus the other.

Data are (T, B, D) or (B, T, D). Weights (G H, D), recurrent weights (G H, R) and the biases (G H,) contain the rows of the gates
in the order of the attribute ``gates``. The operands ``hidden`` (B, R) and ``cell`` (B, H) are the state before the first step. R
is H, or the rows of the projection (R, H). Peepholes are (H,). Results: the hidden states of all steps, with axes in the order of
the data's and steps in the order of computation, and the state after the last step. Sequences end after ``lengths`` (B,) steps:
the state stays, and rows are zero.

Floats, or an LSTM's plain cell on quantised data, whose scales are in the types: weights are int8 and have one for each row, the
cell is int16 and its scale is a power of two. Sources: ONNX LSTM, GRU, RNN; LiteRT ``lstm_eval.cc``; TFLite Micro
``lstm_eval.h``, ``lstm_eval_common.cc``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops import registry
from microc.ops.arithmetic import ACTIVATION_FUNCTIONS, Rewrite
from microc.ops.attributes import DYNAMIC, SURFACE, Attribute, Rounding, choice, flag, names, numbers, real
from microc.ops.recurrent.cells import (
    EMIT_STEP,
    OPTIONAL_OPERANDS,
    STATES,
    RecurrentLayer,
    ReferenceStep,
    StepBuilder,
    bind_activation_parameters,
    bind_operands,
    list_required_operands,
)
from microc.ops.registry import Case, Legalized, OpDef

_GATES: Mapping[str, tuple[str, ...]] = {
    "lstm": ("ifgo", "iofg", "fgo", "iog", "igo"),
    "gru": ("zrn", "rzn"),
    "rnn": ("h",),
}
"""Orders of gates that formats have; the first is the default."""
_ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "lstm": ("sigmoid", "tanh", "tanh"),
    "gru": ("sigmoid", "tanh"),
    "rnn": ("tanh",),
}
"""Default activation functions, in the order f, g, h of the formulas."""

# ---- Types.

_QUANTISED: Mapping[str, tuple[str, str]] = {"int8": ("int16", "int32"), "int16": ("int16", "int64")}
"""Dtypes of cell and bias of a quantised LSTM, by dtype of the data."""


def _infer_types(op: str, attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Infer the types of a layer's results; raise ModelError if its operands or attributes are inconsistent."""
    _check_attributes(op, attrs, types)
    operand_types: Mapping[str, TensorType] = bind_operands(op, attrs, types)
    data, weights = operand_types["data"], operand_types["weights"]
    dtypes = ("float32", *(_QUANTISED if op == "lstm" else ()))
    if len(data.shape) != 3 or data.dtype not in dtypes:
        raise ModelError(
            f"{op}: data: got {data.dtype} {data.shape}, expected three axes of {' or '.join(dtypes)} (float32 only "
            "with options of cells)"
        )
    if data.dtype != "float32" and not _is_plain(attrs):
        raise ModelError(f"{op}: got options of cells with {data.dtype} data, expected float32 data")
    for name, (shape, allowed) in _derive_expected_types(op, attrs, operand_types).items():
        type_ = operand_types[name]
        if type_.shape != shape or type_.dtype not in allowed:
            raise ModelError(f"{op}: {name}: got {type_.dtype} {type_.shape}, expected {' or '.join(allowed)} {shape}")
    if weights.dtype != operand_types["recurrent"].dtype:
        raise ModelError(
            f"{op}: recurrent: got {operand_types['recurrent'].dtype}, expected {weights.dtype}, as the weights have"
        )
    states = [TensorType(operand_types[name].shape, operand_types[name].dtype) for name in STATES[op]]
    rows = TensorType((*data.shape[:2], states[0].shape[1]), data.dtype)
    return (rows, *states) if attrs["returns_rows"] else tuple(states)


def _check_attributes(op: str, attrs: Mapping[str, Any], types: Sequence[TensorType]) -> None:
    """Raise ModelError if the names of optional operands or of activation functions are invalid."""
    optional, extra_count = attrs["optional"], len(types) - len(list_required_operands(op))
    if not set(optional) <= set(OPTIONAL_OPERANDS[op]) or not 0 <= extra_count <= len(optional):
        raise ModelError(
            f"{op}: got {len(types)} operands with the optional ones {optional}, expected "
            f"{', '.join(list_required_operands(op))}, then some of {', '.join(OPTIONAL_OPERANDS[op])}"
        )
    functions = attrs["activations"]
    unknown = [name for name in functions if name not in ACTIVATION_FUNCTIONS]
    if unknown or len(functions) != len(_ACTIVATIONS[op]):
        raise ModelError(
            f"{op}: got activations {', '.join(functions)}, expected {len(_ACTIVATIONS[op])} of "
            f"{', '.join(ACTIVATION_FUNCTIONS)}"
        )
    try:
        bind_activation_parameters(attrs)
    except ValueError as error:
        raise ModelError(f"{op}: wrong parameters of activations {', '.join(functions)}; got {error}") from None


def _is_plain(attrs: Mapping[str, Any]) -> bool:
    """Test whether an LSTM is one that has integer kernels."""
    limits = (attrs["clip"], attrs["projection_clip"])
    is_plain_cell = attrs["gates"] == "ifgo" and attrs["activations"] == _ACTIVATIONS["lstm"] and not any(limits)
    return is_plain_cell and set(attrs["optional"]) <= {"bias"}


def _derive_expected_types(
    op: str, attrs: Mapping[str, Any], operand_types: Mapping[str, TensorType]
) -> dict[str, tuple[tuple[int, ...], tuple[str, ...]]]:
    """Return the shape and the dtypes that each operand but the data must have, given the data, the weights' rows and
    the projection's rows."""
    data, gate_count = operand_types["data"], len(attrs["gates"]) if op != "rnn" else 1
    units = operand_types["weights"].shape[0] // gate_count if operand_types["weights"].shape else 0
    projection = operand_types.get("projection")
    width = projection.shape[0] if projection is not None and projection.shape else units
    batch, rows = data.shape[1 if attrs["time_major"] else 0], gate_count * units
    cell, bias = _QUANTISED.get(data.dtype, ("float32", "float32"))
    weights = ("float32", "int8") if data.dtype == "float32" and op != "gru" else (data.dtype.replace("int16", "int8"),)
    expected: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
        "weights": ((rows, data.shape[2]), weights),
        "recurrent": ((rows, width), weights),
        "hidden": ((batch, width), (data.dtype,)),
        "cell": ((batch, units), (cell,)),
        "bias": ((rows,), (bias,)),
        "recurrent_bias": ((rows,), (bias,)),
        "projection": ((width, units), weights),
        "projection_bias": ((width,), (bias,)),
        "lengths": ((batch,), ("int32", "int64")),
        **{f"peephole_{gate}": ((units,), ("float32",)) for gate in "ifo"},
    }
    return {name: expected[name] for name in operand_types if name != "data"}


def _count_macs(op: str, attrs: Mapping[str, Any], types: Sequence[TensorType], _: Sequence[TensorType]) -> int:
    """Return the number of multiply-accumulate operations of the dense layers over all time steps."""
    operand_types = bind_operands(op, attrs, types)
    matrices = [operand_types[name].size for name in ("weights", "recurrent", "projection") if name in operand_types]
    return int(types[0].shape[0] * types[0].shape[1] * sum(matrices))


# ---- Expansion to a loop over time. An iteration consists of dense layers and elementwise operators.


def should_precompute_input_products(step_count: int, gate_width: int, data_width: int) -> bool:
    """Test whether a recurrent layer should multiply all time steps' inputs by the gates' weights before its loop.

    It should if there are several time steps, and the products of one step (``gate_width`` numbers) take no more memory
    than its input (``data_width`` numbers)."""
    return step_count > 1 and gate_width <= data_width


def expand_layer(node: Node, graph: Graph) -> Legalized:
    """Expand a recurrent layer to a ``loop`` over time steps, and a transposition of the stacked rows if the batch is
    the first axis of the data.

    Raise UnsupportedError if quantised weights or their bias are computed at run time."""
    rewrite, layer = Rewrite(node, graph), RecurrentLayer.of(node, graph)
    _require_constant_integers(layer)
    data, data_type = layer.operands["data"], layer.type("data")
    weights = layer.type("weights")
    if layer.attr("backwards"):
        # Reversed data take more memory than rows that are gathered from the end, but only of rows in order are several
        # multiplied at once (pass ``blocked_loops``): 4 % fewer instructions in a GRU of 16 units over 20 steps (M4).
        backwards = rewrite.add_value("backwards", data_type.shape, data_type.dtype, data_type.quant)
        data = rewrite.emit("reverse", (data,), backwards, {"axes": (layer.time_axis,)})
    sums_type = None
    if weights.dtype == "float32" and should_precompute_input_products(
        layer.step_count, weights.shape[0], weights.shape[1]
    ):
        sums_type = TensorType((*data_type.shape[:2], weights.shape[0]), "float32")
        data = _emit_products_of_all_steps(rewrite, layer, data, sums_type)
    step = StepBuilder(layer, sums_type)
    body = step.finish(EMIT_STEP[node.op](step))
    states = [layer.operands[name] for name in layer.states]
    attrs: Mapping[str, Attr] = {
        "body": body, "count": layer.step_count, "carried": len(states), "guarded": False
    }  # fmt: skip
    operands = (*states, data, *step.captured)
    if not layer.attr("returns_rows"):
        rewrite.emit("loop", operands, node.outputs, attrs)
        return rewrite.legalized()
    rows, *last_states = node.outputs
    hidden = layer.type("hidden")
    stacked = rewrite.add_value("rows", (layer.step_count, *hidden.shape), hidden.dtype, hidden.quant)
    rewrite.emit("loop", operands, (*last_states, stacked), attrs)
    if layer.time_axis == 0 or layer.batch_size == 1:
        rewrite.emit("reshape", (stacked,), rows, {"shape": graph.types[rows].shape})
    else:
        rewrite.emit("transpose", (stacked,), rows, {"axes": (1, 0, 2)})
    return rewrite.legalized()


def unroll_layer(node: Node, graph: Graph) -> Legalized:
    """Expand a recurrent layer for its gradients: the loop of a float layer reads the constants of the layer as operands,
    so that their gradients are those of the layer's weights."""
    if graph.types[node.inputs[1]].dtype != "float32":
        return expand_layer(node, graph)
    others = {name: data for name, data in graph.consts.items() if name not in node.inputs}
    return expand_layer(node, replace(graph, consts=others).with_nodes((node,)))


def _require_constant_integers(layer: RecurrentLayer) -> None:
    """Raise UnsupportedError if a layer with integer weights computes them, or their bias, at run time."""
    if layer.type("weights").dtype == "float32":
        return
    fixed = [name for operand, name in layer.operands.items() if operand not in ("data", "lengths", *layer.states)]
    if computed := [name for name in fixed if name not in layer.graph.consts]:
        raise UnsupportedError(
            f"{layer.node.op}: {computed[0]!r} is computed when the network runs; expected a constant",
            where=str(layer.node.loc),
            hint="make weights and bias constants",
        )


def _emit_products_of_all_steps(rewrite: Rewrite, layer: RecurrentLayer, data: str, sums_type: TensorType) -> str:
    """Append the dense layer that computes the sums of all gates over ``data``, those of all steps; return its
    result."""
    first, second, width = sums_type.shape
    flat = rewrite.add_value("flat", (first * second, layer.type("data").shape[2]), "float32")
    rewrite.emit("reshape", (data,), flat, {"shape": rewrite.type(flat).shape})
    operands = [layer.operands[name] for name in ("weights", "bias") if name in layer.operands]
    products = rewrite.add_value("products", (first * second, width), "float32")
    # The pass ``dynamic_range``, and quantisation, read attributes of this layer before inference completes them.
    attrs: Mapping[str, Attr] = {**registry.get("dense").defaults, "rounding": Rounding.NONE}
    dynamic: Mapping[str, Attr] = {"dynamic": layer.attr("dynamic")} if layer.attr("dynamic") else {}
    rewrite.emit("dense", (flat, *operands), products, {**attrs, **dynamic})
    sums = rewrite.add_value("sums", sums_type.shape, "float32")
    return rewrite.emit("reshape", (products,), sums, {"shape": sums_type.shape})


# ---- Meaning in numpy, and cases.


def _evaluate_reference(op: str, attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    """Compute a float layer over numpy in float64. A quantised LSTM has no reference: its expansion is evaluated."""
    operands = {name: np.asarray(array, np.float64) for name, array in bind_operands(op, attrs, arrays).items()}
    step, states, rows = ReferenceStep(op, attrs, operands), tuple(operands[name] for name in STATES[op]), []
    data = operands["data"] if attrs["time_major"] else operands["data"].swapaxes(0, 1)
    lengths = operands.get("lengths", np.full(data.shape[1], len(data)))
    for time in reversed(range(len(data))) if attrs["backwards"] else range(len(data)):
        is_inside = (lengths > time)[:, None]
        pairs = zip(step.compute(data[time], *states), states, strict=True)
        states = tuple(np.where(is_inside, new, old) for new, old in pairs)
        rows.append(np.where(is_inside, states[0], 0.0))
    stacked = np.stack(rows, 0 if attrs["time_major"] else 1)
    results = (stacked, *states) if attrs["returns_rows"] else states
    return tuple(array.astype(np.float32) for array in results)


_SHAPES = ((1, 5, 4, 3, False, 0.0), (2, 3, 2, 4, False, 0.5), (2, 3, 4, 1, True, 0.0))
"""Parameters of test cases: batch, time steps, depth, units, time_major, cell_clip."""


def _make_case(
    op: str, sizes: tuple[int, int, int, int], optional: Sequence[str] = (), *, name: str = "", width: int = 0,
    computed: bool = False, **attrs: Any,
) -> Case:  # fmt: skip
    """Return a case with these sizes: batch, time steps, depth, units. ``width``: rows of a projection. ``computed``:
    weights are no constants."""
    batch, steps, depth, units = sizes
    gates = attrs.get("gates", _GATES[op][0])
    state, rows = (batch, width or units), len(gates) * units
    shapes = {
        "data": (steps, batch, depth) if attrs.get("time_major") else (batch, steps, depth),
        "weights": (rows, depth),
        "recurrent": (rows, state[1]),
        "hidden": state,
        "cell": (batch, units),
        "bias": (rows,),
        "recurrent_bias": (rows,),
        "projection": (width, units),
        "projection_bias": (width,),
        "lengths": (batch,),
        **{f"peephole_{gate}": (units,) for gate in "ifo"},
    }
    operands = (*list_required_operands(op), *optional)
    types = tuple(TensorType(shapes[k], "int32" if k == "lengths" else "float32") for k in operands)
    lengths = np.linspace(1, steps, batch).astype(np.int32)
    consts = () if computed else tuple(k for k, n in enumerate(operands) if n not in ("data", "lengths", *STATES[op]))
    arrays = tuple(lengths if k == "lengths" else None for k in operands)
    return Case({"optional": tuple(optional), **attrs}, types, consts, arrays, 2e-6, name)


def _make_lstm_test_cases() -> Iterable[Case]:
    for *sizes, time_major, clip in _SHAPES:
        batch, steps, depth, units = map(int, sizes)
        yield _make_case("lstm", (batch, steps, depth, units), ("bias",), time_major=time_major, cell_clip=clip)
    small, peepholes = (2, 3, 3, 2), ("peephole_i", "peephole_f", "peephole_o")
    yield _make_case("lstm", (1, 2, 3, 2), name="without bias")
    yield _make_case("lstm", small, ("bias", *peepholes), gates="iofg", clip=0.5, backwards=True, name="peepholes")
    yield _make_case(
        "lstm", small, ("projection", "projection_bias"), width=3, gates="fgo", projection_clip=0.3, name="projection"
    )
    functions: Mapping[str, Any] = {
        "activations": ("hard_sigmoid", "softsign", "leaky_relu"), "activation_parameters": (0.3, 0.4, 0.2)
    }  # fmt: skip
    yield _make_case("lstm", small, ("lengths",), gates="iog", returns_rows=False, **functions, name="lengths")
    yield _make_case("lstm", (2, 3, 8, 2), ("bias",), computed=True, name="products first")


def _make_gru_test_cases() -> Iterable[Case]:
    yield _make_case("gru", (1, 3, 4, 2), ("bias",))
    yield _make_case("gru", (2, 3, 2, 3), ("bias", "recurrent_bias"), linear_before_reset=True, gates="rzn")
    yield _make_case("gru", (2, 3, 2, 3), ("bias", "recurrent_bias", "lengths"), computed=True, backwards=True)
    yield _make_case("gru", (2, 3, 9, 3), ("recurrent_bias",), time_major=True, name="products first")


def _make_rnn_test_cases() -> Iterable[Case]:
    yield _make_case("rnn", (1, 4, 3, 2), ("bias",))
    yield _make_case("rnn", (2, 3, 3, 2), ("lengths",), time_major=True, backwards=True, activations=("relu",))


_OPTIONAL_DOC = "names of the optional operands that are present, in order; some of "


def _declare_attributes(op: str, **more: Attribute) -> Mapping[str, Attribute]:
    """Declare the attributes of a layer: those that all have, and ``more``."""
    orders = _GATES[op]
    gates = (
        {}
        if op == "rnn"
        else {
            "gates": choice(
                "order of the gates in the rows of the weights, by their first letters", *orders, default=orders[0]
            )
        }
    )
    return {
        "time_major": flag("True if the first axis of the data is time, False: the sequences"),
        "backwards": flag("True if the data are computed from the last step to the first"),
        "returns_rows": flag("True if the first result has the hidden states of all steps", True),
        "optional": names(_OPTIONAL_DOC + ", ".join(OPTIONAL_OPERANDS[op]), ("bias",)),
        **gates,
        "activations": names("activation functions of the gates, the candidate and the cell", _ACTIVATIONS[op]),
        "activation_parameters": numbers("parameters of the activation functions, one after the other", ()),
        "clip": real("limit of the arguments of activation functions; 0: none", 0.0),
        **more,
        **SURFACE,
    }


def _define(op: str, cases: Any, **attrs: Attribute) -> OpDef:
    """Define a recurrent layer as an operator."""
    return OpDef(
        op,
        infer=partial(_infer_types, op),
        reference=partial(_evaluate_reference, op),
        cases=cases,
        attrs=_declare_attributes(op, **attrs),
        expand=expand_layer,
        unroll=unroll_layer,
        macs=partial(_count_macs, op),
        operand_names=(*list_required_operands(op), *OPTIONAL_OPERANDS[op]),
    )


OPERATORS: tuple[OpDef, ...] = (
    _define(
        "lstm",
        _make_lstm_test_cases,
        cell_clip=real("limit of the cell state, as a real number; 0: none", 0.0),
        projection_clip=real("limit of the projected state; 0: none", 0.0),
        dynamic=DYNAMIC,
    ),
    _define(
        "gru",
        _make_gru_test_cases,
        linear_before_reset=flag("True if the reset gate multiplies the recurrent product, False: the hidden state"),
    ),
    _define("rnn", _make_rnn_test_cases, dynamic=DYNAMIC),
)
