# SPDX-License-Identifier: Apache-2.0
"""Fuzz the compiler, its C, the runtime and the client: ``python -m tests.fuzz --minutes 5 --seed 1 --what tflite onnx``.

Each finding becomes a file (the mutant) and a note beside it; counts stand at the end. The same seed tries the same mutants in
the same order. Exit code 1 where something was found.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz import lines, readers
from tests.fuzz.seeds import FORMATS, seeds
from tests.fuzz.workers import BATCH, Campaign, run_batch

WHAT = (*FORMATS, "frames", "slots", "client", "readers")
_SLOTS_PART = 2 / 7  # of the time, if there is more than slots: two minutes of `make fuzz`
_SHARE = {"tflite": 5, "onnx": 4, "mcg": 2, "keras": 1}  # of the batches


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    deadline = time.monotonic() + 60 * arguments.minutes
    campaign = Campaign(arguments.folder, frameworks=arguments.frameworks)
    formats = [kind for kind in FORMATS if kind in arguments.what and seeds(kind)]
    rest = [what for what in arguments.what if what not in (*FORMATS, "slots")]
    seconds = 60 * arguments.minutes
    if "slots" in arguments.what:
        part = seconds * _SLOTS_PART if formats or rest else seconds
        seconds -= part
        _frames(campaign, "slots", "fuzz_slot", part, arguments.seed)
    part = seconds / (4 if formats else 1) / max(1, len(rest))
    if "frames" in rest:
        _frames(campaign, "frames", "fuzz_rpc", part, arguments.seed)
    if "client" in rest:
        count, found = lines.answers(part, arguments.seed)
        campaign.counts["commands"] = count
        _tell_found(campaign, "client", found)
    if "readers" in rest:
        count, found = readers.campaign(part, arguments.seed)
        campaign.counts["readers"] = count
        _tell_found(campaign, "readers", found)
    with contextlib.suppress(KeyboardInterrupt):
        _batches(campaign, formats, arguments, deadline)
    _summary(campaign)
    return 1 if campaign.signatures else 0


def _frames(campaign: Campaign, what: str, fuzzer: str, seconds: float, seed: int) -> None:
    counts, said = lines.frames(fuzzer, seconds, seed, campaign.folder / what)
    campaign.counts.update({f"{what}: {name}": count for name, count in counts.items()})
    _tell_found(campaign, what, [said] if said else [])


def _batches(campaign: Campaign, formats: list[str], arguments: argparse.Namespace, deadline: float) -> None:
    """Batches of mutants in turn, until the time is over or as many as asked for are tried."""
    order = [kind for kind in formats for _ in range(_SHARE[kind])]
    batch = arguments.first
    end = math.inf if arguments.batches is None else batch + arguments.batches
    while order and batch < end and time.monotonic() < deadline:
        kind = order[batch % len(order)]
        run_batch(campaign, kind, arguments.seed, batch * BATCH, sanitize=batch % arguments.every == 0)
        batch += 1
        if batch % 50 == 0:
            _tell(f"batch {batch}: {dict(campaign.counts)}")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the batch to begin with, to go on with a seed")
    parser.add_argument("--batches", type=int, help="end after so many batches, even if there is time left")
    parser.add_argument("--every", type=int, default=2, help="run the C of every so many-th batch under sanitizers")
    parser.add_argument("--frameworks", action="store_true", help="compare with TFLite Micro and ONNX Runtime as well")
    parser.add_argument("--what", nargs="+", choices=WHAT, default=list(WHAT))
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz"), help="where findings go")
    return parser.parse_args(argv)


def _tell(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _tell_found(campaign: Campaign, what: str, found: list[str]) -> None:
    for number, text in enumerate(found):
        campaign.signatures[f"{what}: {text[:100]}"] += 1
        campaign.folder.mkdir(parents=True, exist_ok=True)
        (campaign.folder / f"{what}_{number}.txt").write_text(text)


def _summary(campaign: Campaign) -> None:
    own, below = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = own.ru_utime + own.ru_stime + below.ru_utime + below.ru_stime
    counts = campaign.counts
    whole = counts["refused"] + counts["compiled"]
    _tell(f"whole compilations  {whole} ({counts['compiled']} compiled, {counts['refused']} refused)")
    _tell(
        f"under sanitizers    {counts['ran']} ({counts['compared']} compared with the references, "
        f"{counts['frameworks']} with a framework)"
    )
    for what in ("frames", "slots"):
        told = [f"{counts[key]} {key.removeprefix(f'{what}: ')}" for key in counts if key.startswith(f"{what}: ")]
        _tell(f"{what:19} {', '.join(told) or 0}")
    _tell(f"commands            {counts['commands']}\nfiles of readers    {counts['readers']}")
    for kind in FORMATS:
        if counts[f"{kind} compiled"] or counts[f"{kind} refused"]:
            _tell(f"  {kind:6} {counts[f'{kind} compiled']} compiled, {counts[f'{kind} refused']} refused")
    _tell(f"CPU seconds         {seconds:.0f} ({3600 * whole / max(seconds, 1):.0f} compilations an hour)")
    for signature, count in campaign.signatures.most_common():
        _tell(f"finding, {count} times: {signature}")


if __name__ == "__main__":
    sys.exit(main())
