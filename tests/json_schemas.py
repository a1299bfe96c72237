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
    "learn": ["{model}", "--learn", "head.toml", "--data", "images.npz", "--labels", "labels", "--save", "learned.npz"],
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
    "schema_version": "version of this format; another number if a key is removed or changes its meaning",
    "command": "name of the command",
    "config": "path of the microc.toml that was used",
    "error": "`code`, `what`, `where`, `hint` of a refusal (other keys may then be missing)",
    "model": "name or path of the model",
    "source": "file of the model",
    "folder": "path of the project",
    "fits": "true or false; null if only `--exact` can tell, or without a board",
    "verdict": "the answer in a few words",
    "reasons": "reasons for the verdict",
    "operators": "numbers of nodes by operator; of `operators` all that are supported",
    "advice": "what to do next: texts, commands and estimated gains",
    "arena": "bytes of the arena",
    "arena_lower_bound": "bytes below which no plan of the arena can be",
    "flash": "bytes of flash",
    "ram": "bytes of RAM",
    "stack_bound": "estimated bytes of stack, at most",
    "weight_bytes": "bytes of weights",
    "weights_lower_bound": "bytes of flash that the weights need at least",
    "state": "state that is kept between runs: its bytes or its tensors",
    "macs": "multiply-accumulates that are computed",
    "float_macs": "multiply-accumulates on floats",
    "float_share": "share of `float_macs`, from 0 to 1",
    "float_reasons": "reasons why layers compute with floats",
    "estimated_cycles": "cycles by the cost model",
    "cycles": "cycles that `profile --cycles` counts or models; null without it",
    "cycles_meaning": "source of `cycles`, and what they leave out",
    "estimated_milliseconds": "milliseconds by the cost model and the board's clock",
    "memories": "an object for each memory of the board that holds tensors",
    "inputs": "input tensors: name, dtype, shape and quantisation, real = scale * (q - zero_point)",
    "outputs": "output tensors, as `inputs`; of `run` with their values",
    "tensors": "an object for each tensor; of `check` with `--tensors` only",
    "layers": "an object for each layer",
    "kernels": "an object for each kernel, or their number",
    "ticks": "ticks of the board's timer, at `tick_hz` per second",
    "time": "duration in the board's `unit`, which `unit_meaning` explains",
    "seconds": "duration in seconds; null if the unit is not a time",
    "seed": "seed of random inputs; null if inputs were given",
    "next": "commands to continue with",
    "install": "commands that install missing tools",
    "complete": "true if all essential tools are installed",
    "board": "name or description of the board",
    "identical": "true if every bit is equal",
    "samples": "number of input sets",
    "stack": "bytes of the deepest stack so far; null if the board cannot measure it",
    "core1_stack": "`stack` of the second core; null if the firmware uses one core",
    "network": "name of the network",
    "network_bytes": "bytes of a loaded network; null if it is part of the firmware",
    "slot": "0 or 1",
    "commits": "number of the commit that started the running network",
    "slot_bytes": "bytes of a slot, signature included",
    "losses": "mean loss of each epoch",
    "inference_time": "duration of an inference without learning, in `unit`",
    "step_time": "duration of an inference with its step of learning, in `unit`",
    "quality_before": "quality of the answers: `classification` of samples with class numbers, else `outputs`",
    "quality_after": "`quality_before` after the last epoch",
    "tested": "number of samples that `quality_before` and `quality_after` are of",
    "address": "value of `--port` for a client",
    "token": "random token that a client must present; null if it is in a file",
    "clients": "number of clients that have used the board",
    "memory": "memory of the network's tensors: bytes, or an object for each",
    "memory_bytes": "bytes of the board for tensors",
}
_HEAD = """# JSON output

Every command takes `--json` and then prints one JSON object on standard output, also for an error. `tune`, `watch` and `serve`
print one object per line: for each batch of a search, each run, or the start, and a last one at the end. Progress and notes go
to standard error. Exit codes are those of [Errors](errors.md).

```console
$ microc check model.tflite --board microbit --json
```

- Within a `schema_version`, keys are only added. Ignore keys that you do not know.
- Sizes are in bytes. Times are in the unit that their key or `unit` states.
- A number that does not exist is `null`. Infinities and NaN are strings.

[json.schema.json](json.schema.json) has a JSON Schema for each command (`$defs`); tests compare it with the commands' output.
`python -m tests.json_schemas` writes the schema and this page.
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
            Path("head.toml").write_text("[learn]\nlayers = 1\n", encoding="utf-8")
            np.savez("images.npz", image=digits.images(2), labels=np.arange(2))
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
