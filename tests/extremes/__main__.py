# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.extremes --models 20000 --seed 0``: a campaign; it says what it found, by seeds that repeat it."""

from __future__ import annotations

import argparse
import sys
import time

from tests.extremes.campaign import Outcome, campaign
from tests.extremes.formats import FORMATS


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.extremes", description=__doc__)
    parser.add_argument("--models", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="the first seed; each model has one of its own")
    parser.add_argument("--format", choices=FORMATS, default="tflite")
    chosen = parser.parse_args()
    start, said = time.monotonic(), 0

    def told(done: int, so_far: Outcome) -> None:
        nonlocal said
        for seed, name, fault in so_far.failures[said:]:
            _say(f"--format {chosen.format} --seed {seed} --models 1: {name}: {fault}")
        said = len(so_far.failures)
        if done % 500 == 0:
            _say(f"{done} models, {time.monotonic() - start:.0f} s, {said} failures")

    found = campaign(chosen.models, chosen.seed, told, FORMATS[chosen.format])
    _say(", ".join(f"{count} {what}" for what, count in sorted(found.counts.items())))
    for what, count in found.refusals.most_common():
        _say(f"{count:6} {what}")
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
