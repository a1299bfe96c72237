# SPDX-License-Identifier: Apache-2.0
"""The schemas of ``--json``: taken from what commands print, ``python -m tests.json_schemas`` writes docs/json.md and its schema.

The test beside it holds every command's output against the schema that is written.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from microc.cli import main
from tests.support import digits

DOCS = Path(__file__).resolve().parents[1] / "docs"
SCHEMA, PAGE = DOCS / "json.schema.json", DOCS / "json.md"
ONNX = digits.FOLDER / "digits_float.onnx"
PLUGIN = digits.FOLDER.parent / "custom_operator" / "operators.py"
COMMANDS: Mapping[str, Sequence[str]] = {
    "compile": ["{model}", "-o", "firmware"],
    "check": ["{model}", "--board", "microbit", "--tensors"],
    "explain": ["{model}", "dense5"],
    "import": ["{model}", "-o", "digits.mcg"],
    "quantize": [str(ONNX), "--data", "data.npy", "-o", "int8.mcg"],
    "tune": ["{model}", "--target", "native", "--space", "--only", "dense5"],
    "export": ["{model}", "--format", "c", "-o", "package"],
    "new": ["project"],
    "build": ["firmware"],
    "flash": ["arm", "--dry-run", "--runner", "openocd"],
    "load": ["loadable"],
    "run": ["firmware"],
    "profile": ["firmware"],
    "size": ["firmware"],
    "verify": ["firmware", "--samples", "1"],
    "report": ["firmware"],
    "compare": ["firmware", "firmware"],
    "watch": ["firmware", "--runs", "1"],
    "serve": ["firmware", "--time", "0.01"],
    "boards": [],
    "plugin": ["check", str(PLUGIN)],
    "operators": [],
    "options": [],
    "ports": [],
    "bench": ["{model}", "--boards", "host"],
    "demo": ["--board", "host"],
    "doctor": [],
    "completion": ["bash"],
    "man": [],
}
"""A call of every command, in this order, in one folder."""
SECOND_CALLS: Mapping[str, Sequence[str]] = {"report": ["arm"]}
"""Calls of commands that print null for a number that the first call has, such as the flash of a project before its build."""
BY_NAME = frozenset(
    {"operators", "decisions", "operations", "options", "sha256", "dtypes", "sections", "parts", "ids", "firmware"}
)
"""Objects whose keys are names of a model, of operators or of a firmware's parts."""
MEANINGS = {
    "schema_version": "of all of these; another number where a key goes or changes its meaning",
    "command": "the command",
    "config": "the microc.toml that was used, where one was",
    "error": "`code`, `what`, `where`, `hint` of a refusal (then other keys may be missing)",
    "arena": "bytes of the arena",
    "flash": "bytes of flash",
    "ram": "bytes of RAM",
    "macs": "multiply-accumulates that are computed",
    "inputs": "tensors by name, dtype, shape and quantisation: real = scale * (q - zero_point)",
    "outputs": "the same of the outputs; of `run` with their values",
    "layers": "an object for each layer",
    "kernels": "an object for each kernel, or their number",
    "ticks": "of the board's timer, `tick_hz` a second",
    "time": "in the board's `unit`, which `unit_meaning` explains",
    "seconds": "null where the unit is no time",
    "seed": "of random inputs; null where inputs were given",
    "next": "commands to go on with",
    "install": "commands that install what is missing",
    "complete": "whether all that is essential is there",
    "board": "a name, or what there is to know of one",
    "identical": "whether every bit is the same",
    "samples": "sets of inputs",
    "stack": "bytes of the deepest stack so far; null where the board cannot tell",
    "core1_stack": "the same of the second core; null where the firmware uses one",
    "network": "the network's name",
    "network_bytes": "of a network that is loaded; null where it is part of the firmware",
    "slot": "0 or 1",
    "commits": "the number of the commit that made the network that runs",
    "slot_bytes": "what a slot takes, signature included",
    "address": "what a client gives as `--port`",
    "token": "the random token that a client must have; null where a file has it",
    "clients": "how many have used the board",
    "memory": "bytes that the network's tensors take",
    "memory_bytes": "what the board has for tensors",
}
_HEAD = """# JSON output

Written by `python -m tests.json_schemas`. Every command takes `--json` and prints one object on standard output, of a refusal
too; `tune`, `watch` and `serve` print one a line, for every batch of a search, every run or the start, and one at the end.
Progress and notes stay on standard error, and exit codes are those of `microc --help`.
[json.schema.json](json.schema.json) has a JSON Schema for
each command (`$defs`), against which the tests hold what commands print.

Within a `schema_version` keys are only added: read those you know. Bytes are bytes, times as their key or `unit` says; a number
that does not exist is `null`, infinities and NaN are their names.
"""


