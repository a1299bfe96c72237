# SPDX-License-Identifier: Apache-2.0
"""An anomaly detector adapts to the machine that it is mounted on: the board learns how this machine vibrates when it is well.

    python examples/adapting_detector/run.py [--board mps2-an386] [--port PORT]

The vibration is made up, as in ../vibration. The autoencoder is trained on this computer on one machine, by the same graph that
learns on the board, and then runs at another machine: faster, with other harmonics.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import microc
from microc.base.immutable import frozen

SAMPLE_RATE, WINDOW, BANDS, HIDDEN = 4096, 1024, 32, (16, 6, 16)
HEAD = {"layers": len(HIDDEN) + 1, "loss": "mean_squared_error", "optimiser": "momentum"}
TRAINED, EPOCHS, RATE = 300, 20, 0.002
Floats = NDArray[np.float32]


# ---- Machines.


@frozen
class Machine:
    """A shaft with harmonics in a hall. ``shaft``: speed in Hz; ``harmonics``: amplitudes; ``noise``: deviation."""

    shaft: float
    harmonics: Sequence[float]
    noise: float

    def bands(self, count: int, damage: float, generator: np.random.Generator) -> Floats:
        """Return logarithms of the power in 32 bands for ``count`` windows. ``damage``: amplitude of a bearing that rings."""
        time = np.arange(WINDOW) / SAMPLE_RATE + generator.uniform(0, 1, (count, 1))
        speed = self.shaft * generator.normal(1, 0.01, (count, 1))
        tones = sum(a * np.sin(2 * np.pi * (k + 1) * speed * time + k) for k, a in enumerate(self.harmonics))
        ringing = np.exp(-((time * 3 * self.shaft) % 1) * 6) * np.sin(2 * np.pi * 1300 * time)
        samples = tones + damage * ringing + generator.normal(0, self.noise, time.shape)
        power = np.abs(np.fft.rfft(samples * np.hanning(WINDOW))[:, 1:]) ** 2
        return np.asarray(np.log(power.reshape(count, BANDS, -1).mean(axis=2)), np.float32)


KNOWN = Machine(29.0, (1.0, 0.5, 0.33, 0.0, 0.2), 0.15)
OTHER = Machine(37.0, (0.9, 0.2, 0.6, 0.3, 0.1, 0.2), 0.15)
DAMAGE = 0.4


# ---- Network.


def untrained_autoencoder(mean: Floats, deviation: Floats, generator: np.random.Generator) -> microc.Graph:
    """Return dense layers with random weights that give back 32 normalised bands; the bands are normalised in front of them."""
    net = microc.GraphBuilder()
    bands = net.input("bands", (1, BANDS))
    normal = net.op("mul", net.op("sub", bands, net.constant("mean", mean)), net.constant("factor", 1 / deviation))
    value, inputs = normal, BANDS
    for k, outputs in enumerate((*HIDDEN, BANDS)):
        weights = generator.normal(0, np.sqrt(1 / inputs), (outputs, inputs)).astype(np.float32)
        operands = net.constant(f"weight{k}", weights), net.constant(f"bias{k}", np.zeros(outputs, np.float32))
        value = net.op("dense", value, *operands, activation="relu" if k < len(HIDDEN) else "")
        inputs = outputs
    return net.graph("detector", {"normal": normal, "again": value})


def auc(well: Sequence[float], damaged: Sequence[float]) -> float:
    """Return the share of pairs of a damaged and a well machine in which the damaged one has the larger score."""
    pairs = np.subtract.outer(np.asarray(damaged), np.asarray(well))
    return float(np.mean((pairs > 0) + 0.5 * (pairs == 0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", default="mps2-an386")
    parser.add_argument("--port", default="")
    parser.add_argument("--windows", type=int, default=100, help="windows of the machine that the board learns from")
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()
    generator = np.random.default_rng(0)
    known = KNOWN.bands(TRAINED, 0, generator)
    mean, deviation = known.mean(axis=0), known.std(axis=0)
    graph = untrained_autoencoder(mean, deviation, generator)
    head = {**HEAD, "output": "again"}
    here, program = microc.compile(graph, learn=head), microc.compile(graph, board=arguments.board, learn=head)
    for _ in range(EPOCHS):
        for k in generator.permutation(TRAINED):
            here(known[k : k + 1], (known[k : k + 1] - mean) / deviation, np.float32(RATE))
    print(f"RAM {program.report()['ram']} bytes, arena {program.report()['arena']}")
    own = OTHER.bands(arguments.windows, 0, generator)
    tests = [machine.bands(60, damage, generator) for machine in (KNOWN, OTHER) for damage in (0, DAMAGE)]
    with tempfile.TemporaryDirectory() as folder:
        trained = Path(folder) / "trained.npz"
        np.savez(trained, **{name: here.tensor(name) for name in here.manifest["learning"]["learned"]})
        project = microc.open_project(program.write(Path(folder) / "firmware"))
        microc.build(project)
        with microc.Device(project, port=arguments.port) as board:
            board.restore_weights(trained)

            def score(bands: Floats) -> float:
                normal, again = board.run(bands[None])
                return float(np.mean((again - normal) ** 2))

            well, damaged = ([score(each) for each in test] for test in tests[:2])
            print(f"AUC at the known machine: {auc(well, damaged):.3f}")
            for when in ("before", "after"):
                if when == "after":
                    for epoch in range(arguments.epochs):
                        losses = [
                            board.learn(bands[None], (bands - mean) / deviation, rate=RATE)
                            for bands in own[generator.permutation(len(own))]
                        ]
                        print(f"epoch {epoch + 1}: mean loss {np.mean(losses):.3f}")
                well, damaged = ([score(each) for each in test] for test in tests[2:])
                print(f"AUC at the other machine {when} it learned: {auc(well, damaged):.3f}")


if __name__ == "__main__":
    main()
