"""By what the host knows the firmware of a board."""

from __future__ import annotations

import hashlib

from microc.isa import SCALAR
from microc.module import Module
from microc.target import Target
from microc.tir import ir
from microc.tir.rewrite import walk_all_exprs


def fingerprint(module: Module, target: Target) -> str:
    """32 hex digits that change when the code or the constants would: the host knows a board's firmware by it."""
    digest = hashlib.sha256(f"{module.name} {target.cpu}".encode())
    for kernel in module.kernels:
        digest.update(repr(kernel.func).encode())
    externs = set(SCALAR) - set(SCALAR.sealed)
    if externs and not externs.isdisjoint(_calls(module)):
        digest.update(repr([SCALAR[name] for name in sorted(externs)]).encode())
    for sources in module.sources:
        for path, data in sources.files.items():
            digest.update(f"{path} {len(data)} ".encode() + data)
    for call in module.calls:
        digest.update(repr((call.kernel, call.args)).encode())
    for name in sorted(module.values):
        value = module.values[name]
        digest.update(f"{name} {value.shape} {value.dtype} {value.storage}".encode())
        if value.data is not None:
            digest.update(value.data.tobytes())
    return digest.hexdigest()[:32]


def _calls(module: Module) -> set[str]:
    """The functions that its kernels call, by name."""
    return {x.name for kernel in module.kernels for x in walk_all_exprs(kernel.func.body) if isinstance(x, ir.Call)}
