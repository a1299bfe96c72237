"""Words of a tensor unit: a coprocessor that loads matrices into memories of its own, multiplies them there and stores sums.

Addresses in its memories (scopes ``unit_input``, ``unit_weight``, ``unit_sums``) are numbers of elements, which C hands on as
they are; other operands are pointers. Instructions wait in three queues, one each for loads, for what computes and for stores.
Within a queue they run in order; between queues nothing is ordered but by tokens: ``unit_signal`` puts tokens behind what its
queue was given so far, ``unit_wait`` takes them before what its queue is given from then on. The processor itself waits by
``unit_barrier`` alone. Run one after the other, as the meanings say, instructions compute what they compute in their queues:
tokens, which mean nothing then, are what makes that so.
"""

from __future__ import annotations

from microc.isa.base import ANY, Intrin
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var
from microc.tir.unit import BARRIER, SIGNAL, WAIT

_INPUT, _WEIGHT, _SUMS = ir.UNIT_SCOPES
_ROWS, _COLUMNS, _DEPTH = Var("rows"), Var("columns"), Var("depth")
_TO_STRIDE, _SOURCE_STRIDE = Var("stride_to"), Var("stride_source")
_R, _C, _K = Var("r"), Var("c"), Var("k")


def _grid(body: Stmt) -> Stmt:
    """For every element of ``rows`` by ``columns``."""
    return ir.For(_R, _ROWS, ir.For(_C, _COLUMNS, body))


def _copy(name: str, to: Buffer, source: Buffer) -> Intrin:
    """``rows`` of ``columns`` elements, whose rows lie ``stride_to`` and ``stride_source`` elements apart."""
    store = ir.Store(to, (_R * _TO_STRIDE + _C,), source[_R * _SOURCE_STRIDE + _C])
    return Intrin(name, (to, source, _ROWS, _COLUMNS, _TO_STRIDE, _SOURCE_STRIDE), _grid(store))


def _set() -> Intrin:
    """``rows`` of ``columns`` sums, ``stride_to`` elements apart, become ``value``."""
    to, value = Buffer("to", (ANY,), "int32", _SUMS), Var("value")
    store = ir.Store(to, (_R * _TO_STRIDE + _C,), value)
    return Intrin("unit_set", (to, value, _ROWS, _COLUMNS, _TO_STRIDE), _grid(store))


def _matmul() -> Intrin:
    """sums[r, c] += input[r, k] * weight[c, k]."""
    sums = Buffer("sums", (ANY,), "int32", _SUMS)
    data, weight = Buffer("input", (ANY,), "int8", _INPUT), Buffer("weight", (ANY,), "int8", _WEIGHT)
    stride = {name: Var(f"stride_{name}") for name in ("sums", "input", "weight")}
    place: tuple[Expr, ...] = (_R * stride["sums"] + _C,)
    product = data[_R * stride["input"] + _K].astype("int32") * weight[_C * stride["weight"] + _K].astype("int32")
    add = ir.For(_K, _DEPTH, ir.Store(sums, place, ir.Load(sums, place) + product))
    params: tuple[Var | Buffer, ...] = (sums, data, weight, _ROWS, _COLUMNS, _DEPTH, *stride.values())
    return Intrin("unit_matmul", params, _grid(add))


def _token(name: str) -> Intrin:
    """``count`` tokens of a kind, ``event``, from the queue ``before`` to the queue ``after``."""
    return Intrin(name, tuple(map(Var, ("before", "after", "event", "count"))), ir.Seq(()))


UNIT_WORDS: tuple[Intrin, ...] = (
    _copy("unit_load_input", Buffer("to", (ANY,), "int8", _INPUT), Buffer("source", (ANY,), "int8")),
    _copy("unit_load_weight", Buffer("to", (ANY,), "int8", _WEIGHT), Buffer("source", (ANY,), "int8")),
    _copy("unit_load_sums", Buffer("to", (ANY,), "int32", _SUMS), Buffer("source", (ANY,), "int32")),
    _set(),
    _matmul(),
    _copy("unit_store_sums", Buffer("to", (ANY,), "int32"), Buffer("source", (ANY,), "int32", _SUMS)),
    _token(SIGNAL),
    _token(WAIT),
    Intrin(BARRIER, (), ir.Seq(())),
)
