# SPDX-License-Identifier: Apache-2.0
"""Pages: the compiled network answers in Node and in a browser as the library does; what strangers call things stays text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.codegen.project.additions import sample_frames
from microc.device.boards import make_board_of_core
from microc.device.toolchain import compile_webassembly_module
from microc.errors import ToolError
from tests.exports.programs import export, have, program, run
from tests.support.chromium import Chromium

SCRIPT = Path(__file__).with_name("run_web.cjs")
CORE = "wasm-simd128"


def needs(*tools: str) -> None:
    try:
        compile_webassembly_module(
            {"empty.c": "int empty(void);\nint empty(void) { return 0; }\n"}, make_board_of_core(CORE).target
        )
    except ToolError as error:
        pytest.skip(str(error))
    if not have(*tools):
        pytest.skip(f"{tools[0]} not on PATH")


READY = "new Promise((done) => (function wait() { document.body.dataset.ready ? done() : setTimeout(wait, 20); })())"


def page_of(page: Path, chromium: Chromium) -> str:
    """The page as a browser has it once the network is loaded; it must have complained of nothing."""
    chromium.open(page)
    chromium.evaluate(READY)
    assert chromium.log == []
    shown: str = chromium.evaluate("document.documentElement.outerHTML")
    return shown


def answers(which: str, io_in_arena: bool = True) -> list[tuple[str, np.ndarray]]:
    """What the library says to every frame of the sample: (output, numbers)."""
    made = program(which, CORE, io_in_arena)
    library, found = made.library(), []
    for frame in sample_frames(made.module):
        results = library(*frame)
        results = results if isinstance(results, tuple) else (results,)
        found += [(tensor["name"], array.reshape(-1)) for tensor, array in zip(library.outputs, results, strict=True)]
    return found


@pytest.mark.parametrize(
    ("which", "io_in_arena"), [("digits", True), ("digits", False), ("awkward", True), ("kinds", True)]
)
def test_in_node(which: str, io_in_arena: bool, tmp_path: Path) -> None:
    """Integers, halves and wide numbers equal; floats within the last bits of another library's exp."""
    needs("node")
    folder = export(tmp_path / "web", "web", which, CORE, io_in_arena)
    said = [json.loads(line) for line in run(folder, "node", SCRIPT, folder).splitlines()]
    expected = answers(which, io_in_arena)
    assert [name for name, _ in said] == [name for name, _ in expected]
    for (_, words), (name, array) in zip(said, expected, strict=True):
        if array.dtype.kind == "f" and array.dtype.itemsize > 2:
            np.testing.assert_allclose(np.array(words, array.dtype), array, rtol=1e-6, err_msg=name)
        else:
            stored = array.view(np.uint16) if array.dtype.kind == "f" else array.astype(object)
            assert [int(word) for word in words] == [int(x) for x in stored.tolist()], name


def test_in_a_browser(chromium: Chromium, tmp_path: Path) -> None:
    """The page itself shows the integers of the library on its sample, and has a form that suits."""
    needs()
    page = page_of(export(tmp_path / "web", "web", "digits", CORE) / "index.html", chromium)
    ((_, array),) = answers("digits")
    assert " ".join(map(str, array.tolist())) in page
    assert 'data-ready="yes"' in page and ">Draw</button>" in page and "6 kernels" in page


def test_names_of_strangers(chromium: Chromium, tmp_path: Path) -> None:
    """Names that would be elements stay text; nothing of them runs."""
    needs()
    hostile = "</script><img src=x onerror=document.title='run'>"
    net = microc.GraphBuilder()
    graph = net.graph("net", {"out": net.op("relu", net.input(hostile, (1, 4)))})
    microc.compile(graph, board=make_board_of_core(CORE)).export("web", tmp_path / "web")
    page = page_of(tmp_path / "web" / "index.html", chromium)
    assert "<title>net</title>" in page and "<img" not in page and "?/script>?img src=x" in page.replace("&gt;", ">")


def test_a_compiler_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one the error says what to install, and nothing is written."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ToolError, match="WebAssembly") as caught:
        program("digits", CORE).export("web", tmp_path / "web")
    assert "lld" in (caught.value.hint or "") and not (tmp_path / "web").exists()
