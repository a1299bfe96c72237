# SPDX-License-Identifier: Apache-2.0
"""Other values for a number, a text or a list: what a mutation puts into a field whose kind it knows."""

from __future__ import annotations

import random
from collections.abc import MutableSequence, Sequence
from typing import Any

INTEGERS = (
    0, 1, -1, 2, 3, 4, 7, 8, 16, 127, 128, 255, 256, 32767, 65535, 65536, 2**24, 2**30, 2**31 - 1, 2**31, -(2**31),
)  # fmt: skip
FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-3, 1e-38, 1e-45, 1e38, 2.0**31, 2.0**-31, 127.5, float("inf"), float("nan"),
)  # fmt: skip
TEXTS = (
    "", "x", "a" * 300, "*/ x", "\\", "line\nbreak", "%s%n", "../../x", "\u202ename", "int", "linux", "\0", '"', "$(x)",
)  # fmt: skip


def other_integer(rng: random.Random, value: int, pool: Sequence[int] = ()) -> int:
    """A neighbour, an extreme, or another integer of the file; small ones most often, since those pass the first checks."""
    kind = rng.random()
    if kind < 0.35:
        return value + rng.choice((-2, -1, 1, 2))
    if kind < 0.55 and pool:
        return rng.choice(pool)
    if kind < 0.7:
        return rng.choice((value * 2, value // 2, -value, value ^ (1 << rng.randrange(8))))
    return rng.choice(INTEGERS[:10]) if kind < 0.9 else rng.choice(INTEGERS)


def other_float(rng: random.Random, value: float) -> float:
    kind = rng.random()
    if kind < 0.4:
        return value * rng.choice((-1.0, 0.5, 2.0, 1.0 + 2.0**-20, 2.0**-16, 2.0**16))
    return rng.choice(FLOATS) if kind < 0.8 else rng.uniform(-1, 1) * 2.0 ** rng.randint(-40, 40)


def other_text(rng: random.Random, value: str, pool: Sequence[str] = ()) -> str:
    if pool and rng.random() < 0.5:
        return rng.choice(pool)
    return rng.choice((*TEXTS, value + rng.choice(TEXTS), value[: len(value) // 2], value.upper()))


def disturb(rng: random.Random, entries: MutableSequence[Any]) -> None:
    """Take out, double, swap, cut or repeat entries of a list."""
    if not entries:
        return
    a, b = rng.randrange(len(entries)), rng.randrange(len(entries))
    kind = rng.randrange(5)
    if kind == 0:
        del entries[a]
    elif kind == 1:
        entries.insert(b, entries[a])
    elif kind == 2:
        entries[a], entries[b] = entries[b], entries[a]
    elif kind == 3:
        del entries[min(a, b) :]
    else:
        entries[a] = entries[b]
