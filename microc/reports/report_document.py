# SPDX-License-Identifier: Apache-2.0
"""Documents of reports, and the layers and memories that they show."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from microc.document.blocks import (
    Cell,
    Column,
    Document,
    Fact,
    Step,
    Steps,
    Table,
    cycles_to_milliseconds,
    document,
    facts,
    format_capacity_use,
    format_inference_time,
    format_peak_stack,
    format_percent_change,
    format_shape,
    format_shared_kernels,
    layer_names,
    memory_usage_rows,
    numbers,
    table,
    texts,
)
from microc.module import ConstantRegion, HotCode, Module, StoredConstants
from microc.reports.evidence import accuracy_sentences
from microc.reports.firmware_size import divide_evenly, live_arena_bytes
from microc.run.profile import shorten_layer_name

if TYPE_CHECKING:
    from microc.module import UnitUse
    from microc.run.profile import Profile


# ---- The work of layers on a core's tensor unit (a matrix multiplier of the core), as text.


def describe_tensor_unit_use(use: UnitUse) -> str:
    """Describe a layer's work on the tensor unit in one line of text."""
    busy = f"loads {use.load:,}, computing {use.compute:,}, stores {use.store:,}"
    return f"{use.cycles:,} cycles of the unit ({busy}), {100 * use.utilisation:.1f} % of its products used"


def tensor_unit_table(uses: Mapping[int, UnitUse | None]) -> Table | None:
    """Make a table of the tensor unit's work: a row for every step that uses the unit, and a row of totals.

    None if no step uses the unit. ``uses``: work of each step by its number."""
    used = {step: use for step, use in uses.items() if use is not None}
    if not used:
        return None
    rows = [
        (str(step), use.cycles, use.load, use.compute, use.store, use.macs, 100 * use.utilisation)
        for step, use in used.items()
    ]
    cycles, *work = (
        sum(getattr(use, name) for use in used.values()) for name in ("cycles", "load", "compute", "store", "macs")
    )
    share = sum(use.utilisation * use.cycles for use in used.values()) / (cycles or 1)
    columns = (
        *texts("step"), *numbers("unit cycles", "loads", "computing", "stores", "unit MACs"), *numbers("used, %", spec=".1f"),
    )  # fmt: skip
    note = "cycles of the tensor unit by its rule, in which the processor takes no time"
    return table(columns, rows, note=note, totals=("total", cycles, *work, 100 * share))


# ---- A network's use of the board's memories: number of values, bytes, accesses, wait cycles.


def describe_tensor_memories(module: Module) -> list[dict[str, Any]]:
    """Describe each memory of a board in which tensors or constants are placed, as plain data; empty for boards with a
    single RAM and a single flash for them.

    ``bytes``: size of the arena in the memory; ``capacity``: largest possible size of this arena. ``accesses``: number of
    accesses in a run; ``waits``: estimated wait cycles that these accesses add. ``holds``: number of values by kind,
    including copies of constants. Flash regions and storage list their ``constants``. Code that runs from RAM has a row of
    its own, which lists its ``kernels``.
    """
    plan = module.plan
    assert plan is not None
    rows = []
    for arena in plan.arenas:
        inside = range(arena.start, arena.start + arena.size)
        storages = (module.values[name].storage for name, at in plan.offsets.items() if at in inside)
        kinds = Counter("constant" if storage == "const" else storage for storage in storages)
        rows.append(
            {
                "memory": arena.memory,
                "bytes": arena.size,
                "capacity": arena.capacity,
                "accesses": arena.accesses,
                "waits": arena.waits,
                "holds": dict(sorted(kinds.items())),
            }
        )
    return [
        *rows,
        *map(_describe_constants, plan.flash),
        *([_describe_stored_constants(plan.storage)] if plan.storage else []),
        *([_describe_code_in_ram(plan.code)] if plan.code else []),
    ]


