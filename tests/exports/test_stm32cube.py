# SPDX-License-Identifier: Apache-2.0
"""The hooks of the STM32Cube folder: undefined, they take the sample and print; defined, they take over both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.device.smoke import WARNINGS, needs
from tests.exports.programs import export, program, run, said

MAIN = """
#include "app_digits_int8_model.h"
int main(void)
{
    int status = 0;
    MX_DIGITS_INT8_MODEL_Init();
    for (int turn = 0; turn < 3; ++turn) {
        status = MX_DIGITS_INT8_MODEL_Process();
    }
    return status;
}
"""
HOOKS = """
#include <stdio.h>
#include "app_digits_int8_model.h"
int digits_int8_model_acquire_and_process_data(int8_t *image)
{
    static int turn;
    for (int i = 0; i < 64; ++i) {
        image[i] = (int8_t)(i - 100);
    }
    return turn++ == 1 ? 5 : 0; /* nothing new in the second turn */
}
int digits_int8_model_post_process(const struct digits_int8_outputs *outputs)
{
    printf("%d\\n", outputs->probabilities[9]);
    return -7;
}
"""


@needs("gcc", "ar")
@pytest.mark.parametrize("hooks", [False, True])
def test_hooks(tmp_path: Path, hooks: bool) -> None:
    """Of a static library, as CMake makes it: a definition outside of it is the one that is used."""
    folder = export(tmp_path / "net", "stm32cube") / "digits_int8_model"
    includes = (f"-I{folder}/Inc", f"-I{folder}/App")
    run(tmp_path, "gcc", "-c", *WARNINGS, *includes, *sorted(folder.glob("*/*.c")))
    run(tmp_path, "ar", "rc", "libnet.a", *sorted(tmp_path.glob("*.o")))
    (tmp_path / "main.c").write_text(MAIN)
    (tmp_path / "hooks.c").write_text(HOOKS)
    own = ["main.c", "hooks.c"] if hooks else ["main.c"]
    run(tmp_path, "gcc", *WARNINGS, *includes, *own, "libnet.a", "-o", "main")
    if not hooks:
        assert run(tmp_path, "./main") == said() * 3
        return
    given = (np.arange(64) - 100).astype(np.int8).reshape(1, 8, 8, 1)
    result = program().library()(given)
    assert isinstance(result, np.ndarray)
    text = run(tmp_path, "sh", "-c", "./main; echo status $?")
    assert text == f"{result.reshape(-1)[9]}\n" * 2 + f"status {(-7) % 256}\n"
