"""The page that shows a network at work."""

from __future__ import annotations

from microc.codegen.render import render_html
from microc.driver.measure.session import Device
from microc.frozen import frozen


@frozen
class WatchContext:
    """What ``live/watch.html.j2`` shows before the first run; ``source``: where the inputs come from, in words."""

    title: str
    board: str
    source: str
    unit_meaning: str


def page_of(device: Device, source: str) -> str:
    """The page of a board."""
    project = device.project
    return render_html(
        "live/watch.html.j2",
        WatchContext(
            project.manifest["model"], project.board.title, source, f"{device.clock.unit}, {device.clock.meaning}"
        ),
    )
