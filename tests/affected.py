# SPDX-License-Identifier: Apache-2.0
"""Run the tests nearest to a change: ``make check``.

    python -m tests.affected [BASE] [--minutes N] [--list]     test what differs from BASE (default: HEAD, so what is uncommitted)
    python -m tests.affected --record JUNIT.xml                write durations.json from a run with ``pytest --junitxml``

The imports of ``microc`` and ``tests`` are a graph without circles; strings that name a module, as tables of families do, count
as imports. A test file's distance is the number of imports between it and the nearest changed file. Files are taken by distance,
then by duration, until their durations fill the minutes. Almost everything reaches the low floors, so this is no proof: the whole
suite runs before a change is submitted.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DURATIONS = ROOT / "tests" / "durations.json"
"""Seconds of every test file of five and more, on one of two cores."""
SHORT = 5.0
UNKNOWN = 2.0
"""Seconds of a file that is not in the table."""
STANDS_FOR = {
    "templates/": ("microc/codegen/render.py", "microc/codegen/exports.py"),
    "runtime_c/": ("microc/device/client.py", "microc/codegen/project/board_files.py"),
    "boards/": ("microc/device/boards.py",),
    "pyproject.toml": ("tests/test_wheel.py",),
}
"""Python files that read files of other kinds, by the beginning of their paths."""
ALWAYS = ("tests/test_floors.py", "tests/test_guides.py", "tests/test_design_page.py", "tests/golden/test_golden.py")


def modules(root: Path = ROOT) -> dict[str, str]:
    """Paths by module name, of the package and its tests."""
    found = {}
    for path in sorted([*(root / "microc").rglob("*.py"), *(root / "tests").rglob("*.py")]):
        relative = path.relative_to(root)
        found[".".join(relative.with_suffix("").parts).removesuffix(".__init__")] = relative.as_posix()
    return found


def imports(source: str, name: str, known: Mapping[str, str]) -> Iterator[str]:
    """Modules that a file imports anywhere, or names in a string: whole, or below its own room."""
    room = name.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [each if each in known else node.module for each in inner]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 80:
            names = [node.value, f"{room}.{node.value}"] if node.value.replace(".", "_").isidentifier() else []
        yield from (each for each in names if each in known and each != name)


def importers(root: Path = ROOT) -> dict[str, set[str]]:
    """Paths that import each path."""
    known = modules(root)
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in known.items():
        for other in imports((root / path).read_text(encoding="utf-8"), name, known):
            found[known[other]].add(path)
    return found


def distances(changed: Iterable[str], above: Mapping[str, set[str]]) -> dict[str, int]:
    """Number of imports from every path that is reached to the nearest changed one."""
    reached = dict.fromkeys(changed, 0)
    front = list(reached)
    while front:
        following = sorted({path for below in front for path in above.get(below, ())} - set(reached))
        reached |= dict.fromkeys(following, reached[front[0]] + 1)
        front = following
    return reached


def changed_paths(base: str) -> list[str]:
    """Paths that differ from a commit, new ones included."""
    commands = (["git", "diff", "--name-only", base], ["git", "ls-files", "--others", "--exclude-standard"])
    return [
        line
        for command in commands
        for line in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    ]


def python_paths(paths: Iterable[str], root: Path = ROOT) -> list[str]:
    """The Python files among changed paths, and those that read the others: by the table, or by naming the file."""
    found: list[str] = []
    tests = {
        path: (root / path).read_text(encoding="utf-8") for path in modules(root).values() if path.startswith("tests/")
    }
    for path in paths:
        readers = next((readers for start, readers in STANDS_FOR.items() if path.startswith(start)), None)
        if path.endswith(".py"):
            found += [path] * (root / path).is_file()
        elif readers:
            found += readers
        else:
            name = path if path.endswith("README.md") else Path(path).name
            found += [test for test, text in tests.items() if name in text]
    return sorted(set(found))


def selected(reached: Mapping[str, int], durations: Mapping[str, float], seconds: float) -> list[str]:
    """Test files, nearest and shortest first, while their durations fit; those that always run, in any case."""
    tests = [path for path in reached if Path(path).name.startswith("test_")]
    taken = [path for path in ALWAYS if path not in tests]
    left = seconds
    for path in sorted(tests, key=lambda path: (reached[path], durations.get(path, UNKNOWN), path)):
        left -= durations.get(path, UNKNOWN)
        if left < 0:
            break
        taken.append(path)
    return taken


def record(report: Path) -> dict[str, float]:
    """Seconds by test file, from a report in JUnit's form."""
    from xml.etree import ElementTree

    known = modules()
    found: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("classname", "")
        while name and name not in known:
            name = name.rpartition(".")[0]
        if name:
            found[known[name]] += float(case.get("time", 0))
    return {path: round(seconds, 1) for path, seconds in sorted(found.items()) if seconds >= SHORT}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.affected", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("base", nargs="?", default="HEAD", help="a commit (default: HEAD)")
    parser.add_argument("--minutes", type=float, default=3.0, help="wall time to fill, with two processes")
    parser.add_argument("--list", action="store_true", help="name the test files, and run none")
    parser.add_argument("--record", type=Path, metavar="JUNIT.xml", help="write durations.json, and run nothing")
    arguments = parser.parse_args(words)
    if arguments.record:
        DURATIONS.write_text(json.dumps(record(arguments.record), indent=1) + "\n")
        return 0
    changed = python_paths(changed_paths(arguments.base))
    if not changed:
        sys.stdout.write(f"nothing that tests reach differs from {arguments.base}\n")
        return 0
    reached = distances(changed, importers())
    durations = json.loads(DURATIONS.read_text()) if DURATIONS.is_file() else {}
    tests = selected(reached, durations, 2 * 60 * arguments.minutes)
    every = sum(Path(path).name.startswith("test_") for path in reached)
    sys.stdout.write(f"{len(tests)} test files, the nearest of {every} that {len(changed)} changed files reach\n")
    sys.stdout.flush()
    if arguments.list:
        sys.stdout.write("".join(f"{reached.get(path, 0):3} {path}\n" for path in tests))
        return 0
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", "-q", *tests]
    return subprocess.run(command, cwd=ROOT, env=os.environ).returncode


if __name__ == "__main__":
    sys.exit(main())
