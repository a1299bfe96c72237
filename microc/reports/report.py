# SPDX-License-Identifier: Apache-2.0
"""The report of a compiled network on a board: its data, their JSON schema, and the conversion to a page or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc import __version__
from microc.base.file_access import write_text
from microc.codegen.c.c_statements import core_count_of
from microc.codegen.c.resources import stack_bound
from microc.codegen.output_files import replace_atomically
from microc.codegen.project.additions import describe_self_test
from microc.codegen.project.manifest import (
    OPERATOR_SCHEMA,
    describe_streaming,
    manifest,
    object_array_schema,
    object_schema,
)
from microc.codegen.render import format_signature
from microc.compiler import validation
from microc.compiler.fit.budget import region_bytes
from microc.compiler.fit.search import board_capacity, compute_firmware_footprint
from microc.compiler.lowering.module_builder import code_in_ram_gain
from microc.document.blocks import Document, cycles_to_milliseconds, format_inference_time
from microc.document.renderers import Showable
from microc.errors import OutputError
from microc.module import Call, Module
from microc.plan.liveness import shared_bytes
from microc.reports.advice import AdvisedNetwork, describe_arithmetic, list_advice, weight_storage_notes
from microc.reports.evidence import COMPARISON_SCHEMA
from microc.reports.report_document import describe_layers, describe_tensor_memories, report_document
from microc.target import Board

if TYPE_CHECKING:
    from microc.reports.firmware_size import SizeReport
    from microc.run.profile import Profile


# ---- JSON schema of a report's data (:class:`Report`). Files that are read as reports are validated against the schema.

VERSION = 1
"""Version of a report's data; it is increased when a name in the data is removed or changes its meaning."""

_MAX_INTEGER = 1 << 53
_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0, "maximum": _MAX_INTEGER}
_COUNT_OR_NONE = {"type": ["integer", "null"], "minimum": 0, "maximum": _MAX_INTEGER}
_STEP = {"type": "integer", "minimum": -1, "maximum": 1_000_000}
_REAL = {"type": "number", "minimum": 0, "maximum": 1e18}
_REAL_OR_NONE = {"type": ["number", "null"], "minimum": 0, "maximum": 1e18}
_NAMES = {"type": "array", "items": _TEXT}


_TENSOR = {
    "name": _TEXT,
    "label": _TEXT,
    "dtype": _TEXT,
    "shape": {"type": "array", "items": _COUNT},
    "bytes": _COUNT,
    "scale": {"type": ["number", "null"], "minimum": -1e38, "maximum": 1e38},
    "zero_point": {"type": ["integer", "null"], "minimum": -_MAX_INTEGER, "maximum": _MAX_INTEGER},
}
_LAYER = {
    "step": _STEP,
    "name": _TEXT,
    "layer": _TEXT,
    "op": _TEXT,
    "function": _TEXT,
    "operators": object_array_schema(OPERATOR_SCHEMA),
    "inputs": _NAMES,
    "outputs": _NAMES,
    "workspaces": _NAMES,
    "rows_of": _NAMES,
    **dict.fromkeys(("macs", "cycles", "instructions", "code", "constants", "arena"), _COUNT),
    "milliseconds": _REAL_OR_NONE,
    "time": _COUNT_OR_NONE,
    "share": {"type": "number", "minimum": 0, "maximum": 1},
    "linked": {"type": "boolean"},
    "rule": _TEXT,
    "schedule": _TEXT,
    "c": _NAMES,
}
_UNIT = {
    **dict.fromkeys(("cycles", "load", "compute", "store", "macs"), _COUNT),
    "utilisation": {"type": "number", "minimum": 0, "maximum": 1},
}
"""Schema of a layer's work on a tensor unit; its fields are those of :class:`microc.module.UnitUse`."""
_ACCURACY = {
    "fingerprint": _TEXT,
    "samples": _COUNT,
    "identical": {"type": ["boolean", "null"]},
    "output": _TEXT,
    "correct": _COUNT,
    "total": _COUNT,
    "confusion": {"type": ["array", "null"], "maxItems": 10_000, "items": {"type": "array", "items": _COUNT}},
    "outputs": object_array_schema(
        {"output": _TEXT, "rmse": _REAL, "largest": _REAL, "cosine": {**_REAL_OR_NONE, "minimum": -1.01}}
    ),
}

