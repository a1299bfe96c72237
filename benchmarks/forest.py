# SPDX-License-Identifier: Apache-2.0
"""A random forest on emulated cores, in floats and in integers, beside emlearn where it is installed.

    python benchmarks/forest.py [--boards mps2-an386,microbit] [--trees 10] [--depth 10]

scikit-learn's digits (64 features, 10 classes), 1,500 rows to train, 297 to test. Bytes are those of the network's objects
(code and constants) by the cross compiler, instructions those of one row under QEMU's instruction clock; "agrees" is the share of
test rows with scikit-learn's own label. emlearn's figure is its own loop over nodes, which counts the votes of trees where
scikit-learn and microc average their probabilities.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

import microc

FORMS: dict[str, dict[str, Any]] = {
    "float": {},
    "int16, leaves int8": {"input_dtype": "int16", "leaf_dtype": "int8"},
    "uint8, leaves uint8": {"input_dtype": "uint8", "leaf_dtype": "uint8"},
}
EMLEARN = (
    '#include "forest.h"\nint run(const int16_t *x);\nint run(const int16_t *x) { return forest_predict(x, 64); }\n'
)


def object_bytes(*objects: Path) -> int:
    """Code and constants of some objects."""
    said = subprocess.run(["arm-none-eabi-size", *map(str, objects)], capture_output=True, text=True, check=True).stdout
    return sum(int(line.split()[0]) + int(line.split()[1]) for line in said.splitlines()[1:])


def measured(graph: microc.Graph, row: Any, board: str, folder: Path) -> tuple[int, int]:
    """Bytes and instructions of one row on a board, whose labels must be the host's."""
    program = microc.compile(graph, board=board)
    program.write(folder)
    project = microc.open_project(folder)
    microc.build(project)
    with microc.Device(folder) as device:
        found = device.run(row)
        instructions = sum(kernel.instructions or 0 for kernel in device.profile().kernels)
    for got, want in zip(found, microc.compile(graph)(row), strict=True):
        np.testing.assert_array_equal(got, want)
    return object_bytes(folder / "build" / "model.o", folder / "build" / "model_data.o"), instructions


def emlearn_bytes(estimator: Any, folder: Path) -> int:
    """What emlearn makes of the forest for a Cortex-M4."""
    import emlearn

    converted = emlearn.convert(estimator, dtype="int16_t", method="loadable")
    converted.save(file=str(folder / "forest.h"), name="forest")
    (folder / "forest.c").write_text(EMLEARN)
    flags = ["-mcpu=cortex-m4", "-mthumb", "-O2", "-std=c99", f"-I{emlearn.includedir}", f"-I{folder}"]
    subprocess.run(["arm-none-eabi-gcc", *flags, "-c", folder / "forest.c", "-o", folder / "forest.o"], check=True)
    return object_bytes(folder / "forest.o")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--boards", default="mps2-an386,microbit")
    parser.add_argument("--trees", type=int, default=10)
    parser.add_argument("--depth", type=int, default=10)
    options = parser.parse_args()
    x, y = load_digits(return_X_y=True)
    x = x.astype(np.float32)
    forest = RandomForestClassifier(options.trees, max_depth=options.depth, random_state=0).fit(x[:1500], y[:1500])
    wanted = forest.predict(x[1500:])
    for name, form in FORMS.items():
        dtype = form.get("input_dtype", "float32")
        labels = microc.compile(microc.import_sklearn(forest, (297, 64), **form))(x[1500:].astype(dtype))[0]
        agrees = float((labels == wanted).mean())
        for board in options.boards.split(","):
            with tempfile.TemporaryDirectory() as folder:
                row = x[1500:1501].astype(dtype)
                size, instructions = measured(
                    microc.import_sklearn(forest, **form), row, board, Path(folder) / "firmware"
                )
            print(f"{name:22} {board:12} {size:7,} bytes {instructions:7,} instructions, agrees {agrees:.3f}")
    if importlib.util.find_spec("emlearn"):
        with tempfile.TemporaryDirectory() as folder:
            print(f"{'emlearn, int16':22} {'cortex-m4':12} {emlearn_bytes(forest, Path(folder)):7,} bytes")


if __name__ == "__main__":
    main()
