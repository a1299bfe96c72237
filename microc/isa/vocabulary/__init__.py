# SPDX-License-Identifier: Apache-2.0
"""The machine-independent vocabulary: intrinsics, defined by their meanings in TIR without any instruction, and
tensor intrinsics, which replace small loop nests. Schedules and lowering use these names; instruction sets implement
them."""

from __future__ import annotations

from microc.isa.instruction_set import Intrin, TensorIntrin
from microc.isa.vocabulary.matrix_products import (
    CORRELATIONS,
    HALF_PRODUCTS,
    HALF_RUNS,
    PRODUCTS,
    REQUANTISATIONS,
    TWICE_ROUNDINGS,
    UNIT_WORDS,
    WINDOWS,
)
from microc.isa.vocabulary.scalar_words import PAIRS, SCALARS, SUMS, WORDS
from microc.isa.vocabulary.vector_lanes import FLOAT_LANES, LANEWISE, SCALABLE

INTRINSICS: tuple[Intrin, ...] = (
    *WORDS,
    *SCALARS,
    *PAIRS,
    *LANEWISE,
    *FLOAT_LANES,
    *SCALABLE,
    *PRODUCTS,
    *REQUANTISATIONS,
    *TWICE_ROUNDINGS,
    *HALF_PRODUCTS,
    *WINDOWS,
    *HALF_RUNS,
    *UNIT_WORDS,
)
TENSORS: tuple[TensorIntrin, ...] = (*SUMS, *CORRELATIONS)
