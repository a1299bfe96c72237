"""What compilers are told about the network's files and about all others."""

from __future__ import annotations

from microc.isa import FAMILIES
from microc.target import Target

RUNTIME_OPTIMISATION = "-Os"
"""Compiler options for all that is not the network."""


def optimisation(target: Target, optimize: str) -> str:
    """Compiler options for the network, by goal."""
    return " ".join(filter(None, (FAMILIES[target.isa].options[optimize], target.core.options)))
