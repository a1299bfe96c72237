# SPDX-License-Identifier: Apache-2.0
"""``microc watch``: run a network on a board again and again.

The runs are shown on a local web page, or printed as JSON lines.
"""

from __future__ import annotations

import sys
import time
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from microc.cli import SCHEMA_VERSION, show
from microc.cli.declared.board_commands import WatchArguments
from microc.cli.project_context import (
    build_firmware,
    load_samples,
    open_project_of_source,
    pixel_range,
    progress_callback,
    serial_line_options,
)
from microc.document.blocks import document, prose
from microc.errors import UsageError

if TYPE_CHECKING:
    from microc.run.data.samples import Samples
    from microc.run.session import Device


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
