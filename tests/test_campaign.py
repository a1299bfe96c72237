# SPDX-License-Identifier: Apache-2.0
"""Tables of tests that are taken in turn leave out no row and no column."""

from __future__ import annotations

import pytest

from tests.support.campaign import everything, in_turn


@pytest.mark.parametrize(
    ("rows", "columns", "each"), [(5, 7, 2), (16, 2, 1), (8, 3, 2), (3, 8, 1), (1, 4, 1), (6, 6, 1)]
)
def test_every_row_and_every_column(rows: int, columns: int, each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MICROC_TESTS", raising=False)
    pairs = in_turn(range(rows), range(columns), each)
    assert {row for row, _ in pairs} == set(range(rows)) and {column for _, column in pairs} == set(range(columns))
    assert len(pairs) == len(set(pairs)) == max(each * rows, columns)


def test_an_absent_corpus_gives_no_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MICROC_TESTS", raising=False)
    assert in_turn([], ["cortex-m4"]) == in_turn([], [], 2) == []


def test_a_campaign_takes_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MICROC_TESTS", "all")
    assert everything() and len(set(in_turn("abc", range(5)))) == 15
