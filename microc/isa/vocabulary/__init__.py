"""The neutral vocabulary: intrinsics by what they compute, which floors below the instruction sets speak, and the small loop
nests that they replace. None knows an instruction."""

from __future__ import annotations

from microc.isa.base import Intrin
from microc.isa.tensor import TensorIntrin
from microc.isa.vocabulary.correlation import CORRELATIONS
from microc.isa.vocabulary.float_lanes import FLOAT_LANES
from microc.isa.vocabulary.half_products import HALF_PRODUCTS, HALF_RUNS
from microc.isa.vocabulary.half_windows import WINDOWS
from microc.isa.vocabulary.lanes import LANEWISE
from microc.isa.vocabulary.pairs import PAIRS
from microc.isa.vocabulary.products import PRODUCTS
from microc.isa.vocabulary.scalable import SCALABLE
from microc.isa.vocabulary.scalars import SCALARS
from microc.isa.vocabulary.sums import SUMS
from microc.isa.vocabulary.unit import UNIT_WORDS
from microc.isa.vocabulary.words import WORDS

INTRINSICS: tuple[Intrin, ...] = (
    *WORDS,
    *SCALARS,
    *PAIRS,
    *LANEWISE,
    *FLOAT_LANES,
    *SCALABLE,
    *PRODUCTS,
    *HALF_PRODUCTS,
    *WINDOWS,
    *HALF_RUNS,
    *UNIT_WORDS,
)
TENSORS: tuple[TensorIntrin, ...] = (*SUMS, *CORRELATIONS)
