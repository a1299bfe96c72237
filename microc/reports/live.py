# SPDX-License-Identifier: Apache-2.0
"""``microc watch``: run a network on a board again and again, and show its inputs and outputs on a local web page."""

from __future__ import annotations

import base64
import hmac
import json
import math
import secrets
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.codegen.render import render_html
from microc.errors import UsageError
from microc.run.data.pictures import dequantise
from microc.run.data.samples import Samples, draw_inputs
from microc.run.session import Device

# ---- Views of arrays on the page: picture, curves, bars or numbers, depending on the shape; plain data of bounded size.

MAX_PIXELS, MAX_POINTS, MAX_BARS, MAX_NUMBERS = 160, 512, 64, 16
"""Largest number of pixels along a picture's edge, of points in a curve, of bars, and of numbers in a row of numbers."""
_MIN_PICTURE_EDGE, _MAX_CURVES = 8, 7
"""Least height and width of an array that is shown as a picture; largest number of curves in one diagram."""


def array_to_view_data(tensor: Mapping[str, Any], array: Array, *, output: bool = False) -> dict[str, Any]:
    """Convert an array to plain data that the page shows as a picture, curves, bars or numbers.

    ``kind`` of the view depends on the array's shape. A ``picture`` has ``pixels``, base64 of ``height`` x ``width`` x
    ``channels`` bytes. ``curves`` have ``series``, lists of numbers of the same length. ``bars`` (for an output's scores)
    and ``numbers`` have ``values``. Quantised integers are converted to reals; None replaces infinities and NaN."""
    header = {"name": tensor["label"] or tensor["name"], "dtype": tensor["dtype"], "shape": list(array.shape)}
    plane = _to_picture_layout(array)
    if plane is not None and not output:
        return {**header, "kind": "picture", **_picture_to_view_data(tensor, plane)}
    reals = dequantise(array, tensor)
    if output and 1 < array.size <= MAX_BARS:
        return {**header, "kind": "bars", "values": _round_numbers_for_json(reals.reshape(-1))}
    if array.size > MAX_NUMBERS:
        return {**header, "kind": "curves", "series": _split_into_curves(reals)}
    return {**header, "kind": "numbers", "values": _round_numbers_for_json(reals.reshape(-1))}


def _to_picture_layout(array: Array) -> Array | None:
    """Return an array in the layout (rows, columns, channels) if its shape is that of a picture, else None."""
    shape = array.shape
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    match shape:
        case (height, width, channels) if channels in (1, 3) and min(height, width) >= _MIN_PICTURE_EDGE:
            return array.reshape(height, width, channels)
        case (channels, height, width) if channels == 3 and min(height, width) >= _MIN_PICTURE_EDGE:
            return array.reshape(channels, height, width).transpose(1, 2, 0)
        case (height, width) if min(height, width) >= _MIN_PICTURE_EDGE:
            return array.reshape(height, width, 1)
    return None


