"""Formulas of functions, and loops over time, as several operators; shared by all readers."""

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
# A formula takes a function that writes operators (:func:`composer`), and returns the name of its result.

Compose = Callable[..., str]
"""``compose(op, *operands, **attributes)``; numbers among the operands become constants of the last other operand's dtype."""


def composer(write: Emitter) -> Compose:
    """Return a function for formulas that appends an operator to ``write`` and returns the name of its result."""

    def compose(op: str, *operands: str | float, **attrs: Attr) -> str:
        dtype = dtypes.to_numpy(write.type([o for o in operands if isinstance(o, str)][-1]).dtype)
        names = [o if isinstance(o, str) else write.new_constant("number", np.array(o, dtype)) for o in operands]
        return write.emit(op, names, attrs)

    return compose


def affine_function(make: Compose, x: str, alpha: float, beta: float) -> str:
    """Return alpha x + beta."""
    return make("add", make("mul", x, alpha), beta)


def hard_sigmoid(make: Compose, x: str, alpha: float = 1 / 6, beta: float = 0.5) -> str:
    """Return min(max(alpha x + beta, 0), 1)."""
    return make("clip", affine_function(make, x, alpha, beta), minimum=0.0, maximum=1.0)


def scaled_tanh(make: Compose, x: str, alpha: float, beta: float) -> str:
    """Return alpha tanh(beta x)."""
    return make("mul", make("tanh", make("mul", x, beta)), alpha)


def gelu(make: Compose, x: str, approximate: bool = False) -> str:
    """Return x / 2 (1 + erf(x / sqrt 2)), or the approximation with tanh."""
    if approximate:
        cube = make("mul", make("mul", x, x), x)
        inner = make("tanh", make("mul", make("add", x, make("mul", cube, 0.044715)), math.sqrt(2 / math.pi)))
    else:
        inner = make("erf", make("mul", x, math.sqrt(0.5)))
    return make("mul", make("mul", x, 0.5), make("add", inner, 1.0))


def selu(make: Compose, x: str, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323) -> str:
    """Return gamma elu(x, alpha)."""
    return make("mul", make("elu", x, alpha=alpha), gamma)


def celu(make: Compose, x: str, alpha: float) -> str:
    """Return max(0, x) + min(0, alpha (exp(x / alpha) - 1))."""
    return make("mul", make("elu", make("div", x, alpha), alpha=1.0), alpha) if alpha > 0 else x


def softsign(make: Compose, x: str) -> str:
    """Return x / (1 + abs(x))."""
    return make("div", x, make("add", make("abs", x), 1.0))


def mish(make: Compose, x: str) -> str:
    """Return x tanh(softplus(x))."""
    return make("mul", x, make("tanh", make("softplus", x)))


def swish(make: Compose, x: str, alpha: float = 1.0) -> str:
    """Return x sigmoid(alpha x)."""
    return make("mul", x, make("sigmoid", x if alpha == 1.0 else make("mul", x, alpha)))


def thresholded_relu(make: Compose, x: str, alpha: float) -> str:
    """Return x where it is above alpha, else 0."""
    return make("where", make("greater", x, alpha), x, 0.0)


def shrink(make: Compose, x: str, bias: float, lambd: float) -> str:
    """Return x moved towards 0 by ``bias`` outside of -lambd..lambd, else 0."""
    low = make("where", make("less", x, -lambd), make("add", x, bias), 0.0)
    return make("where", make("greater", x, lambd), make("sub", x, bias), low)


def reciprocal(make: Compose, x: str) -> str:
    """Return 1 / x."""
    return make("div", 1.0, x)


# ---- Recurrent layers: one loop over the sequence, whatever the number of steps.

State = tuple[str, ...]
Step = Callable[[GraphBuilder, str, State], State]
"""Writes a step into a loop's body: from its input (N, G) and the old state to the new state, whose first value is the
row."""


@frozen
class Gates:
    """Weights of a recurrent layer's input for all gates: ``weight`` (G, C), and optionally ``bias`` (G)."""

    weight: Array
    bias: Array | None = None

    def of(self, write: GraphBuilder, rows: str) -> str:
        """Append the input products of all gates, (M, G), for rows (M, C); return their name."""
        operands = [write.new_constant("weight", self.weight)]
        operands += [] if self.bias is None else [write.new_constant("bias", self.bias)]
        return write.emit("dense", (rows, *operands))


def precomputes_input_products(steps: int, width: int, depth: int) -> bool:
    """Test whether the input products of a recurrent layer are computed for all steps before the loop.

    They are if they (``width`` numbers a step) take no more memory than the data (``depth`` numbers a step)."""
    return steps > 1 and width <= depth


def run_over_time(
    write: GraphBuilder,
    data: str,
    gates: Gates,
    state: Sequence[str],
    step: Step,
    *,
    backwards: bool = False,
    rows: bool = True,
) -> tuple[str, State]:
    """Append a loop that runs a recurrent layer's ``step`` for every time step of ``data`` (T, N, C).

    The step takes the gates' input products. ``backwards``: the last time step comes first. Return the rows (T, N, U) in the
    order of computation (empty unless ``rows``), and the last state."""
    (count, batch, depth), width = write.shape(data), len(gates.weight)
    products_first = precomputes_input_products(count, width, depth)
    if products_first:
        flat = gates.of(write, write.reshape(data, (count * batch, depth)))
        data = write.reshape(flat, (count, batch, width))
    body = GraphBuilder(write.loc.file)
    body.at(write.loc.index, write.loc.name)
    step_index = body.input("turn", (), "int32")
    old = tuple(body.input(f"state_{k}", write.shape(value)) for k, value in enumerate(state))
    sequence = body.input("data", write.shape(data))
    if backwards:
        step_index = body.emit("sub", (body.new_constant("last", np.array(count - 1, np.int32)), step_index))
    step_data = body.emit("gather", (sequence, step_index), {"axis": 0})
    new = step(body, step_data if products_first else gates.of(body, step_data), old)
    results = {f"next_{k}": value for k, value in enumerate(new)} | ({"row": new[0]} if rows else {})
    attrs: Mapping[str, Attr] = {"body": body.graph("step", results), "count": count, "carried": len(old)}
    results_of_loop = write.emit_all("loop", (*state, data), attrs)
    return results_of_loop[len(old)] if rows else "", results_of_loop[: len(old)]


def swap_batch_and_time(write: GraphBuilder, value: str) -> str:
    """Swap the first two axes, batch and time, of a value (A, B, C)."""
    first, second, width = write.shape(value)
    if min(first, second) == 1:
        return write.reshape(value, (second, first, width))
    return write.emit("transpose", (value,), {"axes": (1, 0, 2)})


def slice_gate(write: GraphBuilder, value: str, index: int, units: int) -> str:
    """Slice gate ``index`` from the sums of all gates, which lie side by side, (N, U) each."""
    attrs = {"begin": (0, index * units), "end": (write.shape(value)[0], (index + 1) * units), "strides": (1, 1)}
    return write.emit("slice", (value,), attrs)
