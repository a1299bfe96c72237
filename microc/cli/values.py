"""What words on the command line mean that are no options of a compilation: seconds, rates, tolerances."""

from __future__ import annotations

import argparse

from microc.driver.options import words


def seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds: write 10 or 0.5")
    return seconds


_UNITS = {"s": 1, "m": 60, "h": 3600}


def duration(text: str) -> float:
    """90s, 10m or 2h, in seconds."""
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    try:
        return seconds(str(float(number) * unit))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 90s, 10m or 2h") from None


GROWING = ("flash", "ram", "time")
"""What ``--fail-over`` bounds (:data:`microc.driver.report.growth.WHAT`)."""
MOST_INFERENCES = 1_000_000
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
        raise argparse.ArgumentTypeError(f"{text!r} is no number of quanta: write 0, 1, 2 ...")
    return int(text)


def inferences(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= MOST_INFERENCES:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of inferences: 1 to {MOST_INFERENCES:,}")
    return int(text)


def tolerance(text: str) -> float:
    return _below(1, text, "tolerance between 0 and 1: write 1e-5")


def share(text: str) -> float:
    """0.01 or 1%."""
    return _below(1e6, text, "share: write 0.01 or 1%")


def growth(text: str) -> tuple[str, float]:
    """2%, or flash=2%; the empty name speaks of all."""
    name, _, bound = text.rpartition("=")
    if name and name not in GROWING:
        raise argparse.ArgumentTypeError(f"{text!r} bounds {name!r}: there are {', '.join(GROWING)}")
    return name, share(bound)


def _below(most: float, text: str, what: str) -> float:
    """A number that is not negative, or so many percent."""
    try:
        number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < most:
        raise argparse.ArgumentTypeError(f"{text!r} is no {what}")
    return number


def size(text: str) -> int:
    """65536 or 64K."""
    try:
        return words.bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def layer_bits(text: str) -> tuple[str, int]:
    """NAME=4."""
    name, _, bits = text.rpartition("=")
    if not name or not bits.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} says no bits: write NAME=4")
    return name, int(bits)