def _picture_to_view_data(tensor: Mapping[str, Any], plane: Array) -> dict[str, Any]:
    """Convert a picture (rows, columns, channels) to plain data with 8-bit pixels.

    The least value of an 8-bit dtype becomes 0, the largest 255. Other dtypes are scaled so that the picture's minimum
    becomes 0 and its maximum 255."""
    height, width, channels = plane.shape
    step = math.ceil(max(height, width) / MAX_PIXELS)
    shown = plane[::step, ::step].astype(np.float64)
    if tensor["dtype"] in ("int8", "uint8"):
        low, high = (-128.0, 127.0) if tensor["dtype"] == "int8" else (0.0, 255.0)
    else:
        finite = shown[np.isfinite(shown)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    scaled = np.nan_to_num((shown - low) * (255 / ((high - low) or 1.0)), posinf=255.0, neginf=0.0)
    pixels = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
    return {
        "height": pixels.shape[0],
        "width": pixels.shape[1],
        "channels": channels,
        "pixels": base64.b64encode(pixels.tobytes()).decode("ascii"),
    }


def _split_into_curves(reals: Array) -> list[list[float | None]]:
    """Return the curves that show an array: one for each channel if the last axis is short, else a single curve."""
    is_wide = reals.ndim > 1 and 1 < reals.shape[-1] <= _MAX_CURVES
    series = reals.reshape(-1, reals.shape[-1]).T if is_wide else reals.reshape(1, -1)
    step = math.ceil(series.shape[1] / MAX_POINTS)
    return [_round_numbers_for_json(curve[::step]) for curve in series]


def _round_numbers_for_json(reals: Array) -> list[float | None]:
    """Round numbers to six significant digits for JSON; replace infinities and NaN by None."""
    return [float(f"{number:.6g}") if math.isfinite(number) else None for number in reals.tolist()]


# ---- A web server for this computer only, which serves the page and its server-sent events.
#
# The server listens on 127.0.0.1. Its URL contains a random word, and the Host header of requests must name this address.
# Therefore other web sites in the same browser, even if their names resolve to this address (DNS rebinding), can neither guess
# the URL nor get an answer. The server reads only the headers of requests, and serves two resources: the page and its events.

HOST = "127.0.0.1"
MAX_EVENT_STREAMS = 8
"""Largest number of event streams at a time."""
_TIMEOUT = 10.0  # time limit in seconds for a request; longest time between two messages of an event stream
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class EventChannel:
    """A channel that passes the latest event to waiting threads. A thread that reads too slowly misses events."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._number, self._text, self.closed = 0, "", False

    def publish(self, event: Mapping[str, Any]) -> None:
        """Publish an event: it becomes the latest event, and all waiting threads continue."""
        text = json.dumps(event, allow_nan=False)
        with self._changed:
            self._number, self._text = self._number + 1, text
            self._changed.notify_all()

    def close(self) -> None:
        """Close the channel: all waiting threads continue, and no event follows."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def wait_for_event_after(self, number: int) -> tuple[int, str]:
        """Wait for an event later than event ``number``; return the number and the text of the latest event.

        After a time-out, or if the channel is closed, return ``number`` and an empty text."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > number or self.closed, _TIMEOUT)
            return (self._number, self._text) if self._number > number else (number, "")


class PageServer(ThreadingHTTPServer):
    """A web server, as a context manager, for a page at :attr:`url` and for the events that :meth:`publish` publishes.

    ``page``: the page's HTML; ``port``: TCP port, 0 for any free port. Raises UsageError if the port is in use."""

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, page: str, port: int = 0) -> None:
        self.page, self.channel = page.encode("utf-8"), EventChannel()
        self.word = secrets.token_urlsafe(16)
        self.places = threading.BoundedSemaphore(MAX_EVENT_STREAMS)
        try:
            super().__init__((HOST, port), _PageRequestHandler)
        except OSError as error:
            raise UsageError(
                f"the page cannot be served on port {port}: {error.strerror or error}",
                hint="choose another port (--http), or leave out --http",
            ) from error
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """URL of the page; it contains a random word, so that it cannot be guessed."""
        return f"http://{HOST}:{self.server_port}/{self.word}/"

    def publish(self, event: Mapping[str, Any]) -> None:
        """Send an event to all browsers that show the page."""
        self.channel.publish(event)

    def __enter__(self) -> PageServer:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.channel.close()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of a request: they come from browsers that disconnect."""


class _PageRequestHandler(BaseHTTPRequestHandler):
    """Handler of HTTP requests for the page and its event stream."""

    server: PageServer
    timeout = _TIMEOUT
    server_version, sys_version = "microc", ""

    def do_GET(self) -> None:
        """Send the page or the event stream, depending on the URL; send an error for any other request."""
        if self.headers.get("Host") not in (
            f"{HOST}:{self.server.server_port}",
            f"localhost:{self.server.server_port}",
        ):
            self.send_error(403, "this page has another address")
            return
        _, word, *rest = [*self.path.split("/", 2), ""]
        if not hmac.compare_digest(word.encode("latin-1", "replace"), self.server.word.encode()) or len(rest) < 2:
            self.send_error(404)
        elif rest[0] == "":
            self._send_page()
        elif rest[0] == "events":
            self._stream_events()
        else:
            self.send_error(404)

    def log_message(self, format: str, *args: Any) -> None:
        """Ignore log messages, so that requests are not logged."""

    def end_headers(self) -> None:
        """Add the security headers to every response."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def _send_page(self) -> None:
        """Send the HTML page."""
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(self.server.page)))
        self.end_headers()
        self.wfile.write(self.server.page)

    def _stream_events(self) -> None:
        """Send server-sent events until the channel is closed or the browser disconnects.

        Send the HTTP error 503 instead if there are already :data:`MAX_EVENT_STREAMS` event streams."""
        if not self.server.places.acquire(blocking=False):
            self.send_error(503, "too many browsers look")
            return
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            number = 0
            while not self.server.channel.closed:
                number, text = self.server.channel.wait_for_event_after(number)
                self.wfile.write(f"data: {text}\n\n".encode() if text else b": still here\n\n")
                self.wfile.flush()
        except OSError:  # the browser went away
            pass
        finally:
            self.server.places.release()
            self.close_connection = True


