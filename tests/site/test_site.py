# SPDX-License-Identifier: Apache-2.0
"""The site builds without a warning, holds nothing from elsewhere, and every link and anchor in it has a target."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

import microc
from tests.support import digits
from tests.support.campaign import in_campaign
from tests.support.chromium import Chromium

ROOT = Path(__file__).resolve().parents[2]
LOADING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""Elements that a browser loads something for, and the attribute that says what."""
AXE = os.environ.get("MICROC_AXE", "")
"""Path of ``axe.min.js`` of npm's ``axe-core``, which tests pages against WCAG."""
AUDIT = """
axe.run(document, {resultTypes: ["violations"]}).then((result) => [
  ...result.violations.filter((each) => ["serious", "critical"].includes(each.impact))
    .map((each) => `${each.id}: ${each.nodes[0].target}`),
  ...(document.documentElement.scrollWidth > innerWidth ? ["wider than the window"] : []),
])
"""


class Page(HTMLParser):
    """The links of a page, the places in it, what it loads, and its images without alternative text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.loaded: list[str] = []
        self.wordless: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.places |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag == "img" and not found.get("alt"):
            self.wordless.append(found.get("src", ""))
        if tag in LOADING and found.get("rel") not in ("canonical", "next", "prev") and LOADING[tag] in found:
            self.loaded.append(found[LOADING[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings_handlers"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}: pip install microc[docs]")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def test_every_link_has_a_target(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > 40
    lost = []
    for path, page in pages.items():
        for link in page.links:
            there = urlparse(link)
            if there.scheme or path.name == "404.html":
                continue
            target = (path.parent / unquote(there.path)).resolve() if there.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(there.fragment)
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].places):
                lost.append(f"{path.relative_to(site)}: {link}")
    assert not lost, lost


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Page]) -> None:
    foreign = {each for page in pages.values() for each in page.loaded if urlparse(each).scheme not in ("", "data")}
    assert not foreign


def test_the_landing_page_shows_and_leads_on(site: Path, pages: dict[Path, Page]) -> None:
    """Pictures, the version, the repository, the first steps, the next page."""
    text = (site / "index.html").read_text(encoding="utf-8")
    assert "pictures/cortex-m4-light.svg" in text and "pictures/session.svg" in text and 'aria-label="Search"' in text
    assert f"microc {microc.__version__}" in text and 'class="md-source"' in text and "md-footer__link--next" in text
    assert "first_steps.html" in pages[site / "index.html"].links
    assert "Five commands" in (site / "first_steps.html").read_text(encoding="utf-8")


def test_pictures_have_words(pages: dict[Path, Page]) -> None:
    assert not [f"{path.name}: {source}" for path, page in pages.items() for source in page.wordless]


@in_campaign
@pytest.mark.skipif(not AXE, reason="MICROC_AXE names no axe.min.js: npm install axe-core")
@pytest.mark.parametrize(("width", "dark"), [(390, False), (1440, True)])
def test_pages_and_reports_are_accessible(
    site: Path, pages: dict[Path, Page], tmp_path: Path, chromium: Chromium, width: int, dark: bool
) -> None:
    """No serious violation of WCAG and no page that scrolls sideways. 404.html has absolute addresses, so that it has no style
    in a folder."""
    before, after = (microc.report(digits.INT8, board="netduinoplus2", optimize=goal) for goal in ("size", "speed"))
    (tmp_path / "report.html").write_text(after.html(), encoding="utf-8")
    (tmp_path / "compared.html").write_text(after.html(before), encoding="utf-8")
    script, found = Path(AXE).read_text(encoding="utf-8"), list[str]()
    for path in (*sorted(page for page in pages if page.name != "404.html"), *sorted(tmp_path.glob("*.html"))):
        chromium.open(path, width, dark)
        chromium.evaluate(f"{script}; 0")
        found += [f"{path.name}: {each}" for each in chromium.evaluate(AUDIT)]
    assert not found


def test_search_works_from_files(site: Path) -> None:
    assert (site / "search" / "search_index.js").is_file() and (site / "assets" / "iframe-worker.js").is_file()
