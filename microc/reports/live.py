"""``microc watch``: run a network on a board continuously and show inputs and outputs on a local web page."""

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
from microc.run.data.samples import Samples
from microc.run.session import Device
from microc.run.verification import random_inputs

# ---- Views of arrays: picture, curves, bars or numbers, by shape; plain data of bounded size.

PIXELS, POINTS, BARS, NUMBERS = 160, 512, 64, 16
"""Maximum pixels of a picture's edge, points of a curve, bars of scores, and numbers in a row."""
_EDGE, _CURVES = 8, 7
"""Least edge of an array that is shown as a picture, and the most curves in one diagram."""


def array_view(tensor: Mapping[str, Any], array: Array, *, output: bool = False) -> dict[str, Any]:
    """Convert an array to the plain data of its view on the page, whose ``kind`` follows from the shape. Quantised
    integers are converted to reals.

    ``picture``: ``pixels``, base64 of ``height`` x ``width`` x ``channels`` bytes. ``curves``: ``series``, lists of
    equally many numbers. ``bars``: ``values``, scores of an output. ``numbers``: ``values``. None stands for infinities
    and NaN."""
    header = {"name": tensor["label"] or tensor["name"], "dtype": tensor["dtype"], "shape": list(array.shape)}
    plane = _as_picture(array)
    if plane is not None and not output:
        return {**header, "kind": "picture", **_picture_data(tensor, plane)}
    reals = _dequantize_array(tensor, array)
    if output and 1 < array.size <= BARS:
        return {**header, "kind": "bars", "values": _numbers_for_json(reals.reshape(-1))}
    if array.size > NUMBERS:
        return {**header, "kind": "curves", "series": _curve_series(reals)}
    return {**header, "kind": "numbers", "values": _numbers_for_json(reals.reshape(-1))}


def _as_picture(array: Array) -> Array | None:
    """Return an array as (rows, columns, channels) if its shape is that of a picture, else None."""
    shape = array.shape
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    match shape:
        case (height, width, channels) if channels in (1, 3) and min(height, width) >= _EDGE:
            return array.reshape(height, width, channels)
        case (channels, height, width) if channels == 3 and min(height, width) >= _EDGE:
            return array.reshape(channels, height, width).transpose(1, 2, 0)
        case (height, width) if min(height, width) >= _EDGE:
            return array.reshape(height, width, 1)
    return None


def _picture_data(tensor: Mapping[str, Any], plane: Array) -> dict[str, Any]:
    """Convert a picture (rows, columns, channels) to pixels of 8 bits: 8-bit integers by their order, others scaled from
    the picture's minimum to its maximum."""
    height, width, channels = plane.shape
    step = math.ceil(max(height, width) / PIXELS)
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


def _curve_series(reals: Array) -> list[list[float | None]]:
    """Return the numbers of an array as one curve along time, or as several, one per channel, if the last axis is short."""
    is_wide = reals.ndim > 1 and 1 < reals.shape[-1] <= _CURVES
    series = reals.reshape(-1, reals.shape[-1]).T if is_wide else reals.reshape(1, -1)
    step = math.ceil(series.shape[1] / POINTS)
    return [_numbers_for_json(curve[::step]) for curve in series]


def _dequantize_array(tensor: Mapping[str, Any], array: Array) -> Array:
    """Convert an array's quantised integers to reals; an array that is not quantised, to float64."""
    reals: Array = array.astype(np.float64)
    return reals if tensor["scale"] is None else (reals - tensor["zero_point"]) * tensor["scale"]


def _numbers_for_json(reals: Array) -> list[float | None]:
    """Round numbers to six significant digits for JSON; None for infinities and NaN."""
    return [float(f"{number:.6g}") if math.isfinite(number) else None for number in reals.tolist()]


# ---- A web server for this computer only: the page, and server-sent events.
#
# The server listens on 127.0.0.1. Its URL contains a random word, and requests must name this host. Therefore other web sites in
# the same browser, even if their names resolve to this address (DNS rebinding), can neither guess the URL nor get an answer. The
# server reads only the headers of requests, and serves two resources: the page and its events.

