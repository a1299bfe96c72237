"""``microc watch``: a network at work on a board, as a page of this computer or as lines of JSON."""

from __future__ import annotations

import sys
import time
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from microc.cli import SCHEMA_VERSION, show
from microc.cli.arguments import Arguments
from microc.cli.project_context import build_firmware, line, opened_project, pixels, progress, samples_of
from microc.errors import UsageError

if TYPE_CHECKING:
    from microc.run.data.samples import Samples
    from microc.run.session import Device


Teller = Callable[[Mapping[str, Any]], None]


def watch(arguments: Arguments) -> show.Answer:
    """``microc watch``."""
    from microc.reports.live import event, runs
    from microc.run.session import Device

    if arguments.from_board and arguments.data is not None:
        raise UsageError("--from-board sends nothing, and --data is to be sent", hint="give one of them")
    if arguments.data is None and arguments.labels:
        raise UsageError("--labels speaks of --data", hint="microc watch firmware --data test.npz --labels labels")
    pixels(arguments)
    done = 0
    with opened_project(arguments) as project:
        samples = samples_of(arguments, project.manifest)
        build_firmware(project, arguments)
        with (
            Device(project, progress=progress(arguments), **line(arguments)) as device,
            _told(arguments, device, samples) as tell,
        ):
            try:
                due = time.monotonic()
                for run in runs(device, _source(arguments, samples)):
                    tell(event(device, run))
                    done = run.number + 1
                    if done == arguments.runs:
                        break
                    now = time.monotonic()
                    due = max(due + arguments.every, now)
                    time.sleep(due - now)
            except KeyboardInterrupt:  # the way to end it
                pass
    return show.Answer({"runs": done}, f"{show.count(done)} runs")


def _source(arguments: Arguments, samples: Samples | None) -> Samples | str | int:
    from microc.reports.live import FROM_BOARD

    if arguments.from_board:
        return FROM_BOARD
    return samples if samples is not None else int(arguments.seed)


@contextmanager
def _told(arguments: Arguments, device: Device, samples: Samples | None) -> Iterator[Teller]:
    """Where runs are told."""
    if arguments.json:
        yield _write_json
        return
    from microc.reports.live import PageServer, page_of

    words = (
        f"{len(samples):,} samples of {arguments.data.name}, in a loop"
        if samples and arguments.data
        else "random numbers"
    )
    if arguments.from_board:
        words = "what the board has"
    with PageServer(page_of(device, words), arguments.http) as server:
        if not arguments.quiet:
            sys.stderr.write(f"{server.url}\nCtrl-C ends it\n")
            sys.stderr.flush()
        if arguments.browser:
            webbrowser.open(server.url)
        yield server.tell


def _write_json(event: Mapping[str, Any]) -> None:
    sys.stdout.write(show.json_text({"schema_version": SCHEMA_VERSION, "command": "watch", **event}) + "\n")
    sys.stdout.flush()
