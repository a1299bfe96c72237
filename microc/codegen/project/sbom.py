"""Write sbom.spdx.json, a project's software bill of materials: SPDX 2.3 (https://spdx.github.io/spdx-spec/v2.3/).

It lists a project's files with their hashes, the models that the files were generated from, and the packages whose versions
affect the files. Equal projects have equal documents: the namespace is a hash of the content, and the date is that of the
environment variable SOURCE_DATE_EPOCH or, if it is not set, 1970-01-01.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from microc.codegen.project.accelerators import EXTERNAL_FOLDER, merge_external_code_sources
from microc.codegen.project.manifest import describe_deviations, to_json
from microc.errors import UsageError
from microc.module import Module
from microc.target import Board

SBOM_FILE = "sbom.spdx.json"
_PYTHON_PACKAGES = ("numpy", "ml-dtypes", "onnx", "tflite", "flatbuffers", "jinja2")
"""Names of the Python packages that a compilation uses to read models, to compute constants and to print files."""
_NO_ASSERTION = "NOASSERTION"
_RUNTIME_LICENSE = "Apache-2.0"


def add_sbom(
    files: Mapping[str, str | bytes], modules: Sequence[Module], board: Board, version: str
) -> dict[str, str | bytes]:
    """Return the files of a project together with its bill of materials: content by file name."""
    return {**files, SBOM_FILE: _render_sbom(files, modules, board, version)}


def _render_sbom(files: Mapping[str, str | bytes], modules: Sequence[Module], board: Board, version: str) -> str:
    """Return a project's bill of materials as the text of an SPDX document in JSON."""
    title = "_".join(module.name for module in modules)
    contents = {name: text if isinstance(text, bytes) else text.encode() for name, text in sorted(files.items())}
    licences = {f"{EXTERNAL_FOLDER}/{each.name}/": each.licence for each in merge_external_code_sources(modules)} | {
        "runtime/": _RUNTIME_LICENSE
    }
    file_entries = [_file_entry(k, name, data, licences) for k, (name, data) in enumerate(contents.items())]
    models = [_model_package(k, module) for k, module in enumerate(modules)]
    tools = [
        _tool_package("microc", version),
        *(_tool_package(name, _installed_version(name)) for name in _PYTHON_PACKAGES),
    ]
    packages = [_project_package(title, contents, modules, board, version), *models, *tools]
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{title} for {board.name}",
        "documentNamespace": "",
        "creationInfo": {
            "created": reproducible_date(),
            "creators": [f"Tool: microc-{version}"],
            "comment": "The date is SOURCE_DATE_EPOCH's, or the epoch: equal projects have equal documents.",
        },
        "documentDescribes": ["SPDXRef-Project"],
        "packages": packages,
        "files": file_entries,
        "relationships": _spdx_relationships(file_entries, models, tools),
    }
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    return to_json({**document, "documentNamespace": f"https://spdx.org/spdxdocs/microc-{digest}"})


def reproducible_date() -> str:
    """Return the date for reproducible output, in ISO 8601 format.

    It is that of the environment variable SOURCE_DATE_EPOCH, in seconds since 1970, or 1970-01-01 if the variable is not set.
    UsageError if its value is not a number.
    """
    seconds = os.environ.get("SOURCE_DATE_EPOCH", "") or "0"
    try:
        return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"SOURCE_DATE_EPOCH: got {seconds!r}, expected a number of seconds since 1970",
            hint="set it to such a number, or unset it",
        ) from error


def _file_entry(file_index: int, name: str, data: bytes, licences: Mapping[str, str]) -> dict[str, Any]:
    """Return the SPDX entry of a file of the project.

    ``file_index``: index of the file, for the entry's id. ``licences``: the licence of all files in a folder, by the path of the
    folder."""
    licence = next((licence for folder, licence in licences.items() if name.startswith(folder)), _NO_ASSERTION)
    return {
        "SPDXID": f"SPDXRef-File-{file_index}",
        "fileName": f"./{name}",
        "checksums": [
            {"algorithm": "SHA1", "checksumValue": _sha1_hex(data)},
            {"algorithm": "SHA256", "checksumValue": hashlib.sha256(data).hexdigest()},
        ],
        "licenseConcluded": licence,
        "licenseInfoInFiles": [_NO_ASSERTION],
        "copyrightText": _NO_ASSERTION,
    }


