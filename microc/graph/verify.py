"""Graph verification."""

from __future__ import annotations

from typing import Any

from microc.graph.ir import Graph


def verify(graph: Graph, infer: Any = None, where: str = "") -> None:
    """Provisional."""
