"""One line of a graph's text under a cursor: tokens, and what is made of a few of them. Nothing is evaluated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NoReturn, TypeVar

from microc.errors import ModelError

T = TypeVar("T")

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\\x00-\x1f]|\\.)*")"""
    r"""|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|-inf\b)"""
    r"""|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"""
    r"""|(?P<sign>[%@#$:=,(){}\[\]]))""",
    re.ASCII,
)
NOTHING = ("end", "")
_DIGITS = 400
"""Numbers are no longer than this: Python refuses to convert much longer ones."""


class Scanner:
    """A line under the cursor."""

    def __init__(self, line: str, number: int) -> None:
        self.number = number
        self.tokens = self.scan(line.rstrip())
        self.position = 0

    def fail(self, what: str) -> NoReturn:
        raise ModelError(f"the graph's text is damaged: {what}", where=f"line {self.number}")

    def scan(self, line: str) -> list[tuple[str, str]]:
        found, at = [], 0
        while at < len(line):
            match = _TOKEN.match(line, at)
            if match is None:
                self.fail(f"nothing is spelled {line[at : at + 20]!r}")
            kind = match.lastgroup or ""
            found.append((kind, match[kind]))
            at = match.end()
        return found

    @property
    def next(self) -> tuple[str, str]:
        return self.tokens[self.position] if self.position < len(self.tokens) else NOTHING

    def take(self, kind: str, what: str = "") -> str:
        """The next token, which must be of a kind."""
        found, text = self.next
        if found != kind:
            self.fail(f"{what or kind} expected, {text or 'the end of the line'!r} found")
        self.position += 1
        return text

    def sees(self, *texts: str) -> bool:
        """Take these signs and words if they come next."""
        upcoming = [text for kind, text in self.tokens[self.position : self.position + len(texts)] if kind != "string"]
        if upcoming != list(texts):
            return False
        self.position += len(texts)
        return True

    def expect(self, *texts: str) -> None:
        if not self.sees(*texts):
            self.fail(f"{' '.join(texts)!r} expected, {self.next[1] or 'the end of the line'!r} found")

    def listed(self, item: Callable[[], T], end: str) -> list[T]:
        """Items separated by commas (one may follow the last) up to ``end``."""
        found: list[T] = []
        while not self.sees(end):
            found.append(item())
            if not self.sees(","):
                self.expect(end)
                break
        return found

    def string(self) -> str:
        try:
            return str(json.loads(self.take("string")))
        except ValueError:
            self.fail("a string has a bad escape")

    def word(self, what: str) -> str:
        return self.string() if self.next[0] == "string" else self.take("word", what)

    def number_value(self) -> int | float:
        text = self.take("number")
        if len(text) > _DIGITS:
            self.fail("a number is too long")
        return int(text) if text.lstrip("-").isdigit() else float(text)

    def integer(self) -> int:
        value = self.number_value()
        if not isinstance(value, int):
            self.fail(f"an integer expected, {value} found")
        return value
