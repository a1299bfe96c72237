# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.onnx_nodes [--board NAME] [part of a name ...]``: run the tests in scope, say how many pass and why the
others do not; on an emulated board, a hundred of as many operators."""

from __future__ import annotations

import argparse
import os
import sys

from tests.onnx_nodes.on_board import run_on, spread
from tests.onnx_nodes.suite import SCOPE, in_scope, model_tests, run

SAMPLE = 100


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.onnx_nodes", description=__doc__)
    parser.add_argument("--board", help="an emulated board to run on instead of this computer")
    parser.add_argument("--models", action="store_true", help="ONNX's tests of models instead of those of nodes")
    parser.add_argument("parts", nargs="*", help="only tests whose names contain one of these")
    options = parser.parse_args(arguments)
    if SCOPE is None and not options.models:
        sys.stdout.write("the list of tests in scope is absent: set MICROC_ONNX_SCOPE\n")
        return 2
    chosen = [
        test
        for test in (model_tests() if options.models else in_scope())
        if not options.parts or any(part in test.name for part in options.parts)
    ]
    processes = int(os.environ.get("MICROC_PROCESSES", "2"))
    if options.board:
        chosen = chosen if options.parts else list(spread(chosen, SAMPLE))
        outcomes = run_on(options.board, chosen, processes)
    else:
        outcomes = run(chosen, processes)
    passed = 0
    for outcome in outcomes:
        passed += not outcome.stage
        if outcome.stage:
            sys.stdout.write(f"{outcome.name}\t{outcome.stage}\t{' '.join(outcome.message.split())[:300]}\n")
    sys.stdout.write(f"{passed} of {len(chosen)} pass\n")
    return int(passed != len(chosen))


sys.exit(main(sys.argv[1:]))
