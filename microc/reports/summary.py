# SPDX-License-Identifier: Apache-2.0
"""Summarise a compiled network as plain data, the result of :meth:`microc.Program.report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from microc import __version__
from microc.codegen.c.c_statements import core_count_of
from microc.codegen.c.resources import stack_bound
from microc.codegen.project.manifest import describe_streaming, manifest
from microc.codegen.project.project_samples import describe_self_test
from microc.compiler.fit.budget import region_bytes
from microc.compiler.fit.footprint import board_capacity, compute_firmware_footprint
from microc.compiler.lowering.module_builder import code_in_ram_gain
from microc.module import Call, Module
from microc.plan.liveness import shared_bytes
from microc.reports.advice import describe_arithmetic, weight_storage_notes
from microc.reports.figures import cycles_to_milliseconds
from microc.reports.layers import describe_tensor_memories
from microc.reports.report import Report, make_report
from microc.target import Board

MIN_PRINTED_GAIN = 0.02
"""Least gain of advice that ``microc compile`` prints, as a share of the network's time."""


def summarise_module(module: Module, board: Board) -> dict[str, Any]:
    """Describe a module (compiled network) on a board as plain data; :meth:`microc.Program.report` documents the data."""
    plan = module.plan
    assert plan is not None
    need, cycles = compute_firmware_footprint((module,), board), sum(c.cycles for c in module.calls)
    data = {
        "model": module.name,
        "source": module.source,
        "fingerprint": module.fingerprint,
        "board": board.name,
        "cpu": board.target.cpu,
        "kernels": len(module.calls),
        "functions": len(module.kernels),
        "macs": module.macs,
        **describe_arithmetic(module.arithmetic, ()),
        "optimize": module.options["optimize"],
        "estimated_instructions": module.instructions,
        "estimated_cycles": cycles,
        "estimated_milliseconds": cycles_to_milliseconds(cycles, board.raw.get("clock_hz")),
        "nominal_macs": module.nominal_macs,
        "weight_bytes": module.const_bytes,
        "arena": plan.size,
        "arena_lower_bound": plan.lower_bound,
        "memories": describe_tensor_memories(module),
        "streaming": None if module.streaming is None else describe_streaming(module.streaming),
        "without_streams": asdict(module.plain) if module.plain else None,
        "planner": plan.planner,
        "io_in_arena": plan.io_in_arena,
        "sizes": [asdict(size) for size in module.sizes],
        "stack_bound": stack_bound(module),
        "flash": need.flash,
        "ram": need.ram,
        "ram_taken": need.required_board_ram,
        "board_flash": region_bytes(board, "flash"),
        "board_ram": region_bytes(board, "ram"),
        "inputs": [describe_value(module, name) for name in module.inputs],
        "self_test": describe_self_test(module),
        "external": [asdict(decision) for decision in module.decisions],
        "outputs": [describe_value(module, name) for name in module.outputs],
        "state": [{**describe_value(module, name), "bytes": module.values[name].nbytes} for name in module.state],
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
                "streamed": _row_streaming_data(c),
                "tensor_unit": asdict(c.unit) if c.unit else None,
            }
            for k, c in enumerate(module.calls)
        ],
    }
    steps = report_module(module, board, data).data["advice"]
    return {**data, "advice": [_advice_sentence(each) for each in select_printed_advice(steps)], "next_steps": steps}


def report_module(module: Module, board: Board, program_report: Mapping[str, Any] | None = None) -> Report:
    """Make the report of a module whose memory is planned; its C need not be generated yet.

    ``program_report``: as for :func:`make_report`."""
    return make_report(
        manifest(module, __version__),
        board,
        program_report=program_report,
        code_in_ram=code_in_ram_gain(module, board_capacity(board, cores=core_count_of(module))),
        notes=weight_storage_notes(module.arithmetic),
    )


def select_printed_advice(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Select the advice that ``microc compile`` prints: advice with a gain of at least :data:`MIN_PRINTED_GAIN`, and advice
    without a command."""
    return [advice for advice in steps if (advice["gain"] or 0) >= MIN_PRINTED_GAIN or not advice["command"]]


def _advice_sentence(advice: Mapping[str, Any]) -> str:
    """Join the text and the command of a piece of advice to one sentence."""
    return f"{advice['text']}: {advice['command']}" if advice["command"] else str(advice["text"])


def _row_streaming_data(call: Call) -> dict[str, Any] | None:
    """Describe the price of a kernel that computes several layers row by row to save memory, as plain data.

    The price consists of additional multiply-accumulates and moved bytes. None for other kernels."""
    if call.streamed is None:
        return None
    price = call.streamed
    return {"layers": list(price.layers), "extra_macs": price.extra_macs, "moved_bytes": price.moved}


def describe_value(module: Module, name: str) -> dict[str, Any]:
    """Describe a value (tensor) of a module as plain data, with the same keys as in a manifest."""
    value = module.values[name]
    return {
        "name": name,
        "label": value.label,
        "dtype": value.dtype,
        "shape": list(value.shape),
        "scale": value.scale,
        "zero_point": value.zero_point,
    }
