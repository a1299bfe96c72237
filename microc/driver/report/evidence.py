"""The bundle that ``microc verify --evidence`` writes: what was compared, on what, with which results, for people and programs.

``evidence.json`` (its schema beside it), ``evidence.md``, and ``SHA256SUMS`` over the others, which ``sha256sum -c`` checks.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from microc import __version__
from microc.codegen.files import write_tree
from microc.codegen.manifest import to_json
from microc.codegen.sbom import created
from microc.device.simulator import simulated
from microc.device.toolchain import find_compiler
from microc.driver.report.evidence_page import page
from microc.dtypes import Array
from microc.errors import OutputError, ToolError
from microc.reading import read_bytes, read_text

if TYPE_CHECKING:
    from microc.driver.measure.firmware import Project

VERSION = 1
_PACKAGES = ("numpy", "onnx", "tflite", "flatbuffers", "jinja2")
_SECONDS = 20.0
_LIST = 1 << 20
"""Bytes of the list of hashes."""

SCHEMA: Mapping[str, Any] = {
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


def refuse_taken(folder: Path) -> None:
    """OutputError for a folder that holds something: evidence is never written over."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder} is not empty", where=str(folder), hint="give --evidence a new folder")


def data_hash(sets: Sequence[Sequence[Array]]) -> str:
    """SHA-256 over all inputs: dtype, shape and little-endian bytes of each array in order."""
    digest = hashlib.sha256()
    for arrays in sets:
        for array in map(np.asarray, arrays):
            digest.update(f"{array.dtype.name} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def gathered(
    manifest: Mapping[str, Any],
    comparisons: Sequence[Mapping[str, Any]],
    evaluation: Mapping[str, Any] | None = None,
    failure: str = "",
    project: Project | None = None,
    port: str = "",
) -> dict[str, Any]:
    """The facts, plain data: those of the manifest, the results, and what they were found with.

    ``project``: whose board ran (None: no board did), ``port``: on which line. ``failure``: what the refusal says,
    if there is one.
    """
    return {
        "evidence_version": VERSION,
        "created": created() if _dated() else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "verdict": "differs" if failure else "agrees",
        "microc": __version__,
        "model": {"source": manifest["source"], "sha256": manifest.get("sha256", {}).get("model", "")},
        "project": {
            "network": manifest["model"],
            "fingerprint": manifest["fingerprint"],
            "options": manifest["options"],
            "deviations": manifest.get("deviations", []),
            "sha256": _sources(project) if project is not None else "",
        },
        "board": _board(project, port) if project is not None else None,
        "tools": {**_versions(), **(_compiler(project) if project is not None else {})},
        "comparisons": list(comparisons),
        "evaluation": evaluation,
        "failure": failure,
    }


def write(folder: Path, facts: Mapping[str, Any]) -> None:
    """The bundle, all of it or nothing. OutputError where the folder holds something."""
    refuse_taken(folder)
    files: dict[str, str | bytes] = {
        "evidence.json": to_json(dict(facts)),
        "evidence.schema.json": to_json(dict(SCHEMA)),
        "evidence.md": page(facts),
    }
    sums = [f"{hashlib.sha256(str(text).encode()).hexdigest()}  {name}\n" for name, text in sorted(files.items())]
    write_tree(folder, {**files, "SHA256SUMS": "".join(sums)})


def _dated() -> bool:
    """Whether the date is told: then the same evidence is the same file."""
    return bool(os.environ.get("SOURCE_DATE_EPOCH"))


def _sources(project: Project) -> str:
    """SHA-256 over the bill of materials, which holds the hash of every generated file; of older projects, the manifest."""
    for name in ("sbom.spdx.json", "manifest.json"):
        path = project.folder / name
        if path.is_file():
            return hashlib.sha256(read_bytes(path)).hexdigest()
    return ""


def _board(project: Project, port: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": project.board.name,
        "title": project.board.title,
        "line": port or "its own process",
    }
    if project.emulated and not port:
        program = project.board.raw["emulator"]["argv"][0]
        found |= {"line": f"emulator {Path(program).name}", "emulator": _first_line(program)}
    elif simulated(project.board) and not port:
        found |= {"line": f"simulator {project.board.raw['simulator']['argv'][0]}"}
    files = {"firmware": project.elf, **({"network": project.blob} if project.relocatable else {})}
    hashes = {
        f"{name}_sha256": hashlib.sha256(read_bytes(path)).hexdigest() for name, path in files.items() if path.is_file()
    }
    return found | hashes


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _compiler(project: Project) -> dict[str, str]:
    try:
        return {"compiler": find_compiler(project.board).version}
    except ToolError:  # a board that has its firmware already needs none
        return {}


def _first_line(program: str) -> str:
    """What a program says of its version."""
    path = shutil.which(program)
    if path is None:
        return ""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.partition("\n")[0]


def read(folder: Path) -> dict[str, Any]:
    """The facts of a bundle; OutputError where it is none, or where a file of it was changed."""
    try:
        for line in read_text(folder / "SHA256SUMS", _LIST).splitlines():
            digest, _, name = line.partition("  ")
            if name != Path(name).name:
                raise OutputError(
                    f"{name} leads out of the folder", where=str(folder), hint="this is not what microc wrote"
                )
            if hashlib.sha256(read_bytes(folder / name)).hexdigest() != digest:
                raise OutputError(f"{name} was changed", where=str(folder), hint="this is not what microc wrote")
        found: dict[str, Any] = json.loads(read_text(folder / "evidence.json"))
    except (OSError, ValueError, RecursionError) as error:
        raise OutputError(f"no evidence can be read: {error}", where=str(folder)) from error
    return found