SCHEMA: Mapping[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "A network on a board, as microc report tells it",
    **object_schema(
        {
            "report_version": {"const": VERSION},
            **dict.fromkeys(("model", "source", "fingerprint", "microc", "planner"), _TEXT),
            "options": {"type": "object", "additionalProperties": _TEXT},
            "board": object_schema(
                {
                    **dict.fromkeys(("name", "title", "cpu"), _TEXT),
                    "clock_hz": _COUNT_OR_NONE,
                    "flash": _COUNT,
                    "ram": _COUNT,
                }
            ),
            "measured": object_schema(
                {"unit": _TEXT, "meaning": _TEXT, "time": _COUNT, "seconds": _REAL_OR_NONE}, "null"
            ),
            "totals": object_schema(
                {
                    **dict.fromkeys(("cycles", "instructions", "macs", "nominal_macs"), _COUNT),
                    **dict.fromkeys(("arena", "arena_lower_bound", "weights"), _COUNT),
                    **dict.fromkeys(("flash", "ram"), _COUNT_OR_NONE),
                    "milliseconds": _REAL_OR_NONE,
                }
            ),
            "stack": object_schema(
                dict.fromkeys(("bytes", "measured"), _COUNT_OR_NONE), optional={"reserved": _COUNT, "core1": _COUNT}
            ),
            "state": object_array_schema(_TENSOR),
            "inputs": object_array_schema(_TENSOR),
            "outputs": object_array_schema(_TENSOR),
            "tensors": object_array_schema({**_TENSOR, "kind": _TEXT, "written_by": {"type": "array", "items": _STEP}}),
            "memory": object_array_schema(
                {
                    **dict.fromkeys(("name", "kind", "dtype"), _TEXT),
                    "shape": {"type": "array", "items": _COUNT},
                    "bytes": _COUNT,
                    "offset": _COUNT,
                    "first": _STEP,
                    "last": _STEP,
                }
            ),
            "layers": {
                "type": "array",
                "items": object_schema(
                    _LAYER,
                    optional={"tensor_unit": object_schema(_UNIT), "shipped": {"type": "boolean"}, "cores": _COUNT},
                ),
            },
            "firmware": {
                "type": ["object", "null"],
                "additionalProperties": object_schema(dict.fromkeys(("text", "data", "bss"), _COUNT)),
            },
            "accuracy": object_schema(_ACCURACY, "null"),
            "advice": {
                "type": "array",
                "items": object_schema({"text": _TEXT, "command": _TEXT}, optional={"gain": _REAL_OR_NONE}),
            },
        },
        optional={"tflm": COMPARISON_SCHEMA},
    ),
}
"""JSON schema of a report's data. Sizes are in bytes. ``first`` and ``last`` of ``memory`` are numbers of steps; -1 is the time
before the first step."""


# ---- The report as an object, which can be converted to a page, to JSON, or to a table in a notebook.


@dataclass(frozen=True, slots=True, repr=False)
class Report(Showable):
    """The report of a compiled network on a board: time, memory, layers, accuracy and advice.

    ``data`` is plain data, ready for JSON. It contains, among others: ``totals``; ``layers``, one for each call of a kernel
    in order, with estimated cycles and, if measured, the time; ``stack``; ``state``; ``accuracy``, None if not verified;
    ``advice``. Sizes are in bytes. ``microc.report`` makes a report; :func:`microc.reports.saved_reports.read_report`
    reads one.
    """

    data: Mapping[str, Any]

    def html(self, before: Report | None = None) -> str:
        """Render the report as a self-contained HTML page; ``before``: an earlier report to compare with.

        Equal reports give equal pages."""
        from microc.reports.report_page import to_html

        return to_html(self.data, before.data if before is not None else None)

    def json(self) -> str:
        """Return the report's data as the text of a JSON file, which ends with a newline."""
        return json.dumps(self.data, indent=1) + "\n"

    def to_data(self) -> dict[str, Any]:
        """Return the report's data, ready for JSON."""
        return dict(self.data)

    def save(self, path: str | Path) -> Path:
        """Write the report to a file: as a page (``.html``) or as JSON (``.json``). Return the path of the file.

        Raises OutputError for another suffix."""
        target = validation.as_path("a report", path)
        if target.suffix not in (".html", ".json"):
            raise OutputError(
                f"{target.name}: unknown file type of a report; expected a name that ends in .html or .json",
                where=str(target),
                hint="end the name in .html (page) or .json (data)",
            )
        with replace_atomically(target) as temporary:
            write_text(temporary, self.html() if target.suffix == ".html" else self.json())
        return target

    def __repr__(self) -> str:
        return (
            f"<Report {self._network_signature()} on {self.data['board']['name']}: {format_inference_time(self.data)}>"
        )

    def document(self) -> Document:
        """Return the report as a document, which terminals and notebooks show."""
        return report_document(self.data, f"{self._network_signature()} on {self.data['board']['title']}")

    def _network_signature(self) -> str:
        """Return the network's name with the types of its inputs and outputs."""
        return format_signature(self.data["model"], self.data["inputs"], self.data["outputs"])


