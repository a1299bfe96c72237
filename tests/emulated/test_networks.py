# SPDX-License-Identifier: Apache-2.0
"""Networks on other machines answer what their portable C answers here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import microc
from tests.emulated.machines import MACHINES
from tests.emulated.network import network
from tests.support import digits
from tests.support.campaign import in_turn
from tests.support.corpus import models

NETWORKS = [digits.INT8, digits.QDQ, digits.FLOAT, *models("mlperf_kws_int8.tflite", "mlperf_kws_float.tflite")]


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("model", "name"), in_turn(NETWORKS, list(MACHINES), 2), ids=lambda part: getattr(part, "stem", part)
)
def test_answers_are_those_of_portable_c(model: Path, name: str, tmp_path: Path) -> None:
    machine = MACHINES[name]
    library = microc.compile(model, machine.cpu)
    assert isinstance(library, microc.Library)
    dice = np.random.default_rng(0)
    with network(library, tmp_path, "-O2", machine=machine, compiler=machine.first) as run:
        for _ in range(3):
            inputs = []
            for given in library.inputs:
                if given["dtype"] == "float32":
                    inputs.append(dice.uniform(0, 1, given["shape"]).astype(np.float32))
                else:
                    kind = np.iinfo(given["dtype"])
                    inputs.append(dice.integers(kind.min, kind.max, given["shape"], given["dtype"], endpoint=True))
            wanted = library(*inputs)
            for got, want in zip(run(*inputs), wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
                np.testing.assert_array_equal(got, want)
