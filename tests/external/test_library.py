# SPDX-License-Identifier: Apache-2.0
"""Copies of CMSIS-NN: found, refused, and what of them is needed; with text of ours in the place of Arm's."""

from __future__ import annotations

from pathlib import Path

import pytest

from microc.errors import UsageError
from microc.external.cmsis_nn import cmsis_library
from microc.external.cmsis_nn.cmsis_library import FUNCTIONS, collect_library_sources
from microc.target import target_for

M4 = target_for("cortex-m4")


def copy_of(folder: Path, inside: str = "", *, state: bool = False) -> Path:
    """A folder that looks like a copy: add needs a table, pool calls a helper, floats are there too. ``state``: LSTM has one."""
    root = folder / inside
    parameters = {name: ", ".join(f"int a{k}" for k in range(count)) for name, count in FUNCTIONS.items()}
    add, most = (f"int {name}({parameters[name]})" for name in ("arm_elementwise_add_s8", "arm_max_pool_s8"))
    own = "static int arm_own(void) { return 0; }"
    files = {
        "Include/arm_nnfunctions.h": "\n".join(f"int {name}(\n {each});" for name, each in parameters.items()),
        "Include/arm_nn_types.h": "void *hidden_state;" if state else "void *cell_state;",
        "Include/arm_nnfunctions_flt.h": "float arm_f(float);",
        "Include/Internal/inner.h": "",
        "Source/A/arm_elementwise_add_s8.c": f'#include "arm_nn_tables.h"\n{add} {{ return 0; }}',
        "Source/A/arm_max_pool_s8.c": f"int\narm_unused(void);\n{most}\n{{ return arm_helper(1) + arm_own(); }}\n{own}",
        "Source/B/helpers.c": "int arm_helper(int x)\n{\n    return arm_deeper(x);\n}\n",
        "Source/B/deeper.c": "int arm_deeper(int x) { return x; }\n",
        "Source/B/arm_nntables.c": "const int table[1] = {0};\n",
        "Source/B/arm_elementwise_add_f32.c": "float arm_elementwise_add_f32(float x) { return x; }\n",
        "Source/B/notes.txt": "not for us",
        "LICENSE": "Apache",
        "ARM.CMSIS-NN.pdsc": '<release version="7.1.0" date="x"><release version="7.0.0">',
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return folder


@pytest.mark.parametrize("inside", ["", "CMSIS/NN", "CMSIS-NN"])
def test_a_copy_is_found_and_only_what_is_needed_is_taken(tmp_path: Path, inside: str) -> None:
    found = collect_library_sources(str(copy_of(tmp_path, inside)), M4, ["arm_max_pool_s8"])
    assert found.c_paths == ("Source/A/arm_max_pool_s8.c", "Source/B/deeper.c", "Source/B/helpers.c")
    assert {"Include/Internal/inner.h", "LICENSE"} < set(
        found.files
    ) and "Include/arm_nnfunctions_flt.h" not in found.files
    assert (found.version, found.licence, found.include) == ("7.1.0", "Apache-2.0", ("Include",))
    added = collect_library_sources(str(tmp_path), M4, ["arm_elementwise_add_s8"])
    assert added.c_paths == ("Source/A/arm_elementwise_add_s8.c", "Source/B/arm_nntables.c")
    assert collect_library_sources(str(tmp_path), M4, ()).c_paths == ()


def test_what_is_no_copy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not part of microc") as caught:
        collect_library_sources("", M4, ())
    assert "git clone" in caught.value.hint
    with pytest.raises(UsageError, match="no copy of CMSIS-NN"):
        collect_library_sources(str(tmp_path), M4, ())
    with pytest.raises(UsageError, match="does not support avr"):
        collect_library_sources(str(copy_of(tmp_path)), target_for("avr"), ())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("arm_max_pool_s8(", "arm_max_pool_q7(", "is missing"),
        ("arm_max_pool_s8(\n int a0,", "arm_max_pool_s8(", "has 6 parameters"),
    ],
)
def test_another_release_is_refused_before_c_takes_it_for_something_else(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    header = copy_of(tmp_path) / "Include" / "arm_nnfunctions.h"
    header.write_text(header.read_text().replace(old, new))
    with pytest.raises(UsageError, match=said):
        collect_library_sources(str(tmp_path), M4, ["arm_max_pool_s8"])
    collect_library_sources(str(tmp_path), M4, ["arm_softmax_s8"])


def test_links_and_large_files_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, secret = copy_of(tmp_path / "copy"), tmp_path / "secret.c"
    secret.write_text("int arm_helper(int x) { return 1; }")
    (copy / "Source" / "B" / "helpers.c").unlink()
    (copy / "Source" / "B" / "helpers.c").symlink_to(secret)
    assert collect_library_sources(str(copy), M4, ["arm_max_pool_s8"]).c_paths == ("Source/A/arm_max_pool_s8.c",)
    monkeypatch.setattr(cmsis_library, "_MAX_FILE_BYTES", 10)
    with pytest.raises(UsageError, match="more than 10 bytes"):
        collect_library_sources(str(copy), M4, ())
