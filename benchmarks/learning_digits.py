# SPDX-License-Identifier: Apache-2.0
"""A convolutional network learns handwritten digits from nothing on an emulated board, beside the same network in PyTorch.

    pip install torch scikit-learn && python benchmarks/learning_digits.py [--board mps2-an386] [--epochs 4] [--images 1437]

Both begin with the same weights and take the same steps: one image each, in the same order, plain SGD, in float32, with a rate
that is halved in each epoch, so that the last steps are small and accuracies do not depend on roundings. Data are
scikit-learn's digits; every fifth image is tested. RAM is that of the firmware, with weights, gradients and stack.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import microc

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "learning" / "run.py"
HEAD = {"layers": 3, "loss": "cross_entropy", "optimiser": "sgd"}
RATE, RAM = 0.05, 32 * 1024


def example_network() -> microc.Graph:
    """Return the untrained network of examples/learning."""
    loader = importlib.util.spec_from_file_location("example", EXAMPLE)
    assert loader is not None and loader.loader is not None
    loader.loader.exec_module(example := importlib.util.module_from_spec(loader))
    graph: microc.Graph = example.untrained_network(np.random.default_rng(1))
    return graph


def learn_in_torch(graph: microc.Graph, orders: list[Any], x: Any, y: Any) -> Any:
    """Train the network in PyTorch; return a function from images to classes."""
    import torch
    from torch.nn import functional

    weights = {name: torch.tensor(np.array(data), requires_grad=True) for name, data in graph.consts.items()}

    def logits(images: Any) -> Any:
        value = torch.tensor(images).permute(0, 3, 1, 2)
        for k in range(2):  # kernels are (outputs, rows, columns, inputs)
            kernel = weights[f"kernel{k}"].permute(0, 3, 1, 2)
            value = functional.max_pool2d(
                functional.relu(functional.conv2d(value, kernel, weights[f"bias{k}"], padding=1)), 2
            )
        flat = value.permute(0, 2, 3, 1).reshape(len(images), -1)
        return functional.linear(flat, weights["weight"], weights["offset"])

    for epoch, order in enumerate(orders):
        optimiser = torch.optim.SGD(weights.values(), lr=RATE / 2**epoch)
        for k in order:
            optimiser.zero_grad()
            functional.cross_entropy(logits(x[k : k + 1]), torch.tensor(y[k : k + 1]).long()).backward()
            optimiser.step()
    return lambda images: logits(images).argmax(dim=1).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", default="mps2-an386")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--images", type=int, default=1437, help="images to learn from")
    parser.add_argument("--no-torch", action="store_true", help="leave PyTorch out")
    arguments = parser.parse_args()
    digits = load_digits()
    images, labels = (digits.images[..., None] / 16).astype(np.float32), digits.target.astype(np.int32)
    is_tested = np.arange(len(images)) % 5 == 0
    x, y = images[~is_tested][: arguments.images], labels[~is_tested]
    tested, truth = images[is_tested], labels[is_tested]
    generator = np.random.default_rng(0)
    orders = [generator.permutation(len(x)) for _ in range(arguments.epochs)]
    graph = example_network()
    program = microc.compile(graph, board=arguments.board, learn=HEAD)
    ram = program.report()["ram"]
    assert ram <= RAM
    with tempfile.TemporaryDirectory() as folder:
        project = microc.open_project(program.write(Path(folder) / "firmware"))
        microc.build(project)
        with microc.Device(project) as board:
            losses = [
                np.mean([board.learn(x[k : k + 1], y[k], rate=RATE / 2**epoch) for k in order])
                for epoch, order in enumerate(orders)
            ]
            step = board.last
            answers = [int(np.argmax(np.asarray(board.run(image[None])))) for image in tested]
            inference, clock = board.last, board.clock
    assert step is not None and inference is not None
    print(f"{arguments.board}: RAM {ram:,} bytes of {RAM:,}; mean losses {', '.join(f'{loss:.3f}' for loss in losses)}")
    print(f"a step {clock.convert_ticks(step.max):,} {clock.unit}, an inference {clock.convert_ticks(inference.max):,}")
    print(f"on the board  {100 * np.mean(np.array(answers) == truth):.2f} % of {len(truth)} images")
    if not arguments.no_torch:
        classes = learn_in_torch(graph, orders, x, y)
        print(f"in PyTorch    {100 * np.mean(classes(tested) == truth):.2f} %")


if __name__ == "__main__":
    main()
