# SPDX-License-Identifier: Apache-2.0
"""Two networks in one firmware, which take turns in one arena: the digits in 8 bits and in floats, asked alternately.

python examples/two_networks/run.py [--board mps2-an386] [--port PORT]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

import microc
from microc.run.board_project import build_project, open_project

DIGITS = Path(__file__).parent.parent / "digits"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", default="mps2-an386")
    parser.add_argument("--port", default="")
    arguments = parser.parse_args()
    with np.load(DIGITS / "digits_test.npz") as data:
        pixels, labels = data["images"][:4], data["labels"][:4]
    small = microc.compile(DIGITS / "digits_int8.tflite", board=arguments.board, name="small", input_dtype="float32")
    large = microc.compile(DIGITS / "digits_float.onnx", board=arguments.board, name="large")
    firmware = microc.bundle(small, large)
    report = firmware.report()
    arenas = " and ".join(f"{m['model']} {m['arena']:,}" for m in report["models"])
    print(f"one arena of {report['shared_arena']:,} bytes; alone: {arenas}")
    with tempfile.TemporaryDirectory() as folder:
        path = firmware.write(Path(folder) / "firmware")
        build_project(open_project(path))
        for name in ("small", "large"):
            with microc.Device(open_project(path, name), arguments.port) as device:
                shape = device.inputs[0]["shape"]
                images = (pixels / 16).astype(np.float32).reshape(-1, *shape)
                found = [int(np.argmax(np.asarray(device.run(image)))) for image in images]
                print(f"{name}: {found}, right are {labels.tolist()}")


if __name__ == "__main__":
    main()
