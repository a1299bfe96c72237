"""Entry point of the command line. Results go to standard output, everything else to standard error."""

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
"""Exit codes after Ctrl-C (128 + SIGINT) and after a closed output pipe (128 + SIGPIPE), as shells report them."""
_JSON_LINES = frozenset({"tune", "watch"})
"""Commands whose ``--json`` prints JSON lines, one object each."""
_UNWRAPPED = frozenset({"explain", "completion"})
"""Commands whose text contains lines of code: it is never wrapped to the terminal."""
COLLECT_AFTER = 1_000_000
"""Allocations before Python looks for reference cycles. A compilation creates almost none, and its objects live to its
end."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code that :mod:`microc.errors` documents."""
    from microc.base.terminal import escape_all_output
    from microc.compiler import interaction

    words = list(sys.argv[1:] if argv is None else argv)
    gc.set_threshold(COLLECT_AFTER)
    atexit.register(gc.freeze)  # else the interpreter searches all objects for cycles once more at its exit
    try:
        with escape_all_output(), _record_interrupt_signals() as pressed, interaction.keep_flags_in_errors():
            code = _run_reporting_errors(words, pressed)
        if argv is None:  # about to exit, all is written: a late Ctrl-C must not change the exit code
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return code
    except BrokenPipeError:  # the reader of stdout is gone; flushing it at exit would raise again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


@contextmanager
def _record_interrupt_signals() -> Iterator[list[int]]:
    """Record Ctrl-C for the length of a ``with``; yields the list of signals received.

    The list is needed because a library that is being imported may replace KeyboardInterrupt by an error of its own, and
    because a C compiler that Ctrl-C ended, too, looks like one that failed.
    """
    pressed: list[int] = []

    def record_interrupt(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        signal.default_int_handler(number, frame)

    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not ours or threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    signal.signal(signal.SIGINT, record_interrupt)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _run_reporting_errors(command_words: list[str], received_signals: list[int]) -> int:
    """Run a command; report its errors and its interruption by Ctrl-C; return the exit code.

    ``command_words``: the command line. ``received_signals``: interrupt signals received so far; the list grows."""
    try:
        return _run_command(command_words)
    except KeyboardInterrupt:
        return _report_interrupt()
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the one place that reports an internal error as a message
        if received_signals:
            return _report_interrupt()
        if isinstance(error, MicrocError) and not isinstance(error, InternalError):
            return _report_error(error, command_words)
        return _report_error(_internal_error(error), command_words)


def _report_interrupt() -> int:
    """Print that the command was interrupted; return the exit code."""
    sys.stderr.write("interrupted\n")
    return INTERRUPTED


def _run_command(command_words: list[str]) -> int:
    """Parse the arguments, run the command and print its answer."""
    from microc.cli.arguments import Arguments, make_parser  # imported here, inside of the Ctrl-C handler's scope

    try:
        arguments = make_parser().parse_args(command_words or ["--help"], Arguments())
    except SystemExit as end:  # --help and --version
        sys.stdout.flush()
        return end.code if isinstance(end.code, int) else 0
    arguments.words = command_words
    from microc.cli import commands, project_context, show
    from microc.cli.commands import replace_stdin_arguments
    from microc.cli.shared_options import compilation_options
    from microc.compiler.model import register_plugins

    start = time.monotonic()
    silent = arguments.quiet or arguments.json or arguments.verbose or arguments.command in _JSON_LINES
    with show.show_elapsed_time(arguments.command, silent), replace_stdin_arguments(arguments):
        project_context.fill_from_config(arguments)
        with register_plugins(compilation_options(arguments)):
            answer = commands.COMMANDS[arguments.command](arguments)
    if arguments.json:
        error = {} if answer.error is None else {"error": _error_data(answer.error)}
        config = {"config": str(arguments.config.path)} if arguments.config else {}
        _print_json_answer({"command": arguments.command, **config, **error, **answer.data}, command_words)
    elif not arguments.quiet and answer.text:
        text = answer.text.rstrip()
        plain = arguments.command in _UNWRAPPED or getattr(arguments, "markdown", False)
        sys.stdout.write((text if plain else show.fit_to_terminal(text)) + "\n")
    sys.stdout.flush()
    if arguments.verbose:
        sys.stderr.write(f"{arguments.command}: {time.monotonic() - start:.2f} s\n")
    if answer.error is not None:
        show.print_error(answer.error)
        return answer.error.exit_code
    return answer.exit_code


def _print_json_answer(data: dict[str, Any], command_words: Sequence[str]) -> None:
    """Print one JSON object with the schema version; on a single line for the commands that print several objects."""
    from microc.cli.show import ascii_json

    indent = None if _JSON_LINES.intersection(command_words) else 2
    sys.stdout.write(ascii_json({"schema_version": SCHEMA_VERSION, **data}, indent) + "\n")


def _report_error(error: MicrocError, command_words: Sequence[str]) -> int:
    """Print an error, and as JSON if ``--json`` is among the words of the command line; return its exit code."""
    from microc.cli.show import print_error

    print_error(error)
    if "--json" in command_words:
        _print_json_answer({"error": _error_data(error), **error.details}, command_words)
        sys.stdout.flush()
    return error.exit_code


def _error_data(error: MicrocError) -> dict[str, str]:
    """Describe an error as plain data."""
    return {"code": error.code, "what": error.what, "where": error.where, "hint": error.hint}


def _internal_error(error: Exception) -> InternalError:
    """Wrap an unexpected exception in a one-line InternalError; its traceback goes to a temporary file."""
    import traceback

    from microc.base.terminal import escape_unprintable

    with tempfile.NamedTemporaryFile("w", prefix="microc-", suffix=".txt", delete=False, encoding="utf-8") as file:
        file.write(escape_unprintable("".join(traceback.format_exception(error))))
    what = error.what if isinstance(error, InternalError) else f"{type(error).__name__}: {error}"
    return InternalError(f"this is a defect of microc: {' '.join(what.split())}", hint=f"report it, with {file.name}")
