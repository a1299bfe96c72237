"""What holds for all tests."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Where Python keeps no bytecode, the run does, for as long as it lasts: every worker and every command that a test starts
    would compile a thousand files."""
    if sys.dont_write_bytecode and not sys.pycache_prefix:
        folder = tempfile.mkdtemp(prefix="microc-bytecode-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = folder
        sys.dont_write_bytecode = False
