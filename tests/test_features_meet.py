# SPDX-License-Identifier: Apache-2.0
"""Pairs of features that the documentation names side by side: each pair works, or is refused by one clear sentence."""

from __future__ import annotations

import random
from itertools import combinations, product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from microc.cli import main
from tests.device.smoke import needs
from tests.support.campaign import everything

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
DOCUMENTED = {0, 1, 2, 3, 4, 5, 6}
"""Exit codes that docs/errors.md has, but for defects."""
MLPERF = "kws01"

FEATURES: dict[str, str] = {
    "plugin": "--plugin OPERATORS",
    "plugin's backend": "--plugin BACKEND --external acme --external-choice all",
    "stream": "--stream 2",
    "bound": "--bound T=16",
    "ram": "--ram 1K",
    "flash": "--flash 6K",
    "relocatable": "--relocatable",
    "dump": "--dump DUMP",
    "self-test": "--self-test SAMPLES",
    "protocol mlperf": "--protocol mlperf --name kws01",
    "protocol tuning": "--protocol tuning",
    "opt-level 0": "--opt-level 0",
    "opt-level 1": "--opt-level 1",
    "weight-dtype": "--weight-dtype float16",
    "code-in-ram": "--code-in-ram",
    "io": "--io caller",
    "threads": "--threads 2",
    "tuned": "--tuned RECORDS",
    "plan": "--plan PLAN",
    "math": "--math fast",
    "half": "--math half",
    "size": "--optimize size",
    "cut": "--outputs middle",
    "state": "--state x=y",
    "rename": "--rename x=sound",
    "input-dtype": "--input-dtype int8",
    "no-shipped": "--no-shipped",
}
ACTIONS: dict[str, str] = {
    "explain": "explain MODEL --target cortex-m4",
    "explain a layer": "explain MODEL 0 --board BOARD --full",
    "tune": "tune MODEL --board BOARD --trials 2 --records OUT",
    "tune here": "tune MODEL --target native --trials 2 --jobs 2 --records OUT",
    "quantize": "quantize MODEL --data SAMPLES -o OUT.mcg",
    "export": "export MODEL --target cortex-m4 --format cmake -o OUT",
    "export arduino": "export MODEL --board arduino-nano33ble --format arduino -o OUT",
    "report": "report MODEL --board BOARD",
    "check": "check MODEL --board BOARD --exact",
    "import": "import MODEL -o OUT.mcg",
    "import to ONNX": "import MODEL -o OUT.onnx",
    "features": "import MODEL --features TOML -o OUT.mcg",
    "several networks": "compile MODEL OTHER --board BOARD -o OUT",
    "size": "size MODEL --board BOARD",
    "a library": "verify MODEL --samples 1",
}
COMPILE = "compile MODEL --board BOARD -o OUT"
PAIRS: list[tuple[str, str, str]] = [
    *((COMPILE, one, other) for one, other in combinations(FEATURES, 2)),
    *((ACTIONS[action], feature, "") for action, feature in product(ACTIONS, FEATURES)),
]


def network(path: Path, activation: str) -> None:
    """Two convolutions along T, which is symbolic, with an activation between them."""
    draw = np.random.default_rng(1)
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["features"], kernel_shape=[3], pads=[2, 0], name="first"),
        helper.make_node("Relu", ["features"], ["middle"], name="middle")
        if activation == "Relu"
        else helper.make_node(activation, ["features"], ["middle"], domain="com.example", alpha=0.5, name="middle"),
        helper.make_node("Conv", ["middle", "second"], ["y"], kernel_shape=[3], pads=[2, 0], name="second"),
    ]
    weights = [
        numpy_helper.from_array(draw.normal(0, 0.3, (4, 4, 3)).astype(np.float32), n) for n in ("first", "second")
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4, "T"]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "meet", ends[:1], ends[1:], weights)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), path)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("meet")
    for name, activation in (("plain", "Relu"), ("own", "Snake"), ("other", "Relu")):
        network(folder / f"{name}.onnx", activation)
    np.savez(folder / "samples.npz", x=np.random.default_rng(2).normal(size=(4, 1, 4, 16)).astype(np.float32))
    (folder / "features.toml").write_text('[[stage]]\nkind = "fir"\ntaps = [0.5, 0.5]\n', encoding="utf-8")
    return folder


def words_of(command: str, features: tuple[str, ...], place: Path, out: Path) -> list[str]:
    """A command line; a symbolic size is fixed unless a feature leaves it open."""
    model = place / ("own.onnx" if "plugin" in features else "plain.onnx")
    values = {
        "MODEL": model, "OTHER": place / "other.onnx", "BOARD": "mps2-an386", "OUT": out / "out", "OUT.mcg": out / "out.mcg",
        "OUT.onnx": out / "out.onnx", "SAMPLES": place / "samples.npz", "TOML": place / "features.toml", "DUMP": out / "dump",
        "OPERATORS": EXAMPLES / "custom_operator" / "operators.py", "BACKEND": EXAMPLES / "external_backend" / "backend.py",
        "RECORDS": place / "records.jsonl", "PLAN": place / "plan.json",
    }  # fmt: skip
    shape = "" if "bound" in features else " --input-shape *=1,4,16"
    words = " ".join([command, *(FEATURES[feature] for feature in features if feature)]) + shape
    return [str(values.get(word, word)) for word in words.split()]


def prepared(place: Path) -> None:
    """Records and a plan, which two of the features name."""
    if not (place / "plan.json").exists():
        model = [str(place / "plain.onnx"), "--input-shape", "*=1,4,16", "--board", "mps2-an386"]
        records = ["--records", str(place / "records.jsonl")]
        assert main(["tune", *model, *records, "--trials", "2", "--plan", str(place / "plan.json")]) == 0


SAMPLED = random.Random(5).sample([pair for pair in PAIRS if pair[0] == COMPILE], 12)


@needs("arm-none-eabi-gcc", "qemu-system-arm")
@pytest.mark.parametrize(("command", "one", "other"), PAIRS if everything() else SAMPLED)
def test_a_pair(
    command: str, one: str, other: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if {"tuned", "plan"} & {one, other}:
        prepared(place)
    code = main(words_of(command, (one, other), place, tmp_path))
    error = capsys.readouterr().err
    assert code in DOCUMENTED and "E7001" not in error and "Traceback" not in error, error
    if code:
        assert "error[E" in error and error.split("error[E", 1)[1].partition("\n")[0].strip(), error
