# SPDX-License-Identifier: Apache-2.0
"""One mutant through the whole compiler: read, compiled, printed; and what its C must compute."""

from __future__ import annotations

import hashlib
import random
import signal
import traceback
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import microc
from microc import __version__
from microc.base.dtypes import Array
from microc.codegen.c.source import shared_files
from microc.codegen.project.manifest import manifest
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model
from microc.errors import InternalError, MicrocError
from microc.graph.ir import Graph
from microc.target import target_for
from microc.transform.pass_context import PassContext, run_passes
from microc.transform.quantised import qdq
from tests.fuzz import archive, flatbuffer, native, protobuf
from tests.fuzz.seeds import seeds
from tests.ops.oracle import run as interpret

READ_SECONDS, COMPILE_SECONDS, REFERENCE_SECONDS = 20, 60, 20
_CORES = ("host", "host", "host", "cortex-m4", "cortex-m0", "cortex-m55", "rv32imac")
_GOALS = ("balanced", "balanced", "speed", "size")
_LARGEST = 1 << 20  # bytes of arena, and multiply-accumulates: more is compiled, and not run


class TooLong(BaseException):
    """Not an Exception: nothing of what is tried may catch it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``status``: ``refused``, ``compiled``, ``finding``. Of a finding ``signature`` says what kind it is, ``text`` everything.

    ``net`` and ``expected`` (outputs of each run, None where there is no reference) are there to run it; ``rounded``: outputs
    that are rounded from results of a function of floats.
    """

    status: str
    signature: str = ""
    text: str = ""
    net: native.Net | None = None
    expected: tuple[tuple[Array, ...], ...] | None = None
    rounded: frozenset[int] = frozenset()


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """TooLong after so many seconds of this process's time, however busy the machine is."""

    def expired(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"more than {seconds} s")

    before = signal.signal(signal.SIGPROF, expired)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@cache
def _mutator(kind: str, name: str) -> Any:
    data = seeds(kind)[name]
    return {"tflite": flatbuffer, "onnx": protobuf, "keras": archive, "mcg": archive}[kind].Mutator(data)


def mutant(kind: str, seed: int, number: int) -> tuple[str, bytes]:
    """The seed's name and the mutant's bytes: the same for the same numbers."""
    rng = random.Random(f"{kind} {seed} {number}")
    name = rng.choice(list(seeds(kind)))
    return name, _mutator(kind, name).mutate(rng)


def attempt(path: Path, chance: random.Random, name: str) -> Outcome:
    """Read and compile a file as ``name``. Anything but a network or a user's error in time is a finding."""
    stage = "read"
    try:
        with limited(READ_SECONDS):
            graph = microc.load(path, name=name)
        stage = "compile"
        options = make_options(name=name, optimize=chance.choice(_GOALS))
        with limited(COMPILE_SECONDS):
            module = compile_model(graph, target_for(chance.choice(_CORES)), options)
            sources = shared_files(module, __version__)
            described = manifest(module, __version__)
    except InternalError as error:
        return _finding(stage, error)
    except MicrocError as error:
        return Outcome("refused") if error.what and str(error) else _finding(stage, error)
    except (Exception, TooLong) as error:  # noqa: BLE001 - all of them are what is looked for
        return _finding(stage, error)
    if described["arena_size"] > _LARGEST or described["macs"] > _LARGEST or "sizes" in described:
        return Outcome("compiled")
    inputs = _inputs(graph, chance)
    net = native.Net(sources, described, inputs)
    return Outcome("compiled", net=net, expected=_expected(graph, inputs), rounded=_rounded(graph))


def _finding(stage: str, error: BaseException) -> Outcome:
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if "microc" in f.filename and "tests" not in f.filename
    ]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else ""
    signature = f"{stage} {type(error).__name__} {where}"
    if isinstance(error, MemoryError):  # numpy's has a name of its own
        signature = f"{stage} MemoryError"
    if isinstance(error, TooLong | RecursionError):
        signature = f"{stage} {type(error).__name__}"
    if isinstance(error, InternalError):
        signature += " " + error.what[:60]
    return Outcome("finding", signature, "".join(traceback.format_exception(error))[-6000:])


