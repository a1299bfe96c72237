"""The schema of a report's data (:class:`microc.driver.report.report.Report`), which whatever is read as one is held against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from microc.codegen.manifest_schema import OPERATOR, object_schema, objects_schema

VERSION = 1
"""Of the data: it grows when a name in them changes its meaning or goes."""

_MOST = 1 << 53
_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0, "maximum": _MOST}
_COUNT_OR_NONE = {"type": ["integer", "null"], "minimum": 0, "maximum": _MOST}
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
    "zero_point": {"type": ["integer", "null"], "minimum": -_MOST, "maximum": _MOST},
}
_LAYER = {
    "step": _STEP,
    "name": _TEXT,
    "layer": _TEXT,
    "op": _TEXT,
    "function": _TEXT,
    "operators": objects_schema(OPERATOR),
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
"""What a layer does on a tensor unit: :class:`microc.module.UnitUse`."""
_ACCURACY = {
    "fingerprint": _TEXT,
    "samples": _COUNT,
    "identical": {"type": ["boolean", "null"]},
    "output": _TEXT,
    "correct": _COUNT,
    "total": _COUNT,
    "confusion": {"type": ["array", "null"], "maxItems": 10_000, "items": {"type": "array", "items": _COUNT}},
    "outputs": objects_schema(
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
            "stack": object_schema({"bytes": _COUNT_OR_NONE, "measured": _COUNT_OR_NONE}),
            "state": objects_schema(_TENSOR),
            "inputs": objects_schema(_TENSOR),
            "outputs": objects_schema(_TENSOR),
            "tensors": objects_schema({**_TENSOR, "kind": _TEXT, "written_by": {"type": "array", "items": _STEP}}),
            "memory": objects_schema(
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
                    _LAYER, optional={"tensor_unit": object_schema(_UNIT), "shipped": {"type": "boolean"}}
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
        }
    ),
}
"""Sizes are bytes; ``first`` and ``last`` of ``memory``: steps, -1 before the first."""