def _describe_constants(region: ConstantRegion) -> dict[str, Any]:
    """Describe the constants in a flash region as plain data; ``constants``: their names."""
    return {
        "memory": region.memory,
        "bytes": region.size,
        "capacity": region.capacity,
        "accesses": region.accesses,
        "waits": region.waits,
        "holds": {"constant": len(region.constants)} if region.constants else {},
        "constants": list(region.constants),
    }


def _describe_stored_constants(storage: StoredConstants) -> dict[str, Any]:
    """Describe the constants in storage as plain data; ``constants``: their names; ``reads``: number of reads of a run."""
    return {
        "memory": storage.memory,
        "bytes": storage.size,
        "capacity": storage.capacity,
        "accesses": 0,
        "waits": storage.waits,
        "holds": {"constant": len(storage.offsets)},
        "constants": list(storage.offsets),
        "reads": storage.reads,
    }


def _describe_code_in_ram(code: HotCode) -> dict[str, Any]:
    """Describe the code that runs from RAM as plain data.

    ``waits``: cycles that all kernels wait for code in a run; ``saved``: cycles saved by running some kernels from RAM."""
    return {
        "memory": code.memory,
        "bytes": code.size,
        "capacity": code.capacity,
        "accesses": 0,
        "waits": code.waits,
        "holds": {"kernel": len(code.kernels)} if code.kernels else {},
        "kernels": list(code.kernels),
        "saved": code.saved,
    }


# ---- Layers of a report: operators, costs and C.

_FUNCTION = re.compile(
    r"^/\*\n(?: \*[^\n]*\n)+(?:[A-Z0-9_]+_OPTIMIZE\([^\n]*\)\n)?[A-Z0-9_]+_KERNEL (\w+)\([^\n]*\n(?:(?!\}\n)[^\n]*\n)*\}$",
    re.MULTILINE,
)
"""Pattern of a kernel's C function, with its comment, as :mod:`microc.codegen.c.source` prints it."""


def describe_layers(
    manifest: Mapping[str, Any], model_c: str, clock_hz: int | None, profile: Profile | None
) -> list[dict[str, Any]]:
    """Describe each step (call of a kernel) of a manifest as plain data.

    ``model_c``: the generated C, from which the code of each step is cut; ``profile``: measurements, None if there are
    none. In the result, ``share`` is the step's share of the measured time, else of the estimated cycles. The code bytes of
    a function that several steps call are divided among these steps. ``linked`` is True if the sizes are those of the
    linked program."""
    kernels = manifest["kernels"]
    functions = {found[1]: found[0].split("\n") for found in _FUNCTION.finditer(model_c)}
    code, arena = _estimated_code_bytes(manifest), live_arena_bytes(manifest)
    total = sum(kernel["estimated_cycles"] for kernel in kernels) or 1
    names = shorten_layer_names([kernel["layer"] for kernel in kernels])
    layers = []
    for step, kernel in enumerate(kernels):
        measurement = profile.kernels[step] if profile else None
        linked = measurement is not None and measurement.code is not None
        constants = sum(item["bytes"] for item in kernel["constants"])
        sizes = (
            (measurement.code, measurement.constants) if measurement is not None and linked else (code[step], constants)
        )
        cycles = kernel["estimated_cycles"]
        layers.append(
            {
                "step": step,
                "name": names[step],
                "layer": kernel["layer"],
                "op": kernel["op"],
                "function": kernel["function"],
                "operators": [_operator_data(item) for item in kernel.get("operators", ())],
                "inputs": list(kernel["inputs"]),
                "outputs": list(kernel["outputs"]),
                "workspaces": list(kernel["workspaces"]),
                "rows_of": list(kernel["streamed"]),
                "macs": kernel["macs"],
                "cycles": cycles,
                "milliseconds": cycles_to_milliseconds(cycles, clock_hz),
                "instructions": kernel["estimated_instructions"],
                "time": measurement.time if measurement else None,
                "share": measurement.share if measurement else cycles / total,
                "code": sizes[0],
                "constants": sizes[1],
                "linked": linked,
                "arena": arena[step],
                "rule": kernel["rule"],
                "shipped": kernel.get("shipped", False),
                "schedule": kernel["schedule"],
                "c": functions.get(kernel["function"], []),
                **({"tensor_unit": dict(kernel["tensor_unit"])} if "tensor_unit" in kernel else {}),
                **({"cores": kernel["cores"]} if "cores" in kernel else {}),
            }
        )
    return layers


