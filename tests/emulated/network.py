# SPDX-License-Identifier: Apache-2.0
"""Whole networks on other machines: the sources of a desktop library as a program."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from microc.base.dtypes import Array, to_numpy
from microc.run.desktop.library import Library
from microc.run.desktop.load import SOURCES
from tests.emulated.functions import ENTRY
from tests.emulated.machines import Machine, running
from tests.support.native import GUARD

_CALLS = """#include "model.h"
void microc_reset(void *arena);
int microc_run(void *arena, const void *const *inputs, void *const *outputs);
{entry};
{entry}
{{
    if (number == 0) {{
        microc_reset(p[0]);
    }} else if (microc_run(p[0], (const void *const *)&p[1], (void *const *)&p[1 + {inputs}]) != 0) {{
        __builtin_trap();
    }}
}}
"""


@contextmanager
def network(
    library: Library, folder: Path, *flags: str, machine: Machine, compiler: str
) -> Iterator[Callable[..., list[Array]]]:
    """What runs a network that was compiled for a machine's core there, in its instructions: inputs to outputs."""
    with tarfile.open(library.export_library(folder / "library.tar")) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.0 to 3.11.3 have no filters
        archive.extractall(folder)
    (folder / "calls.c").write_text(_CALLS.format(entry=ENTRY, inputs=len(library.inputs)))
    sources = [folder / name for name in ("calls.c", *SOURCES)]
    if not all(machine.runs(source.read_text()) for source in sources):
        pytest.skip(f"the emulator fails at {' and '.join(machine.stops)}")
    with running(sources, ["reset", "run"], *flags, machine=machine, compiler=compiler) as calls:
        arena = np.zeros(library.manifest["arena_size"] + 2 * GUARD, np.uint8)
        calls("reset", [arena])

        def run(*arrays: Array) -> list[Array]:
            memory = [np.pad(array.reshape(-1).view(np.uint8), GUARD) for array in arrays]
            kinds = [(tuple(t["shape"]), np.dtype(to_numpy(t["dtype"]))) for t in library.outputs]
            memory += [np.zeros(int(np.prod(shape)) * kind.itemsize + 2 * GUARD, np.uint8) for shape, kind in kinds]
            calls("run", [arena, *memory])
            results = zip(memory[len(arrays) :], kinds, strict=True)
            return [raw[GUARD:-GUARD].view(kind).reshape(shape) for raw, (shape, kind) in results]

        yield run
