"""Operator ``lstm``: an LSTM layer over a sequence, and its expansion to a loop over time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.graph.ir import Attr, Graph, Loc, Node, Quant, TensorType, new_value
from microc.ops import registry
from microc.ops.arithmetic import Rewrite
from microc.ops.attributes import DYNAMIC, SURFACE, Rounding, flag, real
from microc.ops.registry import Case, Legalized, OpDef

# ---- Builder of the body of an operator ``loop``: the graph of one iteration over time.


class LoopBodyBuilder:
    """Builder of the graph that an operator ``loop`` runs in each iteration. Nodes are appended one by one.

    ``loc``: the location (name of a layer in the model file) of all nodes; values are named after it."""

    def __init__(self, loc: Loc) -> None:
        self.loc = loc
        self.types: dict[str, TensorType] = {}
        self._consts: dict[str, Array] = {}
        self._inputs: list[str] = []
        self._nodes: list[Node] = []

    def add_input(self, name: str, tensor_type: TensorType) -> str:
        """Add an input of the graph; return its unique name."""
        self._inputs.append(new_value(self.types, name, tensor_type))
        return self._inputs[-1]

    def add_constant(self, stem: str, data: Array, quant: Quant | None = None) -> str:
        """Add a constant to the graph; return its unique name, which begins with ``stem``."""
        name = new_value(self.types, stem, TensorType(data.shape, data.dtype.name, quant))
        self._consts[name] = np.asarray(data, order="C")
        return name

    def emit(
        self, op: str, inputs: Sequence[str], quant: Quant | None = None, stored_dtype: str = "", **attrs: Attr
    ) -> str:
        """Append a node of operator ``op``; return the name of its result.

        ``quant``: scale and zero point of a quantised result. ``stored_dtype``: dtype of the result if it differs from
        the inferred one."""
        whole = {**registry.get(op).defaults, **attrs}
        (tensor_type,) = registry.infer(op, whole, [self.types[name] for name in inputs])
        name = new_value(
            self.types, self.loc.name or op, replace(tensor_type, quant=quant, dtype=stored_dtype or tensor_type.dtype)
        )
        self._nodes.append(Node(op, tuple(inputs), (name,), whole, self.loc))
        return name

    def copy_node(self, node: Node, result_types: Sequence[TensorType]) -> tuple[str, ...]:
        """Append a copy of ``node`` whose results have new names; return these names.

        ``result_types``: types of the results."""
        made = tuple(
            new_value(self.types, name, tensor_type)
            for name, tensor_type in zip(node.outputs, result_types, strict=True)
        )
        self._nodes.append(replace(node, outputs=made))
        return made

    def build_graph_with_value_names(self, graph_name: str, output_values: Sequence[str]) -> Graph:
        """Return the graph; its outputs are the values ``output_values``, under their own names."""
        return Graph(graph_name, tuple(self._inputs), tuple(output_values), (), self.types, self._consts).with_nodes(
            self._nodes
        )

    def build_graph(self, graph_name: str, outputs: Mapping[str, str]) -> Graph:
        """Return the graph; ``outputs`` maps the name of each output to the value that it returns."""
        made = []
        for label, value in outputs.items():
            made.append(new_value(self.types, label, self.types[value]))
            shape = self.types[value].shape
            self._nodes.append(Node("reshape", (value,), (made[-1],), {"shape": shape}, Loc(self.loc.file, -1, label)))
        return self.build_graph_with_value_names(graph_name, made)


# ---- Expansion of ``lstm`` to a loop over time. An iteration consists of dense layers and elementwise operators.
#
# In a quantised LSTM the sums of gates are int16 with twelve fractional bits, and results of sigmoid and tanh have fifteen; the
# cell has the scale of the operand ``cell``. Every product and every sum saturates. Source: TFLite Micro ``lstm_eval.h``,
# ``lstm_eval_common.cc``.

_SUMS, _ACTIVATED = Quant((2.0**-12,), (0,)), Quant((2.0**-15,), (0,))
_FUNCTIONS = ("sigmoid", "sigmoid", "tanh", "sigmoid")
"""Activations of the four gates, in order: input, forget, cell, output."""


def expand_lstm(node: Node, graph: Graph) -> Legalized:
    """Expand an ``lstm`` to a ``loop`` over time steps, and a transposition of the stacked results if the batch is the
    first axis of the data.

    Raise UnsupportedError if weights or bias are computed at run time."""
    rewrite = Rewrite(node, graph)
    data, _, _, hidden, cell, *_ = node.inputs
    if computed := [name for name in (*node.inputs[1:3], *node.inputs[5:]) if name and name not in graph.consts]:
        raise UnsupportedError(
            f"lstm: {computed[0]!r} is computed when the network runs; expected a constant",
            where=str(node.loc),
            hint="make weights and bias constants",
        )
    time_major, (batch, units) = bool(node.attr("time_major")), graph.types[hidden].shape
    shape = graph.types[data].shape
    steps = shape[0 if time_major else 1]
    attrs: Mapping[str, Attr] = {"body": _build_body(node, graph), "count": steps, "carried": 2, "guarded": False}
    rows, last, state = node.outputs
    tensor_type = graph.types[hidden]
    stacked = rewrite.add_value("rows", (steps, batch, units), tensor_type.dtype, tensor_type.quant)
    rewrite.emit("loop", (hidden, cell, data), (last, state, stacked), attrs)
    if time_major or batch == 1:
        rewrite.emit("reshape", (stacked,), rows, {"shape": graph.types[rows].shape})
    else:
        rewrite.emit("transpose", (stacked,), rows, {"axes": (1, 0, 2)})
    return rewrite.legalized()


def _build_body(node: Node, graph: Graph) -> Graph:
    """Build the graph that the loop runs in each time step.

    Its inputs are the iteration index, the hidden state and cell of the previous step, and the data of all steps. Its
    outputs are the new hidden state, the new cell, and the hidden state again, which the loop stacks. If the data are
    floats and the weights integers, the dense layers are computed in floats, or (``dynamic``) of rows that are
    quantised at run time."""
    operand_types = [graph.types[name] for name in node.inputs]
    body = LoopBodyBuilder(node.loc)
    iteration = body.add_input("turn", TensorType((), "int32"))
    hidden, cell, x = (body.add_input(name, operand_types[k]) for name, k in (("hidden", 3), ("cell", 4), ("data", 0)))
    step = _LstmStep(
        body, operand_types[0].dtype == "float32", str(node.attr("rounding")), str(node.attrs.get("dynamic", ""))
    )
    (batch, units), of_cell = operand_types[3].shape, operand_types[4].quant or _ACTIVATED
    now = body.emit("gather", (x, iteration), operand_types[0].quant, axis=0 if node.attr("time_major") else 1)
    bias = [body.add_constant("bias", graph.consts[name]) for name in node.inputs[5:] if name]
    matrices = [step.add_weights(graph, name) for name in node.inputs[1:3]]
    total = step.emit_sum(step.emit_gate_sums(now, matrices[0], *bias), step.emit_gate_sums(hidden, matrices[1]), _SUMS)
    gates = []
    for k, function in enumerate(_FUNCTIONS):
        begin, end = (0, k * units), (batch, (k + 1) * units)
        gate = body.emit("slice", (total,), body.types[total].quant, begin=begin, end=end, strides=(1, 1))
        gates.append(step.emit_quantised(function, (gate,), _ACTIVATED))
    kept = step.emit_quantised("mul", (gates[1], cell), of_cell)
    new = step.emit_quantised("mul", (gates[0], gates[2]), of_cell)
    cell = step.emit_sum(kept, new, of_cell, step.max_cell_magnitude(float(node.attr("cell_clip")), of_cell))
    bent = step.emit_quantised("tanh", (cell,), _ACTIVATED)
    hidden = step.emit_quantised("mul", (bent, gates[3]), operand_types[3].quant or _ACTIVATED, operand_types[3].dtype)
    return body.build_graph("lstm", {"next_hidden": hidden, "next_cell": cell, "row": hidden})


class _LstmStep:
    """Emitter of the operators of one LSTM time step, in floats or in quantised integers."""

    def __init__(self, body: LoopBodyBuilder, is_float: bool, rounding: str, dynamic_mode: str) -> None:
        self.body, self.real, self.rounding, self.dynamic = (
            body,
            is_float,
            Rounding.NONE if is_float else rounding,
            dynamic_mode,
        )

    def emit_quantised(self, op: str, inputs: Sequence[str], quant: Quant, dtype: str = "int16") -> str:
        """Append an operator of the input graph; its result is quantised by ``quant`` unless the time step is computed
        in floats."""
        if self.real:
            return self.body.emit(op, inputs, rounding=Rounding.NONE)
        return self.body.emit(op, inputs, quant, dtype, rounding=self.rounding)

    def add_weights(self, graph: Graph, name: str) -> str:
        """Add the constant weights ``name`` to the body. Integer weights of float data are dequantised."""
        quant = graph.types[name].quant
        made = self.body.add_constant("weights", graph.consts[name], quant)
        if quant is None or not self.real:
            return made
        return self.body.emit("dequantize", (made,), scale=quant.scale, zero_point=quant.zero_point, axis=quant.axis)

    def emit_gate_sums(self, *inputs: str) -> str:
        """Append the dense layer that computes the sums of all four gates."""
        if self.dynamic:
            return self.body.emit("dense", inputs, rounding=Rounding.NONE, dynamic=self.dynamic)
        return self.emit_quantised("dense", inputs, _SUMS)

    def emit_sum(self, a: str, b: str, quant: Quant, limit: float | None = None) -> str:
        """Append the sum of two values, clamped to +- ``max_cell_magnitude`` if there is one.

        Quantised values are added as stored integers, and the sum saturates to int16."""
        body = self.body
        if self.real:
            total = body.emit("add", (a, b), rounding=Rounding.NONE)
            return total if limit is None else body.emit("clip", (total,), minimum=-limit, maximum=limit)
        wide = [body.emit("cast", (name,), dtype="int32") for name in (a, b)]
        total = body.emit("add", wide, rounding=Rounding.NONE)
        low, high = (-32768.0, 32767.0) if limit is None else (-limit, limit)
        clipped = body.emit("clip", (total,), minimum=low, maximum=high, rounding=Rounding.NONE)
        return body.emit("cast", (clipped,), quant, dtype="int16")

    def max_cell_magnitude(self, clip: float, cell_quant: Quant) -> float | None:
        """Return the largest magnitude of a cell value, as a stored integer if the cell is quantised; None if ``clip``
        is not positive."""
        if not clip > 0:
            return None
        return clip if self.real else float(int(min(clip / cell_quant.scale[0], 32767.0)))


# ---- Operator ``lstm``: a layer over a sequence as formats and vendors' libraries define it.
#
#     i, f, o = sigmoid(W x + R h + b)    g = tanh(W x + R h + b)    c' = clip(f c + i g)    h' = o tanh(c')
#
# Weights (4 H, D), recurrent weights (4 H, H) and the bias (4 H,) contain the gates in the order i, f, g, o. Data are (T, B, D)
# or (B, T, D); the operands hidden and cell (B, H) are the state before the first step. Results: the hidden state of every step,
# with axes in the order of the data's, and the hidden state and the cell after the last step. Scales of quantised operands are
# in their types: weights are int8 and have one for each row, the cell is int16 and its scale is a power of two.
#
# Source: TFLite Micro ``lstm_eval.h`` (its plain cell), ``lstm_eval_common.cc``.

_DTYPES: Mapping[str, tuple[tuple[str, ...], str, str]] = {
    "float32": (("float32", "int8"), "float32", "float32"),
    "int8": (("int8",), "int16", "int32"),
    "int16": (("int8",), "int16", "int64"),
}
"""Supported dtypes of weights, cell and bias, by dtype of the data."""

_SHAPES = ((1, 5, 4, 3, False, 0.0), (2, 3, 2, 4, False, 0.5), (2, 3, 4, 1, True, 0.0))
"""Parameters of test cases: batch, time steps, depth, units, time_major, cell_clip."""


def _infer_lstm_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, weights, recurrent, hidden, cell, *bias = types
    given = ", ".join(f"{tensor_type.dtype} {tensor_type.shape}" for tensor_type in types)
    if len(data.shape) != 3 or len(hidden.shape) != 2 or data.dtype not in _DTYPES or len(bias) > 1:
        raise ModelError(
            f"lstm: data or hidden state have unsupported types; got {given}, expected data of three axes and "
            f"{', '.join(_DTYPES)}, hidden of two axes, and one bias at most"
        )
    batch, units = hidden.shape
    of_weights, of_cell, of_bias = _DTYPES[data.dtype]
    shapes = [(4 * units, data.shape[2]), (4 * units, units), (batch, units), (batch, units), (4 * units,)]
    dtype_choices = [of_weights, of_weights, (data.dtype,), (of_cell,), (of_bias,)]
    fits = all(t.shape == s and t.dtype in k for t, s, k in zip(types[1:], shapes, dtype_choices, strict=False))
    if not fits or data.shape[1 if attrs["time_major"] else 0] != batch or weights.dtype != recurrent.dtype:
        raise ModelError(
            f"lstm: operands disagree; got {given}, expected data, weights (4 H, D), recurrent weights (4 H, H), "
            f"hidden (B, H), cell (B, H) and bias (4 H,) in the dtypes for {data.dtype}"
        )
    rows = (*data.shape[:2], units)
    return tuple(TensorType(s, k) for s, k in ((rows, data.dtype), (hidden.shape, data.dtype), (cell.shape, of_cell)))


def _evaluate_lstm_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    """Compute a float LSTM over numpy. A quantised LSTM has no reference: its expansion is evaluated instead."""
    data, weights, recurrent, hidden, cell, *bias = (np.asarray(array, np.float64) for array in arrays)
    rows = []
    for x in data if attrs["time_major"] else data.swapaxes(0, 1):
        i, f, g, o = np.split(x @ weights.T + hidden @ recurrent.T + (bias[0] if bias else 0.0), 4, axis=1)
        cell = _sigmoid(f) * cell + _sigmoid(i) * np.tanh(g)
        if attrs["cell_clip"] > 0:
            cell = np.clip(cell, -attrs["cell_clip"], attrs["cell_clip"])
        hidden = _sigmoid(o) * np.tanh(cell)
        rows.append(hidden)
    stacked = np.stack(rows, 0 if attrs["time_major"] else 1)
    return tuple(array.astype(np.float32) for array in (stacked, hidden, cell))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _count_lstm_macs(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    """Return the number of multiply-accumulate operations of the dense layers over all time steps."""
    return types[0].shape[0] * types[0].shape[1] * (types[1].size + types[2].size)


def _make_lstm_test_cases() -> Iterable[Case]:
    for batch, steps, depth, units, time_major, clip in _SHAPES:
        lead = (steps, batch) if time_major else (batch, steps)
        shapes = ((*lead, depth), (4 * units, depth), (4 * units, units), (batch, units), (batch, units), (4 * units,))
        operand_types = tuple(TensorType(shape, "float32") for shape in shapes)
        yield Case({"time_major": time_major, "cell_clip": clip}, operand_types, consts=(1, 2, 5), tolerance=2e-6)
    without = tuple(TensorType(shape, "float32") for shape in ((1, 2, 3), (8, 3), (8, 2), (1, 2), (1, 2)))
    yield Case({}, without, consts=(1, 2), tolerance=2e-6, name="without bias")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "lstm",
        infer=_infer_lstm_types,
        reference=_evaluate_lstm_reference,
        cases=_make_lstm_test_cases,
        attrs={
            "time_major": flag("whether steps are the first axis of the data, else sequences are"),
            "cell_clip": real("what the cell is held within, as a real number; 0: nothing", 0.0),
            "dynamic": DYNAMIC,
            **SURFACE,
        },
        expand=expand_lstm,
        macs=_count_lstm_macs,
        operand_names=("data", "weights", "recurrent", "hidden", "cell", "bias"),
    ),
)
