"""What words on a command line mean: shapes, names, bytes. A ValueError says what is wrong with one, and how to write it."""

from __future__ import annotations

import csv
from errno import EFBIG
from pathlib import Path

from microc.driver.options.checks import Bound, bytes_of
from microc.reading import read_bytes

LONGEST_FILE = 1 << 22
"""Bytes of a list of names at most."""

bytes = bytes_of
"""65536, 64K or 64KB."""


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    """NAME=1,3,8."""
    name, equals, dimensions = text.rpartition("=")
    try:
        shape = tuple(int(part) for part in dimensions.split(","))
    except ValueError:
        shape = ()
    if not equals or not name or not shape or min(shape) < 1:
        raise ValueError(f"{text!r} is no shape: write NAME=1,3,8")
    return name, shape


def bound(text: str) -> tuple[str, Bound]:
    """NAME=MAX, NAME=MIN:MAX or NAME=MIN:MAX:STEP."""
    name, equals, sizes = text.rpartition("=")
    parts = sizes.split(":")
    if not name or not equals or len(parts) > 3 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"{text!r} is no bound: write NAME=64, NAME=8:64 or NAME=8:64:8")
    numbers = [int(part) for part in parts]
    minimum, maximum, step = (1, numbers[0], 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    return name, Bound(maximum, minimum, step)


def names(text: str) -> tuple[str, ...]:
    """Names between commas; one that has a comma itself stands in double quotes."""
    (names,) = csv.reader([text], skipinitialspace=True) if text else ([],)
    if not names or not all(names):
        raise ValueError(f"{text!r} is no list of names: write NAME,NAME")
    return tuple(names)


def wish(text: str) -> tuple[str, str]:
    """NAME=WORD, or the word alone, which speaks of all."""
    name, equals, word = text.rpartition("=")
    if not word or (equals and not name):
        raise ValueError(f"{text!r} says nothing: write NAME=WORD, or the word alone for all")
    return name or "*", word


def axis(text: str) -> tuple[str, int]:
    """NAME=AXIS, or the number alone, which speaks of all inputs."""
    name, equals, number = text.rpartition("=")
    try:
        return (name if equals else "*"), int(number)
    except ValueError:
        raise ValueError(f"{text!r} is no axis: write NAME=1, or the number alone for all") from None


def pixels(text: str) -> tuple[str, tuple[int, int]]:
    """NAME=120x160, or the size alone."""
    name, size = wish(text)
    height, _, width = size.partition("x")
    if not height.isdecimal() or not width.isdecimal():
        raise ValueError(f"{text!r} is no size: write NAME=120x160, height first, or the size alone")
    return name, (int(height), int(width))


def normalization(text: str) -> tuple[str, tuple[tuple[float, ...], tuple[float, ...]]]:
    """NAME=MEAN STD, or the numbers alone; each is several between commas, or one."""
    name, _, numbers = text.rpartition("=")
    try:
        mean, deviation = (tuple(float(part) for part in several.split(",")) for several in numbers.split())
    except ValueError:
        raise ValueError(f"{text!r} is no mean and deviation: write 127.5 127.5, or 124,116,104 58,57,57") from None
    return name or "*", (mean, deviation)


def count(text: str) -> int:
    """A whole number."""
    if not text.isdecimal():
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


def renaming(text: str) -> tuple[str, str]:
    """NAME=NEW."""
    name, equals, new = text.rpartition("=")
    if not equals or not name or not new:
        raise ValueError(f"{text!r} renames nothing: write NAME=NEW")
    return name, new


def feedback(text: str) -> tuple[str, str]:
    """INPUT=OUTPUT."""
    name, equals, output = text.rpartition("=")
    if not equals or not name or not output:
        raise ValueError(f"{text!r} keeps no state: write INPUT=OUTPUT")
    return name, output


def external(text: str) -> tuple[str, str]:
    """NAME=PATH, or the name alone."""
    name, _, place = text.partition("=")
    if not name:
        raise ValueError(f"{text!r} names no backend: write cmsis-nn=PATH, or cblas")
    return name, place


def lines(text: str) -> tuple[str, ...]:
    """The lines of a file of text in UTF-8; empty ones at its end do not count."""
    try:
        found = read_bytes(text, LONGEST_FILE).decode("utf-8-sig").rstrip().splitlines()
    except OSError as error:
        if error.errno == EFBIG:
            what = f"{text} is longer than {LONGEST_FILE:,} bytes: names of classes, one a line, are not"
            raise ValueError(what) from error
        raise ValueError(f"cannot read {text}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{text} is no text in UTF-8") from error
    if not found:
        raise ValueError(f"{text} is empty: write names, one a line")
    return tuple(line.strip() for line in found)


def path(text: str) -> tuple[Path, ...]:
    """A path, one of several."""
    return (Path(text),)


PATHS: frozenset[object] = frozenset({Path, path, lines, external})
"""Meanings of words that name a file or a folder."""
