# SPDX-License-Identifier: Apache-2.0
"""Evidence of a verification: write and read bundles of files, and read the accuracy that a report shows."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from microc import __version__
from microc.base.dtypes import Array
from microc.base.file_access import read_bytes, read_text
from microc.codegen.output_files import write_tree
from microc.codegen.project.manifest import to_json
from microc.codegen.project.sbom import reproducible_date
from microc.device.board_info import make_printable
from microc.device.toolchain import find_compiler
from microc.document.blocks import table, texts
from microc.document.renderers import render_markdown_table
from microc.errors import OutputError, ToolError, UsageError

if TYPE_CHECKING:
    from microc.run.board_project import Project


# ---- evidence.md: the page of an evidence bundle that people read and sign.

_MAX_TEXT = 400
"""Largest number of characters of a text on the page; longer texts are cut there, but complete in evidence.json."""


def evidence_markdown(facts: Mapping[str, Any]) -> str:
    """Format the evidence as Markdown. Markup is removed from text that comes from models, boards and users."""
    return "\n".join(_evidence_lines(facts)) + "\n"


def _evidence_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of ``evidence.md``; ``facts``: result of :func:`collect_evidence`."""
    project, board = facts["project"], facts["board"]
    yield f"# Verification of {_strip_markup(project['network'])}: {facts['verdict']}"
    yield ""
    if facts["failure"]:
        yield from (_strip_markup(facts["failure"]), "")
    yield _markdown_table(
        ("what", "value"),
        [
            ("verdict", facts["verdict"]),
            ("created", facts["created"]),
            ("model", facts["model"]["source"]),
            ("model, SHA-256", facts["model"]["sha256"]),
            ("network, fingerprint", project["fingerprint"]),
            ("project's bill of materials, SHA-256", project["sha256"] or "none: no project was written"),
            *(_board_rows(board) if board else [("board", "none: the kernels ran on this computer")]),
            ("microc", facts["microc"]),
            *facts["tools"].items(),
            *((f"option {name}", value) for name, value in project["options"].items()),
        ],
    )
    yield from ("", "Deviations:", "")
    yield from (f"- {_strip_markup(line)}" for line in project["deviations"])
    for comparison in facts["comparisons"]:
        yield from _comparison_lines(comparison)
    if facts["evaluation"]:
        evaluation = facts["evaluation"]
        classes = evaluation.get("classification")
        yield from (
            "",
            "## The user's data",
            "",
            f"{evaluation['samples']} samples, differing: {len(evaluation['differing_samples'])}",
        )
        if classes:
            yield f"accuracy: {classes['correct']} of {classes['total']} ({_strip_markup(classes['output'])})"
    yield from ("", "## Signed off", "", "| name | role | date | signature |", "|---|---|---|---|", "| | | | |")


