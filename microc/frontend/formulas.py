"""Functions that are no operator of ours, spelled with several: one library for the readers of all formats.

A formula takes what writes operators, :func:`composer`, and gives the name of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from microc import dtypes
from microc.frontend.graph_builder import Emitter
from microc.graph.ir import Attr

Compose = Callable[..., str]
"""``compose(op, *operands, **attributes)``; numbers among the operands become constants of the dtype of the last other one."""


def composer(write: Emitter) -> Compose:
    """Short names for writing formulas."""

    def compose(op: str, *operands: str | float, **attrs: Attr) -> str:
        dtype = dtypes.to_numpy(write.type([o for o in operands if isinstance(o, str)][-1]).dtype)
        names = [o if isinstance(o, str) else write.new_constant("number", np.array(o, dtype)) for o in operands]
        return write.emit(op, names, attrs)

    return compose


def line(make: Compose, x: str, alpha: float, beta: float) -> str:
    """alpha x + beta."""
    return make("add", make("mul", x, alpha), beta)


def hard_sigmoid(make: Compose, x: str, alpha: float = 1 / 6, beta: float = 0.5) -> str:
    """min(max(alpha x + beta, 0), 1)."""
    return make("clip", line(make, x, alpha, beta), minimum=0.0, maximum=1.0)


def scaled_tanh(make: Compose, x: str, alpha: float, beta: float) -> str:
    """alpha tanh(beta x)."""
    return make("mul", make("tanh", make("mul", x, beta)), alpha)


def gelu(make: Compose, x: str, approximate: bool = False) -> str:
    """x / 2 (1 + erf(x / sqrt 2)), or the approximation with tanh."""
    if approximate:
        cube = make("mul", make("mul", x, x), x)
        bent = make("tanh", make("mul", make("add", x, make("mul", cube, 0.044715)), math.sqrt(2 / math.pi)))
    else:
        bent = make("erf", make("mul", x, math.sqrt(0.5)))
    return make("mul", make("mul", x, 0.5), make("add", bent, 1.0))


def selu(make: Compose, x: str, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323) -> str:
    """gamma elu(x, alpha)."""
    return make("mul", make("elu", x, alpha=alpha), gamma)


def celu(make: Compose, x: str, alpha: float) -> str:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1))."""
    return make("mul", make("elu", make("div", x, alpha), alpha=1.0), alpha) if alpha > 0 else x


def softsign(make: Compose, x: str) -> str:
    """x / (1 + |x|)."""
    return make("div", x, make("add", make("abs", x), 1.0))


def mish(make: Compose, x: str) -> str:
    """x tanh(softplus(x))."""
    return make("mul", x, make("tanh", make("softplus", x)))


def swish(make: Compose, x: str, alpha: float = 1.0) -> str:
    """x sigmoid(alpha x)."""
    return make("mul", x, make("sigmoid", x if alpha == 1.0 else make("mul", x, alpha)))


def thresholded_relu(make: Compose, x: str, alpha: float) -> str:
    """x above alpha, else 0."""
    return make("where", make("greater", x, alpha), x, 0.0)


def shrink(make: Compose, x: str, bias: float, lambd: float) -> str:
    """x brought nearer to 0 by ``bias`` outside of -lambd..lambd, else 0."""
    low = make("where", make("less", x, -lambd), make("add", x, bias), 0.0)
    return make("where", make("greater", x, lambd), make("sub", x, bias), low)


def reciprocal(make: Compose, x: str) -> str:
    """1 / x."""
    return make("div", 1.0, x)
