"""How good a network is, by what ``microc verify`` saved: its ``--json``, or the folder of its ``--evidence``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema

from microc.errors import UsageError
from microc.reading import read_text

LARGEST = 64 << 20
"""Bytes of a file that is read."""
_HINT = "give what `microc verify firmware --data test.npz --labels labels --json` printed, or a folder of --evidence"
_COUNT = {"type": "integer", "minimum": 0, "maximum": (1 << 53)}
_REAL = {"type": "number", "minimum": -1e38, "maximum": 1e38}
_REAL_OR_NONE = {**_REAL, "type": ["number", "null"]}
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "board": {"type": ["string", "object", "null"]},
        "fingerprint": {"type": "string"},
        "identical": {"type": "boolean"},
        "samples": _COUNT,
        "evaluation": {
            "type": ["object", "null"],
            "required": ["samples"],
            "properties": {
                "samples": _COUNT,
                "classification": {
                    "type": ["object", "null"],
                    "required": ["output", "correct", "total", "confusion"],
                    "properties": {
                        "output": {"type": "string"},
                        "correct": _COUNT,
                        "total": _COUNT,
                        "confusion": {"type": "array", "maxItems": 10_000, "items": {"type": "array", "items": _COUNT}},
                    },
                },
                "outputs": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["output", "rmse", "largest"],
                        "properties": {
                            "output": {"type": "string"},
                            "rmse": _REAL,
                            "largest": _REAL,
                            "cosine": _REAL_OR_NONE,
                        },
                    },
                },
            },
        },
    },
}
"""What is read of the file; all else is left alone."""


def read_accuracy(path: Path) -> dict[str, Any]:
    """What a report keeps of a verification, plain data. UsageError for a file that holds none."""
    data = _evidence(path) if path.is_dir() else _file(path)
    try:
        jsonschema.validate(data, SCHEMA)
    except jsonschema.ValidationError as error:
        where = "/".join(map(str, error.absolute_path)) or "it"
        raise UsageError(
            f"{path} is no result of verify: {where} is not as it should be", where=str(path), hint=_HINT
        ) from error
    found = data.get("evaluation") or {}
    classes = found.get("classification")
    if not found and "identical" not in data:
        raise UsageError(f"{path} is no result of verify", where=str(path), hint=_HINT)
    counts = classes["confusion"] if classes else None
    if counts is not None and any(len(row) != len(counts) for row in counts):
        raise UsageError(
            f"{path} is no result of verify: its confusion matrix is not square", where=str(path), hint=_HINT
        )
    return {
        "fingerprint": data.get("fingerprint", ""),
        "samples": found.get("samples", data.get("samples", 0)),
        "identical": data.get("identical"),
        "output": classes["output"] if classes else "",
        "correct": classes["correct"] if classes else 0,
        "total": classes["total"] if classes else 0,
        "confusion": counts,
        "outputs": [
            {name: each.get(name) for name in ("output", "rmse", "largest", "cosine")}
            for each in found.get("outputs", ())
        ],
    }


def refuse_constant(name: str) -> None:
    """For ``json.loads``: NaN and infinities are no JSON, and no page can show them."""
    raise ValueError(name)


def _file(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(read_text(path, LARGEST), parse_constant=refuse_constant)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", where=str(path), hint=_HINT) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON", where=str(path), hint=_HINT) from error
    return found


def _evidence(folder: Path) -> dict[str, Any]:
    """The facts of a bundle, in the shape of the command's own data."""
    from microc.driver.report.evidence import read

    facts = read(folder)
    try:
        board: Mapping[str, Any] = next((each for each in facts["comparisons"] if "identical" in each), {})
        own = {name: board[name] for name in ("identical", "samples") if name in board}
        return {"fingerprint": facts["project"]["fingerprint"], "evaluation": facts["evaluation"], **own}
    except (KeyError, TypeError) as error:
        raise UsageError(f"{folder} is no result of verify", where=str(folder), hint=_HINT) from error


def accuracy_words(found: Mapping[str, Any], fingerprint: str) -> Iterator[str]:
    """Sentences for people; ``fingerprint``: of the network that is reported."""
    if found["fingerprint"] not in ("", fingerprint):
        yield "These are results of another build of the network: its code or its constants differ."
    if found["total"]:
        share = 100 * found["correct"] / found["total"]
        yield f"{found['correct']:,} of {found['total']:,} samples are right, {share:.2f} % ({found['output']})."
    if found["identical"] is not None:
        yield (
            "Board and host agree in every bit of every layer."
            if found["identical"]
            else "Board and host agree within the tolerance for floats."
        )
    for each in found["outputs"]:
        cosine = "" if each["cosine"] is None else f", cosine {each['cosine']:.6f}"
        yield f"{each['output']}: RMSE {each['rmse']:.4g}, largest difference {each['largest']:.4g}{cosine}."
