# SPDX-License-Identifier: Apache-2.0
"""The types of ``**options`` say what the table of options says, and a type checker refuses what the compiler does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import microc
from microc.compiler.option_values import Colour, CompileOptions, Late, ReadingOptions, Resizing
from microc.compiler.options import COLOURS, LATE, OPTIONS, READING, RESIZING, make_options
from microc.plugin import Plugin
from microc.schedule.rules import ScheduleRule
from microc.transform.pass_context import Instrument, Pass
from microc.transform.training.learning import Head
from tests.test_options import VALUES

ROOT = Path(microc.__file__).parent
HINTS: dict[str, Any] = get_type_hints(
    CompileOptions, localns={each.__name__: each for each in (Plugin, ScheduleRule, Instrument, Pass, Head)}
)


def test_every_option_has_a_type() -> None:
    assert set(HINTS) == set(OPTIONS)
    assert set(ReadingOptions.__annotations__) == {name for name, each in OPTIONS.items() if each.group == READING}
    assert not CompileOptions.__required_keys__


def test_words_are_those_of_the_table() -> None:
    """Where there are few, in its order; bools are spelled otherwise on a command line."""
    few = {name: tuple(option.words.values()) for name, option in OPTIONS.items() if option.words}
    for name, words in few.items():
        assert HINTS[name] is bool if isinstance(words[0], bool) else get_args(HINTS[name]) == words, name
    assert (get_args(Colour), get_args(Resizing), get_args(Late)) == (COLOURS, RESIZING, LATE)


TAKEN = {**VALUES, "flash": "30K", "stream": 1, "input_layout": "NHWC", "disabled": "fuse", "bounds": {"n": (1, 8, 2)}}
REFUSED = (
    'microc.compile("m", optimise="size")',
    'microc.compile("m", optimize="fast")',
    'microc.compile("m", board="b", threads="2")',
    'microc.compile("m", input_layout="CHWN")',
    'microc.tune("m", ram=3.5)',
    'microc.report("m", tund="f")',
    'microc.explain("m", opt_level=7)',
    'microc.verify("m", stream_allow="later")',
    'microc.load("m", optimize="size")',
    'microc.quantize("m", [], input_dtyp="int8")',
    'microc.compile("m").write("f")',
)


READ = (
    "__init__", "errors", "compiler/api", "compiler/model", "compiler/interaction", "compiler/options", "compiler/option_values",
    "compiler/user_functions", "compiler/validation", "document/notebook", "reports/making", "reports/explain", "run/against",
    "run/desktop/library", "run/engine",
    "tuning/tune", "quantization/__init__", "quantization/quantization_steps",
)  # fmt: skip


def test_a_type_checker_knows_them(tmp_path: Path) -> None:
    """Files of microc that say what a call takes are read; what they import may be anything, so that this takes seconds."""
    api = pytest.importorskip("mypy.api", reason="mypy is not installed")
    path = tmp_path / "user.py"
    values = {name: list(value) if isinstance(value, frozenset) else value for name, value in TAKEN.items()}
    taken = [f'microc.compile("m", board="b", {name}={value!r}).write("f")' for name, value in values.items()]
    head = "from pathlib import Path, PosixPath, WindowsPath\nimport microc\nfrom microc import Bound\n"
    path.write_text(head + "\n".join([*taken, *REFUSED]) + "\n")
    options = ["--config-file=", "--follow-imports=skip", "--hide-error-context", f"--cache-dir={os.devnull}"]
    said, trouble, _ = api.run([*options, str(path), *(str(ROOT / f"{name}.py") for name in READ)])
    lines = [int(line.split(":")[1]) for line in said.splitlines() if line.startswith(str(path)) and ": error:" in line]
    first = head.count("\n") + len(taken) + 1
    assert not trouble and sorted(set(lines)) == list(range(first, first + len(REFUSED))), said


def test_what_the_types_take_the_compiler_takes() -> None:
    for name, value in TAKEN.items():
        make_options(**({"stream": 1} if name in ("hop", "stream_allow") else {}), **{name: value})