def _inputs(graph: Graph, chance: random.Random) -> list[Array]:
    """Any integers; floats about one, and now and then extreme ones."""
    rng = np.random.default_rng(chance.getrandbits(32))
    extreme = chance.random() < 0.15
    arrays: list[Array] = []
    for name in graph.inputs:
        kind = graph.types[name]
        if kind.dtype == "bool":
            arrays.append(rng.integers(0, 2, kind.shape).astype(bool))
        elif np.issubdtype(np.dtype(kind.dtype), np.integer):
            info = np.iinfo(kind.dtype)
            small = info.bits > 16 and chance.random() < 0.7  # indices, most often
            low, high = (0, 4) if small else (info.min, info.max)
            arrays.append(rng.integers(low, high, kind.shape, kind.dtype, endpoint=True))
        else:
            values = rng.standard_normal(kind.shape)
            if extreme:
                values = np.where(
                    rng.random(kind.shape) < 0.2, rng.choice([np.nan, np.inf, -np.inf, 1e30, -1e-40]), values
                )
            arrays.append(values.astype(kind.dtype))
    return arrays


def _expected(graph: Graph, inputs: list[Array]) -> tuple[tuple[Array, ...], ...] | None:
    """What the references of the operators say; None where they cannot in time. Quantised layers between floats count as what
    they become, exact sums of integers: those of floats, which ``tests/extremes`` looks at, fall to either side of a tie."""
    state = {name: array.copy() for name, array in graph.state.items()}
    try:
        with limited(REFERENCE_SECONDS), np.errstate(all="ignore"):
            graph = run_passes(graph, (qdq.PASS,), PassContext())
            return tuple(tuple(interpret(graph, inputs, state)) for _ in range(native.RUNS))
    except (Exception, TooLong):  # noqa: BLE001 - a reference in numpy may not hold what the graph says
        return None


_FUNCTIONS = frozenset(
    {"tanh", "sigmoid", "exp", "log", "erf", "gelu", "sqrt", "rsqrt", "softplus", "sin", "cos", "pow"}
)


def _rounded(graph: Graph) -> frozenset[int]:
    """The integer outputs that are rounded results of a function of floats: a last bit of the function, which libraries
    disagree about, may decide a tie, such as tanh(9) = 1 in steps of 2."""
    makers = map(graph.producer().get, graph.outputs)
    return frozenset(k for k, maker in enumerate(makers) if maker is not None and maker.op in _FUNCTIONS)


def difference(
    expected: Sequence[Sequence[Array]], got: Sequence[Sequence[Array]], rounded: frozenset[int] = frozenset()
) -> str:
    """Where the outputs of some runs differ: integers in any bit (by more than one if they are ``rounded``), floats by more
    than a thousandth of the largest, or by a bit of bfloat16; empty if nowhere. What only one side has is left out."""
    for run, (theirs, ours) in enumerate(zip(expected, got, strict=False)):
        for number, (a, b) in enumerate(zip(ours, map(np.asarray, theirs), strict=False)):
            if a.shape != b.shape or a.dtype != b.dtype:
                return f"output {number}: {a.dtype}{a.shape} for {b.dtype}{b.shape}"
            near = (
                number in rounded
                and a.dtype.kind in "iu"
                and np.abs(a.astype(np.int64) - b.astype(np.int64)).max(initial=0) <= 1
            )
            if not near and not _same(a, b):
                at = np.flatnonzero((a != b).reshape(-1))[:4]
                return f"output {number} in run {run}: {a.reshape(-1)[at]} for {b.reshape(-1)[at]}, {at}"
    return ""


def _same(a: Array, b: Array) -> bool:
    if a.dtype.kind in "biu":
        return bool(np.array_equal(a, b))
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    finite = np.abs(b64[np.isfinite(b64)])
    scale = float(finite.max()) if finite.size else 1.0
    most = 1e-3 if a.dtype.kind == "f" else 2.0**-7
    return bool(np.allclose(a64, b64, rtol=most, atol=most * scale, equal_nan=True))


def slug(text: str) -> str:
    """A short name for a signature."""
    word = "".join(c if c.isalnum() else "_" for c in text)[:40].strip("_")
    return f"{word}_{zlib.crc32(text.encode()):08x}"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
