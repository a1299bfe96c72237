# SPDX-License-Identifier: Apache-2.0
"""The types of ``**options`` say what the table of options says, and a type checker refuses what the compiler does.

``python -m tests.compiler.test_typed`` writes them from the table."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import microc
from microc.compiler.option_values import Colour, CompileOptions, Late, Resizing
from microc.compiler.options import COLOURS, LATE, OPTIONS, READING, RESIZING, Option, Options, make_options
from microc.plugin import Plugin
from microc.schedule.rules import ScheduleRule
from microc.transform.pass_context import Instrument, Pass
from microc.transform.training.learning import Head
from tests.test_options import VALUES

ROOT = Path(microc.__file__).parent
TYPES = ROOT / "compiler/option_values.py"
FIRST, SECOND = (
    (
        "class ReadingOptions(TypedDict, total=False):",
        "Options for reading a model: the keywords of :func:`microc.load` and :func:`microc.quantize`.",
    ),
    (
        "class CompileOptions(ReadingOptions, total=False):",
        "Options of a compilation: keywords of :func:`microc.compile`, ``report``, ``explain``, ``verify`` and ``tune``.\n\n"
        "    A function that passes the options on declares ``def mine(**options: Unpack[microc.CompileOptions])``.\n"
        "    docs/options.md describes each option.\n    ",
    ),
)
"""First line and docstring of each class."""


def accepted_type(name: str, option: Option) -> str:
    """Annotation of the Python values that an option accepts: a few words, a name for several, a text for a path."""
    if option.accepts or option.words:
        words = [*option.words.values()]
        return option.accepts or ("bool" if isinstance(words[0], bool) else f"Literal{words}".replace("'", '"'))
    annotation: str = Options.__annotations__[name]
    element = re.fullmatch(r"(?:tuple|frozenset)\[(\w+)(?:, \.\.\.)?\]", annotation)
    if element is not None:
        return f"{element[1]} | {'Collection' if element[1] == 'str' else 'Sequence'}[{element[1]}]"
    return annotation.replace("Path", "str | Path")


def render_types() -> str:
    """Both classes, as Python."""
    classes = []
    for (head, doc), of_reading in ((FIRST, True), (SECOND, False)):
        options = {name: option for name, option in OPTIONS.items() if (option.group == READING) == of_reading}
        lines = [f"    {name}: {accepted_type(name, option)}" for name, option in options.items()]
        classes.append("\n".join([head, f'    """{doc}"""', "", *lines]))
    return "\n\n\n".join(classes) + "\n"


def split_file() -> tuple[str, str]:
    """The file before the classes, and the classes."""
    text = TYPES.read_text()
    return text[: text.index(FIRST[0])], text[text.index(FIRST[0]) :]


def test_types_are_those_of_the_table() -> None:
    assert split_file()[1] == render_types(), "run python -m tests.compiler.test_typed"
    names = (Plugin, ScheduleRule, Instrument, Pass, Head)
    assert get_type_hints(CompileOptions, localns={each.__name__: each for each in names})


def test_words_are_those_of_the_table() -> None:
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
    "compiler/user_functions", "compiler/validation", "document/renderers", "reports/saved_reports", "reports/explain",
    "run/against", "run/desktop/library", "run/engine",
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


if __name__ == "__main__":
    TYPES.write_text(split_file()[0] + render_types())
