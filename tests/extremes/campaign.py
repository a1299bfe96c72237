# SPDX-License-Identifier: Apache-2.0
"""Models of many seeds: read, compiled, run under sanitizers, compared with another runtime; what came out, counted.

A model is right where its C equals microc's own reference and agrees with TFLite Micro bit for bit (floats: to what the
functions allow), or where microc refuses it. Where the arithmetic of TFLite Micro overflows, which C leaves undefined, there is
nothing to agree with: there microc saturates. ONNX Runtime computes in floats what microc computes in integers: there a quantum
is allowed, and the numbers that are one off are counted.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from microc.base.dtypes import Array
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_graph
from microc.errors import MicrocError
from microc.target import target_for
from tests.extremes.draw import Case
from tests.extremes.formats import TFLITE, Format
from tests.extremes.machine import BuildError, Job, build, run
from tests.extremes.reference import Died, Reference
from tests.extremes.undefined import Expected, expected

TARGETS = ("host", "host", "cortex-m4", "cortex-m0", "cortex-m55")
BATCH = 50
_HUGE = 1e30
_LARGEST = np.float32(3.4028e38)


@dataclass
class Outcome:
    """Counts by word, and failures: (seed, name, what)."""

    counts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.counts += other.counts
        self.refusals += other.refusals
        self.failures += other.failures


@dataclass
class _Waiting:
    seed: int
    case: Case
    job: Job
    wanted: list[list[Array]] | None
    own: list[Expected]


def batch(seeds: Sequence[int], reference: Reference, source: Format) -> Outcome:
    """The models of some seeds, as one program."""
    outcome, waiting = Outcome(), list[_Waiting]()
    for seed in seeds:
        made = source.case(seed)
        outcome.counts["models"] += 1
        try:
            waiting.append(_compiled(seed, made, reference, source, outcome))
        except MicrocError as error:
            _refused(seed, made, error, reference, source, outcome)
        except Exception as error:  # noqa: BLE001 - a traceback is what is looked for
            outcome.failures.append((seed, made.name, f"{type(error).__name__}: {error}"[:300]))
    if waiting:
        with tempfile.TemporaryDirectory(prefix="extremes-") as name:
            folder = Path(name)
            for each, found in zip(waiting, _run([each.job for each in waiting], folder), strict=True):
                fault = found if isinstance(found, str) else _difference(each, found, source, outcome)
                if fault:
                    outcome.failures.append((each.seed, each.case.name, fault))
    return outcome


def _run(jobs: Sequence[Job], folder: Path) -> list[list[list[Array]] | str]:
    """As :func:`run` does; where one does not compile, each is a program of its own."""
    try:
        return run(jobs, build(jobs, folder), folder)
    except BuildError as error:
        return [f"does not compile: {error}"[:300]] if len(jobs) == 1 else [_run([job], folder)[0] for job in jobs]


def _compiled(seed: int, made: Case, reference: Reference, source: Format, outcome: Outcome) -> _Waiting:
    graph = source.read(made.model, f"extreme.{source.name}")
    target = target_for(TARGETS[seed // source.count % len(TARGETS)])
    goal = ("speed", "size", "balanced")[seed // source.count % 3]
    module = compile_graph(graph, "extreme", target, make_options(optimize=goal, name=f"n{seed}"))
    job = Job(replace(module, name=f"n{seed}"), made.runs)
    outcome.counts["compiled"] += 1
    wanted = _theirs(made, reference, source, outcome)
    return _Waiting(seed, made, job, wanted, expected(graph, made.runs, source.passes))


def _theirs(made: Case, reference: Reference, source: Format, outcome: Outcome) -> list[list[Array]] | None:
    try:
        wanted = reference.run(made.model, made.runs)
    except Died:
        outcome.counts[f"{source.runtime} ended"] += 1
        return None
    if isinstance(wanted, str):
        outcome.counts[f"{source.runtime} refused"] += 1
        return None
    return wanted


def _refused(seed: int, made: Case, error: MicrocError, reference: Reference, source: Format, outcome: Outcome) -> None:
    """A refusal is right where the other runtime has no answer either; others are counted by what they say."""
    outcome.counts["refused"] += 1
    if error.exit_code == 70 or type(error).__name__ == "InternalError":
        outcome.failures.append((seed, made.name, f"InternalError: {error}"[:300]))
    elif _theirs(made, reference, source, Outcome()) is not None:
        outcome.counts[f"refused, {source.runtime} runs it"] += 1
        outcome.refusals[f"{made.name.split()[1]}: {str(error).splitlines()[0][:110]}"] += 1


def _difference(each: _Waiting, found: list[list[Array]], source: Format, outcome: Outcome) -> str:
    """Empty where all is right."""
    for turn, (ours, own) in enumerate(zip(found, each.own, strict=True)):
        outcome.counts["elements beside a tie"] += int((own.slack > 0).sum())
        if fault := _apart(ours[0], own.values[0], None, own.slack):
            return f"run {turn}: C and reference: {fault}"
        if each.wanted is None:
            continue
        theirs, defined = each.wanted[turn][0], own.defined
        if not source.exact:
            defined = np.full(ours[0].shape, np.isfinite(each.case.slack))
        outcome.counts["elements"] += ours[0].size
        outcome.counts["undefined elements"] += int((~defined).sum())
        if fault := _apart(ours[0], theirs, defined, each.case.slack):
            return f"run {turn}: C and {source.runtime}: {fault}"
        outcome.counts["elements of another quantum"] += _other_quanta(ours[0], theirs, defined)
    return ""


def _apart(ours: Array, wanted: Array, defined: Array | None, slack: Array | float) -> str:
    if ours.shape != wanted.shape or ours.dtype != wanted.dtype:
        return f"{ours.dtype}{ours.shape} against {wanted.dtype}{wanted.shape}"
    if ours.dtype.kind == "f":  # TFLite's activations, even that which does nothing, make infinities the largest number
        ours, wanted = (np.clip(x, -_LARGEST, _LARGEST) for x in (ours, wanted))
        with np.errstate(all="ignore"):
            usual = float(np.abs(wanted[np.abs(wanted) < _HUGE]).max(initial=0.0))  # sums of such may cancel
            same = np.isclose(ours, wanted, rtol=2e-4, atol=2e-5 + 1e-6 * usual, equal_nan=True)
    else:
        apart = np.abs(ours.astype(np.float64) - wanted.astype(np.float64))
        same = (ours == wanted) | ((apart > 0) & (apart <= slack))
    if defined is not None:
        same = same | ~defined
    if same.all():
        return ""
    where = np.argwhere(~same)[0]
    a, b = ours[tuple(where)], wanted[tuple(where)]
    return f"{int((~same).sum())} of {same.size}, {a} is not {b}"


def _other_quanta(ours: Array, theirs: Array, defined: Array) -> int:
    """How many integers differ, within what is allowed."""
    return 0 if ours.dtype.kind == "f" else int(((ours != theirs) & defined).sum())


def campaign(
    models: int, seed: int, told: Callable[[int, Outcome], None] | None = None, source: Format = TFLITE
) -> Outcome:
    """``models`` models from a seed on."""
    total, reference = Outcome(), Reference(source.name)
    try:
        for seeds in _parts(seed, models):
            total.add(batch(seeds, reference, source))
            if told is not None:
                told(seeds[-1] + 1 - seed, total)
    finally:
        reference.close()
    return total


def _parts(first: int, count: int) -> Iterator[Sequence[int]]:
    for start in range(first, first + count, BATCH):
        yield range(start, min(start + BATCH, first + count))