def _board_rows(board: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """List the facts about the board as rows (name, value) of a table."""
    names = ("name", "title", "line", "emulator", "firmware_sha256")
    return [(f"board, {name.replace('_', ' ')}", board[name]) for name in names if board.get(name)]


def _comparison_lines(comparison: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about a comparison: its verdict, its inputs, and tables of outputs and layers."""
    verdict = "agrees" if comparison["agrees"] else "differs"
    yield from ("", f"## {_strip_markup(comparison['what'])}: {verdict}", "")
    yield f"{comparison['samples']} sets of inputs, SHA-256 `{_strip_markup(comparison['data_sha256'])}`"
    for kind in ("outputs", "layers"):
        rows = comparison.get(kind) or ()
        if rows:
            yield ""
            yield _markdown_table(
                (kind[:-1], *_headings_of_comparison(rows)), [_cells_of_comparison_row(row) for row in rows]
            )


def _headings_of_comparison(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the headings of a table of outputs or layers, without the heading of the first column.

    A comparison with a framework counts differing elements, and its rows have a key ``wrong``. A comparison with the host
    has a single error for each row."""
    return ("elements", "differing", "largest difference", "verdict") if "wrong" in rows[0] else ("elements", "error")


def _cells_of_comparison_row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the cells of a row for an output or a layer: its name, then its figures in the order of the headings."""
    name = f"{row.get('layer') or ''} {row.get('tensor') or ''}".strip()
    if "wrong" in row:
        return name, row["elements"], row["differing"], row["largest"], "agrees" if row["agrees"] else "differs"
    return name, row["elements"], row["error"]


def _markdown_table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Format a Markdown table. Markup is removed from its cells."""
    return render_markdown_table(table(texts(*headings), [map(_strip_markup, row) for row in rows]))


def _strip_markup(fact: Any) -> str:
    """Convert a value to text, and replace characters of Markdown or HTML markup, and other special characters, by ``?``."""
    return re.sub(r"[^A-Za-z0-9 .,:;()/+_=%'\-]", "?", str(fact))[:_MAX_TEXT]


# ---- The bundle of files that ``microc verify --evidence`` writes: the comparisons, the tools and the results.
#
# It consists of ``evidence.json`` with its schema, ``evidence.md``, and ``SHA256SUMS`` of these files, for ``sha256sum -c``.

VERSION = 1
_REPORTED_PACKAGES = ("numpy", "onnx", "tflite", "flatbuffers", "jinja2")
"""Python packages whose versions the evidence contains."""
_VERSION_TIMEOUT = 20.0
"""Time limit in seconds for a program that prints its version."""
_MAX_HASH_LIST = 1 << 20
"""Largest size of the file SHA256SUMS that is read, in bytes."""

EVIDENCE_SCHEMA: Mapping[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Evidence of a verification by microc",
    "type": "object",
    "required": [
        "evidence_version",
        "created",
        "verdict",
        "microc",
        "model",
        "project",
        "board",
        "tools",
        "comparisons",
    ],
    "properties": {
        "evidence_version": {"const": VERSION},
        "created": {"type": "string"},
        "verdict": {"enum": ["agrees", "differs"]},
        "microc": {"type": "string"},
        "model": {"type": "object", "required": ["source", "sha256"]},
        "project": {"type": "object", "required": ["network", "fingerprint", "options", "deviations", "sha256"]},
        "board": {"type": ["object", "null"], "required": ["name", "line"]},
        "tools": {"type": "object", "additionalProperties": {"type": "string"}},
        "comparisons": {
            "type": "array",
            "minItems": 1,
            "items": {"type": "object", "required": ["what", "agrees", "data_sha256", "samples"]},
        },
        "evaluation": {"type": ["object", "null"]},
        "failure": {"type": "string"},
    },
}


def check_evidence_folder_empty(folder: Path) -> None:
    """Raise OutputError for an evidence folder that is not empty, because evidence is never overwritten."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"--evidence: {folder} is not empty", where=str(folder), hint="give --evidence a new folder")


def hash_input_sets(input_sets: Sequence[Sequence[Array]]) -> str:
    """Compute the SHA-256 hash of sets of inputs: of dtype, shape and little-endian bytes of each array, in order."""
    digest = hashlib.sha256()
    for arrays in input_sets:
        for array in map(np.asarray, arrays):
            digest.update(f"{array.dtype.name} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def collect_evidence(
    manifest: Mapping[str, Any],
    comparisons: Sequence[Mapping[str, Any]],
    evaluation: Mapping[str, Any] | None = None,
    failure: str = "",
    project: Project | None = None,
    port: str = "",
) -> dict[str, Any]:
    """Collect the evidence of a verification as plain data: facts of the manifest, results, and the tools that were used.

    ``comparisons``, ``evaluation``: results of the verification. ``project``: the project that ran on its board; None if
    nothing ran on a board. ``port``: serial port of the board, empty if emulated. ``failure``: text of the verification
    error, empty if there is none."""
    return {
        "evidence_version": VERSION,
        "created": reproducible_date() if _is_date_fixed() else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "verdict": "differs" if failure else "agrees",
        "microc": __version__,
        "model": {"source": manifest["source"], "sha256": manifest.get("sha256", {}).get("model", "")},
        "project": {
            "network": manifest["model"],
            "fingerprint": manifest["fingerprint"],
            "options": manifest["options"],
            "deviations": manifest.get("deviations", []),
            "sha256": _generated_files_hash(project) if project is not None else "",
        },
        "board": _board_facts(project, port) if project is not None else None,
        "tools": {**_python_package_versions(), **(_board_compiler_version(project) if project is not None else {})},
        "comparisons": list(comparisons),
        "evaluation": evaluation,
        "failure": failure,
    }


def write_evidence_bundle(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write the files of an evidence bundle to a folder: all of them, or none if an error occurs.

    Raises OutputError if the folder is not empty."""
    check_evidence_folder_empty(folder)
    files: dict[str, str | bytes] = {
        "evidence.json": to_json(dict(facts)),
        "evidence.schema.json": to_json(dict(EVIDENCE_SCHEMA)),
        "evidence.md": evidence_markdown(facts),
    }
    sums = [f"{hashlib.sha256(str(text).encode()).hexdigest()}  {name}\n" for name, text in sorted(files.items())]
    write_tree(folder, {**files, "SHA256SUMS": "".join(sums)})


def _is_date_fixed() -> bool:
    """Test whether the environment variable SOURCE_DATE_EPOCH states the date, so that equal evidence gives equal files."""
    return bool(os.environ.get("SOURCE_DATE_EPOCH"))


def _generated_files_hash(project: Project) -> str:
    """Return the SHA-256 hash of a project's bill of materials, which contains the hashes of all generated files.

    For older projects, which have no bill of materials, it is the hash of the manifest; empty if there is neither."""
    for name in ("sbom.spdx.json", "manifest.json"):
        path = project.folder / name
        if path.is_file():
            return hashlib.sha256(read_bytes(path)).hexdigest()
    return ""


def _board_facts(project: Project, port: str) -> dict[str, Any]:
    """Describe the board on which the network ran, as plain data.

    The data contain name and title, the serial port, the emulator or simulator if there is one, and the hashes of the
    firmware and of a relocatable network."""
    facts: dict[str, Any] = {
        "name": project.board.name,
        "title": project.board.title,
        "line": port or "its own process",
    }
    if project.emulated and not port:
        program = project.board.raw["emulator"]["argv"][0]
        facts |= {"line": f"emulator {Path(program).name}", "emulator": _program_version_line(program)}
    elif project.board.simulated and not port:
        facts |= {"line": f"simulator {project.board.raw['simulator']['argv'][0]}"}
    files = {"firmware": project.elf, **({"network": project.blob} if project.relocatable else {})}
    hashes = {
        f"{name}_sha256": hashlib.sha256(read_bytes(path)).hexdigest() for name, path in files.items() if path.is_file()
    }
    return facts | hashes


def _python_package_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that a verification uses, by name."""
    from importlib import metadata  # it imports the package of e-mail, which no compilation needs

    versions = {"python": platform.python_version()}
    for name in _REPORTED_PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _board_compiler_version(project: Project) -> dict[str, str]:
    """Return a mapping with the version of the board's C compiler as ``compiler``; empty if it is not installed."""
    try:
        return {"compiler": find_compiler(project.board).version}
    except ToolError:  # not needed for a board that has been flashed already
        return {}


def _program_version_line(program: str) -> str:
    """Return the first line that a program prints for ``--version``; empty if the program is missing or fails."""
    path = shutil.which(program)
    if path is None:
        return ""
    try:
        result = subprocess.run(
            [path, "--version"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_VERSION_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.partition("\n")[0]


def read_evidence_bundle(folder: Path) -> dict[str, Any]:
    """Read the ``evidence.json`` of an evidence bundle.

    Raises OutputError if the folder contains no bundle, or if a file's hash differs from that in SHA256SUMS."""
    try:
        for line in read_text(folder / "SHA256SUMS", _MAX_HASH_LIST).splitlines():
            digest, _, name = line.partition("  ")
            if name != Path(name).name:
                raise OutputError(
                    f"SHA256SUMS names {name!r}, which is outside of the folder",
                    where=str(folder),
                    hint="collect the evidence again: --evidence FOLDER",
                )
            if hashlib.sha256(read_bytes(folder / name)).hexdigest() != digest:
                raise OutputError(
                    f"{name} was changed: its hash differs from that in SHA256SUMS",
                    where=str(folder),
                    hint="restore the file, or collect the evidence again: --evidence FOLDER",
                )
        facts: dict[str, Any] = json.loads(read_text(folder / "evidence.json"))
    except (OSError, ValueError, RecursionError) as error:
        raise OutputError(
            f"{folder}: cannot read the evidence: {error}",
            where=str(folder),
            hint="name a folder that microc verify --evidence wrote",
        ) from error
    return facts


# ---- Accuracy of a network, read from the JSON that ``microc verify --json`` prints, or from an evidence bundle.

MAX_JSON_BYTES = 64 << 20
"""Largest size of a JSON file that is read, in bytes."""
_HINT = "give the output of `microc verify firmware --data test.npz --labels labels --json`, or a folder of --evidence"
_COUNT = {"type": "integer", "minimum": 0, "maximum": (1 << 53)}
_REAL = {"type": "number", "minimum": -1e38, "maximum": 1e38}
_REAL_OR_NONE = {**_REAL, "type": ["number", "null"]}
ACCURACY_SCHEMA: Mapping[str, Any] = {
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
"""JSON schema of those parts of a verification's result that a report uses."""


def read_accuracy(path: Path) -> dict[str, Any]:
    """Read the accuracy that a report shows from the result of a verification.

    ``path``: a file with the output of ``microc verify --json``, or the folder of ``--evidence``. Raises UsageError if
    it contains no such result."""
    import jsonschema

    data = (
        _read_verification_evidence(path) if path.is_dir() else _read_json_output(path, "microc verify --json", _HINT)
    )
    try:
        jsonschema.validate(data, ACCURACY_SCHEMA)
    except jsonschema.ValidationError as error:
        where = "/".join(map(str, error.absolute_path)) or "it"
        raise UsageError(
            f"{path}: invalid result of microc verify: {where}: {make_printable(error.message, 200)}",
            where=str(path),
            hint=_HINT,
        ) from error
    evaluation = data.get("evaluation") or {}
    classes = evaluation.get("classification")
    if not evaluation and "identical" not in data:
        raise UsageError(f"{path}: invalid result of microc verify: it has no evaluation", where=str(path), hint=_HINT)
    counts = classes["confusion"] if classes else None
    if counts is not None and any(len(row) != len(counts) for row in counts):
        raise UsageError(
            f"{path}: invalid result of microc verify: its confusion matrix is not square", where=str(path), hint=_HINT
        )
    return {
        "fingerprint": data.get("fingerprint", ""),
        "samples": evaluation.get("samples", data.get("samples", 0)),
        "identical": data.get("identical"),
        "output": classes["output"] if classes else "",
        "correct": classes["correct"] if classes else 0,
        "total": classes["total"] if classes else 0,
        "confusion": counts,
        "outputs": [
            {name: output.get(name) for name in ("output", "rmse", "largest", "cosine")}
            for output in evaluation.get("outputs", ())
        ],
    }


def reject_json_constant(name: str) -> None:
    """Raise ValueError for NaN and infinities, which JSON does not allow. Used as ``parse_constant`` of ``json.loads``."""
    raise ValueError(f"invalid JSON: got {name}, expected a number")


def _read_json_output(path: Path, command: str, hint: str) -> Any:
    """Read a file that contains the output of ``command``; raise UsageError if it cannot be read."""
    try:
        return json.loads(read_text(path, MAX_JSON_BYTES), parse_constant=reject_json_constant)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", where=str(path), hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON; expected the output of {command}", where=str(path), hint=hint) from error


def _read_verification_evidence(folder: Path) -> dict[str, Any]:
    """Read an evidence bundle, and return its results in the structure that ``microc verify --json`` prints."""

    facts = read_evidence_bundle(folder)
    try:
        board: Mapping[str, Any] = next(
            (comparison for comparison in facts["comparisons"] if "identical" in comparison), {}
        )
        results = {name: board[name] for name in ("identical", "samples") if name in board}
        return {"fingerprint": facts["project"]["fingerprint"], "evaluation": facts["evaluation"], **results}
    except (KeyError, TypeError) as error:
        raise UsageError(
            f"{folder}: expected a folder of verify --evidence with a result", where=str(folder), hint=_HINT
        ) from error


_BENCH_HINT = "give the output of `microc bench MODEL --boards BOARD --against tflm --json`"
COMPARISON_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["board", "unit", "time", "flash", "ram", "fingerprint", "tflm"],
    "properties": {
        "board": {"type": "string"},
        "unit": {"type": "string"},
        "fingerprint": {"type": "string"},
        **dict.fromkeys(("flash", "ram"), _COUNT),
        "time": {**_COUNT, "type": ["integer", "null"]},
        "tflm": {
            "type": "object",
            "required": ["build", "time", "flash", "ram", "arena", "values", "different", "largest"],
            "properties": {
                "build": {"type": "string"},
                "time": {**_COUNT, "type": ["integer", "null"]},
                **dict.fromkeys(("flash", "ram", "arena", "values", "different"), _COUNT),
                "largest": _REAL,
            },
        },
    },
}
"""JSON schema of a row of ``microc bench --against tflm``, as far as a report uses it."""


def read_tflm_comparison(path: Path, board: str, fingerprint: str) -> dict[str, Any]:
    """Read the row of a network on a board from the output of ``microc bench --against tflm --json``.

    Raises UsageError if the file has no such row, or only one of another build of the network."""
    import jsonschema

    data = _read_json_output(path, "microc bench --json", _BENCH_HINT)
    rows = data.get("boards") if isinstance(data, dict) else None
    validator = jsonschema.Draft202012Validator(COMPARISON_SCHEMA)
    measured = [row for row in rows if validator.is_valid(row)] if isinstance(rows, list) else []
    row = next((row for row in measured if (row["board"], row["fingerprint"]) == (board, fingerprint)), None)
    if row is None:
        names = ", ".join(sorted({make_printable(row["board"]) for row in measured})) or "no board"
        raise UsageError(
            f"{path}: got comparisons with TFLite Micro on {names}, expected one of this build of the network on {board}",
            where=str(path),
            hint=f"{_BENCH_HINT}, measured with the same options",
        )
    figures, properties = row["tflm"], COMPARISON_SCHEMA["properties"]
    return {
        **{name: row[name] for name in properties},
        "tflm": {name: figures[name] for name in properties["tflm"]["properties"]},
    }


def accuracy_sentences(accuracy: Mapping[str, Any], fingerprint: str) -> Iterator[str]:
    """Yield sentences that state the accuracy, for a report.

    ``fingerprint``: fingerprint of the network in the report. If it differs from that of the verified network, a sentence
    states that the results are of another build."""
    if accuracy["fingerprint"] not in ("", fingerprint):
        yield "These are results of another build of the network: its code or its constants differ."
    if accuracy["total"]:
        share = 100 * accuracy["correct"] / accuracy["total"]
        yield f"{accuracy['correct']:,} of {accuracy['total']:,} samples are right, {share:.2f} % ({accuracy['output']})."
    if accuracy["identical"] is not None:
        yield (
            "Board and host agree in every bit of every layer."
            if accuracy["identical"]
            else "Board and host agree within the tolerance for floats."
        )
    for output in accuracy["outputs"]:
        cosine = "" if output["cosine"] is None else f", cosine {output['cosine']:.6f}"
        yield f"{output['output']}: RMSE {output['rmse']:.4g}, largest difference {output['largest']:.4g}{cosine}."
