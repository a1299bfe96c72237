# SPDX-License-Identifier: Apache-2.0
"""The digits network for a plain RISC-V core and for one with a tensor unit beside it, which is a model here."""

from pathlib import Path

import numpy as np

import microc

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "digits" / "digits_int8.tflite"


def main() -> None:
    options = {"plugins": HERE / "unit.py"}
    print(microc.explain(MODEL, target="rv32imafc+acme8", **options))
    plain, ours = (microc.compile(MODEL, target=core, **options) for core in ("rv32imafc", "rv32imafc+acme8"))
    data = np.random.default_rng(1).integers(-128, 128, plain.inputs[0]["shape"]).astype(np.int8)
    same = np.array_equal(np.asarray(plain(data)), np.asarray(ours(data)))
    print("the same numbers" if same else "other numbers")


if __name__ == "__main__":
    main()
