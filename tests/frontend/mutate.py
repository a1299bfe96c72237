# SPDX-License-Identifier: Apache-2.0
"""Broken variants of a model file, and the promise every reader keeps on them: a Graph or a refusal, soon."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator

from microc.errors import InternalError, MicrocError
from microc.graph.ir import Graph

MAX_SECONDS = 2.0
_NEAR = 4096
_EXTREMES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)


def mutations(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """``count`` variants of ``data``: truncated, bits flipped, words replaced, bytes random, chunks swapped or doubled."""
    rng = random.Random(seed)
    kinds = (_truncate, _flip_bits, _extreme_word, _random_bytes, _swap_chunks, _copy_chunk)
    for number in range(count):
        yield kinds[number % len(kinds)](data, rng)


def survey(read: Callable[[bytes], Graph], data: bytes, count: int, seed: int) -> Counter[str]:
    """Read every mutation; how often each outcome came (``Graph`` or the error's class name).

    Anything but a graph or a user's error, and any reading that takes too long, fails the test with the seed's number.
    """
    outcomes: Counter[str] = Counter()
    for number, mutant in enumerate(mutations(data, count, seed)):
        start = time.process_time()
        try:
            read(mutant)
            outcome = "Graph"
        except InternalError as error:
            raise AssertionError(f"mutation {number} of seed {seed}: {error}") from error
        except MicrocError as error:
            assert error.where, f"mutation {number} of seed {seed}: no place in {error}"
            outcome = type(error).__name__
        soon = time.process_time() - start < MAX_SECONDS or _soon(read, mutant)
        assert soon, f"mutation {number} of seed {seed} takes too long"
        outcomes[outcome] += 1
    return outcomes


def _soon(read: Callable[[bytes], Graph], data: bytes) -> bool:
    """Whether it is read in time on another try: Python may have looked for cycles in all that the tests before left."""
    start = time.process_time()
    with contextlib.suppress(MicrocError):
        read(data)
    return time.process_time() - start < MAX_SECONDS


def _position(rng: random.Random, size: int, length: int) -> int:
    """Where to damage: anywhere, or (two times in three) near an end, where the tables of big models lie."""
    last = max(size - length, 0)
    near = rng.randint(0, min(last, _NEAR))
    return rng.choice((rng.randint(0, last), near, last - near))


def _truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def _flip_bits(data: bytes, rng: random.Random) -> bytes:
    mutant = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        mutant[_position(rng, len(mutant), 1)] ^= 1 << rng.randrange(8)
    return bytes(mutant)


def _extreme_word(data: bytes, rng: random.Random) -> bytes:
    position = _position(rng, len(data), 4) & ~3
    return data[:position] + rng.choice(_EXTREMES).to_bytes(4, "little") + data[position + 4 :]


def _random_bytes(data: bytes, rng: random.Random) -> bytes:
    length = rng.choice((1, 2, 4, 16))
    position = _position(rng, len(data), length)
    return data[:position] + rng.randbytes(length) + data[position + length :]


def _swap_chunks(data: bytes, rng: random.Random) -> bytes:
    length = rng.choice((4, 8, 32))
    a, b = sorted(_position(rng, len(data), length) for _ in range(2))
    if b < a + length:
        return _flip_bits(data, rng)
    return data[:a] + data[b : b + length] + data[a + length : b] + data[a : a + length] + data[b + length :]


def _copy_chunk(data: bytes, rng: random.Random) -> bytes:
    length = rng.choice((4, 8, 32))
    source, target = (_position(rng, len(data), length) for _ in range(2))
    return data[:target] + data[source : source + length] + data[target + length :]
