"""What words on the command line mean: shapes, names, bytes, seconds. Nothing heavy is imported here."""

from __future__ import annotations

import argparse
import csv


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, dimensions = text.rpartition("=")
    try:
        shape = tuple(int(part) for part in dimensions.split(","))
    except ValueError:
        shape = ()
    if not equals or not name or not shape or min(shape) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape: write NAME=1,3,8")
    return name, shape


def bound(text: str) -> tuple[str, tuple[int, int, int]]:
    """NAME=MAX, NAME=MIN:MAX or NAME=MIN:MAX:STEP, as name and (minimum, maximum, step)."""
    name, equals, sizes = text.rpartition("=")
    parts = sizes.split(":")
    if not name or not equals or len(parts) > 3 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no bound: write NAME=64, NAME=8:64 or NAME=8:64:8")
    numbers = [int(part) for part in parts]
    minimum, maximum, step = (1, numbers[0], 1) if len(numbers) == 1 else (*numbers, 1)[:3]
    return name, (minimum, maximum, step)


def names(text: str) -> tuple[str, ...]:
    """Names between commas; one that has a comma itself stands in double quotes."""
    (names,) = csv.reader([text], skipinitialspace=True) if text else ([],)
    if not names or not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of names: write NAME,NAME")
    return tuple(names)


def wish(text: str) -> tuple[str, str]:
    """NAME=WORD, or the word alone, which speaks of all."""
    name, equals, word = text.rpartition("=")
    if not word or (equals and not name):
        raise argparse.ArgumentTypeError(f"{text!r} says nothing: write NAME=WORD, or the word alone for all")
    return name or "*", word


def axis(text: str) -> tuple[str, int]:
    """NAME=AXIS, or the number alone, which speaks of all inputs."""
    name, equals, number = text.rpartition("=")
    try:
        return (name if equals else "*"), int(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no axis: write NAME=1, or the number alone for all") from None


def bytes(text: str) -> int:
    units = {"K": 1024, "M": 1024 * 1024}
    digits, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    if not digits.isdecimal() or not 0 < int(digits) * unit < 1 << 32:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes: write 65536 or 64K")
    return int(digits) * unit


def seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds")
    return seconds


BAUDS = (115200, 921600, 460800, 230400, 1000000, 57600, 38400, 19200, 9600)
"""What ``auto`` tries."""


def bauds(text: str) -> tuple[int, ...]:
    """Rates between commas, or ``auto``."""
    if text == "auto":
        return BAUDS
    rates = tuple(int(part) if part.isdecimal() else 0 for part in text.split(","))
    if not all(300 <= rate <= 20_000_000 for rate in rates):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of baud rates: write 115200,921600 or auto")
    return rates


def quanta(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of quanta")
    return int(text)


def tolerance(text: str) -> float:
    try:
        tolerance = float(text)
    except ValueError:
        tolerance = -1.0
    if not 0 <= tolerance < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no tolerance between 0 and 1")
    return tolerance
