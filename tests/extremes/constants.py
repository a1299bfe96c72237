# SPDX-License-Identifier: Apache-2.0
"""Operators whose constants are mutated: ``python -m tests.extremes.constants --mutants 20000 --seed 0``.

A mutant is a case of an operator with other numbers in its constants, attributes or data, written as a graph file. It is right
where microc refuses the file as a model, or where its C runs without a word of AddressSanitizer and UBSan. Where the result is of
integers it is compared with the operator's meaning in numpy, too.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_graph
from microc.errors import MicrocError
from microc.frontend import graph_file
from microc.graph.file import to_bytes
from microc.graph.ir import Graph, TensorType
from microc.ops.meaning import evaluate
from microc.ops.registry import Case, OpDef, registry
from microc.target import target_for
from tests.extremes.campaign import Outcome
from tests.extremes.machine import FLAGS, BuildError, Job, build, run
from tests.ops.compiled import one_node
from tests.ops.edges import case_arrays

BATCH = 60
SECONDS = 60
"""That reading and compiling one mutant may take."""
SANITIZED = (*FLAGS, "-fsanitize=float-cast-overflow")
_NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    8,
    15,
    16,
    30,
    31,
    32,
    33,
    62,
    63,
    64,
    127,
    128,
    255,
    256,
    257,
    4095,
    4096,
    32767,
    32768,
    65535,
)
_WIDE = (
    *_NUMBERS,
    1 << 20,
    1 << 30,
    (1 << 31) - 1,
    -(1 << 31),
    1 << 31,
    1 << 32,
    1 << 40,
    (1 << 62) + 1,
    (1 << 63) - 1,
)
_REALS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e30, 3.4e38, float("inf"), float("-inf"), float("nan"))
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
_SKIPPED = frozenset({"external"})
_TURNS = "count"
"""Of a loop: as many turns as it says, 2**31 or for ever, are what it means."""


@lru_cache(maxsize=1)
def cases() -> tuple[tuple[OpDef, tuple[Case, ...]], ...]:
    """All operators with cases of their own, each with those of at most a thousand elements."""
    found = []
    for name, definition in sorted(registry().items()):
        small = tuple(c for c in definition.cases() if all(kind.size <= 1024 for kind in c.types))
        if small and name not in _SKIPPED:
            found.append((definition, small))
    return tuple(found)


def mutant(seed: int) -> tuple[str, Graph, tuple[tuple[Array, ...], ...]]:
    """The name of a mutant, its graph, and what it runs on; operators take turns, and their cases."""
    rng = np.random.default_rng(seed)
    definition, known = cases()[seed % len(cases())]
    case = known[int(rng.integers(len(known)))]
    arrays = [np.array(a, order="C") for a in case_arrays(case, seed)]
    attrs: dict[str, Any] = {**definition.defaults, **case.attrs}
    consts = case.consts
    said = []
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        integers = [k for k, kind in enumerate(case.types) if kind.size and arrays[k].dtype.kind in "iu"]
        ways = (
            ["attribute"] * bool(attrs) * 2
            + ["array"] * bool(case.types) * 3
            + ["known", "computed", "dtype"] * bool(integers)
        )
        match str(rng.choice(ways)) if ways else "":
            case "attribute":
                name = str(rng.choice([n for n in sorted(attrs) if definition.name != "loop" or n != _TURNS]))
                attrs[name] = _other(attrs[name], rng)
                said.append(f"{name}={attrs[name]!r}"[:60])
            case "array":
                k = int(rng.choice(integers if integers and rng.random() < 0.8 else len(case.types)))
                said.append(f"operand {k}: {_mutate(arrays[k], rng)}")
            case "known":
                consts = tuple(sorted({*consts, int(rng.choice(integers))}))
            case "dtype":
                k, dtype = int(rng.choice(integers)), str(rng.choice(_INTEGERS))
                case = replace(
                    case, types=tuple(replace(t, dtype=dtype) if t is case.types[k] else t for t in case.types)
                )
                arrays = [a.astype(dtypes.to_numpy(t.dtype)) for a, t in zip(arrays, case.types, strict=True)]
                said.append(f"operand {k}: {dtype}")
            case "computed":
                consts = tuple(k for k in consts if k != int(rng.choice(integers)))
    changed = replace(case, attrs=attrs, consts=consts)
    graph, _ = one_node(definition, changed, arrays)
    inputs = tuple(arrays[int(name[1:])] for name in graph.inputs)
    runs = (inputs, tuple(_extreme(a, rng) for a in inputs))
    return f"{definition.name} {case.name}: {', '.join(said)}", graph, runs


def _other(value: Any, rng: np.random.Generator) -> Any:
    """Another value of an attribute, of its kind."""
    match value:
        case bool():
            return not value
        case int():
            near = (value - 1, value + 1, -value, 2 * value)
            return int(rng.choice(near)) if rng.random() < 0.3 else _WIDE[int(rng.integers(len(_WIDE)))]
        case float():
            return _REALS[int(rng.integers(len(_REALS)))]
        case None:
            return _WIDE[int(rng.integers(len(_WIDE)))]
        case tuple() if value:
            place = int(rng.integers(len(value)))
            return (*value[:place], _other(value[place], rng), *value[place + 1 :])
        case _:
            return value


def _mutate(array: Array, rng: np.random.Generator) -> str:
    """Change some numbers in place; the last of them."""
    if not array.size:
        return "empty"
    flat = array.reshape(-1)
    count = array.size if rng.random() < 0.2 else int(rng.integers(1, 4))
    value = _number(array, rng)
    flat[rng.integers(array.size, size=count) if count < array.size else slice(None)] = value
    return f"{count} times {value}"


def _number(array: Array, rng: np.random.Generator) -> Any:
    dtype = array.dtype
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            return np.array(_REALS, np.float64).astype(dtype)[int(rng.integers(len(_REALS)))]
    if dtype.kind not in "iu":
        return rng.integers(2)
    low, high = dtypes.int_range(dtype.name)
    fitting = [low, high, low + 1, high - 1, *(n for n in (*_WIDE, array.size) if low <= n <= high)]
    return dtype.type(fitting[int(rng.integers(len(fitting)))])


def _extreme(array: Array, rng: np.random.Generator) -> Array:
    """The largest or smallest numbers, all alike or at random."""
    if array.dtype.kind not in "iuf":
        return array
    if array.dtype.kind == "f":
        ends = np.array([-3e38, 3e38]).clip(*(np.finfo(array.dtype).min, np.finfo(array.dtype).max))
    else:
        ends = np.array(dtypes.int_range(array.dtype.name), array.dtype)
    chosen = rng.integers(2, size=array.shape) if rng.random() < 0.5 else np.full(array.shape, rng.integers(2))
    return np.asarray(ends[chosen]).astype(array.dtype)


def campaign(mutants: int, seed: int, told: Any = None) -> Outcome:
    """``mutants`` mutants from a seed on."""
    total = Outcome()
    for first in range(seed, seed + mutants, BATCH):
        total.add(batch(range(first, min(first + BATCH, seed + mutants))))
        if told is not None:
            told(first + BATCH - seed, total)
    return total


def operator(seed: int) -> str:
    """The operator that a mutant of a seed is of."""
    return cases()[seed % len(cases())][0].name


def batch(seeds: Sequence[int]) -> Outcome:
    """The mutants of some seeds: those that compile as one program."""
    outcome, waiting = Outcome(), list[tuple[int, str, Graph, Job]]()
    for seed in seeds:
        outcome.counts["mutants"] += 1
        outcome.refusals[operator(seed)] += 1
        name = f"seed {seed}"
        try:
            try:
                name, graph, runs = mutant(seed)
            except MicrocError:
                outcome.counts["refused by inference"] += 1
                continue
            except (ArithmeticError, ValueError, LookupError, TypeError):
                outcome.counts["no case at all"] += 1  # a reader of files catches these
                continue
            with _at_most(SECONDS):
                read = graph_file.read_graph_file(to_bytes(graph), "mutant.mcg")
                module = compile_graph(read, "mutant", target_for("host"), make_options(name=f"n{seed}"))
        except MicrocError as error:
            outcome.counts["refused"] += 1
            if error.exit_code == 70 or type(error).__name__ == "InternalError":
                outcome.failures.append((seed, name, f"InternalError: {error}"[:300]))
            continue
        except Exception as error:  # noqa: BLE001 - a traceback is what is looked for
            outcome.failures.append((seed, name, f"{type(error).__name__}: {error}"[:300]))
            continue
        outcome.counts["compiled"] += 1
        outcome.refusals[operator(seed)] -= 1
        waiting.append((seed, name, read, Job(replace(module, name=f"n{seed}"), runs)))
    if waiting:
        with tempfile.TemporaryDirectory(prefix="constants-") as folder:
            found = _run([job for *_, job in waiting], Path(folder))
        for (seed, name, graph, job), results in zip(waiting, found, strict=True):
            if isinstance(results, str):
                outcome.failures.append((seed, name, results))
            else:
                _compare(outcome, (seed, name), graph, job, results)
    return outcome


def _run(jobs: Sequence[Job], folder: Path) -> list[list[list[Array]] | str]:
    """What the C computes; where one does not compile, each is a program of its own."""
    try:
        return run(jobs, build(jobs, folder, flags=SANITIZED), folder, SECONDS)
    except (BuildError, subprocess.TimeoutExpired) as error:
        what = "does not end" if isinstance(error, subprocess.TimeoutExpired) else f"does not compile: {error}"
        return [what[:300]] if len(jobs) == 1 else [_run([job], folder)[0] for job in jobs]


def _compare(outcome: Outcome, where: tuple[int, str], graph: Graph, job: Job, found: list[list[Array]]) -> None:
    """Integers as the operator's meaning has them."""
    if any(_is_float(graph.types[name]) for name in (*graph.outputs, *graph.inputs, *graph.consts)):
        return
    for given, made in zip(job.runs, found, strict=True):
        try:
            with np.errstate(all="ignore"):
                wanted, _ = evaluate(graph, dict(zip(graph.inputs, given, strict=True)))
        except Exception as error:  # noqa: BLE001 - the reference has to have a meaning of what runs
            outcome.failures.append((*where, f"reference: {type(error).__name__}: {error}"[:200]))
            return
        outcome.counts["compared"] += 1
        for got, want in zip(made, wanted, strict=True):
            if not np.array_equal(got.reshape(want.shape), want):
                outcome.failures.append(
                    (*where, f"C gives {got.reshape(-1)[:6]}, the reference {want.reshape(-1)[:6]}")
                )
                return


def _is_float(kind: TensorType) -> bool:
    return dtypes.is_float(kind.dtype)


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.extremes.constants", description=__doc__)
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="the first seed; each mutant has one of its own")
    chosen = parser.parse_args()
    start, said = time.monotonic(), 0

    def told(done: int, so_far: Outcome) -> None:
        nonlocal said
        for seed, name, fault in so_far.failures[said:]:
            sys.stdout.write(f"--seed {seed} --mutants 1: {name}: {fault}\n")
        said = len(so_far.failures)
        if done % (10 * BATCH) == 0:
            sys.stdout.write(f"{done} mutants, {time.monotonic() - start:.0f} s, {said} failures\n")
        sys.stdout.flush()

    found = campaign(chosen.mutants, chosen.seed, told)
    by_kind = Counter(found.counts)
    mutants = Counter(operator(seed) for seed in range(chosen.seed, chosen.seed + chosen.mutants))
    for name, count in sorted(mutants.items()):
        sys.stdout.write(
            f"{name}: {count} mutants, {found.refusals[name]} refused, {count - found.refusals[name]} ran\n"
        )
    sys.stdout.write(", ".join(f"{count} {what}" for what, count in sorted(by_kind.items())) + "\n")
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
