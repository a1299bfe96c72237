# SPDX-License-Identifier: Apache-2.0
"""Guides for contributors: a README in every room, paths that exist, the example of CONTRIBUTING.md as code, roles that
name what exists."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from microc.ops.elementwise import scalar_functions
from microc.tir import ir

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "microc"
ROOMS = [
    *sorted(path for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()),
    ROOT / "runtime_c",
    ROOT / "templates",
]
GUIDES = [ROOT / "CONTRIBUTING.md", PACKAGE / "DESIGN.md", ROOT / "docs" / "internals.md"]
LONGEST = 20
"""Lines of a room's README: what it is, and the order of reading."""
WRITTEN = ("kernels/", "external/NAME", "own/", "build/")
"""Folders that microc writes, whose files guides name."""
REFUSED = ("utils.py", "places.py")
"""Names that no file shall have."""
_ROLE = re.compile(r":(func|class|meth|data|attr|mod):`~?\.?([\w.]+)`")
_DEFINED = re.compile(
    r"^ *(?:async )?(?:def|class|type) (\w+)|^(\w+(?:, \w+)*)(?:: [^=\n]+)? = "
    r"|^    (\w+): |^    ([A-Z]\w*) = |\bself\.(\w+)(?:: [^=\n]+)? = ",
    re.MULTILINE,
)
"""Functions, classes, variables of modules, fields and members of classes, attributes of objects."""
_IMPORTED = re.compile(r"^ *(?:from [\w.]+ )?import (\([^)]*\)|.+)$", re.MULTILINE)
_WORD = re.compile(r"\w+")
_PATH = re.compile(r"`((?:[\w.*-]+/)+[\w.*-]*|[\w*-]+\.py)`")


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_rooms_have_a_readme_whose_paths_exist(room: Path) -> None:
    text = (room / "README.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {room.name}: ") and text.count("\n") <= LONGEST
    for path in _PATH.findall(text):
        assert any(has(base, pattern) for base in (PACKAGE, ROOT) for pattern in (path, f"{room.name}/**/{path}")), path


def has(base: Path, path: str) -> bool:
    """Test whether a path or pattern of a guide names something below a folder."""
    return next(base.glob(path.rstrip("/")), None) is not None


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_paths_of_guides_exist(guide: Path) -> None:
    for path in _PATH.findall(guide.read_text(encoding="utf-8")):
        if not path.startswith(WRITTEN) and path not in REFUSED:
            patterns = (path, path if "/" in path else f"**/{path}")
            assert any(has(base, pattern) for base in (ROOT, PACKAGE) for pattern in patterns), (
                f"{guide.name} names {path}"
            )


def test_the_example_of_a_unary_function_is_a_row() -> None:
    """The row that CONTRIBUTING.md shows has the fields of today, and its loops compute what its reference does."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    source = re.search(r'```python\n(UnaryFunction\(\n    "tan".*?\n\))\n```', text, re.DOTALL)
    assert source
    row = eval(source[1], {"UnaryFunction": scalar_functions.UnaryFunction, "np": np, "ir": ir})
    assert row.build_scalar({}, ir.Var("x", "float32")).dtype == "float32"
    np.testing.assert_allclose(row.evaluate_array({}, np.array(0.5)), np.tan(0.5))


def test_roles_name_what_exists() -> None:
    """Roles such as ``:func:`` name what their module defines or imports, or the path of a module or of its member."""
    files = {
        path.relative_to(ROOT).with_suffix("").as_posix().removesuffix("/__init__").replace("/", "."): path
        for path in PACKAGE.rglob("*.py")
    }
    texts = {module: path.read_text(encoding="utf-8") for module, path in files.items()}
    defined = {
        module: set(_WORD.findall(" ".join(map(" ".join, _DEFINED.findall(text))))) for module, text in texts.items()
    }
    known = {
        module: defined[module] | set(_WORD.findall(" ".join(_IMPORTED.findall(text))))
        for module, text in texts.items()
    }
    anywhere = set().union(*defined.values())

    def exists(path: str, module: str) -> bool:
        owner, _, name = path.rpartition(".")
        if not owner and name in known[module]:
            return True
        if any(f".{other}".endswith(f".{path}") for other in texts) or (
            owner and path.split(".")[0] in sys.stdlib_module_names
        ):
            return True
        owners = [other for other in texts if owner and f".{other}".endswith(f".{owner}")]
        if owners:
            return any(name in known[other] for other in owners)
        return bool(owner) and name in anywhere and exists(owner, module)

    missing = [
        f"{files[module].relative_to(ROOT)}: :{role}:`{path}`"
        for module, text in texts.items()
        for role, path in _ROLE.findall(text)
        if not exists(path, module)
    ]
    assert not missing, "\n".join(missing)
