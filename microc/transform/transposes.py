"""Rules that move transpositions towards the outputs until they cancel, vanish in constants, or stop.

``op(transpose(x))`` becomes ``transpose(op(x))`` for every operator that can work in another order of axes. Nothing is
computed twice, and a rule never writes a transposition where there was none, so moving comes to an end.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from microc.graph.ir import Attr, TensorType
from microc.graph.match import Match, P, Replacement, Rule
from microc.ops.arith import is_quantised_type
from microc.transform.axes import (
    Axes,
    composed,
    inverse,
    keeps_memory,
    padded_shape,
    permuted,
    permuted_type,
    through_reshape,
    transposed_array,
)
from microc.transform.reshapes import element_operands, elementwise_operators

REDUCTIONS = frozenset(("sum", "mean", "max", "min", "prod"))