# ---- Runs of the network: on samples in a loop, on random inputs, or on the inputs that the firmware itself provides.

FROM_BOARD = "board"
"""Value of ``source`` in :func:`iter_runs` for inputs that the firmware itself provides."""


@frozen
class WatchedRun:
    """One inference of a watched network.

    ``sample``: index of its sample, None if the inputs are no samples; ``label``: the sample's true class, None if
    unknown; ``ticks``: duration in ticks of the board's timer."""

    number: int
    sample: int | None
    label: int | None
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    ticks: int


def iter_runs(device: Device, source: Samples | str | int) -> Iterator[WatchedRun]:
    """Run the network on the board endlessly, and yield each run.

    ``source``: samples, which are used in a loop; or :data:`FROM_BOARD`, to read the inputs from the board before each run;
    or the seed of random inputs. The network's state is kept from run to run."""
    device.reset()
    generator = np.random.default_rng(source if isinstance(source, int) else 0)
    number = 0
    while True:
        sample = number % len(source) if isinstance(source, Samples) else None
        if isinstance(source, Samples):
            inputs = source.sample(number % len(source))
        elif source == FROM_BOARD:
            inputs = tuple(device.read(tensor["name"]) for tensor in device.inputs)
        else:
            inputs = tuple(draw_inputs(device.inputs, generator, device.shapes))
        if source != FROM_BOARD:
            device.set_inputs(*inputs)
        timing = device.client.run()
        outputs = tuple(device.read(tensor["name"]) for tensor in device.outputs)
        labels = source.labels if isinstance(source, Samples) else None
        label = int(labels[sample]) if labels is not None and sample is not None else None
        yield WatchedRun(number, sample, label, inputs, outputs, timing.max)
        number += 1


def run_to_event_data(device: Device, run: WatchedRun) -> dict[str, Any]:
    """Convert a run to the plain data of the event that the page receives.

    ``answer``: index of the largest element in the first output with several elements, None if there is no such output."""
    clock = device.clock
    amount = clock.convert_ticks(run.ticks)
    scores = next((array for array in run.outputs if array.size > 1), None)
    return {
        "run": run.number,
        "sample": run.sample,
        "time": amount,
        "unit": clock.unit,
        "seconds": clock.seconds(amount),
        "label": run.label,
        "answer": int(np.argmax(scores)) if scores is not None else None,
        "inputs": [array_to_view_data(tensor, array) for tensor, array in zip(device.inputs, run.inputs, strict=True)],
        "outputs": [
            array_to_view_data(tensor, array, output=True)
            for tensor, array in zip(device.outputs, run.outputs, strict=True)
        ],
    }


# ---- The page.


@frozen
class WatchContext:
    """Values that the template ``live/watch.html.j2`` of the page uses.

    ``title``: the network's name; ``board``: the board's title; ``source``: description of the inputs; ``unit_meaning``:
    unit of the time, with its meaning."""

    title: str
    board: str
    source: str
    unit_meaning: str


def render_watch_page(device: Device, source: str) -> str:
    """Render the HTML page of ``microc watch`` for a board; ``source``: description of the inputs."""
    project = device.project
    return render_html(
        "live/watch.html.j2",
        WatchContext(
            project.manifest["model"], project.board.title, source, f"{device.clock.unit}, {device.clock.meaning}"
        ),
    )
