"""Tasks of a project for Visual Studio Code and what reads its files: build, flash, run, verify, with problems in its list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from microc.codegen.manifest import to_json
from microc.codegen.text import Name

TASKS = ".vscode/tasks.json"
_PROBLEMS = {
    "owner": "microc",
    "source": "microc",
    "severity": "error",
    "fileLocation": ["autoDetect", "${workspaceFolder}"],
    "pattern": [
        {"regexp": r"^error\[(E\d{4})\]: (.*)$", "kind": "file", "code": 1, "message": 2},
        {"regexp": r"^  --> (.*)$", "file": 1},
    ],
}
"""How errors of ours look (:mod:`microc.errors`): a line of what, one of where."""
_SAMPLE = {
    "id": "sample",
    "type": "promptString",
    "description": "the network's input: a .npy file or a picture",
    "default": "x.npy",
}


def tasks(networks: Sequence[Name], is_host: bool) -> str:
    """The text of ``tasks.json``. Compilers' messages are found by the editor's own matcher, those of microc by one here."""
    found = [
        {
            "label": "build",
            "type": "shell",
            "command": "make",
            "group": {"kind": "build", "isDefault": True},
            "problemMatcher": ["$gcc"],
        }
    ]
    if not is_host:
        found.append(_task("flash", "build"))
    for name in networks:
        which = ("--network", str(name)) if len(networks) > 1 else ()
        label = f" {name}" if which else ""
        found.append(_task("run", "build", "--input", "${input:sample}", *which, label=label))
        found.append({**_task("verify", "build", *which, label=label), "group": "test"})
    return to_json({"version": "2.0.0", "tasks": found, "inputs": [_SAMPLE]})


def _task(command: str, after: str, *words: str, label: str = "") -> dict[str, Any]:
    """A command of microc on the project, after another task."""
    return {
        "label": command + label,
        "type": "process",
        "command": "microc",
        "args": [command, ".", *words],
        "dependsOn": after,
        "problemMatcher": [_PROBLEMS],
    }
