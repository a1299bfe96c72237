# SPDX-License-Identifier: Apache-2.0
"""Networks that keep something from run to run, in the examples of exports: set up once, then frame after frame.

The builds of all formats are tested with such a network too (``awkward``), against what the library says of the same frames.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.codegen.project.additions import sample_frames
from microc.device.boards import make_board_of_core
from microc.errors import UsageError
from microc.graph import ir
from microc.graph.ir import Node
from microc.ops import registry
from tests.device.smoke import needs
from tests.exports.programs import FORMATS, awkward, export, program, run, said
from tests.exports.test_arduino import CORE
from tests.exports.test_builds import assert_alike
from tests.test_readme import ROOT

TURNS = 19
"""More than the sample has frames, so that it begins again; the state does not."""
WAKE_WORD = ("pymicro_wakeword", "pymicro_features")


def test_what_is_said_is_the_reference() -> None:
    """The library, which says what examples must print, against the operators' references, frame by frame."""
    graph, library, frames = awkward(), program("awkward").library(), sample_frames(program("awkward").module)

    def apply(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
        definition = registry.get(node.op)
        return definition.reference({**definition.defaults, **node.attrs}, arrays)

    state = dict(graph.state)
    assert len(frames) == 8
    for turn in range(TURNS):
        frame = frames[turn % len(frames)]
        values = ir.run(graph, dict(zip(graph.inputs, frame, strict=True)), apply, state)
        state = {name: values[value] for name, value in graph.updates.items()}
        for name, found in zip(graph.outputs, library(*frame), strict=True):
            np.testing.assert_allclose(found, values[name], rtol=1e-6)


def test_frames_differ_and_stay_small() -> None:
    frames = sample_frames(program("awkward").module)
    assert all(not np.array_equal(a[0], b[0]) for a, b in itertools.pairwise(frames))
    assert len(sample_frames(program().module)) == 1


# ---------------------------------------------------------------- loops that go round


def sketch(folder: Path, library: Path, turns: int) -> list[str]:
    """What an Arduino sketch prints in so many turns of ``loop``, on this computer."""
    (folder / "Arduino.h").write_text(CORE)
    ino = library / "examples" / "sample" / "sample.ino"
    loop = f"int main() {{ setup(); for (int k = 0; k < {turns}; ++k) loop(); }}\n"
    (folder / "main.cpp").write_text(f'#include <Arduino.h>\n#include "{ino}"\n{loop}')
    run(folder, "gcc", "-O1", "-c", *sorted((library / "src").glob("*.c")))
    run(folder, "g++", "-std=gnu++11", "-I.", f"-I{library}/src", "main.cpp", *folder.glob("*.o"), "-lm", "-o", "main")
    return [line for line in run(folder, "./main").splitlines() if not line.endswith("microseconds")]


@needs("gcc", "g++")
def test_arduino_goes_round(tmp_path: Path) -> None:
    lines = sketch(tmp_path, export(tmp_path / "net", "arduino", "awkward"), TURNS)
    assert_alike(lines, said("awkward", TURNS).splitlines())


CUBE = """
#include "app_double_model.h"
int main(void)
{
    MX_DOUBLE_MODEL_Init();
    for (int k = 0; k < TURNS; ++k) {
        MX_DOUBLE_MODEL_Process();
    }
    return 0;
}
"""


@needs("gcc")
def test_stm32cube_goes_round(tmp_path: Path) -> None:
    """The calls that STM32CubeMX's main makes, on this computer."""
    folder = export(tmp_path / "net", "stm32cube", "awkward")
    (tmp_path / "main.c").write_text(CUBE.replace("TURNS", str(TURNS)))
    includes = sorted({f"-I{path.parent}" for path in folder.rglob("*.h")})
    run(tmp_path, "gcc", *includes, "main.c", *sorted(folder.rglob("*.c")), "-lm", "-o", "main")
    assert run(tmp_path, "./main") == said("awkward", TURNS)


def test_no_turn_resets(tmp_path: Path) -> None:
    """In every file of every format, of projects and of examples: what runs a network does not reset it."""
    folders = [ROOT / "examples", program("awkward").write(tmp_path / "project")]
    folders += [export(tmp_path / name, name, "awkward") for name in FORMATS]
    looked = 0
    for path in (path for folder in folders for path in folder.rglob("*")):
        if path.suffix in (".c", ".ino", ".md", ".cpp", ".py"):
            for part in re.split(r"\n}\n|```|\n(?=def )", path.read_text(encoding="utf-8")):
                runs = re.search(r"\w_run\(|\.run\(", part)
                assert not (runs and re.search(r"\breset\(|\w_reset\(", part)), f"{path}:\n{part}"
                looked += bool(runs)
    assert looked > 2 * len(FORMATS)


# ---------------------------------------------------------------- frames of the user's own


def test_frames_of_the_users_own(tmp_path: Path) -> None:
    rows, flags = np.zeros((5, 1, 20), np.float32), np.zeros((5, 3), bool)
    rows[:, 0, 0] = range(5)
    program("awkward").export("c", tmp_path / "net", [rows, flags])
    assert "#define DOUBLE_SAMPLE_FRAMES 5" in (tmp_path / "net" / "double_model_sample.h").read_text()
    program("awkward").export("c", tmp_path / "net", [rows[0], flags[0]])
    assert "#define DOUBLE_SAMPLE_FRAMES 1\n" in (tmp_path / "net" / "double_model_sample.h").read_text()
    for wrong, told in (
        ([rows, flags[:4]], "got 5, 4"),
        ([rows[:0], flags[:0]], "got 0, 0"),
        ([rows], "takes 2 inputs, 1"),
        ([rows, flags[0]], "got shape"),
        ([rows.astype(np.int8), flags], "astype"),
    ):
        with pytest.raises(UsageError, match=told):
            program("awkward").export("c", tmp_path / "net", wrong)
    with pytest.raises(UsageError, match="got shape"):  # it keeps nothing: a sample is one input
        program().export("c", tmp_path / "net", [np.zeros((2, 1, 8, 8, 1), np.int8)])


@needs("gcc", "g++")
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in WAKE_WORD), reason=f"needs {' and '.join(WAKE_WORD)}"
)
def test_a_wake_word_is_heard(tmp_path: Path) -> None:
    """A streaming network on the frames of a recording, in a program that ends and in a loop: it fires as in the library."""
    from pymicro_features import MicroFrontend

    wake_word, frontend = _example(), MicroFrontend()
    model, _, _ = wake_word.model_of("okay_nabu")
    word = microc.compile(model, board=make_board_of_core("host"), name="word")
    library = word.library()
    (given,) = library.inputs
    sound = wake_word.samples(ROOT / "examples" / "wake_word" / "okay_nabu.wav").tobytes()
    heard = (frontend.process_samples(sound[at : at + 320]).features for at in range(0, len(sound) - 319, 320))
    rows = np.array([row for row in heard if row])
    rows = np.round(rows / given["scale"] + given["zero_point"]).clip(-128, 127).astype(np.int8)
    steps = given["shape"][1]
    frames = rows[: len(rows) // steps * steps].reshape(-1, *given["shape"])
    expected = [int(np.asarray(library(frame)).item()) for frame in frames]
    assert min(expected) == 0 and max(expected) > 250
    for name in ("c", "arduino"):
        word.export(name, tmp_path / name, [frames])
    run(tmp_path / "c", "gcc", "-O1", *sorted(p.name for p in (tmp_path / "c").glob("*.c")), "-lm", "-o", "sample")
    printed = {"c": run(tmp_path / "c", "./sample").splitlines()}
    printed["arduino"] = sketch(tmp_path, tmp_path / "arduino", len(frames))
    for lines in printed.values():
        assert [int(line.split(": ")[1]) for line in lines] == expected


def _example() -> Any:
    spec = importlib.util.spec_from_file_location("wake_word", ROOT / "examples" / "wake_word" / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
