# SPDX-License-Identifier: Apache-2.0
"""Parsers of the words of arguments that are no compilation options: seconds, baud rates, tolerances.

The text of a ValueError states the mistake and the accepted form."""

from __future__ import annotations


def parse_seconds(text: str) -> float:
    """Parse a positive number of seconds, such as 10 or 0.5."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ValueError(f"got {text!r}, expected a number of seconds above 0: write 10 or 0.5")
    return seconds


_SECONDS_BY_UNIT = {"s": 1, "m": 60, "h": 3600}


def parse_duration(text: str) -> float:
    """Parse a duration with a unit, such as 90s, 10m or 2h, and return it in seconds."""
    number, unit = (text[:-1], _SECONDS_BY_UNIT[text[-1]]) if text[-1:] in _SECONDS_BY_UNIT else (text, 1)
    try:
        return parse_seconds(str(float(number) * unit))
    except ValueError:
        raise ValueError(f"got {text!r}, expected a duration: write 90s, 10m or 2h") from None


BOUNDED_FIGURES = ("flash", "ram", "time")
"""Figures whose growth ``--fail-over`` can limit; the same as :data:`microc.reports.firmware_size.FIGURES`."""
BAUDS = (115200, 921600, 460800, 230400, 1000000, 57600, 38400, 19200, 9600)
"""Baud rates that ``--baud auto`` tries, in this order."""


def parse_baud_rates(text: str) -> tuple[int, ...]:
    """Parse baud rates separated by commas; return :data:`BAUDS` for ``auto``."""
    if text == "auto":
        return BAUDS
    rates = tuple(int(part) if part.isdecimal() else 0 for part in text.split(","))
    if not all(300 <= rate <= 20_000_000 for rate in rates):
        raise ValueError(f"got {text!r}, expected baud rates from 300 to 20000000: write 115200,921600 or auto")
    return rates


def parse_quanta(text: str) -> int:
    """Parse a number of quantisation steps, 0 or more."""
    return _parse_integer(text, 0, None, "a number of quantisation steps: write 0, 1, 2 ...")


def parse_inference_count(text: str) -> int:
    """Parse a number of inferences, 1 to a million."""
    return _parse_integer(text, 1, 1_000_000, "a number of inferences from 1 to 1,000,000")


def parse_run_count(text: str) -> int:
    """Parse a number of runs, 1 or more."""
    return _parse_integer(text, 1, (1 << 31) - 1, "a number of runs, 1 or more")


def parse_tcp_port(text: str) -> int:
    """Parse the number of a TCP port, 1 to 65535."""
    return _parse_integer(text, 1, (1 << 16) - 1, "a TCP port: write a number from 1 to 65535")


def _parse_integer(text: str, least: int, most: int | None, expected_form: str) -> int:
    """Parse an integer from ``least`` to ``most`` (None: any); ``expected_form``: end of the error message."""
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        raise ValueError(f"got {text!r}, expected {expected_form}")
    return int(text)


def parse_tolerance(text: str) -> float:
    """Parse a relative tolerance, at least 0 and below 1."""
    return _parse_number_below(1, text, "tolerance between 0 and 1: write 1e-5")


def parse_share(text: str) -> float:
    """Parse a share that is written as a fraction (0.01) or in percent (1%); return the fraction."""
    return _parse_number_below(1e6, text, "share: write 0.01 or 1%")


def parse_growth_limit(text: str) -> tuple[str, float]:
    """Parse a limit of growth, such as 2% or flash=2%; return the figure's name (empty: all figures) and the share."""
    name, _, bound = text.rpartition("=")
    if name and name not in BOUNDED_FIGURES:
        raise ValueError(f"got a limit for {name!r}, expected one of {', '.join(BOUNDED_FIGURES)}")
    return name, parse_share(bound)


def _parse_number_below(upper_limit: float, text: str, expected_form: str) -> float:
    """Parse a number or percentage from 0 to below ``upper_limit``; ``expected_form``: end of the error message."""
    try:
        number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < upper_limit:
        raise ValueError(f"got {text!r}, expected a {expected_form}")
    return number


def parse_layer_bits(text: str) -> tuple[str, int]:
    """Parse ``NAME=BITS``; return the name of the layer and its number of bits."""
    name, _, bits = text.rpartition("=")
    if not name or not bits.isdecimal():
        raise ValueError(f"got {text!r}, expected a layer and its number of bits: write NAME=4")
    return name, int(bits)


def parse_pixel_values(text: str) -> tuple[float, float]:
    """Parse the real values of pixels 0 and 255, which are separated by a space."""
    try:
        low, high = map(float, text.split())
    except ValueError:
        raise ValueError(f"got {text!r}, expected two numbers: write -1 1") from None
    return low, high
