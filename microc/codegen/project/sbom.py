"""sbom.spdx.json: a project's bill of materials, for auditors: SPDX 2.3 (https://spdx.github.io/spdx-spec/v2.3/).

Files with their hashes, the model that they were generated from, and the packages whose versions have a say in them. The same
project has the same document: its name space is a hash of its content, its date SOURCE_DATE_EPOCH's, else the epoch.
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

from microc.codegen.project.accelerators import FOLDER, external_of
from microc.codegen.project.manifest import deviations, to_json
from microc.errors import UsageError
from microc.module import Module
from microc.target import Board

NAME = "sbom.spdx.json"
_LIBRARIES = ("numpy", "ml-dtypes", "onnx", "tflite", "flatbuffers", "jinja2")
"""What reads models, computes constants and prints: the packages that every compilation goes through."""
_NONE = "NOASSERTION"
_RUNTIME_LICENSE = "Apache-2.0"


def with_sbom(
    files: Mapping[str, str | bytes], modules: Sequence[Module], board: Board, version: str
) -> dict[str, str | bytes]:
    """The files of a project and the bill of them."""
    return {**files, NAME: _document(files, modules, board, version)}


def _document(files: Mapping[str, str | bytes], modules: Sequence[Module], board: Board, version: str) -> str:
    title = "_".join(module.name for module in modules)
    contents = {name: text if isinstance(text, bytes) else text.encode() for name, text in sorted(files.items())}
    licences = {f"{FOLDER}/{each.name}/": each.licence for each in external_of(modules)} | {
        "runtime/": _RUNTIME_LICENSE
    }
    listed = [_file(k, name, data, licences) for k, (name, data) in enumerate(contents.items())]
    models = [_model(k, module) for k, module in enumerate(modules)]
    tools = [_tool("microc", version), *(_tool(name, _version(name)) for name in _LIBRARIES)]
    packages = [_project(title, contents, modules, board, version), *models, *tools]
    found = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{title} for {board.name}",
        "documentNamespace": "",
        "creationInfo": {
            "created": created(),
            "creators": [f"Tool: microc-{version}"],
            "comment": "The date is SOURCE_DATE_EPOCH's, or the epoch: equal projects have equal documents.",
        },
        "documentDescribes": ["SPDXRef-Project"],
        "packages": packages,
        "files": listed,
        "relationships": _relationships(listed, models, tools),
    }
    digest = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
    return to_json({**found, "documentNamespace": f"https://spdx.org/spdxdocs/microc-{digest}"})


def created() -> str:
    """The date of what is reproducible: SOURCE_DATE_EPOCH (seconds) where it is set, else the epoch.

    UsageError where that is no number.
    """
    given = os.environ.get("SOURCE_DATE_EPOCH", "") or "0"
    try:
        return datetime.fromtimestamp(int(given), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"SOURCE_DATE_EPOCH is {given!r}", hint="seconds since 1970, or leave it unset") from error


def _file(number: int, name: str, data: bytes, licences: Mapping[str, str]) -> dict[str, Any]:
    licence = next((each for folder, each in licences.items() if name.startswith(folder)), _NONE)
    return {
        "SPDXID": f"SPDXRef-File-{number}",
        "fileName": f"./{name}",
        "checksums": [
            {"algorithm": "SHA1", "checksumValue": _sha1(data)},
            {"algorithm": "SHA256", "checksumValue": hashlib.sha256(data).hexdigest()},
        ],
        "licenseConcluded": licence,
        "licenseInfoInFiles": [_NONE],
        "copyrightText": _NONE,
    }


def _project(
    title: str, contents: Mapping[str, bytes], modules: Sequence[Module], board: Board, version: str
) -> dict[str, Any]:
    code = hashlib.sha1("".join(sorted(map(_sha1, contents.values()))).encode(), usedforsecurity=False).hexdigest()
    options = {module.name: dict(module.options) for module in modules}
    said = list(dict.fromkeys(line for module in modules for line in deviations(module)))
    return {
        "SPDXID": "SPDXRef-Project",
        "name": title,
        "versionInfo": "+".join(module.fingerprint for module in modules) or version,
        "downloadLocation": "NONE",
        "filesAnalyzed": True,
        "packageVerificationCode": {
            "packageVerificationCodeValue": code,
            "packageVerificationCodeExcludedFiles": [f"./{NAME}"],
        },
        "primaryPackagePurpose": "FIRMWARE",
        "licenseConcluded": _NONE,
        "licenseInfoFromFiles": [_NONE],
        "licenseDeclared": _NONE,
        "licenseComments": f"The runtime is {_RUNTIME_LICENSE}; the network's files hold its model's weights.",
        "copyrightText": _NONE,
        "comment": json.dumps({"board": board.name, "options": options, "deviations": said}, sort_keys=True),
    }


def _model(number: int, module: Module) -> dict[str, Any]:
    known = module.hashes.get("model")
    checksums = {"checksums": [{"algorithm": "SHA256", "checksumValue": known}]} if known else {}
    plugins = {name: value for name, value in module.hashes.items() if name != "model"}
    return {
        "SPDXID": f"SPDXRef-Model-{number}",
        "name": module.source or module.name,
        "downloadLocation": _NONE,
        "filesAnalyzed": False,
        **checksums,
        "licenseConcluded": _NONE,
        "licenseDeclared": _NONE,
        "copyrightText": _NONE,
        "comment": json.dumps({"network": module.name, "plugins": plugins}, sort_keys=True),
    }


def _tool(name: str, version: str) -> dict[str, Any]:
    return {
        "SPDXID": f"SPDXRef-Tool-{name}",
        "name": name,
        "versionInfo": version,
        "downloadLocation": _NONE,
        "filesAnalyzed": False,
        "licenseConcluded": _NONE,
        "licenseDeclared": _NONE,
        "copyrightText": _NONE,
        "primaryPackagePurpose": "APPLICATION" if name == "microc" else "LIBRARY",
    }


def _relationships(
    files: Sequence[Mapping[str, Any]], models: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    def related(one: str, kind: str, other: str) -> dict[str, str]:
        return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}

    compiler, *libraries = (tool["SPDXID"] for tool in tools)
    return [
        related("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-Project"),
        *(related("SPDXRef-Project", "CONTAINS", file["SPDXID"]) for file in files),
        *(related("SPDXRef-Project", "GENERATED_FROM", model["SPDXID"]) for model in models),
        related(compiler, "BUILD_TOOL_OF", "SPDXRef-Project"),
        *(related(library, "BUILD_DEPENDENCY_OF", compiler) for library in libraries),
    ]


def _sha1(data: bytes) -> str:
    """What SPDX asks for beside a hash that can be trusted."""
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def _version(distribution: str) -> str:
    """A package's version, from the name of the folder that an installer leaves beside it: to read that folder as
    :mod:`importlib.metadata` does takes as long as to print a network."""
    found = re.compile(rf"{distribution.replace('-', '[-_]')}-([^-]+)\.dist-info", re.IGNORECASE)
    names = (name for folder in sys.path for name in _names(folder or os.curdir))
    return next((match[1] for name in names if (match := found.fullmatch(name))), _NONE)


@lru_cache(maxsize=64)
def _names(folder: str) -> tuple[str, ...]:
    try:
        return tuple(name for name in os.listdir(folder) if name.endswith(".dist-info"))
    except OSError:
        return ()
