"""Where templates, boards and runtime_c live: in a checkout beside the package, in a wheel inside it."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _folder(name: str) -> Path:
    shipped = _PACKAGE / "_data" / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name


def templates() -> Path:
    """Folder of the Jinja templates."""
    return _folder("templates")


def boards() -> Path:
    """Folder of the board files."""
    return _folder("boards")


def examples() -> Path:
    """Folder of the examples; a wheel has what the demonstration needs."""
    return _folder("examples")


def runtime_c() -> Path:
    """Folder of the C runtime (framing, dispatcher, ports)."""
    return _folder("runtime_c")
