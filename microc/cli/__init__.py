"""Floor 8: the command line. Results go to standard output, everything else to standard error."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from microc.errors import InternalError, MicrocError

SCHEMA_VERSION = 1
INTERRUPTED, BROKEN_PIPE = 130, 141
"""Exit codes of what Ctrl-C ended, as shells have it, and of what nobody reads."""
_STREAMS = frozenset({"tune", "watch"})
"""Commands whose ``--json`` is lines, an object each."""
_AS_IT_IS = frozenset({"explain", "completion"})
"""Commands whose text has lines of code, which no terminal wraps."""
COLLECT_AFTER = 1_000_000
"""Objects that are made before cycles are looked for: what a compilation makes is almost free of them, and lives to its end."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code that :mod:`microc.errors` documents."""
    from microc.base.terminal import guarded
    from microc.compiler import interaction

    words = list(sys.argv[1:] if argv is None else argv)
    gc.set_threshold(COLLECT_AFTER)
    atexit.register(gc.freeze)  # or Python looks for cycles, before it ends, in all that ends with it
    try:
        with guarded(), _listening() as pressed, interaction.flags():
            code = _guarded(words, pressed)
        if argv is None:  # the process ends, all is written and told
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return code
    except BrokenPipeError:  # the reader of our output has gone: nothing is left to say, nor a place to say it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


@contextmanager
def _listening() -> Iterator[list[int]]:
    """Whether Ctrl-C was pressed, for the length of a ``with``: libraries that are being imported turn it into errors of their
    own, and a compiler that it ended, too, has failed."""
    pressed: list[int] = []

    def press(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        signal.default_int_handler(number, frame)

    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not ours or threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _guarded(words: list[str], pressed: list[int]) -> int:
    try:
        return _command(words)
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the one place where a defect turns into a message
        if pressed:
            return _interrupted()
        if isinstance(error, MicrocError) and not isinstance(error, InternalError):
            return _report(error, words)
        return _report(_crash(error), words)


def _interrupted() -> int:
    sys.stderr.write("interrupted\n")
    return INTERRUPTED


def _command(words: list[str]) -> int:
    from microc.cli.arguments import Arguments, make_parser  # here, so that Ctrl-C is heard while they are imported

    try:
        arguments = make_parser().parse_args(words or ["--help"], Arguments())
    except SystemExit as end:  # --help and --version
        sys.stdout.flush()
        return end.code if isinstance(end.code, int) else 0
    arguments.words = words
    from microc.cli import commands, project_context, show
    from microc.cli.commands import piped
    from microc.cli.shared_options import chosen_options
    from microc.compiler.model import extended_by

    begin = time.monotonic()
    silent = arguments.quiet or arguments.json or arguments.verbose or arguments.command in _STREAMS
    with show.working(arguments.command, silent), piped(arguments):
        project_context.configure(arguments)
        with extended_by(chosen_options(arguments)):
            answer = commands.COMMANDS[arguments.command](arguments)
    if arguments.json:
        found = {} if answer.error is None else {"error": _fields(answer.error)}
        config = {"config": str(arguments.config.path)} if arguments.config else {}
        _write_json({"command": arguments.command, **config, **found, **answer.data}, words)
    elif not arguments.quiet and answer.text:
        text = answer.text.rstrip()
        plain = arguments.command in _AS_IT_IS or getattr(arguments, "markdown", False)
        sys.stdout.write((text if plain else show.fit_to_terminal(text)) + "\n")
    sys.stdout.flush()
    if arguments.verbose:
        sys.stderr.write(f"{arguments.command}: {time.monotonic() - begin:.2f} s\n")
    if answer.error is not None:
        show.refuse(answer.error)
        return answer.error.exit_code
    return answer.exit_code


def _write_json(data: dict[str, Any], words: Sequence[str]) -> None:
    """One object; on a line of its own by the command that writes several."""
    from microc.cli.show import json_text

    indent = None if _STREAMS.intersection(words) else 2
    sys.stdout.write(json_text({"schema_version": SCHEMA_VERSION, **data}, indent) + "\n")


def _report(error: MicrocError, words: Sequence[str]) -> int:
    from microc.cli.show import refuse

    refuse(error)
    if "--json" in words:
        _write_json({"error": _fields(error), **error.details}, words)
        sys.stdout.flush()
    return error.exit_code


def _fields(error: MicrocError) -> dict[str, str]:
    return {"code": error.code, "what": error.what, "where": error.where, "hint": error.hint}


def _crash(error: Exception) -> InternalError:
    """A defect, in one line; the traceback goes to a file."""
    import traceback

    from microc.base.terminal import visible

    with tempfile.NamedTemporaryFile("w", prefix="microc-", suffix=".txt", delete=False, encoding="utf-8") as file:
        file.write(visible("".join(traceback.format_exception(error))))
    what = error.what if isinstance(error, InternalError) else f"{type(error).__name__}: {error}"
    return InternalError(
        f"this is a defect of microc: {' '.join(what.split())}", hint=f"please report it with {file.name}"
    )
