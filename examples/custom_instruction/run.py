# SPDX-License-Identifier: Apache-2.0
"""The digits network for a plain RISC-V core and for one with an instruction for four products."""

from pathlib import Path

import numpy as np

import microc

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "digits" / "digits_int8.tflite"
CORES = ("rv32imc", "acme-dot4")


def main() -> None:
    options = {"plugins": HERE / "core.py"}
    cost = [microc.explain(MODEL, target=core, **options).module.instructions for core in CORES]
    print(
        f"estimated instructions: {cost[0]:,} on {CORES[0]}, {cost[1]:,} on {CORES[1]}: {cost[0] / cost[1]:.2f} times fewer"
    )
    plain, ours = (microc.compile(MODEL, target=core, **options) for core in CORES)
    data = np.random.default_rng(1).integers(-128, 128, plain.inputs[0]["shape"]).astype(np.int8)
    same = np.array_equal(np.asarray(plain(data)), np.asarray(ours(data)))
    print("the same numbers" if same else "other numbers")


if __name__ == "__main__":
    main()