def make_report(
    manifest: Mapping[str, Any],
    board: Board,
    *,
    model_c: str = "",
    program_report: Mapping[str, Any] | None = None,
    profile: Profile | None = None,
    size: SizeReport | None = None,
    stack: int | None = None,
    core1_stack: int | None = None,
    accuracy: Mapping[str, Any] | None = None,
    code_in_ram: float = 0.0,
    notes: Sequence[str] = (),
) -> Report:
    """Make the report of the network that a manifest (:mod:`microc.codegen.project.manifest`) describes, on ``board``.

    ``model_c``: the generated C, which contains the code of every layer. ``program_report``: result of
    :meth:`microc.Program.report`, which contains advice, and estimates of flash and RAM. ``profile``: measured times;
    ``size``: memory of the linked firmware; ``stack``, ``core1_stack``: peak stack of the first and of the second
    core in bytes, measured on the board; ``accuracy``: result of :func:`microc.reports.evidence.read_accuracy`.
    ``code_in_ram``: see :class:`microc.reports.advice.AdvisedNetwork`; ``notes``: sentences to add to the advice. Neither
    of these two is known for a project."""
    clock, estimates = board.raw.get("clock_hz"), program_report or {}
    layers = describe_layers(manifest, model_c, clock, profile)
    cycles = sum(layer["cycles"] for layer in layers)
    tensors = {tensor["name"]: tensor for tensor in manifest["tensors"]}
    data: dict[str, Any] = {
        "report_version": VERSION,
        **{name: manifest[name] for name in ("model", "source", "fingerprint", "microc", "options", "planner")},
        "board": {
            "name": board.name,
            "title": board.title,
            "cpu": manifest["options"].get("cpu", board.target.cpu),
            "clock_hz": clock,
            "flash": region_bytes(board, "flash"),
            "ram": region_bytes(board, "ram"),
        },
        "measured": _measurement_data(profile) if profile else None,
        "totals": {
            "cycles": cycles,
            "milliseconds": cycles_to_milliseconds(cycles, clock),
            "instructions": sum(layer["instructions"] for layer in layers),
            "macs": manifest["macs"],
            "nominal_macs": manifest["nominal_macs"],
            "flash": size.flash if size else estimates.get("flash"),
            "ram": size.ram if size else estimates.get("ram"),
            "arena": manifest["arena_size"],
            "arena_lower_bound": manifest["arena_lower_bound"],
            "weights": manifest["const_bytes"],
        },
        "stack": {
            "bytes": manifest.get("stack_bound"),
            "measured": stack,
            "reserved": size.reserved_stack if size else board.raw.get("link", {}).get("stack_bytes", 0),
            **({"core1": core1_stack} if core1_stack is not None else {}),
        },
        "state": [_manifest_tensor_data(t) for t in manifest["tensors"] if t["kind"] == "state"],
        "streaming": manifest["streaming"],
        "inputs": [_manifest_tensor_data(tensors[name]) for name in manifest["inputs"]],
        "outputs": [_manifest_tensor_data(tensors[name]) for name in manifest["outputs"]],
        "tensors": [
            {**_manifest_tensor_data(t), "kind": t["kind"], "written_by": t["written_by"]} for t in manifest["tensors"]
        ],
        "memory": [
            {**{name: m[name] for name in ("name", "kind", "dtype", "shape", "bytes", "offset", "first", "last")}}
            for m in manifest["memory"]
        ],
        "memories": list(estimates.get("memories", ())),
        "layers": layers,
        "firmware": size.parts() if size else None,
        "accuracy": dict(accuracy) if accuracy is not None else None,
    }
    advice = estimates.get("next_steps") or list_advice(AdvisedNetwork(data, board, code_in_ram), notes)
    return Report({**data, "advice": advice})


def _measurement_data(profile: Profile) -> dict[str, Any]:
    """Describe the measured time of one inference as plain data: its unit, the unit's meaning, the time, and seconds."""
    return {
        "unit": profile.unit,
        "meaning": profile.clock.meaning,
        "time": profile.time,
        "seconds": profile.clock.seconds(profile.time),
    }


def _manifest_tensor_data(tensor: Mapping[str, Any]) -> dict[str, Any]:
    """Return those fields of a tensor in a manifest that a report contains."""
    return {name: tensor[name] for name in ("name", "label", "dtype", "shape", "bytes", "scale", "zero_point")}


# ---- Summarise a compiled network as plain data, the result of :meth:`microc.Program.report`.


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