def said(command: str, words: Sequence[str]) -> dict[str, Any]:
    """What a command prints, the last line of it where it prints several."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main([command, *(word.format(model=digits.INT8) for word in words), "--json"])
    assert code in (0, 4), out.getvalue()
    text = out.getvalue()
    found: dict[str, Any] = json.loads(text.splitlines()[-1] if command in ("tune", "watch", "serve") else text)
    return found


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """A folder with what the calls need, as the current one."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        try:
            np.save("data.npy", np.random.default_rng(0).random((16, 1, 1, 8, 8), dtype=np.float32))
            said("compile", ["{model}", "--board", "nucleo-f446re", "-o", "arm"])
            said("compile", ["{model}", "--board", "mps2-an386", "--relocatable", "-o", "loadable"])
            yield
        finally:
            os.chdir(before)


def schema_of(values: Sequence[Any]) -> dict[str, Any]:
    """What all these values have in common; of one that does not exist here, nothing is known."""
    types = _types(values)
    if types == "null":
        return {}
    found: dict[str, Any] = {"type": types} if types else {}
    objects = [value for value in values if isinstance(value, dict)]
    if objects:
        names = dict.fromkeys(name for value in objects for name in value)
        found["required"] = [name for name in names if all(name in value for value in objects)]
        found["properties"] = {name: _property(name, [v[name] for v in objects if name in v]) for name in names}
    parts = [part for value in values if isinstance(value, list) for part in value]
    if parts:
        found["items"] = schema_of(parts)
    return found


def _property(name: str, values: Sequence[Any]) -> dict[str, Any]:
    if name in BY_NAME and any(isinstance(value, dict) for value in values):
        return {"type": _types(values)}
    return schema_of(values)


def _types(values: Sequence[Any]) -> str | list[str]:
    """Name the JSON type of values, or list their types if there are several or none."""
    types = sorted({_kind(value) for value in values})
    return types[0] if len(types) == 1 else types


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return kinds[type(value)]


def schemas() -> dict[str, Any]:
    """Of every command."""
    with prepared():
        found = {
            command: schema_of(
                [said(command, words) for words in (first, SECOND_CALLS.get(command)) if words is not None]
            )
            for command, first in COMMANDS.items()
        }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": found}


def page(schema: Mapping[str, Any]) -> str:
    """docs/json.md."""
    lines = [_HEAD]
    for command, found in schema["$defs"].items():
        lines += [f"## microc {command}", "", "| key | type | |", "|---|---|---|"]
        for name, of in found["properties"].items():
            lines.append(f"| `{name}` | {_shown(of)} | {MEANINGS.get(name, '')} |")
        lines.append("")
    return "\n".join(lines)


def _shown(of: Mapping[str, Any]) -> str:
    kinds = of.get("type", "any")
    shown = kinds if isinstance(kinds, str) else " or ".join(kinds)
    inner = of.get("items", of)
    names = ", ".join(f"`{name}`" for name in inner.get("properties", ()))
    return f"{shown} of {names}" if names else shown


if __name__ == "__main__":
    found = schemas()
    SCHEMA.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(found), encoding="utf-8")
    sys.stdout.write(f"{len(found['$defs'])} commands\n")
