# SPDX-License-Identifier: Apache-2.0
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
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from microc.base.operating_system import is_closed_pipe, keep_freed_memory, reserves_stack
from microc.errors import InternalError, MicrocError, OutputError

SCHEMA_VERSION = 1
INTERRUPTED, BROKEN_PIPE = 130, 141
"""Exit codes after Ctrl-C (128 + SIGINT) and after a closed output pipe (128 + SIGPIPE), as shells report them."""
COLLECT_AFTER = 1_000_000
"""Number of allocations after which Python searches for reference cycles.

It is large because a compilation creates almost no cycles, and most of its objects are needed until the end."""


def run_process() -> NoReturn:
    """Run the command line of this process, and end the process with its exit code: the entry point of ``microc``."""
    keep_freed_memory()
    code = main()
    # To free the objects and modules of a compilation takes 6 % of its CPU time, so the process ends without that, as
    # mypy's does. Threads, debuggers and profilers need the interpreter's own end.
    if threading.active_count() > 1 or sys.gettrace() is not None or sys.getprofile() is not None:
        sys.exit(code)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@reserves_stack
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: of this process); return the exit code, as :mod:`microc.errors` documents it."""
    from microc.compiler import interaction
    from microc.errors import escape_all_output

    words = list(sys.argv[1:] if argv is None else argv)
    for name in ("stdout", "stderr"):  # None if the caller closed it, as a daemon does
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the process ends)
    gc.set_threshold(COLLECT_AFTER)
    atexit.register(gc.freeze)  # else the interpreter searches all objects for cycles once more at its exit
    try:
        with escape_all_output(), _record_interrupt_signals() as pressed, interaction.keep_flags_in_errors():
            code = _run_and_report_errors(words, pressed)
        if argv is None:  # about to exit, all is written: a late Ctrl-C must not change the exit code
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return code
    except OSError as error:
        if not is_closed_pipe(error):
            raise
        _discard_output()
        return BROKEN_PIPE


def _discard_output() -> None:
    """Let what is left of stdout go nowhere: flushing it at the end of the process would raise its error again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _report_unwritable_output() -> Iterator[None]:
    """Convert errors of writing to stdout to OutputError, except that its reader is gone."""
    try:
        yield
    except OSError as error:
        if is_closed_pipe(error):
            raise
        _discard_output()
        raise OutputError(
            f"standard output cannot be written: {error.strerror}",
            hint="redirect it to a disk with free space, or to a terminal",
        ) from None


@contextmanager
def _record_interrupt_signals() -> Iterator[list[int]]:
    """Record the interrupt signals of Ctrl-C within a ``with`` block; yield the list of signals received so far.

    KeyboardInterrupt alone is not enough. A library that is being imported may replace it by an error of its own; and Ctrl-C
    also ends a running C compiler, whose end then looks like a failed build.
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


def _run_and_report_errors(command_words: list[str], received_signals: list[int]) -> int:
    """Run a command, report its errors or its interruption by Ctrl-C, and return the exit code.

    ``command_words``: words of the command line; ``received_signals``: list to which :func:`_record_interrupt_signals`
    appends the signals of Ctrl-C."""
    try:
        return _run_command(command_words)
    except KeyboardInterrupt:
        return _report_interrupt()
    except Exception as error:  # the one place that reports an internal error as a message
        if isinstance(error, OSError) and is_closed_pipe(error):
            raise
        if received_signals:
            return _report_interrupt()
        if isinstance(error, MicrocError) and not isinstance(error, InternalError):
            return _report_error(error, command_words)
        return _report_error(_internal_error(error), command_words)


def _report_interrupt() -> int:
    """Print that the command was interrupted; return the exit code for this case."""
    sys.stderr.write("interrupted\n")
    return INTERRUPTED


def _run_command(command_words: list[str]) -> int:
    """Parse the words of the command line, run the command and print its result; return the exit code."""
    from microc.cli.parser import parse_command_line  # imported here, inside of the Ctrl-C handler's scope

    try:
        command, arguments = parse_command_line(command_words or ["--help"])
    except SystemExit as end:  # --help and --version
        with _report_unwritable_output():
            sys.stdout.flush()
        return end.code if isinstance(end.code, int) else 0
    from microc.cli import show
    from microc.cli.argument_sources import fill_from_config, stdin_as_file
    from microc.compiler.model import register_plugins

    start = time.monotonic()
    silent = arguments.quiet or arguments.json or arguments.verbose or command.json_lines
    with show.show_elapsed_time(command.name, silent), stdin_as_file(arguments) as arguments:
        arguments = fill_from_config(arguments)
        with register_plugins(arguments.options):
            answer = command.function.load_entry()(arguments)
    with _report_unwritable_output():
        if arguments.json:
            error = {} if answer.error is None else {"error": _error_data(answer.error)}
            config = {"config": str(arguments.config.path)} if arguments.config else {}
            _print_json_answer({"command": command.name, **config, **error, **answer.data}, command_words)
        elif not arguments.quiet and answer.document.blocks:
            sys.stdout.write(show.render(answer.document).rstrip() + "\n")
        sys.stdout.flush()
    if arguments.verbose:
        sys.stderr.write(f"{command.name}: {time.monotonic() - start:.2f} s\n")
    if answer.error is not None:
        show.print_error(answer.error)
        return answer.error.exit_code
    return answer.exit_code


def _print_json_answer(data: dict[str, Any], command_words: Sequence[str]) -> None:
    """Print ``data`` and the schema version as a JSON object: on one line for commands that print JSON lines, else indented."""
    from microc.cli.parser import COMMANDS
    from microc.cli.show import ascii_json

    # The command line may contain a mistake, so that it was not parsed: the command is one of its words.
    prints_lines = any(word in COMMANDS and COMMANDS[word].json_lines for word in command_words)
    sys.stdout.write(ascii_json({"schema_version": SCHEMA_VERSION, **data}, None if prints_lines else 2) + "\n")


def _report_error(error: MicrocError, command_words: Sequence[str]) -> int:
    """Print an error, and print it also as JSON if the command line contains ``--json``; return the error's exit code."""
    from microc.cli.show import print_error

    print_error(error)
    if "--json" in command_words:
        with suppress(OutputError), _report_unwritable_output():  # the error itself decides the exit code
            _print_json_answer({"error": _error_data(error), **error.details}, command_words)
            sys.stdout.flush()
    return error.exit_code


def _error_data(error: MicrocError) -> dict[str, str]:
    """Describe an error as plain data: its code, what is wrong, where, and the hint."""
    return {"code": error.code, "what": error.what, "where": error.where, "hint": error.hint}


def _internal_error(error: Exception) -> InternalError:
    """Convert an unexpected exception to an InternalError of one line, and write its traceback to a temporary file."""
    import traceback

    from microc.errors import escape_unprintable

    with tempfile.NamedTemporaryFile("w", prefix="microc-", suffix=".txt", delete=False, encoding="utf-8") as file:
        file.write(escape_unprintable("".join(traceback.format_exception(error))))
    what = error.what if isinstance(error, InternalError) else f"{type(error).__name__}: {error}"
    return InternalError(f"this is a defect of microc: {' '.join(what.split())}", hint=f"report it, with {file.name}")
