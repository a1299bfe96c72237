# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from tests.support import corpus
from tests.support.campaign import everything
from tests.support.chromium import Chromium

CCACHE = Path("/usr/lib/ccache")
"""Compilers' names, as Debian's ccache answers to them."""
COLLECT_AFTER = 200_000
"""Objects that are made before cycles are looked for."""


def pytest_configure(config: pytest.Config) -> None:
    """Where Python keeps no bytecode, the run does, for as long as it lasts: every worker and every command that a test starts
    would compile a thousand files. What a command prints does not depend on the terminal that the run was started from."""
    os.environ.pop("COLUMNS", None)
    _objects_are_compiled_once(config)
    if sys.dont_write_bytecode and not sys.pycache_prefix:
        folder = tempfile.mkdtemp(prefix="microc-bytecode-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = folder
        sys.dont_write_bytecode = False


def _objects_are_compiled_once(config: pytest.Config) -> None:
    """Firmware after firmware has the same runtime, and projects the same sources in folders of their own."""
    if not CCACHE.is_dir() or "CCACHE_DIR" in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="microc-objects-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    path = os.environ.get("PATH", "")
    os.environ |= {"CCACHE_DIR": folder, "CCACHE_BASEDIR": "/", "CCACHE_NOHASHDIR": "1", "CCACHE_NOCOMPRESS": "1"}
    os.environ |= {"CCACHE_PATH": path, "PATH": f"{CCACHE}{os.pathsep}{path}"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of models of the corpus, and skip the marked tests if there is no corpus.

    Raises UsageError for a marked test in a file that does not contain the word "corpus", because ``make corpus`` collects
    only files that do.
    """
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if any(map(corpus.is_model, parameters.values())):
            item.add_marker(pytest.mark.corpus)
    marked = [item for item in items if item.get_closest_marker("corpus")]
    for path in {item.path for item in marked}:
        if "corpus" not in path.read_text(encoding="utf-8"):
            raise pytest.UsageError(f"{path}: `make corpus` does not find its tests: write the word corpus in the file")
    if corpus.CORPUS is None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=corpus.ABSENT))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Tests come back to the same networks; a quarter of the suite's time chooses schedules, a seventh of that again."""
    from microc.compiler.lowering import kernel_selection

    kernel_selection.MEMO_ENTRIES = 1024


def pytest_collection_finish(session: pytest.Session) -> None:
    """Cycles are looked for seldom, and not among the tests themselves: what compilations make is almost free of them, and a
    tenth of the suite's time went into finding that out."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 20)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One browser for all tests of a worker."""
    with Chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(scope="session", autouse=True)
def equal_sources_are_compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Libraries for this computer: many tests compile the same networks. Each gets a file of its own, whose memory it shares with
    no other; the workers of a run share what they made. The digits in int8 take 0.12 s at -O0, 0.20 at -O1, which instructions
    get that take constants alone. -O2 is for ``make campaign``, -O3 for models of the corpus, by both compilers; kernels of
    every operator are built with sanitizers and at -O1 (tests/ops/test_compiled.py)."""
    from microc.device import toolchain
    from microc.errors import ToolError
    from microc.run.desktop import load

    mine = tmp_path_factory.getbasetemp()
    kept = (mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) / "libraries"
    kept.mkdir(exist_ok=True)

    def once(folder: Path, sources: Sequence[Path], target: Path, *flags: str, libraries: Sequence[str] = ()) -> Path:
        levels: tuple[tuple[str, ...], ...] = ((),)
        if not everything() and not any(flag.startswith("-O") for flag in flags):
            levels = (("-O0",), ("-O1",))
        digest = hashlib.sha256(repr((os.environ.get("CC"), os.environ.get("PATH"), levels, flags, libraries)).encode())
        for path in sorted(each for each in folder.iterdir() if each.suffix in (".c", ".h")):
            digest.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
        known = kept / digest.hexdigest()
        if not known.exists():
            for level in levels:
                with suppress(ToolError) if level != levels[-1] else nullcontext():
                    toolchain.compile_shared_library(folder, sources, target, *level, *flags, libraries=libraries)
                    break
            partial = known.with_name(f"{known.name}.{os.getpid()}")
            shutil.copyfile(target, partial)
            partial.replace(known)
        shutil.copyfile(known, target)
        return target

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "compile_shared_library", once)
        yield