def _project_package(
    title: str, contents: Mapping[str, bytes], modules: Sequence[Module], board: Board, version: str
) -> dict[str, Any]:
    """Return the SPDX package entry for the project itself. ``contents``: content of its files by name."""
    code = hashlib.sha1("".join(sorted(map(_sha1_hex, contents.values()))).encode(), usedforsecurity=False).hexdigest()
    options = {module.name: dict(module.options) for module in modules}
    all_deviations = list(dict.fromkeys(line for module in modules for line in describe_deviations(module)))
    return {
        "SPDXID": "SPDXRef-Project",
        "name": title,
        "versionInfo": "+".join(module.fingerprint for module in modules) or version,
        "downloadLocation": "NONE",
        "filesAnalyzed": True,
        "packageVerificationCode": {
            "packageVerificationCodeValue": code,
            "packageVerificationCodeExcludedFiles": [f"./{SBOM_FILE}"],
        },
        "primaryPackagePurpose": "FIRMWARE",
        "licenseConcluded": _NO_ASSERTION,
        "licenseInfoFromFiles": [_NO_ASSERTION],
        "licenseDeclared": _NO_ASSERTION,
        "licenseComments": f"The runtime is {_RUNTIME_LICENSE}; the network's files hold its model's weights.",
        "copyrightText": _NO_ASSERTION,
        "comment": json.dumps({"board": board.name, "options": options, "deviations": all_deviations}, sort_keys=True),
    }


def _model_package(model_index: int, module: Module) -> dict[str, Any]:
    """Return the SPDX package entry for the model that a network was generated from. ``model_index``: index for its id."""
    model_sha256 = module.hashes.get("model")
    checksums = {"checksums": [{"algorithm": "SHA256", "checksumValue": model_sha256}]} if model_sha256 else {}
    plugins = {name: value for name, value in module.hashes.items() if name != "model"}
    return {
        "SPDXID": f"SPDXRef-Model-{model_index}",
        "name": module.source or module.name,
        "downloadLocation": _NO_ASSERTION,
        "filesAnalyzed": False,
        **checksums,
        "licenseConcluded": _NO_ASSERTION,
        "licenseDeclared": _NO_ASSERTION,
        "copyrightText": _NO_ASSERTION,
        "comment": json.dumps({"network": module.name, "plugins": plugins}, sort_keys=True),
    }


def _tool_package(name: str, version: str) -> dict[str, Any]:
    """Return the SPDX package entry for microc or for a Python package that it uses."""
    return {
        "SPDXID": f"SPDXRef-Tool-{name}",
        "name": name,
        "versionInfo": version,
        "downloadLocation": _NO_ASSERTION,
        "filesAnalyzed": False,
        "licenseConcluded": _NO_ASSERTION,
        "licenseDeclared": _NO_ASSERTION,
        "copyrightText": _NO_ASSERTION,
        "primaryPackagePurpose": "APPLICATION" if name == "microc" else "LIBRARY",
    }


def _spdx_relationships(
    files: Sequence[Mapping[str, Any]], models: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Return the SPDX relationships between the document, the project, its files, models and tools."""

    def spdx_relationship(element_id: str, relationship: str, related_id: str) -> dict[str, str]:
        return {"spdxElementId": element_id, "relationshipType": relationship, "relatedSpdxElement": related_id}

    compiler, *libraries = (tool["SPDXID"] for tool in tools)
    return [
        spdx_relationship("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-Project"),
        *(spdx_relationship("SPDXRef-Project", "CONTAINS", file["SPDXID"]) for file in files),
        *(spdx_relationship("SPDXRef-Project", "GENERATED_FROM", model["SPDXID"]) for model in models),
        spdx_relationship(compiler, "BUILD_TOOL_OF", "SPDXRef-Project"),
        *(spdx_relationship(library, "BUILD_DEPENDENCY_OF", compiler) for library in libraries),
    ]


def _sha1_hex(data: bytes) -> str:
    """Return the SHA-1 of a file's content in hexadecimal. SPDX requires this hash in addition to a secure one."""
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def _installed_version(distribution: str) -> str:
    """Return the version of an installed Python distribution; NOASSERTION if the distribution is not installed.

    The version is read from the name of its ``.dist-info`` folder. :mod:`importlib.metadata` would read the content of that
    folder, which takes as long as printing a network."""
    folder_pattern = re.compile(rf"{distribution.replace('-', '[-_]')}-([^-]+)\.dist-info", re.IGNORECASE)
    names = (name for folder in sys.path for name in _dist_info_folders(folder or os.curdir))
    return next((match[1] for name in names if (match := folder_pattern.fullmatch(name))), _NO_ASSERTION)


@lru_cache(maxsize=64)
def _dist_info_folders(folder: str) -> tuple[str, ...]:
    """Return the names of the ``.dist-info`` folders in a folder; none if the folder cannot be read."""
    try:
        return tuple(name for name in os.listdir(folder) if name.endswith(".dist-info"))
    except OSError:
        return ()
