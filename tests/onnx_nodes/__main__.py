"""``python -m tests.onnx_nodes [part of a name ...]``: run the tests in scope, say how many pass and why the others do not."""

from __future__ import annotations

import os
import sys

from tests.onnx_nodes.suite import SCOPE, in_scope, run


def main(parts: list[str]) -> int:
    if SCOPE is None:
        sys.stdout.write("the list of tests in scope is absent: set MICROC_ONNX_SCOPE\n")
        return 2
    chosen = [test for test in in_scope() if not parts or any(part in test.name for part in parts)]
    passed = 0
    for outcome in run(chosen, int(os.environ.get("MICROC_PROCESSES", "2"))):
        passed += not outcome.stage
        if outcome.stage:
            sys.stdout.write(f"{outcome.name}\t{outcome.stage}\t{' '.join(outcome.message.split())[:300]}\n")
    sys.stdout.write(f"{passed} of {len(chosen)} pass\n")
    return int(passed != len(chosen))


sys.exit(main(sys.argv[1:]))
