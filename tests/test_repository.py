# SPDX-License-Identifier: Apache-2.0
"""Files for those who find, cite, build and change the repository agree with the package, and their links with the files."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import microc
from hatch_build import with_absolute_links
from microc.cli.parser import parse_command_line
from tests.affected import UNKNOWN
from tests.shard import list_files, split_files

yaml = pytest.importorskip("yaml", reason="needs pyyaml: pip install microc[test]")
ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY: str = PROJECT["urls"]["Repository"]
FILES = sorted(
    path
    for path in (*ROOT.glob(".github/**/*.yml"), *ROOT.glob("packaging/**/*.yaml"), ROOT / "CITATION.cff")
    if path.is_file()
)


def read(path: Path | str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_address_is_one(path: Path) -> None:
    assert read(path)
    for address in re.findall(r"https://github\.com/[\w-]+/[\w-]+", path.read_text(encoding="utf-8")):
        assert address == REPOSITORY


def test_versions_agree() -> None:
    assert (
        read("CITATION.cff")["version"] == read("packaging/conda/meta.yaml")["package"]["version"] == microc.__version__
    )


def test_conda_needs_what_the_wheel_needs() -> None:
    run = {requirement.replace(" ", "") for requirement in read("packaging/conda/meta.yaml")["requirements"]["run"]}
    assert run == {*PROJECT["dependencies"], f"python{PROJECT['requires-python']}"}


@pytest.mark.parametrize("name", ["bug", "feature", "silicon"])
def test_forms_have_fields_and_their_commands_exist(name: str) -> None:
    form = read(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert {"name", "description", "body"} <= set(form)
    named = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(named) == len(set(named)) >= 3 and all(part["attributes"] for part in form["body"])
    for line in re.findall(
        r"microc ((?:compile|build|flash|verify|profile) [^>&\n`]*)", json.dumps(form).replace("\\n", "\n")
    ):
        parse_command_line(line.split())


def test_shards_are_all_tests_once() -> None:
    shards = read(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["shard"]
    files = list_files()
    durations = {files[0]: 100.0, files[1]: 60.0, files[2]: 50.0}
    shares = split_files(files, durations, len(shards))
    assert sorted(path for share in shares for path in share) == files
    loads = [sum(durations.get(path, UNKNOWN) for path in share) for share in shares]
    assert max(loads) - min(loads) <= UNKNOWN  # the many short files fill up what the long ones leave


def test_links_of_a_package_are_absolute_and_name_files() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    absolute = with_absolute_links(text, REPOSITORY, "v0")
    links = re.findall(r"\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"", absolute)
    targets = [one or other for one, other in links]
    assert len(targets) > 20 and all(target.startswith("https://") for target in targets)
    for target in targets:
        if target.startswith(REPOSITORY):
            path = re.sub(rf"^{re.escape(REPOSITORY)}/(blob|raw)/v0/", "", target)
            assert (ROOT / path.partition("#")[0]).exists(), target


def test_the_readme_is_one_screen_of_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
