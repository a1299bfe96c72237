"""Words of the vocabulary on vectors whose lanes a machine decides on: what the lowering of loops to strips
(``tir/lower/lanes.py``) makes.

``<name>_i32xvscalex16`` is ``<name>_i32x16`` for the first ``vl`` lanes of vectors that have 16 or a multiple of it, and nothing
is known of the others. These vectors have more words: ``mac`` adds products, ``mac_short`` those of
vectors of int16, ``right`` shifts to the right by 0 to 31 places,
rounding half up as ``right_round``, ``min_n`` and ``max_n`` take a number for all lanes, ``store_saturated`` clamps.
``vector_length_x16(n)``: the lanes that a turn takes of n that are left, at least one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from microc import dtypes
from microc.isa.base import LANE, VL, Intrin, vector
from microc.isa.vocabulary.float_lanes import floats
from microc.isa.vocabulary.lanes import MEMORY, arithmetic, memory, wrapping
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Var
from microc.tir.lower.lane_operations import SATURATED, SCALABLE_NUMBERS
from microc.tir.lower.lane_scope import SHORT
from microc.tir.strips import LENGTH

LEAST = (16, 32)
"""Lanes of 32 bits that the shortest vectors have: four and eight registers of 128 bits."""
_A, _B, _C, _N = (Var(name) for name in "abcn")
_PLACES = (("b", 0, 31),)
_ROUNDED = (_A.astype("int64") + ((ir.const(1, "int64") << _B.astype("int64")) >> 1) >> _B.astype("int64")).astype(
    "int32"
)
_RIGHT: Mapping[str, Expr] = MappingProxyType({"right": _A >> _B, "right_round": _ROUNDED})


def _scalable(lanes: int) -> Iterator[Intrin]:
    for word in (*arithmetic(lanes), *memory(lanes), *floats(lanes), *_more(lanes)):
        if not word.name.endswith("_first"):
            name = word.name.replace(f"x{lanes}", f"xvscalex{lanes}")
            params = (*(_wide(p, lanes) for p in word.params), VL)
            yield replace(word, name=name, params=params, scalable=True)
    yield Intrin(f"{LENGTH}{lanes}", (_N,), ir.minimum(_N, lanes))


def _more(lanes: int) -> Iterator[Intrin]:
    """Words that vectors of a length known before do without."""
    end = vector("i32", lanes)
    a, b, c = (Var(name, vector("int32", lanes)) for name in "abc")
    yield Intrin(f"neg_{end}", (a,), wrapping("sub", ir.const(0, "int32"), _A), lanes)
    yield Intrin(f"mac_{end}", (a, b, c), wrapping("add", _A, wrapping("mul", _B, _C)), lanes)
    yield from _short(lanes)
    for name, meaning in _RIGHT.items():
        yield Intrin(f"{name}_{end}", (a, b), meaning, lanes, _PLACES)
        yield Intrin(f"{name}_n_{end}", (a, _B), meaning, lanes, _PLACES)
    for name in SCALABLE_NUMBERS:
        yield Intrin(f"{name}_n_{end}", (a, _B), ir.binary(name, _A, _B), lanes)
    for dtype in SATURATED:
        p = Buffer("p", (lanes,), dtype)
        stored = ir.Store(p, (LANE,), ir.cast(dtype, ir.clamp(_A, *dtypes.int_range(dtype))))
        yield Intrin(f"store_saturated_{MEMORY[dtype]}_{end}", (p, a), stored, lanes)


def _short(lanes: int) -> Iterator[Intrin]:
    """Factors of 16 bits."""
    a, b, c = Var("a", vector("int32", lanes)), Var("b", vector(SHORT, lanes)), Var("c", vector(SHORT, lanes))
    for dtype in ("int8", "uint8", SHORT):
        p = Buffer("p", (lanes,), dtype)
        yield Intrin(f"load_{MEMORY[dtype]}_{vector('i16', lanes)}", (p,), ir.cast(SHORT, p[LANE]), lanes)
    product = Var("b", SHORT).astype("int32") * Var("c", SHORT).astype("int32")
    yield Intrin(f"mac_short_{vector('i32', lanes)}", (a, b, c), wrapping("add", _A, product), lanes)
    scaled = Var("b", SHORT).astype("int32") * _N
    yield Intrin(
        f"mac_short_n_{vector('i32', lanes)}",
        (a, b, _N),
        wrapping("add", _A, scaled),
        lanes,
        (("n", -(1 << 15), (1 << 15) - 1),),
    )


def _wide(param: Var | Buffer, lanes: int) -> Var | Buffer:
    if isinstance(param, Buffer) or not dtypes.is_vector(param.dtype):
        return param
    return Var(param.name, vector(param.dtype.partition("x")[0], lanes, scalable=True))


SCALABLE = tuple(each for lanes in LEAST for each in _scalable(lanes))
