# SPDX-License-Identifier: Apache-2.0
"""Documents on a terminal: text is cut or wrapped in its column, numbers and names stay whole, commands can be copied."""

from __future__ import annotations

import shlex
import sys

import pytest

from microc.document.blocks import (
    Block,
    Code,
    Facts,
    Shell,
    Step,
    Steps,
    bars,
    document,
    facts,
    layer_names,
    numbers,
    prose,
    table,
    texts,
)
from microc.document.renderers import render_text

ROWS = [("conv1", "a long name of operators that are fused", 1234567), ("dense2", "dense", 1)]
LAYERS = table((*texts("layer", "operators"), *numbers("bytes")), ROWS)


def render(block: Block, width: int = 0) -> str:
    return render_text(document(block), width)


@pytest.mark.parametrize("width", range(36, 70))
def test_numbers_stay_whole_and_lines_fit(width: int) -> None:
    lines = render(LAYERS, width).splitlines()
    assert max(map(len, lines)) <= width
    assert lines[2].startswith("conv1 ") and lines[2].endswith(" 1,234,567")
    assert ("..." in lines[2]) == (width < 6 + 2 + len(ROWS[0][1]) + 2 + 9)


def test_last_column_of_text_is_wrapped() -> None:
    found = table(texts("name", "", "for"), [("x", "y", "words that say what it is for")])
    assert render(found, 26).splitlines()[2:] == ["x     y  words that say", "         what it is for"]


def test_text_behind_numbers_is_wrapped_or_below() -> None:
    """Beside its row as long as there is room, else below it; below all numbers if these are split."""
    found = table((*texts("rule"), *numbers("cycles"), *texts("verdict")), [("matrix", 1234, "chosen " * 6)])
    assert render(found).splitlines()[2] == "matrix   1,234  " + ("chosen " * 6).strip()
    first, second = render(found, 40).splitlines()[2:4]
    assert first == "matrix   1,234  chosen chosen chosen" and second == " " * 16 + "chosen chosen chosen"
    assert render(found, 30).splitlines()[:3] == ["rule    cycles", "    verdict", "------  ------"]
    split = table((*texts("rule"), *numbers("a", "b"), *texts("verdict")), [("matrix", 10**11, 10**11, "chosen " * 6)])
    assert render(split, 24).splitlines()[-4:-2] == ["verdict", "matrix  chosen chosen"]


def test_short_text_behind_numbers_stays_whole() -> None:
    columns = (*layer_names("layer"), *numbers("elements"), *texts("bits"))
    line = render(table(columns, [("a long name of a layer", 1000, "identical")]), 36).splitlines()[2]
    assert line == "a long name ...     1,000  identical"


def test_unlimited_width_cuts_nothing() -> None:
    assert render(table((*texts("a"), *numbers("n")), [("x" * 300, 1)])).splitlines()[2] == "x" * 300 + "  1"
    assert render(facts([("a", "b " * 100)])) == "a  " + ("b " * 100).rstrip()


def test_facts_are_wrapped_beside_their_name() -> None:
    assert render(facts([("name", "one two three four five"), ("b", 7000)]), 20).splitlines() == [
        "name  one two three",
        "      four five",
        "b     7,000",
    ]


def test_names_move_no_cursor() -> None:
    shown = document(table(texts("a"), [("x\x1b[2Jy\n",)]), facts([("a", "\x1b[2J")]))
    assert "\x1b" not in render_text(shown)


def test_columns_without_room_form_a_table_below() -> None:
    """Behind the first column, so that rows are found again."""
    columns = (*texts("step", "name"), *numbers("first", "second", spec=""))
    found = render(table(columns, [("0", "a layer", 10**11, 10**12)]), 20)
    assert [part.splitlines()[2] for part in found.split("\n\n")] == [
        "0     a layer",
        "0     100000000000",
        "0     1000000000000",
    ]
    assert max(map(len, found.splitlines())) <= 20


def test_formats_of_columns() -> None:
    columns = (*layer_names("layer"), *numbers("macs"), *numbers("%", spec=".1f"))
    lines = render(table(columns, [("model.tflite #3 conv", 1234, 2 / 3), ("x" * 60, None, "-")])).splitlines()
    assert lines[2].split() == ["#3", "conv", "1,234", "0.7"]
    assert lines[3].split() == ["x" * 45 + "...", "-"]


def test_bars_have_a_length() -> None:
    lines = render(table((*texts("layer"), *bars("")), [("a", 1.0), ("b", 0.25), ("c", 0.0), ("d", None)])).splitlines()
    assert [line.count("#") for line in lines[2:]] == [24, 6, 1, 0]


def test_blocks_without_content_are_left_out() -> None:
    empty: list[Block] = [Facts((), "memories"), prose(), Steps((), "what to do next"), Shell((), "to install")]
    assert render_text(document(*empty, None, Code("x", "C"))) == "C\nx"


def test_prose_is_wrapped_and_code_is_not() -> None:
    assert render(prose("- one two three four"), 12).splitlines() == ["- one two", "  three four"]
    assert render(Code("one two three four"), 12) == "one two three four"


COMMAND = "microc compile 'a model.tflite' --board microbit --optimize speed -o firmware"


def test_commands_are_wrapped_as_a_shell_reads_them() -> None:
    lines = render(Steps((Step("faster", COMMAND),)), 40).splitlines()[1:]
    assert max(map(len, lines)) <= 40 and len(lines) == 3 and lines[1].strip().startswith("--")
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(COMMAND)
    assert render(Steps((Step("faster", COMMAND),))).splitlines() == ["- faster", f"  {COMMAND}"]


def test_commands_of_windows_stay_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backslash at the end of a line continues it in no shell of Windows."""
    monkeypatch.setattr(sys, "platform", "win32")
    for block in (Steps((Step("faster", COMMAND),)), Shell((COMMAND,)), Shell((COMMAND, COMMAND), is_chain=True)):
        assert "\\" not in render(block, 40) and render(block, 40) == render(block)


def test_chained_commands() -> None:
    chain = Shell(("apt-get update", "apt-get install gcc"), "to install", is_chain=True)
    assert render(chain).splitlines() == ["to install", "  apt-get update && apt-get install gcc"]
    assert render(chain, 30).splitlines() == ["to install", "  apt-get update && \\", "  apt-get install gcc"]
