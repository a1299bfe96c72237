# SPDX-License-Identifier: Apache-2.0
"""Docstrings speak of names by roles, ``:func:`microc.load```: on the site links where the name has a page, else code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

import microc

MODULES = ("errors", "te", "tir", "topi")
ROLE = re.compile(r":(?:class|func|meth|data|mod|attr|exc):`(~?)(!?)([\w.]+)`")


class Roles(Extension):
    """Rewrites the docstrings of all objects."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(_linked, obj.docstring.value)


def _linked(role: re.Match[str]) -> str:
    path = role[3]
    name = path.rpartition(".")[2] if role[1] else path
    short = path.removeprefix("microc.")
    return f"[`{name}`][microc.{short}]" if short in microc.__all__ and short not in MODULES else f"`{name}`"
