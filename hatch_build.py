# SPDX-License-Identifier: Apache-2.0
"""The build's own step: the README of a package, whose links name files of the repository at the tag of its version.

In a checkout links are relative and hold without a network; on a package index only absolute ones do.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(\]\(|src=\"|srcset=\")(?!https?:|#)([^)\"]+)")
VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)


class ReadmeHook(MetadataHookInterface):
    """Supplies the field ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        version = VERSION.search((root / "microc" / "__init__.py").read_text(encoding="utf-8"))
        assert version
        text = (root / "README.md").read_text(encoding="utf-8")
        readme = with_absolute_links(text, metadata["urls"]["Repository"], f"v{version[1]}")
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}


def with_absolute_links(text: str, repository: str, tag: str) -> str:
    """Return Markdown whose links and pictures are addresses in the repository at a tag."""

    def absolute(link: re.Match[str]) -> str:
        page = f"{repository}/{'blob' if link[1] == '](' else 'raw'}/{tag}/{link[2]}"
        return link[1] + page

    return LINK.sub(absolute, text)
