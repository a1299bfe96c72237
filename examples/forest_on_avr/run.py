# SPDX-License-Identifier: Apache-2.0
"""A random forest of scikit-learn on an Arduino Uno: integers only, in flash, decided as scikit-learn decides.

python examples/forest_on_avr/run.py [--board arduino-uno] [--port PORT]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

import microc
from microc.run.board_project import build_project, open_project

SCALE = 0.05  # a feature's unit on the board: 16 bits hold up to 1,638


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", default="arduino-uno")
    parser.add_argument("--port", default="")
    parser.add_argument("--samples", type=int, default=20)
    arguments = parser.parse_args()
    x, y = load_wine(return_X_y=True)
    x = np.round(x / SCALE).clip(-32768, 32767)  # what a sensor would give
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.4, random_state=1)
    forest = RandomForestClassifier(10, random_state=1).fit(x_train, y_train)
    graph = microc.import_sklearn(forest, input_dtype="int16", leaf_dtype="int8")
    with tempfile.TemporaryDirectory() as folder:
        project = open_project(
            microc.compile(graph, board=arguments.board, name="forest").write(Path(folder) / "forest")
        )
        sizes, stack = build_project(project).sizes, project.peak_stack
        with microc.Device(project, arguments.port) as device:
            rows = x_test[: arguments.samples].astype(np.int16)
            labels = [int(np.asarray(device.run(row[None])[0]).item()) for row in rows]
    expected = forest.predict(x_test[: arguments.samples])
    right = int(np.sum(np.array(labels) == y_test[: arguments.samples]))
    print(f"wines: {' '.join(map(str, labels))}")
    print(f"{right} of {len(labels)} right; scikit-learn says the same of {int(np.sum(expected == labels))}")
    trees, ram = project.manifest["const_bytes"], sizes.static_ram + stack
    print(f"firmware {sizes.flash:,} bytes of flash, {ram:,} of RAM, RPC and stack included; {trees:,} bytes of trees")


if __name__ == "__main__":
    main()
