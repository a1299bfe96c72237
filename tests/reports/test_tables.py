"""Tables are as wide as they may be: text is cut or wrapped in its column, numbers and names stay whole."""

from __future__ import annotations

import shlex

import pytest

from microc.reports.text_tables import format_pairs, format_table, wrap_command

ROWS = [("conv1", "a long name of operators that are fused", 1234567), ("dense2", "dense", 1)]


@pytest.mark.parametrize("width", range(36, 70))
def test_numbers_stay_whole_and_lines_fit(width: int) -> None:
    lines = format_table(("layer", "operators", "bytes"), ROWS, 2, width).splitlines()
    assert max(map(len, lines)) <= width and len({line.rindex(" ") for line in lines[2:3]}) == 1
    assert lines[2].startswith("conv1 ") and lines[2].endswith(" 1234567")
    assert ("..." in lines[2]) == (width < 6 + 2 + len(ROWS[0][1]) + 2 + 7)


def test_a_last_column_of_text_is_wrapped_in_itself() -> None:
    lines = format_table(("name", "", "for"), [("x", "y", "words that say what it is for")], 3, 26).splitlines()
    assert lines[2:] == ["x     y  words that say", "         what it is for"]


def test_unbounded_is_as_it_was() -> None:
    assert format_table(("a", "n"), [("x" * 300, 1)], 1).splitlines()[2] == "x" * 300 + "  1"
    assert format_pairs([("a", "b " * 100)]) == "a  " + ("b " * 100).rstrip()


def test_facts_are_wrapped_beside_their_name() -> None:
    assert format_pairs([("name", "one two three four five"), ("b", 7)], 20).splitlines() == [
        "name  one two three",
        "      four five",
        "b     7",
    ]


def test_a_name_moves_no_cursor() -> None:
    assert "\x1b" not in format_table(("a",), [("x\x1b[2Jy\n",)], 1) + format_pairs([("a", "\x1b[2J")])


def test_columns_without_room_are_a_table_below() -> None:
    """Behind the first column, so that rows are found again."""
    found = format_table(("step", "name", "first", "second"), [("0", "a layer", 10**11, 10**12)], 2, 20)
    assert [part.splitlines()[2] for part in found.split("\n\n")] == [
        "0     a layer",
        "0     100000000000",
        "0     1000000000000",
    ]
    assert max(map(len, found.splitlines())) <= 20


def test_commands_are_wrapped_as_a_shell_reads_them() -> None:
    text = "microc compile 'a model.tflite' --board microbit --optimize speed -o firmware"
    lines = wrap_command(text, 40, "  ")
    assert max(map(len, lines)) <= 40 and len(lines) == 3 and lines[1].strip().startswith("--")
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(text)
    assert wrap_command(text, 0, "  ") == [f"  {text}"]
