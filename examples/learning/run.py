# SPDX-License-Identifier: Apache-2.0
"""A small network for digits learns from nothing, on a board of 32 KB: every image is a step, and the board keeps the weights.

    python examples/learning/run.py [--board mps2-an386] [--port PORT]

The same steps on this computer give the same network, up to roundings.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import microc

IMAGES = Path(__file__).resolve().parents[1] / "digits" / "digits_test.npz"
HEAD = {"layers": 3, "loss": "cross_entropy", "optimiser": "sgd"}
HELD_OUT, RATE, RAM = 60, 0.05, 32 * 1024
Floats = NDArray[np.float32]


def untrained_network(generator: np.random.Generator) -> microc.Graph:
    """Two convolutions with pools and a dense layer, with random weights."""
    net = microc.GraphBuilder()

    def weights(name: str, *shape: int) -> str:
        deviation = np.sqrt(2 / np.prod(shape[1:]))
        return net.constant(name, generator.normal(0, deviation, shape).astype(np.float32))

    def zeros(name: str, count: int) -> str:
        return net.constant(name, np.zeros(count, np.float32))

    value = net.input("image", (1, 8, 8, 1))
    for k, (inputs, outputs) in enumerate(((1, 6), (6, 12))):
        kernel, bias = weights(f"kernel{k}", outputs, 3, 3, inputs), zeros(f"bias{k}", outputs)
        value = net.op("conv2d", value, kernel, bias, padding=(1, 1, 1, 1), activation="relu")
        value = net.op("max_pool2d", value, kernel=(2, 2), strides=(2, 2))
    logits = net.op("dense", net.reshape(value, (1, 48)), weights("weight", 10, 48), zeros("offset", 10))
    return net.graph("digits", {"probabilities": net.op("softmax", logits)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", default="mps2-an386")
    parser.add_argument("--port", default="")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--images", type=int, default=300)
    arguments = parser.parse_args()
    with np.load(IMAGES) as data:
        images = (data["images"][:, None] / 16).astype(np.float32)
        labels = data["labels"].astype(np.int32)
    graph = untrained_network(np.random.default_rng(1))
    here = microc.compile(graph, learn=HEAD)
    program = microc.compile(graph, board=arguments.board, learn=HEAD)
    print(f"RAM {program.report()['ram']} bytes, weights and steps included; at most {RAM}")
    assert program.report()["ram"] <= RAM
    with tempfile.TemporaryDirectory() as folder:
        project = microc.open_project(program.write(Path(folder) / "firmware"))
        microc.build(project)
        with microc.Device(project, port=arguments.port) as board:
            for epoch in range(arguments.epochs):
                losses = np.array(
                    [
                        [board.learn(image, label, rate=RATE), float(here(image, label[None], np.float32(RATE))[1])]
                        for image, label in zip(images[:-HELD_OUT][: arguments.images], labels, strict=False)
                    ]
                )
                print(
                    f"epoch {epoch + 1}: mean loss {losses[:, 0].mean():.3f}, on this computer {losses[:, 1].mean():.3f}"
                )
            right = 0
            for image, label in zip(images[-HELD_OUT:], labels[-HELD_OUT:], strict=True):
                right += int(np.argmax(board.run(image))) == label
    print(f"{right} of {HELD_OUT} right that were not learned")


if __name__ == "__main__":
    main()
