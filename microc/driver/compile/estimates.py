"""What the cost model says of a module: code bytes of every kernel, instructions and cycles of every call."""

from __future__ import annotations

from dataclasses import replace

from microc.module import Module
from microc.schedule.cost import estimate
from microc.target import Target
from microc.tir.generalise import instantiate


def estimated(module: Module, target: Target) -> Module:
    """``module`` with the estimates filled in, at the largest sizes where they vary.

    Cycles include the waits of constants in the target's flash.
    """
    largest = {size.scalar.name: size.maximum for size in module.sizes}
    costs = {kernel.name: estimate(instantiate(kernel.func, largest), target) for kernel in module.kernels}
    return replace(
        module,
        kernels=tuple(replace(k, code_bytes=costs[k.name].code_bytes) for k in module.kernels),
        calls=tuple(
            replace(c, instructions=round(costs[c.kernel].instructions), cycles=round(costs[c.kernel].cycles))
            for c in module.calls
        ),
    )
