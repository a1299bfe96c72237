# SPDX-License-Identifier: Apache-2.0
"""The workspace of every layer against what a copy of CMSIS-NN says itself (MICROC_CMSIS_NN): its functions for sizes are
compiled here, and given the structures that our calls have."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from microc.external.backend import Code
from microc.external.cmsis_nn.cmsis_library import BLOCK
from microc.graph.ir import Graph
from tests.device.smoke import needs
from tests.external.test_cmsis_nn import COPY, LAYERS, OUT, SHORT, _layer, _svdf, copied, only, parted

CORES = {"cortex-m3": "", "cortex-m4": "_dsp", "cortex-m55": "_mve"}
"""What a function is called after for a core; without DSP instructions that is what is compiled here."""
_WINDOW = "(&params, &input, &filter, &output)"
SIZES: Mapping[str, str] = {
    **{f"arm_{kind}_wrapper_{width}": _WINDOW for kind in ("convolve", "depthwise_conv") for width in ("s8", "s16")},
    **{f"arm_avgpool_{width}": "(output.w, input.c)" for width in ("s8", "s16")},
    **{f"arm_fully_connected_{width}": "(&filter)" for width in ("s8", "s16")},
    "arm_svdf_s8": "(&filters)",
}
"""Arguments of the functions for sizes. Only these functions of the library take memory."""
_USED = re.compile(r"const cmsis_nn_(?:conv_params|dw_conv_params|pool_params|dims) ")


def _many(op_groups: int, channels: int, kernel: tuple[int, int], batch: int, attrs: dict[str, Any]) -> Graph:
    depth = 1 if op_groups > 1 else channels
    return _layer("conv2d", (batch, 9, 8, channels), (channels, *kernel, depth), groups=op_groups, **attrs)


def _windows() -> Mapping[str, Graph]:
    """More extents than :data:`LAYERS` has, with few channels and many."""
    found: dict[str, Graph] = {}
    kinds: Mapping[str, dict[str, Any]] = {"int8": {"result": OUT}, "int16": SHORT}
    extents = product((False, True), (3, 8, BLOCK, 200), ((1, 1), (3, 3), (5, 2)), (0, 1, 2), kinds, (1, 2))
    for depthwise, channels, kernel, pad, kind, batch in extents:
        padded = {"padding": (pad,) * 4} if pad < kernel[1] else {}
        name = f"{'depthwise' if depthwise else 'conv'} {channels} {kernel} {pad} {kind} {batch}"
        groups = channels if depthwise else 1
        found[name] = _many(groups, channels, kernel, batch, {**kinds[kind], **padded})
    return found


def _codes(cpu: str) -> list[tuple[str, Code]]:
    graphs = {**{name: make() for name, make in LAYERS.items()}, **_windows()}
    layers = [(name, only(graph, cpu)[1]) for name, graph in graphs.items()]
    return [*layers, *(("svdf", each.code) for each in parted(_svdf("int8"), cpu).taken)]


def stated(code: Code) -> int:
    """The bytes that our call says it gives."""
    line = next((line for line in code.lines if "cmsis_nn_context context" in line), "")
    found = re.search(r"[.]size = (\d+)", line)
    return int(found[1]) if found else 0


def test_what_is_stated_is_there() -> None:
    for cpu in CORES:
        for name, code in _codes(cpu):
            context = next((line for line in code.lines if "cmsis_nn_context context" in line), "")
            assert "scratch" not in context or stated(code) <= code.workspace, name
            assert code.workspace % 4 == 0


def test_cores_without_vectors_take_less() -> None:
    layer = LAYERS["depthwise 5x4"]
    sizes = {cpu: only(layer(), cpu)[1].workspace for cpu in CORES}
    assert sizes == {"cortex-m3": 0, "cortex-m4": 2 * 9 * 20, "cortex-m55": 4 * BLOCK * 20}
    assert only(LAYERS["depthwise 3x3"](), "cortex-m4")[1].workspace == 0


@copied
@needs("gcc")
@pytest.mark.parametrize("cpu", CORES)
def test_workspaces_are_what_the_library_says(cpu: str, tmp_path: Path) -> None:
    codes = [(name, code) for name, code in _codes(cpu) if code.functions[0] in SIZES]
    texts = ['#include "arm_nnfunctions.h"']
    for number, (_, code) in enumerate(codes):
        function = code.functions[0]
        lines = [f"    {line}" for line in code.lines if _USED.match(line)]
        call = f"    return {function}_get_buffer_size{CORES[cpu]}{SIZES[function]};"
        texts += [f"int32_t size{number}(void);", f"int32_t size{number}(void)", "{", *lines, call, "}"]
    (tmp_path / "sizes.c").write_text("\n".join(texts) + "\n")
    sources = sorted(Path(COPY).rglob("*_get_buffer_sizes_*.c"))
    library = tmp_path / "sizes.so"
    words = ["gcc", "-w", "-shared", "-fPIC", f"-I{COPY}/Include", "sizes.c", *map(str, sources), "-o", str(library)]
    subprocess.run(words, cwd=tmp_path, check=True)
    theirs = ctypes.CDLL(str(library))
    for number, (name, code) in enumerate(codes):
        said = getattr(theirs, f"size{number}")()
        assert stated(code) >= said, f"{name} on {cpu}: {stated(code)} of {said} bytes"
        more = stated(code) - said
        assert more < 4 or "arm_convolve_wrapper_s8" in code.functions, f"{name} on {cpu}: {more} bytes too many"
