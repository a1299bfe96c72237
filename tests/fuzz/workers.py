# SPDX-License-Identifier: Apache-2.0
"""Trials in processes of their own: forked, so that nothing is imported twice, limited in time and memory, and free to crash."""

from __future__ import annotations

import json
import os
import random
import resource
import select
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz import frameworks, native, trial
from tests.fuzz.seeds import seeds

BATCH = 24
MEMORY = 2 << 30
_SILENCE = 900.0  # seconds of a busy machine without a word from a worker


@dataclass
class Campaign:
    """What was tried and found. ``folder`` takes the findings, of every signature the first ``most``.

    ``frameworks``: results are compared with those of the formats' own runtimes as well. TFLite Micro ignores fields that the
    converters never set otherwise (the scale of a TANH), and what it makes of those is no finding: a person has to look.
    """

    folder: Path
    counts: Counter[str] = field(default_factory=Counter)
    signatures: Counter[str] = field(default_factory=Counter)
    most: int = 2
    frameworks: bool = False

    def add(self, told: dict[str, Any], kind: str, seed: int) -> None:
        self.counts[f"{kind} {told['status']}"] += 1
        self.counts[told["status"]] += 1
        if told["status"] == "finding":
            self.keep(told["signature"], told["text"], kind, seed, told["number"])

    def keep(self, signature: str, text: str, kind: str, seed: int, number: int) -> None:
        """Write a finding: the mutant as a file, and beside it what happened."""
        self.signatures[f"{kind}: {signature}"] += 1
        if self.signatures[f"{kind}: {signature}"] > self.most:
            return
        name, data = trial.mutant(kind, seed, number)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{trial.slug(signature)}_{seed}_{number}.{kind}"
        path.write_bytes(data)
        note = f"{signature}\nmutant {number} of seed {seed}, of {name!r}\n\n{text}\n"
        path.with_name(path.name + ".txt").write_text(note)


def run_batch(campaign: Campaign, kind: str, seed: int, first: int, *, sanitize: bool) -> None:
    """Mutants ``first`` to ``first + BATCH``, in workers; one that dies is a finding, and the next takes over behind it."""
    seeds(kind)
    number = first
    while number < first + BATCH:
        number = _work(campaign, kind, seed, number, first + BATCH, sanitize)


def _work(campaign: Campaign, kind: str, seed: int, first: int, end: int, sanitize: bool) -> int:
    """One worker; returns where to go on."""
    near, far = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(near)
        code = 1
        try:
            _serve(far, kind, seed, range(first, end), sanitize, campaign.frameworks)
            code = 0
        except BaseException:  # noqa: BLE001 - the parent reads of it
            os.write(far, (json.dumps({"broken": traceback.format_exc()[-3000:]}) + "\n").encode())
        finally:
            os._exit(code)
    os.close(far)
    current, ended = first, False
    for told in _lines(near, child):
        if "broken" in told:
            campaign.keep("the fuzzer itself", told["broken"], kind, seed, current)
        elif "begin" in told:
            current = told["begin"]
        elif "ran" in told:
            campaign.counts.update(told)
        elif "done" in told:
            ended = True
        else:
            campaign.add(told, kind, seed)
    os.close(near)
    _, status = os.waitpid(child, 0)
    if ended or current >= end:
        return end
    campaign.counts["finding"] += 1
    how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
    campaign.keep(f"the process ended by {how}", "", kind, seed, current)
    return current + 1


def _lines(pipe: int, child: int) -> Any:
    """What a worker tells, as it comes; it is ended when it keeps silent."""
    pending, deadline = b"", time.monotonic() + _SILENCE
    while True:
        if not select.select([pipe], [], [], 1.0)[0]:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            continue
        data = os.read(pipe, 1 << 16)
        if not data:
            return
        deadline = time.monotonic() + _SILENCE
        *lines, pending = (pending + data).split(b"\n")
        yield from (json.loads(line) for line in lines)


def _serve(pipe: int, kind: str, seed: int, numbers: range, sanitize: bool, framed: bool) -> None:
    def tell(**told: Any) -> None:
        os.write(pipe, (json.dumps(told) + "\n").encode())

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    compiled: list[tuple[int, trial.Outcome]] = []
    with tempfile.TemporaryDirectory(prefix="microc-fuzz-") as folder:
        path = Path(folder) / f"mutant.{kind}"
        for number in numbers:
            tell(begin=number)
            path.write_bytes(trial.mutant(kind, seed, number)[1])
            outcome = trial.attempt(path, random.Random(f"{seed} {number}"), f"f{number}")
            tell(status=outcome.status, signature=outcome.signature, text=outcome.text, number=number)
            if outcome.net is not None:
                compiled.append((number, outcome))
        tell(begin=numbers.stop)
        if sanitize and compiled:
            ran = _run(compiled, Path(folder) / "native", tell)
            if framed:
                _compare(ran, kind, seed, tell)
    tell(done=True)


Pairs = list[tuple[int, trial.Outcome, native.Ran]]


def _run(compiled: list[tuple[int, trial.Outcome]], folder: Path, tell: Callable[..., None]) -> Pairs:
    """The C of all under the sanitizers; what does not compile is told and left out. Returns what ran."""
    try:
        rans = native.run_all([outcome.net for _, outcome in compiled if outcome.net], folder)
    except native.BuildFault as fault:
        for k, said in fault.nets.items():
            what = said.partition("error:")[2][:50]
            tell(status="finding", signature=f"C does not compile:{what}", text=said, number=compiled[k][0])
        left = [pair for k, pair in enumerate(compiled) if k not in fault.nets]
        return _run(left, folder, tell) if left and len(left) < len(compiled) else []
    compared = 0
    for (number, outcome), ran in zip(compiled, rans, strict=True):
        if ran.fault:
            tell(status="finding", signature=f"sanitizer {_kind_of(ran.fault)}", text=ran.fault, number=number)
        elif outcome.expected is not None:
            compared += 1
            found = trial.difference(outcome.expected, ran.outputs, outcome.rounded)
            if found:
                signature = f"differs from the reference: {_operators(outcome)}"
                tell(status="finding", signature=signature, text=found, number=number)
    tell(ran=len(rans), compared=compared)
    return [(number, outcome, ran) for (number, outcome), ran in zip(compiled, rans, strict=True) if not ran.fault]


def _compare(pairs: Pairs, kind: str, seed: int, tell: Callable[..., None]) -> None:
    compared = 0
    for number, outcome, ran in pairs:
        assert outcome.net is not None
        theirs = frameworks.outputs(kind, trial.mutant(kind, seed, number)[1], outcome.net.inputs)
        if theirs is not None:
            compared += 1
            found = trial.difference((tuple(theirs),), ran.outputs)
            if found:
                signature = f"differs from the framework: {_operators(outcome)}"
                tell(status="finding", signature=signature, text=found, number=number)
    tell(ran=0, frameworks=compared)


def _operators(outcome: trial.Outcome) -> str:
    assert outcome.net is not None
    return " ".join(sorted({kernel["op"] for kernel in outcome.net.manifest["kernels"]}))[:60]


def _kind_of(fault: str) -> str:
    """A fault without its numbers."""
    text = fault.partition("error:")[2] or fault
    return "".join("#" if c.isdigit() else c for c in text)[:70].strip()
