# SPDX-License-Identifier: Apache-2.0
"""Every example of a plugin through every command: what a plugin brings holds for the whole of a command, or of a call."""

from __future__ import annotations

import re
import runpy
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

import microc
from microc.cli import main
from microc.compiler.model import REGISTERS_PLUGINS
from microc.run.board_project import open_project
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tuning.tune import describe_search_spaces
from tests.device.smoke import needs
from tests.support.campaign import everything

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ROOT / "examples" / "digits"
INT8, FLOAT = DIGITS / "digits_int8.tflite", DIGITS / "digits_float.onnx"


class Example(NamedTuple):
    """A plugin, the network that it is used on, what is quantised with it, options, and a core or a board."""

    plugin: Path
    model: Path
    floats: Path
    board: str
    core: str
    options: tuple[str, ...] = ()


def emulated(folder: Path, cpu: str) -> str:
    """A board of the core of a plugin, which an emulator of the core without it runs."""
    text = (ROOT / "boards" / "qemu-riscv32.toml").read_text(encoding="utf-8")
    path = folder / f"{cpu.partition('+')[0]}-board.toml"
    path.write_text(re.sub(r'cpu = ".*"', f'cpu = "{cpu}"', text), encoding="utf-8")
    return str(path)


NAMES = ("custom_operator", "custom_instruction", "tensor_unit", "external_backend")


def example(name: str, folder: Path) -> Example:
    if name == "custom_operator":
        model, place = folder / "custom.onnx", ROOT / "examples" / name
        onnx.save(runpy.run_path(str(place / "make_model.py"))["make"](), model)
        return Example(place / "operators.py", model, model, "mps2-an386", "cortex-m4")
    if name == "custom_instruction":
        core = "acme-dot4"
        return Example(ROOT / "examples" / name / "core.py", INT8, FLOAT, emulated(folder, core), core)
    if name == "tensor_unit":
        core = "rv32imafc+acme8"
        return Example(ROOT / "examples" / name / "unit.py", INT8, FLOAT, emulated(folder, core), core)
    options = ("--external", "acme", "--external-choice", "all")
    return Example(ROOT / "examples" / name / "backend.py", FLOAT, FLOAT, "mps2-an386", "cortex-m4", options)


def data(model: Path, plugin: Path, folder: Path) -> str:
    """Typical inputs of a network."""
    graph, draw, path = microc.load(model, plugins=plugin), np.random.default_rng(1), folder / "data.npz"
    shapes = {name: (4, *graph.types[name].shape) for name in graph.inputs}
    arrays: dict[str, Any] = {
        name: draw.normal(size=shape).astype(np.float32)
        if graph.types[name].dtype == "float32"
        else draw.integers(-999, 999, shape).astype(graph.types[name].dtype)
        for name, shape in shapes.items()
    }
    np.savez(path, **arrays)
    return str(path)


COMMANDS: dict[str, str] = {
    "compile": "compile MODEL OPTIONS --board BOARD -o OUT",
    "check": "check MODEL OPTIONS --board BOARD --exact",
    "explain": "explain MODEL OPTIONS --board BOARD",
    "explain a layer": "explain MODEL 0 OPTIONS --target CORE",
    "explain all of a layer": "explain MODEL 0 OPTIONS --target CORE --full --json",
    "tune on a board": "tune MODEL OPTIONS --board BOARD --trials 2 --records OUT",
    "tune here": "tune MODEL OPTIONS --target native --trials 2 --jobs 2 --records OUT",
    "space": "tune MODEL OPTIONS --board BOARD --space",
    "report": "report MODEL OPTIONS --board BOARD",
    "quantize": "quantize FLOATS PLUGIN --data DATA -o OUT.mcg",
    "verify": "verify MODEL OPTIONS --samples 1",
    "verify on a board": "verify MODEL OPTIONS --board BOARD --samples 1",
    "size": "size MODEL OPTIONS --board BOARD",
    "import": "import MODEL PLUGIN -o OUT.mcg",
    "export": "export MODEL OPTIONS --target CORE --format make -o OUT",
    "run": "run MODEL OPTIONS --board BOARD",
    "profile": "profile MODEL OPTIONS --board BOARD",
    "bench": "bench MODEL OPTIONS --boards BOARD",
    "watch": "watch MODEL OPTIONS --board BOARD --runs 1 --json",
    "operators": "operators PLUGIN",
    "plugin": "plugin check FILE",
}
OF_PROJECTS = ("build", "size", "report", "verify", "run", "profile", "compare")
"""Commands of a folder that a plugin's network was compiled into: they need no plugin."""

CHEAP = [
    ("custom_operator", "tune here"),
    ("custom_instruction", "explain a layer"),
    ("tensor_unit", "explain a layer"),
    ("external_backend", "explain a layer"),
    ("custom_operator", "quantize"),
]


