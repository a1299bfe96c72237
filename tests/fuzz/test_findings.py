# SPDX-License-Identifier: Apache-2.0
"""What the fuzzer once found, each file small and made by it: read, compiled, and run under sanitizers as it should be.

A file is called after its fault; its ending is the format's. To add one: repair the fault, move the file here.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.fuzz import native, trial

FOLDER = Path(__file__).parent / "findings"
CHANCES = (1, 2, 5)
"""They draw a Cortex-M0 without SIMD, this computer, and the vectors of a Cortex-M55."""
FINDINGS = sorted(path for path in FOLDER.iterdir() if path.suffix != ".md")


def test_nothing_is_found_again(tmp_path: Path) -> None:
    """Each ends in a network or a refusal, in time; networks compute what their references say, without a fault."""
    compiled = []
    for number, path in enumerate(FINDINGS):
        for chance in CHANCES:
            outcome = trial.attempt(path, random.Random(chance), f"f{number}_{chance}")
            assert outcome.status != "finding", f"{path.name}: {outcome.text}"
            if outcome.net is not None:
                compiled.append((path, outcome, outcome.net))
    rans = native.run_all([net for *_, net in compiled], tmp_path / "native") if compiled else []
    for (path, outcome, _), ran in zip(compiled, rans, strict=True):
        assert not ran.fault, f"{path.name}: {ran.fault}"
        assert outcome.expected is None or not trial.difference(outcome.expected, ran.outputs, outcome.rounded), (
            path.name
        )
