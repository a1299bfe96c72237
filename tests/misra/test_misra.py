# SPDX-License-Identifier: Apache-2.0
"""Generated projects, the runtime and its ports break no rule of MISRA C:2012 but those that docs/misra.md gives reasons for."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

import microc
from microc.codegen.c import misra
from tests.misra import checker
from tests.support.campaign import everything, in_campaign
from tests.transform.streams import Sequence

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits"


@dataclass(frozen=True, slots=True)
class Case:
    """A network on a board; ``target``: clang's name of the machine."""

    model: str
    board: str
    compiler: str
    target: str


CASES = {
    "bytes on a Cortex-M4": Case("digits_int8.tflite", "netduinoplus2", "arm-none-eabi-gcc", "thumbv7em-none-eabi"),
    "floats on a PC": Case("digits_float.onnx", "host", "gcc", f"{platform.machine()}-linux-gnu"),
    "QDQ on RISC-V": Case("digits_qdq.onnx", "hifive1", "riscv64-unknown-elf-gcc", "riscv32-unknown-elf"),
}


@pytest.fixture(scope="module", params=tuple(CASES.values()), ids=tuple(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    assert isinstance(request.param, Case)
    return request.param


@pytest.fixture(scope="module")
def project(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return microc.compile(DIGITS / case.model, board=case.board).write(tmp_path_factory.mktemp("misra") / "project")


def needs(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def test_rules(case: Case, project: Path, tmp_path: Path) -> None:
    """All projects have the runtime in common; a microcontroller has ports and a board, too."""
    if case is not CASES["bytes on a Cortex-M4"] and not everything():
        pytest.skip("only `make campaign` checks the rules of three projects")
    needs("cppcheck")
    found = checker.violations(project, data=everything())
    if not everything():  # arrays of a few weights have the form of those of thousands
        net = Sequence(1, integers=True)
        small = microc.compile(net.graph(net.conv(net.x, (1, 1))), board=case.board).write(tmp_path / "small")
        found += checker.violations(small, "model_data.c")
    assert {violation.part for violation in found} == {misra.GENERATED, misra.RUNTIME, misra.PORTS}
    assert [str(violation) for violation in checker.not_allowed(found)] == []


@pytest.mark.parametrize(
    ("board", "relocatable"), [pytest.param("teensy41", False, marks=in_campaign), ("mps3-an547", True)]
)
def test_rules_of_boot_headers_vectors_and_slots(board: str, relocatable: bool, tmp_path: Path) -> None:
    """These boards have what those above lack: a header to boot from; a core with vectors, and networks that are loaded. The
    arrays of weights have the same form on all boards."""
    needs("cppcheck")
    model = DIGITS / "digits_int8.tflite"
    project = microc.compile(model, board=board, relocatable=relocatable).write(tmp_path / "project")
    files = [path for path in checker.sources(project) if path != "model_data.c"]
    if not everything():  # files of the projects above were checked there, but for what they have for slots
        known = microc.compile(model, board=CASES["bytes on a Cortex-M4"].board).files()
        texts = {path: (project / path).read_text() for path in files}
        files = [path for path, text in texts.items() if known.get(path) != text or "MICROC_RPC_SLOTS" in text]
    assert "model.c" in files and "runtime/src/microc_slot.c" in files
    assert [str(violation) for violation in checker.not_allowed(checker.violations(project, *files))] == []


def test_clang_tidy(case: Case, project: Path) -> None:
    needs("clang-tidy", case.compiler)
    assert checker.tidy(project, case.target, case.compiler) == ""


def test_the_analyser_of_gcc(case: Case, project: Path) -> None:
    needs("make", case.compiler)
    assert checker.analysed(project) == ""


def test_a_broken_rule_is_seen(tmp_path: Path) -> None:
    """The addon runs, and what no deviation covers is told."""
    needs("cppcheck")
    (tmp_path / "board").mkdir()
    (tmp_path / "board" / "microc_board.h").touch()
    (tmp_path / "model.c").write_text(
        "int sign(int x);\nint sign(int x)\n{\n    if (x < 0)\n        return -1;\n    return 1;\n}\n"
    )
    assert "15.6" in {violation.rule for violation in checker.not_allowed(checker.violations(tmp_path))}
    assert [row.category for row in misra.REQUIRED_DEVIATIONS].count("required") == len(misra.REQUIRED_DEVIATIONS)
    assert [row.category for row in misra.ADVISORY_DEVIATIONS].count("advisory") == len(misra.ADVISORY_DEVIATIONS)


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "misra.md").read_text(encoding="utf-8")
    assert page == misra.render_misra_page(), "write it again: make docs"
