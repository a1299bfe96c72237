# SPDX-License-Identifier: Apache-2.0
"""How much of a table of tests runs: all of it takes hours; by itself, every row and every column, in turn.

``MICROC_TESTS=all`` (``make campaign``) is for whoever changes what such a table is about.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import pytest

A = TypeVar("A")
B = TypeVar("B")


def everything() -> bool:
    """Whether all is asked for."""
    return os.environ.get("MICROC_TESTS") == "all"


def examples(count: int) -> int:
    """Return how many examples a test of random ones draws: ``count``, or by default a third of it.

    Hypothesis draws others in every run."""
    return count if everything() else -(-count // 3)


in_campaign = pytest.mark.skipif(not everything(), reason="only `make campaign` takes the time: MICROC_TESTS=all")
"""Mark of a long test, of which a faster one holds the most."""


def in_turn(rows: Sequence[A], columns: Sequence[B], each: int = 1) -> list[tuple[A, B]]:
    """Every row with ``each`` of the columns, the next row with those that follow, and every column at least once; all pairs
    where everything is asked for. None where the rows are models of an absent corpus."""
    if everything() or not rows or not columns:
        return [(row, column) for row in rows for column in columns]
    turns = max(each * len(rows), len(columns))
    return [(rows[k // each % len(rows)], columns[k % len(columns)]) for k in range(turns)]


@contextmanager
def table_row(name: object) -> Iterator[None]:
    """Name the row of a table in whatever its check raises.

    A check of a few milliseconds is a row of one test, not a test: each of pytest's takes 4 ms of this computer besides.
    """
    try:
        yield
    except Exception as error:
        error.add_note(f"in the row {name}")
        raise