def shorten_layer_names(layers: Sequence[str]) -> list[str]:
    """Shorten the names of layers: omit the model's file name, and the path prefix that all names have in common."""
    names = [shorten_layer_name(layer) for layer in layers]
    paths = [name.partition(" ")[2].split("/")[:-1] for name in names]
    nonempty = [path for path in paths if path]
    common = takewhile(lambda words: len(set(words)) == 1, zip(*nonempty, strict=False)) if len(nonempty) > 1 else ()
    prefix = "".join(f"{words[0]}/" for words in common)
    return [name.replace(f" {prefix}", " ", 1) if path else name for name, path in zip(names, paths, strict=True)]


def slowest_layers(data: Mapping[str, Any], count: int = 3) -> list[Mapping[str, Any]]:
    """List the ``count`` layers of a report that take most of the time, the slowest first."""
    return sorted(data["layers"], key=lambda layer: (-layer["share"], layer["step"]))[:count]


def _estimated_code_bytes(manifest: Mapping[str, Any]) -> list[int]:
    """Return the code bytes of every step, by the cost model's estimate.

    The bytes of a function that several steps call are divided among these steps."""
    kernels = manifest["kernels"]
    uses = Counter(kernel["function"] for kernel in kernels)
    parts = {k["function"]: iter(divide_evenly(k.get("estimated_code", 0), uses[k["function"]])) for k in kernels}
    return [next(parts[kernel["function"]]) for kernel in kernels]


