"""What the printer and the parser of TIR text agree on: operators, precedences, keywords."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from types import MappingProxyType

from microc.tir.operators import BINARY, UNARY, Spelling

INFIX: Mapping[str, Spelling] = MappingProxyType({name: each.text for name, each in BINARY.items() if each.text})
NAMED_BINARY = frozenset(name for name, each in BINARY.items() if not each.text)
PREFIX: Mapping[str, Spelling] = MappingProxyType({name: each.text for name, each in UNARY.items() if each.text})
ATOM = 12
COMPARISON = 4

LOOPS: Mapping[str, str] = MappingProxyType(
    {
        "serial": "serial",
        "unrolled": "unroll",
        "vectorized": "vectorized",
        "parallel": "parallel",
        "scalable": "scalable",
    }
)
THREAD_BINDING = "thread_binding"
"""The loop of TVM's text whose kind is an argument."""
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