@needs("arm-none-eabi-gcc", "qemu-system-arm", "riscv64-unknown-elf-gcc", "qemu-system-riscv32")
@pytest.mark.parametrize(("name", "command"), list(product(NAMES, COMMANDS)) if everything() else CHEAP)
def test_a_command(name: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subject = example(name, tmp_path)
    plugin = ["--plugin", str(subject.plugin)]
    values = {
        "MODEL": [str(subject.model)], "OPTIONS": [*plugin, *subject.options], "PLUGIN": plugin, "BOARD": [subject.board],
        "CORE": [subject.core], "OUT": [str(tmp_path / "out")], "OUT.mcg": [str(tmp_path / "out.mcg")],
        "FLOATS": [str(subject.floats)], "FILE": [str(subject.plugin)],
    }  # fmt: skip
    words = COMMANDS[command].split()
    if "DATA" in words:
        values["DATA"] = [data(subject.floats, subject.plugin, tmp_path)]
    code = main([part for word in words for part in values.get(word, [word])])
    assert code == 0, capsys.readouterr().err


@needs("riscv64-unknown-elf-gcc", "qemu-system-riscv32")
@pytest.mark.parametrize("name", NAMES if everything() else NAMES[1:2])
def test_a_project_needs_no_plugin(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subject, folder = example(name, tmp_path), str(tmp_path / "project")
    words = [str(subject.model), "--plugin", str(subject.plugin), *subject.options, "--board", subject.board]
    assert main(["compile", *words, "-o", folder]) == 0
    if subject.core.endswith(("dot4", "acme8")):
        with pytest.raises(microc.errors.UsageError, match="unknown core"):
            microc.compile(subject.model, board=subject.board)
    assert open_project(folder).board.target.cpu == subject.core
    for command in OF_PROJECTS if everything() else ("report", "compare"):
        code = main([command, folder, *([folder] if command == "compare" else [])])
        assert code == 0, (command, capsys.readouterr().err)


def test_functions_with_options_know_plugins() -> None:
    functions = [
        getattr(microc, name) for name in microc.__all__ if name not in ("te", "tir", "topi", "errors", "features")
    ]
    taking = [each for each in functions if callable(each) and "options" in getattr(each, "__annotations__", {})]
    assert len(taking) >= 7
    assert [each.__name__ for each in taking if not _knows(each)] == []


PAGES = {"instruction_sets": "acme-dot4", "tensor_units": "rv32imafc+acme8"}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_documentation(page: str, tmp_path: Path) -> None:
    """The plugin of a page, as it stands there, beside one layer."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    (block,) = [each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "PLUGIN =" in each]
    path = tmp_path / "plugin.py"
    path.write_text(block, encoding="utf-8")
    found = microc.explain(INT8, "dense5", target=PAGES[page], plugins=path)
    assert PAGES[page] in found.text() and found.to_data()["cpu"] == PAGES[page]


def _knows(function: Any) -> bool:
    while function is not None and not getattr(function, REGISTERS_PLUGINS, False):
        function = getattr(function, "__wrapped__", None)
    return function is not None


def of_dense(schedule: Schedule, op: str, target: Target) -> Schedule | None:
    return schedule if op == "dense" else None


def test_a_rule_of_the_user_is_a_point() -> None:
    rule = microc.ScheduleRule("mine", of_dense)
    found = describe_search_spaces(INT8, board="mps2-an386", schedules=[rule])
    dense = next(kernel for kernel in found if kernel["op"].startswith("dense"))
    assert "mine" in dense["decisions"]["rule"]


def test_a_layer_by_a_rule_of_the_user() -> None:
    rule = microc.ScheduleRule("mine", of_dense, alone=True)
    found = microc.explain(INT8, "dense5", target="cortex-m4", schedules=[rule])
    assert [c["rule"] for c in found.to_data()["kernel"]["parts"][0]["candidates"]] == ["mine"]


def test_two_networks_of_one_plugin_are_one_firmware(tmp_path: Path) -> None:
    subject = example("custom_operator", tmp_path)
    programs = [
        microc.compile(subject.model, board=subject.board, plugins=subject.plugin, name=name) for name in ("one", "two")
    ]
    assert "one/model.c" in microc.bundle(*programs).files()


def test_results_know_their_plugins_later(tmp_path: Path) -> None:
    subject = example("tensor_unit", tmp_path)
    program = microc.compile(INT8, board=subject.board, plugins=subject.plugin)
    assert program.report()["cpu"] == subject.core
    assert microc.report(program).data["layers"]
    assert "unit" in str(microc.explain(INT8, 0, target=subject.core, plugins=subject.plugin))
