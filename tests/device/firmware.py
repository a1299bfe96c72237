# SPDX-License-Identifier: Apache-2.0
"""Builds the C runtime's test programs."""

from __future__ import annotations

import subprocess

from microc.base import file_access


def make(*arguments: str) -> str:
    """Run make in runtime_c and return what it printed; a failure is the test's failure."""
    done = subprocess.run(
        ["make", "--no-print-directory", "-C", str(file_access.runtime_c_folder()), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
