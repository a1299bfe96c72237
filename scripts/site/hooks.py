# SPDX-License-Identifier: Apache-2.0
"""What MkDocs is told about this repository: pages that lie outside of docs/, and the page of the Python interface.

A page of the repository is ``repository/PATH`` on the site; links between pages work in both places, for they are written as the
repository has them and rewritten here. A file that is linked to and is no page is copied beside the pages.
"""

from __future__ import annotations

import posixpath
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
OUTSIDE = (
    "microc/DESIGN.md",
    "runtime_c/SPEC.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "boards/README.md",
)
EXAMPLES = tuple(sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").glob("**/README.md")))
PERCENT = re.compile(r"<(pre|code)\b.*?</\1>|(?<=\d) (?=%)", re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Show version and repository."""
    import microc

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.site_name = f"microc {microc.__version__}"
    config.repo_url = project["urls"]["Repository"]
    config.repo_name = config.repo_url.removeprefix("https://github.com/")
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add what is not in docs/."""
    from scripts.site.api import api_page

    for path in (*OUTSIDE, *EXAMPLES):
        files.append(File.generated(config, f"repository/{path}", content=(ROOT / path).read_text(encoding="utf-8")))
    files.append(File.generated(config, "api.md", content=api_page()))
    for file in [file for file in files.documentation_pages() if file.src_uri != "api.md"]:
        for path in _linked(file.content_string, _place(file.src_uri)):
            uri = f"repository/{path}"
            if (ROOT / path).is_file() and not path.startswith("docs/") and files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links of the repository as links of the site."""
    here = page.file.src_uri

    def of_site(text: str, target: str) -> str:
        path, mark, anchor = target.partition("#")
        place = posixpath.normpath(posixpath.join(posixpath.dirname(_place(here)), path))
        if (ROOT / place).is_dir() and not (ROOT / place / "README.md").is_file():
            return text  # a folder without a page
        there = _on_site(place)
        found = posixpath.relpath(there, posixpath.dirname(here) or ".")
        return f"[{text}]({found}{mark}{anchor})"

    return _rewritten(markdown, of_site)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Keep a number and its percent sign on one line, in narrow columns of tables above all; code stays as it is."""
    return PERCENT.sub(lambda found: found[0] if found[1] else "\u00a0", html)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Name the theme's search for screen readers."""
    return _name_search(output)


def on_post_template(output: str, template_name: str, config: Any) -> str:
    """Name the search also on the page for addresses that do not exist."""
    return _name_search(output) if template_name == "404.html" else output


def _name_search(html: str) -> str:
    """Add a label to the dialog of the theme's search."""
    return html.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def _place(uri: str) -> str:
    """Where in the repository a page of the site is."""
    return uri.removeprefix("repository/") if uri.startswith("repository/") else f"docs/{uri}"


def _on_site(path: str) -> str:
    """Where on the site a path of the repository is: of a folder, the page in it."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        path = f"{path}/README.md"
    return f"repository/{path}"


def _linked(markdown: str, place: str) -> list[str]:
    """Paths in the repository that a page links to."""
    found: list[str] = []

    def note(text: str, target: str) -> str:
        found.append(posixpath.normpath(posixpath.join(posixpath.dirname(place), target.partition("#")[0])))
        return text

    _rewritten(markdown, note)
    return found


def _rewritten(markdown: str, link: Callable[[str, str], str]) -> str:
    """A page whose links are others; what stands in code is no link."""
    parts, end = [], 0
    for code in re.finditer(r"^```.*?^```$|``.*?``|`[^`\n]*`", markdown, re.MULTILINE | re.DOTALL):
        if code[0].startswith("`") and markdown[max(code.start() - 1, 0)] == "[":
            continue  # the text of a link
        parts += [LINK.sub(lambda m: link(m[1], m[2]), markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, LINK.sub(lambda m: link(m[1], m[2]), markdown[end:])])
