"""What compilers are told about the network's files and about all others."""

from __future__ import annotations

from microc.isa import FAMILIES
from microc.target import Target

RUNTIME_OPTIMISATION = "-Os"
"""Compiler options for all that is not the network."""


def optimisation(target: Target, optimize: str) -> str:
    """Compiler options for the network, by goal."""
    return " ".join(filter(None, (FAMILIES[target.isa].options[optimize], target.core.options)))


def webassembly(target: Target) -> str:
    """clang's options for a module of WebAssembly that is called, not a program that ends; without vectors where the C is for
    cores of other kinds. Kernels keep small workspaces on the stack, which has 64 KiB unless more are asked for."""
    machine = target.core.machine if target.isa == "wasm" else "--target=wasm32-wasi"
    return f"{machine} -std=c99 -O2 -mexec-model=reactor -Wl,-z,stack-size=262144"
