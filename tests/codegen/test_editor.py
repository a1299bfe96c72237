# SPDX-License-Identifier: Apache-2.0
"""Tasks for an editor."""

from __future__ import annotations

import json
import re

import microc
from microc.codegen.project.board_files import TASKS_FILE, render_tasks_json
from microc.codegen.render import Name
from microc.errors import ToolError
from tests.support import digits


def test_a_project_has_tasks() -> None:
    program = microc.compile(digits.INT8, board="mps2-an386", name="a$(b)'\"")
    found = json.loads(program.files()[TASKS_FILE])
    assert [task["label"] for task in found["tasks"]] == ["build", "flash", "run", "verify"]
    assert found["tasks"][0]["command"] == "make" and all("$(" not in json.dumps(task) for task in found["tasks"])
    assert found["tasks"][2]["args"] == ["run", ".", "--input", "${input:sample}"]


def test_several_networks_have_theirs() -> None:
    found = json.loads(render_tasks_json([Name("one"), Name("two")], is_host=True))
    labels = [task["label"] for task in found["tasks"]]
    assert labels == ["build", "run one", "verify one", "run two", "verify two"]
    assert found["tasks"][4]["args"] == ["verify", ".", "--network", "two"]


def test_the_matcher_finds_our_errors() -> None:
    found = json.loads(render_tasks_json([Name("one")], is_host=True))
    first, second = (each["regexp"] for each in found["tasks"][1]["problemMatcher"][0]["pattern"])
    what, where, *_ = str(ToolError("make failed", where="a/b.c", hint="look")).splitlines()
    told, place = re.match(first, what), re.match(second, where)
    assert told and told.groups() == ("E0501", "make failed")
    assert place and place[1] == "a/b.c"
