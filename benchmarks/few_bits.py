# SPDX-License-Identifier: Apache-2.0
"""What weights of few bits cost: networks as they are, and with weights rounded to 4 or 2 bits, which are packed.

    python benchmarks/few_bits.py [--models kws,ic,ad] [--cores m4,m55,m0,rv32] [--bits 4,2] [--blocks 0] [--optimize balanced]
    python benchmarks/few_bits.py --tables [--models ...] [--cores ...] [--bits ...] [--optimize ...]

Weights of convolutions and dense layers are rounded per channel to -7..7 or -1..1 (``--blocks 32``: each block of 32 inputs to a
multiple of its own, 1 to 15), with the scales that belong to them. ``--tables``: instead each is the nearest of 16 or 4 values of
its channel's own, as TFLite Micro's compressed constants are. Instructions are counted on emulated boards; the outputs must
be what the operators mean. ``weights`` are the bytes of weights, ``flash`` those of the whole firmware; behind each stands its
ratio to the network as it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.operators import agreeing, inputs, run
from benchmarks.tables import CORES, board_of, network_path
from microc.base.dtypes import Array
from microc.compiler.model import read_model
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_graph
from microc.graph.ir import Graph, Node, Quant
from microc.target import Board

PRODUCTS = ("conv2d", "dense")
MOST = 15
"""The largest multiplier of a block."""


TURNS = 8
"""Of moving values to the mean of the weights that are nearest to them."""


def clustered(graph: Graph, bits: int) -> Graph:
    """The network with weights of few values in each channel, whose scales stay."""
    consts = dict(graph.consts)
    for node in _products(graph):
        whole = consts[node.inputs[1]]
        rows = whole.reshape(len(whole), -1).astype(float)
        consts[node.inputs[1]] = np.rint([_nearest(row, bits) for row in rows]).astype(np.int8).reshape(whole.shape)
    return replace(graph, consts=consts)


def _nearest(row: Array, bits: int) -> Array:
    """The nearest of a few values each, by k-means from quantiles on."""
    values = np.quantile(row, (np.arange(1 << bits) + 0.5) / (1 << bits))
    for _ in range(TURNS):
        nearest = np.abs(row[:, None] - values).argmin(axis=1)
        values = np.array([row[nearest == k].mean() if (nearest == k).any() else v for k, v in enumerate(values)])
    return values[nearest]


def _products(graph: Graph) -> Iterator[Node]:
    """Those by constant int8 weights with scales."""
    for node in graph.nodes:
        kind = graph.types.get(node.inputs[1]) if node.op in PRODUCTS else None
        if kind is not None and node.inputs[1] in graph.consts and kind.quant is not None and kind.dtype == "int8":
            yield node


def rounded(graph: Graph, bits: int, block: int = 0) -> Graph:
    """The network with weights of few bits: their scales grow as the numbers shrink, biases follow."""
    consts, types = dict(graph.consts), dict(graph.types)
    for node in _products(graph):
        name = node.inputs[1]
        kind = types[name]
        rows = graph.consts[name].reshape(kind.shape[0], -1).astype(float)
        few, factor = _few(rows, bits, block)
        consts[name] = few.reshape(kind.shape).astype(np.int8)
        types[name] = replace(kind, quant=_scaled(kind.quant, factor))
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        if bias in graph.consts and (quant := types[bias].quant) is not None:
            consts[bias] = np.rint(graph.consts[bias].reshape(-1) / factor).astype(graph.consts[bias].dtype)
            types[bias] = replace(types[bias], quant=_scaled(quant, factor))
    return replace(graph, consts=consts, types=types)


def _scaled(quant: Quant, factor: Array) -> Quant:
    """The scales of channels whose numbers were divided."""
    return Quant(tuple(float(s) for s in np.array(quant.scale) * factor), (0,) * len(factor), 0)


def _few(rows: Array, bits: int, block: int) -> tuple[Array, Array]:
    """Rows as products of few bits and multipliers of blocks, and what each row was divided by."""
    most = (1 << (bits - 1)) - 1
    factor = np.maximum(np.abs(rows).max(axis=1), 1) / (most * (MOST if block else 1))
    if not block:
        return np.clip(np.rint(rows / factor[:, None]), -most, most), factor
    depth = rows.shape[1]
    scaled = np.pad(rows / factor[:, None], ((0, 0), (0, -depth % block))).reshape(len(rows), -1, block)
    multiplier = np.clip(np.ceil(np.abs(scaled).max(axis=2, keepdims=True) / most), 1, MOST)
    few = np.clip(np.rint(scaled / multiplier), -most, most) * multiplier
    return few.reshape(len(rows), -1)[:, :depth], factor


@dataclass(frozen=True)
class Figures:
    """Of a network: instructions of one inference, bytes of weights and of the firmware, whether its outputs are right."""

    instructions: int
    weights: int
    flash: int
    right: bool
    layers: tuple[tuple[str, int, str], ...]


def measure(graph: Graph, board: Board, optimize: str) -> Figures:
    """Compile, build, boot, run once on random data."""
    module = compile_graph(graph, graph.name, board.target, make_options(optimize=optimize))
    data = inputs(graph)
    counts, sizes, got = run(module, board, data)
    stored = (v for v in module.values.values() if v.storage == "const" and v.label.endswith("_weight"))
    layers = tuple((c.layer, n, c.rule) for c, n in zip(module.calls, counts, strict=True))
    return Figures(sum(counts), sum(v.nbytes for v in stored), sizes.flash, all(agreeing(graph, data, got)), layers)


def rows(name: str, graph: Graph, core: str, options: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    """A line for every form of the weights, and whether its outputs are right."""
    board, plain = board_of(CORES[core]), None
    forms = [(int(bits), int(block)) for bits in options.bits.split(",") for block in options.blocks.split(",")]
    fewer = (lambda graph, bits, _: clustered(graph, bits)) if options.tables else rounded
    for bits, block in ((8, 0), *forms):
        print(f"{name}, {bits} bits, on {core} ...", file=sys.stderr, flush=True)
        found = measure(graph if bits == 8 else fewer(graph, bits, block), board, options.optimize)
        plain = plain or found
        cells = (
            f"{getattr(found, what):>12,} {getattr(found, what) / getattr(plain, what):5.2f}"
            for what in ("instructions", "weights", "flash")
        )
        yield (
            f"{name:10}{core:7}{bits:>4}{block or '':>6} {' '.join(cells)}{'' if found.right else '  WRONG'}",
            found.right,
        )
        if options.layers:
            yield from ((f"    {n:>12,}  {layer[-40:]}; {rule}", True) for layer, n, rule in found.layers)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="kws,ic,ad", help="int8 networks of MLPerf Tiny")
    parser.add_argument("--cores", default="m4,m55,m0,rv32", help=f"of {','.join(CORES)}")
    parser.add_argument("--bits", default="4,2")
    parser.add_argument("--blocks", default="0", help="inputs that share a multiplier: of 0 (none), 16, 32, 64")
    parser.add_argument("--tables", action="store_true", help="weights of few values in each channel instead")
    parser.add_argument("--optimize", choices=("speed", "size", "balanced"), default="balanced")
    parser.add_argument("--layers", action="store_true", help="show every layer")
    options = parser.parse_args()
    head = " ".join(f"{what:>12} {'ratio':>5}" for what in ("instructions", "weights", "flash"))
    print(f"{'model':10}{'core':7}{'bits':>4}{'block':>6} {head}")
    right = True
    for model in options.models.split(","):
        graph = read_model(network_path(model), make_options())
        for core in options.cores.split(","):
            for line, good in rows(model, graph, core, options):
                print(line, flush=True)
                right = right and good
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
