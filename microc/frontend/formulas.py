"""Functions that emit a mathematical function as several graph operators, or a recurrent layer as a loop over time.

The readers of all model formats use them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.graph_builder import Emitter, GraphBuilder
from microc.graph.ir import Attr

# ---- Functions that are no operators of ours, composed of several.
#
# A formula takes a function that writes operators (:func:`make_operator_emitter`), and returns the name of its result.

OperatorEmitter = Callable[..., str]
"""``emit(op, *operands, **attributes)``; numbers among the operands become constants of the last other operand's
dtype."""


def make_operator_emitter(emitter: Emitter) -> OperatorEmitter:
    """Return a function ``append_operator(op, *operands, **attributes)``, which the formulas of this module call.

    It appends the operator ``op`` to the graph of ``emitter`` and returns the name of the result. Numbers among the
    operands become constants."""

    def append_operator(op: str, *operands: str | float, **attrs: Attr) -> str:
        dtype = dtypes.to_numpy(emitter.type([o for o in operands if isinstance(o, str)][-1]).dtype)
        names = [o if isinstance(o, str) else emitter.new_constant("number", np.array(o, dtype)) for o in operands]
        return emitter.emit(op, names, attrs)

    return append_operator


def emit_affine(emit: OperatorEmitter, x: str, alpha: float, beta: float) -> str:
    """Emit alpha * x + beta; return the result's name."""
    return emit("add", emit("mul", x, alpha), beta)


def emit_hard_sigmoid(emit: OperatorEmitter, x: str, alpha: float = 1 / 6, beta: float = 0.5) -> str:
    """Emit min(max(alpha * x + beta, 0), 1); return the result's name."""
    return emit("clip", emit_affine(emit, x, alpha, beta), minimum=0.0, maximum=1.0)


def emit_scaled_tanh(emit: OperatorEmitter, x: str, alpha: float, beta: float) -> str:
    """Emit alpha * tanh(beta * x); return the result's name."""
    return emit("mul", emit("tanh", emit("mul", x, beta)), alpha)


def emit_gelu(emit: OperatorEmitter, x: str, approximate: bool = False) -> str:
    """Emit x / 2 * (1 + erf(x / sqrt(2))), or its approximation by tanh; return the result's name."""
    if approximate:
        cube = emit("mul", emit("mul", x, x), x)
        inner = emit("tanh", emit("mul", emit("add", x, emit("mul", cube, 0.044715)), math.sqrt(2 / math.pi)))
    else:
        inner = emit("erf", emit("mul", x, math.sqrt(0.5)))
    return emit("mul", emit("mul", x, 0.5), emit("add", inner, 1.0))


def emit_selu(
    emit: OperatorEmitter, x: str, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323
) -> str:
    """Emit gamma * elu(x, alpha); return the result's name."""
    return emit("mul", emit("elu", x, alpha=alpha), gamma)


def emit_celu(emit: OperatorEmitter, x: str, alpha: float) -> str:
    """Emit max(0, x) + min(0, alpha * (exp(x / alpha) - 1)); return the result's name.

    If alpha is not positive, nothing is emitted and x is returned."""
    return emit("mul", emit("elu", emit("div", x, alpha), alpha=1.0), alpha) if alpha > 0 else x


def emit_softsign(emit: OperatorEmitter, x: str) -> str:
    """Emit x / (1 + abs(x)); return the result's name."""
    return emit("div", x, emit("add", emit("abs", x), 1.0))


def emit_mish(emit: OperatorEmitter, x: str) -> str:
    """Emit x * tanh(softplus(x)); return the result's name."""
    return emit("mul", x, emit("tanh", emit("softplus", x)))


def emit_swish(emit: OperatorEmitter, x: str, alpha: float = 1.0) -> str:
    """Emit x * sigmoid(alpha * x); return the result's name."""
    return emit("mul", x, emit("sigmoid", x if alpha == 1.0 else emit("mul", x, alpha)))


def emit_thresholded_relu(emit: OperatorEmitter, x: str, alpha: float) -> str:
    """Emit x for elements greater than alpha, 0 for other elements; return the result's name."""
    return emit("where", emit("greater", x, alpha), x, 0.0)


def emit_shrink(emit: OperatorEmitter, x: str, bias: float, lambd: float) -> str:
    """Emit x + bias for elements less than -lambd, x - bias for elements greater than lambd, 0 for others; return the
    result's name."""
    low = emit("where", emit("less", x, -lambd), emit("add", x, bias), 0.0)
    return emit("where", emit("greater", x, lambd), emit("sub", x, bias), low)


