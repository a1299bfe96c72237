"""A compiled network in numbers: what :meth:`microc.Program.report` gives."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from microc.codegen.manifest import streaming_data
from microc.codegen.self_test import test_data
from microc.codegen.stack import stack_bound
from microc.driver.advice import told_of
from microc.driver.compile.fit import capacity, footprint
from microc.driver.report.memories import memories_data
from microc.driver.report.words import milliseconds
from microc.module import Call, Module
from microc.plan.overlap import shared_bytes
from microc.target import Board


def summary(module: Module, board: Board) -> dict[str, Any]:
    """Plain data, see :meth:`microc.Program.report`."""
    plan = module.plan
    assert plan is not None
    need, cycles = footprint((module,), board), sum(c.cycles for c in module.calls)
    return {
        "model": module.name,
        "source": module.source,
        "fingerprint": module.fingerprint,
        "board": board.name,
        "cpu": board.target.cpu,
        "kernels": len(module.calls),
        "functions": len(module.kernels),
        "macs": module.macs,
        **told_of(module, board.target),
        "optimize": module.options["optimize"],
        "estimated_instructions": module.instructions,
        "estimated_cycles": cycles,
        "estimated_milliseconds": milliseconds(cycles, board.raw.get("clock_hz")),
        "nominal_macs": module.nominal_macs,
        "weight_bytes": module.const_bytes,
        "arena": plan.size,
        "arena_lower_bound": plan.lower_bound,
        "memories": memories_data(module),
        "streaming": None if module.streaming is None else streaming_data(module.streaming),
        "without_streams": asdict(module.plain) if module.plain else None,
        "planner": plan.planner,
        "io_in_arena": plan.io_in_arena,
        "sizes": [asdict(size) for size in module.sizes],
        "stack_bound": stack_bound(module),
        "flash": need.flash,
        "ram": need.ram,
        "board_flash": capacity(board, "flash"),
        "board_ram": capacity(board, "ram"),
        "inputs": [tensor_data(module, name) for name in module.inputs],
        "self_test": test_data(module),
        "external": [asdict(decision) for decision in module.decisions],
        "outputs": [tensor_data(module, name) for name in module.outputs],
        "state": [{**tensor_data(module, name), "bytes": module.values[name].nbytes} for name in module.state],
        "layers": [
            {
                "kernel": k,
                "function": c.kernel,
                "layer": c.layer,
                "op": c.op,
                "macs": c.macs,
                "rule": c.rule,
                "schedule": c.schedule,
                "estimated_instructions": c.instructions,
                "estimated_cycles": c.cycles,
                "estimated_waits": c.waits,
                "share": c.cycles / (cycles or 1),
                "in_place": shared_bytes(module, c),
                "streamed": _streamed(c),
                "tensor_unit": asdict(c.unit) if c.unit else None,
            }
            for k, c in enumerate(module.calls)
        ],
    }


def _streamed(call: Call) -> dict[str, Any] | None:
    """What a kernel of several layers trades for memory; None for all others."""
    if call.streamed is None:
        return None
    price = call.streamed
    return {"layers": list(price.layers), "extra_macs": price.extra_macs, "moved_bytes": price.moved}


def tensor_data(module: Module, name: str) -> dict[str, Any]:
    """A value as manifests describe tensors."""
    value = module.values[name]
    return {
        "name": name,
        "label": value.label,
        "dtype": value.dtype,
        "shape": list(value.shape),
        "scale": value.scale,
        "zero_point": value.zero_point,
    }
