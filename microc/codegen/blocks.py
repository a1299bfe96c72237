"""Comments in printed loops: what is computed from here on.

Every block of a kernel writes one buffer, so that a new block begins where another buffer is written. What a block computes is
told once; where it goes on, behind others or in a remainder, its title stands alone.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping

from microc.tir import ir
from microc.tir.facts import buffers_written
from microc.tir.rewrite import stmt_children

WIDTH = 92
"""Of a comment in loops, which are indented."""


class Blocks:
    """What to say before the statements of a function, which are asked about in the order of the text."""

    def __init__(self, said: Mapping[str, str]) -> None:
        self.said = dict(said)
        self.current = ""
        self.known: dict[int, frozenset[ir.Buffer]] = {}

    def before(self, stmt: ir.Stmt) -> list[str]:
        """Lines of a comment: none where the block goes on, or where nothing is known of it."""
        if isinstance(stmt, ir.Seq):
            return []
        written = self._written(_first(stmt))
        if len(written) != 1 or (name := self._name(next(iter(written)))) == self.current:
            return []
        self.current = name
        text = self.said.get(name, "")
        self.said[name] = re.split(r"[:\[]", text)[0]
        return comment(text, WIDTH) if text else []

    def _written(self, stmt: ir.Stmt) -> frozenset[ir.Buffer]:
        """The buffers that a statement writes, found once for those inside of others."""
        if id(stmt) not in self.known:
            match stmt:
                case ir.Store(buffer):
                    found = frozenset({buffer})
                case ir.Evaluate():
                    found = buffers_written(stmt)
                case _:
                    found = frozenset[ir.Buffer]().union(*map(self._written, stmt_children(stmt)))
            self.known[id(stmt)] = found
        return self.known[id(stmt)]

    def _name(self, buffer: ir.Buffer) -> str:
        """What a buffer is told as: one that a schedule put between is a copy, or holds the tensor that is made."""
        name = buffer.name.removesuffix(f"_{buffer.scope}")
        if name != buffer.name and name not in self.said:
            self.said[name] = f"copy of {name}"
        return name


def _first(stmt: ir.Stmt) -> ir.Stmt:
    """The first statement that does something."""
    match stmt:
        case ir.Let(_, _, body) | ir.Alloc(_, body):
            return _first(body)
        case ir.Seq((body, *_)):
            return _first(body)
        case _:
            return stmt


def comment(text: str, width: int) -> list[str]:
    """A comment as lines of C; nothing in it ends a comment or begins another. Integers are divided as C writes it."""
    shown = text.replace("//", "/").replace("*/", "* /").replace("/*", "/ *")
    return textwrap.wrap(f"/* {shown} */", width, subsequent_indent=" *     ", break_on_hyphens=False)
