# SPDX-License-Identifier: Apache-2.0
"""Documents of reports: a network on a board, the comparison of two reports, and tables that several commands show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from microc.document.blocks import (
    Cell,
    Column,
    Document,
    Fact,
    Step,
    Steps,
    Table,
    document,
    facts,
    layer_names,
    numbers,
    table,
    texts,
)
from microc.reports.evidence import accuracy_sentences
from microc.reports.figures import (
    format_capacity_use,
    format_inference_time,
    format_peak_stack,
    format_percent_change,
    format_shape,
    format_shared_kernels,
    memory_usage_rows,
)


def report_document(data: Mapping[str, Any], title: str = "") -> Document:
    """Show a report: totals, a table of layers, next steps. ``data``: data of :class:`microc.reports.report.Report`."""
    return document(
        facts(_total_facts(data)), estimated_layers_table(data["layers"]), next_steps(data["advice"]), title=title
    )


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
