# SPDX-License-Identifier: Apache-2.0
"""Commands that keep a board at work: ``microc learn``, ``microc watch`` and ``microc serve``."""

from __future__ import annotations

import secrets
import sys
import time
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any

from microc.cli import SCHEMA_VERSION, show
from microc.cli.declared.board_commands import LearnArguments, ServeArguments, WatchArguments
from microc.cli.project_context import (
    build_firmware,
    check_output_paths,
    hold_weights,
    load_samples,
    open_project_of_source,
    pixel_range,
    progress_callback,
    serial_line_options,
)
from microc.document.blocks import Table, document, numbers, prose, table, texts
from microc.errors import UsageError

if TYPE_CHECKING:
    from microc.device.board_info import Bank
    from microc.device.transport import Transport
    from microc.run.board_project import Project
    from microc.run.data.samples import Samples
    from microc.run.learning import Quality
    from microc.run.session import Device


# ---- ``microc learn``: steps of learning on a user's samples.


def run_learn_command(arguments: LearnArguments) -> show.Answer:
    """Run ``microc learn``: learn from samples on the board, and compare its answers before and after."""
    from microc.run.data.samples import require_learning
    from microc.run.learning import evaluate_learner, learn_samples, sample_labels
    from microc.run.session import Device

    uses_banks = arguments.keep or arguments.clear or arguments.banks or arguments.fetch is not None
    if arguments.data is None and arguments.test is None and not uses_banks:
        raise UsageError(
            "learn requires samples; got neither --data nor --test",
            hint="name them: microc learn firmware --data train.npz --labels labels; or show the banks: --banks",
        )
    if arguments.test is not None and arguments.expected is not None:
        raise UsageError("--test cannot be combined with --expected", hint="leave out --test: --data is compared")
    check_output_paths(**{"--save": arguments.save, "--fetch": arguments.fetch})
    pixel_range(arguments.pixels, [arguments.data, arguments.test])
    progress, losses = progress_callback(arguments), []
    with open_project_of_source(arguments) as project:
        manifest = project.manifest
        entry = require_learning(manifest)
        tensors = {t["name"]: t for t in manifest["tensors"]}
        own = [tensors[name] for name in manifest["outputs"][:-1]]
        samples = load_samples(arguments.data, arguments.labels, arguments.pixels, manifest, arguments.expected)
        test = load_samples(arguments.test, arguments.labels, arguments.pixels, manifest) or samples
        labels = sample_labels(samples, tensors[entry["labels"]], own) if samples is not None else None
        build_firmware(project, arguments)
        with Device(project, progress=None, **serial_line_options(arguments)) as device:
            if arguments.fetch is not None:
                device.fetch_bank(arguments.fetch)
            if arguments.clear:
                device.clear_banks()
            if arguments.restore is not None:
                device.restore_weights(arguments.restore)
            before = evaluate_learner(device, test, progress) if test is not None else None
            inference = device.last
            if samples is not None and labels is not None:
                epochs = learn_samples(device, samples, labels, arguments.rate, arguments.seed, progress)
                losses = list(islice(epochs, arguments.epochs))
            step, clock = device.last, device.clock
            after = evaluate_learner(device, test, progress) if test is not None and losses else before
            if arguments.save is not None:
                device.save_weights(arguments.save)
            if arguments.keep:
                device.save_to_bank()
            banks = device.banks() if uses_banks else ()
    times = [clock.convert_ticks(timing.max) if timing is not None else None for timing in (inference, step)]
    data = {
        "board": project.board.name,
        "network": manifest["model"],
        "samples": len(samples) if samples is not None else 0,
        "rate": arguments.rate,
        "seed": arguments.seed,
        "losses": losses,
        "unit": clock.unit,
        "unit_meaning": clock.meaning,
        "inference_time": times[0],
        "step_time": times[1] if losses else None,
        "tested": len(test) if test is not None else 0,
        "quality_before": _quality_to_data(before),
        "quality_after": _quality_to_data(after),
        "restored": str(arguments.restore) if arguments.restore else None,
        "saved": str(arguments.save) if arguments.save else None,
        "fetched": str(arguments.fetch) if arguments.fetch else None,
        "banks": [asdict(bank) for bank in banks],
    }
    lines = [f"epoch {number}: mean loss {loss:.6g}" for number, loss in enumerate(losses, 1)]
    if times[0] is not None:
        lines.append(f"an inference: {show.format_integer(times[0])} {clock.unit}")
    if losses and times[1] is not None:
        lines.append(f"a step: {show.format_integer(times[1])} {clock.unit}, with its inference")
    if arguments.save is not None:
        lines.append(f"saved to {arguments.save}")
    if arguments.fetch is not None:
        lines.append(f"fetched into {arguments.fetch}")
    tables = [_quality_table(before, after)] if before is not None and after is not None else []
    if banks:
        tables.append(_bank_table(banks))
    return show.Answer(data, document(prose(*lines), *tables))


