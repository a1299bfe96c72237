# SPDX-License-Identifier: Apache-2.0
"""Run a share of the test suite, for machines side by side: ``python -m tests.shard 1/4``.

Files go, longest first, to the share with the least work so far. Their durations are those of ``tests/durations.json``.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.affected import DURATIONS, ROOT, UNKNOWN


def split_files(files: Sequence[str], durations: Mapping[str, float], count: int) -> list[list[str]]:
    """Split test files into ``count`` shares of similar duration."""
    shares: list[list[str]] = [[] for _ in range(count)]
    loads = [0.0] * count
    for path in sorted(files, key=lambda path: (-durations.get(path, UNKNOWN), path)):
        least = loads.index(min(loads))
        shares[least].append(path)
        loads[least] += durations.get(path, UNKNOWN)
    return shares


def list_files() -> list[str]:
    """List the test files of the suite."""
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))


def parse_share(words: str) -> tuple[int, int]:
    """Return the number of a share and of all of them. Raise ArgumentTypeError if ``words`` is not such as 1/4."""
    match = re.fullmatch(r"([1-9]\d?)/([1-9]\d?)", words)
    if match is None or int(match[1]) > int(match[2]):
        raise argparse.ArgumentTypeError(f"got {words}, expected a share such as 1/4")
    return int(match[1]), int(match[2])


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.shard", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("share", type=parse_share, help="number of the share and of all, such as 1/4")
    number, count = parser.parse_args(words).share
    durations = json.loads(DURATIONS.read_text(encoding="utf-8"))
    files = split_files(list_files(), durations, count)[number - 1]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", *files], cwd=ROOT
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
