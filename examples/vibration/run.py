# SPDX-License-Identifier: Apache-2.0
"""Anomalies in the vibration of a machine: an autoencoder that knows how the machine sounds when it is well.

    python examples/vibration/run.py [--board mps2-an386] [--port PORT]

The vibration is made here: a shaft with harmonics and noise; a bad bearing adds bursts that ring at a high frequency.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sklearn.neural_network import MLPRegressor

import microc
from microc.run.board_project import build_project, open_project

RATE, WINDOW, BANDS = 4096, 1024, 32
SHAFT, BURSTS, RING = 29.0, 87.0, 1300.0  # Hz
Floats = NDArray[np.float64]


def vibration(count: int, damage: float, generator: np.random.Generator) -> Floats:
    """Windows of an accelerometer's samples."""
    time = np.arange(WINDOW) / RATE + generator.uniform(0, 1, (count, 1))
    speed = SHAFT * generator.normal(1, 0.01, (count, 1))
    tones = sum(np.sin(2 * np.pi * k * speed * time + k) / k for k in (1, 2, 3, 5))
    ringing = np.exp(-((time * BURSTS) % 1) * 6) * np.sin(2 * np.pi * RING * time)
    noisy: Floats = tones + damage * ringing + generator.normal(0, 0.15, time.shape)
    return noisy


def bands(windows: Floats) -> NDArray[np.float32]:
    """Logarithms of the power in 32 bands: what the network is given."""
    power = np.abs(np.fft.rfft(windows * np.hanning(WINDOW))[:, 1:]) ** 2
    found: NDArray[np.float32] = np.log(power.reshape(len(windows), BANDS, -1).mean(axis=2)).astype(np.float32)
    return found


def autoencoder(x: NDArray[np.float32]) -> bytes:
    """A network that gives back what it is given, trained on ``x``, as an ONNX model; its input is normalised inside."""
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    scaled = (x - mean) / deviation
    trained = MLPRegressor(hidden_layer_sizes=(16, 6, 16), max_iter=600, random_state=0).fit(scaled, scaled)
    nodes = [
        helper.make_node("Sub", ["x", "mean"], ["centred"]),
        helper.make_node("Div", ["centred", "deviation"], ["in"]),
    ]
    arrays = {"mean": mean, "deviation": deviation}
    last = "in"
    for k, (weight, bias) in enumerate(zip(trained.coefs_, trained.intercepts_, strict=True)):
        arrays |= {f"w{k}": weight, f"b{k}": bias}
        nodes.append(helper.make_node("Gemm", [last, f"w{k}", f"b{k}"], [f"h{k}"]))
        last = f"h{k}"
        if k + 1 < len(trained.coefs_):
            nodes.append(helper.make_node("Relu", [last], [f"r{k}"]))
            last = f"r{k}"
    nodes += [
        helper.make_node("Sub", [last, "in"], ["difference"]),
        helper.make_node("Mul", ["difference", "difference"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["score"], axes=[1], keepdims=1),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (1, k)) for n, k in (("x", BANDS), ("score", 1))]
    weights = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "vibration", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    data: bytes = model.SerializeToString()
    return data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", default="mps2-an386")
    parser.add_argument("--port", default="")
    parser.add_argument("--samples", type=int, default=8)
    arguments = parser.parse_args()
    generator = np.random.default_rng(4)
    network = autoencoder(bands(vibration(600, 0.0, generator)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vibration.onnx"
        path.write_bytes(network)
        well = bands(vibration(200, 0.0, generator))
        library = microc.compile(path)
        threshold = 1.5 * float(np.quantile([np.asarray(library(row[None])).item() for row in well], 0.99))
        project = open_project(microc.compile(path, board=arguments.board).write(Path(folder) / "firmware"))
        build_project(project)
        with microc.Device(project, arguments.port) as device:
            right = 0
            for damage in (0.0, 0.6, 1.0):
                rows = bands(vibration(arguments.samples, damage, generator))
                scores = [np.asarray(device.run(row[None])).item() for row in rows]
                alarms = sum(score > threshold for score in scores)
                right += alarms if damage else len(scores) - alarms
                print(
                    f"damage {damage:3.1f}: scores {min(scores):6.2f} to {max(scores):6.2f}, {alarms} of {len(scores)} alarms"
                )
    print(f"threshold {threshold:.2f}; {right} of {3 * arguments.samples} right")


if __name__ == "__main__":
    main()
