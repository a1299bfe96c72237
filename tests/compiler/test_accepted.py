# SPDX-License-Identifier: Apache-2.0
"""Anything may be given to any entry point: it is taken, or refused by an error of ours that says what would be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import microc
from microc.cli import main
from microc.compiler.api import Program
from microc.compiler.options import OPTIONS, Bound, Options, make_options
from microc.errors import FitError, InternalError, MicrocError, UsageError
from microc.run.desktop.library import Library
from microc.run.verification import compare_board_with_host
from tests.exports.programs import awkward, program
from tests.support import digits
from tests.support.campaign import examples

HUGE = 10**5000
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, -5, 1, 3, 7, HUGE, -HUGE, 1 << 63, 0.5, float("nan"), float("inf"), -0.0, 1j,
    "", "x", "30K", "1", "a\0b", "*", b"", b"30K", (), [], {}, set(), [1, 2], ["x"], [None], {"x": 1}, {"x": None},
    {1: 2}, {"*": 1}, {"*": "int8"}, {"x": (1, -1)}, {"x": "64"}, {"x": HUGE}, object(), Exception("x"), int, len,
    np.int64(5), np.uint8(3), np.float32(2.5), np.bool_(True), np.str_("x"), np.array(3), np.array([1, 2]),
    np.array(["x"]), np.zeros((2, 2)), range(3), Path("x"), Bound("x"), Bound(4, 0), slice(1),  # type: ignore[arg-type]
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(ODD),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.lists(st.one_of(st.integers(), st.text(max_size=3), st.none()), max_size=3),
    st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), st.sampled_from(ODD), max_size=2),
)


def harmless(call: Callable[[], object]) -> None:
    """It returns, or refuses with what and how; a network that does not fit is none of the refusals for a wrong value."""
    try:
        call()
    except MicrocError as error:
        assert not isinstance(error, (InternalError, FitError)), error
        assert error.what and error.exit_code in (2, 3, 6) and len(str(error)) < 2000


def test_every_option_is_checked() -> None:
    assert set(OPTIONS) == {field.name for field in fields(Options)}


@pytest.mark.parametrize("name", OPTIONS)
@settings(max_examples=examples(60), deadline=None)
@given(value=VALUES)
def test_options(name: str, value: Any) -> None:
    harmless(lambda: make_options(**{name: value}).format_changed_options())


@pytest.mark.parametrize("name", OPTIONS)
def test_odd_options(name: str) -> None:
    for value in ODD:
        harmless(lambda value=value: make_options(**{name: value}).format_changed_options())  # type: ignore[misc]
        harmless(lambda value=value: microc.load(awkward(), **{name: value}))  # type: ignore[misc]


def test_numbers_of_numpy_are_numbers() -> None:
    chosen = make_options(flash=np.int64(65536), ram=np.uint16(9), opt_level=np.int8(1), io_in_arena=np.bool_(False))
    assert chosen == Options(flash=65536, ram=9, opt_level=1, io_in_arena=False) and type(chosen.flash) is int
    assert make_options(input_shapes={"x": np.array([1, 3])}).input_shapes["x"] == (1, 3)
    assert make_options(bounds={"n": np.int32(4)}).bounds["n"] == Bound(4)


@pytest.mark.parametrize("name", ["ram", "flash"])
@pytest.mark.parametrize("value", ["30Q", -5, True, 2.0, float("nan"), None, [3]])
def test_budgets(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=r"a (budget for the arena|flash budget) cannot be") as caught:
        microc.compile(digits.INT8, **{name: value})
    assert "30 * 1024" in caught.value.hint


@cache
def library() -> Library:
    return program("awkward").library()


def entries(folder: Path) -> dict[str, Callable[[Any], object]]:
    """Every entry point, one of its arguments left open."""
    made: Program = program("awkward")
    graph = awkward()

    def target(x: Any) -> Any:
        """No file beside those of this test is written."""
        return folder / "out" if isinstance(x, (str, Path)) and "\0" not in str(x) else x

    return {
        "model": lambda x: microc.load(x),
        "shapes": lambda x: microc.load(graph, input_shapes=x),
        "target": lambda x: microc.compile(graph, x) if bad(x) else None,
        "board": lambda x: microc.compile(graph, board=x) if x is not None else None,
        "progress": lambda x: microc.compile(graph, progress=x) if not callable(x) and x is not None else None,
        "save, a graph": lambda x: microc.save(x, folder / "x.mcg"),
        "save, a path": lambda x: microc.save(graph, target(x)),
        "import_sklearn": lambda x: microc.import_sklearn(x),
        "bundle": lambda x: microc.bundle(x),
        "write": lambda x: made.write(target(x)),
        "export, a format": lambda x: made.export(x, folder / "export"),
        "export, a folder": lambda x: made.export("c", target(x)),
        "export, inputs": lambda x: made.export("c", folder / "export", x),
        "export, an input": lambda x: made.export("c", folder / "export", [x, x]),
        "load_library": lambda x: microc.load_library(x),
        "open_project": lambda x: microc.open_project(x),
        "open_project, a network": lambda x: microc.open_project(folder, x),
        "Device": lambda x: microc.Device(x),
        "Device, a port": lambda x: microc.Device(folder, x),
        "Device, rates": lambda x: microc.Device(folder, bauds=x),
        "Device, patience": lambda x: microc.Device(folder, patience=x),
        "call": lambda x: library()(x, x),
        "set_input": lambda x: library().set_input(x, x),
        "get_output": lambda x: library().get_output(x),
        "tensor": lambda x: library().tensor(x),
        "set_tensor": lambda x: library().set_tensor("run_2", x),
        "run_kernel": lambda x: library().run_kernel(x),
        "time_evaluator": lambda x: library().time_evaluator(x, 1) if x not in (7, 3) and bad(x) else None,
        "export_library": lambda x: library().export_library(target(x)),
        "verify": lambda x: compare_board_with_host(None, None, [], tolerance=x) if bad(x) else None,  # type: ignore[arg-type]
    }


def bad(x: Any) -> bool:
    """Not a value that does long work, or works."""
    numeric = isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool)
    return not numeric or bool(x != x or x < 0)


def odd_for(name: str) -> tuple[Any, ...]:
    return tuple(x for x in ODD if not (name in ("target", "time_evaluator") and isinstance(x, np.ndarray)))


@pytest.mark.parametrize("name", entries(Path()))
def test_entry_points(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    entry = entries(tmp_path)[name]
    for value in odd_for(name):
        harmless(lambda value=value: entry(value))  # type: ignore[misc]


WORDS = ("", "x", "-1", "1e9", "nan", "30K", "a=b", "=", "*=", "9" * 5000, "\N{SNOWMAN}", "1,2,,", "0x10", "-")
FLAGS = (
    "--flash",
    "--ram",
    "--hop",
    "--stream",
    "--bound",
    "--input-shape",
    "--inputs",
    "--input-dtype",
    "--opt-level",
)


@pytest.mark.parametrize("flag", FLAGS)
def test_the_command_line(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    for word in WORDS:
        assert main(["check", str(digits.INT8), f"{flag}={word}"]) in (0, 2, 3, 4)
        assert "Traceback" not in capsys.readouterr().err
