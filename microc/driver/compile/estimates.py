"""What the cost model says of a module: code bytes of every kernel, instructions and cycles of every call."""

from __future__ import annotations

from dataclasses import replace

from microc.module import Kernel, Module
from microc.schedule.cost import Cost, estimate
from microc.schedule.unit_time import unit_use
from microc.target import Target, Traffic
from microc.tir.generalise import instantiate
from microc.tir.ir import PrimFunc


def estimated(module: Module, target: Target) -> Module:
    """``module`` with the estimates filled in, at the largest sizes where they vary.

    Cycles include the waits of constants in the target's flash, but none for a tensor unit, whose cycles are apart. Of external
    code they are its instructions, which is all that its backend says.
    """
    largest = {size.scalar.name: size.maximum for size in module.sizes}
    funcs = {kernel.name: instantiate(kernel.func, largest) for kernel in module.kernels}
    costs = {kernel.name: _cost(kernel, funcs[kernel.name], target) for kernel in module.kernels}
    params = {kernel.name: [param.name for param in kernel.func.params] for kernel in module.kernels}
    constants = {
        k.name: [costs[k.name].traffic.get(p.name, Traffic()) for p in k.func.params if p.scope == "const"]
        for k in module.kernels
    }
    return replace(
        module,
        kernels=tuple(
            replace(k, code_bytes=costs[k.name].code_bytes, fetches=costs[k.name].fetches) for k in module.kernels
        ),
        calls=tuple(
            replace(
                c,
                instructions=round(costs[c.kernel].instructions),
                cycles=round(costs[c.kernel].cycles),
                unit=unit_use(funcs[c.kernel], target.core.tensor_unit, c.macs),
                waits=round(target.flash_wait * sum(t.bytes_read for t in constants[c.kernel])),
                traffic=tuple(costs[c.kernel].traffic.get(p, Traffic()) for p in params[c.kernel]),
            )
            for c in module.calls
        ),
    )


def _cost(kernel: Kernel, func: PrimFunc, target: Target) -> Cost:
    external = kernel.external
    if external is None:
        return estimate(func, target)
    return Cost(external.instructions, external.instructions, external.code_bytes, 0, {})
