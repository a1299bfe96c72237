# SPDX-License-Identifier: Apache-2.0
"""``microc serve``: the board of a project behind TCP, for ``--port tcp://HOST:PORT`` on other computers."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import inf
from typing import TYPE_CHECKING, Any

from microc.cli import SCHEMA_VERSION, show
from microc.cli.declared.board_commands import ServeArguments
from microc.document.blocks import document, prose
from microc.errors import UsageError

if TYPE_CHECKING:
    from microc.device.transport import Transport
    from microc.run.board_project import Project


def run_serve_command(arguments: ServeArguments) -> show.Answer:
    """Run ``microc serve``: carry the bytes of a board's line for clients on other computers, until Ctrl-C."""
    from microc.device.server import BoardServer, ServedBoard
    from microc.run.board_project import build_project, open_project

    token = _choose_token(arguments)
    project = open_project(arguments.folder)
    if not arguments.serial:
        build_project(project)
    board = ServedBoard(
        lambda: _open_answering_line(project, arguments),
        project.board.name,
        emulated=project.emulated and not arguments.serial,
        restartable=not (arguments.serial or project.needs_hardware),
    )
    with ExitStack() as stack:
        server = BoardServer(
            board,
            arguments.host,
            arguments.tcp_port,
            token,
            idle_seconds=arguments.idle,
            report=lambda line: _print_note(line, arguments),
        )
        # Ctrl-C is the normal way to end this command. While the board starts, it has not begun: the exit code says so.
        stack.enter_context(server)
        data = {
            "address": server.address,
            "host": server.host,
            "port": server.port,
            "board": project.board.name,
            "emulated": board.emulated,
            "token": token if arguments.token is None else None,
        }
        try:
            _print_start(data, arguments)
            server.serve(arguments.time or inf)
        except KeyboardInterrupt:
            pass
    data["clients"] = server.client_count
    return show.Answer(data, document(prose(f"clients: {show.format_integer(server.client_count)}")))


def _choose_token(arguments: ServeArguments) -> str:
    """Return the token of ``--token``, or a random one. Raises UsageError if nobody would see the random one."""
    from microc.device.transport import read_token_file

    if arguments.token is not None:
        return read_token_file(arguments.token, "--token")
    if arguments.quiet and not arguments.json:
        raise UsageError(
            "--quiet requires --token, since a random token would not be printed",
            hint="name a file that contains the token: --token FILE",
        )
    return secrets.token_urlsafe(24)


@contextmanager
def _open_answering_line(project: Project, arguments: ServeArguments) -> Iterator[Transport]:
    """Open the line to the project's board, and yield it when the firmware answers.

    A relocatable network is sent to a board that has just been started, as other commands do. Hardware may run another
    build: clients compare it with their own project."""
    from microc.device.client import Client
    from microc.run.board_project import open_board_line, read_network_blob, send_network
    from microc.run.session import client_timeout

    with ExitStack() as stack:
        transport, reconnect, _ = open_board_line(project, arguments.serial, arguments.baud, arguments.timeout, stack)
        client = stack.enter_context(Client(transport, client_timeout(arguments.timeout)))
        is_fresh = reconnect == 0.0
        if is_fresh and project.relocatable:
            send_network(client, read_network_blob(project))
        else:
            client.hello()
        yield transport


def _print_start(data: dict[str, Any], arguments: ServeArguments) -> None:
    """Print where the server listens: a line of JSON on standard output, or notes on standard error."""
    if arguments.json:
        sys.stdout.write(show.ascii_json({"schema_version": SCHEMA_VERSION, "command": "serve", **data}) + "\n")
        sys.stdout.flush()
        return
    _print_note(f"{data['board']} at {data['address']}", arguments)
    if data["token"]:
        _print_note(f"token {data['token']}", arguments)
    _print_note("Ctrl-C ends it", arguments)


def _print_note(line: str, arguments: ServeArguments) -> None:
    """Print a note on standard error, unless ``--quiet`` or ``--json`` forbids it."""
    if not (arguments.quiet or arguments.json):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
