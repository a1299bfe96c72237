"""What the printer and the parser of TIR text agree on: operators, precedences, keywords."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from types import MappingProxyType

# operator -> (spelling, precedence), as in Python; comparisons do not chain
INFIX: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "or": ("or", 1), "and": ("and", 2),
        "lt": ("<", 4), "le": ("<=", 4), "gt": (">", 4), "ge": (">=", 4), "eq": ("==", 4), "ne": ("!=", 4),
        "bitor": ("|", 5), "bitxor": ("^", 6), "bitand": ("&", 7), "shl": ("<<", 8), "shr": (">>", 8),
        "add": ("+", 9), "sub": ("-", 9), "mul": ("*", 10), "div": ("/", 10), "floordiv": ("//", 10), "floormod": ("%", 10),
    }
)  # fmt: skip
NAMED_BINARY = frozenset({"truncdiv", "truncmod", "min", "max"})
PREFIX: Mapping[str, tuple[str, int]] = MappingProxyType({"not": ("not ", 3), "neg": ("-", 11), "bitnot": ("~", 11)})
ATOM = 12
COMPARISON = 4

LOOPS: Mapping[str, str] = MappingProxyType(
    {"serial": "serial", "unrolled": "unroll", "vectorized": "vectorized", "parallel": "parallel"}
)
AXES: Mapping[str, str] = MappingProxyType({"space": "spatial", "reduce": "reduce"})
RESERVED = NAMED_BINARY | {"neg", "Cast", "Select", "address_of", "call"}

_KEYWORD = re.compile("(" + "|".join([*keyword.kwlist, "T"]) + r")(_*)")


def written(name: str) -> str:
    """A name as it stands in text: one that is a keyword (and underscores) gets one underscore more."""
    return name + "_" if _KEYWORD.fullmatch(name) else name


def read(name: str) -> str:
    """The inverse of :func:`written`."""
    match = _KEYWORD.fullmatch(name)
    return name[:-1] if match and match[2] else name
