"""A page of this computer for this computer alone: what happens is sent to whoever has its address, as server-sent events.

The server listens on 127.0.0.1. Its address holds a random word, and requests must name this host, so that pages of strangers in
the same browser, whose names may be made to lead here (DNS rebinding), neither find it nor are answered. It reads nothing but
the first lines of requests, and serves two things: the page, and its events.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from microc.errors import UsageError

HOST = "127.0.0.1"
READERS = 8
"""Browsers that look at the same time."""
_PATIENCE = 10.0  # seconds for a request, and between two signs of life of a stream
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Channel:
    """What was told last, for those who wait; who is slow misses what is between."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._number, self._text, self.closed = 0, "", False

    def tell(self, event: Mapping[str, Any]) -> None:
        """Tell all who look."""
        text = json.dumps(event, allow_nan=False)
        with self._changed:
            self._number, self._text = self._number + 1, text
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing more will be told."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def after(self, number: int) -> tuple[int, str]:
        """What was told after ``number``, and its own; the same number and nothing, after some seconds or at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > number or self.closed, _PATIENCE)
            return (self._number, self._text) if self._number > number else (number, "")


class PageServer(ThreadingHTTPServer):
    """Serves ``page`` at :attr:`url`, and tells what :meth:`tell` is given, as a context manager. ``port``: 0 for a free one.

    UsageError where the port is taken.
    """

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, page: str, port: int = 0) -> None:
        self.page, self.channel = page.encode("utf-8"), Channel()
        self.word = secrets.token_urlsafe(16)
        self.places = threading.BoundedSemaphore(READERS)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise UsageError(
                f"the page cannot be served on port {port}: {error.strerror or error}",
                hint="choose another --http, or none",
            ) from error
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """The address of the page, which nobody guesses."""
        return f"http://{HOST}:{self.server_port}/{self.word}/"

    def tell(self, event: Mapping[str, Any]) -> None:
        """Send an event to all who look."""
        self.channel.tell(event)

    def __enter__(self) -> PageServer:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.channel.close()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = _PATIENCE
    server_version, sys_version = "microc", ""

    def do_GET(self) -> None:
        """The page or its events; all else is refused before it is looked at."""
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
            self._page()
        elif rest[0] == "events":
            self._events()
        else:
            self.send_error(404)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not told."""

    def end_headers(self) -> None:
        """The headers of every answer."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def _page(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(self.server.page)))
        self.end_headers()
        self.wfile.write(self.server.page)

    def _events(self) -> None:
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
