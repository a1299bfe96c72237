"""``microc profile``: time, flash and memory by layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.compiling import progress
from microc.cli.report import advice_here, next_steps
from microc.cli.session import build_firmware, line, load_inputs, opened_project
from microc.driver.report.unit import unit_table

if TYPE_CHECKING:
    from microc.driver.measure.profile import Profile

_CSV = (
    "kernel", "layer", "op", "rule", "unit", "time", "share", "macs", "time_per_mac", "ticks", "instructions", "code",
    "constants", "flash", "arena", "estimated_cycles", "schedule",
)  # fmt: skip


def profile(arguments: Arguments) -> show.Answer:
    """``microc profile``."""
    import numpy as np

    from microc.cli.files import check_places, write_csv, write_json, write_text
    from microc.driver.measure.session import Device
    from microc.driver.measure.verify import random_inputs
    from microc.driver.report.accuracy import read_accuracy
    from microc.driver.report.making import of_profile
    from microc.driver.report.trace import to_trace

    check_places(**{"--html": arguments.html, "--csv": arguments.csv, "--trace": arguments.trace})
    verified = None if arguments.verified is None else read_accuracy(arguments.verified)
    with opened_project(arguments) as project:
        given = load_inputs(arguments, project.manifest) if arguments.inputs else None
        build_firmware(project, arguments)
        with Device(project, progress=progress(arguments), **line(arguments)) as device:
            device.set_inputs(*(given or random_inputs(device.inputs, np.random.default_rng(arguments.seed))))
            result, stack = device.profile(), device.stats().stack_bytes
        report = of_profile(result, stack, verified)
        advice = advice_here(report.data["advice"], report.data, arguments)
        data = {**result.to_data(), "advice": advice}
        if arguments.trace is not None:
            write_json(arguments.trace, to_trace(result))
        if arguments.csv is not None:
            rows = [{**k, "unit": result.unit} for k in data["kernels"]]
            write_csv(arguments.csv, _CSV, [[row[name] for name in _CSV] for row in rows])
        if arguments.html is not None:
            write_text(arguments.html, replace(report, data={**report.data, "advice": advice}).html())
    return show.Answer(data, "\n\n".join(filter(None, (_text(result), next_steps(advice)))))


def _text(result: Profile) -> str:
    """The table of kernels, its total, and what the numbers are."""
    unit = result.unit
    rows = []
    for k in result.kernels:
        costs = _costs(k.time, k.share, k.macs, k.flash, k.arena, k.estimated_cycles)
        rows.append((str(k.kernel), show.layer(k.layer), k.op, k.rule, *costs))
    arena = max((k.arena for k in result.kernels), default=0)
    flash = sum(k.flash or 0 for k in result.kernels) if result.size else None
    rows.append(("", "total", "", "", *_costs(result.time, 1.0, result.macs, flash, arena, result.estimated_cycles)))
    head = (
        "kernel",
        "layer",
        "operators",
        "schedule",
        unit,
        "%",
        "MACs",
        f"{unit}/MAC",
        "flash",
        "arena",
        "est. cycles",
    )
    notes = (
        f"{result.board}: {show.duration(result.clock, result.time)}",
        "flash: code and constants in bytes; arena: bytes in use during the step; cycles: estimated from the code, not measured",
    )
    on_unit = unit_table({k.kernel: k.tensor_unit for k in result.kernels}, show.columns())
    return "\n\n".join((show.table(head, rows, 4), *([on_unit] if on_unit else []), "\n".join(notes)))


def _costs(time: int, share: float, macs: int, flash: int | None, arena: int, cycles: int) -> tuple[str, ...]:
    each = f"{time / macs:.2f}" if macs else ""
    size = "" if flash is None else show.count(flash)
    return show.count(time), f"{100 * share:.1f}", show.count(macs), each, size, show.count(arena), show.count(cycles)