def _bank_table(banks: Sequence[Bank]) -> Table:
    """Make a table of the banks of learned weights."""
    rows = [
        (str(bank.number), bank.state, "yes" if bank.newest else "", f"{bank.check:08x}", bank.sequence, bank.nbytes)
        for bank in banks
    ]
    return table((*texts("bank", "state", "restored at boot", "CRC"), *numbers("sequence", "bytes")), rows)


def _quality_to_data(quality: Quality | None) -> dict[str, Any] | None:
    """Describe the quality of a network's answers as plain data; None if it was not measured."""
    if quality is None:
        return None
    classes = quality.classification
    counts = None if classes is None else {"correct": classes.correct, "accuracy": classes.accuracy}
    return {"classification": counts, "outputs": [asdict(each) for each in quality.closeness]}


def _quality_table(before: Quality, after: Quality) -> Table:
    """Make a table of the right answers, or of the differences from expected outputs, before and after learning."""
    if before.classification is not None and after.classification is not None:
        pair = (("before", before.classification), ("after", after.classification))
        rows = [(when, classes.correct, classes.total, 100 * classes.accuracy) for when, classes in pair]
        return table((*texts("answers"), *numbers("right", "of"), *numbers("%", spec=".2f")), rows)
    differences = [
        (when, each.output, each.rmse, each.largest)
        for when, quality in (("before", before), ("after", after))
        for each in quality.closeness
    ]
    return table((*texts("answers", "output"), *numbers("RMSE", "largest difference", spec=".6g")), differences)


# ---- ``microc watch``: run a network on a board again and again.
#
# The runs are shown on a local web page, or printed as JSON lines.


Publish = Callable[[Mapping[str, Any]], None]


def run_watch_command(arguments: WatchArguments) -> show.Answer:
    """Run ``microc watch``: run a network on a board again and again, and show every run on a page or as JSON."""
    from microc.reports.live import iter_runs, run_to_event_data
    from microc.run.session import Device

    if arguments.from_board and arguments.data is not None:
        raise UsageError("--from-board cannot be combined with --data", hint="leave one out")
    if arguments.data is None and arguments.labels:
        raise UsageError(
            "--labels requires --data", hint="add it: microc watch firmware --data test.npz --labels labels"
        )
    pixel_range(arguments.pixels, [arguments.data])
    run_count = 0
    with open_project_of_source(arguments) as project:
        samples = load_samples(arguments.data, arguments.labels, arguments.pixels, project.manifest)
        samples = hold_weights(samples, project.manifest)
        build_firmware(project, arguments)
        with (
            Device(project, progress=progress_callback(arguments), **serial_line_options(arguments)) as device,
            _open_publisher(arguments, device, samples) as publish,
        ):
            try:
                due = time.monotonic()
                for run in iter_runs(device, _watched_input_source(arguments, samples)):
                    publish(run_to_event_data(device, run))
                    run_count = run.number + 1
                    if run_count == arguments.runs:
                        break
                    now = time.monotonic()
                    due = max(due + arguments.every, now)
                    time.sleep(due - now)
            except KeyboardInterrupt:  # the normal way to end this command
                pass
    return show.Answer({"runs": run_count}, document(prose(f"{show.format_integer(run_count)} runs")))


def _watched_input_source(arguments: WatchArguments, samples: Samples | None) -> Samples | str | int:
    """Return the source of the inputs for :func:`microc.reports.live.iter_runs`.

    It is the constant ``FROM_BOARD``, the user's samples, or the seed of random inputs."""
    from microc.reports.live import FROM_BOARD

    if arguments.from_board:
        return FROM_BOARD
    return samples if samples is not None else arguments.seed


@contextmanager
def _open_publisher(arguments: WatchArguments, device: Device, samples: Samples | None) -> Iterator[Publish]:
    """Yield the function that publishes the event of a run.

    It prints the event as JSON for ``--json``; else it sends the event to a web page, which is served within the ``with``
    block."""
    if arguments.json:
        yield _print_run_json
        return
    from microc.reports.live import PageServer, render_watch_page

    source_text = (
        f"{len(samples):,} samples of {arguments.data.name}, in a loop"
        if samples and arguments.data
        else "random numbers"
    )
    if arguments.from_board:
        source_text = "what the board has"
    with PageServer(render_watch_page(device, source_text), arguments.http) as server:
        if not arguments.quiet:
            sys.stderr.write(f"{server.url}\nCtrl-C ends it\n")
            sys.stderr.flush()
        if arguments.browser:
            webbrowser.open(server.url)
        yield server.publish


def _print_run_json(event: Mapping[str, Any]) -> None:
    """Print the event of a run on standard output, as one line of JSON."""
    sys.stdout.write(show.ascii_json({"schema_version": SCHEMA_VERSION, "command": "watch", **event}) + "\n")
    sys.stdout.flush()


# ---- ``microc serve``: the board of a project behind TCP, for ``--port tcp://HOST:PORT`` on other computers.


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
