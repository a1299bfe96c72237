# SPDX-License-Identifier: Apache-2.0
"""The digests by which refactorings are judged see what changes code, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import digest

BEFORE = """#include <math.h>
/* sums */
static float total(const float *data, int count) {
    float sum = 0.0f; /* of all */
    for (int k = 0; k < count; ++k) { sum += expf(data[k]); }
    return sum;
}
"""


def test_tokens_of_other_comments_and_spaces_are_equal() -> None:
    changed = BEFORE.replace("/* of all */", "").replace("    ", "\t").replace("/* sums */", "/* what is summed */")
    assert digest.tokens({"model.c": BEFORE}) == digest.tokens({"model.c": changed})


def test_tokens_of_renamed_locals_are_equal() -> None:
    changed = BEFORE.replace("sum ", "acc ").replace("return sum", "return acc").replace("int k", "int i")
    changed = changed.replace("k <", "i <").replace("++k", "++i").replace("[k]", "[i]")
    assert digest.tokens({"model.c": BEFORE}) == digest.tokens({"model.c": changed})


def test_tokens_of_renamed_functions_and_operators_differ() -> None:
    for old, new in (("total", "sums"), ("expf", "exp2f"), ("+=", "-="), ("0.0f", "1.0f"), ("k < count", "count < k")):
        assert digest.tokens({"model.c": BEFORE}) != digest.tokens({"model.c": BEFORE.replace(old, new)})


def test_differences_name_the_compilation_and_the_kind() -> None:
    one = {"digits m0": {"text": "a", "tokens": "b"}, "kws m0": {"text": "c"}}
    other = {"digits m0": {"text": "x", "tokens": "b"}, "kws m4": {"text": "c"}}
    assert digest.differences(one, one) == {}
    assert digest.differences(one, other) == {"digits m0": ["text"], "kws m0": ["all"], "kws m4": ["all"]}


def test_the_quick_set_has_every_board_and_every_set_of_options() -> None:
    chosen = digest.compilations([f"{k}.mcg" for k in range(30)], quick=True)
    assert len({each.name for each in chosen}) == digest.QUICK
    assert {each.place for each in chosen} == set(digest.PLACES)
    assert {each.options for each in chosen} == set(digest.OPTIONS)


def test_a_compilation_has_the_same_digests_twice(tmp_path: Path) -> None:
    network = str(digest.EXAMPLES / "digits" / "digits_int8.tflite")
    compilers = [digest.Compiler(tmp_path / name, None) for name in ("first", "second")]
    for options in ("default", "tight"):
        first, second = (each.digests(digest.Compilation(network, "microbit", options)) for each in compilers)
        assert first == second and {"json", "text", "tokens"} <= set(first)


def test_record_makes_the_folder_before_it_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "build" / "digest.json"
    monkeypatch.setattr(digest, "record", lambda *_: {"a folder": {"exists": str(file.parent.is_dir())}})
    assert digest.main(["record", str(file)]) == 0
    assert json.loads(file.read_text()) == {"a folder": {"exists": "True"}}
