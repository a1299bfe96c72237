# SPDX-License-Identifier: Apache-2.0
"""The house has floors: a file imports lower floors and its own folder, never up, never sideways."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import microc
from microc.ops.registry import registry
from microc.schedule.rules.rule import ALGORITHMS

PACKAGE = Path(__file__).resolve().parents[1] / "microc"

FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "base", "document", "numerics"}),
    frozenset({"graph", "tir"}),
    frozenset({"te", "isa", "target", "module"}),
    frozenset({"ops"}),
    frozenset({"frontend", "transform", "schedule"}),
    frozenset({"plan", "codegen"}),
    frozenset({"external"}),
    frozenset({"plugin", "topi"}),
    frozenset({"device"}),
    frozenset({"compiler", "run", "reports", "project"}),
    frozenset({"features", "quantization", "tuning"}),
    frozenset({"cli", "__main__", "__init__"}),
)
STRANGERS = (
    frozenset({"graph", "tir"}),
    frozenset({"frontend", "transform", "schedule"}),
    frozenset({"plan", "codegen"}),
    frozenset({"features", "quantization", "tuning"}),
)


def floor_of(part: str) -> int:
    return next(level for level, names in enumerate(FLOORS) if part in names)


@cache
def import_statements(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Every import of a file, also inside functions and for types alone. Parsing all files takes 4 s, for each test."""
    return tuple(n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Import | ast.ImportFrom))


def imported(path: Path) -> set[str]:
    """First-level parts of microc that a file imports anywhere, also inside functions."""
    found: set[str] = set()
    for node in import_statements(path):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif node.module and node.level == 0:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            if parts[0] == "microc" and len(parts) > 1:
                found.add(parts[1])
    return {part for part in found if any(part in names for names in FLOORS)}


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def test_imports_go_down() -> None:
    for path in PACKAGE.rglob("*.py"):
        mine = part_of(path)
        level = floor_of(mine)
        for other in imported(path) - {mine}:
            assert floor_of(other) <= level, f"{path} imports {other}, which is above it"
            assert not any(mine in s and other in s for s in STRANGERS), f"{path} imports its neighbour {other}"


def imports() -> dict[str, set[str]]:
    """Which files of microc each file imports, also inside of functions and for types alone."""
    names = {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts): p for p in PACKAGE.rglob("*.py")}
    names = {name.removesuffix(".__init__"): path for name, path in names.items()}
    found: dict[str, set[str]] = {}
    for name, path in names.items():
        wanted: set[str] = set()
        for node in import_statements(path):
            if isinstance(node, ast.ImportFrom) and node.module:
                wanted |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        found[name] = {each for each in wanted if each in names and names[each].name != "__init__.py"} - {name}
    return found


def test_no_files_import_each_other() -> None:
    left = imports()
    while ground := {name for name, wanted in left.items() if not wanted & set(left)}:
        left = {name: wanted for name, wanted in left.items() if name not in ground}
    around = {name: sorted(wanted & set(left)) for name, wanted in left.items()}
    assert not around, f"files import each other in a circle: {around}"


def test_operators_know_no_core() -> None:
    """Which of their ways suits one say rules: no operator is given a target, or looks into an instruction set."""
    for path in (PACKAGE / "ops").rglob("*.py"):
        asked = re.search(r"target\.(has|features|cpu|core)|\.has\(", path.read_text())
        assert not asked and imported(path).isdisjoint({"isa", "target"}), path


def test_the_table_of_algorithms_names_some_that_are() -> None:
    assert set(ALGORITHMS) <= {name for definition in registry().values() for name in definition.algorithms}


def test_no_room_has_the_name_of_what_the_library_offers() -> None:
    """Importing ``microc.compile.x`` would put a module in the place of the function ``microc.compile``."""
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir()} | {path.stem for path in PACKAGE.glob("*.py")}
    assert not (rooms & set(microc.__all__)) - {"errors", "features", "te", "tir", "topi"}


def test_rooms_are_small() -> None:
    """A room has some fifteen files at most, so that its list is read at a glance."""
    rooms = {path: len([*path.glob("*.py")]) for path in (PACKAGE, *PACKAGE.rglob("*")) if path.is_dir()}
    assert not {str(path): count for path, count in rooms.items() if count > 16}
