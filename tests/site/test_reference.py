# SPDX-License-Identifier: Apache-2.0
"""Pages that are made from the code are current and complete; what is promised says what it takes, gives and refuses."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import microc
from microc.cli.parser import COMMANDS
from microc.device.boards import list_boards
from scripts.site import api, errors
from scripts.site.__main__ import PAGES

DOCS = Path(__file__).resolve().parents[2] / "docs"
REFUSES = re.compile(r"Error|Raises|[Rr]efuse|Exception|nothing to refuse")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_current(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "write it again: make docs"


def test_every_error_has_causes_and_cures() -> None:
    page = PAGES["errors.md"]()
    assert set(errors.CURES) == {kind.__name__ for kind in errors.kinds()}
    for kind in errors.kinds():
        assert f"## {kind.code} {kind.__name__}\n" in page and all(map(all, errors.CURES[kind.__name__]))
        assert f"| {kind.exit_code} |" in page
    codes = [kind.code for kind in errors.kinds()]
    assert len(set(codes)) == len(codes)


def test_every_command_and_board_is_there() -> None:
    commands, boards = PAGES["commands.md"](), PAGES["boards.md"]()
    assert all(f"## microc {name}\n" in commands for name in COMMANDS)
    assert all(f"`{name}`" in boards for name in list_boards())


def test_every_promised_name_has_a_place() -> None:
    page = api.api_page()
    named = {name for names in api.GROUPS.values() for name in names}
    assert named <= set(microc.__all__)
    assert all(f"::: microc.{name}\n" in page for name in microc.__all__ if name != "__version__")


def promised() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions, and methods of classes, of ``microc.__all__``."""
    for name in microc.__all__:
        found = getattr(microc, name)
        if inspect.isclass(found):
            for each, method in vars(found).items():
                if inspect.isfunction(method) and not each.startswith("_"):
                    yield f"{name}.{each}", method
        elif inspect.isfunction(found):
            yield name, found


FUNCTIONS = dict(promised())


def test_there_are_many() -> None:
    assert len(FUNCTIONS) > 80 and all(inspect.getdoc(getattr(microc, n)) for n in microc.__all__ if n[0] != "_")


def test_every_method_has_a_docstring() -> None:
    assert not [name for name, function in FUNCTIONS.items() if not inspect.getdoc(function)]


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if "." not in name])
def test_a_function_names_its_parameters_and_refusals(name: str) -> None:
    said = inspect.getdoc(FUNCTIONS[name]) or ""
    assert REFUSES.search(said), f"{name} does not say what it raises"
    parameters = [p for p in inspect.signature(FUNCTIONS[name]).parameters if p not in ("model", "graph", "self")]
    lost = [p for p in parameters if not re.search(rf"\b{p}\b", said)]
    assert not lost, f"{name} does not speak of {', '.join(lost)}"