def _operator_data(operator: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the description of an operator in a manifest, with lists instead of tuples."""
    attributes = [list(pair) for pair in operator["attributes"]]
    weights = [{**weight, "shape": list(weight["shape"])} for weight in operator["weights"]]
    return {"op": operator["op"], "attributes": attributes, "weights": weights}


# ---- Documents of reports: a network on a board, the comparison of two reports, and tables that several commands
# show.


def report_document(data: Mapping[str, Any], title: str = "") -> Document:
    """Show a report: totals, a table of layers, next steps. ``data``: data of :class:`microc.reports.report.Report`."""
    return document(
        facts(_total_facts(data)),
        estimated_layers_table(data["layers"]),
        tflm_table([data["tflm"]]) if "tflm" in data else None,
        next_steps(data["advice"]),
        title=title,
    )


def tflm_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Make a table of networks in microc and in TFLite Micro on the same boards, with the ratio of each figure.

    ``rows``: boards of ``microc bench --against tflm --json``, each with figures of TFLite Micro."""
    cells: list[tuple[Cell, ...]] = []
    for row in rows:
        peer = row["tflm"]
        ours, theirs = ([figures[name] for name in ("time", "flash", "ram")] for figures in (row, peer))
        ratios = [f"{a / b:.2f}" if a is not None and b else "-" for a, b in zip(ours, theirs, strict=True)]
        cells.append((row["board"], "microc", *("-" if value is None else value for value in ours), ""))
        values = ("-" if value is None else value for value in theirs)
        cells.append(("", f"TFLite Micro ({peer['build']})", *values, format_output_difference(peer)))
        cells.append(("", "ratio", *ratios, ""))
    unit = next((row["unit"] for row in rows if row["unit"]), "time")
    return table((*texts("board", "engine"), *numbers(unit, "flash", "RAM"), *texts("outputs")), cells)


def format_output_difference(tflm: Mapping[str, Any]) -> str:
    """Format how the outputs of TFLite Micro differ from those of microc."""
    if not tflm["different"]:
        return f"equal in all bits of {tflm['values']:,} values"
    return f"{tflm['different']:,} of {tflm['values']:,} values differ, by at most {tflm['largest']:.4g}"


def _total_facts(data: Mapping[str, Any]) -> Iterator[Fact]:
    """Yield the facts about the whole network: time, multiply-accumulates, memories, stack, state, accuracy."""
    totals, board = data["totals"], data["board"]
    yield "model", f"{data['source']} on {board['name']} ({board['cpu']})"
    yield "one inference", format_inference_time(data)
    yield "multiply-accumulates", totals["macs"]
    for name, key in (("flash" if data["firmware"] else "flash, estimated", "flash"), ("RAM", "ram")):
        if totals[key] is not None:
            yield name, format_capacity_use(totals[key], board[key])
    yield "arena", f"{totals['arena']:,} bytes"
    yield from memory_usage_rows(data.get("memories", ()))
    yield "peak stack", format_peak_stack(data)
    shared = format_shared_kernels([(layer.get("cores", 1), layer["share"]) for layer in data["layers"]])
    if shared:
        yield "on two cores", shared
    state = (f"{s['name']} {s['dtype']} {format_shape(s['shape'])}" for s in data["state"])
    yield "holds state", ", ".join(state) or "no"
    for sentence in accuracy_sentences(data["accuracy"], data["fingerprint"]) if data["accuracy"] else ():
        yield "accuracy", sentence


def estimated_layers_table(layers: Sequence[Mapping[str, Any]]) -> Table:
    """Make a table of the layers of a report, with the estimates of the cost model."""
    is_clocked = all(layer["milliseconds"] is not None for layer in layers)
    total = sum(layer["cycles"] for layer in layers) or 1
    rows = [
        (
            str(layer["step"]),
            layer["layer"],
            layer["op"],
            layer["cycles"],
            100 * layer["cycles"] / total,
            *((layer["milliseconds"],) if is_clocked else ()),
            layer["macs"],
            layer["code"] + layer["constants"],
            layer["arena"],
        )
        for layer in layers
    ]
    columns = (
        *texts("step"), *layer_names("layer"), *texts("operators"), *numbers("est. cycles"), *numbers("%", spec=".1f"),
        *(numbers("est. ms", spec=".3f") if is_clocked else ()), *numbers("MACs", "flash", "arena"),
    )  # fmt: skip
    return table(columns, rows)


def next_steps(advice: Iterable[Mapping[str, Any]]) -> Steps:
    """List advice and its commands."""
    return Steps(tuple(Step(item["text"], item["command"]) for item in advice), "what to do next")


def comparison_document(data: Mapping[str, Any]) -> Document:
    """Show a comparison of two reports: their subjects, a table of totals and a table of layers.

    ``data``: result of :func:`microc.reports.saved_reports.compare_reports`."""
    totals = [(row["name"], *_comparison_cells(row)) for row in data["totals"]]
    layers = [
        (row["layer"], *_comparison_cells(row["cycles"]), *_comparison_cells(row["flash"])) for row in data["layers"]
    ]
    return document(
        facts((when, f"{data[when]['source']} on {data[when]['board']}") for when in ("before", "after")),
        table((*texts(""), *_comparison_columns("before")), totals),
        table((*texts("layer"), *_comparison_columns("cycles before"), *_comparison_columns("flash before")), layers),
    )


def _comparison_columns(first_heading: str) -> tuple[Column, ...]:
    """Return the columns of a compared figure: before, after, and change in percent."""
    return numbers(first_heading, "after", "change")


def _comparison_cells(row: Mapping[str, Any]) -> tuple[Cell, Cell, str]:
    """Return the cells for a compared figure: before, after, and change in percent."""
    before, after = (f"{value:,.3f}" if isinstance(value, float) else value for value in (row["before"], row["after"]))
    return before, after, format_percent_change(row["before"], row["after"])