HOST = "127.0.0.1"
READERS = 8
"""Maximum number of event streams at a time."""
_PATIENCE = 10.0  # seconds for a request, and between two signs of life of a stream
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class EventChannel:
    """Channel that passes the latest event to waiting threads. A slow reader misses the events in between."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._number, self._text, self.closed = 0, "", False

    def tell(self, event: Mapping[str, Any]) -> None:
        """Publish an event."""
        text = json.dumps(event, allow_nan=False)
        with self._changed:
            self._number, self._text = self._number + 1, text
            self._changed.notify_all()

    def close(self) -> None:
        """Close the channel: wake all readers; no event follows."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def after(self, number: int) -> tuple[int, str]:
        """Wait for an event after ``number``; return its number and text. After a time-out or at the end: ``number`` and
        empty text."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > number or self.closed, _PATIENCE)
            return (self._number, self._text) if self._number > number else (number, "")


class PageServer(ThreadingHTTPServer):
    """Server of ``page`` at :attr:`url` and of the events given to :meth:`tell`; a context manager. ``port``: 0 for a free
    one. UsageError if the port is in use."""

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, page: str, port: int = 0) -> None:
        self.page, self.channel = page.encode("utf-8"), EventChannel()
        self.word = secrets.token_urlsafe(16)
        self.places = threading.BoundedSemaphore(READERS)
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
        """URL of the page, with a word that cannot be guessed."""
        return f"http://{HOST}:{self.server_port}/{self.word}/"

    def tell(self, event: Mapping[str, Any]) -> None:
        """Send an event to all readers."""
        self.channel.tell(event)

    def __enter__(self) -> PageServer:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.channel.close()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that disconnect."""


class _PageRequestHandler(BaseHTTPRequestHandler):
    """Handler of the requests for the page and its stream of events."""

    server: PageServer
    timeout = _PATIENCE
    server_version, sys_version = "microc", ""

    def do_GET(self) -> None:
        """Serve the page or its events; refuse everything else."""
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
        """Do not log requests."""

    def end_headers(self) -> None:
        """Add the security headers to every answer."""
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
        """Send server-sent events until the channel is closed or the browser disconnects; 503 if too many browsers listen."""
        if not self.server.places.acquire(blocking=False):
            self.send_error(503, "too many browsers look")
            return
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            number = 0
            while not self.server.channel.closed:
                number, text = self.server.channel.after(number)
                self.wfile.write(f"data: {text}\n\n".encode() if text else b": still here\n\n")
                self.wfile.flush()
        except OSError:  # the browser went away
            pass
        finally:
            self.server.places.release()
            self.close_connection = True


# ---- Runs: on samples in a loop, on random numbers, or on the inputs that the firmware itself provides.

FROM_BOARD = "board"
"""Source of inputs that the firmware itself provides."""


@frozen
class WatchedRun:
    """One inference of a watched network. ``sample``: number of its sample; ``label``: true class; both None if unknown.
    ``ticks``: of the board's timer."""

    number: int
    sample: int | None
    label: int | None
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    ticks: int


def iter_runs(device: Device, source: Samples | str | int) -> Iterator[WatchedRun]:
    """Run the network on the board endlessly; yield each run. ``source``: samples, taken in a loop; :data:`FROM_BOARD`:
    the inputs are read from the board before each run; or the seed of random inputs. State continues from run to run."""
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
            inputs = tuple(random_inputs(device.inputs, generator, device.shapes))
        if source != FROM_BOARD:
            device.set_inputs(*inputs)
        timing = device.client.run()
        outputs = tuple(device.read(tensor["name"]) for tensor in device.outputs)
        labels = source.labels if isinstance(source, Samples) else None
        label = int(labels[sample]) if labels is not None and sample is not None else None
        yield WatchedRun(number, sample, label, inputs, outputs, timing.max)
        number += 1


def run_event_data(device: Device, run: WatchedRun) -> dict[str, Any]:
    """Convert a run to the plain data of its event. ``answer``: the class with the largest score, in the first output with
    several elements."""
    clock = device.clock
    amount = clock.amount(run.ticks)
    scores = next((array for array in run.outputs if array.size > 1), None)
    return {
        "run": run.number,
        "sample": run.sample,
        "time": amount,
        "unit": clock.unit,
        "seconds": clock.seconds(amount),
        "label": run.label,
        "answer": int(np.argmax(scores)) if scores is not None else None,
        "inputs": [array_view(tensor, array) for tensor, array in zip(device.inputs, run.inputs, strict=True)],
        "outputs": [
            array_view(tensor, array, output=True) for tensor, array in zip(device.outputs, run.outputs, strict=True)
        ],
    }


# ---- The page.


@frozen
class WatchContext:
    """Values of the template ``live/watch.html.j2`` before the first run; ``source``: description of the inputs."""

    title: str
    board: str
    source: str
    unit_meaning: str


def render_watch_page(device: Device, source: str) -> str:
    """Render the page for a board."""
    project = device.project
    return render_html(
        "live/watch.html.j2",
        WatchContext(
            project.manifest["model"], project.board.title, source, f"{device.clock.unit}, {device.clock.meaning}"
        ),
    )
