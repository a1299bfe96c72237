"""Models of many seeds: read, compiled, run under sanitizers, compared with TFLite Micro; what came out, counted.

A model is right where microc and TFLite Micro agree bit for bit (floats: to what the functions allow), or where microc refuses
it. Where the arithmetic of TFLite Micro overflows, which C leaves undefined, there is nothing to agree with: there microc
saturates, and its own reference is what the C must equal.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from microc.driver.options import make_options
from microc.driver.pipeline import compile_graph
from microc.dtypes import Array
from microc.errors import MicrocError
from microc.frontend import tflite
from microc.target import target_for
from tests.extremes import elements, layers
from tests.extremes.draw import Case, case
from tests.extremes.machine import BuildError, Job, build, run
from tests.extremes.reference import Died, Reference
from tests.extremes.undefined import Expected, expected

COUNT = len(elements.RECIPES) + len(layers.RECIPES)
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


def batch(seeds: Sequence[int], reference: Reference) -> Outcome:
    """The models of some seeds, as one program."""
    outcome, waiting = Outcome(), list[_Waiting]()
    for seed in seeds:
        made = case(elements.RECIPES, layers.RECIPES, seed)
        outcome.counts["models"] += 1
        try:
            waiting.append(_compiled(seed, made, reference, outcome))
        except MicrocError as error:
            _refused(seed, made, error, reference, outcome)
        except Exception as error:  # noqa: BLE001 - a traceback is what is looked for
            outcome.failures.append((seed, made.name, f"{type(error).__name__}: {error}"[:300]))
    if waiting:
        with tempfile.TemporaryDirectory(prefix="extremes-") as name:
            folder = Path(name)
            for each, found in zip(waiting, _run([each.job for each in waiting], folder), strict=True):
                fault = found if isinstance(found, str) else _difference(each, found, outcome)
                if fault:
                    outcome.failures.append((each.seed, each.case.name, fault))
    return outcome


def _run(jobs: Sequence[Job], folder: Path) -> list[list[list[Array]] | str]:
    """As :func:`run` does; where one does not compile, each is a program of its own."""
    try:
        return run(jobs, build(jobs, folder), folder)
    except BuildError as error:
        return [f"does not compile: {error}"[:300]] if len(jobs) == 1 else [_run([job], folder)[0] for job in jobs]


def _compiled(seed: int, made: Case, reference: Reference, outcome: Outcome) -> _Waiting:
    graph = tflite.read(made.model, "extreme.tflite")
    target = target_for(TARGETS[seed // COUNT % len(TARGETS)])
    goal = ("speed", "size", "balanced")[seed // COUNT % 3]
    module = compile_graph(graph, "extreme", target, make_options(optimize=goal, name=f"n{seed}"))
    job = Job(replace(module, name=f"n{seed}"), made.runs)
    outcome.counts["compiled"] += 1
    wanted = _theirs(made, reference, outcome)
    return _Waiting(seed, made, job, wanted, expected(graph, made.runs))


def _theirs(made: Case, reference: Reference, outcome: Outcome) -> list[list[Array]] | None:
    try:
        wanted = reference.run(made.model, made.runs)
    except Died:
        outcome.counts["TFLM ended"] += 1
        return None
    if isinstance(wanted, str):
        outcome.counts["TFLM refused"] += 1
        return None
    return wanted


def _refused(seed: int, made: Case, error: MicrocError, reference: Reference, outcome: Outcome) -> None:
    """A refusal is right where TFLite Micro has no answer either; others are counted by what they say."""
    outcome.counts["refused"] += 1
    if error.exit_code == 70 or type(error).__name__ == "InternalError":
        outcome.failures.append((seed, made.name, f"InternalError: {error}"[:300]))
    elif _theirs(made, reference, Outcome()) is not None:
        outcome.counts["refused, TFLM runs it"] += 1
        outcome.refusals[f"{made.name.split()[1]}: {str(error).splitlines()[0][:110]}"] += 1


def _difference(each: _Waiting, found: list[list[Array]], outcome: Outcome) -> str:
    """Empty where all is right."""
    for turn, (ours, own) in enumerate(zip(found, each.own, strict=True)):
        outcome.counts["elements beside a tie"] += int((own.slack > 0).sum())
        if fault := _apart(ours[0], own.values[0], None, own.slack):
            return f"run {turn}: C and reference: {fault}"
        if each.wanted is None:
            continue
        defined = own.defined
        outcome.counts["elements"] += ours[0].size
        outcome.counts["undefined elements"] += int((~defined).sum())
        if fault := _apart(ours[0], each.wanted[turn][0], defined, 0):
            return f"run {turn}: C and TFLM: {fault}"
    return ""


def _apart(ours: Array, wanted: Array, defined: Array | None, slack: Array | int) -> str:
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


def campaign(models: int, seed: int, told: Callable[[int, Outcome], None] | None = None) -> Outcome:
    """``models`` models from a seed on."""
    total, reference = Outcome(), Reference()
    try:
        for seeds in _parts(seed, models):
            total.add(batch(seeds, reference))
            if told is not None:
                told(seeds[-1] + 1 - seed, total)
    finally:
        reference.close()
    return total


def _parts(first: int, count: int) -> Iterator[Sequence[int]]:
    for start in range(first, first + count, BATCH):
        yield range(start, min(start + BATCH, first + count))