def emit_reciprocal(emit: OperatorEmitter, x: str) -> str:
    """Emit 1 / x; return the result's name."""
    return emit("div", 1.0, x)


# ---- Recurrent layers: one loop over the sequence, whatever the number of steps.

State = tuple[str, ...]
StepEmitter = Callable[[GraphBuilder, str, State], State]
"""Writes a step into a loop's body: from its input (N, G) and the old state to the new state, whose first value is the
row."""


@frozen
class GateWeights:
    """Weights that multiply the input of a recurrent layer, for all gates in one matrix.

    ``weight`` has the shape (G, C), with G = gates * units and C input channels. ``bias`` has the shape (G), or is
    None."""

    weight: Array
    bias: Array | None = None

    def emit_gate_products(self, builder: GraphBuilder, rows: str) -> str:
        """Emit a dense layer that computes all gates for ``rows`` (M, C); return the name of its result (M, G)."""
        operands = [builder.new_constant("weight", self.weight)]
        operands += [] if self.bias is None else [builder.new_constant("bias", self.bias)]
        return builder.emit("dense", (rows, *operands))


def should_precompute_input_products(step_count: int, gate_width: int, data_width: int) -> bool:
    """Test whether a recurrent layer should multiply all time steps' inputs by the gates' weights before its loop.

    It should if there are several time steps, and the products of one step (``gate_width`` numbers) take no more memory
    than its input (``data_width`` numbers)."""
    return step_count > 1 and gate_width <= data_width


def emit_loop_over_time(
    builder: GraphBuilder,
    data: str,
    input_gates: GateWeights,
    initial_state: Sequence[str],
    emit_step: StepEmitter,
    *,
    backwards: bool = False,
    returns_rows: bool = True,
) -> tuple[str, State]:
    """Emit a ``loop`` whose body, written by ``emit_step``, computes one time step of ``data`` (T, N, C).

    ``emit_step`` receives the products of the step's input and the gates' weights, and the old state. ``backwards``:
    the loop begins with the last time step. Return the names of the outputs of all steps (T, N, units), in the order of
    computation, and of the final state. The first name is empty unless ``returns_rows``."""
    (count, batch, depth), width = builder.shape(data), len(input_gates.weight)
    products_first = should_precompute_input_products(count, width, depth)
    if products_first:
        flat = input_gates.emit_gate_products(builder, builder.reshape(data, (count * batch, depth)))
        data = builder.reshape(flat, (count, batch, width))
    body = GraphBuilder(builder.loc.file)
    body.at(builder.loc.index, builder.loc.name)
    step_index = body.input("turn", (), "int32")
    old = tuple(body.input(f"state_{k}", builder.shape(value)) for k, value in enumerate(initial_state))
    sequence = body.input("data", builder.shape(data))
    if backwards:
        step_index = body.emit("sub", (body.new_constant("last", np.array(count - 1, np.int32)), step_index))
    step_data = body.emit("gather", (sequence, step_index), {"axis": 0})
    new = emit_step(body, step_data if products_first else input_gates.emit_gate_products(body, step_data), old)
    results = {f"next_{k}": value for k, value in enumerate(new)} | ({"row": new[0]} if returns_rows else {})
    attrs: Mapping[str, Attr] = {"body": body.graph("step", results), "count": count, "carried": len(old)}
    results_of_loop = builder.emit_all("loop", (*initial_state, data), attrs)
    return results_of_loop[len(old)] if returns_rows else "", results_of_loop[: len(old)]


def swap_batch_and_time(builder: GraphBuilder, value: str) -> str:
    """Swap the first two axes, batch and time, of ``value`` (A, B, C); return the name of the result."""
    first, second, width = builder.shape(value)
    if min(first, second) == 1:
        return builder.reshape(value, (second, first, width))
    return builder.emit("transpose", (value,), {"axes": (1, 0, 2)})


def slice_gate(builder: GraphBuilder, gate_sums: str, gate_index: int, unit_count: int) -> str:
    """Slice the sums of one gate (N, ``unit_count``) from ``gate_sums``; return the name of the slice.

    ``gate_sums``: name of the sums of all gates, concatenated along the last axis."""
    attrs = {
        "begin": (0, gate_index * unit_count),
        "end": (builder.shape(gate_sums)[0], (gate_index + 1) * unit_count),
        "strides": (1, 1),
    }
    return builder.emit("slice", (gate_sums,), attrs)
