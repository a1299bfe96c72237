# SPDX-License-Identifier: Apache-2.0
"""The corpus against MISRA C:2012: ``python -m tests.misra [MODEL ...]``. Prints how often rules are broken, and where no reason
covers it.

Models take turns on boards of every family. Deviations that nothing needs are listed, too.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

import microc
from microc.codegen.c import misra
from microc.errors import MicrocError
from tests.misra import checker
from tests.support import corpus

BOARDS = ("nucleo-h743zi", "mps3-an547", "qemu-riscv32", "microbit", "host", "arduino-mega", "esp32-c3", "teensy41")


def main(names: list[str]) -> int:
    models = [Path(name) for name in names] or corpus.models("*")
    counts, bad, projects = Counter[tuple[str, str]](), 0, 0
    for number, model in enumerate(models):
        board = BOARDS[number % len(BOARDS)]
        with tempfile.TemporaryDirectory() as folder:
            try:
                project = microc.compile(model, board=board).write(Path(folder) / "project")
            except MicrocError as error:
                sys.stdout.write(f"{model.name} on {board}: {error}\n")
                continue
            found = checker.violations(project)
            projects += 1
            counts.update((violation.rule, violation.part) for violation in found)
            wrong = [str(violation) for violation in checker.not_allowed(found)]
        bad += len(wrong)
        said = f"{model.name} on {board}: {len(found)} places, {len(wrong)} without a reason"
        sys.stdout.write("\n  ".join([said, *wrong]) + "\n")
        sys.stdout.flush()
    for (rule, part), count in sorted(counts.items()):
        sys.stdout.write(f"{rule:6} {misra.rule_category(rule):10} {part:10} {count:6}\n")
    idle = [
        (row.rule, part)
        for row in misra.REQUIRED_DEVIATIONS + misra.ADVISORY_DEVIATIONS
        for part in row.parts
        if (row.rule, part) not in counts
    ]
    sys.stdout.write(f"{projects} projects; {bad} without a reason; never needed: {idle}\n")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
