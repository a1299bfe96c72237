# SPDX-License-Identifier: Apache-2.0
"""Whole compilations, a process each that may take so much memory and so long: what becomes of a model, and what that costs."""

from __future__ import annotations

import gc
import multiprocessing
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

from microc.codegen.c.source import shared_files
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model
from microc.errors import InternalError, MicrocError
from microc.project.checks import check_model
from microc.target import target_for

MOST_MEMORY = 3 << 30
"""Bytes of address space beside what the process that begins it has: other tests may have filled that."""
MOST_SECONDS = 60
"""Of processor time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``fault``: how a model ended other than compiled or refused, with a traceback; ``refused``: why it was, in its words.

    ``seconds`` of processor time, ``peak`` of resident bytes beside those that the process began with.
    """

    name: str
    task: str
    fault: str
    refused: str
    seconds: float
    peak: int


def check(path: Path) -> None:
    """What ``microc check`` does."""
    check_model(path, make_options())


def for_host(path: Path) -> None:
    """What ``microc.compile`` does before it calls the compiler of this computer."""
    shared_files(compile_model(path, target_for("host"), make_options()), "0")


def for_core(path: Path) -> None:
    """The same for a microcontroller's core, on a board that holds anything."""
    shared_files(compile_model(path, target_for("cortex-m4"), make_options()), "0")


TASKS: Mapping[str, Callable[[Path], None]] = {task.__name__: task for task in (check, for_host, for_core)}


def confined(
    cases: Iterable[tuple[str, bytes]], folder: Path, tasks: Iterable[str] = tuple(TASKS)
) -> Iterator[Outcome]:
    """Every model through every task, one after the other; their files are made in ``folder``."""
    context = multiprocessing.get_context("fork")
    for name, data in cases:
        path = folder / f"model{Path(name).suffix}"
        path.write_bytes(data)
        for task in tasks:
            receive, send = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(path, task, send))
            process.start()
            send.close()
            try:
                fault, refused, seconds, peak = receive.recv()
            except EOFError:
                fault, refused, seconds, peak = "the process died", "", 0.0, 0
            process.join()
            yield Outcome(name, task, fault, refused, seconds, peak)


def _run(path: Path, task: str, send: Connection) -> None:
    gc.freeze()  # what the parent left is not this process's to end: a session of onnxruntime would wait for threads it lacks
    most = _address_space() + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    held, start, fault, refused = _most_resident(), time.process_time(), "", ""
    try:
        TASKS[task](path)
    except InternalError:
        fault = traceback.format_exc()
    except MicrocError as error:
        refused = str(error)
    except BaseException:  # noqa: BLE001 - the parent reads of it
        fault = traceback.format_exc()
    send.send((fault, refused, time.process_time() - start, _most_resident() - held))


def _most_resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    return pages * resource.getpagesize()


class _TooLongError(BaseException):
    """Not an Exception: nothing that is tried may catch it."""


def _too_long(_signal: int, _frame: FrameType | None) -> None:
    raise _TooLongError
