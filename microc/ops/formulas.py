# SPDX-License-Identifier: Apache-2.0
"""Functions that are no operators of ours, each emitted as several operators; and activation functions by name.

Readers emit formulas into the graph, recurrent layers into the bodies of their loops. A formula takes a function that
appends an operator, and returns the name of its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from microc.base.immutable import frozen

OperatorEmitter = Callable[..., str]
"""``emit(op, *operands, **attributes)``; numbers among the operands become constants of the last other operand's
dtype."""


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


# ---- Activation functions by name, for recurrent layers and for layers with a fused activation.


@frozen
class ActivationFunction:
    """Activation function: ``emit(append_operator, x, *parameters)`` emits it and returns the result's name.

    ``parameters``: names of the parameters, which are numbers."""

    emit: Callable[..., str]
    parameters: tuple[str, ...] = ()


def _make_operator_function(op: str, **attrs: float) -> ActivationFunction:
    """Return the activation function that is the single operator ``op``."""
    return ActivationFunction(lambda emit, x: emit(op, x, **attrs))


ACTIVATION_FUNCTIONS: Mapping[str, ActivationFunction] = MappingProxyType(
    {
        "affine": ActivationFunction(emit_affine, ("alpha", "beta")),
        "elu": ActivationFunction(lambda emit, x, alpha: emit("elu", x, alpha=alpha), ("alpha",)),
        "exp": _make_operator_function("exp"),
        "gelu": ActivationFunction(emit_gelu),
        "hard_sigmoid": ActivationFunction(emit_hard_sigmoid, ("alpha", "beta")),
        "hard_swish": _make_operator_function("hard_swish"),
        "leaky_relu": ActivationFunction(lambda emit, x, alpha: emit("leaky_relu", x, alpha=alpha), ("alpha",)),
        "linear": ActivationFunction(lambda emit, x: x),
        "mish": ActivationFunction(emit_mish),
        "relu": _make_operator_function("relu"),
        "relu6": _make_operator_function("clip", minimum=0.0, maximum=6.0),
        "relu_n1_to_1": _make_operator_function("clip", minimum=-1.0, maximum=1.0),
        "scaled_tanh": ActivationFunction(emit_scaled_tanh, ("alpha", "beta")),
        "selu": ActivationFunction(emit_selu),
        "sigmoid": _make_operator_function("sigmoid"),
        "softmax": _make_operator_function("softmax", axis=-1),
        "softplus": _make_operator_function("softplus"),
        "softsign": ActivationFunction(emit_softsign),
        "swish": ActivationFunction(emit_swish),
        "tanh": _make_operator_function("tanh"),
        "thresholded_relu": ActivationFunction(emit_thresholded_relu, ("alpha",)),
    }
)
"""Activation functions by name."""
