# SPDX-License-Identifier: Apache-2.0
"""Random search for a keyword spotter that a board can afford: ``microc.cost`` judges each candidate before any training."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np

import microc
from microc.graph.ir import Quant

FRAMES, COEFFICIENTS, WORDS = 49, 10, 12
"""The input of MLPerf Tiny's keyword spotting, a second of speech as 49 frames of 10 coefficients, and its classes."""


@dataclass(frozen=True)
class Candidate:
    """A network of depthwise separable convolutions: channels and stride of the first layer, channels of each block."""

    first: int
    stride: int
    blocks: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.first} channels, stride {self.stride}, blocks {'-'.join(map(str, self.blocks))}"


def draw(rng: np.random.Generator) -> Candidate:
    """Draw a candidate at random."""
    channels = [8 * int(n) for n in rng.integers(2, 13, int(rng.integers(2, 6)))]
    return Candidate(8 * int(rng.integers(2, 13)), int(rng.integers(1, 3)), tuple(channels))


def build(candidate: Candidate) -> microc.Graph:
    """Build the network of a candidate in int8. Its weights are random: costs follow from shapes."""
    builder, rng = microc.GraphBuilder("keywords"), np.random.default_rng(0)

    def layer(op: str, x: str, shape: tuple[int, ...], **attributes: object) -> str:
        weight = builder.new_constant("weight", rng.integers(-127, 128, shape).astype(np.int8))
        builder.set_quant(weight, Quant((0.01,) * shape[0], (0,) * shape[0], 0))
        bias = builder.new_constant("bias", np.zeros(shape[0], np.int32))
        builder.set_quant(bias, Quant((0.0005,) * shape[0], (0,) * shape[0], 0))
        return builder.set_quant(builder.emit(op, (x, weight, bias), attributes), Quant((0.05,), (-128,)), "int8")

    x = builder.input("mfcc", (1, FRAMES, COEFFICIENTS, 1), "int8", Quant((0.05,), (0,)))
    strides, channels = (candidate.stride, candidate.stride), candidate.first
    x = layer("conv2d", x, (channels, 10, 4, 1), padding=(4, 1, 5, 2), strides=strides)
    for wider in candidate.blocks:
        x = layer("conv2d", x, (channels, 3, 3, 1), padding=(1, 1, 1, 1), groups=channels)
        x = layer("conv2d", x, (wider, 1, 1, channels))
        channels = wider
    x = builder.set_quant(
        builder.emit("mean", (x,), {"axes": (1, 2), "keepdims": False}), Quant((0.05,), (-128,)), "int8"
    )
    x = layer("dense", x, (WORDS, channels))
    return builder.graph("keywords", {"scores": x})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--board", default="arduino-nano33ble")
    parser.add_argument("--candidates", type=int, default=200)
    parser.add_argument("--flash", type=int, default=64, help="KB that the firmware may take")
    parser.add_argument("--ram", type=int, default=24, help="KB")
    parser.add_argument("--milliseconds", type=float, default=100.0, help="of one inference")
    options = parser.parse_args()
    rng, start = np.random.default_rng(1), time.process_time()
    fitting = []
    for _ in range(options.candidates):
        candidate = draw(rng)
        cost = microc.cost(build(candidate), options.board)
        if (
            cost.flash <= 1024 * options.flash
            and cost.ram <= 1024 * options.ram
            and (cost.milliseconds or 0) <= options.milliseconds
        ):
            fitting.append((cost, candidate))
    seconds = (time.process_time() - start) / options.candidates
    print(f"{len(fitting)} of {options.candidates} candidates fit; {1000 * seconds:.0f} ms of CPU time for each")
    if not fitting:
        raise SystemExit("none: allow more flash, RAM or time")
    # Among networks of one family the work of an inference is a usual stand-in for accuracy before training.
    for cost, candidate in sorted(fitting, key=lambda pair: -pair[0].macs)[:5]:
        print(f"{cost.macs:10,} MACs, {cost.milliseconds:6.1f} ms, {cost.flash:6,} + {cost.ram:6,} bytes: {candidate}")
    cost, best = max(fitting, key=lambda pair: pair[0].macs)
    report = microc.compile(build(best), board=options.board).report()
    for name, estimate in (("flash", cost.flash), ("ram", cost.ram), ("estimated_cycles", cost.cycles)):
        print(
            f"compiled, the first takes {report[name]:,} {name}: {100 * (estimate / report[name] - 1):+.0f} % estimated"
        )


if __name__ == "__main__":
    main()
