# SPDX-License-Identifier: Apache-2.0
"""Tests nearest to a change are found by imports."""

from __future__ import annotations

from pathlib import Path

from tests.affected import distances, importers, python_paths, selected

FILES = {
    "microc/__init__.py": "",
    "microc/low.py": "VALUE = 1",
    "microc/room/__init__.py": "",
    "microc/room/registry.py": 'FAMILIES = ("family",)',
    "microc/room/family.py": "from microc.low import VALUE",
    "tests/__init__.py": "",
    "tests/test_low.py": "from microc import low",
    "tests/test_registry.py": "def test() -> None:\n    import microc.room.registry",
    "tests/test_page.py": 'PAGE = "page.md"',
}


def tree(folder: Path) -> Path:
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_distance_counts_imports_inside_functions_and_strings_that_name_modules(tmp_path: Path) -> None:
    reached = distances(["microc/low.py"], importers(tree(tmp_path)))
    assert {path: reached[path] for path in reached if path.startswith("tests")} == {
        "tests/test_low.py": 1, "tests/test_registry.py": 3,
    }  # fmt: skip


def test_a_page_reaches_the_tests_that_name_it(tmp_path: Path) -> None:
    found = python_paths(["docs/page.md", "microc/low.py", "microc/gone.py"], tree(tmp_path))
    assert found == ["microc/low.py", "tests/test_page.py"]


def test_selection_takes_near_files_first_while_they_fit() -> None:
    reached = {"tests/test_a.py": 1, "tests/test_b.py": 0, "tests/test_c.py": 2, "tests/helper.py": 0}
    durations = {"tests/test_a.py": 20.0, "tests/test_b.py": 30.0, "tests/test_c.py": 40.0}
    assert [path for path in selected(reached, durations, 60) if path in durations] == [
        "tests/test_b.py",
        "tests/test_a.py",
    ]
